"""Two invocations within a millisecond: looking before writing doubles, writing before working loses."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncebridge import NotAcknowledged
from payloads import TIME_MS, call_status

PATIENCE = 60  # seconds, for what happens at once
CONNECTED = call_status("connected", id="envelope-1")
TWIN = call_status("connected", id="envelope-2")  # the same, sent again by Genesys
HELD = call_status("held", moment=TIME_MS + 3_000, id="envelope-3")  # three seconds later


@pytest.fixture(autouse=True)
def database(valkey, tmp_path, monkeypatch):
    """Give the programs an empty Redis and an empty database; return its file."""
    with valkey.client() as client:
        client.flushall()
    monkeypatch.setenv("REDIS_URL", valkey.url)
    monkeypatch.setenv("ONCEBRIDGE_LEDGER", valkey.url)
    monkeypatch.setenv("DATABASE", str(tmp_path / "database"))
    (tmp_path / "database").touch()
    return tmp_path / "database"


@pytest.fixture
def stopped_time(valkey):
    """Return what keeps Redis from forgetting, so that the ten seconds last as long as the test."""

    def stop():
        with valkey.client() as client:
            for name in client.scan_iter():
                client.persist(name)

    return stop


def updates(database):
    """Return what reached the database."""
    return database.read_text().splitlines()


# --- as it is usually written ------------------------------------------------------------------------------------


class AfterBoth:
    """A cache whose answers to `get` come only when both invocations have asked, as they do within a millisecond."""

    def __init__(self, cache, both):
        """Take the real one, and where the two wait for each other."""
        self._cache, self._both = cache, both

    def get(self, name):
        """Look, and wait until the other has looked."""
        found = self._cache.get(name)
        self._both.wait(PATIENCE)
        return found

    def __getattr__(self, name):
        """Pass on everything else."""
        return getattr(self._cache, name)


def test_looking_first_doubles(cold_start, database, monkeypatch):
    """Both invocations look before either writes: both see nothing, and both work."""
    environments, both = [cold_start("naive"), cold_start("naive")], threading.Barrier(2)
    for naive in environments:
        monkeypatch.setattr(naive, "cache", AfterBoth(naive.cache, both))
    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(lambda naive: naive.look_then_write(CONNECTED, None), environments))
    assert updates(database) == ["call-31 connected"] * 2
    assert [answer["body"] for answer in answers] == ["done"] * 2


def test_a_key_on_the_conversation_loses(cold_start, database, stopped_time):
    """A call that is held within ten seconds is taken for a duplicate of the call that was connected."""
    naive = cold_start("naive")
    naive.look_then_write(CONNECTED, None)
    stopped_time()
    assert naive.look_then_write(HELD, None)["body"] == "seen before"
    assert updates(database) == ["call-31 connected"]


def test_writing_first_loses(cold_start, killed, deliver, database, stopped_time):
    """The worker dies after SET NX: what comes again is taken for a duplicate of what never happened."""
    killed("naive", "update_database", "before", CONNECTED, entry="write_then_work")
    stopped_time()
    assert deliver(cold_start("naive").write_then_work, CONNECTED)["body"] == "seen before"
    assert updates(database) == []


def test_a_key_on_the_envelope_doubles(cold_start, database):
    """The same change, sent again by Genesys, has another envelope id."""
    naive = cold_start("naive")
    naive.write_then_work(CONNECTED, None)
    naive.write_then_work(TWIN, None)
    assert updates(database) == ["call-31 connected"] * 2


# --- with Oncebridge ---------------------------------------------------------------------------------------------


def test_only_one_works(cold_start, deliver, database, monkeypatch):
    """While one invocation works, the other is told to come again, and then finds the work done."""
    first, second = cold_start("app", ONCEBRIDGE_BUSY_WAIT_SECONDS="0"), cold_start("app")
    working, refused, update = threading.Event(), threading.Event(), first.update_database

    def slow(*given):
        working.set()
        assert refused.wait(PATIENCE)
        update(*given)

    monkeypatch.setattr(first, "update_database", slow)
    with ThreadPoolExecutor() as threads:
        invocation = threads.submit(first.lambda_handler, CONNECTED, None)
        assert working.wait(PATIENCE)
        try:
            with pytest.raises(NotAcknowledged):
                second.lambda_handler(TWIN, None)
        finally:
            refused.set()
        invocation.result()
    deliver(second.lambda_handler, TWIN)
    assert updates(database) == ["call-31 connected"]


def test_many_pairs_at_once(cold_start, deliver_until_taken, database):
    """However two invocations meet, every change is there once."""
    environments, both = [cold_start("app"), cold_start("app")], threading.Barrier(2)
    calls = [call_status(conversation=f"call-{number}") for number in range(30)]

    def take_all(app):
        for call in calls:
            both.wait(PATIENCE)
            deliver_until_taken(app.lambda_handler, call)

    with ThreadPoolExecutor() as threads:
        list(threads.map(take_all, environments))
    assert sorted(updates(database)) == sorted(f"call-{number} connected" for number in range(30))


def test_a_real_change_is_processed(cold_start, deliver, database):
    """A call that is held three seconds later is another event; each of them is taken once."""
    app = cold_start("app")
    for event in (CONNECTED, TWIN, HELD, HELD, CONNECTED):
        deliver(app.lambda_handler, event)
    assert updates(database) == ["call-31 connected", "call-31 held"]


def test_a_dead_worker_loses_nothing(cold_start, killed, deliver_until_taken, database):
    """The worker dies: its claim runs out, and whoever gets the event next works it off."""
    killed("app", "update_database", "before", CONNECTED, ONCEBRIDGE_LEASE_SECONDS="0.5")
    deliver_until_taken(cold_start("app").lambda_handler, CONNECTED)
    assert updates(database) == ["call-31 connected"]
