"""One connection to one server: calls go out, and their answers arrive in the same order.

An exception may strike at any instruction: Ctrl-C, an alarm, a soft time limit. So a connection counts as sound only
while it is idle: every operation clears that first, and only its end sets it again. A connection that is not sound is
never repaired. It is closed, and all answers that were awaited on it fail.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hiredis import HiredisError, Reader, pack_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.clock import Clock
    from oncebridge.ledgers.redis.address import Address

#: Bytes alone: hiredis does not survive a signal's handler that raises while numbers are packed.
Words: TypeAlias = "Sequence[bytes]"
Place: TypeAlias = "tuple[str, int]"

#: For the whole of connecting: TCP, TLS, password and database.
CONNECT_SECONDS: Final = 5.0
#: For a whole answer, or for sending a whole call; large ones get more in proportion.
ANSWER_SECONDS: Final = 5.0
SLOWEST_BYTES_PER_US: Final = 1.0
#: A server that answers faster than this is polled for a while instead of slept for: waking up takes longer. Only by
#: the main thread: beside any other thread there is at least the main one, which needs the processor meanwhile.
NEAR_US: Final = 500

#: A server that repeats a word cuts off a long one, but not so soon.
REPEATED_AT_LEAST: Final = 16

_READ_BYTES: Final = 65_536
_MORE: Final = object()


class ServerError(Exception):
    """The server's answer is an error; its first word is the code."""

    @property
    def code(self) -> str:
        """Return the first word."""
        return str(self).partition(" ")[0]


#: Errors of servers and the network.
ERRORS: Final = (ServerError, HiredisError, OSError)


class Answer:
    """The answer to one call; it belongs to its connection, and to no other."""

    __slots__ = ("_arrived", "_connection", "_value")

    def __init__(self, connection: Connection) -> None:
        """Begin without a value."""
        self._connection = connection
        self._arrived = False
        self._value: Any = None

    def arrive(self, value: Any) -> None:
        """Take the value."""
        self._value = value
        self._arrived = True

    def get(self) -> Any:
        """Read until it has arrived. An error of the server's is returned, any other is raised."""
        while not self._arrived:
            self._connection.read_next()
        return self._value


class Connection:
    """A connection, used by one thread at a time."""

    connect_seconds = CONNECT_SECONDS

    def __init__(self, place: Place, address: Address, clock: Clock) -> None:
        """Connect, and authenticate; all of that before one deadline."""
        self.place = place
        self.is_sound = False
        #: Whether answers are polled for without going to sleep.
        self.polls = False
        self._clock = clock
        self._closed_by: Exception | None = None
        self._usual_us = 0
        self._awaited: deque[Answer] = deque()
        self._unsent: list[bytes] = []
        self._buffer = bytearray(_READ_BYTES)
        self._reader = Reader(replyError=ServerError, notEnoughData=_MORE)
        until_us = clock.monotonic_us() + int(self.connect_seconds * 1_000_000)
        self._socket = self._connected(place, address, until_us)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._begin_with(self._first_calls(address), until_us)
        self._socket.settimeout(ANSWER_SECONDS)
        self.is_sound = True

    # --- connecting ----------------------------------------------------------------------------------

    def _connected(self, place: Place, address: Address, until_us: int) -> socket.socket:
        """Try each address of a host; with TLS, since its handshake may hang as well."""
        failure: OSError = ConnectionError("the name has no address")
        for family, kind, protocol, _, at in socket.getaddrinfo(*place, type=socket.SOCK_STREAM):
            opened = socket.socket(family, kind, protocol)
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                opened.settimeout(self._seconds_until(until_us))
                opened.connect(at)
                if not address.tls:
                    return opened
                opened.settimeout(self._seconds_until(until_us))
                return _trusting(address.ca_file).wrap_socket(opened, server_hostname=place[0])
            except OSError as error:
                failure = error
                opened.close()
            except BaseException:
                opened.close()
                raise
        raise failure

    def _first_calls(self, address: Address) -> list[tuple[str, ...]]:
        """Return the first calls on a connection: user and password, and the database."""
        calls: list[tuple[str, ...]] = []
        if address.username:
            calls.append(("AUTH", address.username, address.password or ""))
        elif address.password:
            calls.append(("AUTH", address.password))
        if address.db:
            calls.append(("SELECT", str(address.db)))
        return calls

    def _begin_with(self, calls: list[tuple[str, ...]], until_us: int) -> None:
        if calls:
            self._write(b"".join(_packed([word.encode() for word in call]) for call in calls), until_us)
        self.first_answers = [self._read(until_us) for _ in calls]
        for answer, call in zip(self.first_answers, calls, strict=True):
            if isinstance(answer, ServerError):
                raise ServerError(_without(call[-1], str(answer)))

    # --- calls and answers ---------------------------------------------------------------------------

    @property
    def is_at_rest(self) -> bool:
        """Whether another thread may have it: no answer is awaited, and none has arrived unasked."""
        return self.is_sound and not self._awaited and not self._unsent and not self._poll.poll(0)

    def send(self, words: Words, *, soon: bool = False) -> Answer:
        """Send one call, or buffer it until the next one: an idle server is then woken up once for both."""
        self._begin()
        answer = Answer(self)
        self._awaited.append(answer)
        self._unsent.append(_packed(words))
        if not soon:
            self._send_all()
        self.is_sound = self._closed_by is None
        return answer

    def flush(self) -> None:
        """Send the buffered calls."""
        if self._unsent:
            self._begin()
            self._send_all()
            self.is_sound = self._closed_by is None

    def read_next(self) -> None:
        """Read the next answer, and give it to its call."""
        self._begin()
        if self._unsent:
            self._send_all()
        try:
            value = self._read(0)
        except ERRORS as error:
            self.close(error)
            raise
        self._awaited.popleft().arrive(value)
        self.is_sound = self._closed_by is None

    def _begin(self) -> None:
        """Clear the soundness until the end; an exception in between ends the connection."""
        if not self.is_sound:
            raise self.close(ConnectionError("a call on this connection was interrupted"))
        self.is_sound = False

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        try:
            self._write(unsent[0] if len(unsent) == 1 else b"".join(unsent), 0)
        except ERRORS as error:
            self.close(error)
            raise

    def close(self, why: Exception) -> Exception:
        """Close it for good, even while a thread reads; return why it was first closed."""
        self.is_sound = False
        self._closed_by = self._closed_by or why
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        return self._closed_by

    def abandon(self) -> None:
        """Leave it to the parent of this process, which still uses it."""
        self.is_sound = False
        self._closed_by = ConnectionError("this process was forked meanwhile")
        self._socket.close()

    def __del__(self) -> None:
        """Close an unreachable connection, without a message to the server: it may be the parent's."""
        with suppress(AttributeError):  # if connecting failed
            self._socket.close()

    # --- bytes ---------------------------------------------------------------------------------------

    def _seconds_until(self, until_us: int, got_bytes: int = 0) -> float:
        left_us = until_us + got_bytes / SLOWEST_BYTES_PER_US - self._clock.monotonic_us()
        if left_us <= 0:
            raise TimeoutError("it takes too long")
        return left_us / 1_000_000

    def _write(self, data: bytes, until_us: int) -> None:
        sent = self._socket.send(data)
        if sent == len(data):
            return
        until_us = until_us or self._clock.monotonic_us() + int(ANSWER_SECONDS * 1_000_000)
        while sent < len(data):
            self._socket.settimeout(self._seconds_until(until_us, sent))
            sent += self._socket.send(memoryview(data)[sent:])
        self._socket.settimeout(ANSWER_SECONDS)

    def _read(self, until_us: int) -> Any:
        """Read a whole answer before a deadline, 0 for the usual one; a slow server gets no longer than others."""
        value = self._reader.gets()
        if value is not _MORE:
            return value
        began_us = self._clock.monotonic_us()
        if until_us:
            self._socket.settimeout(self._seconds_until(until_us))
        elif self.polls and self._usual_us < NEAR_US:
            while not self.has_answer() and self._clock.monotonic_us() - began_us < NEAR_US:
                pass
        got_bytes = self._receive()
        self._usual_us += (self._clock.monotonic_us() - began_us - self._usual_us) // 8
        value = self._reader.gets()
        if value is _MORE:
            until_us = until_us or began_us + int(ANSWER_SECONDS * 1_000_000)
            while value is _MORE:
                self._socket.settimeout(self._seconds_until(until_us, got_bytes))
                got_bytes += self._receive()
                value = self._reader.gets()
            self._socket.settimeout(ANSWER_SECONDS)
        return value

    def has_answer(self) -> bool:
        """Return whether there is data to read."""
        return bool(self._poll.poll(0))

    def _receive(self) -> int:
        number = self._socket.recv_into(self._buffer)
        if not number:
            raise ConnectionError("the server has closed the connection")
        self._reader.feed(self._buffer, 0, number)  # type: ignore[arg-type]  # its stub knows bytes alone
        return number


def _without(secret: str, answer: str) -> str:
    """Cut a server's answer where it repeats words that it does not understand: whole ones, or their beginning."""
    code, space, text = answer.partition(" ")
    before, repeated, _ = text.partition(secret[:REPEATED_AT_LEAST])
    return f"{code}{space}{before}{'...' if repeated else ''}"


def _packed(words: Words) -> bytes:
    packed: bytes = pack_command(tuple(words))  # type: ignore[arg-type]  # its stub knows one length
    return packed


@lru_cache(maxsize=8)
def _trusting(ca_file: str | None) -> ssl.SSLContext:
    """Make the TLS context, once: reading the system's certificates takes longer than a handshake."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(cafile=ca_file)
    return context
