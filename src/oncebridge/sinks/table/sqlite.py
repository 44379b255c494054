"""A table in the ledger's own SQLite file: rows are written in the transaction that settles their events."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from oncebridge.sinks.table.examine import examine_sqlite
from oncebridge.sinks.table.failures import DatabaseUnavailable, RowRefused, WriteFailed, WriteInterrupted
from oncebridge.sinks.table.sql import Dialect, parts_of, qualified, write_row
from oncebridge.sinks.table.values import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from oncebridge.ledgers.findings import Finding
    from oncebridge.settings.sinks.table import TableSettings

BUSY_SECONDS: Final = 5.0  # how long an examination may wait for others
INTEGERS: Final = range(-(2**63), 2**63)

_DIALECT: Final = Dialect("?", "IS", lambda _: " COLLATE BINARY")


class SQLiteTable:
    """Writes rows into one table, on a connection that is given."""

    def __init__(self, settings: TableSettings, place: object) -> None:
        """Take the settings and which file it is."""
        self._settings = settings
        self._place = place
        self._write = write_row(settings, _DIALECT, qualified(*parts_of(settings.table)))

    def write(self, connection: sqlite3.Connection, values: Sequence[Any]) -> None:
        """Write one row, in the transaction that the connection is in."""
        with self.errors_translated():
            connection.execute(self._write, [_bound(value) for value in values])

    @contextmanager
    def errors_translated(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise translate_error(error, self._settings, self._place) from error


def _bound(value: Any) -> Any:
    """Return what SQLite is given: other numbers than it has as texts, of which a column makes what it can."""
    if isinstance(value, bool) or (isinstance(value, int) and value in INTEGERS):
        return int(value)
    return as_text(value)


def examine_table(settings: TableSettings, path: Path) -> Iterator[Finding]:
    """Look at a table in the ledger's own file; the file is the ledger's to examine."""
    there = f"{path.absolute().as_uri()}?mode=rw"
    with SQLiteTable(settings, path).errors_translated():
        db = sqlite3.connect(there, uri=True, timeout=BUSY_SECONDS)
        try:
            findings = list(examine_sqlite(db, settings, path))
        finally:
            db.close()
    yield from findings


# --- errors -------------------------------------------------------------------------------------


def translate_error(error: sqlite3.Error, settings: TableSettings, place: object) -> Exception:
    """Tell errors of the event, of the file and of chance apart. SQLite's own words quote no value."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    kind = code & 0xFF  # the higher bits name the kind more exactly
    if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
        return WriteFailed(f"{place}: a trigger of table {settings.table} refused a row")
    if kind in _UNFIT:
        return RowRefused(f"table {settings.table}: {error}")
    if kind in _BUSY:
        return WriteInterrupted(f"{place}: {error}: another connection writes into it for long", after_seconds=0.0)
    if kind in _MEND:
        return DatabaseUnavailable(f"{place}: {error}; {_MEND[kind]}")
    return WriteFailed(f"{place}: SQLite raised {getattr(error, 'sqlite_errorname', type(error).__name__)}")


_UNFIT: Final = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_ALLOW: Final = "allow this user to write to the file and to its folder"
#: A fault of the file -> the repair.
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
