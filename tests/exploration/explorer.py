"""Explores every way in which two workers can get into each other's way, on a real ledger with a simulated clock.

All orders of all steps are tried, with crashes, run-out leases, lost replies and failing handlers at each, up to a
number of faults; and each state once, where states that differ only in the size of tokens, times and nonces are
one. An independent judge sees every answer, and from every state the deliveries must be able to reach their end
without further faults. Transactions, redrive and purge are not explored: those are for the ledger contract.

    PYTHONPATH=tests python -m exploration          # the states that the tests explore
    PYTHONPATH=tests python -m exploration --long   # the same with one fault more: minutes
"""

from __future__ import annotations

import sys
from collections import deque
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from exploration.judge import Broken, Violation
from exploration.model import Model
from exploration.scenarios import SCENARIOS, Scenario
from exploration.world import MakeLedger, Phase, Worker, World
from oncebridge.claim import SETTLED, Verdict
from oncebridge.ledgers.memory import MemoryLedger


class Report(msgspec.Struct, frozen=True):
    """How much was explored."""

    scenario: str
    states: int
    transitions: int
    #: How many states everything was acknowledged in, how often each verdict was given, and the longest chain.
    ends: int
    verdicts: dict[Verdict, int]
    longest_chain: int
    #: From every state everything can end within so many steps, once nothing goes wrong any more.
    drain_steps: int


_encode = msgspec.msgpack.encode


def likeness(world: World) -> bytes:
    """Return the same for states that behave alike.

    Tokens count by their order, since each new one is above all of its entity or fact, and only while a worker may send
    them; leases by the time that is left; nonces by the worker that may repeat them. Of a settled event only its end
    counts. No rule looks at when something changed, or at when to try again.
    """
    book, shelf, now_us = world.book, world.shelf, world.now_us
    known = {0}  # to a worker, which may still send them
    for worker in world.workers:
        known.update([one.token for ones in (worker.members, worker.lost) for one in ones])
    tokens = {*known, *[entity.token for entity in shelf.entities.values()], *[shown.token for shown in book.shown]}
    for hold in book.holds:
        tokens.update((hold.top, *hold.open))
    tokens.update([worker.chain.top for worker in world.workers if worker.chain is not None])
    rank = {token: place for place, token in enumerate(sorted(tokens))}

    def sent(token: int) -> int:
        return rank[token] if token in known else -1

    def left(until_us: int) -> int:
        return (until_us - now_us if until_us > now_us else -1) if until_us else 0

    workers = sorted(_known(worker, rank, now_us) for worker in world.workers)
    owner = {nonce.to_bytes(8, "big"): place for place, (_, nonce) in enumerate(workers)}
    records = [
        (at, record.status, sent(record.token), record.content, record.envelope)
        + ((owner.get(record.nonce), left(record.lease_until_us), record.alone) if record.status == "claimed" else ())
        + (() if record.status in SETTLED else (record.attempts,))
        for at, record in sorted(shelf.records.items())
    ]
    entities = [
        (rank[entity.token], owner.get(entity.nonce), left(entity.lease_until_us), entity.ran_out, entity.data)
        for entity in shelf.entities.values()
    ]
    judged = (
        [(rank[hold.top], left(hold.until_us), [rank[token] for token in hold.open]) for hold in book.holds],
        [(sent(last.token), last.alone and last.outcome is None, last.outcome) for last in book.lasts],
        [(rank[shown.token], shown.event) for shown in book.shown],
        [
            closed or (effect, spent)
            for closed, effect, spent in zip(book.closed, book.effects, book.spent, strict=True)
        ],
        book.counted,
    )
    there = (world.faults_left, world.hidden, world.gone, [plain for plain, _ in workers])
    return blake2b(_encode((there, records, entities, judged)), digest_size=16).digest()


def _known(worker: Worker, rank: dict[int, int], now_us: int) -> tuple[bytes, int]:
    """Return what a worker knows, and the nonce that it may send again."""
    if worker.phase is Phase.IDLE:
        return b"", 0
    lost = [(answer.verdict, rank[answer.token], answer.attempt) for answer in worker.lost]
    members = [(one.first, rank[one.token], one.attempt, one.outcome, one.verdict) for one in worker.members]
    chain = worker.chain and (rank[worker.chain.top], worker.chain.data, worker.chain.ran_out)
    plain = (
        (worker.taken, worker.columns, worker.calls, lost, members, worker.turn, worker.settled),
        (chain, worker.newest, worker.phase is Phase.WORKS and worker.since_us == now_us),
    )
    return _encode(plain), worker.nonce if worker.phase is Phase.ASKS else 0


def explore(scenario: Scenario, make_ledger: MakeLedger = MemoryLedger) -> Report:
    """Visit every state, nearest first, so that a violation comes with the shortest way to it."""
    model = Model(scenario, make_ledger)
    start = model.start()
    places = {likeness(start): 0}
    came: list[tuple[int, str]] = [(-1, "")]  # from which state, by which step
    leads_here: list[list[int]] = [[]]  # the states from which one step without a fault comes here
    ends: list[int] = []
    transitions, place = 0, 0
    ahead = deque([start])
    try:
        while ahead:
            world = ahead.popleft()
            if model.judge_end(world):
                ends.append(place)
            for step in model.steps(world):
                transitions += 1
                after = model.after(world, step)
                there = places.setdefault(likeness(after), len(places))
                if there == len(came):
                    came.append((place, model.said))
                    leads_here.append([])
                    ahead.append(after)
                if not step.fault:
                    leads_here[there].append(place)
            place += 1
    except Violation as violation:
        violation.trace = (*_way(came, place), model.said)
        raise
    steps = steps_to_end(leads_here, ends)
    if None in steps:
        blocked = Violation(Broken.BLOCKED, "from here nothing leads to the end")
        blocked.trace = tuple(_way(came, steps.index(None)))
        raise blocked
    drain_steps = max(step or 0 for step in steps)
    return Report(
        scenario.name, len(places), transitions, len(ends), dict(model.verdicts), model.longest_chain, drain_steps
    )


def steps_to_end(leads_here: list[list[int]], ends: list[int]) -> list[int | None]:
    """Return for each state how many steps are left to the nearest end; None where no step leads there."""
    steps: list[int | None] = [None] * len(leads_here)
    ahead = deque((end, 0) for end in ends)
    while ahead:
        place, count = ahead.popleft()
        if steps[place] is None:
            steps[place] = count
            ahead.extend((before, count + 1) for before in leads_here[place])
    return steps


def _way(came: list[tuple[int, str]], place: int) -> list[str]:
    """Return the steps from the start to a state."""
    way = []
    while place:
        place, said = came[place]
        way.append(said)
    return way[::-1]


def main(words: list[str]) -> int:
    """Explore every scenario and say how much that was."""
    more = 1 if "--long" in words else 0
    states = 0
    for scenario in SCENARIOS:
        faults = scenario.faults + more
        sys.stdout.write(f"{scenario.name}, {len(scenario.deliveries)} deliveries, {faults} faults: ")
        sys.stdout.flush()
        try:
            report = explore(replace(scenario, faults=faults))
        except Violation as violation:
            sys.stdout.write(f"{violation}\n")
            return 1
        states += report.states
        sys.stdout.write(
            f"{report.states:,} states, {report.transitions:,} transitions, {report.ends:,} ends, "
            f"drained within {report.drain_steps} steps\n"
        )
    sys.stdout.write(f"{states:,} states, and every promise kept in each\n")
    return 0
