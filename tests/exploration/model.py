"""The steps of the small world: which there are in a state, and where they lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from msgspec.structs import replace

from exploration.judge import ATTEMPTS_MAX, Asked, Judge
from exploration.scenarios import Scenario
from exploration.world import (
    LEASE_US,
    LETTER,
    NAMES,
    START_US,
    TAKEN_MAX,
    Act,
    Call,
    DialClock,
    MakeLedger,
    Member,
    Phase,
    Shelf,
    Step,
    Worker,
    World,
    ask_for,
    column_of,
    is_idle,
)
from oncebridge import claim as rules
from oncebridge.claim import Answer, Ask, Claim, Newest, Outcome, Settlement, Verdict
from oncebridge.ledgers.memory import MemoryLedger


class Model:
    """The workers, the transport and the ledger of one scenario: which steps there are, and where they lead."""

    def __init__(self, scenario: Scenario, make_ledger: MakeLedger = MemoryLedger, *, workers: int = 2) -> None:
        """Take the scenario, the ledger to try, and how many workers there are."""
        self._workers = workers
        self.scenario = scenario
        self.judge = Judge(scenario)
        #: The last step in words, and how often each verdict was given.
        self.said = ""
        self.verdicts: Counter[Verdict] = Counter()
        self.longest_chain = 0
        self._clock = DialClock(START_US)
        self._ledger = make_ledger(self._clock)
        self._asks: dict[tuple[int, bool, bool], Ask] = {}
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
            workers=(Worker(),) * self._workers,
            hidden=0,
            gone=0,
            book=self.judge.blank(),
            faults_left=self.scenario.faults,
            nonces=0,
        )

    # --- which steps there are -----------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        """Yield everything that may happen next."""
        for number, worker in enumerate(world.workers):
            if worker in world.workers[:number]:
                continue  # whatever it does, the other may do
            for act in self._acts(world, worker):
                yield Step(act, number)
            if worker.phase is Phase.IDLE:
                yield from self._takes(world, number)
            elif world.faults_left:
                yield from (Step(act, number, fault=True) for act in self._faults(worker))
        if is_idle(world):
            yield Step(Act.WAIT)
        elif world.faults_left:
            yield Step(Act.PAUSE, fault=True)

    def _takes(self, world: World, number: int) -> Iterator[Step]:
        deliveries = self.scenario.deliveries
        waiting = [at for at in range(len(deliveries)) if not (world.hidden | world.gone) >> at & 1]
        alike = set()
        for size in range(1, min(len(waiting), TAKEN_MAX) + 1):
            for taken in combinations(waiting, size):
                what = tuple(deliveries[at] for at in taken)
                if what not in alike:
                    alike.add(what)
                    yield Step(Act.CLAIM, number, taken)
                    if world.faults_left:
                        yield Step(Act.LOSE_CLAIM, number, taken, fault=True)

    def _acts(self, world: World, worker: Worker) -> Iterator[Act]:
        match worker.phase:
            case Phase.ASKS:
                yield Act.CLAIM
            case Phase.ENDED:
                yield Act.ACKNOWLEDGE
            case Phase.WORKS:
                if worker.turn < len(worker.members):
                    yield Act.HANDLE
                if worker.settled < worker.turn:
                    yield Act.SETTLE
                if worker.since_us != world.now_us:
                    yield Act.EXTEND

    def _faults(self, worker: Worker) -> Iterator[Act]:
        yield Act.CRASH
        if worker.phase is Phase.ASKS:
            yield Act.LOSE_CLAIM
        if worker.settled < worker.turn:
            yield Act.LOSE_SETTLE
        if worker.turn < len(worker.members):
            yield Act.STOP
            if self._end_of_untried(worker) is None:
                yield Act.FAIL
                yield Act.FAIL_LATE

    # --- where they lead -----------------------------------------------------------------------------

    def after(self, world: World, step: Step) -> World:
        """Return the state after a step. Raises `Violation` where the judge objects."""
        if step.fault:
            world = replace(world, faults_left=world.faults_left - 1)
        if step.act in (Act.WAIT, Act.PAUSE):
            self.said = step.act.value  # the transport delivers again what a worker keeps for so long
            return replace(world, now_us=world.now_us + LEASE_US, hidden=0)
        worker = world.workers[step.worker]
        self.said = f"{NAMES[step.worker]} {step.act} "
        match step.act:
            case Act.CLAIM | Act.LOSE_CLAIM:
                if step.taken:
                    world, worker = self._taken(world, step.taken)
                after = self._claim(world, step, worker)
            case Act.EXTEND:
                after = self._extend(world, step, worker)
            case Act.SETTLE | Act.LOSE_SETTLE:
                after = self._settle(world, step, worker)
            case Act.ACKNOWLEDGE:
                after = self._acknowledge(world, step, worker)
            case Act.CRASH:
                self._say(worker.taken)
                after = _put_back(world, step.worker, worker.taken)
            case Act.STOP:
                after = self._stop(world, step, worker)
            case _:
                after = self._handle(world, step, worker)
        return after

    def _taken(self, world: World, taken: tuple[int, ...]) -> tuple[World, Worker]:
        """Take deliveries: the first of each event is asked for, and each key once in a call."""
        firsts: dict[bytes, int] = {}
        rivals: dict[int, int] = {}
        for at in taken:
            event = self.scenario.deliveries[at].event
            first = firsts.setdefault(self._keys[event][1], at)
            if self.scenario.deliveries[first].event != event:
                rivals.setdefault(event, at)
        calls = (
            Call(tuple(firsts.values()), alone=len(firsts) == 1 and not rivals),
            *(Call((at,), alone=True) for at in rivals.values()),
        )
        nonce = world.nonces + 1
        hidden = world.hidden | sum(1 << at for at in taken)
        worker = Worker(taken=taken, columns=("",) * len(taken), calls=calls, nonce=nonce)
        return replace(world, hidden=hidden, nonces=nonce), worker

    def _claim(self, world: World, step: Step, worker: Worker) -> World:
        call, deliveries = worker.calls[0], self.scenario.deliveries
        asks = [self._ask(first, call) for first in call.firsts]
        self._load(world)
        answers = self._ledger.claim(asks, nonce=worker.nonce.to_bytes(8, "big"), lease_us=LEASE_US)
        self._say(call.firsts, [_said(answer) for answer in answers])
        asked = Asked(
            tuple(deliveries[first] for first in call.firsts), world.now_us + LEASE_US, call.alone, call.buried
        )
        book = self.judge.claimed(world.book, asked, answers, lost=worker.lost, now_us=world.now_us)
        world = replace(world, shelf=self._unload(), book=book)
        if step.act is Act.LOSE_CLAIM:
            return _with(world, step.worker, replace(worker, lost=tuple(answers)))
        worker = replace(worker, lost=(), since_us=world.now_us, calls=worker.calls[1:], turn=0, settled=0, chain=None)
        members: list[Member] = []
        for first, answer in zip(call.firsts, answers, strict=True):
            self.verdicts[answer.verdict] += 1
            if answer.token:
                members.append(Member(first, answer.token, answer.attempt))
                if answer.chain is not None:
                    worker = replace(worker, chain=answer.chain, newest=rules.newest_of(answer.chain))
            elif answer.wants_alone:
                worker = replace(worker, calls=(Call((first,), alone=True, buried=call.buried), *worker.calls))
            elif answer.verdict is Verdict.CONFLICT:
                worker = replace(worker, calls=(*worker.calls, Call((first,), alone=True, buried=True)))
            elif answer.verdict is not Verdict.BUSY:
                worker = self._with_result(worker, call, first, answer, None)
        self.longest_chain = max(self.longest_chain, len(members) if worker.chain else 0)
        if members:
            return _with(world, step.worker, replace(worker, members=tuple(members), calls=(call, *worker.calls)))
        return _next_call(world, step.worker, worker)

    # --- members ------------------------------------------------------------------------------------

    def _end_of_untried(self, worker: Worker) -> Member | None:
        """Return how the member whose turn has come ends without its handler; None if that is called."""
        call, member = worker.calls[0], worker.members[worker.turn]
        if call.buried:
            return replace(member, outcome=Outcome.DEAD)
        if worker.newest is not None and worker.chain is not None:
            verdict = rules.judge(self._ask(member.first, call), worker.newest)
            if verdict is not Verdict.FRESH:
                return replace(member, outcome=Outcome(verdict.value), verdict=verdict)
        return replace(member, outcome=Outcome.DEAD) if member.attempt > ATTEMPTS_MAX else None

    def _handle(self, world: World, step: Step, worker: Worker) -> World:
        member = worker.members[worker.turn]
        event = self.scenario.deliveries[member.first].event
        ended, book = self._end_of_untried(worker), world.book
        if ended is None:
            if step.act is not Act.FAIL:
                book = self.judge.effect(book, event, member.token)
            failed = Outcome.DEAD if member.attempt >= ATTEMPTS_MAX else Outcome.RETRY
            ended = replace(member, outcome=Outcome.DONE if step.act is Act.HANDLE else failed)
        self._say((member.first,), [f"{ended.outcome}, token {member.token}"])
        if ended.verdict is Verdict.ECHO:
            self.judge.called_echo(book, event, member.token)
        if ended.verdict is not Verdict.FRESH:
            self.verdicts[ended.verdict] += 1
        return _with(replace(world, book=book), step.worker, self._ended(worker, ended))

    def _ended(self, worker: Worker, ended: Member) -> Worker:
        """Note a member's end: the next one of its chain is judged on that."""
        members = (*worker.members[: worker.turn], ended, *worker.members[worker.turn + 1 :])
        return replace(worker, members=members, newest=self._newest_after(worker, ended), turn=worker.turn + 1)

    def _newest_after(self, worker: Worker, ended: Member) -> Newest | None:
        if worker.newest is None or worker.chain is None:
            return None
        assert ended.outcome is not None
        ask = self._ask(ended.first, worker.calls[0])
        return rules.newest_after(worker.newest, ask, ended.outcome, worker.chain.now_us)

    def _stop(self, world: World, step: Step, worker: Worker) -> World:
        """Give back the members that are left, untried."""
        self._say(tuple(member.first for member in worker.members[worker.turn :]))
        while worker.turn < len(worker.members):
            worker = self._ended(worker, replace(worker.members[worker.turn], outcome=Outcome.RELEASE))
        return _with(world, step.worker, worker)

    def _extend(self, world: World, step: Step, worker: Worker) -> World:
        """Extend the leases of members that are not settled: a chain has one, and any of its claims extends it."""
        left = worker.members[worker.settled :]
        if worker.chain is not None:
            left = left[:1]
        shelf, book, kept = world.shelf, world.book, []
        for member in left:
            self._load(replace(world, shelf=shelf))
            (ok,) = self._ledger.extend([self._claim_of(worker, member)], lease_us=LEASE_US)
            kept.append(ok)
            before, shelf = shelf, self._unload()
            self._say((member.first,), ["kept" if ok else "lost"])
            fence = self._fence(worker, member)
            top = member.token if worker.chain is None else worker.chain.top
            book = self.judge.extended(
                book, fence, top, until_us=world.now_us + LEASE_US, kept=ok, changed=shelf != before
            )
        worker = replace(worker, since_us=world.now_us)
        if not all(kept):
            worker = self._without(worker, [member for member, ok in zip(left, kept, strict=True) if not ok])
        return _settled_up(replace(world, shelf=shelf, book=book), step.worker, worker)

    def _settle(self, world: World, step: Step, worker: Worker) -> World:
        """Settle the members that have ended, in one call; where one is refused, the rest of its chain goes back."""
        call, ends = worker.calls[0], worker.members[worker.settled : worker.turn]
        shelf, book, answers = world.shelf, world.book, []
        for place, settlement in enumerate(self._settlements(worker), worker.settled):
            member = worker.members[place]
            assert member.outcome is not None
            self._load(replace(world, shelf=shelf))
            (ok,) = self._ledger.settle([settlement])
            answers.append(ok)
            before, shelf = shelf, self._unload()
            self._say((member.first,), [f"{member.outcome} {'accepted' if ok else 'refused'}, token {member.token}"])
            by, fence = self.scenario.deliveries[member.first], self._fence(worker, member)
            book = self.judge.settled(
                book, by, fence, member.token, member.outcome, kept=ok, changed=shelf != before, buried=call.buried,
                now_us=world.now_us,
            )  # fmt: skip
        world = replace(world, shelf=shelf, book=book)
        if step.act is Act.LOSE_SETTLE:
            return _with(world, step.worker, worker)
        for member, ok in zip(ends, answers, strict=True):
            if ok:
                answer = Answer(member.verdict, member.token, member.attempt)
                worker = self._with_result(worker, call, member.first, answer, member.outcome)
        worker = replace(worker, settled=worker.turn)
        if not all(answers):
            worker = self._without(worker, worker.members[worker.turn :] if worker.chain is not None else ())
        return _settled_up(world, step.worker, worker)

    def _settlements(self, worker: Worker) -> Iterator[Settlement]:
        """Make the ends that wait, each with the data that it leaves: computed again from the claim's own data."""
        last = len(worker.members) - 1
        again = replace(worker, newest=None if worker.chain is None else rules.newest_of(worker.chain))
        for place, member in enumerate(worker.members[: worker.turn]):
            assert member.outcome is not None
            again = replace(again, newest=self._newest_after(again, member))
            if place >= worker.settled:
                letter = LETTER if member.outcome is Outcome.DEAD else None
                data = b"" if again.newest is None else rules.write_newest(again.newest)
                claim = self._claim_of(worker, member)
                yield Settlement(claim, member.outcome, 0, letter, data, frees=place == last)

    def _without(self, worker: Worker, members: tuple[Member, ...] | list[Member]) -> Worker:
        """Leave members that are lost; those of a chain that have not ended are all lost with one."""
        if worker.chain is not None:
            return replace(worker, members=worker.members[: worker.turn])
        left = tuple(one for place, one in enumerate(worker.members) if place < worker.turn or one not in members)
        return replace(worker, members=left)

    # --- ends ---------------------------------------------------------------------------------------

    def _with_result(self, worker: Worker, call: Call, first: int, answer: Answer, outcome: Outcome | None) -> Worker:
        """Give the engine's own column to a delivery, and to its copies in hand; empty if that is `retrying`."""
        deliveries = self.scenario.deliveries
        event = deliveries[first].event
        columns = list(worker.columns)
        for place, at in enumerate(worker.taken):
            if deliveries[at].event == event:
                copy = None if at == first else deliveries[at].envelope or ""
                columns[place] = column_of(
                    deliveries[first].envelope, copy, (answer.verdict, answer.of, answer.was), outcome, call.buried
                )
        return replace(worker, columns=tuple(columns))

    def _acknowledge(self, world: World, step: Step, worker: Worker) -> World:
        self._say(worker.taken, [column or "none" for column in worker.columns])
        book, gone = world.book, world.gone
        for at, column in zip(worker.taken, worker.columns, strict=True):
            if column:
                book = self.judge.acknowledged(book, self.scenario.deliveries[at], column)
                gone |= 1 << at
        return _put_back(replace(world, book=book, gone=gone), step.worker, worker.taken)

    def _fence(self, worker: Worker, member: Member) -> int:
        return self.scenario.fence(self.scenario.deliveries[member.first].event, buried=worker.calls[0].buried)

    def _claim_of(self, worker: Worker, member: Member) -> Claim:
        return Claim(self._ask(member.first, worker.calls[0]), member.token, member.attempt, worker.chain)

    def _ask(self, first: int, call: Call) -> Ask:
        at = (first, call.buried, call.alone)
        if at not in self._asks:
            by = self.scenario.deliveries[first]
            self._asks[at] = ask_for(self.scenario, by.event, by.envelope, buried=call.buried, alone=call.alone)
        return self._asks[at]

    def _say(self, deliveries: tuple[int, ...], words: list[str] | None = None) -> None:
        """Add deliveries to the sentence for this step, before the judge may object to it."""
        for place, at in enumerate(deliveries):
            by = self.scenario.deliveries[at]
            name = f"{self.scenario.events[by.event].name} (delivery {at + 1}, envelope {by.envelope})"
            between = "" if self.said.endswith(" ") else "; "
            self.said += f"{between}{name}: {words[place]}" if words else f"{between}{name}"

    # --- the ledger and the end ----------------------------------------------------------------------

    def _load(self, world: World) -> None:
        """Put the ledger into the state of this world."""
        ledger, shelf = self._ledger, world.shelf
        self._clock.set_to(world.now_us)
        ledger.records, ledger.entities = dict(shelf.records), dict(shelf.entities)
        ledger.letters, ledger._asks = dict(shelf.letters), dict(shelf.asks)

    def _unload(self) -> Shelf:
        ledger = self._ledger
        return Shelf(ledger.records, ledger.entities, ledger.letters, ledger._asks)

    def judge_end(self, world: World) -> bool:
        """Where every delivery is acknowledged and nobody works, judge the outcome."""
        if not is_idle(world) or world.gone != (1 << len(self.scenario.deliveries)) - 1:
            return False
        self.said = "everything is acknowledged"
        self._load(world)
        found = [[entry.status for key in keys for entry in self._ledger.get(key)] for keys in self._keys]
        statuses = [next(iter(those), None) for those in found]
        self.judge.ended(world.book, statuses, self._ledger.counts(), world.now_us)
        return True


def _with(world: World, number: int, worker: Worker) -> World:
    return replace(world, workers=(*world.workers[:number], worker, *world.workers[number + 1 :]))


def _settled_up(world: World, number: int, worker: Worker) -> World:
    """Go on with the next call once no member is left to settle."""
    if worker.settled < len(worker.members):
        return _with(world, number, worker)
    return _next_call(world, number, replace(worker, members=(), calls=worker.calls[1:]))


def _next_call(world: World, number: int, worker: Worker) -> World:
    """Make the next call under a nonce of its own; after the last one, acknowledge if there is anything to."""
    worker = replace(worker, turn=0, settled=0, chain=None, newest=None)
    if worker.calls:
        nonce = world.nonces + 1
        return _with(replace(world, nonces=nonce), number, replace(worker, nonce=nonce))
    if any(worker.columns):
        return _with(world, number, worker)
    return _put_back(world, number, worker.taken)


def _put_back(world: World, number: int, taken: tuple[int, ...]) -> World:
    """Leave deliveries to the transport: those that are not acknowledged are delivered again."""
    hidden = world.hidden & ~sum(1 << at for at in taken)
    return _with(replace(world, hidden=hidden), number, Worker())


def _said(answer: Answer) -> str:
    return f"{answer.verdict}, token {answer.token}" if answer.token else answer.verdict.value
