"""The tables of the Postgres ledger: migrations, partitions that come and go, rights, and what its rows can hold."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import date, timedelta
from urllib.parse import urlsplit

import psycopg
import pytest

from ledgers.on_postgres import LETTER, as_done, claim, key, new_schema, opened, run, schema_of, take, verdict
from oncebridge.claim import Ask, Claim, Letter, Outcome, Settlement, Status, Verdict
from oncebridge.clock import SystemClock
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.ledgers import DAY_MS
from oncebridge.ledgers.postgres import migration
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.ledgers.postgres.wire import day_of
from oncebridge.ledgers.protocol import Query
from oncebridge.topics import topic_pattern
from servers.process import wait_until

LONG_AGO = 10_000  # 1997-05-19
FAR_AHEAD = 47_482  # 2100-01-01


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


def today():
    """Return the day by this machine's clock, in UTC."""
    return SystemClock().now_us() // 1000 // DAY_MS


def on(day):
    """Return the fields of an event of that day."""
    return {"shared_ms": day * DAY_MS + 1, "time_ms": day * DAY_MS + 1}


def do(ledger, number, outcome=Outcome.DONE, **fields):
    """Claim one event and end it."""
    held = take(ledger, number, **fields)
    letter = LETTER if outcome is Outcome.DEAD else None
    assert ledger.settle([Settlement(held, outcome, 0, letter)]) == [True]
    return held


# --- migrations -------------------------------------------------------------------------------------------------


def test_an_empty_database_is_refused_with_the_command_that_helps(postgres):
    """Without tables nothing is done, and the message names the command, without a password."""
    separator = "&" if "?" in postgres.url else "?"
    ledger = PostgresLedger(f"{postgres.url}{separator}schema=nobody_made_this&password=tell-nobody")
    with pytest.raises(
        LedgerRefused, match=r"oncebridge migrate --ledger 'postgresql://.*schema=nobody_made_this'"
    ) as refused:
        ledger.open(None)
    assert "tell-nobody" not in str(refused.value)
    assert run(postgres.url, "SELECT to_regnamespace('nobody_made_this')") == [(None,)]
    with pytest.raises(LedgerUnavailable, match="not open"):
        verdict(ledger, 1)


def test_a_newer_schema_is_refused(url, ledger):
    """What a newer Oncebridge made is left alone, by open and by migrate, and the message says what to do."""
    newer = str(migration.SCHEMA_VERSION + 1).encode()
    run(url, f"UPDATE {schema_of(url)}.meta SET value = %s WHERE name = 'schema'", newer)
    for use in (lambda: PostgresLedger(url).open(None), PostgresLedger(url).migrate):
        with pytest.raises(LedgerRefused, match="newer Oncebridge"):
            use()
    assert run(url, f"SELECT value FROM {schema_of(url)}.meta WHERE name = 'schema'") == [(newer,)]


def test_migrations_at_the_same_moment_are_one(postgres, url):
    """Several who migrate an empty database at once all find it migrated, and it was done once."""
    schema = schema_of(url)
    run(url, f"DROP SCHEMA {schema} CASCADE")
    start = threading.Barrier(4)

    def migrate(_):
        start.wait()
        PostgresLedger(url).migrate()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, range(4)))
    with opened(url) as ledger:
        assert verdict(ledger, 1) is Verdict.FRESH
    assert run(url, f"SELECT count(*) FROM {schema}.meta WHERE name = 'schema'") == [(1,)]


def test_a_migration_disturbs_no_worker(url):
    """While tables, functions and partitions are made again, workers go on without an error."""
    schema = schema_of(url)
    over = threading.Event()

    def work(number):
        done = 0
        with opened(url) as ledger:
            while not over.is_set():
                do(ledger, number * 1_000_000 + done, **on(today()))
                done += 1
        return done

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(work, number) for number in (1, 2)]
        try:
            for _ in range(5):
                run(url, f"DROP TABLE IF EXISTS {schema}.{place(today() + migration.DAYS_AHEAD)}")
                PostgresLedger(url).migrate()
        finally:
            over.set()
        assert all(each.result() > 0 for each in working)


def place(day):
    """Return the name of a day's partition."""
    return f"event_{date(1970, 1, 1) + timedelta(days=day):%Y%m%d}"


# --- partitions -------------------------------------------------------------------------------------------------


def places(url):
    """Return in which partition each event is."""
    found = run(url, f"SELECT key, tableoid::regclass::text FROM {schema_of(url)}.event")
    return {int.from_bytes(name, "big"): table.rpartition(".")[2] for name, table in found}


def test_events_are_kept_by_the_day_of_their_time(url, ledger):
    """Each has its day's partition; odd days and events without such a time have places of their own."""
    do(ledger, 1, **on(today()))
    do(ledger, 2, **on(today() + 1))
    do(ledger, 3, **on(FAR_AHEAD))
    do(ledger, 4, **on(LONG_AGO))
    do(ledger, 5)
    do(ledger, 6, shared_ms=-1)
    do(ledger, 7, shared_ms=2**62)
    assert places(url) == {
        1: place(today()),
        2: place(today() + 1),
        **dict.fromkeys((3, 4, 7), "event_other"),
        **dict.fromkeys((5, 6), "event_undated"),
    }
    for number, fields in ((1, on(today())), (3, on(FAR_AHEAD)), (4, on(LONG_AGO)), (7, {"shared_ms": 2**62})):
        assert verdict(ledger, number, **fields) is Verdict.REPUBLISH
    assert [day_of(Ask(key=entry.key, home=entry.home)) for entry in ledger.get(key(1))] == [today()]


def test_a_letter_is_found_by_its_home_alone(url, ledger):
    """To discard a dead letter one need not know its time: its home says where it is."""
    do(ledger, 1, Outcome.DEAD, **on(today()))
    (entry,) = ledger.scan(Query(letters=True))
    ask = Ask(key=entry.key, home=entry.home, alone=True, redrive=True, force=True)
    (answer,) = claim(ledger, ask)
    assert ledger.settle([Settlement(Claim(ask, answer.token), Outcome.DISCARD)]) == [True]
    assert verdict(ledger, 1, **on(today())) is Verdict.REPUBLISH
    assert ledger.counts() == {Status.DISCARD: 1}


def test_a_days_partition_takes_over_what_came_before_it(url, ledger):
    """Events that came before their day had a partition move into it, and stay what they were."""
    do(ledger, 0, **on(FAR_AHEAD))  # has looked after partitions today
    run(url, f"DROP TABLE {schema_of(url)}.{place(today() + 1)}")
    do(ledger, 1, **on(today() + 1))
    held = take(ledger, 2, **on(today() + 1))
    assert set(places(url).values()) == {"event_other"}
    with opened(url) as other:
        assert verdict(other, 1, **on(today() + 1)) is Verdict.REPUBLISH
    assert places(url) == {0: "event_other", 1: place(today() + 1), 2: place(today() + 1)}
    assert ledger.settle([Settlement(held, Outcome.DONE)]) == [True]


def test_a_settle_finds_what_moves_meanwhile(url, ledger):
    """A claim whose event is being moved into its day's partition is settled there, never taken for lost."""
    do(ledger, 0, **on(FAR_AHEAD))  # has looked after partitions today
    run(url, f"DROP TABLE {schema_of(url)}.{place(today() + 1)}")
    held = take(ledger, 1, **on(today() + 1))
    with closing(psycopg.connect(**ledger._address.parameters)) as mover, ThreadPoolExecutor(1) as pool:
        mover.execute(f"SELECT {schema_of(url)}.make_places()")
        settling = pool.submit(settle_in_the_end, ledger, held)
        wait_until(lambda: run(url, "SELECT 1 FROM pg_locks WHERE NOT granted"), "the settle to wait for the move")
        mover.commit()
        assert settling.result() == [True]
    assert places(url)[1] == place(today() + 1)


def settle_in_the_end(ledger, held):
    """Settle, again where a busy machine made it wait for too long."""
    while True:
        with suppress(LedgerUnavailable):
            return ledger.settle([Settlement(held, Outcome.DONE)])


def test_partitions_are_made_once_by_many(url):
    """Workers who come first on a new day at the same moment make its partitions once, and lose nothing."""
    schema = schema_of(url)
    for day in (today(), today() + 1):
        run(url, f"DROP TABLE {schema}.{place(day)}")
    start = threading.Barrier(6)

    def work(number):
        with opened(url) as ledger:
            start.wait()
            for event in range(10):
                do(ledger, 100 * number + event, **on(today() + event % 2))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    with opened(url) as ledger:
        assert verdict(ledger, 1000) is Verdict.FRESH
        assert ledger.counts() == {Status.DONE: 60, Status.CLAIMED: 1}
    assert set(places(url).values()) == {place(today()), place(today() + 1), "event_undated"}


@pytest.fixture
def old_day(url):
    """Return a day long ago that has a partition."""
    schema = schema_of(url)
    run(url, f"CREATE TABLE {schema}.{place(LONG_AGO)} PARTITION OF {schema}.event FOR VALUES IN ({LONG_AGO})")
    return LONG_AGO


def has(url, day):
    """Tell whether a day has a partition."""
    return run(url, f"SELECT to_regclass('{schema_of(url)}.{place(day)}') IS NOT NULL") == [(True,)]


def test_a_day_is_dropped_whole(url, ledger, old_day):
    """Once all of an old day was settled before the retention, its partition goes, and later twins are fresh."""
    for number in range(5):
        do(ledger, number, **on(old_day))
    do(ledger, 9, **on(today()))
    assert ledger.purge(older_than_us=3_600_000_000) == 0
    assert has(url, old_day)
    assert ledger.purge(older_than_us=0) == 6
    assert not has(url, old_day)
    assert has(url, today()), "events of today may still come"
    assert verdict(ledger, 1, **on(old_day)) is Verdict.FRESH


@pytest.mark.parametrize("outcome", [Outcome.DEAD, Outcome.RETRY, Outcome.RELEASE, None])
def test_a_day_with_something_to_do_stays(url, ledger, old_day, outcome):
    """A day that holds a dead letter or anything unfinished is not dropped; what is settled in it goes all the same."""
    do(ledger, 1, **on(old_day))
    held = take(ledger, 2, **on(old_day)) if outcome is None else do(ledger, 2, outcome, **on(old_day))
    assert ledger.purge(older_than_us=0) == 1
    assert has(url, old_day)
    assert [int.from_bytes(name, "big") for (name,) in run(url, f"SELECT key FROM {schema_of(url)}.event")] == [2]
    assert outcome is not None or ledger.settle([Settlement(held, Outcome.DONE)]) == [True]


def test_a_day_with_one_young_event_stays_whole(url, ledger, old_day):
    """The newest settle decides for the whole day: nothing of it is forgotten before."""
    do(ledger, 1, **on(old_day))
    run(url, f"UPDATE {schema_of(url)}.event SET changed_us = changed_us - 7200000000")
    do(ledger, 2, **on(old_day))
    assert ledger.purge(older_than_us=3_600_000_000) == 0
    assert verdict(ledger, 1, **on(old_day)) is Verdict.REPUBLISH


def test_a_purge_waits_for_nobody(url, ledger, old_day):
    """Where somebody is at work in an old day, the purge leaves the partition, and workers do not notice it."""
    do(ledger, 1, **on(old_day))
    with psycopg.connect(**ledger._address.parameters) as other:
        other.execute(f"SELECT FROM {schema_of(url)}.event WHERE day = {old_day} FOR UPDATE")
        assert ledger.purge(older_than_us=0) == 0
        assert has(url, old_day)
    assert ledger.purge(older_than_us=0) == 1
    assert not has(url, old_day)


def test_many_events_are_forgotten_a_little_at_a_time(ledger, monkeypatch):
    """Events without a day are deleted page by page, all of them."""
    monkeypatch.setattr("oncebridge.ledgers.postgres.ledger.PURGE_PAGES", 2)
    asks = [Ask(key=key(number), topic="t" * 200) for number in range(300)]
    answers = claim(ledger, *asks)
    pairs = zip(asks, answers, strict=True)
    assert all(ledger.settle([Settlement(Claim(ask, answer.token), Outcome.DONE) for ask, answer in pairs]))
    assert ledger.purge(older_than_us=0) == 300
    assert ledger.counts() == {}


# --- rights -----------------------------------------------------------------------------------------------------


@pytest.fixture
def modest(postgres, url):
    """Return the URL of a user who owns nothing."""
    schema = schema_of(url)
    name = f"{schema}_modest"
    run(url, f"CREATE ROLE {name} LOGIN PASSWORD 'modest'")
    user, _, place = url.rpartition("@")
    try:
        yield f"{user.partition('://')[0]}://{name}:modest@{place}", name
    finally:
        run(url, f"DROP OWNED BY {name}")
        run(url, f"DROP ROLE {name}")


def test_a_worker_need_not_own_the_tables(url, modest):
    """With the rights that the message names, a user can do everything, also make and drop partitions."""
    theirs, name = modest
    schema = schema_of(url)
    with pytest.raises(LedgerRefused, match=r"grant this user USAGE|may not see it"):
        PostgresLedger(theirs).open(None)
    run(url, f"GRANT USAGE ON SCHEMA {schema} TO {name}")
    run(url, f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {name}")
    with pytest.raises(LedgerRefused, match="SELECT, INSERT, UPDATE and DELETE on its tables"):
        PostgresLedger(theirs).open(None)
    run(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}")
    run(url, f"DROP TABLE {schema}.{place(today() + 1)}")
    with opened(theirs) as ledger:
        do(ledger, 1, **on(today() + 1))
        do(ledger, 2, Outcome.DEAD, **on(today()))
        with ledger.transaction(as_done(take(ledger, 3, **on(today())))):
            pass
        assert places(url)[1] == place(today() + 1)
        assert ledger.purge(older_than_us=0) == 2
        assert {finding.subject for finding in ledger.examine()} >= {"version", "disk", "partitions"}


def test_a_read_replica_is_named(url, modest):
    """Where nothing can be written, the message says where to connect instead."""
    theirs, name = modest
    schema = schema_of(url)
    run(url, f"GRANT USAGE ON SCHEMA {schema} TO {name}")
    run(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}")
    with opened(theirs) as ledger:
        take(ledger, 1)
        run(url, f"ALTER ROLE {name} SET default_transaction_read_only = on")
        ledger._own.forget()
        with pytest.raises(LedgerUnavailable, match="use the address of the primary"):
            take(ledger, 2)
        run(url, f"ALTER ROLE {name} SET default_transaction_read_only = off")
        take(ledger, 2)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_the_users_own_isolation_does_not_matter(url, modest, isolation):
    """A user whose transactions are stricter by default works all the same: the ledger chooses its own."""
    theirs, name = modest
    run(url, f"ALTER ROLE {name} SUPERUSER")
    run(url, f"ALTER ROLE {name} SET default_transaction_isolation = '{isolation}'")
    with opened(theirs) as ledger:
        do(ledger, 1)
        with ledger.transaction(as_done(take(ledger, 2))) as transaction:
            assert transaction.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
        ledger._own.forget()
        assert verdict(ledger, 1) is Verdict.REPUBLISH


# --- what rows can hold -----------------------------------------------------------------------------------------


def test_a_letter_with_a_nul_is_kept(ledger):
    """Postgres' text cannot hold U+0000 or half a character: a letter with either is kept, and shows where it was."""
    held = take(ledger, 1, envelope="a\0b", topic="t\0", handler="h\0")
    letter = Letter(raw=b"\0raw", reason="bad \0 byte", detail="at \ud800 \0")
    assert ledger.settle([Settlement(held, Outcome.DEAD, 0, letter)]) == [True]
    (entry,) = ledger.get(key(1))
    assert (entry.raw, entry.reason, entry.detail) == (b"\0raw", "bad ␀ byte", "at \\ud800 ␀")
    assert verdict(ledger, 1, envelope="a\0b", handler="h\0") is Verdict.REDELIVERY
    assert [entry.key for entry in ledger.scan(Query(reason="\0"))] == [key(1)]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "UTF8"])
def test_the_encoding_of_the_database_does_not_matter(postgres, encoding):
    """Names are found again under any encoding of the database, also where it has none."""
    name = f"encoded_{encoding.lower()}"
    run(postgres.url, f"DROP DATABASE IF EXISTS {name}")
    run(postgres.url, f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        url = urlsplit(postgres.url)._replace(path=f"/{name}").geturl()
        PostgresLedger(url).migrate()
        with opened(url) as ledger:
            do(ledger, 1, handler="Größe", topic="é")
            assert verdict(ledger, 1, handler="Größe") is Verdict.REPUBLISH
            assert [(entry.handler, entry.topic) for entry in ledger.get(key(1))] == [("Größe", "é")]
    finally:
        run(postgres.url, f"DROP DATABASE {name} WITH (FORCE)")


def test_topics_are_matched_as_handlers_match_them(ledger):
    """A pattern finds in the ledger what it finds everywhere else, odd characters and all."""
    topics = ["a.b.c", "a.b", "a.x-y.c", "a.b\nc", "(a|b)+", "a\\b", "[x]", "{id}", "a b", "é.ü", "a.b.c.d", "", "$^.?"]
    for number, topic in enumerate(topics):
        take(ledger, number, topic=topic)
    for pattern in [*topics, "a.{id}.c", "a.*", "*", "{x}", "*.c", "a.{}.{}", "***", "{a}{b}", "*b*"]:
        expected = [topic for topic in topics if topic_pattern(pattern).fullmatch(topic)]
        assert [entry.topic for entry in ledger.scan(Query(topic=pattern))] == expected, pattern
    assert [entry.topic for entry in ledger.scan(Query(topic="a*", limit=2))] == ["a.b.c", "a.b"]
