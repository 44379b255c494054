"""Attendance in Redis: how small it is kept, when it expires, and how the parts of several shards are united."""

import os
import secrets
from contextlib import closing

import pytest
from msgspec.structs import replace

from oncebridge.claim import Ask, Claim, Letter, Outcome, Settlement
from oncebridge.ledgers import DAY_US
from oncebridge.ledgers.marks import marks_in
from oncebridge.ledgers.redis import wire
from oncebridge.ledgers.redis.ledger import RedisLedger
from oncebridge.testing.ledger_contract.stage import claim_of

LEASE_US = 60_000_000
RETENTION_US = 30 * DAY_US
USUAL_MARKS = 14  # more than a simple call has, which is 10


@pytest.fixture
def ledger(valkey):
    """Return a new ledger."""
    ledger = RedisLedger(f"{valkey.url}?name={secrets.token_hex(4)}", retention_us=RETENTION_US)
    ledger.open(None)
    with closing(ledger):
        yield ledger


@pytest.fixture
def client(valkey):
    """Return a client of a server that holds nothing before."""
    with valkey.client() as client:
        client.flushdb()
        yield client
        client.flushdb()


def settle(ledger, asks, outcome=Outcome.DONE, letter=None):
    """Claim events and end them."""
    answers = ledger.claim(asks, nonce=os.urandom(8), lease_us=LEASE_US)
    claims = [claim_of(ask, answer) for ask, answer in zip(asks, answers, strict=True)]
    assert all(ledger.settle([Settlement(claim, outcome, 0, letter, data=b"the data") for claim in claims]))


def event(number, conversation, **fields):
    """Ask for an event that has a mark."""
    mark = number.to_bytes(4, "big")
    return Ask(key=secrets.token_bytes(16), shared_ms=1, conversation=conversation, mark=mark, **fields)


def test_a_usual_call_stays_in_the_compact_encoding(client, ledger):
    """Hashes with the calls of a busy day keep the encoding that takes least memory."""
    calls = [b"\0\1" + secrets.token_bytes(14) for _ in range(60)]
    settle(ledger, [event(number, call) for call in calls for number in range(USUAL_MARKS)])
    (key,) = client.keys("*a:*")
    assert client.hlen(key) == len(calls)
    assert client.object("ENCODING", key) == b"listpack"


def test_a_day_expires_with_the_retention(client, ledger):
    """What came is kept for the retention from its own day on, and then goes by itself."""
    settle(ledger, [event(1, bytes(16))])
    (key,) = client.keys("*a:*")
    seconds = client.ttl(key)
    settle(ledger, [event(2, bytes(16))])
    assert RETENTION_US + DAY_US < seconds * 1_000_000 <= RETENTION_US + 2 * DAY_US
    assert client.ttl(key) <= seconds


def test_days_before_the_time_asked_for_are_left_out(ledger):
    """A look does not go through the days before the time that is asked for."""
    settle(ledger, [event(1, bytes(16))])
    now_us = ledger._now_us(ledger._prefixes[0])
    assert ledger.attendance([bytes(16)], since_us=now_us + DAY_US) == [None]
    (found,) = ledger.attendance([bytes(16)], since_us=now_us - DAY_US)
    assert found.marks == bytes([0, 0, 0, 1])


def test_an_end_without_a_mark_is_written_as_ever(client, ledger):
    """Where attendance is off, or an event is to be tried again, neither the call nor the keys have anything more."""
    ask = event(1, bytes(16))
    for outcome in (Outcome.RETRY, Outcome.RELEASE, Outcome.DISCARD):
        marked, plain = (Settlement(Claim(one, 1), outcome) for one in (ask, replace(ask, mark=b"")))
        assert wire.write_settlement(marked) == wire.write_settlement(plain)
    done, plain = (
        wire.write_settlement(Settlement(Claim(one, 1), Outcome.DONE)) for one in (ask, replace(ask, mark=b""))
    )
    assert done == plain[:1] + bytes([plain[1] | wire.MARKED]) + plain[2:] + bytes(16) + ask.mark
    settle(ledger, [replace(ask, mark=b"")])
    assert client.keys("*a:*") == []


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.DEAD])
def test_the_data_of_an_entity_is_kept_without_the_mark(ledger, outcome):
    """The mark behind an entity's data is no part of it, nor of a letter before it."""
    letter = Letter(raw=b"raw", reason="why", detail="more") if outcome is Outcome.DEAD else None
    state = event(1, bytes(16), entity=secrets.token_bytes(16))
    settle(ledger, [state], outcome, letter)
    (answer,) = ledger.claim([event(2, bytes(16), entity=state.entity)], nonce=os.urandom(8), lease_us=LEASE_US)
    assert answer.chain.data == b"the data"
    (entry,) = ledger.get(state.key)
    assert (entry.raw, entry.reason) == ((b"raw", "why") if letter else (None, ""))


def test_shards_are_united(client, valkey, monkeypatch):
    """Events of one conversation are in the shards of their own keys, and a look unites what each has."""
    monkeypatch.setattr("oncebridge.ledgers.redis.agreement.SHARDS", {"single": 4})
    with closing(RedisLedger(f"{valkey.url}?name={secrets.token_hex(4)}")) as ledger:
        ledger.open(None)
        settle(ledger, [event(number % 20, bytes(16)) for number in range(40)])
        (found, nothing) = ledger.attendance([bytes(16), bytes(15) + b"\1"])
        assert len({key.split(b"}")[0] for key in client.keys("*a:*")}) == 4
        purged = ledger.purge(older_than_us=-DAY_US)
        assert ledger.attendance([bytes(16)]) == [None]
    assert nothing is None
    assert sorted(marks_in(found.marks)) == [number.to_bytes(4, "big") for number in range(20)]
    assert found.marks == b"".join(sorted(marks_in(found.marks)))
    assert purged == 40
