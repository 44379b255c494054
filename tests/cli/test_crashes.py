"""`kill -9` at any moment, poison, workers that sleep past their lease: nothing lost, no more doubled than must be.

Effects are counted where no ledger can touch them, or in the very transaction that settles.
"""

import random
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from functools import partial

import pytest

import payloads

LEDGER = "sqlite:///once.db"
KILLS = 8
EFFECTS_MORE = 15  # what a worker may do between the effect that it is killed after and its death

#: What people write first: claim by a unique key, commit, then work.
NAIVE = """\
import json
import sqlite3
import time

from hooks import append, stay_killable

db = sqlite3.connect("naive.db", isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")
with open("in.jsonl") as lines:
    for line in lines:
        envelope_id = json.loads(line)["id"]
        if db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (envelope_id,)).rowcount:
            time.sleep(0.01)  # the same sink that takes its time
            stay_killable()
            append("effects", envelope_id.removeprefix("envelope-"))
"""


@pytest.fixture
def kill_often(wait_until):
    """Start a worker again and again, and kill it at moments that a seed chooses, each after some more effects."""

    def kill(start, count_effects, seed, kills=KILLS):
        dice = random.Random(seed)
        for _ in range(kills):
            effects = dice.randint(1, 15)
            goal = count_effects() + effects
            worker = start(EFFECTS_AT_MOST=str(effects + EFFECTS_MORE))
            wait_until(lambda goal=goal, worker=worker: count_effects() >= goal or worker.over, "the worker has got on")
            finished = worker.ends_within(dice.uniform(0, 0.02))
            assert not finished, "there was not enough to do until it was killed"
            worker.kill()

    return kill


@pytest.fixture
def work(cli):
    """Start, or run to its end, a worker on what `in.jsonl` holds."""

    class Work:
        def arguments(self, handler):
            return ("in.jsonl", "--handler", f"hooks:{handler}", "--lease", "1", "--batch", "20")

        def start(self, handler, **environment):
            return cli.start("process", "--ledger", LEDGER, "--json", *self.arguments(handler), **environment)

        def finish(self, handler, **environment):
            return cli.process(*self.arguments(handler), **environment)

    return Work()


# --- kill -9 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", ["note", "slow_note"])
def test_a_killed_worker_loses_nothing_and_doubles_only_what_was_in_flight(
    cli, work, kill_often, *, facts, marks, handler
):
    """With a sink of its own, every event takes effect, and each kill doubles one at most."""
    cli.write_hooks()
    deliveries = facts(250)
    cli.write("in.jsonl", [*deliveries, *deliveries[::3]])
    kill_often(partial(work.start, handler), lambda: len(cli.lines("effects")), seed=31)
    last = work.finish(handler)
    assert (last.code, last.one["balanced"], last.one["dead"]) == (0, True, 0)
    effects = cli.effects()
    assert set(effects) == set(marks(deliveries))
    assert effects.total() - len(effects) <= KILLS
    assert work.finish(handler).one["processed"] == 0


def test_effect_and_settle_in_one_transaction_survive_kills_exactly_once(cli, work, kill_often, facts, marks):
    """With a handler that writes in the ledger's own transaction, no kill loses or doubles anything."""
    cli.write_hooks()
    deliveries = facts(250)
    cli.write("in.jsonl", [*deliveries, *deliveries[::3]])
    kill_often(partial(work.start, "insert"), lambda: cli.inserted().total(), seed=32)
    last = work.finish("insert")
    assert (last.code, last.one["balanced"], last.one["dead"]) == (0, True, 0)
    assert cli.inserted() == Counter(marks(deliveries))
    assert work.finish("insert").one["processed"] == 0


def test_kills_in_mixed_traffic_leave_nothing_undone(cli, work, kill_often):
    """Facts, states and readings with the road's faults: after kills everything has taken effect, and once."""
    cli.write_hooks()
    secret = {"ONCEBRIDGE_SECRET": "so that both ledgers have the same keys"}
    cli("simulate", "--conversations", "8", "--seed", "33", "--out", "in.jsonl")
    cli("process", "in.jsonl", "--ledger", "sqlite:///unharmed.db", **secret)
    kill_often(partial(work.start, "insert", **secret), lambda: cli.inserted().total(), seed=33)
    last = work.finish("insert", **secret)
    assert (last.code, last.one["balanced"]) == (0, True)
    assert set(cli.statuses()) <= {"done", "echo", "stale", "dead"}
    assert {entity["lease_until_us"] for entity in cli.entities()} == {0}
    effects = Counter(effect["key"] for effect in cli.table("effect"))
    assert effects == dict.fromkeys(done_in(cli, "once.db"), 1)
    assert done_in(cli, "unharmed.db") - set(effects) == set()
    assert work.finish("insert", **secret).one["processed"] == 0


def done_in(cli, file):
    """Return the keys of the events that a ledger says are done."""
    return {f"ob1_{event['key'].hex()}" for event in cli.events(file) if event["status"] == "done"}


def test_the_usual_pattern_loses_events_under_the_same_kills(cli, kill_often, facts, marks):
    """A claim that is committed before the work loses what was in flight: this is what the bridge is for."""
    cli.write_hooks()
    (cli.folder / "naive.py").write_text(NAIVE)
    deliveries = facts(250)
    cli.write("in.jsonl", deliveries)
    kill_often(partial(cli.start_program, sys.executable, "naive.py"), lambda: len(cli.lines("effects")), seed=31)
    assert cli.start_program(sys.executable, "naive.py").finish().code == 0
    lost = set(marks(deliveries)) - set(cli.effects())
    assert 0 < len(lost) <= KILLS


def test_a_killed_worker_does_not_make_the_states_behind_it_stale(cli, work, wait_until, states, marks):
    """The states of an entity whose worker died are handled in order of arrival once its lease is over, all of them."""
    cli.write_hooks()
    deliveries = states(30)
    cli.write("in.jsonl", deliveries)
    worker = work.start("wait")
    wait_until(lambda: cli.lines("started"), "its handler runs")
    worker.kill()
    last = work.finish("note")
    assert (last.code, last.one["processed"], last.one["stale"]) == (0, len(deliveries), 0)
    assert cli.lines("effects") == marks(deliveries)


# --- poison --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", ["die_by_exit", "die_by_kill"])
def test_an_event_that_kills_its_worker_ends_as_a_dead_letter_by_itself(cli, work, facts, marks, handler):
    """Poison is tried as often as the limit says, then kept; its neighbours in the batch take effect and no harm."""
    cli.write_hooks()
    before, poison, after = facts(5), facts(1, start=5, poison=True), facts(9, start=6)
    cli.write("in.jsonl", [*before, *poison, *after])
    codes = []
    while not codes or (codes[-1] != 0 and len(codes) < 8):
        last = work.finish(handler, ONCEBRIDGE_RETRY_ATTEMPTS="3")
        codes.append(last.code)
    assert codes[-1] == 0, codes
    deaths = len(cli.lines("deaths"))
    assert deaths == len(codes) - 1
    assert deaths == 1 + 3  # once among others, which counts for nobody, then alone up to the limit
    assert cli.effects() == Counter(marks([*before, *after]))
    (letter,) = cli.dead("list", "--json").items
    assert letter["id"] == poison[0]["id"]
    assert "died" in letter["reason"]
    assert cli.statuses() == {"dead": 1, "done": 14}
    assert {event["attempts"] for event in cli.events() if event["status"] == "done"} == {0}


# --- slow, and asleep past the lease -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["facts", "states"])
@pytest.mark.parametrize("handler", ["wait", "wait_and_fail"])
def test_a_worker_that_wakes_up_late_changes_nothing(cli, work, wait_until, *, request, marks, kind, handler):
    """Whoever slept past its lease finds its claim taken over: its settle, good or bad, is not accepted."""
    cli.write_hooks()
    deliveries = request.getfixturevalue(kind)(6)
    cli.write("in.jsonl", deliveries)
    sleeper = work.start(handler)
    wait_until(lambda: cli.lines("started"), "its handler runs")
    sleeper.signal(signal.SIGSTOP)
    other = work.finish("note")
    assert (other.code, other.one["processed"]) == (0, 6)
    settled = cli.events(), cli.entities()
    assert cli.effects() == Counter(marks(deliveries))
    (cli.folder / "gate").touch()
    sleeper.signal(signal.SIGCONT)
    woken = sleeper.finish()
    assert woken.code == 0
    assert (woken.one["processed"], woken.one["redelivery"], woken.one["balanced"]) == (0, 6, True)
    assert (cli.events(), cli.entities()) == settled
    assert cli.lines("started") == marks(deliveries[:1])  # what it had not begun, it did not begin
    assert cli.effects() == Counter(marks(deliveries)) + Counter(marks(deliveries[:1]))  # only a fenced sink refuses


def test_a_worker_that_wakes_up_late_takes_no_effect_in_the_transaction(cli, work, wait_until, facts, marks):
    """Asleep between claim and transaction, taken over, awake again: every event has taken effect once."""
    cli.write_hooks()
    deliveries = facts(150)
    cli.write("in.jsonl", deliveries)
    sleeper = work.start("insert")
    wait_until(lambda: len(cli.inserted()) > 5, "it has got on")
    wait_until(lambda: asleep_with_claims(cli, sleeper), "it sleeps with claims in hand")
    other = work.finish("insert")
    assert other.code == 0
    assert other.one["processed"] + other.one["redelivery"] == len(deliveries)
    assert cli.inserted() == Counter(marks(deliveries))
    sleeper.signal(signal.SIGCONT)
    woken = sleeper.finish()
    assert (woken.code, woken.one["balanced"]) == (0, True)
    assert cli.inserted() == Counter(marks(deliveries))
    assert woken.one["processed"] + other.one["processed"] == len(deliveries)


def test_a_worker_that_is_only_slow_keeps_its_claims(cli, work, wait_until, facts, marks):
    """Claims are extended while their handler works: nobody takes over from a worker that lives."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(3))
    slow = work.start("wait")
    wait_until(lambda: cli.lines("started"), "its handler runs")
    other = work.start("note")
    assert not other.ends_within(2.5)  # more than two leases
    assert cli.effects() == {}
    (cli.folder / "gate").touch()
    ran = slow.finish(), other.finish()
    assert [one.code for one in ran] == [0, 0]
    assert cli.effects() == Counter(marks(facts(3)))


def asleep_with_claims(cli, worker):
    """Put a worker to sleep; wake it again where it holds no claim, or the lock that everybody needs."""
    worker.signal(signal.SIGSTOP)
    try:
        with closing(sqlite3.connect(cli.folder / "once.db", timeout=0, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
        claims = cli.statuses()["claimed"]
    except sqlite3.OperationalError:
        claims = 0
    if not claims:
        worker.signal(signal.SIGCONT)
    return claims


def test_the_marks_of_tests_are_the_times_of_their_events(facts, marks):
    """What handlers write down is what these tests look for."""
    assert marks(facts(2)) == [str(payloads.TIME_MS), str(payloads.TIME_MS + 1)]
