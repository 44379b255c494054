"""The Postgres ledger under exceptions that strike anywhere: whatever was interrupted is dropped, and not believed."""

import gc
import itertools
import signal
from contextlib import suppress

import pytest

from children import bring_to_end, delivery
from interrupts import Interrupted, points, sample, strike
from ledgers.on_postgres import new_schema, run, schema_of
from oncebridge import Bridge
from oncebridge.settings import Settings
from servers.process import wait_until

#: Of the engine's own code others look after.
OWN = "oncebridge/ledgers/postgres/"


class SoftLimit(Exception):
    """Raised by a signal's handler, and an Exception, as Celery's is."""


@pytest.fixture
def url(postgres):
    """Return a new ledger under a name by which its sessions are known, and a table for effects beside it."""
    with new_schema(postgres) as url:
        run(url, f"CREATE TABLE {schema_of(url)}.effect (name text PRIMARY KEY)")
        yield f"{url}&application_name={schema_of(url)}"


@pytest.fixture(params=["transaction", "plain"])
def bridge(request, url):
    """Return a bridge whose handler writes in the transaction, or by itself."""
    statement = f"INSERT INTO {schema_of(url)}.effect VALUES (%s) ON CONFLICT DO NOTHING"
    with Bridge(url, settings=Settings(lease_seconds=1, busy_wait_seconds=0)) as bridge:
        if request.param == "transaction":
            bridge.on("*")(lambda event, transaction: transaction.execute(statement, [event.body["eventId"]]))
        else:
            bridge.on("*")(lambda event: run(url, statement, event.body["eventId"]))
        yield bridge


def of_ledger(found):
    """Leave out the points in code of the bridge's that is not the ledger's."""
    return [point for point in found if "/oncebridge/" not in point.code.co_filename or OWN in point.code.co_filename]


# A connection that is struck between two hands is closed as it is deleted, and psycopg warns of that.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("first", "error"), list(enumerate([Interrupted, SoftLimit, KeyboardInterrupt])))
def test_nothing_of_an_interrupted_call_is_believed(url, bridge, first, error):
    """Wherever an exception strikes, later events are what they are, and every event takes effect in the end."""
    numbers = itertools.count()
    names = [f"warm-{number}" for number in range(3)]
    bring_to_end(bridge, names)
    found = of_ledger(points(lambda: bridge.process(delivery(f"found-{next(numbers)}"))))
    assert len(found) > 100
    for point in sample(found[first::3], 9):  # each error at points of its own
        struck, after = f"struck-{next(numbers)}", f"after-{next(numbers)}"
        names += [struck, after]
        with suppress(error), strike(point, error()):
            bridge.process(delivery(struck))
        gc.collect()  # the error that was struck with refers to itself, and to all frames
        assert bridge.process(delivery(after)).verdict == "fresh", point
        assert bridge.process(delivery(after)).verdict == "redelivery", point
    wait_until(lambda: all_done(bridge, names), "every event to be done")
    written = {name for (name,) in run(url, f"SELECT name FROM {schema_of(url)}.effect WHERE name NOT LIKE 'found%%'")}
    assert written == set(names)
    assert not open_transactions(url)


def all_done(bridge, names):
    """Deliver all of them once more; tell whether each is done."""
    return all(result.acknowledged for result in bridge.process_many([delivery(name) for name in names]))


def open_transactions(url):
    """Return the sessions that have a transaction open: their locks would be in others' way."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND state LIKE 'idle in%%'"
    return run(url, query, schema_of(url))


def test_a_signal_while_the_server_works_leaves_nothing_open(url):
    """A handler that is interrupted in a statement leaves no transaction open, and its lock to the next."""
    schema = schema_of(url)

    def limit(*_):
        raise SoftLimit

    before = signal.signal(signal.SIGALRM, limit)
    try:
        with Bridge(url, settings=Settings(lease_seconds=1)) as bridge:

            @bridge.on("*")
            def handle(event, transaction):
                transaction.execute(f"INSERT INTO {schema}.effect VALUES (%s)", [event.body["eventId"]])
                if event.attempt == 1:
                    signal.setitimer(signal.ITIMER_REAL, 0.2)
                    transaction.execute("SELECT pg_sleep(1)")

            with suppress(SoftLimit):
                bridge.process(delivery("one"))
            wait_until(lambda: bridge.process(delivery("one")).acknowledged, "the event to be done")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert run(url, f"SELECT name FROM {schema}.effect") == [("one",)]
    assert not open_transactions(url)
