"""Exceptions that are not a handler's failure, or that want to end more than the handler that raised them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress

import pytest

from oncebridge import Bridge, Settings
from oncebridge.claim import Status
from oncebridge.retry import RetryPolicy
from payloads import ACW, TIME_MS, envelope

ATTEMPTS = 3
SECONDS = 60


class Panic(BaseException):
    """What a Rust extension raises."""


def facts(number):
    """Build so many events that have nothing to do with each other."""
    return [envelope(ACW, {"eventTime": TIME_MS + n}, id=f"fact {n}") for n in range(number)]


def poisoned(error, way="plain"):
    """Make a handler that raises this at the event "fact 1", in one way or another, and notes all others."""
    done, calls = [], []

    def plain(event):
        calls.append((event.envelope.id, event.attempt))
        if event.envelope.id == "fact 1":
            raise error
        done.append(event.envelope.id)

    async def coroutine(event):
        await asyncio.sleep(0)
        plain(event)

    handle = plain if way == "plain" else coroutine
    return handle, done, calls


OWN = [Panic(), asyncio.CancelledError(), GeneratorExit(), SystemExit(3)]


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("way", ["plain", "async"])
@pytest.mark.parametrize("error", OWN, ids=repr)
def test_a_handler_that_ends_more_than_itself_has_failed_all_the_same(error, way, concurrency):
    """It is counted and raised; at the limit it is a dead letter, and what is behind it runs."""
    handle, done, calls = poisoned(error, way)
    settings = Settings(concurrency=concurrency, retry=RetryPolicy(attempts=ATTEMPTS))
    raised = 0
    with Bridge("memory://", settings=settings) as bridge:
        bridge.on("*")(handle)
        for _ in range(2 * ATTEMPTS):
            try:
                results = bridge.process_many(facts(4))
            except type(error):
                raised += 1
                assert Status.CLAIMED not in bridge.ledger.counts()
                assert bridge.books.as_dict()["balanced"]
        assert [result.acknowledged for result in results] == [True] * 4
        assert bridge.ledger.counts() == {Status.DONE: 3, Status.DEAD: 1}
        assert bridge.books.as_dict()["received"] == 4 * 2 * ATTEMPTS
    assert raised == ATTEMPTS
    assert [attempt for name, attempt in calls if name == "fact 1"] == [1, 2, 3]
    assert sorted(done) == ["fact 0", "fact 2", "fact 3"]


def test_a_lambda_function_tells_of_it_by_name():
    """In Lambda the event alone has failed: the runtime would be gone, and its neighbours with it."""
    handle, done, _ = poisoned(Panic())
    queue = {"eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:us-east-1:1:q"}
    records = [{**queue, "messageId": f"m{n}", "body": json.dumps(one)} for n, one in enumerate(facts(3))]
    with Bridge("memory://") as bridge:
        bridge.on("*")(handle)
        answer = bridge.lambda_handler({"Records": records})
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m1"}]}
    assert done == ["fact 0", "fact 2"]


HOOKS = """
import pathlib, sys

class Panic(BaseException):
    pass

def handle(event):
    with pathlib.Path("calls").open("a") as file:
        file.write(f"{event.envelope.id}\\n")
    if event.envelope.id == "fact 1":
        raise Panic
"""


def test_a_command_goes_on_after_it(tmp_path):
    """`process` tries it again as any other failure, and ends with a dead letter and everything else done."""
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "oncebridge.toml").write_text("[retry]\nattempts = 3\nbase_seconds = 0.01\n")
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, facts(4))))
    command = [sys.executable, "-m", "oncebridge", "process", "events.jsonl", "--handler", "hooks:handle", "--json"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    books = json.loads(ran.stdout)
    assert (books["dead"], books["processed"]) == (1, 3)
    assert (tmp_path / "calls").read_text().count("fact 1") == 3


# --- what a signal's handler raises -----------------------------------------------------------------------------


class Shutdown(BaseException):
    """What somebody's own signal handler raises."""


class Terminating:
    """A signal handler with a state, as servers have it."""

    def __init__(self, error):
        self._error = error

    def on_signal(self, number, frame):
        """Raise it."""
        raise self._error


def by_lambda(error):
    """Make a handler that does not name what it is given."""

    def fail():
        raise error

    return lambda *_: fail()


def that_unregisters(error):
    """Make a handler that lets a second signal end the process at once."""

    def handle(number, frame):
        signal.signal(number, signal.SIG_DFL)
        raise error

    return handle


@pytest.fixture
def on_term():
    """Set what handles SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("made", [lambda e: Terminating(e).on_signal, by_lambda, that_unregisters])
@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), Shutdown()], ids=repr)
@pytest.mark.parametrize("way", ["plain", "async", "side by side"])
def test_a_signal_ends_the_batch_and_costs_no_attempt(error, made, way, on_term):
    """What a signal's handler raises goes through; what was done is settled, the rest is given back untried."""
    on_term(made(error))
    attempts, sent = [], threading.Event()
    second = threading.Event()

    def terminate():
        second.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        sent.set()

    def handle(event):
        attempts.append((event.envelope.id, event.attempt))
        if len(attempts) == 2:
            second.set()
            sent.wait(SECONDS)

    async def coroutine(event):
        attempts.append((event.envelope.id, event.attempt))
        if len(attempts) == 2:
            second.set()
            await asyncio.sleep(SECONDS)

    helper = threading.Thread(target=terminate)
    settings = Settings(concurrency=2 if way == "side by side" else 1, settle_within_seconds=0)
    with Bridge("memory://", settings=settings) as bridge:
        bridge.on("*")(coroutine if way == "async" else handle)
        helper.start()
        with pytest.raises(type(error)):
            (bridge.process_many(facts(40)), sent.wait(SECONDS))  # it may be struck as late as there
        helper.join()
        counts = bridge.ledger.counts()
        assert Status.CLAIMED not in counts
        assert Status.RETRY not in counts
        results = bridge.process_many(facts(40))
    assert {result.acknowledged for result in results} == {True}
    assert {attempt for _, attempt in attempts} == {1}


def test_an_alarm_in_a_handler_is_its_failure(on_term):
    """A signal's handler that raises an ordinary error ends the handler that it was set for, and counts."""

    class TookTooLong(Exception):
        pass

    on_term(by_lambda(TookTooLong()))
    with Bridge("memory://") as bridge:
        bridge.on("*")(lambda event: os.kill(os.getpid(), signal.SIGTERM))
        result = bridge.process(facts(1)[0])
    assert (result.outcome, "TookTooLong" in result.reason) == ("retry", True)


def test_a_coroutine_that_does_not_end_keeps_its_claim(on_term, monkeypatch):
    """An interrupt does not give back what its handler goes on with: that would be done twice at the same time."""
    monkeypatch.setattr("oncebridge.engine.loop.CANCEL_SECONDS", 0.05)
    on_term(by_lambda(KeyboardInterrupt()))
    gate, began = threading.Event(), threading.Event()

    async def deaf(event):
        began.set()
        gate.wait(SECONDS)

    def terminate():
        began.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=terminate)
    with Bridge("memory://") as bridge:
        bridge.on("*")(deaf)
        helper.start()
        with suppress(KeyboardInterrupt):
            bridge.process_many(facts(2))
        assert bridge.ledger.counts() == {Status.CLAIMED: 1, Status.RELEASE: 1}
        gate.set()
    helper.join()


PROGRAM = """
import os, signal, sys
from oncebridge import Bridge

signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
bridge = Bridge("sqlite:///once.db")

@bridge.on("*")
def handle(event):
    print(event.envelope.id, event.attempt, flush=True)
    if sys.argv[1] == "die" and event.envelope.id == "fact 1":
        os.kill(os.getpid(), signal.SIGTERM)

import json
results = bridge.process_many([json.loads(line) for line in open("events.jsonl")])
print(sorted(result.column for result in results))
"""


def test_a_program_that_is_terminated_ends_and_loses_nothing(tmp_path):
    """SIGTERM ends the program with the code that its handler gave; the next run goes on where it ended."""
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, facts(4))))

    def run(how):
        command = [sys.executable, "program.py", how]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
        return ran.returncode, ran.stdout.splitlines()

    assert run("die") == (7, ["fact 0 1", "fact 1 1"])
    processed = "['processed', 'processed', 'processed', 'redelivery']"
    assert run("live") == (0, ["fact 1 1", "fact 2 1", "fact 3 1", processed])
