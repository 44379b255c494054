"""Bounds on the connections of one worker: how long a client may leave its answer, how many a peer and all may have.

The server beneath accepts connections and writes answers by itself, and has a deadline for neither. So a thread looks
at the connections of this process as the kernel sees them, and closes those that keep others out.
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
#: A connection that has moved within this time is closed only if its peer has too many.
MOVED_US: Final = 1_000_000
ANSWER_BYTES: Final = 65_536
FREE_SHARE: Final = 10  # a tenth is made free where all connections are taken
FILES_BESIDE: Final = 256  # for ledgers, sinks, handlers and the interpreter
IPV6_NETWORK_BITS: Final = 64  # one customer has at least so many addresses

#: Linux' struct tcp_info: when data was last sent and received, in ms ago, and how many bytes the peer has received.
_TCP_INFO: Final = struct.Struct("=44xI4xI64xQ")
_NEVER_SENT: Final = (0, 0, 0)
_LINGER_NOT: Final = struct.pack("ii", 1, 0)
_QUEUED: Final = struct.Struct("i")

Address: TypeAlias = "tuple[str, int]"


class Seen(msgspec.Struct, frozen=True):
    """One connection as the kernel sees it."""

    file: int
    peer: Address
    #: Bytes that were written for the peer, and how many of them it has received.
    written: int = 0
    received: int = 0
    #: How long ago something was sent to the peer, and came from it.
    sent_us_ago: int = 0
    came_us_ago: int = 0

    @property
    def piles_up(self) -> bool:
        """Whether more is on its way to the peer than one answer."""
        return self.written - self.received > ANSWER_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.came_us_ago >= self.sent_us_ago

    @property
    def still_us(self) -> int:
        """How long nothing has moved."""
        return min(self.sent_us_ago, self.came_us_ago)


class Waiting(msgspec.Struct, frozen=True):
    """An answer that was on its way when a connection was looked at: where it ends, and when that was."""

    written: int
    since_us: int


class Limits(msgspec.Struct, frozen=True):
    """What the connections of one worker may be."""

    total: int
    per_peer: int
    answer_taken_within_us: int

    @classmethod
    def of(cls, settings: ServeSettings) -> Limits:
        """Share the service's limits out among its workers."""
        return cls(
            total=ceil(settings.connections / settings.workers),
            per_peer=ceil(settings.connections_per_peer / settings.workers),
            answer_taken_within_us=int(settings.read_within_seconds * 1_000_000),
        )


@lru_cache(maxsize=4096)
def peer_network(address: str) -> str:
    """Return what counts as one peer: an IPv4 address, or the IPv6 network that one customer has at least."""
    host = address.partition("%")[0]
    if ":" not in host:
        return host
    found = ipaddress.IPv6Address(host)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_NETWORK_BITS), strict=False))


class Judge:
    """Decides which connections to close: pure, but for what it remembers from one look to the next."""

    def __init__(self, limits: Limits) -> None:
        """Take the limits; nothing was seen yet."""
        self._limits = limits
        self._waiting: dict[tuple[int, Address], Waiting] = {}

    def judge(self, seen: list[Seen], now_us: int) -> dict[str, list[Seen]]:
        """Return the connections to close, by the reason."""
        left_us = self._left_us(seen, now_us)
        within_us = self._limits.answer_taken_within_us
        unread = [one for one in seen if left_us[one.file] >= within_us]
        kept = [one for one in seen if left_us[one.file] < within_us]
        # Answers that nobody takes are closed first, then what is idle, then what has not moved for longest.
        kept.sort(
            key=lambda one: (left_us[one.file] >= MOVED_US, one.piles_up, one.is_idle, one.still_us), reverse=True
        )
        crowding, kept = _beyond(kept, self._limits.per_peer)
        surplus: list[Seen] = []
        if len(seen) >= self._limits.total:
            wanted = ceil(self._limits.total / FREE_SHARE) - len(unread) - len(crowding)
            unmoved = [
                one for one in kept if left_us[one.file] >= MOVED_US or (one.is_idle and one.still_us >= MOVED_US)
            ]
            surplus = unmoved[: max(0, wanted)]
        return {"unread": unread, "crowding": crowding, "surplus": surplus}

    def _left_us(self, seen: list[Seen], now_us: int) -> dict[int, int]:
        """Tell how long each peer has left an answer; nought where it has all that was written at the last look."""
        waiting: dict[tuple[int, Address], Waiting] = {}
        left_us = {}
        for one in seen:
            name = (one.file, one.peer)
            before = self._waiting.get(name)
            if before is None or one.received >= before.written:
                before = Waiting(one.written, now_us)
            waiting[name] = before
            left_us[one.file] = 0 if one.received >= before.written else now_us - before.since_us
        self._waiting = waiting
        return left_us


def _beyond(ranked: list[Seen], per_peer: int) -> tuple[list[Seen], list[Seen]]:
    """Part the first of each peer's connections, where it has too many, from those that it may keep."""
    surplus = Counter(peer_network(one.peer[0]) for one in ranked)
    for peer in surplus:
        surplus[peer] -= per_peer
    beyond: list[Seen] = []
    kept: list[Seen] = []
    for one in ranked:
        peer = peer_network(one.peer[0])
        (beyond if surplus[peer] > 0 else kept).append(one)
        surplus[peer] -= 1
    return beyond, kept


class ConnectionGuard:
    """Looks at the connections of this process from time to time, and closes those that keep others out."""

    def __init__(self, port: int, settings: ServeSettings, warn: Callable[[str], None]) -> None:
        """Take the port that connections come to, the limits, and who is told."""
        self._port = port
        self._settings = settings
        self._judge = Judge(Limits.of(settings))
        self._warn = warn
        self._clock = SystemClock()
        self._warned_us: dict[str, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="oncebridge-connections", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._closing.set()
        self._thread.join()

    def _keep_looking(self) -> None:
        while not self._closing.wait(EVERY_SECONDS):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - the next look may go better, and must take place
                self._tell("failed", f"connections could not be looked at: {type(error).__name__}")

    def _look(self) -> None:
        now_us = self._clock.monotonic_us()
        for reason, connections in self._judge.judge(list(_connections(self._port)), now_us).items():
            for connection in connections:
                _close(connection, self._port)
            if connections:
                self._tell(reason, self._words(reason, len(connections)))

    def _words(self, reason: str, number: int) -> str:
        limits = self._settings
        why = {
            "unread": f"their clients had not taken an answer for {limits.read_within_seconds:g} s",
            "crowding": f"one address had more than connections_per_peer = {limits.connections_per_peer}; behind a "
            "proxy, set it higher, in [serve] of the settings",
            "surplus": f"all connections = {limits.connections} were taken, and these were idle",
        }
        return f"{number:,} connections were closed: {why[reason]}"

    def _tell(self, reason: str, words: str) -> None:
        """Write to the log, once in a while for each reason."""
        now_us = self._clock.monotonic_us()
        if now_us - self._warned_us.get(reason, -WARN_EVERY_US) >= WARN_EVERY_US:
            self._warned_us[reason] = now_us
            self._warn(words)


# --- the kernel's side ---------------------------------------------------------------------------------------


def _connections(port: int) -> Iterator[Seen]:
    """Yield the connections of this process that came to a port."""
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
    """Look at a file as a socket, without owning it; the kind is told so that the kernel need not be asked."""
    return socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=file)


def _seen(connection: socket.socket, file: int, port: int) -> Seen | None:
    own, peer = connection.getsockname(), connection.getpeername()
    if not isinstance(own, tuple) or own[1] != port:
        return None
    sent_ms, came_ms, received = _moved(connection)
    queued = _QUEUED.unpack(fcntl.ioctl(file, termios.TIOCOUTQ, _QUEUED.pack(0)))[0]
    return Seen(file, (peer[0], peer[1]), received + queued, received, sent_ms * 1000, came_ms * 1000)


def _moved(connection: socket.socket) -> tuple[int, int, int]:
    if sys.platform != "linux":
        return _NEVER_SENT
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    return _TCP_INFO.unpack(info)


def _close(connection: Seen, port: int) -> None:
    """Cut a connection off, if it is still the same; the server lets go of it then."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.file)) as held:
        if held.getsockname()[1] == port and held.getpeername()[:2] == connection.peer:
            # What the peer would not take is not kept for it in the kernel either.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            held.shutdown(socket.SHUT_RDWR)


def room_for(connections: int) -> int:
    """Make sure that this process, and those it starts, may open so many; return how many they may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        highest = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
            soft = highest
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - FILES_BESIDE))
