"""What the promise of a table rests on: the table itself, and in Postgres its keys and what the server keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oncebridge.ledgers.findings import Finding, good, warning, wrong
from oncebridge.sinks.table.sql import EFFECTS, parts_of, qualified, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from sqlite3 import Connection

    from oncebridge.settings.sinks.table import TableSettings

# --- for each engine ---------------------------------------------------------------------------------


def columns_there(settings: TableSettings, columns: Sequence[str]) -> Finding:
    """Judge whether the table has what settings want to write."""
    missing = [column for column, _ in settings.columns if column not in columns]
    if not missing:
        return good("table", f"{settings.table} has every column")
    return wrong(
        "table",
        f"{settings.table} has no column {', '.join(missing)}",
        f"add it, or correct [sinks.{settings.name}.columns]",
    )


def key_is_unique(settings: TableSettings, indexes: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Judge whether the table knows a row by the key of settings; `indexes` are the columns of each unique one."""
    if not settings.key:
        return
    key = ", ".join(settings.key)
    if any(sorted(index) == sorted(settings.key) for index in indexes):
        yield good("key", f"unique by {key}")
        return
    names = ", ".join(quoted(column) for column in settings.key)
    yield wrong(
        "key",
        f"no unique index of {settings.table} is on exactly {key}",
        f"CREATE UNIQUE INDEX ON {settings.table} ({names})",
    )


# --- SQLite ------------------------------------------------------------------------------------------

_INDEXES: Final = 'SELECT name FROM pragma_index_list(?, ?) WHERE "unique" AND NOT partial'


def examine_sqlite(db: Connection, settings: TableSettings, path: Path) -> Iterator[Finding]:
    """Look at a table in the ledger's file."""
    schema, table = parts_of(settings.table)
    at = (table, schema or "main")
    columns = db.execute("SELECT name, pk FROM pragma_table_info(?, ?)", at).fetchall()
    if not columns:
        yield wrong("table", f"there is no {settings.table} in {path}", "make it, or check the name")
        return
    yield columns_there(settings, [name for name, _ in columns])
    indexes = [
        [column for (column,) in db.execute("SELECT name FROM pragma_index_info(?)", (name,))]
        for (name,) in db.execute(_INDEXES, at).fetchall()
    ]
    yield from key_is_unique(settings, [[name for name, place in columns if place], *indexes])


# --- Postgres ----------------------------------------------------------------------------------------

#: Runs a statement with its values, and returns its rows.
Ask: TypeAlias = Callable[[str, "Sequence[Any]"], list[tuple[Any, ...]]]

_TABLE: Final = """
    SELECT n.nspname, array(SELECT attname::text FROM pg_catalog.pg_attribute
        WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(%s)"""
#: The columns of each index that ON CONFLICT may go by.
_UNIQUE: Final = """
    SELECT array(SELECT attname::text FROM pg_catalog.pg_attribute
        WHERE attrelid = i.indrelid AND attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))
    FROM pg_catalog.pg_index i
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
        AND i.indpred IS NULL AND i.indexprs IS NULL"""
_MAY: Final = "SELECT has_table_privilege(to_regclass(%s), privilege) FROM unnest(%s::text[]) AS privilege"
_SERVER: Final = """
    SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
        current_setting('synchronous_commit')"""


def examine_postgres(ask: Ask, settings: TableSettings, *, with_effects: bool) -> Iterator[Finding]:
    """Look at a table; with its keys and the server too, where the ledger does not."""
    schema, name = parts_of(settings.table)
    found = ask(_TABLE, [qualified(schema, name)])
    if not found:
        yield wrong(
            "table",
            f"there is no {settings.table}, or this user may not see it",
            "make it; its name is taken as written, and Postgres makes names without quotes lower case",
        )
        return
    ((schema, columns),) = found
    table, effects = qualified(schema, name), qualified(schema, EFFECTS)
    yield columns_there(settings, columns)
    yield from key_is_unique(settings, [row[0] for row in ask(_UNIQUE, [table])])
    needed = {table: ["INSERT", *(["SELECT", "UPDATE"] if settings.key else [])]}
    if with_effects:
        there = bool(ask(_TABLE, [effects]))
        yield _effects(schema, there=there)
        yield _permissions(ask, {**needed, **({effects: ["SELECT", "INSERT", "DELETE"]} if there else {})})
        yield from _server(ask)
    else:
        yield _permissions(ask, needed)


def _permissions(ask: Ask, needed: dict[str, list[str]]) -> Finding:
    missing = [
        f"{privilege} on {table}"
        for table, privileges in needed.items()
        for privilege, (may,) in zip(privileges, ask(_MAY, [table, privileges]), strict=True)
        if not may
    ]
    if not missing:
        return good("permissions", f"may write into {', '.join(needed)}")
    return wrong("permissions", f"this user lacks {', '.join(missing)}", f"GRANT {missing[0]} TO ...")


def _effects(schema: str, *, there: bool) -> Finding:
    if there:
        return good("keys", f"in {EFFECTS} of schema {schema}")
    return wrong("keys", f"there is no {EFFECTS} in schema {schema}", "make it with: oncebridge migrate")


def _server(ask: Ask) -> Iterator[Finding]:
    """Judge the server as far as the promise needs it: a commit that is forgotten takes row and key with it."""
    ((in_recovery, fsync, full_page_writes, synchronous_commit),) = ask(_SERVER, ())
    if in_recovery:
        yield wrong("role", "a read replica, which takes no rows", "name the address of the primary in database")
    if fsync == full_page_writes == "on":
        yield good("disk", "fsync and full_page_writes are on: a committed row survives a power cut")
    else:
        yield wrong(
            "disk",
            f"fsync is {fsync}, full_page_writes is {full_page_writes}: a power cut may damage everything",
            "set both to on",
            weakens="a power cut may damage the table",
        )
    if synchronous_commit == "off":
        yield warning(
            "commit",
            "synchronous_commit is off: the last rows before a crash are gone, and are not sent again",
            "set synchronous_commit to on, for this user at least: ALTER ROLE ... SET synchronous_commit = on",
            weakens="a crash of its database forgets the last rows",
        )
    else:
        yield good("commit", f"synchronous_commit is {synchronous_commit}")
