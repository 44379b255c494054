"""Rows of the SQLite ledger, read and written inside a transaction that the ledger holds open.

A call reads the rows of all its events with one statement and those of all its entities with another, decides in
memory, and writes the rows that have changed together.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import astuple

from oncebridge.claim import Outcome, Status
from oncebridge.ledgers.grants import Entity, Record, Seen, claim_chain, claim_fact, extend_claim, settle_claim
from oncebridge.ledgers.sqlite.attendance import write_marks

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence

    from oncebridge.claim import Answer, Ask, Claim, Letter, Settlement
    from oncebridge.ledgers.grants import Call, Kept
    from oncebridge.ledgers.protocol import Query

ROWS_AT_ONCE: Final = 100  # in one statement, of 18 values each: SQLite takes 32,766

# The columns of a record and of an entity, in the order of their fields.
_RECORD: Final = (
    "status, token, nonce, lease_until_us, alone, attempts, content, envelope, changed_us, retry_at_us, letter"
)
_ENTITY: Final = "token, nonce, lease_until_us, ran_out, data, changed_us"
_ABOUT: Final = "key, handler, topic, time_ms, conversation, user, entity"
_COLUMNS: Final = 18


def _assigned(columns: str, value: str) -> str:
    return ", ".join(f"{name} = {value.format(name)}" for name in columns.split(", "))


_WRITE_RECORD: Final = f"""
    INSERT INTO oncebridge_event ({_RECORD}, {_ABOUT}) VALUES ({", ".join("?" * _COLUMNS)})
    ON CONFLICT (key, handler) DO UPDATE SET {_assigned(_RECORD, "excluded.{}")}"""  # nosec B608 # constants
_CHANGE_RECORD: Final = f"UPDATE oncebridge_event SET {_assigned(_RECORD, '?')} WHERE key = ? AND handler = ?"  # nosec B608
_WRITE_ENTITY: Final = f"""
    INSERT INTO oncebridge_entity ({_ENTITY}, key) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET {_assigned(_ENTITY, "excluded.{}")}"""  # nosec B608 # constants
_WRITE_LETTER: Final = (
    "INSERT OR REPLACE INTO oncebridge_letter (key, handler, raw, reason, detail) VALUES (?, ?, ?, ?, ?)"
)
_DELETE_LETTER: Final = "DELETE FROM oncebridge_letter WHERE key = ? AND handler = ?"
#: End a claim as `settle_claim` would in the usual case: in force, and its event never was a dead letter.
_SETTLE_USUAL: Final = """
    UPDATE oncebridge_event SET status = ?, nonce = x'', lease_until_us = 0, changed_us = ?, retry_at_us = 0
    WHERE key = ? AND handler = ? AND token = ? AND status = 'claimed' AND letter = 0"""
_SETTLE_ENTITY: Final = "UPDATE oncebridge_entity SET data = ?, ran_out = 0, changed_us = ? WHERE key = ? AND token = ?"
_FREE_ENTITY: Final = """
    UPDATE oncebridge_entity SET data = ?, ran_out = 0, changed_us = ?, nonce = x'', lease_until_us = 0
    WHERE key = ? AND token = ?"""


@cache
def _insert_new(rows: int) -> str:
    values = ", ".join([f"({', '.join('?' * _COLUMNS)})"] * rows)
    insert = f"INSERT INTO oncebridge_event ({_RECORD}, {_ABOUT}) VALUES {values}"  # nosec B608 # constants
    return f"{insert} ON CONFLICT DO NOTHING RETURNING key, handler"


@cache
def _read_records(keys: int) -> str:
    return f"SELECT key, handler, {_RECORD} FROM oncebridge_event WHERE key IN ({', '.join('?' * keys)})"  # nosec B608


@cache
def _read_entities(keys: int) -> str:
    return f"SELECT key, {_ENTITY} FROM oncebridge_entity WHERE key IN ({', '.join('?' * keys)})"  # nosec B608


class Change(NamedTuple):
    """A record that a call has changed, the one before it, and the letter that belongs to it."""

    ask: Ask
    before: Record | None
    record: Record
    letter: Letter | None = None


class Rows:
    """The records and entities of a call: as they were read, and as the call has left them so far."""

    def __init__(self, db: sqlite3.Connection, asks: Sequence[Ask]) -> None:
        """Read the records of these events and of their entities."""
        self._db = db
        self._records = dict(_records(db, {ask.key for ask in asks}))
        self._entities = dict(_entities(db, {ask.entity for ask in asks if ask.entity is not None}))
        self._changes: list[Change] = []
        self._held: dict[bytes, Entity] = {}

    def record(self, ask: Ask) -> Record | None:
        """Return an event's record."""
        return self._records.get((ask.key, ask.handler))

    def entity(self, ask: Ask) -> Entity | None:
        """Return the record of an event's entity."""
        return None if ask.entity is None else self._entities.get(ask.entity)

    def change(self, ask: Ask, record: Record | None, entity: Entity | None, letter: Letter | None = None) -> None:
        """Note the new record of an event and of its entity; None where they stay."""
        if record is not None:
            self._changes.append(Change(ask, self.record(ask), record, letter))
            self._records[ask.key, ask.handler] = record
        if entity is not None and ask.entity is not None:
            self._entities[ask.entity] = self._held[ask.entity] = entity

    def write(self) -> None:
        """Write the changes."""
        new = [(*astuple(one.record), *_about(one.ask)) for one in self._changes if one.before is None]
        known = [one for one in self._changes if one.before is not None]
        changed = [(*astuple(one.record), one.ask.key, one.ask.handler) for one in known]
        gone = [
            (one.ask.key, one.ask.handler)
            for one in known
            if one.before is not None and one.before.letter and not one.record.letter
        ]
        letters = [
            (one.ask.key, one.ask.handler, one.letter.raw, one.letter.reason, one.letter.detail)
            for one in self._changes
            if one.letter is not None
        ]
        entities = [(*astuple(entity), key) for key, entity in self._held.items()]
        for statement, rows in (
            (_WRITE_RECORD, new),
            (_CHANGE_RECORD, changed),
            (_WRITE_ENTITY, entities),
            (_DELETE_LETTER, gone),
            (_WRITE_LETTER, letters),
        ):
            if rows:
                self._db.executemany(statement, rows)


# --- claim -------------------------------------------------------------------------------------------


def claim_rows(db: sqlite3.Connection, asks: Sequence[Ask], call: Call) -> list[Answer]:
    """Answer a call. Facts are first assumed to be new, and written together; the rest is read."""
    facts = [ask for ask in asks if ask.entity is None and not ask.redrive]
    answers: dict[tuple[bytes, str], Answer] = {}
    for some in _parts(facts):
        answers |= _claim_new(db, some, call)
    rest = [ask for ask in asks if (ask.key, ask.handler) not in answers] if answers else asks
    if rest:
        rows = Rows(db, rest)
        answers |= _claim_known(rows, rest, call)
        rows.write()
    return [answers[ask.key, ask.handler] for ask in asks]


def _claim_new(db: sqlite3.Connection, facts: Sequence[Ask], call: Call) -> dict[tuple[bytes, str], Answer]:
    """Write facts that are assumed to be new. All get the same decision; only their own data differs."""
    answer, granted = claim_fact(facts[0], None, call)
    assert granted is not None
    before = (granted.status, granted.token, granted.nonce, granted.lease_until_us)
    after = (granted.changed_us, granted.retry_at_us, granted.letter)
    values: list[Any] = []
    for ask in facts:
        values += before
        values += (ask.alone, granted.attempts, ask.content, ask.envelope)
        values += after
        values += _about(ask)
    return dict.fromkeys(db.execute(_insert_new(len(facts)), values).fetchall(), answer)


def _claim_known(rows: Rows, asks: Sequence[Ask], call: Call) -> dict[tuple[bytes, str], Answer]:
    """Answer facts one by one, and the states of each entity as a chain."""
    answers: dict[tuple[bytes, str], Answer] = {}
    chains: dict[bytes, list[Ask]] = {}
    for ask in asks:
        if ask.entity is not None:
            chains.setdefault(ask.entity, []).append(ask)
            continue
        answers[ask.key, ask.handler], record = claim_fact(ask, rows.record(ask), call)
        rows.change(ask, record, None)
    for chain in chains.values():
        granted = claim_chain(chain, [rows.record(ask) for ask in chain], rows.entity(chain[0]), call)
        for ask, answer in zip(chain, granted.answers, strict=True):
            answers[ask.key, ask.handler] = answer
        for place, record in granted.records:
            rows.change(chain[place], record, granted.entity)
    return answers


def look_rows(db: sqlite3.Connection, asks: Sequence[Ask], now_us: int) -> list[Seen]:
    """Read the records of events, for all handlers, and of their entities."""
    found: dict[bytes, dict[str, Record]] = {ask.key: {} for ask in asks}
    for (key, handler), record in _records(db, found):
        found[key][handler] = record
    entities = dict(_entities(db, {ask.entity for ask in asks if ask.entity is not None}))
    return [Seen(found[ask.key], entities.get(ask.entity or b""), now_us) for ask in asks]


# --- extend and settle -------------------------------------------------------------------------------


def extend_rows(db: sqlite3.Connection, claims: Sequence[Claim], call: Call) -> list[bool]:
    """Extend the leases of claims in force."""
    rows = Rows(db, [claim.ask for claim in claims])
    kept = []
    for claim in claims:
        one = extend_claim(claim, rows.record(claim.ask), rows.entity(claim.ask), call)
        rows.change(claim.ask, one.record, one.entity)
        kept.append(one.ok)
    rows.write()
    return kept


def settle_rows(db: sqlite3.Connection, settlements: Sequence[Settlement], now_us: int) -> list[bool]:
    """End claims. They are first assumed to be usual, and ended together; if one is not, all of them are read."""
    if all(one.outcome in _USUAL_OUTCOMES for one in settlements):
        db.execute("SAVEPOINT usual")
        if _settle_usual(db, settlements, now_us):
            db.execute("RELEASE usual")
            write_marks(db, settlements, now_us)
            return [True] * len(settlements)
        db.execute("ROLLBACK TO usual")
        db.execute("RELEASE usual")
    return [kept.ok for kept in _settle(db, settlements, now_us)]


_USUAL_OUTCOMES: Final = frozenset({Outcome.DONE, Outcome.ECHO, Outcome.STALE})


def _settle_usual(db: sqlite3.Connection, settlements: Sequence[Settlement], now_us: int) -> bool:
    """End claims that are in force, each entity once; False if one is not, and then all this must be undone."""
    records: list[tuple[Any, ...]] = []
    chains: dict[tuple[bytes, int], Settlement] = {}
    for one in settlements:
        claim = one.claim
        ask = claim.ask
        records.append((one.outcome, now_us, ask.key, ask.handler, claim.token))
        if claim.chain is not None and ask.entity is not None:
            chains[ask.entity, claim.chain.top] = one  # the last one of a chain leaves its data
    before = db.total_changes
    db.executemany(_SETTLE_USUAL, records)
    for statement, frees in ((_FREE_ENTITY, True), (_SETTLE_ENTITY, False)):
        ends = [(one.data, now_us, *at) for at, one in chains.items() if one.frees is frees]
        if ends:
            db.executemany(statement, ends)
    return db.total_changes - before == len(records) + len(chains)


def settle_in_force(db: sqlite3.Connection, settlement: Settlement, now_us: int) -> bool:
    """End a claim in force; False if it is not, also if it has already ended in the same way."""
    (kept,) = _settle(db, [settlement], now_us)
    return kept.record is not None


def _settle(db: sqlite3.Connection, settlements: Sequence[Settlement], now_us: int) -> list[Kept]:
    rows = Rows(db, [one.claim.ask for one in settlements])
    kept = []
    for settlement in settlements:
        ask = settlement.claim.ask
        one = settle_claim(settlement, rows.record(ask), rows.entity(ask), now_us)
        rows.change(ask, one.record, one.entity, settlement.letter)
        kept.append(one)
    rows.write()
    write_marks(db, [one for one, end in zip(settlements, kept, strict=True) if end.record is not None], now_us)
    return kept


def is_in_force(db: sqlite3.Connection, settlement: Settlement, now_us: int) -> bool:
    """Return whether a settlement would end its claim now; nothing is written."""
    ask = settlement.claim.ask
    rows = Rows(db, [ask])
    return settle_claim(settlement, rows.record(ask), rows.entity(ask), now_us).record is not None


# --- rows --------------------------------------------------------------------------------------------


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), ROWS_AT_ONCE):
        yield items[start : start + ROWS_AT_ONCE]


def _records(db: sqlite3.Connection, keys: Iterable[bytes]) -> Iterator[tuple[tuple[bytes, str], Record]]:
    for some in _parts(list(keys)):
        for key, handler, status, token, nonce, until_us, alone, attempts, *more in db.execute(
            _read_records(len(some)), some
        ).fetchall():
            content, envelope, changed_us, retry_at_us, letter = more
            yield (
                (key, handler),
                Record(
                    status=Status(status),
                    token=token,
                    nonce=nonce,
                    lease_until_us=until_us,
                    alone=bool(alone),
                    attempts=attempts,
                    content=content,
                    envelope=envelope,
                    changed_us=changed_us,
                    retry_at_us=retry_at_us,
                    letter=bool(letter),
                ),
            )


def _entities(db: sqlite3.Connection, keys: Iterable[bytes]) -> Iterator[tuple[bytes, Entity]]:
    for some in _parts(list(keys)):
        for key, token, nonce, until_us, ran_out, data, changed_us in db.execute(
            _read_entities(len(some)), some
        ).fetchall():
            yield (
                key,
                Entity(
                    token=token,
                    nonce=nonce,
                    lease_until_us=until_us,
                    ran_out=bool(ran_out),
                    data=data,
                    changed_us=changed_us,
                ),
            )


def _about(ask: Ask) -> tuple[Any, ...]:
    return ask.key, ask.handler, ask.topic, ask.time_ms, ask.conversation, ask.user, ask.entity


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
    if query.handler is not None:
        where.append("event.handler = ?")
        values.append(query.handler)
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
