"""A line that is a millisecond long: a proxy, in a process of its own, that delays each direction by half of it.

What is sent together arrives together, and what follows does not wait for it: each piece has its own time of arrival,
as on a real line. Sleeping is too coarse for half a millisecond, so the last part of each delay is spent looking.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections import deque
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ONE_WAY_SECONDS: Final = 0.0005
#: A sleep may take this much longer than asked.
SLEEP_SLACK_SECONDS: Final = 0.0002
PIECE_BYTES: Final = 1 << 18
PINGS: Final = 300


@contextmanager
def delayed(port: int) -> Iterator[int]:
    """Run the proxy for a server on this machine, and return the proxy's own port."""
    command = [sys.executable, __file__, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as proxy:
        assert proxy.stdout is not None
        yield int(proxy.stdout.readline())
        # It ends when its standard input does, so also when this process is killed.


def ping_ms(port: int) -> float:
    """Return how long a round trip to Redis takes: the median of many."""
    import redis

    with redis.Redis(port=port) as client:
        client.ping()
        taken = []
        for _ in range(PINGS):
            started = perf_counter()
            client.ping()
            taken.append(perf_counter() - started)
    return median(taken) * 1000


# --- the proxy's own process -------------------------------------------------------------------------------------


class Direction:
    """One direction of a connection: pieces on their way, each with the time at which it arrives."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.ends = False
        self._under_way: deque[tuple[float, bytes]] = deque()

    def take(self) -> None:
        """Take what was sent; nothing means that no more will be."""
        try:
            piece = self.source.recv(PIECE_BYTES)
        except ConnectionError:
            piece = b""
        self._under_way.append((perf_counter() + ONE_WAY_SECONDS, piece))
        self.ends = not piece

    def due(self) -> float:
        """Return when the next piece arrives."""
        return self._under_way[0][0] if self._under_way else float("inf")

    def deliver(self) -> bool:
        """Hand over the next piece; return whether it was the end."""
        _, piece = self._under_way.popleft()
        try:
            if piece:
                self.target.sendall(piece)
            else:
                self.target.shutdown(socket.SHUT_WR)
        except OSError:
            return True
        return not piece


def carry(listener: socket.socket, server: tuple[str, int]) -> None:
    """Accept connections and carry what is sent in both directions, until standard input ends."""
    directions: dict[socket.socket, Direction] = {}
    while True:
        due = min((one.due() for one in directions.values()), default=float("inf"))
        sources = [source for source, one in directions.items() if not one.ends]
        for source in _readable([sys.stdin, listener, *sources], due):
            if source is sys.stdin:
                return
            if source is listener:
                directions.update(_connection(listener, server))
            else:
                directions[source].take()
        for source, one in list(directions.items()):
            while one.due() <= perf_counter():
                if one.deliver():
                    del directions[source]
                    break


def _readable(sources: list[Any], due: float) -> list[Any]:
    """Wait until something can be read or the next piece is almost due; in its last moments, only look."""
    left = due - perf_counter() - SLEEP_SLACK_SECONDS
    return select.select(sources, [], [], None if due == float("inf") else max(0.0, left))[0]


def _connection(listener: socket.socket, server: tuple[str, int]) -> dict[socket.socket, Direction]:
    """Accept a client and connect to its server."""
    client, _ = listener.accept()
    other = socket.create_connection(server)
    for one in (client, other):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return {client: Direction(client, other), other: Direction(other, client)}


def main() -> None:
    """Say on which port this listens, and carry."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    carry(listener, ("127.0.0.1", int(sys.argv[1])))


if __name__ == "__main__":
    main()
