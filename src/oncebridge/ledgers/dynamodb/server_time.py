"""The time at DynamoDB, which has no clock to ask: computed from the `Date` of its answers.

A date is a whole second, written somewhere between request and answer: it bounds the difference between the
server's time and this process' monotonic clock from both sides. Many answers together bound it closely. The
machine's own wall clock plays no part, so a worker whose clock is wrong takes nothing over too early.
"""

from __future__ import annotations

import threading
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from oncebridge import forks
from oncebridge.errors import LedgerUnavailable

if TYPE_CHECKING:
    from oncebridge.clock import Clock

SECOND_US: Final = 1_000_000
#: By how much the servers that answer may disagree with each other.
MARGIN_US: Final = 500_000
#: A monotonic clock gains or loses at most one microsecond in this many.
DRIFT_US: Final = 2_000


class Bounds(NamedTuple):
    """The moments between which the present time lies. A lease has ended only if it has by the earliest."""

    earliest_us: int
    latest_us: int


class ServerTime(Protocol):
    """Knows the ledger's time."""

    #: How often the assumed time turned out to be wrong, such as after a machine was frozen.
    contradictions: int

    def bounds(self) -> Bounds:
        """Return the moments between which the present time lies."""
        ...

    def hear(self, date: str | None, sent_us: int) -> None:
        """Learn from the date of an answer to a request that was sent at this monotonic moment."""
        ...


class GivenTime:
    """The time of a clock that was given: for tests, where time is moved by hand."""

    def __init__(self, clock: Clock) -> None:
        """Take the clock."""
        self._clock = clock
        self.contradictions = 0

    def bounds(self) -> Bounds:
        """Return the clock's time, which is exact."""
        now_us = self._clock.now_us()
        return Bounds(now_us, now_us)

    def hear(self, date: str | None, sent_us: int) -> None:
        """Ignore it: the clock is exact."""


class DateTime:
    """The time according to the dates of answers."""

    def __init__(self, clock: Clock) -> None:
        """Take the clock whose monotonic time is compared with the dates."""
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[int, int, int] | None = None  # least and most to add to monotonic time, as of when
        self.contradictions = 0
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: the bounds stay true on both sides."""

    def after_fork(self, *, in_child: bool) -> None:
        """Take a new lock in a child: another thread may have held this one."""
        if in_child:
            self._lock = threading.Lock()

    def bounds(self) -> Bounds:
        """Return the moments between which the present time lies; the longer there was no answer, the further apart."""
        with self._lock:
            now_us = self._clock.monotonic_us()
            if self._known is None:
                raise LedgerUnavailable("DynamoDB's answers carry no Date, so leases cannot be judged")
            least, most = self._widened(now_us)
        return Bounds(now_us + least, now_us + most)

    def hear(self, date: str | None, sent_us: int) -> None:
        """Narrow the bounds. If an answer contradicts earlier ones, believe neither until the next one decides."""
        second_us = _read(date)
        if second_us is None:
            return
        with self._lock:
            received_us = self._clock.monotonic_us()
            least = second_us - received_us - MARGIN_US
            most = second_us + SECOND_US - sent_us + MARGIN_US
            if self._known is not None:
                known_least, known_most = self._widened(received_us)
                if least > known_most or most < known_least:
                    self.contradictions += 1
                    least, most = min(least, known_least), max(most, known_most)
                else:
                    least, most = max(least, known_least), min(most, known_most)
            self._known = (least, most, received_us)

    def _widened(self, now_us: int) -> tuple[int, int]:
        assert self._known is not None
        least, most, at_us = self._known
        drift_us = max(0, now_us - at_us) // DRIFT_US + 1
        return least - drift_us, most + drift_us


def _read(date: str | None) -> int | None:
    """Parse the date of an answer; None if it is no date."""
    try:
        moment = parsedate_to_datetime(date or "")
    except (TypeError, ValueError):
        return None
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()) * SECOND_US
