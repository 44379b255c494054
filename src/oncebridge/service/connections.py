"""Limits on the connections of one worker: how many, how many per peer, and how long an answer may wait unread.

Granian accepts connections and writes answers by itself, without such limits. So a thread inspects the connections of
this process through the kernel, and closes those that keep others out.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import resource
import socket
import struct
import sys
import termios
import threading
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from oncebridge.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.settings.serve import ServeSettings

EVERY_SECONDS: Final = 0.5
WARN_EVERY_US: Final = 60_000_000
#: A connection with traffic within this time is closed only if its peer has too many.
MOVED_US: Final = 1_000_000
ANSWER_BYTES: Final = 65_536
FREE_SHARE: Final = 10  # a tenth is made free where all connections are taken
FILES_BESIDE: Final = 256  # for ledgers, sinks, handlers and the interpreter
IPV6_NETWORK_BITS: Final = 64  # one customer has at least such a network

#: Linux' struct tcp_info: when data was last sent and received, in ms ago, and how many bytes the peer has received.
_TCP_INFO: Final = struct.Struct("=44xI4xI64xQ")
_NEVER_SENT: Final = (0, 0, 0)
_LINGER_NOT: Final = struct.pack("ii", 1, 0)
_QUEUED: Final = struct.Struct("i")

Address: TypeAlias = "tuple[str, int]"


class SeenConnection(msgspec.Struct, frozen=True):
    """One connection as the kernel sees it."""

    file: int
    peer: Address
    #: Bytes that were written to the peer, and how many of them it has acknowledged.
    written: int = 0
    received: int = 0
    #: How long ago data was last sent to the peer, and last received from it.
    sent_us_ago: int = 0
    came_us_ago: int = 0

    @property
    def piles_up(self) -> bool:
        """Whether more than one answer is unread."""
        return self.written - self.received > ANSWER_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.came_us_ago >= self.sent_us_ago

    @property
    def still_us(self) -> int:
        """How long there was no traffic."""
        return min(self.sent_us_ago, self.came_us_ago)


class UnreadAnswer(msgspec.Struct, frozen=True):
    """An answer that was unread at an inspection: the position of its last byte, and the time."""

    written: int
    since_us: int


class ConnectionLimits(msgspec.Struct, frozen=True):
    """The limits of one worker."""

    total: int
    per_peer: int
    answer_taken_within_us: int

    @classmethod
    def of(cls, settings: ServeSettings) -> ConnectionLimits:
        """Divide the service's limits among its workers."""
        return cls(
            total=ceil(settings.connections / settings.workers),
            per_peer=ceil(settings.connections_per_peer / settings.workers),
            answer_taken_within_us=int(settings.read_within_seconds * 1_000_000),
        )


@lru_cache(maxsize=4096)
def peer_network(address: str) -> str:
    """Return the network that counts as one peer: an IPv4 address, or an IPv6 network of 64 bits."""
    host = address.partition("%")[0]
    if ":" not in host:
        return host
    found = ipaddress.IPv6Address(host)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_NETWORK_BITS), strict=False))


class ConnectionPolicy:
    """Decides which connections to close; pure but for its memory of the last inspection."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """Take the limits."""
        self._limits = limits
        self._waiting: dict[tuple[int, Address], UnreadAnswer] = {}

    def to_close(self, seen: list[SeenConnection], now_us: int) -> dict[str, list[SeenConnection]]:
        """Return the connections to close, by reason."""
        left_us = self._left_us(seen, now_us)
        within_us = self._limits.answer_taken_within_us
        unread = [one for one in seen if left_us[one.file] >= within_us]
        kept = [one for one in seen if left_us[one.file] < within_us]
        # Connections with unread answers are closed first, then idle ones, then those longest without traffic.
        kept.sort(
            key=lambda one: (left_us[one.file] >= MOVED_US, one.piles_up, one.is_idle, one.still_us), reverse=True
        )
        crowding, kept = _beyond(kept, self._limits.per_peer)
        surplus: list[SeenConnection] = []
        if len(seen) >= self._limits.total:
            wanted = ceil(self._limits.total / FREE_SHARE) - len(unread) - len(crowding)
            unmoved = [
                one for one in kept if left_us[one.file] >= MOVED_US or (one.is_idle and one.still_us >= MOVED_US)
            ]
            surplus = unmoved[: max(0, wanted)]
        return {"unread": unread, "crowding": crowding, "surplus": surplus}

    def _left_us(self, seen: list[SeenConnection], now_us: int) -> dict[int, int]:
        """Return how long each peer has left an answer unread; 0 if it has all that was written at the last look."""
        waiting: dict[tuple[int, Address], UnreadAnswer] = {}
        left_us = {}
        for one in seen:
            name = (one.file, one.peer)
            before = self._waiting.get(name)
            if before is None or one.received >= before.written:
                before = UnreadAnswer(one.written, now_us)
            waiting[name] = before
            left_us[one.file] = 0 if one.received >= before.written else now_us - before.since_us
        self._waiting = waiting
        return left_us


def _beyond(ranked: list[SeenConnection], per_peer: int) -> tuple[list[SeenConnection], list[SeenConnection]]:
    """Split off the first connections of each peer that has too many."""
    surplus = Counter(peer_network(one.peer[0]) for one in ranked)
    for peer in surplus:
        surplus[peer] -= per_peer
    beyond: list[SeenConnection] = []
    kept: list[SeenConnection] = []
    for one in ranked:
        peer = peer_network(one.peer[0])
        (beyond if surplus[peer] > 0 else kept).append(one)
        surplus[peer] -= 1
    return beyond, kept


class ConnectionGuard:
    """Inspects the connections of this process twice a second, and closes those that keep others out."""

    def __init__(self, port: int, settings: ServeSettings, warn: Callable[[str], None]) -> None:
        """Take the port of the service, the limits, and the function that logs a warning."""
        self._port = port
        self._settings = settings
        self._policy = ConnectionPolicy(ConnectionLimits.of(settings))
        self._warn = warn
        self._clock = SystemClock()
        self._warned_us: dict[str, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="oncebridge-connections", daemon=True)

    def start(self) -> None:
        """Start inspecting."""
        self._thread.start()

    def close(self) -> None:
        """Stop inspecting."""
        self._closing.set()
        self._thread.join()

    def _keep_looking(self) -> None:
        while not self._closing.wait(EVERY_SECONDS):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - inspections must go on
                self._log("failed", f"connections could not be inspected: {type(error).__name__}")

    def _look(self) -> None:
        now_us = self._clock.monotonic_us()
        for reason, connections in self._policy.to_close(list(_connections(self._port)), now_us).items():
            for connection in connections:
                _close(connection, self._port)
            if connections:
                self._log(reason, self._words(reason, len(connections)))

    def _words(self, reason: str, number: int) -> str:
        limits = self._settings
        why = {
            "unread": f"their clients had not taken an answer for {limits.read_within_seconds:g} s",
            "crowding": f"one address had more than connections_per_peer = {limits.connections_per_peer}; behind a "
            "proxy, set it higher, in [serve] of the settings",
            "surplus": f"all connections = {limits.connections} were taken, and these were idle",
        }
        return f"{number:,} connections were closed: {why[reason]}"

    def _log(self, reason: str, words: str) -> None:
        """Log a warning, at most once a minute for each reason."""
        now_us = self._clock.monotonic_us()
        if now_us - self._warned_us.get(reason, -WARN_EVERY_US) >= WARN_EVERY_US:
            self._warned_us[reason] = now_us
            self._warn(words)


# --- the kernel's side ---------------------------------------------------------------------------------------


def _connections(port: int) -> Iterator[SeenConnection]:
    """Yield the connections of this process to its port."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names are enough, twice a second
        with suppress(OSError):  # no socket, not connected, or closed meanwhile
            file = int(name)
            connection = _borrowed(file)
            try:
                seen = _seen(connection, file, port)
            finally:
                connection.detach()
            if seen is not None:
                yield seen


def _borrowed(file: int) -> socket.socket:
    """Wrap a file descriptor without owning it; the family is given to save a system call."""
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=file)


def _seen(connection: socket.socket, file: int, port: int) -> SeenConnection | None:
    own, peer = connection.getsockname(), connection.getpeername()
    if not isinstance(own, tuple) or own[1] != port:
        return None
    sent_ms, came_ms, received = _moved(connection)
    queued = _QUEUED.unpack(fcntl.ioctl(file, termios.TIOCOUTQ, _QUEUED.pack(0)))[0]
    return SeenConnection(file, (peer[0], peer[1]), received + queued, received, sent_ms * 1000, came_ms * 1000)


def _moved(connection: socket.socket) -> tuple[int, int, int]:
    if sys.platform != "linux":
        return _NEVER_SENT
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    return _TCP_INFO.unpack(info)


def _close(connection: SeenConnection, port: int) -> None:
    """Shut a connection down, if it is still the same; granian then closes it."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.file)) as held:
        if held.getsockname()[1] == port and held.getpeername()[:2] == connection.peer:
            # The kernel drops the unread data as well.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            held.shutdown(socket.SHUT_RDWR)


def room_for(connections: int) -> int:
    """Raise the limit of open files for so many connections; return how many are possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
            soft = highest
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - FILES_BESIDE))
