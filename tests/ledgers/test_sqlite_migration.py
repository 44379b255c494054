"""A SQLite ledger of the first version is brought up to date when it is opened, and forgets nothing on the way.

`sqlite_version_1.sql` is the dump of a file that the first version wrote, with the clock of the contract's stage.
"""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from oncebridge.claim import Chain, Claim, Letter, Outcome, Settlement, Status, Verdict, newest_of
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.protocol import Query
from oncebridge.ledgers.sqlite import schema
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.testing.ledger_contract.stage import LETTER, STATE_TOPIC, LedgerStage, digest, settlement_of

VERSION_1 = (Path(__file__).parent / "sqlite_version_1.sql").read_text()
LAST_TOKEN = 1_767_225_601_100_000


@pytest.fixture(params=["again_us", "retry_at_us"])
def path(tmp_path, request):
    """Return a file of version 1, under either name that one of its columns has had."""
    path = tmp_path / "once.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(VERSION_1.replace("again_us", request.param))
    return path


@pytest.fixture
def stage(path):
    """Return a worker whose clock is where it was when the file was written."""
    stage = LedgerStage()
    stage.set_up(lambda clock: SQLiteLedger(path, clock))
    stage.run_out()
    yield stage
    stage.tear_down()


def tables(path):
    """Return the version and the columns of each table."""
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return {name: db.execute(f"PRAGMA table_info({name})").fetchall() for name in names}


def dump(path):
    """Return everything that is in a file."""
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def of(name):
    """Return the entity of that name, as a field of an ask."""
    return {"entity": digest(name)}


def test_it_becomes_like_a_new_file(path, stage, tmp_path):
    """After it was opened, a file of version 1 has the tables of a new one, column by column."""
    stage.ledger.close()
    new = SQLiteLedger(tmp_path / "new.db")
    new.open(None)
    new.close()
    assert tables(path) == tables(tmp_path / "new.db")


def test_a_look_does_not_bring_it_up_to_date(path):
    """A file of version 1 is not looked into, is not changed, and the error says what changes it."""
    before = path.read_bytes()
    with pytest.raises(LedgerRefused, match=r"older Oncebridge \(schema 1\).*migrate"):
        SQLiteLedger(path).open_to_look(None)
    assert path.read_bytes() == before


def test_nothing_settled_is_processed_again(stage):
    """Facts, states, echoes, stale states and dead letters that were settled are duplicates, and contents compared."""
    before = {Status.DONE: 6, Status.RETRY: 2, Status.RELEASE: 1, Status.DEAD: 2, Status.CLAIMED: 5}
    assert stage.counted() == {**before, Status.ECHO: 1, Status.STALE: 1}
    for ask, was in [
        (stage.fact("done"), Status.DONE),
        (stage.fact("done", handler="another"), Status.DEAD),
        (stage.fact("dead"), Status.DEAD),
        (stage.state("one", "here", 0), Status.DONE),
        (stage.state("echo", "here", 100), Status.ECHO),
        (stage.state("stale", "away", -100), Status.STALE),
        (stage.state("Bea 1", "here", 0, **of("Bea")), Status.DONE),
    ]:
        answer = stage.answer(ask)
        assert (answer.verdict, answer.was, answer.of) == (Verdict.REDELIVERY, was, ask.envelope)
    torn = stage.fact("torn", content=digest("other content"))
    assert stage.verdict(torn) is Verdict.CONFLICT
    entry = stage.entry(stage.fact("dead"))
    assert Letter(raw=entry.raw, reason=entry.reason, detail=entry.detail) == LETTER
    assert stage.do(stage.fact("dead", redrive=True)).attempt == 1


def test_what_is_not_settled_goes_on(stage):
    """Attempts, claims that run and claims that ran out are as they were, and new tokens are above the old ones."""
    assert stage.take(stage.fact("retry")).attempt == 2
    assert stage.take(stage.fact("release")).attempt == 1
    assert stage.verdict(stage.fact("under way", alone=True)) is Verdict.BUSY
    assert stage.answer(stage.fact("ran out")).wants_alone
    assert stage.take(stage.state("new", "away", 9000)).token >= LAST_TOKEN


def test_echo_and_stale_are_still_recognised(stage):
    """The newest state, its window and the line of stale, which an echo has moved, are where they were."""
    assert stage.verdict(stage.state("again", "here", 500)) is Verdict.ECHO
    assert stage.verdict(stage.state("older", "away", 499)) is Verdict.STALE
    assert stage.verdict(stage.state("later", "here", 501)) is Verdict.FRESH


def test_the_line_that_an_echo_moved_stays(stage):
    """A state between the newest done one and an echo of it is stale; the window is measured from the done one."""
    assert stage.verdict(stage.state("between", "away", 99)) is Verdict.STALE
    assert stage.verdict(stage.state("at", "away", 100)) is Verdict.FRESH


def test_times_and_versions_are_kept(stage):
    """A moment of several times and a version is read as it was written, though its event was forgotten."""
    moment = stage.moment(0, None, 5, version=6)
    assert stage.verdict(stage.state("Eva 0", "away", 0, moment=moment, **of("Eva"))) is Verdict.STALE
    moment = stage.moment(400, None, 405, version=8)
    assert stage.verdict(stage.state("Eva 2", "here", 0, moment=moment, **of("Eva"))) is Verdict.ECHO


def test_a_claim_under_way_ran_out(stage):
    """A claim under way keeps the entity until its lease ends, and nothing of that entity is sure afterwards."""
    ask = stage.state("Bea 3", "here", 100, **of("Bea"))
    assert stage.verdict(ask) is Verdict.BUSY
    stage.advance(stage.lease_us / 1_000_000)
    assert stage.answer(stage.state("Bea 2", "away", 1000, **of("Bea"))).wants_alone
    claim = stage.take(ask)
    assert claim.chain.ran_out
    assert newest_of(claim.chain).unsure
    for name in ("Dora", "Fay"):
        claim = stage.take(stage.state(f"{name} 3", "here", 100, **of(name)))
        assert claim.chain.ran_out


def test_a_claim_under_way_may_still_be_settled(stage):
    """A worker elsewhere that was granted a claim before ends it as ever, and the entity is free."""
    with closing(sqlite3.connect(stage.ledger.path)) as db:
        ((token,),) = db.execute("SELECT token FROM oncebridge_event WHERE key = ?", (digest("Bea 2"),))
        ((fact,),) = db.execute("SELECT token FROM oncebridge_event WHERE key = ?", (digest("under way"),))
    assert stage.ledger.settle([Settlement(Claim(stage.fact("under way"), fact), Outcome.DONE)]) == [True]
    chain = Chain(top=token, now_us=stage.now_us())
    claim = Claim(stage.state("Bea 2", "away", 1000, **of("Bea")), token, 1, chain)
    assert stage.ledger.settle([settlement_of(claim)]) == [True]
    assert stage.verdict(stage.state("Bea 3", "away", 1100, **of("Bea"))) is Verdict.ECHO


def test_an_entity_in_doubt_stays_so(stage):
    """Where a state had failed since the newest done one, the same state again is news."""
    assert stage.verdict(stage.state("Cleo 3", "here", 100, **of("Cleo"))) is Verdict.FRESH


def test_newest_states_are_found(stage):
    """A scan of entities shows the newest done event of each, with its topic, its time, its envelope and its user."""
    (entry,) = stage.ledger.scan(Query(entities=True, subject=digest("a user")))
    assert (entry.key, entry.topic, entry.envelope) == (digest("one"), STATE_TOPIC, "envelope of one")
    assert entry.time_ms == stage.state("one", "here", 0).time_ms
    names = {digest(name) for name in ("one", "Bea 1", "Cleo 1", "Fay 1")}
    assert set(stage.found(entities=True)) == names


def test_it_is_all_or_nothing(path, stage, monkeypatch):
    """A migration that breaks off leaves the file as it was, and the next one succeeds."""
    before = dump(path)
    written = []

    def break_off(newest):
        written.append(newest)
        if len(written) == 4:
            raise MemoryError
        return b""

    with monkeypatch.context() as patch:
        patch.setattr(schema, "write_newest", break_off)
        with pytest.raises(MemoryError):
            stage.opened()
    assert dump(path) == before
    assert stage.verdict(stage.state("again", "here", 500)) is Verdict.ECHO


def test_workers_that_start_together_migrate_once(path):
    """Of workers that open a file of version 1 at the same moment, each finds it up to date, and nothing twice."""
    start = Barrier(4)

    def count(_):
        ledger = SQLiteLedger(path)
        start.wait()
        ledger.open(None)
        try:
            return sum(ledger.counts().values()), len(list(ledger.scan(Query(entities=True))))
        finally:
            ledger.close()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(count, range(4))) == {(18, 4)}
