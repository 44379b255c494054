"""The Postgres ledger in forked processes: no child speaks on a connection of its parent's."""

import os

import psycopg
import pytest

from children import Child, Effects, bring_to_end, in_children, use_on_both_sides
from ledgers.on_postgres import new_schema, run, schema_of
from oncebridge import Bridge


@pytest.fixture
def url(postgres):
    """Return a new ledger, and a table for effects beside it."""
    with new_schema(postgres) as url:
        run(url, f"CREATE TABLE {schema_of(url)}.effect (name text)")
        yield url


@pytest.fixture
def named(url):
    """Return the ledger under a name by which its sessions are known."""
    return f"{url}&application_name={schema_of(url)}"


def sessions(url):
    """Return the processes that serve the ledger's sessions."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()"
    return {pid for (pid,) in run(url, query, schema_of(url))}


def test_each_process_has_connections_of_its_own(url, tmp_path):
    """Children and their parent use one bridge at the same time: every new event takes effect, and only once."""
    effects = Effects(tmp_path)
    with Bridge(url) as bridge:
        bridge.on("*")(lambda event: effects.write(event.body["eventId"]))
        assert use_on_both_sides(bridge) == effects.count()


def test_each_process_has_transactions_of_its_own(url):
    """The same for handlers that write in the ledger's transaction."""
    schema = schema_of(url)
    with Bridge(url) as bridge:

        @bridge.on("*")
        def handle(event, transaction):
            transaction.execute(f"INSERT INTO {schema}.effect VALUES (%s)", [event.body["eventId"]])

        wanted = use_on_both_sides(bridge)
    assert dict.fromkeys(wanted, 1) == dict(run(url, f"SELECT name, count(*) FROM {schema}.effect GROUP BY name"))


def test_a_child_ends_no_session_of_its_parents(named):
    """A child that closes the bridge, and one that just ends, leave the parent its sessions."""
    with Bridge(named) as bridge:
        bridge.on("*")(lambda event: None)
        bring_to_end(bridge, ["one"])
        before = sessions(named)
        assert before
        in_children(bridge.close, lambda: None, lambda: bring_to_end(bridge, ["two"]))
        assert before <= sessions(named)
        bring_to_end(bridge, ["three"])
        assert before <= sessions(named)


def test_a_handler_that_forks_keeps_its_transaction(url):
    """What a handler's child does with the transaction fails there; the parent's is committed, with its own alone."""
    schema = schema_of(url)
    with Bridge(url) as bridge:

        @bridge.on("*")
        def handle(event, transaction):
            transaction.execute(f"INSERT INTO {schema}.effect VALUES (%s)", [event.body["eventId"]])

            def meddle():
                with pytest.raises(psycopg.OperationalError):
                    transaction.execute(f"INSERT INTO {schema}.effect VALUES ('child')")
                return True

            if event.body["eventId"] == "forks":
                assert Child(meddle).result()

        assert bring_to_end(bridge, ["forks"]) == {"fresh": 1}
        assert bring_to_end(bridge, ["forks"]) == {"redelivery": 1}
    assert run(url, f"SELECT name FROM {schema}.effect") == [("forks",)]


def test_a_handlers_child_commits_nothing(url):
    """A handler's child that comes back from the handler commits nothing of its own, nor what its parent wrote."""
    schema = schema_of(url)
    children = []
    with Bridge(url) as bridge:

        @bridge.on("*")
        def handle(event, transaction):
            transaction.execute(f"INSERT INTO {schema}.effect VALUES (%s)", [event.body["eventId"]])
            if not children:
                children.append(os.fork())
                if children[0]:
                    assert os.waitpid(children[0], 0)[1] == 0

        try:
            bring_to_end(bridge, ["forks"])
        finally:
            if children == [0]:
                os._exit(0)
        assert bring_to_end(bridge, ["forks"]) == {"redelivery": 1}
    assert run(url, f"SELECT name FROM {schema}.effect") == [("forks",)]
