"""A Postgres ledger of schema 1 is brought to schema 2 by `migrate`, and forgets nothing on the way."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest

from ledgers.on_postgres import new_schema, run, schema_of
from oncebridge.claim import Letter, Outcome, Status, Verdict, newest_of
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.findings import Level
from oncebridge.ledgers.postgres import from_schema_1, migration
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.ledgers.postgres.wire import day_of
from oncebridge.ledgers.protocol import Query
from oncebridge.testing.ledger_contract.stage import LETTER, STATE_TOPIC, LedgerStage, digest
from servers.process import wait_until

SCHEMA_1 = (Path(__file__).parent / "postgres_schema_1.sql").read_text()
GONE_US = 1  # over before anybody can ask again
NONCE = b"12345678"


class FirstWorker:
    """Calls the functions of schema 1, as a worker of its time did."""

    def __init__(self, url):
        """Connect."""
        self.schema = schema_of(url)
        self.db = psycopg.connect(**PostgresLedger(url)._address.parameters, autocommit=True)

    def claim(self, ask, *, lease_us=LedgerStage.lease_us):
        """Claim one event; return its verdict and token."""
        moment = ask.moment
        columns = {
            "days": day_of(ask), "keys": ask.key, "handlers": ask.handler, "envelopes": ask.envelope,
            "contents": ask.content, "entities": ask.entity, "states": ask.state, "times": times(moment),
            "versions": moment.version, "echoes": moment.echoes, "windows_ns": ask.echo_window_ns, "stales": ask.stale,
            "topics": ask.topic, "times_ms": ask.time_ms, "conversations": ask.conversation, "users": ask.user,
            "alones": ask.alone, "redrives": ask.redrive, "forces": ask.force,
        }  # fmt: skip
        ((verdict, token),) = self.call("verdicts[1], tokens[1]", "claim", columns, [NONCE, lease_us])
        return verdict, token

    def settle(self, ask, token, outcome=Outcome.DONE):
        """End one claim; return whether it was in force."""
        letter = LETTER if outcome is Outcome.DEAD else None
        columns = {
            "days": day_of(ask), "keys": ask.key, "handlers": ask.handler, "entities": ask.entity, "tokens": token,
            "outcomes": outcome.value, "retries": 0, "states": ask.state, "times": times(ask.moment),
            "versions": ask.moment.version, "echoes": ask.moment.echoes, "raws": letter and letter.raw,
            "reasons": letter and letter.reason, "details": letter and letter.detail,
        }  # fmt: skip
        ((kept,),) = self.call("kept[1]", "settle", columns, [])
        return kept

    def extend(self, ask, token):
        """Extend one claim."""
        columns = {"days": day_of(ask), "keys": ask.key, "handlers": ask.handler, "entities": ask.entity, "t": token}
        return self.call("kept[1]", "extend", columns, [1000])

    def call(self, answer, function, columns, others):
        """Call a function with arrays of one element each, and null for those that have none."""
        values = [None if value is None else [value] for value in columns.values()]
        places = ", ".join(["%s"] * (len(values) + len(others)))
        return self.db.execute(
            f"SELECT {answer} FROM {self.schema}.{function}({places})", [*values, *others]
        ).fetchall()

    def do(self, ask, outcome=Outcome.DONE):
        """Claim one event and end it."""
        verdict, token = self.claim(ask)
        assert verdict == "fresh"
        assert self.settle(ask, token, outcome)


def times(moment):
    """Write the times of a moment as schema 1 took them."""
    return "{" + ",".join("NULL" if time is None else str(time) for time in moment.times) + "}"


def of(name):
    """Return the entity of that name, as a field of an ask."""
    return {"entity": digest(name)}


@pytest.fixture(params=["again_us", "retry_at_us"])
def url(postgres, request):
    """Return a ledger of schema 1, under either name that one of its columns has had."""
    with new_schema(postgres) as url:
        schema = schema_of(url)
        run(url, f"DROP SCHEMA {schema} CASCADE")
        run(url, f"CREATE SCHEMA {schema}")
        run(url, SCHEMA_1.replace("{schema}", schema).replace("again_us", request.param))
        run(url, f"SELECT {schema}.make_places()")
        yield url


@pytest.fixture
def stage_of():
    """Return what makes short words for a worker of today."""
    with ExitStack() as ends:

        def make(url):
            stage = LedgerStage()
            stage.real_time = True
            stage.set_up(lambda clock: PostgresLedger(url, clock))
            ends.callback(stage.tear_down)
            return stage

        yield make


@pytest.fixture
def stage(url, stage_of):
    """Return short words for a worker of today, on the ledger of schema 1."""
    return stage_of(url)


@pytest.fixture
def first(url, stage):
    """Return a worker of schema 1 that has done something of every kind."""
    worker = FirstWorker(url)
    with closing(worker.db):
        worker.do(stage.fact("done"))
        worker.do(stage.fact("done", handler="another"), Outcome.DEAD)
        worker.do(stage.fact("dead"), Outcome.DEAD)
        worker.do(stage.fact("retry"), Outcome.RETRY)
        worker.do(stage.fact("told", content=digest("its content")))
        worker.claim(stage.fact("under way"))
        worker.claim(stage.fact("ran out"), lease_us=GONE_US)
        worker.do(stage.state("one", "here", 0, user=digest("a user")))
        assert worker.claim(stage.state("echo", "here", 100))[0] == "echo"
        assert worker.claim(stage.state("stale", "away", -100))[0] == "stale"
        worker.do(stage.state("Bea 1", "here", 0, **of("Bea")))
        worker.claim(stage.state("Bea 2", "away", 1000, **of("Bea")), lease_us=GONE_US)
        worker.do(stage.state("Cleo 1", "here", 0, **of("Cleo")))
        worker.do(stage.state("Cleo 2", "away", 50, **of("Cleo")), Outcome.RETRY)
        moment = stage.moment(0, None, 5, version=7)
        worker.do(stage.state("Eva 1", "here", 0, moment=moment, shared_ms=None, **of("Eva")))
        run(url, f"DELETE FROM {worker.schema}.event WHERE key = %s", digest("Eva 1"))
        worker.do(stage.state("Dora 1", "here", 0, **of("Dora")))
        worker.claim(stage.state("Dora 2", "away", 1000, **of("Dora")))
        yield worker


@pytest.fixture
def migrated(first, stage):
    """Return a worker of today on the tables that were migrated."""
    stage.unopened().migrate()
    return stage


def columns(url):
    """Return the columns of each table, and the functions that workers of today call."""
    schema = schema_of(url)
    tables = run(
        url,
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_schema = %s AND table_name IN ('meta', 'event', 'entity', 'letter') ORDER BY 1, 2",
        schema,
    )
    functions = run(
        url, "SELECT proname, pronargs FROM pg_proc WHERE pronamespace = %s::regnamespace ORDER BY 1, 2", schema
    )
    return tables, {name for name in functions if name[0] not in ("claim", "extend", "settle", "settle_pledged")}


def test_it_becomes_like_a_new_one(postgres, url, migrated):
    """After the migration the tables are those of a new ledger, column by column, and no rule of order is left."""
    with new_schema(postgres) as new:
        new_columns, new_functions = columns(new)
        assert columns(url) == (new_columns, new_functions | {("begin_call", 0)})


def test_nothing_settled_is_processed_again(migrated):
    """Facts, states, echoes, stale states and dead letters that were settled are duplicates, and contents compared."""
    before = {Status.DONE: 6, Status.RETRY: 2, Status.DEAD: 2, Status.CLAIMED: 4}
    assert migrated.counted() == {**before, Status.ECHO: 1, Status.STALE: 1}
    for ask, was in [
        (migrated.fact("done"), Status.DONE),
        (migrated.fact("done", handler="another"), Status.DEAD),
        (migrated.fact("dead"), Status.DEAD),
        (migrated.state("one", "here", 0), Status.DONE),
        (migrated.state("echo", "here", 100), Status.ECHO),
        (migrated.state("stale", "away", -100), Status.STALE),
        (migrated.state("Bea 1", "here", 0, **of("Bea")), Status.DONE),
    ]:
        answer = migrated.answer(ask)
        assert (answer.verdict, answer.was, answer.of) == (Verdict.REDELIVERY, was, ask.envelope)
    assert migrated.verdict(migrated.fact("told", content=digest("other content"))) is Verdict.CONFLICT
    entry = migrated.entry(migrated.fact("dead"))
    assert Letter(raw=entry.raw, reason=entry.reason, detail=entry.detail) == LETTER
    assert migrated.do(migrated.fact("dead", redrive=True)).attempt == 1


def test_what_is_not_settled_goes_on(url, migrated):
    """Attempts, claims that run and claims that ran out are as they were, and new tokens are above the old ones."""
    assert migrated.take(migrated.fact("retry")).attempt == 2
    assert migrated.verdict(migrated.fact("under way", alone=True)) is Verdict.BUSY
    assert migrated.answer(migrated.fact("ran out")).wants_alone
    ((last,),) = run(url, f"SELECT max(token) FROM {schema_of(url)}.entity")
    assert migrated.take(migrated.state("new", "away", 9000)).token > last


def test_echo_and_stale_are_still_recognised(migrated):
    """The newest state, its window and the line of stale, which an echo has moved, are where they were."""
    assert migrated.verdict(migrated.state("between", "away", 99)) is Verdict.STALE
    assert migrated.verdict(migrated.state("again", "here", 500)) is Verdict.ECHO
    assert migrated.verdict(migrated.state("older", "away", 499)) is Verdict.STALE
    assert migrated.verdict(migrated.state("later", "here", 501)) is Verdict.FRESH


def test_times_and_versions_are_kept(migrated):
    """A moment of several times and a version is read as it was written, though its event was forgotten."""
    moment = migrated.moment(0, None, 5, version=6)
    assert migrated.verdict(migrated.state("Eva 0", "away", 0, moment=moment, **of("Eva"))) is Verdict.STALE
    moment = migrated.moment(400, None, 405, version=8)
    assert migrated.verdict(migrated.state("Eva 2", "here", 0, moment=moment, **of("Eva"))) is Verdict.ECHO


def test_a_claim_under_way_runs_out(migrated):
    """A claim under way keeps its entity until its lease ends, and nothing of that entity is sure afterwards."""
    assert migrated.verdict(migrated.state("Dora 3", "here", 100, **of("Dora"))) is Verdict.BUSY
    assert migrated.answer(migrated.state("Bea 2", "away", 1000, **of("Bea"))).wants_alone
    claim = migrated.take(migrated.state("Bea 3", "here", 100, **of("Bea")))
    assert claim.chain.ran_out
    assert newest_of(claim.chain).unsure


def test_an_entity_in_doubt_stays_so(migrated):
    """Where a state had failed since the newest done one, the same state again is news."""
    assert migrated.verdict(migrated.state("Cleo 3", "here", 100, **of("Cleo"))) is Verdict.FRESH


def test_newest_states_are_found(migrated):
    """A scan of entities shows the newest done event of each, with its topic, its time, its envelope and its user."""
    (entry,) = migrated.ledger.scan(Query(entities=True, subject=digest("a user")))
    assert (entry.key, entry.topic, entry.envelope) == (digest("one"), STATE_TOPIC, "envelope of one")
    assert entry.time_ms == migrated.state("one", "here", 0).time_ms
    names = {digest(name) for name in ("one", "Bea 1", "Cleo 1", "Dora 1")}
    assert set(migrated.found(entities=True)) == names


def test_a_worker_of_schema_1_is_refused(url, first, stage):
    """A worker that was not updated gets an error that says so from each of its calls, and changes nothing."""
    fact, state = stage.fact("old"), stage.state("old state", "away", 2000)
    _, token = first.claim(fact)
    stage.unopened().migrate()
    before = run(url, f"SELECT * FROM {first.schema}.event ORDER BY key, handler")
    for call in (
        lambda: first.claim(state),
        lambda: first.claim(stage.fact("new")),
        lambda: first.extend(fact, token),
        lambda: first.settle(fact, token),
    ):
        with pytest.raises(psycopg.Error, match="made by a newer Oncebridge") as refused:
            call()
        assert refused.value.sqlstate == "OB003"  # which such a worker takes for a refusal of its ledger
    assert run(url, f"SELECT * FROM {first.schema}.event ORDER BY key, handler") == before


def test_schema_1_is_refused_with_the_command_that_helps(url, first):
    """A worker of today does not touch tables of schema 1, and says how to bring them up to date."""
    with pytest.raises(LedgerRefused, match=r"older Oncebridge \(schema 1.*oncebridge migrate --ledger"):
        PostgresLedger(url).open(None)


def forget_functions(url):
    """Leave the ledger as a program left it that numbered no functions: with one that grants nothing."""
    schema = schema_of(url)
    run(url, f"DELETE FROM {schema}.meta WHERE name = 'functions'")
    run(url, f"DROP FUNCTION {schema}.look_at")
    return schema


def test_functions_that_were_mended_are_brought_to_a_ledger_of_this_schema(postgres, stage_of):
    """A ledger with functions of an older program is found by doctor, and is as good as new after `migrate`."""
    with new_schema(postgres) as url:
        forget_functions(url)
        stage = stage_of(url)
        found = {finding.subject: finding for finding in stage.ledger.examine()}["functions"]
        assert found.level is Level.WRONG
        assert "oncebridge migrate" in found.fix
        stage.unopened().migrate()
        assert stage.verdict(stage.fact("first")) is Verdict.FRESH
        assert {finding.subject: finding.level for finding in stage.ledger.examine()}["functions"] is Level.GOOD


def test_functions_of_a_newer_program_are_left_alone(postgres, stage_of, monkeypatch):
    """An older program that migrates beside a newer one does not take its functions back."""
    with new_schema(postgres) as url:
        schema = forget_functions(url)
        monkeypatch.setattr(migration, "FUNCTIONS_VERSION", 1)
        stage_of(url).unopened().migrate()
        assert (
            run(url, "SELECT 1 FROM pg_proc WHERE proname = 'look_at' AND pronamespace = %s::regnamespace", schema)
            == []
        )


def test_changed_functions_have_a_new_number():
    """Whoever changes these scripts raises `FUNCTIONS_VERSION`, and writes their digest here."""
    scripts = "".join(migration._script(name, "schema") for name in migration.FUNCTIONS)
    assert (migration.FUNCTIONS_VERSION, sha256(scripts.encode()).hexdigest()[:16]) == (2, "09c68b838929ecf6")


def test_it_is_all_or_nothing(url, first, stage, monkeypatch):
    """A migration that breaks off leaves everything to workers of schema 1, and the next one succeeds."""
    monkeypatch.setattr(from_schema_1, "AT_A_TIME", 2)
    written = []

    def break_off(newest):
        written.append(newest)
        if len(written) == 4:
            raise MemoryError
        return b""

    with monkeypatch.context() as patch:
        patch.setattr(from_schema_1, "write_newest", break_off)
        with pytest.raises(MemoryError):
            stage.unopened().migrate()
    assert first.claim(stage.state("echo 2", "here", 200))[0] == "echo"
    stage.unopened().migrate()
    assert stage.verdict(stage.state("again", "here", 500)) is Verdict.ECHO
    assert len(stage.found(entities=True)) == 4


def test_a_call_under_way_ends_before_the_migration(url, first, stage):
    """A migration waits for a call of schema 1 that has begun, so that what it wrote is not lost."""
    state = stage.state("last", "away", 2000)
    first.db.autocommit = False
    _, token = first.claim(state)
    with ThreadPoolExecutor(1) as pool:
        migrating = pool.submit(stage.unopened().migrate)
        wait_until(lambda: run(url, "SELECT 1 FROM pg_locks WHERE NOT granted"), "the migration to wait")
        assert first.settle(state, token)
        first.db.commit()
        migrating.result()
    assert stage.verdict(stage.state("last echo", "away", 2100)) is Verdict.ECHO


def test_several_that_migrate_at_once_migrate_once(url, first):
    """Of those that migrate at the same moment, each finds the tables up to date."""
    start = threading.Barrier(4)

    def migrate(_):
        start.wait()
        PostgresLedger(url).migrate()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, range(4)))
    assert run(url, f"SELECT value FROM {schema_of(url)}.meta WHERE name = 'schema'") == [(b"2",)]
