"""The tables of the SQLite ledger: created if they are missing, and brought up to date from an earlier version."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.claim import Newest, write_newest
from oncebridge.errors import LedgerRefused
from oncebridge.identity import Moment

if TYPE_CHECKING:
    import os
    import sqlite3

SCHEMA_VERSION: Final = 2
_ROWS_AT_ONCE: Final = 1000

#: The newest done event of each entity as version 1 kept it. The event itself may have been forgotten.
_READ_ENTITIES_1: Final = """
    SELECT entity.key, entity.token, entity.lease_until_us, entity.changed_us, entity.unsure, entity.state,
        entity.moment, entity.line, entity.newest, event.topic, event.time_ms, event.envelope, event.conversation,
        event.user
    FROM oncebridge_entity_1 AS entity
    LEFT JOIN oncebridge_event AS event ON event.key = entity.newest AND event.entity = entity.key"""
_WRITE_ENTITY: Final = """
    INSERT OR IGNORE INTO oncebridge_entity (key, token, nonce, lease_until_us, ran_out, data, changed_us)
    VALUES (?, ?, x'', ?, 0, ?, ?)"""


class Moment1(msgspec.Struct):
    """A moment as version 1 wrote it, in JSON."""

    times: tuple[int | None, ...] = ()
    version: int | None = None
    echoes: bool = True


_decode: Final = msgspec.json.Decoder(Moment1).decode


def schema_version(db: sqlite3.Connection) -> int:
    """Return the version of the ledger in a file; 0: there is none."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'oncebridge_meta'").fetchone():
        return 0
    row = db.execute("SELECT value FROM oncebridge_meta WHERE name = 'schema'").fetchone()
    return int(row[0]) if row else 0


def bring_up_to_date(db: sqlite3.Connection, path: str | os.PathLike[str]) -> None:
    """Make missing tables, in the transaction that the caller holds open; a newer ledger is refused."""
    found = schema_version(db)
    refuse_newer(found, path)
    if found == SCHEMA_VERSION:
        return
    if found == 1:
        _put_aside_1(db)
    # Not executescript: that would commit the transaction first.
    for statement in files("oncebridge.ledgers.sqlite").joinpath("schema.sql").read_text().split(";\n"):
        db.execute(statement)
    if found == 1:
        _take_over_1(db)
    db.execute("INSERT OR REPLACE INTO oncebridge_meta VALUES ('schema', ?)", (SCHEMA_VERSION,))


def refuse_newer(found: int, path: str | os.PathLike[str]) -> None:
    """Refuse a ledger that a later version wrote."""
    if found > SCHEMA_VERSION:
        raise LedgerRefused(f"{path} was written by a newer Oncebridge (schema {found}); update this one")


def _put_aside_1(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE oncebridge_entity RENAME TO oncebridge_entity_1")
    columns = {name for (name,) in db.execute("SELECT name FROM pragma_table_info('oncebridge_event')")}
    if "again_us" in columns:
        db.execute("ALTER TABLE oncebridge_event RENAME COLUMN again_us TO retry_at_us")


def _take_over_1(db: sqlite3.Connection) -> None:
    """Turn the columns of entities into the data that workers read.

    A claim under way keeps its lease, so that no second worker starts beside it, and leaves the entity unsure.
    """
    rows = db.execute(_READ_ENTITIES_1)
    while some := rows.fetchmany(_ROWS_AT_ONCE):
        db.executemany(_WRITE_ENTITY, [_entity_of_1(row) for row in some])
    db.execute("DROP TABLE oncebridge_entity_1")


def _entity_of_1(row: tuple[Any, ...]) -> tuple[Any, ...]:
    key, token, lease_until_us, changed_us, unsure, state, moment, line, event, *about = row
    topic, time_ms, envelope, conversation, user = about
    data = Newest(
        state=state,
        moment=_moment_of_1(moment),
        line=_moment_of_1(line),
        unsure=bool(unsure or lease_until_us),
        key=None if topic is None else event,
        topic=topic or "",
        time_ms=time_ms,
        envelope=envelope,
        conversation=conversation,
        user=user,
    )
    return key, token, lease_until_us, write_newest(data), changed_us


def _moment_of_1(kept: bytes) -> Moment:
    moment = _decode(kept)
    return Moment(moment.times, moment.version, moment.echoes)
