"""Requests that arrive together share the ledger's round trips, and do not block each other."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from lambda_function import text
from oncebridge import Bridge
from oncebridge.claim import Outcome, Verdict
from oncebridge.engine.result import Result, delivered, joined
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.service import request_batcher
from oncebridge.testing.faults import Fault, faulty, lose_connection
from servers.process import wait_until
from servers.valkey import running_valkey
from service.serving import MANY, PATIENCE_SECONDS, Gate, Service, answers, problem


@pytest.fixture
def patient(monkeypatch):
    """Treat every batch as quick, however slow this machine is."""
    monkeypatch.setattr(request_batcher, "SHARE_MS", 1e9)


@pytest.fixture
def gates():
    """Make gates, which are open when the test is over."""
    made = []

    def make():
        made.append(Gate())
        return made[-1]

    yield make
    for gate in made:
        gate.open()


# --- together -----------------------------------------------------------------------------------------------


class Crowd:
    """A service with quick handlers whose ledger is held up, so that requests gather."""

    def __init__(self, gate):
        """Take the gate at which the ledger waits."""
        self.ledger = faulty(MemoryLedger())
        self.service = Service(self.ledger)
        self._gate = gate
        self.sizes = []

    def bring(self, bodies, events):
        """Send these while an earlier request runs; return the answers, and note the sizes of claim calls."""
        service, claim = self.service, self.ledger.claim

        def measured(asks, **how):
            self.sizes.append(len(asks))
            return claim(asks, **how)

        with service:
            service.become_quick()
            self.ledger.faults = (Fault("claim", call=2, act=self._gate),)
            first = service.events(text(0))
            self._gate.wait_for_somebody()
            self.ledger.claim = measured
            others = [service.events(body) for body in bodies]
            wait_until(lambda: service.bridge.books.received == MANY + 1 + events, "all to arrive")
            assert self.sizes == []
            self._gate.open()
            assert first.result(PATIENCE_SECONDS).status == 200
            return answers(others)


@pytest.fixture
def crowd(patient, gates):
    """A service at which requests gather."""
    return Crowd(gates())


def test_quick_requests_go_together(crowd):
    """What arrives while a batch runs is asked for in one call."""
    got = crowd.bring([text(number) for number in range(1, 31)], 30)
    assert {answered.status for answered in got} == {200}
    assert crowd.sizes == [30]
    assert crowd.service.done.keys() >= set(range(31))


def test_each_request_is_told_of_its_own(crowd):
    """Each request of a batch is answered by the results of its own deliveries alone."""
    crowd.service.does[3] = RuntimeError()
    bodies = [text(1), f"[{text(2)},{text(1)}]", "hello", text(3), f"[{text(4)},{text(3)}]", text(5)]
    got = crowd.bring(bodies, 8)
    assert [answered.status for answered in got] == [200, 200, 400, 503, 503, 200]
    assert (got[1].json["processed"], got[1].json["redelivery"]) == (1, 1)
    assert "1 of 1 deliveries" in problem(got[3])
    assert "1 of 2 deliveries" in problem(got[4])
    done = {"processed": MANY + 5, "redelivery": 1, "dead": 1, "retrying": 2}
    assert crowd.service.books == {"received": MANY + 9, **done}


def test_a_batch_is_bounded(crowd, monkeypatch):
    """No batch has more events than it may, and no request is split."""
    monkeypatch.setattr(request_batcher, "EVENTS_MAX", 10)
    bodies = [f"[{','.join(text(at * 100 + n) for n in range(size))}]" for at, size in enumerate([4] * 5 + [25], 1)]
    assert {answered.status for answered in crowd.bring(bodies, 45)} == {200}
    assert crowd.sizes == [8, 8, 4, 25]


@pytest.mark.parametrize("quick", [True, False])
def test_twins_in_concurrent_requests_take_effect_once(quick):
    """Concurrent deliveries of one event are all answered with 200, and it is processed once."""
    with Service() as service:
        if quick:
            service.become_quick()
        before = service.books
        futures = [service.events(text(number)) for number in range(10) for _ in range(10)]
        got = answers(futures)
        assert {answered.status for answered in got} == {200}
        assert {service.done[number] for number in range(10)} == {1}
        assert sum(answered.json["processed"] for answered in got) == 10
        assert service.books["received"] == before.get("received", 0) + 100
        assert service.books["processed"] == before.get("processed", 0) + 10


# --- side by side -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [True, False])
def test_a_handler_that_hangs_holds_up_nobody_else(gates, quick):
    """While the handler of one request hangs, others are answered, after quick handlers and after slow ones."""
    with Service() as service:
        if quick:
            service.become_quick()
        hanging = gates()
        service.does[0] = hanging
        held = service.events(text(0))
        hanging.wait_for_somebody()
        assert {service.event(number).status for number in range(1, 20)} == {200}
        assert service.event(20, 21, 22).status == 200
        assert not held.done()
        hanging.open()
        assert held.result(PATIENCE_SECONDS).status == 200


def test_unknown_handlers_are_taken_for_slow(gates):
    """Of the first requests ever, all at once, none waits for another that hangs."""
    with Service() as service:
        hanging = gates()
        service.does[0] = hanging
        futures = [service.events(text(number)) for number in range(8)]
        assert {answered.status for answered in answers(futures[1:])} == {200}
        assert not futures[0].done()
        hanging.open()


def test_slow_handlers_work_side_by_side():
    """As many requests as settings allow are worked on at a time: here they wait for each other."""
    with Service(concurrency=5) as service:
        together = threading.Barrier(5)
        service.does |= dict.fromkeys(range(5), lambda: together.wait(PATIENCE_SECONDS))
        assert {one.status for one in answers([service.events(text(number)) for number in range(5)])} == {200}


def test_slow_events_of_one_request_are_handled_side_by_side():
    """A batch of slow events takes as long as the slowest few, not as all of them: here they wait for each other."""
    with Service(concurrency=5) as service:
        together = threading.Barrier(5)
        service.does |= dict.fromkeys(range(5), lambda: together.wait(PATIENCE_SECONDS))
        assert service.event(*range(5)).status == 200


def test_slow_and_quick_are_told_apart():
    """Handlers are judged by what the last ones took: both ways."""
    pace = request_batcher.HandlerPace()
    assert not pace.is_quick
    (move,) = delivered([Bridge("memory://").process(text(1))])
    assert move.duration_ms is None
    pace.observe(move)
    assert not pace.is_quick
    for duration_ms, quick in ((0.1, True), (20.0, False), (0.5, True), (1.5, False)):
        for _ in range(100):
            pace.observe(type(move)(move="settled", key="", topic="", duration_ms=duration_ms))
        assert pace.is_quick is quick


# --- in time ------------------------------------------------------------------------------------------------


def test_a_request_is_answered_in_time_whatever_its_handler_does(gates):
    """The sender gets 503; processing continues and is settled, so that the next delivery is a duplicate."""
    hanging = gates()
    with Service(serve={"answer_within_seconds": 0.2}, busy_wait_seconds=0) as service:
        service.does[0] = hanging
        answered = service.event(0)
        assert answered.status == 503
        assert answered.headers["retry-after"] == "1"
        assert "takes longer" in problem(answered)
        assert service.event(0).status == 503  # still worked on
        hanging.open()
        wait_until(lambda: service.books.get("processed") == 1, "the work to be settled")
        wait_until(lambda: service.event(0).status == 200, "the next delivery to be acknowledged")
        assert service.done == {0: 1}
        assert service.books["processed"] == 1


def test_what_waited_too_long_is_not_begun(gates):
    """An event that was handed back while it waited is not tried behind its sender's back."""
    hanging = gates()
    with Service(serve={"answer_within_seconds": 0.2}, concurrency=2) as service:
        service.does |= {0: hanging, 1: hanging}
        answered = answers([service.events(text(number)) for number in range(6)])
        assert {one.status for one in answered} == {503}
        hanging.open()
        wait_until(lambda: service.books.get("processed") == 2, "the two that ran to be settled")
        assert set(service.tried) == {0, 1}
        assert service.books == {"received": 6, "processed": 2, "retrying": 4}


def test_too_many_requests_are_refused_at_once(gates, monkeypatch):
    """What could not be answered in time anyway need not wait for that."""
    monkeypatch.setattr(request_batcher, "WAITING_MAX", 3)
    hanging = gates()
    with Service(concurrency=2) as service:
        service.does |= {0: hanging, 1: hanging}
        running = [service.events(text(number)) for number in range(2)]
        hanging.wait_for_somebody()
        hanging.wait_for_somebody()
        waiting = [service.events(text(number)) for number in range(2, 5)]
        wait_until(lambda: service.books["received"] == 5, "the others to wait")
        answered = service.event(6)
        assert answered.status == 503
        assert "too much" in problem(answered)
        assert service.books["received"] == 5
        hanging.open()
        assert {one.status for one in answers(running + waiting)} == {200}


def test_what_was_answered_while_it_waited_makes_room(gates, monkeypatch):
    """While all that run hang, requests whose time is over are let go of, with what they hold."""
    monkeypatch.setattr(request_batcher, "WAITING_MAX", 3)
    hanging = gates()
    with Service(serve={"answer_within_seconds": 0.2}, concurrency=2) as service:
        service.does |= {0: hanging, 1: hanging}
        running = [service.events(text(number)) for number in range(2)]
        hanging.wait_for_somebody()
        hanging.wait_for_somebody()
        answers(running + [service.events(text(number)) for number in range(2, 5)])
        assert service.books["received"] == 5
        wait_until(lambda: "takes longer" in problem(service.event(6)), "room for another to wait", 10)
        hanging.open()


# --- busy ---------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(gates):
    """Another process on the same ledger, whose handler hangs with each event that it is given."""
    ledger = MemoryLedger()
    gate = gates()
    with Bridge(ledger) as bridge, ThreadPoolExecutor() as pool:
        bridge.on("*")(gate)

        def begin(number):
            under_way = pool.submit(bridge.process, text(number))
            gate.wait_for_somebody()
            return under_way

        yield ledger, gate, begin
        gate.open()


def test_what_somebody_else_works_on_is_waited_for(elsewhere):
    """It is asked for again now and then, and acknowledged once it is done; others need not wait for it."""
    ledger, gate, begin = elsewhere
    begin(1)
    with Service(ledger, busy_wait_seconds=PATIENCE_SECONDS) as service:
        busy = service.events(text(1))
        mixed = service.events(f"[{text(2)},{text(1)},{text(3)}]")
        wait_until(lambda: service.done == {2: 1, 3: 1}, "the others of that request to be done")
        assert service.event(4).status == 200
        assert not busy.done()
        assert not mixed.done()
        gate.open()
        first, second = answers([busy, mixed])
        assert (first.status, first.json["redelivery"]) == (200, 1)
        assert (second.json["processed"], second.json["redelivery"]) == (2, 1)
        assert service.done == {2: 1, 3: 1, 4: 1}
        assert service.books == {"received": 5, "processed": 3, "redelivery": 2}


def test_but_not_for_ever(elsewhere):
    """After `busy_wait_seconds` the answer is 503, never 409, and the books count the delivery once."""
    ledger, _, begin = elsewhere
    begin(1)
    with Service(ledger, busy_wait_seconds=0.2) as service:
        answered = service.event(1, 2)
        assert answered.status == 503
        assert "is being worked on" in problem(answered)
        assert service.books == {"received": 2, "processed": 1, "retrying": 1}


def test_waiting_ends_with_the_time_of_the_request(elsewhere):
    """However long settings would wait, the sender is answered before it goes away."""
    ledger, gate, begin = elsewhere
    under_way = begin(1)
    with Service(ledger, busy_wait_seconds=PATIENCE_SECONDS, serve={"answer_within_seconds": 0.3}) as service:
        assert service.event(1).status == 503
        gate.open()
        under_way.result(PATIENCE_SECONDS)
        wait_until(lambda: service.event(1).status == 200, "it to be a duplicate")
        assert service.tried == {}


def test_a_failure_is_not_repeated_while_another_handler_is_busy(elsewhere):
    """Of two handlers one fails and the other is busy: asking for the busy one again spends no attempts."""
    ledger, _, begin = elsewhere
    begin(1)
    with Service(ledger, busy_wait_seconds=PATIENCE_SECONDS) as service:
        failures = []

        def fail(event):
            failures.append(event.attempt)
            raise RuntimeError

        service.bridge.on("*", name="second")(fail)
        assert service.event(1).status == 503
        assert failures == [1]


def test_a_delivery_is_busy_where_nothing_else_holds_it_up():
    """A failed handler decides the result of a delivery before a busy one, in any order."""
    busy = Result(verdict=Verdict.BUSY, reason="busy")
    failed = Result(verdict=Verdict.FRESH, outcome=Outcome.RETRY, reason="failed")
    done = Result(verdict=Verdict.FRESH, outcome=Outcome.DONE, reason="done")
    assert joined([busy, failed, done]) is joined([done, failed, busy]) is failed
    assert joined([done, busy]) is busy


# --- the ledger goes away -----------------------------------------------------------------------------------


def test_an_outage_is_told_to_all_and_logged_once(caplog):
    """Every request gets 503 without the ledger's address, and the log has one line for the outage."""
    ledger = faulty(MemoryLedger())
    with Service(ledger) as service:
        service.become_quick()
        ledger.faults = (Fault("claim", call=0, act=lose_connection),)
        futures = [service.events(text(number)) for number in range(20)]
        for answered in answers(futures):
            assert (answered.status, answered.headers["retry-after"]) == (503, "10")
            assert problem(answered) == "the ledger is out of reach"
        assert service.send("GET", "/health").json == {"status": "ok", "ledger": "out of reach"}
        ledger.faults = ()
        for number in range(20):
            wait_until(lambda: service.event(number).status == 200, "the ledger to be asked again")  # noqa: B023
        assert {service.done[number] for number in range(20)} == {1}
        assert service.send("GET", "/health").json["ledger"] == "in reach"
        warnings = [record.message for record in caplog.records]
        assert len(warnings) == 2
        assert warnings[0].startswith("requests have to come again: ")
        assert warnings[1] == "the ledger is in reach again"


def test_what_nobody_expected_is_not_acknowledged_and_not_quoted(caplog):
    """A bug of ours costs a retry, not an event; the log has its class alone, since its message may quote an event."""

    def break_down():
        raise ZeroDivisionError("tel:+447700900123")

    ledger = faulty(MemoryLedger())
    with Service(ledger) as service:
        ledger.faults = (Fault("claim", call=1, act=break_down),)
        answered = service.event(1)
        assert answered.status == 503
        assert "+4477" not in problem(answered)
        assert service.event(1).status == 200
    assert "ZeroDivisionError" in caplog.text
    assert "+4477" not in caplog.text


def repeated(service, numbers, told):
    """Send each event until it is acknowledged, many at a time, and note the answers."""
    pause = threading.Event()

    def repeat(number):
        while told.setdefault(number, [])[-1:] != [200]:
            told[number].append(service.event(number).status)
            pause.wait(0.02)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(repeat, numbers))


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_doubled_over_outages(seed):
    """Senders repeat until they get 200; by then each event has taken effect once."""
    dice, told, over = random.Random(seed), {}, threading.Event()
    ledger = faulty(MemoryLedger())

    def outages():
        kinds = [
            [Fault("claim", call=0), Fault("settle", call=0), Fault("extend", call=0)],
            [Fault("settle", call=0)],
            [Fault("settle", call=0, after=True)],
        ]
        while not over.wait(dice.random() / 5):
            ledger.faults = tuple(dice.choice(kinds))
            over.wait(dice.random() / 5)
            ledger.faults = ()

    with Service(ledger, lease_seconds=3600) as service:
        trouble = threading.Thread(target=outages)
        trouble.start()
        try:
            repeated(service, range(300), told)
        finally:
            over.set()
            trouble.join()
        assert service.done == dict.fromkeys(range(300), 1)
        assert {status for statuses in told.values() for status in statuses} <= {200, 503}
        assert service.statuses == {"done": 300}
        books = service.books
        assert books["received"] == sum(map(len, told.values()))
        assert books["processed"] + books.get("redelivery", 0) >= 300


def test_a_ledger_that_is_killed_comes_back(tmp_path):
    """While it is gone every event is handed back, and once it is there again each takes effect once."""
    told = {}
    with running_valkey(tmp_path) as server, Service(Bridge(server.url).ledger) as service:
        repeated(service, range(20), told)
        server.process.kill()
        gone = answers([service.events(text(number)) for number in range(40)])
        assert {answered.status for answered in gone} == {503}
        assert service.done == dict.fromkeys(range(20), 1)
        server.process.start()
        repeated(service, range(20, 40), told)
        assert service.done == dict.fromkeys(range(40), 1)
        assert service.event(0).json["redelivery"] == 1
