"""What the promise of a table in SQLite rests on: the table itself, its keys, and the file."""

from __future__ import annotations

import os
from sqlite3 import sqlite_version_info
from typing import TYPE_CHECKING, Final

from oncebridge.ledgers.findings import Finding, good, wrong
from oncebridge.ledgers.sqlite.examine import SAFE_SYNC, version
from oncebridge.sinks.sql import EFFECTS, parts_of
from oncebridge.sinks.table_findings import columns_there, key_is_unique

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from sqlite3 import Connection

    from oncebridge.settings.sinks.table import TableSettings

#: Journals that a crash cannot take away.
SAFE_JOURNALS: Final = frozenset({"wal", "delete", "truncate", "persist"})
_INDEXES: Final = 'SELECT name FROM pragma_index_list(?, ?) WHERE "unique" AND NOT partial'


def examine(db: Connection, settings: TableSettings, path: Path, *, with_effects: bool) -> Iterator[Finding]:
    """Look at a table; with its keys and its file too, where the ledger does not."""
    schema, table = parts_of(settings.table)
    at = (table, schema or "main")
    columns = db.execute("SELECT name, pk FROM pragma_table_info(?, ?)", at).fetchall()
    if not columns:
        yield wrong("table", f"there is no {settings.table} in {path}", "make it, or check the name")
        return
    yield columns_there(settings, [name for name, _ in columns])
    primary = [name for name, place in columns if place]
    yield from key_is_unique(settings, [primary, *_unique(db, at)])
    if with_effects:
        yield _permissions(path)
        yield good("keys", f"in {EFFECTS}, made with the first event")
        yield from _file(db)


def _unique(db: Connection, at: tuple[str, str]) -> list[list[str]]:
    names = [name for (name,) in db.execute(_INDEXES, at)]
    return [[column for (column,) in db.execute("SELECT name FROM pragma_index_info(?)", (name,))] for name in names]


def _permissions(path: Path) -> Finding:
    """Judge whether rows can be written: the journal is made beside the file."""
    if os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK):
        return good("permissions", f"may write into {path}")
    return wrong("permissions", f"may not write into {path} or its folder", "let this user write to both of them")


def _file(db: Connection) -> Iterator[Finding]:
    (journal,), (sync,) = (db.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous"))
    if journal in SAFE_JOURNALS:
        yield good("journal", journal.upper())
    else:
        yield wrong(
            "journal",
            f"{journal.upper()}: a crash in the middle of a row damages the file",
            "PRAGMA journal_mode = WAL",
            weakens="a crash may damage the table's file",
        )
    if sync in SAFE_SYNC:
        yield good("sync", f"{SAFE_SYNC[sync]}: a row survives a power cut")
    else:
        yield wrong(
            "sync",
            f"synchronous is {sync}: the last rows may be gone after a power cut",
            "use a SQLite that takes PRAGMA synchronous = FULL",
            weakens="a power cut may undo the last rows",
        )
    if journal == "wal":
        yield version(sqlite_version_info)
