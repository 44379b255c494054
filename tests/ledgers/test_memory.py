"""The memory ledger keeps the contract."""

from contextlib import suppress

import pytest

from ledgers.on_sqlite import WritesEffects
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.testing.ledger_contract import LedgerContract


class TestMemoryLedger(WritesEffects, LedgerContract):
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

    def effects(self):
        """Read the rows; during a transaction nobody else can, so there is nothing to be seen but what was before."""
        with suppress(LedgerRefused), self.ledger.database() as db:
            there = db.execute("SELECT * FROM sqlite_master WHERE name = 'effect'").fetchone()
            self.seen = [name for (name,) in db.execute("SELECT name FROM effect ORDER BY rowid")] if there else []
        return self.seen
