"""The switch from an older program, as docs/cut-over.md has it: nothing doubles and nothing is lost across the moment.

The older programs keep their marks in a real Valkey: one as tutorials do it (SET NX, then the effect), one as
Powertools' cache layer does it (INPROGRESS, the effect, COMPLETED; the record is deleted when the effect fails).
"""

import json
import os
from collections import Counter, deque

import pytest

from oncebridge import Bridge
from oncebridge.service.app import make_application
from payloads import ACW, TIME_MS, envelope, raw, routing_status
from service.asgi import Client
from shapes import message, records


def fact(number, again=0):
    """Make a delivery of a fact; `again` counts how often Genesys published it anew, in a new envelope each time."""
    return envelope(ACW, {"eventTime": TIME_MS + number}, id=f"envelope {number}.{again}")


def number_of(delivery):
    """Return what no two facts share."""
    return delivery["detail"]["eventBody"]["eventTime"] - TIME_MS


class Killed(BaseException):
    """The process is gone: nothing of the program runs after this."""


class Receiver:
    """Counts what takes effect; with `honours_keys` a key takes effect once, whoever sends it."""

    def __init__(self, *, honours_keys=False):
        """Begin with nothing."""
        self.effects = Counter()
        self._keys = set() if honours_keys else None

    def take(self, delivery, key):
        """Take one event."""
        if self._keys is None or key not in self._keys:
            self.effects[number_of(delivery)] += 1
        if self._keys is not None:
            self._keys.add(key)


class Queue:
    """Keeps every message until it is deleted."""

    def __init__(self):
        """Begin empty."""
        self.messages = deque()

    def send(self, *deliveries):
        """Send messages."""
        self.messages += deliveries

    def run(self, program, at_most=1000):
        """Have a program read messages: one that it returns from is deleted, one that it fails with stays."""
        for _ in range(min(at_most, len(self.messages))):
            message = self.messages.popleft()
            try:
                program(message)
            except Exception:  # noqa: BLE001 - seen again later
                self.messages.append(message)
            except Killed:
                self.messages.append(message)
                return


class OldProgram:
    """An older program; it writes down what it has finished, as the guide wants it to."""

    def __init__(self, client, receiver):
        """Take where its marks are, and where effects go. Tests set `effect` to have it fail."""
        self._client = client
        self._space = os.urandom(4).hex()
        self._receiver = receiver
        self.finished = []
        self.effect = lambda delivery: None

    def mark_of(self, delivery):
        """Name the mark of a delivery."""
        return f"{self._space} {delivery['id']}"

    def _handle(self, delivery):
        self.effect(delivery)
        self._receiver.take(delivery, delivery["id"])

    def _finish(self, delivery):
        self.finished.append(json.dumps(delivery))


class SetNX(OldProgram):
    """Marks first, then handles: a mark whose program has failed or died stays."""

    def __call__(self, delivery):
        """Handle one delivery."""
        if self._client.set(self.mark_of(delivery), "1", nx=True, ex=600):
            self._handle(delivery)
            self._finish(delivery)


class Powertools(OldProgram):
    """Marks that it has begun, handles, and marks that it is done."""

    def __call__(self, delivery):
        """Handle one delivery."""
        mark = self.mark_of(delivery)
        if not self._client.set(mark, "INPROGRESS", nx=True, ex=600):
            if self._client.get(mark) != b"COMPLETED":
                raise RuntimeError("already in progress")
            return
        try:
            self._handle(delivery)
        except Exception:
            self._client.delete(mark)
            raise
        self._client.set(mark, "COMPLETED", ex=600)
        self._finish(delivery)


@pytest.fixture
def client(valkey):
    """Return a client of the server that keeps marks."""
    with valkey.client() as client:
        yield client


@pytest.fixture(params=[SetNX, Powertools])
def switch(request, client):
    """Return an old program and a new bridge, with one queue and one receiver."""
    found = Switch(request.param, client)
    yield found
    found.bridge.close()


class Switch:
    """Everything that a switch has to do with."""

    def __init__(self, kind, client, *, honours_keys=False):
        """Make both programs; nothing is primed."""
        self.queue = Queue()
        self.receiver = Receiver(honours_keys=honours_keys)
        self.old = kind(client, self.receiver)
        self.client = client
        self.bridge = Bridge("memory://")
        self.bridge.on("*", name="crm")(self._handle)

    def _handle(self, event):
        delivery = json.loads(event.raw)
        # The key that the old program sends, as long as both may send one event.
        self.receiver.take(delivery, event.envelope.id)

    def new(self, delivery):
        """Have the new program handle one message."""
        assert self.bridge.process(delivery).acknowledged

    def new_function(self, delivery):
        """Have the new program handle one message as a Lambda function behind the queue."""
        answer = self.bridge.lambda_handler(records(message(raw(delivery).decode())))
        assert answer == {"batchItemFailures": []}

    def prime(self, lines):
        """Prime the ledger of the new one."""
        with self.bridge.priming() as priming:
            assert all(result.acknowledged for result in priming.process_many(lines))

    def before(self):
        """Have the old program finish thirty facts and see some of them twice; more are left in the queue."""
        self.queue.send(*map(fact, range(30)), *map(fact, range(5)))
        self.queue.run(self.old)
        assert len(self.old.finished) == 30
        # Waiting when it stops: new ones, some of them twice, and duplicates of what it has finished.
        self.queue.send(*map(fact, range(30, 40)), *map(fact, range(35, 40)), *map(fact, range(5)))
        self.queue.send(*(fact(number, again=1) for number in range(5, 10)))

    def after(self, new=None):
        """Have the new program handle what is left, and what comes: duplicates of everything, and new ones."""
        new = new or self.new
        self.queue.run(new)
        self.queue.send(*map(fact, range(40, 50)), *map(fact, range(10, 15)), *map(fact, range(30, 33)))
        self.queue.send(*(fact(number, again=2) for number in (7, 17, 33, 44)))
        self.queue.run(new)
        assert not self.queue.messages


ONCE = Counter(range(50))


def test_the_switch_neither_doubles_nor_loses(switch):
    """Stopped, primed with what it has finished, taken over on the same queue: every event takes effect once."""
    switch.before()
    switch.prime(switch.old.finished)
    switch.after()
    assert switch.receiver.effects == ONCE


def test_a_function_takes_over(switch):
    """The same with the new program as a Lambda function."""
    switch.before()
    switch.prime(switch.old.finished)
    switch.after(switch.new_function)
    assert switch.receiver.effects == ONCE


def test_the_service_takes_over(switch):
    """The same with the new program behind an API destination, whose requests are repeated until they are answered."""
    switch.before()
    switch.prime(switch.old.finished)
    client = Client(make_application(switch.bridge))
    try:
        switch.after(lambda delivery: answered(client.post("/events", delivery)))
    finally:
        client.close()
    assert switch.receiver.effects == ONCE


def answered(answer):
    """Check that a request need not be repeated."""
    assert answer.status == 200, answer.body


def test_a_new_ledger_alone_doubles(switch):
    """Without priming, each event that the old program has finished and that is delivered again takes effect twice."""
    switch.before()
    switch.after()
    doubled = {number for number, effects in switch.receiver.effects.items() if effects > 1}
    assert doubled == {*range(15), 17}


def test_priming_with_everything_that_came_loses(switch):
    """A capture of the road holds events that the old program has not handled; primed with it, they never are."""
    switch.before()
    capture = [json.dumps(delivery) for delivery in (*map(fact, range(30)), *switch.queue.messages)]
    switch.prime(capture)
    switch.after()
    assert {number for number in range(50) if not switch.receiver.effects[number]} == {*range(30, 40)}


def test_a_failed_event_is_left_to_the_new_program(switch):
    """An event that failed at the old program is not finished: it is in the queue, and the new one handles it."""
    switch.before()
    switch.old.effect = lambda delivery: 1 / 0
    switch.queue.run(switch.old, at_most=3)  # each fails, and stays; it is not given a second chance
    switch.prime(switch.old.finished)
    switch.after()
    assert switch.receiver.effects == ONCE


def test_killed_before_its_effect_nothing_is_lost(switch):
    """A mark that the dead program left does not matter: the message is in the queue, and the ledger knows nothing."""
    switch.before()
    switch.old.effect = die
    switch.queue.run(switch.old)
    switch.prime(switch.old.finished)
    switch.after()
    assert switch.receiver.effects == ONCE


def die(_):
    """End the program."""
    raise Killed


@pytest.mark.parametrize(("honours_keys", "effects"), [(False, 2), (True, 1)])
@pytest.mark.parametrize("kind", [SetNX, Powertools])
def test_killed_after_its_effect_only_the_receiver_can_know(client, kind, honours_keys, effects):
    """Killed between the effect and its line, an event is handled again: once in effect if both send the same key."""
    switch = Switch(kind, client, honours_keys=honours_keys)
    switch.before()
    switch.old._finish = die
    switch.queue.run(switch.old)
    switch.prime(switch.old.finished)
    switch.after()
    assert switch.receiver.effects == Counter({**ONCE, 30: effects})
    switch.bridge.close()


def test_both_at_once_need_one_key(client):
    """While both programs get every event, one key for both keeps effects single; without it they double."""
    for honours_keys, times in ((True, 1), (False, 2)):
        switch = Switch(SetNX, client, honours_keys=honours_keys)
        for number in range(10):
            switch.old(fact(number))
            switch.new(fact(number))
        assert switch.receiver.effects == Counter(dict.fromkeys(range(10), times))
        switch.bridge.close()


def test_what_the_old_program_has_lost_is_found_in_a_capture(client):
    """After priming, a capture of the road through the live bridge handles what was marked and never done."""
    switch = Switch(SetNX, client)
    switch.before()
    capture = [*map(fact, range(30)), *switch.queue.messages]
    lost = fact(99)
    client.set(switch.old.mark_of(lost), "1")
    switch.old(lost)  # taken for a duplicate, and deleted
    switch.prime(switch.old.finished)
    switch.after()
    for delivery in [*capture, lost]:
        switch.new(delivery)
    assert switch.receiver.effects == Counter([*range(50), 99])


@pytest.mark.parametrize(("writes_dropped", "effects"), [(False, 1), (True, 0)])
def test_a_dropped_duplicate_is_not_finished(client, writes_dropped, effects):
    """The mark of a dead program drops its event; written down as finished all the same, it is lost for good."""
    switch = Switch(SetNX, client)
    switch.queue.send(fact(1))
    switch.old.effect = die
    switch.queue.run(switch.old)
    switch.old.effect = lambda delivery: None
    switch.queue.run(switch.old)
    assert not switch.queue.messages
    switch.prime([json.dumps(fact(1))] if writes_dropped else switch.old.finished)
    switch.new(fact(1))  # from a capture
    assert switch.receiver.effects[1] == effects
    switch.bridge.close()


def test_an_overlap_is_harmless(switch):
    """The new queue gets events before the old program gets its last ones: what is finished is a duplicate there."""
    for number in range(30):
        switch.old(fact(number))
    switch.queue.send(*map(fact, range(20, 50)))
    switch.prime(switch.old.finished)
    switch.queue.run(switch.new)
    assert switch.receiver.effects == ONCE


def test_priming_tells_the_newest_state(client):
    """A state older than one that the old program has handled is stale after the switch, not news."""
    switch = Switch(SetNX, client)
    newest, older = routing_status("IDLE", TIME_MS + 9000, id="b"), routing_status("INTERACTING", TIME_MS, id="a")
    switch.prime([json.dumps(newest)])
    assert switch.bridge.process(older).verdict == "stale"
    switch.bridge.close()


def test_the_way_back_needs_the_old_marks(switch):
    """If the new handler leaves the old program's marks, too, the old one drops what the new one has handled."""
    for leaves_marks, effects in ((True, 1), (False, 2)):
        number = 70 + leaves_marks
        switch.new(fact(number))
        if leaves_marks:
            switch.client.set(switch.old.mark_of(fact(number)), "COMPLETED", ex=600)
        switch.queue.send(fact(number))
        switch.queue.run(switch.old)
        assert switch.receiver.effects[number] == effects


@pytest.mark.parametrize(("kind", "effects"), [(Powertools, 1), (SetNX, 0)])
def test_only_marks_that_a_failure_takes_back_may_be_kept_inside(client, kind, effects):
    """A handler may call the old program with Powertools' marks; behind SET NX a retry takes itself for a duplicate."""
    receiver = Receiver()
    old, bridge = kind(client, receiver), Bridge("memory://")
    old.effect = lambda delivery: 1 / 0
    bridge.on("*", name="crm")(lambda event: old(json.loads(event.raw)))
    with bridge:
        assert not bridge.process(fact(1)).acknowledged
        old.effect = lambda delivery: None
        assert bridge.process(fact(1)).acknowledged
        old(fact(1))  # the old program beside it, with a copy
        bridge.process(fact(1))
    assert receiver.effects[1] == effects
