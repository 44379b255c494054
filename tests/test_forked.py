"""A bridge on both sides of a fork: the child begins anew, and what the parent works on stays the parent's."""

import asyncio
import json
import os
import signal
import sys
import threading
import time

import pytest

from oncebridge import Bridge, Settings
from oncebridge.claim import Status
from oncebridge.errors import BatchOfParent
from payloads import ACW, TIME_MS, envelope

SECONDS = 30


def facts(number, start=0):
    """Build so many events that have nothing to do with each other."""
    return [envelope(ACW, {"eventTime": TIME_MS + n}, id=f"fact {n}") for n in range(start, start + number)]


def in_child(function):
    """Run a function in a forked child, and return what it returns; a child that hangs is killed."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(write)
    killer = threading.Timer(SECONDS, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with os.fdopen(read) as text:
        answer = text.read()
    os.waitpid(pid, 0)
    killer.cancel()
    assert answer, "the child hangs, or failed"
    return json.loads(answer)


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """The URL of an empty ledger."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/once.db"


@pytest.mark.parametrize("way", ["plain", "async", "side by side"])
def test_a_bridge_that_was_used_works_in_a_forked_child(url, way):
    """The child knows what was done before, takes what is new, and has books of its own; so does the parent after."""

    def plain(event):
        return None

    async def coroutine(event):
        await asyncio.sleep(0)

    with Bridge(url, settings=Settings(concurrency=2 if way == "side by side" else 1)) as bridge:
        bridge.on("*")(coroutine if way == "async" else plain)
        bridge.process_many(facts(3))

        def work():
            columns = [result.column for result in bridge.process_many(facts(5))]
            return columns, bridge.books.as_dict()["received"]

        columns, received = in_child(work)
        assert columns == ["redelivery"] * 3 + ["processed"] * 2
        assert received == 5
        assert bridge.books.as_dict()["received"] == 3
        assert {result.acknowledged for result in bridge.process_many(facts(5))} == {True}


def test_claims_are_kept_alive_in_a_child(tmp_path):
    """A handler that takes longer than the lease keeps its claim in a child, too."""
    settings = Settings(lease_seconds=0.3, busy_wait_seconds=0)
    with Bridge(f"sqlite:///{tmp_path}/once.db", settings=settings) as bridge:
        began, others = tmp_path / "began", []

        @bridge.on("*")
        def handle(event):
            if event.envelope.id == "fact 1":
                began.touch()
                time.sleep(1.5)  # several leases

        bridge.process_many(facts(1))

        def look():
            while not began.exists():
                time.sleep(0.01)
            time.sleep(0.6)
            others.extend(result.verdict for result in bridge.process_many(facts(1, 1)))

        looking = threading.Thread(target=look)

        def work():
            return bridge.process_many(facts(1, 1))[0].column

        pid_answers = []
        child = threading.Thread(target=lambda: pid_answers.append(in_child(work)))
        child.start()
        looking.start()
        looking.join(SECONDS)
        child.join(SECONDS)
    assert pid_answers == ["processed"]
    assert others == ["busy"]


def test_a_lock_that_a_thread_held_at_the_fork_is_free_in_the_child():
    """While other threads work on batches, children forked at any moment work, too."""
    stop = threading.Event()
    with Bridge("memory://") as bridge:
        bridge.on("*")(lambda event: None)

        def work():
            number = 10
            while not stop.is_set():
                bridge.process_many(facts(20, number))
                number += 20

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for n in range(20):
                name = f"child {n}"
                delivery = envelope(ACW, {"eventTime": 1 + n}, id=name)
                assert in_child(lambda delivery=delivery: bridge.process(delivery).column) == "processed"
        finally:
            stop.set()
            for thread in threads:
                thread.join(SECONDS)
        assert bridge.books.as_dict()["balanced"]


ENDS = {
    "returns": lambda: None,
    "raises": lambda: int("x"),
    "exits": lambda: sys.exit(3),
    "ends at once": lambda: os._exit(3),
}


@pytest.mark.parametrize("way", ["plain", "in a transaction"])
@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_a_handler_forks_leaves_the_batch_to_its_parent(end, way, tmp_path):
    """However the child ends, it settles and releases nothing, and no other handler runs there."""
    calls, outcome = tmp_path / "calls", tmp_path / "outcome"
    parent = os.getpid()
    bridge = Bridge(f"sqlite:///{tmp_path}/once.db")

    def handle(event):
        with calls.open("a") as file:
            file.write(f"{event.envelope.id} {os.getpid() == parent}\n")
        if event.envelope.id == "fact 1":
            pid = os.fork()
            if not pid:
                ENDS[end]()
                return
            os.waitpid(pid, 0)

    def handle_in_transaction(event, transaction):
        transaction.execute("CREATE TABLE IF NOT EXISTS effect (id TEXT)")
        transaction.execute("INSERT INTO effect VALUES (?)", (event.envelope.id,))
        handle(event)

    bridge.on("*")(handle if way == "plain" else handle_in_transaction)
    try:
        results = bridge.process_many(facts(4))
    except BaseException as error:
        if os.getpid() == parent:
            raise
        outcome.write_text(type(error).__name__)
        os._exit(0)
    if os.getpid() != parent:
        outcome.write_text("went on")
        os._exit(0)
    assert [result.column for result in results] == ["processed"] * 4
    assert calls.read_text().splitlines() == [f"fact {n} True" for n in range(4)]
    assert bridge.ledger.counts() == {Status.DONE: 4}
    expected = {"returns": BatchOfParent.__name__, "raises": BatchOfParent.__name__, "exits": "SystemExit"}
    assert (outcome.read_text() if outcome.exists() else None) == expected.get(end)
    bridge.close()
