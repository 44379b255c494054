"""What all ledgers share of reading in pages: how far a page looks, where the next one begins, and what is shown."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Final, NamedTuple

from oncebridge.errors import ConfigurationError
from oncebridge.ledgers.protocol import Found, LetterPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oncebridge.ledgers.protocol import Entry, LetterGroup, Query

#: How many letters one page may look at, if filters leave most of them out.
LOOKED_AT_MAX: Final = 2000
#: How many groups of letters, and how many entries about a subject, one read returns.
GROUPS_MAX: Final = 200
#: How many letters are counted one by one, in ledgers that keep no count of each group: half a second's work on SQLite.
COUNTED_MAX: Final = 250_000
ABOUT_MAX: Final = 200
_PAGE_MAX: Final = 1000
_POSITION: Final = re.compile(r"(\d{1,18})\.((?:[0-9a-f]{2}){0,64})\.([\w-]*)", re.ASCII)


class Position(NamedTuple):
    """Where a letter is in the order of pages: by the time it died, and among equal times by its key and handler."""

    died_us: int
    key: bytes
    handler: str = ""

    @property
    def text(self) -> str:
        """As texts that a page may be asked for with."""
        handler = urlsafe_b64encode(self.handler.encode()).decode().rstrip("=")
        return f"{self.died_us}.{self.key.hex()}.{handler}"


def position_of(entry: Entry) -> Position:
    """Return where a letter is, in a ledger that orders them by their last change."""
    return Position(entry.changed_us, entry.key, entry.handler)


def read_position(text: str | None) -> Position | None:
    """Read where a page begins; None for the first one."""
    if text is None or text == "":
        return None
    found = _POSITION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise not_a_page()
    died_us, key, handler = found.groups()
    try:
        name = urlsafe_b64decode(handler + "=" * (-len(handler) % 4)).decode()
    except ValueError:
        raise not_a_page() from None
    return Position(int(died_us), bytes.fromhex(key), name)


def not_a_page() -> ConfigurationError:
    """Return the error for a text that no page has given as its next."""
    return ConfigurationError("after: this is not where a page of dead letters begins; start with the first page")


def page_size(limit: int) -> int:
    """Keep a limit within what a page may have."""
    return max(1, min(limit, _PAGE_MAX))


def is_filtered(query: Query) -> bool:
    """Return whether a query leaves letters out by more than their time."""
    return any(one is not None for one in (query.topic, query.reason, query.handler, query.subject))


def page_of(
    letters: Iterable[tuple[Position, Entry]], matches: Callable[[Entry], bool], limit: int, looked_at: int
) -> LetterPage:
    """Take a page from letters in order; after so many that do not match it ends early."""
    entries: list[Entry] = []
    last: Position | None = None
    for number, (position, entry) in enumerate(letters):
        if last is not None and (len(entries) >= limit or number >= looked_at):
            return LetterPage(entries, last.text)
        last = position
        if matches(entry):
            entries.append(entry)
    return LetterPage(entries)


def most_frequent(groups: Iterable[LetterGroup]) -> list[LetterGroup]:
    """Return the groups to show."""
    ordered = sorted(groups, key=lambda group: (-group.number, group.handler, group.reason, group.topic))
    return ordered[:GROUPS_MAX]


def found_of(entries: Iterable[Entry], newest: Iterable[Entry], *, complete: bool) -> Found:
    """Return the latest of what was found."""
    each = [sorted(some, key=lambda entry: (-entry.changed_us, entry.key, entry.handler)) for some in (entries, newest)]
    shown = [some[:ABOUT_MAX] for some in each]
    return Found(entries=shown[0], newest=shown[1], complete=complete and shown == each)
