"""The notes of the memory ledger."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from oncebridge import forks
from oncebridge.ledgers.notes import NOTES_MAX, Note

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oncebridge.clock import Clock

T = TypeVar("T")


class MemoryNotes:
    """Keeps pages in dictionaries behind one lock."""

    def __init__(self, clock: Clock) -> None:
        """Start empty."""
        self._clock = clock
        self._lock = threading.Lock()
        #: By page and name: the number or value, and until when it is kept.
        self._counts: dict[str, dict[str, tuple[int, int]]] = {}
        self._notes: dict[str, dict[str, tuple[bytes, int]]] = {}
        forks.free_locks(self, "_lock")

    def add_counts(self, counts: Mapping[str, Mapping[str, int]], *, keep_us: int) -> None:
        """Add numbers to counts."""
        with self._lock:
            now_us = self._clock.now_us()
            for page, numbers in counts.items():
                kept = self._counts[page] = _kept(self._counts.get(page, {}), now_us)
                for name, number in numbers.items():
                    kept[name] = kept.get(name, (0, 0))[0] + number, now_us + keep_us

    def read_counts(self, pages: Sequence[str]) -> list[dict[str, int]]:
        """Return the counts of each page."""
        with self._lock:
            now_us = self._clock.now_us()
            found = [_kept(self._counts.get(page, {}), now_us) for page in pages]
            return [{name: number for name, (number, _) in kept.items()} for kept in found]

    def write_notes(self, page: str, values: Mapping[str, bytes], *, keep_us: int, newest: int | None = None) -> None:
        """Write notes."""
        with self._lock:
            now_us = self._clock.now_us()
            kept = _kept(self._notes.get(page, {}), now_us)
            kept |= {name: (value, now_us + keep_us) for name, value in values.items()}
            self._notes[page] = {name: kept[name] for name in _from_last(kept)[:newest]}

    def swap_note(self, page: str, name: str, before: bytes | None, after: bytes | None, *, keep_us: int) -> bool:
        """Change a note, if it is as it was."""
        with self._lock:
            now_us = self._clock.now_us()
            kept = self._notes[page] = _kept(self._notes.get(page, {}), now_us)
            if kept.get(name, (None, 0))[0] != before:
                return False
            if after is None:
                kept.pop(name, None)
            else:
                kept[name] = after, now_us + keep_us
            return True

    def read_notes(self, page: str, *, below: str | None = None, limit: int = NOTES_MAX) -> list[Note]:
        """Return notes of a page, from the last name on."""
        with self._lock:
            kept = _kept(self._notes.get(page, {}), self._clock.now_us())
            names = [name for name in kept if below is None or name.encode() < below.encode()]
            return [Note(name, kept[name][0]) for name in _from_last(names)[:limit]]


def _kept(page: Mapping[str, tuple[T, int]], now_us: int) -> dict[str, tuple[T, int]]:
    return {name: (value, until_us) for name, (value, until_us) in page.items() if until_us > now_us}


def _from_last(names: Iterable[str]) -> list[str]:
    return sorted(names, key=str.encode, reverse=True)
