"""Parses raw deliveries into events: three shapes, of which any field may be missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from oncebridge.discreet import Discreet
from oncebridge.errors import Unreadable
from oncebridge.strict_json import as_bytes, check_size, read_record, read_tree, type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Characters that a topic, a source, an id or a time may have: as many as EventBridge allows a source, and more than it
#: allows anything else. They are kept in ledgers and in memory, so their length needs a limit.
TEXT_MAX: Final = 256

_PARTNER = re.compile(r"aws\.partner/genesys\.com(?:\.test)?/cloud/([^/]+)(?:/|\Z)")


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """EventBridge's frame around an event; every field may be missing, as it is behind some targets."""

    id: str | None = None
    source: str | None = None
    detail_type: str | None = None
    account: str | None = None
    region: str | None = None
    time: str | None = None
    replay_name: str | None = None


class Event(Discreet, msgspec.Struct, frozen=True, gc=False):
    """An event of Genesys. Identity fills in `key` and `entity`, the claim `attempt` and `token`."""

    shown = ("key", "topic", "time_ms", "attempt", "token")

    #: The topic template, such as `v2.users.{id}.presence`.
    topic: str
    #: The topic with its ids filled in; the same as `topic` where a hand-made event has no other.
    topic_name: str
    org: str
    body: dict[str, Any]
    envelope: Envelope
    #: The delivery, byte for byte, for forwarding and for dead letters.
    raw: bytes
    #: The body with every number exactly as it was written, for identity alone.
    exact: dict[str, Any]
    #: When Genesys published it (`detail.timestamp`).
    published: str | int | float | None = None
    #: Whether it has Genesys' own shape; otherwise it was made by hand.
    genesys: bool = True
    #: Whether detail-type and topic name are of different topics.
    torn: bool = False

    key: str = ""
    entity: str | None = None
    time_ms: int | None = None
    conversation_id: str | None = None
    attempt: int = 1
    token: int = 0


#: A text that is not empty, and not too long.
_Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_MAX)]


class _Written(Discreet, msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """An object with these fields and no others, in the order in which they are written."""


class _UsualDetail(_Written, rename={"topic_name": "topicName", "body": "eventBody"}):
    """Genesys' notification as Genesys writes it."""

    topic_name: _Text
    version: str
    body: dict[str, Any]
    metadata: dict[str, Any]
    timestamp: _Text


class _UsualDelivery(_Written, rename={"detail_type": "detail-type", "replay_name": "replay-name"}):
    """A notification in its envelope as EventBridge writes it."""

    version: str
    id: _Text
    detail_type: _Text
    source: _Text
    account: _Text
    time: _Text
    region: _Text
    resources: list[str]
    detail: _UsualDetail
    replay_name: _Text | None = None


_USUAL: Final = msgspec.json.Decoder(_UsualDelivery)
USUAL_BYTES_MAX: Final = 65_536


#: Turns an object that is no envelope into one: settings say how an input transformer changed it.
Reshape: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def parse(raw: bytes | bytearray | memoryview | str | Mapping[str, Any], reshape: Reshape | None = None) -> Event:
    """Parse one delivery, or raise `Unreadable` with the reason."""
    data = raw if type(raw) is bytes else as_bytes(raw)
    event = parse_usual(data)
    return _any_event(data, reshape) if event is None else event


def parse_usual(data: bytes) -> Event | None:
    """Parse a delivery that is written as EventBridge writes it; None if it differs in any way."""
    check_size(data)
    # A large one is rarely usual, and reading it twice may take long.
    usual = read_record(_USUAL, data) if len(data) <= USUAL_BYTES_MAX else None
    if usual is None:
        return None
    texts = (usual.id, usual.source, usual.detail_type, usual.account, usual.region, usual.time, usual.replay_name)
    for text in texts:
        if text is not None and text.isspace():
            return None
    detail = usual.detail
    try:
        return _genesys_event(
            Envelope(*texts), detail.topic_name, detail.body, detail.body, timestamp=detail.timestamp, raw=data
        )
    except Unreadable:
        return None


def _any_event(data: bytes, reshape: Reshape | None) -> Event:
    """Parse a delivery of any shape, or raise with the reason."""
    tree, exact = read_tree(data)
    if reshape is not None and type(tree) is dict and not _KNOWN_SHAPE.intersection(tree):
        tree, exact = reshape(tree), reshape(exact)
    try:
        return _event(tree, exact, data)
    except Unreadable as error:
        error.envelope_id = _any_text(tree.get("id")) if type(tree) is dict else None
        raise


def _event(tree: Any, exact: Any, raw: bytes) -> Event:
    """Distinguish the three shapes: an envelope, Genesys' notification alone, a hand-made object."""
    if type(tree) is not dict:
        raise Unreadable(f"is {type_name(tree)}, not an object")
    if "detail" in tree or "detail-type" in tree:
        envelope = _envelope(tree)
        detail = tree.get("detail")
        if type(detail) is not dict:
            missing = "is missing" if detail is None else f"is {type_name(detail)}, not an object"
            raise Unreadable(f"detail {missing}")
        return _event_in(envelope, detail, exact["detail"], raw)
    return _event_in(_NO_ENVELOPE, tree, exact, raw)


_NO_ENVELOPE: Final = Envelope()
_KNOWN_SHAPE: Final = frozenset({"detail", "detail-type", "eventBody"})
ENVELOPE_FIELDS: Final = ("id", "source", "detail-type", "account", "region", "time", "replay-name")


def _envelope(tree: dict[str, Any]) -> Envelope:
    get = tree.get
    values = [get(name) for name in ENVELOPE_FIELDS]
    for value in values:
        if value is not None and (type(value) is not str or len(value) > TEXT_MAX or not value.strip()):
            return Envelope(*map(_envelope_text, ENVELOPE_FIELDS, values))
    return Envelope(*values)  # nearly always


def _envelope_text(name: str, value: object) -> str | None:
    """Check one field; a blank text counts as absent."""
    if value is not None and type(value) is not str:
        raise Unreadable(f"{name} is {type_name(value)}, not text")
    if value is not None and len(value) > TEXT_MAX:
        raise _too_long(name, value)
    return value if value and value.strip() else None


def _event_in(envelope: Envelope, detail: dict[str, Any], exact: dict[str, Any], raw: bytes) -> Event:
    topic_name = detail.get("topicName")
    if topic_name is None or "eventBody" not in detail:
        return _hand_made(envelope, detail, exact, raw)
    body = detail["eventBody"]
    if type(topic_name) is not str or not topic_name:
        raise Unreadable(f"topicName is {type_name(topic_name)}, not a topic")
    if type(body) is not dict:
        raise Unreadable(f"eventBody is {type_name(body)}, not an object")
    if len(topic_name) > TEXT_MAX:
        raise _too_long("topicName", topic_name)
    timestamp = detail.get("timestamp")
    return _genesys_event(envelope, topic_name, body, exact["eventBody"], timestamp=timestamp, raw=raw)


def _genesys_event(
    envelope: Envelope, topic_name: str, body: dict[str, Any], exact: dict[str, Any], *, timestamp: Any, raw: bytes
) -> Event:
    """Make the event of Genesys' own shape from its parts."""
    _check_ids(body)
    topic = envelope.detail_type or topic_template(topic_name)
    return Event(
        topic,
        topic_name,
        org_of(envelope.source) or _text(body, "organizationId") or envelope.source or "",
        body,
        envelope,
        raw,
        exact,
        _published(timestamp),
        True,
        not _is_template_of(topic, topic_name),
    )


def _hand_made(envelope: Envelope, detail: dict[str, Any], exact: dict[str, Any], raw: bytes) -> Event:
    _check_ids(detail)
    topic = envelope.detail_type or _text(detail, "eventType") or _text(detail, "type") or _text(detail, "topicName")
    if topic is None and envelope is _NO_ENVELOPE and not _HINTS.intersection(detail):
        raise Unreadable("nothing says what this is: no detail-type, topicName, eventType, type or conversation id")
    topic = topic or "unknown"
    return Event(
        topic=topic,
        topic_name=topic,
        org=org_of(envelope.source) or _text(detail, "organizationId") or envelope.source or "",
        body=detail,
        envelope=envelope,
        raw=raw,
        exact=exact,
        published=_published(detail.get("timestamp")),
        genesys=False,
    )


_HINTS: Final = frozenset({"conversationId", "conversation_id", "interactionId", "eventId", "event_id"})
#: Ids that are kept as they are; an event's own id is only ever hashed, and may have any length.
_IDS: Final = ("id", "conversationId", "userId", "conversation_id", "interactionId", "user_id")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def is_uuid(text: str) -> bool:
    """Return whether a text has the form of the ids that EventBridge and Genesys use; no version is promised."""
    return _UUID.fullmatch(text) is not None


def _too_long(name: str, value: str) -> Unreadable:
    """Refuse a text that is too long by its name and length; the text is never shown."""
    return Unreadable(f"{name} is {len(value):,} characters long; the limit is {TEXT_MAX}")


def _check_ids(body: dict[str, Any]) -> None:
    for name in _IDS:
        if name in body:
            value = body[name]
            if type(value) is str and len(value) > TEXT_MAX:
                raise _too_long(name, value)


def _any_text(value: object) -> str | None:
    return value if type(value) is str and value else None


def _text(detail: dict[str, Any], name: str) -> str | None:
    value = _any_text(detail.get(name))
    if value is not None and len(value) > TEXT_MAX:
        raise _too_long(name, value)
    return value


def _published(timestamp: Any) -> str | int | float | None:
    if type(timestamp) is str and len(timestamp) > TEXT_MAX:
        raise _too_long("timestamp", timestamp)
    return timestamp if type(timestamp) in (str, int, float) else None


@lru_cache(maxsize=256)
def org_of(source: str | None) -> str | None:
    """Return the Genesys organization that a partner source names: EventBridge writes it, and nobody else can."""
    match = _PARTNER.match(source or "")
    return match[1] if match else None


@lru_cache(maxsize=1024)
def topic_template(topic_name: str) -> str:
    """Guess the template of a concrete topic name, where no detail-type gives it."""
    return ".".join("{id}" if _UUID.fullmatch(part) else part for part in topic_name.split("."))


@lru_cache(maxsize=4096)
def _is_template_of(topic: str, topic_name: str) -> bool:
    """Return whether a concrete name is one of a template's: the same parts, with ids for placeholders."""
    around = _around_id(topic)
    if around is None:
        parts, names = topic.split("."), topic_name.split(".")
        alike = (part == name or (name and _is_placeholder(part)) for part, name in zip(parts, names, strict=False))
        return len(parts) == len(names) and all(alike)
    start, end = around  # nearly always, and quicker
    found = topic_name[len(start) : len(topic_name) - len(end)]
    return bool(found) and "." not in found and topic_name.startswith(start) and topic_name.endswith(end)


@lru_cache(maxsize=256)
def _around_id(topic: str) -> tuple[str, str] | None:
    """Return the text before and after the placeholder of a template that has just one."""
    placeholders = [part for part in topic.split(".") if _is_placeholder(part)]
    if len(placeholders) != 1:
        return None
    before, _, behind = f".{topic}.".partition(f".{placeholders[0]}.")
    return f"{before}."[1:], f".{behind}"[:-1]


def _is_placeholder(part: str) -> bool:
    return part.startswith("{") and part.endswith("}")
