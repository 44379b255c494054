"""Everything that two workers and a few faults can do to each other, enumerated on the real rules."""

from __future__ import annotations

import time
from typing import Final

from msgspec.structs import replace

from prove.outcome import Options, Outcome

#: From this amount on there is one fault more than in the tests.
LONG: Final = 1_000_000


def explore_all(options: Options) -> Outcome:
    """Enumerate scenario after scenario until this many states were judged; nothing here is drawn by the seed."""
    from exploration.explorer import explore
    from exploration.scenarios import SCENARIOS
    from exploration.violations import Violation

    outcome, begun = Outcome(), time.monotonic()
    for scenario in SCENARIOS:
        if outcome.tried >= options.amount or time.monotonic() - begun > options.seconds:
            outcome.notes.append(f"ended before {scenario.name}, with {outcome.tried:,} states")
            break
        faults = scenario.faults + (1 if options.amount >= LONG else 0)
        try:
            report = explore(replace(scenario, faults=faults))
        except Violation as violation:
            outcome.broken[scenario.name] = 1
            outcome.history = [f"{scenario.name}, {faults} faults", *str(violation).splitlines()]
            break
        outcome.tried += report.states
        outcome.figures[scenario.name] = report.states
        if options.progress:
            options.progress(outcome.tried)
    return outcome
