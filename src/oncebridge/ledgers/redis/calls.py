"""Calls to a Redis: scripts and commands, each thread on a line of its own.

A line sends a call and reads its answer later, so that several can be on their way. Everything sent can be
sent again: that is what nonces and tokens are for.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import redis

from oncebridge.errors import LedgerUnavailable
from oncebridge.ledgers.redis.server import (
    ANSWER_SECONDS,
    ERRORS,
    WAIT_MS,
    cluster_of,
    in_our_words,
    pool_of,
    translated,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.cluster import ClusterNode
    from redis.connection import Connection

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
        if isinstance(self.value, BaseException):
            raise translated(self.value, self.line.address) from self.value
        return self.value


class Line:
    """One connection, used by one thread: answers come in the order in which calls were sent."""

    def __init__(self, pool: redis.ConnectionPool, address: Address, clock: Clock) -> None:
        """Connect."""
        self.address = address
        self._polls = threading.current_thread() is threading.main_thread()
        self._pool = pool
        self._clock = clock
        self._awaited: deque[_Answer] = deque()
        self._usual_us = 0
        self._cut = False
        self._unsent: list[bytes] = []
        with in_our_words(address):
            self._connection: Any = pool.get_connection()

    def send(self, words: Words, script: Script | None, *, soon: bool = False) -> _Answer:
        """Send one call, or keep it back until the next one: a server that sleeps is woken up once for both."""
        answer = _Answer(self, words, script)
        self._awaited.append(answer)
        packed = self._connection.pack_command(*words)
        self._unsent.append(packed if isinstance(packed, bytes) else b"".join(packed))
        if not soon:
            self._send_all()
        return answer

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        try:
            if self._cut:
                self._connection.connect()  # asks the sentinels who is master now, which sending alone does not
                self._cut = False
            self._connection.send_packed_command([b"".join(unsent)], check_health=False)
        except ERRORS as error:
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
        """Look for the answer of a near server without going to sleep."""
        asked_us = self._clock.monotonic_us()
        if self._polls and self._usual_us < NEAR_US:
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

    def _line(self) -> Line:
        line: Line | None = getattr(self._local, "line", None)
        if line is None or self._local.pid != os.getpid():
            line = Line(self._pool, self._address, self._clock)
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
        _check_replicas(have, self._address)
        return value


def _check_replicas(have: int, address: Address) -> None:
    if have < address.wait:
        raise LedgerUnavailable(
            f"{address!r}: {have} of {address.wait} replicas have the write; whether it takes effect is not "
            "known, and it is safe to repeat. Look at the replicas, or lower ?wait="
        )


class _Done:
    """An answer that is there already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


class ClusterCalls:
    """Calls to the masters of a cluster, each script where its shard lives."""

    def __init__(self, address: Address) -> None:
        """Learn the cluster's slots."""
        self._address = address
        with in_our_words(address):
            self._cluster = cluster_of(address)

    def start(self, script: Script, prefix: str, arguments: Words, *, soon: bool = False) -> Call:  # noqa: ARG002
        """Run a script and wait for it: shards are worked off side by side in `run` alone."""
        (value,) = self.run(script, [(prefix, arguments)])
        return _Done(value)

    def run(self, script: Script, each: Sequence[tuple[str, Words]]) -> list[Any]:
        """Send to every node what is for its shards, then read all answers; what was redirected goes once more."""
        with in_our_words(self._address):
            by_node: dict[ClusterNode, list[int]] = {}
            for number, (prefix, _) in enumerate(each):
                by_node.setdefault(self._cluster.get_node_from_key(prefix), []).append(number)
            values: list[Any] = [None] * len(each)
            lines = [
                (self._sent(node, [("EVALSHA", script.sha, 1, each[at][0], *each[at][1]) for at in numbers]), numbers)
                for node, numbers in by_node.items()
            ]
            for line, numbers in lines:
                for at, value in zip(numbers, line.values(), strict=True):
                    values[at] = value
            for value in values:
                if isinstance(value, LedgerUnavailable):
                    raise value
            return [
                self._again(script, *each[at]) if isinstance(value, BaseException) else value
                for at, value in enumerate(values)
            ]

    def _sent(self, node: ClusterNode, calls: Sequence[Words]) -> _NodeLine:
        line = _NodeLine(self._cluster.get_redis_connection(node).connection_pool, self._address)
        line.send(calls)
        return line

    def _again(self, script: Script, prefix: str, arguments: Words) -> Any:
        """Leave to the client what needs patience: moved slots, a new master, a forgotten script."""
        value = self._cluster.execute_command("EVAL", script.text, 1, prefix, *arguments)
        if self._address.wait:
            raise LedgerUnavailable(f"{self._address!r}: a slot has moved; the call is repeated under its nonce")
        return value

    def command(self, key: str, *words: Word) -> Any:
        """Run one command where a key lives; once more if that has changed."""
        with in_our_words(self._address):
            (value,) = self._sent(self._cluster.get_node_from_key(key), [words]).values()
            if isinstance(value, (redis.exceptions.AskError, redis.ConnectionError)):
                self._cluster.nodes_manager.initialize()
                (value,) = self._sent(self._cluster.get_node_from_key(key), [words]).values()
            if isinstance(value, BaseException):
                raise value
            return value

    def nodes(self) -> list[redis.Redis]:
        """Return the masters."""
        return [self._cluster.get_redis_connection(node) for node in self._cluster.get_primaries()]

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()


class _NodeLine:
    """One connection to one node, for the calls of one run."""

    def __init__(self, pool: redis.ConnectionPool, address: Address) -> None:
        self._pool, self._address = pool, address
        self._sent = 0
        self._connection: Connection | None = None
        self._error: BaseException | None = None

    def send(self, calls: Sequence[Words]) -> None:
        self._sent = len(calls)
        try:
            self._connection = self._pool.get_connection()
            for words in calls:
                self._connection.send_command(*words)
            if self._address.wait:
                self._connection.send_command("WAIT", self._address.wait, WAIT_MS)
        except ERRORS as error:
            self._error = error

    def values(self) -> list[Any]:
        """Read the answers; an error stands where its answer would."""
        connection, values = self._connection, list[Any]()
        try:
            if connection is None or self._error is not None:
                return [self._error] * self._sent
            try:
                values = [self._one(connection) for _ in range(self._sent)]
                if self._address.wait:
                    _check_replicas(self._one(connection), self._address)
            except LedgerUnavailable as error:
                return [error] * self._sent
            except ERRORS as error:
                return values + [error] * (self._sent - len(values))
            return values
        finally:
            if connection is not None:
                self._pool.release(connection)

    def _one(self, connection: Connection) -> Any:
        try:
            return connection.read_response()
        except redis.ResponseError as error:
            return error
