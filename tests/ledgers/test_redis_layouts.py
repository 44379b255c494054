"""A Redis ledger of the first layout is refused by its name, and nothing of it is read or changed."""

import secrets
import struct

import pytest

from oncebridge.claim import Ask, Verdict
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.redis.ledger import RedisLedger

KEY, ENTITY = bytes(range(16)), bytes(range(16, 32))
LEASE_US = 60_000_000
SECRET = b"a secret of one's own, kept elsewhere"


def first_layout(client, name, secret):
    """Write a ledger as the first version did: what was agreed on, a claimed state, its entity, and a done event."""
    prefix = f"ob:{{{name}.0}}:"
    own = {"layout": 1, "shards": 1, "mark": "0123456789abcdef", "secret": secret}
    client.hset(f"ob:{{{name}}}:meta", mapping=own)
    client.set(f"{prefix}mark", own["mark"])
    head = b"c\x08\0\0" + bytes(8) + struct.pack(">dddd", 1e15, 0, 1e15, 0) + b"abc"
    client.hset(f"{prefix}open", KEY, head + b"\x91\xa1x")
    client.set(prefix.encode() + b"n:" + ENTITY, struct.pack(">ddd", 1e15, 2e15, 1e15) + b"\0\2\2\0\2\2\0")
    client.hset(f"{prefix}days", "20000", struct.pack(">ddddd", 1e15, 1, 1, 0, 0))
    client.hset(f"{prefix}20000:0", KEY[:9], b"Dabcdef")


def everything(client):
    """Return all keys and what they hold."""
    return {key: client.dump(key) for key in client.keys("*")}


@pytest.fixture
def client(valkey):
    """Return a client of a server that holds nothing."""
    with valkey.client() as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.mark.parametrize("name", ["main", "x" * 64], ids=["short", "longest"])
def test_a_ledger_of_the_first_layout_is_refused_and_not_touched(valkey, client, name):
    """The refusal says what to do, and that works; no key of the old ledger is read, written or erased."""
    first_layout(client, name, secrets.token_bytes(32))
    before = everything(client)
    with pytest.raises(LedgerRefused, match=r"older Oncebridge.*Nothing was changed.*\?name=") as refused:
        RedisLedger(f"{valkey.url}?name={name}").open(None)
    assert everything(client) == before
    advised = str(refused.value).partition("?name=")[2].split()[0]
    ledger = RedisLedger(f"{valkey.url}?name={advised}")
    ledger.open(None)
    try:
        (answer,) = ledger.claim([Ask(key=KEY, entity=ENTITY)], nonce=bytes(8), lease_us=LEASE_US)
    finally:
        ledger.close()
    assert answer.verdict is Verdict.FRESH
    assert {key: value for key, value in everything(client).items() if key in before} == before


def test_records_of_the_first_layout_are_not_read_where_their_agreement_is_lost(valkey, client):
    """A cluster may lose the key that says which layout it is and keep the shards: their keys have other names."""
    first_layout(client, "main", SECRET)
    client.delete("ob:{main}:meta")
    before = everything(client)
    ledger = RedisLedger(valkey.url)
    ledger.open(SECRET)
    try:
        ask = Ask(key=KEY, entity=ENTITY, envelope="e", shared_ms=20_000 * 86_400_000)
        (answer,) = ledger.claim([ask], nonce=bytes(8), lease_us=LEASE_US)
        assert answer.verdict is Verdict.FRESH
        assert answer.chain.data == b""
        assert len(ledger.get(KEY)) == 1
        assert ledger.purge(older_than_us=0) == 0
    finally:
        ledger.close()
    assert {key: value for key, value in everything(client).items() if key in before} == before
