"""What clients ask about claims, read strictly; what is wrong is told with the field and what was expected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

import msgspec

from oncebridge.claim import Outcome
from oncebridge.discreet import Discreet
from oncebridge.engine.runner import AGAIN_SECONDS_MAX
from oncebridge.settings import TOP
from oncebridge.settings.checks import Check, number
from oncebridge.settings.sinks import NAME
from oncebridge.sources.request_body import TooMany, deliveries_in

DETAIL_MAX: Final = 4000
CALL_KEY_MAX: Final = 255
CALL_KEY_HEADER: Final = "Idempotency-Key"
_SHOWN_MAX: Final = 40  # of a name that comes from outside

LEASE_SECONDS: Final = TOP["lease_seconds"]
AGAIN_IN_SECONDS: Final = number(0, AGAIN_SECONDS_MAX)

T = TypeVar("T")


class Wrong(Exception):
    """A request is wrong; the words are for its client."""


class ClaimRequest(Discreet, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for one event."""

    shown = ("handler", "lease_seconds")

    event: msgspec.Raw
    handler: str | None = None
    lease_seconds: float | None = None


class ExtendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Let a claim run longer."""

    claim: str
    lease_seconds: float | None = None


class SettleRequest(Discreet, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End a claim."""

    shown = ("outcome", "retry_in_seconds")

    claim: str
    outcome: Literal["done", "retry", "release", "dead"]
    retry_in_seconds: float | None = None
    detail: str | None = None
    event: msgspec.Raw = msgspec.Raw(b"null")


_EXPECTED: Final = {
    "event": "one delivery, as an object or as a text",
    "handler": "up to 40 letters, digits, . _ and -",
    "lease_seconds": LEASE_SECONDS.expected,
    "claim": "the text that a claim was answered with",
    "outcome": "done, retry, release or dead",
    "retry_in_seconds": AGAIN_IN_SECONDS.expected,
    "detail": "a text",
}
_FIELD: Final = re.compile(r"`\$\.(\w+)")
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)


def read_request(body: bytes, kind: type[T]) -> T:
    """Read a request of one kind."""
    try:
        try:
            return _read(body, kind)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            mended = _with_event_as_text(body)
            if mended is None:
                raise
            return _read(mended, kind)
    except msgspec.ValidationError as error:
        raise Wrong(_why(str(error), kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise Wrong(f"the body: expected a JSON object in UTF-8; {why}") from None
    except RecursionError:
        raise Wrong("the body: is nested too deep") from None


def _read(body: bytes, kind: type[T]) -> T:
    request = msgspec.json.decode(body, type=kind)
    _refuse_twins(body)
    return request


_decode_at = json.JSONDecoder().raw_decode
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def _with_event_as_text(body: bytes) -> bytes | None:
    """Write an event that is no JSON, for half a character in it or the like, as a text: so it can be kept at least."""
    with suppress(ValueError, IndexError, RecursionError):
        fields = list(_fields(body.decode()))
        if any(name == "event" for name, _ in fields):
            texts = (f"{json.dumps(name)}:{json.dumps(value) if name == 'event' else value}" for name, value in fields)
            return f"{{{','.join(texts)}}}".encode()
    return None


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of an object's fields and their values as they are written, by a reader that is not so strict."""
    at, sign = _past(text, 0, "{"), ","
    while sign == ",":
        name, at = _decode_at(text, at)
        start = _past(text, at, ":")
        _, end = _decode_at(text, start)
        yield name, text[start:end]
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        sign = text[at]
        at = _past(text, at, sign)


def _past(text: str, at: int, sign: str) -> int:
    """Return where something begins after a sign and the white space around it."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if text[at] != sign:
        raise ValueError
    return _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]


def _refuse_twins(body: bytes) -> None:
    """Refuse a field that stands twice: whoever looked at the request before may have looked at the other one."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if msgspec.json.format(msgspec.json.encode(fields), indent=-1) != msgspec.json.format(body, indent=-1):
        raise Wrong(
            "the body: a field stands in it twice, or its name is written with escapes; write each once, plainly"
        )


def _why(words: str, kind: Any) -> str:
    """Say what is wrong with a request in our own words: others' may quote what was sent."""
    missing, unknown, field = _MISSING.match(words), _UNKNOWN.match(words), _FIELD.search(words)
    if missing is not None:
        return f"{missing[1]}: is missing; expected {_EXPECTED[missing[1]]}"
    if unknown is not None:
        name = unknown[1].encode("ascii", "replace").decode()[:_SHOWN_MAX]
        shown = "".join(character if character.isprintable() else "?" for character in name)
        return f"{shown}: no such field; known are {', '.join(kind.__struct_fields__)}"
    if field is not None:
        return _expected(field[1])
    return "the body: expected a JSON object"


def _expected(field: str) -> str:
    return f"{field}: expected {_EXPECTED[field]}"


def read_handler(request: ClaimRequest) -> str:
    """Return the name to claim under; empty where none is given."""
    if request.handler is not None and not NAME.fullmatch(request.handler):
        raise Wrong(_expected("handler"))
    return request.handler or ""


def read_lease_us(request: ClaimRequest | ExtendRequest, otherwise_us: int) -> int:
    """Return the lease that is asked for."""
    return _read_us("lease_seconds", LEASE_SECONDS, request.lease_seconds, otherwise_us)


def read_retry_in_us(request: SettleRequest) -> int | None:
    """Return when to come again; None where that is left to the retry policy."""
    return _read_us("retry_in_seconds", AGAIN_IN_SECONDS, request.retry_in_seconds, None)


def _read_us(field: str, check: Check, seconds: float | None, otherwise: T) -> int | T:
    if seconds is None:
        return otherwise
    try:
        return int(check.read(seconds) * 1_000_000)
    except ValueError:
        raise Wrong(_expected(field)) from None


def read_detail(request: SettleRequest) -> str:
    """Return the client's own words; whoever has a long error to tell of must not fail to settle for that."""
    return (request.detail or "")[:DETAIL_MAX]


def read_delivery(event: msgspec.Raw) -> bytes:
    """Return the one delivery that a request brings, byte for byte; it may be wrapped as AWS does."""
    data = bytes(event)
    if data[:1] == b'"':
        with suppress(UnicodeDecodeError):  # unreadable, but to be kept: as it stands here
            data = msgspec.json.decode(data, type=str).encode()
    elif data[:1] not in (b"{", b"["):
        raise Wrong(_expected("event"))
    try:
        (delivery,) = deliveries_in(data, 1)
    except TooMany:
        raise Wrong("event: holds several deliveries; claim them one by one") from None
    return delivery


def read_ended_delivery(request: SettleRequest) -> bytes | None:
    """Return the delivery that may become a dead letter; None where none can come of it."""
    if Outcome(request.outcome) in (Outcome.DONE, Outcome.RELEASE):
        return None
    if bytes(request.event) == b"null":
        raise Wrong(
            f"event: is missing; with the outcome {request.outcome} send the delivery again, since it may become a "
            "dead letter"
        )
    return read_delivery(request.event)


def read_call_key(headers: dict[str, str]) -> str | None:
    """Return by what a client knows its call again; None where it does not."""
    key = headers.get(CALL_KEY_HEADER.lower())
    if key is not None and not 0 < len(key) <= CALL_KEY_MAX:
        raise Wrong(f"{CALL_KEY_HEADER}: expected 1 to {CALL_KEY_MAX} characters, new for each call")
    return key
