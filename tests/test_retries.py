"""How often an event is tried, and when: spread over hours, by one policy for all or by a handler's or sink's own."""

import random
from collections import Counter

import pytest

from oncebridge import Bridge, ConfigurationError, Outcome, RetryLater, RetryPolicy, Settings, retry
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings import load_settings
from oncebridge.sources.file import FileRun
from oncebridge.testing.clock import ManualClock
from payloads import ACW, PRESENCE, TIME_MS, envelope, raw, routing_status

HOUR_S = 3600.0
SINKS = """
[retry]
attempts = 20
[sinks.crm]
url = "https://crm.example/events"
[sinks.crm.retry]
cap_seconds = 60
[sinks.board]
url = "https://board.example/hook"
"""


def fail(_event):
    """Fail, for a reason that may pass."""
    raise ConnectionError


def total_seconds(policy):
    """Draw how long all attempts of one event take."""
    return sum(policy.delay_seconds(attempt) for attempt in range(1, policy.attempts))


# --- the curve --------------------------------------------------------------------------------------------------


def test_ten_attempts_take_hours(monkeypatch):
    """Unless set otherwise an event is tried for two hours at least, whatever chance says, and for five at most."""
    monkeypatch.setattr(retry, "_jitter", random.Random(12))
    totals = sorted(total_seconds(RetryPolicy()) for _ in range(2000))
    assert 2 * HOUR_S <= totals[0] <= totals[-1] <= 5 * HOUR_S
    assert totals[1000] == pytest.approx(3 * HOUR_S, rel=0.1)
    least, most = RetryPolicy().span_seconds
    assert least <= totals[0] <= totals[-1] <= most


def test_the_first_waits_are_short():
    """A receiver that stumbles is tried four times within a minute."""
    assert sum(RetryPolicy().ceiling_seconds(attempt) for attempt in (1, 2, 3)) < 60


def test_a_wait_keeps_half_of_its_longest():
    """Chance spreads workers, and makes no wait shorter than half of what it may be."""
    policy = RetryPolicy(base_seconds=10, growth=3, cap_seconds=50)
    assert [policy.ceiling_seconds(attempt) for attempt in (1, 2, 3, 1000)] == [10, 30, 50, 50]
    waits = [policy.delay_seconds(2) for _ in range(1000)]
    assert 15 <= min(waits) < 16
    assert 29 < max(waits) <= 30


# --- whose policy it is ---------------------------------------------------------------------------------------------


def test_a_handler_has_its_own_policy():
    """A handler's policy counts for it alone, in its attempts and its waits; the others have that of the settings."""
    with Bridge("memory://", settings=Settings(retry=RetryPolicy(attempts=3, base_seconds=100))) as bridge:
        bridge.on(ACW, retry=RetryPolicy(attempts=2, base_seconds=1000))(fail)
        bridge.on(PRESENCE)(fail)
        own = [bridge.process(envelope(ACW)) for _ in range(2)]
        usual = [bridge.process(envelope(PRESENCE)) for _ in range(3)]
    assert [result.outcome for result in own] == [Outcome.RETRY, Outcome.DEAD]
    assert [result.outcome for result in usual] == [Outcome.RETRY, Outcome.RETRY, Outcome.DEAD]
    assert 500_000_000 <= own[0].retry_in_us <= 1_000_000_000
    assert 50_000_000 <= usual[0].retry_in_us <= 100_000_000


def test_a_policy_stays_with_its_handler():
    """Commands take other settings for a program's bridge; its handlers keep their policies."""
    bridge = Bridge("memory://")
    bridge.on(ACW, retry=RetryPolicy(attempts=1))(fail)
    bridge.rewire(Settings(concurrency=2))
    assert bridge.process(envelope(ACW)).outcome is Outcome.DEAD
    bridge.close()


@pytest.mark.usefixtures("empty_workplace")
def test_a_sink_has_its_own_policy(tmp_path, monkeypatch):
    """`[sinks.NAME.retry]` says what is different at one sink, `[retry]` the rest, also where a variable says that."""
    (tmp_path / "oncebridge.toml").write_text(SINKS, encoding="utf-8")
    monkeypatch.setenv("ONCEBRIDGE_RETRY_BASE_SECONDS", "2")
    crm, board = load_settings().sinks
    assert crm.retry == RetryPolicy(attempts=20, base_seconds=2, cap_seconds=60)
    assert board.retry is None
    bridge = Bridge.from_settings(ledger="memory://")
    assert {handler.name: handler.retry for handler in bridge.handlers} == {"crm": crm.retry, "board": None}


@pytest.mark.usefixtures("empty_workplace")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attempts = 0", ["[sinks.crm.retry] attempts", "from 1 to 1000", "got 0"]),
        ("atempts = 3", ["[sinks.crm.retry] atempts", "did you mean attempts?"]),
        ("growth = 0.5", ["[sinks.crm.retry] growth", "from 1 to 10"]),
    ],
)
def test_a_wrong_policy_of_a_sink_is_refused(tmp_path, text, words):
    """The error names the sink, the setting, the value and the bounds."""
    table = f'[sinks.crm]\nurl = "https://crm.example/events"\n[sinks.crm.retry]\n{text}\n'
    (tmp_path / "oncebridge.toml").write_text(table, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (RetryPolicy(attempts=0), "retry attempts: expected a whole number from 1 to 1000, got 0"),
        (RetryPolicy(cap_seconds=float("nan")), "retry cap_seconds: expected a number from 0 to 86400, got nan"),
        ({"attempts": 3}, "retry: expected a RetryPolicy, such as RetryPolicy(attempts=3), got {'attempts': 3}"),
    ],
)
def test_a_wrong_policy_of_a_handler_is_refused(policy, words):
    """A policy that a program makes has the bounds of the settings, and is refused when the handler is registered."""
    with pytest.raises(ConfigurationError) as caught:
        Bridge("memory://").on(ACW, retry=policy)(fail)
    assert str(caught.value) == f"handler for {ACW!r}: {words}"


# --- files, which nobody redelivers -----------------------------------------------------------------------------


@pytest.fixture
def clock():
    """A clock that moves when told, or when somebody waits."""
    return ManualClock()


@pytest.fixture
def bridge(clock):
    """A bridge that tells time by that clock."""
    with Bridge(MemoryLedger(clock), clock=clock) as made:
        yield made


def facts(number):
    """Build so many events that have nothing to do with each other."""
    return [raw(envelope(ACW, {"eventTime": TIME_MS + n}, id=f"fact {n}")) for n in range(number)]


def seconds_since(clock, start_us):
    """Tell how much time has passed."""
    return (clock.monotonic_us() - start_us) / 1_000_000


def columns(run, deliveries):
    """Run a file to its end; return the column of each of its lines."""
    return [result.column for _, result in run.results(iter(deliveries))]


def test_a_file_does_not_wait_for_hours(bridge, clock):
    """A run ends where the next try is due more than a minute after the last; the rest is unsettled, and no letter."""
    attempts = []

    @bridge.on("*")
    def handle(event):
        attempts.append(event.attempt)
        if event.time_ms < TIME_MS + 3:
            raise ConnectionError

    start_us, run = clock.monotonic_us(), FileRun(bridge.open(), bridge.books)
    assert columns(run, facts(10)) == ["retrying"] * 3 + ["processed"] * 7
    assert seconds_since(clock, start_us) < 60
    assert not run.finished
    assert run.next_try_us > 60_000_000
    assert Counter(attempts) == {1: 10, 2: 3, 3: 3, 4: 3}
    assert list(bridge.dead_letters.list()) == []


def test_a_file_is_tried_for_as_long_as_waits_are_short(bridge, clock):
    """A policy of short waits is followed to its end, however long that takes in all."""
    bridge.on("*", retry=RetryPolicy(attempts=6, base_seconds=50, growth=1))(fail)
    start_us, run = clock.monotonic_us(), FileRun(bridge.open(), bridge.books)
    assert columns(run, facts(1)) == ["dead"]
    assert run.finished
    assert seconds_since(clock, start_us) >= 125


def test_the_first_long_wait_is_reported(bridge):
    """A run that waits for a second or more reports it once: how many wait, and for how long."""
    waits = []
    bridge.on("*", retry=RetryPolicy(attempts=3, base_seconds=50, growth=1))(fail)
    run = FileRun(bridge.open(), bridge.books, on_wait=lambda *wait: waits.append(wait))
    assert columns(run, facts(4)) == ["dead"] * 4
    ((number, wait_us),) = waits
    assert number == 4
    assert 25_000_000 <= wait_us <= 50_000_000


def test_short_waits_are_not_reported(bridge):
    """A wait that nobody notices is not worth a line."""
    waits = []
    bridge.on("*", retry=RetryPolicy(attempts=3, base_seconds=0.1, growth=1))(fail)
    run = FileRun(bridge.open(), bridge.books, on_wait=lambda *wait: waits.append(wait))
    assert columns(run, facts(1)) == ["dead"]
    assert waits == []


@pytest.mark.parametrize("rereadable", [True, False])
def test_a_pipe_is_read_to_its_end(bridge, monkeypatch, rereadable):
    """Where as many wait as may wait, a file is left for another run; a pipe is read on once one of them is tried."""
    monkeypatch.setattr("oncebridge.sources.file.WAITING_MAX", 2)

    @bridge.on("*")
    def handle(event):
        if event.attempt == 1:
            raise RetryLater(after_seconds=300)

    run = FileRun(bridge.open(), bridge.books, batch=2, rereadable=rereadable)
    turns, take = [], run._take
    monkeypatch.setattr(run, "_take", lambda lines: turns.append(1) or take(lines))
    found = columns(run, facts(5))
    assert found == (["retrying"] * 2 if rereadable else ["processed"] * 4 + ["retrying"])
    assert len(turns) < 20  # it waits, rather than look again and again


# --- states ---------------------------------------------------------------------------------------------------------


def test_a_failing_state_holds_up_no_newer_one(bridge):
    """While a state waits for hours the next of its entity is processed; the older one is stale when it is due."""
    older, newer = routing_status("IDLE", TIME_MS), routing_status("BUSY", TIME_MS + 60_000)

    @bridge.on("*", retry=RetryPolicy(base_seconds=3600))
    def handle(event):
        if event.time_ms == TIME_MS:
            raise ConnectionError

    assert bridge.process(older).retry_in_us >= 1800 * 1_000_000
    assert bridge.process(newer).outcome is Outcome.DONE
    assert bridge.process(older).verdict == "stale"
