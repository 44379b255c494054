"""The Postgres ledger through outages: crashes, lost replies, dead connections; nothing lost, nothing doubled."""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic

import psycopg
import pytest

from ledgers.on_postgres import as_done, claim, key, new_schema, opened, run, schema_of, take, verdict
from oncebridge import Bridge
from oncebridge.claim import Ask, Claim, Outcome, Settlement, Status, Verdict
from oncebridge.errors import LedgerUnavailable
from oncebridge.ledgers.postgres import ledger as postgres_ledger
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.settings import Settings
from servers.postgres import FAST, own_postgres
from servers.process import wait_until
from servers.proxy import running_proxy

EVENTS = 200
WORKERS = 3
PAUSE_S = 0.02
DRIPPED_SECONDS = 15.0  # much less than an answer takes that drips


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server that may be killed."""
    with own_postgres(tmp_path_factory.mktemp("outage"), FAST) as server:
        yield server


@pytest.fixture
def url(server):
    """Return a new ledger, and a table for effects beside it."""
    with new_schema(server) as url:
        run(url, f"CREATE TABLE {schema_of(url)}.effect (name text)")
        yield url


@pytest.fixture
def proxy(server):
    """Return a network that fails on cue."""
    with running_proxy(server.port) as proxy:
        yield proxy


def effects(url):
    """Count the effects that were committed."""
    return Counter(name for (name,) in run(url, f"SELECT name FROM {schema_of(url)}.effect"))


def write_effect(url, transaction, name):
    """Do what a handler does."""
    transaction.execute(f"INSERT INTO {schema_of(url)}.effect VALUES (%s)", [name])


# --- the server crashes -----------------------------------------------------------------------------------------


def delivery(number):
    """Make one delivery of a hand-made event."""
    return json.dumps(
        {"id": f"e{number}", "detail-type": "T", "detail": {"eventId": f"{number}", "n": number}}
    ).encode()


def work_off(url, deliveries, stop):
    """Bring every delivery to its end through outages, as a queue would: again and again until acknowledged."""
    settings = Settings(lease_seconds=2, busy_wait_seconds=0.1)
    with Bridge(PostgresLedger(url), settings=settings) as bridge:

        @bridge.on("*")
        def handle(event, transaction):
            write_effect(url, transaction, event.body["eventId"])

        left = deliveries
        while left and not stop.is_set():
            again = []
            for start in range(0, len(left), 5):
                batch = left[start : start + 5]
                try:
                    results = bridge.process_many(batch)
                except LedgerUnavailable:
                    again += batch
                    stop.wait(PAUSE_S)
                else:
                    again += [raw for raw, result in zip(batch, results, strict=True) if not result.acknowledged]
            left = again
        return len(left)


def test_a_crashing_server_loses_and_doubles_nothing(server, url):
    """While three workers handle the same events in transactions, the server crashes again and again: each once."""
    deliveries = [delivery(number) for number in range(EVENTS)]
    stop = threading.Event()
    orders = [deliveries, deliveries[::-1], deliveries[EVENTS // 2 :] + deliveries[: EVENTS // 2]]
    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            working = [pool.submit(work_off, url, order, stop) for order in orders]
            for part in range(1, 5):
                wait_until(lambda part=part: done(url) >= EVENTS * part // 6, f"part {part} of the events to be done")
                server.restart()
            assert [each.result(120) for each in working] == [0] * WORKERS
        finally:
            stop.set()
    assert effects(url) == {f"{number}": 1 for number in range(EVENTS)}
    with opened(url) as ledger:
        assert ledger.counts() == {Status.DONE: EVENTS}


def done(url):
    """Count the effects; an outage means not yet."""
    try:
        return effects(url).total()
    except psycopg.OperationalError as error:
        raise OSError from error


def test_it_connects_again_by_itself(server, url):
    """While the server is away every call says so; once it is back, the same ledger works at the first call."""
    with opened(url) as ledger:
        held = take(ledger, 1)
        server.stop()
        for call in (
            lambda: claim(ledger, Ask(key=key(2))),
            lambda: ledger.settle([Settlement(held, Outcome.DONE)]),
            lambda: ledger.extend([held], lease_us=1000),
            lambda: ledger.get(key(1)),
            ledger.counts,
            lambda: ledger.transaction(as_done(held)).__enter__(),
        ):
            with pytest.raises(LedgerUnavailable, match="check address and port, and that the server runs"):
                call()
        server.start()
        assert ledger.settle([Settlement(held, Outcome.DONE)]) == [True]


def test_dead_connections_are_not_noticed(server, url):
    """Connections that died while nobody used them are replaced: every verb works at its first try."""
    with opened(url) as ledger:
        held = take(ledger, 1)
        with ledger.transaction(as_done(take(ledger, 2))):
            pass
        for call in (
            lambda: verdict(ledger, 3),
            lambda: ledger.extend([held], lease_us=60_000_000),
            lambda: leave_in_the_middle(ledger, held),
            lambda: ledger.settle([Settlement(held, Outcome.DONE)]),
            lambda: ledger.get(key(1)),
        ):
            terminate_all(url)
            call()


def leave_in_the_middle(ledger, held):
    """Do something in a transaction, and end it without its claim."""
    with suppress(KeyError), ledger.transaction(as_done(held)) as transaction:
        transaction.execute("SELECT 1")
        raise KeyError


def terminate_all(url):
    """End all connections but our own, and wait until they are gone."""
    others = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    run(url, f"SELECT pg_terminate_backend(pid) {others}")
    wait_until(lambda: run(url, f"SELECT count(*) {others}") == [(0,)], "connections to be gone")


# --- replies are lost -------------------------------------------------------------------------------------------


def test_a_lost_reply_to_a_claim_is_asked_for_again(server, url, proxy):
    """The claim took effect, its reply was lost: the call is repeated and gets that very claim, not busy."""
    with opened(proxy.url(url)) as ledger:
        take(ledger, 1)
        proxy.drop_reply_to(lambda data: b"lost-reply" in data)
        (answer,) = ledger.claim([Ask(key=key(2), envelope="lost-reply")], nonce=b"12345678", lease_us=60_000_000)
        assert proxy.dropped.is_set()
        assert (answer.verdict, answer.attempt) == (Verdict.FRESH, 1)
        assert run(url, f"SELECT token FROM {schema_of(url)}.event WHERE key = %s", key(2)) == [(answer.token,)]


def test_a_lost_reply_to_a_settle_is_asked_for_again(server, url, proxy):
    """The settle took effect, its reply was lost: the repeat finds its own outcome."""
    with opened(proxy.url(url)) as ledger:
        ask = Ask(key=key(1), handler="lost-reply")
        (answer,) = claim(ledger, ask)
        proxy.drop_reply_to(lambda data: b"lost-reply" in data)
        assert ledger.settle([Settlement(Claim(ask, answer.token), Outcome.RETRY)]) == [True]
        assert proxy.dropped.is_set()
        assert ledger.get(key(1))[0].attempts == 1


def test_a_lost_reply_to_a_commit_doubles_nothing(server, url, proxy):
    """The commit took effect, its reply was lost: the ledger looks, and knows that it was."""
    with opened(proxy.url(url)) as ledger:
        held = take(ledger, 1)
        with ledger.transaction(as_done(held)) as transaction:
            write_effect(url, transaction, "one")
            proxy.drop_reply_to(lambda data: b"COMMIT" in data)
        assert proxy.dropped.is_set()
        assert ledger.get(key(1))[0].status is Status.DONE
        assert effects(url) == {"one": 1}
        assert verdict(ledger, 1) is Verdict.REPUBLISH


def test_a_commit_that_never_arrived_leaves_nothing(server, url, proxy):
    """The connection is lost before the commit: no effect, no settle, and the event is to be had again."""
    with opened(proxy.url(url)) as ledger:
        held = take(ledger, 1)

        def lose_it_before_the_commit():
            with ledger.transaction(as_done(held)) as transaction:
                write_effect(url, transaction, "one")
                proxy.cut()

        with pytest.raises(LedgerUnavailable):
            lose_it_before_the_commit()
        assert effects(url) == {}
        assert ledger.get(key(1))[0].status is Status.CLAIMED
        with ledger.transaction(as_done(held)) as transaction:
            write_effect(url, transaction, "one")
        assert effects(url) == {"one": 1}


def test_a_connection_lost_at_work_is_not_the_handlers_fault(server, url, proxy):
    """A handler's statement that fails because the connection is gone is an outage, and costs no attempt."""
    with opened(proxy.url(url)) as ledger:
        held = take(ledger, 1)

        def lose_it_at_work():
            with ledger.transaction(as_done(held)) as transaction:
                proxy.cut()
                write_effect(url, transaction, "one")

        with pytest.raises(LedgerUnavailable, match="lost while a handler worked"):
            lose_it_at_work()
        assert effects(url) == {}


def test_a_silent_server_is_given_up(server, url, proxy, monkeypatch):
    """A server that takes what it is sent and says nothing ends in an error in time; then everything works again."""
    monkeypatch.setattr(postgres_ledger, "ANSWER_US", 300_000)
    with opened(f"{proxy.url(url)}&connect_timeout=2") as ledger:
        held = take(ledger, 1)
        for call in (
            lambda: verdict(ledger, 2),
            lambda: ledger.settle([Settlement(held, Outcome.DONE)]),
            lambda: ledger.transaction(as_done(held)).__enter__(),
        ):
            proxy.swallow()
            with pytest.raises(LedgerUnavailable, match="VPC and security group"):
                call()
            proxy.heal()
        assert ledger.settle([Settlement(held, Outcome.DONE)]) == [True]


@pytest.mark.parametrize("kept", [True, False])
def test_a_dripping_server_is_given_up(url, proxy, monkeypatch, kept):
    """A server that is never silent, a byte at a time, has one deadline: for greeting, answers and commit alike."""
    monkeypatch.setattr(postgres_ledger, "ANSWER_US", 300_000)
    with Bridge(f"{proxy.url(url)}&connect_timeout=2") as bridge:
        bridge.on("*")(lambda event: None)
        bridge.process(delivery(1))
        if not kept:
            proxy.cut()
        proxy.drip(0.25)
        began = monotonic()
        with pytest.raises(LedgerUnavailable, match="VPC and security group"):
            bridge.process(delivery(2))
        assert monotonic() - began < DRIPPED_SECONDS
        proxy.heal()
    with Bridge(url) as bridge:
        bridge.on("*")(lambda event: None)
        assert bridge.process(delivery(2)).acknowledged


def test_a_dripping_commit_is_given_up(server, url, proxy, monkeypatch):
    """A server that begins to drip when a handler is through: the ledger looks for itself whether it was committed."""
    monkeypatch.setattr(postgres_ledger, "ANSWER_US", 300_000)
    with Bridge(f"{proxy.url(url)}&connect_timeout=2", settings=Settings(lease_seconds=1)) as bridge:

        @bridge.on("*")
        def handle(event, transaction):
            write_effect(url, transaction, event.body["eventId"])
            if event.body["n"] == 2:
                proxy.drip(0.25)

        bridge.process(delivery(1))
        began = monotonic()
        with pytest.raises(LedgerUnavailable):
            bridge.process(delivery(2))
        assert monotonic() - began < DRIPPED_SECONDS
        proxy.heal()
        wait_until(lambda: bridge.process(delivery(2)).acknowledged, "the event to be done")
    assert effects(url) == {"1": 1, "2": 1}
