"""A handler's own exception: in the result, the log and the reason; bounded, without secrets, and forgotten again."""

import gc
import json
import logging
import signal
import threading
import weakref

import msgspec
import pytest

from oncebridge import Bridge, PermanentError, RetryLater, Settings
from oncebridge.engine.error_text import DETAIL_MAX, REASON_MAX
from oncebridge.settings.secrets import Secret
from oncebridge.settings.sinks.webhook import WebhookSettings
from oncebridge.telemetry import JSONFormatter, Telemetry
from oncebridge.telemetry.failures import FAILURES_PER_MINUTE, LETTERS_PER_MINUTE, MINUTE_US
from oncebridge.testing.clock import ManualClock
from payloads import ACW, AUDITS, PRESENCE, TIME_MS, envelope
from servers.process import wait_until

PHONE = "+44 7700 900123"
PATIENCE_SECONDS = 60


class Oops(Exception):
    """A handler's own error; unlike those of Python it can be referred to weakly."""


def fact(number):
    """Make a delivery of an event that no other number has."""
    return envelope(ACW, {"eventTime": TIME_MS + number})


def divide(_event):
    """Fail in a line that the log can name."""
    raise Oops(PHONE)


LINE = divide.__code__.co_firstlineno + 2


@pytest.fixture
def bridge():
    """Make bridges in memory."""
    made = []

    def make(handler=None, clock=None, **settings):
        bridge = Bridge(settings.pop("ledger", "memory://"), settings=Settings(**settings), clock=clock)
        if handler is not None:
            bridge.on("*")(handler)
        made.append(bridge)
        return bridge

    yield make
    for one in made:
        one.close()


def warnings_in(caplog):
    """Return the warnings, each as people read it."""
    formatter = logging.Formatter("%(message)s")
    return [formatter.format(record) for record in caplog.records if record.levelno == logging.WARNING]


# --- in the result ----------------------------------------------------------------------------------------------


def test_the_result_has_the_exception_itself(bridge):
    """`result.error` is what the handler raised, with its traceback; a success has none."""
    seen = []

    def handle(_event):
        error = Oops("once")
        if not seen:
            seen.append(error)
            raise error

    program = bridge(handle)
    first = program.process(fact(1))
    assert (first.outcome, first.error) == ("retry", seen[0])
    assert first.error.__traceback__ is not None
    assert program.process(fact(1)).error is None
    assert program.process(fact(1)).error is None


@pytest.mark.parametrize("concurrency", [1, 4])
def test_each_delivery_has_its_own_exception(bridge, concurrency):
    """In a batch, in threads too, each result has the error of its own event; copies of an event share it."""

    def handle(event):
        if (event.time_ms - TIME_MS) % 2:
            raise Oops(event.time_ms)

    numbers = [1, 2, 3, 3, 4]
    results = bridge(handle, concurrency=concurrency).process_many([fact(number) for number in numbers])
    assert [None if one.error is None else one.error.args[0] - TIME_MS for one in results] == [1, None, 3, 3, None]


def test_the_exceptions_of_async_handlers_and_chains_are_there(bridge):
    """An `async def` handler's error is its own, and so is that of one state in a chain."""

    async def handle(event):
        if event.time_ms == TIME_MS + 1:
            raise Oops("second")

    states = [envelope(PRESENCE, {"modifiedDate": f"2025-06-02T10:30:00.{123 + n}Z", "n": n}) for n in range(3)]
    results = bridge(handle).process_many(states)
    assert [type(one.error) for one in results] == [type(None), Oops, type(None)]


def test_a_handlers_exception_leaves_its_transaction(bridge, tmp_path):
    """With a `transaction` the result has the handler's own error, not the one that carries it out."""

    def handle(_event, transaction):
        transaction.execute("SELECT 1")
        raise Oops("in it")

    result = bridge(handle, ledger=f"sqlite:///{tmp_path}/once.db").process(fact(1))
    assert isinstance(result.error, Oops)


def test_the_error_is_that_of_the_handler_that_the_result_is_about(bridge):
    """Of several handlers the failed one decides the result, so its error is there."""
    program = bridge()
    program.on("*", name="well")(lambda _event: None)
    program.on("*", name="badly")(divide)
    assert isinstance(program.process(fact(1)).error, Oops)


def test_a_redrive_returns_the_exception(bridge):
    """A dead letter that fails again says how."""

    def handle(_event):
        raise PermanentError("no")

    program = bridge(handle)
    key = program.process(fact(1)).key
    assert isinstance(program.dead_letters.redrive(key).error, PermanentError)


def test_an_exception_is_neither_shown_nor_written(bridge):
    """The repr and the JSON of a result have nothing of its error."""
    result = bridge(divide).process(fact(1))
    shown = repr(result) + msgspec.json.encode(result).decode() + str(msgspec.structs.asdict(result))
    assert PHONE not in shown
    assert "Oops" in result.reason


def test_exceptions_are_forgotten_with_their_results(bridge):
    """Frames hold tasks, and errors hold frames: once nobody has the result, all of it is collected."""
    program, errors = bridge(), []

    def handle(_event):
        error = Oops("held?")
        errors.append(weakref.ref(error))
        raise error

    program.on("*")(handle)

    def caller():
        results = program.process_many([fact(1), fact(2)])
        assert all(one.error is not None for one in results)

    caller()
    gc.collect()
    assert [error() for error in errors] == [None, None]


def test_a_source_that_keeps_no_results_needs_no_garbage_collector(bridge):
    """`consume` and `process` drop exceptions at once: a failing handler does not pile up payloads."""
    program, errors = bridge(), []

    class Watched(Oops):
        def __init__(self):
            super().__init__()
            errors.append(weakref.ref(self))

    def handle(_event):
        raise Watched

    program.on("*")(handle)
    flow = program.open()
    gc.disable()
    try:
        flow.process([flow.read(fact(1))])
        assert [error() for error in errors] == [None]
    finally:
        gc.enable()


# --- the reason -------------------------------------------------------------------------------------------------


def test_the_text_of_a_permanent_error_is_the_reason(bridge):
    """It is written for people, so it is the reason of the result and of the dead letter."""

    def handle(_event):
        raise PermanentError("agent 7 has no\npayroll id")

    program = bridge(handle)
    result = program.process(fact(1))
    (letter,) = program.dead_letters.list()
    assert (result.reason, letter.reason) == ("agent 7 has no payroll id",) * 2


def test_the_text_of_retry_later_is_the_reason(bridge):
    """So is that of `RetryLater`, with the attempt."""

    def handle(_event):
        raise RetryLater("payroll is closed", after_seconds=5)

    assert bridge(handle).process(fact(1)).reason == "payroll is closed, at attempt 1 of 10; to be tried again"


@pytest.mark.parametrize("error", [PermanentError(), RetryLater(after_seconds=1)], ids=repr)
def test_without_a_text_the_class_is_the_reason(bridge, error):
    """The words that describe the class itself say nothing about an event."""

    def handle(_event):
        raise error

    assert f"handler raised {type(error).__name__}" in bridge(handle).process(fact(1)).reason


def test_a_given_reason_is_short_and_harmless(bridge):
    """It is one line of bounded length, whatever is in it, and a broken class cannot stop the event."""

    class Broken(PermanentError):
        def __str__(self):
            raise RuntimeError

    errors = [PermanentError("\x1b[2J\u202e" + "x" * 10**6 + "\ud800\x00"), Broken("x")]
    program = bridge(lambda _event: (_ for _ in ()).throw(errors.pop(0)))
    reasons = [result.reason for result in program.process_many([fact(1), fact(2)])]
    assert len(reasons[0]) <= REASON_MAX
    assert all(reason.isprintable() for reason in reasons)
    assert reasons[1] == "handler raised Broken, which is permanent"


# --- in the log -------------------------------------------------------------------------------------------------


def test_a_failure_is_a_warning_with_class_and_place(bridge, caplog):
    """The default log says which error, in which line, of which event; its message stays out."""
    caplog.set_level(logging.WARNING)
    result = bridge(divide).process(fact(1))
    (line,) = warnings_in(caplog)
    for said in ("divide", "Oops", f"test_failures.py:{LINE}", result.key, result.envelope_id):
        assert said in line
    assert PHONE not in line
    (record,) = caplog.records
    fields = json.loads(JSONFormatter().format(record))
    assert (fields["key"], fields["envelope_id"], fields["move"]) == (result.key, result.envelope_id, "failed")
    assert "error" not in fields


def test_log_errors_shows_message_traceback_and_causes(bridge, caplog):
    """With `log_errors` the log has everything that a programmer needs, in any format."""
    caplog.set_level(logging.WARNING)

    def handle(event):
        try:
            divide(event)
        except Oops as error:
            raise LookupError("no such agent") from error

    bridge(handle, log_errors=True).process(fact(1))
    (line,) = warnings_in(caplog)
    (record,) = caplog.records
    for text in (line, json.loads(JSONFormatter().format(record))["error"]):
        assert f"Oops: {PHONE}" in text
        assert "direct cause" in text
        assert "LookupError: no such agent" in text
        assert f"line {LINE}, in divide" in text


def test_a_dead_letter_is_a_warning_once_it_is_kept(bridge, caplog):
    """Each dead letter is said at the default level: unreadable ones too."""
    caplog.set_level(logging.WARNING)

    def handle(_event):
        raise PermanentError("the CRM refuses")

    bridge(handle, log_errors=True).process_many([fact(1), b"no event"])
    lines = warnings_in(caplog)
    assert sorted(line.startswith("dead letter: ") for line in lines) == [True, True]
    assert sum("the CRM refuses" in line and "Traceback" in line for line in lines) == 1


def test_an_error_cannot_forge_a_log_line(bridge, caplog):
    """Line breaks and control characters of an error stay inside its own lines."""
    caplog.set_level(logging.WARNING)

    def handle(_event):
        raise Oops("\n2026-01-01 ERROR forged\x1b[2J\u202e\x00\ud800")

    bridge(handle, log_errors=True).process(fact(1))
    (text,) = warnings_in(caplog)
    first, *rest = text.split("\n")
    assert first.isprintable()
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    (record,) = caplog.records
    assert JSONFormatter().format(record).isprintable()


def test_the_log_of_an_error_is_bounded(bridge, caplog):
    """A message of a million characters is cut in its middle: cause and error are still there."""
    caplog.set_level(logging.WARNING)

    def handle(_event):
        raise LookupError("x" * 10**6 + " last") from Oops("first")

    program = bridge(handle, log_errors=True)
    program.process(fact(1))
    (text,) = warnings_in(caplog)
    assert len(text) < DETAIL_MAX * 1.5
    assert "Oops: first" in text
    assert "characters left out" in text
    assert text.endswith("x last")


def test_secrets_of_the_settings_are_in_no_error(bridge, caplog):
    """A handler that quotes a secret of the settings does so in vain: neither log nor dead letter has it."""
    caplog.set_level(logging.WARNING)
    ledger = "redis://user:s%40cret-1@cache.internal:6379/0?token=s@cret-2"
    sink = WebhookSettings(name="crm", topics=(AUDITS,), url="https://x.example/a", bearer=Secret("env:A", "s@cret-3"))
    secrets = ["s%40cret-1", "s@cret-1", "s@cret-2", "s@cret-3", "s@cret-4-of-some-length"]

    def handle(_event):
        raise PermanentError(" ".join(secrets)) from Oops(*secrets)

    settings = Settings(ledger=ledger, secret=b"s@cret-4-of-some-length", sinks=(sink,), log_errors=True)
    program = bridge(ledger="memory://")
    program.rewire(settings)
    program.on(ACW)(handle)
    result = program.process(fact(1))
    (letter,) = program.dead_letters.show(result.key)
    shown = "\n".join([*warnings_in(caplog), result.reason, letter.reason, letter.detail])
    assert "[secret]" in shown
    assert [secret for secret in secrets if secret in shown] == []


class Needing(logging.Handler):
    """A program's own log, which needs a lock that the program may hold."""

    def __init__(self, lock):
        """Take the lock."""
        super().__init__()
        self._lock_of_program, self.messages = lock, []

    def emit(self, record):
        """Note a message, under the lock."""
        with self._lock_of_program:
            self.messages.append(record.getMessage())


@pytest.fixture
def needing():
    """Log to a handler that needs a lock; return both."""
    lock = threading.RLock()
    handler = Needing(lock)
    logging.getLogger("oncebridge").addHandler(handler)
    yield lock, handler
    logging.getLogger("oncebridge").removeHandler(handler)


def test_a_lock_that_the_caller_holds_does_not_stop_its_batch(bridge, needing):
    """A program may call the bridge under a lock that its own log needs: the line is written once it is free."""
    lock, handler = needing
    program = bridge(divide)
    with lock:
        assert program.process(fact(1)).outcome == "retry"
        assert handler.messages == []
    wait_until(lambda: handler.messages, "the failure is logged")


def test_an_interrupt_while_a_failure_is_logged_leaves_the_log_usable(bridge, needing):
    """An exception from a signal strikes the caller, and not the thread that holds the log's own lock."""
    lock, handler = needing
    program = bridge(divide)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    lock.acquire()  # so that the line is still being written when the signal comes
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            program.process(fact(1))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        lock.release()
    wait_until(lambda: handler.messages, "the failure is logged")
    free = []
    asking = threading.Thread(target=lambda: free.append(handler.lock.acquire(timeout=PATIENCE_SECONDS)))
    asking.start()
    asking.join()
    assert free == [True]


def test_only_the_first_failures_of_a_minute_are_logged_and_the_rest_counted(bridge, caplog):
    """A failing handler does not fill the log; the next minute begins with how many there were."""
    caplog.set_level(logging.WARNING)
    clock = ManualClock()
    program = bridge(divide, clock)
    program.process_many([fact(number) for number in range(FAILURES_PER_MINUTE + 57)])
    assert len(warnings_in(caplog)) == FAILURES_PER_MINUTE
    clock.advance(MINUTE_US / 1_000_000)
    program.process(fact(1000))
    assert warnings_in(caplog)[-1].endswith("; 57 more like it since the last line")
    program.process_many([fact(number) for number in range(2000, 2000 + FAILURES_PER_MINUTE)])
    program.close()
    assert warnings_in(caplog)[-1] == "divide: 1 more failures (Oops) since the last such line"


def test_many_dead_letters_are_moves_like_any_other(caplog):
    """Beyond the first of a minute dead letters are logged at level info; counters see each of them once."""
    caplog.set_level(logging.INFO)
    moves = []
    with Bridge("memory://", telemetry=Telemetry((moves.append,))) as program:
        program.on("*", permanent=(Oops,))(divide)
        program.process_many([fact(number) for number in range(LETTERS_PER_MINUTE + 5)])
        levels = [record.levelname for record in caplog.records if record.oncebridge.get("outcome") == "dead"]
    assert levels == ["WARNING"] * LETTERS_PER_MINUTE + ["INFO"] * 5
    assert sum(move.move == "settled" for move in moves) == len(levels)


def test_the_place_is_in_the_users_own_code(bridge, caplog):
    """An error from inside of a library is placed where the user's code called it."""
    caplog.set_level(logging.WARNING)

    def handle(_event):
        json.loads("{")

    bridge(handle).process(fact(1))
    (line,) = warnings_in(caplog)
    assert f"test_failures.py:{handle.__code__.co_firstlineno + 1}," in line
