"""Runs a siege, and writes what it came to in the fields of all parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prove.attack import Tally
from prove.checks import Judgement
from prove.nemesis import Siege, besiege, smallest
from prove.outcome import Options, Outcome
from prove.parts.workers import outcome_of

#: What holds even where a ledger forgets; the rest are repeats, which it cannot prevent.
UNFORGETTABLE: Final = ("lost", "doubled under another key", "never acknowledged", "books out of balance")


def unforgettable(judgement: Judgement) -> dict[str, int]:
    """Return which promises were broken that hold even where a ledger forgets, with a secret of one's own."""
    return {what: number for what, number in judgement.broken.items() if what in UNFORGETTABLE}


def run_siege(siege: Siege, options: Options, tried: Callable[[Tally], int]) -> tuple[Outcome, Tally]:
    """Run rounds until so much was tried; make a failure smaller, and tell it."""
    tally = Tally()
    for tally in besiege(siege, lambda now: tried(now) >= options.amount, seconds=options.seconds):
        if options.progress:
            options.progress(tried(tally))
    outcome = outcome_of(tally, options, tried(tally))
    outcome.figures |= {
        "struck": dict(tally.struck),
        "processed again after all was done": tally.again,
        "workers that ended by an error": tally.failed,
    }
    if tally.failures:
        outcome.history = smallest(siege, tally.failures[0])
    return outcome, tally
