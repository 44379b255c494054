"""What makes two deliveries the same event: pure functions from an event to its identity.

Nothing here calls a ledger, and nothing changes lightly: a changed rule makes every remembered event fresh again, so
`tests/test_golden_keys.py` freezes the keys of a set of events.
"""

from __future__ import annotations

import re
import secrets
import struct
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
from msgspec.structs import force_setattr

from oncebridge.event import Event, is_uuid
from oncebridge.strict_json import canonical
from oncebridge.topics import Kind, Paths, Profile, conversation_id, user_id

if TYPE_CHECKING:
    from collections.abc import Iterable

KEY_VERSION: Final = "ob1"
_KEY_START: Final = f"{KEY_VERSION}_"
NS_PER_MS: Final = 1_000_000
_NS_MAX: Final = 2**63 - 1

# The unit of a number follows from its size: up to the year 5138, seconds have eleven digits, milliseconds fourteen.
_SECONDS_BELOW: Final = 10**11
_MILLISECONDS_BELOW: Final = 10**14
_MICROSECONDS_BELOW: Final = 10**17


class Moment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The position of an event in its entity's history: times in nanoseconds, or a version that orders instead.

    A place in `times` is None if this event has no such time: only places that both have are compared.
    """

    times: tuple[int | None, ...] = ()
    version: int | None = None
    #: Whether the times are the event's own or the publish time; an envelope's seconds only order.
    echoes: bool = True


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Everything a ledger needs to know of an event, and the reasons, for people."""

    key: bytes
    basis: str
    #: With an explicit id: the digest of the content, which reveals other content under the same id.
    content: bytes | None = None
    entity: bytes | None = None
    state: bytes | None = None
    moment: Moment = Moment()
    time_ms: int | None = None
    #: The time again, where it is part of the identity.
    shared_ms: int | None = None
    conversation: bytes | None = None
    user: bytes | None = None
    conversation_id: str | None = None


def identify(event: Event, profile: Profile, secret: bytes, *, replays_anew: bool = False) -> Identity:
    """Compute an event's identity from its profile. With `replays_anew`, each named replay counts separately."""
    exact, org = event.exact, event.org
    replay = event.envelope.replay_name if replays_anew else None
    scope = _prefixed(event.topic_name.encode()) + (_prefixed(replay.encode()) if replay else _NO_REPLAY)
    moment, precise = moment_of(event, profile)
    body = canonical(without(exact, profile.outside_identity) if profile.exclude else exact)
    basis, parts = _identity_parts(event, profile, precise, body)
    entity = state = None
    ids = entity_parts(event, profile)
    if ids is not None:
        entity = _entity_digest(secret, org, scope + joined(ids) if ids else scope)
        state = digest(secret, b"state", (canonical(without(exact, profile.outside_state)),))
    conversation, user = conversation_id(event), user_id(event)
    time_ms = _time_ms(moment)
    # By position: keywords would take twice as long, and every delivery passes here.
    return Identity(
        _finished(_begun(secret, b"event", org), scope + _BASES[basis], parts),
        basis,
        digest(secret, b"content", (body,)) if basis == "explicit id" else None,
        entity,
        state,
        moment,
        time_ms,
        time_ms if _is_shared(basis, profile, moment, precise) else None,
        None if conversation is None else subject_digest(secret, conversation),
        None if user is None else subject_digest(secret, user),
        conversation,
    )


def _is_shared(basis: str, profile: Profile, moment: Moment, precise: bool) -> bool:
    """Return whether the time is part of the identity, so that all deliveries of the event have the same."""
    if profile.exclude:  # perhaps the time itself
        return False
    return (basis == "body" and precise) or (basis == "body and publish time" and moment.echoes)


def named_event(event: Event, identity: Identity) -> Event:
    """Fill in the fields that identity knows, in an event that nobody else has seen yet."""
    force_setattr(event, "key", key_text(identity.key))
    if identity.entity is not None:
        force_setattr(event, "entity", key_text(identity.entity))
    force_setattr(event, "time_ms", identity.time_ms)
    force_setattr(event, "conversation_id", identity.conversation_id)
    return event


def _identity_parts(event: Event, profile: Profile, precise: bool, body: bytes) -> tuple[str, tuple[bytes, ...]]:
    """Return the basis in words, and the parts that identify."""
    if profile.explicit_id is not None:
        explicit = _id_bytes(profile.explicit_id.of(event))
        if explicit is not None:
            return "explicit id", (explicit,)
    if precise or (profile.record_id is not None and profile.record_id.read(event.body) not in (None, "")):
        return "body", (body,)
    if event.published is not None and event.published != "":
        return "body and publish time", (body, canonical(event.published))
    if event.envelope.id is not None:
        return "body and envelope id", (body, event.envelope.id.encode())
    return "nothing", (body, secrets.token_bytes(16))  # equal to no other: always processed


def entity_parts(event: Event, profile: Profile) -> tuple[bytes, ...] | None:
    """Return the profile's ids for a state; None where it is no state, or where an id is missing."""
    if profile.kind is not _STATE:
        return None
    if not profile.entity:
        return ()
    ids = tuple([_id_bytes(field.of(event)) for field in profile.entity])
    return None if None in ids else ids  # type: ignore[return-value]


_STATE: Final = Kind.STATE


def moment_of(event: Event, profile: Profile) -> tuple[Moment, bool]:
    """Return the event's moment, and whether its own time is precise to the millisecond."""
    version = None if profile.version is None else _version(profile.version.read(event.body))
    times: list[int | None] = []
    precise, found = True, False
    for field in profile.time:
        time = read_time(field.of(event))
        if time is None:
            times.append(None)
        else:
            times.append(time[0])
            precise, found = precise and time[1], True
    if found:
        return Moment(tuple(times), version), precise
    # Publish and envelope times have places of their own, so that they are not compared with event times.
    published = read_time(event.published)
    if published is not None:
        return Moment((*times, published[0]), version), False
    enveloped = read_time(event.envelope.time)
    if enveloped is not None:
        return Moment((*times, None, enveloped[0]), version, echoes=False), False
    return Moment((), version, echoes=False), False


def read_time(value: Any) -> tuple[int, bool] | None:
    """Return nanoseconds since 1970 and whether milliseconds were given; None if it is no time."""
    kind = type(value)
    if kind is str:
        return _read_text(value) if len(value) <= _TIME_LENGTH_MAX else None
    if kind is int:
        return _read_number(value)
    if kind is msgspec.Raw:
        return _read_fraction(bytes(value).decode())
    return _read_fraction(repr(value)) if kind is float else None


def _read_number(value: int) -> tuple[int, bool] | None:
    if _SECONDS_BELOW <= value <= _NS_MAX // NS_PER_MS:  # nearly always
        return value * NS_PER_MS, True
    if value < 0 or value >= _MICROSECONDS_BELOW:
        return None
    if value < _SECONDS_BELOW:
        return min(value * 1_000_000_000, _NS_MAX), False
    return min(value * (NS_PER_MS if value < _MILLISECONDS_BELOW else 1000), _NS_MAX), True


_FRACTION = re.compile(r"(\d{1,11})\.(\d{1,40})")
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,40}))? ?(Z|z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_DIGITS = re.compile(r"\d{9,17}", re.ASCII)
_TIME_LENGTH_MAX: Final = 80  # more than the longest that `_ISO` takes


def _read_fraction(text: str) -> tuple[int, bool] | None:
    """Read epoch seconds with a fraction, as Python and JavaScript clocks write them."""
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    seconds, fraction = match[1], match[2]
    if int(seconds) >= _SECONDS_BELOW:
        return None
    nanoseconds = int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, "0"))
    return min(nanoseconds, _NS_MAX), int(fraction) != 0


@lru_cache(maxsize=2048)
def _read_text(text: str) -> tuple[int, bool] | None:
    return read_usual(text) or _read_iso(text)


def read_usual(text: str) -> tuple[int, bool] | None:
    """Parse a time as Genesys writes it, 2026-03-02T08:00:00.081Z; None if it has another form.

    Of the many times of one minute only the first is parsed as a date.
    """
    if len(text) != _USUAL_LENGTH or text[19] != "." or text[23] != "Z":
        return None
    within = text[17:19] + text[20:23]
    if not (within.isdigit() and within.isascii() and within < "60000"):
        return None
    minute = _read_iso(text[:17] + "00.000Z")
    if minute is None or not 0 < minute[0] < _LAST_MINUTE_NS:
        return None
    return minute[0] + int(within) * NS_PER_MS, True


_USUAL_LENGTH: Final = len("2026-03-02T08:00:00.081Z")
_LAST_MINUTE_NS: Final = _NS_MAX - 60_000 * NS_PER_MS


@lru_cache(maxsize=2048)
def _read_iso(text: str) -> tuple[int, bool] | None:
    if _DIGITS.fullmatch(text):
        return _read_number(int(text))
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    try:
        whole = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in (None, 'Z', 'z') else zone}")
    except ValueError:
        return None
    since = whole - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    nanoseconds = seconds * 1_000_000_000 + int((fraction or "")[:9].ljust(9, "0"))
    # Dates before 1970 are placeholders such as 0001-01-01: equal to each other, older than all else.
    return max(0, min(nanoseconds, _NS_MAX)), len(fraction or "") >= 3  # noqa: PLR2004 - milliseconds


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _version(value: object) -> int | None:
    if type(value) is int and 0 <= value <= _NS_MAX:
        return value
    return int(value) if type(value) is str and value.isascii() and value.isdigit() and len(value) < 19 else None  # noqa: PLR2004


def _time_ms(moment: Moment) -> int | None:
    if len(moment.times) == 1:  # nearly always
        time = moment.times[0]
        return None if time is None else time // NS_PER_MS
    known = [time for time in moment.times if time is not None]
    return max(known) // NS_PER_MS if known else None


def _id_bytes(value: Any) -> bytes | None:
    """Write an id so that the text "1" and the number 1 differ; None if there is none."""
    if value is None or value == "" or isinstance(value, (dict, list, bool)):
        return None
    return canonical(value)


def without(node: Any, paths: Paths) -> Any:
    """Return a copy of a tree without these paths."""
    if type(node) is list and "[]" in paths:
        return [without(item, paths["[]"]) for item in node]
    if type(node) is not dict:
        return node
    left = node.copy()
    for name, below in paths.items():
        if below is None:
            left.pop(name, None)
        elif name in left and name != "[]":
            left[name] = without(left[name], below)
    return left


def digest(secret: bytes, purpose: bytes, parts: Iterable[bytes]) -> bytes:
    """Hash parts with the secret."""
    return _finished(_keyed(secret, purpose), b"", parts)


def joined(parts: Iterable[bytes]) -> bytes:
    """Join parts, each after its length, so that no two lists of parts give the same bytes."""
    return b"".join([_length(len(part)) + part for part in parts])


def _prefixed(part: bytes) -> bytes:
    return _length(len(part)) + part


_length = struct.Struct(">I").pack

_NO_REPLAY: Final = _prefixed(b"")
#: The bases in words, as the digest includes them.
_BASES: Final = {
    basis: joined((basis.encode(),))
    for basis in ("explicit id", "body", "body and publish time", "body and envelope id", "nothing")
}


def _finished(begun: blake2b, joined_parts: bytes, parts: Iterable[bytes] = ()) -> bytes:
    """Finish a copy of a begun digest: with joined parts, then with parts that need not be copied."""
    hasher = begun.copy()
    update = hasher.update
    update(joined_parts)
    for part in parts:
        update(_length(len(part)))
        update(part)
    return hasher.digest()


@lru_cache(maxsize=256)
def _begun(secret: bytes, purpose: bytes, org: str) -> blake2b:
    """Begin a digest with the key and the org: the digests of all events of an org share this."""
    hasher = _keyed(secret, purpose).copy()
    hasher.update(joined((org.encode(),)))
    return hasher


@lru_cache(maxsize=4096)
def _entity_digest(secret: bytes, org: str, rest: bytes) -> bytes:
    """Hash the parts that identify an entity; its states often follow each other, and share the digest."""
    return _finished(_begun(secret, b"entity", org), rest)


@lru_cache(maxsize=64)
def _keyed(secret: bytes, purpose: bytes) -> blake2b:
    """Hash the key once: that is half the work of hashing a small event."""
    return blake2b(digest_size=16, key=secret, person=b"ob1 " + purpose)


@lru_cache(maxsize=4096)
def subject_digest(secret: bytes, value: str | None) -> bytes | None:
    """Hash the id of a conversation or a user, by which `find` looks things up."""
    return None if value is None else digest(secret, b"subject", (value.encode(),))


def unreadable_key(secret: bytes, raw: bytes) -> bytes:
    """Return the key of a delivery that is no event: only its bytes identify it."""
    return digest(secret, b"raw", (raw,))


def shown_id(secret: bytes, text: str) -> str:
    """Return an unverified id in a form that may be shown: in clear if it has the form of an envelope's.

    It may contain any text, so everything else is shown as its digest.
    """
    return text if is_uuid(text) else f"digest:{digest(secret, b'shown', (text.encode(),)).hex()}"


def envelope_mark(envelope: str | None) -> bytes:
    """Return enough of an envelope id to tell a redelivery from a republish: both are acknowledged."""
    return b"\0\0\0" if envelope is None else (crc32(envelope.encode()) & 0xFFFFFF).to_bytes(3, "big")


def conflict_key(secret: bytes, key: bytes, content: bytes | None) -> bytes:
    """Return the key under which an event with another's id but other content is kept."""
    return digest(secret, b"conflict", (key, content or b""))


def key_text(key: bytes) -> str:
    """Write a key as handlers, receivers and people see it."""
    return _KEY_START + key.hex()


def key_bytes(text: str) -> bytes | None:
    """Parse a key from its text; None if it is none."""
    prefix, _, digits = text.partition("_")
    if prefix != KEY_VERSION or not re.fullmatch(r"[0-9a-f]{32}", digits):
        return None
    return bytes.fromhex(digits)
