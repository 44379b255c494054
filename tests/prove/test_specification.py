"""The specification of the protocol holds, misses its rules, and is what the code does."""

import pytest
from msgspec.structs import replace
from prove.conformance import can_be_compared, explored, forbidden
from prove.specification import NEEDED_IN, WORLDS, check, rules, ways_to_the_end

from exploration import judge
from exploration.scenarios import BACK, BY_NAME, FACT, OLDER
from oncebridge import claim
from oncebridge.claim import Outcome
from oncebridge.ledgers import grants, memory

pytestmark = [
    pytest.mark.specification,
    pytest.mark.xdist_group("specification"),
]


def test_every_state_of_a_small_world_keeps_every_promise():
    """No flaw and no deadlock, and as many states as TLC finds there."""
    found = check(WORLDS["fact"])
    assert found.held
    assert found.states == 835


def test_from_every_state_everything_can_come_to_its_end():
    """Once nothing goes wrong any more, no state is without a way to where all is acknowledged and nobody works."""
    found = ways_to_the_end(WORLDS["fact"])
    assert found.states == 835
    assert found.ends
    assert found.stuck == 0


@pytest.mark.parametrize("rule", ["token", "lease ends", "own outcome", "last end frees", "run-out alone"])
def test_a_rule_that_is_left_out_is_missed(rule):
    """Without the rule, some way leads to a broken promise, and the shortest is told."""
    found = check(WORLDS[NEEDED_IN[rule]], [rule])
    assert found.broken
    assert found.steps


def test_the_shortest_way_to_a_broken_promise_is_told_in_words():
    """Each step says who does what, under which token, and what comes of it."""
    assert check(WORLDS["fact"], ["nonce"]).told == [
        " 1. A claims event 1, but the reply is lost.",
        " 2. A repeats its call: busy.",
        "    A call whose reply was lost is answered differently when it is repeated: RepeatsAgree",
    ]


def test_each_rule_has_a_world_that_misses_it():
    """The proof leaves out every rule that the specification names, and no other."""
    assert sorted(NEEDED_IN) == sorted(rules())
    assert set(NEEDED_IN.values()) <= set(WORLDS)


# --- the code does what the specification allows ------------------------------------------------------------


@pytest.mark.parametrize(("name", "states"), [(FACT, 120), (BACK, 80)])
def test_every_step_of_the_code_is_a_step_of_the_specification(name, states):
    """From each state that the exploration of the real rules gets to, each step leads where the specification says."""
    seen = explored(BY_NAME[name], states_max=states)
    assert seen.pairs > states
    assert forbidden(seen) == []


def test_what_the_specification_leaves_out_is_not_compared():
    """It knows no explicit ids, so nothing is compared where they are."""
    compared = [name for name, scenario in BY_NAME.items() if can_be_compared(scenario)]
    assert sorted(set(BY_NAME) - set(compared)) == ["two contents under one id", "two states under one id"]


def lease_is_not_looked_at(asks, records, entity, call):
    """Grant an entity to whoever asks."""
    return REAL["claim_chain"](asks, records, entity and replace(entity, lease_until_us=0), call)


def a_failure_leaves_no_doubt(newest, ask, outcome, now_us):
    """Forget that a handler may have failed after its effect."""
    return newest if outcome is Outcome.RETRY else REAL["newest_after"](newest, ask, outcome, now_us)


REAL = {
    "claim_chain": grants.claim_chain,
    "newest_after": claim.newest_after,
}


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("claim_chain", lease_is_not_looked_at),
        ("newest_after", a_failure_leaves_no_doubt),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_mistake_in_the_code_is_a_step_that_the_specification_does_not_allow(name, mistake, monkeypatch):
    """With a rule taken out of the code, and a judge that objects to nothing, the comparison finds a wrong step."""
    for module in (grants, memory, claim):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, mistake)
    monkeypatch.setattr(judge, "_require", lambda *_: None)
    wrong = forbidden(explored(replace(BY_NAME[OLDER], faults=1), states_max=130))
    assert wrong
    assert "which the specification does not allow" in wrong[0]
