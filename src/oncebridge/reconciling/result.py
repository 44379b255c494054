"""The result of a run: what programs, terminal and pages show, and what the ledger keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.attendance import TOPIC_OF
from oncebridge.genesys.conversations import iso
from oncebridge.reconciling.comparison import Counts
from oncebridge.reconciling.silences import ALL, Cause, Silences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.reconciling.gaps import Gap, Gaps

#: Gaps that a result holds; `--json` prints all of them.
GAPS_SHOWN: Final = 1000
SILENCES_SHOWN: Final = 20


class ShownGap(msgspec.Struct, frozen=True):
    """A gap as people and programs see it."""

    conversation: str
    ended: str
    missing: list[str]
    cause: Cause
    #: When what is missing should have come: the first and the last of it.
    since: str
    until: str
    never: bool = False


class ShownSilence(msgspec.Struct, frozen=True):
    """A time in which something was silent that should not have been."""

    cause: Cause
    #: The topic; empty if all were silent.
    topic: str
    since: str
    until: str
    conversations: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `reconcile`."""

    #: When it was made, to the millisecond: also its name, since cron begins several in a second.
    made: str
    since: str
    until: str
    #: Up to when Genesys' own data was complete; empty if nobody said so.
    watermark: str = ""
    counts: Counts
    causes: dict[str, int] = {}
    silences: list[ShownSilence] = []
    gaps: list[ShownGap] = []
    gaps_left_out: int = 0
    families: list[str] = []
    #: What changed since an earlier run about the same time, in sentences.
    changes: list[str] = []

    @property
    def judged_until(self) -> str:
        """Up to when it has judged: its end, or the watermark if that is earlier."""
        return min(self.until, self.watermark or self.until)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.counts.partial and not self.counts.missing


def shown(gap: Gap, cause: Cause) -> ShownGap:
    """Return a gap for people."""
    times = [one.at_ms for one in gap.missing]
    return ShownGap(
        gap.conversation, iso(gap.ended_ms), gap.families, cause, iso(min(times)), iso(max(times)), gap.never
    )


def with_causes(gaps: Gaps, silences: Silences) -> Iterator[tuple[Gap, ShownGap]]:
    """Yield all gaps, also as people see them, with their causes; they are read once before, to count."""
    for gap in gaps:
        silences.count(gap.missing)
    for gap in gaps:
        yield gap, shown(gap, silences.cause(gap.missing, never=gap.never))


def shown_silences(silences: Silences) -> list[ShownSilence]:
    """Return the silences that gaps were found in, the longest lists first."""
    found = [
        ShownSilence(
            Cause.EVERYTHING if silence.family == ALL else Cause.TOPIC,
            TOPIC_OF.get(silence.family, ""),
            iso(first_s * 1000),
            iso(last_s * 1000),
            conversations,
        )
        for silence, (first_s, last_s, conversations) in silences.seen.items()
    ]
    return sorted(found, key=lambda one: (-one.conversations, one.since, one.topic))[:SILENCES_SHOWN]


def contract(run: Run) -> dict[str, Any]:
    """Return a run as `--json` prints it, without its gaps."""
    counts = run.counts
    return {
        "watermark": run.watermark or None,
        "ended": counts.ended,
        "whole": counts.whole,
        "partial": counts.partial,
        "missing": counts.missing,
        "provisional": counts.provisional,
        "no_end": counts.no_end,
        "open": counts.open,
        "before_attendance": counts.before,
        "since": run.since,
        "until": run.until,
        "made": run.made,
        "expected": run.families,
        "causes": run.causes,
        "silences": run.silences,
        "changes": run.changes,
    }
