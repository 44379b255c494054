"""Workers that are killed, or stopped past their lease."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from prove.attack import Attack, Tally, attack, run_round
from prove.faults import Kind, make_faults
from prove.outcome import Options, Outcome
from prove.places import kind_of, place_of, prepare
from prove.round import in_child
from prove.shrink import readable, shrink

ROUNDS_AT_ONCE: Final = 4
#: Its emulator is one slow process: with more to do it would answer after every lease.
ROUNDS_AT_ONCE_DYNAMODB: Final = 2
LEASE_SECONDS_DYNAMODB: Final = 1.0
DOUBLED: Final = ("doubled in the transaction", "doubled under another key")


def kill(options: Options) -> Outcome:
    """Kill workers with SIGKILL."""
    return _attacked(options, ("kill",))


def stop(options: Options) -> Outcome:
    """Stop workers for longer than their lease, and let them go on."""
    return _attacked(options, ("stop",))


def _attacked(options: Options, kinds: tuple[Kind, ...]) -> Outcome:
    with place_of(options.ledger, options.folder) as url:
        in_child(lambda: prepare(url))
        plan = Attack(kinds, options.ledger, url, options.folder, options.seed, at_once=ROUNDS_AT_ONCE)
        if kind_of(options.ledger) == "dynamodb":
            plan = replace(plan, at_once=ROUNDS_AT_ONCE_DYNAMODB, lease_seconds=LEASE_SECONDS_DYNAMODB)
        tally = Tally()
        for tally in attack(plan, options.amount, seconds=options.seconds, until_broken=True):
            if options.progress:
                options.progress(tally.faults)
        outcome = outcome_of(tally, options)
        if tally.failures:
            outcome.history = smallest(plan, tally)
        return outcome


def outcome_of(tally: Tally, options: Options, tried: int | None = None) -> Outcome:
    """Write a tally in the fields of all parts; what was tried are faults, unless told otherwise."""
    tried = tally.faults if tried is None else tried
    outcome = Outcome(
        tried=tried,
        lost=tally.broken["lost"],
        doubled=sum(tally.broken[what] for what in DOUBLED),
        doubled_plain=tally.doubled_plain,
        broken={what: number for what, number in tally.broken.items() if number},
        seconds=round(tally.seconds, 1),
        figures={
            "rounds": tally.rounds,
            "events": tally.events,
            "in a transaction": tally.in_transaction,
            "deliveries": tally.deliveries,
        },
    )
    if tried < options.amount and not tally.failures:
        outcome.notes.append(f"ended early: {tried:,} of {options.amount:,} in the time that it had")
    outcome.notes += [f"{number} x {trouble}" for trouble, number in tally.troubles.items()]
    return outcome


def smallest(plan: Attack, tally: Tally) -> list[str]:
    """Shrink the faults of the first failure, and tell what happened with those that are left."""
    failure = tally.failures[0]
    faults = make_faults(random.Random(f"{plan.seed} {failure.name}"), plan.kinds, plan.faults)
    seen: list[list[str]] = [failure.history]

    def breaks(fewer: object) -> bool:
        judgement, _, _, history = run_round(plan, failure.name, list(fewer))  # type: ignore[call-overload]
        if judgement.broken:
            seen.append(history)
        return bool(judgement.broken)

    few = shrink(faults, breaks)
    head = [f"seed {plan.seed}, round {failure.name}: {failure.broken}", *(f"fault: {fault}" for fault in few)]
    return head + readable(seen[-1])
