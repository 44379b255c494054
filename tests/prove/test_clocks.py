"""The short form of the clocks: who goes by its own clock is caught, and the judge of grants believes no other."""

import subprocess
import sys

import pytest
from prove.grants import early_takeovers
from prove.outcome import Options
from prove.parts.clocks import EARLY, attacked, clocks

from prove import moved_clock

SEED = 1
SECOND = 1_000_000_000
pytestmark = pytest.mark.root


def test_no_clock_of_a_worker_moves_a_lease(tmp_path):
    """They are ten minutes apart, and step; nothing is taken over early, lost, or doubled where it can be prevented."""
    outcome = clocks(Options("redis", SEED, 20, 60.0, tmp_path))
    assert outcome.held, "\n".join(outcome.history)
    assert outcome.figures["kills"] + outcome.figures["stops"] > 0


def test_a_ledger_that_goes_by_its_workers_clocks_is_caught(tmp_path):
    """SQLite's clock is the machine's: with one for each process, leases end for some while they run for others."""
    outcome = attacked(Options("sqlite", SEED, 400, 60.0, tmp_path), is_shared=False, by="real")
    assert outcome.broken.get(EARLY), outcome.broken
    assert "although process" in "\n".join(outcome.history)


def test_the_clock_of_a_process_moves_and_its_monotonic_clock_does_not(tmp_path):
    """Otherwise nothing would have been tried."""
    assert moved_clock.library() is not None
    path = tmp_path / "clock"
    moved_clock.put(path, 600)
    ask = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-ISc", ask], env=moved_clock.by_file(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        before = asked(process)
        moved_clock.put(path, -600)
        after = asked(process)
        process.communicate()
    assert after[0] - before[0] == pytest.approx(-1200, abs=60)
    assert 0 <= after[1] - before[1] < 60


def asked(process):
    """Ask a process for its clocks."""
    process.stdin.write("\n")
    process.stdin.flush()
    return [float(word) for word in process.stdout.readline().split()]


# --- the judge -------------------------------------------------------------------------------------------


def grants(path, *lines):
    """Write down what workers did: seconds, worker, what; a lease has ten seconds."""
    written = []
    for at, worker, what, *words in lines:
        times = [int(at * SECOND), 0, int((at + 0.1) * SECOND), 0]
        lease = times[:2] if what == "ends" else [*times, 10 * SECOND]
        written.append([int(at * SECOND), worker, what, "event/handler", *words, *lease])
    path.write_text("".join(" ".join(map(str, line)) + "\n" for line in written))
    return path


FIRST = (0, 1, "granted", "-/handler", 7)


@pytest.mark.parametrize(
    ("lines", "early"),
    [
        ([FIRST, (5, 2, "granted", "-/handler", 8)], 1),
        ([FIRST, (11, 2, "granted", "-/handler", 8)], 0),
        ([FIRST, (5, 1, "granted", "-/handler", 8)], 0),
        ([FIRST, (4, 1, "ends", 7), (5, 2, "granted", "-/handler", 8)], 0),
        ([FIRST, (5, 2, "granted", "-/handler", 8), (6, 1, "ends", 7)], 1),
        ([FIRST, (8, 1, "extended", 7), (11, 2, "granted", "-/handler", 8)], 1),
        ([FIRST, (8, 1, "extended", 7), (19, 2, "granted", "-/handler", 8)], 0),
    ],
)
def test_a_takeover_is_early_while_another_surely_has_it(lines, early, tmp_path):
    """Not after the lease, not after it was given up, and not by the same worker."""
    assert len(early_takeovers(grants(tmp_path / "grants", *lines), "real")) == early


def test_an_entity_is_taken_over_like_an_event(tmp_path):
    """Two events of one entity are not worked on at the same time."""
    path = grants(tmp_path / "grants", (0, 1, "granted", "e/handler", 7), (5, 2, "granted", "e/handler", 8))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace("event/", "another/")]))
    (said,) = early_takeovers(path, "real")
    assert said.startswith("e/handler went to process 2")
