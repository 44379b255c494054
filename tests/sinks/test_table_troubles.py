"""Whose fault it is: the event's (a dead letter), the database's (it waits, at no attempt), or nobody's (again)."""

import re
import threading
from time import monotonic
from urllib.parse import urlsplit

import psycopg
import pytest

from oncebridge.claim import Outcome
from oncebridge.clock import SystemClock
from oncebridge.ledgers import ledger_from_url
from oncebridge.sinks.table.postgres import translate_error
from servers.process import wait_until
from servers.proxy import running_proxy
from tables import (  # noqa: F401 - fixtures among them
    COLUMNS,
    agents,
    bridge,
    desk,
    keys,
    log,
    make_tables,
    placed,
    postgres_desk,
    sqlite_desk,
    status,
)

SAID = "canary-value"
DRIPPED_SECONDS = 5.0  # much less than an answer takes that drips


def buried(made):
    """Return why the one dead letter is one."""
    (entry,) = made.dead_letters.list()
    return entry.reason


# --- the event's -----------------------------------------------------------------------------------------

POSTGRES_UNFIT = {
    "bigint": r"column status: it takes no such value",
    "timestamptz": r"column status: it takes no such value",
    "uuid": r"column status: it takes no such value",
    "boolean": r"column status: it takes no such value",
    "varchar(3)": r"one of its columns: a text is too long for it",
    "text CONSTRAINT calm CHECK (status = 'IDLE')": r"constraint calm is violated \(CheckViolation\)",
    "text CONSTRAINT known REFERENCES {prefix}states": r"constraint known is violated \(ForeignKeyViolation\)",
}


@pytest.mark.parametrize("kind", POSTGRES_UNFIT)
def test_postgres_does_not_take_it(postgres_desk, bridge, kind):  # noqa: F811
    """A value or a constraint that is never met: a dead letter at once, which names the place and no value."""
    postgres_desk(f"CREATE TABLE {postgres_desk.prefix}states (name text PRIMARY KEY)")
    types = kind.format(prefix=postgres_desk.prefix)
    postgres_desk(f"CREATE TABLE {postgres_desk.prefix}status_log (event_key text, status {types})")
    made = bridge(log(postgres_desk))
    assert made.process(status(SAID)).outcome is Outcome.DEAD
    assert re.search(POSTGRES_UNFIT[kind], buried(made))
    assert SAID not in buried(made)
    assert postgres_desk(f"SELECT count(*) FROM {postgres_desk.prefix}oncebridge_effects") == [(0,)]


SQLITE_UNFIT = {
    "TEXT CONSTRAINT calm CHECK (status = 'IDLE')": "CHECK constraint failed: calm",
    "INTEGER PRIMARY KEY": "datatype mismatch",
}


@pytest.mark.parametrize("kind", SQLITE_UNFIT)
def test_sqlite_does_not_take_it(sqlite_desk, bridge, kind):  # noqa: F811
    """A value or a constraint that is never met: a dead letter at once, which names the place and no value."""
    sqlite_desk(f"CREATE TABLE status_log (event_key TEXT, status {kind})")
    made = bridge(log(sqlite_desk))
    assert made.process(status(SAID)).outcome is Outcome.DEAD
    assert SQLITE_UNFIT[kind] in buried(made)
    assert SAID not in buried(made)


def test_nothing_for_a_column_that_takes_no_null(placed, bridge):  # noqa: F811
    """Said by the column's name, wherever the table is."""
    on, database = placed
    make_tables(on)
    ledger = ledger_from_url(on.ledger_url)
    ledger.migrate()
    made = bridge(log(on, database=database), ledger=ledger)
    event = status("IDLE")
    del event["detail"]["eventBody"]["routingStatus"]["status"]
    assert made.process(event).outcome is Outcome.DEAD
    assert re.search(r"(column status: takes no NULL|NOT NULL constraint failed: status_log\.status)", buried(made))


def test_a_dead_letter_takes_effect_once_it_is_redriven(desk, bridge):  # noqa: F811
    """Nothing of the refused try is left: after the table was mended the event is written, once."""
    desk(f"CREATE TABLE {desk.prefix}status_log (event_key text, status text, CHECK (length(status) < 4))")
    made = bridge(log(desk))
    made.process(status(SAID))
    desk(f"DROP TABLE {desk.prefix}status_log")
    desk(f"CREATE TABLE {desk.prefix}status_log (event_key text, status text)")
    letters = made.dead_letters
    for entry in letters.list():
        letters.redrive(entry)
    assert len(keys(desk)) == 1


# --- the database's: not made for the sink ---------------------------------------------------------------


def no_table(desk):  # noqa: F811
    """Make none."""


def no_column(desk):  # noqa: F811
    """Leave one out."""
    desk(f"CREATE TABLE {desk.prefix}agent_status (user_id text PRIMARY KEY, status text, event_key text)")


def no_index(desk):  # noqa: F811
    """Know rows by nothing."""
    make_tables(desk, unique=False)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (no_table, r"there is no table .*agent_status|no such table: agent_status"),
        (no_column, r"has no column (named )?changed_at"),
        (no_index, r"CREATE UNIQUE INDEX ON .*agent_status \(\"user_id\"\)|a unique index on its key"),
    ],
)
def test_a_table_that_does_not_fit_buries_nothing(desk, bridge, clock, mistake, words):  # noqa: F811
    """None of it is the events' fault, however often they come; what to do is said, and once that is done it works."""
    mistake(desk)
    made = bridge(agents(desk), attempts=2, migrated=mistake is no_index)
    for _ in range(6):
        result = made.process(status("IDLE"))
        assert result.outcome is Outcome.RELEASE
        assert re.search(words, result.reason), result.reason
        clock.advance(60)
    if mistake is not no_table:
        desk(f"DROP TABLE {desk.prefix}agent_status")
        desk(f"DROP TABLE IF EXISTS {desk.prefix}status_log")
    make_tables(desk)
    if desk.engine != "sqlite":
        made.sinks["agents"].migrate()
    assert made.process(status("IDLE")).outcome is Outcome.DONE


def test_a_table_that_was_changed_is_looked_at_again(postgres_desk, bridge, clock):  # noqa: F811
    """A column may get another type while workers work: what was known of it is forgotten with the first failure."""
    make_tables(postgres_desk)
    table = f"{postgres_desk.prefix}agent_status"
    postgres_desk(f"ALTER TABLE {table} ALTER changed_at TYPE text")
    made = bridge(agents(postgres_desk))
    assert made.process(status("IDLE")).outcome is Outcome.DONE
    postgres_desk(f"ALTER TABLE {table} ALTER changed_at TYPE timestamptz USING changed_at::timestamptz")
    assert made.process(status("INTERACTING", 1000)).outcome is Outcome.RELEASE
    clock.advance(20)
    assert made.process(status("INTERACTING", 1000)).outcome is Outcome.DONE
    assert postgres_desk(f"SELECT status FROM {table}") == [("INTERACTING",)]


def test_a_table_in_the_ledger_that_is_missing_buries_nothing(desk, bridge, clock):  # noqa: F811
    """The same in the ledger's own transaction, which is rolled back each time."""
    made = bridge(agents(desk, database="ledger"), ledger=desk.ledger_url, attempts=2)
    made.ledger.migrate()
    for _ in range(6):
        result = made.process(status("IDLE"))
        assert result.outcome is Outcome.RELEASE
        assert desk.missing in result.reason
        clock.advance(60)
    make_tables(desk)
    assert made.process(status("IDLE")).outcome is Outcome.DONE


def test_keys_without_their_table_are_said(postgres_desk, bridge):  # noqa: F811
    """In Postgres somebody with the right to make tables makes it first."""
    make_tables(postgres_desk)
    made = bridge(log(postgres_desk), migrated=False)
    result = made.process(status("IDLE"))
    assert result.outcome is Outcome.RELEASE
    assert "oncebridge_effects" in result.reason
    assert result.reason.endswith("make it with: oncebridge migrate")


def test_a_user_without_rights_is_said(postgres_desk, bridge):  # noqa: F811
    """Whoever may not write does not lose events by it."""
    make_tables(postgres_desk)
    bridge(log(postgres_desk))  # migrated by somebody else
    user = f"{postgres_desk.schema}_reader"
    postgres_desk(f"CREATE ROLE {user} LOGIN")
    try:
        postgres_desk(f"GRANT USAGE ON SCHEMA {postgres_desk.schema} TO {user}")
        parts = urlsplit(postgres_desk.url)
        postgres_desk.url = parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}").geturl()
        made = bridge(log(postgres_desk), migrated=False)
        result = made.process(status("IDLE"))
        assert result.outcome is Outcome.RELEASE
        assert "permission denied" in result.reason
        assert "grant this user SELECT, INSERT and UPDATE" in result.reason
        found = {finding.subject: finding for finding in made.sinks["log"].examine()}
        lacks = f'this user lacks INSERT on "{postgres_desk.schema}"."status_log", SELECT on '
        assert found["permissions"].found.startswith(lacks)
    finally:
        postgres_desk(f"DROP OWNED BY {user}")
        postgres_desk(f"DROP ROLE {user}")


# --- the database's: out of reach ------------------------------------------------------------------------


def test_an_outage_buries_nothing(postgres_desk, bridge, clock):  # noqa: F811
    """Down for long: more tries than there are attempts, and no dead letter. Back again, each event is written once."""
    make_tables(postgres_desk)
    with running_proxy(urlsplit(postgres_desk.url).port) as proxy:
        postgres_desk.url = proxy.url(postgres_desk.url)
        made = bridge(log(postgres_desk), attempts=2)
        events = [status("IDLE", at) for at in range(0, 3000, 1000)]
        assert made.process(events[0]).outcome is Outcome.DONE
        proxy.refuse()
        for _ in range(10):
            results = made.process_many(events[1:])
            assert {result.outcome for result in results} == {Outcome.RELEASE}
            clock.advance(20)
        proxy.heal()
        clock.advance(20)
        assert {result.outcome for result in made.process_many(events[1:])} == {Outcome.DONE}
    assert len(keys(postgres_desk)) == 3


def test_while_it_is_down_it_is_left_alone(postgres_desk, bridge, clock):  # noqa: F811
    """After three failures in a row nobody connects any more, until the breaker looks again."""
    make_tables(postgres_desk)
    with running_proxy(urlsplit(postgres_desk.url).port) as proxy:
        postgres_desk.url = proxy.url(postgres_desk.url)
        made = bridge(log(postgres_desk))
        proxy.refuse()
        for n in range(3):
            made.process(status("IDLE", n * 1000))
        proxy.heal()
        result = made.process(status("IDLE"))
        assert result.outcome is Outcome.RELEASE
        assert 0 < result.retry_in_us <= 10_000_000
        assert keys(postgres_desk) == []
        clock.advance(20)
        assert made.process(status("IDLE", 3000)).outcome is Outcome.DONE


def test_a_kept_connection_that_died_is_made_again(postgres_desk, bridge):  # noqa: F811
    """A server that was restarted costs nothing but a connection."""
    make_tables(postgres_desk)
    with running_proxy(urlsplit(postgres_desk.url).port) as proxy:
        postgres_desk.url = proxy.url(postgres_desk.url)
        made = bridge(log(postgres_desk))
        for at in range(0, 3000, 1000):
            assert made.process(status("IDLE", at)).outcome is Outcome.DONE
            proxy.cut()
    assert len(keys(postgres_desk)) == 3


def test_no_password_is_in_the_reason(postgres_desk, bridge, monkeypatch):  # noqa: F811
    """Whatever Postgres says about a connection, the password stays out of it."""
    parts = urlsplit(postgres_desk.url)
    place = parts.netloc.rpartition("@")[2]
    monkeypatch.setenv("DATABASE_URL", parts._replace(netloc=f"nobody:hunter2@{place}", path="/nowhere").geturl())
    made = bridge(log(postgres_desk, database="env:DATABASE_URL"), migrated=False)
    result = made.process(status("IDLE"))
    assert result.outcome is Outcome.RELEASE
    assert "nobody@" in result.reason
    assert "hunter2" not in result.reason


# --- somebody in the way ---------------------------------------------------------------------------------


def test_a_row_that_somebody_holds_is_tried_again(postgres_desk, bridge, clock, monkeypatch):  # noqa: F811
    """Whoever waits too long gives up and comes again; nothing is written by halves."""
    make_tables(postgres_desk)
    monkeypatch.setattr("oncebridge.sinks.table.postgres.LOCK_SECONDS", 0.05)
    made = bridge(agents(postgres_desk))
    made.process(status("IDLE"))
    with psycopg.connect(postgres_desk.url) as other:
        other.execute(f"UPDATE {postgres_desk.prefix}agent_status SET status = 'HELD'")
        result = made.process(status("INTERACTING", 1000))
        assert result.outcome is Outcome.RETRY
        assert re.search("lock timeout", result.reason)
        other.rollback()
    clock.advance(600)
    assert made.process(status("INTERACTING", 1000)).outcome is Outcome.DONE
    assert postgres_desk(f"SELECT status FROM {postgres_desk.prefix}agent_status") == [("INTERACTING",)]


def test_a_deadlock_is_tried_again(postgres_desk, bridge, clock, monkeypatch):  # noqa: F811
    """Two that wait for each other: the one that Postgres gives up comes again, and both are written in the end."""
    make_tables(postgres_desk)
    monkeypatch.setattr("oncebridge.sinks.table.postgres.LOCK_SECONDS", 60)
    table = f"{postgres_desk.prefix}agent_status"
    postgres_desk(
        f"CREATE FUNCTION {postgres_desk.prefix}cross() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF new.status = 'CROSS' THEN PERFORM pg_advisory_xact_lock(77); END IF; RETURN new; END $$"
    )
    postgres_desk(
        f"CREATE TRIGGER cross_over AFTER UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {postgres_desk.prefix}cross()"
    )
    made = bridge(agents(postgres_desk))
    made.process(status("IDLE"))
    results = []
    with psycopg.connect(postgres_desk.url) as other:
        other.execute("SET deadlock_timeout = '100s'")  # the other one is to find it
        other.execute("SELECT pg_advisory_xact_lock(77)")
        worker = threading.Thread(target=lambda: results.append(made.process(status("CROSS", 1000))))
        worker.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
        wait_until(lambda: postgres_desk(waits) == [(1,)], "the worker to wait")
        other.execute(f"UPDATE {table} SET event_key = event_key")
        worker.join(60)
        other.rollback()
    (result,) = results
    assert result.outcome is Outcome.RETRY
    assert "deadlock" in result.reason
    clock.advance(600)
    assert made.process(status("CROSS", 1000)).outcome is Outcome.DONE
    assert postgres_desk(f"SELECT status FROM {table}") == [("CROSS",)]


def test_a_trigger_that_refuses_is_an_ordinary_failure(desk, bridge):  # noqa: F811
    """Somebody's own rule may change its mind: tried again up to the limit. Its words may hold data, and stay out."""
    make_tables(desk)
    if desk.engine == "sqlite":
        desk(f"CREATE TRIGGER no BEFORE INSERT ON status_log BEGIN SELECT RAISE(ABORT, '{SAID}'); END")
    else:
        desk(
            f"CREATE FUNCTION {desk.prefix}no() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{SAID}'; END $$"
        )
        desk(
            f"CREATE TRIGGER no BEFORE INSERT ON {desk.prefix}status_log FOR EACH ROW "
            f"EXECUTE FUNCTION {desk.prefix}no()"
        )
    made = bridge(log(desk))
    result = made.process(status("IDLE"))
    assert result.outcome is Outcome.RETRY
    assert SAID not in result.reason


@pytest.mark.parametrize(
    "state",
    ["42601", "42P01", "42501", "40001", "40P01", "57014", "53100", "55P03", "XX000", "25006", "23514", "23502"],
)
@pytest.mark.parametrize("database", ["its own", "ledger"])
def test_a_trigger_says_nothing_in_a_reason(postgres_desk, bridge, state, database):  # noqa: F811
    """Whatever code a trigger raises with, nothing that it says is in the reason: its words and names may be data."""
    make_tables(postgres_desk)
    table = f"{postgres_desk.prefix}status_log"
    says = "COLUMN = new.status, CONSTRAINT = new.status, TABLE = new.status, HINT = new.status, DETAIL = new.status"
    postgres_desk(
        f"CREATE FUNCTION {postgres_desk.prefix}no() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION USING MESSAGE = new.status, ERRCODE = '{state}', {says}; END $$"
    )
    postgres_desk(
        f"CREATE TRIGGER no BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {postgres_desk.prefix}no()"
    )
    if database == "its own":
        made = bridge(log(postgres_desk))
    else:
        ledger = ledger_from_url(postgres_desk.ledger_url)
        ledger.migrate()
        made = bridge(log(postgres_desk, database="ledger"), ledger=ledger)
    result = made.process(status(SAID))
    assert result.outcome in (Outcome.RELEASE, Outcome.RETRY, Outcome.DEAD)
    assert SAID not in repr(result)
    assert not any(SAID in letter.reason for letter in made.dead_letters.list())


@pytest.mark.parametrize("state", ["42P01", "42501", "40001", "P0001"])
def test_what_a_deferred_trigger_refuses_is_an_ordinary_failure(postgres_desk, bridge, state):  # noqa: F811
    """A trigger that is asked at the commit is not the ledger's trouble, whatever its code: no other event waits."""
    make_tables(postgres_desk)
    table = f"{postgres_desk.prefix}status_log"
    postgres_desk(
        f"CREATE FUNCTION {postgres_desk.prefix}no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF new.status = '{SAID}' THEN RAISE EXCEPTION USING MESSAGE = new.status, ERRCODE = '{state}'; END IF; "
        f"RETURN new; END $$"
    )
    postgres_desk(
        f"CREATE CONSTRAINT TRIGGER no AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        f"EXECUTE FUNCTION {postgres_desk.prefix}no()"
    )
    ledger = ledger_from_url(postgres_desk.ledger_url)
    ledger.migrate()
    made = bridge(log(postgres_desk, database="ledger"), ledger=ledger)
    refused, taken = made.process_many([status(SAID), status("IDLE", 1000)])
    assert refused.outcome is Outcome.RETRY
    assert SAID not in repr(refused)
    assert taken.outcome is Outcome.DONE
    assert len(keys(postgres_desk)) == 1


def test_a_database_that_drips_is_given_up(postgres_desk, bridge, monkeypatch):  # noqa: F811
    """A database that never stops sending, a byte at a time, has one deadline like a silent one."""
    make_tables(postgres_desk)
    monkeypatch.setattr("oncebridge.sinks.table.postgres.ANSWER_US", 300_000)
    with running_proxy(urlsplit(postgres_desk.url).port) as proxy:
        postgres_desk.url = proxy.url(postgres_desk.url)
        made = bridge(log(postgres_desk), clock=SystemClock())
        assert made.process(status("IDLE")).outcome is Outcome.DONE
        proxy.drip(0.25)
        began = monotonic()
        result = made.process(status("IDLE", 1000))
        assert monotonic() - began < DRIPPED_SECONDS
        assert result.outcome is Outcome.RETRY
        assert "too long" in result.reason
        proxy.heal()
        assert made.process(status("IDLE", 2000)).outcome is Outcome.DONE


STATES = {
    "08006": "WriteInterrupted",
    "57P01": "WriteInterrupted",
    "57P03": "WriteInterrupted",
    "57014": "WriteInterrupted",
    "53100": "WriteInterrupted",
    "53300": "WriteInterrupted",
    "55P03": "WriteInterrupted",
    "XX000": "WriteInterrupted",
    "40001": "WriteDisturbed",
    "40P01": "WriteDisturbed",
    "22P02": "RowRefused",
    "22007": "RowRefused",
    "23505": "RowRefused",
    "23514": "RowRefused",
    "23P01": "RowRefused",
    "54000": "RowRefused",
    "42P01": "DatabaseUnavailable",
    "42703": "DatabaseUnavailable",
    "42804": "DatabaseUnavailable",
    "42501": "DatabaseUnavailable",
    "3F000": "DatabaseUnavailable",
    "25006": "DatabaseUnavailable",
    "P0001": "WriteFailed",
    "38000": "WriteFailed",
}


@pytest.mark.parametrize("state", STATES)
def test_what_postgres_says_is_somebodys_fault(sqlite_desk, state):  # noqa: F811
    """By its code: the event's, the database's, or nobody's; and only names are repeated."""
    error = psycopg.errors.lookup(state)("said") if state != "08006" else psycopg.OperationalError("said")
    assert type(translate_error(error, agents(sqlite_desk), list(COLUMNS), "here")).__name__ == STATES[state]
