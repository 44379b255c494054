"""Short words for tests of the SQLite ledger."""

import secrets
import sqlite3
from contextlib import closing, contextmanager

from oncebridge.claim import Ask, Claim, Outcome, Settlement
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger

LEASE_US = 60_000_000


class WritesEffects:
    """What the ledger contract asks of transactions, where they are SQLite's."""

    def write_effect(self, transaction, effect):
        """Insert a row."""
        transaction.execute("CREATE TABLE IF NOT EXISTS effect (name TEXT)")
        transaction.execute("INSERT INTO effect VALUES (?)", (effect,))

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


@contextmanager
def opened(path, clock=None):
    """Open a ledger and close it again."""
    ledger = SQLiteLedger(path, clock)
    try:
        ledger.open(None)
        yield ledger
    finally:
        ledger.close()


def key(number):
    """Return a key, from a number."""
    return number.to_bytes(16, "big")


def claim(ledger, *asks):
    """Claim, and return the answers."""
    return ledger.claim(asks, nonce=secrets.token_bytes(8), lease_us=LEASE_US)


def take(ledger, number):
    """Claim one event that is to be had."""
    ask = Ask(key=key(number), alone=True)
    (answer,) = claim(ledger, ask)
    assert answer.token
    return Claim(ask, answer.token)


def done(claim):
    """Return the end of a fact's claim whose work is done."""
    return Settlement(claim, Outcome.DONE)


def verdict(ledger, number):
    """Ask for one event."""
    return claim(ledger, Ask(key=key(number), alone=True))[0].verdict


def is_sound(path):
    """Tell whether SQLite finds nothing wrong with the file."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
