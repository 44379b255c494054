"""The short form of the proof: workers are killed and stopped on real ledgers, and the judge sees what is wrong."""

import json
import random
import time

import msgspec
import pytest
from prove.attack import Attack, attack, run_round
from prove.checks import Effect, Seen, judge
from prove.faults import make_faults
from prove.outcome import Options
from prove.parts.workers import kill, stop
from prove.places import place_of, prepare
from prove.round import Round, in_child
from prove.shrink import shrink
from prove.stream import Happened, make_stream
from prove.worker import Conditions

from oncebridge.claim import Outcome

SEED = 20


@pytest.mark.parametrize("ledger", ["sqlite", "redis", "postgres"])
@pytest.mark.parametrize("part", [kill, stop], ids=["kill", "stop"])
def test_no_promise_is_broken_by_workers_that_die_or_come_late(part, ledger, tmp_path):
    """Nothing is lost, and nothing is doubled that its sink can prevent."""
    amount = 24 if part is kill else 8
    outcome = part(Options(ledger, SEED, amount, 60.0, tmp_path))
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert outcome.tried >= amount
    assert outcome.held


def test_a_part_that_tried_nothing_has_not_held(tmp_path):
    """Zero faults in the time that it had are no proof."""
    assert not kill(Options("sqlite", SEED, 24, 0.0, tmp_path)).held


# --- a program that is broken is caught ------------------------------------------------------------------


def call_failures_done(bridge):
    """Take a failure of a handler for a success."""
    kind = type(bridge.ledger)

    def all_done(settlements):
        return [msgspec.structs.replace(one, outcome=Outcome.DONE) for one in settlements]

    def settle(self, settlements):
        return kind.settle(self, all_done(settlements))

    def start_settle(self, settlements):
        return kind.start_settle(self, all_done(settlements))

    spoiled = {"__slots__": (), "settle": settle, "start_settle": start_settle}
    bridge.ledger.__class__ = type("Careless", (kind,), spoiled)


def test_a_program_that_calls_failures_done_is_caught(tmp_path):
    """Its events are lost, and the judge says which."""
    with place_of("redis", tmp_path) as url:
        in_child(lambda: prepare(url))
        plan = Attack(("raise",), "redis", url, tmp_path, SEED, spoil=call_failures_done)
        *_, tally = attack(plan, 60, seconds=60, until_broken=True)
    assert tally.broken["lost"] > 0


def hesitate(bridge):
    """Take longer for a claim than anybody waits."""
    kind = type(bridge.ledger)

    def claim(self, *given, **named):
        time.sleep(1.0)
        return kind.claim(self, *given, **named)

    bridge.ledger.__class__ = type("Slow", (kind,), {"__slots__": (), "claim": claim})


def test_what_workers_still_hold_at_the_end_was_never_acknowledged(tmp_path):
    """A round that is given up is stuck, and has lost nothing."""
    stream = make_stream(SEED, "a", facts=3, entities=0)
    conditions = Conditions(url="memory://", name="a", notes=tmp_path / "notes", spoil=hesitate)
    told = Round(conditions, stream, (), SEED, 1, patience_seconds=0.1).run()
    assert told.stuck == [0, 1, 2]


def test_whoever_acknowledges_a_delivery_deletes_it(tmp_path):
    """As with a queue: it does not come again, also where another worker has it and dies."""
    stream = make_stream(SEED, "a", facts=2, entities=0)
    round_ = Round(Conditions(url="memory://", name="a", notes=tmp_path / "notes"), stream, (), SEED, 1)
    round_._due, round_._acknowledged = [], {0}
    round_._come_again([0, 1], 0.0)
    assert [at for _, at in round_._due] == [1]


def test_rounds_are_of_several_kinds(tmp_path, monkeypatch):
    """Some have echoes or settle several ends in a call; in some handlers fail, or workers purge or are looked at."""
    seen = []
    monkeypatch.setattr("prove.attack.judge_round", lambda *given, **_: (seen.append(given[:2]), []))
    plan = Attack((), "sqlite", "sqlite:///none", tmp_path, SEED)
    monkeypatch.setattr("prove.attack._by_calls", lambda *_: None)
    for number in range(40):
        run_round(plan, f"{SEED}-{number}", ())
    assert {conditions.exact for conditions, _ in seen} == {True, False}
    assert {conditions.purges for conditions, _ in seen} == {True, False}
    assert {conditions.looks for conditions, _ in seen} == {True, False}
    assert {conditions.fails for conditions, _ in seen} == {True, False}
    assert {any(event.state for event in stream.events) for _, stream in seen} == {True, False}


# --- the judge -------------------------------------------------------------------------------------------

FACT, OLDER, NEWER, TIE = (
    Happened(0, None, 1), Happened(1, 0, 10), Happened(2, 0, 20), Happened(3, 0, 20),
)  # fmt: skip
EVENTS = (FACT, OLDER, NEWER, TIE)
RIGHT = [Effect(0, "k0", 5), Effect(1, "k1", 6), Effect(2, "k2", 7), Effect(3, "k3", 8)]


def broken(effects, **seen):
    """Judge these effects."""
    return judge(EVENTS, Seen(effects=effects, **seen), stuck=(), unbalanced=0).broken


def test_the_judge_has_nothing_against_what_is_right():
    """Each event once, in order; or a state left out because a newer one took effect; or a plain double."""
    assert broken(RIGHT) == {}
    assert broken([one for one in RIGHT if one.number != 1]) == {}
    assert broken([*RIGHT[:1], *RIGHT]) == {}
    assert broken(RIGHT, exact={0: 1, 2: 1, 3: 1}, settled=[("k0/", 5), ("k0/", 5)]) == {}


@pytest.mark.parametrize(
    ("effects", "seen", "expected"),
    [
        (RIGHT[1:], {}, {"lost": 1}),
        (RIGHT[:3], {}, {"lost": 1}),
        (RIGHT[:2], {}, {"lost": 2, "not the newest state": 1}),
        (RIGHT, {"exact": {0: 2, 2: 1, 3: 1}}, {"doubled in the transaction": 1}),
        (RIGHT, {"exact": {2: 1, 3: 1}}, {"lost": 1}),
        ([*RIGHT, Effect(0, "other", 9)], {}, {"doubled under another key": 1}),
        (RIGHT, {"settled": [("k0/", 5), ("k0/", 6)]}, {"stale settles": 1}),
        ([*RIGHT, Effect(1, "k1", 9)], {}, {"not the newest state": 1}),
        (RIGHT, {"vain": ["k0/plain"]}, {"acknowledged in vain": 1}),
        (RIGHT, {"again": 2}, {"processed again after all was done": 2}),
    ],
)
def test_the_judge_sees_what_is_wrong(effects, seen, expected):
    """A lost fact, a lost tie, a double, a stale settle, an old state on top."""
    assert broken(effects, **seen) == expected


# --- plans -----------------------------------------------------------------------------------------------


def test_a_seed_repeats_a_plan():
    """The same seed gives the same stream and the same faults, another seed others."""
    assert make_stream(1, "a") == make_stream(1, "a")
    assert make_stream(1, "a") != make_stream(2, "a")
    drawn = [make_faults(random.Random(seed), ("kill", "stop"), 50) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_stream_is_the_same_whatever_it_is_called():
    """Only ids have the name in them, not times: a round called 5-0 must not lie in 2025-05."""
    streams = [make_stream(5, "5-0", called=called) for called in ("", "5-0-again")]
    assert streams[0].events == streams[1].events
    bodies = [[json.loads(raw)["detail"]["eventBody"] for _, raw in stream.arrivals] for stream in streams]
    for before, after in zip(*bodies, strict=True):
        assert {**before, "conversationId": ""} == {**after, "conversationId": ""}


def test_a_stream_is_hard_enough():
    """At least three in ten deliveries are duplicates, states tie, and newer ones overtake older ones."""
    streams = [make_stream(seed, "a") for seed in range(20)]
    arrivals = sum(len(stream.arrivals) for stream in streams)
    events = sum(len(stream.events) for stream in streams)
    assert (arrivals - events) / arrivals >= 0.3
    times = [(event.entity, event.time_ms) for event in streams[0].events if event.entity is not None]
    assert len(set(times)) < len(times)
    order = [number for number, _ in streams[0].arrivals]
    assert order != sorted(order)


def test_a_failure_is_shrunk_to_the_faults_that_it_needs():
    """Whatever else happened is left out."""
    assert shrink(list(range(20)), lambda faults: {3, 17} <= set(faults)) == [3, 17]
    assert shrink([1], lambda _: True) == []
