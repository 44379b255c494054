"""A table in SQLite: rows written in the ledger's transaction, or together with their key in one of its own."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from oncebridge.errors import ConfigurationError
from oncebridge.ledgers.sqlite.connections import Connections, FileGone, OpenBeforeFork
from oncebridge.sinks.databases import FORGET_AT_ONCE, DatabaseUnavailable, RowRefused, WriteFailed, WriteInterrupted
from oncebridge.sinks.rows import as_text
from oncebridge.sinks.sql import EFFECTS, Dialect, parts_of, qualified, quoted, write_row
from oncebridge.sinks.sqlite_examine import examine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncebridge.clock import Clock
    from oncebridge.ledgers.findings import Finding
    from oncebridge.settings.sinks.table import TableSettings

T = TypeVar("T")

BUSY_SECONDS: Final = 5.0  # how long a write may wait for others
INTEGERS: Final = range(-(2**63), 2**63)

_DIALECT: Final = Dialect("?", "IS", lambda _: " COLLATE BINARY")
_MAKE: Final = (
    """CREATE TABLE IF NOT EXISTS {effects} (key BLOB NOT NULL, sink TEXT NOT NULL, written_us INTEGER NOT NULL,
        PRIMARY KEY (key, sink)) WITHOUT ROWID""",
    f"CREATE INDEX IF NOT EXISTS {{schema}}{EFFECTS}_age ON {EFFECTS} (sink, written_us)",
)
_ONCE: Final = "INSERT INTO {effects} (key, sink, written_us) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_FORGET: Final = f"""
    DELETE FROM {{effects}} WHERE (key, sink) IN (SELECT key, sink FROM {{effects}}
        WHERE sink = ? AND written_us < ? ORDER BY written_us LIMIT {FORGET_AT_ONCE})"""  # noqa: S608


class SQLiteTable:
    """Writes rows into one table, on a connection that is given."""

    def __init__(self, settings: TableSettings, place: object) -> None:
        """Take the settings and which file it is."""
        self._settings = settings
        self._place = place
        self._write = write_row(settings, _DIALECT, qualified(*parts_of(settings.table)))

    def write(self, connection: sqlite3.Connection, values: Sequence[Any]) -> None:
        """Write one row, in the transaction that the connection is in."""
        with self.in_our_words():
            connection.execute(self._write, [_bound(value) for value in values])

    @contextmanager
    def in_our_words(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise translated(error, self._settings, self._place) from error
        except FileGone as error:
            raise WriteInterrupted(
                f"{self._place} was deleted, moved or replaced while it was in use", after_seconds=0.0
            ) from error
        except OpenBeforeFork as error:
            raise DatabaseUnavailable(
                f"{self._place} was in use when this process was forked, so SQLite's locks would not hold here; close "
                "connections of your own to the file before you fork, or start processes with the method spawn"
            ) from error


def _bound(value: Any) -> Any:
    """Return what SQLite is given: other numbers than it has as texts, of which a column makes what it can."""
    if isinstance(value, bool) or (isinstance(value, int) and value in INTEGERS):
        return int(value)
    return as_text(value)


class SQLiteDatabase:
    """Writes rows and their keys into a file that is not the ledger's, or not known to be."""

    def __init__(self, settings: TableSettings, url: str, clock: Clock) -> None:
        """Take the URL; the file is opened with the first event, and never made."""
        self._settings = settings
        self._path = _path(url, settings.name)
        self._clock = clock
        self._table = SQLiteTable(settings, self._path)
        schema, _ = parts_of(settings.table)
        self._effects = qualified(schema, EFFECTS)
        self._schema = "" if schema is None else f"{quoted(schema)}."
        self._connections = Connections(self._path, clock, connect=_connect)

    def __str__(self) -> str:
        """Show the file."""
        return str(self._path)

    def write_once(self, key: bytes, values: Sequence[Any]) -> None:
        """Write a row and its key together, or neither."""

        def write(db: sqlite3.Connection) -> None:
            once = (key, self._settings.name, self._clock.now_us())
            if db.execute(_ONCE.format(effects=self._effects), once).rowcount:
                self._table.write(db, values)

        self._in_transaction(write)

    def forget(self, older_than_us: int, *, waits: bool) -> int:
        """Forget some old keys of this sink, by this machine's clock as they were written."""
        statement = _FORGET.format(effects=self._effects)
        before_us = self._clock.now_us() - older_than_us
        return self._in_transaction(
            lambda db: db.execute(statement, (self._settings.name, before_us)).rowcount, waits=waits
        )

    def migrate(self) -> None:
        """Make the table of keys; the first event does so too."""
        self._in_transaction(lambda _: None)

    def examine(self) -> Iterator[Finding]:
        """Look at the table and at the file."""
        with self._table.in_our_words():
            findings = self._connections.read(
                lambda db: list(examine(db, self._settings, self._path, with_effects=True))
            )
        yield from findings

    def close(self) -> None:
        """Close the file."""
        self._connections.close()

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T], *, waits: bool = True) -> T:
        """Do everything together, or nothing, with the table of keys made before."""

        def with_effects(db: sqlite3.Connection) -> T:
            for statement in _MAKE:
                db.execute(statement.format(effects=self._effects, schema=self._schema))
            return work(db)

        with self._table.in_our_words():
            return self._connections.write(with_effects, patience_ms=int(BUSY_SECONDS * 1000) if waits else 0)


def _connect(place: str) -> sqlite3.Connection:
    there = f"{Path(place).as_uri()}?mode=rw"  # never creates
    db = sqlite3.connect(there, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the log, if there is one
    except BaseException:
        db.close()
        raise
    return db


def examine_table(settings: TableSettings, path: Path) -> Iterator[Finding]:
    """Look at a table in the ledger's own file; the file is the ledger's to examine."""
    there = f"{path.absolute().as_uri()}?mode=rw"
    with SQLiteTable(settings, path).in_our_words():
        db = sqlite3.connect(there, uri=True, timeout=BUSY_SECONDS)
        try:
            findings = list(examine(db, settings, path, with_effects=False))
        finally:
            db.close()
    yield from findings


def _path(url: str, sink: str) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path or path == ":memory:":
        raise ConfigurationError(
            f"sink {sink}: database: this URL names no file; write sqlite:///desk.db (relative) or "
            "sqlite:////var/lib/desk.db (absolute)"
        )
    return Path(path)


# --- errors in our words -------------------------------------------------------------------------------------


def translated(error: sqlite3.Error, settings: TableSettings, place: object) -> Exception:
    """Tell whose fault an error is: the event's, the file's, or nobody's. SQLite's own words quote no value."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    kind = code & 0xFF  # what is above says more exactly which of its kind
    if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
        return WriteFailed(f"{place}: a trigger of table {settings.table} refused a row")
    if kind in _UNFIT:
        return RowRefused(f"table {settings.table}: {error}")
    if kind in _BUSY:
        return WriteInterrupted(f"{place}: {error}: somebody else writes into it for long", after_seconds=0.0)
    if kind in _MEND:
        return DatabaseUnavailable(f"{place}: {error}; {_MEND[kind]}")
    return WriteFailed(f"{place}: SQLite raised {getattr(error, 'sqlite_errorname', type(error).__name__)}")


_UNFIT: Final = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_ALLOW: Final = "let this user write to the file and to its folder"
#: What is wrong with the file -> what to do about it.
_MEND: Final = {
    sqlite3.SQLITE_ERROR: "check the table, its columns and a unique index on its key against the settings",
    sqlite3.SQLITE_FULL: "make room on the disk",
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_READONLY: _ALLOW,
    sqlite3.SQLITE_PERM: _ALLOW,
    sqlite3.SQLITE_AUTH: _ALLOW,
    sqlite3.SQLITE_CANTOPEN: "check the path; the file is never made",
    sqlite3.SQLITE_NOTADB: "check the path; this file is no database",
    sqlite3.SQLITE_CORRUPT: "restore the file",
    sqlite3.SQLITE_SCHEMA: "the table was changed meanwhile",
}
