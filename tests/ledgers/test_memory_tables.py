"""The tables of the memory ledger: a handler's writes and the settle are one, as on a ledger that lasts."""

import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress

import pytest
from msgspec.structs import replace

from children import delivery, in_children
from interrupts import Interrupted, points, strike
from oncebridge import Bridge, LedgerRefused, Settings

INSERT = "INSERT INTO effect VALUES (?)"


def bridge_with(handler, **settings):
    """Make a bridge on memory with a handler and a table that does not take a name twice."""
    bridge = Bridge("memory://", settings=Settings(**settings))
    bridge.on("*")(handler)
    with bridge.ledger.database() as db:
        db.executescript("CREATE TABLE effect (name TEXT UNIQUE ON CONFLICT ROLLBACK); CREATE TABLE other (name TEXT)")
    return bridge


def effects(bridge):
    """Return what is in the table."""
    with bridge.ledger.database() as db:
        return [name for (name,) in db.execute("SELECT name FROM effect ORDER BY rowid")]


def insert(event, transaction):
    """Write the event's id."""
    transaction.execute(INSERT, (event.body["eventId"],))


def test_a_failed_handler_has_written_nothing():
    """The writes of an attempt that fails are undone, and those of the one that succeeds are there once."""

    def handle(event, transaction):
        insert(event, transaction)
        if event.attempt == 1:
            raise OSError

    bridge = bridge_with(handle)
    assert bridge.process(delivery("one")).outcome == "retry"
    assert effects(bridge) == []
    assert bridge.process(delivery("one")).outcome == "done"
    assert bridge.process(delivery("one")).verdict == "redelivery"
    assert effects(bridge) == ["one"]


def test_a_claim_that_was_lost_commits_nothing():
    """A worker whose event was taken over during its handler leaves no effect; the one that took it over does."""
    calls = []

    def handle(event, transaction):
        calls.append(event.token)
        insert(event, transaction)
        if len(calls) == 1:  # as if it had slept for longer than its lease
            ((at, record),) = bridge.ledger.records.items()
            bridge.ledger.records[at] = replace(record, token=record.token + 1)

    bridge = bridge_with(handle, busy_wait_seconds=0)
    bridge.process(delivery("one"))
    assert effects(bridge) == []


@pytest.mark.parametrize(
    "ending",
    ["INSERT INTO effect VALUES ('taken')", "INSERT OR ROLLBACK INTO effect VALUES ('taken')"],
)
def test_a_statement_that_ends_the_transaction_commits_nothing(ending):
    """A rollback from within undoes the handler's work, and whatever it writes then is not committed either."""

    def handle(event, transaction):
        if event.body["eventId"] == "taken":
            return insert(event, transaction)
        transaction.execute("INSERT INTO other VALUES ('before')")
        with suppress(sqlite3.IntegrityError):
            transaction.execute(ending)
        with suppress(sqlite3.Error):
            transaction.execute("INSERT INTO other VALUES ('after')")
        return None

    bridge = bridge_with(handle)
    outcomes = [bridge.process(delivery(name)).outcome for name in ("taken", "one")]
    assert outcomes == ["done", "dead"]
    with bridge.ledger.database() as db:
        assert db.execute("SELECT * FROM other").fetchall() == []
    assert effects(bridge) == ["taken"]


def test_a_commit_that_fails_is_the_handlers_failure():
    """Where a constraint is checked at the commit, the event is retried, and the ledger goes on with others."""

    def handle(event, transaction):
        insert(event, transaction)
        if event.body["eventId"] == "bad":
            transaction.execute("INSERT INTO child VALUES (7)")

    bridge = bridge_with(handle)
    with bridge.ledger.database() as db:
        db.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    db.execute("PRAGMA foreign_keys = ON")  # on the very connection: a handler's own would end with its transaction
    outcomes = [bridge.process(delivery(name)).outcome for name in ("bad", "good")]
    assert outcomes == ["retry", "done"]
    assert effects(bridge) == ["good"]


@pytest.mark.parametrize(
    "change",
    [
        lambda db: setattr(db, "row_factory", sqlite3.Row),
        lambda db: setattr(db, "isolation_level", "EXCLUSIVE"),
        lambda db: db.execute("CREATE TEMP TABLE staging (name TEXT)"),
        lambda db: db.create_function("max", 2, lambda *_: "mine"),
        lambda db: db.close(),
        lambda db: db.commit(),
    ],
)
def test_what_a_handler_sets_is_gone_with_its_transaction(change):
    """The next handler finds the tables, and nothing of what another one has set on its connection."""
    found = []

    def handle(event, transaction):
        temporary = transaction.execute("SELECT name FROM sqlite_temp_master").fetchall()
        greatest = transaction.execute("SELECT max('a', 'b')").fetchone()
        found.append([transaction.row_factory, transaction.isolation_level, temporary, greatest])
        insert(event, transaction)
        with suppress(sqlite3.Error):
            change(transaction)

    bridge = bridge_with(handle)
    assert [bridge.process(delivery(name)).outcome for name in ("one", "two")] == ["done", "done"]
    assert found[0] == found[1]
    assert effects(bridge) == ["one", "two"]


def test_inside_a_transaction_the_tables_are_nobody_elses():
    """What is asked for inside a handler's transaction is refused at once, and said why."""

    def handle(event, transaction):
        with pytest.raises(LedgerRefused, match="handler's transaction"):
            effects(bridge)
        if event.body["eventId"] == "outer":
            with pytest.raises(LedgerRefused, match="handler's transaction"):
                bridge.process(delivery("inner"))

    bridge = bridge_with(handle)
    assert bridge.process(delivery("outer")).outcome == "done"
    assert bridge.process(delivery("inner")).outcome == "done"


def test_threads_take_turns():
    """Handlers that run side by side get the tables one after another, and every write is there once."""
    names = [f"{number}" for number in range(40)]
    bridge = bridge_with(insert, concurrency=8)
    threads = [threading.Thread(target=bridge.process_many, args=([delivery(n) for n in names],)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(effects(bridge)) == sorted(names)


def test_interrupts_tear_nothing_apart():
    """Wherever an interrupt strikes, an event is in the table if it is done, and once, and the next goes through."""
    names = iter(range(1_000_000))
    done = []
    bridge = bridge_with(insert, lease_seconds=0.1)

    def run():
        done.append(f"{next(names)}")
        bridge.process(delivery(done[-1]))

    run()
    found_points = [point for point in points(run) if "ledgers" in point.code.co_filename]
    assert len(found_points) > 50
    for point in found_points:
        with suppress(Interrupted), strike(point, Interrupted()):
            run()
        bridge.process(delivery(f"{next(names)}"))
        with bridge.ledger._lock:
            settled = sum(record.status == "done" for record in bridge.ledger.records.values())
        found = effects(bridge)
        assert (len(found), max(Counter(found).values())) == (settled, 1), str(point)


def test_a_child_has_a_copy_of_the_tables():
    """After a fork both sides go on with the tables as they were; inside a transaction, as they were before it."""
    answers = []

    def handle(event, transaction):
        insert(event, transaction)
        if event.body["eventId"] == "forks":
            answers.extend(in_children(child))

    def child():
        bridge.process(delivery("of the child"))
        return effects(bridge)

    bridge = bridge_with(handle)
    bridge.process(delivery("before"))
    assert in_children(child) == [["before", "of the child"]]
    assert bridge.process(delivery("forks")).outcome == "done"
    assert answers == [["before", "of the child"]]
    assert effects(bridge) == ["before", "forks"]


def test_a_program_that_needs_no_tables_loads_no_sqlite():
    """The memory ledger imports SQLite with the first transaction."""
    program = (
        "import sys; from oncebridge import Bridge; from oncebridge.testing import sample_event\n"
        "bridge = Bridge('memory://'); bridge.on('*')(lambda event: None)\n"
        "bridge.process(sample_event('v2.users.{id}.presence')); print('sqlite3' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
