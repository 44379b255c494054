"""Handlers: which events they get, how they are called, and what becomes of an event however they end."""

import asyncio
import functools
import itertools
import json
import logging
import sqlite3
import threading
from collections import Counter, deque
from contextlib import closing, suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from oncebridge import (
    Bridge,
    ConfigurationError,
    LedgerUnavailable,
    Outcome,
    PermanentError,
    RetryLater,
    Settings,
    Verdict,
)
from oncebridge.claim import Status
from oncebridge.handlers import overlap
from oncebridge.identity import key_bytes
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.retry import RetryPolicy
from oncebridge.telemetry import JSONFormatter, Telemetry
from oncebridge.topics import topic_pattern
from payloads import (
    ABSENT,
    ACW,
    AUDITS,
    CANARIES,
    CONVERSATION,
    ENVELOPE_ID,
    PRESENCE,
    TIME_MS,
    USER,
    call_status,
    envelope,
    in_envelope,
    personal,
    presence,
    raw,
    routing_status,
    status_change,
)

LEASE_S = 30


class ManualClock:
    """A clock that moves when told. Whoever made it moves it by waiting; others wait until it has moved."""

    def __init__(self):
        """Start at a moment after every payload's."""
        self._us = 1_760_000_000_000_000
        self._owner = threading.get_ident()

    def now_us(self):
        """Return the time."""
        return self._us

    monotonic_us = now_us

    def advance(self, seconds):
        """Move on."""
        self._us += int(seconds * 1_000_000)

    def wait(self, stop, seconds):
        """Pass the time, or wait until it has passed."""
        if threading.get_ident() == self._owner:
            self.advance(seconds)
            return stop.is_set()
        until_us = self._us + int(seconds * 1_000_000)
        while self._us < until_us and not stop.wait(0.001):
            pass
        return stop.is_set()


class Died(BaseException):
    """The worker is gone: nothing after this happens."""


class Ledger(MemoryLedger):
    """A ledger in memory in which things go wrong on cue."""

    def __init__(self, clock=None):
        """Start with nothing wrong."""
        super().__init__(clock)
        self.alive = True
        self.extended = threading.Event()
        #: What to raise at the next calls of a verb, before or after it took effect; None lets a call pass.
        self.before = {"claim": [], "settle": []}
        self.after = {"claim": [], "settle": []}

    def claim(self, asks, **options):
        """Claim, unless something goes wrong."""
        return self._call("claim", lambda: MemoryLedger.claim(self, asks, **options))

    def settle(self, settlements):
        """Settle, unless something goes wrong."""
        if not self.alive:
            raise Died
        return self._call("settle", lambda: MemoryLedger.settle(self, settlements))

    def extend(self, claims, **options):
        """Extend, and tell."""
        kept = super().extend(claims, **options)
        self.extended.set()
        return kept

    def _call(self, verb, act):
        if self.before[verb]:
            raise self.before[verb].pop(0)
        result = act()
        if self.after[verb]:
            raise self.after[verb].pop(0)
        return result


@pytest.fixture
def clock():
    """A clock that moves when told."""
    return ManualClock()


@pytest.fixture
def ledger(clock):
    """A ledger in which things go wrong on cue."""
    return Ledger(clock)


@pytest.fixture
def make_bridge(ledger, clock):
    """Make bridges on the one ledger, as so many workers."""
    made = []

    def make(handler=None, *, telemetry=None, **settings):
        bridge = Bridge(ledger, clock=clock, telemetry=telemetry, settings=Settings(**settings))
        if handler is not None:
            bridge.on("*")(handler)
        made.append(bridge)
        return bridge

    yield make
    for bridge in made:
        bridge.close()


def facts(number):
    """Build so many events that have nothing to do with each other."""
    return [envelope(ACW, {"eventTime": TIME_MS + n}, id=f"fact {n}") for n in range(number)]


def ignore(event):
    """Take an event and be done."""


def failing(*errors):
    """Make a handler that raises these, one a call, and then succeeds; it notes the events it got."""

    def handle(event):
        handle.given.append(event)
        if len(handle.given) <= len(errors) and errors[len(handle.given) - 1] is not None:
            raise errors[len(handle.given) - 1]

    handle.given = []
    return handle


# --- which events a handler gets --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        (ACW, envelope(ACW), envelope(PRESENCE)),
        ("v2.detail.events.conversation.{conversationId}.acw", envelope(ACW), envelope(PRESENCE)),
        (f"v2.detail.events.conversation.{CONVERSATION}.acw", envelope(ACW), envelope(PRESENCE)),
        ("v2.users.{id}.*", envelope(PRESENCE), envelope(ACW)),
        (f"v2.users.{USER}.presence", envelope(PRESENCE), presence("BUSY", user="somebody-else")),
        ("v2.{any}.{id}.presence", envelope(PRESENCE), envelope(ACW)),
        ("*presence", envelope(PRESENCE), envelope(ACW)),
        ("conversation:call:status", call_status(), status_change()),
        ("conversation:*", call_status(), status_change()),
        ("Status Of Conversation", status_change(), call_status()),
        ("*", status_change(), None),
    ],
)
def test_pattern(pattern, taken, left):
    """A handler gets the events whose template or concrete topic name its pattern matches, and no others."""
    bridge, given = Bridge("memory://"), []
    bridge.on(pattern)(given.append)
    bridge.process_many([taken] if left is None else [taken, left])
    assert [event.body for event in given] == [taken["detail"].get("eventBody", taken["detail"])]
    bridge.close()


def test_event_tells_everything(make_bridge):
    """A handler is given the event with its key, topic, entity, time, body, envelope, conversation and claim."""
    handler = failing()
    bridge = make_bridge(handler)
    bridge.process_many([envelope(PRESENCE), envelope(ACW)])
    state, fact = handler.given
    assert (fact.topic, fact.time_ms, fact.conversation_id, fact.entity) == (ACW, TIME_MS, CONVERSATION, None)
    assert (fact.envelope.id, fact.attempt, fact.body["sessionId"]) == (
        ENVELOPE_ID,
        1,
        envelope(ACW)["detail"]["eventBody"]["sessionId"],
    )
    assert fact.token > 0
    assert (state.topic, state.time_ms, state.conversation_id) == (PRESENCE, TIME_MS, None)
    assert all(text.startswith("ob1_") for text in (fact.key, state.key, state.entity))


def test_handler_is_returned_as_it_is():
    """Registering a function leaves it as it was, so that it can be called and tested by itself."""
    assert Bridge("memory://").on("*")(ignore) is ignore


def test_handler_may_come_later(make_bridge):
    """A handler that is registered after the first delivery gets the ones that follow."""
    bridge, handler = make_bridge(), failing()
    bridge.process(facts(2)[0])
    bridge.on("*")(handler)
    bridge.process(facts(2)[1])
    assert len(handler.given) == 1


class Taker:
    """Something that takes events and is no function."""

    def __init__(self):
        """Start with none."""
        self.taken = []

    def __call__(self, event):
        """Take one."""
        self.taken.append(event)

    async def later(self, event):
        """Take one, at some time."""
        self.taken.append(event)


@pytest.mark.parametrize(
    "make",
    [
        lambda taker: taker,
        lambda taker: taker.__call__,
        lambda taker: taker.taken.append,
        lambda taker: taker.later,
        lambda taker: functools.partial(taker.later),
        lambda taker: functools.partial(setattr, taker, "taken"),
        lambda taker: lambda event, note="usual": taker.later(event),  # no async function, but it returns an awaitable
    ],
)
def test_anything_callable_is_a_handler(make, make_bridge):
    """Functions, methods, objects, partials and built-ins are handlers, whether they are async or not."""
    taker = Taker()
    result = make_bridge(make(taker)).process(envelope(ACW))
    assert result.outcome == "done"
    assert taker.taken


def test_builtin_without_signature_is_a_handler(make_bridge):
    """A built-in that does not tell its parameters is a handler like any other."""
    given = deque()
    assert make_bridge(given.append).process(envelope(ACW)).outcome == "done"
    assert len(given) == 1


# --- overlap ----------------------------------------------------------------------------------------------------

OVERLAPPING = [
    ("*", ACW), (ACW, ACW), (ACW, "v2.detail.*"), ("v2.*.acw", "v2.detail.*"), ("v2.users.{id}.presence", "v2.users.*"),
    ("v2.users.{id}.presence", "v2.{what}.{id}.presence"), (f"v2.users.{USER}.presence", PRESENCE), ("a*", "*b"),
]  # fmt: skip
APART = [
    (ACW, PRESENCE), (PRESENCE, "v2.users.{id}.presence.more"), (PRESENCE, "v2.users.a.b.presence"), ("a*", "b*"),
    ("conversation:a", "conversation:b"), ("v2.{id}", "v2."), ("x", "X"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), OVERLAPPING)
def test_overlap_is_refused(one, other):
    """Two handlers that could get one event need names of their own: else their claims are the same."""
    for first, second in ((one, other), (other, one)):
        bridge = Bridge("memory://")
        bridge.on(first)(ignore)
        with pytest.raises(ConfigurationError) as refused:
            bridge.on(second)([].append)
        assert all(repr(pattern) in str(refused.value) for pattern in (first, second))
        assert "name=" in str(refused.value)
        bridge.on(second, name="second")(ignore)
        with pytest.raises(ConfigurationError, match="'second'"):
            bridge.on(first, name="second")([].append)


@pytest.mark.parametrize(
    "deliver", [envelope(ACW), in_envelope(envelope(ACW)["detail"], detail_type="Acw")], ids=["one", "torn"]
)
def test_one_function_may_take_several_topics(deliver):
    """One function under one name gets an event once, by however many of its patterns it is meant; redriven too."""
    got, failing = [], [PermanentError()]

    def take(event):
        if failing:
            raise failing.pop()
        got.append(event)

    with Bridge("memory://") as bridge:
        for topic in (ACW, "v2.detail.*", "*", "Acw", f"v2.detail.events.conversation.{CONVERSATION}.acw"):
            bridge.on(topic, name="crm")(take)
        assert bridge.process(deliver).outcome is Outcome.DEAD
        letters = bridge.dead_letters
        (entry,) = letters.list()
        assert letters.redrive(entry).outcome is Outcome.DONE
        assert bridge.process(deliver).verdict is Verdict.REDELIVERY
    assert len(got) == 1


@pytest.mark.parametrize(("one", "other"), APART)
def test_no_overlap(one, other):
    """Handlers that never get the same event need no names."""
    bridge = Bridge("memory://")
    bridge.on(one)(ignore)
    bridge.on(other)(ignore)
    assert len(list(bridge.handlers)) == 2


PATTERNS = st.lists(st.sampled_from(["a", "b", ".", "{x}", "*"]), min_size=1, max_size=3).map("".join)
TOPICS = ["".join(letters) for length in range(1, 7) for letters in itertools.product("ab.", repeat=length)]


@given(PATTERNS, PATTERNS)
def test_overlap_is_exact(one, other):
    """Two patterns overlap exactly where some topic matches both."""
    first, second = topic_pattern(one), topic_pattern(other)
    shared = any(first.fullmatch(topic) and second.fullmatch(topic) for topic in ["", *TOPICS])
    assert overlap(one, other) is shared


def test_torn_event_reaches_both_its_handlers(make_bridge):
    """An event whose two names disagree goes to the handlers of both, and neither is taken for the other."""
    by_type, by_name = failing(), failing()
    bridge = make_bridge()
    bridge.on("Something Else")(by_type)
    bridge.on(PRESENCE)(by_name)
    bridge.process(envelope(PRESENCE, detail_type="Something Else"))
    assert (len(by_type.given), len(by_name.given)) == (1, 1)


# --- no handler -------------------------------------------------------------------------------------------------


def test_no_handler(make_bridge, ledger):
    """An event that no handler takes is unhandled: acknowledged, not remembered, and not called processed."""
    bridge = make_bridge()
    bridge.on(ACW)(ignore)
    result = bridge.process(envelope(PRESENCE))
    assert (result.verdict, result.outcome, result.column, result.acknowledged) == (
        "unhandled", None, "unhandled", True,
    )  # fmt: skip
    assert "no handler takes its topic" in result.reason
    assert ledger.counts() == {}
    handler = failing()
    bridge.on(PRESENCE)(handler)
    assert bridge.process(envelope(PRESENCE)).outcome == "done"
    assert len(handler.given) == 1


# --- how handlers end -------------------------------------------------------------------------------------------


class Unmendable(Exception):
    """An error of the user's own."""


PASSING = [
    ValueError("x"),
    OSError(),
    KeyError("x"),
    RetryLater(after_seconds=1),
    AssertionError(),
    StopIteration(),
]
PERMANENT = [
    PermanentError(),
    Unmendable("x"),
    type("Sub", (Unmendable,), {})(),
    type("Own", (PermanentError,), {})(),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_passing_error(error, make_bridge, ledger):
    """Whatever a handler raises is its failure: the event is not acknowledged, and the next delivery tries again."""
    handler = failing(error)
    bridge = make_bridge(handler)
    first = bridge.process(envelope(ACW))
    assert (first.verdict, first.outcome, first.acknowledged, first.column) == ("fresh", "retry", False, "retrying")
    assert type(error).__name__ in first.reason
    assert ledger.counts() == {Status.RETRY: 1}
    again = bridge.process(envelope(ACW))
    assert (again.verdict, again.outcome) == ("fresh", "done")
    assert [event.attempt for event in handler.given] == [1, 2]


@pytest.mark.parametrize("error", PERMANENT, ids=repr)
def test_permanent_error(error, make_bridge, ledger):
    """A permanent error makes a dead letter at once, which is acknowledged; it keeps raw and reason."""
    handler = failing(error)
    bridge = make_bridge()
    bridge.on("*", permanent=(Unmendable,))(handler)
    result = bridge.process(envelope(ACW))
    assert (result.outcome, result.acknowledged, result.column) == ("dead", True, "dead")
    (entry,) = ledger.get(key_bytes(result.key))
    assert (entry.status, entry.raw) == (Status.DEAD, raw(envelope(ACW)))
    assert type(error).__name__ in entry.reason
    again = bridge.process(envelope(ACW))
    assert (again.verdict, again.column) == ("redelivery", "redelivery")
    assert "dead letter" in again.reason
    assert len(handler.given) == 1


@pytest.mark.parametrize("attempts", [1, 3])
def test_attempts_have_a_limit(attempts, make_bridge):
    """After the last attempt the event is a dead letter."""
    handler = failing(*[OSError()] * 10)
    bridge = make_bridge(handler, retry=RetryPolicy(attempts=attempts))
    outcomes = [bridge.process(envelope(ACW)).outcome for _ in range(attempts)]
    assert outcomes == ["retry"] * (attempts - 1) + ["dead"]
    assert bridge.process(envelope(ACW)).verdict == "redelivery"
    assert len(handler.given) == attempts


def test_retries_keep_the_key_and_raise_the_token(make_bridge):
    """Every attempt has the same key, for receivers that remember it, and a higher token."""
    handler = failing(OSError(), OSError())
    bridge = make_bridge(handler)
    for _ in range(3):
        bridge.process(envelope(PRESENCE))
    assert len({event.key for event in handler.given}) == 1
    tokens = [event.token for event in handler.given]
    assert tokens == sorted(set(tokens))


def test_retry_later(make_bridge):
    """A handler that was told to stay away passes that on; other waits grow up to their cap."""
    bridge = make_bridge(failing(RetryLater(after_seconds=90)))
    assert bridge.process(envelope(ACW)).retry_in_us >= 90_000_000
    policy = RetryPolicy(base_seconds=2, growth=2, cap_seconds=5)
    assert [policy.ceiling_seconds(attempt) for attempt in (1, 2, 3, 1000)] == [2, 4, 5, 5]
    assert all(0 <= policy.delay_seconds(attempt) <= 5 for attempt in range(1, 100))


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """The URL of an empty ledger."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/once.db"


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e30, -5, 0])
def test_retry_later_at_odd_times(seconds, url):
    """However long a handler wants to stay away, it has only failed: the event comes again."""
    with Bridge(url) as bridge:
        bridge.on("*")(failing(RetryLater(after_seconds=seconds)))
        results = bridge.process_many(facts(2))
        assert [result.outcome for result in results] == ["retry", "done"]
        assert results[0].retry_in_us >= 0


class Speechless(Exception):
    """An error that cannot say what it is."""

    def __str__(self):
        """Fail."""
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [PermanentError("half a pair: \ud800"), PermanentError("\x00"), PermanentError("x" * 10**6), Speechless()],
    ids=type,
)
def test_odd_errors_are_kept(error, url):
    """Whatever an error says or cannot say, its event is kept as a dead letter and its neighbours are done."""
    with Bridge(url) as bridge:
        bridge.on("*", permanent=(Speechless,))(failing(error))
        results = bridge.process_many(facts(2))
        assert [result.outcome for result in results] == ["dead", "done"]
        (entry,) = bridge.ledger.get(key_bytes(results[0].key))
        assert (entry.status, entry.raw) == (Status.DEAD, raw(facts(1)[0]))


def test_reason_does_not_quote_the_error(make_bridge, ledger):
    """What an error says may quote the payload: it stays with the dead letter, where only a look at it shows it."""
    bridge = make_bridge()
    bridge.on("*", permanent=(Unmendable,))(failing(Unmendable(f"no such customer: {CANARIES['name']}")))
    result = bridge.process(envelope(ACW))
    (entry,) = ledger.get(key_bytes(result.key))
    assert CANARIES["name"] not in result.reason + entry.reason
    assert CANARIES["name"] in entry.detail


def test_interrupt_gives_claims_back(make_bridge, ledger):
    """An interrupt goes through; what was done stays done, everything else is given back and costs no attempt."""
    handler = failing(None, KeyboardInterrupt())
    bridge = make_bridge(handler)
    with pytest.raises(KeyboardInterrupt):
        bridge.process_many(facts(4))
    assert ledger.counts() == {Status.DONE: 1, Status.RELEASE: 3}
    assert bridge.books.as_dict()["retrying"] == 4
    results = make_bridge(handler).process_many(facts(4))
    assert [result.column for result in results] == ["redelivery"] + ["processed"] * 3
    assert {event.attempt for event in handler.given} == {1}


# --- async ------------------------------------------------------------------------------------------------------


def async_handler(*errors):
    """Make an async handler that raises these, one a call, and then succeeds."""
    plain = failing(*errors)

    async def handle(event):
        await asyncio.sleep(0)
        plain(event)

    handle.given = plain.given
    return handle


def test_async_handler(make_bridge):
    """An async handler is run for the user, and its errors are told apart like any other's."""
    handler = async_handler(None, OSError(), PermanentError())
    results = make_bridge(handler).process_many(facts(3))
    assert [result.outcome for result in results] == ["done", "retry", "dead"]


def test_async_handler_within_a_loop(make_bridge):
    """An async handler runs even where the caller is inside an event loop."""
    handler = async_handler()
    bridge = make_bridge(handler)

    async def main():
        return bridge.process(envelope(ACW))

    assert asyncio.run(main()).outcome == "done"
    assert len(handler.given) == 1


def test_async_handlers_share_a_loop(make_bridge):
    """Async handlers run in one loop, so that a client made in one call serves the next."""
    loops = []

    async def handle(event):
        loops.append(asyncio.get_running_loop())

    make_bridge(handle).process_many(facts(3))
    assert len(loops) == 3
    assert len(set(loops)) == 1


def test_async_handler_that_exits(ledger):
    """An async handler that wants to end the process may, once its attempt is counted; the loop goes on."""
    ended = []

    def work():
        for _ in range(2):
            try:
                ended.append([result.outcome for result in bridge.process_many(facts(2))])
            except SystemExit as error:
                ended.append(error.code)

    bridge = Bridge(ledger)
    bridge.on("*")(async_handler(SystemExit(3)))
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(5)
    assert not worker.is_alive(), "the bridge waits for ever"
    assert ended == [3, ["done", "done"]]
    bridge.close()


def test_async_handler_that_hangs(make_bridge):
    """An async handler is ended when its time is over."""

    async def hang(event):
        await asyncio.Event().wait()

    result = make_bridge(hang, handler_timeout_seconds=0.01).process(envelope(ACW))
    assert (result.outcome, "TimeoutError" in result.reason) == ("retry", True)


# --- several handlers -------------------------------------------------------------------------------------------


def test_named_handlers_are_independent(make_bridge):
    """Each handler of an event has its own claim, and a retry repeats only the one that failed."""
    first, second = failing(), failing(OSError())
    bridge = make_bridge()
    bridge.on("*")(first)
    bridge.on(ACW, name="second")(second)
    results = [bridge.process(envelope(ACW)) for _ in range(3)]
    assert [result.column for result in results] == ["retrying", "processed", "redelivery"]
    assert (len(first.given), len(second.given)) == (1, 2)
    assert first.given[0].key == second.given[0].key
    assert [event.attempt for event in second.given] == [1, 2]


@pytest.mark.parametrize(
    ("first", "second", "column"),
    [
        (None, None, "processed"),
        (None, OSError(), "retrying"),
        (None, PermanentError(), "dead"),
        (PermanentError(), OSError(), "retrying"),
        (PermanentError(), PermanentError(), "dead"),
    ],
)
def test_delivery_is_as_far_as_its_last_handler(first, second, column, make_bridge):
    """A delivery is acknowledged when each of its handlers is done or dead, and its worst end is told."""
    bridge = make_bridge()
    bridge.on("*")(failing(first))
    bridge.on("*", name="second")(failing(second))
    assert bridge.process(envelope(ACW)).column == column
    assert bridge.books.as_dict()["balanced"]


def test_named_handlers_have_their_own_states(make_bridge):
    """A handler that missed a state gets the next one, though for another it is an echo."""
    first, second = failing(), failing(OSError())
    bridge = make_bridge()
    bridge.on("*")(first)
    bridge.on("*", name="second")(second)
    bridge.process(routing_status("IDLE", TIME_MS, id="one"))
    bridge.process(routing_status("IDLE", TIME_MS + 100, id="two"))
    assert [event.envelope.id for event in first.given] == ["one"]
    assert [event.envelope.id for event in second.given] == ["one", "two"]


def test_new_name_starts_anew(make_bridge):
    """Under a new name every remembered event is fresh again, for that handler alone."""
    first, second = failing(), failing()
    make_bridge(first).process(envelope(ACW))
    bridge = make_bridge(first)
    bridge.on("*", name="late")(second)
    assert bridge.process(envelope(ACW)).column == "processed"
    assert (len(first.given), len(second.given)) == (1, 1)


# --- batches ----------------------------------------------------------------------------------------------------


def test_twins_follow_the_one_that_works(make_bridge):
    """Twins in a batch are one claim: the handler is called once, and all are acknowledged or none."""
    handler = failing(OSError())
    bridge = make_bridge(handler)
    twins = [envelope(ACW, id=name) for name in ("one", "one", "two")]
    results = bridge.process_many(twins)
    assert [result.column for result in results] == ["retrying"] * 3
    assert len(handler.given) == 1
    assert [result.verdict for result in bridge.process_many(twins)] == ["fresh", "redelivery", "republish"]
    assert len(handler.given) == 2


def test_failure_leaves_neighbours_alone(make_bridge):
    """One event that fails, or cannot be read, keeps no other of its batch from being processed."""
    handler = failing(None, OSError(), PermanentError())
    batch = facts(4)
    results = make_bridge(handler).process_many([batch[0], b"\xff", batch[1], batch[2], batch[3]])
    assert [result.column for result in results] == ["processed", "dead", "retrying", "dead", "processed"]


def test_poison_event_spends_no_attempts_of_its_neighbours(make_bridge, ledger, clock):
    """An event that kills its worker becomes a dead letter in the end, and costs its neighbours no attempt."""
    given = []

    def poisoned(event):
        given.append((event.envelope.id, event.attempt))
        if event.envelope.id == "fact 2":
            ledger.alive = False
            raise Died

    deaths, results = 0, []
    while not results and deaths < 20:
        ledger.alive = True
        bridge = make_bridge(poisoned, retry=RetryPolicy(attempts=3), settle_within_seconds=0)
        try:
            results = bridge.process_many(facts(5))
        except Died:
            deaths += 1
            clock.advance(LEASE_S + 1)
    columns = [result.column for result in results]
    assert columns == ["redelivery", "redelivery", "dead", "processed", "processed"]
    assert {attempt for name, attempt in given if name != "fact 2"} == {1}
    assert deaths == 1 + 3  # the first among others, which is nobody's fault
    assert "died or hung" in results[2].reason


def test_stop_gives_back_what_was_not_tried(make_bridge, ledger):
    """A bridge that is told to stop finishes the running handler and gives the rest back, at no cost."""
    handler = failing()

    def stop_at_second(event):
        handler(event)
        if len(handler.given) == 2:
            bridge.stop()

    bridge = make_bridge(stop_at_second)
    results = bridge.process_many(facts(4))
    assert [result.outcome for result in results] == ["done", "done", "release", "release"]
    assert [result.acknowledged for result in results] == [True, True, False, False]
    assert bridge.process(facts(5)[4]).outcome == "release"
    assert len(handler.given) == 2
    assert [entry.column for entry in make_bridge(handler).process_many(facts(4))][2:] == ["processed"] * 2
    assert {event.attempt for event in handler.given} == {1}


def test_stop_before_the_first_delivery(make_bridge):
    """A bridge that was stopped before its first delivery takes none."""
    handler = failing()
    bridge = make_bridge(handler)
    bridge.stop()
    assert bridge.process(envelope(ACW)).column == "retrying"
    assert handler.given == []


def test_one_handler_at_a_time(make_bridge):
    """Handlers run one at a time, in order of arrival, unless told otherwise."""
    given = []
    make_bridge(lambda event: given.append((threading.get_ident(), event.envelope.id))).process_many(facts(5))
    assert given == [(threading.get_ident(), f"fact {n}") for n in range(5)]


def test_several_handlers_at_once():
    """With a concurrency of four, four handlers run at once."""
    together = threading.Barrier(4)
    bridge = Bridge("memory://", settings=Settings(concurrency=4))
    bridge.on("*")(lambda event: together.wait(30))
    results = bridge.process_many(facts(8))
    assert [result.outcome for result in results] == ["done"] * 8
    bridge.close()


def test_effects_are_settled_as_they_finish(make_bridge, ledger, clock):
    """What a handler took more than a millisecond for is settled before the next handler starts."""
    done = []

    def slow(event):
        done.append(ledger.counts().get(Status.DONE, 0))
        clock.advance(0.002)

    make_bridge(slow).process_many(facts(4))
    assert done == [0, 1, 2, 3]


def test_empty_batch(make_bridge):
    """A batch of nothing is nothing."""
    assert make_bridge(ignore).process_many([]) == []


def test_conflict_is_a_dead_letter(make_bridge, ledger):
    """An event with another's id is kept as a dead letter of its own, and the one that was done stays done."""
    handler = failing()
    bridge = make_bridge(handler)
    other = envelope(AUDITS, {"action": "Delete"})
    first, conflict = bridge.process_many([envelope(AUDITS), other])
    assert (conflict.verdict, conflict.outcome, conflict.acknowledged) == ("conflict", "dead", True)
    assert first.key != conflict.key
    assert [entry.status for entry in ledger.get(key_bytes(first.key))] == [Status.DONE]
    (entry,) = ledger.get(key_bytes(conflict.key))
    assert (entry.status, entry.raw) == (Status.DEAD, raw(other))
    assert len(handler.given) == 1


def test_one_bridge_in_several_threads(url):
    """Threads may share a bridge: each event is handled once, whoever brings it."""
    calls, start = Counter(), threading.Barrier(4)

    def work():
        start.wait(30)
        for delivery in facts(10):
            bridge.process(delivery)

    with Bridge(url) as bridge:
        bridge.on("*")(lambda event: calls.update([event.envelope.id]))
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert set(calls.values()) == {1}
    books = bridge.books.as_dict()
    assert (books["processed"], books["redelivery"], books["balanced"]) == (10, 30, True)


def test_several_threads_open_a_bridge_once(ledger):
    """Threads that bring the first deliveries at once open the ledger once: a second flow would not hear of a stop."""
    opened, together = [], threading.Barrier(2)

    def slowly_open(secret):
        opened.append(secret)
        with suppress(threading.BrokenBarrierError):
            together.wait(0.1)  # lets another in, if another gets this far
        return MemoryLedger.open(ledger, secret)

    ledger.open = slowly_open
    bridge = Bridge(ledger)
    threads = [threading.Thread(target=bridge.open) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(opened) == 1


# --- leases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", [envelope(ACW), envelope(PRESENCE)], ids=["fact", "state"])
def test_long_handler_keeps_its_claim(delivery, make_bridge, ledger, clock):
    """While a handler works, its claim is extended in the background, so nobody else gets the event."""
    answers = []

    def long(event):
        for _ in range(5):  # more than one lease in all
            ledger.extended.clear()
            clock.advance(LEASE_S / 2)
            assert ledger.extended.wait(30)
        answers.append(other.process(delivery))

    other = make_bridge(ignore, busy_wait_seconds=0)
    result = make_bridge(long).process(delivery)
    assert [answer.verdict for answer in answers] == ["busy"]
    assert result.outcome == "done"


def test_waiting_events_keep_their_claims(make_bridge, ledger, clock):
    """Events that wait for their turn behind a long handler keep their claims too."""
    answers = []

    def long(event):
        if event.envelope.id == "fact 0":
            for _ in range(5):
                ledger.extended.clear()
                clock.advance(LEASE_S / 2)
                assert ledger.extended.wait(30)
            answers.append(other.process(facts(2)[1]).verdict)

    other = make_bridge(ignore, busy_wait_seconds=0)
    results = make_bridge(long).process_many(facts(2))
    assert answers == ["busy"]
    assert [result.outcome for result in results] == ["done", "done"]


@pytest.mark.parametrize("late", ["succeeds", "fails"])
@pytest.mark.parametrize("delivery", [envelope(ACW), envelope(PRESENCE)], ids=["fact", "state"])
def test_handler_past_its_time_loses_its_claim(delivery, late, make_bridge, clock):
    """A handler past its time is taken over, and however it ends then changes nothing."""
    tokens = []

    def endless(event):
        tokens.append(event.token)
        clock.advance(1000)
        tokens.append(None)
        assert other.process(delivery).outcome == "done"
        if late == "fails":
            raise PermanentError

    other = make_bridge(lambda event: tokens.append(event.token), busy_wait_seconds=0)
    result = make_bridge(endless, handler_timeout_seconds=900).process(delivery)
    assert (result.outcome, result.acknowledged, "taken over" in result.reason) == ("retry", False, True)
    assert tokens[0] < tokens[2]
    assert make_bridge(ignore).process(delivery).verdict == "redelivery"


@pytest.mark.parametrize(
    ("held", "delivery"),
    [
        (envelope(ACW), envelope(ACW)),
        (envelope(ACW), envelope(ACW, id="another")),
        (envelope(PRESENCE), envelope(PRESENCE)),
        (presence("BUSY", modified_ms=TIME_MS), presence("MEAL", modified_ms=TIME_MS + 5)),
    ],
    ids=["same delivery", "twin", "same state", "another state of the entity"],
)
def test_busy_is_waited_for_and_handed_back(held, delivery, make_bridge, clock):
    """What somebody else works on is waited for a while and then handed back, not acknowledged."""
    answers = []

    def hold(event):
        before_us = clock.monotonic_us()
        answers.append(other.process(delivery))
        answers.append((clock.monotonic_us() - before_us) / 1_000_000)

    other = make_bridge(ignore, busy_wait_seconds=2)
    assert make_bridge(hold).process(held).outcome == "done"
    answer, waited_seconds = answers
    assert (answer.verdict, answer.acknowledged, answer.column) == ("busy", False, "retrying")
    assert 2 <= waited_seconds < 3
    assert answer.retry_in_us > 0


def test_others_are_not_busy(make_bridge):
    """While one state is worked on, other entities and facts go on."""
    answers = []

    def hold(event):
        answers.extend(other.process_many([envelope(ACW), presence("BUSY", user="somebody-else")]))

    other = make_bridge(ignore)
    make_bridge(hold).process(envelope(PRESENCE))
    assert [answer.outcome for answer in answers] == ["done", "done"]


def test_work_comes_before_waiting(make_bridge):
    """Nobody waits for a busy event while holding one that was not tried."""
    order = []

    class Telling(ManualClock):
        def wait(self, stop, seconds):
            if threading.current_thread() is threading.main_thread():
                order.append("waits")
            return super().wait(stop, seconds)

    def hold(event):
        bridge = Bridge(one.ledger, clock=Telling(), settings=Settings(busy_wait_seconds=0.01))
        bridge.on("*")(lambda event: order.append(event.envelope.id))
        bridge.process_many(facts(3))
        bridge.close()

    one = make_bridge(hold)
    one.process(facts(3)[0])
    assert order[:3] == ["fact 1", "fact 2", "waits"]


def test_lost_claim_is_asked_for_again(make_bridge, ledger, clock):
    """An event whose claim was taken over before its turn is looked at again, and not handled twice."""
    given = []

    def slow(event):
        given.append(event.envelope.id)
        if event.envelope.id == "fact 0":
            clock.advance(1000)
            assert other.process(facts(2)[1]).outcome == "done"

    other = make_bridge(lambda event: given.append(f"other: {event.envelope.id}"), busy_wait_seconds=0)
    ledger.extend = lambda claims, **_: [False] * len(claims)
    results = make_bridge(slow).process_many(facts(2))
    assert results[1].verdict == "redelivery"
    assert given == ["fact 0", "other: fact 1"]


# --- a ledger in trouble ----------------------------------------------------------------------------------------

GONE = LedgerUnavailable("gone")


def test_ledger_out_of_reach(make_bridge, ledger):
    """With the ledger out of reach nothing is handled or acknowledged, and the bridge says so."""
    handler = failing()
    bridge = make_bridge(handler)
    ledger.before["claim"] = [GONE] * 3
    with pytest.raises(LedgerUnavailable):
        bridge.process_many(facts(2))
    assert handler.given == []
    books = bridge.books.as_dict()
    assert (books["received"], books["retrying"], books["balanced"]) == (2, 2, True)
    assert [result.outcome for result in bridge.process_many(facts(2))] == ["done", "done"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("delivery", [envelope(ACW), envelope(PRESENCE)], ids=["fact", "state"])
def test_lost_reply_of_a_claim(delivery, when, make_bridge, ledger):
    """A claim whose reply was lost is asked for again and is our own: one attempt, no duplicate."""
    handler = failing()
    getattr(ledger, when)["claim"] = [GONE, GONE]
    assert make_bridge(handler).process(delivery).outcome == "done"
    assert [event.attempt for event in handler.given] == [1]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("delivery", [envelope(ACW), envelope(PRESENCE)], ids=["fact", "state"])
@pytest.mark.parametrize("error", [None, OSError(), PermanentError()], ids=repr)
def test_lost_reply_of_a_settle(delivery, when, error, make_bridge, ledger):
    """A settle is repeated while its lease lasts, and a repeat that finds its own outcome is fine."""
    handler = failing(error)
    getattr(ledger, when)["settle"] = [GONE] * 4
    result = make_bridge(handler).process(delivery)
    assert result.outcome == {None: "done", OSError: "retry", PermanentError: "dead"}[error and type(error)]
    assert len(handler.given) == 1


def test_settle_that_never_comes_through(make_bridge, ledger, clock):
    """An effect that cannot be settled before its lease is over is not acknowledged, and is repeated under its key."""
    handler = failing()
    ledger.before["settle"] = [GONE] * 10_000
    with pytest.raises(LedgerUnavailable):
        make_bridge(handler).process(envelope(ACW))
    ledger.before["settle"] = []
    clock.advance(LEASE_S)
    assert make_bridge(handler).process(envelope(ACW)).outcome == "done"
    assert len({event.key for event in handler.given}) == 1


# --- transactions -----------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path):
    """A database with a table for effects, which is also the ledger."""
    path = tmp_path / "once.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE effect (key TEXT UNIQUE ON CONFLICT ABORT)")
        db.execute("INSERT INTO effect VALUES ('taken')")
        yield db


@pytest.fixture
def in_transaction(database, tmp_path):
    """Make a bridge on that database with a handler that wants the transaction."""
    made = []

    def make(act, *, name="", write_first=True):
        bridge = made[0] if made else Bridge(f"sqlite:///{tmp_path}/once.db")
        made.append(bridge)

        def handle(event, transaction):
            if write_first:
                transaction.execute("INSERT INTO effect VALUES (?)", (f"{name}{event.envelope.id}",))
            act(transaction)

        bridge.on("*", name=name)(handle)
        return bridge

    yield make
    made[0].close()


def effects(database):
    """Return what took effect."""
    return sorted(key for (key,) in database.execute("SELECT key FROM effect") if key != "taken")


def test_effect_and_done_together(in_transaction, database):
    """In the ledger's own transaction the effect and the done event are there together."""
    bridge = in_transaction(lambda transaction: None)
    results = bridge.process_many([*facts(3), *facts(3)])
    assert [result.verdict for result in results] == ["fresh"] * 3 + ["redelivery"] * 3
    assert effects(database) == ["fact 0", "fact 1", "fact 2"]
    assert bridge.ledger.counts() == {Status.DONE: 3}


@pytest.mark.parametrize("error", [ValueError(), sqlite3.IntegrityError(), RetryLater(after_seconds=1)], ids=repr)
def test_transaction_rolls_back(error, in_transaction, database):
    """A handler that fails leaves nothing of what it wrote, and is tried again."""
    errors = [error]

    def fail_once(transaction):
        if errors:
            raise errors.pop()

    bridge = in_transaction(fail_once)
    assert bridge.process(facts(1)[0]).outcome == "retry"
    assert effects(database) == []
    assert bridge.process(facts(1)[0]).outcome == "done"
    assert effects(database) == ["fact 0"]


@pytest.mark.parametrize(
    ("interrupt", "status"),
    [(KeyboardInterrupt, Status.RELEASE), (SystemExit, Status.RETRY), (GeneratorExit, Status.RETRY)],
)
def test_interrupted_transaction_rolls_back(interrupt, status, in_transaction, database):
    """What ends more than its handler leaves nothing of what that wrote; an interrupt is no attempt."""

    def interrupted(transaction):
        raise interrupt

    bridge = in_transaction(interrupted)
    with pytest.raises(interrupt):
        bridge.process(facts(1)[0])
    assert effects(database) == []
    assert bridge.ledger.counts() == {status: 1}


def leave_with(transaction):
    """End the transaction as sqlite3's own context manager does."""
    with transaction:
        transaction.execute("SELECT 1")


@pytest.mark.parametrize(
    "end",
    [
        lambda transaction: transaction.execute("COMMIT"),
        lambda transaction: transaction.execute("END"),
        lambda transaction: transaction.execute("ROLLBACK"),
        lambda transaction: transaction.execute("BEGIN"),
        lambda transaction: transaction.commit(),
        lambda transaction: transaction.rollback(),
        lambda transaction: transaction.executescript("SELECT 1; COMMIT;"),
        leave_with,
    ],
    ids=["COMMIT", "END", "ROLLBACK", "BEGIN", "commit", "rollback", "executescript", "with"],
)
def test_handler_cannot_end_the_transaction(end, in_transaction, database):
    """A handler cannot end the transaction that is not its own: it fails, and nothing takes effect."""
    bridge = in_transaction(end)
    assert bridge.process(facts(1)[0]).outcome == "retry"
    assert effects(database) == []


def test_handler_that_hides_its_failure_to_commit(in_transaction, database):
    """A handler that tries to commit and goes on has its effect once, with the done event."""

    def try_to_commit(transaction):
        with suppress(sqlite3.Error):
            transaction.commit()

    bridge = in_transaction(try_to_commit)
    assert bridge.process(facts(1)[0]).outcome == "done"
    assert effects(database) == ["fact 0"]


def test_transaction_that_sqlite_ended(in_transaction, database):
    """Where SQLite itself rolled the transaction back, the event is not done either: both or neither."""

    def rolled_back(transaction):
        with suppress(sqlite3.IntegrityError):
            transaction.execute("INSERT OR ROLLBACK INTO effect VALUES ('taken')")

    bridge = in_transaction(rolled_back)
    with suppress(LedgerUnavailable):
        bridge.process(facts(1)[0])
    done = bridge.ledger.counts().get(Status.DONE, 0)
    assert (len(effects(database)), done) in ((0, 0), (1, 1))


def test_handler_may_use_savepoints(in_transaction, database):
    """Inside the transaction a handler may have savepoints of its own."""

    def with_savepoint(transaction):
        transaction.execute("SAVEPOINT mine")
        transaction.execute("INSERT INTO effect VALUES ('not wanted')")
        transaction.execute("ROLLBACK TO mine")
        transaction.execute("RELEASE mine")

    assert in_transaction(with_savepoint).process(facts(1)[0]).outcome == "done"
    assert effects(database) == ["fact 0"]


def test_named_handlers_have_their_own_transactions(in_transaction, database):
    """Of two handlers with transactions the one that succeeds is done, the other rolled back and retried alone."""
    errors = [OSError()]

    def fail_once(transaction):
        if errors:
            raise errors.pop()

    in_transaction(lambda transaction: None)
    bridge = in_transaction(fail_once, name="second: ")
    assert bridge.process(facts(1)[0]).column == "retrying"
    assert effects(database) == ["fact 0"]
    assert bridge.process(facts(1)[0]).column == "processed"
    assert effects(database) == ["fact 0", "second: fact 0"]


def test_async_handler_in_a_transaction(database, tmp_path):
    """An async handler gets the transaction too."""
    with Bridge(f"sqlite:///{tmp_path}/once.db") as bridge:

        @bridge.on("*")
        async def handle(event, transaction):
            await asyncio.sleep(0)
            transaction.execute("INSERT INTO effect VALUES (?)", (event.key,))

        result = bridge.process(envelope(ACW))
        assert result.outcome == "done"
        assert effects(database) == [result.key]


def test_no_transaction_is_refused():
    """A handler that wants the transaction of a ledger that has none is refused when it is registered, in words."""
    with pytest.raises(ConfigurationError, match=r"transaction.*sqlite://"):
        Bridge("redis://localhost").on("*")(lambda event, transaction: None)


# --- whatever arrives -------------------------------------------------------------------------------------------


def nested(depth):
    """Nest so many objects."""
    tree = {}
    for _ in range(depth):
        tree = {"a": tree}
    return tree


def holding_itself():
    """Make a structure that JSON cannot express."""
    tree = in_envelope({"eventId": "e-1"})
    tree["detail"]["self"] = tree
    return tree


@pytest.mark.parametrize(
    "delivery",
    [
        None, 5, [], "", b"\x00", "\ud800", object(), {"a": float("nan")}, {("a",): 1}, {"a": {1, 2}}, holding_itself(),
        nested(100), nested(100_000), in_envelope({"eventId": "\ud800"}), b'{"a":1,"a":1}',
    ],
    ids=lambda value: f"{type(value).__name__}",
)  # fmt: skip
def test_unreadable_is_a_dead_letter(delivery, make_bridge, ledger):
    """What cannot be read is kept as a dead letter with its reason, and stops nobody."""
    first, *_, last = make_bridge(ignore).process_many([delivery, envelope(ACW)])
    assert (first.verdict, first.outcome, first.column) == ("dead", "dead", "dead")
    assert first.reason.startswith("unreadable: ")
    assert last.outcome == "done"
    (entry,) = ledger.get(key_bytes(first.key))
    assert (entry.status, entry.reason) == (Status.DEAD, first.reason)
    assert entry.raw is not None


NAMES = st.sampled_from(
    ["detail", "detail-type", "id", "topicName", "eventBody", "eventId", "status", "conversationId"]
)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(PRESENCE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(TREES, max_size=4))
def test_bridge_takes_anything(deliveries):
    """Whatever arrives, a bridge raises nothing and its books balance."""
    bridge = Bridge("memory://")
    bridge.on("*")(ignore)
    results = bridge.process_many(deliveries)
    assert all(result.acknowledged for result in results)
    books = bridge.books.as_dict()
    assert (books["received"], books["retrying"], books["balanced"]) == (len(deliveries), 0, True)
    bridge.close()


# --- books, moves and logs --------------------------------------------------------------------------------------


def test_books_balance(make_bridge):
    """Received is always the sum of the columns, whatever became of the deliveries."""
    handler = failing(None, None, OSError(), PermanentError())
    bridge = make_bridge(handler)
    audit = envelope(AUDITS, id="audit")
    deliveries = [
        audit, routing_status("IDLE", TIME_MS + 9000), facts(2)[0], facts(2)[1],  # processed twice, retrying, dead
        audit, envelope(AUDITS, id="again"), envelope(AUDITS, {"action": "Delete"}), b"{",
        routing_status("IDLE", TIME_MS + 9100, id="echo"), routing_status("OFF_QUEUE", TIME_MS, id="stale"),
    ]  # fmt: skip
    for delivery in deliveries:
        bridge.process(delivery)
    books = bridge.books.as_dict()
    columns = {
        "processed": 2,
        "redelivery": 1,
        "republish": 1,
        "echo": 1,
        "stale": 1,
        "conflict": 1,
        "dead": 2,
        "unhandled": 0,
        "retrying": 1,
    }
    assert books == {"received": 10, **columns, "balanced": True}
    assert books["received"] == sum(columns.values())


def test_observers_hear_every_move(make_bridge):
    """Whoever listens hears of each claim and each settle, with verdict, outcome and attempt, and of each delivery."""
    moves = []
    bridge = make_bridge(failing(OSError()), telemetry=Telemetry((moves.append,)))
    for _ in range(3):
        bridge.process(envelope(ACW))
    told = [(move.move, move.verdict, move.outcome, move.attempt, move.column) for move in moves]
    assert told == [
        ("claimed", "fresh", None, 1, ""), ("settled", "fresh", "retry", 1, ""),
        ("delivered", "fresh", "retry", 1, "retrying"),
        ("claimed", "fresh", None, 2, ""), ("settled", "fresh", "done", 2, ""),
        ("delivered", "fresh", "done", 1, "processed"),
        ("claimed", "redelivery", None, 1, ""), ("delivered", "redelivery", None, 1, "redelivery"),
    ]  # fmt: skip
    assert {move.topic for move in moves} == {ACW}
    assert len({move.key for move in moves if move.move != "delivered"}) == 1


def test_deliveries_that_end_alike_are_told_of_together(make_bridge):
    """A batch is told of by what became of its deliveries, not one by one: each is in one number."""
    moves = []
    bridge = make_bridge(failing(), telemetry=Telemetry((moves.append,)))
    bodies = [{"eventTime": TIME_MS + number} for number in (1, 2, 3, 3)]
    bridge.process_many([*(envelope(ACW, body) for body in bodies), envelope(PRESENCE)])
    told = [(move.topic, move.column, move.number) for move in moves if move.move == "delivered"]
    assert told == [(ACW, "processed", 3), (ACW, "redelivery", 1), (PRESENCE, "processed", 1)]
    assert bridge.books.as_dict()["processed"] == 4


def test_observer_that_fails(make_bridge):
    """An observer that fails is its own trouble: events are processed as if it were not there."""

    def broken(move):
        raise RuntimeError(move.move)

    bridge = make_bridge(ignore, telemetry=Telemetry((broken,)))
    assert [result.column for result in bridge.process_many(facts(2))] == ["processed"] * 2


def test_log_holds_no_personal_data(caplog, make_bridge):
    """Log records carry keys, topics and verdicts, never what a payload or an error says, nor an id of a person."""

    def careless(event):
        raise PermanentError from ValueError(str(event.body))

    bridge = make_bridge()
    bridge.open()
    caplog.set_level(logging.DEBUG)
    bridge.on("*")(ignore)
    bridge.on("*", name="careless")(careless)
    bridge.process_many([*personal(), *personal(), *(raw(tree)[:-9] for tree in personal())])
    assert len(caplog.records) >= 30
    formatter = JSONFormatter()
    for record in caplog.records:
        line = formatter.format(record)
        shown = f"{line} {record.getMessage()} {vars(record)} {record.exc_info}"
        assert [name for name, value in CANARIES.items() if value in shown] == []
        assert record.levelno == logging.DEBUG or json.loads(line)["key"].startswith("ob1_")
        assert "\n" not in line


def test_topic_cannot_forge_a_log_line(caplog, make_bridge):
    """A topic with a line break or an escape sequence stays inside its one log line."""
    caplog.set_level(logging.INFO)
    make_bridge(ignore).process(in_envelope({"eventId": "e-1"}, detail_type='a\n{"level":"forged"}\x1b[31m'))
    lines = [JSONFormatter().format(record) for record in caplog.records]
    assert [line for line in lines if "forged" in line]
    for line in lines:
        assert line.isprintable()
        assert json.loads(line)["level"] == "INFO"


def test_quiet_log_costs_nothing(caplog, make_bridge):
    """Nothing is logged unless somebody asks for it."""
    caplog.set_level(logging.WARNING)
    make_bridge(ignore).process_many(facts(3))
    assert caplog.records == []


def test_bridge_shows_its_state(make_bridge):
    """What is shown of a bridge is its ledger and its books."""
    bridge = make_bridge(ignore)
    bridge.process_many([*facts(2), *facts(1)])
    assert "processed 2" in repr(bridge)
    assert "redelivery 1" in repr(bridge)
    assert "2 events" in repr(bridge)


def test_bridge_may_be_opened_again(tmp_path):
    """A bridge that was closed opens again at its next delivery, and knows what it knew."""
    bridge = Bridge(f"sqlite:///{tmp_path}/once.db")
    bridge.on("*")(ignore)
    with bridge:
        assert bridge.process(envelope(ACW)).outcome is Outcome.DONE
    with bridge:
        assert bridge.process(envelope(ACW)).verdict == "redelivery"
    with bridge:
        assert bridge.process(envelope(ACW, id=ABSENT)).verdict == "republish"


def test_generators_are_refused():
    """A generator is refused as a handler: calling it would do nothing, and the event would count as done."""

    def yields(event):
        yield event

    with pytest.raises(ConfigurationError, match="drop its yield"):
        Bridge("memory://").on("*")(yields)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda: None, id="none"),
        pytest.param(lambda event, connection: None, id="one too many"),
        pytest.param(lambda transaction: None, id="the transaction alone"),
        pytest.param(lambda *, event: None, id="by keyword alone"),
    ],
)
def test_handlers_that_cannot_be_called_are_refused(function):
    """A wrong parameter is said when the handler is registered: otherwise every event would become a dead letter."""
    with pytest.raises(ConfigurationError, match=r"called with the event.* it cannot be"):
        Bridge("memory://").on("*")(function)


class Desk:
    """A receiver as programs have it."""

    def save(self, event):
        """Take an event."""

    def rows(self, event):
        """Make a generator."""
        yield event

    async def later(self, event):
        """Make a generator, at some time."""
        yield event


class Yielding:
    """An object that can be called, and then does nothing."""

    def __call__(self, event):
        """Make a generator."""
        yield event


def on_lambda(event, context):
    """Look like a Lambda function."""


def with_connection(event, connection):
    """Ask for more than handlers get."""


def reversed_parameters(transaction, event):
    """Take the right things in the wrong order."""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (on_lambda, ["on_lambda(event, context)", "drop `context`", "bridge.lambda_handler"]),
        (with_connection, ["with_connection(event, connection)", "drop `connection`", "functools.partial"]),
        (reversed_parameters, ["reversed_parameters(transaction, event)", "(event, transaction)"]),
        (lambda event, transaction, /: None, ["(event, transaction, /)", "by its name"]),
        (lambda event, *, crm, transaction: None, ["drop `crm`"]),
        (Desk.save, ["Desk.save(self, event)", "Desk().save"]),
        (functools.partial(with_connection), ["with_connection(event, connection)"]),
        (Desk, ["Desk is a class", "a method of an object"]),
        (dict, ["dict is a class"]),
        (Desk().rows, ["Desk.rows", "drop its yield"]),
        (Desk().later, ["Desk.later", "drop its yield"]),
        (functools.partial(Desk().rows), ["Desk.rows", "drop its yield"]),
        (Yielding(), ["Yielding", "drop its yield"]),
        ("crm:save", ["str is no function"]),
        (None, ["NoneType is no function"]),
        (Desk(), ["Desk is no function"]),
    ],
)
def test_a_wrong_handler_is_named_with_the_fix(function, words):
    """The error names the function as its author does, its parameters, and what to change; nothing is registered."""
    bridge = Bridge("memory://")
    with pytest.raises(ConfigurationError) as refused:
        bridge.on("v2.users.*")(function)
    assert [word for word in ["handler for 'v2.users.*'", *words] if word not in str(refused.value)] == []
    assert not bridge.handlers


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda event, retries=3: None, id="a default"),
        pytest.param(lambda *arguments, **named: None, id="any"),
        pytest.param(lambda event, *, transaction=None: None, id="the transaction by keyword"),
        pytest.param(functools.partial(lambda crm, event: None, "crm"), id="partial"),
        pytest.param([].append, id="built in"),
    ],
)
def test_handlers_may_have_other_parameters_if_they_can_be_called(function, tmp_path):
    """Whatever can be called with an event alone, or with the transaction too, is a handler."""
    with Bridge(f"sqlite:///{tmp_path}/once.db") as bridge:
        bridge.on("*")(function)
        assert bridge.process(envelope(ACW)).column == "processed"


def test_stop_is_safe_in_a_signal_handler():
    """A signal that interrupts a wait just while it holds the event's lock stops the bridge, and does not block it."""
    bridge = Bridge("memory://")
    stopping = bridge.open().stopping
    with stopping._cond:  # as a wait does, where the handler of a signal may find it
        bridge.stop()
    assert stopping.wait(5)
    bridge.close()
