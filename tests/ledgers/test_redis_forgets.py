"""A Redis that forgets: its scripts, or everything, with or without the connections to it."""

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from oncebridge import Bridge, PermanentError, Settings
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from payloads import envelope, raw
from servers.process import wait_until
from servers.valkey import running_cluster, running_valkey

TOPIC = "v2.detail.events.conversation.{id}.attributes"
OWN = Settings(secret=b"a secret of one's own, kept elsewhere")


def delivery(event):
    """Return a delivery of an event."""
    return raw(envelope(TOPIC, {"sessionId": event}, id=event))


class Worker:
    """A bridge that notes the keys of what it gets; poison becomes a dead letter."""

    def __init__(self, url, settings=None):
        """Make the bridge."""
        self.keys = {}
        self.bridge = Bridge(url, settings=settings or Settings())

        @self.bridge.on("*", name="desk")
        def handle(event):
            self.keys[event.body["sessionId"]] = event.key
            if event.body["sessionId"].startswith("poison"):
                raise PermanentError("poison")

    def __enter__(self):
        """Return it."""
        return self

    def __exit__(self, *_):
        """Close it."""
        self.bridge.close()

    def take(self, event):
        """Deliver an event once, and return its verdict."""
        return self.bridge.process(delivery(event)).verdict.value


def empty(servers):
    """Empty servers by hand; nobody's connection is cut."""
    for server in servers:
        with server.client() as client:
            client.flushall()


@pytest.fixture(scope="module", params=["single", "cluster"])
def running(request, tmp_path_factory):
    """Run one server, or a cluster of three."""
    directory = tmp_path_factory.mktemp("forgets")
    if request.param == "cluster":
        with running_cluster(directory) as found:
            yield found, "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in found)
    else:
        with running_valkey(directory) as server:
            yield [server], server.url


@pytest.fixture
def servers(running):
    """Return the servers, and the URL of a new ledger there."""
    found, url = running
    return found, f"{url}?name={secrets.token_hex(8)}"


def test_workers_agree_on_keys_after_a_server_was_emptied_by_hand(servers):
    """The next claim notices it: whoever was there gives the secret back, or joins those who have begun anew."""
    emptied, url = servers
    with Worker(url) as old:
        old.take("a")
        empty(emptied)
        assert old.take("b") == "fresh"
        with Worker(url) as new:
            assert new.take("b") == "redelivery"
            assert new.take("c") == "fresh"
            assert old.take("c") == "redelivery"
        empty(emptied)
        with Worker(url) as first:
            assert first.take("d") == "fresh"
            wait_until(lambda: _joined(old, "d"), "the old worker to join")
            assert old.take("e") == "fresh"
            assert first.take("e") == "redelivery"
    assert set(old.keys) == {"a", "b", "e"}


def _joined(worker, event):
    try:
        return worker.take(event) == "redelivery"
    except LedgerRefused:  # once
        return False


def test_keys_stay_what_they_were_with_a_secret_of_ones_own(servers):
    """A receiver that knows events by their keys knows them again, though no worker from before is left."""
    emptied, url = servers
    with Worker(url, OWN) as old:
        old.take("a")
    empty(emptied)
    with Worker(url, OWN) as new:
        assert new.take("a") == "fresh"
    assert new.keys == old.keys


def test_letters_of_named_handlers_are_redriven_after_a_server_was_emptied(servers):
    """The handler's name is written again with its next event: a program of its own finds the letter by its key."""
    emptied, url = servers
    with Worker(url, OWN) as worker:
        worker.take("poison 1")
        empty(emptied)
        worker.take("poison 2")
        (letter,) = worker.bridge.dead_letters.list()
    command = [sys.executable, "-m", "oncebridge", "dead", "show", letter.key, "--json", "--ledger", url]
    environment = os.environ | {"ONCEBRIDGE_SECRET": OWN.secret.decode()}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    (found,) = [json.loads(line) for line in shown.stdout.splitlines()]
    assert "poison 2" in json.dumps(found)
    with closing(Bridge(url, settings=OWN)) as again:
        done = []
        again.on("*", name="desk")(lambda event: done.append(event.body["sessionId"]))
        results = [again.dead_letters.redrive(one.key) for one in again.dead_letters.list()]
        assert done == ["poison 2"]
        assert len(results) == 1
        assert list(again.dead_letters.list()) == []


def test_a_call_whose_script_was_forgotten_waits_for_its_replicas_too(tmp_path):
    """A replica that has everything but that call does not vouch for it: nothing is acknowledged."""
    with running_valkey(tmp_path / "a") as master:
        following = ("--replicaof", f"127.0.0.1 {master.port}")
        with running_valkey(tmp_path / "b", *following) as replica, master.client() as client:
            wait_until(lambda: client.wait(1, 100) == 1, "the replica to follow")
            with Worker(f"{master.url}?wait=1", Settings(lease_seconds=3)) as worker:
                for event in ("a", "b"):
                    wait_until(lambda event=event: _processed(worker, event), "the replica to follow in time")
                wait_until(lambda: client.wait(1, 100) == 1, "the replica to follow")
                replica.process.send(signal.SIGSTOP)
                try:
                    client.script_flush()
                    with pytest.raises(LedgerUnavailable, match="0 of 1 replicas"):
                        worker.take("c")
                    assert "c" not in worker.keys
                finally:
                    replica.process.send(signal.SIGCONT)
                wait_until(lambda: _processed(worker, "c"), "the replica to be back")
                assert set(worker.keys) == {"a", "b", "c"}


def _processed(worker, event):
    try:
        return worker.bridge.process(delivery(event)).acknowledged
    except LedgerUnavailable:
        return False
