"""The Redis ledger keeps the contract, on a real Valkey."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ledgers.random_moves import SideBySide
from oncebridge.ledgers.redis.connection import Connection
from oncebridge.ledgers.redis.ledger import RedisLedger
from oncebridge.testing.ledger_contract import LedgerContract

_names = itertools.count()


class OnRedis(LedgerContract):
    """Each worker has connections of its own to one server."""

    real_time = True
    brief_us = 300_000
    keeps_done = False
    contenders = 16
    contended = 1000

    @pytest.fixture
    def new_ledger(self, valkey):
        """Use keys of their own for each test."""
        self.server = valkey
        self.name = f"test{next(_names)}"
        yield lambda clock: RedisLedger(f"{valkey.url}?name={self.name}", clock)
        with valkey.client() as client:
            client.flushdb()

    def stored_bytes(self):
        """Read every key and what it holds."""
        with self.server.client() as client:
            return b"".join(key + (client.dump(key) or b"") for key in client.keys("*"))


class TestRedisLedger(OnRedis):
    """Done events are in buckets of their days."""


class TestRedisLedgerWithoutSharedTimes(OnRedis):
    """Done events stand alone."""

    shared_times = False
    contended = 300


@pytest.mark.parametrize("seed", range(20))
def test_it_says_what_memory_says(valkey, seed):
    """Whatever is asked, settled, extended and repeated, in any order, scripts decide as `claim.py` does."""
    ledger = RedisLedger(f"{valkey.url}?name=random{seed}")
    ledger.open(None)
    try:
        SideBySide(ledger, seed, keeps_done=False).run(600)
    finally:
        ledger.close()


def test_only_the_main_thread_looks_for_answers_without_sleeping(valkey, monkeypatch):
    """Other threads leave the processor to the rest of the program; the main one looks, whoever calls beside it."""
    looked = []
    has_answer = Connection.has_answer

    def noted(self):
        looked.append(threading.current_thread())
        return has_answer(self)

    monkeypatch.setattr(Connection, "has_answer", noted)
    ledger = RedisLedger(f"{valkey.url}?name=polled")
    ledger.open(None)
    try:
        with ThreadPoolExecutor(1) as beside:
            for _ in range(3):
                beside.submit(ledger.counts).result()
                ledger.counts()
        assert set(looked) == {threading.main_thread()}
    finally:
        ledger.close()
