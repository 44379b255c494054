"""Workers are killed and stopped by every way in, and a broken program is caught by each of them."""

from dataclasses import replace

import pytest
from prove.attack import attack
from prove.claimant import Claimant
from prove.faults import Fault
from prove.handled import environment_for, take_fault
from prove.outcome import Options
from prove.parts.ways_in import WAYS, one_way, planned
from prove.places import place_of, prepare
from prove.round import in_child
from prove.worker import CLAIMS, Conditions

from spoiled_programs import done_before_its_effect

SEED = 20
pytestmark = pytest.mark.root


@pytest.mark.parametrize("name", WAYS)
def test_no_promise_is_broken_by_any_way_in(name, tmp_path):
    """Nothing is lost, and nothing is doubled that its sink can prevent."""
    with place_of("sqlite", tmp_path) as url:
        in_child(lambda: prepare(url))
        outcome = one_way(name, url, Options("sqlite", SEED, 3, 60.0, tmp_path))
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.tried >= 3


@pytest.mark.parametrize("name", [name for name in WAYS if name != CLAIMS])
def test_a_program_that_calls_events_done_too_early_is_caught(name, tmp_path):
    """Workers die between the claim and the effect, and nobody does it again."""
    assert "lost" in broken_by(name, tmp_path, done_before_its_effect)


def test_a_client_that_acknowledges_what_it_did_not_settle_is_caught(tmp_path, monkeypatch):
    """What failed has had no effect, and must come again."""
    honest = Claimant.one
    monkeypatch.setattr(Claimant, "one", lambda self, event: honest(self, event) or True)
    assert "lost" in broken_by(CLAIMS, tmp_path, kinds=("raise",), wheres=("before effect",))


def broken_by(name, folder, spoil=None, **chosen):
    """Attack a program until it breaks a promise; return which ones."""
    with place_of("redis", folder) as url:
        in_child(lambda: prepare(url))
        with planned(name, url, Options("redis", SEED, 60, 60.0, folder), spoil) as plan:
            for tally in attack(replace(plan, **chosen), 60, seconds=60.0, until_broken=True):
                broken = tally.broken
    return broken


def test_each_fault_is_handed_out_once(tmp_path):
    """However many processes ask for one."""
    faults = [Fault("kill", "before claim", 1), Fault("stop", "point", 7)]
    conditions = Conditions(url="memory://", name="round", notes=tmp_path / "notes")
    environment_for(conditions, faults, tmp_path / "faults")
    assert [take_fault(tmp_path / "faults") for _ in range(3)] == [*faults, None]
