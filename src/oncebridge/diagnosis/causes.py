"""From evidence to a cause, and the reason in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.diagnosis.diagnosis import Cause
from oncebridge.diagnosis.evidence import Evidence, Relation
from oncebridge.diagnosis.words import REASONS, REGULAR_REASONS
from oncebridge.quantities import part_of, percent, span

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A copy of at least this share of a topic's envelopes is a rule, not an accident.
REGULAR_SHARE: Final = 0.5
REGULAR_LEAST: Final = 3


class Regularity(msgspec.Struct):
    """How many envelopes of a topic came, how many of them twice and thrice at once, and how many again later only."""

    envelopes: int = 0
    at_once: int = 0
    later: int = 0
    thrice: int = 0

    def is_regular(self, relation: Relation) -> bool:
        """Return whether so many come in this way that a rule must be behind it, not an accident."""
        number = self._number(relation)
        return number >= max(REGULAR_LEAST, REGULAR_SHARE * self.envelopes)

    def share_text(self, relation: Relation) -> str:
        """Say how regular it is."""
        share = percent(part_of(self._number(relation), self.envelopes))
        return f"{share} of the {self.envelopes:,} envelopes of its topic"

    def _number(self, relation: Relation) -> int:
        if relation is Relation.PERHAPS_THRICE:
            return self.thrice
        return self.later if relation is Relation.LATER else self.at_once


_NEVER: Final = Regularity()

_CAUSES: Final = {
    Relation.SAME_MESSAGE: Cause.SQS_REDELIVERY,
    Relation.CAPTURED_TWICE: Cause.UNKNOWN,
    Relation.SAME_REQUEST: Cause.LAMBDA_RETRY,
    Relation.SAME_INVOCATION: Cause.UNKNOWN,
    Relation.IN_RHYTHM: Cause.LAMBDA_RETRY,
    Relation.OTHER_TARGET: Cause.OVERLAPPING_RULES,
    Relation.AT_ONCE: Cause.OVERLAPPING_RULES,
    Relation.SOON: Cause.OVERLAPPING_RULES,
    Relation.OTHER_FILE: Cause.UNKNOWN,
    Relation.PERHAPS_AT_ONCE: Cause.UNKNOWN,
    Relation.PERHAPS_THRICE: Cause.UNKNOWN,
    Relation.PERHAPS_OFTEN: Cause.UNKNOWN,
    Relation.LATER: Cause.EVENTBRIDGE_RETRY,
    Relation.SENT_AGAIN: Cause.EVENTBRIDGE_RETRY,
    Relation.LATER_UNTOLD: Cause.UNKNOWN,
    Relation.REPLAY: Cause.ARCHIVE_REPLAY,
    Relation.OTHER_ORIGIN: Cause.SECOND_INTEGRATION,
    Relation.NEW_ENVELOPE: Cause.GENESYS_REPUBLISH,
    Relation.NO_ENVELOPE: Cause.UNKNOWN,
    Relation.ECHO: Cause.ECHO,
    Relation.OTHER_TOPIC: Cause.TWO_TOPICS,
}


def cause_of(relation: Relation, regularity: Regularity) -> Cause:
    """Decide the cause; only for one envelope that came twice it matters how regular that is."""
    if relation in REGULAR_REASONS and regularity.is_regular(relation):
        return Cause.OVERLAPPING_RULES
    return _CAUSES[relation]


def reason_of(evidence: Evidence, regularities: Mapping[str, Regularity]) -> str:
    """Say why, in words that name no content of the event."""
    relation, regularity = evidence.relation, regularities.get(evidence.topic, _NEVER)
    text = REASONS[relation]
    is_regular = regularity.is_regular(relation)
    if is_regular:
        text = REGULAR_REASONS.get(relation, text)
    return text.format(
        first=f"delivery {evidence.of:,}",
        since=span(evidence.since_ms),
        lag=span(evidence.lag_ms),
        named=_named(evidence),
        share=regularity.share_text(relation),
        rule="two rules or targets match" if is_regular else "a second rule matches some of them",
    )


def _named(evidence: Evidence) -> str:
    if evidence.relation is Relation.SAME_MESSAGE:
        return f"for the {ordinal(evidence.named)} time" if evidence.named.isdigit() else "again"
    return evidence.named or "without a name"


def ordinal(digits: str) -> str:
    """Write a number as a position: 2nd, 3rd, 11th."""
    last, last_two = digits[-1:], digits[-2:]
    ending = "th" if last_two in ("11", "12", "13") else {"1": "st", "2": "nd", "3": "rd"}.get(last, "th")
    return digits + ending
