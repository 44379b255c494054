"""Explores every way in which two workers can get into each other's way, on a real ledger with a simulated clock.

All orders of all steps are tried, with crashes, run-out leases, lost replies and failing handlers at each, up to a
number of faults; and each state once, where states that differ only in the size of tokens, times and nonces are
one. Every answer is given to an independent judge, and from every state the deliveries must be able to come to
their end without further faults. Batches, transactions, redrive and purge are not explored: those are for the
ledger contract.

    python -m oncebridge.testing.exploration          # what the tests explore
    python -m oncebridge.testing.exploration --long   # the same with one fault more: minutes
"""

from __future__ import annotations

import sys
from collections import deque
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from oncebridge.claim import Verdict
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.testing.judge import Broken, Violation
from oncebridge.testing.scenarios import SCENARIOS, Scenario
from oncebridge.testing.world import MakeLedger, Model, Phase, Worker, World


class Report(msgspec.Struct, frozen=True):
    """How much was explored."""

    scenario: str
    states: int
    transitions: int
    #: How many states everything was acknowledged in, and how often each verdict was given.
    ends: int
    verdicts: dict[Verdict, int]
    #: From every state everything can end within so many steps, once nothing goes wrong any more.
    drain_steps: int


_encode = msgspec.msgpack.encode


def likeness(world: World) -> bytes:
    """Return the same for states that behave alike.

    Tokens count by their order, since each new one is above all of its entity or fact; leases by what is left of
    them; nonces by whose they are. When something changed, and when to come again, no rule looks at.
    """
    book, shelf, now_us = world.book, world.shelf, world.now_us
    tokens = {0, *[record.token for record in shelf.records.values()]}
    tokens.update([entity.token for entity in shelf.entities.values()])
    tokens.update([one.token for ones in (world.workers, book.holds, book.lasts, book.shown) for one in ones])
    tokens.update([worker.lost.token for worker in world.workers if worker.lost])
    rank = {token: place for place, token in enumerate(sorted(tokens))}

    def left(until_us: int) -> int:
        return (until_us - now_us if until_us > now_us else -1) if until_us else 0

    def known(worker: Worker) -> tuple[bytes, int]:
        lost = worker.lost and (worker.lost.verdict, rank[worker.lost.token], worker.lost.attempt)
        claim = (worker.alone, worker.buried, rank[worker.token], worker.attempt, worker.since_us == now_us)
        plain = (worker.phase, worker.delivery, lost, claim, worker.outcome, worker.column)
        return _encode(plain), worker.nonce if worker.phase is Phase.TAKEN else 0

    workers = sorted(map(known, world.workers))
    owner = {nonce.to_bytes(8, "big"): place for place, (_, nonce) in enumerate(workers)}
    records = [
        (
            (at, record.status, rank[record.token], owner.get(record.nonce), left(record.lease_until_us)),
            (record.alone, record.attempts, record.content, record.envelope, record.letter),
        )
        for at, record in sorted(shelf.records.items())
    ]
    entities = [
        replace(entity, token=rank[entity.token], lease_until_us=left(entity.lease_until_us), changed_us=0)
        for entity in shelf.entities.values()
    ]
    judged = (
        [(rank[hold.token], left(hold.until_us), hold.open) for hold in book.holds],
        [(rank[last.token], last.alone, last.outcome) for last in book.lasts],
        [(rank[shown.token], shown.event) for shown in book.shown],
        (book.closed, book.effects, book.spent, book.counted),
    )
    there = (world.faults_left, world.hidden, world.gone, [plain for plain, _ in workers])
    return blake2b(_encode((there, records, entities, judged)), digest_size=16).digest()


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
    return Report(scenario.name, len(places), transitions, len(ends), dict(model.verdicts), drain_steps)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
