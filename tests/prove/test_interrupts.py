"""Exceptions in the middle of batches: the short form of the part, and programs that it has to catch."""

from contextlib import suppress

import pytest
from prove.interrupted import ERRORS, WAYS, Worker
from prove.outcome import Options
from prove.parts.interrupts import interrupts
from prove.places import prepare
from prove.stream import GROUP, make_groups
from prove.worker import Conditions, Notes, Strikes, make_bridge

from interrupts import points, strike
from oncebridge.ledgers.loan import Loan

STRIKES = 45


def test_no_promise_is_broken_by_exceptions_that_strike_in_a_batch(tmp_path):
    """At places, by timers and in threads: each in its turn, and every event takes effect in the end."""
    outcome = interrupts(Options("sqlite", 1, STRIKES, 60.0, tmp_path))
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.tried == STRIKES
    assert {outcome.figures[f"interrupt_by_{way}"] for way in WAYS} == {STRIKES // len(WAYS)}
    assert outcome.figures["places of a batch"] > outcome.figures["of them struck"] > 0


def test_a_strike_where_a_transaction_is_lent_leaves_the_next_batch_alone(tmp_path):
    """The watched ledger gives a transaction back as the ledger itself does, so nothing that is found is its own."""
    notes = Notes(tmp_path / "notes")
    conditions = Conditions(f"sqlite:///{tmp_path / 'once.db'}", "round", tmp_path / "notes", exact=True)
    prepare(conditions.url)
    with make_bridge(conditions, Strikes(None, notes), notes) as bridge:
        worker = Worker(bridge, make_groups(0, "round", groups=100))
        groups = iter(range(at, at + GROUP) for at in range(0, 100 * GROUP, GROUP))
        worker.calm(next(groups))
        lent = [at for at in points(lambda: worker.calm(next(groups))) if at.code is Loan.__enter__.__code__]
        assert lent
        for at in lent:
            struck = strike(at, ERRORS[0]())
            with suppress(*ERRORS), struck:
                worker.deliver(next(groups))
            assert struck.struck
            assert worker.deliver(next(groups)) == []


def acknowledges_what_was_interrupted(worker, batch, way, error):
    """Take whatever does not fail as done, as a `finally` around a batch would."""
    with suppress(BaseException):
        worker.left += way(lambda: worker.deliver(batch), error)


def waits_for_ever(worker, batch, way, error):
    """Hold a lock that the interrupted batch has left behind."""
    while True:
        way(lambda: worker.deliver([]), error)


@pytest.mark.parametrize(
    ("mistake", "broken"), [(acknowledges_what_was_interrupted, "lost"), (waits_for_ever, "never acknowledged")]
)
def test_a_program_that_an_exception_breaks_is_caught(tmp_path, monkeypatch, mistake, broken):
    """A batch that is acknowledged all the same has lost events, and a worker that hangs is found and ended."""
    monkeypatch.setattr("prove.parts.interrupts.HANG_SECONDS", 3.0)
    monkeypatch.setattr(Worker, "strike", mistake)
    outcome = interrupts(Options("sqlite", 1, STRIKES, 60.0, tmp_path))
    assert outcome.broken[broken]
    assert "seed 1, round 1-0" in outcome.history[0]
