"""The short form of the soak: one command, one that leaks, and the judge of trends."""

import os
import random
import socket
import subprocess
import sys

import pytest
from prove.measure import Reading, read, running, tree
from prove.outcome import Options
from prove.parts.soak import one_phase
from prove.places import place_of, prepare
from prove.round import in_child
from prove.trend import BYTES_PER_DELIVERY, Point, judge_points

from spoiled_programs import keeps_what_it_was_asked

SEED = 20
MB = 1024 * 1024
pytestmark = pytest.mark.root


@pytest.mark.parametrize("spoil", [None, keeps_what_it_was_asked], ids=["as it is", "leaking"])
def test_what_a_command_holds_does_not_grow_unless_it_leaks(spoil, tmp_path):
    """`process` with fifteen hundred deliveries; the same with a list that keeps sixteen kilobytes of each."""
    with place_of("redis", tmp_path) as url:
        in_child(lambda: prepare(url))
        outcome = one_phase("process", url, Options("redis", SEED, 5_000, 200.0, tmp_path), spoil=spoil)
    assert outcome.tried > 1_000
    assert list(outcome.broken) == ([] if spoil is None else ["process: memory"]), "\n".join(outcome.history)


def points(leak=0.0, deliveries=100_000, **few):
    """Make up what a program held: it grows at its start, wanders, and leaks so many bytes a delivery."""
    dice = random.Random(SEED)
    made = []
    for at in range(61):
        done = deliveries * at // 60
        start = min(1.0, at / 20) * 40 * MB
        held = Reading(int(20 * MB + start + dice.uniform(-MB, MB) + leak * done), 40, 8, 6)
        more = {name: getattr(held, name) + number * at // 60 for name, number in few.items()}
        made.append(Point(done, Reading(**(vars(held) | more))))
    return made


def test_a_hundred_bytes_a_delivery_are_a_leak():
    """In a run of some length; memory that only grows at the start, or wanders, is none."""
    assert judge_points(points()).growing == []
    assert judge_points(points(leak=100)).growing == ["memory"]
    assert judge_points(points(leak=BYTES_PER_DELIVERY / 3)).growing == []


def test_a_short_run_says_how_large_a_leak_it_would_have_shown():
    """Its bound is wider, since memory wanders."""
    judged = judge_points(points(deliveries=2_000))
    assert judged.bound > 10 * BYTES_PER_DELIVERY
    assert judge_points(points(leak=2 * judged.bound, deliveries=2_000)).growing == ["memory"]


@pytest.mark.parametrize("what", ["handles", "threads", "connections"])
def test_handles_threads_and_connections_that_pile_up_are_seen(what):
    """A few more or less are not."""
    assert judge_points(points(**{what: 60})).growing == [what]
    assert judge_points(points(**{what: 3})).growing == []


def test_a_program_that_was_hardly_looked_at_is_not_called_flat():
    """Nothing is judged by a handful of points."""
    assert judge_points(points()[:8]).growing == ["too few points"]
    assert judge_points([]).growing == ["too few points"]


def test_what_this_process_holds_is_read_from_the_kernel():
    """Memory, handles, threads and connections of a process and of those that it has started."""
    before = read([os.getpid()])
    with socket.socket():
        here = read([os.getpid()])
    assert (here.handles, here.connections) == (before.handles + 1, before.connections + 1)
    assert here.memory_bytes > MB
    assert here.threads >= 1
    sleeper = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", sleeper, "a sleeper"], stdin=subprocess.PIPE) as child:
        assert child.pid in tree(os.getpid())
        assert running("a sleeper") == [child.pid]
        child.communicate()
    assert read([child.pid]) == Reading()
