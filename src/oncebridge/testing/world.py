"""The small world that is explored: two workers, a transport that delivers at least once, and a real ledger.

A step is one call to ledger, sink or transport, so between any two of them the other worker may move, a worker
may crash, or the clock may pass the lease. Putting a delivery back is no step of its own: whatever could happen
before it could also happen after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import IntEnum, StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from oncebridge.claim import Answer, Ask, Claim, Entity, Letter, Outcome, Record, Settlement, Verdict
from oncebridge.engine.result import Result
from oncebridge.identity import NS_PER_MS, Moment
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.testing.clock import ManualClock
from oncebridge.testing.judge import ATTEMPTS_MAX, ECHO_WINDOW_MS, Asked, Book, Judge
from oncebridge.testing.scenarios import Delivery, Scenario

LEASE_US: Final = 1000
START_US: Final = 1  # tokens are at least the clock: this keeps them small enough to read
NAMES: Final = ("A", "B")
ENTITY: Final = b"entity"
LETTER: Final = Letter(raw=b"{}", reason="explored")

At = tuple[bytes, str]
MakeLedger = Callable[["DialClock"], MemoryLedger]


class Phase(IntEnum):
    """What a worker does next."""

    IDLE = 0  # take a delivery
    TAKEN = 1  # claim its event
    GRANTED = 2  # give it to the handler
    HANDLED = 3  # settle
    ENDED = 4  # acknowledge


class Act(StrEnum):
    """What can happen in one step; between any two of them anything else may."""

    TAKE = "takes"
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
    PAUSE = "everybody stands still, and the clock passes the lease"


NEXT_AT: Final = {
    Phase.TAKEN: Act.CLAIM,
    Phase.GRANTED: Act.HANDLE,
    Phase.HANDLED: Act.SETTLE,
    Phase.ENDED: Act.ACKNOWLEDGE,
}
FAULTS_AT: Final = {
    Phase.TAKEN: (Act.LOSE_CLAIM, Act.CRASH),
    Phase.GRANTED: (Act.FAIL, Act.FAIL_LATE, Act.STOP, Act.CRASH),
    Phase.HANDLED: (Act.LOSE_SETTLE, Act.CRASH),
    Phase.ENDED: (Act.CRASH,),
}


class Step(msgspec.Struct, frozen=True):
    """One act, by which worker, and on which delivery where one is taken."""

    act: Act
    worker: int = -1
    delivery: int = -1
    fault: bool = False


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows; a crash takes all of it."""

    phase: Phase = Phase.IDLE
    delivery: int = -1
    nonce: int = 0
    #: The answer whose reply was lost. Only the judge looks at it.
    lost: Answer | None = None
    alone: bool = False
    #: Whether the delivery is a conflict, on its way to the dead letters.
    buried: bool = False
    token: int = 0
    attempt: int = 0
    #: When it last knew its claim to run.
    since_us: int = 0
    outcome: Outcome | None = None
    column: str = ""


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
    workers: tuple[Worker, Worker]
    #: Deliveries that nobody can take because somebody has them, and those acknowledged, as bits.
    hidden: int
    gone: int
    book: Book
    faults_left: int
    nonces: int


class DialClock(ManualClock):
    """A clock that is set to the time of whichever state is looked at."""

    def set_to(self, now_us: int) -> None:
        """Turn it, back as well."""
        self._now_us = now_us


class Model:
    """The workers, the transport and the ledger of one scenario: which steps there are, and where they lead."""

    def __init__(self, scenario: Scenario, make_ledger: MakeLedger = MemoryLedger) -> None:
        """Take what is delivered, and the ledger to try."""
        self.scenario = scenario
        self.judge = Judge(scenario)
        #: The last step in words, and how often each verdict was given.
        self.said = ""
        self.verdicts: Counter[Verdict] = Counter()
        self._names = [
            f"{scenario.events[delivery.event].name} (delivery {at}, envelope {delivery.envelope})"
            for at, delivery in enumerate(scenario.deliveries, 1)
        ]
        self._clock = DialClock(START_US)
        self._ledger = make_ledger(self._clock)
        #: Where an event may be found: as a conflict, or under its own key.
        self._keys = [
            [ask_for(scenario, event, None, buried=buried).key for buried in (True, False)]
            for event in range(len(scenario.events))
        ]

    def start(self) -> World:
        """Return the state before anything has happened."""
        return World(
            now_us=START_US,
            shelf=Shelf({}, {}, {}, {}),
            workers=(Worker(), Worker()),
            hidden=0,
            gone=0,
            book=self.judge.blank(),
            faults_left=self.scenario.faults,
            nonces=0,
        )

    # --- which steps there are -----------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        """Yield everything that may happen next."""
        one, other = world.workers
        for number, worker in enumerate((one,) if one == other else (one, other)):
            if worker.phase is Phase.IDLE:
                yield from self._takes(world, number)
                continue
            yield Step(NEXT_AT[worker.phase], number)
            if worker.token and worker.since_us != world.now_us:
                yield Step(Act.EXTEND, number)
            if world.faults_left:
                yield from (Step(act, number, fault=True) for act in FAULTS_AT[worker.phase])
        if is_idle(world):
            yield Step(Act.WAIT)
        elif world.faults_left:
            yield Step(Act.PAUSE, fault=True)

    def _takes(self, world: World, number: int) -> Iterator[Step]:
        alike = set()
        for at, delivery in enumerate(self.scenario.deliveries):
            if not (world.hidden | world.gone) >> at & 1 and delivery not in alike:
                alike.add(delivery)
                yield Step(Act.TAKE, number, at)

    # --- where they lead -----------------------------------------------------------------------------

    def after(self, world: World, step: Step) -> World:
        """Return the state after a step. Raises `Violation` where the judge objects."""
        if step.fault:
            world = replace(world, faults_left=world.faults_left - 1)
        if step.act in (Act.WAIT, Act.PAUSE):
            self.said = step.act.value  # whatever is in somebody's hands for so long comes again
            return replace(world, now_us=world.now_us + LEASE_US, hidden=0)
        worker = world.workers[step.worker]
        at = worker.delivery if step.delivery < 0 else step.delivery
        delivery = self.scenario.deliveries[at]
        self.said = f"{NAMES[step.worker]} {step.act} {self._names[at]}"
        match step.act:
            case Act.TAKE:
                taken = Worker(delivery=at, alone=self.scenario.alone)
                after = _with_call(replace(world, hidden=world.hidden | 1 << at), step.worker, taken)
            case Act.CLAIM | Act.LOSE_CLAIM:
                after = self._claim(world, step, worker, delivery)
            case Act.EXTEND:
                after = self._extend(world, step, worker, delivery)
            case Act.SETTLE | Act.LOSE_SETTLE:
                after = self._settle(world, step, worker, delivery)
            case Act.ACKNOWLEDGE:
                book = self.judge.acknowledged(world.book, delivery.event, worker.column)
                after = _put_back(replace(world, book=book, gone=world.gone | 1 << at), step.worker)
            case Act.CRASH:
                after = _put_back(world, step.worker)
            case _:
                after = self._handle(world, step, worker, delivery)
        return after

    def _claim(self, world: World, step: Step, worker: Worker, delivery: Delivery) -> World:
        ask = ask_for(self.scenario, delivery.event, delivery.envelope, buried=worker.buried, alone=worker.alone)
        self._load(world)
        (answer,) = self._ledger.claim([ask], nonce=worker.nonce.to_bytes(8, "big"), lease_us=LEASE_US)
        self.said += f": {answer.verdict}" + (f", token {answer.token}" if answer.token else "")
        self.verdicts[answer.verdict] += 1
        book = self.judge.claimed(
            world.book, delivery, answer, asked=_asked(world, worker), lost=worker.lost, now_us=world.now_us
        )
        world = replace(world, shelf=self._unload(), book=book)
        if step.act is Act.LOSE_CLAIM:
            return _with(world, step.worker, replace(worker, lost=answer))
        if answer.verdict is Verdict.BUSY:
            return _put_back(world, step.worker)
        if answer.wants_alone or answer.verdict is Verdict.CONFLICT:
            buried = worker.buried or answer.verdict is Verdict.CONFLICT
            return _with_call(world, step.worker, Worker(delivery=worker.delivery, alone=True, buried=buried))
        claimed = replace(worker, token=answer.token, attempt=answer.attempt, lost=None, since_us=world.now_us)
        if answer.verdict is not Verdict.FRESH:
            return _with(world, step.worker, _ended(claimed, answer.verdict, None))
        if worker.buried or answer.attempt > ATTEMPTS_MAX:
            return _with(world, step.worker, replace(claimed, phase=Phase.HANDLED, outcome=Outcome.DEAD))
        return _with(world, step.worker, replace(claimed, phase=Phase.GRANTED))

    def _handle(self, world: World, step: Step, worker: Worker, delivery: Delivery) -> World:
        if step.act in (Act.HANDLE, Act.FAIL_LATE):
            world = replace(world, book=self.judge.effect(world.book, delivery.event, worker.token))
        failed = Outcome.DEAD if worker.attempt >= ATTEMPTS_MAX else Outcome.RETRY
        outcome = {Act.HANDLE: Outcome.DONE, Act.STOP: Outcome.RELEASE}.get(step.act, failed)
        return _with(world, step.worker, replace(worker, phase=Phase.HANDLED, outcome=outcome))

    def _extend(self, world: World, step: Step, worker: Worker, delivery: Delivery) -> World:
        self._load(world)
        (kept,) = self._ledger.extend([self._claim_of(worker, delivery)], lease_us=LEASE_US)
        self.said += f": {'kept' if kept else 'lost'}, token {worker.token}"
        shelf = self._unload()
        changed, asked = shelf != world.shelf, _asked(world, worker)
        book = self.judge.extended(world.book, delivery, worker.token, asked=asked, kept=kept, changed=changed)
        extended = replace(worker, since_us=world.now_us)
        return _with(replace(world, shelf=shelf, book=book), step.worker, extended)

    def _settle(self, world: World, step: Step, worker: Worker, delivery: Delivery) -> World:
        outcome = worker.outcome
        assert outcome is not None
        letter = LETTER if outcome is Outcome.DEAD else None
        self._load(world)
        (kept,) = self._ledger.settle([Settlement(self._claim_of(worker, delivery), outcome, letter=letter)])
        self.said += f": {outcome} {'accepted' if kept else 'refused'}, token {worker.token}"
        shelf = self._unload()
        changed, token = shelf != world.shelf, worker.token
        book = self.judge.settled(
            world.book, delivery, token, outcome, kept=kept, changed=changed, buried=worker.buried
        )
        world = replace(world, shelf=shelf, book=book)
        if step.act is Act.LOSE_SETTLE:
            return world
        verdict = Verdict.CONFLICT if worker.buried else Verdict.FRESH
        ended = _ended(worker, verdict, outcome if kept else Outcome.RETRY)
        return _with(world, step.worker, ended) if ended.column else _put_back(world, step.worker)

    def _claim_of(self, worker: Worker, delivery: Delivery) -> Claim:
        ask = ask_for(self.scenario, delivery.event, delivery.envelope, buried=worker.buried, alone=worker.alone)
        return Claim(ask, worker.token, worker.attempt)

    # --- the ledger and the end ----------------------------------------------------------------------

    def _load(self, world: World) -> None:
        """Put the ledger into the state of this world."""
        ledger, shelf = self._ledger, world.shelf
        self._clock.set_to(world.now_us)
        ledger.records, ledger.entities = dict(shelf.records), dict(shelf.entities)
        ledger.letters, ledger._asks = dict(shelf.letters), dict(shelf.asks)  # noqa: SLF001 - all of it is needed

    def _unload(self) -> Shelf:
        ledger = self._ledger
        return Shelf(ledger.records, ledger.entities, ledger.letters, ledger._asks)  # noqa: SLF001 - as above

    def judge_end(self, world: World) -> bool:
        """Where every delivery is acknowledged and nobody works, judge what has become of it all."""
        if not is_idle(world) or world.gone != (1 << len(self.scenario.deliveries)) - 1:
            return False
        self.said = "everything is acknowledged"
        self._load(world)
        found = [[entry.status for key in keys for entry in self._ledger.get(key)] for keys in self._keys]
        statuses = [next(iter(those), None) for those in found]
        self.judge.ended(world.book, statuses, self._ledger.counts(), world.now_us)
        return True


def ask_for(scenario: Scenario, event: int, envelope: str | None, *, buried: bool, alone: bool = False) -> Ask:
    """Return what a worker asks the ledger for this event; a conflict it asks for under another key."""
    told = scenario.events[event]
    key = told.id or f"{event} {told.name}"
    state = scenario.state and not buried
    return Ask(
        key=f"conflict {key} {told.name}".encode() if buried else key.encode(),
        envelope=envelope,
        content=told.name.encode() if told.id is not None else None,
        entity=ENTITY if state else None,
        state=told.state.encode() if state else None,
        moment=Moment(tuple(time * NS_PER_MS for time in told.times_ms), told.version),
        echo_window_ns=ECHO_WINDOW_MS * NS_PER_MS,
        alone=alone,
    )


def is_idle(world: World) -> bool:
    """Tell whether no worker has a delivery in its hands."""
    return all(worker.phase is Phase.IDLE for worker in world.workers)


def _with(world: World, number: int, worker: Worker) -> World:
    one, other = world.workers
    return replace(world, workers=(worker, other) if number == 0 else (one, worker))


def _asked(world: World, worker: Worker) -> Asked:
    return Asked(world.now_us + LEASE_US, worker.alone, worker.buried)


def _with_call(world: World, number: int, worker: Worker) -> World:
    """Let a worker make a claim call, under a nonce of its own."""
    nonce = world.nonces + 1
    return _with(replace(world, nonces=nonce), number, replace(worker, phase=Phase.TAKEN, nonce=nonce))


def _put_back(world: World, number: int) -> World:
    """Let a worker's delivery come again, unless it is acknowledged."""
    hidden = world.hidden & ~(1 << world.workers[number].delivery)
    return _with(replace(world, hidden=hidden), number, Worker())


def _ended(worker: Worker, verdict: Verdict, outcome: Outcome | None) -> Worker:
    """Let the bridge's own result say in which column a delivery counts; none while it has to come again."""
    result = Result(verdict=verdict, outcome=outcome, reason="")
    return replace(worker, phase=Phase.ENDED, column=result.column if result.acknowledged else "")
