"""The short form of the fuzzing: nothing spoiled does harm, and harm that is done is seen, made small and named."""

import os
import time

import pytest
from prove.fuzzing import SHARES, TARGETS
from prove.mutate import smaller
from prove.outcome import Options
from prove.parts.fuzz import CHUNK, Chunk, chunks, fuzz, input_of

from oncebridge import Bridge

SEED = 20
TRIED = 120


def test_spoiled_input_does_no_harm(tmp_path):
    """Nothing crashes, is left out of the books, hides a real event, or costs far more than usual."""
    outcome = fuzz(Options("", SEED, TRIED, 60.0, tmp_path))
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.tried == TRIED
    assert set(outcome.figures) == set(SHARES)


def test_a_part_without_time_says_so(tmp_path):
    """It holds only what it has tried."""
    outcome = fuzz(Options("", SEED, 600, 0.0, tmp_path))
    assert not outcome.held
    assert outcome.notes == ["ended early: 0 of 600 in the time that it had"]


# --- harm is seen ----------------------------------------------------------------------------------------

process, process_many = Bridge.process, Bridge.process_many
SIGN = b"Infinity"


def crash(self, raw):
    """Let an error out."""
    if SIGN in raw:
        raise KeyError(SIGN)
    return process(self, raw)


def forget(self, raw):
    """Leave a delivery out of the books."""
    return None if SIGN in raw else process(self, raw)


def dawdle(self, raw):
    """Look at a delivery again and again."""
    for _ in range(raw.count(SIGN) * 100_000):
        raw.count(b"{")
    return process(self, raw)


def hoard(self, raw):
    """Keep copies of a delivery that is not a usual one."""
    copies = [bytes(bytearray(raw)) for _ in range(1000)] if b"some name" not in raw else []
    return process(self, raw) if copies is not None else None


def die(self, raw):
    """End the process in the middle of it."""
    if SIGN in raw:
        os._exit(1)
    return process(self, raw)


def hide(self, raws):
    """Take a real event along with a spoiled one."""
    return process_many(self, [*raws[:-1], b"{}"] if any(SIGN in raw for raw in raws) else raws)


@pytest.mark.parametrize(
    ("name", "harm", "seen"),
    [
        ("process", crash, "raised KeyError in test_fuzz.py"),
        ("process", forget, "the books do not account for it"),
        ("process", dawdle, "took more than 10 times as long as a normal one of its size"),
        ("process", hoard, "took more than 10 times the memory of a normal one of its size"),
        ("process", die, "died, or took more than"),
        ("process_many", hide, "a real event among spoiled ones was dead"),
    ],
)
def test_harm_is_seen_and_named(name, harm, seen, tmp_path, monkeypatch):
    """A crash, a gap in the books, time and memory out of proportion, a dead process, a real event that is hidden."""
    monkeypatch.setattr(Bridge, name, harm)
    monkeypatch.setattr("prove.parts.fuzz.SHRINKS_SECONDS", 0.5)
    # Memory is measured of the first; the sign comes soon after the others' beginning.
    numbers = range(0 if harm is hoard else 32, 600)
    found = Chunk("parser", numbers, Options("", SEED, 600, 60.0, tmp_path), time.monotonic() + 60).found()
    ((what, number),) = found["broken"].items()
    assert (what.startswith(f"parser: {seen}"), number) == (True, 1), what
    assert found["history"][0].startswith(f"seed {SEED}, parser")


# --- inputs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_repeats_every_input(name, tmp_path, monkeypatch):
    """The same number of the same seed is the same input, in a target made anew; no other is."""
    monkeypatch.chdir(tmp_path)
    first, again = ([input_of(TARGETS[name](), name, SEED, number) for number in range(20)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 15


def test_inputs_are_divided_without_a_rest():
    """Each target has its share, and none waits for another to be done."""
    divided = chunks(1_000_000)
    assert sum(len(numbers) for _, numbers in divided) == 1_000_000
    assert max(len(numbers) for _, numbers in divided) <= CHUNK
    assert {name for name, _ in divided[: len(divided) // 2]} == set(SHARES)
    assert sum(len(numbers) for _, numbers in chunks(3)) == 3


def test_a_failure_is_made_small():
    """Whatever it does not need is left out."""
    assert smaller(b"abc" * 50 + b"!" + b"def" * 50, lambda data: b"!" in data) == b"!"
