"""Many contenders for one event and one entity, and a judge that sees a second holder."""

import pytest
from prove.outcome import Options
from prove.parts.contenders import ENDLESS, contenders, judged


def test_one_of_many_contenders_holds_it(tmp_path, monkeypatch):
    """One holder at a time, and tokens that rise, for events and for entities."""
    monkeypatch.setattr("prove.parts.contenders.CONTENDERS", 8)
    outcome = contenders(Options("redis", 1, 20, 60.0, tmp_path))
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.tried == 40


def test_contests_that_do_not_end_are_told(tmp_path, monkeypatch):
    """They are a broken promise with a history, not an error of the harness."""
    monkeypatch.setattr("prove.parts.contenders.CONTENDERS", 2)
    monkeypatch.setattr("prove.parts.contenders.ROUND_SECONDS", 0.0)
    assert contenders(Options("sqlite", 1, 1, 60.0, tmp_path)).broken == {ENDLESS: 2}


RIGHT = ["1 1 begins f 5", "2 1 ends f 5 -", "3 2 begins f 6", "4 2 ends f 6 k"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (RIGHT, {}),
        ([RIGHT[0], RIGHT[2], RIGHT[1], RIGHT[3]], {"two holders at a time": 1}),
        ([*RIGHT[2:], *RIGHT[:2]], {"tokens that do not rise": 1}),
        (RIGHT[:2], {"lost": 1}),
        ([*RIGHT, "5 3 begins f 7", "6 3 ends f 7 k"], {"doubled": 1}),
        ([*RIGHT, "5 3 refused f 6"], {"a holder was refused": 1}),
        ([*RIGHT, "5 3 failed ValueError"], {"a contender failed: ValueError": 1}),
    ],
)
def test_the_judge_sees_what_is_wrong(lines, expected):
    """Two holders, a token that falls, an event without an end, or with two."""
    assert judged(lines, 1)[0] == expected
