"""The OpenAPI document of the service: its schemas come from the types, and the tests send its examples."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from oncebridge.service.claim_messages import (
    CALL_KEY_HEADER,
    CALL_KEY_MAX,
    ClaimAnswer,
    ClaimRequest,
    ExtendAnswer,
    ExtendRequest,
    KeptProblem,
    Problem,
    SettleAnswer,
    SettleRequest,
)
from oncebridge.sources.http_reply import RETRY_AFTER_SECONDS_MAX
from oncebridge.telemetry import COLUMNS

Node = dict[str, Any]

#: The answer to `POST /events`, which has a field for each column of the books.
Books: Final = msgspec.defstruct(
    "Books", [(name, Annotated[int, Meta(ge=0)]) for name in ("received", *COLUMNS)], forbid_unknown_fields=True
)
Books.__doc__ = "How many deliveries were received, and how many of them ended in each column."


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `GET /health`."""

    status: Literal["ok"]
    ledger: Annotated[Literal["in reach", "out of reach"], Meta(description="As it was the last time it was needed.")]


_MESSAGES: Final = (
    *(ClaimRequest, ClaimAnswer, ExtendRequest, ExtendAnswer, SettleRequest, SettleAnswer),
    *(Books, Health, Problem, KeptProblem),
)
_EVENT_SCHEMA: Final[Node] = {
    "description": "One delivery, byte for byte as it arrived: an object or a text, with its envelope or without, also "
    "as SQS, SNS, Kinesis and others wrap it, if there is one delivery in it.",
    "anyOf": [{"type": "object"}, {"type": "string"}, {"type": "array"}],
}

DESCRIPTION: Final = """\
Takes events of Genesys Cloud and lets each take effect once.

`POST /events` gives events to the handlers and sinks of this service. The three routes below `/claims` are for
programs in other languages that handle events themselves:

1. `POST /claims` with the delivery. If `claim` is null, acknowledge the delivery if `acknowledge` is true; otherwise
   leave it to be redelivered.
2. Handle the event. Send `key` along with every write, and extend the claim if handling takes longer than the lease.
3. `POST /claims/settle` with the outcome. Acknowledge the delivery after `ok` with `done` or `dead`, and only then.

A request that is answered with 503 may be sent again, unchanged. An answer may take `answer_within_seconds`, which is
4.5 unless set, for example while an event is busy: clients need a longer timeout."""

_EVENT: Final[Node] = {
    "version": "0",
    "id": "7d3c1a52-90ab-0cde-5f01-23456789abcd",
    "detail-type": "v2.users.{id}.presence",
    "source": "aws.partner/genesys.com/cloud/5b1e6f0a-6f0c-4d57-9c4c-0d6a3a1f7e11/service-desk",
    "account": "210987654321",
    "time": "2025-06-02T10:30:00Z",
    "region": "eu-west-2",
    "resources": [],
    "detail": {
        "topicName": "v2.users.3d905271-6e4f-4fb1-a08a-92435d6e7f80.presence",
        "version": "2",
        "eventBody": {
            "source": "PURECLOUD",
            "presenceDefinition": {"id": "6a3af858-942f-489d-9700-5f9bcdcdae9b", "systemPresence": "AVAILABLE"},
            "primary": True,
            "modifiedDate": "2025-06-02T10:30:00.123Z",
        },
        "timestamp": "2025-06-02T10:30:00.310Z",
    },
}
_KEY: Final = "ob1_0f6c7e0b5a9d4c1e8b7a6f5e4d3c2b1a"
_CLAIM: Final = (
    "kX0c9vPzT1m4eYJ2wq8LrwGcAc8ABk7z3Vw7CQHOAcnDgM8ABk7z3Vw"  # shortened: a real one has about 400 characters
)


@cache
def document() -> Node:
    """Return the document."""
    _, schemas = msgspec.json.schema_components(_MESSAGES, ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Oncebridge",
            "version": "1",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"key": []}, {"bearer": []}, {"password": []}],
        "paths": {
            "/events": {"post": _EVENTS},
            "/claims": {"post": _CLAIMS},
            "/claims/extend": {"post": _EXTEND},
            "/claims/settle": {"post": _SETTLE},
            "/health": {"get": _HEALTH},
            "/metrics": {"get": _METRICS},
            "/openapi.json": {"get": _OPENAPI},
        },
        "components": {
            "schemas": {"Event": _EVENT_SCHEMA, **schemas},
            "responses": _RESPONSES,
            "headers": {"RetryAfter": _RETRY_AFTER},
            "securitySchemes": _SECURITY,
        },
    }


# --- parts ---------------------------------------------------------------------------------------------------


def _ref(schema: str) -> Node:
    return {"$ref": f"#/components/schemas/{schema}"}


def _json(schema: str, **examples: Any) -> Node:
    content: Node = {"schema": _ref(schema)}
    if examples:
        content["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"application/json": content}


def _body(schema: str, **examples: Any) -> Node:
    return {"required": True, "content": _json(schema, **examples)}


def _problem(description: str, status: int, title: str, detail: str, headers: Node | None = None) -> Node:
    example = {"title": title, "status": status, "detail": detail}
    content = {"schema": _ref("Problem"), "example": example}
    response: Node = {"description": description, "content": {"application/problem+json": content}}
    return response if headers is None else {**response, "headers": headers}


def _responses(good: Node, *others: str) -> Node:
    return {"200": good, **{status: {"$ref": f"#/components/responses/{name}"} for status, name in map(_split, others)}}


def _split(named: str) -> tuple[str, str]:
    status, _, name = named.partition(" ")
    return status, name


_WRONG: Final = {
    "title": "Bad Request",
    "status": 400,
    "detail": "lease_seconds: expected a number from 0.1 to 43200",
}
_KEPT: Final = {
    "title": "Bad Request",
    "status": 400,
    "detail": "event: kept as a dead letter, unreadable: is empty",
    "acknowledge": True,
    "verdict": "dead",
    "outcome": "dead",
    "key": _KEY,
}
_RETRY_AFTER: Final[Node] = {
    "description": "After how many seconds to send the same request again.",
    "schema": {"type": "integer", "minimum": 1, "maximum": RETRY_AFTER_SECONDS_MAX},
}
_SECURITY: Final[Node] = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "password": {
        "type": "http",
        "scheme": "basic",
        "description": "The key is the password; the name does not matter.",
    },
}
_RESPONSES: Final[Node] = {
    "WrongEvents": _problem(
        "A delivery was unreadable, or is not allowed; it is kept as a dead letter, and need not be sent again.",
        400,
        "Bad Request",
        "1 of 1 kept as dead letters; the first is unreadable: is empty",
    ),
    "WrongRequest": _problem(
        "The request is wrong. It changed nothing, and sending it again does not help.",
        400,
        "Bad Request",
        "claim: is not a claim of this ledger, or was cut or changed; send it exactly as it was answered",
    ),
    "WrongClaim": {
        "description": "The request is wrong. It changed nothing, and sending it again does not help. Or the event is "
        "unreadable, or not allowed: then `acknowledge` is true, and the event is kept as a dead letter.",
        "content": {
            "application/problem+json": {
                "schema": {"oneOf": [_ref("Problem"), _ref("KeptProblem")]},
                "examples": {"wrong": {"value": _WRONG}, "kept": {"value": _KEPT}},
            }
        },
    },
    "NoKey": _problem(
        "The service has keys, and the request has none of them.",
        401,
        "Unauthorized",
        "send one of the keys as X-API-Key, as Authorization: Bearer, or as the password of Basic",
        {"WWW-Authenticate": {"schema": {"type": "string"}}},
    ),
    "NotMeasured": _problem("Nothing is measured here.", 404, "Not Found", "nothing is measured here"),
    "WrongMethod": _problem(
        "The route does not take this method.",
        405,
        "Method Not Allowed",
        "sent with POST",
        {"Allow": {"schema": {"type": "string"}}},
    ),
    "TooLarge": _problem(
        "The body is too large, or holds too many deliveries.",
        413,
        "Request Entity Too Large",
        "a request may have 16,777,216 bytes",
    ),
    "ComeAgain": _problem(
        "Send the same request again: the ledger is out of reach, a handler failed, the time was not enough, or too "
        "many requests are waiting.",
        503,
        "Service Unavailable",
        "the ledger is out of reach",
        {"Retry-After": {"$ref": "#/components/headers/RetryAfter"}},
    ),
}
_POSTED: Final = ("401 NoKey", "405 WrongMethod", "413 TooLarge", "503 ComeAgain")

# --- routes --------------------------------------------------------------------------------------------------

_BOOKS: Final = dict.fromkeys(("received", *COLUMNS), 0)

_EVENTS: Final[Node] = {
    "operationId": "sendEvents",
    "summary": "Give one event or a batch to the handlers and sinks of this service",
    "description": "Events may be wrapped as AWS services wrap them. PUT and PATCH do the same. The answer is for the "
    "whole batch; if it is sent again, the events that are done already are duplicates.",
    "requestBody": _body("Event", one=_EVENT, batch=[_EVENT]),
    "responses": _responses(
        {
            "description": "Every delivery is done, or needs no work.",
            "content": _json("Books", one={**_BOOKS, "received": 1, "processed": 1}),
        },
        "400 WrongEvents",
        *_POSTED,
    ),
}

_GRANTED: Final = {
    "verdict": "fresh",
    "acknowledge": False,
    "reason": "first delivery of this event",
    "key": _KEY,
    "topic": "v2.users.{id}.presence",
    "original_envelope_id": None,
    "outcome": None,
    "claim": _CLAIM,
    "token": 1_780_000_000_123_456,  # nosec B105 # the number of a claim
    "attempt": 1,
    "lease_seconds": 30.0,
    "retry_in_seconds": None,
}
_NO_CLAIM: Final = dict.fromkeys(("claim", "token", "attempt", "lease_seconds"))
_BUSY: Final = {
    **_GRANTED,
    **_NO_CLAIM,
    "verdict": "busy",
    "reason": "the event, or another of its entity, is being worked on",
    "retry_in_seconds": 27.9,
}
_REDELIVERY: Final = {
    **_GRANTED,
    **_NO_CLAIM,
    "verdict": "redelivery",
    "acknowledge": True,
    "reason": "same event in the same envelope, already done",
    "original_envelope_id": _EVENT["id"],
}

_CLAIMS: Final[Node] = {
    "operationId": "claimEvent",
    "summary": "Ask for the exclusive right to handle one event",
    "description": "The service waits briefly for a busy event. An event whose attempts are used up becomes a dead "
    "letter: verdict fresh, outcome dead, and no claim.",
    "parameters": [
        {
            "name": CALL_KEY_HEADER,
            "in": "header",
            "required": False,
            "description": "A random text, new for each call. If an answer was lost, send the same request with the "
            "same key: while that claim runs, you get the same claim, and no attempt is counted. Two workers with the "
            "same key get the same claim, so do not use an event's id.",
            "schema": {"type": "string", "minLength": 1, "maxLength": CALL_KEY_MAX},
        }
    ],
    "requestBody": _body(
        "ClaimRequest", plain={"event": _EVENT}, named={"event": _EVENT, "handler": "desktop", "lease_seconds": 60}
    ),
    "responses": _responses(
        {
            "description": "The verdict.",
            "content": _json("ClaimAnswer", fresh=_GRANTED, busy=_BUSY, redelivery=_REDELIVERY),
        },
        "400 WrongClaim",
        *_POSTED,
    ),
}
_EXTEND: Final[Node] = {
    "operationId": "extendClaim",
    "summary": "Make a claim run longer",
    "requestBody": _body("ExtendRequest", plain={"claim": _CLAIM}, longer={"claim": _CLAIM, "lease_seconds": 120}),
    "responses": _responses(
        {
            "description": "Whether the claim is still in force.",
            "content": _json("ExtendAnswer", extended={"ok": True}, lost={"ok": False}),
        },
        "400 WrongRequest",
        *_POSTED,
    ),
}
_SETTLE: Final[Node] = {
    "operationId": "settleClaim",
    "summary": "End a claim",
    "description": "May be repeated: if the claim has ended with this outcome already, the answer is ok.",
    "requestBody": _body(
        "SettleRequest",
        retry={
            "claim": _CLAIM,
            "outcome": "retry",
            "retry_in_seconds": 5,
            "detail": "the desk answered 502",
            "event": _EVENT,
        },
        release={"claim": _CLAIM, "outcome": "release"},
        done={"claim": _CLAIM, "outcome": "done"},
        dead={"claim": _CLAIM, "outcome": "dead", "detail": "no such agent", "event": _EVENT},
    ),
    "responses": _responses(
        {
            "description": "Whether the claim was in force, and how it ended.",
            "content": _json(
                "SettleAnswer", settled={"ok": True, "outcome": "done"}, late={"ok": False, "outcome": None}
            ),
        },
        "400 WrongRequest",
        *_POSTED,
    ),
}
_HEALTH: Final[Node] = {
    "operationId": "getHealth",
    "summary": "Whether the service runs, and whether its ledger is in reach",
    "security": [],
    "responses": _responses(
        {
            "description": "The service runs.",
            "content": _json("Health", usual={"status": "ok", "ledger": "in reach"}),
        },
        "405 WrongMethod",
        "503 ComeAgain",
    ),
}
_METRICS: Final[Node] = {
    "operationId": "getMetrics",
    "summary": "Metrics for Prometheus, of all workers",
    "responses": _responses(
        {"description": "The metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        "401 NoKey",
        "404 NotMeasured",
        "405 WrongMethod",
        "503 ComeAgain",
    ),
}
_OPENAPI: Final[Node] = {
    "operationId": "getDocument",
    "summary": "This document",
    "security": [],
    "responses": _responses(
        {"description": "The document.", "content": {"application/json": {"schema": {"type": "object"}}}},
        "405 WrongMethod",
    ),
}
