"""The proof: load with duplicates from outside, while the ledger's server and a worker are killed."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from queue import SimpleQueue

import pytest

from payloads import ACW, TIME_MS, envelope
from servers.process import wait_until
from servers.receiver import running_receiver
from servers.serving import ask, post, worker_pids
from servers.valkey import running_valkey

EVENTS = 400
CLIENTS = 6
LEASE_SECONDS = "2"  # what a killed worker held comes back after so long
PATIENCE_SECONDS = 120.0
PAUSE_SECONDS = 0.05  # before the same is sent again


class Service:
    """`oncebridge serve` with two workers and one sink, as a process of its own."""

    def __init__(self, folder, ledger, receiver):
        """Start it, and wait until it says where it is."""
        (folder / "oncebridge.toml").write_text(
            f'[sinks.crm]\nurl = "{receiver.url}"\nprivate_addresses = true\n[serve]\nworkers = 2\nport = 0\n'
        )
        command = [sys.executable, "-m", "oncebridge", "serve", "--ledger", ledger, "--lease", LEASE_SECONDS, "--json"]
        self._narration = folder / "narration"
        environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        with self._narration.open("wb") as narration:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=narration, cwd=folder, env=environment, start_new_session=True
            )
        try:
            wait_until(lambda: self._found() or self.process.poll() is not None, "the service to start")
            assert self._found(), self.said
            self.url = self._found()[1]
        except BaseException:
            self.kill()
            raise

    @property
    def said(self):
        """What it has said so far."""
        return self._narration.read_text()

    def _found(self):
        return re.search(r"serving (http://\S+) with 2 workers", self.said)

    def workers(self):
        """Return its worker processes."""
        return set(worker_pids(self.process.pid))

    def stop(self):
        """Stop it in order, and return its exit code and the books."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, json.loads(out)

    def kill(self):
        """End all processes that are left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE_SECONDS)


@contextmanager
def serving(folder, ledger, receiver):
    """Run the service."""
    service = Service(folder, ledger, receiver)
    try:
        yield service
    finally:
        service.kill()


class Load:
    """Clients that send everything until it is answered for good, as EventBridge does."""

    def __init__(self, url, posts):
        """Take the events; nothing is sent yet."""
        self._url = url
        self._posts = SimpleQueue()
        for one in posts:
            self._posts.put(one)
        self._left = len(posts)
        self._lock = threading.Lock()
        self.statuses = Counter()
        self._never = threading.Event()
        self._clients = [threading.Thread(target=self._send, daemon=True) for _ in range(CLIENTS)]

    def start(self):
        """Begin."""
        for _ in self._clients:
            self._posts.put(None)
        for client in self._clients:
            client.start()

    def _send(self):
        while (one := self._posts.get()) is not None:
            while self._status(one) not in (200, 400):
                self._never.wait(PAUSE_SECONDS)
            with self._lock:
                self._left -= 1

    def _status(self, one):
        status = post(self._url, one).status
        with self._lock:
            self.statuses[status] += 1
        return status

    def left(self):
        """Tell how many have not been answered for good."""
        with self._lock:
            return self._left

    def seen(self, status):
        """Tell how often a status was seen."""
        with self._lock:
            return self.statuses[status]

    def finish(self):
        """Wait until everything was answered."""
        wait_until(lambda: not self.left(), f"all to be answered; so far {self.statuses}", PATIENCE_SECONDS)


def deliveries_of(number):
    """Deliver an event four times: twice in one envelope, and in two others."""
    body = {"eventTime": TIME_MS + number}
    return [envelope(ACW, body, id=f"envelope-{number}-{one}") for one in (0, 0, 1, 2)]


def posts_of(events, chance):
    """Mix the deliveries of all events: single ones, some twice at once, and batches with twins in them."""
    deliveries = [delivery for number in range(events) for delivery in deliveries_of(number)]
    # Near each other, as duplicates are, but not in order.
    deliveries = [
        delivery for _, delivery in sorted(enumerate(deliveries), key=lambda at: at[0] + chance.random() * 60)
    ]
    posts = []
    while deliveries:
        size = chance.choice((1, 1, 1, 2, 10, 25))
        batch, deliveries = deliveries[:size], deliveries[size:]
        posts += [batch[0] if size == 1 else batch] * chance.choice((1, 1, 2))
    return posts


@pytest.fixture
def everything(tmp_path):
    """Run a server for the ledger, a receiver that honours keys, and the service between them."""
    with (
        running_valkey(tmp_path / "valkey") as valkey,
        running_receiver() as receiver,
        serving(tmp_path, valkey.url, receiver) as service,
    ):
        yield valkey, receiver, service


def test_nothing_is_lost_and_nothing_doubled_while_servers_and_workers_die(everything):
    """Each event takes effect once at a receiver that honours keys, while processes die; no sender is refused."""
    valkey, receiver, service = everything
    posts = posts_of(EVENTS, random.Random(5))
    load = Load(service.url, posts)
    load.start()

    wait_until(lambda: load.left() < len(posts) * 3 // 4, "a quarter to be answered", PATIENCE_SECONDS)
    valkey.process.kill()
    wait_until(lambda: load.seen(503), "requests to be told to come again", PATIENCE_SECONDS)
    valkey.process.start()

    wait_until(lambda: load.left() < len(posts) // 2, "half to be answered", PATIENCE_SECONDS)
    before = service.workers()
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: len(service.workers() - {min(before)}) == 2, "another worker", PATIENCE_SECONDS)
    load.finish()

    # Senders were only ever told that it is done, or to come again; or nothing at all.
    assert set(load.statuses) <= {200, 503, 0}, load.statuses
    keys = defaultdict(set)
    for request in receiver.requests:
        keys[json.loads(request.body)["detail"]["eventBody"]["eventTime"] - TIME_MS].add(request.key)
    assert set(keys) == set(range(EVENTS))
    assert all(len(own) == 1 for own in keys.values())
    assert receiver.effects == dict.fromkeys({key for own in keys.values() for key in own}, 1)
    assert len(receiver.effects) == EVENTS

    # And all of it is remembered: whatever comes now is a duplicate.
    for number in range(0, EVENTS, 50):
        again = post(service.url, [delivery for n in range(number, number + 50) for delivery in deliveries_of(n)])
        assert (again.status, again.json["processed"], again.json["retrying"]) == (200, 0, 0)
    assert len(receiver.effects) == EVENTS
    assert ask(f"{service.url}/health").status == 200
    code, books = service.stop()
    assert code == 0
    assert books["balanced"] is True
    assert (books["dead"], books["conflict"]) == (0, 0)
    assert re.search(r"\d workers? w(as|ere) killed", service.said)
