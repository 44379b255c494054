"""Answers one call for a claim after the other, and takes back at once what a client was not told of.

A claim that nobody knows of would hold its event back for a whole lease: the request may have been answered before,
for want of time, and the client may have gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from oncebridge.service.door import Door, Receive, Scope, Send
    from oncebridge.sources.http_reply import Reply
    from oncebridge.sources.remote_claims import RemoteClaim

#: Asks for the event in a body, while it is wanted and no longer than until then; returns the claim with its answer.
Claiming: TypeAlias = (
    "Callable[[bytes, dict[str, str], float, Callable[[], bool]], Awaitable[tuple[Reply, RemoteClaim | None]]]"
)

#: How much of a request's time may go by with waiting for a busy event; the rest is for asking.
WAITING_SHARE: Final = 0.7


class Lender:
    """The application of calls for claims."""

    def __init__(self, door: Door, claim: Claiming, take_back: Callable[[RemoteClaim], Awaitable[None]]) -> None:
        """Take the door that requests pass, what answers them, and what takes a claim back."""
        self._door = door
        self._claim = claim
        self._take_back = take_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(receive, send)
        lent: list[tuple[Reply, RemoteClaim]] = []
        wait_until = asyncio.get_running_loop().time() + WAITING_SHARE * self._door.answer_within

        async def answer(body: bytes, headers: dict[str, str]) -> Reply:
            reply, claim = await self._claim(body, headers, wait_until, lambda: not exchange.is_over)
            if claim is not None and exchange.has_ended:  # it was answered without this
                await self._take_back(claim)
            elif claim is not None:
                lent.append((reply, claim))
            return reply

        try:
            await self._door.posted(answer)(scope, exchange.receive, exchange.send)
        finally:
            exchange.end()
            for reply, claim in lent:
                if not exchange.was_told(reply):
                    await self._take_back(claim)


class Exchange:
    """One request and its answer, and whether the client was there to hear it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        """Take both ends."""
        self._receive = receive
        self._send = send
        self._leaving: asyncio.Future[Any] | None = None
        self._told: list[bytes] = []
        self.has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return self.has_ended or (self._leaving is not None and self._leaving.done())

    async def receive(self) -> MutableMapping[str, Any]:
        """Receive the request."""
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            # All that can come after the body is the news that the client has gone.
            self._leaving = asyncio.ensure_future(self._receive())
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send the answer, and remember it if there is somebody to hear it: servers do not say."""
        is_over = self.is_over
        await self._send(message)
        if not is_over:
            self._told.append(message.get("body", b""))

    def was_told(self, reply: Reply) -> bool:
        """Tell whether the client got this answer, as far as anybody can know."""
        return reply.body in self._told

    def end(self) -> None:
        """Wait for nothing more."""
        self.has_ended = True
        if self._leaving is not None:
            self._leaving.cancel()
