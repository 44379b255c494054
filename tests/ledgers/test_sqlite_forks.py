"""A bridge on SQLite that was used before a fork goes on in both processes, or refuses: nothing is lost."""

import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing

import pytest

from children import Child, bring_to_end, delivery, in_children, use_on_both_sides
from oncebridge import Bridge
from oncebridge.errors import LedgerRefused


@pytest.fixture
def path(tmp_path):
    """Return where the ledger of a test is, with a table for effects."""
    path = tmp_path / "once.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE effect (name TEXT)")
    return path


def effects(path):
    """Count effects by name, on a connection that nobody else knows of."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return Counter(name for (name,) in db.execute("SELECT name FROM effect"))


def write(event, transaction):
    """Write an effect in the transaction that settles it."""
    transaction.execute("INSERT INTO effect VALUES (?)", (event.body["eventId"],))


def bridge_on(path, handler=write):
    """Make a bridge that writes effects into its ledger's file."""
    bridge = Bridge(f"sqlite:///{path}")
    bridge.on("*")(handler)
    return bridge


def test_a_bridge_is_used_on_both_sides_of_a_fork(path):
    """Parent and children of a bridge that was used before take every event once, and know what was done."""
    bridge = bridge_on(path)
    expected = use_on_both_sides(bridge)
    bridge.close()
    assert effects(path) == expected


#: Uses a bridge, forks, and ends or waits for its children; they process what they are told, and end in some way.
PARENT = """
import multiprocessing, os, sqlite3, sys
from oncebridge import Bridge

path, way, closes = sys.argv[1:]
bridge = Bridge(f"sqlite:///{path}")

@bridge.on("*")
def write(event, transaction):
    transaction.execute("INSERT INTO effect VALUES (?)", (event.body["eventId"],))

def process(name):
    assert bridge.process({"id": name, "detail-type": "T", "detail": {"eventId": name}}).acknowledged

go_read, go_write = os.pipe()

def work(child):
    process(f"{child} early")
    os.read(go_read, 1)
    for number in range(20):
        process(f"{child} {number}")

def children():
    if way == "multiprocessing":
        processes = [multiprocessing.get_context("fork").Process(target=work, args=(child,)) for child in range(3)]
        for process in processes:
            process.start()
        return lambda: [process.join() for process in processes]
    pids = []
    for child in range(3):
        pid = os.fork()
        if not pid:
            if way == "grandchild" and os.fork():
                os.wait()
                os._exit(0)
            work(child)
            if way == "sys.exit":
                sys.exit(0)
            os._exit(0)
        pids.append(pid)
    return lambda: [os.waitpid(pid, 0) for pid in pids]

process("before")
wait = children()
if closes == "first":
    bridge.close()
os.write(go_write, b"go!")
wait()
if closes == "last":
    process("after")
    bridge.close()
"""


@pytest.mark.parametrize(
    ("way", "closes"),
    [("os._exit", "first"), ("os._exit", "last"), ("sys.exit", "first"), ("multiprocessing", "first"),
     ("grandchild", "first")],
)  # fmt: skip
def test_nothing_is_lost_however_parent_and_children_end(path, way, closes):
    """What children have done stays done, whether the parent closes before or after, and however they end."""
    subprocess.run([sys.executable, "-c", PARENT, str(path), way, closes], check=True, timeout=60)
    expected = ["before", *(f"{child} {name}" for child in range(3) for name in ("early", *range(20)))]
    assert effects(path) == Counter(expected + (["after"] if closes == "last" else []))


def test_a_fork_beside_working_threads(path):
    """A process that forks while its threads are at work gets children that work, and goes on itself."""
    bridge, stop, done = bridge_on(path), threading.Event(), []
    bridge.process(delivery("before"))

    def work(number):
        while not stop.is_set():
            name = f"thread {number} {len(done)}"
            bring_to_end(bridge, [name])
            done.append(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        names = [[f"child {child} {number}" for number in range(5)] for child in range(6)]
        for own in names:
            in_children(lambda own=own: bring_to_end(bridge, own))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    bridge.close()
    assert effects(path) == Counter(["before", *done, *(name for own in names for name in own)])


# --- where a connection cannot be closed before ---------------------------------------------------------------------


def is_refused(path, bridge):
    """Tell whether this process is kept from using a file, by a bridge that it has and by a new one, and told why."""
    for one in (bridge, bridge_on(path)):
        with pytest.raises(LedgerRefused, match=r"forked.*spawn"):
            one.process(delivery("in the child"))
    return True


def test_a_handler_that_forks_keeps_its_transaction(path):
    """The child of a handler that forks within its transaction is refused the file, and the parent loses nothing."""
    answers = []

    def fork(event, transaction):
        write(event, transaction)
        child = Child(lambda: [is_refused(path, bridge), refuses(transaction)])
        answers.append(child.result())
        transaction.execute("INSERT INTO effect VALUES ('after the fork')")

    def refuses(transaction):
        with pytest.raises(sqlite3.DatabaseError):
            transaction.execute("INSERT INTO effect VALUES ('of the child')")
        return True

    bridge = bridge_on(path, fork)
    assert bridge.process(delivery("one")).acknowledged
    assert answers == [[True, True]]
    bridge.close()
    assert effects(path) == {"one": 1, "after the fork": 1}


#: Forks in its handler; the child leaves by way of the handler, so that everything of its parent's is cleared away.
FORKING_HANDLER = """
import os, sys
from oncebridge import Bridge

path, way = sys.argv[1:]
bridge = Bridge(f"sqlite:///{path}")
parent = os.getpid()

@bridge.on("*")
def write(event, transaction):
    transaction.execute("INSERT INTO effect VALUES (?)", (event.body["eventId"],))
    transaction.execute("INSERT INTO effect VALUES (?)", ("x" * 100_000,))
    child = os.fork()
    if not child and way == "raises":
        raise ValueError
    if not child and way == "exits":
        sys.exit(0)
    if child:
        os.waitpid(child, 0)  # it is gone, with all that it inherited, before this is committed

for name in ("one", "two", "three"):
    delivery = {"id": name, "detail-type": "T", "detail": {"eventId": name}}
    try:
        acknowledged = bridge.process(delivery).acknowledged
    except Exception:
        sys.exit(os.getpid() == parent)
    if os.getpid() != parent:
        sys.exit(0)
    assert acknowledged
"""


@pytest.mark.parametrize("way", ["raises", "exits", "returns"])
def test_the_child_of_a_handler_ends_without_touching_its_parents_transaction(path, way):
    """However the child of a forking handler leaves it, the parent's effect is there once, in a sound file."""
    subprocess.run([sys.executable, "-c", FORKING_HANDLER, str(path), way], check=True, timeout=60, capture_output=True)
    found = effects(path)
    assert {name: found[name] for name in ("one", "two", "three")} == {"one": 1, "two": 1, "three": 1}


def test_a_fork_does_not_wait_for_ever_for_another_thread(path):
    """A fork beside a handler that is long in its transaction goes ahead; its child is refused, its parent is not."""
    inside, go_on = threading.Event(), threading.Event()

    def linger(event, transaction):
        write(event, transaction)
        inside.set()
        assert go_on.wait(60)

    bridge = bridge_on(path, linger)
    worker = threading.Thread(target=bridge.process, args=(delivery("long"),))
    worker.start()
    assert inside.wait(60)
    try:
        assert in_children(lambda: is_refused(path, bridge)) == [True]
    finally:
        go_on.set()
        worker.join()
    assert bridge.process(delivery("after")).acknowledged
    bridge.close()
    assert effects(path) == {"long": 1, "after": 1}


def test_a_connection_of_somebody_elses_is_noticed(path):
    """A connection to the file that is not the bridge's is inherited too: the child is refused, not robbed."""
    bridge = bridge_on(path)
    bridge.process(delivery("before"))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM effect").fetchone() == (1,)
        assert in_children(lambda: is_refused(path, bridge)) == [True]
    assert in_children(lambda: bridge.process(delivery("child")).acknowledged) == [True]
    assert bridge.process(delivery("after")).acknowledged
    bridge.close()
    assert effects(path) == {"before": 1, "child": 1, "after": 1}


def test_two_bridges_on_one_file_survive_a_fork(path):
    """A second bridge on the same file, open too, takes nothing from the children of the first."""
    one, two = bridge_on(path), bridge_on(path)
    one.process(delivery("one"))
    two.process(delivery("two"))
    children = [Child(lambda n=n: bring_to_end(one if n % 2 else two, [f"child {n}"])) for n in range(4)]
    one.close()
    two.close()
    for child in children:
        child.result()
    assert effects(path) == Counter(["one", "two", *(f"child {n}" for n in range(4))])


#: Forks behind Python's back, as C code may.
SILENT_FORK = """
import ctypes, os, sys
from oncebridge import Bridge
from oncebridge.errors import LedgerRefused

bridge = Bridge(f"sqlite:///{sys.argv[1]}")

@bridge.on("*")
def write(event, transaction):
    transaction.execute("INSERT INTO effect VALUES (?)", (event.body["eventId"],))

def process(name):
    return bridge.process({"id": name, "detail-type": "T", "detail": {"eventId": name}})

process("before")
pid = ctypes.PyDLL(None).fork()
if not pid:
    try:
        process("child")
    except LedgerRefused:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
process("after")
bridge.close()
"""


def test_a_fork_that_nobody_was_told_of_is_noticed(path):
    """A child of C code that forks has its parent's connection, and is refused."""
    subprocess.run([sys.executable, "-c", SILENT_FORK, str(path)], check=True, timeout=60)
    assert effects(path) == {"before": 1, "after": 1}
