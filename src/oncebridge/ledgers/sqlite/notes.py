"""The notes of the SQLite ledger, in tables that are made when the first note is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from oncebridge.ledgers.notes import NOTES_MAX, Note

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence

    from oncebridge.clock import Clock

T = TypeVar("T")

HOUR_US: Final = 3_600_000_000
_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS oncebridge_{} (page TEXT NOT NULL, name TEXT NOT NULL, {} NOT NULL,
        until_us INTEGER NOT NULL, PRIMARY KEY (page, name)) WITHOUT ROWID"""
_TABLES: Final = (_TABLE.format("count", "number INTEGER"), _TABLE.format("note", "value BLOB"))
_ADD: Final = """
    INSERT INTO oncebridge_count VALUES (?, ?, ?, ?) ON CONFLICT (page, name)
    DO UPDATE SET number = number + excluded.number, until_us = excluded.until_us"""
_WRITE: Final = "INSERT OR REPLACE INTO oncebridge_note VALUES (?, ?, ?, ?)"
_TRIM: Final = """
    DELETE FROM oncebridge_note WHERE page = ? AND name <= (
        SELECT name FROM oncebridge_note WHERE page = ? ORDER BY name DESC LIMIT 1 OFFSET ?)"""


#: Runs work on a connection: reading, or writing in one transaction.
Access: TypeAlias = "Callable[[Callable[[sqlite3.Connection], Any]], Any]"


class SQLiteNotes:
    """Keeps pages in two tables of the ledger's file."""

    def __init__(self, read: Access, write: Access, clock: Clock) -> None:
        """Take how to reach the file; nothing is made yet."""
        self._in_reading, self._in_writing = read, write
        self._clock = clock
        self._forgot_hour = 0

    def add_counts(self, counts: Mapping[str, Mapping[str, int]], *, keep_us: int) -> None:
        """Add numbers to counts."""
        until_us = self._clock.now_us() + keep_us
        rows = [(page, name, number, until_us) for page, some in counts.items() for name, number in some.items()]
        self._write(lambda db: db.executemany(_ADD, rows))

    def read_counts(self, pages: Sequence[str]) -> list[dict[str, int]]:
        """Return the counts of each page."""
        found: dict[str, dict[str, int]] = {page: {} for page in pages}
        marks = ", ".join("?" * len(found))
        read = f"SELECT page, name, number FROM oncebridge_count WHERE page IN ({marks}) AND until_us > ?"  # nosec B608
        for page, name, number in self._read(read, [*found, self._clock.now_us()]):
            found[page][name] = number
        return [found[page] for page in pages]

    def write_notes(self, page: str, values: Mapping[str, bytes], *, keep_us: int, newest: int | None = None) -> None:
        """Write notes."""
        until_us = self._clock.now_us() + keep_us

        def work(db: sqlite3.Connection) -> None:
            db.executemany(_WRITE, [(page, name, value, until_us) for name, value in values.items()])
            if newest is not None:
                db.execute(_TRIM, (page, page, newest))

        self._write(work)

    def swap_note(self, page: str, name: str, before: bytes | None, after: bytes | None, *, keep_us: int) -> bool:
        """Change a note, if it is as it was."""
        now_us = self._clock.now_us()
        until_us = now_us + keep_us

        def work(db: sqlite3.Connection) -> bool:
            select = "SELECT value FROM oncebridge_note WHERE page = ? AND name = ? AND until_us > ?"
            row = db.execute(select, (page, name, now_us)).fetchone()
            if (None if row is None else row[0]) != before:
                return False
            if after is None:
                db.execute("DELETE FROM oncebridge_note WHERE page = ? AND name = ?", (page, name))
            else:
                db.execute(_WRITE, (page, name, after, until_us))
            return True

        return self._write(work)

    def read_notes(self, page: str, *, below: str | None = None, limit: int = NOTES_MAX) -> list[Note]:
        """Return notes of a page, from the last name on."""
        before, values = ("", []) if below is None else (" AND name < ?", [below])
        read = f"SELECT name, value FROM oncebridge_note WHERE page = ? AND until_us > ?{before}"  # nosec B608
        rows = self._read(f"{read} ORDER BY name DESC LIMIT ?", [page, self._clock.now_us(), *values, limit])
        return [Note(name, value) for name, value in rows]

    def _read(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._in_reading(
            lambda db: db.execute(statement, values).fetchall() if _is_there(db) else []
        )
        return rows

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Write in a transaction; once an hour, also forget what is over."""
        now_us = self._clock.now_us()

        def whole(db: sqlite3.Connection) -> T:
            if not _is_there(db):
                for statement in _TABLES:
                    db.execute(statement)
            if now_us // HOUR_US != self._forgot_hour:
                for table in ("count", "note"):
                    db.execute(f"DELETE FROM oncebridge_{table} WHERE until_us <= ?", (now_us,))  # nosec B608
            return work(db)

        result: T = self._in_writing(whole)
        self._forgot_hour = now_us // HOUR_US
        return result


def _is_there(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'oncebridge_note'").fetchone() is not None
