"""`/events`: one event or a batch of them, in any shape that AWS hands out."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from oncebridge.service.door import Refused, send_reply
from oncebridge.sources.http_reply import METHODS, come_again
from oncebridge.sources.request_body import TooMany, deliveries_in

if TYPE_CHECKING:
    from oncebridge.service.door import Door, Receive, Scope, Send
    from oncebridge.service.gathering import Bundle, Gathering
    from oncebridge.sources.http_reply import Reply

#: Larger bodies are taken apart in a thread: other requests need not wait for that.
LARGE_BYTES: Final = 262_144

#: With any other answer the sender would take the event for done, or for refused.
NOBODY: Final = come_again("no handler and no sink is configured, so events would go nowhere", 60)
NOT_READ: Final = come_again("it takes longer to read than a request may, and nothing of it was processed")


class Events:
    """The application of this one path, by itself: a router in front of it would cost more than a tenth."""

    def __init__(self, door: Door, gathering: Gathering, *, handled: bool, most: int) -> None:
        """Take the parts, whether there is anybody to handle events, and how many a request may bring."""
        self._door = door
        self._gathering = gathering
        self._handled = handled
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        refused = self._refusal(scope)
        if refused is not None:
            await send_reply(send, refused, scope=scope, close=True)
            return
        bundle = self._gathering.expect()
        try:
            body = await self._door.read(scope, receive)
            reply = await (self._bring(bundle, body) if len(body) <= LARGE_BYTES else self._bring_large(bundle, body))
        except Refused as refusal:
            await send_reply(send, refusal.reply, scope=scope, close=True)
        else:
            await send_reply(send, reply)
        finally:
            bundle.deadline.meet()

    def _bring(self, bundle: Bundle, body: bytes) -> asyncio.Future[Reply]:
        """Take a body apart, and have it worked off."""
        try:
            raws = deliveries_in(body, self._most)
        except TooMany as refusal:
            self._door.let_go(len(body))
            raise Refused(refusal.reply) from None
        return self._gathering.bring(bundle, raws, len(body))

    async def _bring_large(self, bundle: Bundle, body: bytes) -> Reply:
        """Do it in a thread, within the time of a request: what takes longer is not begun."""
        reading = asyncio.ensure_future(asyncio.to_thread(deliveries_in, body, self._most))
        either: set[asyncio.Future[Any]] = {reading, bundle.reply}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            reading.add_done_callback(partial(self._let_go, len(body)))  # until then it takes up room
            return NOT_READ
        error = reading.exception()
        if error is None:
            return await self._gathering.bring(bundle, reading.result(), len(body))
        self._let_go(len(body), reading)
        raise Refused(error.reply) if isinstance(error, TooMany) else error

    def _let_go(self, size: int, reading: asyncio.Future[list[bytes]]) -> None:
        reading.exception()  # looked at, so that nobody warns of it
        self._door.let_go(size)

    def _refusal(self, scope: Scope) -> Reply | None:
        return self._door.refusal(scope, METHODS) or (None if self._handled else NOBODY) or self._gathering.refusal
