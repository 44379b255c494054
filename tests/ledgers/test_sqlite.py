"""The SQLite ledger keeps the contract, and what is its own: one file, on a disk that may fail."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ledgers.on_sqlite import WritesEffects, claim, done, is_sound, key, opened, take, verdict
from ledgers.random_moves import SideBySide
from oncebridge.claim import Ask, Claim, Letter, Outcome, Settlement, Status, Verdict
from oncebridge.clock import SystemClock
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.ledgers.sqlite import ledger as sqlite
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.testing.clock import SkewedClock
from oncebridge.testing.ledger_contract import LedgerContract


class TestSQLiteLedger(WritesEffects, LedgerContract):
    """Each worker has a connection of its own to one file."""

    @pytest.fixture
    def new_ledger(self, tmp_path):
        """Open one file for a test, as often as wanted."""
        self.path = tmp_path / "once.db"
        return lambda clock: SQLiteLedger(self.path, clock)

    def stored_bytes(self):
        """Read the file and its log."""
        return b"".join(path.read_bytes() for path in self.path.parent.glob("once.db*"))

    def effects(self):
        """Read the rows through another connection."""
        with closing(sqlite3.connect(self.path)) as db:
            if not db.execute("SELECT * FROM sqlite_master WHERE name = 'effect'").fetchone():
                return []
            return [name for (name,) in db.execute("SELECT name FROM effect ORDER BY rowid")]


def test_very_many_letters_are_not_all_counted(tmp_path, monkeypatch):
    """So many are counted and no more, the newest, and that there are others is told."""
    monkeypatch.setattr("oncebridge.ledgers.sqlite.pages.COUNTED_MAX", 4)
    with opened(tmp_path / "once.db") as ledger:
        counted = []
        for number in range(5):
            letter = Letter(raw=b"{}", reason="old" if number == 0 else "new")
            assert ledger.settle([Settlement(take(ledger, number), Outcome.DEAD, letter=letter)]) == [True]
            found = ledger.letter_groups()
            counted.append(({group.reason: group.number for group in found.groups}, found.total, found.complete))
    assert counted[2:] == [({"new": 2, "old": 1}, 3, True), ({"new": 3, "old": 1}, 4, False), ({"new": 4}, 4, False)]


@pytest.mark.parametrize("seed", range(10))
def test_it_says_what_memory_says(tmp_path, seed):
    """Whatever is asked, settled, extended and repeated, in any order, it decides as memory does, in batches too."""
    with opened(tmp_path / "once.db") as ledger:
        SideBySide(ledger, seed).run(300)


@pytest.fixture
def path(tmp_path):
    """Return where the ledger of a test is."""
    return tmp_path / "once.db"


@pytest.fixture
def ledger(path):
    """Return an open ledger."""
    with opened(path) as ledger:
        yield ledger


# --- the file ---------------------------------------------------------------------------------------------------


def test_nothing_is_written_before_it_is_opened(path):
    """To make a ledger costs nothing; the file is made when it is opened."""
    ledger = SQLiteLedger(path)
    assert not path.exists()
    with pytest.raises(LedgerUnavailable, match="not open"):
        claim(ledger, Ask(key=key(1)))
    assert not path.exists()


def test_only_its_owner_can_read_the_file(path):
    """Secret and dead letters are for the owner alone, in the file and beside it, whatever the umask says."""
    before = os.umask(0)
    try:
        with opened(path) as ledger:
            take(ledger, 1)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"once.db": 0o600, "once.db-wal": 0o600, "once.db-shm": 0o600}


def test_workers_that_start_together_all_open_a_new_file(tmp_path):
    """Of those that want to change how a file is written only one can at a time; no other is told that it is locked."""
    for number in range(60):
        path, ready, troubles = tmp_path / f"{number}.db", threading.Barrier(4), []
        workers = [threading.Thread(target=open_and_close, args=(path, ready, troubles)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert troubles == []


def open_and_close(path, ready, troubles):
    """Open a file at the same moment as others do; add what goes wrong."""
    ready.wait()
    try:
        with opened(path):
            pass
    except LedgerUnavailable as trouble:
        troubles.append(trouble)


#: Comes and goes, as a command does; whoever goes last tidies up the log.
VISITOR = """\
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as db:
    print(db.execute("SELECT count(*) FROM oncebridge_event").fetchone()[0])
db.close()
"""


def test_a_second_ledger_in_the_process_takes_no_locks_from_the_first(ledger, path):
    """A visitor from another process knows that the file is in use, and leaves its log, with all that is in there."""
    take(ledger, 1)
    with opened(path):
        for number in range(2, 4):
            visit = [sys.executable, "-c", VISITOR, str(path)]
            seen = subprocess.run(visit, capture_output=True, text=True, check=True).stdout
            assert int(seen) == number - 1
            assert (path.parent / f"{path.name}-wal").exists()
            take(ledger, number)


def test_a_commit_survives_a_power_cut(ledger):
    """The log is written ahead, and every commit waits for the disk."""
    assert ledger._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_purge_goes_step_by_step(ledger, monkeypatch):
    """A purge forgets everything old, a little at a time, so that workers get their turn."""
    monkeypatch.setattr(sqlite, "PURGE_AT_ONCE", 10)
    ledger.settle([Settlement(take(ledger, number), Outcome.DONE) for number in range(25)])
    with opened(ledger.path, SkewedClock(SystemClock(), 60)) as later:
        assert later.purge(older_than_us=0) == 25
    assert ledger.counts() == {}


# --- files that must not be used --------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(path):
    """A file that a newer Oncebridge wrote is left alone, and the message says what to do."""
    with opened(path) as ledger:
        ledger._db.execute("UPDATE oncebridge_meta SET value = ? WHERE name = 'schema'", (sqlite.SCHEMA_VERSION + 1,))
    with pytest.raises(LedgerRefused, match="newer Oncebridge"), opened(path):
        pass
    with pytest.raises(LedgerRefused, match="newer Oncebridge"):
        SQLiteLedger(path).open_to_look(None)
    with closing(sqlite3.connect(path)) as db:
        kept = db.execute("SELECT value FROM oncebridge_meta WHERE name = 'schema'").fetchone()
    assert kept == (sqlite.SCHEMA_VERSION + 1,)


def test_what_is_no_database_is_refused(path):
    """A file of something else is named as such, and not touched."""
    path.write_bytes(b"the only copy of my thesis\n" * 100)
    with pytest.raises(LedgerRefused, match=r"once\.db.*not a ledger"), opened(path):
        pass
    assert path.read_bytes() == b"the only copy of my thesis\n" * 100


def test_a_damaged_file_is_refused(path):
    """A file that was overwritten is refused, never read as an empty ledger."""
    with opened(path) as ledger:
        ledger.settle([Settlement(take(ledger, number), Outcome.DONE) for number in range(500)])
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(LedgerRefused, match="damaged"), opened(path) as ledger:
        verdict(ledger, 1)


def test_a_file_may_hold_the_handlers_own_tables(path):
    """What handlers write in their transaction lives in the same file: a database that exists becomes a ledger too."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE effect (name TEXT)")
    with opened(path) as ledger:
        with ledger.transaction(done(take(ledger, 1))) as transaction:
            transaction.execute("INSERT INTO effect VALUES ('one')")
        assert ledger._db.execute("SELECT name FROM effect").fetchall() == [("one",)]


def test_it_lives_beside_an_applications_own_tables(path):
    """A database that an application has numbered and filled for itself keeps all of that beside the ledger."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE event (name TEXT)")
        db.execute("CREATE TABLE meta (name TEXT)")
        db.execute("PRAGMA user_version = 99")
    with opened(path) as ledger:
        assert ledger.settle([Settlement(take(ledger, 1), Outcome.DONE)]) == [True]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (99,)
        assert db.execute("SELECT count(*) FROM event").fetchone() == (0,)


# --- places that cannot be used ---------------------------------------------------------------------------------


def test_a_missing_directory_is_named(tmp_path):
    """Where the directory is missing, the message says which one to create."""
    missing = tmp_path / "missing"
    with pytest.raises(LedgerUnavailable, match=f"create the directory {missing}"), opened(missing / "once.db"):
        pass


@pytest.fixture
def foreign_place():
    """Return a folder of somebody else's, and be nobody in particular meanwhile, also when run as root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    user = os.geteuid()
    yield folder, (lambda: os.seteuid(65534)) if user == 0 else (lambda: None)
    os.seteuid(user)
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o777, 0o444), (0o555, 0o666), (0o555, None)])
def test_a_place_that_cannot_be_written_is_named(foreign_place, folder_mode, file_mode):
    """Where file or folder are read-only, the message says who must be able to write where."""
    folder, become_nobody = foreign_place
    path = folder / "once.db"
    if file_mode is not None:
        with opened(path):
            pass
        path.chmod(file_mode)
    folder.chmod(folder_mode)
    become_nobody()
    with pytest.raises(LedgerUnavailable, match=f"let this user write to the file and to {folder}"), opened(path):
        pass


def test_a_file_held_for_long_is_named(ledger, path, monkeypatch):
    """Where another process does not let go of the file, the call fails in time and says why; then it works again."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.01)
    with opened(path) as other, closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="another process holds the file"):
            take(other, 1)
        holder.execute("ROLLBACK")
        take(other, 1)


def test_a_full_disk_loses_nothing(ledger, path):
    """A write that finds no room takes no effect at all; once there is room, the same call succeeds."""
    held = take(ledger, 1)
    (pages,) = ledger._db.execute("PRAGMA page_count").fetchone()
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")
    dead = Settlement(held, Outcome.DEAD, 0, Letter(raw=b"x" * 1_000_000, reason="too large for this disk"))
    many = [Ask(key=key(number)) for number in range(100, 1100)]
    before = ledger.get(key(1))
    for write in (lambda: ledger.settle([dead]), lambda: claim(ledger, *many)):
        with pytest.raises(LedgerUnavailable, match="make room on the disk"):
            write()
        assert ledger.get(key(1)) == before
        assert ledger.counts() == {Status.CLAIMED: 1}
        assert is_sound(path)
    ledger._db.execute("PRAGMA max_page_count = 1000000")
    assert ledger.settle([dead]) == [True]
    assert {answer.verdict for answer in claim(ledger, *many)} == {Verdict.FRESH}
    assert ledger.get(key(1))[0].raw == b"x" * 1_000_000


# --- a handler's transaction ------------------------------------------------------------------------------------


def test_a_handler_may_use_savepoints(ledger, path):
    """Parts of a handler's work may be undone by itself, as long as the transaction stays."""
    held = take(ledger, 1)
    with ledger.transaction(done(held)) as transaction:
        transaction.execute("CREATE TABLE effect (name TEXT)")
        transaction.execute("SAVEPOINT part")
        transaction.execute("INSERT INTO effect VALUES ('undone')")
        transaction.execute("ROLLBACK TO part")
        transaction.execute("INSERT INTO effect VALUES ('kept')")
        transaction.execute("RELEASE part")
    assert ledger.get(key(1))[0].status is Status.DONE
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM effect").fetchall() == [("kept",)]


def test_a_handler_may_look_into_its_own_ledger(ledger):
    """Inside its transaction a handler can ask the ledger what it knows."""
    held = take(ledger, 1)
    with ledger.transaction(done(held)):
        assert ledger.get(key(1))[0].status is Status.CLAIMED


def test_a_rollback_inside_a_statement_is_noticed(ledger):
    """`INSERT OR ROLLBACK` ends the transaction from within: then the event is not done, since its effect is not."""
    held = take(ledger, 1)
    ledger._db.execute("CREATE TABLE effect (name TEXT UNIQUE)")
    with suppress(Exception), ledger.transaction(done(held)) as transaction:
        transaction.execute("INSERT INTO effect VALUES ('one')")
        with suppress(sqlite3.IntegrityError):
            transaction.execute("INSERT OR ROLLBACK INTO effect VALUES ('one')")
    assert ledger._db.execute("SELECT name FROM effect").fetchall() == []
    assert ledger.get(key(1))[0].status is Status.CLAIMED


# --- what a batch costs -----------------------------------------------------------------------------------------


def test_a_batch_is_read_in_few_statements(ledger):
    """However many facts and states are in a call, their rows are read together, when claimed and when settled."""
    asks = [Ask(key=key(number), entity=key(1000 + number // 3)) for number in range(60)]
    asks += [Ask(key=key(number)) for number in range(60, 100)]
    seen = []
    ledger._db.set_trace_callback(seen.append)
    answers = claim(ledger, *asks)
    claims = [Claim(ask, answer.token, 1, answer.chain) for ask, answer in zip(asks, answers, strict=True)]
    ends = [
        Settlement(one, Outcome.DONE, data=b"data", frees=one.chain is None or one.token == one.chain.top)
        for one in claims
    ]
    for work in (lambda: ledger.extend(claims, lease_us=1), lambda: ledger.settle(ends), lambda: ledger.settle(ends)):
        assert reads(seen) <= 2
        assert work() == [True] * 100
    assert reads(seen) <= 2
    assert {answer.verdict for answer in claim(ledger, *asks)} == {Verdict.REPUBLISH}
    assert reads(seen) <= 2


def reads(statements):
    """Count the statements so far that read, and begin anew."""
    number = sum(statement.lstrip().startswith("SELECT") for statement in statements)
    statements.clear()
    return number
