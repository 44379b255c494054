"""The protocol as a specification: every state of small worlds, each rule left out, and every step of the real code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from prove.outcome import Options, Outcome
from prove.specification import GRAPHS, NEEDED_IN, WORLDS, check, ways_to_the_end

#: How many steps lead from a state, about.
STEPS_PER_STATE: Final = 4


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


def compare_code(options: Options) -> Outcome:
    """Take the steps of the real code, about as many in each scenario, and compare them with the specification."""
    from exploration.scenarios import SCENARIOS
    from prove.conformance import can_be_compared, explored, forbidden

    outcome, time_is_up = Outcome(), _ends(options)
    scenarios = list(filter(can_be_compared, SCENARIOS))
    for scenario in scenarios:
        if time_is_up():
            outcome.notes.append(f"ended before {scenario.name}, with {outcome.tried:,} steps")
            break
        seen = explored(scenario, states_max=1 + options.amount // len(scenarios) // STEPS_PER_STATE)
        wrong = forbidden(seen, time_is_up)
        _count(options, outcome, scenario.name, seen.compared)
        if wrong:
            outcome.broken[f"{scenario.name}: a step that the specification does not allow"] = len(wrong)
            outcome.history = [scenario.name, *wrong]
            break
    return outcome


def _ends(options: Options) -> Callable[[], bool]:
    end = time.monotonic() + options.seconds
    return lambda: time.monotonic() > end


def _count(options: Options, outcome: Outcome, name: str, number: int) -> None:
    outcome.tried += number
    outcome.figures[name] = number
    if options.progress:
        options.progress(outcome.tried)
