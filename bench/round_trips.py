"""Counts round trips where they happen: between a client and its server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK: Final = 1 << 16


class CountingProxy:
    """Passes bytes on, and counts how often a client began to speak after its server had spoken.

    Commands sent together are one round trip, however many they are: that is what the network charges for.
    """

    def __init__(self, port: int) -> None:
        """Take the server's port; nothing listens yet."""
        self._server = ("127.0.0.1", port)
        self._counting = threading.Lock()
        self._round_trips = 0

    def __enter__(self) -> Self:
        """Listen on a port of its own."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="counting-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no longer; connections end when their clients do."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def count(self, work: Callable[[], object]) -> int:
        """Return how many round trips some work makes."""
        with self._counting:
            before = self._round_trips
        work()
        with self._counting:
            return self._round_trips - before

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                _Connection(client, socket.create_connection(self._server), self._count)

    def _count(self) -> None:
        with self._counting:
            self._round_trips += 1


class _Connection:
    """One client and its server, with a thread for each direction."""

    def __init__(self, client: socket.socket, server: socket.socket, count: Callable[[], None]) -> None:
        self._answered = True
        self._count = count
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start(client, server, self._asked)
        self._start(server, client, self._answer)

    def _start(self, source: socket.socket, target: socket.socket, notice: Callable[[], None]) -> None:
        threading.Thread(target=self._pass_on, args=(source, target, notice), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, notice: Callable[[], None]) -> None:
        with source, target, suppress(OSError):
            while data := source.recv(_CHUNK):
                notice()  # before it arrives, so that whoever has the answer finds it counted
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def _asked(self) -> None:
        if self._answered:
            self._answered = False
            self._count()

    def _answer(self) -> None:
        self._answered = True
