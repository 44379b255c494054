"""What a SQLite ledger finds when it looks at itself, and that looking leaves no trace."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ledgers.on_sqlite import claim, key, opened, take
from oncebridge.claim import Ask, Outcome, Settlement
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.ledgers.findings import Level
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.protocol import Examines
from oncebridge.ledgers.sqlite import examine
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.testing.clock import ManualClock

SECRET = b"correct-horse-battery-staple"


@pytest.fixture
def path(tmp_path):
    """Return where the ledger of a test is."""
    return tmp_path / "once.db"


def found(ledger):
    """Return the findings by subject."""
    return {finding.subject: finding for finding in ledger.examine()}


# --- looking ----------------------------------------------------------------------------------------------------


def test_a_sound_ledger_is_found_sound(path):
    """A ledger as it is made has WAL, full sync, a file of its own, and no damage."""
    with opened(path) as ledger:
        findings = found(ledger)
        assert isinstance(ledger, Examines)
    assert {"SQLite", "journal", "sync", "disk", "file", "integrity"} <= set(findings)
    assert {findings[subject].level for subject in ("journal", "sync", "file", "integrity")} == {Level.GOOD}


def test_looking_changes_nothing(path):
    """Whatever the ledger holds, it holds it afterwards, and it goes on working."""
    with opened(path) as ledger:
        ledger.settle([Settlement(take(ledger, 1), Outcome.DONE)])
        take(ledger, 2)
        before = [ledger.counts(), ledger.get(key(1)), ledger.get(key(2))]
        found(ledger)
        assert [ledger.counts(), ledger.get(key(1)), ledger.get(key(2))] == before
        take(ledger, 3)


def test_a_closed_ledger_cannot_be_looked_at(path):
    """A ledger is open when it is asked."""
    with pytest.raises(LedgerUnavailable):
        found(SQLiteLedger(path))
    assert not path.exists()


def test_a_file_open_to_others_is_a_warning(path):
    """The file holds the secret and dead letters, so nobody else may read it."""
    with opened(path) as ledger:
        path.chmod(0o644)
        finding = found(ledger)["file"]
    assert finding.level is Level.WARNING
    assert "644" in finding.found
    assert str(path) in finding.fix


def test_damage_is_found(path):
    """A page that was overwritten is wrong, and takes the promise with it."""
    with opened(path) as ledger:
        claim(ledger, *[Ask(key=key(number)) for number in range(2000)])
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xa5" * 4096)
    with opened(path) as ledger:
        finding = found(ledger)["integrity"]
    assert finding.level is Level.WRONG
    assert finding.weakens
    assert "\n" not in finding.found


class HastyClock(ManualClock):
    """A clock on which a minute passes between two looks."""

    def monotonic_us(self):
        """Let a minute pass."""
        self.advance(60)
        return self.now_us()


def test_looking_for_damage_takes_seconds_at_most(path):
    """A large file is looked at for a while and not to its end; after that the ledger works as before."""
    with opened(path) as ledger:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE filler AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
                       "WHERE i < 20000) SELECT i, hex(randomblob(20)) AS text FROM n")  # fmt: skip
            db.execute("CREATE INDEX filler_text ON filler (text)")
        finding = examine.integrity(ledger._db, HastyClock())
        assert finding.level is Level.GOOD
        assert "too large" in finding.found
        assert ledger._db.execute("SELECT count(*) FROM filler WHERE text > ''").fetchone() == (20000,)


def test_a_memory_ledger_owns_up():
    """A memory ledger says that it forgets everything."""
    ledger = MemoryLedger()
    ledger.open(None)
    (finding,) = ledger.examine()
    assert finding.level is Level.WRONG
    assert "forgotten with the process" in finding.weakens


# --- judging ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ((3, 6, 23), Level.GOOD),
        ((3, 7, 0), Level.WARNING),
        ((3, 40, 1), Level.WARNING),
        ((3, 44, 5), Level.WARNING),
        ((3, 44, 6), Level.GOOD),  # repaired in its branch
        ((3, 45, 0), Level.WARNING),
        ((3, 50, 6), Level.WARNING),
        ((3, 50, 7), Level.GOOD),
        ((3, 51, 2), Level.WARNING),
        ((3, 51, 3), Level.GOOD),
        ((3, 53, 0), Level.GOOD),
    ],
)
def test_versions_that_may_damage_a_file(version, level):
    """Versions with the WAL-reset bug are a warning that names the version and the way out."""
    finding = examine.version(version)
    assert finding.level is level
    assert ".".join(map(str, version)) in finding.found
    assert ("3.51.3" in finding.fix) is bool(finding.weakens) is (level is Level.WARNING)


@pytest.mark.parametrize(("mode", "level"), [(0, Level.WRONG), (1, Level.WRONG), (2, Level.GOOD), (3, Level.GOOD)])
def test_a_commit_must_survive_a_power_cut(mode, level):
    """Anything less than a full sync is wrong."""
    assert examine.sync(mode).level is level


def test_no_wal_is_a_warning():
    """Without a WAL the ledger is slow, not wrong."""
    assert examine.journal("delete").level is Level.WARNING


def test_a_disk_almost_full_is_a_warning():
    """A little room is a warning, with what to do."""
    assert examine.space(200_000_000).level is Level.WARNING
    assert "purge" in examine.space(0).fix
    assert examine.space(300_000_000).level is Level.GOOD


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/me ext4 rw 0 0
me@there: /far\\040away fuse.sshfs rw 0 0
host /shared virtiofs rw 0 0
/dev/sdc1 /twice ext4 rw 0 0
//nas/twice /twice cifs rw 0 0
/dev/sdd1 /usb fuseblk rw 0 0
over /box fuse.fuse-overlayfs rw 0 0
odd line
"""


@pytest.mark.parametrize(
    ("place", "kind", "level"),
    [
        ("/var/lib/once.db", "ext4", Level.GOOD),
        ("/home/you/once.db", "nfs4", Level.WRONG),
        ("/home/me/once.db", "ext4", Level.GOOD),
        ("/homes/once.db", "ext4", Level.GOOD),  # begins like /home, and is not in it
        ("/far away/once.db", "fuse.sshfs", Level.WRONG),
        ("/shared/once.db", "virtiofs", Level.WARNING),
        ("/twice/once.db", "cifs", Level.WRONG),  # the later mount hides the other
        ("/usb/once.db", "fuseblk", Level.GOOD),
        ("/box/once.db", "fuse.fuse-overlayfs", Level.GOOD),
    ],
)
def test_a_network_file_system_is_wrong(place, kind, level):
    """SQLite's locks need a local disk: the mount that a file is really on decides."""
    assert examine.kind_of_file_system(Path(place), MOUNTS) == kind
    (finding,) = examine.file_system(Path(place), MOUNTS)
    assert finding.level is level
    assert kind in finding.found
    assert bool(finding.weakens) is (level is Level.WRONG)


def test_an_unknown_file_system_is_no_finding():
    """Where mounts cannot be read nothing is claimed."""
    assert [*examine.file_system(Path("/once.db"), "")] == []


# --- before anybody opened it -----------------------------------------------------------------------------------


def test_a_ledger_is_known_by_its_secret(path):
    """A ledger was opened before once it has settled on a secret; its mere tables are not enough."""
    ledger = SQLiteLedger(path)
    assert not ledger.was_opened()
    assert not path.exists()
    ledger.migrate()
    assert not ledger.was_opened()
    ledger.open(None)
    assert ledger.was_opened()
    ledger.close()
    assert ledger.was_opened()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"", "foreign"])
def test_a_foreign_file_is_no_ledger_and_is_left_alone(path, content):
    """An empty file and another program's database are no ledgers, and looking at them changes no byte."""
    if content == "foreign":
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TABLE crm (name TEXT)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    assert not SQLiteLedger(path).was_opened()
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_is_no_database_is_refused(path):
    """A file of something else is refused in words."""
    path.write_bytes(b"no database, but long enough to be looked at as one " * 100)
    with pytest.raises(LedgerRefused, match="not a ledger"):
        SQLiteLedger(path).was_opened()


def test_migrate_needs_no_open_ledger_and_settles_no_secret(path):
    """Tables can be made before any worker comes; the first worker's secret is still its own to choose."""
    ledger = SQLiteLedger(path)
    ledger.migrate()
    ledger.migrate()
    assert "closed" in repr(ledger)
    assert ledger.open(SECRET) == SECRET
    ledger.migrate()
    assert "open" in repr(ledger)
    take(ledger, 1)
    SQLiteLedger(path).migrate()  # beside a worker
    take(ledger, 2)
    ledger.close()
