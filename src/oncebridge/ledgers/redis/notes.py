"""The notes of the Redis ledger: a hash for each page of counts; for each page of notes a hash, and its names in order.

All keys of a ledger's notes are in one slot, so that a script may use any of them.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from oncebridge.ledgers.notes import NOTES_MAX, Note
from oncebridge.ledgers.redis.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncebridge.ledgers.redis.calls import Calls

#: In scripts, for a note that is not there: a value begins with another byte.
_NONE: Final = b"-"
_SOME: Final = b"+"


class RedisNotes:
    """Keeps pages in keys of their own."""

    def __init__(self, calls: Callable[[], Calls], base: str) -> None:
        """Take how to reach the server, and what the ledger's keys begin with."""
        self._calls = calls
        self._prefix = f"{base}}}:page:".encode()

    def add_counts(self, counts: Mapping[str, Mapping[str, int]], *, keep_us: int) -> None:
        """Add numbers to counts."""
        keep = b"%d" % _milliseconds(keep_us)
        each = [
            (self._prefix, [page.encode(), keep, *chain.from_iterable(_added(numbers))])
            for page, numbers in counts.items()
            if numbers
        ]
        self._calls().run(script("count_notes"), each)

    def read_counts(self, pages: Sequence[str]) -> list[dict[str, int]]:
        """Return the counts of each page."""
        if not pages:
            return []
        (found,) = self._calls().run(script("read_counts"), [(self._prefix, [page.encode() for page in pages])])
        return [
            {name.decode(): int(number) for name, number in zip(flat[::2], flat[1::2], strict=True)} for flat in found
        ]

    def write_notes(self, page: str, values: Mapping[str, bytes], *, keep_us: int, newest: int | None = None) -> None:
        """Write notes."""
        if not values:
            return
        flat = chain.from_iterable((name.encode(), value) for name, value in values.items())
        head = [page.encode(), b"%d" % _milliseconds(keep_us), b"%d" % (newest or 0)]
        self._calls().run(script("write_notes"), [(self._prefix, [*head, *flat])])

    def swap_note(self, page: str, name: str, before: bytes | None, after: bytes | None, *, keep_us: int) -> bool:
        """Change a note, if it is as it was."""
        values = [_NONE if value is None else _SOME + value for value in (before, after)]
        words = [page.encode(), b"%d" % _milliseconds(keep_us), name.encode(), *values]
        (swapped,) = self._calls().run(script("swap_note"), [(self._prefix, words)])
        return bool(swapped == 1)

    def read_notes(self, page: str, *, below: str | None = None, limit: int = NOTES_MAX) -> list[Note]:
        """Return notes of a page, from the last name on."""
        start = b"+" if below is None else b"(" + below.encode()
        words = [page.encode(), start, b"%d" % limit]
        ((names, values),) = self._calls().run(script("read_notes"), [(self._prefix, words)])
        return [Note(name.decode(), value) for name, value in zip(names, values, strict=True) if value is not None]


def _added(numbers: Mapping[str, int]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), b"%d" % number) for name, number in numbers.items()]


def _milliseconds(keep_us: int) -> int:
    return max(1, keep_us // 1000)
