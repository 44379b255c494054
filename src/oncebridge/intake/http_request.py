"""Requests as Lambda's senders hand them over: what one holds, and the answer in the form that they understand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncebridge.errors import LedgerUnavailable
from oncebridge.intake.api_keys import Keys
from oncebridge.intake.http_reply import METHODS, NO_KEY, OUTAGE, Reply, reply_for, wrong_method
from oncebridge.intake.unwrap import body_of, is_event, unwrap_parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.intake.answers import Run
    from oncebridge.intake.terms import Terms
    from oncebridge.settings.secrets import Secret
    from oncebridge.telemetry import Telemetry


def is_request(event: Any) -> bool:
    """Tell whether an invocation is a request: by function URL, API Gateway (both versions) or load balancer."""
    if not isinstance(event, dict) or is_event(event):
        return False
    context = event.get("requestContext")
    if isinstance(context, dict) and isinstance(context.get("http"), dict):
        return True
    return isinstance(event.get("httpMethod"), str)


def answer_request(
    run: Run, request: dict[str, Any], terms: Terms, *, api_keys: Sequence[Secret], telemetry: Telemetry
) -> dict[str, Any]:
    """Work off what a request brings, and answer it in the form that Lambda's senders understand."""
    reply = _refusal(request, api_keys) or _reply(run, request, terms, telemetry)
    answer: dict[str, Any] = {
        "statusCode": reply.status,
        "headers": dict(reply.headers),
        "body": reply.body.decode(),
        "isBase64Encoded": False,
    }
    if "headers" not in request and "multiValueHeaders" in request:
        # A load balancer that sends them so looks for them so.
        answer["multiValueHeaders"] = {name: [value] for name, value in reply.headers.items()}
    return answer


def _refusal(request: dict[str, Any], api_keys: Sequence[Secret]) -> Reply | None:
    """Answer a request that is not looked at; None if it is."""
    if not Keys(api_keys).let_in(_headers(request)):
        return NO_KEY
    return None if _method(request) in METHODS else wrong_method(*METHODS)


def _reply(run: Run, request: dict[str, Any], terms: Terms, telemetry: Telemetry) -> Reply:
    body = body_of(request)
    try:
        return reply_for(run(unwrap_parsed(b"" if body is None else body), terms))
    except LedgerUnavailable as error:
        telemetry.warn(f"a request has to come again: {error}")
        return OUTAGE


def _method(request: dict[str, Any]) -> str:
    """Return the method; a request that does not say has a body to be looked at, so it counts as posted."""
    context = request.get("requestContext")
    http = context.get("http") if isinstance(context, dict) else None
    method = http.get("method") if isinstance(http, dict) else request.get("httpMethod")
    return method.upper() if isinstance(method, str) else METHODS[0]


def _headers(request: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each header with its name in small letters; API Gateway sends them twice, a load balancer either way."""
    for field in ("headers", "multiValueHeaders"):
        headers = request.get(field)
        for name, given in headers.items() if isinstance(headers, dict) else ():
            for value in given if isinstance(given, list) else [given]:
                if isinstance(name, str) and isinstance(value, str):
                    yield name.lower(), value
