"""Schedules of more workers and faults than are enumerated: the judge objects to none, and to a missing rule."""

import pytest
from msgspec.structs import replace
from prove.outcome import Options
from prove.parts.schedules import schedules, walked

from exploration.judge import Violation
from oncebridge.ledgers import grants, memory

SEED = 1


def test_no_schedule_breaks_a_promise(tmp_path):
    """Whatever is drawn ends, and nobody has anything against it."""
    outcome = schedules(Options("", SEED, 60, 60.0, tmp_path))
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.tried == 60
    assert outcome.figures["longest chain"] > 1


def test_a_call_that_lost_its_chain_is_granted_none_of_it_beside_the_new(monkeypatch):
    """This schedule loses a call's reply twice, and its lease in between: without that rule there are two holders."""
    name = f"{SEED} 2715"
    walked(name)
    monkeypatch.setattr(grants, "_leaves_some_of_its_own", lambda *_: False)
    with pytest.raises(Violation, match="holds it already"):
        walked(name)


def test_a_seed_repeats_a_schedule():
    """The same name is the same walk."""
    assert walked("7 1")[1] == walked("7 1")[1]


def test_a_missing_rule_is_found(monkeypatch, tmp_path):
    """Without the look at the top token a late worker settles."""
    settle = memory.settle_claim

    def without_top(settlement, record, entity, now_us):
        chain = settlement.claim.chain
        in_force = entity and chain and replace(entity, token=chain.top)
        return settle(settlement, record, in_force or entity, now_us)

    monkeypatch.setattr(memory, "settle_claim", without_top)
    assert schedules(Options("", SEED, 500, 60.0, tmp_path)).broken
