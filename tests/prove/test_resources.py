"""The short form of what runs out: a full server, a file that is gone, and a program that does the wrong thing."""

import pytest
from prove.outcome import Options
from prove.parts import resources
from prove.parts.resources import KINDS, attacked

from spoiled_programs import acknowledged_without_a_ledger

SEED = 20
pytestmark = pytest.mark.root


def test_a_server_without_memory_loses_nothing_and_says_what_to_do(tmp_path):
    """Redis with all of its memory in use: workers wait, and go on by themselves."""
    outcome = attacked(Options("redis", SEED, 1, 100.0, tmp_path), kinds=("full-memory",))
    assert outcome.held, "\n".join(outcome.history)
    assert "raise maxmemory" in "\n".join(outcome.notes)


def test_a_program_that_acknowledges_what_could_not_be_written_is_caught(tmp_path, monkeypatch):
    """Its events are lost."""
    monkeypatch.setattr(resources, "smallest", lambda siege, failure: failure.history)  # takes a minute
    outcome = attacked(
        Options("redis", SEED, 1, 100.0, tmp_path), kinds=("full-memory",), spoil=acknowledged_without_a_ledger
    )
    assert outcome.lost > 0
    assert outcome.broken["lost"] == outcome.lost


@pytest.mark.parametrize("ledger", KINDS)
def test_every_ledger_has_something_to_run_out_of(ledger):
    """File handles, at least."""
    assert "no-handles" in KINDS[ledger]
