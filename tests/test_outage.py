"""Outages of the ledger: nothing is acknowledged, few calls are made, and work goes on by itself afterwards."""

import secrets
import threading
import tracemalloc
from collections import Counter

import pytest

import oncebridge.engine.flow
from oncebridge import Bridge, LedgerRefused, LedgerUnavailable, Settings
from oncebridge.claim import Ask, Claim, Status
from oncebridge.engine.claimer import Claimer, LeaseExtender, ledger_breaker
from oncebridge.engine.task import Lease
from oncebridge.engine.waiting import CALL_TRIES
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.sources.file import OUTAGE_PATIENCE_US, FileRun
from oncebridge.testing.clock import ManualClock
from oncebridge.testing.faults import Fault, faulty, lose_connection
from payloads import ACW, AUDITS, PRESENCE, TIME_MS, envelope, raw

LEASE_S = 30
CAP_S = 10
VERBS = ("open", "claim", "extend", "settle")


@pytest.fixture
def clock():
    """A clock that moves when told, or when somebody waits."""
    return ManualClock()


@pytest.fixture
def ledger(clock):
    """A ledger that fails on cue."""
    return faulty(MemoryLedger(clock))


@pytest.fixture
def make_bridge(ledger, clock):
    """Make bridges on the one ledger, as so many workers; each has a handler that notes what it was given."""
    made = []

    def make(act=lambda event: None, **settings):
        bridge = Bridge(ledger, clock=clock, settings=Settings(**settings))
        bridge.given = []

        @bridge.on("*")
        def handle(event):
            bridge.given.append(event)
            act(event)

        made.append(bridge)
        return bridge

    yield make
    for bridge in made:
        bridge.close()


def facts(number):
    """Build so many events that have nothing to do with each other."""
    return [envelope(ACW, {"eventTime": TIME_MS + n}, id=f"fact {n}") for n in range(number)]


def goes(ledger, *verbs, act=lose_connection):
    """Let the ledger go out of reach."""
    ledger.faults = tuple(Fault(verb, call=0, act=act) for verb in verbs or VERBS)


def comes_back(ledger):
    """Let it be there again."""
    ledger.faults = ()


def seconds_since(clock, start_us):
    """Tell how much time has passed."""
    return (clock.monotonic_us() - start_us) / 1_000_000


def columns(results):
    """Return the column of each result."""
    return [result.column for result in results]


def assert_raises_often(bridge, times=5):
    """Try until every breaker must be open."""
    for _ in range(times):
        with pytest.raises(LedgerUnavailable):
            bridge.process_many(facts(2))


# --- claims ------------------------------------------------------------------------------------------------------


class WithoutBreaker(Claimer):
    """Asks as if nothing were known: the naive way."""

    def claim(self, asked):
        """Try three times, every time."""
        for attempt in range(CALL_TRIES):
            try:
                return self._ledger.claim(asked.asks, nonce=b"12345678", lease_us=self.lease_us)
            except LedgerUnavailable:
                if attempt == CALL_TRIES - 1:
                    raise
        raise AssertionError


class WithoutNonce(Claimer):
    """Repeats a call, but as a new one: the naive way."""

    def claim(self, asked):
        """Try three times, each under a nonce of its own."""
        for _ in range(CALL_TRIES):
            try:
                return self._ledger.claim(asked.asks, nonce=secrets.token_bytes(8), lease_us=self.lease_us)
            except LedgerUnavailable:
                continue
        raise AssertionError


def ten_minutes_away(make_bridge, ledger, clock):
    """During ten minutes nothing is handled or acknowledged and few calls are made; then work goes on at once."""
    bridge = make_bridge()
    assert bridge.process(facts(4)[3]).acknowledged
    goes(ledger)
    before, start_us, batches = ledger.calls.total(), clock.monotonic_us(), 0
    while seconds_since(clock, start_us) < 600:
        with pytest.raises(LedgerUnavailable):
            bridge.process_many(facts(3))
        batches += 1
        clock.advance(0.5)
    assert len(bridge.given) == 1
    # Four until it opens, then one each time that it lets one through: half the cap apart, once it is at the cap.
    assert ledger.calls.total() - before <= 4 + 6 + 600 / (CAP_S / 2)
    comes_back(ledger)
    clock.advance(CAP_S)
    assert columns(bridge.process_many(facts(3))) == ["processed"] * 3
    books = bridge.books.as_dict()
    assert (books["received"], books["retrying"]) == (1 + 3 * batches + 3, 3 * batches)
    assert (books["processed"], books["balanced"]) == (4, True)


def test_ten_minutes_away(make_bridge, ledger, clock):
    """During ten minutes nothing is acknowledged and few calls are made; then work goes on at once."""
    ten_minutes_away(make_bridge, ledger, clock)


def lost_reply(delivery, make_bridge, ledger):
    """A claim whose reply was lost is asked for again and is our own."""
    ledger.faults = (Fault("claim", call=1, after=True), Fault("claim", call=2, after=True))
    bridge = make_bridge(busy_wait_seconds=0)
    assert bridge.process(delivery).outcome == "done"
    assert [event.attempt for event in bridge.given] == [1]
    assert ledger.calls["claim"] == 3


DELIVERIES = pytest.mark.parametrize("delivery", [envelope(ACW), envelope(PRESENCE)], ids=["fact", "state"])


@DELIVERIES
def test_lost_reply_of_a_claim(delivery, make_bridge, ledger):
    """A claim whose reply was lost twice is asked for again under its nonce: one attempt, nobody is busy."""
    lost_reply(delivery, make_bridge, ledger)


def test_without_breaker_every_call_is_made(make_bridge, ledger, clock, monkeypatch):
    """Claimer as if nothing were known makes thousands of calls in ten minutes, which the rule above notices."""
    monkeypatch.setattr(oncebridge.engine.flow, "Claimer", WithoutBreaker)
    with pytest.raises(AssertionError, match="calls"):
        ten_minutes_away(make_bridge, ledger, clock)


@DELIVERIES
def test_without_nonce_the_own_claim_is_busy(delivery, make_bridge, ledger, monkeypatch):
    """Repeating a claim as a new call finds its own claim in the way, which the rule above notices."""
    monkeypatch.setattr(oncebridge.engine.flow, "Claimer", WithoutNonce)
    with pytest.raises(AssertionError, match="busy"):
        lost_reply(delivery, make_bridge, ledger)


def test_nobody_waits_for_what_does_not_answer(make_bridge, ledger, clock):
    """Once the ledger is known to be out of reach, a batch is refused at once, in words that say when it is tried."""
    bridge = make_bridge()

    def time_out():
        clock.advance(2)
        lose_connection()

    goes(ledger, act=time_out)
    bridge.ledger.faults = bridge.ledger.faults[1:]  # it can be opened
    assert_raises_often(bridge, times=2)
    made, start_us = ledger.calls.total(), clock.monotonic_us()
    with pytest.raises(LedgerUnavailable, match=r"4 times in a row .* tried next in 0\.\d s; .* out of reach"):
        bridge.process_many(facts(100))
    assert clock.monotonic_us() == start_us
    assert ledger.calls.total() == made


def test_one_unlucky_call_is_no_outage(make_bridge, ledger, clock):
    """A call that fails at each of its tries does not keep the next one from being made."""
    ledger.faults = tuple(Fault("claim", call=number) for number in (1, 2, 3))
    bridge = make_bridge()
    with pytest.raises(LedgerUnavailable):
        bridge.process_many(facts(2))
    assert columns(bridge.process_many(facts(2))) == ["processed"] * 2


def test_outage_at_the_first_delivery(make_bridge, ledger, clock):
    """A bridge that starts during an outage asks rarely, too, and opens the ledger once it is back."""
    bridge = make_bridge()
    goes(ledger)
    for _ in range(100):
        with pytest.raises(LedgerUnavailable):
            bridge.process(facts(1)[0])
        clock.advance(0.1)
    assert 4 < ledger.calls["open"] < 20
    comes_back(ledger)
    clock.advance(CAP_S)
    assert bridge.process(facts(1)[0]).outcome == "done"


def test_one_of_many_threads_looks_whether_it_is_back(make_bridge, ledger, clock):
    """Of many threads of a bridge one asks a ledger that may be back, while the others are refused at once."""
    bridge = make_bridge()
    bridge.open()
    goes(ledger)
    assert_raises_often(bridge)
    made = ledger.calls["claim"]
    clock.advance(CAP_S)
    refused = threading.Semaphore(0)
    seen = []

    def wait_for_the_others():
        seen.append(all(refused.acquire(timeout=30) for _ in range(7)))

    ledger.faults = (Fault("claim", call=0, act=wait_for_the_others),)

    def work():
        try:
            bridge.process(facts(1)[0])
        except LedgerUnavailable:
            refused.release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [True]
    assert ledger.calls["claim"] == made + 1
    assert len(bridge.given) == 1


def test_memory_is_bounded(make_bridge, ledger, clock):
    """Batches that are refused during an outage leave nothing behind."""
    bridge = make_bridge()
    bridge.open()
    goes(ledger)
    batch = [raw(one) for one in facts(20)]

    def refuse(times):
        for _ in range(times):
            with pytest.raises(LedgerUnavailable):
                bridge.process_many(batch)
            clock.advance(0.3)

    refuse(20)
    tracemalloc.start()
    try:
        refuse(10)
        before, _ = tracemalloc.get_traced_memory()
        refuse(100)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < len(batch) * len(batch[0])  # not even one batch


def test_stop_during_an_outage(make_bridge, ledger, clock):
    """A bridge that is told to stop while it repeats a claim gives up at once."""
    bridge = make_bridge()
    bridge.open()
    goes(ledger, "claim", act=lambda: (bridge.stop(), lose_connection()))
    with pytest.raises(LedgerUnavailable):
        bridge.process_many(facts(2))
    assert ledger.calls["claim"] == 1
    assert columns(bridge.process_many(facts(2))) == ["retrying"] * 2


# --- whatever reaches the ledger closes the breaker ----------------------------------------------------------------


def test_settle_that_comes_through_closes_it(make_bridge, ledger, clock):
    """A settle is made however open the breaker is, and when it comes through the next claim need not wait."""

    def meet_an_outage(event):
        if event.envelope.id == "fact 9":
            goes(ledger, "claim")
            assert_raises_often(bridge)
            comes_back(ledger)

    bridge = make_bridge(meet_an_outage)
    assert bridge.process(facts(10)[9]).outcome == "done"
    assert columns(bridge.process_many(facts(2))) == ["processed"] * 2


def test_extend_that_comes_through_closes_it(ledger, clock):
    """A claim is extended however open the breaker is, and when that comes through it is closed."""
    ledger.open(None)
    breaker = ledger_breaker(clock)
    keeper = LeaseExtender(ledger, breaker, clock, lease_us=LEASE_S * 1_000_000, handler_timeout_us=900_000_000)
    ask = Ask(key=b"key")
    (answer,) = ledger.claim([ask], nonce=b"12345678", lease_us=LEASE_S * 1_000_000)
    held = Lease(Claim(ask, answer.token), clock.monotonic_us())
    goes(ledger)
    for _ in range(CALL_TRIES + 1):
        with pytest.raises(LedgerUnavailable):
            keeper.ensure(held, clock.monotonic_us())
    assert breaker.retry_in_us > 0
    comes_back(ledger)
    assert keeper.ensure(held, clock.monotonic_us())
    assert breaker.retry_in_us == 0


class Holder:
    """Holds leases that are to be extended."""

    is_over = False

    def __init__(self, *leases):
        self.leases = list(leases)


@pytest.mark.parametrize("error", [LedgerUnavailable, LedgerRefused])
def test_claims_are_extended_again_when_the_ledger_is_back(error, ledger, clock):
    """Neither an outage nor a refusal, such as of a right that somebody takes and gives back, ends the keeper."""
    ledger.open(None)
    keeper = LeaseExtender(
        ledger, ledger_breaker(clock), clock, lease_us=LEASE_S * 1_000_000, handler_timeout_us=900_000_000
    )
    ask = Ask(key=b"key")
    (answer,) = ledger.claim([ask], nonce=b"12345678", lease_us=LEASE_S * 1_000_000)
    held = Lease(Claim(ask, answer.token), clock.monotonic_us())
    keeper.watch(Holder(held))

    def refuse():
        raise error("not now")

    goes(ledger, act=refuse)
    keeper.tick()
    comes_back(ledger)
    clock.advance(LEASE_S / 2)
    keeper.tick()
    keeper.close()
    assert held.runs_until_us == clock.monotonic_us() + LEASE_S * 1_000_000


# --- settles -----------------------------------------------------------------------------------------------------


def away_for(ledger, clock, seconds, *verbs):
    """Let the ledger go out of reach now, for so long."""
    back_us = clock.monotonic_us() + round(seconds * 1_000_000)
    goes(ledger, *verbs, act=lambda: lose_connection() if clock.monotonic_us() < back_us else None)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "is told to stop"])
def test_effects_are_settled_after_an_outage(stops, concurrency, make_bridge, ledger, clock):
    """Effects that were done when the ledger went away are settled when it is back, stop or no stop: none repeats."""
    together = threading.Barrier(concurrency)

    def act(event):
        if together.wait(30) == 0:
            away_for(ledger, clock, LEASE_S * 0.8)
            if stops:
                bridge.stop()
        together.wait(30)

    bridge = make_bridge(act, concurrency=concurrency, settle_within_seconds=0)
    results = bridge.process_many(facts(concurrency))
    assert columns(results) == ["processed"] * concurrency
    assert len(bridge.given) == concurrency
    assert ledger.counts() == {Status.DONE: concurrency}


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "is told to stop"])
def test_patience_ends_with_the_lease(stops, concurrency, make_bridge, ledger, clock):
    """An outage longer than the lease ends in an error when the lease is over, without another handler started."""
    together = threading.Barrier(concurrency)

    def act(event):
        if together.wait(30) == 0:
            goes(ledger)
            if stops:
                bridge.stop()
        together.wait(30)

    bridge = make_bridge(act, concurrency=concurrency, settle_within_seconds=0)
    start_us = clock.monotonic_us()
    with pytest.raises(LedgerUnavailable):
        bridge.process_many(facts(12))
    assert LEASE_S <= seconds_since(clock, start_us) < LEASE_S + 1
    assert len(bridge.given) == concurrency
    books = bridge.books.as_dict()
    assert (books["received"], books["retrying"], books["balanced"]) == (12, 12, True)
    comes_back(ledger)
    other = make_bridge()
    assert columns(other.process_many(facts(12))) == ["processed"] * 12
    assert {event.key for event in bridge.given} <= {event.key for event in other.given}


def test_half_a_ledger_does_not_hold_anybody_for_ever(make_bridge, ledger, clock):
    """Where claims can be extended but not settled, patience ends all the same, even for a dead letter."""
    bridge = make_bridge()
    keeper = bridge.open()._extender
    start_us = clock.monotonic_us()

    def extend_only():
        assert seconds_since(clock, start_us) < 10 * LEASE_S, "for ever"
        keeper.tick()
        lose_connection()

    goes(ledger, "settle", act=extend_only)
    with pytest.raises(LedgerUnavailable):
        bridge.process(b"no event")
    assert seconds_since(clock, start_us) < LEASE_S + 1
    assert ledger.calls["extend"] > 0


def test_after_a_failure_the_queue_is_not_worked_off(make_bridge, ledger, clock):
    """With several handlers at once, the first that meets the outage ends the batch: not each finds out by itself."""
    never = threading.Event()

    def refuse_slowly():
        never.wait(0.02)  # as long as it takes to be refused
        lose_connection()

    def act(event):
        goes(ledger, act=refuse_slowly)
        clock.advance(LEASE_S)

    bridge = make_bridge(act, concurrency=2, settle_within_seconds=0)
    with pytest.raises(LedgerUnavailable):
        bridge.process_many(facts(300))
    assert len(bridge.given) <= 2
    assert ledger.calls["extend"] < 150


def test_effect_that_waits_is_settled_though_another_meets_the_outage(make_bridge, ledger, clock):
    """An effect that waits to be settled with others is settled, patiently, where its neighbour ends the batch."""

    def act(event):
        clock.advance(LEASE_S * 0.6)  # now the neighbour's claim has to be extended before it is tried

    bridge = make_bridge(act, settle_within_seconds=1000)
    ledger.faults = (Fault("extend", call=1), *(Fault("settle", call=number) for number in (1, 2, 3)))
    with pytest.raises(LedgerUnavailable):
        bridge.process_many(facts(2))
    assert ledger.counts() == {Status.DONE: 1, Status.RELEASE: 1}
    assert columns(bridge.process_many(facts(2))) == ["redelivery", "processed"]
    assert Counter(event.envelope.id for event in bridge.given) == {"fact 0": 1, "fact 1": 1}


def test_outage_in_the_middle_of_a_batch(make_bridge, ledger, clock):
    """What was settled before the outage is a duplicate when the batch comes again; the rest is done then."""

    def act(event):
        if event.envelope.id == "fact 2" and len(bridge.given) == 3:
            goes(ledger)

    bridge = make_bridge(act, settle_within_seconds=0)
    with pytest.raises(LedgerUnavailable):
        bridge.process_many(facts(5))
    books = bridge.books.as_dict()
    assert (books["received"], books["retrying"], books["balanced"]) == (5, 5, True)
    comes_back(ledger)
    clock.advance(CAP_S)
    assert columns(bridge.process_many(facts(5))) == ["redelivery"] * 2 + ["processed"] * 3
    books = bridge.books.as_dict()
    assert (books["received"], books["retrying"], books["redelivery"], books["processed"]) == (10, 5, 2, 3)
    given = Counter(event.key for event in bridge.given)
    assert sorted(given.values()) == [1, 1, 1, 1, 2]  # the one that was done but could not be settled, under its key


# --- files -------------------------------------------------------------------------------------------------------


class File:
    """A file of deliveries that notes how far it was read, what became of each, and what is said of outages."""

    def __init__(self, bridge, deliveries, batch=10):
        """Take what is in it."""
        self.read = 0
        self.said = []
        self.told = []
        self.run = FileRun(bridge.open(), bridge.books, batch=batch, on_outage=self.said.append)
        self._deliveries = deliveries

    def _lines(self):
        for one in self._deliveries:
            self.read += 1
            yield raw(one)

    def work_off(self):
        """Note what became of each."""
        for n, result in self.run.results(self._lines()):
            self.told.append((n, result.column))


def test_file_goes_on_after_an_outage(make_bridge, ledger, clock):
    """A run waits through an outage and reads nothing meanwhile; then every event is done, once."""
    read_meanwhile = set()

    def act(event):
        if len(bridge.given) == 15:
            away_for(ledger, clock, 25, "claim")
            ledger.faults += (Fault("claim", call=0, act=lambda: read_meanwhile.add(file.read)),)

    bridge = make_bridge(act, settle_within_seconds=0)
    file = File(bridge, facts(50))
    before = ledger.calls["claim"]
    file.work_off()
    assert file.told == [(n, "processed") for n in range(1, 51)]
    assert file.run.finished
    assert len(file.said) == 1
    assert min(read_meanwhile) == 30  # the batch that met the outage, and none after it
    assert ledger.calls["claim"] - before < 5 + 4 + 6 + 25 / 5
    assert len({event.key for event in bridge.given}) == len(bridge.given) == 50
    assert bridge.books.as_dict()["processed"] == 50


def test_file_in_an_outage_within_a_batch(make_bridge, ledger, clock):
    """Where the ledger goes away in the middle of a batch, what was settled keeps its verdict: it is no duplicate."""

    def act(event):
        if len(bridge.given) == 5:
            away_for(ledger, clock, LEASE_S + 15)

    bridge = make_bridge(act, settle_within_seconds=0)
    file = File(bridge, facts(10))
    file.work_off()
    assert file.told == [(n, "processed") for n in range(1, 11)]
    assert file.run.finished
    assert len(bridge.given) == 11  # one was done but could not be settled while its lease lasted
    assert bridge.books.as_dict()["processed"] == 10


def test_file_gives_up_after_a_minute(make_bridge, ledger, clock):
    """After a minute in which nothing was settled a run ends with an error; it tells of each delivery it has read."""

    def act(event):
        if len(bridge.given) == 15:
            goes(ledger)

    bridge = make_bridge(act, settle_within_seconds=0)
    file = File(bridge, facts(50))
    start_us = clock.monotonic_us()
    with pytest.raises(LedgerUnavailable, match="out of reach"):
        file.work_off()
    assert file.told == [(n, "processed" if n < 15 else "retrying") for n in range(1, 21)]
    assert seconds_since(clock, start_us) == pytest.approx(LEASE_S + OUTAGE_PATIENCE_US / 1_000_000, abs=1)
    assert file.read == 20
    assert not file.run.finished
    books = bridge.books.as_dict()
    assert (books["received"], books["processed"], books["retrying"], books["balanced"]) == (20, 14, 6, True)
    comes_back(ledger)
    again = make_bridge()
    assert Counter(columns(again.process_many(facts(20)))) == {"redelivery": 14, "processed": 6}


def test_stop_ends_the_wait(make_bridge, ledger, clock):
    """A run that is told to stop during an outage ends without waiting any longer."""
    bridge = make_bridge()
    file = File(bridge, facts(30))

    def stop_in_time():
        if seconds_since(clock, start_us) > 5:
            bridge.stop()
        lose_connection()

    goes(ledger, act=stop_in_time)
    start_us = clock.monotonic_us()
    with pytest.raises(LedgerUnavailable):
        file.work_off()
    assert 5 < seconds_since(clock, start_us) < 5 + CAP_S
    assert bridge.given == []
    assert bridge.books.as_dict()["retrying"] == file.read == 10


def test_patience_begins_with_the_outage(make_bridge, ledger, clock):
    """A batch that took longer than a minute by itself has the whole minute left when the ledger goes away."""

    def act(event):
        clock.advance(OUTAGE_PATIENCE_US / 1_000_000 + 10)
        away_for(ledger, clock, 20, "claim")

    bridge = make_bridge(act)
    # The same id with other content is asked for once the first one is settled: a second round in one batch.
    file = File(bridge, [envelope(AUDITS), envelope(AUDITS, {"action": "Delete"}, id="other")])
    file.work_off()
    assert file.told == [(1, "processed"), (2, "conflict")]
    assert len(file.said) == 1
    assert file.run.finished
