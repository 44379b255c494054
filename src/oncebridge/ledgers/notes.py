"""Notes: small rows for people that a ledger keeps beside its claims. Nothing of the promise depends on them.

A *page* has a name. Some pages hold counts, by name, and are read whole; others hold notes: short texts in the order of
their names, which begin with a time wherever their order matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: How many notes one read returns at most.
NOTES_MAX: Final = 1000


class Note(msgspec.Struct, frozen=True):
    """One note of a page."""

    name: str
    value: bytes


class Notes(Protocol):
    """The notes of one ledger, which is open.

    Names of pages and notes are texts without NUL, and not empty; they are ordered by their UTF-8 bytes. `keep_us` is
    for how long a note or a count is kept after it was last written; a ledger may keep it longer. A call that raises
    `LedgerUnavailable` may have taken effect.
    """

    def add_counts(self, counts: Mapping[str, Mapping[str, int]], *, keep_us: int) -> None:
        """Add numbers to counts, by page and name; those that are new begin at zero."""
        ...

    def read_counts(self, pages: Sequence[str]) -> list[dict[str, int]]:
        """Return the counts of each page, in order; empty for a page that there is not."""
        ...

    def write_notes(self, page: str, values: Mapping[str, bytes], *, keep_us: int, newest: int | None = None) -> None:
        """Write notes; with `newest`, those whose names are behind so many others may be forgotten."""
        ...

    def swap_note(self, page: str, name: str, before: bytes | None, after: bytes | None, *, keep_us: int) -> bool:
        """Change a note from one value to another; False, and nothing changes, if it has any other. None: no note."""
        ...

    def read_notes(self, page: str, *, below: str | None = None, limit: int = NOTES_MAX) -> list[Note]:
        """Return notes of a page, from the last name on; with `below`, only names before that one."""
        ...


@runtime_checkable
class KeepsNotes(Protocol):
    """A ledger that keeps notes."""

    @property
    def notes(self) -> Notes:
        """Its notes."""
        ...
