"""What a database is for the sink that writes into a table, and how writing can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from oncebridge.breaker import NoAttempt
from oncebridge.errors import PermanentError, RetryLater, SaysWhy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.ledgers.findings import Finding

# --- how writing can fail: none of these words hold a value of the event, or a password ------------------


class DatabaseUnavailable(NoAttempt):
    """The database is out of reach, or not made for this sink yet: whatever event comes would fail."""


class WriteInterrupted(RetryLater, SaysWhy):
    """The database was lost, or held up by another session, while this event was written."""


class WriteDisturbed(RetryLater, SaysWhy):
    """Somebody else was in the way of this event, and will not be the next time."""


class WriteFailed(SaysWhy):
    """The database did not take this event, for a reason of its own."""


class RowRefused(PermanentError, SaysWhy):
    """The table will never take this event as it is."""


#: What keeps a breaker informed: neither is about one event.
UNAVAILABLE: Final = (DatabaseUnavailable, WriteInterrupted)
#: Few enough that nobody waits for it.
FORGET_AT_ONCE: Final = 500

# --- what a database can do ------------------------------------------------------------------------------


class Table(Protocol):
    """A table that rows are written into, in a transaction of somebody else's."""

    def write(self, connection: Any, values: Sequence[Any]) -> None:
        """Write one row."""
        ...


class Database(Protocol):
    """A table in a database of its own, with the keys of what was written beside it."""

    def write_once(self, key: bytes, values: Sequence[Any]) -> None:
        """Write a row and the key together, or neither; nothing where the key is there already."""
        ...

    def forget(self, older_than_us: int, *, waits: bool) -> int:
        """Forget up to `FORGET_AT_ONCE` keys that were written longer ago than that; return how many.

        Unless it may wait for others it fails where they are in the way.
        """
        ...

    def migrate(self) -> None:
        """Make the table of keys, if it is missing."""
        ...

    def examine(self) -> Iterator[Finding]:
        """Look at the table, and at what the promise rests on."""
        ...

    def close(self) -> None:
        """Let go of connections; it may be used again."""
        ...


@runtime_checkable
class NeedsUpkeep(Protocol):
    """A sink with a table of its own, which `oncebridge migrate` makes and `oncebridge purge` keeps small."""

    @property
    def name(self) -> str:
        """Its name in settings."""
        ...

    def migrate(self) -> None:
        """Make what is missing; safe to repeat, and while workers work."""
        ...

    def purge(self, *, older_than_us: int) -> int:
        """Forget what was written longer ago than that; return how many."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
