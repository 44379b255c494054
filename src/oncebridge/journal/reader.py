"""Reads the journal of all workers, for pages and commands."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.journal.pauses import Pause, Pauses
from oncebridge.journal.records import (
    DELIVERIES,
    HOUR_US,
    MINUTE_US,
    WORKERS,
    Count,
    SeenDelivery,
    WorkerSeen,
    hour_page,
    minute_page,
)
from oncebridge.ledgers.notes import NOTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.clock import Clock
    from oncebridge.ledgers.notes import Note, Notes

MINUTES_MAX: Final = 180
HOURS_MAX: Final = 72
ROWS_MAX: Final = 200
#: How many rows are read for one page of a filtered list.
LOOKED_AT_MAX: Final = 2000
#: After so long without a word a worker no longer counts as running, unless it is a function.
SILENT_MS: Final = 30_000

_delivery: Final = msgspec.msgpack.Decoder(SeenDelivery).decode
_worker: Final = msgspec.msgpack.Decoder(WorkerSeen).decode


class Period(msgspec.Struct, frozen=True):
    """What all workers did in one minute or hour."""

    start_ms: int
    counts: dict[Count, int]

    def columns(self) -> Counter[str]:
        """Return how many deliveries ended in each column of the books."""
        found: Counter[str] = Counter()
        for count, number in self.counts.items():
            if count.handler is None:
                found[count.what] += number
        return found


class JournalReader:
    """Reads what workers have written; each read is bounded."""

    def __init__(self, notes: Notes, clock: Clock) -> None:
        """Take the notes of an open ledger."""
        self.notes = notes
        self._clock = clock

    def minutes(self, number: int = 60) -> list[Period]:
        """Return the last minutes, the present one last."""
        return self._periods(min(number, MINUTES_MAX), MINUTE_US, minute_page)

    def hours(self, number: int = 24) -> list[Period]:
        """Return the last hours, the present one last."""
        return self._periods(min(number, HOURS_MAX), HOUR_US, hour_page)

    def _periods(self, number: int, width_us: int, page: Callable[[int], str]) -> list[Period]:
        last_us = self._clock.now_us() // width_us * width_us
        starts = [last_us - back * width_us for back in range(number - 1, -1, -1)]
        found = self.notes.read_counts([page(start) for start in starts])
        return [
            Period(start // 1000, {Count.from_name(name): number for name, number in counts.items()})
            for start, counts in zip(starts, found, strict=True)
        ]

    def deliveries(
        self,
        *,
        below: str | None = None,
        limit: int = 50,
        wanted: Callable[[SeenDelivery], bool] = lambda _: True,
    ) -> tuple[list[SeenDelivery], str | None]:
        """Return the latest deliveries that are wanted, the newest first, and where the next page begins, if any."""
        found: list[SeenDelivery] = []
        looked_at = 0
        for note in self._notes(DELIVERIES, below):
            if len(found) == limit or looked_at == LOOKED_AT_MAX:
                return found, below
            looked_at, below = looked_at + 1, note.name
            seen = _delivery(note.value)
            if wanted(seen):
                found.append(seen)
        return found, None

    def _notes(self, page: str, below: str | None) -> Iterator[Note]:
        while some := self.notes.read_notes(page, below=below, limit=ROWS_MAX):
            yield from some
            below = some[-1].name

    def workers(self) -> list[WorkerSeen]:
        """Return the workers that were heard of lately, those that run first."""
        found = [_worker(note.value) for note in self.notes.read_notes(WORKERS, limit=NOTES_MAX)]
        return sorted(found, key=lambda one: (not self.runs(one), -one.seen_ms, one.name))

    def pauses(self) -> dict[str, Pause]:
        """Return the pauses, by the name of the handler."""
        return Pauses(self.notes, self._clock).read()

    def runs(self, worker: WorkerSeen) -> bool:
        """Return whether a worker runs, as far as it has said so."""
        silent_ms = self._clock.now_us() // 1000 - worker.seen_ms
        return not worker.ended and (worker.way_in == "lambda" or silent_ms < SILENT_MS)
