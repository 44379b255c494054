"""The protocol as a specification: every state of small worlds, each rule left out, and every step of the real code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prove.outcome import Options, Outcome
from prove.round import each_in_child
from prove.specification import GRAPHS, NEEDED_IN, WORLDS, check, ways_to_the_end

if TYPE_CHECKING:
    from exploration.scenarios import Scenario
    from prove.conformance import Seen

#: How many steps lead from a state, about.
STEPS_PER_STATE: Final = 4
#: A process compares the steps from so many states.
STATES_AT_ONCE: Final = 2_000
#: All steps that the exploration of the tests takes in the scenarios of a kind.
STEPS: Final = {"order": 199_770, "echoes": 160_410, "returns": 244_025}


def check_specification(options: Options) -> Outcome:
    """Look at every state of world after world, until there were this many; then leave out rule after rule."""
    outcome, time_is_up = Outcome(), _ends(options)
    for name, world in WORLDS.items():
        if outcome.tried >= options.amount or time_is_up():
            outcome.notes.append(f"ended before the world {name}, with {outcome.tried:,} states")
            break
        found = check(world)
        _count(options, outcome, name, found.states)
        if not found.held:
            outcome.broken[f"{name}: {found.broken}"] = 1
            outcome.history = [world.title, *found.told]
            return outcome
        if name in GRAPHS and (stuck := ways_to_the_end(world).stuck):
            outcome.broken[f"{name}: stuck"] = stuck
            return outcome
    # A little of it leaves out only what is missed in the worlds that were looked at.
    for rule, name in NEEDED_IN.items():
        if name not in outcome.figures:
            continue
        if time_is_up():
            outcome.notes.append(f"ended before the rule {rule}")
            break
        found = check(WORLDS[name], [rule])
        _count(options, outcome, f"without {rule}", found.states)
        if found.held:
            outcome.broken[f"nothing is missed without {rule}"] = 1
            return outcome
    return outcome


def compare_order(options: Options) -> Outcome:
    """Compare the code's steps with facts, and with states of which each says something else."""
    return compared(options, "order")


def compare_echoes(options: Options) -> Outcome:
    """Compare the code's steps with a state and the same again."""
    return compared(options, "echoes")


def compare_returns(options: Options) -> Outcome:
    """Compare the code's steps with a state, another, and the first again."""
    return compared(options, "returns")


def compared(options: Options, kind: str) -> Outcome:
    """Take the steps of the real code, and compare them with the specification; less than all are the first ones."""
    from exploration.scenarios import SCENARIOS
    from prove.conformance import can_be_compared, explored

    outcome, time_is_up, steps = Outcome(), _ends(options), dict[str, int]()
    known = [one for one in SCENARIOS if can_be_compared(one) and kind_of(one) == kind]
    is_whole = options.amount >= STEPS[kind]
    states_max = None if is_whole else 1 + options.amount // len(known) // STEPS_PER_STATE

    def works() -> Iterator[Callable[[], dict[str, Any]]]:
        for scenario in known:
            if outcome.broken or time_is_up():
                return
            seen = explored(scenario, states_max=states_max)
            steps[scenario.name] = seen.pairs
            for some in seen.parts(STATES_AT_ONCE):
                if not outcome.broken and not time_is_up():
                    yield partial(_compared, some, time_is_up)

    for found in each_in_child(works(), os.cpu_count() or 1):
        name, wrong = found["name"], found["wrong"]
        _count(options, outcome, name, found["compared"])
        if wrong:
            outcome.broken[f"{name}: a step that the specification does not allow"] = len(wrong)
            outcome.history = outcome.history or [name, *wrong]
    for scenario in known if not outcome.broken else ():
        if (done := outcome.figures.get(scenario.name, 0)) < steps.get(scenario.name, 1):
            outcome.notes.append(f"ended early: {scenario.name}, {done:,} of {steps.get(scenario.name, 'its')} steps")
    return outcome


def kind_of(scenario: Scenario) -> str:
    """Return which part compares it."""
    states = [event.state for event in scenario.events]
    if not scenario.state or len(set(states)) == len(states):
        return "order"
    return "echoes" if len(states) == 2 else "returns"


def _compared(seen: Seen, time_is_up: Callable[[], bool]) -> dict[str, Any]:
    from prove.conformance import forbidden

    wrong = forbidden(seen, time_is_up)
    return {"name": seen.scenario.name, "wrong": wrong, "compared": seen.compared}


def _ends(options: Options) -> Callable[[], bool]:
    end = time.monotonic() + options.seconds
    return lambda: time.monotonic() > end


def _count(options: Options, outcome: Outcome, name: str, number: int) -> None:
    outcome.tried += number
    outcome.figures[name] = outcome.figures.get(name, 0) + number
    if options.progress:
        options.progress(outcome.tried)
