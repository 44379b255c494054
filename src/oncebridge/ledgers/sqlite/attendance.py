"""The attendance that the SQLite ledger keeps, in a table that is made when the first mark is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncebridge.ledgers.marks import marks_by_conversation, with_marks
from oncebridge.ledgers.protocol import Attendance

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from oncebridge.claim import Settlement

AT_ONCE: Final = 500  # conversations in one statement

_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS oncebridge_attendance (conversation BLOB PRIMARY KEY, marks BLOB NOT NULL,
        first_us INTEGER NOT NULL, last_us INTEGER NOT NULL) WITHOUT ROWID"""
_WRITE: Final = "INSERT OR REPLACE INTO oncebridge_attendance VALUES (?, ?, ?, ?)"


def write_marks(db: sqlite3.Connection, settlements: Sequence[Settlement], now_us: int) -> None:
    """Add the marks of events that have ended, in the transaction that ends them."""
    more = marks_by_conversation(settlements)
    if not more:
        return
    if not _is_there(db):
        db.execute(_TABLE)
    conversations = list(more)
    rows = []
    for conversation, before in zip(conversations, read_attendance(db, conversations), strict=True):
        kept = with_marks(before, more[conversation], now_us)
        rows.append((conversation, kept.marks, kept.first_us, kept.last_us))
    db.executemany(_WRITE, rows)


def read_attendance(db: sqlite3.Connection, conversations: Sequence[bytes]) -> list[Attendance | None]:
    """Return what came of each conversation, in order."""
    found: dict[bytes, Attendance] = {}
    for start in range(0, len(conversations), AT_ONCE) if _is_there(db) else ():
        some = conversations[start : start + AT_ONCE]
        places = ", ".join("?" * len(some))
        read = f"SELECT * FROM oncebridge_attendance WHERE conversation IN ({places})"  # nosec B608 # placeholders
        for conversation, marks, first_us, last_us in db.execute(read, some):
            found[conversation] = Attendance(marks, first_us, last_us)
    return [found.get(conversation) for conversation in conversations]


def forget_attendance(db: sqlite3.Connection, before_us: int) -> None:
    """Forget conversations of which nothing came since."""
    if _is_there(db):
        db.execute("DELETE FROM oncebridge_attendance WHERE last_us < ?", (before_us,))


def _is_there(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'oncebridge_attendance'").fetchone() is not None
