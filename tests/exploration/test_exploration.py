"""Goal: the protocol loses nothing, a late worker changes nothing, and no state blocks the deliveries.

Method: every order of every step of two workers is tried on the real rules, with faults at each step, and judged
by a judge that does not know these rules.
"""

import re
from collections import deque

import pytest
from msgspec.structs import replace

from exploration import explorer
from exploration.explorer import explore, likeness, steps_to_end
from exploration.model import Model
from exploration.naive_ledgers import SetIfAbsent
from exploration.scenarios import BACK, BY_NAME, CONFLICT, FACT, OLDER, SCENARIOS, WITHOUT_ID
from exploration.violations import violation_of
from oncebridge.claim import SETTLED, Status, Verdict
from oncebridge.ledgers import grants

# An exploration that ends early, or never gets where it should, must be noticed.
STATES_MIN = {"an echo": 30_000, OLDER: 8_000, BACK: 16_000, "two states under one id": 20_000, CONFLICT: 20_000}
VERDICTS = {
    FACT: {Verdict.REDELIVERY, Verdict.REPUBLISH, Verdict.BUSY},
    OLDER: {Verdict.STALE, Verdict.REPUBLISH, Verdict.BUSY},
    BACK: {Verdict.ECHO, Verdict.STALE},
    "older states behind a newer one": {Verdict.STALE},
    "an echo": {Verdict.ECHO, Verdict.REDELIVERY, Verdict.BUSY},
    CONFLICT: {Verdict.CONFLICT},
    "two states under one id": {Verdict.CONFLICT, Verdict.ECHO},
    "several times in one body": {Verdict.STALE},
}


EXPLORED = [
    pytest.param(scenario, id=scenario.name, marks=[pytest.mark.slow] if scenario.faults > 1 else [])
    for scenario in SCENARIOS
]


@pytest.mark.parametrize("scenario", EXPLORED)
def test_every_promise_is_kept_on_every_way(scenario):
    """In every order of steps and faults of two workers, nothing is lost, late, blocked or counted wrongly."""
    report = explore(scenario)
    assert report.states >= STATES_MIN.get(scenario.name, 1_000)
    assert set(report.verdicts) >= VERDICTS.get(scenario.name, {Verdict.FRESH})
    assert report.drain_steps <= 20
    # A chain of all events, unless some of them share an id, and so wait for each other.
    ids = {this.id or this for this in scenario.events}
    assert report.longest_chain == (len(ids) if scenario.state else 0)


# --- the exploration itself ---------------------------------------------------------------------------------


def test_a_violation_tells_the_shortest_way_to_it():
    """A violation comes with every step from the start, and is found again in the same way."""
    violation = violation_of(FACT, SetIfAbsent)
    assert str(violation).splitlines() == [
        "acknowledged: sent@0 is not settled for good",
        "   1. A claims sent@0 (delivery 1, envelope a): fresh, token 1",
        "   2. B claims sent@0 (delivery 2, envelope a): redelivery",
        "   3. B acknowledges sent@0 (delivery 2, envelope a): redelivery",
    ]
    assert str(violation_of(FACT, SetIfAbsent)) == str(violation)


@pytest.mark.parametrize(("name", "faults"), [(FACT, 2), ("an echo", 1), (BACK, 1)])
def test_states_taken_for_one_have_the_same_future(name, faults):
    """Two states that are explored only once lead to the same states by the same steps."""
    model = Model(replace(BY_NAME[name], faults=faults))

    def futures(world):
        return {(step.act, likeness(model.after(world, step))) for step in model.steps(world)}

    start = model.start()
    seen, ahead, merged = {likeness(start): (start, futures(start))}, deque([start]), 0
    while ahead:
        world = ahead.popleft()
        for step in model.steps(world):
            after = model.after(world, step)
            first, leads_to = seen.setdefault(likeness(after), (after, None))
            if leads_to is None:
                seen[likeness(after)] = (after, futures(after))
                ahead.append(after)
            elif after != first:
                merged += 1
                assert futures(after) == leads_to
    assert merged > 1000


def test_a_state_without_a_way_out_is_found():
    """A state is blocked if no step without a fault leads from it, however far, to an end."""
    #    0 -> 1 -> 2 (the end), 3 -> 1, 4 <-> 5
    assert steps_to_end([[], [0, 3], [1], [], [5], [4]], ends=[2]) == [2, 1, 0, 2, None, None]


def test_the_command_says_how_much_was_explored(monkeypatch, capsys):
    """The command explores each scenario, with one fault more where asked, and fails with the way to a violation."""
    monkeypatch.setattr(explorer, "SCENARIOS", (replace(BY_NAME[WITHOUT_ID], faults=0),))
    assert explorer.main([]) == 0
    short = capsys.readouterr().out
    assert explorer.main(["--long"]) == 0
    longer = capsys.readouterr().out
    count = re.compile(r"([\d,]+) states, and every promise kept in each\n")
    assert len(count.search(short)[1]) < len(count.search(longer)[1])
    monkeypatch.setattr(grants, "SETTLED", SETTLED | {Status.CLAIMED})
    assert explorer.main([]) == 1
    assert "acknowledged: sent@0 is not settled for good\n   1. A claims" in capsys.readouterr().out
