"""The small world that is explored: two workers, a transport that delivers at least once, and a real ledger.

A worker takes some of the waiting deliveries and claims their events in one call, as the engine does: copies of an
event are one claim, and the states of the entity are a chain. Then it brings one member after the other to its end.
It settles each at once, or several together.

A step is one call to ledger, sink or transport, so between any two of them the other worker may move, a worker
may crash, or the clock may pass the lease. Taking deliveries and putting them back are no steps of their own: anything
that could happen between them and the call beside them could also happen before or after both.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum, StrEnum
from functools import cache
from typing import Final

import msgspec

from exploration.judge import ECHO_WINDOW_MS, Book
from exploration.scenarios import Scenario
from oncebridge.claim import Answer, Ask, Chain, Letter, Newest, Outcome, Status, Verdict
from oncebridge.engine.task import Task, as_twin, result_as, result_from
from oncebridge.identity import NS_PER_MS, Moment
from oncebridge.ledgers.grants import Entity, Record
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.testing.clock import ManualClock

LEASE_US: Final = 1000
START_US: Final = 1  # tokens are at least the clock: this keeps them small enough to read
TAKEN_MAX: Final = 3
NAMES: Final = ("A", "B", "C", "D", "E")
ENTITY: Final = b"entity"
LETTER: Final = Letter(raw=b"{}", reason="explored")

At = tuple[bytes, str]
MakeLedger = Callable[["DialClock"], MemoryLedger]


class Phase(IntEnum):
    """What a worker does next."""

    IDLE = 0  # take deliveries and claim their events
    ASKS = 1  # make a claim call: for the first time, or again because its reply was lost
    WORKS = 2  # bring the members of its call to their ends, and settle them
    ENDED = 3  # acknowledge


class Act(StrEnum):
    """What can happen in one step; between any two of them anything else may."""

    CLAIM = "claims"
    HANDLE = "handles"
    EXTEND = "extends"
    SETTLE = "settles"
    ACKNOWLEDGE = "acknowledges"
    WAIT = "nobody works, and the clock passes the lease"
    # the faults
    LOSE_CLAIM = "claims and loses the reply:"
    LOSE_SETTLE = "settles and loses the reply:"
    FAIL = "fails before the effect of"
    FAIL_LATE = "fails after the effect of"
    STOP = "is stopped before it tries"
    CRASH = "crashes with"
    PAUSE = "nobody moves, and the clock passes the lease"


class Step(msgspec.Struct, frozen=True):
    """One act, by which worker, and on which deliveries where they are taken."""

    act: Act
    worker: int = -1
    taken: tuple[int, ...] = ()
    fault: bool = False


class Call(msgspec.Struct, frozen=True):
    """One claim call: the first delivery of each event, whether it is alone, and whether it is a conflict's."""

    firsts: tuple[int, ...]
    alone: bool
    buried: bool = False


class Member(msgspec.Struct, frozen=True):
    """An event that was granted, and how it ended."""

    first: int
    token: int
    attempt: int
    outcome: Outcome | None = None
    verdict: Verdict = Verdict.FRESH


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows; a crash takes all of it."""

    taken: tuple[int, ...] = ()
    #: The column of each delivery that can be acknowledged.
    columns: tuple[str, ...] = ()
    #: The calls that it still makes; while members are left, the first is theirs.
    calls: tuple[Call, ...] = ()
    nonce: int = 0
    #: The answers whose reply was lost. Only the judge looks at them.
    lost: tuple[Answer, ...] = ()
    members: tuple[Member, ...] = ()
    #: How many members have ended, and how many of those are settled.
    turn: int = 0
    settled: int = 0
    #: Of a chain: its claim, and the worker's own copy of its entity.
    chain: Chain | None = None
    newest: Newest | None = None
    #: When it last knew its claims to run.
    since_us: int = 0

    @property
    def phase(self) -> Phase:
        """What it does next."""
        if self.members:
            return Phase.WORKS
        if self.calls:
            return Phase.ASKS
        return Phase.ENDED if self.taken else Phase.IDLE


class Shelf(msgspec.Struct, frozen=True):
    """All that a `MemoryLedger` holds. Its values are frozen, so copies of the dictionaries are a snapshot."""

    records: dict[At, Record]
    entities: dict[bytes, Entity]
    letters: dict[At, Letter]
    asks: dict[At, Ask]


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state."""

    now_us: int
    shelf: Shelf
    workers: tuple[Worker, ...]
    #: Deliveries that nobody can take because a worker has them, and those acknowledged, as bits.
    hidden: int
    gone: int
    book: Book
    faults_left: int
    nonces: int


class DialClock(ManualClock):
    """A clock that is set to the time of the state that is looked at."""

    def set_to(self, now_us: int) -> None:
        """Turn it, back as well."""
        self._now_us = now_us


def ask_for(scenario: Scenario, event: int, envelope: str | None, *, buried: bool, alone: bool = False) -> Ask:
    """Return the ask of a worker for this event; it asks for a conflict under another key."""
    this = scenario.events[event]
    key = this.id or f"{event} {this.name}"
    state = scenario.state and not buried
    return Ask(
        key=f"conflict {key} {this.name}".encode() if buried else key.encode(),
        envelope=envelope,
        content=this.name.encode() if this.id is not None else None,
        entity=ENTITY if state else None,
        state=this.state.encode() if state else None,
        moment=Moment(tuple(time * NS_PER_MS for time in this.times_ms), this.version),
        echo_window_ns=ECHO_WINDOW_MS * NS_PER_MS,
        alone=alone,
    )


@cache
def column_of(
    envelope: str | None,
    copy: str | None,
    answered: tuple[Verdict, str | None, Status | None],
    outcome: Outcome | None,
    buried: bool,
) -> str:
    """Return the column of the books that the engine gives a delivery, or its copy with that envelope id."""
    verdict, of, was = answered
    answer = Answer(verdict, of=of, was=was)
    first = _task(envelope, buried)
    first.answer = answer
    if outcome is None or outcome in (Outcome.ECHO, Outcome.STALE):
        first.result = result_from(first, answer)
    else:
        first.result = result_as(first, first.reported_verdict or Verdict.FRESH, outcome, "")
    result = first.result if copy is None else as_twin(_task(copy or None, buried), first)
    return result.column if result is not None and result.acknowledged else ""


def _task(envelope: str | None, buried: bool) -> Task:
    conflict = Verdict.CONFLICT if buried else None
    return Task(ask=Ask(key=bytes(16), envelope=envelope), raw=b"", reported_verdict=conflict)


def is_idle(world: World) -> bool:
    """Tell whether no worker has a delivery in its hands."""
    return all(worker.phase is Phase.IDLE for worker in world.workers)
