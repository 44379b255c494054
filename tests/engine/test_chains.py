"""Chains: the states of one entity in a batch are one claim, and keep their rules whatever happens between them."""

import os
import threading
from contextlib import suppress

import pytest

from oncebridge import Bridge, LedgerUnavailable, PermanentError, RetryLater, Settings
from oncebridge.claim import Claim, Outcome, Status
from oncebridge.engine.batch_order import AFTER_CUT_MAX
from oncebridge.engine.task import Ended
from oncebridge.ledgers import ledger_from_url
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.testing.clock import ManualClock
from oncebridge.testing.faults import Fault, faulty
from payloads import ABSENT, ACW, PRESENCE, TIME_MS, changed, envelope, in_envelope, iso

APART_MS = 10_000
LEASE_S = 30
TIMEOUT_S = 60
AT_ONCE = Settings(settle_within_seconds=0, busy_wait_seconds=0, handler_timeout_seconds=TIMEOUT_S)
TOGETHER = Settings(settle_within_seconds=10, busy_wait_seconds=0)


def state(number, *, user="one", like=None, **body):
    """Build a state of a user's presence, later than those of lower numbers; another one unless it is like one."""
    name = f"state {number if like is None else like}"
    definition = {"id": name, "systemPresence": name}
    changes = {"modifiedDate": iso(TIME_MS + number * APART_MS), "presenceDefinition": definition, **body}
    frame = {"topicName": f"v2.users.{user}.presence"}
    return envelope(PRESENCE, changes, frame=frame, id=f"{user} {number}")


def fact(number):
    """Build an event that has nothing to do with the others."""
    return envelope(ACW, {"eventTime": TIME_MS + number}, id=f"fact {number}")


def chain(*numbers):
    """Build states of one entity."""
    return [state(number) for number in numbers]


def ids(events):
    """Return the envelope ids of events, by which the tests know them."""
    return [event.envelope.id for event in events]


def verdicts(results):
    """Return verdicts and outcomes."""
    return [(result.verdict, result.outcome) for result in results]


class Sink:
    """Receives events, and refuses one whose token is lower than one that it has seen for the entity."""

    def __init__(self):
        self.given = []
        self.shown = {}
        self.refused = []

    def __call__(self, event):
        """Show the newest."""
        self.given.append(event)
        token, _ = self.shown.get(event.entity, (0, None))
        if event.token < token:
            self.refused.append(event.envelope.id)
        else:
            self.shown[event.entity] = event.token, event.envelope.id


@pytest.fixture
def clock():
    """A clock that moves by hand."""
    return ManualClock()


@pytest.fixture
def workers(clock):
    """Make bridges on ledgers, as so many workers."""
    made = []

    def make(ledger, handler, settings=AT_ONCE):
        bridge = Bridge(ledger, clock=clock, settings=settings)
        bridge.on("*")(handler)
        made.append(bridge)
        return bridge

    yield make
    for bridge in made:
        bridge.close()


@pytest.fixture
def ledger(clock):
    """A ledger in memory, by the same clock."""
    return MemoryLedger(clock)


# --- calls ------------------------------------------------------------------------------------------------------


def test_a_mixed_batch_is_one_claim_and_one_settle(ledger, workers):
    """States of several entities, facts, echoes, late ones and twins in one batch take two calls; all again, one."""
    counted = faulty(ledger)
    late = [state(0, user=user) for user in ("one", "two")]
    echoes = [state(20, like=19, modifiedDate=iso(TIME_MS + 19 * APART_MS + 5))]
    states = [state(number, user=user) for number in range(1, 20) for user in ("one", "two")]
    batch = [*states, *map(fact, range(20)), *echoes, *late, *states[:5], fact(3)]
    worker = workers(counted, lambda _event: None, TOGETHER)
    columns = [result.column for result in worker.process_many(batch)]
    assert {*columns} == {"processed", "echo", "stale", "redelivery"}
    assert (counted.calls["claim"], counted.calls["settle"], counted.calls["extend"]) == (1, 1, 0)
    assert {result.column for result in worker.process_many(batch)} == {"redelivery"}
    assert (counted.calls["claim"], counted.calls["settle"]) == (2, 1)


@pytest.mark.parametrize("original", ["original", ABSENT], ids=["with id", "without id"])
def test_twins_of_a_remembered_event_are_one_claim(original, any_ledger):
    """However many envelopes bring a remembered event again, one claim tells each of them what it is."""
    twins = [{**state(1), "id": name} for name in ("a", "b", "original", "c", "a")]
    first = changed(state(1), {"id": original})
    with Bridge(any_ledger, settings=TOGETHER) as bridge:
        bridge.on("*")(lambda _event: None)
        assert bridge.process(first).outcome == "done"
        bridge.close()
        counted = bridge.ledger = faulty(bridge.ledger)
        results = bridge.process_many(twins)
        known = "republish" if original is ABSENT else "redelivery"
        assert [result.verdict for result in results] == ["republish", "republish", known, "republish", "republish"]
        assert counted.calls["claim"] == 1


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome", "again"),
    [
        (ValueError(), "retry", ("stale", None)),
        (RetryLater(after_seconds=60), "retry", ("stale", None)),
        (PermanentError(), "dead", ("redelivery", None)),
    ],
    ids=["passing", "later", "permanent"],
)
def test_a_failure_in_the_middle_holds_nothing_up(error, outcome, again, ledger, workers):
    """When the middle event of a chain fails the next ones go on, and the last one frees the entity."""

    def handle(event):
        sink(event)
        if event.envelope.id == "one 2":
            raise error

    sink = Sink()
    worker = workers(ledger, handle)
    results = worker.process_many(chain(1, 2, 3))
    assert verdicts(results) == [("fresh", "done"), ("fresh", outcome), ("fresh", "done")]
    assert verdicts(worker.process_many(chain(2))) == [again]
    assert verdicts(workers(ledger, sink).process_many(chain(4))) == [("fresh", "done")]
    assert ids(sink.given) == ["one 1", "one 2", "one 3", "one 4"]
    assert worker.books.as_dict()["balanced"]


def test_there_is_no_echo_after_a_failure_in_the_chain(ledger, workers):
    """After a failed state the one before it, said again, is news: the sink may show the failed one."""

    def handle(event):
        given.append(event.envelope.id)
        if event.envelope.id == "one 2":
            raise ValueError

    given = []
    said_again = state(3, like=1, modifiedDate=iso(TIME_MS + APART_MS + 400))
    failed = state(2, modifiedDate=iso(TIME_MS + APART_MS + 200))
    results = workers(ledger, handle).process_many([state(1), failed, said_again])
    assert verdicts(results) == [("fresh", "done"), ("fresh", "retry"), ("fresh", "done")]


# --- held as one ------------------------------------------------------------------------------------------------


def test_an_entity_is_held_until_its_chain_has_ended(ledger, workers):
    """Between two events of a chain nobody else gets a state of the entity; after the last one, everybody does."""
    seen = []

    def handle(_event):
        seen.extend(other.process_many(chain(9)))

    other = workers(ledger, lambda _event: None)
    workers(ledger, handle).process_many(chain(1, 2, 3))
    assert [result.verdict for result in seen] == ["busy"] * 3
    assert verdicts(other.process_many(chain(9))) == [("fresh", "done")]


def test_every_event_of_an_entity_has_a_higher_token(ledger, workers):
    """Tokens rise along a chain, and from one chain to the next, whoever works on it."""
    sink = Sink()
    for numbers in ((1, 2, 3), (4,), (5, 6)):
        workers(ledger, sink).process_many(chain(*numbers))
    tokens = [event.token for event in sink.given]
    assert tokens == sorted({*tokens})
    assert len(tokens) == 6


def test_a_chain_is_extended_as_one(clock, ledger, workers):
    """A chain that takes longer than a lease keeps its entity, during each of its handlers and between them."""
    seen = []
    extended = threading.Event()
    counted = faulty(ledger, Fault("extend", call=0, after=True, act=extended.set))

    def slow(_event):
        for _ in range(2):
            extended.clear()
            clock.advance(LEASE_S * 0.8)
            assert extended.wait(30)
        seen.extend(other.process_many(chain(9)))

    other = workers(ledger, lambda _event: None)
    assert verdicts(workers(counted, slow).process_many(chain(1, 2, 3))) == [("fresh", "done")] * 3
    assert [result.verdict for result in seen] == ["busy"] * 3


@pytest.mark.parametrize("late", ["succeeds", "fails"])
@pytest.mark.parametrize("by", [(2, 4), (4,)], ids=["with its event", "with another"])
def test_a_late_worker_gives_the_rest_of_its_chain_back(by, late, clock, ledger, workers):
    """A worker that was taken over between two events repeats and changes nothing, and goes on with what is left."""
    sink = Sink()

    def slow(event):
        if event.envelope.id == "one 2":
            clock.advance(1000)
            taken.extend(other.process_many(chain(*by)))
        sink(event)
        if event.envelope.id == "one 2" and late == "fails":
            raise PermanentError

    taken = []
    other = workers(ledger, sink)
    worker = workers(ledger, slow)
    results = worker.process_many(chain(1, 2, 3, 0))
    assert verdicts(taken) == [("fresh", "done")] * len(by)
    assert verdicts(results) == [("fresh", "done"), ("fresh", "retry"), ("stale", None), ("stale", None)]
    assert ids(sink.given) == ["one 1", *(f"one {number}" for number in by), "one 2"]
    assert sink.refused == ["one 2"]
    assert [shown for _, shown in sink.shown.values()] == ["one 4"]
    again = ("redelivery", None) if 2 in by else ("stale", None)
    assert verdicts(other.process_many(chain(1, 2, 3, 4))) == [("redelivery", None), again, *[("redelivery", None)] * 2]
    assert worker.books.as_dict()["balanced"]


# --- lost replies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True], ids=["call", "reply"])
@pytest.mark.parametrize(("verb", "call"), [("claim", 1), ("settle", 1), ("settle", 2), ("settle", 3)])
def test_a_lost_call_or_reply_repeats_no_effect(verb, call, after, ledger, workers):
    """Whichever call or reply is lost, each event of the chain takes effect once, in order, at its first attempt."""
    sink = Sink()
    worker = workers(faulty(ledger, Fault(verb, call=call, after=after)), sink)
    assert verdicts(worker.process_many(chain(1, 2, 3))) == [("fresh", "done")] * 3
    assert ids(sink.given) == ["one 1", "one 2", "one 3"]
    assert {event.attempt for event in sink.given} == {1}
    assert verdicts(worker.process_many(chain(2, 4))) == [("redelivery", None), ("fresh", "done")]


# --- workers that end in between --------------------------------------------------------------------------------


def run_out(ledger, clock, workers, deliveries, settled):
    """Let a worker die after it has settled so many events of a batch; return the ids that it was given."""

    class Died(BaseException):
        pass

    def die():
        raise Died

    given = []
    dead = faulty(ledger, *[Fault("settle", call=settled + n, act=die) for n in range(1, 4)])
    worker = workers(dead, lambda event: given.append(event.envelope.id))
    with suppress(Died):
        worker.process_many(deliveries)
    clock.advance(LEASE_S + 1)
    return given


def test_a_dead_worker_costs_only_the_event_in_flight(clock, ledger, workers):
    """After a worker died between two events, those settled are duplicates, and the others are done in their order."""
    given = run_out(ledger, clock, workers, chain(1, 2, 3, 4), settled=2)
    assert given == ["one 1", "one 2", "one 3"]
    sink = Sink()
    results = workers(ledger, sink).process_many(chain(1, 2, 3, 4, 5))
    assert verdicts(results) == [("redelivery", None)] * 2 + [("fresh", "done")] * 3
    assert ids(sink.given) == ["one 3", "one 4", "one 5"]
    assert {event.attempt for event in sink.given} == {1}


def test_there_is_no_echo_after_a_worker_died(clock, ledger, workers):
    """After a run-out the newest done state, said again, is news: the sink may show what the dead worker has done."""
    unsettled = state(2, modifiedDate=iso(TIME_MS + APART_MS + 200))
    assert run_out(ledger, clock, workers, [state(1), unsettled], settled=1) == ["one 1", "one 2"]
    said_again = state(3, like=1, modifiedDate=iso(TIME_MS + APART_MS + 400))
    assert verdicts(workers(ledger, Sink()).process_many([said_again])) == [("fresh", "done")]


def test_a_long_chain_that_ran_out_ends_in_calls_in_proportion(clock, ledger, workers):
    """Each event that ran out is claimed alone, which takes few calls for each and none for all again."""
    number = 60
    deliveries = chain(*range(number))
    run_out(ledger, clock, workers, deliveries, settled=0)
    counted = faulty(ledger)
    sink = Sink()
    results = workers(counted, sink).process_many(deliveries)
    assert verdicts(results) == [("fresh", "done")] * number
    assert ids(sink.given) == [f"one {n}" for n in range(number)]
    assert counted.calls["claim"] <= 2 * number + 1
    assert counted.calls["settle"] <= number


def test_no_state_overtakes_one_that_is_busy(clock, ledger, workers):
    """When another worker holds the entity, all states of the batch go back, also those that were not asked for yet."""
    deliveries = chain(*range(2 * AFTER_CUT_MAX))
    run_out(ledger, clock, workers, deliveries, settled=0)
    held = []

    def take():
        held.append(flow.read(state(99)).tasks[0])
        assert flow.claim_alone(held[0], lease_us=LEASE_S * 1_000_000).token

    def give_back():
        answer = held[0].answer
        held[0].claim = Claim(held[0].ask, answer.token, answer.attempt, answer.chain)
        assert flow.settle_alone(held[0], Ended(outcome=Outcome.RELEASE, reason=""))

    sink = Sink()
    flow = workers(ledger, sink).open()
    worker = workers(faulty(ledger, Fault("claim", call=3, act=take), Fault("claim", call=4, act=give_back)), sink)
    results = worker.process_many(deliveries)
    assert verdicts(results) == [("fresh", "done")] + [("busy", None)] * (len(deliveries) - 1)
    assert ids(sink.given) == ["one 0"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C between two events."""


@pytest.mark.parametrize("settings", [AT_ONCE, TOGETHER], ids=["settled at once", "settled together"])
def test_an_interrupt_gives_the_rest_of_a_chain_back(settings, ledger, workers):
    """An interrupt settles the events that are done and releases the others; the entity is free."""

    def handle(event):
        if event.envelope.id == "one 4":
            raise Interrupted
        sink(event)

    sink = Sink()
    with pytest.raises(Interrupted):
        workers(ledger, handle, settings).process_many(chain(1, 3, 4, 5))
    assert ledger.counts() == {Status.DONE: 2, Status.RELEASE: 2}
    results = workers(ledger, sink).process_many(chain(2, 3, 4, 5))
    assert verdicts(results) == [("stale", None), ("redelivery", None), ("fresh", "done"), ("fresh", "done")]
    assert {event.attempt for event in sink.given} == {1}


# --- transactions -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def transactional(request, tmp_path):
    """A ledger that settles in its handler's transaction."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/ledger.db" if sqlite else request.getfixturevalue("own_database")
    ledger = ledger_from_url(url)
    ledger.migrate()
    return ledger


@pytest.fixture
def own_database(postgres, request):
    """An empty database on the Postgres server."""
    import psycopg

    name = f"chains_{abs(hash(request.node.name))}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name}")
    yield f"{postgres.url.rpartition('/')[0]}/{name}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def in_transaction(ledger, sink, *faults, settings=AT_ONCE):
    """Make a bridge whose handler writes in the transaction that settles its event."""
    bridge = Bridge(faulty(ledger, *faults), settings=settings)

    @bridge.on("*")
    def handle(event, transaction):
        sink(event)

    return bridge


def test_ends_without_a_transaction_are_written_before_the_next_one(transactional):
    """What ended before a transaction of its chain is written first, so that the entity keeps its newest state."""
    sink = Sink()
    echo = state(2, like=1, modifiedDate=iso(TIME_MS + APART_MS + 5))
    with in_transaction(transactional, sink, settings=TOGETHER) as bridge:
        results = bridge.process_many([state(1), echo, state(5), state(0), state(6)])
        wanted = [("fresh", "done"), ("echo", None), ("fresh", "done"), ("stale", None), ("fresh", "done")]
        assert verdicts(results) == wanted
        late = state(8, modifiedDate=iso(TIME_MS + 5 * APART_MS + 1))
        assert verdicts(bridge.process_many([late, state(7)])) == [("stale", None), ("fresh", "done")]
    assert ids(sink.given) == ["one 1", "one 5", "one 6", "one 7"]


def interrupt():
    """Press Ctrl-C."""
    raise Interrupted


def lose_reply():
    """Lose the reply to the commit."""
    raise LedgerUnavailable("the reply to the commit is lost")


@pytest.mark.parametrize("act", [interrupt, lose_reply])
@pytest.mark.parametrize("after", [False, True], ids=["begun", "committed"])
def test_the_rest_of_a_chain_goes_back_on_what_a_broken_transaction_left(transactional, after, act):
    """When it is open whether a transaction has committed, the chain's rest is released and the newest state stays."""
    sink = Sink()
    bridge = in_transaction(transactional, sink, Fault("transaction", call=2, after=after, act=act))
    with bridge:
        with pytest.raises((Interrupted, LedgerUnavailable)):
            bridge.process_many(chain(1, 3, 4, 5))
        done = 2 if after else 1
        assert bridge.ledger.counts() == {Status.DONE: done, Status.RELEASE: 4 - done}
        results = bridge.process_many(chain(2, 3))
        if after:
            assert verdicts(results) == [("stale", None), ("redelivery", None)]
        else:
            assert verdicts(results) == [("fresh", "done")] * 2
        assert verdicts(bridge.process_many(chain(4, 5))) == [("fresh", "done")] * 2
    assert ids(sink.given) == (["one 1", "one 3"] if after else ["one 1", "one 2", "one 3"]) + ["one 4", "one 5"]


# --- conflicts --------------------------------------------------------------------------------------------------


def test_a_conflict_of_a_state_is_a_dead_letter(any_ledger):
    """A state whose explicit id came before with other content is a conflict on every ledger, and holds nothing up."""

    def status(number, value):
        body = {"eventId": "the same" if number < 3 else f"id {number}", "conversationId": "one", "status": value}
        return in_envelope({**body, "timestamp": iso(TIME_MS + number)}, id=f"status {number}")

    batch = [status(1, "open"), status(2, "closed"), status(3, "held")]
    with Bridge(any_ledger, settings=TOGETHER) as bridge:
        bridge.on("*")(lambda _event: None)
        assert verdicts(bridge.process_many(batch)) == [("fresh", "done"), ("conflict", "dead"), ("fresh", "done")]
        again = [result.verdict for result in bridge.process_many(batch)]
        assert again == ["redelivery", "conflict", "redelivery"]
        counted = {status: number for status, number in bridge.ledger.counts().items() if number}
        assert counted == {Status.DONE: 2, Status.DEAD: 1}


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def any_ledger(request, tmp_path):
    """A ledger of each kind that a test can have in no time."""
    if request.param == "memory":
        yield "memory://"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
    elif request.param == "redis":
        yield f"{request.getfixturevalue('valkey').url}?name=chains-{os.urandom(4).hex()}"
    else:
        url = request.getfixturevalue("own_database")
        ledger_from_url(url).migrate()
        yield url


# --- side by side -----------------------------------------------------------------------------------------------


def test_side_by_side_the_states_of_an_entity_keep_their_order(ledger):
    """With several handlers at once, one entity's states are handled one at a time and in order."""
    running, most, order, lock = set(), [], {}, threading.Lock()
    both = threading.Barrier(2, timeout=30)

    def handle(event):
        with lock:
            assert event.entity not in running
            running.add(event.entity)
            most.append(len(running))
            order.setdefault(event.entity, []).append(event.envelope.id)
        both.wait()  # a state of each entity is being handled
        with lock:
            running.discard(event.entity)

    batch = [state(number, user=user) for number in range(5) for user in ("one", "two")]
    with Bridge(ledger, settings=Settings(concurrency=4)) as bridge:
        bridge.on("*")(handle)
        assert verdicts(bridge.process_many(batch)) == [("fresh", "done")] * len(batch)
    assert sorted(order.values()) == [[f"{user} {number}" for number in range(5)] for user in ("one", "two")]


def test_a_sink_of_many_gets_the_states_of_an_entity_one_call_after_the_other(ledger):
    """One call of `send_many` never holds two states of one entity, so a failed one is known before the next."""
    calls = []

    class Many:
        many = 10

        def __call__(self, event):
            calls.append([event.envelope.id])

        def send_many(self, events):
            calls.append(ids(events))
            return [ValueError() if event.envelope.id == "one 1" else None for event in events]

    batch = [state(number, user=user) for number in range(3) for user in ("one", "two")]
    with Bridge(ledger, settings=TOGETHER) as bridge:
        bridge.on("*")(Many())
        results = bridge.process_many(batch)
    assert [[*call] for call in calls] == [[f"one {n}", f"two {n}"] for n in range(3)]
    assert verdicts(results) == [("fresh", "done")] * 2 + [("fresh", "retry")] + [("fresh", "done")] * 3


# --- dead letters -----------------------------------------------------------------------------------------------


def test_a_letter_is_not_redriven_while_its_entity_is_held(ledger, workers):
    """A dead letter of an entity that another worker holds can be discarded, but not redriven."""

    def fail(event):
        if event.envelope.id in ("one 1", "one 2"):
            raise PermanentError

    results = workers(ledger, fail).process_many(chain(1, 2))
    seen = []

    def handle(_event):
        seen.append(other.dead_letters.redrive(results[0].key).verdict)
        other.dead_letters.discard(results[1].key)

    sink = Sink()
    other = workers(ledger, sink)
    workers(ledger, handle).process_many(chain(3))
    assert sink.given == []
    assert ledger.counts() == {Status.DONE: 1, Status.DEAD: 1, Status.DISCARD: 1}
    assert seen == ["busy"]
    assert other.dead_letters.redrive(results[0].key).verdict == "stale"
