"""Requests that reach Lambda over HTTP: their content, and the reply in the form that their senders understand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from oncebridge.errors import LedgerUnavailable
from oncebridge.sources.api_keys import Keys
from oncebridge.sources.http_reply import METHODS, NO_KEY, NO_KEYS_SET, OUTAGE, Reply, reply_for, wrong_method
from oncebridge.sources.request_body import TooMany, deliveries_in_parsed
from oncebridge.sources.unwrap import body_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.engine.limits import BatchLimits, RunBatch
    from oncebridge.settings import Settings
    from oncebridge.telemetry import Telemetry

#: The fields in which AWS names a sender that it has authenticated: by IAM, by a token, or by an authorizer function.
AUTHORIZERS: Final = ("iam", "jwt", "lambda", "principalId", "claims")


def answer_request(
    run: RunBatch, request: dict[str, Any], limits: BatchLimits, *, settings: Settings, telemetry: Telemetry
) -> dict[str, Any]:
    """Process the content of a request, and reply in the form that Lambda's senders understand."""
    most = settings.deliveries_per_request
    reply = _refusal(request, settings, telemetry) or _reply(run, request, limits, most, telemetry)
    answer: dict[str, Any] = {
        "statusCode": reply.status,
        "headers": dict(reply.headers),
        "body": reply.body.decode(),
        "isBase64Encoded": False,
    }
    if "headers" not in request and "multiValueHeaders" in request:
        # A load balancer that sends multi-value headers expects them in the reply.
        answer["multiValueHeaders"] = {name: [value] for name, value in reply.headers.items()}
    return answer


def _refusal(request: dict[str, Any], settings: Settings, telemetry: Telemetry) -> Reply | None:
    """Reply to a request that is refused unread; None if it is accepted."""
    if not (settings.api_keys or settings.allow_requests_without_key or _is_authenticated(request)):
        telemetry.warn(
            "a request over HTTP was refused: anybody could send one. Name keys by where they are, in api_keys or "
            "ONCEBRIDGE_API_KEYS, such as env:ONCEBRIDGE_KEY; or let AWS look who sends, by IAM or an authorizer; or "
            "set allow_requests_without_key, if nobody else can reach this function"
        )
        return NO_KEYS_SET
    if not Keys(settings.api_keys).let_in(_headers(request)):
        return NO_KEY
    return None if _method(request) in METHODS else wrong_method(*METHODS)


def _is_authenticated(request: dict[str, Any]) -> bool:
    """Return whether AWS says who sent a request: a sender writes headers and body, but never the context."""
    context = request.get("requestContext")
    if not isinstance(context, dict):
        return False
    authorizer, identity = context.get("authorizer"), context.get("identity")
    if isinstance(authorizer, dict) and any(authorizer.get(name) for name in AUTHORIZERS):
        return True
    return isinstance(identity, dict) and bool(identity.get("userArn"))


def _reply(run: RunBatch, request: dict[str, Any], limits: BatchLimits, most: int, telemetry: Telemetry) -> Reply:
    body = body_of(request)
    try:
        raws = deliveries_in_parsed(b"" if body is None else body, most)
        return reply_for(run(raws, replace(limits, requests=(len(raws),))))
    except TooMany as refusal:
        return refusal.reply
    except LedgerUnavailable as error:
        telemetry.warn(f"a request must be sent again: {error}")
        return OUTAGE


def _method(request: dict[str, Any]) -> str:
    """Return the method; a request that does not name one may have a body, so it counts as a POST."""
    context = request.get("requestContext")
    http = context.get("http") if isinstance(context, dict) else None
    method = http.get("method") if isinstance(http, dict) else request.get("httpMethod")
    return method.upper() if isinstance(method, str) else METHODS[0]


def _headers(request: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each header with its name in lower case; API Gateway sends them twice, a load balancer either way."""
    for field in ("headers", "multiValueHeaders"):
        headers = request.get(field)
        for name, given in headers.items() if isinstance(headers, dict) else ():
            for value in given if isinstance(given, list) else [given]:
                if isinstance(name, str) and isinstance(value, str):
                    yield name.lower(), value
