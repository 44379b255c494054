"""Calls to one Redis: scripts and commands, each thread over a connection of its own.

A call is sent, and its answer read later, so that several can be on their way. Everything sent can be sent again:
nonces and tokens make that safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from oncebridge.errors import LedgerUnavailable
from oncebridge.ledgers.redis.connection import ERRORS, ServerError
from oncebridge.ledgers.redis.failures import translated
from oncebridge.ledgers.redis.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.clock import Clock
    from oncebridge.ledgers.redis.address import Address
    from oncebridge.ledgers.redis.connection import Answer, Place, Words
    from oncebridge.ledgers.redis.scripts import Script

WAIT_MS: Final = 1000


class Call(Protocol):
    """A call on its way."""

    def result(self) -> Any:
        """Wait for the answer."""
        ...


class Calls(Protocol):
    """Sends scripts and commands to the server, or the servers."""

    lines: Lines

    def start(self, script: Script, prefix: bytes, arguments: Words) -> Call:
        """Send a script to the server of `prefix`."""
        ...

    def run(self, script: Script, each: Sequence[tuple[bytes, Words]]) -> list[Any]:
        """Run a script once for each prefix, and wait for all answers."""
        ...

    def command(self, key: bytes, *words: bytes) -> Any:
        """Run one command on the server of `key`."""
        ...

    def places(self) -> list[Place]:
        """Return the places of the servers that hold keys."""
        ...

    def ask(self, place: Place, *words: bytes) -> Any:
        """Run one command on one of these servers."""
        ...


class _Failed:
    """A call that could not be sent."""

    def __init__(self, error: Exception, address: Address) -> None:
        self._error, self._address = error, address

    def result(self) -> Any:
        raise translated(self._error, self._address) from self._error


class _Sent:
    """A call that was sent."""

    def __init__(self, calls: SingleCalls, words: Words, script: Script | None) -> None:
        self._calls, self._words, self._script = calls, words, script
        self._connection = connection = calls.lines.to()
        self._answer = connection.send(words)
        # A write counts only once enough replicas have it.
        self._replicas: Answer | None = connection.send(calls.wait_words) if calls.wait_words else None

    def result(self) -> Any:
        address = self._calls.lines.address
        try:
            value = self._answer.get()
            if isinstance(value, ServerError):
                if value.code == "NOSCRIPT" and self._script is not None:
                    # A restarted server has forgotten the script. The whole call is repeated, with the wait for
                    # replicas.
                    return self._calls.sent((b"EVAL", self._script.text, *self._words[2:]), None).result()
                if value.code == "READONLY":
                    self._connection.close(value)  # no longer the master: it must be looked up again
                raise value
            if self._replicas is not None:
                check_replicas(self._replicas.get(), address)
        except ERRORS as error:
            raise translated(error, address) from error
        return value


class SingleCalls:
    """Calls to one server: the one at the address, or the master that its sentinels name."""

    def __init__(self, address: Address, clock: Clock) -> None:
        """Connect nothing yet."""
        self.lines = Lines(address, clock)
        self.wait_words = wait_words(address)
        self._known: set[bytes] = set()

    def sent(self, words: Words, script: Script | None) -> Call:
        """Send a call; if that fails, its result raises the error."""
        try:
            return _Sent(self, words, script)
        except ERRORS as error:
            return _Failed(error, self.lines.address)

    def start(self, script: Script, prefix: bytes, arguments: Words) -> Call:
        """Send a script; the first time in full, so that the server knows its digest from then on."""
        if script.sha in self._known:
            return self.sent((b"EVALSHA", script.sha, b"1", prefix, *arguments), script)
        self._known.add(script.sha)
        return self.sent((b"EVAL", script.text, b"1", prefix, *arguments), None)

    def run(self, script: Script, each: Sequence[tuple[bytes, Words]]) -> list[Any]:
        """Send all, then read all."""
        started = [self.start(script, prefix, arguments) for prefix, arguments in each]
        return [call.result() for call in started]

    def command(self, key: bytes, *words: bytes) -> Any:  # noqa: ARG002 - there is one server
        """Run one command."""
        return self.sent(words, None).result()

    def places(self) -> list[Place]:
        """Return the one server."""
        try:
            return [self.lines.to().place]
        except ERRORS as error:
            raise translated(error, self.lines.address) from error

    def ask(self, place: Place, *words: bytes) -> Any:  # noqa: ARG002 - there is one server
        """Run one command on the one server."""
        return self.sent(words, None).result()


def wait_words(address: Address) -> Words:
    """Return the call that waits for replicas, if any are required."""
    return (b"WAIT", b"%d" % address.wait, b"%d" % WAIT_MS) if address.wait else ()


def check_replicas(have: Any, address: Address) -> None:
    """Refuse a write that too few replicas have."""
    if isinstance(have, ServerError):
        raise have
    if have < address.wait:
        raise LedgerUnavailable(
            f"{address!r}: {have} of {address.wait} replicas have the write; whether it takes effect is not "
            "known, and it is safe to repeat. Look at the replicas, or lower ?wait="
        )
