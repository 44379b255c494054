"""The Postgres ledger at work: who waits for whom, handlers' transactions, words for troubles, what doctor sees."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.rows import dict_row

from ledgers.on_postgres import (
    as_done,
    claim,
    deadlocks,
    key,
    new_schema,
    open_transaction,
    opened,
    run,
    schema_of,
    take,
    verdict,
)
from oncebridge.claim import Ask, Claim, Outcome, Settlement, Status, Verdict
from oncebridge.clock import SystemClock
from oncebridge.errors import ClaimLost, ConfigurationError, LedgerRefused, LedgerUnavailable, PermanentError
from oncebridge.identity import Moment
from oncebridge.ledgers import ledger_from_url
from oncebridge.ledgers.findings import Level
from oncebridge.ledgers.postgres import examine, migration, troubles
from oncebridge.ledgers.postgres.address import Address
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.testing.clock import SkewedClock
from oncebridge.testing.ledger_contract.stage import claim_of
from servers.postgres import FAST, GUARDED, own_postgres
from servers.process import free_port

LOCK_S = 2  # how long the ledger's functions wait for a lock


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


def seconds_for(work):
    """Measure how long something takes."""
    clock = SystemClock()
    started_us = clock.monotonic_us()
    work()
    return (clock.monotonic_us() - started_us) / 1_000_000


# --- locks ------------------------------------------------------------------------------------------------------


def test_duplicates_wait_for_nobody(url, ledger):
    """While rows are locked in an open transaction, duplicates are told at once what was committed of them."""
    done = take(ledger, 1)
    assert ledger.settle([Settlement(done, Outcome.DONE)]) == [True]
    take(ledger, 2)
    state = Ask(key=key(3), entity=key(30), state=b"here", moment=Moment((1,)))
    claim(ledger, state)
    schema = schema_of(url)
    with open_transaction(ledger, f"UPDATE {schema}.event SET attempts = attempts") as locked:
        locked.execute(f"UPDATE {schema}.entity SET ran_out = ran_out")
        asks = [Ask(key=key(1)), Ask(key=key(2)), state, replace(state, key=key(4)), Ask(key=key(5))]
        answers = []
        seconds = seconds_for(lambda: answers.extend(claim(ledger, *asks)))
    assert [answer.verdict.value for answer in answers] == ["republish", "busy", "busy", "busy", "fresh"]
    assert seconds < LOCK_S


def test_a_handler_at_work_keeps_nobody_waiting(url, ledger):
    """While a handler's transaction is open, its event is busy for others, and its claim can be extended."""
    state = Ask(key=key(1), entity=key(30), state=b"here", moment=Moment((1,)))
    (answer,) = claim(ledger, state)
    held = claim_of(state, answer)
    run(url, f"CREATE TABLE {schema_of(url)}.effect (name text)")
    with ledger.transaction(as_done(held)) as transaction:
        transaction.execute(f"INSERT INTO {schema_of(url)}.effect VALUES ('one')")
        with opened(url) as other:
            assert claim(other, replace(state, key=key(2)))[0].verdict is Verdict.BUSY
            assert other.purge(older_than_us=0) == 0
            PostgresLedger(url).migrate()
        assert ledger.extend([held], lease_us=60_000_000) == [True]
        assert ledger.get(key(1))[0].status is Status.CLAIMED
    assert ledger.get(key(1))[0].status is Status.DONE


def test_a_lock_held_for_long_ends_in_an_error(url, ledger):
    """What must be written and is locked by somebody who does not let go fails in time, and says where to look."""
    held = take(ledger, 1)
    with (
        open_transaction(ledger, f"UPDATE {schema_of(url)}.event SET attempts = attempts"),
        pytest.raises(LedgerUnavailable, match=r"holds a lock .* pg_stat_activity"),
    ):
        ledger.settle([Settlement(held, Outcome.DONE)])
    assert ledger.settle([Settlement(held, Outcome.DONE)]) == [True]


def test_batches_in_opposite_orders_do_not_block_each_other(postgres, url, ledger):
    """Calls that name the same events and entities in other orders never wait for each other in a circle."""
    start = threading.Barrier(4)
    numbers = range(40)
    asks = [
        Ask(
            key=key(number),
            alone=True,
            **({"entity": key(number), "state": b"s", "moment": Moment((1,))} if number % 2 else {}),
        )
        for number in numbers
    ]

    def work(number):
        with opened(url) as mine:
            start.wait()
            for turn in range(15):
                order = asks if (number + turn) % 2 else asks[::-1]
                answers = claim(mine, *order, lease_us=1)
                held = [claim_of(ask, answer) for ask, answer in zip(order, answers, strict=True) if answer.token]
                mine.extend(held[::-1], lease_us=1)
                mine.settle([Settlement(one, Outcome.RELEASE) for one in held])

    before = deadlocks(url)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert deadlocks(url) == before


def test_threads_share_a_ledger(url, ledger):
    """Many threads use one ledger at once, each call on a connection of its own, and connections are kept."""

    def work(number):
        for event in range(5):
            with ledger.transaction(as_done(take(ledger, 100 * number + event))):
                assert ledger.get(key(100 * number + event))[0].status is Status.CLAIMED

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert ledger.counts() == {Status.DONE: 30}
    assert len(ledger._own._idle) <= 6
    assert len(ledger._lent._idle) <= 6
    ledger.close()
    with pytest.raises(LedgerUnavailable, match="not open"), ledger.transaction(as_done(Claim(Ask(key=key(1)), 1))):
        pass


# --- a handler's transaction ------------------------------------------------------------------------------------


def test_a_handler_may_use_savepoints(url, ledger):
    """Parts of a handler's work may be undone by itself, as long as the transaction stays."""
    table = f"{schema_of(url)}.effect"
    with ledger.transaction(as_done(take(ledger, 1))) as transaction:
        transaction.execute(f"CREATE TABLE {table} (name text UNIQUE)")
        transaction.execute(f"INSERT INTO {table} VALUES ('kept')")
        with pytest.raises(psycopg.errors.UniqueViolation), transaction.transaction():
            transaction.execute(f"INSERT INTO {table} VALUES ('kept')")
    assert ledger.get(key(1))[0].status is Status.DONE
    assert run(url, f"SELECT name FROM {table}") == [("kept",)]


def test_a_constraint_that_fails_at_the_commit_is_the_handlers_own(url, ledger):
    """What the user's own tables refuse at the commit is the handler's error, and nothing is kept."""
    table = f"{schema_of(url)}.effect"
    run(url, f"CREATE TABLE {table} (name text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    run(url, f"INSERT INTO {table} VALUES ('one')")
    with pytest.raises(psycopg.errors.UniqueViolation), ledger.transaction(as_done(take(ledger, 1))) as transaction:
        transaction.execute(f"INSERT INTO {table} VALUES ('one')")
    assert ledger.get(key(1))[0].status is Status.CLAIMED


def test_an_error_that_a_handler_swallowed_is_not_done(ledger):
    """After a failed statement Postgres commits nothing more: then the event is not done either."""

    def swallow():
        with ledger.transaction(as_done(take(ledger, 1))) as transaction, suppress(psycopg.errors.DivisionByZero):
            transaction.execute("SELECT 1 / 0")

    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        swallow()
    assert ledger.get(key(1))[0].status is Status.CLAIMED


def test_what_a_handler_sets_stays_with_handlers(ledger):
    """Whatever a handler does to its connection, the ledger's own calls go on as before."""
    for number in (1, 2):
        with ledger.transaction(as_done(take(ledger, number))) as transaction:
            transaction.row_factory = dict_row
            transaction.execute("SET search_path = nowhere")
            transaction.execute("SET enable_indexscan = off")
            assert transaction.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    assert [ledger.get(key(number))[0].status for number in (1, 2)] == [Status.DONE] * 2


@pytest.mark.parametrize("way", ["commit()", "rollback()", "close()"])
def test_a_handler_is_told_what_not_to_call(ledger, way):
    """The message names the call to leave out; trying again would not help."""
    with (
        pytest.raises(PermanentError, match=f"leave {way[:-2]}"),
        ledger.transaction(as_done(take(ledger, 1))) as transaction,
    ):
        getattr(transaction, way[:-2])()
    assert ledger.get(key(1))[0].status is Status.CLAIMED


@pytest.mark.parametrize("text", ["COMMIT", "ROLLBACK", "SELECT 1; COMMIT"])
def test_a_handler_is_told_of_a_statement_that_ended_its_transaction(ledger, text):
    """A transaction ended by a statement is noticed even if its error was swallowed, and nothing of it is kept."""

    def end_it():
        with ledger.transaction(as_done(take(ledger, 1))) as transaction, suppress(psycopg.Error):
            transaction.execute(text)

    with pytest.raises(PermanentError, match="leave COMMIT and ROLLBACK out"):
        end_it()
    assert ledger.get(key(1))[0].status is Status.CLAIMED


def test_nothing_is_left_of_transactions(url, ledger):
    """Neither commits, errors nor takeovers leave a pledge behind."""
    with ledger.transaction(as_done(take(ledger, 1))):
        pass
    with pytest.raises(ClaimLost), ledger.transaction(as_done(Claim(Ask(key=key(2)), 7))):
        pass
    assert run(url, f"SELECT count(*) FROM {schema_of(url)}.pledge") == [(0,)]


# --- addresses and troubles -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown", "schema"),
    [
        ("postgresql://u:secret@h:1/d", "postgresql://u@h:1/d", "oncebridge"),
        ("postgres://h/d?schema=mine", "postgresql://h/d?schema=mine", "mine"),
        ("postgresql://u:p%40ss@h/d?sslmode=require&schema=a_1", "postgresql://u@h/d?schema=a_1", "a_1"),
        ("postgresql://u:secret@[::1]:5/d", "postgresql://u@::1:5/d", "oncebridge"),
        ("postgresql:///d?host=/run/pg&password=secret", "postgresql:///run/pg/d", "oncebridge"),
        ("postgresql://a:1,b:2/d?target_session_attrs=read-write", "postgresql://a,b:1,2/d", "oncebridge"),
    ],
)
def test_an_address_is_shown_without_its_password(url, shown, schema):
    """Everything that libpq understands is understood, and shown without what is secret."""
    ledger = ledger_from_url(url)
    assert (str(ledger._address), ledger._schema) == (shown, schema)
    assert repr(ledger) == f"<PostgresLedger {shown} closed>"
    assert repr(ledger.address) == f"<Address {shown}>"
    assert ledger.address.__rich_repr__() == [("address", shown)]


def test_other_parameters_are_libpqs():
    """Only `schema` is ours; what is given goes before what we would choose."""
    given = Address.from_url("postgresql://u:p%26%25@h/d?schema=s&sslmode=require&connect_timeout=9").parameters
    assert "schema" not in given
    assert (given["sslmode"], int(given["connect_timeout"]), given["password"]) == ("require", 9, "p&%")
    assert given["application_name"] == "oncebridge"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sec%ret@h/d",
        "postgresql://u:secret/x@h",
        "postgresql://u:secret/x@h/d",
        "postgresql://u:/secret@h/d",
        "postgresql://u:123/secret@h/d",
        "postgresql://u:123/secret@h:5432/d?sslmode=require",
        "postgresql://u:sec/ret@h,other/d",
        "postgresql://u:12@secret@h/d",
        "postgresql://u:sec?ret@h/d",
        "postgresql://u:12?secret@h/d",
        "postgresql://h:secret/d",
        "postgresql://u:123456789/d",
        "postgresql://u:p@h/d?connect_timeout=secret",
        "postgresql://u:secret@h/d?nonsense=1",
        "postgresql://u:secret@h/d?schema=Robert'); DROP",
        "postgresql://u:secret@h/d?schema=",
        "postgresql://u:secret@h/d?schema=pg_catalog",
    ],
)
def test_a_wrong_url_is_refused_in_our_words(url):
    """What cannot be used is named with the way to write it, and without the password."""
    with pytest.raises(ConfigurationError, match=r"postgresql://user|small letters") as refused:
        ledger_from_url(url)
    assert "%2F" in str(refused.value) or "schema=" in url
    error = refused.value
    while error is not None:  # whatever shows errors may show those behind them too
        assert "sec" not in repr(error).replace("schema", "")
        error = error.__context__


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Return a server that asks one user for a password and takes few connections."""
    with own_postgres(tmp_path_factory.mktemp("guarded"), FAST, "max_connections=5") as server:
        run(server.url, f"CREATE ROLE {GUARDED} LOGIN PASSWORD 'right'")
        yield server


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("guarded:wrong@127.0.0.1:{port}/postgres", "check user and password"),
        ("guarded@127.0.0.1:{port}/postgres", "put the password into the URL"),
        ("postgres:wrong@127.0.0.1:{port}/nowhere", "check the name of the database"),
        ("nobody:wrong@127.0.0.1:{port}/postgres", "check the name of the user"),
        ("postgres:wrong@127.0.0.1:{free}/postgres", "check address and port"),
        ("postgres:wrong@nowhere.invalid/postgres", "check the host name"),
        ("postgres:wrong@127.0.0.1:{port}/postgres?sslmode=require", "check sslmode"),
    ],
)
def test_a_place_that_cannot_be_reached_is_named(guarded, place, advice):
    """Each way in which a connection fails has its own advice, and no message shows the password."""
    url = f"postgresql://{place.format(port=guarded.port, free=free_port())}"
    for use in (lambda: PostgresLedger(url).open(None), PostgresLedger(url).migrate):
        with pytest.raises(LedgerUnavailable, match=advice) as error:
            use()
        assert "wrong" not in str(error.value)


def test_too_many_connections_are_named(guarded):
    """A server that takes no more connections is named as such."""
    with ExitStack() as stack:

        def connect_once_more():
            stack.enter_context(closing(psycopg.connect(guarded.url)))

        with pytest.raises(psycopg.OperationalError):
            repeat(connect_once_more, 10)
        with pytest.raises(LedgerUnavailable, match="raise max_connections"):
            PostgresLedger(guarded.url).open(None)


def repeat(work, times):
    """Do something several times."""
    for _ in range(times):
        work()


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (psycopg.errors.DiskFull("could not extend"), LedgerUnavailable, "make room"),
        (psycopg.errors.AdminShutdown("terminating connection"), LedgerUnavailable, "connects again by itself"),
        (psycopg.errors.QueryCanceled("canceling"), LedgerUnavailable, "statement_timeout"),
        (psycopg.errors.DeadlockDetected("deadlock"), LedgerUnavailable, "check that the server runs"),
        (psycopg.OperationalError("timeout expired"), LedgerUnavailable, "VPC and security group"),
        (psycopg.errors.UndefinedFunction("no function"), LedgerRefused, "oncebridge migrate"),
    ],
)
def test_troubles_are_told_in_our_words(error, kind, words):
    """Each kind of trouble becomes the error that says what to do."""
    ours = troubles.translated(error, Address.from_url("postgresql://u:secret@h/d"))
    assert isinstance(ours, kind)
    assert words in str(ours)


def test_a_mistake_of_ours_is_not_hidden():
    """What is no trouble of the server's stays as it is."""
    assert troubles.translated(psycopg.errors.SyntaxError("oops"), Address.from_url("postgresql://h/d")) is None


def test_statements_that_cannot_be_prepared_are_sent_anew(url, ledger):
    """Behind a pooler that loses prepared statements, the ledger goes on without preparing any."""
    for number in range(3):
        take(ledger, number)
    for connection in ledger._own._idle:
        connection.pgconn.exec_(b"DEALLOCATE ALL")  # psycopg does not see it
    assert verdict(ledger, 1) is Verdict.BUSY
    assert not ledger._own.prepares
    take(ledger, 9)


# --- examine ----------------------------------------------------------------------------------------------------

GOOD = examine.Seen(
    version="18.1",
    version_number=180001,
    in_recovery=False,
    fsync="on",
    full_page_writes="on",
    synchronous_commit="on",
    standby_names="",
    standbys=0,
    isolation="read committed",
    idle_timeout_ms=0,
    backend_id=7,
    now_us=10**15,
    oldest_place_days=4,
    newest_place_days=2,
)
RETENTION_US = 30 * examine.DAY_US


class Looked:
    """A connection that has seen something."""

    def __init__(self, seen):
        """Take what it has seen."""
        self.seen = seen
        self.info = self

    backend_pid = 7

    def ask(self, statement):
        """Return it."""
        if "'functions'" in statement:
            return [(str(migration.FUNCTIONS_VERSION).encode(),)]
        return [tuple(getattr(self.seen, name) for name in self.seen.__struct_fields__)]


class StoppedClock(SystemClock):
    """A clock that stands where the server's stands."""

    def now_us(self):
        """Return that time."""
        return GOOD.now_us


def findings(**changes):
    """Return what is found at a server like the good one but for these changes, if it is not good."""
    looked = Looked(replace(GOOD, **changes))
    found = examine.examine(looked, "oncebridge", StoppedClock(), RETENTION_US)
    return [
        (finding.level, finding.subject, bool(finding.weakens)) for finding in found if finding.level is not Level.GOOD
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"version_number": 130020}, [(Level.WRONG, "version", False)]),
        ({"version_number": 140003}, [(Level.WARNING, "version", True)]),
        ({"version_number": 140004}, []),
        ({"in_recovery": True}, [(Level.WRONG, "role", False)]),
        ({"fsync": "off"}, [(Level.WRONG, "disk", True)]),
        ({"full_page_writes": "off"}, [(Level.WRONG, "disk", True)]),
        ({"synchronous_commit": "off"}, [(Level.WARNING, "commit", True)]),
        ({"standbys": 1}, [(Level.WARNING, "replication", True)]),
        ({"standbys": 1, "standby_names": "*"}, []),
        ({"standbys": 1, "standby_names": "*", "synchronous_commit": "local"}, [(Level.WARNING, "replication", True)]),
        ({"isolation": "serializable"}, [(Level.WARNING, "isolation", False)]),
        ({"backend_id": 8}, [(Level.WARNING, "pooler", False)]),
        ({"idle_timeout_ms": 60_000}, [(Level.WARNING, "idle transactions", False)]),
        ({"now_us": GOOD.now_us + 6_000_000}, [(Level.WARNING, "clock", False)]),
        ({"oldest_place_days": 40}, [(Level.WARNING, "partitions", False)]),
        ({"newest_place_days": 0}, [(Level.WARNING, "partitions", False)]),
    ],
)
def test_what_weakens_the_promise_is_found(changes, expected):
    """Each setting that costs something is found, with how much it matters and whether the promise loses by it."""
    assert findings(**changes) == expected


def test_a_real_server_is_examined(url, ledger):
    """Everything is looked at on a real server, and what is wrong with it is told with a fix."""
    found = {finding.subject: finding for finding in ledger.examine()}
    assert list(found) == [
        "version", "functions", "role", "disk", "commit", "replication", "isolation", "idle transactions", "clock",
        "partitions",
    ]  # fmt: skip
    (fsync,) = run(url, "SHOW fsync")
    assert (found["disk"].level is Level.GOOD) == (fsync == ("on",))
    assert all(finding.fix for finding in found.values() if finding.level is not Level.GOOD)
    with opened(url, clock=SkewedClock(SystemClock(), 60)) as ahead:
        assert {finding.subject: finding.level for finding in ahead.examine()}["clock"] is Level.WARNING
