"""Rows of the SQLite ledger, read and written inside a transaction that the ledger holds open."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.claim import Entity, Outcome, Record, Status, decide_claim, decide_extend, decide_settle
from oncebridge.identity import Moment

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from oncebridge.claim import Answer, Ask, Call, Claim, Letter, Settlement
    from oncebridge.ledgers.protocol import Query

_moment = msgspec.json.Decoder(Moment).decode
_encode = msgspec.json.Encoder().encode

_RECORD: Final = (
    "status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us, retry_at_us, letter"
)
_READ_RECORD: Final = f"SELECT {_RECORD} FROM oncebridge_event WHERE key = ? AND handler = ?"  # noqa: S608 - constants
_WRITE_RECORD: Final = f"""
    INSERT INTO oncebridge_event ({_RECORD}, key, handler, topic, time_ms, conversation, user, entity)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key, handler) DO UPDATE SET
        status = excluded.status, token = excluded.token, nonce = excluded.nonce,
        lease_until_us = excluded.lease_until_us, alone = excluded.alone, attempts = excluded.attempts,
        content = excluded.content, envelope = excluded.envelope, changed_us = excluded.changed_us,
        retry_at_us = excluded.retry_at_us, letter = excluded.letter"""  # noqa: S608 - constants
_READ_ENTITY: Final = (
    "SELECT token, lease_until_us, state, moment, newest, line, unsure, changed_us FROM oncebridge_entity WHERE key = ?"
)
_WRITE_ENTITY: Final = "INSERT OR REPLACE INTO oncebridge_entity VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


#: Ends a fact's claim as `decide_settle` would, where that is plain: in force, without a letter, and done.
_SETTLE_DONE: Final = """
    UPDATE oncebridge_event SET status = 'done', nonce = x'', lease_until_us = 0, changed_us = ?, retry_at_us = 0
    WHERE key = ? AND handler = ? AND token = ? AND status = 'claimed' AND letter = 0"""
_ROWS_AT_ONCE: Final = 100
_COLUMNS: Final = 18


@cache
def _insert_new(rows: int) -> str:
    values = ", ".join([f"({', '.join('?' * _COLUMNS)})"] * rows)
    columns = f"{_RECORD}, key, handler, topic, time_ms, conversation, user, entity"
    return f"INSERT INTO oncebridge_event ({columns}) VALUES {values} ON CONFLICT DO NOTHING RETURNING key, handler"  # noqa: S608


def claim_rows(db: sqlite3.Connection, asks: Sequence[Ask], call: Call) -> list[Answer]:
    """Decide a batch. Facts are taken for new first, and written together; what was there already is looked at."""
    facts = [ask for ask in asks if ask.entity is None and not ask.redrive]
    new: dict[tuple[bytes, str], Answer] = {}
    for start in range(0, len(facts), _ROWS_AT_ONCE):
        new |= _claim_new(db, facts[start : start + _ROWS_AT_ONCE], call)
    return [new.get((ask.key, ask.handler)) or claim_row(db, ask, call) for ask in asks]


def _claim_new(db: sqlite3.Connection, facts: list[Ask], call: Call) -> dict[tuple[bytes, str], Answer]:
    """Write facts that are taken for new. They are decided alike; only what each brings along differs."""
    answer, granted, _ = decide_claim(facts[0], None, None, call)
    assert granted is not None
    before = (granted.status, granted.token, granted.nonce, granted.lease_until_us)
    after = (granted.changed_us, granted.retry_at_us, granted.letter)
    values: list[Any] = []
    for ask in facts:
        values += before
        values += (ask.alone, granted.attempts, ask.content, ask.envelope)
        values += after
        values += (ask.key, ask.handler, ask.topic, ask.time_ms, ask.conversation, ask.user, None)
    return dict.fromkeys(db.execute(_insert_new(len(facts)), values).fetchall(), answer)


def settle_rows(db: sqlite3.Connection, settlements: Sequence[Settlement], now_us: int) -> list[bool]:
    """End a batch of claims. If all that look plain are, that was it; else each is looked at."""
    plain = [one for one in settlements if one.outcome is Outcome.DONE and one.claim.ask.entity is None]
    before = db.total_changes
    db.executemany(_SETTLE_DONE, [(now_us, one.claim.ask.key, one.claim.ask.handler, one.claim.token) for one in plain])
    # One that was ended just now finds its own outcome.
    done = {one.claim for one in plain} if db.total_changes - before == len(plain) else set()
    return [one.claim in done or settle_row(db, one, now_us) for one in settlements]


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
    status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us, retry_at_us, letter = row
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
        retry_at_us=retry_at_us,
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
        db.execute(_WRITE_RECORD, _row(ask, record))
        if before is not None and before.letter and not record.letter:
            db.execute("DELETE FROM oncebridge_letter WHERE key = ? AND handler = ?", (ask.key, ask.handler))
    if entity is not None and ask.entity is not None:
        moment, line = _encode(entity.moment), _encode(entity.line)
        row = (ask.entity, entity.token, entity.lease_until_us, entity.state, moment, entity.key, line)
        db.execute(_WRITE_ENTITY, (*row, entity.unsure, entity.changed_us))


def _row(ask: Ask, record: Record) -> tuple[Any, ...]:
    about = (ask.key, ask.handler, ask.topic, ask.time_ms, ask.conversation, ask.user, ask.entity)
    return (*msgspec.structs.astuple(record), *about)


def _write_letter(db: sqlite3.Connection, ask: Ask, letter: Letter) -> None:
    row = (ask.key, ask.handler, letter.raw, letter.reason, letter.detail)
    db.execute(
        "INSERT OR REPLACE INTO oncebridge_letter (key, handler, raw, reason, detail) VALUES (?, ?, ?, ?, ?)", row
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
