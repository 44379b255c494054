"""A receiver that fails for a while: events wait in their queue, none is lost, and none becomes a dead letter.

The queue is an emulator's, spoken to by real boto3; the receiver is a real HTTP server; only time is moved.
"""

import threading
from collections import Counter

import pytest

import payloads
from oncebridge import Bridge
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings import Settings
from oncebridge.settings.sinks.webhook import WebhookSettings
from oncebridge.sources.sqs.consumer import QueueRun
from oncebridge.sources.sqs.queue import Queue
from oncebridge.testing.clock import ManualClock
from servers.process import wait_until
from servers.receiver import Reply, running_receiver

MINUTE_S = 60
HOUR_S = 3600


def facts(number):
    """Make so many different facts."""
    times = [payloads.TIME_MS + n for n in range(number)]
    return [payloads.envelope(payloads.ACW, {"eventTime": at}, id=f"envelope-{at}") for at in times]


def send(client, url, deliveries):
    """Put deliveries into a queue, ten at a time."""
    for start in range(0, len(deliveries), 10):
        entries = [
            {"Id": str(n), "MessageBody": payloads.raw(one).decode()}
            for n, one in enumerate(deliveries[start : start + 10])
        ]
        assert len(client.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == len(entries)


def left_in(client, url):
    """Return how many messages of a queue can be seen, and how many are hidden."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [int(found[name]) for name in names]


class Consuming:
    """`consume` in threads of this process, at a time that this test moves."""

    def __init__(self, client, url, receiver, clock, limit=1000):
        """Make the parts, and begin; instead of a receiver, there may be a handler."""
        sinks = ()
        if not callable(receiver):
            sinks = (WebhookSettings(name="crm", url=receiver.url, private_addresses=True, timeout_seconds=60),)
        self.clock = clock
        self.start_us = clock.now_us()
        self.bridge = Bridge(MemoryLedger(clock), settings=Settings(sinks=sinks), clock=clock)
        if not sinks:
            self.bridge.on("*")(receiver)
        self.run = QueueRun(
            self.bridge.open(),
            Queue(client, url, poll_seconds=0),
            self.bridge.settings,
            workers=4,
            limit=limit,
            receive=self.bridge.books.receive,
            account=self.bridge.account,
            say=lambda _: None,
        )
        # A daemon: as a thread that waits in vain it would move time itself.
        self._thread = threading.Thread(target=self.run.run, name="consuming", daemon=True)
        self._thread.start()

    @property
    def books(self):
        """The columns that are not empty."""
        found = self.bridge.books.as_dict()
        return {name: number for name, number in found.items() if number and name != "balanced"}

    @property
    def seconds(self):
        """How much time has passed."""
        return (self.clock.now_us() - self.start_us) / 1_000_000

    def _next_us(self):
        """Return when the next event is due; None while one is worked on, or due by now."""
        messages = self.run.in_flight.all()
        if any(one.works_until_us is not None for one in messages):
            return None
        next_us = min((one.due_us for one in messages), default=None)
        return next_us if next_us is None or next_us > self.clock.now_us() else None

    def go_on(self, until):
        """Move time from one due event to the next, until this is so."""
        while not until():
            wait_until(lambda: until() or self._next_us() is not None, "an event waits for its time")
            next_us = self._next_us()
            if next_us is not None:
                self.clock.advance((next_us - self.clock.now_us()) / 1_000_000)
                self.run.in_flight.look()

    def close(self):
        """Stop, and wait for that."""
        self.bridge.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.bridge.close()


@pytest.fixture
def queue(ministack, request):
    """Return a client and a queue that no other test has."""
    client = ministack.client("sqs")
    url = client.create_queue(QueueName=request.node.name[:70])["QueueUrl"]
    yield client, url
    client.delete_queue(QueueUrl=url)


def test_five_minutes_of_failures_lose_nothing(queue):
    """A receiver answers 500 for five minutes: 200 events wait, hardly any attempt is used, and all are delivered."""
    clock = ManualClock()
    well_us = clock.now_us() + 5 * MINUTE_S * 1_000_000
    deliveries = facts(200)
    send(*queue, deliveries)
    with running_receiver(lambda _: Reply(200 if clock.now_us() >= well_us else 500)) as receiver:
        consuming = Consuming(*queue, receiver, clock)
        consuming.go_on(lambda: consuming.books.get("processed") == 200 or "dead" in consuming.books)
        seconds = consuming.seconds
        letters = list(consuming.bridge.dead_letters.list())
        consuming.close()
    assert consuming.books == {"received": 200, "processed": 200}
    assert letters == []
    assert set(receiver.raw_effects.values()) == {1}
    assert len(receiver.raw_effects) == 200
    assert 5 * MINUTE_S <= seconds < 6 * MINUTE_S  # it drains at once
    attempts = Counter(int(request.headers["Oncebridge-Attempt"]) for request in receiver.requests)
    assert max(attempts) <= 3
    assert len(receiver.requests) < 200 + 60  # while it fails it is hardly called
    assert left_in(*queue) == [0, 0]


def test_one_poisonous_event_is_a_dead_letter_in_the_end(queue):
    """An event that alone gets 500 keeps no other back, and is given up after hours."""
    clock = ManualClock()
    deliveries = facts(20)
    poison = payloads.raw(deliveries[3])
    send(*queue, deliveries)
    with running_receiver(lambda request: Reply(500 if request.body == poison else 200)) as receiver:
        consuming = Consuming(*queue, receiver, clock)
        consuming.go_on(lambda: consuming.books.get("processed") == 19)
        assert consuming.seconds < MINUTE_S
        consuming.go_on(lambda: consuming.books.get("dead") == 1)
        assert 2 * HOUR_S <= consuming.seconds <= 5 * HOUR_S
        (letter,) = consuming.bridge.dead_letters.list()
        consuming.close()
    assert letter.attempts == 10
    assert letter.reason.endswith("answered 500 at attempt 10 of 10")


def test_poisonous_events_do_not_starve_the_others(queue):
    """However many events make the receiver fail, those behind them take their turn to look, and get through."""
    clock = ManualClock()
    deliveries = facts(30)
    poison = {payloads.raw(one) for one in deliveries[:10]}
    send(*queue, deliveries)
    with running_receiver(lambda request: Reply(500 if request.body in poison else 200)) as receiver:
        consuming = Consuming(*queue, receiver, clock)
        consuming.go_on(lambda: consuming.books.get("processed") == 20 or consuming.seconds > 2 * HOUR_S)
        assert consuming.seconds < HOUR_S  # chance decides who looks next, so it takes minutes: usually a few
        consuming.close()
    assert consuming.books == {"received": 30, "processed": 20, "retrying": 10}


def test_what_waits_for_hours_holds_up_nobody(queue):
    """Where as many messages wait as may be in flight, those due last wait in the queue, and others are received."""

    def handle(event):
        if event.time_ms < payloads.TIME_MS + 20:
            raise ValueError(event.key)

    send(*queue, facts(40))
    consuming = Consuming(*queue, handle, ManualClock(), limit=10)
    consuming.go_on(lambda: consuming.books.get("processed") == 20)
    assert consuming.seconds < 10 * MINUTE_S
    consuming.close()
    assert consuming.books == {"received": 40, "processed": 20, "retrying": 20}
    assert list(consuming.bridge.dead_letters.list()) == []
    assert sum(left_in(*queue)) == 20
