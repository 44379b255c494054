"""Workers whose clocks are ten minutes apart, and step while they work; on SQLite the machine's, which all share."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn, Self

from prove import clocked, moved_clock
from prove.attack import Attack, Failure, Tally, add_round, run_round
from prove.faults import Fault, make_faults
from prove.grants import By, early_takeovers
from prove.outcome import Options, Outcome
from prove.parts.workers import outcome_of
from prove.places import kind_of, place_of, prepare
from prove.round import Round, Told, in_child
from prove.shrink import readable
from prove.stream import Stream
from prove.worker import Conditions

WORKERS: Final = 3
#: Clocks of their own, by which workers of a round go.
CLOCKS: Final = 7
FAULTS: Final = 3
#: How far a clock is off, at most, to either side: two are ten minutes apart.
OFF_SECONDS: Final = 300.0
#: A clock steps after so long, on average; the machine's less often, for with each step ahead leases are over.
STEP_SECONDS: Final = 0.03
MACHINE_STEP_SECONDS: Final = 0.7
LEASE_SECONDS: Final = 1.0
EARLY: Final = "granted while another's lease ran"


class Clocks(AbstractContextManager["Clocks"]):
    """The files that clocks go by, stepped in a thread."""

    def __init__(self, folder: Path, dice: random.Random, step_seconds: float, *, is_shared: bool) -> None:
        """Take where they are, how often they step, and whether all workers have the same: it only goes forward."""
        folder.mkdir(exist_ok=True)
        self._dice, self._step_seconds = dice, step_seconds
        self._is_shared, self._ahead_seconds = is_shared, 0.0
        self._files = [folder / str(number) for number in range(1 if is_shared else CLOCKS)]
        for path in self._files:
            moved_clock.put(path, self._next())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._step_all)
        self.steps = 0

    def __enter__(self) -> Self:
        """Begin to step."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._over.set()
        self._thread.join()

    def mine(self) -> Path:
        """Return the file of this process, which is a worker's."""
        return self._files[os.getpid() % len(self._files)]

    def _step_all(self) -> None:
        while not self._over.wait(self._dice.expovariate(1 / self._step_seconds)):
            moved_clock.put(self._dice.choice(self._files), self._next())
            self.steps += 1

    def _next(self) -> float:
        if not self._is_shared:
            return self._dice.uniform(-OFF_SECONDS, OFF_SECONDS)
        self._ahead_seconds += self._dice.choice((0.01, 0.1, 1.0, 60.0, 2 * OFF_SECONDS)) * self._dice.random()
        return self._ahead_seconds


def clocks(options: Options) -> Outcome:
    """Let clocks step as often as was asked for, while workers work, die and stop."""
    is_machines = kind_of(options.ledger) == "sqlite"
    return attacked(options, is_shared=is_machines, by="wall" if is_machines else "real")


def attacked(options: Options, *, is_shared: bool, by: By) -> Outcome:
    """Do it with one clock for all or one for each, and judge leases by the ledger's."""
    if moved_clock.library() is None:
        return Outcome(notes=["left out: no library on this machine moves the clock of a process"])
    with place_of(options.ledger, options.folder) as url:
        in_child(lambda: prepare(url))
        plan = Attack(("kill", "stop"), options.ledger, url, options.folder, options.seed, lease_seconds=LEASE_SECONDS)
        tally, steps, begun = Tally(), 0, time.monotonic()
        while steps < options.amount and not tally.failures and time.monotonic() - begun < options.seconds:
            steps += _round(plan, f"{options.seed}-{tally.rounds}", tally, is_shared=is_shared, by=by)
            tally.seconds = time.monotonic() - begun
            if options.progress:
                options.progress(steps)
    outcome = outcome_of(tally, options)
    outcome.figures |= {"steps": steps, "kills": tally.struck["kill"], "stops": tally.struck["stop"]}
    outcome.tried = steps
    outcome.notes = [f"{number} x {trouble}" for trouble, number in tally.troubles.items()]
    if steps < options.amount and not tally.failures:
        outcome.notes.append(f"ended early: {steps:,} of {options.amount:,} in the time that it had")
    if is_shared:
        outcome.notes.append("the ledger's clock is the machine's: it steps ahead for all workers at once")
    outcome.history = tally.failures[0].history if tally.failures else []
    return outcome


def _round(plan: Attack, name: str, tally: Tally, *, is_shared: bool, by: By) -> int:
    """Run a round, add what came of it, and return how often a clock stepped."""
    early: list[str] = []
    step_seconds = MACHINE_STEP_SECONDS if kind_of(plan.ledger) == "sqlite" else STEP_SECONDS
    dice = random.Random(f"{plan.seed} {name} clocks")
    stepping = Clocks(plan.folder / "clocks", dice, step_seconds, is_shared=is_shared)

    def start(conditions: Conditions, fault: Fault | None, parent: socket.socket) -> NoReturn:
        clocked.start(conditions, fault, parent, stepping.mine())

    def drive(conditions: Conditions, stream: Stream, faults: Sequence[Fault], seed: int) -> Told:
        with stepping:
            told = Round(conditions, stream, faults, seed, WORKERS, start=start).run()
        grants = conditions.notes.with_suffix(clocked.GRANTS)
        early.extend(early_takeovers(grants, by))
        grants.unlink(missing_ok=True)
        return told

    faults = make_faults(random.Random(f"{plan.seed} {name}"), plan.kinds, FAULTS)
    judgement, told, stream, history = run_round(replace(plan, drive=drive), name, faults)
    broken = judgement.broken | ({EARLY: len(early)} if early else {})
    add_round(tally, judgement, told, stream, history, broken=broken)
    if broken:
        head = [f"seed {plan.seed}, round {name}: {broken}", *early[:10], *(f"fault: {fault}" for fault in faults)]
        tally.failures.append(Failure(name, broken, [str(fault) for fault in faults], head + readable(history)))
    return stepping.steps
