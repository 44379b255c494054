"""Each event takes effect once in a table, whatever the ledger forgets or grants twice, and whichever answer is lost.

Rows of their own show it best: an effect that was repeated would be a second row.
"""

import threading
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from msgspec import structs

from oncebridge.breaker import Open
from oncebridge.claim import Outcome
from oncebridge.errors import LedgerUnavailable
from oncebridge.event import parse
from oncebridge.identity import key_text
from oncebridge.ledgers import ledger_from_url
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.redis.ledger import RedisLedger
from oncebridge.sinks.promise import EXACTLY_ONCE
from oncebridge.testing.faults import Fault, faulty
from servers.process import wait_until
from servers.proxy import running_proxy
from tables import agents, bridge, desk, effects, keys, log, make_tables, postgres_desk, sqlite_desk, status  # noqa: F401


@pytest.fixture
def tables(desk):  # noqa: F811
    """Make the user's tables."""
    make_tables(desk)
    return desk


@pytest.fixture
def elsewhere(postgres_desk):  # noqa: F811
    """Make the user's tables in a database that is not the ledger's."""
    make_tables(postgres_desk)
    return postgres_desk


@pytest.fixture
def own_ledger(tables):
    """Make a ledger in the very database that the tables are in."""
    made = ledger_from_url(tables.ledger_url)
    made.migrate()
    yield made
    made.close()


@pytest.fixture
def patient(monkeypatch):
    """Wait for others as long as a busy machine may need."""
    monkeypatch.setattr("oncebridge.sinks.table.postgres.LOCK_SECONDS", 60)


def test_the_newest_state_stands_in_the_table(tables, bridge):  # noqa: F811
    """States of two agents, some of them again and one too late: a row for each, with what was newest."""
    made = bridge(agents(tables))
    events = [status("IDLE"), status("INTERACTING", 2000), status("COMMUNICATING", 1000)]
    other = status("OFF_QUEUE", 500, frame={"topicName": "v2.users.bob.routingStatus"})
    other["detail"]["eventBody"]["id"] = "bob"
    books = made.process_many([*events, other, *events])
    rows = tables(f"SELECT user_id, status FROM {tables.prefix}agent_status ORDER BY status")
    assert [state for _, state in rows] == ["INTERACTING", "OFF_QUEUE"]
    assert rows[1][0] == "bob"
    assert len(books) == 7


def test_an_older_state_that_comes_late_stays_out(elsewhere, bridge, clock):  # noqa: F811
    """Where the ledger does not know of the newer one, the table does."""
    for event in (status("INTERACTING", 2000), status("IDLE"), status("COMMUNICATING", 1000)):
        assert bridge(agents(elsewhere), ledger=MemoryLedger(clock)).process(event).outcome is Outcome.DONE
    assert elsewhere(f"SELECT status FROM {elsewhere.prefix}agent_status") == [("INTERACTING",)]


def test_two_sinks_write_into_one_database(elsewhere, bridge):  # noqa: F811
    """Each has its own claim and its own key, beside the same tables."""
    made = bridge(agents(elsewhere), log(elsewhere))
    for event in (status("IDLE"), status("INTERACTING", 1000), status("IDLE")):
        made.process(event)
    assert len(keys(elsewhere)) == 2
    assert effects(elsewhere) == ["agents", "agents", "log", "log"]


# --- a ledger that forgets, or grants twice --------------------------------------------------------------


def test_a_ledger_that_forgot_everything_doubles_nothing(elsewhere, bridge, clock):  # noqa: F811
    """The key is in the table beside: a delivery that is fresh again to the ledger finds it, and is done."""
    for _ in range(3):
        made = bridge(log(elsewhere), ledger=MemoryLedger(clock))
        assert made.process(status("IDLE")).outcome is Outcome.DONE
    assert len(keys(elsewhere)) == 1
    assert effects(elsewhere) == ["log"]


def test_a_redis_that_was_emptied_doubles_nothing(elsewhere, bridge, valkey, clock):  # noqa: F811
    """FLUSHALL between two deliveries, with the secret in the settings: still one row."""
    with redis.Redis(port=urlsplit(valkey.url).port) as client:
        for _ in range(2):
            made = bridge(log(elsewhere), ledger=RedisLedger(valkey.url), clock=None)
            assert [result.outcome for result in made.process_many([status("IDLE"), status("IDLE", 1000)])] == [
                Outcome.DONE
            ] * 2
            made.close()
            client.flushall()
    assert len(keys(elsewhere)) == 2


def test_two_workers_with_one_event_at_once_write_one_row(elsewhere, bridge, clock, patient):  # noqa: F811
    """Both were granted it, by ledgers that know nothing of each other, and write at the same moment."""
    workers = [bridge(log(elsewhere), ledger=MemoryLedger(clock)) for _ in range(4)]
    together = threading.Barrier(len(workers))
    outcomes = []

    def work(made):
        sink = made.sinks["log"]
        write = sink._database.write_once

        def write_together(*row):
            together.wait(60)
            write(*row)

        sink._database.write_once = write_together
        outcomes.extend(result.outcome for result in [made.process(status("IDLE", at)) for at in range(0, 5000, 1000)])

    threads = [threading.Thread(target=work, args=(made,)) for made in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert outcomes == [Outcome.DONE] * 20
    assert len(keys(elsewhere)) == len({*keys(elsewhere)}) == 5


def test_one_who_waits_for_another_of_the_same_key_writes_nothing(postgres_desk, bridge, patient):  # noqa: F811
    """The key of a transaction under way is waited for: once that is committed, the event is done."""
    make_tables(postgres_desk)
    made = bridge(log(postgres_desk))
    key = bytes(range(16))
    event = structs.replace(parse(status("IDLE")), key=key_text(key))
    worker = threading.Thread(target=made.sinks["log"], args=(event,))
    with psycopg.connect(postgres_desk.url) as other:
        insert = f"INSERT INTO {postgres_desk.prefix}oncebridge_effects (key, sink) VALUES (%s, 'log')"
        other.execute(insert, [key])
        worker.start()
        waits = f"""SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'
            AND transactionid = (SELECT transactionid FROM pg_locks WHERE pid = {other.info.backend_pid} AND granted
                AND locktype = 'transactionid')"""
        wait_until(lambda: postgres_desk(waits) == [(1,)], "the worker to wait")
        other.commit()
    worker.join(60)
    assert not worker.is_alive()
    assert keys(postgres_desk) == []


# --- lost answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["settle", "claim"])
@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_of_the_ledger_doubles_nothing(elsewhere, bridge, clock, verb, after):  # noqa: F811
    """The row is there, and whether the ledger knows it is not known: the event comes again, and is done."""
    ledger = MemoryLedger(clock)
    made = bridge(log(elsewhere), ledger=faulty(ledger, Fault(verb, call=0, after=after)), lease_seconds=1.0)
    with pytest.raises(LedgerUnavailable):
        made.process(status("IDLE"))
    clock.advance(60)
    again = bridge(log(elsewhere), ledger=ledger)
    again.process(status("IDLE"))
    assert len(keys(elsewhere)) == 1


@pytest.mark.parametrize("kept", [False, True])
def test_a_lost_answer_to_the_commit_doubles_nothing(postgres_desk, bridge, clock, kept):  # noqa: F811
    """The server has committed, and nobody learns of it: whether asked again at once or later, the key is there."""
    make_tables(postgres_desk)
    with running_proxy(urlsplit(postgres_desk.url).port) as proxy:
        postgres_desk.url = proxy.url(postgres_desk.url)
        made = bridge(log(postgres_desk))
        made.process(status("IDLE"))
        if not kept:
            made.sinks["log"].close()
        proxy.drop_reply_to(lambda data: b"COMMIT" in data)
        result = made.process(status("INTERACTING", 1000))
        assert proxy.dropped.is_set()
        assert len(keys(postgres_desk)) == 2
        if not kept:
            assert result.outcome is Outcome.RETRY
            clock.advance(600)
            result = made.process(status("INTERACTING", 1000))
        assert result.outcome is Outcome.DONE
    assert len(keys(postgres_desk)) == 2


# --- in the ledger's own database ------------------------------------------------------------------------


def test_a_row_is_committed_with_its_claim(tables, own_ledger, bridge):  # noqa: F811
    """In the ledger's own database there is no key to keep: the claim and the row end together."""
    made = bridge(log(tables, database="ledger"), agents(tables, database="ledger"), ledger=own_ledger)
    outcomes = {made.process(event).outcome for event in (status("IDLE"), status("INTERACTING", 1000))}
    assert outcomes == {Outcome.DONE}
    assert made.process(status("IDLE")).outcome is None
    assert len(keys(tables)) == 2
    assert tables(f"SELECT status FROM {tables.prefix}agent_status") == [("INTERACTING",)]


@pytest.mark.parametrize("after", [False, True])
def test_in_its_transaction_a_lost_answer_doubles_nothing(tables, own_ledger, bridge, after):  # noqa: F811
    """Before the transaction nothing is there, behind it both are: the event comes again, and ends in one row."""
    fails = faulty(own_ledger, Fault("transaction", call=0, after=after))
    made = bridge(log(tables, database="ledger"), ledger=fails, clock=None, lease_seconds=0.1)
    with pytest.raises(LedgerUnavailable):
        made.process(status("IDLE"))
    assert len(keys(tables)) == int(after)
    made.close()
    again = bridge(log(tables, database="ledger"), ledger=own_ledger, clock=None, busy_wait_seconds=60.0)
    again.process(status("IDLE"))
    assert len(keys(tables)) == 1


def test_a_claim_that_was_taken_over_leaves_no_row(tables, own_ledger, bridge, monkeypatch):  # noqa: F811
    """The compare-and-set is the last statement: a late worker's row goes with it."""
    made = bridge(log(tables, database="ledger"), ledger=own_ledger, clock=None)
    sink = made.sinks["log"]
    write = type(sink).__call__

    def taken_over(self, event, transaction):
        write(self, event, transaction)
        if tables.engine == "sqlite":
            transaction.execute("UPDATE oncebridge_event SET token = token + 1")
        else:
            transaction.execute(f"UPDATE {tables.schema}_once.event SET token = token + 1")

    monkeypatch.setattr(type(sink), "__call__", taken_over)
    assert made.process(status("IDLE")).outcome is not Outcome.DONE
    assert keys(tables) == []


# --- what is promised ------------------------------------------------------------------------------------


def test_the_promise_in_the_ledger(tables, own_ledger, bridge):  # noqa: F811
    """Exactly once, with the reason, and it rests on the ledger."""
    made = bridge(agents(tables, database="ledger"), ledger=own_ledger)
    inside = made.sinks["agents"].promise
    assert (inside.level, inside.whatever_the_ledger) == (EXACTLY_ONCE, False)
    assert "together with the end of its claim" in inside.why


def test_the_promise_elsewhere(elsewhere, bridge):  # noqa: F811
    """Exactly once, with the reason, whatever the ledger is."""
    promise = bridge(log(elsewhere)).sinks["log"].promise
    assert (promise.level, promise.whatever_the_ledger) == (EXACTLY_ONCE, True)
    assert "oncebridge_effects in the transaction that writes its row" in promise.why


def test_a_pause_is_no_attempt_in_a_transaction_either(tables, own_ledger, bridge):  # noqa: F811
    """`Open` says that nothing was tried, also from a handler that was given the transaction."""
    made = bridge(ledger=own_ledger, attempts=1)

    @made.on("*")
    def refuse(event, transaction):
        raise Open(1, 1_000_000, "left alone")

    result = made.process(status("IDLE"))
    assert (result.outcome, result.retry_in_us) == (Outcome.RELEASE, 1_000_000)
    assert result.reason.endswith("this was no attempt: left alone")
