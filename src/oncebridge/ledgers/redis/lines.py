"""The connections of one ledger: each thread has its own to each server, and leaves them to the next thread.

None of them is shared with a forked child, which makes its own.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from oncebridge import forks
from oncebridge.ledgers.redis.connection import ERRORS, Connection

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.ledgers.redis.address import Address
    from oncebridge.ledgers.redis.connection import Place

IDLE_MAX: Final = 64
#: For one sentinel to answer: there are others.
SENTINEL_SECONDS: Final = 2.0
#: The server of an address that has one: a cluster's have places of their own.
ONLY: Final = ("", 0)


class Line:
    """The calls of one thread to one server, over one connection after the other."""

    def __init__(self, lines: Lines, place: Place) -> None:
        """Connect nothing yet."""
        self._lines, self._place = lines, place
        self._polls = threading.current_thread() is threading.main_thread()
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        """Return a sound connection: the previous one, one that another thread left, or a new one."""
        connection = self._connection
        if connection is None or not connection.is_sound:
            self._connection = None
            if connection is not None:
                connection.close(ConnectionError("a call on this connection was interrupted"))
            connection = self._lines.connection(self._place)
            connection.polls = self._polls
            self._connection = connection
        return connection

    def __del__(self) -> None:
        """Leave the connection to other threads when this one has ended."""
        if self._connection is not None:
            self._lines.take_back(self._place, self._connection)


class Lines:
    """The connections to the servers of one address."""

    def __init__(self, address: Address, clock: Clock) -> None:
        """Connect nothing yet."""
        self.address = address
        #: How many connections were made: the server may have changed since the last one.
        self.made = 0
        self._clock = clock
        self._sentinels = deque(address.hosts)
        self._local = threading.local()
        self._idle: dict[Place, deque[Connection]] = {}
        self._all: dict[int, weakref.ref[Connection]] = {}
        forks.register(self)

    def to(self, place: Place = ONLY) -> Connection:
        """Return this thread's connection to a server."""
        try:
            line: Line = self._local.lines[place]
        except AttributeError:
            line = Line(self, place)
            self._local.lines = {place: line}
        except KeyError:
            line = self._local.lines[place] = Line(self, place)
        return line.connection()

    def connection(self, place: Place) -> Connection:
        """Return a connection that no thread has: one that was left, or a new one."""
        idle = self._idle.get(place, ())
        while idle:
            with suppress(IndexError):  # where another thread was faster
                left = idle.pop()
                if left.is_at_rest:
                    return left
                left.close(ConnectionError("the server has closed the connection"))
        new = Connection(self._where(place), self.address, self._clock)
        number = id(new)
        self._all[number] = weakref.ref(new, lambda _: self._all.pop(number, None))
        self.made += 1
        return new

    def take_back(self, place: Place, connection: Connection) -> None:
        """Keep a connection for the next thread, unless an answer for this one may still arrive on it."""
        idle = self._idle.setdefault(place, deque())
        if connection.is_at_rest and len(idle) < IDLE_MAX:
            idle.append(connection)
        else:
            connection.close(ConnectionError("its thread has ended"))

    def close(self) -> None:
        """Close the connections of every thread."""
        self._local = threading.local()
        self._idle = {}
        for connection in self._connections():
            connection.close(ConnectionError("the ledger was closed"))

    def _connections(self) -> list[Connection]:
        # A copy in one step: other threads may connect meanwhile.
        return [found for reference in list(self._all.values()) if (found := reference()) is not None]

    # --- forks ---------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Do nothing: there are no locks here."""

    def after_fork(self, *, in_child: bool) -> None:
        """Leave all connections to the parent; calls that were under way fail in the child."""
        if in_child:
            for connection in self._connections():
                connection.abandon()
            self._local = threading.local()
            self._idle, self._all = {}, {}

    # --- sentinels -----------------------------------------------------------------------------------

    def _where(self, place: Place) -> Place:
        if place != ONLY:
            return place
        return self._master() if self.address.kind == "sentinel" else self.address.hosts[0]

    def _master(self) -> Place:
        """Ask one sentinel after the other; the one that answered last time comes first."""
        reasons = []
        for sentinel in list(self._sentinels):
            try:
                return self._named_by(sentinel)
            except ERRORS as error:
                reasons.append(f"{type(error).__name__} {error}")
                self._sentinels.rotate(-1)
        raise ConnectionError(f"No master found: {', '.join(reasons)}")

    def _named_by(self, sentinel: Place) -> Place:
        asked = _Asked(sentinel, self.address, self._clock)
        asked.close(ConnectionError("it was asked once"))
        (found,) = asked.first_answers
        state = {name.decode(): value.decode() for name, value in zip(found[::2], found[1::2], strict=True)}
        flags = set(state["flags"].split(","))
        if "master" not in flags or flags & {"s_down", "o_down"}:
            raise ConnectionError(f"it is {' and '.join(sorted(flags))}")
        return state["ip"], int(state["port"])


class _Asked(Connection):
    """A connection to a sentinel, for one question. It gets no password: that is the server's."""

    connect_seconds = SENTINEL_SECONDS

    def _first_calls(self, address: Address) -> list[tuple[str, ...]]:
        return [("SENTINEL", "MASTER", address.master)]
