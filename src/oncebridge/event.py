"""Raw deliveries into events, strictly: what cannot be read exactly is refused with a reason.

msgspec reads JSON fast, but forgets some of what was written: it keeps the last of two equal keys, and
1.10 becomes 1.1. So every text is written back and compared: the same bytes mean that nothing was
forgotten. Only where they differ is the text read again by a slower reader that forgets nothing.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.errors import Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

BYTES_MAX: Final = 1_048_576 + 65_536  # an event of 1 MB and the envelope around it
DEPTH_MAX: Final = 64
NAME_SHOWN_MAX: Final = 60  # field names come from outside: never print an endless one

type_names: Final = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}

_TOO_MANY_DIGITS: Final = "holds a number with too many digits"

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode

_PARTNER = re.compile(r"aws\.partner/genesys\.com(?:\.test)?/cloud/([^/]+)(?:/|\Z)")


class Envelope(msgspec.Struct, frozen=True):
    """EventBridge's frame around an event; every field may be missing, as it is behind some targets."""

    id: str | None = None
    source: str | None = None
    detail_type: str | None = None
    account: str | None = None
    region: str | None = None
    time: str | None = None
    replay_name: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What Genesys says happened. Identity fills in `key` and `entity`, the claim `attempt` and `token`."""

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


def parse(raw: bytes | bytearray | memoryview | str | Mapping[str, Any]) -> Event:
    """Read one delivery, or raise `Unreadable` with what is wrong."""
    data = as_bytes(raw)
    tree, exact = read_json(data)
    return _event(tree, exact, data)


def as_bytes(raw: object) -> bytes:
    """Bring bytes, text or parsed JSON into the one form that everything else works on."""
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, (bytearray, memoryview)):
        return bytes(raw)
    try:
        text = (
            raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        )
        return text.encode()
    except UnicodeEncodeError:
        raise Unreadable("text holds half of a surrogate pair, which is no character") from None
    except ValueError as error:
        if "digits" in str(error):
            raise Unreadable(_TOO_MANY_DIGITS) from None
        raise Unreadable("holds NaN or Infinity, or itself, which JSON cannot express") from None
    except TypeError as error:
        raise Unreadable(f"is not JSON: {error}") from None
    except RecursionError:
        raise Unreadable(_too_deep()) from None


def read_json(data: bytes, *, bytes_max: int = BYTES_MAX) -> tuple[Any, Any]:
    """Return the parsed tree, and the tree with numbers as written (the same object where they agree)."""
    if len(data) > bytes_max:
        raise Unreadable(f"is {len(data):,} bytes long; the limit is {bytes_max:,}")
    try:
        tree = _decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Unreadable(_why_unreadable(data, error)) from None
    # Before anything recurses into it.
    if data.count(b"{") + data.count(b"[") > DEPTH_MAX and _depth(tree) > DEPTH_MAX:
        raise Unreadable(_too_deep())
    return tree, tree if _is_faithful(tree, data) else _read_exactly(data)


def canonical(exact: object) -> bytes:
    """Write a tree of exact numbers in the one form that is compared: keys sorted, no white space."""
    return _encode_sorted(exact)


def _is_faithful(tree: object, data: bytes) -> bool:
    r"""Tell whether writing the tree back gives what was read: no key, digit or escape was forgotten.

    Python's own writer puts a space after each colon and comma; taking these out first is safe, because
    a text that then equals ours letter for letter has our keys and our numbers.
    """
    if b"\\u0000" in data:
        return False
    again = _encode(tree)
    return again == data or (b'": ' in data and again == data.replace(b'": ', b'":').replace(b", ", b","))


def _read_exactly(data: bytes) -> Any:
    """Read JSON slowly, keeping numbers as written and refusing what is ambiguous."""
    try:
        text = data.decode()
        tree = json.loads(
            text,
            object_pairs_hook=_object_without_twins,
            parse_float=_as_written,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
        _encode(tree)
    except RecursionError:
        raise Unreadable(_too_deep()) from None
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(_why_unreadable(data, error)) from None
    return tree


def _object_without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Unreadable(f"the key {_shown(twin)} stands twice in one object")
    for name, value in pairs:
        if "\x00" in name or (type(value) is str and "\x00" in value):
            raise Unreadable(f"the character U+0000 stands in {_shown(name)}; databases cannot keep it")
        if type(value) is list:
            _refuse_null_characters(name, value)
    return result


def _refuse_null_characters(name: str, values: list[Any]) -> None:
    for value in values:
        if type(value) is str and "\x00" in value:
            raise Unreadable(f"the character U+0000 stands in {_shown(name)}; databases cannot keep it")
        if type(value) is list:
            _refuse_null_characters(name, value)


def _as_written(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _integer(text: str) -> int | msgspec.Raw:
    return msgspec.Raw(b"-0") if text == "-0" else int(text)


def _refuse_constant(name: str) -> Any:
    raise Unreadable(f"holds {name}, which is not JSON")


def _why_unreadable(data: bytes, error: Exception) -> str:
    """Say in words what is wrong with a text that is no JSON."""
    if isinstance(error, RecursionError):
        return _too_deep()
    if not data.strip():
        return "is empty"
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        return "starts with a byte order mark; send UTF-8 without one"
    if b"\x00" in data[:4]:
        return "is not UTF-8 (it looks like UTF-16 or UTF-32)"
    try:
        text = data.decode()
    except UnicodeDecodeError as wrong:
        return f"is not UTF-8 (byte {wrong.start})"
    return _why_not_json(text, error)


def _why_not_json(text: str, error: Exception) -> str:
    try:
        tree = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(tree, ensure_ascii=False).encode()
    except Unreadable as wrong:
        return str(wrong)
    except json.JSONDecodeError as wrong:
        return f"is not JSON: {wrong.msg.lower()} (character {wrong.pos + 1})"
    except UnicodeEncodeError:
        return "text holds half of a surrogate pair, which is no character"
    except RecursionError:
        return _too_deep()
    except ValueError:
        return _TOO_MANY_DIGITS
    return "holds a number that is out of range" if "range" in str(error) else f"is not JSON: {error}"


def _depth(tree: object) -> int:
    """Count the levels of nesting, level by level rather than by recursion; stop once it is too deep."""
    level, depth = [tree], 0
    while level and depth <= DEPTH_MAX:
        below: list[object] = []
        for node in level:
            if isinstance(node, dict):
                below.extend(node.values())
            elif isinstance(node, list):
                below.extend(node)
        if any(isinstance(node, (dict, list)) for node in level):
            depth += 1
        level = below
    return depth


def _too_deep() -> str:
    return f"is nested more than {DEPTH_MAX} levels deep"


def _shown(name: str) -> str:
    """Write a field name from outside so that it is short and has no control characters."""
    text = json.dumps(name)
    return text if len(text) <= NAME_SHOWN_MAX else text[:NAME_SHOWN_MAX] + '…"'


def type_name(value: object) -> str:
    """Name a JSON type as a reader would."""
    return type_names.get(type(value), "a number")


# --- from the tree to the event ----------------------------------------------------------------------


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
_ENVELOPE_FIELDS: Final = ("id", "source", "detail-type", "account", "region", "time", "replay-name")


def _envelope(tree: dict[str, Any]) -> Envelope:
    values = [tree.get(name) for name in _ENVELOPE_FIELDS]
    if not _TEXT_OR_NONE.issuperset(map(type, values)):
        name, value = next(
            pair for pair in zip(_ENVELOPE_FIELDS, values, strict=True) if type(pair[1]) not in _TEXT_OR_NONE
        )
        raise Unreadable(f"{name} is {type_name(value)}, not text")
    # A blank text says as little as an absent one.
    return Envelope(*[value if value and not value.isspace() else None for value in values])


_TEXT_OR_NONE: Final = frozenset({str, type(None)})


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
