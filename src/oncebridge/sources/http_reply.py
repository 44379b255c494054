"""What is answered over HTTP: the same whether Lambda or our own service says it.

Senders such as EventBridge's API destinations repeat what is answered with 401, 409, 429 or 5xx, and drop what is
answered with any other 4xx. So 400 is said only of what is kept as a dead letter, and 503 of whatever has to come
again.
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

#: An API destination may be set to any of these; refused, its events would be dropped.
METHODS: Final = ("POST", "PUT", "PATCH")
RETRY_AFTER_SECONDS_MAX: Final = 3600
OUTAGE_RETRY_AFTER_SECONDS: Final = 10  # the breaker leaves a ledger alone for no longer


class Reply(msgspec.Struct, frozen=True, dict=True):
    """An answer: its status, headers and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @cached_property  # the same answer is given to many
    def wire_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as a server writes them, with the length."""
        headers = {**self.headers, "Content-Length": str(len(self.body))}
        return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def reply_for(results: Sequence[Result]) -> Reply:
    """Decide what a request is told, by what became of its deliveries."""
    columns = tuple([result.column for result in results])
    if "retrying" in columns:
        longest_us = max(result.retry_in_us for result in results if not result.acknowledged)
        return come_again(why_again(results), -(-longest_us // 1_000_000))
    refused = [result.reason for result in results if result.verdict is Verdict.DEAD]
    if refused:
        detail = f"{len(refused)} of {len(results)} kept as dead letters; the first is {refused[0]}"
        return problem(HTTPStatus.BAD_REQUEST, detail)
    return _told(columns) if len(columns) <= _REMEMBERED_MAX else ok(books_of(columns))


_REMEMBERED_MAX: Final = 100  # deliveries of a request whose answer is kept: each of them takes memory


@lru_cache(maxsize=1024)  # nearly every request is told the same
def _told(columns: tuple[str, ...]) -> Reply:
    return ok(books_of(columns))


def ok(body: Any) -> Reply:
    """Answer with JSON."""
    return Reply(HTTPStatus.OK.value, {"Content-Type": "application/json"}, msgspec.json.encode(body))


def come_again(detail: str, seconds: int = 1) -> Reply:
    """Ask for the same request once more, later."""
    seconds = min(max(seconds, 1), RETRY_AFTER_SECONDS_MAX)
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": str(seconds)})


def problem(status: HTTPStatus, detail: str, headers: dict[str, str] | None = None) -> Reply:
    """Say what is wrong, as RFC 9457 has it."""
    body = {"title": status.phrase, "status": status.value, "detail": detail}
    return Reply(
        status.value, {"Content-Type": "application/problem+json", **(headers or {})}, msgspec.json.encode(body)
    )


def wrong_method(*allowed: str) -> Reply:
    """Refuse a method, and name those that are allowed."""
    return problem(HTTPStatus.METHOD_NOT_ALLOWED, f"sent with {' or '.join(allowed)}", {"Allow": ", ".join(allowed)})


#: The same for every wrong key, and for none.
NO_KEY: Final = problem(
    HTTPStatus.UNAUTHORIZED,
    "send one of the keys as X-API-Key, as Authorization: Bearer, or as the password of Basic",
    {"WWW-Authenticate": 'Bearer realm="oncebridge"'},
)
#: 401 too: with 403 an API destination would drop the event, and somebody may set keys soon.
NO_KEYS_SET: Final = problem(
    HTTPStatus.UNAUTHORIZED,
    "nobody may send requests here yet: no keys are set; the log says how",
    {"WWW-Authenticate": 'Bearer realm="oncebridge"'},
)
#: Where the ledger is, and what is wrong there, is for whoever reads the log.
OUTAGE: Final = come_again("the ledger is out of reach", OUTAGE_RETRY_AFTER_SECONDS)
