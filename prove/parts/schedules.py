"""Schedules drawn by a seed: two to five workers, chains, every fault, in longer scenarios than can be enumerated.

Each is a walk of the small world of `tests/exploration`, with the real rules and the ledger in memory, and its judge;
what it enumerates for two workers and one or two faults is drawn here for more of both.
"""

from __future__ import annotations

import random
import time
from typing import Any, Final

from msgspec.structs import replace

from prove.outcome import Options, Outcome

WORKERS: Final = (2, 5)
STEPS_MAX: Final = 2_000
STATES: Final = ("busy", "away", "there")
#: Times of states: ties, echoes and gaps.
TIMES_MS: Final = (0, 100, 400, 400, 700, 5_000)
#: Of schedules of states: those in which one is stamped far ahead, and must not block the others.
FAR_SHARE: Final = 0.1
TOLD_EVERY: Final = 1_000


def schedules(options: Options) -> Outcome:
    """Walk until there were so many; the number of a schedule and the seed repeat it."""
    from exploration.violations import Violation

    outcome, begun = Outcome(), time.monotonic()
    verdicts: dict[str, int] = {}
    longest = steps = 0
    while outcome.tried < options.amount and time.monotonic() - begun < options.seconds:
        name = f"{options.seed} {outcome.tried}"
        try:
            model, taken = walked(name)
        except Violation as violation:
            outcome.broken[str(violation.kind)] = 1
            outcome.history = [f"schedule {name}", *str(violation).splitlines()]
            break
        for verdict, number in model.verdicts.items():
            verdicts[verdict.value] = verdicts.get(verdict.value, 0) + number
        longest, steps = max(longest, model.longest_chain), steps + taken
        outcome.tried += 1
        if options.progress and outcome.tried % TOLD_EVERY == 0:
            options.progress(outcome.tried)
    outcome.figures = {"steps": steps, "longest chain": longest, **verdicts}
    if outcome.tried < options.amount and not outcome.broken:
        outcome.notes.append(f"ended early: {outcome.tried:,} of {options.amount:,} in the time that it had")
    outcome.notes.append("on the ledger in memory, which computes with the same rules as SQLite's and DynamoDB's")
    return outcome


def walked(name: str) -> tuple[Any, int]:
    """Walk one schedule to its end, and return its model and how many steps it took. Raises `Violation`."""
    from exploration.judge import Broken, Violation
    from exploration.model import Model

    dice = random.Random(name)
    scenario, workers = stamped_ahead(scenario_of(dice), random.Random(f"{name} far")), dice.randint(*WORKERS)
    model = Model(scenario, workers=workers)
    world, trace = model.start(), [f"{workers} workers; {scenario.events}; {scenario.deliveries}"]
    try:
        for step in range(STEPS_MAX):
            if model.judge_end(world):
                return model, step
            world = model.after(world, _drawn(dice, list(model.steps(world))))
            trace.append(model.said)
    except Violation as violation:
        violation.trace = (*trace, model.said)
        raise
    endless = Violation(Broken.BLOCKED, f"no end within {STEPS_MAX} steps")
    endless.trace = tuple(trace)
    raise endless


def _drawn(dice: random.Random, steps: list[Any]) -> Any:
    """Draw who moves, then how: a worker that may take many combinations of deliveries moves no more often."""
    mover = dice.choice(sorted({step.worker for step in steps}))
    own = [step for step in steps if step.worker == mover]
    # To take deliveries is one kind of step, whatever is taken.
    act = dice.choice(sorted({step.act for step in own}))
    return dice.choice([step for step in own if step.act is act])


def scenario_of(dice: random.Random) -> Any:
    """Draw what happens, how it is delivered, and how much may go wrong."""
    from exploration.scenarios import Delivery, Scenario, ScenarioEvent

    is_state = dice.random() < 0.7
    if is_state:
        events = tuple(
            ScenarioEvent(state=dice.choice(STATES), times_ms=(dice.choice(TIMES_MS),))
            for _ in range(dice.randint(2, 4))
        )
        events = tuple(dict.fromkeys(events))
    else:
        events = tuple(ScenarioEvent(state=f"fact {number}") for number in range(dice.randint(1, 3)))
    deliveries = [Delivery(number, f"{number}a") for number in range(len(events))]
    deliveries += [
        Delivery(dice.randrange(len(events)), dice.choice(("x", "y", None))) for _ in range(dice.randint(1, 4))
    ]
    dice.shuffle(deliveries)
    return Scenario(
        name="drawn", state=is_state, events=events, deliveries=tuple(deliveries), faults=dice.randint(0, 6)
    )


def stamped_ahead(scenario: Any, dice: random.Random) -> Any:
    """Return the same with one state that claims to be of the year 2099, now and then."""
    from exploration.scenarios import FAR_MS

    if not scenario.state or dice.random() >= FAR_SHARE:
        return scenario
    events = list(scenario.events)
    at = dice.randrange(len(events))
    events[at] = replace(events[at], times_ms=(FAR_MS,))
    return replace(scenario, events=tuple(events))
