"""Limits that every request has to keep: a key, a method, a size, and the time to arrive and to be answered.

Anybody may have sent the request: no key, no value of a header and no body is ever in a log or in an answer.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oncebridge.sources.api_keys import KEY_HEADERS, Keys
from oncebridge.sources.http_reply import NO_KEY, Reply, come_again, problem, wrong_method

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence

    from oncebridge.settings import Settings

Scope: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[MutableMapping[str, Any]]]"
Send: TypeAlias = "Callable[[MutableMapping[str, Any]], Awaitable[None]]"
Application: TypeAlias = "Callable[[Scope, Receive, Send], Awaitable[None]]"
#: Answers a body, given the request's headers by their names in lower case.
Answer: TypeAlias = "Callable[[bytes, dict[str, str]], Awaitable[Reply]]"

#: How many of the largest bodies all requests together may hold at a time.
LARGEST_BODIES: Final = 4
HELD_BYTES_MIN: Final = 64 * 1_048_576
DIGITS_MAX: Final = 20  # of a Content-Length; with more it is not a length

TOO_SLOW: Final = come_again("the request did not arrive in time")
TIMED_OUT: Final = come_again(
    "timed out: this takes longer than a request may; processing continues, so a retry may find it done"
)
OVERLOADED: Final = come_again("too much is waiting already")
STOPPING: Final = come_again("the service is about to stop")

_KEY_HEADERS: Final = frozenset(name.encode() for name in KEY_HEADERS)


class Refused(Exception):
    """A request is answered before its body was looked at; the rest of the body is not read."""

    def __init__(self, reply: Reply) -> None:
        """Take the answer."""
        super().__init__()
        self.reply = reply


class RequestLimits:
    """Checks each request against the service's keys and limits."""

    def __init__(self, settings: Settings) -> None:
        """Take the keys and the limits."""
        limits = settings.serve
        self._keys = Keys(settings.api_keys)
        self._body_bytes_max = limits.body_bytes_max
        self._held_bytes_max = max(HELD_BYTES_MIN, LARGEST_BODIES * limits.body_bytes_max)
        self._held_bytes = 0
        self._read_within = limits.read_within_seconds
        self.answer_within = limits.answer_within_seconds
        self._too_large = problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {limits.body_bytes_max:,} bytes"
        )

    def refusal(self, scope: Scope, methods: Sequence[str]) -> Reply | None:
        """Return 401 for a request without a valid key, 405 for one with another method than these, else None."""
        if not self._keys.let_in(_key_headers(scope)):
            return NO_KEY
        return None if scope["method"] in methods else wrong_method(*methods)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Read a body. Its bytes count as held until `release`; raise `Refused` for one too large or too slow."""
        if _length(scope) > self._body_bytes_max:
            raise Refused(self._too_large)
        parts: list[bytes] = []
        own, more = 0, True
        try:
            async with asyncio.timeout(self._read_within):
                while more:
                    message = await receive()
                    part: bytes = message.get("body", b"")
                    parts.append(part)
                    own += len(part)
                    more = self._hold(message, len(part), own)
        except BaseException as error:
            self.release(own)
            if isinstance(error, TimeoutError):
                raise Refused(TOO_SLOW) from None
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _hold(self, message: MutableMapping[str, Any], size: int, own: int) -> bool:
        """Count the bytes of one message, `own` with those before it; return whether more messages follow."""
        self._held_bytes += size
        if message["type"] == "http.disconnect":
            raise Refused(TOO_SLOW)
        if own > self._body_bytes_max:
            raise Refused(self._too_large)
        if self._held_bytes > self._held_bytes_max:
            raise Refused(OVERLOADED)
        return bool(message.get("more_body", False))

    def release(self, size: int) -> None:
        """Count this many bytes as no longer held: their request was answered."""
        self._held_bytes -= size

    def for_posts(self, answer: Answer) -> Application:
        """Make an application that answers POST requests by this function, within the time of a request."""

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            refused = self.refusal(scope, ("POST",))
            if refused is not None:
                await send_reply(send, refused, scope=scope, close=refused is NO_KEY)
                return
            started = asyncio.get_running_loop().time()
            try:
                body = await self.read(scope, receive)
            except Refused as refusal:
                await send_reply(send, refusal.reply, scope=scope, close=True)
                return
            try:
                # On a timeout the answer is not cancelled: it may have taken effect.
                answering = asyncio.ensure_future(answer(body, headers_of(scope)))
                done, _ = await asyncio.wait({answering}, timeout=self._left(started))
                reply = answering.result() if done else TIMED_OUT
            finally:
                self.release(len(body))
            await send_reply(send, reply)

        return application

    def _left(self, started: float) -> float:
        return max(0.0, started + self.answer_within - asyncio.get_running_loop().time())


async def send_reply(send: Send, reply: Reply, *, scope: Scope | None = None, close: bool = False) -> None:
    """Send an answer; `close` closes the connection after it, because the rest of the request is not read."""
    headers = reply.wire_headers
    if close and scope is not None and scope.get("http_version", "1.1").startswith("1"):
        headers = [*headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers, by their names in lower case; of several with one name, the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _key_headers(scope: Scope) -> Iterator[tuple[str, str]]:
    for name, value in scope["headers"]:
        if name in _KEY_HEADERS:
            yield name.decode("latin-1"), value.decode("latin-1")


def _length(scope: Scope) -> int:
    """Return the Content-Length; 0 where there is none, since the body is also measured while it is read."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) <= DIGITS_MAX else 0
    return 0
