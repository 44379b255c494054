"""The one policy for waiting: for busy events, for a ledger that is out of reach, and for the next try of an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncebridge.claim import Outcome
from oncebridge.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.engine.result import Result
    from oncebridge.engine.task import Task

POLL_US: Final = 50_000  # how often a busy event is asked for again
CALL_TRIES: Final = 3  # a ledger call may be repeated: nonces and tokens make that harmless
BACKOFF: Final = RetryPolicy(base_seconds=0.05, growth=2, cap_seconds=1.0)  # between the tries of one ledger call
#: Between batches, while the ledger is away.
OUTAGE_BACKOFF: Final = RetryPolicy(base_seconds=0.1, growth=2, cap_seconds=5.0)

#: How long after the last attempt of any event a command that has to end waits for the next one: a policy that spreads
#: attempts over hours is for sources that keep events meanwhile.
PATIENCE_US: Final = 60_000_000


def made_attempt(result: Result) -> bool:
    """Return whether an event was tried, here or elsewhere; one that waits for its receiver was not."""
    return result.outcome is not Outcome.RELEASE


def busy_wait_us(tasks: Sequence[Task], left_us: int) -> int:
    """Return how long to wait before busy tasks are asked for again."""
    soonest_us = min((task.answer.busy_us for task in tasks if task.answer is not None), default=0)
    return max(1000, min(soonest_us, POLL_US, left_us))
