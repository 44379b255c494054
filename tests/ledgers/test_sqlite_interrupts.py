"""Exceptions of signals' handlers that strike while SQLite is used: no transaction stays open, and no lock held."""

import sqlite3
import threading
from collections import Counter
from contextlib import closing

import pytest

from children import bring_to_end, delivery
from interrupts import Interrupted, points, sample, strike
from oncebridge import Bridge, Settings


class Worker:
    """A bridge on a file, and who looks at it from outside."""

    def __init__(self, path, *, in_transaction):
        """Begin to work."""
        self.path = path
        self.written = []
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE effect (name TEXT)")
        self.in_transaction = in_transaction
        self.bridge = Bridge(f"sqlite:///{path}", settings=Settings(lease_seconds=0.2, busy_wait_seconds=10))
        self.bridge.on("*")(self.write_in_transaction if in_transaction else self.write)
        self.names = []
        self.batch()

    def write_in_transaction(self, event, transaction):
        """Write an effect in the transaction that settles it."""
        transaction.execute("INSERT INTO effect VALUES (?)", (event.body["eventId"],))

    def write(self, event):
        """Write an effect elsewhere."""
        self.written.append(event.body["eventId"])

    def batch(self):
        """Process two new events."""
        new = [f"{len(self.names) + number}" for number in range(2)]
        self.names += new
        self.bridge.process_many([delivery(name) for name in new])

    def is_free(self):
        """Tell whether somebody else can write into the file, soon: the thread that extends claims may do so now."""
        with closing(sqlite3.connect(self.path, timeout=2, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            return True

    def serves_threads(self):
        """Tell whether another thread gets its turn."""
        reader = threading.Thread(target=self.bridge.ledger.counts, daemon=True)
        reader.start()
        reader.join(10)
        return not reader.is_alive()

    def effects(self):
        """Count effects by name."""
        if not self.in_transaction:
            return Counter(self.written)
        with closing(sqlite3.connect(self.path)) as db:
            return Counter(name for (name,) in db.execute("SELECT name FROM effect"))


@pytest.mark.parametrize("in_transaction", [True, False], ids=["transaction", "plain"])
def test_a_signal_may_strike_anywhere(tmp_path, in_transaction):
    """Wherever a batch is interrupted, others can write and its bridge goes on; nothing is lost, or written twice."""
    worker = Worker(tmp_path / "once.db", in_transaction=in_transaction)
    found = points(worker.batch)
    of_ledgers = [point for point in found if "/ledgers/" in point.code.co_filename]
    assert len(of_ledgers) > 20
    tried = of_ledgers + sample([point for point in found if point not in of_ledgers], 60)
    kept = None
    for point in tried:
        with strike(point, Interrupted()):
            try:
                worker.batch()
            except Interrupted as error:
                kept = error  # a notebook keeps the last error, with all that its frames hold
        assert worker.is_free(), point
        assert worker.serves_threads(), point
    assert kept is not None
    bring_to_end(worker.bridge, worker.names)
    worker.bridge.close()
    effects = worker.effects()
    assert effects.keys() == set(worker.names)
    if in_transaction:
        assert set(effects.values()) == {1}
