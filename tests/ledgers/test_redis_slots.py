"""A cluster that moves slots from one master to another, while the ledger is used."""

import json
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from oncebridge import Bridge, PermanentError, Settings
from oncebridge.errors import LedgerUnavailable
from payloads import envelope, raw
from servers.process import wait_until
from servers.valkey import Slots, running_cluster

TOPIC = "v2.detail.events.conversation.{id}.attributes"


@pytest.fixture(scope="module")
def slots(tmp_path_factory):
    """Run a cluster whose slots are moved about."""
    with running_cluster(tmp_path_factory.mktemp("slots")) as servers:
        yield Slots(servers)


@pytest.fixture
def cluster(slots):
    """Return the cluster, empty again after each test."""
    yield slots
    for client in slots.clients:
        client.flushall()


class Worker:
    """A bridge whose handler notes what it gets."""

    def __init__(self, url, lease_seconds=30):
        """Make the bridge."""
        self.handled = []
        self.url = url
        self.bridge = Bridge(url, settings=Settings(lease_seconds=lease_seconds))

        @self.bridge.on("*", name="desk")
        def handle(event):
            self.handled.append(event.body["sessionId"])
            if "poison" in event.body["sessionId"]:
                raise PermanentError("poison")

    def take(self, events):
        """Deliver events, and return the verdicts; none where the ledger is out of reach."""
        try:
            results = self.bridge.process_many(
                [raw(envelope(TOPIC, {"sessionId": event}, id=event)) for event in events]
            )
        except LedgerUnavailable:
            return []
        return [result.verdict.value for result in results if result.acknowledged]

    def take_all(self, events):
        """Deliver events until all are over."""
        wait_until(lambda: len(self.take(events)) == len(events), "the slots to be whole")


def dead_letters(url):
    """Return what `oncebridge dead list` shows."""
    command = [sys.executable, "-m", "oncebridge", "dead", "list", "--json", "--ledger", url]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return [json.loads(line) for line in shown.stdout.splitlines()]


@pytest.mark.parametrize("share", [0.5, 1], ids=["half", "everything"])
def test_what_was_done_is_known_while_a_slot_is_on_its_way(cluster, share):
    """Whatever part of a slot has arrived: nothing known is done again, nothing new is lost, letters stay in place."""
    known = [f"known {n}" for n in range(100)] + [f"poison {n}" for n in range(20)]
    new = [f"new {n}" for n in range(40)]
    worker = Worker(cluster.url)
    with closing(worker.bridge):
        worker.take_all(known)
        slots = [(slot, source, (source + 1) % 3) for slot, source in cluster.in_use()]
        for slot, source, target in slots:
            cluster.begin(slot, source, target)
            keys = cluster.clients[source].execute_command("CLUSTER COUNTKEYSINSLOT", slot)
            cluster.move_keys(slot, source, target, max(1, int(keys * share)))
        assert worker.take(known) == []
        assert worker.take(new) == []
        for slot in slots:
            cluster.end(*slot)
        worker.take_all(new)
        worker.take_all(known)
        assert sorted(worker.handled) == sorted(known + new)
        assert len(dead_letters(worker.url)) == 20


def test_nothing_is_lost_or_doubled_while_slots_move_under_load(cluster):
    """Workers go on while every slot of the ledger moves twice: each event takes effect once, each letter is kept."""
    url = cluster.url
    shares = [[f"{'poison' if n % 10 == 0 else 'event'} {worker} {n}" for n in range(100)] for worker in range(2)]
    workers = [Worker(url) for _ in shares]
    moved = threading.Event()

    def work(worker, share):
        while True:
            last = moved.is_set()
            for at in range(0, len(share), 50):
                worker.take_all(share[at : at + 50])
            if last:
                return

    threads = [threading.Thread(target=work, args=each) for each in zip(workers, shares, strict=True)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(len(worker.handled) for worker in workers) > 50, "some to be handled")
    for step in (1, 2):
        for slot, source in cluster.in_use():
            cluster.begin(slot, source, (source + step) % 3)
            cluster.end(slot, source, (source + step) % 3)
    moved.set()
    for thread in threads:
        thread.join()
    for worker in workers:
        worker.bridge.close()
    assert [sorted(worker.handled) for worker in workers] == [sorted(share) for share in shares]
    assert len(dead_letters(url)) == 20
