"""Exceptions that strike in the middle of a batch: at every place where a signal can, at any time, and in threads."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final

from prove.attack import Attack, Failure, Tally, add_round, run_round
from prove.faults import Fault
from prove.interrupted import CALM, WAYS, Draw, live
from prove.outcome import Options, Outcome
from prove.parts.workers import outcome_of
from prove.places import kind_of, place_of, prepare
from prove.round import Child, Told, each_in_child, in_child
from prove.shrink import readable
from prove.stream import Stream, make_groups
from prove.worker import Conditions

#: Strikes of one round, each in a batch of its own.
STRIKES: Final = {"sqlite": 300, "redis": 300, "postgres": 300, "dynamodb": 40}
#: A batch is one worker's, and waits for its ledger.
ROUNDS_AT_ONCE: Final = 3
#: Whoever works on a round for so long hangs.
HANG_SECONDS: Final = 240.0


def interrupts(options: Options) -> Outcome:
    """Strike batches one by one at each place, by timers and in threads, in turn, until there were so many strikes."""
    tally, begun, asked = Tally(), time.monotonic(), 0
    ways = [Drive(way) for way in WAYS]
    by_place = ways[0]
    most = min(STRIKES[kind_of(options.ledger)], -(-options.amount // len(WAYS)))
    with place_of(options.ledger, options.folder) as url:
        in_child(lambda: prepare(url))
        plan = Attack((), options.ledger, url, options.folder, options.seed, make_stream=make_groups)

        def rounds() -> Iterator[Callable[[], dict[str, Any]]]:
            nonlocal asked
            for number in count():
                if asked >= options.amount or time.monotonic() - begun >= options.seconds or tally.failures:
                    return
                if by_place in ways and by_place.struck >= by_place.places > 0:
                    ways.remove(by_place)
                drive, strikes = ways[number % len(ways)], min(most, options.amount - asked)
                sizes = {"groups": CALM + 1 + strikes}
                yield partial(_round, replace(plan, sizes=sizes, drive=replace(drive)), f"{options.seed}-{number}")
                drive.struck += strikes
                asked += strikes

        for found in each_in_child(rounds(), ROUNDS_AT_ONCE):
            tally.add(found["tally"])
            by_place.places = by_place.places or found["places"]
            tally.seconds = time.monotonic() - begun
            if options.progress:
                options.progress(tally.faults)
    outcome = outcome_of(tally, options)
    struck = {"places of a batch": by_place.places, "of them struck": min(by_place.struck, by_place.places)}
    outcome.figures |= {**struck, **tally.strikes}
    if tally.failures:
        failure = tally.failures[0]
        head = f"seed {options.seed}, round {failure.name}: {failure.broken}"
        outcome.history = [head, *readable(failure.history)]
    return outcome


def _round(plan: Attack, name: str) -> dict[str, Any]:
    judgement, told, stream, history = run_round(plan, name, ())
    tally = Tally()
    add_round(tally, judgement, told, stream, history)
    if judgement.broken:
        tally.failures.append(Failure(name, judgement.broken, [], history))
    return {"tally": tally.told(), "places": getattr(plan.drive, "places", 0)}


@dataclass
class Drive:
    """Gives rounds to a worker that is struck in one way, each in a process of its own."""

    way: str
    #: How many strikes there were.
    struck: int = 0
    #: Where a batch can be struck, one by one.
    places: int = 0

    def __call__(self, conditions: Conditions, stream: Stream, _: Sequence[Fault], seed: int) -> Told:
        """Run a round; a worker that hangs or dies has left everything undone."""
        child = Child(
            lambda: live(conditions, stream, self.way, Draw(random.Random(f"{seed} {self.struck}"), self.struck))
        )
        if not select.select([child], [], [], HANG_SECONDS)[0]:
            os.kill(child.pid, signal.SIGABRT)  # faulthandler shows where
        try:
            answer = child.answer()
        except RuntimeError:
            return Told(stuck=[event.number for event in stream.events], failed=1)
        self.places = self.places or answer["places"]
        told = Told(lives=1, unbalanced=answer["unbalanced"], stuck=answer["stuck"])
        told.columns.update(answer["columns"])
        told.troubles.update(answer["troubles"])
        return told
