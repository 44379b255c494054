"""The door of the service: who may come in, how much a request may bring, and how long it may take.

What is read here was sent by anybody: no key, no header's value and no body is ever in a log or in an answer.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oncebridge.service.deadlines import Deadlines
from oncebridge.sources.api_keys import KEY_HEADERS, Keys
from oncebridge.sources.http_reply import NO_KEY, Reply, come_again, problem, wrong_method

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence

    from oncebridge.settings import Settings

Scope: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[MutableMapping[str, Any]]]"
Send: TypeAlias = "Callable[[MutableMapping[str, Any]], Awaitable[None]]"
Application: TypeAlias = "Callable[[Scope, Receive, Send], Awaitable[None]]"
#: Answers a body that was let in; the headers' names are in small letters.
Answer: TypeAlias = "Callable[[bytes, dict[str, str]], Awaitable[Reply]]"

#: How many of the largest bodies may be held at a time, by all requests together.
LARGEST_BODIES: Final = 4
HELD_BYTES_MIN: Final = 64 * 1_048_576
DIGITS_MAX: Final = 20  # a length with more is none

TOO_SLOW: Final = come_again("the request did not arrive in time")
NO_TIME_LEFT: Final = come_again(
    "it takes longer than a request may; it goes on, so the next delivery may find it done"
)
OVERLOADED: Final = come_again("too much is waiting already")
STOPPING: Final = come_again("the service is about to stop")

_KEY_HEADERS: Final = frozenset(name.encode() for name in KEY_HEADERS)


class Refused(Exception):
    """A request is answered without its body having been looked at; the rest of that is not waited for."""

    def __init__(self, reply: Reply) -> None:
        """Take the answer."""
        super().__init__()
        self.reply = reply


class Door:
    """What every request passes, whatever it is for."""

    def __init__(self, settings: Settings) -> None:
        """Take the keys and the limits."""
        limits = settings.serve
        self._keys = Keys(settings.api_keys)
        self._body_bytes_max = limits.body_bytes_max
        self._held_bytes_max = max(HELD_BYTES_MIN, LARGEST_BODIES * limits.body_bytes_max)
        self._held_bytes = 0
        self._reading = Deadlines(limits.read_within_seconds)
        self.answer_within = limits.answer_within_seconds
        self._too_large = problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {limits.body_bytes_max:,} bytes"
        )

    def refusal(self, scope: Scope, methods: Sequence[str]) -> Reply | None:
        """Answer whoever knows no key, or sends with another method than these; None for everybody else."""
        if not self._keys.let_in(_key_headers(scope)):
            return NO_KEY
        return None if scope["method"] in methods else wrong_method(*methods)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Read a body, and hold its bytes until they are let go (`let_go`); raise `Refused` where there is no end."""
        if _length(scope) > self._body_bytes_max:
            raise Refused(self._too_large)
        parts: list[bytes] = []
        task = asyncio.current_task()
        assert task is not None
        deadline = self._reading.begin(task.cancel)
        own, more = 0, True
        try:
            while more:
                message = await receive()
                part: bytes = message.get("body", b"")
                parts.append(part)
                own += len(part)
                more = self._hold(message, len(part), own)
        except BaseException as error:
            self.let_go(own)
            if isinstance(error, asyncio.CancelledError) and deadline.passed and task.uncancel() == 0:
                raise Refused(TOO_SLOW) from None
            raise
        finally:
            deadline.meet()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _hold(self, message: MutableMapping[str, Any], size: int, own: int) -> bool:
        """Hold the bytes of one message, which with those before it has so many; tell whether there is more."""
        self._held_bytes += size
        if message["type"] == "http.disconnect":
            raise Refused(TOO_SLOW)
        if own > self._body_bytes_max:
            raise Refused(self._too_large)
        if self._held_bytes > self._held_bytes_max:
            raise Refused(OVERLOADED)
        return bool(message.get("more_body", False))

    def let_go(self, number: int) -> None:
        """Make room: what had so many bytes was answered."""
        self._held_bytes -= number

    def posted(self, answer: Answer) -> Application:
        """Make an application of a function that answers a body that was posted; it has as long as a request has."""

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
                # What is under way is not broken off: it may have taken effect.
                answering = asyncio.ensure_future(answer(body, headers_of(scope)))
                done, _ = await asyncio.wait({answering}, timeout=self._left(started))
                reply = answering.result() if done else NO_TIME_LEFT
            finally:
                self.let_go(len(body))
            await send_reply(send, reply)

        return application

    def _left(self, started: float) -> float:
        return max(0.0, started + self.answer_within - asyncio.get_running_loop().time())


async def send_reply(send: Send, reply: Reply, *, scope: Scope | None = None, close: bool = False) -> None:
    """Send an answer; where the rest of a request is not read, close the connection after it."""
    headers = reply.wire_headers
    if close and scope is not None and scope.get("http_version", "1.1").startswith("1"):
        headers = [*headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers, with names in small letters; of several with one name, the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _key_headers(scope: Scope) -> Iterator[tuple[str, str]]:
    for name, value in scope["headers"]:
        if name in _KEY_HEADERS:
            yield name.decode("latin-1"), value.decode("latin-1")


def _length(scope: Scope) -> int:
    """Return what a request says its body's length is; nought where it does not, which is seen while it is read."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) <= DIGITS_MAX else 0
    return 0
