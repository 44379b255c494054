"""Raw deliveries into events: three shapes, and whatever may be missing from them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from oncebridge.discreet import Discreet
from oncebridge.errors import Unreadable
from oncebridge.strict_json import as_bytes, read_json, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


class Event(Discreet, msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What Genesys says happened. Identity fills in `key` and `entity`, the claim `attempt` and `token`."""

    shown = ("key", "topic", "time_ms", "attempt", "token")

    #: The topic template, such as `v2.users.{id}.presence`.
    topic: str
    #: The topic with its ids filled in; the same as `topic` where a hand-made event has no other.
    topic_name: str
    org: str
    body: dict[str, Any]
    envelope: Envelope
    #: What arrived, byte for byte, for forwarding and for dead letters.
    raw: bytes
    #: The body with every number exactly as it was written, for identity alone.
    exact: dict[str, Any]
    #: When Genesys published it (`detail.timestamp`).
    published: str | int | float | None = None
    #: Whether it has Genesys' own shape; otherwise somebody made it by hand.
    genesys: bool = True
    #: Whether detail-type and topic name speak of different topics.
    torn: bool = False

    key: str = ""
    entity: str | None = None
    time_ms: int | None = None
    conversation_id: str | None = None
    attempt: int = 1
    token: int = 0


#: Turns an object that is no envelope into one: what an input transformer made of it is known from settings.
Reshape: TypeAlias = "Callable[[dict[str, Any]], dict[str, Any]]"


def parse(raw: bytes | bytearray | memoryview | str | Mapping[str, Any], reshape: Reshape | None = None) -> Event:
    """Read one delivery, or raise `Unreadable` with what is wrong."""
    data = as_bytes(raw)
    tree, exact = read_json(data)
    if reshape is not None and type(tree) is dict and not _KNOWN_SHAPE.intersection(tree):
        tree, exact = reshape(tree), reshape(exact)
    try:
        return _event(tree, exact, data)
    except Unreadable as error:
        error.envelope_id = _text(tree.get("id")) if type(tree) is dict else None
        raise


def _event(tree: Any, exact: Any, raw: bytes) -> Event:
    """Tell the three shapes apart: an envelope, Genesys' notification alone, a hand-made object."""
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
    values = [tree.get(name) for name in ENVELOPE_FIELDS]
    for at, value in enumerate(values):
        if type(value) is str:
            if not value.strip():
                values[at] = None  # a blank text says as little as an absent one
        elif value is not None:
            raise Unreadable(f"{ENVELOPE_FIELDS[at]} is {type_name(value)}, not text")
    return Envelope(*values)


def _event_in(envelope: Envelope, detail: dict[str, Any], exact: dict[str, Any], raw: bytes) -> Event:
    topic_name = detail.get("topicName")
    if topic_name is None or "eventBody" not in detail:
        return _hand_made(envelope, detail, exact, raw)
    body = detail["eventBody"]
    if type(topic_name) is not str or not topic_name:
        raise Unreadable(f"topicName is {type_name(topic_name)}, not a topic")
    if type(body) is not dict:
        raise Unreadable(f"eventBody is {type_name(body)}, not an object")
    topic = envelope.detail_type or topic_template(topic_name)
    return Event(
        topic=topic,
        topic_name=topic_name,
        org=_org(envelope.source) or _text(body.get("organizationId")) or envelope.source or "",
        body=body,
        envelope=envelope,
        raw=raw,
        exact=exact["eventBody"],
        published=_scalar(detail.get("timestamp")),
        torn=not _pattern_of(topic).fullmatch(topic_name),
    )


def _hand_made(envelope: Envelope, detail: dict[str, Any], exact: dict[str, Any], raw: bytes) -> Event:
    topic = envelope.detail_type or _text(detail.get("eventType")) or _text(detail.get("type"))
    topic = topic or _text(detail.get("topicName"))
    if topic is None and envelope is _NO_ENVELOPE and not _HINTS.intersection(detail):
        raise Unreadable("nothing says what this is: no detail-type, topicName, eventType, type or conversation id")
    topic = topic or "unknown"
    return Event(
        topic=topic,
        topic_name=topic,
        org=_org(envelope.source) or _text(detail.get("organizationId")) or envelope.source or "",
        body=detail,
        envelope=envelope,
        raw=raw,
        exact=exact,
        published=_scalar(detail.get("timestamp")),
        genesys=False,
    )


_HINTS: Final = frozenset({"conversationId", "conversation_id", "interactionId", "eventId", "event_id"})
_PLACEHOLDER = re.compile(r"\{.*\}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _text(value: object) -> str | None:
    return value if type(value) is str and value else None


def _scalar(value: object) -> str | int | float | None:
    return value if type(value) in (str, int, float) else None  # type: ignore[return-value]


@lru_cache(maxsize=1024)
def _org(source: str | None) -> str | None:
    match = _PARTNER.match(source or "")
    return match[1] if match else None


@lru_cache(maxsize=4096)
def topic_template(topic_name: str) -> str:
    """Guess the template of a concrete topic name, where no detail-type gives it."""
    return ".".join("{id}" if _UUID.fullmatch(part) else part for part in topic_name.split("."))


@lru_cache(maxsize=4096)
def _pattern_of(topic: str) -> re.Pattern[str]:
    """Compile what the concrete names of a template look like: the same parts, with ids for placeholders."""
    return re.compile(
        r"\.".join("[^.]+" if _PLACEHOLDER.fullmatch(part) else re.escape(part) for part in topic.split("."))
    )
