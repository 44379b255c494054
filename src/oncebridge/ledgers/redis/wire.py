"""The arguments and replies of the scripts: asks, claims and settlements as bytes, and records from bytes.

The scripts define each byte: `lua/records.lua`, `lua/entities.lua`, `lua/claim.lua`, `lua/settle.lua`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.claim import Answer, Chain, Outcome, Status, Verdict, attended
from oncebridge.discreet import Discreet
from oncebridge.identity import envelope_mark
from oncebridge.ledgers import DAY_MS, grants
from oncebridge.ledgers.protocol import Entry

if TYPE_CHECKING:
    from oncebridge.claim import Ask, Claim, Letter, Settlement

_BYTES: Final = [bytes([number]) for number in range(256)]
_NO_DAY: Final = b"\0\0\0\0"
FOUND_RECORD: Final = 3  # fields: a record, its letter, and that it is one

STATUSES: Final = {
    b"c": Status.CLAIMED,
    b"r": Status.RETRY,
    b"l": Status.RELEASE,
    b"d": Status.DEAD,
    b"x": Status.DISCARD,
    b"D": Status.DONE,
    b"e": Status.ECHO,
    b"s": Status.STALE,
}
_LETTERS: Final = {status: letter for letter, status in STATUSES.items()}
_OUTCOMES: Final = {outcome: _LETTERS[Status(outcome.value)] for outcome in Outcome}

#: The flags of asks and records.
ALONE, LETTER, CONTENT, ENVELOPE, SHARED, STATE, REDRIVE = (1 << bit for bit in range(7))
#: Of settlements, beside SHARED.
MARKED, CHAIN, FREES = 1, 32, 64
DIGEST_BYTES: Final = 16

_double = struct.Struct(">d").pack
_day = struct.Struct(">i").pack
_letter_length = struct.Struct(">I").pack
_regranted = struct.Struct(">dHH").unpack_from
_busy = struct.Struct(">d").unpack_from
_chain = struct.Struct(">ddc")
_record_head: Final = struct.Struct(">c B H 8s d d d d 3s")
_IN_BUCKET: Final = 7  # bytes of a value there: status, envelope, token
_entity_head: Final = struct.Struct(">d d c")
_entity_hold: Final = struct.Struct(">d 8s")


class About(msgspec.Struct, frozen=True, array_like=True):
    """The fields of an event for people; scripts keep them, but do not read them."""

    envelope: str | None = None
    topic: str = ""
    time_ms: int | None = None
    conversation: bytes | None = None
    user: bytes | None = None
    #: Only of named handlers, for which the id is not the key.
    handler: str = ""
    key: bytes | None = None


class Kept(Discreet, msgspec.Struct, frozen=True, array_like=True):
    """The content of a dead letter."""

    shown = ("reason",)

    reason: str
    raw: bytes
    detail: str


_encode = msgspec.msgpack.Encoder().encode
_about = msgspec.msgpack.Decoder(About).decode
_kept = msgspec.msgpack.Decoder(Kept).decode


# --- to the scripts ----------------------------------------------------------------------------------


def id_of(key: bytes, handler: str) -> bytes:
    """Return the id of an event for a handler: its key, except for a handler with a name."""
    return key if not handler else blake2b(key + handler.encode(), digest_size=16, person=b"ob1 redis").digest()


@lru_cache(maxsize=4096)
def _day_bytes(day: int) -> bytes:
    return _day(max(-(2**31), min(day, 2**31 - 1)))


def write_ask(ask: Ask) -> bytes:
    """Write one ask."""
    flags, key, handler, envelope = 0, ask.key, ask.handler, ask.envelope
    content, entity, shared_ms = ask.content, ask.entity, ask.shared_ms
    if envelope is not None:
        flags = ENVELOPE
    if ask.alone:
        flags |= ALONE
    if content is not None:
        flags |= CONTENT
    if shared_ms is not None:
        flags |= SHARED
    if ask.redrive:
        flags |= REDRIVE
    if entity is not None:
        flags |= STATE
    about = (envelope, ask.topic, ask.time_ms, ask.conversation, ask.user)
    return b"".join((
        _BYTES[flags],
        _NO_DAY if shared_ms is None else _day_bytes(shared_ms // DAY_MS),
        id_of(key, handler),
        envelope_mark(envelope),
        entity or b"",
        content or b"",
        _encode((*about, handler, key) if handler else about),
    ))  # fmt: skip


def write_place(ask: Ask, handler: str) -> bytes:
    """Write where an event is looked up for a handler."""
    shared_ms = ask.shared_ms
    day = _NO_DAY if shared_ms is None else _day_bytes(shared_ms // DAY_MS)
    return _BYTES[0 if shared_ms is None else SHARED] + day + id_of(ask.key, handler)


def write_claim(claim: Claim) -> bytes:
    """Write one claim to be extended; a state's is its chain's."""
    ask = claim.ask
    if claim.chain is not None and ask.entity is not None:
        return b"s" + ask.entity + _double(claim.chain.top)
    return b"f" + id_of(ask.key, ask.handler) + _double(claim.token)


def write_settlement(settlement: Settlement) -> bytes:
    """Write the end of one claim."""
    claim, outcome = settlement.claim, settlement.outcome
    ask, chain = claim.ask, claim.chain
    flags, day, entity, top, data = 0, _NO_DAY, b"", b"", b""
    if ask.shared_ms is not None:
        flags, day = SHARED, _day_bytes(ask.shared_ms // DAY_MS)
    if chain is not None and ask.entity is not None:
        flags |= CHAIN | FREES if settlement.frees else CHAIN
        entity, top, data = ask.entity, _double(chain.top), settlement.data
    came = attended(settlement) if ask.mark else None
    if came is not None:
        flags |= MARKED
        data += b"".join(came)
    return b"".join((
        _OUTCOMES[outcome],
        _BYTES[flags],
        day,
        id_of(ask.key, ask.handler),
        _double(claim.token),
        entity,
        top,
        _only_some_have(settlement) if outcome in _WITH_MORE else b"",
        data,
    ))  # fmt: skip


_WITH_MORE: Final = frozenset({Outcome.RETRY, Outcome.DEAD})


def _only_some_have(settlement: Settlement) -> bytes:
    if settlement.outcome is Outcome.RETRY:
        return _double(settlement.retry_in_us)
    letter = b"" if settlement.letter is None else _letter(settlement.letter)
    return _letter_length(len(letter)) + letter


def _letter(letter: Letter) -> bytes:
    return _encode((letter.reason, letter.raw, letter.detail))


# --- from the scripts --------------------------------------------------------------------------------


class Another(Exception):
    """A shard belongs to another ledger than the one opened: it was emptied, or started over."""


#: How the script numbers granted states: the chain, counted from 1, times this, and the place in the chain.
_PLACES_BITS: Final = 12
_PLACE: Final = (1 << _PLACES_BITS) - 1
_AFTER_RUN_OUT: Final = b"r"
_FREE: Final = b"f"

_PLAIN: Final = {
    b"w": Answer(Verdict.FRESH),
    b"z": Answer(Verdict.BUSY),
    b"n": Answer(Verdict.REPUBLISH),
    **{
        b"d" + letter + same: Answer(verdict, was=status)
        for letter, status in STATUSES.items()
        for same, verdict in ((b"=", Verdict.REDELIVERY), (b"~", Verdict.REPUBLISH))
    },
}


def read_answers(reply: list[Any] | bytes) -> list[Answer]:
    """Read the answers of the claim script."""
    if isinstance(reply, bytes):
        raise Another
    now_us, granted, *each = reply
    firsts: list[int] = [0]
    chains: list[Chain | None] = [None]
    for text in granted:
        first, top, hold = _chain.unpack_from(text)
        firsts.append(int(first))
        chains.append(Chain(int(top), text[_chain.size :], hold == _AFTER_RUN_OUT, now_us))
    fact, fresh = Answer(Verdict.FRESH, now_us), Verdict.FRESH
    answers = []
    for one in each:
        if one.__class__ is not int:
            answers.append(_PLAIN.get(one) or _answer(one, chains))
        elif one == 0:
            answers.append(fact)
        else:
            number = one >> _PLACES_BITS
            answers.append(Answer(fresh, firsts[number] + (one & _PLACE), 1, None, None, 0, chains[number]))
    return answers


def _answer(one: bytes, chains: list[Chain | None]) -> Answer:
    kind = one[:1]
    if kind == b"g":
        token, attempt, number = _regranted(one, 1)
        return Answer(Verdict.FRESH, int(token), attempt, chain=chains[number])
    if kind == b"b":
        return Answer(Verdict.BUSY, busy_us=int(_busy(one, 1)[0]))
    if kind == b"k":
        return Answer(Verdict.CONFLICT, of=_about(one[1:]).envelope)
    if kind == b"r":
        return Answer(Verdict.REPUBLISH, was=STATUSES[one[1:2]], of_mark=one[2:5])
    verdict = Verdict.REDELIVERY if one[2:3] == b"=" else Verdict.REPUBLISH
    return Answer(verdict, of=_about(one[3:]).envelope, was=STATUSES[one[1:2]])


class Record(msgspec.Struct, frozen=True):
    """A record that is in no bucket."""

    status: Status
    letter: bool
    alone: bool
    attempts: int
    nonce: bytes
    token: int
    lease_until_us: int
    changed_us: int
    retry_at_us: int
    entity: bytes | None
    content: bytes | None
    about: About


def read_record(text: bytes) -> Record:
    """Read a record as scripts write it."""
    status, flags, attempts, nonce, token, *times, _ = _record_head.unpack_from(text)
    lease, changed, again = map(int, times)
    at, entity, content = _record_head.size, None, None
    if flags & STATE:
        entity = text[at : at + DIGEST_BYTES]
        at += DIGEST_BYTES
    if flags & CONTENT:
        content = text[at : at + DIGEST_BYTES]
        at += DIGEST_BYTES
    return Record(
        STATUSES[status],
        bool(flags & LETTER),
        bool(flags & ALONE),
        attempts,
        nonce,
        int(token),
        lease,
        changed,
        again,
        entity,
        content,
        _about(text[at:]),
    )


def seen_record(text: bytes, ask: Ask) -> grants.Record:
    """Read what a look has found; a bucket keeps neither times nor more than a mark of the envelope id."""
    if len(text) <= _IN_BUCKET:
        same = ask.envelope is not None and text[1:4] == envelope_mark(ask.envelope)
        return grants.Record(status=STATUSES[text[:1]], envelope=ask.envelope if same else None)
    kept = read_record(text)
    return grants.Record(
        status=kept.status,
        token=kept.token,
        nonce=kept.nonce,
        lease_until_us=kept.lease_until_us,
        alone=kept.alone,
        attempts=kept.attempts,
        content=kept.content,
        envelope=kept.about.envelope,
        changed_us=kept.changed_us,
        retry_at_us=kept.retry_at_us,
        letter=kept.letter,
    )


def record_entry(id_: bytes, record: Record, *, home: bytes, lease_until_us: int = 0, letter: bytes = b"") -> Entry:
    """Convert a record to an entry, with its letter if one is given."""
    about = record.about
    kept = _kept(letter) if letter else None
    return Entry(
        key=about.key or id_,
        handler=about.handler,
        status=record.status,
        topic=about.topic,
        time_ms=about.time_ms,
        attempts=record.attempts,
        envelope=about.envelope,
        changed_us=record.changed_us,
        retry_at_us=record.retry_at_us,
        lease_until_us=record.lease_until_us or lease_until_us,
        claimed_us=record.token,
        home=home,
        reason=kept.reason if kept else "",
        raw=kept.raw if kept else None,
        detail=kept.detail if kept else "",
    )


class Held(msgspec.Struct, frozen=True):
    """An entity: who holds it, and the data that its last settle left."""

    nonce: bytes
    lease_until_us: int
    changed_us: int
    data: bytes


def read_entity(text: bytes) -> Held:
    """Read an entity as scripts write it."""
    _, changed, hold = _entity_head.unpack_from(text)
    at = _entity_head.size
    if hold == _FREE:
        return Held(b"", 0, int(changed), text[at:])
    lease, nonce = _entity_hold.unpack_from(text, at)
    return Held(nonce, int(lease), int(changed), text[at + _entity_hold.size :])


def seen_entity(held: Held | None) -> grants.Entity | None:
    """Convert an entity that a look has found; its token is of no use there."""
    if held is None:
        return None
    return grants.Entity(
        nonce=held.nonce, lease_until_us=held.lease_until_us, data=held.data, changed_us=held.changed_us
    )


class Day(msgspec.Struct, frozen=True):
    """A day's buckets, as the scripts count them."""

    newest_us: int
    counts: dict[Status, int]


def read_day(text: bytes) -> Day:
    """Read a day as scripts write it."""
    newest, _, done, echo, stale = struct.unpack(">ddddd", text)
    return Day(int(newest), {Status.DONE: int(done), Status.ECHO: int(echo), Status.STALE: int(stale)})
