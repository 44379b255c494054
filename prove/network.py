"""A network that strikes at the n-th reply of a connection, the handshake's included; runs in a process of its own."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from prove.wires import CONVERSATIONS, Conversation
from prove.worker import Notes, receive, send

#: All of them befall a reply, but for the last: its request never arrives.
Kind = Literal["lost", "delayed", "cut", "dripped", "halfopen", "unsent"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
#: Replies of logging in and opening, which few connections get past, and of a whole round.
EARLY: Final = 7
LATE: Final = 16
CHUNK: Final = 65_536
#: As long as libpq takes to connect, at least.
HANDSHAKE: Final = frozenset({"TLS?", "GSS?", "startup", "password"})
HANDSHAKE_SECONDS: Final = 2.0
#: After so many deadlines a half-open connection ends, as by keepalives; a handler's own statement has no other end.
GIVE_UP: Final = 4


@dataclass(frozen=True)
class Strike:
    """What befalls one connection."""

    kind: Kind
    #: The reply, or its request, from 1.
    at: int
    #: From 0 to 1: where a reply is cut, how slowly it drips, how long it is kept back, whether the end is a reset.
    how: float

    def __str__(self) -> str:
        """Say it in words."""
        return f"a connection's reply {self.at} is {self.kind} ({self.how:.2f})"


def draw_strikes(dice: random.Random, number: int) -> list[Strike]:
    """Draw what befalls the first connections of a round; later ones are sound."""
    kinds = [KINDS[at % len(KINDS)] for at in range(number)]
    dice.shuffle(kinds)
    return [
        Strike(kind, dice.randint(1, EARLY if dice.random() < 0.5 else LATE), round(dice.random(), 3))
        for kind in kinds
    ]  # fmt: skip


class Network:
    """Stands between clients and one server of this machine."""

    def __init__(self, kind: str, server_port: int, deadline_seconds: float) -> None:
        """Take how clients and server speak, and how long clients wait for a reply."""
        self._make_conversation = CONVERSATIONS[kind]
        self._server_port = server_port
        self._deadline_seconds = deadline_seconds
        self._strikes: list[Strike] = []
        self._notes: Notes | None = None
        self._lines: set[_Line] = set()

    async def serve(self, control: socket.socket) -> None:
        """Listen until the control socket is closed: `begin` brings strikes, `calm` ends them and all connections."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        while (asked := await loop.run_in_executor(None, receive, control)) is not None:
            what, given = asked
            if what == "begin":
                self._notes = Notes(Path(given["notes"]))
                self._strikes = [Strike(**one) for one in given["troubles"]]
            elif what == "calm":
                self._strikes, self._notes = [], None
                for line in list(self._lines):
                    line.close()
            send(control, [port])
        server.close()
        await asyncio.gather(*(line.ended.wait() for line in self._lines))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        strike = self._strikes.pop(0) if self._strikes else None
        line = _Line(self._make_conversation(), strike, self._notes, self._deadline_seconds)
        self._lines.add(line)
        try:
            await line.run(reader, writer, self._server_port)
        finally:
            self._lines.discard(line)
            line.ended.set()


class _Line:
    """One connection."""

    def __init__(
        self, conversation: Conversation, strike: Strike | None, notes: Notes | None, deadline_seconds: float
    ) -> None:
        self._conversation, self._strike, self._notes = conversation, strike, notes
        self._deadline_seconds = deadline_seconds
        self._writers: list[asyncio.StreamWriter] = []
        self._replies = 0
        self._asked = 0
        self._is_silent = False
        self._over = asyncio.Event()
        #: Set once nothing of it is left.
        self.ended = asyncio.Event()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self._writers.append(writer)
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
            self._writers.append(to_server)
            pumps = [
                asyncio.create_task(self._requests(reader, to_server)),
                asyncio.create_task(self._pass_replies(from_server, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if self._is_silent:  # if the client has gone, its server does not learn it
                await asyncio.wait(pumps)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """End it for both sides."""
        self._over.set()
        for writer in self._writers:
            writer.close()

    async def _requests(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._is_silent:
                    continue
                waiting = len(self._conversation.asked)
                self._conversation.request(data)
                self._asked += len(self._conversation.asked) - waiting
                if self._strike is not None and self._strike.kind == "unsent" and self._asked >= self._strike.at:
                    await self._lost(self._strike)
                    return
                to_server.write(data)
                await to_server.drain()

    async def _lost(self, strike: Strike) -> None:
        """Lose a request, so that its client waits in vain or is cut off."""
        self._note(strike, self._conversation.asked[-1])
        self._is_silent = True
        await self._wait(GIVE_UP * self._deadline_seconds if strike.how < 0.5 else 0.0)
        self.close()

    async def _pass_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                for asked, reply in self._conversation.replies(data):
                    self._replies += 1
                    if self._strike is not None and self._strike.kind != "unsent" and self._replies == self._strike.at:
                        await self._struck(self._strike, reply, asked, writer)
                        if self._over.is_set():
                            return
                    elif not self._is_silent:
                        writer.write(reply)
                await writer.drain()
            writer.write(self._conversation.rest())

    def _note(self, strike: Strike, asked: str) -> None:
        if self._notes is not None:
            self._notes.write("trouble", f"{strike.kind}_at_reply_{strike.at}_to_{asked}")

    async def _struck(self, strike: Strike, reply: bytes, asked: str, writer: asyncio.StreamWriter) -> None:
        self._note(strike, asked)
        deadline = HANDSHAKE_SECONDS if asked in HANDSHAKE else self._deadline_seconds
        if strike.kind == "halfopen":
            self._is_silent = True
            await self._wait(GIVE_UP * self._deadline_seconds)
            self.close()
        elif strike.kind == "delayed":
            await self._wait(2 * deadline * strike.how)
            writer.write(reply)
        elif strike.kind == "dripped":
            for byte in reply:
                await self._wait(2 * deadline * strike.how / len(reply))
                writer.write(bytes([byte]))
                await writer.drain()
        else:
            if strike.kind == "cut":
                writer.write(reply[: max(1, int(strike.how * len(reply)))] if len(reply) > 1 else b"")
                await writer.drain()
            if strike.how < 0.5:
                reset = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            self.close()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)


def live(kind: str, server_port: int, deadline_seconds: float, control: socket.socket) -> None:
    """Be a network until the control socket is closed."""
    asyncio.run(Network(kind, server_port, deadline_seconds).serve(control))


def by_request(strikes: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Count strikes by the request whose reply they befell, and by kind."""
    found: dict[str, dict[str, int]] = {}
    for strike, times in strikes.items():
        kind, _, rest = strike.partition("_at_reply_")
        befell = found.setdefault(rest.partition("_to_")[2], {})
        befell[kind] = befell.get(kind, 0) + times
    return dict(sorted(found.items(), key=lambda one: -sum(one[1].values())))
