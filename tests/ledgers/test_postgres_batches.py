"""Batches on the Postgres ledger: one call each way, chains that contend, late settles, and plans of looks."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from ledgers.on_postgres import claim, deadlocks, key, new_schema, open_transaction, opened, run, schema_of, take
from oncebridge.claim import Ask, Outcome, Settlement, Verdict
from oncebridge.ledgers.postgres import rows
from oncebridge.ledgers.postgres.connections import LedgerConnection
from oncebridge.testing.ledger_contract.stage import claim_of
from servers.process import wait_until

#: The columns of an event that must be there.
EVENT = (
    "day, key, handler, status, token, nonce, lease_until_us, alone, attempts, changed_us, retry_at_us, letter, topic"
)


@pytest.fixture
def url(postgres):
    """Return a new ledger."""
    with new_schema(postgres) as url:
        yield url


@pytest.fixture
def ledger(url):
    """Return an open ledger."""
    with opened(url) as ledger:
        yield ledger


def test_chains_that_share_entities_do_not_block_each_other(url):
    """Claims, extends and late settles of chains that share entities never wait for each other in a circle."""
    start = threading.Barrier(4)
    asks = [Ask(key=key(number), entity=key(number % 5) if number % 3 else None) for number in range(40)]

    def work(number):
        dice, left = random.Random(number), []
        with opened(url) as mine:
            start.wait()
            for _ in range(25):
                order = dice.sample(asks, 20)
                answers = claim(mine, *order, lease_us=dice.choice((1, 60_000_000)))
                left += [claim_of(ask, answer) for ask, answer in zip(order, answers, strict=True) if answer.token]
                dice.shuffle(left)
                ended = list({one.ask.key: one for one in left[::2]}.values())
                left = left[1::2]
                mine.extend(left, lease_us=1)
                mine.settle([Settlement(one, Outcome.RELEASE) for one in ended])

    before = deadlocks(url)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert deadlocks(url) == before


@pytest.mark.parametrize("is_state", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_of_calls_at_the_same_moment_one_is_granted(url, ledger, is_state, same):
    """Of two calls that both saw an event or an entity free, one gets it; the same call again gets the same answer."""
    asks = [Ask(key=key(number), entity=key(9) if is_state else None) for number in (1, 2)]
    others = [replace(ask, key=key(7 + place)) for place, ask in enumerate(asks)] if is_state and not same else asks
    if is_state:
        released = take(ledger, 3, entity=key(9))
        assert ledger.settle([Settlement(released, Outcome.RELEASE)]) == [True]
    schema = schema_of(url)
    lock_entity = f"UPDATE {schema}.entity SET data = data"
    insert_event = (
        f"INSERT INTO {schema}.event ({EVENT}) "
        f"VALUES (-1, '\\x{key(1).hex()}', '', 'claimed', 1, '', 0, false, 0, 0, 0, false, '')"
    )
    pairs = [(asks, b"12345678"), (others, b"12345678" if same else b"87654321")]
    with open_transaction(ledger, lock_entity if is_state else insert_event) as locked, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(ledger.claim, some, nonce=nonce, lease_us=60_000_000) for some, nonce in pairs]
        wait_until(lambda: run(url, "SELECT count(*) FROM pg_locks WHERE NOT granted") == [(2,)], "both to wait")
        locked.rollback()
        one, other = (call.result() for call in calls)
    if same:
        assert [answer.token for answer in one] == [answer.token for answer in other]
        assert [answer.chain and answer.chain.top for answer in one] == [a.chain and a.chain.top for a in other]
        assert all(answer.token for answer in one)
    else:
        verdicts = sorted([{answer.verdict for answer in answers} for answers in (one, other)], key=str)
        assert verdicts == [{Verdict.BUSY}, {Verdict.FRESH}]
        assert all(
            answer.token > 0 for answers in (one, other) for answer in answers if answer.verdict is Verdict.FRESH
        )


def test_a_late_settle_of_a_forgotten_event_leaves_nothing(ledger):
    """A worker that comes so late that its event was done by others and forgotten changes nothing."""
    late, fact = Ask(key=key(1), entity=key(9)), Ask(key=key(2))
    held = [
        claim_of(ask, answer) for ask, answer in zip((late, fact), claim(ledger, late, fact, lease_us=1), strict=True)
    ]
    for ask in (late, fact):
        (answer,) = claim(ledger, replace(ask, alone=True))
        assert ledger.settle([Settlement(claim_of(ask, answer), Outcome.DONE)]) == [True]
    assert ledger.purge(older_than_us=0) == 2
    assert ledger.settle([Settlement(one, Outcome.DONE) for one in held]) == [False, False]
    assert ledger.counts() == {}


def test_a_batch_is_one_call_each_way(ledger, monkeypatch):
    """Whatever is in a batch, it is claimed in one call to the server, and settled in another."""
    done = take(ledger, 0)
    assert ledger.settle([Settlement(done, Outcome.DONE)]) == [True]
    asks = [
        Ask(
            key=key(number), entity=key(number % 7) if number % 2 else None, content=key(1) if number % 5 == 0 else None
        )
        for number in range(100)
    ]
    calls = []
    ask = LedgerConnection.ask
    monkeypatch.setattr(LedgerConnection, "ask", lambda *of: calls.append(of) or ask(*of))
    answers = claim(ledger, *asks)
    held = [claim_of(ask, answer) for ask, answer in zip(asks, answers, strict=True) if answer.token]
    assert len(held) == 99
    assert len(calls) == 1
    assert all(
        ledger.settle(
            [Settlement(one, Outcome.DONE, frees=one.token == one.chain.top if one.chain else True) for one in held]
        )
    )
    assert len(calls) == 2


def test_newest_states_are_found_without_reading_all(url, ledger):
    """A look for one conversation's newest states goes by indexes, to its events and to their entities."""
    schema = schema_of(url)
    many = "FROM generate_series(1, 5000) AS n"
    run(
        url,
        f"INSERT INTO {schema}.event ({EVENT}, conversation, entity) SELECT -1, int4send(n), '', 'done', n, '', 0, "
        f"false, 0, 0, 0, false, '', int4send(n), int4send(n) {many}",
    )
    run(url, f"INSERT INTO {schema}.entity SELECT int4send(n), n, '', 0, false, '', 0 {many}")
    run(url, f"ANALYZE {schema}.event_undated")
    run(url, f"ANALYZE {schema}.entity")
    statement, values = rows.entities(schema, b"subject")
    plan = "\n".join(line for (line,) in run(url, f"EXPLAIN {statement}", *values))
    assert "entity_pkey" in plan
    assert "Seq Scan on entity" not in plan
    assert "Seq Scan on event_undated" not in plan
