"""Calls to a Redis: scripts and commands, each thread on a line of its own.

A line sends a call and reads its answer later, so that several can be on their way. Everything sent can be
sent again: that is what nonces and tokens are for.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import redis
from hiredis import pack_command

from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.ledgers.redis.server import (
    ANSWER_SECONDS,
    ERRORS,
    WAIT_MS,
    in_our_words,
    pool_of,
    translated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncebridge.clock import Clock
    from oncebridge.ledgers.redis.scripts import Script
    from oncebridge.ledgers.redis.server import Address

Word: TypeAlias = "bytes | str | int"
Words: TypeAlias = "Sequence[Word]"

#: A server that answers faster than this is polled for a while rather than slept for: waking up takes longer. Only by
#: the main thread: beside any other there is at least that one, which needs the processor meanwhile.
NEAR_US: Final = 500


class Call(Protocol):
    """A call on its way."""

    def result(self) -> Any:
        """Wait for the answer."""
        ...


class Greeting(NamedTuple):
    """What is said first on every connection, and what looks at the answer and raises if that is wrong."""

    words: Words
    check: Callable[[Any], None]


class Calls(Protocol):
    """How scripts and commands reach the server, or the servers."""

    def start(self, script: Script, prefix: str, arguments: Words, *, soon: bool = False) -> Call:
        """Send a script to where `prefix` lives; with `soon`, together with the call that comes next."""
        ...

    def run(self, script: Script, each: Sequence[tuple[str, Words]]) -> list[Any]:
        """Run a script once for each prefix, and wait for all answers."""
        ...

    def command(self, key: str, *words: Word) -> Any:
        """Run one command where `key` lives."""
        ...

    def greet_with(self, greeting: Greeting | None) -> None:
        """Say this first on every connection from now on: the server behind it may have come back empty."""
        ...

    def nodes(self) -> list[redis.Redis]:
        """Return a client for each server that holds keys."""
        ...

    def close(self) -> None:
        """Let go of every connection."""
        ...


class _Answer:
    """The answer to one call on a line."""

    def __init__(self, line: Line, words: Words, script: Script | None) -> None:
        self.line, self.words, self.script = line, words, script
        self.arrived = False
        self.value: Any = None

    def result(self) -> Any:
        while not self.arrived:
            self.line.read_next()
        if isinstance(self.value, redis.exceptions.NoScriptError) and self.script is not None:
            # A server that was restarted has forgotten it.
            again = self.line.send(("EVAL", self.script.text, *self.words[2:]), None)
            return again.result()
        if isinstance(self.value, LedgerRefused):
            raise self.value
        if isinstance(self.value, BaseException):
            raise translated(self.value, self.line.address) from self.value
        return self.value


class Line:
    """One connection, used by one thread: answers come in the order in which calls were sent."""

    def __init__(
        self, pool: redis.ConnectionPool, address: Address, clock: Clock, greeting: Callable[[], Greeting | None]
    ) -> None:
        """Connect, and greet."""
        self.address = address
        self._greeting = greeting
        self._polls = threading.current_thread() is threading.main_thread()
        self._pool = pool
        self._clock = clock
        self._awaited: deque[_Answer] = deque()
        self._usual_us = 0
        self._cut = False
        self._unsent: list[bytes] = []
        self._connection: Any = None
        with in_our_words(address):
            self._connection = pool.get_connection()
            self._greet()

    def _greet(self) -> None:
        """Say first what is to be said; a connection may come from the pool, and have heard it."""
        greeting = self._greeting()
        if greeting is not None and self._connection.greeted_with is not greeting:
            self._connection.send_command(*greeting.words, check_health=False)
            greeting.check(self._connection.read_response())
            self._connection.greeted_with = greeting

    def send(self, words: Words, script: Script | None, *, soon: bool = False) -> _Answer:
        """Send one call, or keep it back until the next one: a server that sleeps is woken up once for both."""
        answer = _Answer(self, words, script)
        self._awaited.append(answer)
        self._unsent.append(pack_command(tuple(words)))  # type: ignore[arg-type]  # its stub knows one length
        if not soon:
            self._send_all()
        return answer

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        try:
            if self._cut:
                self._connection.connect()  # asks the sentinels who is master now, which sending alone does not
                self._greet()
                self._cut = False
            self._connection.send_packed_command([b"".join(unsent)], check_health=False)
        except (*ERRORS, LedgerRefused) as error:
            self.fail(error)

    def wait_for_replicas(self) -> _Answer:
        """Ask that so many replicas have what was sent."""
        return self.send(("WAIT", self.address.wait, WAIT_MS), None)

    def read_next(self) -> None:
        """Read the answer that comes next."""
        if self._unsent:
            self._send_all()
            if self._cut:
                return  # it could not be sent, and whoever waits knows
        try:
            self._poll()
            value = self._connection.read_response(disconnect_on_error=False)
        except redis.exceptions.ReadOnlyError as error:
            self.fail(error)  # no longer the master: to be looked for anew
            return
        except redis.ResponseError as error:
            value = error
        except ERRORS as error:
            self.fail(error)
            return
        except BaseException:  # such as Ctrl-C: half of an answer may have been read
            self.drop()
            raise
        answer = self._awaited.popleft()
        answer.value, answer.arrived = value, True

    def _poll(self) -> None:
        """Look for the answer of a near server without going to sleep; where that is not done, reading waits."""
        if not self._polls:
            return
        asked_us = self._clock.monotonic_us()
        if self._usual_us < NEAR_US:
            while not self._connection.has_answer() and self._clock.monotonic_us() - asked_us < NEAR_US:
                pass
        else:
            self._connection.can_read(ANSWER_SECONDS)
        took_us = self._clock.monotonic_us() - asked_us
        self._usual_us += (took_us - self._usual_us) // 8

    def fail(self, error: BaseException) -> None:
        """Give everything that is awaited this error: the line is dead."""
        for answer in self._awaited:
            answer.value, answer.arrived = error, True
        self.drop()

    def drop(self) -> None:
        """Cut the connection; the next call opens it anew."""
        for answer in self._awaited:
            if not answer.arrived:
                answer.value, answer.arrived = redis.ConnectionError("the connection was dropped"), True
        self._awaited.clear()
        self._unsent = []
        self._connection.disconnect()
        self._cut = True

    def __del__(self) -> None:
        """Give the connection back when its thread has ended: the next one may have it."""
        if self._awaited:
            self.drop()
        if self._connection is not None:  # there may never have been one
            self._pool.release(self._connection)


class SingleCalls:
    """Calls to one server: the one at the address, or the master that its sentinels name."""

    def __init__(self, address: Address, clock: Clock) -> None:
        """Connect nothing yet."""
        self._address = address
        self._clock = clock
        self._pool = pool_of(address)
        self._local = threading.local()
        self._known: set[str] = set()
        self._greeting: Greeting | None = None

    def greet_with(self, greeting: Greeting | None) -> None:
        """Say this first on every connection from now on."""
        self._greeting = greeting

    def _line(self) -> Line:
        line: Line | None = getattr(self._local, "line", None)
        if line is None or self._local.pid != os.getpid():
            line = Line(self._pool, self._address, self._clock, lambda: self._greeting)
            self._local.line, self._local.pid = line, os.getpid()
        return line

    def start(self, script: Script, prefix: str, arguments: Words, *, soon: bool = False) -> Call:
        """Send a script; the first time in full, so that the server knows it by its digest from then on."""
        line = self._line()
        if script.sha in self._known:
            answer = line.send(("EVALSHA", script.sha, 1, prefix, *arguments), script, soon=soon)
        else:
            answer = line.send(("EVAL", script.text, 1, prefix, *arguments), None, soon=soon)
            self._known.add(script.sha)
        if self._address.wait:
            return _Replicated(answer, line.wait_for_replicas(), self._address)
        return answer

    def run(self, script: Script, each: Sequence[tuple[str, Words]]) -> list[Any]:
        """Send all, then read all."""
        started = [self.start(script, prefix, arguments) for prefix, arguments in each]
        return [call.result() for call in started]

    def command(self, key: str, *words: Word) -> Any:  # noqa: ARG002 - there is one server
        """Run one command."""
        return self._line().send(words, None).result()

    def nodes(self) -> list[redis.Redis]:
        """Return the one server."""
        return [redis.Redis(connection_pool=self._pool)]

    def close(self) -> None:
        """Close the lines of every thread."""
        self._local = threading.local()
        self._pool.disconnect()


class _Replicated:
    """A call that is believed only once enough replicas have it."""

    def __init__(self, answer: _Answer, replicas: _Answer, address: Address) -> None:
        self._answer, self._replicas, self._address = answer, replicas, address

    def result(self) -> Any:
        value, have = self._answer.result(), self._replicas.result()
        check_replicas(have, self._address)
        return value


def check_replicas(have: int, address: Address) -> None:
    """Refuse to believe in a write that too few replicas have."""
    if have < address.wait:
        raise LedgerUnavailable(
            f"{address!r}: {have} of {address.wait} replicas have the write; whether it takes effect is not "
            "known, and it is safe to repeat. Look at the replicas, or lower ?wait="
        )
