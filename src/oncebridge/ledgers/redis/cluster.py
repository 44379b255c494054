"""Calls to the masters of a Redis cluster, each script on the master of its shard.

A script declares one key that never exists, and computes the others. So while a slot moves from one master to another,
the one that has it answers every call with ASK, and nothing else happens to the slot until all of it has arrived. Such
a redirection is never followed: the other master has only part of the slot by then. The call waits for the end of the
move.
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import TYPE_CHECKING, Any, Final

from oncebridge.clock import NEVER
from oncebridge.ledgers.redis.calls import check_replicas, wait_words
from oncebridge.ledgers.redis.connection import ERRORS, ServerError
from oncebridge.ledgers.redis.failures import in_our_words
from oncebridge.ledgers.redis.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncebridge.clock import Clock
    from oncebridge.ledgers.redis.address import Address
    from oncebridge.ledgers.redis.calls import Call
    from oncebridge.ledgers.redis.connection import Answer, Place, Words
    from oncebridge.ledgers.redis.scripts import Script

SLOTS: Final = 16_384
#: How long a call waits for a slot that moves, and how often it checks.
PATIENCE_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.02

_MOVING: Final = ("ASK", "TRYAGAIN")
#: Answered with an error where the slot of a key is not, or not wholly; changes nothing.
_GUARD: Final = (b"EVAL", b"return 1", b"1")


class _Done:
    """An answer that has already arrived."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


class ClusterCalls:
    """Calls to the masters of a cluster."""

    def __init__(self, address: Address, clock: Clock) -> None:
        """Connect nothing yet."""
        self.lines = Lines(address, clock)
        self._clock = clock
        self._wait_words = wait_words(address)
        self._masters: list[Place | None] = []  # of each slot

    def start(self, script: Script, prefix: bytes, arguments: Words) -> Call:
        """Run a script and wait for it: only `run` uses several shards at the same time."""
        (value,) = self.run(script, [(prefix, arguments)])
        return _Done(value)

    def run(self, script: Script, each: Sequence[tuple[bytes, Words]]) -> list[Any]:
        """Run a script once for each prefix; in full where a server does not know it."""
        with in_our_words(self.lines.address):
            values = self._carry_out(
                [(prefix, ((b"EVALSHA", script.sha, b"1", prefix, *arguments),)) for prefix, arguments in each]
            )
            unknown = [at for at, value in enumerate(values) if _code(value) == "NOSCRIPT"]
            in_full = [
                (prefix, ((b"EVAL", script.text, b"1", prefix, *arguments),))
                for prefix, arguments in (each[at] for at in unknown)
            ]
            for at, value in zip(unknown, self._carry_out(in_full), strict=True):
                values[at] = value
            return _without_errors(values)

    def command(self, key: bytes, *words: bytes) -> Any:
        """Run one command on the master of a key."""
        with in_our_words(self.lines.address):
            # A scan names no key, so any server would answer it, from its part of a slot.
            calls: Sequence[Words] = ((*_GUARD, key), words) if words[0] == b"SCAN" else (words,)
            follow = words[0] != b"SCAN" or words[1] == b"0"  # a cursor is invalid on another server
            return _without_errors(self._carry_out([(key, calls)], follow=follow))[0]

    def places(self) -> list[Place]:
        """Return the masters."""
        with in_our_words(self.lines.address):
            self._learn()
        return sorted({place for place in self._masters if place is not None})

    def ask(self, place: Place, *words: bytes) -> Any:
        """Run one command on one master."""
        with in_our_words(self.lines.address):
            return _without_errors([self.lines.to(place).send(words).get()])[0]

    # --- sending -------------------------------------------------------------------------------------

    def _carry_out(self, each: Sequence[tuple[bytes, Sequence[Words]]], *, follow: bool = True) -> list[Any]:
        """Send each group of calls to the master of its key, and return the last answer or the first error of each.

        Calls whose slot has moved are sent again to its new master; while it moves, until it has arrived.
        """
        values: list[Any] = [None] * len(each)
        left = list(range(len(each)))
        until_us = self._clock.monotonic_us() + int(PATIENCE_SECONDS * 1_000_000)
        while left:
            for at, value in zip(left, self._round([each[at] for at in left]), strict=True):
                values[at] = value
            left = [at for at in left if _code(values[at]) in ("MOVED", *_MOVING)] if follow else []
            if left and self._clock.monotonic_us() > until_us:
                break
            for at in left:
                if _code(values[at]) == "MOVED":
                    self._follow(values[at], self._master_of(each[at][0]))
            if any(_code(values[at]) in _MOVING for at in left):
                self._clock.wait(NEVER, LOOK_SECONDS)
        return values

    def _round(self, each: Sequence[tuple[bytes, Sequence[Words]]]) -> list[Any]:
        """Send to all servers, then read from all: they work in parallel."""
        if not self._masters:
            self._learn()
        try:
            sent: list[tuple[Place, list[Answer]]] = []
            for key, calls in each:
                place = self._master_of(key)
                sent.append((place, [self.lines.to(place).send(words, soon=True) for words in calls]))
            places = dict.fromkeys(place for place, _ in sent)
            replicas = [self.lines.to(place).send(self._wait_words, soon=True) for place in places if self._wait_words]
            for place in places:
                self.lines.to(place).flush()
            values = [_outcome(answer.get() for answer in answers) for _, answers in sent]
            for answer in replicas:
                check_replicas(answer.get(), self.lines.address)
        except ERRORS:
            self._masters = []  # another may have taken over: the next call asks
            raise
        return values

    # --- slots ---------------------------------------------------------------------------------------

    def _master_of(self, key: bytes) -> Place:
        place = self._masters[slot_of(key)] if self._masters else None
        if place is None:
            raise ServerError("CLUSTERDOWN a slot has no master")
        return place

    def _follow(self, moved: ServerError, asked: Place) -> None:
        """Note where a slot is now, as a server says: others may not know it yet."""
        _, slot, place = str(moved).split()[:3]
        host, _, port = place.rpartition(":")
        self._masters[int(slot)] = (host or asked[0], int(port))

    def _learn(self) -> None:
        """Ask one server after the other which master has which slot."""
        known = [place for place in dict.fromkeys(self._masters) if place is not None]
        failure: Exception = ConnectionError("no server of the cluster was named")
        for place in dict.fromkeys([*known, *self.lines.address.hosts]):
            try:
                found = self.lines.to(place).send((b"CLUSTER", b"SLOTS")).get()
                if isinstance(found, ServerError):
                    raise found
            except ERRORS as error:
                failure = error
            else:
                masters: list[Place | None] = [None] * SLOTS
                for first, last, (host, port, *_), *_ in found:
                    masters[first : last + 1] = [((host or b"").decode() or place[0], port)] * (last + 1 - first)
                self._masters = masters
                return
        raise failure


def slot_of(key: bytes) -> int:
    """Return a key's slot: the part in braces chooses it."""
    _, _, behind = key.partition(b"{")
    tag, brace, _ = behind.partition(b"}")
    return crc_hqx(tag if tag and brace else key, 0) % SLOTS


def _code(value: Any) -> str:
    return value.code if isinstance(value, ServerError) else ""


def _outcome(answers: Iterable[Any]) -> Any:
    """Return the first error of a group, else its last answer; all are read, whatever they are."""
    all_ = list(answers)
    return next((one for one in all_ if isinstance(one, ServerError)), all_[-1])


def _without_errors(values: list[Any]) -> list[Any]:
    for value in values:
        if isinstance(value, ServerError):
            raise value
    return values
