"""A sink's SQLite file in forked processes, interrupted, and lost under its worker: what is acknowledged is there."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from children import Child, delivery, in_children
from interrupts import Interrupted, points, sample, strike
from oncebridge import Bridge, Settings
from oncebridge.settings.sinks import read_sink

PARTS = ("", "-wal", "-shm")


@pytest.fixture(params=["wal", "delete"])
def desk(request, tmp_path):
    """Return a user's file with a table, in either kind of journal."""
    path = tmp_path / "desk.db"
    make_desk(path, request.param)
    return path


def make_desk(path, journal):
    """Make the table."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
        db.execute("CREATE TABLE row (name TEXT)")
        db.commit()


def bridge_into(desk, ledger):
    """Make a bridge with a sink into the table; its ledger is elsewhere."""
    table = {"database": f"sqlite:///{desk}", "table": "row", "columns": {"name": "detail.eventId"}}
    settings = Settings(sinks=(read_sink("desk", table, "here"),), lease_seconds=0.2, busy_wait_seconds=10)
    return Bridge(ledger, settings=settings)


@pytest.fixture
def bridge(desk, tmp_path):
    """Make a bridge whose ledger processes can share."""
    with bridge_into(desk, f"sqlite:///{tmp_path / 'once.db'}") as bridge:
        yield bridge


def rows(path):
    """Count rows by name, on a connection that nobody else knows of."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return Counter(name for (name,) in db.execute("SELECT name FROM row"))


def until_written(bridge, name):
    """Deliver an event until it is acknowledged; return how often it had to come again."""
    again = 0
    while not bridge.process(delivery(name)).acknowledged:
        again += 1
        bridge.clock.wait(bridge.stopping, 0.02)
    return again


def test_a_sink_is_used_on_both_sides_of_a_fork(bridge, desk):
    """Rows of parent and children are all there, though the parent closes first."""
    until_written(bridge, "before")
    names = [[f"{child} {number}" for number in range(10)] for child in range(3)]
    children = [Child(lambda own=own: [until_written(bridge, name) for name in own]) for own in names]
    until_written(bridge, "parent")
    bridge.close()
    for child in children:
        child.result()
    assert rows(desk) == Counter(["before", "parent", *(name for own in names for name in own)])


def test_a_connection_of_somebody_elses_is_noticed(bridge, desk):
    """Where the file's log is shared with the parent, a child writes nothing, and says why."""
    until_written(bridge, "before")
    with closing(sqlite3.connect(desk)) as db:
        (journal,) = db.execute("PRAGMA journal_mode").fetchone()
        assert db.execute("SELECT count(*) FROM row").fetchone() == (1,)
        (reason,) = in_children(lambda: bridge.process(delivery("child")).reason)
    assert ("forked" in reason) == (journal == "wal")
    until_written(bridge, "after")
    assert rows(desk)["after"] == 1


@pytest.mark.parametrize("act", ["move", "replace"])
def test_what_is_acknowledged_is_in_the_file(bridge, desk, act):
    """A row that went into a file that is gone is written again into the one that takes its place."""
    until_written(bridge, "before")
    with closing(sqlite3.connect(desk)) as db:
        (journal,) = db.execute("PRAGMA journal_mode").fetchone()
    for part in PARTS:
        if Path(f"{desk}{part}").exists():
            Path(f"{desk}{part}").rename(f"{desk}.old{part}")
    if act == "move":
        assert not bridge.process(delivery("meanwhile")).acknowledged
        assert not desk.exists()
    make_desk(desk, journal)
    names = ["meanwhile", "one", "two"]
    for name in names:
        until_written(bridge, name)
    assert rows(desk) == Counter(names)


def test_a_signal_may_strike_anywhere(tmp_path):
    """Wherever a batch is interrupted, others can write into the file, and each row is there once in the end."""
    desk = tmp_path / "desk.db"
    make_desk(desk, "wal")
    bridge, names = bridge_into(desk, "memory://"), []

    def batch():
        names.append(f"{len(names)}")
        bridge.process(delivery(names[-1]))

    batch()
    found = points(batch)
    of_sink = [point for point in found if "sqlite" in point.code.co_filename]
    assert len(of_sink) > 20
    for point in of_sink + sample([point for point in found if point not in of_sink], 10):
        with strike(point, Interrupted()):
            try:
                batch()
            except Interrupted as error:
                kept = error  # with its frames, as a notebook keeps it
        with closing(sqlite3.connect(desk, timeout=2, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
    assert kept is not None
    for name in names:
        until_written(bridge, name)
    bridge.close()
    assert rows(desk) == Counter(names)
