"""Replies over HTTP, the same from Lambda and from our own service.

Senders such as EventBridge's API destinations retry on 401, 409, 429 or 5xx, and drop the event on any other 4xx. So
400 is used only for deliveries that are kept as dead letters, and 503 for any that must be redelivered.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.claim import Verdict
from oncebridge.engine.result import books_of, why_again

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.engine.result import Result

#: An API destination may be set to any of these; if one were refused, its events would be dropped.
METHODS: Final = ("POST", "PUT", "PATCH")
RETRY_AFTER_SECONDS_MAX: Final = 3600
OUTAGE_RETRY_AFTER_SECONDS: Final = 10  # the breaker never stays open for longer


class Reply(msgspec.Struct, frozen=True, dict=True):
    """A reply: its status, headers and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @cached_property  # many requests get the same reply
    def wire_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as a server writes them, with the length."""
        headers = {**self.headers, "Content-Length": str(len(self.body))}
        return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def reply_for(results: Sequence[Result]) -> Reply:
    """Choose the reply to a request, by the results of its deliveries."""
    columns = tuple([result.column for result in results])
    if "retrying" in columns:
        longest_us = max(result.retry_in_us for result in results if not result.acknowledged)
        return come_again(why_again(results), -(-longest_us // 1_000_000))
    refused = [result.reason for result in results if result.verdict is Verdict.DEAD]
    if refused:
        detail = f"{len(refused)} of {len(results)} kept as dead letters; the first is {refused[0]}"
        return problem(HTTPStatus.BAD_REQUEST, detail)
    return _acknowledged(columns) if len(columns) <= _REMEMBERED_MAX else ok(books_of(columns))


_REMEMBERED_MAX: Final = 100  # deliveries of a request whose reply is cached: each of them takes memory


@lru_cache(maxsize=1024)  # nearly every request gets the same reply
def _acknowledged(columns: tuple[str, ...]) -> Reply:
    return ok(books_of(columns))


def ok(body: Any) -> Reply:
    """Reply with JSON."""
    return Reply(HTTPStatus.OK.value, {"Content-Type": "application/json"}, msgspec.json.encode(body))


def come_again(detail: str, seconds: int = 1) -> Reply:
    """Ask the sender to retry the request later."""
    seconds = min(max(seconds, 1), RETRY_AFTER_SECONDS_MAX)
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": str(seconds)})


def problem(status: HTTPStatus, detail: str, headers: dict[str, str] | None = None) -> Reply:
    """Report an error in the form of RFC 9457."""
    body = {"title": status.phrase, "status": status.value, "detail": detail}
    return Reply(
        status.value, {"Content-Type": "application/problem+json", **(headers or {})}, msgspec.json.encode(body)
    )


def wrong_method(*allowed: str) -> Reply:
    """Refuse a method, and name those that are allowed."""
    return problem(HTTPStatus.METHOD_NOT_ALLOWED, f"sent with {' or '.join(allowed)}", {"Allow": ", ".join(allowed)})


#: The same for a wrong key and for none.
NO_KEY: Final = problem(
    HTTPStatus.UNAUTHORIZED,
    "send one of the keys as X-API-Key, as Authorization: Bearer, or as the password of Basic",
    {"WWW-Authenticate": 'Bearer realm="oncebridge"'},
)
#: 401 too: with 403 an API destination would drop the event, and keys may be set soon.
NO_KEYS_SET: Final = problem(
    HTTPStatus.UNAUTHORIZED,
    "nobody may send requests here yet: no keys are set; the log says how",
    {"WWW-Authenticate": 'Bearer realm="oncebridge"'},
)
#: Where the ledger is, and its error, are in the log only.
OUTAGE: Final = come_again("the ledger is out of reach", OUTAGE_RETRY_AFTER_SECONDS)
