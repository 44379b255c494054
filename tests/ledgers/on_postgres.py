"""Short words for tests of the Postgres ledger: a schema of its own for each test."""

import itertools
import os
import secrets
from contextlib import closing, contextmanager

import psycopg

from oncebridge.claim import Ask, Letter, Outcome, Settlement
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.testing.ledger_contract.stage import claim_of

LEASE_US = 60_000_000
LETTER = Letter(raw=b"raw", reason="handler raised ValueError")
_numbers = itertools.count()


@contextmanager
def new_schema(server):
    """Return the URL of a schema that nobody else uses, migrated, and drop it in the end."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    url = f"{server.url}{'&' if '?' in server.url else '?'}schema={name}"
    try:
        PostgresLedger(url).migrate()
        yield url
    finally:
        run(server.url, f"DROP SCHEMA IF EXISTS {name} CASCADE")


def schema_of(url):
    """Return the name of the schema in a URL."""
    return PostgresLedger(url)._schema


def run(url, statement, *values):
    """Run a statement as somebody else would; return what it finds."""
    parameters = PostgresLedger(url)._address.parameters
    with closing(psycopg.connect(**parameters, autocommit=True)) as connection:
        cursor = connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def opened(url, **options):
    """Open a ledger and close it again."""
    ledger = PostgresLedger(url, **options)
    try:
        ledger.open(None)
        yield ledger
    finally:
        ledger.close()


def key(number):
    """Return a key, from a number."""
    return number.to_bytes(16, "big")


def claim(ledger, *asks, lease_us=LEASE_US):
    """Claim, and return the answers."""
    return ledger.claim(asks, nonce=secrets.token_bytes(8), lease_us=lease_us)


def take(ledger, number, **fields):
    """Claim one event that is to be had."""
    ask = Ask(key=key(number), alone=True, **fields)
    (answer,) = claim(ledger, ask)
    assert answer.token
    return claim_of(ask, answer)


def as_done(claim):
    """Return the end that a handler's transaction writes."""
    return Settlement(claim, Outcome.DONE)


def verdict(ledger, number, **fields):
    """Ask for one event."""
    return claim(ledger, Ask(key=key(number), alone=True, **fields))[0].verdict


@contextmanager
def open_transaction(ledger, statement, *values):
    """Leave a transaction open that has done something."""
    with closing(psycopg.connect(**ledger._address.parameters)) as connection:
        connection.execute(statement, values or None)
        yield connection


def deadlocks(url):
    """Return how many deadlocks the server has resolved so far."""
    run(url, "SELECT pg_stat_force_next_flush()")
    return run(url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
