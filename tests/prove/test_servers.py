"""Servers are killed, restarted and failed over beside the workers: promises are kept, and a broken one is seen."""

from dataclasses import replace

import pytest
from prove.nemesis import Trouble, besiege
from prove.outcome import Options
from prove.parts import failovers, redises, restarts
from prove.parts.sieges import run_siege

SEED = 20
ALWAYS = redises.WAYS["killed, AOF always"]


def struck(way, folder, amount):
    """Trouble a Redis so many times, and return what came of it."""
    options = Options("redis", SEED, amount, 60.0, folder)
    with redises.besieged(way, options, folder / "server") as siege:
        return run_siege(siege, options, lambda tally: tally.faults)[0]


@pytest.mark.slow
def test_no_promise_is_broken_by_a_redis_that_is_killed(tmp_path):
    """With an append-only file it forgets nothing."""
    outcome = struck(ALWAYS, tmp_path, 3)
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.tried >= 3


@pytest.mark.slow
def test_a_redis_that_forgets_is_caught_where_it_must_not(tmp_path, monkeypatch):
    """Without its append-only file it lets events take effect again."""
    monkeypatch.setattr("prove.nemesis.SHRINK_SECONDS", 0.0)
    forgetful = replace(ALWAYS, policy=("--appendonly", "no"))
    outcome = struck(forgetful, tmp_path, 30)
    assert outcome.broken["processed again after all was done"] > 0
    assert any("beside: killed" in line for line in outcome.history)


@pytest.mark.slow
def test_no_promise_is_broken_by_a_postgres_that_is_restarted(tmp_path, monkeypatch):
    """Nothing is lost, and nothing is doubled in the transaction, while workers die as well."""
    monkeypatch.setattr(restarts, "ROUND_SECONDS", 2.0)
    monkeypatch.setattr(restarts, "EVERY_SECONDS", (0.3, 1.0))
    monkeypatch.setattr(restarts, "SIZES", {})
    monkeypatch.setattr(restarts, "KILLS", 4)
    options = Options("postgres", SEED, 1, 60.0, tmp_path)
    with restarts.besieged(options) as siege:
        *_, tally = besiege(siege, lambda now: now.rounds > 0, seconds=60.0)
    assert tally.broken == {}
    assert sum(tally.struck[kind] for kind in restarts.KINDS) > 0
    assert tally.struck["kill"] > 0


@pytest.mark.slow
def test_a_master_that_is_cut_off_loses_nothing_and_what_it_forgets_is_counted(tmp_path, monkeypatch):
    """Workers go on with it until it hears of the other, and what they did then takes effect again."""
    monkeypatch.setattr(failovers, "draw", lambda _: [Trouble("cut", 0.3, 0.0)])
    with failovers.failing(Options("redis", SEED, 1, 60.0, tmp_path)) as sieges:
        *_, tally = besiege(sieges[""], lambda now: now.again > 0, seconds=60.0)
    assert tally.broken == {}
    assert tally.again > 0


@pytest.mark.slow
def test_no_promise_is_broken_by_slots_that_move(tmp_path):
    """A cluster forgets nothing meanwhile."""
    options = Options("redis", SEED, 2, 60.0, tmp_path)
    with failovers.resharding(options) as siege:
        outcome, _ = run_siege(siege, options, lambda tally: tally.faults)
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.tried >= 2
