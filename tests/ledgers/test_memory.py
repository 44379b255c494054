"""The memory ledger keeps the contract."""

from contextlib import suppress

import pytest

from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.testing.ledger_contract import LedgerContract


class TestMemoryLedger(LedgerContract):
    """One process, one object: every worker shares it."""

    @pytest.fixture
    def new_ledger(self):
        """Make one ledger for a test, and hand it out each time."""
        made = []

        def new(clock):
            if not made:
                made.append(MemoryLedger(clock))
            return made[0]

        self.seen: list[str] = []
        return new

    def write_effect(self, transaction, effect):
        """Insert a row."""
        transaction.execute("CREATE TABLE IF NOT EXISTS effect (name TEXT)")
        transaction.execute("INSERT INTO effect VALUES (?)", (effect,))

    def effects(self):
        """Read the rows; during a transaction nobody else can, so there is nothing to be seen but what was before."""
        with suppress(LedgerRefused), self.ledger.database() as db:
            there = db.execute("SELECT * FROM sqlite_master WHERE name = 'effect'").fetchone()
            self.seen = [name for (name,) in db.execute("SELECT name FROM effect ORDER BY rowid")] if there else []
        return self.seen

    def ways_to_end(self, transaction):
        """Return what SQLite and Python's module for it offer."""
        return [
            transaction.commit,
            transaction.rollback,
            lambda: transaction.execute("COMMIT"),
            lambda: transaction.execute("END"),
            lambda: transaction.execute("ROLLBACK"),
            lambda: transaction.execute("BEGIN"),
            lambda: transaction.executescript("SELECT 1"),  # commits first
            lambda: transaction.__exit__(None, None, None),
            lambda: transaction.__exit__(ValueError, ValueError(), None),
        ]
