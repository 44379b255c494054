"""A lock that is looked for before it is written: updates are doubled or lost; in one commit they are neither."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import quote

import psycopg
import pytest

from oncebridge import Bridge, NotAcknowledged
from payloads import status_change

PATIENCE = 60  # seconds, for what happens at once
ENDED = status_change("ended", event_id="evt-7", detail_type="Conversation Status Change")


@pytest.fixture
def board(postgres, monkeypatch):
    """Make a board on which nothing is counted yet; return what reads it."""
    options = f"options={quote('-c search_path=example')}"
    url = f"{postgres.url}{'&' if '?' in postgres.url else '?'}{options}"
    with closing(psycopg.connect(url, autocommit=True)) as database:
        database.execute("DROP SCHEMA IF EXISTS example, example_ledger CASCADE")
        database.execute("CREATE SCHEMA example")
        database.execute("CREATE TABLE board (status text PRIMARY KEY, calls integer NOT NULL DEFAULT 0)")
        database.execute("INSERT INTO board (status) VALUES ('ended')")
        monkeypatch.setenv("DATABASE_URL", url)
        monkeypatch.setenv("ONCEBRIDGE_LEDGER", f"{url}&schema=example_ledger")
        Bridge.from_settings().ledger.migrate()
        yield lambda: database.execute("SELECT calls FROM board").fetchone()[0]
        database.execute("DROP SCHEMA example, example_ledger CASCADE")


# --- as it is usually written ------------------------------------------------------------------------------------


@pytest.fixture
def locks(ministack, monkeypatch):
    """Make the table of locks."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    with closing(ministack.client("dynamodb")) as client:
        client.create_table(
            TableName="locks",
            KeySchema=[{"AttributeName": "event_id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "event_id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        yield
        client.delete_table(TableName="locks")


def test_looking_first_doubles(cold_start, board, locks, monkeypatch):
    """Both invocations look before either has written: the strongest read sees no lock, and both count."""
    environments, both = [cold_start("naive"), cold_start("naive")], threading.Barrier(2)
    for naive in environments:

        def looked_together(event_id, *, look=naive.is_locked):
            found = look(event_id)
            both.wait(PATIENCE)
            return found

        monkeypatch.setattr(naive, "is_locked", looked_together)
    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(lambda naive: naive.lambda_handler(ENDED, None), environments))
    assert [answer["body"] for answer in answers] == ["counted", "counted"]
    assert board() == 2


def test_a_lock_outlives_its_owner(cold_start, killed, deliver, board, locks):
    """The worker dies between lock and update: whoever comes next sees a lock, and nobody counts."""
    killed("naive", "count", "before", ENDED)
    assert deliver(cold_start("naive").lambda_handler, ENDED)["body"] == "duplicate"
    assert board() == 0


# --- with Oncebridge ---------------------------------------------------------------------------------------------


def test_only_one_counts(cold_start, deliver, board, monkeypatch):
    """While one invocation counts, the other is told to come again, and then finds it done."""
    first, second = cold_start("app", ONCEBRIDGE_BUSY_WAIT_SECONDS="0"), cold_start("app")
    counting, refused, count = threading.Event(), threading.Event(), first.count

    def slow(*given):
        count(*given)
        counting.set()
        assert refused.wait(PATIENCE)

    monkeypatch.setattr(first, "count", slow)
    with ThreadPoolExecutor() as threads:
        invocation = threads.submit(first.lambda_handler, ENDED, None)
        assert counting.wait(PATIENCE)
        try:
            with pytest.raises(NotAcknowledged):
                second.lambda_handler(ENDED, None)
        finally:
            refused.set()
        invocation.result()
    deliver(second.lambda_handler, ENDED)
    assert board() == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_dead_worker_neither_loses_nor_doubles(cold_start, killed, deliver_until_taken, board, moment):
    """The worker dies before its update or after, but before the commit: nothing is there, and the next one counts."""
    killed("app", "count", moment, ENDED, ONCEBRIDGE_LEASE_SECONDS="0.5")
    assert board() == 0
    app = cold_start("app")
    deliver_until_taken(app.lambda_handler, ENDED)
    deliver_until_taken(app.lambda_handler, ENDED)  # once more: Lambda may not have heard the answer
    assert board() == 1
