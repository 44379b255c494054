"""When deliveries arrived: as AWS says, or as their neighbours in the capture show."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from oncebridge.sources.captures.found import Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableSequence, Sequence

    from oncebridge.diagnosis.sighting import Sighting

UNKNOWN: Final = -1
#: A stamp this far ahead of all before it is believed when the next delivery agrees.
JUMP_MS: Final = 600_000
#: How far behind a delivery one looks for a later arrival.
_LOOK_MAX: Final = 2000


def told_ms(around: Surroundings) -> int:
    """Return when a delivery arrived, if AWS or a logger wrote it."""
    if around.logged_ms is not None:
        return around.logged_ms
    if around.arrived_ms is not None:
        return around.arrived_ms
    # A message that was received before has the time of the first receive only.
    return earliest_ms(around) if around.receive_count in (None, 1) else UNKNOWN


def earliest_ms(around: Surroundings) -> int:
    """Return the time before which a message cannot have arrived."""
    received = around.first_received_ms
    return received if received is not None else UNKNOWN if around.sent_ms is None else around.sent_ms


class Numbered(Protocol):
    """Something that is known of one delivery."""

    @property
    def n(self) -> int:
        """The number of the delivery."""


_Row = TypeVar("_Row", bound=Numbered)
_by_number: Final = attrgetter("n")


class ArrivalClock:
    """Estimates arrivals in the order of the input: a delivery cannot have come before what stands above it."""

    def __init__(self) -> None:
        """Begin a file: its times say nothing of the next one's."""
        self._floor = UNKNOWN
        self._ahead = UNKNOWN

    def next(self, told: int, published: int) -> int:
        """Return when the next delivery arrived, at the earliest; -1 where nothing is known."""
        self._note(told if told >= 0 else published)
        return told if told >= 0 else max(self._floor, published)

    @property
    def floor(self) -> int:
        """The latest time that is believed; -1 if there is none."""
        return self._floor

    def _note(self, time: int) -> None:
        if time <= self._floor:
            return
        if self._floor < 0 or time <= self._floor + JUMP_MS:
            self._floor, self._ahead = time, UNKNOWN
        elif self._ahead >= 0:
            self._floor, self._ahead = min(time, self._ahead), UNKNOWN
        else:
            self._ahead = time  # one clock that is wrong must not move all that follows


class Arrivals:
    """The arrival of each delivery by its number, in milliseconds since 1970."""

    def __init__(self, times: Sequence[int] | MutableSequence[int], *, is_disordered: bool = False) -> None:
        """Take the times, the first delivery's first, and whether they show that the capture is in another order."""
        self._times = times
        self.is_disordered = is_disordered
        #: A time, and from which place to which none is later.
        self._looked = (UNKNOWN, 0, 0)

    def of(self, n: int) -> int:
        """Return when a delivery arrived, at the earliest; -1 where nothing is known."""
        return self._times[n - 1]

    def in_order(self, rows: Iterable[_Row]) -> list[_Row]:
        """Return rows in the order in which their deliveries came: that of the capture, or of the times it tells."""
        found = sorted(rows, key=_by_number)
        if self.is_disordered:
            found.sort(key=lambda row: self._times[row.n - 1])
        return found

    @staticmethod
    def is_told(one: Sighting) -> bool:
        """Return whether AWS or a logger wrote when a delivery arrived."""
        return one.around is not None and told_ms(one.around) >= 0

    def between(self, one: Sighting, other: Sighting) -> int:
        """Return how long after one delivery the other arrived, as far as is known."""
        sent = _sent(one, other)
        if sent is not None:
            return sent
        first, second = self.of(one.n), self.of(other.n)
        return second - first if first >= 0 and second >= 0 else 0

    def apart(self, one: Sighting, other: Sighting) -> tuple[int, int | None]:
        """Return how far apart two deliveries are: at least, and at most if that is known."""
        lag_ms = abs(self.between(one, other))
        if _sent(one, other) is not None or (self.is_told(one) and self.is_told(other)):
            return lag_ms, lag_ms
        until = self._until(other.n)
        first = self.of(one.n)
        return lag_ms, None if until is None or first < 0 else until - first

    def _until(self, n: int) -> int | None:
        """Return when a delivery arrived at the latest: what stands below it came later, unless order was lost."""
        times, own = self._times, self._times[n - 1]
        if own < 0:
            return None
        time, first, last = self._looked
        # Where old events come again, no time is later for long: what was looked at once need not be again.
        if own != time or not first <= n <= last:
            first = last = n
        end = min(n + _LOOK_MAX, len(times))
        while last < end and times[last] <= own:
            last += 1
        self._looked = own, first, last
        return times[last] if last < end else None


def _sent(one: Sighting, other: Sighting) -> int | None:
    """Return how long after one message the other was sent; None where they are one, or the times are not known."""
    before, after = one.around, other.around
    if before is None or after is None or before.sent_ms is None or after.sent_ms is None:
        return None
    return None if before.message_id == after.message_id else after.sent_ms - before.sent_ms
