"""The memory ledger keeps the contract."""

import pytest

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

        return new
