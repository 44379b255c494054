"""What goes to the scripts and comes back: asks, claims and settlements as bytes, and records out of bytes.

The scripts say which byte is what: `lua/records.lua`, `lua/entities.lua`, `lua/claim.lua`, `lua/settle.lua`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from oncebridge.claim import Answer, Outcome, Status, Verdict
from oncebridge.discreet import Discreet
from oncebridge.ledgers import DAY_MS
from oncebridge.ledgers.protocol import Entry

if TYPE_CHECKING:
    from oncebridge.claim import Ask, Claim, Letter, Settlement
    from oncebridge.identity import Moment

_MILLION: Final = 1_000_000
_BYTES: Final = [bytes([number]) for number in range(256)]
_NO_ENVELOPE: Final = b"\0\0\0"
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

_double = struct.Struct(">d").pack
_two_doubles = struct.Struct(">dd").pack
_day = struct.Struct(">i").pack
_granted = struct.Struct(">dH").unpack_from
_head: Final = struct.Struct(">c B H 8s d d d d 3s")
_entity_head: Final = struct.Struct(">d d d B")


class About(msgspec.Struct, frozen=True, array_like=True):
    """What people want to know of an event; scripts keep it, but do not look into it."""

    envelope: str | None = None
    topic: str = ""
    time_ms: int | None = None
    conversation: bytes | None = None
    user: bytes | None = None
    entity: bytes | None = None
    handler: str = ""
    #: Only where the id is not the key, or is not beside it: of named handlers, and of states.
    key: bytes | None = None


class Kept(Discreet, msgspec.Struct, frozen=True, array_like=True):
    """What a dead letter holds."""

    shown = ("reason",)

    reason: str
    raw: bytes
    detail: str


_encode = msgspec.msgpack.Encoder().encode
_about = msgspec.msgpack.Decoder(About).decode
_kept = msgspec.msgpack.Decoder(Kept).decode


# --- to the scripts ----------------------------------------------------------------------------------


def id_of(key: bytes, handler: str) -> bytes:
    """Return under what an event is kept for a handler: its key, but for a handler with a name."""
    return key if not handler else blake2b(key + handler.encode(), digest_size=16, person=b"ob1 redis").digest()


@lru_cache(maxsize=4096)
def _day_bytes(day: int) -> bytes:
    return _day(max(-(2**31), min(day, 2**31 - 1)))


def _envelope(envelope: str | None) -> bytes:
    """Write enough of an envelope id to tell a redelivery from a republish; both are acknowledged."""
    return _NO_ENVELOPE if envelope is None else (crc32(envelope.encode()) & 0xFFFFFF).to_bytes(3, "big")


def write_ask(ask: Ask, *, entity: bytes | None) -> bytes:
    """Write one ask. `entity` is the ask's own, or None where its place is elsewhere."""
    flags = 1 if ask.alone else 0
    envelope, day, state, content = _NO_ENVELOPE, _NO_DAY, b"", b""
    if ask.envelope is not None:
        flags += 8
        envelope = _envelope(ask.envelope)
    if ask.shared_ms is not None:
        flags += 16
        day = _day_bytes(ask.shared_ms // DAY_MS)
    if ask.content is not None:
        flags += 4
        content = ask.content
    if ask.redrive:
        flags += 66 if ask.force else 2
    if entity is not None:
        flags += 160 if ask.stale else 32
        state = entity + (ask.state or bytes(16)) + _double(ask.echo_window_ns) + _moment(ask.moment)
    key, handler = ask.key, ask.handler
    about = _encode(
        (
            ask.envelope,
            ask.topic,
            ask.time_ms,
            ask.conversation,
            ask.user,
            entity,
            handler,
            None if entity is None and not handler else key,
        )
    )
    return b"".join((_BYTES[flags], day, id_of(key, handler), envelope, state, content, about))


def write_claim(claim: Claim, *, entity: bytes | None) -> bytes:
    """Write one claim to be extended."""
    return id_of(claim.ask.key, claim.ask.handler) + _double(claim.token) + (entity or b"")


def write_settlement(settlement: Settlement, *, entity: bytes | None) -> bytes:
    """Write the end of one claim."""
    claim = settlement.claim
    ask, token = claim.ask, claim.token
    flags, day, state = 0, _NO_DAY, b""
    if ask.shared_ms is not None:
        flags += 16
        day = _day_bytes(ask.shared_ms // DAY_MS)
    if entity is not None:
        flags += 32
        state = entity + (ask.state or bytes(16)) + _moment(ask.moment)
    status = _OUTCOMES[settlement.outcome]
    return b"".join((
        status,
        _BYTES[flags],
        day,
        id_of(ask.key, ask.handler),
        _double(token),
        status,
        _envelope(ask.envelope),
        (token & 0xFFFFFF).to_bytes(3, "big"),
        _double(settlement.retry_in_us),
        state,
        b"" if settlement.letter is None else _letter(settlement.letter),
    ))  # fmt: skip


def _letter(letter: Letter) -> bytes:
    return _encode((letter.reason, letter.raw, letter.detail))


def _moment(moment: Moment) -> bytes:
    """Write a moment, its length first; big numbers in two parts, since scripts know only doubles."""
    flags = (0 if moment.version is None else 1) + (2 if moment.echoes else 0)
    parts = [flags.to_bytes(1, "big")]
    if moment.version is not None:
        parts.append(_two_doubles(*divmod(moment.version, _MILLION)))
    parts.append(len(moment.times).to_bytes(1, "big"))
    parts += [b"\0" if time is None else b"\1" + _two_doubles(*divmod(time, _MILLION)) for time in moment.times]
    text = b"".join(parts)
    return len(text).to_bytes(1, "big") + text


# --- from the scripts --------------------------------------------------------------------------------


class Another(Exception):
    """A shard is not that of the ledger that was opened: it was emptied, or begun anew."""


def read_answers(reply: list[Any] | bytes) -> list[Answer]:
    """Read what the claim script answers."""
    if isinstance(reply, bytes):
        raise Another
    token = reply[0]
    granted = Answer(Verdict.FRESH, token)
    return [granted if one == 0 else _answer(one) for one in reply[1:]]


_PLAIN: Final = {
    b"w": Answer(Verdict.FRESH),
    b"e": Answer(Verdict.ECHO),
    b"s": Answer(Verdict.STALE),
    b"n": Answer(Verdict.REPUBLISH),
}


def _answer(one: bytes) -> Answer:
    kind = one[:1]
    if kind == b"d":
        same = one[2:3] == b"="
        of = _about(one[3:]).envelope if len(one) > 3 else None  # noqa: PLR2004 - a bucket does not know more
        return Answer(Verdict.REDELIVERY if same else Verdict.REPUBLISH, of=of, was=STATUSES[one[1:2]])
    if kind == b"g":
        token, attempt = _granted(one, 1)
        return Answer(Verdict.FRESH, int(token), attempt)
    if kind == b"b":
        return Answer(Verdict.BUSY, busy_us=int(struct.unpack_from(">d", one, 1)[0]))
    if kind == b"k":
        return Answer(Verdict.CONFLICT, of=_about(one[1:]).envelope)
    return _PLAIN[kind]


class Record(msgspec.Struct, frozen=True):
    """A record that is in no bucket."""

    status: Status
    letter: bool
    attempts: int
    token: int
    lease_until_us: int
    changed_us: int
    retry_at_us: int
    about: About


def read_record(text: bytes) -> Record:
    """Read a record as scripts write it."""
    status, flags, attempts, _, token, lease, changed, again, _ = _head.unpack_from(text)
    about = _about(text[_head.size + (16 if flags & 4 else 0) :])
    return Record(STATUSES[status], bool(flags & 2), attempts, int(token), int(lease), int(changed), int(again), about)


def record_entry(id_: bytes, record: Record, *, home: bytes, lease_until_us: int = 0, letter: bytes = b"") -> Entry:
    """Show a record to people, with its letter if one is given."""
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
        home=home,
        reason=kept.reason if kept else "",
        raw=kept.raw if kept else None,
        detail=kept.detail if kept else "",
    )


class NewestState(msgspec.Struct, frozen=True):
    """An entity's newest state, and whether somebody holds it."""

    token: int
    lease_until_us: int
    changed_us: int
    about: About | None


def read_entity(text: bytes) -> NewestState:
    """Read an entity as scripts write it."""
    token, lease, changed, flags = _entity_head.unpack_from(text)
    at = _entity_head.size + (16 if flags & 2 else 0)
    at += 1 + text[at]
    at += 1 + text[at]
    return NewestState(int(token), int(lease), int(changed), _about(text[at:]) if flags & 2 else None)


def newest_entry(entity: NewestState, about: About) -> Entry:
    """Show an entity's newest state to people."""
    return Entry(
        key=about.key or b"",
        status=Status.CLAIMED if entity.lease_until_us else Status.DONE,
        topic=about.topic,
        time_ms=about.time_ms,
        envelope=about.envelope,
        changed_us=entity.changed_us,
        lease_until_us=entity.lease_until_us,
    )


class Day(msgspec.Struct, frozen=True):
    """What the scripts know of a day's buckets."""

    newest_us: int
    counts: dict[Status, int]


def read_day(text: bytes) -> Day:
    """Read a day as scripts write it."""
    newest, _, done, echo, stale = struct.unpack(">ddddd", text)
    return Day(int(newest), {Status.DONE: int(done), Status.ECHO: int(echo), Status.STALE: int(stale)})
