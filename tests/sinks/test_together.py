"""Events that go to a sink together: one call for several, and each is claimed, tried and settled as if alone."""

import os
import random
import threading
from collections import Counter

import pytest

from oncebridge import Bridge, Outcome, PermanentError, RetryLater, Settings, Verdict
from oncebridge.breaker import Open
from oncebridge.claim import Status
from oncebridge.engine.limits import BatchLimits
from oncebridge.errors import LedgerUnavailable
from oncebridge.identity import key_bytes
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.retry import RetryPolicy
from oncebridge.testing.clock import ManualClock
from oncebridge.testing.faults import Fault, faulty
from payloads import ACW, CANARIES, PRESENCE, TIME_MS, envelope, presence
from sinks.conftest import context_at
from sinks.doubles import Amazon, bus_on

LEASE_S = 30.0
PATIENT_SECONDS = 60


class Died(BaseException):
    """The process ends here."""


class Sender:
    """Takes events together, notes them, and does on cue what it was told to."""

    def __init__(self, *script, many=10):
        """Take what happens at each call: a function of the events that returns their errors, or nothing for none."""
        self.many = many
        self.script = list(script)
        self.calls = []
        self.alone = []
        self._lock = threading.Lock()

    def __call__(self, event):
        """Nobody should: it takes events together."""
        self.alone.append(event)

    def send_many(self, events):
        """Take events."""
        with self._lock:
            self.calls.append(list(events))
            step = self.script.pop(0) if self.script else None
        errors = step(events) if step is not None else None
        return [None] * len(events) if errors is None else errors

    @property
    def sizes(self):
        """How many events each call had."""
        return [len(call) for call in self.calls]

    @property
    def names(self):
        """The envelope ids of each call."""
        return [[event.envelope.id for event in call] for call in self.calls]


def failing(**errors):
    """Make a step in which the events of these names fail."""
    wanted = {name.replace("_", " "): error for name, error in errors.items()}
    return lambda events: [wanted.get(event.envelope.id) for event in events]


def raising(error):
    """Make a step that fails as a whole."""

    def step(_):
        raise error

    return step


def facts(number, start=0):
    """Build so many events that have nothing to do with each other."""
    return [envelope(ACW, {"eventTime": TIME_MS + n}, id=f"fact {n}") for n in range(start, start + number)]


class Noting(MemoryLedger):
    """Notes how many claims each settle ends. Its process may have ended, or it may be out of reach for extends."""

    def __init__(self, clock):
        """Start with none."""
        super().__init__(clock)
        self.settled = []
        self.alive = True
        self.extends = True

    def extend(self, claims, **options):
        """Keep claims alive, unless it is out of reach."""
        if not self.extends:
            raise LedgerUnavailable
        return super().extend(claims, **options)

    def settle(self, settlements):
        """Note them, unless the process is gone."""
        if not self.alive:
            raise Died
        self.settled.append(len(settlements))
        return super().settle(settlements)


@pytest.fixture
def clock():
    """A clock that moves when told."""
    return ManualClock()


@pytest.fixture
def ledger(clock):
    """A ledger that notes what is settled together."""
    return Noting(clock)


@pytest.fixture
def make_bridge(ledger, clock):
    """Make bridges on the one ledger, as so many workers."""
    made = []

    def make(*senders, on=ledger, **settings):
        usual = {"lease_seconds": LEASE_S, "retry": RetryPolicy(attempts=3, base_seconds=0)}
        bridge = Bridge(on, clock=clock, settings=Settings(**usual | settings))
        for number, sender in enumerate(senders):
            bridge.on("*", name=f"sink {number}" if number else "")(sender)
        made.append(bridge)
        return bridge

    yield make
    for bridge in made:
        bridge.close()


def outcomes(results):
    """Return what became of each."""
    return [result.outcome for result in results]


# --- how many in a call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "sizes"), [(1, [1]), (10, [10]), (11, [10, 1]), (23, [10, 10, 3])])
def test_a_batch_goes_in_calls_of_ten(make_bridge, ledger, number, sizes):
    """The events of a batch go in as few calls as they fit into, in order, and are settled with each call."""
    sender = Sender()
    results = make_bridge(sender).process_many(facts(number))
    assert outcomes(results) == [Outcome.DONE] * number
    assert sender.sizes == sizes
    assert [name for call in sender.names for name in call] == [f"fact {n}" for n in range(number)]
    assert not sender.alone
    assert sum(ledger.settled) == number
    assert len(ledger.settled) <= len(sizes)


def test_a_slow_call_is_settled_at_once_and_together(make_bridge, ledger, clock):
    """What a call has sent is settled before the next call begins, in one go."""
    seen = []

    def slow(_):
        seen.append(list(ledger.settled))
        clock.advance(0.2)

    make_bridge(Sender(slow, slow, slow)).process_many(facts(25))
    assert seen == [[], [10], [10, 10]]
    assert ledger.settled == [10, 10, 5]


def test_duplicates_are_not_sent(make_bridge):
    """Twins within a batch, and what is done already, take no place in a call."""
    sender = Sender()
    bridge = make_bridge(sender)
    bridge.process_many(facts(3))
    results = bridge.process_many(facts(6) + facts(6))
    assert sender.sizes == [3, 3]
    assert [result.verdict for result in results[:3]] == [Verdict.REDELIVERY] * 3
    assert bridge.books.as_dict()["processed"] == 6
    assert bridge.books.as_dict()["balanced"]


def test_ordinary_handlers_get_events_one_by_one(make_bridge):
    """Of two handlers of an event the one that takes events together does so, and the other is called for each."""
    sender, got = Sender(), []
    bridge = make_bridge(sender)
    bridge.on("*", name="plain")(got.append)
    results = bridge.process_many([*facts(3), b"no JSON"])
    assert outcomes(results) == [Outcome.DONE] * 3 + [Outcome.DEAD]
    assert sender.sizes == [3]
    assert len(got) == 3


def test_topics_of_one_sink_share_calls(make_bridge):
    """A sink with several topics gets their events together."""
    sender = Sender()
    bridge = make_bridge()
    for topic in (ACW, PRESENCE):
        bridge.on(topic, name="clean")(sender)
    bridge.process_many([*facts(2), envelope(PRESENCE), *facts(1, start=2)])
    assert sender.sizes == [4]


def test_calls_run_side_by_side(make_bridge):
    """With several handlers at a time, calls are made at the same time too, and each event is sent once."""
    together = threading.Barrier(3)

    def meet(_):
        together.wait(PATIENT_SECONDS)

    sender = Sender(meet, meet, meet)
    results = make_bridge(sender, concurrency=3).process_many(facts(30))
    assert outcomes(results) == [Outcome.DONE] * 30
    assert sorted(name for call in sender.names for name in call) == sorted(f"fact {n}" for n in range(30))


def test_a_ledger_that_works_ahead(valkey):
    """Where the ledger looks ahead while events are sent, calls are as full, and each event is in one of them."""
    sender = Sender(failing(fact_3=OSError()))
    with Bridge(f"{valkey.url}?name=together-{os.urandom(4).hex()}") as bridge:
        bridge.on("*")(sender)
        first = bridge.process_many(facts(120) + facts(5))
        again = bridge.process_many(facts(120))
    assert sender.sizes == [10] * 12 + [1]
    assert sender.names[-1] == ["fact 3"]
    assert [result.column for result in first[:5]] == ["processed"] * 3 + ["retrying", "processed"]
    assert Counter(result.column for result in again) == {"redelivery": 119, "processed": 1}


# --- each with its own end --------------------------------------------------------------------------------------


def test_what_failed_is_tried_again_alone(make_bridge):
    """Of a call only what failed comes again, under the same key and as its next attempt."""
    sender = Sender(failing(fact_1=OSError(), fact_4=RetryLater(after_seconds=90)))
    bridge = make_bridge(sender)
    results = bridge.process_many(facts(6))
    assert outcomes(results) == ["done", "retry", "done", "done", "retry", "done"]
    assert results[4].retry_in_us >= 90_000_000
    assert [result.column for result in bridge.process_many(facts(6))] == [
        "redelivery", "processed", "redelivery", "redelivery", "processed", "redelivery",
    ]  # fmt: skip
    assert sender.names[1] == ["fact 1", "fact 4"]
    assert [event.attempt for event in sender.calls[1]] == [2, 2]
    assert [event.key for event in sender.calls[1]] == [sender.calls[0][n].key for n in (1, 4)]
    assert all(new.token > sender.calls[0][n].token > 0 for n, new in zip((1, 4), sender.calls[1], strict=True))


def test_each_has_its_own_attempts(make_bridge, ledger):
    """An event that always fails becomes a dead letter at the limit, and costs its neighbours nothing."""
    sender = Sender(*[failing(fact_0=OSError("quotes it"))] * 3)
    bridge = make_bridge(sender)
    seen = [bridge.process_many(facts(1) + facts(2, start=n * 10 + 10))[0] for n in range(3)]
    assert outcomes(seen) == ["retry", "retry", "dead"]
    assert seen[2].reason == "handler raised OSError at attempt 3 of 3"
    assert ledger.counts()[Status.DONE] == 6


def test_a_permanent_error_is_one_events_own(make_bridge, ledger):
    """One event of a call is a dead letter at once; what Amazon said of it is only shown where the letter is."""
    amazon = Amazon({1: "MalformedDetail"})
    sink = bus_on(amazon, context_at(ManualClock()))
    bridge = make_bridge(sink)
    deliveries = facts(3)
    deliveries[1]["detail"]["eventBody"]["note"] = CANARIES["name"]
    results = bridge.process_many(deliveries)
    assert outcomes(results) == ["done", "dead", "done"]
    assert results[1].reason == "bus clean answered MalformedDetail, which is permanent"
    (entry,) = ledger.get(key_bytes(results[1].key))
    assert CANARIES["name"] in entry.detail


def test_errors_of_ones_own_can_be_permanent(make_bridge):
    """What was registered as permanent is so for events that go together too, each by its own registration."""
    sender = Sender(*[lambda events: [KeyError() for _ in events]] * 2)
    bridge = make_bridge()
    bridge.on(ACW, permanent=(KeyError,))(sender)
    bridge.on(PRESENCE)(sender)
    results = bridge.process_many([*facts(2), envelope(PRESENCE)])
    assert outcomes(results) == ["dead", "dead", "retry"]


@pytest.mark.parametrize("error", [OSError(), PermanentError()], ids=repr)
def test_a_call_that_fails_fails_for_all(make_bridge, error):
    """A sink that raises has sent nothing that anybody knows of."""
    results = make_bridge(Sender(raising(error))).process_many(facts(3))
    assert outcomes(results) == [Outcome.DEAD if isinstance(error, PermanentError) else Outcome.RETRY] * 3


@pytest.mark.parametrize("told", [[], [None], [None] * 4])
def test_a_sink_that_miscounts_has_sent_nothing(make_bridge, told):
    """Where a sink tells of more or fewer events than it got, none is taken for sent."""
    sender = Sender(lambda _: told)
    bridge = make_bridge(sender)
    assert outcomes(bridge.process_many(facts(3))) == [Outcome.RETRY] * 3
    assert outcomes(bridge.process_many(facts(3))) == [Outcome.DONE] * 3


def test_an_open_breaker_costs_no_attempt(make_bridge):
    """What a sink was not let through with is given back, as often as it takes, and the reason says why."""
    closed = Open(3, 700_000, "bus clean answered AccessDenied")
    sender = Sender(*[lambda events: [closed] * len(events)] * 5)
    bridge = make_bridge(sender)
    for _ in range(5):
        results = bridge.process_many(facts(2))
        assert outcomes(results) == [Outcome.RELEASE] * 2
        assert results[0].reason == "its receiver is out of reach; this was no attempt: bus clean answered AccessDenied"
        assert results[0].retry_in_us == 700_000
    assert outcomes(bridge.process_many(facts(2))) == [Outcome.DONE] * 2
    assert [event.attempt for event in sender.calls[-1]] == [1, 1]


def test_who_counts_deliveries_is_told_the_limit(make_bridge):
    """Where whoever delivers gives few attempts, they are the limit for events that go together too."""
    bridge = make_bridge(Sender(*[raising(OSError())] * 2))
    terms = BatchLimits(attempts=2)
    first, second = (outcomes(bridge.open().run(facts(2), terms)) for _ in range(2))
    assert (first, second) == ([Outcome.RETRY] * 2, [Outcome.DEAD] * 2)


# --- two sinks, redrive -----------------------------------------------------------------------------------------


def test_two_sinks_have_ends_of_their_own(make_bridge):
    """Two sinks of one topic get every event each; a retry repeats it for the one that failed alone."""
    first, second = Sender(), Sender(failing(fact_2=OSError()))
    bridge = make_bridge(first, second)
    results = bridge.process_many(facts(12))
    assert outcomes(results) == [Outcome.DONE] * 2 + [Outcome.RETRY] + [Outcome.DONE] * 9
    assert (first.sizes, second.sizes) == ([10, 2], [10, 2])
    assert [event.key for event in first.calls[0]] == [event.key for event in second.calls[0]]
    bridge.process_many(facts(12))
    assert (first.sizes, second.sizes) == ([10, 2], [10, 2, 1])
    assert second.calls[-1][0].envelope.id == "fact 2"
    assert {event.token for event in first.calls[0]}.isdisjoint({0})


def test_a_redriven_letter_is_sent_under_its_key(make_bridge, ledger):
    """A dead letter that is redriven goes out under the key it had, with attempts from one."""
    sender = Sender(failing(fact_1=PermanentError()))
    bridge = make_bridge(sender)
    bridge.process_many(facts(3))
    dead = bridge.dead_letters
    (entry,) = dead.list()
    assert dead.redrive(entry).outcome is Outcome.DONE
    assert sender.names[1] == ["fact 1"]
    assert sender.calls[1][0].key == sender.calls[0][1].key
    assert sender.calls[1][0].attempt == 1
    assert ledger.counts() == {Status.DONE: 3}


# --- states -----------------------------------------------------------------------------------------------------


def test_states_of_one_entity_are_sent_in_order(make_bridge):
    """Of one entity a call has one state, and the next call the next: they cannot overtake each other."""
    ann = [presence(f"P{n}", modified_ms=TIME_MS + n * 1000, user="ann", id=f"ann {n}") for n in range(3)]
    bob = [presence(f"P{n}", modified_ms=TIME_MS + n * 1000, user="bob", id=f"bob {n}") for n in range(2)]
    sender = Sender()
    results = make_bridge(sender).process_many([ann[0], bob[0], ann[1], *facts(1), ann[2], bob[1]])
    assert outcomes(results) == [Outcome.DONE] * 6
    assert sender.names == [["ann 0", "bob 0", "fact 0"], ["ann 1", "bob 1"], ["ann 2"]]


def test_a_state_that_failed_is_stale_behind_a_newer_one(make_bridge):
    """A state that could not be sent in time does not come after a newer one of its entity."""
    old, new = (presence(f"P{n}", modified_ms=TIME_MS + n * 1000, id=f"p {n}") for n in range(2))
    sender = Sender(failing(p_0=OSError()))
    bridge = make_bridge(sender)
    assert outcomes(bridge.process_many([old, new])) == [Outcome.RETRY, Outcome.DONE]
    assert bridge.process(old).verdict is Verdict.STALE
    assert sender.names == [["p 0"], ["p 1"]]


# --- stop, deadline, lost claims --------------------------------------------------------------------------------


def test_a_deadline_leaves_the_rest_untried(make_bridge, clock):
    """Once the time is over no other call begins; what was not tried is given back at no cost."""
    sender = Sender(lambda _: clock.advance(5))
    bridge = make_bridge(sender)
    terms = BatchLimits(until_us=clock.monotonic_us() + 3_000_000)
    results = bridge.open().run(facts(15), terms)
    assert outcomes(results) == [Outcome.DONE] * 10 + [Outcome.RELEASE] * 5
    assert {result.reason for result in results[10:]} == {"stopped before it was tried"}
    assert outcomes(bridge.process_many(facts(15)))[10:] == [Outcome.DONE] * 5
    assert [event.attempt for event in sender.calls[1]] == [1] * 5


def test_a_stop_lets_the_running_call_finish(make_bridge, ledger):
    """A bridge that is told to stop finishes the call that runs, settles it, and gives the rest back."""
    sender = Sender(lambda _: bridge.stopping.set())
    bridge = make_bridge(sender)
    results = bridge.process_many(facts(15))
    assert outcomes(results) == [Outcome.DONE] * 10 + [Outcome.RELEASE] * 5
    assert ledger.counts() == {Status.DONE: 10, Status.RELEASE: 5}
    assert sender.sizes == [10]


def test_claims_that_were_taken_over_are_not_sent(make_bridge, ledger, clock):
    """What another worker took over while an earlier call hung is left to that worker."""
    other = Sender()

    def hang(_):
        ledger.extends = False  # nobody keeps alive what waits for its turn
        clock.advance(LEASE_S + 1)
        make_bridge(other).process_many(facts(4, start=10))
        ledger.extends = True

    sender = Sender(hang)
    results = make_bridge(sender).process_many(facts(15))
    assert sender.names[1:] == [["fact 14"]]
    assert sorted(name for call in other.names for name in call) == [f"fact {n}" for n in range(10, 14)]
    assert [result.column for result in results] == ["processed"] * 10 + ["redelivery"] * 4 + ["processed"]


def test_a_claim_lost_during_the_call_is_told(make_bridge, clock):
    """What was taken over while the call ran is not settled by the late worker, and is looked at again."""
    other = Sender()

    def hang(_):
        clock.advance(LEASE_S * 100)
        make_bridge(other).process_many(facts(1))

    sender = Sender(hang)
    bridge = make_bridge(sender, handler_timeout_seconds=LEASE_S)
    results = bridge.process_many(facts(3))
    assert results[0].outcome is Outcome.RETRY
    assert "taken over" in results[0].reason
    assert outcomes(results[1:]) == [Outcome.DONE] * 2
    assert sender.calls[0][0].key == other.calls[0][0].key
    assert sender.calls[0][0].token < other.calls[0][0].token


def test_an_event_that_kills_its_worker_costs_its_neighbours_nothing(make_bridge, ledger, clock):
    """A call that ends its process is repeated one by one; the guilty event becomes a dead letter, unsent."""
    attempts = Counter()

    def poisoned(events):
        for event in events:
            attempts[event.envelope.id] = event.attempt
            if event.envelope.id == "fact 2":
                ledger.alive = False
                raise Died

    deaths, results = 0, []
    while not results and deaths < 20:
        ledger.alive = True
        try:
            results = make_bridge(Sender(*[poisoned] * 20)).process_many(facts(5))
        except Died:
            deaths += 1
            clock.advance(LEASE_S + 1)
    assert [result.column for result in results] == ["redelivery", "redelivery", "dead", "processed", "processed"]
    assert deaths == 1 + 3  # the first among others, which is nobody's fault
    assert "died or hung" in results[2].reason
    assert attempts == {"fact 0": 1, "fact 1": 1, "fact 2": 3, "fact 3": 1, "fact 4": 1}


# --- crashes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interrupt", "left"),
    [(KeyboardInterrupt, {Status.RELEASE: 15}), (Died, {Status.RETRY: 10, Status.RELEASE: 5})],
)
def test_an_interrupt_settles_what_was_sent_and_no_more(make_bridge, ledger, interrupt, left):
    """What ends the second call leaves the first settled, and the rest to come again under the same keys."""
    sender = Sender(None, raising(interrupt()))
    with pytest.raises(interrupt):
        make_bridge(sender).process_many(facts(25))
    assert ledger.counts() == {Status.DONE: 10, **left}
    results = make_bridge(sender).process_many(facts(25))
    assert [result.column for result in results] == ["redelivery"] * 10 + ["processed"] * 15
    assert [event.key for event in sender.calls[2]] == [event.key for event in sender.calls[1]]


def test_a_process_that_ends_before_it_settles_repeats_under_the_same_key(make_bridge, ledger, clock):
    """What was sent but not settled is sent again under the same key, with a higher token: nothing is lost."""
    first, second = Sender(), Sender()
    ledger.alive = False
    with pytest.raises(Died):
        make_bridge(first).process_many(facts(10))
    assert not ledger.counts().get(Status.DONE)
    ledger.alive = True
    clock.advance(LEASE_S + 1)
    assert outcomes(make_bridge(second).process_many(facts(10))) == [Outcome.DONE] * 10
    before = {event.key: event.token for event in first.calls[0]}
    after = {event.key: event.token for call in second.calls for event in call}
    assert after.keys() == before.keys()
    assert all(after[key] > before[key] for key in before)


@pytest.mark.parametrize("after", [False, True], ids=["lost", "answer lost"])
def test_a_ledger_that_hiccups_settles_all_the_same(make_bridge, ledger, after):
    """A settle that fails once is repeated, and nothing is sent twice."""
    sender = Sender()
    bridge = make_bridge(sender, on=faulty(ledger, Fault("settle", call=1, after=after)))
    assert outcomes(bridge.process_many(facts(12))) == [Outcome.DONE] * 12
    assert sender.sizes == [10, 2]
    assert ledger.counts() == {Status.DONE: 12}


def test_an_outage_of_the_ledger_acknowledges_nothing(make_bridge, ledger):
    """While nothing can be settled nothing is acknowledged, although it was sent."""
    sender = Sender()
    with pytest.raises(LedgerUnavailable):
        make_bridge(sender, on=faulty(ledger, Fault("settle", call=0))).process_many(facts(3))
    assert sender.sizes == [3]
    assert not ledger.counts().get(Status.DONE)


# --- many at random ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_every_event_is_taken_once_where_answers_are_true(make_bridge, seed):
    """However entries and calls fail, as long as answers say the truth each event is taken once, and none is lost."""
    rng = random.Random(seed)

    def trouble(entries, answer):
        for at, entry in enumerate(entries):
            code = rng.choice([None, None, None, "ThrottlingException", "InternalFailure", "Odd"])
            if code is None:
                amazon.taken.append(entry)
            else:
                answer["Entries"][at] = {"ErrorCode": code}
        return answer

    amazon = Amazon(*[trouble] * 3000)
    clock = ManualClock()
    bridge = make_bridge(bus_on(amazon, context_at(clock)), retry=RetryPolicy(attempts=1000, base_seconds=0))
    left = facts(200)
    while left:
        batch, left = left[:37], left[37:]
        results = bridge.process_many(batch)
        left += [one for one, result in zip(batch, results, strict=True) if not result.acknowledged]
        clock.advance(20)
    taken = Counter(entry["Detail"] for entry in amazon.taken)
    assert len(taken) == 200
    assert set(taken.values()) == {1}
    assert bridge.books.as_dict()["processed"] == 200
    assert bridge.books.as_dict()["dead"] == 0
