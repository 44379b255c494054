"""Writes events into a table of the user's own, exactly once.

In the ledger's own database, Postgres or SQLite, a row is written in the very transaction that settles its event. In
another Postgres the event's key is written in the transaction of the row, into a small table beside the user's, and an
event whose key is there is done: whatever a ledger forgets or grants twice, and whichever answer is lost on the way.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from oncebridge.errors import ConfigurationError, MissingExtra, SaysWhy
from oncebridge.identity import key_bytes
from oncebridge.ledgers.findings import Finding, wrong
from oncebridge.ledgers.protocol import TransactsInSQL
from oncebridge.settings.secrets import Secret
from oncebridge.settings.sinks.table import LEDGER
from oncebridge.sinks.promise import EXACTLY_ONCE, SinkPromise
from oncebridge.sinks.table.failures import UNAVAILABLE
from oncebridge.sinks.table.sql import EFFECTS, FORGET_AT_ONCE
from oncebridge.sinks.table.sqlite import SQLiteTable
from oncebridge.sinks.table.sqlite import examine_table as examine_sqlite_table
from oncebridge.sinks.table.values import values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.event import Event
    from oncebridge.settings.sinks.table import TableSettings
    from oncebridge.sinks import SinkContext
    from oncebridge.sinks.table.postgres import PostgresDatabase

#: So often old keys are looked for, and more of them are forgotten than were written meanwhile.
FORGET_EVERY: Final = 200


def make_table(settings: TableSettings, context: SinkContext) -> TableInLedger | TableElsewhere:
    """Make the sink for a table, by which database it is in."""
    return (TableInLedger if settings.database == LEDGER else TableElsewhere)(settings, context)


def found_or_said(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Pass findings on; a database that cannot be looked at is one too."""
    try:
        yield from findings
    except SaysWhy as error:
        yield wrong("database", str(error), "make it reachable from here, then look again")


# --- in the ledger's own database ------------------------------------------------------------------------


class TableInLedger:
    """Writes each event in the transaction that settles it."""

    def __init__(self, settings: TableSettings, context: SinkContext) -> None:
        """Take the settings; refuse a ledger that has no tables, or no transaction to write in."""
        self.name = settings.name
        self._settings = settings
        self._context = context
        self._breaker = context.breakers.of(f"table {settings.table} of the ledger")
        if not isinstance(context.ledger, TransactsInSQL):
            raise ConfigurationError(
                f"sink {settings.name}: database: {type(context.ledger).__name__} has no tables of yours; give the URL "
                "of a database instead of ledger, such as env:DATABASE_URL, or use a postgresql:// or sqlite:// ledger"
            )
        self._table = _table(settings, context.ledger)

    def __repr__(self) -> str:
        """Show which table it is."""
        return f"<TableInLedger {self.name} into {self._settings.table}>"

    @property
    def promise(self) -> SinkPromise:
        """How often an event takes effect there, and why."""
        return SinkPromise(EXACTLY_ONCE, "its row is committed together with the end of its claim, or neither is")

    def __call__(self, event: Event, transaction: Any) -> None:
        """Write one event; the caller commits the transaction."""
        values = values_of(event, self._settings)
        with self._breaker.attempt(*UNAVAILABLE):
            self._table.write(transaction, values)

    def examine(self) -> Iterator[Finding]:
        """Look at the table."""
        yield from found_or_said(self._findings())

    def _findings(self) -> Iterator[Finding]:
        path, address = (getattr(self._context.ledger, name, None) for name in ("path", "address"))
        if path is not None:
            yield from examine_sqlite_table(self._settings, path)
        elif address is not None:
            from oncebridge.sinks.table.postgres import examine_table as examine_postgres_table

            yield from examine_postgres_table(self._settings, address, self._context.clock)

    def close(self) -> None:
        """Do nothing: connections are the ledger's."""


class RowWriter(Protocol):
    """Writes a row in a transaction of the ledger's."""

    def write(self, connection: Any, values: Sequence[Any]) -> None:
        """Write one row."""
        ...


def _table(settings: TableSettings, ledger: TransactsInSQL) -> RowWriter:
    if ledger.dialect == "sqlite":
        return SQLiteTable(settings, "the ledger's file")
    from oncebridge.sinks.table.postgres import PostgresTable  # here if the ledger is

    return PostgresTable(settings, "the ledger's database")


# --- in another Postgres ----------------------------------------------------------------------------------------


class TableElsewhere:
    """Writes each event together with its key, in one transaction."""

    def __init__(self, settings: TableSettings, context: SinkContext) -> None:
        """Take the settings; nothing is connected before the first event."""
        self.name = settings.name
        self._settings = settings
        self._retention_us = context.retention_us
        self._database = _database(settings, context)
        self._breaker = context.breakers.of(str(self._database))
        self._written = 0

    def __repr__(self) -> str:
        """Show which table it is, without a password."""
        return f"<TableElsewhere {self.name} into {self._settings.table} of {self._database}>"

    @property
    def promise(self) -> SinkPromise:
        """How often an event takes effect there, and why."""
        why = f"its key is written into {EFFECTS} in the transaction that writes its row, and what has its key is done"
        return SinkPromise(EXACTLY_ONCE, why, whatever_the_ledger=True)

    def __call__(self, event: Event) -> None:
        """Write one event, unless that was done before."""
        values = values_of(event, self._settings)
        key = key_bytes(event.key)
        assert key is not None, "every event that a handler gets has a key"
        with self._breaker.attempt(*UNAVAILABLE):
            self._database.write_once(key, values)
        self._written += 1
        if self._written % FORGET_EVERY == 0:
            with suppress(SaysWhy):  # another time
                self._database.forget(self._retention_us, waits=False)

    def migrate(self) -> None:
        """Make the table of keys."""
        self._database.migrate()

    def purge(self, *, older_than_us: int) -> int:
        """Forget keys that were written longer ago than that."""
        forgotten = number = self._database.forget(older_than_us, waits=True)
        while number == FORGET_AT_ONCE:
            number = self._database.forget(older_than_us, waits=True)
            forgotten += number
        return forgotten

    def examine(self) -> Iterator[Finding]:
        """Look at the table, its keys, and the server."""
        yield from found_or_said(self._database.examine())

    def close(self) -> None:
        """Close connections; the sink may be used again."""
        self._database.close()


def _database(settings: TableSettings, context: SinkContext) -> PostgresDatabase:
    url = settings.database.value if isinstance(settings.database, Secret) else settings.database
    try:
        from oncebridge.sinks.table.postgres import PostgresDatabase
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("oncebridge"):
            raise
        raise MissingExtra(
            f"sink {settings.name}: database: postgresql:// needs the package {error.name}; install it with: "
            "pip install 'oncebridge[postgres]'"
        ) from None
    return PostgresDatabase(settings, url, context.clock)


# --- upkeep ----------------------------------------------------------------------------------------------


@runtime_checkable
class NeedsUpkeep(Protocol):
    """A sink with a table of its own, which `oncebridge migrate` makes and `oncebridge purge` keeps small."""

    @property
    def name(self) -> str:
        """Its name in settings."""
        ...

    def migrate(self) -> None:
        """Make missing tables; safe to repeat, and while workers run."""
        ...

    def purge(self, *, older_than_us: int) -> int:
        """Forget keys that were written longer ago than that; return how many."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...
