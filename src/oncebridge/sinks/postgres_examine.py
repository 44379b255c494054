"""What the promise of a table in Postgres rests on: the table itself, its keys, and what the server keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import Connection, Cursor
from psycopg.rows import tuple_row

from oncebridge.ledgers.findings import Finding, good, warning, wrong
from oncebridge.sinks.sql import EFFECTS, parts_of, qualified
from oncebridge.sinks.table_findings import columns_there, key_is_unique

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.settings.sinks.table import TableSettings

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


def examine(connection: Connection[Any], settings: TableSettings, *, with_effects: bool) -> Iterator[Finding]:
    """Look at a table; with its keys and the server too, where the ledger does not."""
    schema, name = parts_of(settings.table)
    found = _ask(connection, _TABLE, [qualified(schema, name)])
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
    yield from key_is_unique(settings, [row[0] for row in _ask(connection, _UNIQUE, [table])])
    needed = {table: ["INSERT", *(["SELECT", "UPDATE"] if settings.key else [])]}
    if with_effects:
        there = bool(_ask(connection, _TABLE, [effects]))
        yield _effects(schema, there=there)
        yield _permissions(connection, {**needed, **({effects: ["SELECT", "INSERT", "DELETE"]} if there else {})})
        yield from _server(connection)
    else:
        yield _permissions(connection, needed)


def _permissions(connection: Connection[Any], needed: dict[str, list[str]]) -> Finding:
    missing = [
        f"{privilege} on {table}"
        for table, privileges in needed.items()
        for privilege, (may,) in zip(privileges, _ask(connection, _MAY, [table, privileges]), strict=True)
        if not may
    ]
    if not missing:
        return good("permissions", f"may write into {', '.join(needed)}")
    return wrong("permissions", f"this user lacks {', '.join(missing)}", f"GRANT {missing[0]} TO ...")


def _effects(schema: str, *, there: bool) -> Finding:
    if there:
        return good("keys", f"in {EFFECTS} of schema {schema}")
    return wrong("keys", f"there is no {EFFECTS} in schema {schema}", "make it with: oncebridge migrate")


def _server(connection: Connection[Any]) -> Iterator[Finding]:
    """Judge the server as far as the promise needs it: a commit that is forgotten takes row and key with it."""
    ((in_recovery, fsync, full_page_writes, synchronous_commit),) = _ask(connection, _SERVER)
    if in_recovery:
        yield wrong("role", "a read replica, which takes no rows", "name the address of the primary in database")
    if fsync == full_page_writes == "on":
        yield good("disk", "fsync and full_page_writes are on: what was committed survives a power cut")
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
            "synchronous_commit is off: the last rows before a crash are gone, and nobody sends them again",
            "set synchronous_commit to on, for this user at least: ALTER ROLE ... SET synchronous_commit = on",
            weakens="a crash of its database forgets the last rows",
        )
    else:
        yield good("commit", f"synchronous_commit is {synchronous_commit}")


def _ask(connection: Connection[Any], statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(statement, values or None).fetchall()
