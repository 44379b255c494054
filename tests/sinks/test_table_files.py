"""A table in the ledger's SQLite file, in forked processes and interrupted: what is acknowledged is there, once."""

import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from children import Child, delivery
from interrupts import Interrupted, points, sample, strike
from oncebridge import Bridge, Settings
from oncebridge.settings.sinks import read_sink


@pytest.fixture
def desk(tmp_path):
    """Return the ledger's file, with a table of the user's."""
    path = tmp_path / "desk.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE row (name TEXT)")
        db.commit()
    return path


@pytest.fixture
def bridge(desk):
    """Make a bridge with a sink into the table."""
    table = {"database": "ledger", "table": "row", "columns": {"name": "detail.eventId"}}
    settings = Settings(sinks=(read_sink("desk", table, "here"),), lease_seconds=0.2, busy_wait_seconds=10)
    with Bridge(f"sqlite:///{desk}", settings=settings) as bridge:
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


def test_a_signal_may_strike_anywhere(bridge, desk):
    """Wherever a batch is interrupted, others can write into the file, and each row is there once in the end."""
    names = []

    def batch():
        names.append(f"{len(names)}")
        bridge.process(delivery(names[-1]))

    batch()
    found = points(batch)
    of_sink = [point for point in found if "sinks/table" in point.code.co_filename]
    assert len(of_sink) > 10
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
