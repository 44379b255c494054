"""The result of a delivery, and its reason in words."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.claim import Answer, Outcome, Status, Verdict
from oncebridge.telemetry import COLUMNS, Move

if TYPE_CHECKING:
    from collections.abc import Sequence


class Result(msgspec.Struct, frozen=True, gc=False):
    """The result of one delivery."""

    verdict: Verdict
    reason: str
    #: How its claim was settled; None where there was nothing to settle, or no handler to call.
    outcome: Outcome | None = None
    #: The envelope id of the delivery that did the work, where it is known.
    original_envelope_id: str | None = None
    key: str | None = None
    topic: str | None = None
    #: The delivery's own envelope id.
    envelope_id: str | None = None
    #: For a delivery that is not acknowledged: when to redeliver it, as advice.
    retry_in_us: int = 0
    #: The event's own time, where it has one.
    time_ms: int | None = None
    #: The name of the handler that this is about.
    handler: str = ""
    #: Keyed digests of its conversation's and its user's id, for the journal.
    conversation: bytes | None = None
    user: bytes | None = None

    @property
    def column(self) -> str:
        """The column of the books that this delivery belongs to."""
        return column_of(self.verdict, self.outcome)

    @property
    def acknowledged(self) -> bool:
        """Whether the delivery may be acknowledged: its event is settled for good, durably."""
        return column_of(self.verdict, self.outcome) != "retrying"

    @property
    def error(self) -> BaseException | None:
        """The exception that its handler raised, with its traceback; None if it raised none.

        It may hold personal data, so it is part of neither the repr nor JSON.
        """
        return None


class FailedResult(Result, frozen=True, dict=True, gc=True):
    """The result of a delivery whose handler has raised an exception.

    An exception refers to the frames of all its callers, and so to this result: only with `gc` does that circle end.
    """

    @property
    def error(self) -> BaseException | None:
        """The exception."""
        error: BaseException | None = self.__dict__.get(_ERROR)
        return error


_ERROR: Final = "_error"  # no field: neither shown nor written


def with_error(result: Result, error: BaseException | None) -> Result:
    """Add to a result the exception that its handler raised, if it did."""
    if error is None:
        return result
    failed = FailedResult(*[getattr(result, name) for name in result.__struct_fields__])
    failed.__dict__[_ERROR] = error
    return failed


@lru_cache  # there are few, and every delivery asks several times
def column_of(verdict: Verdict, outcome: Outcome | None) -> str:
    """Return the column of the books that a delivery belongs to."""
    if outcome in (Outcome.RETRY, Outcome.RELEASE) or verdict is Verdict.BUSY:
        return "retrying"
    if verdict in (Verdict.CONFLICT, Verdict.UNHANDLED):
        return verdict.value  # whether a dead letter is kept of it or not
    if outcome is Outcome.DEAD:
        return "dead"
    return "processed" if verdict is Verdict.FRESH else verdict.value


def delivered(results: Sequence[Result]) -> list[Move]:
    """Return the moves that report these deliveries to counters: one move for all that are alike."""
    alike = Counter([(result.topic, result.verdict, result.outcome) for result in results])
    return [
        Move(
            move="delivered",
            key="",
            topic=topic or "",
            verdict=verdict,
            outcome=outcome,
            column=column_of(verdict, outcome),
            number=number,
        )
        for (topic, verdict, outcome), number in alike.items()
    ]


_SETTLED_AS: Final = {
    Status.DONE: "done",
    Status.ECHO: "recorded as an echo",
    Status.STALE: "recorded as stale",
    Status.DEAD: "kept as a dead letter",
    Status.DISCARD: "discarded",
}


_REASONS: Final = {
    Verdict.REDELIVERY: "same event in the same envelope, already {settled}",
    Verdict.REPUBLISH: "same event in another envelope, already {settled}",
    Verdict.ECHO: "the entity has this very state already, within the echo window",
    Verdict.STALE: "older than the newest state of its entity",
    Verdict.BUSY: "the event, or another of its entity, is being worked on",
    Verdict.CONFLICT: "its id came before with other content; kept as a dead letter",
}


def reason_for(answer: Answer) -> str:
    """Say in words why a delivery needs no work, or has to wait."""
    if answer.verdict in _REASONS:
        return _REASONS[answer.verdict].format(settled=_SETTLED_AS.get(answer.was or Status.DONE, "done"))
    return "first delivery of this event" if answer.attempt == 1 else f"attempt {answer.attempt}"


#: Of several handlers' results, the one that represents the delivery: first pending work, then failures, then
#: completed work.
_COLUMNS_BY_WEIGHT: Final = (
    "retrying", "dead", "conflict", "unhandled", "processed", "echo", "stale", "republish", "redelivery",
)  # fmt: skip


def joined(results: list[Result]) -> Result:
    """Join the results of one delivery at its several handlers; it is busy if nothing else holds it up."""
    return min(results, key=lambda result: (_COLUMNS_BY_WEIGHT.index(result.column), result.verdict is Verdict.BUSY))


def books_of(columns: Sequence[str]) -> dict[str, int]:
    """Count the deliveries of one batch by the columns of the books that they belong to."""
    counted = Counter(columns)
    return {"received": len(columns), **{column: counted[column] for column in COLUMNS}}


def why_again(results: Sequence[Result]) -> str:
    """Say how many deliveries of a batch must be redelivered, and why the first of them; free of personal data."""
    reasons = [result.reason for result in results if not result.acknowledged]
    return f"{len(reasons)} of {len(results)} deliveries have to come again; the first: {reasons[0]}"
