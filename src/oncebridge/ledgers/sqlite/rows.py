"""Rows of the SQLite ledger: one event at a time, inside a transaction that the ledger holds open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.claim import Entity, Record, Status, decide_claim, decide_extend, decide_settle
from oncebridge.identity import Moment
from oncebridge.ledgers.protocol import Entry, Query

if TYPE_CHECKING:
    import sqlite3

    from oncebridge.claim import Answer, Ask, Call, Claim, Letter, Settlement

_moment = msgspec.json.Decoder(Moment).decode
_encode = msgspec.json.Encoder().encode

_RECORD: Final = (
    "status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us, again_us, letter"
)
_READ_RECORD: Final = f"SELECT {_RECORD} FROM oncebridge_event WHERE key = ? AND handler = ?"  # noqa: S608 - constants
_WRITE_RECORD: Final = f"""
    INSERT INTO oncebridge_event ({_RECORD}, key, handler, topic, time_ms, conversation, user, entity)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key, handler) DO UPDATE SET
        status = excluded.status, token = excluded.token, nonce = excluded.nonce,
        lease_until_us = excluded.lease_until_us, alone = excluded.alone, attempts = excluded.attempts,
        content = excluded.content, envelope = excluded.envelope, changed_us = excluded.changed_us,
        again_us = excluded.again_us, letter = excluded.letter"""  # noqa: S608 - constants
_READ_ENTITY: Final = (
    "SELECT token, lease_until_us, state, moment, newest, line, unsure, changed_us FROM oncebridge_entity WHERE key = ?"
)
_WRITE_ENTITY: Final = "INSERT OR REPLACE INTO oncebridge_entity VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def claim_row(db: sqlite3.Connection, ask: Ask, call: Call) -> Answer:
    """Decide one ask on its rows, and write what they become."""
    before = _record(db, ask)
    answer, record, entity = decide_claim(ask, before, _entity(db, ask), call)
    _write(db, ask, before, record, entity)
    return answer


def extend_row(db: sqlite3.Connection, claim: Claim, call: Call) -> bool:
    """Move one lease, if its claim is in force."""
    before = _record(db, claim.ask)
    kept, record, entity = decide_extend(claim, before, _entity(db, claim.ask), call)
    _write(db, claim.ask, before, record, entity)
    return kept


def settle_row(db: sqlite3.Connection, settlement: Settlement, now_us: int) -> bool:
    """End one claim, if it is in force."""
    ask = settlement.claim.ask
    before = _record(db, ask)
    kept, record, entity = decide_settle(settlement, before, _entity(db, ask), now_us)
    _write(db, ask, before, record, entity)
    if record is not None and settlement.letter is not None:
        _write_letter(db, ask, settlement.letter)
    return kept


def _record(db: sqlite3.Connection, ask: Ask) -> Record | None:
    row = db.execute(_READ_RECORD, (ask.key, ask.handler)).fetchone()
    if row is None:
        return None
    status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us, again_us, letter = row
    return Record(
        status=Status(status),
        token=token,
        nonce=nonce,
        lease_until_us=lease_until_us,
        alone=bool(alone),
        attempts=attempts,
        content=content,
        envelope=envelope,
        changed_us=changed_us,
        again_us=again_us,
        letter=bool(letter),
    )


def _entity(db: sqlite3.Connection, ask: Ask) -> Entity | None:
    if ask.entity is None:
        return None
    row = db.execute(_READ_ENTITY, (ask.entity,)).fetchone()
    if row is None:
        return None
    token, lease_until_us, state, moment, newest, line, unsure, changed_us = row
    return Entity(
        token=token,
        lease_until_us=lease_until_us,
        state=state,
        moment=_moment(moment),
        key=newest,
        line=_moment(line),
        unsure=bool(unsure),
        changed_us=changed_us,
    )


def _write(
    db: sqlite3.Connection, ask: Ask, before: Record | None, record: Record | None, entity: Entity | None
) -> None:
    if record is not None:
        row = (*msgspec.structs.astuple(record), ask.key, ask.handler, ask.topic, ask.time_ms)
        db.execute(_WRITE_RECORD, (*row, ask.conversation, ask.user, ask.entity))
        if before is not None and before.letter and not record.letter:
            db.execute("DELETE FROM oncebridge_letter WHERE key = ? AND handler = ?", (ask.key, ask.handler))
    if entity is not None and ask.entity is not None:
        moment, line = _encode(entity.moment), _encode(entity.line)
        row = (ask.entity, entity.token, entity.lease_until_us, entity.state, moment, entity.key, line)
        db.execute(_WRITE_ENTITY, (*row, entity.unsure, entity.changed_us))


def _write_letter(db: sqlite3.Connection, ask: Ask, letter: Letter) -> None:
    row = (ask.key, ask.handler, letter.raw, letter.reason, letter.detail)
    db.execute(
        "INSERT OR REPLACE INTO oncebridge_letter (key, handler, raw, reason, detail) VALUES (?, ?, ?, ?, ?)", row
    )


def entry(*row: Any) -> Entry:
    """Read a row as people see it."""
    key, handler, status, topic, time_ms, attempts, envelope, changed_us, again_us, lease, reason, raw, detail = row
    return Entry(
        key=key,
        handler=handler,
        status=Status(status),
        topic=topic,
        time_ms=time_ms,
        attempts=attempts,
        envelope=envelope,
        changed_us=changed_us,
        again_us=again_us,
        lease_until_us=lease,
        reason=reason,
        raw=raw,
        detail=detail or "",
    )


def conditions(query: Query) -> tuple[list[str], list[Any]]:
    """Write a query as SQL conditions and their values."""
    where: list[str] = ["1"]
    values: list[Any] = []
    if query.statuses:
        where.append(f"event.status IN ({', '.join('?' * len(query.statuses))})")
        values += sorted(query.statuses)
    if query.letters:
        where.append("event.letter = 1")
    if query.topic is not None:
        where.append("topic_matches(?, event.topic)")
        values.append(query.topic)
    if query.reason is not None:
        where.append("instr(letter.reason, ?) > 0")
        values.append(query.reason)
    if query.since_us is not None:
        where.append("event.changed_us >= ?")
        values.append(query.since_us)
    if query.until_us is not None:
        where.append("event.changed_us < ?")
        values.append(query.until_us)
    if query.subject is not None:
        where.append("(event.conversation = ? OR event.user = ?)")
        values += [query.subject, query.subject]
    return where, values
