"""In AWS' own emulator of Lambda's runtime: cold starts, timeouts and crashes, with a ledger in a real server.

However an invocation ends, what it brought takes effect once, sooner or later, or is kept as a dead letter.
"""

import json
from collections import Counter

import pytest

from lambda_function import fact
from servers.lambda_runtime import running_function
from servers.process import wait_until
from servers.receiver import running_receiver
from shapes import message, records

pytestmark = [pytest.mark.root]

SECONDS = 100  # of an invocation that is not meant to be cut off: on a busy machine a cold start takes long

#: A function that does with each event what its body says, and writes down what it did where no ledger can touch it.
APP = '''\
import os
import time
from pathlib import Path

from oncebridge import Bridge

bridge = Bridge.from_settings()


def note(name, event):
    with open(name, "a") as file:
        file.write(f"{event.body['number']}\\n")


def for_the_first_time(event):
    """Tell whether this was not done before, in this process or another."""
    path = Path(f"began-{event.body['number']}")
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fail(event):
    raise ValueError(f"no luck with {event.body}")


def hang_once(event):
    if for_the_first_time(event):
        time.sleep(60)


def die_once(event):
    if for_the_first_time(event):
        os._exit(9)


def use_up_the_time(event):
    whole = context.get_remaining_time_in_millis()
    while context.get_remaining_time_in_millis() > whole / 5:
        time.sleep(0.01)


@bridge.on("*")
def act(event):
    note("tried", event)
    if event.body.get("does"):
        globals()[event.body["does"]](event)
    note("done", event)


def handler(event, given):
    global context
    context = given
    return bridge.lambda_handler(event, given)
'''


class Runner:
    """Runs functions in a folder of their own, on a ledger of their own."""

    def __init__(self, folder, ledger):
        """Take both."""
        self.folder = folder
        (folder / "app.py").write_text(APP)
        self.environment = {
            "ONCEBRIDGE_LEDGER": ledger,
            "ONCEBRIDGE_LEASE_SECONDS": "1",
            "ONCEBRIDGE_SETTLE_WITHIN_SECONDS": "0",  # so that a crash repeats one effect at most
        }

    def function(self, seconds=SECONDS, handler="app.handler", **environment):
        """Run one that is cut off after so many seconds."""
        return running_function(self.folder, handler, seconds, self.environment | environment)

    def noted(self, name):
        """Count what the function wrote down, by event."""
        path = self.folder / name
        return Counter(int(line) for line in path.read_text().splitlines()) if path.exists() else Counter()


@pytest.fixture
def runner(tmp_path, valkey):
    """Run functions on an empty ledger."""
    with valkey.client() as client:
        client.flushdb()
    return Runner(tmp_path, valkey.url)


def event(number, /, **body):
    """Make an event that says what is to be done with it."""
    return fact(number, number=number, **body)


def batch(*events):
    """Write a batch of a queue, with messages named after their events."""
    return records(*[message(json.dumps(one), str(one["detail"]["eventBody"]["number"])) for one in events])


def failures(answer):
    """Return the messages that an answer names; None where it is no such answer."""
    if not isinstance(answer, dict) or "batchItemFailures" not in answer:
        return None
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def is_warm(function):
    """Let a function start, so that the next invocation has all its time; tell whether that was not cut off."""
    return failures(function.invoke(batch(event(0)))) == []


def test_a_cold_function_takes_batches_and_single_events_once(runner):
    """From the first invocation on, and in a second function that starts cold, each event takes effect once."""
    with runner.function() as function:
        assert failures(function.invoke(batch(event(1), event(2)))) == []
        assert function.invoke(event(2))["redelivery"] == 1
        assert function.invoke(event(3))["processed"] == 1
    with runner.function() as function:
        assert failures(function.invoke(batch(event(1), event(2), event(3), event(4)))) == []
    assert runner.noted("done") == {1: 1, 2: 1, 3: 1, 4: 1}


def test_a_failed_invocation_is_repeated_by_lambda_until_the_third_is_a_dead_letter(runner):
    """Lambda is told by an error, without a word of the payload; when it would give up, the event is kept."""
    with runner.function() as function:
        for attempt in (1, 2):
            answer = function.invoke(event(1, does="fail"))
            assert answer["errorType"] == "NotAcknowledged"
            assert f"handler raised ValueError at attempt {attempt} of 3" in answer["errorMessage"]
        assert function.invoke(event(1, does="fail"))["dead"] == 1
        log = function.log.read_text()
    assert "NotAcknowledged" in log
    assert "no luck" not in log
    assert runner.noted("tried") == {1: 3}


def test_a_batch_that_takes_too_long_is_answered_before_it_is_cut_off(runner):
    """Near its end an invocation begins nothing more: what is done stays done, and the rest is handed back."""
    for seconds in (4, 20, 60):  # a machine may be too busy to answer within a fifth of the first
        first, *others = range(seconds, seconds + 4)
        long_batch = batch(event(first, does="use_up_the_time"), *[event(n, does="hang_once") for n in others])
        with runner.function(seconds) as function:
            named = failures(function.invoke(long_batch)) if is_warm(function) else None
        if named is not None:
            break
    assert named == [str(n) for n in others]
    assert runner.noted("done")[first] == 1
    assert not runner.noted("tried").keys() & set(others)


def test_an_invocation_that_hangs_is_cut_off_and_the_next_takes_over(runner):
    """What a handler never came back from is taken over once its lease is over."""
    hanging = batch(event(1, does="hang_once"))
    with runner.function(10) as function:
        wait_until(lambda: is_warm(function), "the function to be warm", seconds=180)
        assert "timed out" in function.invoke(hanging)
        assert runner.noted("done")[1] == 0
        wait_until(lambda: failures(function.invoke(hanging)) == [], "the event to be taken over")
    assert runner.noted("tried")[1] == 2
    assert runner.noted("done")[1] == 1


def test_a_crash_repeats_what_was_in_flight_and_no_more(runner):
    """A function that dies in a handler has done what it had done before; the rest is done by the next one."""
    deadly = batch(event(1), event(2, does="die_once"), event(3))
    with runner.function() as function:
        assert function.invoke(deadly)["errorType"] == "Runtime.ExitError"
        assert runner.noted("done") == {1: 1}
        wait_until(lambda: failures(function.invoke(deadly)) == [], "the batch to be done")
    assert runner.noted("done") == {1: 1, 2: 1, 3: 1}
    assert runner.noted("tried") == {1: 1, 2: 2, 3: 1}


def test_a_function_without_code_needs_settings_only(runner):
    """The ready-made handler sends each event to where the settings say, once."""
    with running_receiver() as receiver:
        with runner.function(handler="oncebridge.aws.handler", ONCEBRIDGE_DOWNSTREAM_URL=receiver.url) as function:
            assert failures(function.invoke(batch(event(1), event(2), event(1)))) == []
            assert function.invoke(event(2))["redelivery"] == 1
        with runner.function(handler="oncebridge.aws.handler", DOWNSTREAM_URL=receiver.url) as function:
            assert function.invoke(event(1))["redelivery"] == 1
        assert sorted(receiver.raw_effects.values()) == [1, 1]


def test_a_function_with_wrong_settings_says_so_at_each_invocation(runner):
    """What is missing is named every time, rather than once while the function starts."""
    with runner.function(handler="oncebridge.aws.handler") as function:
        for _ in range(2):
            answer = function.invoke(event(1))
            assert answer["errorType"] == "ConfigurationError"
            assert "ONCEBRIDGE_DOWNSTREAM_URL" in answer["errorMessage"]
