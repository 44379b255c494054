"""Several processes share one SQLite ledger, and some of them are killed."""

import json
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager

import pytest

from ledgers.on_sqlite import LEASE_US, is_sound, key, opened, take, verdict
from oncebridge.claim import Ask, Outcome, Settlement, Verdict
from oncebridge.clock import SystemClock
from oncebridge.testing.clock import SkewedClock

WORKER = """
import json, secrets, sys, threading
from concurrent.futures import ThreadPoolExecutor
from oncebridge.claim import Ask, Claim, Outcome, Settlement
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger

path, task, *numbers = sys.argv[1:]
first, last = map(int, numbers)

def opened():
    ledger = SQLiteLedger(path)
    ledger.open(None)
    return ledger

def claim(ledger, numbers):
    asks = [Ask(key=number.to_bytes(16, "big"), alone=True) for number in numbers]
    return zip(asks, ledger.claim(asks, nonce=secrets.token_bytes(8), lease_us=60_000_000))

def say(text):
    print(text, flush=True)

def contend(ledger):
    return [
        int.from_bytes(ask.key, "big")
        for start in range(first, last, 25)
        for ask, answer in claim(ledger, range(start, start + 25))
        if answer.token
    ]

if task == "contend":
    ledgers = [opened() for _ in range(8)]
    say("ready")
    sys.stdin.readline()
    with ThreadPoolExecutor(8) as pool:
        say(json.dumps([number for won in pool.map(contend, ledgers) for number in won]))
elif task == "hold":
    ledger = opened()
    list(claim(ledger, [first]))
    say("claimed")
    sys.stdin.readline()
else:
    ledger = opened()
    for number in range(first, last):
        ((ask, answer),) = claim(ledger, [number])
        ledger.settle([Settlement(Claim(ask, answer.token), Outcome.DONE)])
        say(number)
"""


@pytest.fixture
def path(tmp_path):
    """Return where the ledger of a test is."""
    return tmp_path / "once.db"


@contextmanager
def worker(path, task, first, last):
    """Start a process that works on the ledger, and end it with the test."""
    command = [sys.executable, "-c", WORKER, str(path), task, str(first), str(last)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("ran_out", [False, True])
def test_processes_share_one_file(path, ran_out):
    """Of eight processes with eight threads each, exactly one is granted each event, new or run out."""
    number_of_keys = 500
    with opened(path) as ledger:
        asks = [Ask(key=key(number), alone=True) for number in range(number_of_keys)]
        ledger.claim(asks if ran_out else [], nonce=b"the dead", lease_us=1)
    with ExitStack() as stack:
        processes = [stack.enter_context(worker(path, "contend", 0, number_of_keys)) for _ in range(8)]
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 8
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        won = [json.loads(process.stdout.readline()) for process in processes]
    assert Counter(number for numbers in won for number in numbers) == dict.fromkeys(range(number_of_keys), 1)
    assert is_sound(path)


def test_a_killed_worker_is_taken_over_from(path):
    """What a process held when it was killed is busy until its lease is over, then somebody else's, and done once."""
    with worker(path, "hold", 1, 1) as process:
        assert process.stdout.readline() == "claimed\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert is_sound(path)
    with opened(path) as now, opened(path, SkewedClock(SystemClock(), LEASE_US / 1_000_000 + 1)) as later:
        assert verdict(now, 1) is Verdict.BUSY
        held = take(later, 1)
        assert later.settle([Settlement(held, Outcome.DONE)]) == [True]
        assert verdict(now, 1) is Verdict.REPUBLISH


def test_a_worker_killed_at_work_leaves_a_sound_ledger(path):
    """Whatever a process had settled when it was killed stays settled, and what it had not is to be had."""
    for first in (0, 1000, 2000):
        with worker(path, "work", first, first + 1000) as process:
            for _ in range(20):
                process.stdout.readline()
            process.kill()
            told = first + 19 + len(process.stdout.readlines())
        assert is_sound(path)
        with opened(path, SkewedClock(SystemClock(), LEASE_US / 1_000_000 + 1)) as ledger:
            assert {verdict(ledger, number) for number in range(first, told + 1)} == {Verdict.REPUBLISH}
            assert verdict(ledger, told + 2) is Verdict.FRESH
