"""A table in Postgres: rows written in the ledger's transaction, or together with their key in one of its own.

Every value is sent as text, and the server reads it as its column's type: nothing is rounded on the way, and an ISO
time, a UUID or JSON needs no setting.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import psycopg
from psycopg import errors
from psycopg.rows import TupleRow, tuple_row

from oncebridge.errors import ConfigurationError
from oncebridge.ledgers.postgres.address import Address
from oncebridge.ledgers.postgres.connections import Connections, LedgerConnection
from oncebridge.ledgers.postgres.troubles import UNPREPARED, first_line, said
from oncebridge.sinks.table.examine import examine_postgres
from oncebridge.sinks.table.failures import (
    UNAVAILABLE,
    DatabaseUnavailable,
    RowRefused,
    WriteDisturbed,
    WriteFailed,
    WriteInterrupted,
)
from oncebridge.sinks.table.sql import EFFECTS, FORGET_AT_ONCE, Dialect, parts_of, qualified, quoted, write_row
from oncebridge.sinks.table.values import as_json, as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from oncebridge.clock import Clock
    from oncebridge.ledgers.findings import Finding
    from oncebridge.settings.sinks.table import TableSettings

ANSWER_US: Final = 15_000_000  # how long a write may take: connecting, all tries, and the answer to its last byte
MIGRATE_US: Final = 120_000_000
LOCK_SECONDS: Final = 5  # how long it may wait for others
FORGET_LOCK_SECONDS: Final = 0.1
_MIGRATE_LOCK: Final = 0x6F62_6566
_NOW_US: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

#: Of a table: its schema, and of each column the name, whether it holds JSON, and whether texts in it have an order.
_LOOK: Final = """
    SELECT n.nspname, a.attname,
        CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END IN ('json'::regtype, 'jsonb'::regtype),
        a.attcollation <> 0
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE c.oid = to_regclass(%s)"""
_MAKE: Final = (
    f"""CREATE TABLE IF NOT EXISTS {{effects}} (key bytea NOT NULL, sink text NOT NULL,
        written_us bigint NOT NULL DEFAULT {_NOW_US}, PRIMARY KEY (key, sink))""",
    f"CREATE INDEX IF NOT EXISTS {EFFECTS}_age ON {{effects}} (sink, written_us)",
    "COMMENT ON TABLE {effects} IS 'Oncebridge: which events have taken effect in tables of this schema'",
)
_FORGET: Final = f"""
    DELETE FROM {{effects}} WHERE (key, sink) IN (SELECT key, sink FROM {{effects}}
        WHERE sink = %s AND written_us < {_NOW_US} - %s ORDER BY written_us LIMIT {FORGET_AT_ONCE})"""  # nosec B608
_ONCE: Final = "INSERT INTO {effects} (key, sink) VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING 1"

_Result = TypeVar("_Result")


class Found(msgspec.Struct, frozen=True):
    """What a look at the table has shown, and what follows from it."""

    schema: str
    json: frozenset[str]
    #: Writes a row.
    write: str
    #: Writes a row if its key is new, and the key: one statement, so both or neither.
    write_once: str

    def parameters(self, columns: Sequence[str], values: Sequence[Any]) -> list[str | None]:
        """Write values as texts: into a column that holds JSON, all of them as JSON."""
        return [
            as_json(value) if column in self.json and value is not None else as_text(value)
            for column, value in zip(columns, values, strict=True)
        ]


class PostgresTable:
    """Writes rows into one table, on a connection that is given."""

    def __init__(self, settings: TableSettings, place: object) -> None:
        """Take the settings and which database it is; the table is looked at with the first row."""
        self._settings = settings
        self._place = place
        self.columns = [column for column, _ in settings.columns]
        self._found: Found | None = None

    def write(self, connection: psycopg.Connection[Any], values: Sequence[Any]) -> None:
        """Write one row, in the transaction that the connection is in."""
        with self.errors_translated(self.columns), _in_time(connection):
            found = self.found(connection)
            with connection.pipeline():
                run(connection, _patience(LOCK_SECONDS))
                run(connection, found.write, found.parameters(self.columns, values))

    def found(self, connection: psycopg.Connection[Any]) -> Found:
        """Look at the table, once."""
        if self._found is None:
            schema, table = parts_of(self._settings.table)
            columns = run(connection, _LOOK, [qualified(schema, table)])
            if not columns:
                raise DatabaseUnavailable(
                    f"{self._place}: there is no table {self._settings.table}, or this user may not see it; make "
                    "it, or check its name: it is taken as written, and Postgres makes names without quotes lower case"
                )
            self._found = self._plan(columns)
        return self._found

    def _plan(self, columns: Sequence[TupleRow]) -> Found:
        schema = columns[0][0]
        missing = [column for column in self.columns if column not in {name for _, name, _, _ in columns}]
        if missing:
            raise DatabaseUnavailable(
                f"{self._place}: table {self._settings.table} has no column {', '.join(missing)}; add it, or correct "
                f"[sinks.{self._settings.name}.columns]"
            )
        ordered = {name for _, name, _, has_order in columns if has_order}
        dialect = Dialect("%s", "IS NOT DISTINCT FROM", lambda name: ' COLLATE "C"' if name in ordered else "")
        table, effects = (qualified(schema, name) for name in (parts_of(self._settings.table)[1], EFFECTS))
        once = f"WITH once AS ({_ONCE.format(effects=effects)}) "
        return Found(
            schema=schema,
            json=frozenset(name for _, name, is_json, _ in columns if is_json),
            write=write_row(self._settings, dialect, table),
            write_once=once + write_row(self._settings, dialect, table, source="once"),
        )

    @contextmanager
    def errors_translated(self, parameters: Sequence[str]) -> Iterator[None]:
        """Turn Postgres' errors into ours; `parameters` are the columns that the statement's values are for."""
        try:
            yield
        except psycopg.Error as error:
            ours = translate_error(error, self._settings, parameters, self._place)
            if isinstance(ours, UNAVAILABLE):
                self._found = None  # a repair may change the table
            raise ours from error


class PostgresDatabase:
    """Writes rows and their keys into a database that is not the ledger's, or not known to be."""

    def __init__(self, settings: TableSettings, url: str, clock: Clock) -> None:
        """Take the URL; nothing is connected before the first event."""
        self._settings = settings
        self._address = _address(url, settings.name)
        self._clock = clock
        self._connections = Connections(self._address, clock, autocommit=False)
        self._table = PostgresTable(settings, self._address)
        self._parameters = ["key", "sink", *self._table.columns]

    def __str__(self) -> str:
        """Show where it is, without the password."""
        return str(self._address)

    def write_once(self, key: bytes, values: Sequence[Any]) -> None:
        """Write a row and its key together, or neither, in one round trip."""

        def write(connection: LedgerConnection) -> None:
            found = self._table.found(connection)
            parameters = found.parameters(self._table.columns, values)
            with connection.pipeline():
                run(connection, _patience(LOCK_SECONDS))
                run(connection, found.write_once, [key, self._settings.name, *parameters])
                connection.commit()

        self._call(write)

    def forget(self, older_than_us: int, *, waits: bool) -> int:
        """Forget some old keys of this sink, by the server's clock."""

        def delete(connection: LedgerConnection) -> int:
            effects = qualified(self._table.found(connection).schema, EFFECTS)
            run(connection, _patience(LOCK_SECONDS if waits else FORGET_LOCK_SECONDS))
            with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
                cursor.execute(_FORGET.format(effects=effects), [self._settings.name, older_than_us])
                number = cursor.rowcount
            connection.commit()
            return number

        return self._call(delete)

    def migrate(self) -> None:
        """Make the table of keys in the schema of the user's table, one at a time."""

        def make(connection: LedgerConnection) -> None:
            effects = qualified(self._table.found(connection).schema, EFFECTS)
            run(connection, "SET LOCAL lock_timeout = '30s'")
            run(connection, "SELECT pg_advisory_xact_lock(%s)", [_MIGRATE_LOCK])
            if not run(connection, "SELECT 1 WHERE to_regclass(%s) IS NOT NULL", [effects]):
                for statement in _MAKE:
                    run(connection, statement.format(effects=effects))
            connection.commit()

        self._call(make, MIGRATE_US)

    def examine(self) -> Iterator[Finding]:
        """Look at the table, its keys and the server."""
        yield from self._call(
            lambda connection: list(examine_postgres(partial(run, connection), self._settings, with_effects=True))
        )

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def _call(self, work: Callable[[LedgerConnection], _Result], time_us: int | None = None) -> _Result:
        """Do something on a connection that works; a repeat is safe: a row that is written is known by its key."""
        self._connections.open()
        until_us = self._clock.monotonic_us() + (ANSWER_US if time_us is None else time_us)
        with self._table.errors_translated(self._parameters):
            try:
                return self._on_one(work, until_us)
            except UNPREPARED:  # a pooler is between that gives each transaction another connection
                self._connections.prepares = False
            except _KeptWasLost:
                pass  # a new one tells whether the server is
            self._connections.forget()
            return self._on_one(work, until_us)

    def _on_one(self, work: Callable[[LedgerConnection], _Result], until_us: int) -> _Result:
        connection = self._taken(until_us)
        try:
            result = work(connection)
        except psycopg.Error as error:
            self._rolled_back(connection)
            lost = isinstance(error, psycopg.OperationalError) and connection.closed and connection.was_kept
            if lost and self._clock.monotonic_us() < until_us:
                raise _KeptWasLost from error
            raise
        except BaseException:
            connection.close()
            raise
        self._rolled_back(connection)
        return result

    def _rolled_back(self, connection: LedgerConnection) -> None:
        if not connection.closed:
            with suppress(psycopg.Error):
                connection.rollback()
        self._connections.give_back(connection)

    def _taken(self, until_us: int) -> LedgerConnection:
        try:
            return self._connections.take(until_us)
        except psycopg.Error as error:
            # Nothing was tried with any event.
            raise DatabaseUnavailable(
                f"{self._address}: {said(error)}; check that it runs, and lets this user in"
            ) from error


class _KeptWasLost(Exception):
    """A connection that was kept from before is gone."""


def examine_table(settings: TableSettings, address: Address, clock: Clock) -> Iterator[Finding]:
    """Look at a table in the ledger's own database; the server is the ledger's to examine."""
    connections = Connections(address, clock, autocommit=False)
    table = PostgresTable(settings, address)
    until_us = clock.monotonic_us() + ANSWER_US
    with table.errors_translated(table.columns), connections.one(until_us) as connection:
        findings = list(examine_postgres(partial(run, connection), settings, with_effects=False))
    yield from findings


def run(connection: psycopg.Connection[Any], statement: str, values: Sequence[Any] = ()) -> list[TupleRow]:
    """Run one statement, independent of settings on the connection; in a pipeline the answer comes later."""
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(statement, values or None)
        if connection.info.pipeline_status or cursor.description is None:
            return []
        return cursor.fetchall()


def _in_time(connection: psycopg.Connection[Any]) -> AbstractContextManager[None]:
    """Bound our own statements on a connection that a ledger lends; what others lend has bounds of its own."""
    return connection.within(ANSWER_US) if isinstance(connection, LedgerConnection) else nullcontext()


def _patience(seconds: float) -> str:
    return f"SET LOCAL lock_timeout = {int(seconds * 1000)}"


def _address(url: str, sink: str) -> Address:
    try:
        return Address.from_url(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"sink {sink}: {str(error).replace('ledger: ', 'database: ', 1)}") from None


# --- errors -------------------------------------------------------------------------------------


def translate_error(
    error: psycopg.Error, settings: TableSettings, parameters: Sequence[str], place: object
) -> Exception:
    """Tell errors of the event, of the database and of chance apart. Postgres' own words may quote values."""
    state = error.sqlstate or ""
    if isinstance(error, (errors.SerializationFailure, errors.DeadlockDetected)):
        return WriteDisturbed(f"{place}: {said(error)}", after_seconds=0.0)
    if state in _UNFIT or state[:2] in _UNFIT:
        return RowRefused(f"table {settings.table}, {_unfit(error, parameters)}")
    if state[:2] in ("42", "0A", "3F", "3D"):
        return DatabaseUnavailable(f"{place}: {said(error)}; {_mend(error, settings)}")
    if state == "25006":
        return DatabaseUnavailable(f"{place}: this is a read replica; use the address of the primary")
    if not state or state[:2] in _PASSES or state == "55P03" or isinstance(error, psycopg.InterfaceError):
        return WriteInterrupted(f"{place}: {said(error)}", after_seconds=0.0)
    return WriteFailed(f"{place}: Postgres raised {state} ({type(error).__name__})")


#: SQLSTATE or its class -> what an event has that the table does not take.
_UNFIT: Final = {
    "22001": "a text is too long for it",
    "22003": "a number is out of its range",
    "22": "it takes no such value",
    "23": "is violated",
    "54": "a value is too long, for its index perhaps",
}
#: Classes of SQLSTATE that are about the server: connections, resources, shutting down, its disk, itself.
_PASSES: Final = frozenset({"08", "53", "57", "58", "XX", "25", "26"})
_PARAMETER: Final = re.compile(r"parameter \$(\d+)")


def _unfit(error: psycopg.Error, parameters: Sequence[str]) -> str:
    state = error.sqlstate or ""
    if isinstance(error, errors.NotNullViolation) and _is_servers_own(error):
        return f"column {error.diag.column_name}: takes no NULL, and this event has nothing for it"
    if state.startswith("23"):
        name = error.diag.constraint_name if _is_servers_own(error) else None
        return f"{f'constraint {name}' if name else 'one of its constraints'} is violated ({type(error).__name__})"
    at = [int(number) for number in _PARAMETER.findall(error.diag.context or "")]
    column = parameters[at[-1] - 1] if at and at[-1] <= len(parameters) else None
    return f"{f'column {column}' if column else 'one of its columns'}: {_UNFIT.get(state) or _UNFIT[state[:2]]}"


def _is_servers_own(error: psycopg.Error) -> bool:
    """Tell whether the server found it by itself: a trigger names columns and constraints as it likes."""
    return not error.diag.context


def _mend(error: psycopg.Error, settings: TableSettings) -> str:
    """Say how to prepare a database that is not ready for this sink."""
    if isinstance(error, errors.UndefinedTable) and EFFECTS in first_line(error):
        return f"there is no {EFFECTS} yet; make it with: oncebridge migrate"
    if isinstance(error, errors.InsufficientPrivilege):
        return (
            f"grant this user SELECT, INSERT and UPDATE on {settings.table}, SELECT, INSERT and DELETE on {EFFECTS} if "
            "that is beside it, and USAGE on their schema"
        )
    if error.sqlstate == "42P10":
        key = ", ".join(quoted(column) for column in settings.key)
        return f"make one on exactly the key: CREATE UNIQUE INDEX ON {settings.table} ({key})"
    return f"check table {settings.table} against [sinks.{settings.name}]"
