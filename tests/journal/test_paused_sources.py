"""Pauses at the ways in: a queue's messages stay hidden and are received once, and senders are asked to come again."""

import secrets
import threading
from collections import Counter

from journal.waiting import until
from oncebridge import Bridge
from oncebridge.engine import paused
from oncebridge.journal.pauses import Pauses
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.service.app import make_application
from oncebridge.sources.sqs.consumer import QueueRun
from oncebridge.sources.sqs.queue import Received
from payloads import queue_conversation, raw
from service.asgi import Client


def delivery(name):
    """Make one delivery of an event of this name."""
    return queue_conversation(event_id=name, conversation=name)


class QueueInMemory:
    """A queue that counts how often it hands out each message."""

    def __init__(self, bodies):
        """Take the messages."""
        self._ready = [*bodies]
        self.received, self.deleted, self.shown_again = Counter(), set(), []
        self._lock = threading.Lock()

    def receive(self, number, hidden_seconds):
        """Hand out messages."""
        with self._lock:
            some, self._ready = self._ready[:number], self._ready[number:]
        self.received.update(some)
        if not some:
            threading.Event().wait(0.01)
        return [Received(body, body, body) for body in some]

    def delete(self, receipts):
        """Delete messages."""
        self.deleted.update(receipts)
        return []

    def hide(self, seconds):
        """Hide messages."""
        self.shown_again += [receipt for receipt, number in seconds if not number]
        return []

    def count_left(self):
        """Have nothing left."""
        return 0


def test_consume_keeps_messages_hidden_while_their_handler_is_paused(clock, often, monkeypatch):
    """Each is received once however often it was looked at, goes on by itself when resumed, and is done once."""
    monkeypatch.setattr(paused, "AGAIN_US", 10_000)
    ledger, did = MemoryLedger(), []
    pauses = Pauses(ledger.notes, clock)
    pauses.pause("crm", "anna")
    bodies = [raw(delivery(f"{number}")).decode() for number in range(30)]
    queue, looked = QueueInMemory(bodies), Counter()
    bridge = Bridge(ledger)
    bridge.register("*", lambda event: did.append((event.body["eventId"], event.attempt)), name="crm")
    bridge.start_journal("consume")
    with bridge:
        flow = bridge.open()
        process = flow.process
        monkeypatch.setattr(
            flow, "process", lambda some, **limits: looked.update(calls=len(some)) or process(some, **limits)
        )
        run = QueueRun(
            flow, queue, bridge.settings, workers=2, limit=100,
            receive=bridge.books.receive, account=bridge.account, say=lambda _: None,
        )  # fmt: skip
        running = threading.Thread(target=run.run)
        running.start()
        until(lambda: looked["calls"] > 300)
        assert (did, queue.deleted) == ([], set())
        pauses.resume("crm", "anna")
        until(lambda: len(queue.deleted) == 30)
        bridge.stop()
        running.join()
    assert Counter(did) == Counter({(f"{number}", 1): 1 for number in range(30)})
    assert set(queue.received.values()) == {1}
    assert queue.shown_again == []
    assert bridge.books.as_dict()["balanced"]


def served(ledger, *names):
    """Serve events for handlers of these names."""
    bridge = Bridge(ledger)
    for name in names:
        bridge.register("*", lambda event: None, name=name)
    bridge.start_journal("serve")
    return bridge, Client(make_application(bridge))


def test_senders_are_asked_to_come_again(clock):
    """`/events` answers 503 and when to come again; a duplicate of what is done is acknowledged as ever."""
    ledger = MemoryLedger()
    bridge, client = served(ledger, "crm")
    try:
        assert client.post("/events", delivery("done")).status == 200
        Pauses(ledger.notes, clock).pause("crm", "anna")
        bridge.close()
        answered = client.post("/events", delivery("new"))
        assert (answered.status, answered.headers["retry-after"]) == (503, "5")
        assert client.post("/events", delivery("done")).status == 200
    finally:
        client.close()
        bridge.close()


def test_a_claim_for_a_paused_handler_is_not_granted(clock):
    """`/claims` answers 503 with the reason and when to come again, and that was no attempt; duplicates end as ever."""
    ledger = MemoryLedger()
    bridge, client = served(ledger)
    try:
        done = client.post("/claims", {"event": delivery("done"), "handler": "desktop"}).json
        assert client.post("/claims/settle", {"claim": done["claim"], "outcome": "done"}).status == 200
        Pauses(ledger.notes, clock).pause("desktop", "anna@laptop")
        bridge.close()
        for _ in range(12):
            answered = client.post("/claims", {"event": delivery("new"), "handler": "desktop"})
            assert (answered.status, answered.headers["retry-after"]) == (503, "5")
            assert "handler desktop is paused since" in answered.json["detail"]
        again = client.post("/claims", {"event": delivery("done"), "handler": "desktop"}).json
        assert (again["verdict"], again["acknowledge"]) == ("redelivery", True)
        Pauses(ledger.notes, clock).resume("desktop", "anna")
        bridge.close()
        granted = client.post(
            "/claims", {"event": delivery("new"), "handler": "desktop"}, Idempotency_Key=secrets.token_hex(4)
        ).json
        assert (granted["verdict"], granted["attempt"]) == ("fresh", 1)
    finally:
        client.close()
        bridge.close()
