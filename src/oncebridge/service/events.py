"""`/events`: one event or a batch of them, in any shape that AWS hands out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oncebridge.intake.http_reply import METHODS, come_again
from oncebridge.intake.unwrap import unwrap
from oncebridge.service.door import Refused, send_reply

if TYPE_CHECKING:
    from oncebridge.intake.http_reply import Reply
    from oncebridge.service.door import Door, Receive, Scope, Send
    from oncebridge.service.gathering import Gathering

#: Larger bodies are taken apart in a thread: other requests need not wait for that.
LARGE_BYTES: Final = 262_144

#: With any other answer the sender would take the event for done, or for refused.
NOBODY: Final = come_again("no handler and no sink is configured, so events would go nowhere", 60)


class Events:
    """The application of this one path, by itself: a router in front of it would cost more than a tenth."""

    def __init__(self, door: Door, gathering: Gathering, *, handled: bool) -> None:
        """Take the parts, and whether there is anybody to handle events."""
        self._door = door
        self._gathering = gathering
        self._handled = handled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        refused = self._refusal(scope)
        if refused is not None:
            await send_reply(send, refused, scope=scope, close=True)
            return
        bundle = self._gathering.expect()
        try:
            body = await self._door.read(scope, receive)
            raws = unwrap(body) if len(body) <= LARGE_BYTES else await asyncio.to_thread(unwrap, body)
            reply = await self._gathering.bring(bundle, raws, len(body))
        except Refused as refusal:
            await send_reply(send, refusal.reply, scope=scope, close=True)
        else:
            await send_reply(send, reply)
        finally:
            bundle.deadline.meet()

    def _refusal(self, scope: Scope) -> Reply | None:
        return self._door.refusal(scope, METHODS) or (None if self._handled else NOBODY) or self._gathering.refusal
