"""Calls to the masters of a Redis cluster, each script where its shard lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

from oncebridge.errors import LedgerUnavailable
from oncebridge.ledgers.redis.calls import check_replicas
from oncebridge.ledgers.redis.server import ERRORS, WAIT_MS, cluster_of, in_our_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.cluster import ClusterNode
    from redis.connection import Connection

    from oncebridge.ledgers.redis.calls import Call, Greeting, Word, Words
    from oncebridge.ledgers.redis.scripts import Script
    from oncebridge.ledgers.redis.server import Address


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

    def greet_with(self, greeting: Greeting | None) -> None:
        """Leave it: the client connects by itself, and a cluster that comes back empty has lost its slots as well."""

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
                    check_replicas(self._one(connection), self._address)
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
