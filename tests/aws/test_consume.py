"""An SQS queue is worked off with nothing lost: hidden while it is worked on, deleted when it is settled, in order.

The queue is an emulator's, spoken to by real boto3; where SQS has to fail, its answers are changed on the way.
"""

import json
import re
import signal
import threading
from collections import Counter, defaultdict
from math import inf
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

import payloads
from cli.conftest import CommandLine
from oncebridge import Bridge, PermanentError, RetryLater
from oncebridge.amazon import queue_client
from oncebridge.errors import ConfigurationError, LedgerRefused, LedgerUnavailable
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.retry import RetryPolicy
from oncebridge.settings import Settings
from oncebridge.sources.sqs.consumer import QueueRun
from oncebridge.sources.sqs.in_flight import InFlight, new_message
from oncebridge.sources.sqs.queue import Failed, Queue, Received
from oncebridge.sources.sqs.visibility import Visibility
from oncebridge.testing.clock import ManualClock
from oncebridge.testing.faults import Fault, faulty
from servers.process import wait_until
from servers.proxy import running_proxy

PATIENCE_SECONDS = 60.0
OFTEN = RetryPolicy(attempts=1000, base_seconds=0.01, cap_seconds=0.05)


def facts(number, start=0):
    """Make so many different facts; the time of each is its mark."""
    times = [payloads.TIME_MS + start + n for n in range(number)]
    return [payloads.envelope(payloads.ACW, {"eventTime": at}, id=f"envelope-{at}") for at in times]


def states(number):
    """Make so many states of one entity, each newer than the one before and out of its echo window."""
    times = [payloads.TIME_MS + 1000 * n for n in range(number)]
    return [payloads.routing_status("IDLE" if n % 2 else "BUSY", at, id=f"s{n}") for n, at in enumerate(times)]


def marks(deliveries):
    """Return the times by which handlers know these facts."""
    return [one["detail"]["eventBody"]["eventTime"] for one in deliveries]


# --- a queue, a client that meddles, and a run in this process ---------------------------------------------------


class RealQueue:
    """A queue at the emulator, seen from the outside."""

    def __init__(self, client, name, attributes):
        """Create it."""
        self.client = client
        self.url = self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def send(self, *bodies, group=None):
        """Send messages, in order."""
        for number, body in enumerate(bodies):
            text = body if isinstance(body, str) else payloads.raw(body).decode()
            order = {"MessageGroupId": group, "MessageDeduplicationId": f"{group}-{number}"} if group else {}
            self.client.send_message(QueueUrl=self.url, MessageBody=text, **order)

    def counts(self):
        """Return how many messages can be seen, and how many are hidden."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return tuple(int(found[name]) for name in names)

    @property
    def is_empty(self):
        """Whether nothing is left, seen or hidden."""
        return self.counts() == (0, 0)


@pytest.fixture(scope="module")
def sqs(ministack):
    """Return a client of boto3's own kind."""
    return ministack.client("sqs")


@pytest.fixture
def make_queue(sqs, request):
    """Make queues that no other test has."""
    made = []

    def make(*, fifo=False):
        name = f"{request.node.name[:50].strip('_[]-')}-{len(made)}"
        name = "".join(character if character.isalnum() else "-" for character in name)
        queue = RealQueue(sqs, name + (".fifo" if fifo else ""), {"FifoQueue": "true"} if fifo else {})
        made.append(queue)
        return queue

    yield make
    for queue in made:
        queue.client.delete_queue(QueueUrl=queue.url)


@pytest.fixture
def queue(make_queue):
    """Return a standard queue."""
    return make_queue()


class Meddler:
    """A client that tells what it was asked, and may change the answer on its way back, or fail."""

    def __init__(self, client):
        """Take the client that does the work."""
        self._client = client
        self.calls = defaultdict(list)
        #: How many calls of each operation are under way.
        self.running = Counter()
        #: Operation -> function of the arguments and of the real call, which it may leave out.
        self.instead = {}

    def __getattr__(self, operation):
        """Return the client's own, watched."""
        real = getattr(self._client, operation)

        def call(**arguments):
            self.calls[operation].append(arguments)
            self.running[operation] += 1
            try:
                instead = self.instead.get(operation, lambda _, real: real())
                return instead(arguments, lambda: real(**arguments))
            finally:
                self.running[operation] -= 1

        return call

    @property
    def hidden_for(self):
        """For how many seconds messages were hidden anew, or shown again (0)."""
        calls = self.calls["change_message_visibility_batch"]
        return [entry["VisibilityTimeout"] for call in calls for entry in call["Entries"]]


class Consuming:
    """A run in a thread of this process."""

    def __init__(
        self, queue, handler, *, ledger=None, workers=4, limit=1000, until_empty=True, client=None, poll=0, **settings
    ):
        """Make the parts; unless it ends by itself, or is told how long, it waits a second for messages."""
        self.client = Meddler(client or queue.client)
        self.bridge = Bridge(ledger or "memory://", settings=Settings(**settings))
        self.bridge.on("*")(handler)
        self.said = []
        self.error = None
        self.moves = []
        self.bridge.telemetry.add(self.moves.append)
        self.run = QueueRun(
            self.bridge.open(),
            Queue(self.client, queue.url, poll_seconds=poll if until_empty else 1),
            self.bridge.settings,
            workers=workers,
            limit=limit,
            until_empty=until_empty,
            receive=self.bridge.books.receive,
            account=self.bridge.account,
            say=self.said.append,
        )
        self._thread = threading.Thread(target=self._run, name="consuming")

    def start(self):
        """Begin."""
        self._thread.start()

    def _run(self):
        try:
            self.run.run()
        except Exception as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    @property
    def books(self):
        """The columns that are not empty."""
        found = self.bridge.books.as_dict()
        assert found["balanced"]
        return {name: number for name, number in found.items() if number and name != "balanced"}

    @property
    def verdicts(self):
        """How often the ledger gave each verdict."""
        return Counter(move.verdict for move in self.moves if move.move == "claimed")

    def finish(self):
        """Wait for its end by itself."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "it still runs"
        if self.error is not None:
            raise self.error

    def stop(self):
        """Tell it to stop, and wait for that."""
        self.bridge.stop()
        self.finish()

    def close(self):
        """End whatever still runs."""
        self.bridge.stop()
        self._thread.join(PATIENCE_SECONDS)
        self.bridge.close()


@pytest.fixture
def consuming():
    """Run with a handler; whatever a test leaves running is ended with it."""
    started, gates = [], []

    def start(queue, handler, *, meddle=lambda run: None, **options):
        run = Consuming(queue, handler, **options)
        meddle(run)
        started.append(run)
        run.start()
        return run

    start.gate = lambda: gates.append(threading.Event()) or gates[-1]
    yield start
    for gate in gates:
        gate.set()
    for run in started:
        run.close()


class Noting:
    """A handler that notes what it was given, and does what a test says first."""

    def __init__(self, first=lambda event: None):
        """Take what happens before an event is noted as done."""
        self._first = first
        self._lock = threading.Lock()
        self.tried = []
        self.done = []

    def __call__(self, event):
        """Handle one event."""
        with self._lock:
            self.tried.append(event.time_ms)
        self._first(event)
        with self._lock:
            self.done.append(event.time_ms)


def waiting_for(gate):
    """Make what waits at a gate."""

    def wait(event):
        assert gate.wait(PATIENCE_SECONDS)

    return wait


# --- deleted when settled, and not before -----------------------------------------------------------------------


def test_what_is_settled_is_deleted_and_counted_once(queue, consuming):
    """Every event takes effect once, its duplicates none, and the queue is empty then."""
    events = facts(30)
    queue.send(*events, *events[:5], *[{**one, "id": "another"} for one in events[:3]])
    handler = Noting()
    run = consuming(queue, handler)
    run.finish()
    assert sorted(handler.done) == marks(events)
    assert run.books == {"received": 38, "processed": 30, "redelivery": 5, "republish": 3}
    assert queue.is_empty


def test_a_failed_event_is_tried_again_here_and_its_message_is_received_once(queue, consuming):
    """Attempts are ours: SQS hands a message out once, however often its event fails."""
    fails = Counter()

    def fail_three_times(event):
        fails[event.time_ms] += 1
        if fails[event.time_ms] <= 3:
            raise RuntimeError("not yet")

    queue.send(*facts(5))
    handler = Noting(fail_three_times)
    received = []

    def receive(_, real):
        answer = real()
        received.extend(answer.get("Messages", ()))
        return answer

    run = consuming(queue, handler, meddle=lambda run: run.client.instead.update(receive_message=receive), retry=OFTEN)
    run.finish()
    assert len(received) == 5
    assert Counter(handler.tried) == dict.fromkeys(marks(facts(5)), 4)
    assert run.books == {"received": 5, "processed": 5}
    assert queue.is_empty


def test_a_message_of_several_deliveries_is_deleted_when_each_is_settled(queue, consuming):
    """While one of its deliveries is tried again the message stays, and what is done is not done again."""
    events = facts(3)
    refusing = threading.Event()

    def fail_second(event):
        if event.time_ms == marks(events)[1] and not refusing.is_set():
            refusing.set()
            raise RuntimeError("not yet")

    queue.send(json.dumps(events))
    handler = Noting(fail_second)
    deleted_at = []

    def delete(_, real):
        deleted_at.append(list(handler.done))
        return real()

    run = consuming(queue, handler, meddle=lambda run: run.client.instead.update(delete_message_batch=delete))
    run.finish()
    assert Counter(handler.tried) == {marks(events)[0]: 1, marks(events)[1]: 2, marks(events)[2]: 1}
    assert [sorted(done) for done in deleted_at] == [marks(events)]
    assert run.books == {"received": 3, "processed": 3}
    assert queue.is_empty


def test_unreadable_and_refused_events_become_dead_letters_and_are_deleted(queue, consuming):
    """What will never be processed is kept in the ledger, not in the queue, where it would come again for ever."""

    def refuse(event):
        raise PermanentError("never")

    queue.send("no JSON at all", '{"a": 1, "a": 2}', *facts(1))
    run = consuming(queue, refuse)
    run.finish()
    assert run.books == {"received": 3, "dead": 3}
    assert queue.is_empty


# --- hidden while it is worked on --------------------------------------------------------------------------------


def test_a_message_stays_hidden_while_its_handler_works(make_queue, consuming):
    """A handler may take longer than a message is hidden at a time; without the heartbeat it would be seen twice."""
    kept, dropped = make_queue(), make_queue()
    gate, received = consuming.gate(), Counter()

    def counting(name):
        def receive(_, real):
            answer = real()
            received[name] += len(answer.get("Messages", ()))
            return answer

        return receive

    def meddle(name, **instead):
        return lambda run: run.client.instead.update(receive_message=counting(name), **instead)

    no_heartbeat = {"change_message_visibility_batch": lambda arguments, _: {"Successful": arguments["Entries"]}}
    runs = []
    for queue, name, instead in ((kept, "kept", {}), (dropped, "dropped", no_heartbeat)):
        queue.send(*facts(1))
        handler = Noting(waiting_for(gate))
        runs.append(consuming(queue, handler, lease_seconds=3.0, poll=1, meddle=meddle(name, **instead)))
    wait_until(lambda: received["dropped"] == 2, "the message that is not kept hidden is seen again")
    wait_until(lambda: len(runs[0].client.hidden_for) >= 3, "the other one is hidden anew")
    gate.set()
    for run in runs:
        run.finish()
    assert received == {"kept": 1, "dropped": 2}
    assert runs[0].books == {"received": 1, "processed": 1}
    assert runs[1].books == {"received": 2, "processed": 1, "redelivery": 1}
    assert kept.is_empty
    assert dropped.is_empty


def test_a_message_whose_handler_hangs_comes_again_and_is_tried_by_another_worker(queue, consuming, caplog):
    """Beyond the handler's time a message is no longer kept hidden, and an event that hangs is not lost with it."""
    gate, hanging = consuming.gate(), threading.Event()

    def hang_first(event):
        if not hanging.is_set():
            hanging.set()
            assert gate.wait(PATIENCE_SECONDS)

    queue.send(*facts(1))
    handler = Noting(hang_first)
    run = consuming(queue, handler, lease_seconds=1.0, handler_timeout_seconds=1.5, until_empty=False)
    wait_until(lambda: handler.done, "another worker has done it")
    wait_until(lambda: queue.is_empty, "its message is deleted")
    gate.set()
    run.stop()
    assert len(handler.tried) == 2
    assert run.books == {"received": 2, "processed": 1, "retrying": 1}
    assert "a message is no longer kept hidden, and comes again" in caplog.messages


def test_a_message_that_waits_long_is_hidden_as_long_in_one_go(queue, consuming):
    """Nobody else should try it earlier, and nothing is asked of SQS meanwhile; a stop hands it back with its wait."""

    def later(event):
        raise RetryLater("in an hour", after_seconds=3600)

    queue.send(*facts(1))
    run = consuming(queue, Noting(later), lease_seconds=0.3, until_empty=False)
    wait_until(lambda: run.client.hidden_for, "it is hidden anew")
    run.stop()
    first, last = run.client.hidden_for
    assert 3500 < last <= 3600 < first < 3700
    assert run.books == {"received": 1, "retrying": 1}


def test_a_lost_receipt_lets_the_message_go(queue, consuming, caplog):
    """What SQS no longer takes for ours is not tried here any more: it comes again, and counts anew then."""
    lost = threading.Event()

    def later(event):
        if not lost.is_set():
            raise RetryLater("in a second", after_seconds=1)

    def refuse(arguments, real):
        if lost.is_set():
            return real()
        lost.set()
        failed = [
            {"Id": one["Id"], "Code": "ReceiptHandleIsInvalid", "SenderFault": True} for one in arguments["Entries"]
        ]
        return {"Failed": failed}

    queue.send(*facts(1))
    run = consuming(
        queue,
        Noting(later),
        lease_seconds=0.3,
        until_empty=False,
        meddle=lambda run: run.client.instead.update(change_message_visibility_batch=refuse),
    )
    wait_until(lambda: run.books.get("processed"), "it has come again")
    run.stop()
    assert run.books == {"received": 2, "processed": 1, "retrying": 1}
    assert queue.is_empty


def test_a_heartbeat_that_fails_in_part_is_made_up_for(queue, consuming, caplog):
    """Of a batch that was hidden anew in part, the rest is hidden anew the next time, and nothing is let go."""
    gate, asked = consuming.gate(), []

    def fail_some(arguments, real):
        entries = arguments["Entries"]
        asked.append({one["ReceiptHandle"] for one in entries})
        if len(asked) > 1:
            return real()
        failed = [{"Id": one["Id"], "Code": "InternalError", "SenderFault": False} for one in entries[:1]]
        return {"Successful": [{"Id": one["Id"]} for one in entries[1:]], "Failed": failed}

    queue.send(*facts(4))
    handler = Noting(waiting_for(gate))
    run = consuming(
        queue,
        handler,
        lease_seconds=1.5,
        poll=1,
        meddle=lambda run: run.client.instead.update(change_message_visibility_batch=fail_some),
    )
    wait_until(lambda: len(asked) > 1, "the rest was tried again")
    gate.set()
    run.finish()
    assert len(asked[1]) < len(asked[0])
    assert asked[1] < asked[0]
    assert run.books["processed"] == 4
    assert not caplog.messages


# --- deletes that fail -------------------------------------------------------------------------------------------


def test_deletes_that_fail_in_part_are_tried_again_and_no_others(queue, consuming, caplog):
    """Of ten, three fail for now: those three are asked for again, and the books do not notice."""
    asked = []

    def fail_three(arguments, real):
        entries = arguments["Entries"]
        asked.append([one["ReceiptHandle"] for one in entries])
        if len(asked) > 1:
            return real()
        for one in entries[3:]:
            queue.client.delete_message(QueueUrl=queue.url, ReceiptHandle=one["ReceiptHandle"])
        failed = [{"Id": one["Id"], "Code": "InternalError", "SenderFault": False} for one in entries[:3]]
        return {"Successful": [{"Id": one["Id"]} for one in entries[3:]], "Failed": failed}

    events = facts(10)
    queue.send(*events)

    def meddle(run):
        run.client.instead.update(delete_message_batch=fail_three)
        run.run._usual_us = 0  # known to be fast: a worker takes ten at a time

    run = consuming(queue, Noting(), workers=1, meddle=meddle)
    run.finish()
    assert asked[1] == asked[0][:3]
    assert len(asked[0]) == 10
    assert run.books == {"received": 10, "processed": 10}
    assert queue.is_empty
    assert not caplog.messages


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        pytest.param({"Code": "ReceiptHandleIsInvalid", "SenderFault": True}, 1, id="for good"),
        pytest.param({"Code": "InternalError", "SenderFault": False}, 4, id="for long"),
    ],
)
def test_what_cannot_be_deleted_comes_again_as_a_duplicate(queue, consuming, caplog, answer, calls):
    """A message that SQS does not delete does no harm, and is told of in the log."""
    asked = []

    def refuse(arguments, real):
        asked.append(arguments)
        if len(asked) > calls:
            return real()
        return {"Failed": [{"Id": one["Id"], **answer} for one in arguments["Entries"]]}

    queue.send(*facts(1))
    handler = Noting()
    run = consuming(
        queue,
        handler,
        lease_seconds=1.0,
        until_empty=False,
        meddle=lambda run: run.client.instead.update(delete_message_batch=refuse),
    )
    wait_until(lambda: queue.is_empty, "it is deleted the second time")
    run.stop()
    assert len(handler.done) == 1
    assert run.books == {"received": 2, "processed": 1, "redelivery": 1}
    (warned,) = caplog.records
    assert "not deleted" in warned.message
    assert warned.oncebridge == {"messages": 1}


# --- order, and who waits for whom -------------------------------------------------------------------------------


def test_a_fifo_group_keeps_its_order_though_its_first_message_fails(make_queue, consuming):
    """No message of a group is tried before the one ahead of it is settled; other groups do not wait."""
    queue = make_queue(fifo=True)
    ours, theirs = facts(6), facts(6, start=100)
    queue.send(*ours, group="ours")
    queue.send(*theirs, group="theirs")
    gate = consuming.gate()

    def fail_first(event):
        if event.time_ms == marks(ours)[0] and not gate.is_set():
            raise RuntimeError("not yet")

    handler = Noting(fail_first)
    run = consuming(queue, handler, workers=8, retry=OFTEN)
    wait_until(lambda: handler.tried.count(marks(ours)[0]) > 2, "the first of ours is tried again and again")
    wait_until(lambda: set(marks(theirs)[:4]) <= set(handler.done), "the other group has gone ahead")
    assert set(handler.tried) & set(marks(ours)) == {marks(ours)[0]}
    gate.set()
    run.finish()
    assert [mark for mark in handler.done if mark in marks(ours)] == marks(ours)
    assert [mark for mark in handler.done if mark in marks(theirs)] == marks(theirs)
    assert run.books == {"received": 12, "processed": 12}
    assert queue.is_empty


def test_twins_wait_for_the_one_that_is_worked_on(queue, consuming):
    """Of ten deliveries of one event one is tried, and the others do not keep asking the ledger whether it is over."""
    (event,) = facts(1)
    queue.send(*[{**event, "id": f"envelope-{n}"} for n in range(10)])
    gate = consuming.gate()
    handler = Noting(waiting_for(gate))
    run = consuming(queue, handler, workers=8)
    wait_until(lambda: len(run.run.in_flight) == 10, "all are here")
    gate.set()
    run.finish()
    assert len(handler.tried) == 1
    assert run.books == {"received": 10, "processed": 1, "republish": 9}
    assert run.verdicts == {"fresh": 1, "republish": 9}


def test_states_of_one_entity_are_worked_off_in_order_of_arrival(queue, consuming):
    """Eight workers do not make each other's states stale: what comes first is tried first."""
    queue.send(*states(20))
    handler = Noting()
    run = consuming(queue, handler, workers=8)
    run.finish()
    assert handler.done == sorted(handler.done)
    assert run.books == {"received": 20, "processed": 20}
    assert "busy" not in run.verdicts


def test_a_newer_state_need_not_wait_for_an_older_one_that_fails(queue, consuming):
    """The newest state wins: one that waits for its next try lets others of its entity pass, and is stale then."""
    older, newer = states(2)
    done = threading.Event()

    def fail_older(event):
        if event.body["routingStatus"]["status"] == "BUSY" and not done.is_set():
            raise RuntimeError("not yet")
        done.set()

    queue.send(older, newer)
    run = consuming(queue, Noting(fail_older), workers=2)
    run.finish()
    assert run.books == {"received": 2, "processed": 1, "stale": 1}


def test_one_slow_handler_keeps_no_other_message_waiting(queue, consuming):
    """While one handler hangs, all the others are done: nothing waits behind it in a worker's hand."""
    events, gate = facts(10), consuming.gate()

    def hang_on_first(event):
        if event.time_ms == marks(events)[0]:
            assert gate.wait(PATIENCE_SECONDS)

    queue.send(*events)
    handler = Noting(hang_on_first)
    run = consuming(queue, handler, workers=2)
    wait_until(lambda: len(handler.done) == 9, "the nine others are done")
    gate.set()
    run.finish()
    assert run.books == {"received": 10, "processed": 10}


def test_no_more_are_in_flight_than_allowed(queue, consuming):
    """With seven held, those included that wait for their next try, nothing more is asked of SQS."""
    events, gate, held = facts(30), consuming.gate(), []

    def fail_until_open(event):
        if not gate.is_set():
            raise RuntimeError("not yet")

    handler = Noting(fail_until_open)

    def meddle(run):
        def receive(arguments, real):
            held.append(len(run.run.in_flight) + arguments["MaxNumberOfMessages"])
            return real()

        run.client.instead.update(receive_message=receive)

    queue.send(*events)
    run = consuming(queue, handler, limit=7, meddle=meddle, retry=OFTEN)
    wait_until(lambda: len(set(handler.tried)) == 7, "seven were tried")
    assert queue.counts() == (23, 7)
    gate.set()
    run.finish()
    assert max(held) == 7
    assert run.books == {"received": 30, "processed": 30}


def test_an_idle_run_makes_one_poll_at_a_time(queue, consuming):
    """However many workers have nothing to do, SQS is asked once, and given time to answer."""
    run = consuming(queue, Noting(), workers=8, poll=2)
    run.finish()
    assert [call["WaitTimeSeconds"] for call in run.client.calls["receive_message"]] == [2]


# --- outages -----------------------------------------------------------------------------------------------------


def test_an_outage_of_sqs_is_said_once_and_survived(ministack, queue, consuming):
    """While SQS cannot be reached nothing is lost; when it is back, the run goes on by itself."""
    with running_proxy(urlsplit(ministack.url).port) as proxy:
        client, handler = queue_client(proxy.url(queue.url), "the test"), Noting()
        # What SQS hands to a connection that was cut is soon seen again.
        run = consuming(queue, handler, client=client, lease_seconds=0.5, until_empty=False)
        queue.send(*facts(3))
        wait_until(lambda: queue.is_empty, "it works")
        proxy.refuse()
        wait_until(lambda: run.said, "the outage is noticed")
        queue.send(*facts(3, start=10))
        proxy.heal()
        wait_until(lambda: len(handler.done) == 6, "it goes on")
        wait_until(lambda: len(run.said) == 2, "that is said")
        run.stop()
    assert "SQS is out of reach" in run.said[0]
    assert "answers again" in run.said[1]
    assert run.books["processed"] == 6


def test_an_outage_of_the_ledger_keeps_messages_and_receives_no_more(queue, consuming):
    """Nothing is deleted and nothing more received while the ledger is away; then all is worked off, said once."""
    away = threading.Event()
    away.set()

    def fail_while_away():
        if away.is_set():
            raise LedgerUnavailable("gone for a walk")

    ledger = faulty(MemoryLedger(), Fault("claim", call=0, act=fail_while_away))
    queue.send(*facts(3))
    handler = Noting()
    run = consuming(queue, handler, ledger=ledger, until_empty=False)
    wait_until(lambda: run.said and not run.client.running["receive_message"], "the outage is noticed")
    queue.send(*facts(3, start=10))
    tries = ledger.calls["claim"]
    wait_until(lambda: ledger.calls["claim"] > tries, "it is asked for again")
    assert queue.counts() == (3, 3)
    assert not run.client.calls["delete_message_batch"]
    away.clear()
    wait_until(lambda: len(handler.done) == 6, "all is done")
    wait_until(lambda: queue.is_empty, "all is deleted")
    run.stop()
    assert [words for words in run.said if "gone for a walk" in words] == run.said[:1]
    assert run.said[1] == "the ledger is back; going on"
    assert run.books == {"received": 6, "processed": 6}


def test_the_ledger_is_back_only_when_it_has_answered():
    """An event that nobody takes needs no ledger, so its end during an outage says nothing about one."""
    said, away = [], Fault("claim", call=0)
    ledger = faulty(MemoryLedger(), away)
    bridge = Bridge(ledger)
    bridge.on(payloads.ACW)(lambda event: None)
    with bridge:
        flow = bridge.open()
        run = QueueRun(
            flow, SimpleNamespace(), bridge.settings,
            workers=1, limit=10, receive=lambda number: None, account=lambda results: None, say=said.append,
        )  # fmt: skip
        raws = (*facts(1), payloads.envelope(payloads.PRESENCE), *facts(1, start=9))
        taken, unhandled, over = (SimpleNamespace(deliveries=[flow.read(payloads.raw(raw))]) for raw in raws)
        ledger.faults = ()
        run._through_outages([over])
        ledger.faults = (away,)
        run._closing.set()  # so that the wait for the ledger ends at once
        run.in_flight.begin_again = lambda *_: None
        with pytest.raises(LedgerUnavailable):
            run._through_outages([taken])
        for needs_no_ledger in (unhandled, over):
            run._through_outages([needs_no_ledger])
        assert [words for words in said if "is back" in words] == []
        ledger.faults = ()
        bridge.clock.wait(threading.Event(), flow.breaker.retry_in_us / 1_000_000)
        run._through_outages([taken])
    assert said[-1] == "the ledger is back; going on"


def test_a_stop_during_an_outage_of_the_ledger_hands_everything_back(queue, consuming):
    """A stop does not wait for a ledger that is away."""
    ledger = faulty(MemoryLedger(), Fault("claim", call=0))
    queue.send(*facts(5))
    run = consuming(queue, Noting(), ledger=ledger, until_empty=False)
    wait_until(lambda: run.said, "the outage is noticed")
    run.stop()
    assert run.books["retrying"] == run.books["received"]
    assert "the ledger is back; going on" not in run.said
    assert queue.counts() == (5, 0)


def test_a_ledger_that_refuses_ends_the_run_and_everything_is_handed_back(queue, consuming):
    """What must be changed first is not waited for."""

    def refuse():
        raise LedgerRefused("another secret")

    ledger = faulty(MemoryLedger(), Fault("claim", call=0, act=refuse))
    queue.send(*facts(5))
    run = consuming(queue, Noting(), ledger=ledger, until_empty=False)
    with pytest.raises(LedgerRefused):
        run.finish()
    assert run.run._flow.stopping.is_set(), "other workers would go on with what they have in hand"
    assert queue.counts() == (5, 0)


def refused(code):
    """Make SQS' answer that something is not allowed."""
    return ClientError({"Error": {"Code": code, "Message": "token SECRET-CANARY"}}, "ReceiveMessage")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", "does not exist"),
        ("AccessDenied", "sqs:ReceiveMessage, sqs:DeleteMessage and sqs:ChangeMessageVisibility"),
        ("InvalidClientTokenId", "does not accept the credentials"),
        ("ExpiredToken", "have expired"),
        ("KmsAccessDenied", "kms:Decrypt"),
    ],
)
def test_what_is_wrong_from_the_start_ends_the_run_with_the_fix(queue, consuming, code, words):
    """A queue that may not be used is not waited for; the error names the fix, and quotes nothing."""

    def refuse(_, real):
        raise refused(code)

    run = consuming(queue, Noting(), meddle=lambda run: run.client.instead.update(receive_message=refuse))
    with pytest.raises(ConfigurationError, match=words) as caught:
        run.finish()
    assert queue.url in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_what_is_refused_later_is_waited_for(queue, consuming):
    """Roles change: a worker that was allowed in before waits until it is again, and says so."""
    denied = Counter()

    def deny_second(_, real):
        denied["calls"] += 1
        if denied["calls"] == 2:
            raise refused("AccessDenied")
        return real()

    queue.send(*facts(1))
    handler = Noting()
    run = consuming(
        queue, handler, until_empty=False, meddle=lambda run: run.client.instead.update(receive_message=deny_second)
    )
    wait_until(lambda: len(run.said) == 2, "it is over")
    queue.send(*facts(1, start=1))
    wait_until(lambda: len(handler.done) == 2, "it goes on")
    run.stop()
    assert "may not be used by this worker" in run.said[0]


def test_a_worker_that_may_not_keep_messages_hidden_says_so_once(queue, consuming):
    """A missing permission that only costs duplicates is told of, not hidden, and not repeated each time."""
    gate = consuming.gate()

    def deny(_, real):
        raise refused("AccessDenied")

    queue.send(*facts(1))
    run = consuming(
        queue,
        Noting(waiting_for(gate)),
        lease_seconds=0.3,
        poll=1,
        meddle=lambda run: run.client.instead.update(change_message_visibility_batch=deny),
    )
    wait_until(lambda: len(run.client.calls["change_message_visibility_batch"]) >= 3, "it was tried thrice")
    gate.set()
    run.finish()
    assert [words for words in run.said if "sqs:ChangeMessageVisibility" in words] == run.said
    assert len(run.said) == 1


# --- hours, in no time -------------------------------------------------------------------------------------------


class Shown:
    """A queue that only notes for how long messages are hidden."""

    def __init__(self):
        """Begin with nothing."""
        self.hidden = []

    def hide(self, seconds):
        """Take them all."""
        self.hidden.append(dict(seconds))
        return []


class Hours:
    """Messages in flight by a clock that is moved by hand."""

    def __init__(self, *, lease_seconds=30.0, handler_timeout_seconds=inf):
        """Hold nothing yet."""
        self.clock = ManualClock()
        timeout_us = int(min(handler_timeout_seconds, 1e6) * 1_000_000)
        self.in_flight = InFlight(self.clock, limit=100, workers=1, handler_timeout_us=timeout_us)
        self.queue = Shown()
        self.let_go = []
        self.visibility = Visibility(
            self.queue,
            self.in_flight,
            self.clock,
            lease_us=int(lease_seconds * 1_000_000),
            on_trouble=lambda trouble: pytest.fail(str(trouble)),
            on_let_go=lambda message, why: self.let_go.append((message.receipt, why)),
        )
        self.number = 0

    def add(self, receipt, group=None):
        """Receive one message, of no deliveries."""
        self.number += 1
        now_us = self.clock.monotonic_us()
        received = Received(receipt, receipt, "", group)
        message = new_message(self.number, received, [], now_us, self.visibility.seconds * 1_000_000)
        self.in_flight.add([message])
        return message

    def pass_by(self, seconds, step=10.0):
        """Let time pass, with a look each third of a lease."""
        for _ in range(int(seconds / step)):
            self.clock.advance(step)
            self.visibility.tick()


def test_a_message_is_hidden_for_longer_than_a_claim_of_it_can_run():
    """At any moment at least a lease is left: whoever takes over finds the claim over when it sees the message."""
    hours = Hours(lease_seconds=30.0)
    hours.add("a")
    hidden_until, least = hours.visibility.seconds, inf
    for second in range(1, 600):
        hours.clock.advance(1.0)
        least = min(least, hidden_until - second)
        if second % 10 == 0:
            hours.visibility.tick()
            if hours.queue.hidden:
                hidden_until = second + hours.queue.hidden.pop()["a"]
    assert least >= 30


def test_no_message_is_held_beyond_what_sqs_allows():
    """After nearly twelve hours a message is let go, and never was it to be hidden for longer than that."""
    hours = Hours()
    hours.add("a")
    hours.pass_by(12 * 3600)
    assert hours.let_go[0][0] == "a"
    assert "12 hours" in hours.let_go[0][1]
    spans = [number for hidden in hours.queue.hidden for number in hidden.values()]
    assert max(spans) <= 46
    assert len(spans) > 1000


def test_those_behind_a_message_of_a_group_are_let_go_with_it():
    """If the first of a group comes again, none behind it may be tried before."""
    hours = Hours()
    first, second, other = hours.add("first", "g"), hours.add("second", "g"), hours.add("other", "h")
    assert hours.in_flight.take(10) == [first, other]
    assert hours.in_flight.let_go(first) == [second]
    assert hours.in_flight.let_go(first) is None
    assert not hours.in_flight.put_back(first, 0, keeps_place=False)
    assert hours.in_flight.all() == [other]


def test_handlers_time_counts_one_after_the_other():
    """The second message in a worker's hand has the time of two handlers, since it waits for the first."""
    hours = Hours(handler_timeout_seconds=100.0)
    hours.add("a")
    hours.add("b")
    assert len(hours.in_flight.take(10)) == 2
    hours.pass_by(100)
    assert hours.let_go == []
    hours.pass_by(10)
    assert [receipt for receipt, _ in hours.let_go] == ["a"]


def test_an_outage_of_the_ledger_is_not_a_handlers_time(consuming, queue):
    """While a ledger that is away is waited for nobody works: the message is kept, however long that lasts."""
    hours = Hours(handler_timeout_seconds=100.0)
    hours.add("a")
    share = hours.in_flight.take(10)
    for _ in range(10):
        hours.in_flight.begin_again(share, 60_000_000)
        hours.pass_by(60)
    hours.pass_by(100)
    assert hours.let_go == []
    hours.pass_by(10)
    assert [receipt for receipt, _ in hours.let_go] == ["a"]
    queue.send(*facts(1))
    begun, ledger = [], faulty(MemoryLedger(), *(Fault("claim", call=number) for number in range(1, 4)))

    def meddle(run):
        real = run.run.in_flight.begin_again
        run.run.in_flight.begin_again = lambda *arguments: begun.append(arguments) or real(*arguments)

    consuming(queue, Noting(), ledger=ledger, meddle=meddle).finish()
    assert [len(share) for share, _ in begun] == [1]


def test_what_sqs_does_not_mention_in_its_answer_has_failed():
    """An entry that is neither among the successful nor the failed was not done, as far as anybody knows."""
    client = SimpleNamespace(delete_message_batch=lambda **_: {"Successful": [{"Id": "1"}]})
    assert Queue(client, "url", poll_seconds=1).delete(["a", "b"]) == [Failed(0, "", passing=True)]


# --- as a command ------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path):
    """Run commands in an empty folder; nothing outlives the test."""
    (tmp_path / "work").mkdir()
    command_line = CommandLine(tmp_path / "work")
    command_line.write_hooks()
    yield command_line
    command_line.close()


@pytest.fixture
def start(cli, ministack):
    """Start `consume` on a queue, with SQLite, as a process of its own."""

    def run(queue_url, *arguments, **environment):
        options = ("--ledger", "sqlite:///once.db", "--json", "--poll-seconds", "1", *arguments)
        return cli.start("consume", queue_url, *options, **{**ministack.environment, **environment})

    return run


def test_a_stop_under_load_lets_handlers_finish_and_hands_the_rest_back(queue, cli, start):
    """After SIGTERM what runs is done and deleted, the rest can be seen at once, and the next run does it."""
    events = facts(40)
    queue.send(*events)
    first = start(queue.url, "--handler", "hooks:wait", "--concurrency", "3")
    wait_until(lambda: len(cli.lines("started")) == 3, "three handlers run")
    first.signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in first.said, "it has heard that")
    (cli.folder / "gate").touch()
    ran = first.finish()
    done = len(cli.lines("effects"))
    assert ran.code == 0
    assert done == 3
    assert ran.one == {**ran.one, "processed": 3, "retrying": ran.one["received"] - 3, "balanced": True}
    assert "handed back" in ran.err
    assert queue.counts() == (37, 0)
    rest = start(queue.url, "--handler", "hooks:note", "--until-empty").finish()
    assert rest.code == 0
    assert rest.one == {**rest.one, "received": 37, "processed": 37, "retrying": 0}
    assert cli.effects() == dict.fromkeys(map(str, marks(events)), 1)
    assert queue.is_empty


PROGRAM = """
import hooks
from oncebridge import Bridge, Settings

bridge = Bridge("sqlite:///program.db", settings=Settings(concurrency=2))
bridge.on("v2.detail.events.conversation.{id}.acw", name="crm")(hooks.note)
"""


def test_a_bridge_is_taken_with_its_names_and_topics(queue, cli, ministack):
    """`consume` gives events to the handlers of a program's bridge, on its ledger; other topics are unhandled."""
    (cli.folder / "program.py").write_text(PROGRAM)
    events = facts(3)
    queue.send(*events, *states(2))
    arguments = ("--handler", "program:bridge", "--json", "--poll-seconds", "1", "--until-empty")
    ran = cli.start("consume", queue.url, *arguments, **ministack.environment).finish()
    assert ran.code == 0
    assert ran.one == {**ran.one, "received": 5, "processed": 3, "unhandled": 2, "balanced": True}
    assert {event["handler"] for event in cli.events("program.db")} == {"crm"}
    assert cli.effects() == dict.fromkeys(map(str, marks(events)), 1)
    assert queue.is_empty


def test_a_second_signal_ends_it_at_once(queue, cli, start):
    """Whoever cannot wait for a handler sends the signal twice."""
    queue.send(*facts(1))
    run = start(queue.url, "--handler", "hooks:wait")
    wait_until(lambda: cli.lines("started"), "the handler runs")
    run.signal(signal.SIGTERM)
    wait_until(lambda: run.signal(signal.SIGTERM) or run.ends_within(0.1), "it has ended")
    assert run.process.returncode == -signal.SIGTERM
    assert cli.lines("effects") == []


def test_until_empty_and_stopped_before_is_told_by_the_exit_code(queue, cli, start):
    """A script that wants the queue worked off learns that it was not."""
    queue.send(*facts(2))
    run = start(queue.url, "--handler", "hooks:fail", "--until-empty")
    wait_until(lambda: len(set(cli.lines("tries"))) == 2, "both were tried")
    run.signal(signal.SIGTERM)
    ran = run.finish()
    assert ran.code == 75
    assert ran.one["retrying"] == 2


@pytest.mark.parametrize("how", ["hidden", "delayed"])
def test_until_empty_waits_for_messages_that_nobody_can_receive(queue, consuming, how):
    """A message that another worker hides, or that is delayed, is waited for and processed."""
    queue.client.send_message(QueueUrl=queue.url, MessageBody=json.dumps(facts(1)[0]), DelaySeconds=how == "delayed")
    if how == "hidden":
        queue.client.receive_message(QueueUrl=queue.url, VisibilityTimeout=1)
    assert queue.counts() != (1, 0)
    run = consuming(queue, Noting())
    run.finish()
    assert (run.books, run.run.left) == ({"received": 1, "processed": 1}, 0)
    assert queue.is_empty


def test_until_empty_says_what_is_left_hidden(queue, start):
    """Messages that stay hidden are not waited for any longer than wanted: their number is named, with exit 75."""
    queue.send(*facts(2))
    queue.client.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=1, VisibilityTimeout=600)
    ran = start(queue.url, "--handler", "hooks:note", "--until-empty", "--hidden-wait", "0").finish()
    assert ran.code == 75
    assert ran.one["processed"] == 1
    assert "about 1 messages are left, hidden or delayed" in ran.err


def test_until_empty_works_without_the_right_to_count(queue, consuming):
    """A worker that may not count messages ends when it receives nothing more, and names the right."""

    def deny(_, real):
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetQueueAttributes")

    queue.send(*facts(1))
    run = consuming(queue, Noting(), meddle=lambda run: run.client.instead.update(get_queue_attributes=deny))
    run.finish()
    assert run.books == {"received": 1, "processed": 1}
    assert [said for said in run.said if "sqs:GetQueueAttributes" in said]


def test_prometheus_is_answered_while_it_runs(queue, cli, start):
    """With --metrics-port, what was processed and what is in flight can be fetched."""
    queue.send(*facts(2))
    run = start(queue.url, "--handler", "hooks:wait", "--concurrency", "2", "--metrics-port", "0")
    wait_until(lambda: len(cli.lines("started")) == 2, "both handlers run")
    with urlopen(re.search(r"http://127\.0\.0\.1:\d+/metrics", run.said)[0], timeout=30) as answer:
        text = answer.read().decode()
    assert "oncebridge_in_flight 2.0" in text
    (cli.folder / "gate").touch()
    run.signal(signal.SIGTERM)
    assert run.finish().code == 0


@pytest.mark.parametrize(
    ("url", "words"),
    [
        pytest.param("{url}-mistyped", "does not exist; check account, region and name", id="no such queue"),
        pytest.param("events", "QUEUE_URL: expected a queue's URL", id="a name"),
        pytest.param("arn:aws:sqs:eu-central-1:1:q", "QUEUE_URL: expected a queue's URL", id="an ARN"),
        pytest.param("https://me:CANARY@127.0.0.1/1/q", "QUEUE_URL: holds a name or password", id="a password"),
    ],
)
def test_a_wrong_queue_is_said_at_once(queue, start, url, words):
    """Exit code 2, one sentence, and no books of a run that never was."""
    ran = start(url.format(url=queue.url), "--handler", "hooks:note").finish()
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err
    assert "CANARY" not in ran.err
    assert ran.out == ""


def test_missing_credentials_are_said_at_once(queue, start):
    """Exit code 2, and what to do."""
    ran = start(queue.url, "--handler", "hooks:note", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="").finish()
    assert ran.code == 2
    assert "no AWS credentials were found; give the worker a role" in ran.err


def test_events_that_would_go_nowhere_are_refused(queue, start):
    """Without handler and sink the queue would be emptied for nothing."""
    queue.send(*facts(1))
    ran = start(queue.url).finish()
    assert ran.code == 2
    assert "--handler" in ran.err
    assert "[sinks.NAME]" in ran.err
    assert "DOWNSTREAM_URL" in ran.err
    assert queue.counts() == (1, 0)
