"""Deliveries over HTTP: who may bring them, what a request holds, and the answer that says what became of it.

Senders such as EventBridge's API destinations repeat what is answered with 401, 409, 429 or 5xx, and drop what is
answered with any other 4xx. So 400 is said only of what is kept as a dead letter, and 503 of whatever has to come
again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.claim import Verdict
from oncebridge.errors import LedgerUnavailable
from oncebridge.intake.answers import Run, books_of, why_again
from oncebridge.intake.unwrap import body_of, is_event, unwrap_parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.intake.results import Result
    from oncebridge.intake.terms import Terms
    from oncebridge.settings.secrets import Secret
    from oncebridge.telemetry import Telemetry

METHODS: Final = ("POST", "PUT", "PATCH")
RETRY_AFTER_SECONDS_MAX: Final = 3600
OUTAGE_RETRY_AFTER_SECONDS: Final = 10  # the breaker leaves a ledger alone for no longer


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
    answer = _refusal(request, api_keys) or _answer(run, request, terms, telemetry)
    if "headers" not in request and "multiValueHeaders" in request:
        # A load balancer that sends them so looks for them so.
        answer["multiValueHeaders"] = {name: [value] for name, value in answer["headers"].items()}
    return answer


def _refusal(request: dict[str, Any], api_keys: Sequence[Secret]) -> dict[str, Any] | None:
    """Answer a request that is not looked at; None if it is."""
    if api_keys and not _knows_a_key(request, api_keys):
        detail = "send one of the keys as X-API-Key, as Authorization: Bearer, or as the password of Basic"
        return _problem(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": 'Bearer realm="oncebridge"'})
    if _method(request) not in METHODS:
        return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "events are posted", {"Allow": ", ".join(METHODS)})
    return None


def _answer(run: Run, request: dict[str, Any], terms: Terms, telemetry: Telemetry) -> dict[str, Any]:
    body = body_of(request)
    try:
        results = run(unwrap_parsed(b"" if body is None else body), terms)
    except LedgerUnavailable as error:
        # Where the ledger is, and what is wrong there, is for whoever reads the log.
        telemetry.warn(f"a request has to come again: {error}")
        return _again("the ledger is out of reach", OUTAGE_RETRY_AFTER_SECONDS)
    return _answer_for(results)


def _answer_for(results: list[Result]) -> dict[str, Any]:
    again = [result for result in results if not result.acknowledged]
    if again:
        longest_us = max(result.again_in_us for result in again)
        return _again(why_again(results), -(-longest_us // 1_000_000))
    refused = [result.reason for result in results if result.verdict is Verdict.DEAD]
    if refused:
        detail = f"{len(refused)} of {len(results)} kept as dead letters; the first is {refused[0]}"
        return _problem(HTTPStatus.BAD_REQUEST, detail)
    return _reply(HTTPStatus.OK, books_of(results), {"Content-Type": "application/json"})


def _again(detail: str, seconds: int) -> dict[str, Any]:
    seconds = min(max(seconds, 1), RETRY_AFTER_SECONDS_MAX)
    return _problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": str(seconds)})


def _problem(status: HTTPStatus, detail: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Say what is wrong, as RFC 9457 has it."""
    body = {"title": status.phrase, "status": status.value, "detail": detail}
    return _reply(status, body, {"Content-Type": "application/problem+json", **(headers or {})})


def _reply(status: HTTPStatus, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    return {
        "statusCode": status.value,
        "headers": headers,
        "body": msgspec.json.encode(body).decode(),
        "isBase64Encoded": False,
    }


def _method(request: dict[str, Any]) -> str:
    """Return the method; a request that does not say has a body to be looked at, so it counts as posted."""
    context = request.get("requestContext")
    http = context.get("http") if isinstance(context, dict) else None
    method = http.get("method") if isinstance(http, dict) else request.get("httpMethod")
    return method.upper() if isinstance(method, str) else METHODS[0]


def _knows_a_key(request: dict[str, Any], api_keys: Sequence[Secret]) -> bool:
    """Compare each key that was sent with each that is known, in a time that says nothing of how much was right."""
    known = [_digest(key.value) for key in api_keys]
    fits = [hmac.compare_digest(_digest(sent), key) for sent in _sent_keys(request) for key in known]
    return any(fits)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="backslashreplace")).digest()


def _sent_keys(request: dict[str, Any]) -> Iterator[str]:
    for name, value in _headers(request):
        if name == "x-api-key":
            yield value.strip()
        elif name == "authorization":
            scheme, _, rest = value.strip().partition(" ")
            if scheme.lower() == "bearer":
                yield rest.strip()
            elif scheme.lower() == "basic":
                yield _password(rest.strip())


def _password(encoded: str) -> str:
    """Read the password of the scheme Basic; empty where there is none, as no key is."""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:  # neither base64 nor text
        return ""


def _headers(request: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each header with its name in small letters; API Gateway sends them twice, a load balancer either way."""
    for field in ("headers", "multiValueHeaders"):
        headers = request.get(field)
        for name, given in headers.items() if isinstance(headers, dict) else ():
            for value in given if isinstance(given, list) else [given]:
                if isinstance(name, str) and isinstance(value, str):
                    yield name.lower(), value
