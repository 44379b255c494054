"""The Postgres ledger keeps the contract, and what is its own: partitions, locks, transactions, words for troubles."""

import psycopg
import pytest

from ledgers.on_postgres import new_schema, opened, run, schema_of
from ledgers.random_moves import SideBySide
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.testing.ledger_contract import LedgerContract
from oncebridge.testing.ledger_contract.letters import LetterRules, PurgeRules
from oncebridge.testing.ledger_contract.stage import LedgerStage
from oncebridge.testing.ledger_contract.transactions import TransactionRules


class OnPostgres(LedgerStage):
    """Each worker has connections of its own to one schema; time is the server's."""

    real_time = True
    brief_us = 300_000
    contenders = 8
    contended = 400

    @pytest.fixture
    def new_ledger(self, postgres):
        """Make a schema for a test, and a handle onto it as often as wanted."""
        with new_schema(postgres) as self.url:
            run(self.url, f"CREATE TABLE {schema_of(self.url)}.effect (number serial, name text)")
            yield lambda clock: PostgresLedger(self.url, clock)

    def stored_bytes(self):
        """Read all that the tables hold."""
        schema = schema_of(self.url)
        found = [
            str(row).encode() + b"".join(bytes(value) for value in row if isinstance(value, bytes))
            for table in ("meta", "event", "entity", "letter")
            for row in run(self.url, f"SELECT * FROM {schema}.{table}")
        ]
        return b"".join(found)

    def write_effect(self, transaction, effect):
        """Insert a row."""
        transaction.execute(f"INSERT INTO {schema_of(self.url)}.effect (name) VALUES (%s)", [effect])

    def effects(self):
        """Read the rows through another connection."""
        return [name for (name,) in run(self.url, f"SELECT name FROM {schema_of(self.url)}.effect ORDER BY number")]

    def ways_to_end(self, transaction):
        """Return what Postgres and psycopg offer."""
        texts = (
            "COMMIT", "END", "ROLLBACK", "ABORT", "BEGIN", "SELECT 1; COMMIT", "SELECT 1; ROLLBACK", "COMMIT AND CHAIN",
            "ROLLBACK AND CHAIN", "PREPARE TRANSACTION 'one'", "SET CONSTRAINTS ALL IMMEDIATE",
        )  # fmt: skip
        return [
            transaction.commit,
            transaction.rollback,
            transaction.close,
            lambda: transaction.__exit__(None, None, None),
            lambda: transaction.__exit__(ValueError, ValueError(), None),
            lambda: transaction.set_autocommit(True),
            lambda: psycopg.Connection.rollback(transaction),
            *(lambda text=text: transaction.execute(text) for text in texts),
        ]


class TestPostgresLedger(OnPostgres, LedgerContract):
    """Every rule, for events that are kept by the day of their time."""


class TestUndatedPostgresLedger(OnPostgres, LetterRules, PurgeRules, TransactionRules):
    """Those rules that depend on where an event is kept, for events whose time is not part of their identity."""

    shared_times = False


@pytest.mark.parametrize("seed", range(16))
def test_it_says_what_memory_says(postgres, seed):
    """Whatever is asked, settled, extended and repeated, in any order, the functions decide as `claim.py` does."""
    with new_schema(postgres) as url, opened(url) as ledger:
        SideBySide(ledger, seed).run(100)
