"""What requests and answers look like, as JSON Schema, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from oncebridge.claim import Outcome, Verdict
from oncebridge.engine.runner import AGAIN_SECONDS_MAX
from oncebridge.service.claim_messages import DETAIL_MAX
from oncebridge.settings.sinks import NAME
from oncebridge.telemetry import COLUMNS

Schema = dict[str, Any]

LEASE_SECONDS_MIN: Final = 0.1
LEASE_SECONDS_MAX: Final = 43_200
#: What a client may say of its own claim; only people discard.
ENDS: Final = (Outcome.DONE, Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD)


def _object(required: list[str], properties: dict[str, Schema], **more: Any) -> Schema:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False, **more}


def _whole(properties: dict[str, Schema], **more: Any) -> Schema:
    """Describe an object that always has every field."""
    return _object(list(properties), properties, **more)


def _or_null(kind: str, description: str, **more: Any) -> Schema:
    return {"type": [kind, "null"], "description": description, **more}


def _lease(otherwise: str) -> Schema:
    bounds = {"minimum": LEASE_SECONDS_MIN, "maximum": LEASE_SECONDS_MAX}
    return _or_null("number", f"How long the claim runs from now; {otherwise} where it is not given.", **bounds)


_EVENT: Final[Schema] = {
    "description": "One delivery, byte for byte as it came: an object or a text, in its envelope or without, also "
    "wrapped as SQS, SNS, Kinesis and the like do, if there is one delivery in it.",
    "anyOf": [{"type": "object"}, {"type": "string"}, {"type": "array"}],
}
_CLAIM: Final[Schema] = {
    "type": "string",
    "description": "What the claim was answered with, unchanged. Any worker takes it.",
}
_NAME: Final = f"^{NAME.pattern}$"

_ANSWER: Final[dict[str, Schema]] = {
    "verdict": {
        "enum": [verdict.value for verdict in Verdict if verdict not in (Verdict.DEAD, Verdict.UNHANDLED)],
        "description": "fresh: yours to handle, unless the outcome is dead. busy: somebody is working on it, or on "
        "another state of the same entity. Anything else: there is nothing to do.",
    },
    "acknowledge": {
        "type": "boolean",
        "description": "Whether the delivery may be acknowledged to whoever brought it. For fresh: once it is settled.",
    },
    "reason": {"type": "string", "description": "The verdict in words, free of personal data."},
    "key": {"type": "string", "description": "The event's key: send it along to whatever you call, to be known again."},
    "topic": {"type": ["string", "null"]},
    "original_envelope_id": _or_null("string", "The envelope id of the delivery that did the work, where it is known."),
    "outcome": {
        "enum": [Outcome.DEAD.value, None],
        "description": "dead: it is kept as a dead letter: a conflict, or an event whose attempts are used up.",
    },
    "claim": _or_null("string", "For fresh: what to extend and settle it with."),
    "token": _or_null(
        "integer", "The fence: higher for each claim of the event, or of its entity. Refuse writes with a lower one."
    ),
    "attempt": _or_null("integer", "Which attempt this is, from 1.", minimum=1),
    "lease_seconds": _or_null("number", "How long the claim runs. Settle before, or extend it."),
    "retry_in_seconds": _or_null("number", "For busy: when to ask again.", minimum=0),
}
_BOOKS: Final[dict[str, Schema]] = {name: {"type": "integer", "minimum": 0} for name in ("received", *COLUMNS)}

SCHEMAS: Final[dict[str, Schema]] = {
    "Event": _EVENT,
    "ClaimRequest": _object(
        ["event"],
        {
            "event": {"$ref": "#/components/schemas/Event"},
            "handler": _or_null(
                "string",
                "Under which the claims of this program are remembered. Several programs that each want every event "
                "need a name each; keep it for good, since under a new name every event is fresh again.",
                pattern=_NAME,
            ),
            "lease_seconds": _lease("as in the settings, 30 unless set,"),
        },
    ),
    "ClaimAnswer": _whole(_ANSWER),
    "ExtendRequest": _object(["claim"], {"claim": _CLAIM, "lease_seconds": _lease("as long as it was claimed for")}),
    "ExtendAnswer": _whole(
        {
            "ok": {
                "type": "boolean",
                "description": "False: the claim is no longer in force. Stop: somebody else may be at it.",
            }
        }
    ),
    "SettleRequest": _object(
        ["claim", "outcome"],
        {
            "claim": _CLAIM,
            "outcome": {
                "enum": [end.value for end in ENDS],
                "description": "done: it has taken effect. retry: it failed, and is to be tried again. release: it was "
                "not tried, so this was no attempt. dead: trying again cannot help.",
            },
            "retry_in_seconds": _or_null(
                "number",
                "For retry: advice when to come again; as the retry policy says where it is not given.",
                minimum=0,
                maximum=AGAIN_SECONDS_MAX,
            ),
            "detail": _or_null(
                "string",
                f"What went wrong, in your words: {DETAIL_MAX} characters of it are kept with a dead letter, and shown "
                "by `oncebridge dead show` alone.",
            ),
            "event": {
                "description": "The delivery again. Needed for retry and dead, since it may become a dead letter: "
                "retry does at the last attempt.",
                "anyOf": [{"$ref": "#/components/schemas/Event"}, {"type": "null"}],
            },
        },
    ),
    "SettleAnswer": _whole(
        {
            "ok": {
                "type": "boolean",
                "description": "False: the claim was no longer in force, and nothing has changed. Do not acknowledge.",
            },
            "outcome": {
                "enum": [*(end.value for end in ENDS), None],
                "description": "How the claim ended: dead after a retry at the last attempt. null where ok is false.",
            },
        }
    ),
    "Books": _whole(_BOOKS, description="How many deliveries were received, and what became of each of them."),
    "Health": _whole(
        {
            "status": {"enum": ["ok"]},
            "ledger": {"enum": ["in reach", "out of reach"], "description": "As it was the last time it was needed."},
        }
    ),
    "Problem": {
        "type": "object",
        "description": "What is wrong, as RFC 9457 has it.",
        "required": ["title", "status", "detail"],
        "properties": {
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "The field, what was expected, and what to do."},
        },
    },
    "WrongClaim": {
        "description": "A problem. Only where the event itself is unreadable or may not come in does it have "
        "`acknowledge`, which is true then: it is kept as a dead letter, and the delivery need not come again.",
        "allOf": [{"$ref": "#/components/schemas/Problem"}],
        "properties": {
            "acknowledge": {"const": True},
            "verdict": {"const": Verdict.DEAD.value},
            "outcome": {"const": Outcome.DEAD.value},
            "key": {"type": "string", "description": "By which `oncebridge dead show` finds it."},
        },
        "dependentRequired": {"acknowledge": ["verdict", "outcome", "key"]},
    },
}
