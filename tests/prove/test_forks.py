"""Forks in every way, and a judge that sees who settled what."""

import pytest
from prove.outcome import Options
from prove.parts.forks import NOT_ITS_OWN, WENT_ON, after_use, forks, judged, number_of
from prove.removals import Edit, remove
from prove.round import in_child

#: Nobody is told of forks any more.
NOBODY_TOLD = [Edit("oncebridge.forks:register", "_parts[number] =", "_ =")]
#: As many forks as the five ways have together, and one more.
EACH_WAY = 21


def test_forks_in_every_way_break_nothing(tmp_path):
    """Both sides of each fork take every event once, and whoever had an effect settles it."""
    outcome = forks(Options("sqlite", 1, EACH_WAY, 60.0, tmp_path))
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert len([name for name in outcome.figures if name.startswith("forks ")]) == 5


def test_a_program_that_does_not_look_at_the_process_is_caught(tmp_path, monkeypatch):
    """With its parent's connections in the child, answers are mixed up, and that is told as what happened."""
    monkeypatch.setattr("prove.parts.forks.REPETITION_SECONDS", 3.0)
    monkeypatch.setattr("prove.parts.forks.WAYS", {"after use": after_use})

    def wrong():
        remove(NOBODY_TOLD)
        outcome = forks(Options("redis", 1, 1, 60.0, tmp_path))
        return [outcome.broken, outcome.history]

    broken, history = in_child(wrong)
    assert broken
    assert history[0].startswith("forks_1_")


RIGHT = ["1 7 effect one k/own", "2 7 settled k/own 5"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (RIGHT, {}),
        ([RIGHT[0], "2 8 settled k/own 5"], {NOT_ITS_OWN: 1}),
        ([*RIGHT, "3 8 effect one k/own"], {"doubled": 1}),
        (RIGHT[1:], {"lost": 1}),
        ([*RIGHT, "3 8 came-back BatchOfParent"], {}),
        ([*RIGHT, "3 8 came-back nothing"], {WENT_ON: 1}),
    ],
)
def test_the_judge_sees_what_is_wrong(lines, expected):
    """A loss, a double, and a child that settles or goes on with its parent's batch."""
    assert judged(lines, {"one": 1}, None) == expected


def test_the_judge_compares_what_was_committed():
    """A row that is missing is a loss, and one that is there twice a double."""
    assert judged(RIGHT, {"one": 1}, {}) == {"lost": 1}
    assert judged(RIGHT, {"one": 1}, {number_of("one"): 2}) == {"doubled": 1}
