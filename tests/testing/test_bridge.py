"""The bridge for tests of handlers: it raises what they raise, waits for nothing, and does all else as usual."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress

import pytest
from msgspec.structs import replace

from oncebridge import Bridge, ConfigurationError, PermanentError, RetryLater, Settings
from oncebridge.claim import Status
from oncebridge.retry import RetryPolicy
from oncebridge.settings.sinks.webhook import WebhookSettings
from oncebridge.testing import (
    LambdaContext,
    ManualClock,
    TestBridge,
    event_of,
    message_id,
    republish,
    sample_event,
    sqs_event,
)

ACW = "v2.detail.events.conversation.{id}.acw"
PRESENCE = "v2.users.{id}.presence"

pytest_plugins = ["oncebridge.testing.pytest_plugin"]


def plain(event):
    """Fail at once."""
    raise ZeroDivisionError("plain")


async def asynchronous(event):
    """Fail later."""
    await asyncio.sleep(0)
    raise ZeroDivisionError("asynchronous")


def in_transaction(event, transaction):
    """Fail after writing."""
    transaction.execute("CREATE TABLE effect (key TEXT)")
    raise ZeroDivisionError("in a transaction")


class Callable:
    """Fail in a method."""

    def __call__(self, event):
        """Fail at once."""
        raise ZeroDivisionError("callable")


HANDLERS = [plain, asynchronous, in_transaction, Callable(), lambda event: 1 / 0]


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_raises_reaches_the_test(bridge_for, handler):
    """The very exception comes out of `process`, with the handler in its traceback; the event is to be retried."""
    bridge = bridge_for()
    bridge.on("*")(handler)
    with pytest.raises(ZeroDivisionError) as raised:
        bridge.process(sample_event(ACW))
    assert bridge.errors == [raised.value]
    assert raised.traceback[-1].path.name == "test_bridge.py"
    (result,) = bridge.results
    assert result.outcome == "retry"


@pytest.mark.parametrize(
    ("error", "outcome"), [(PermanentError("never"), "dead"), (RetryLater(after_seconds=30), "retry")]
)
def test_raised_on_purpose_is_raised_too(bridge_for, error, outcome):
    """A test sees that its handler gave up or wants a pause; the result is there to look at."""

    def handle(event):
        raise error

    bridge = bridge_for()
    bridge.on("*")(handle)
    with pytest.raises(type(error)):
        bridge.process(sample_event(ACW))
    assert bridge.results[-1].outcome == outcome


def test_several_errors_are_a_group(bridge_for):
    """When more than one delivery of a batch fails, the test gets all errors of this batch, and no others."""
    bridge = bridge_for()
    bridge.on(PRESENCE)(plain)
    bridge.on(ACW)(asynchronous)
    with pytest.raises(ExceptionGroup) as raised:
        bridge.process_many([sample_event(ACW), sample_event(PRESENCE)])
    assert [str(error) for error in raised.value.exceptions] == ["asynchronous", "plain"]
    with pytest.raises(ZeroDivisionError, match="plain"):
        bridge.process(sample_event(PRESENCE))


def test_an_error_of_the_commit_is_raised_too(bridge_for):
    """What fails after the handler has returned, such as a statement that ended the transaction, reaches the test."""
    bridge = bridge_for()

    @bridge.on("*")
    def handle(event, transaction):
        with suppress(sqlite3.IntegrityError):
            transaction.execute("INSERT OR ROLLBACK INTO effect VALUES (NULL)")

    with bridge.database() as db:
        db.execute("CREATE TABLE effect (name TEXT NOT NULL)")
    with pytest.raises(PermanentError, match="ended its transaction"):
        bridge.process(sample_event(ACW))


def test_an_assertion_in_a_handler_fails_the_test(bridge_for):
    """A test may check an event where it arrives."""

    def handle(event):
        assert event.conversation_id == "another"

    bridge = bridge_for()
    bridge.on("*")(handle)
    with pytest.raises(AssertionError):
        bridge.process(sample_event(ACW, conversation_id="c-1"))


def test_handlers_of_a_program_are_tested_away_from_its_ledger(bridge_for, tmp_path):
    """Names, topics, permanent errors and policies are the program's; its ledger and sinks are not touched."""
    settings = Settings(
        sinks=(WebhookSettings(name="crm", url="https://crm.example/events", topics=("*",)),),
        dead_letter_queue="https://sqs.eu-central-1.amazonaws.com/123456789012/dead",
        unhandled="dead",
        hide_until_retry=True,
        shadow=True,
    )
    program = Bridge(f"sqlite:///{tmp_path}/once.db", settings=settings)
    program.on(ACW, name="board", permanent=(ZeroDivisionError,))(plain)
    program.on(PRESENCE, name="slow", retry=RetryPolicy(attempts=2))(in_transaction)
    bridge = bridge_for(program)
    assert [(one.pattern, one.name) for one in bridge.handlers] == [(ACW, "board"), (PRESENCE, "slow")]
    assert [result.outcome for result in bridge.deliver(sample_event(ACW))] == ["dead"]
    assert [result.outcome for result in bridge.deliver(sample_event(PRESENCE))] == ["retry", "dead"]
    assert (bridge.settings.unhandled, bridge.settings.hide_until_retry) == ("dead", False)
    assert [*tmp_path.iterdir()] == []


def test_a_function_under_two_topics_is_one_handler(bridge_for):
    """An event that two patterns of one function take is given to it once, as in production."""
    seen = []

    def handle(event):
        seen.append(event.key)

    bridge = bridge_for()
    bridge.on(ACW)(handle)
    bridge.on("v2.detail.*")(handle)
    bridge.process(sample_event(ACW))
    assert len(seen) == 1


def test_what_cannot_be_a_handler_is_refused(bridge_for):
    """A wrong signature is refused by a bridge for tests as by any other."""
    with pytest.raises(ConfigurationError):
        bridge_for().on("*")(lambda: None)


def test_a_url_in_the_place_of_the_bridge_is_explained():
    """A ledger as the first argument is refused with the right call, and without the password in it."""
    with pytest.raises(ConfigurationError, match="ledger=") as raised:
        TestBridge("postgresql://bridge:secret@db/crm")
    assert "secret" not in str(raised.value)


def test_other_settings_leave_it_a_bridge_for_tests(bridge_for):
    """A bridge that is rewired raises what its handlers raise, as before."""
    bridge = bridge_for()
    bridge.on("*")(plain)
    bridge.rewire(Settings(concurrency=2))
    with pytest.raises(ZeroDivisionError):
        bridge.process(sample_event(ACW))


def test_delivered_until_it_is_done(bridge_for):
    """A failing event is delivered again when it is due, on the bridge's clock, until it is done."""
    times = []

    def handle(event):
        times.append(bridge.clock.now_us())
        if event.attempt < 3:
            raise RetryLater("later", after_seconds=3600)

    bridge = bridge_for()
    bridge.on("*")(handle)
    began = time.monotonic()
    results = bridge.deliver(sample_event(ACW))
    assert time.monotonic() - began < 60
    assert [result.outcome for result in results] == ["retry", "retry", "done"]
    assert times[1] - times[0] >= 3_600_000_000
    assert bridge.process(republish(sample_event(ACW))).verdict == "republish"


def test_a_poison_event_becomes_a_dead_letter(bridge_for):
    """An event that fails at every attempt is a dead letter in the end, and can be redriven."""
    bridge = bridge_for()
    bridge.on("*")(plain)
    results = bridge.deliver(sample_event(ACW))
    assert results[-1].outcome == "dead"
    assert [letter.topic for letter in bridge.dead_letters.list()] == [ACW]


def test_a_lambda_function_answers_as_in_production(bridge_for):
    """`lambda_handler` names the failed message and raises nothing; the error is there to look at."""
    bridge = bridge_for()
    bridge.on("*")(plain)
    event = sample_event(ACW)
    answer = bridge.lambda_handler(sqs_event(event), LambdaContext())
    assert answer == {"batchItemFailures": [{"itemIdentifier": message_id(event)}]}
    assert [str(error) for error in bridge.errors] == ["plain"]


def test_tables_for_handlers(bridge_for, tmp_path):
    """A test makes the tables that a handler expects, and looks at them afterwards."""
    bridge = bridge_for()

    @bridge.on(PRESENCE)
    def show(event, transaction):
        presence = event.body["presenceDefinition"]["systemPresence"]
        transaction.execute("INSERT OR REPLACE INTO board VALUES (?, ?)", (event.entity, presence))

    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        bridge.process(sample_event(PRESENCE))
    with bridge.database() as db:
        db.executescript("CREATE TABLE board (person TEXT PRIMARY KEY, presence TEXT)")
    for n, presence in enumerate(("BUSY", "AWAY"), 1):
        bridge.process(sample_event(PRESENCE, n, user_id="anna", presenceDefinition={"systemPresence": presence}))
    with bridge.database() as db:
        assert db.execute("SELECT presence FROM board").fetchall() == [("AWAY",)]
    with pytest.raises(ConfigurationError, match="not in memory"):
        bridge_for(ledger=f"sqlite:///{tmp_path}/once.db").database()


def test_another_ledger_may_be_given(bridge_for, tmp_path):
    """What is tested on memory can be tested on the ledger of production."""
    bridge = bridge_for(ledger=f"sqlite:///{tmp_path}/once.db")

    @bridge.on("*")
    def insert(event, transaction):
        transaction.execute("CREATE TABLE effect AS SELECT 1")
        if event.attempt == 1:
            raise ZeroDivisionError

    assert [result.outcome for result in bridge.deliver(sample_event(ACW))] == ["retry", "done"]
    with closing(sqlite3.connect(tmp_path / "once.db")) as db:
        assert db.execute("SELECT * FROM effect").fetchall() == [(1,)]


def test_the_clock_decides_when_a_lease_ends(bridge_for):
    """An event that a dead worker held is free again when its lease is over, and no sooner."""
    seen = []
    clock = ManualClock()
    bridge = bridge_for(clock=clock)
    bridge.on("*")(seen.append)
    event = sample_event(ACW)
    bridge.process(event)
    ((at, record),) = bridge.ledger.records.items()
    until_us = clock.now_us() + 60_000_000
    bridge.ledger.records[at] = replace(record, status=Status.CLAIMED, nonce=b"dead", lease_until_us=until_us)
    assert bridge.process(event).verdict == "busy"
    clock.advance(61)
    assert bridge.process(event).verdict == "fresh"


def test_an_event_for_a_function_alone():
    """A handler can be called by itself, with the event that a bridge would give it."""
    event = event_of(sample_event(ACW, conversation_id="c-1", wrapupCode="sold"))
    assert (event.topic, event.conversation_id, event.body["wrapupCode"]) == (ACW, "c-1", "sold")
    assert (event.attempt, event.key[:4]) == (1, "ob1_")
    with pytest.raises(ValueError, match="no handler would get this"):
        event_of(b"no json")


def test_a_captured_event_of_today_is_not_from_the_future(bridge_for):
    """Newest wins among events of this very moment, as they are captured while a test is written."""
    now_ms = time.time_ns() // 1_000_000
    bridge = bridge_for()
    bridge.on("*")(lambda event: None)
    at = [sample_event(PRESENCE, n, user_id="anna", time=now_ms - 1000 * n) for n in (1, 2)]
    assert [bridge.process(event).verdict for event in at] == ["fresh", "stale"]


def test_the_plugin_is_used_as_the_docs_say(tmp_path):
    """With one line in conftest.py a test has the fixture, and importing `TestBridge` makes no test of it."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["oncebridge.testing.pytest_plugin"]\n')
    (tmp_path / "test_app.py").write_text(
        "from oncebridge.testing import TestBridge, sample_event\n\n"
        "def test_it(bridge_for):\n"
        "    assert isinstance(bridge_for(), TestBridge)\n"
        f"    assert bridge_for().process(sample_event({ACW!r})).verdict == 'unhandled'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "."]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in ran.stdout
