"""The short form of the outage, and programs that do the wrong thing meanwhile."""

import pytest
from prove.outcome import Options
from prove.parts.outage import attacked, outage

from spoiled_programs import acknowledged_without_a_ledger

SEED = 20
pytestmark = pytest.mark.root


def test_nothing_is_acknowledged_while_the_ledger_is_away(tmp_path):
    """Deliveries go on arriving, and all of them are done once it is back."""
    outcome = outage(Options("redis", SEED, 2, 200.0, tmp_path))
    assert outcome.held, "\n".join(outcome.history)
    assert outcome.figures["deliveries while it was away"] > 200


def test_a_program_that_acknowledges_without_a_ledger_is_caught(tmp_path):
    """What was acknowledged never took effect."""
    outcome = attacked(Options("redis", SEED, 2, 200.0, tmp_path), spoil=acknowledged_without_a_ledger)
    assert outcome.broken["acknowledged while the ledger was away"] > 0
    assert outcome.lost > 0
    assert "deliveries sent, and acknowledged" in "\n".join(outcome.history)


def test_an_outage_for_which_there_is_no_time_has_not_held(tmp_path):
    """It says so, and claims nothing."""
    outcome = outage(Options("redis", SEED, 600, 30.0, tmp_path))
    assert not outcome.held
    assert "no time" in outcome.notes[0]
