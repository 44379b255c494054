"""Requests and answers about claims, as types: they are checked by them, and described by them in OpenAPI.

Requests are read strictly; an error names the field and what was expected.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from oncebridge.claim import Outcome, Verdict
from oncebridge.discreet import Discreet
from oncebridge.engine.runner import AGAIN_SECONDS_MAX
from oncebridge.settings import Settings
from oncebridge.settings.sinks import NAME
from oncebridge.sources.request_body import TooMany, deliveries_in
from oncebridge.validation import expected, field_types, find_fault, metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

DETAIL_MAX: Final = 4000
CALL_KEY_MAX: Final = 255
CALL_KEY_HEADER: Final = "Idempotency-Key"


class Wrong(Exception):
    """A request is wrong; the message is for its client."""


# --- requests ------------------------------------------------------------------------------------------------


def _lease(description: str) -> Meta:
    """Describe a lease, with the bounds of the setting."""
    setting = metadata(field_types(Settings)["lease_seconds"])
    return Meta(ge=setting["ge"], le=setting["le"], description=description)


def _event(description: str | None, schema: dict[str, object]) -> Meta:
    """Describe an event: it is not parsed with its request, but kept byte for byte, and read later."""
    words = {"expected": "one delivery, as an object or as a text"}
    return Meta(description=description, extra_json_schema=schema, extra=words)


def _null() -> msgspec.Raw:
    return msgspec.Raw(b"null")


_EVENT: Final[dict[str, object]] = {"$ref": "#/components/schemas/Event"}  # `openapi` has it
_CLAIM: Final = Meta(
    description="The `claim` of the answer to `POST /claims`, unchanged. Any worker takes it.",
    extra={"expected": "the text that a claim was answered with"},
)
_HANDLER: Final = Meta(
    description="The name that this program's claims are remembered under. Programs that each want every event need a "
    "name each. Never change it: under a new name every event is fresh again.",
    extra_json_schema={"pattern": f"^{NAME.pattern}$"},  # checked by `read_handler`: Python's `$` allows a line feed
    extra={"expected": "up to 40 letters, digits, . _ and -"},
)
_OUTCOME: Final = Meta(
    description="done: the event has taken effect. retry: handling it failed, and is to be tried again. release: it "
    "was not tried, so no attempt is counted. dead: trying again cannot help."
)
_RETRY_IN: Final = Meta(
    ge=0,
    le=AGAIN_SECONDS_MAX,
    description="For retry: advice when to redeliver. Default: as the retry policy says.",
)
_DETAIL: Final = Meta(
    description=f"The error, in your words: its first {DETAIL_MAX} characters are kept with a dead letter, and only "
    "`oncebridge dead show` shows them."
)
_EVENT_AGAIN: Final = _event(
    "The delivery again. Required for retry and dead, since it may become a dead letter: a retry does at the last "
    "attempt.",
    {"anyOf": [_EVENT, {"type": "null"}]},
)


class ClaimRequest(Discreet, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the right to handle one event."""

    shown = ("handler", "lease_seconds")

    event: Annotated[msgspec.Raw, _event(None, _EVENT)]
    handler: Annotated[str, _HANDLER] | None = None
    lease_seconds: Annotated[float, _lease("How long it runs from now. Default: as in the settings.")] | None = None


class ExtendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Makes a claim run longer."""

    claim: Annotated[str, _CLAIM]
    lease_seconds: Annotated[float, _lease("How long it runs from now. Default: as claimed.")] | None = None


class SettleRequest(Discreet, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ends a claim."""

    shown = ("outcome", "retry_in_seconds")

    claim: Annotated[str, _CLAIM]
    outcome: Annotated[Literal["done", "retry", "release", "dead"], _OUTCOME]
    retry_in_seconds: Annotated[float, _RETRY_IN] | None = None
    detail: Annotated[str, _DETAIL] | None = None
    event: Annotated[msgspec.Raw, _EVENT_AGAIN] = msgspec.field(default_factory=_null)


T = TypeVar("T", ClaimRequest, ExtendRequest, SettleRequest)


# --- answers -------------------------------------------------------------------------------------------------

#: An unreadable event is answered with a problem, and one without a handler here is the client's to handle.
_VERDICTS: Final = [str(verdict) for verdict in Verdict if verdict not in (Verdict.DEAD, Verdict.UNHANDLED)]


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The verdict on an event and, if it is yours to handle, the claim."""

    verdict: Annotated[
        str,
        Meta(
            description="fresh: yours to handle, unless the outcome is dead. busy: another program is handling the "
            "event, or another state of its entity. Any other: there is nothing to do.",
            extra_json_schema={"enum": _VERDICTS},
        ),
    ]
    acknowledge: Annotated[
        bool, Meta(description="Whether the delivery may be acknowledged to its sender now. For fresh: once settled.")
    ]
    reason: Annotated[str, Meta(description="The verdict in words, free of personal data.")]
    key: Annotated[str, Meta(description="The event's key: send it along with every call, as an idempotency key.")]
    topic: str | None
    original_envelope_id: Annotated[
        str | None, Meta(description="The envelope id of the delivery that was processed, where it is known.")
    ]
    outcome: Annotated[
        str | None,
        Meta(
            description="dead: kept as a dead letter, because of a conflict or because its attempts are used up.",
            extra_json_schema={"enum": ["dead", None]},
        ),
    ]
    claim: Annotated[str | None, Meta(description="For fresh: send it to extend and to settle.")]
    token: Annotated[
        int | None,
        Meta(
            description="The fencing token: higher for each claim of the event, or of its entity. Refuse writes with a "
            "lower one."
        ),
    ]
    attempt: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="The number of this attempt, from 1.")]
    lease_seconds: Annotated[float | None, Meta(description="How long the claim runs. Settle it before, or extend it.")]
    retry_in_seconds: Annotated[Annotated[float, Meta(ge=0)] | None, Meta(description="For busy: when to ask again.")]


class ExtendAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the claim was extended."""

    ok: Annotated[
        bool, Meta(description="False: the claim is no longer in force. Stop: another program may hold the event.")
    ]


class SettleAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the claim was settled, and how it ended."""

    ok: Annotated[
        bool,
        Meta(description="False: the claim was no longer in force, and nothing has changed. Do not acknowledge."),
    ]
    outcome: Annotated[
        str | None,
        Meta(
            description="How the claim ended; dead after a retry at the last attempt. null where ok is false.",
            extra_json_schema={"enum": ["done", "retry", "release", "dead", None]},
        ),
    ]


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error, as in RFC 9457."""

    title: str
    status: int
    detail: Annotated[str, Meta(description="The field, the value that was expected, and the fix.")]


class KeptProblem(Problem, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event that is unreadable, or not allowed. It is kept as a dead letter, and need not be sent again."""

    acknowledge: Annotated[bool, Meta(extra_json_schema={"const": True})]
    verdict: Literal["dead"]
    outcome: Literal["dead"]
    key: Annotated[str, Meta(description="`oncebridge dead show` finds the dead letter by it.")]


# --- reading requests ----------------------------------------------------------------------------------------


def read_request(body: bytes, kind: type[T]) -> T:
    """Read a request of one kind; raise `Wrong` with the field, what was expected, and the fix."""
    try:
        try:
            return _read(body, kind)
        except msgspec.DecodeError:
            repaired = _with_event_as_text(body)
            if repaired is None:
                raise
            return _read(repaired, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise Wrong(f"the body: expected a JSON object in UTF-8; {why}") from None
    except RecursionError:
        raise Wrong("the body: is nested too deep") from None


def _read(body: bytes, kind: type[T]) -> T:
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        raise Wrong(_why(body, kind)) from None
    _refuse_twins(body)
    return request


def _why(body: bytes, kind: type[msgspec.Struct]) -> str:
    """Say what is wrong with a request that does not fit its type."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return "the body: expected a JSON object"
    given = {name: None if name == "event" else _parsed(value) for name, value in fields.items()}
    return str(find_fault(given, kind) or "the body: expected a JSON object")


def _parsed(value: msgspec.Raw) -> object:
    """Parse a field; one that cannot be parsed, such as 1e400, is returned as it is, which no type takes."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(value)
    return value


def _expected(field: str) -> str:
    return f"{field}: expected {expected(field_types(ClaimRequest)[field])}"


_decode_at = json.JSONDecoder().raw_decode
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def _with_event_as_text(body: bytes) -> bytes | None:
    """Turn an event that is invalid JSON, such as one with half a surrogate pair, into a text that can be kept."""
    with suppress(ValueError, IndexError, RecursionError):
        fields = list(_fields(body.decode()))
        if any(name == "event" for name, _ in fields):
            texts = (f"{json.dumps(name)}:{json.dumps(value) if name == 'event' else value}" for name, value in fields)
            return f"{{{','.join(texts)}}}".encode()
    return None


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of an object's fields and the text of their values, by a more lenient parser."""
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
    """Return the position after this character and the white space around it."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if text[at] != sign:
        raise ValueError
    return _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]


def _refuse_twins(body: bytes) -> None:
    """Refuse a field that occurs twice: a proxy that checked the request may have checked the other one."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if msgspec.json.format(msgspec.json.encode(fields), indent=-1) != msgspec.json.format(body, indent=-1):
        raise Wrong("the body: a field is in it twice, or its name has escapes; write each name once, without escapes")


def read_handler(request: ClaimRequest) -> str:
    """Return the name to claim under; empty where none is given."""
    if request.handler is not None and not NAME.fullmatch(request.handler):
        raise Wrong(_expected("handler"))
    return request.handler or ""


def read_detail(request: SettleRequest) -> str:
    """Return the client's error text, truncated: a long message must not make the settle fail."""
    return (request.detail or "")[:DETAIL_MAX]


def read_delivery(event: msgspec.Raw) -> bytes:
    """Return the one delivery of a request, byte for byte; AWS may have wrapped it."""
    data = bytes(event)
    if data[:1] == b'"':
        with suppress(UnicodeDecodeError):  # unreadable: kept as it is here
            data = msgspec.json.decode(data, type=str).encode()
    elif data[:1] not in (b"{", b"["):
        raise Wrong(_expected("event"))
    try:
        (delivery,) = deliveries_in(data, 1)
    except TooMany:
        raise Wrong("event: holds several deliveries; claim them one by one") from None
    return delivery


def read_ended_delivery(request: SettleRequest) -> bytes | None:
    """Return the delivery if it may become a dead letter, else None."""
    if Outcome(request.outcome) in (Outcome.DONE, Outcome.RELEASE):
        return None
    if bytes(request.event) == b"null":
        raise Wrong(
            f"event: is missing; with the outcome {request.outcome} send the delivery again, since it may become a "
            "dead letter"
        )
    return read_delivery(request.event)


def read_call_key(headers: dict[str, str]) -> str | None:
    """Return the client's idempotency key for this call; None where it sent none."""
    key = headers.get(CALL_KEY_HEADER.lower())
    if key is not None and not 0 < len(key) <= CALL_KEY_MAX:
        raise Wrong(f"{CALL_KEY_HEADER}: expected 1 to {CALL_KEY_MAX} characters, new for each call")
    return key
