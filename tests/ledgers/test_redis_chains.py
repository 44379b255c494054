"""What a batch with chains costs a Redis in calls, writes and bytes; and tokens and letters there."""

import secrets
import struct
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from oncebridge.claim import Ask, Claim, Letter, Newest, Outcome, Settlement, Verdict, write_newest
from oncebridge.clock import SystemClock
from oncebridge.identity import Moment
from oncebridge.ledgers.redis.ledger import RedisLedger

LEASE_US = 60_000_000
ENTITIES = [bytes([number]) * 16 for number in range(25)]


@pytest.fixture
def ledger(valkey):
    """Open a ledger on a server that holds nothing else."""
    with valkey.client() as client:
        client.flushdb()
    ledger = RedisLedger(f"{valkey.url}?name={secrets.token_hex(8)}")
    ledger.open(None)
    yield ledger
    ledger.close()


@contextmanager
def counted(valkey):
    """Count the commands that a server carries out, those in scripts too."""
    calls = {}
    with valkey.client() as client:
        client.config_resetstat()
        yield calls
        stats = client.info("commandstats")
        calls |= {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


def ask(entity=None):
    """Ask for a new event."""
    now_ms = SystemClock().now_us() // 1000
    return Ask(key=secrets.token_bytes(16), envelope=secrets.token_hex(18), topic="t", shared_ms=now_ms, entity=entity)


def ends_of(asks, answers, data=b"data"):
    """Return the ends of all claims that were granted; the last of a chain frees its entity."""
    claims = [Claim(ask, one.token, 1, one.chain) for ask, one in zip(asks, answers, strict=True) if one.token]
    return [
        Settlement(claim, Outcome.DONE, 0, None, data, claim.chain is None or claim.chain.top == claim.token)
        for claim in claims
    ]


def claim(ledger, asks):
    """Claim events, under a new nonce."""
    return ledger.claim(asks, nonce=secrets.token_bytes(8), lease_us=LEASE_US)


def test_a_batch_of_facts_chains_and_duplicates_is_one_call_each_way(valkey, ledger):
    """One script claims and one settles, whatever is in the batch; each entity is read and written once by each."""
    known = [ask() for _ in range(10)] + [ask(entity) for entity in ENTITIES[:10]]
    assert all(ledger.settle(ends_of(known, claim(ledger, known))))
    batch = [*known, *(ask(ENTITIES[number % 25]) for number in range(60)), *(ask() for _ in range(20))]
    claim(ledger, [ask()])  # the scripts are known by now
    with counted(valkey) as claiming:
        answers = claim(ledger, batch)
    with counted(valkey) as settling:
        assert all(ledger.settle(ends_of(batch, answers)))
    assert [answer.verdict for answer in answers] == [Verdict.REDELIVERY] * 20 + [Verdict.FRESH] * 80
    assert [calls["evalsha"] for calls in (claiming, settling)] == [1, 1]
    assert [calls.get("eval", 0) for calls in (claiming, settling)] == [0, 0]
    assert [calls["mget"] for calls in (claiming, settling)] == [1, 1]
    assert [calls["set"] for calls in (claiming, settling)] == [25, 25]


@pytest.mark.parametrize("length", [1500, 3000])
def test_a_long_chain_is_one_claim(ledger, length):
    """States of one entity are not divided where a batch is: all have tokens in a row, and one lease."""
    batch = [ask(ENTITIES[0]) for _ in range(length)]
    answers = claim(ledger, batch)
    first = answers[0].token
    assert [answer.token for answer in answers] == list(range(first, first + length))
    assert {answer.chain.top for answer in answers} == {first + length - 1}
    assert all(ledger.settle(ends_of(batch, answers)))
    assert claim(ledger, [ask(ENTITIES[0])])[0].chain.data == b"data"


def test_the_rest_of_a_chain_that_is_too_long_for_one_call_waits(ledger):
    """Nothing of it is granted beside the rest, and it is to be had when the first part has ended."""
    batch = [ask(ENTITIES[0]) for _ in range(3010)]
    answers = claim(ledger, batch)
    assert [answer.verdict for answer in answers] == [Verdict.FRESH] * 3000 + [Verdict.BUSY] * 10
    assert {answer.busy_us for answer in answers} == {0}
    assert all(ledger.settle(ends_of(batch, answers)))
    assert all(answer.token for answer in claim(ledger, batch[3000:]))


def test_what_is_left_of_an_event_and_of_an_entity_is_small(valkey, ledger):
    """A done event, an echo and a stale one are 16 bytes each, and an entity is its data and 17 bytes."""
    newest = Newest(
        state=bytes(16), moment=Moment((1,)), line=Moment((1,)), key=bytes(16), topic="t", envelope="e" * 36
    )
    data = write_newest(newest)
    for outcome in (Outcome.DONE, Outcome.ECHO, Outcome.STALE):
        event = ask(ENTITIES[1])
        (answer,) = claim(ledger, [event])
        assert ledger.settle([Settlement(Claim(event, answer.token, 1, answer.chain), outcome, 0, None, data)])
    with valkey.client() as client:
        (bucket,) = client.keys("*:0")
        kept = {name: value for name, value in client.hgetall(bucket).items() if name}
        (entity,) = client.keys("*n:*")
        assert client.strlen(entity) == len(data) + 17
        assert client.keys("*:open") == []
    assert {(len(name), len(value)) for name, value in kept.items()} == {(9, 7)}
    assert len(kept) == 3


@pytest.mark.parametrize("entity", [None, ENTITIES[2]], ids=["fact", "state"])
def test_tokens_rise_although_the_servers_clock_is_behind(valkey, ledger, entity):
    """After a failover the clock may be an hour behind: the next token is above the last one all the same."""
    event = replace(ask(entity), alone=True)
    (before,) = ledger.claim([event], nonce=secrets.token_bytes(8), lease_us=1)
    ahead = before.token + 3_600_000_000
    with valkey.client() as client:
        (records,) = client.keys("*:open")
        ((id_, record),) = client.hgetall(records).items()
        client.hset(records, id_, record[:12] + struct.pack(">d", ahead) + record[20:])
        for key in client.keys("*n:*"):
            client.set(key, struct.pack(">d", ahead) + client.get(key)[8:])
    (after,) = claim(ledger, [event])
    assert after.token == ahead + 1


def test_nothing_of_a_letter_is_left_when_its_event_has_ended(valkey, ledger):
    """What a dead letter holds may be personal data: it goes with the end of its event, whatever that is."""
    for outcome in (Outcome.DONE, Outcome.ECHO, Outcome.STALE, Outcome.DISCARD):
        for event in (ask(), replace(ask(), shared_ms=None), ask(ENTITIES[3])):
            for end, redrive in ((Outcome.DEAD, False), (outcome, True)):
                again = replace(event, redrive=redrive)
                (answer,) = claim(ledger, [again])
                letter = Letter(raw=b"personal", reason="because") if end is Outcome.DEAD else None
                taken = Claim(again, answer.token, answer.attempt, answer.chain)
                assert ledger.settle([Settlement(taken, end, 0, letter, b"data")]) == [True]
    with valkey.client() as client:
        assert client.keys("*:letters") == []
