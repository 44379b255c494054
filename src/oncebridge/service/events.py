"""`/events`: one event or a batch of them, in any shape that AWS hands out."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from oncebridge.service.request_limits import Refused, send_reply
from oncebridge.sources.http_reply import METHODS, come_again
from oncebridge.sources.request_body import TooMany, deliveries_in

if TYPE_CHECKING:
    from oncebridge.service.request_batcher import PendingRequest, RequestBatcher
    from oncebridge.service.request_limits import Receive, RequestLimits, Scope, Send
    from oncebridge.sources.http_reply import Reply

#: Larger bodies are parsed in a thread, so that other requests do not wait for it.
LARGE_BYTES: Final = 262_144

#: 503, since with any other answer the sender would take the event for done, or for refused.
NO_HANDLERS: Final = come_again("no handler and no sink is configured, so events would go nowhere", 60)
NOT_READ: Final = come_again("reading the request takes longer than a request may; nothing of it was processed")


class Events:
    """The application of this one path, without a router: that would cost more than a tenth of the time."""

    def __init__(
        self, limits: RequestLimits, batcher: RequestBatcher, *, has_handlers: bool, deliveries_max: int
    ) -> None:
        """Take the parts, whether any handler or sink is configured, and how many deliveries a request may hold."""
        self._limits = limits
        self._batcher = batcher
        self._has_handlers = has_handlers
        self._deliveries_max = deliveries_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        refused = self._refusal(scope)
        if refused is not None:
            await send_reply(send, refused, scope=scope, close=True)
            return
        request = self._batcher.start()
        try:
            body = await self._limits.read(scope, receive)
            reply = await (self._submit if len(body) <= LARGE_BYTES else self._submit_large)(request, body)
        except Refused as refusal:
            await send_reply(send, refusal.reply, scope=scope, close=True)
        else:
            await send_reply(send, reply)
        finally:
            request.timer.cancel()

    def _submit(self, request: PendingRequest, body: bytes) -> asyncio.Future[Reply]:
        """Parse a body, and submit its deliveries."""
        try:
            raws = deliveries_in(body, self._deliveries_max)
        except TooMany as refusal:
            self._limits.release(len(body))
            raise Refused(refusal.reply) from None
        return self._batcher.submit(request, raws, len(body))

    async def _submit_large(self, request: PendingRequest, body: bytes) -> Reply:
        """Parse a body in a thread. If that outlasts the request's time, nothing of it is submitted."""
        reading = asyncio.ensure_future(asyncio.to_thread(deliveries_in, body, self._deliveries_max))
        either: set[asyncio.Future[Any]] = {reading, request.reply}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            reading.add_done_callback(partial(self._release, len(body)))  # its bytes are held until then
            return NOT_READ
        error = reading.exception()
        if error is None:
            return await self._batcher.submit(request, reading.result(), len(body))
        self._release(len(body), reading)
        raise Refused(error.reply) if isinstance(error, TooMany) else error

    def _release(self, size: int, reading: asyncio.Future[list[bytes]]) -> None:
        reading.exception()  # retrieved, so that asyncio does not warn of it
        self._limits.release(size)

    def _refusal(self, scope: Scope) -> Reply | None:
        refused = self._limits.refusal(scope, METHODS)
        return refused or (None if self._has_handlers else NO_HANDLERS) or self._batcher.refusal
