"""The embedded ledger: one SQLite file, shared by any number of processes on one machine.

Every verb is one `BEGIN IMMEDIATE` transaction: SQLite has one writer at a time, so rows that are read inside it cannot
change before they are written. WAL with full sync: a commit survives a power cut.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import unquote, urlsplit

from oncebridge.claim import SETTLED, Status, read_newest
from oncebridge.clock import NEVER, Clock, SystemClock
from oncebridge.errors import (
    ClaimLost,
    ConfigurationError,
    HandlerWriteRefused,
    LedgerRefused,
    LedgerUnavailable,
    PermanentError,
)
from oncebridge.ledgers.grants import Call
from oncebridge.ledgers.loan import Loan
from oncebridge.ledgers.protocol import Entry
from oncebridge.ledgers.secret import CHECK, SECRET, agreed, first_kept
from oncebridge.ledgers.sqlite import pages
from oncebridge.ledgers.sqlite.attendance import forget_attendance, read_attendance
from oncebridge.ledgers.sqlite.connections import Connections, refuse_inherited, together
from oncebridge.ledgers.sqlite.examine import examine
from oncebridge.ledgers.sqlite.lent import Lent
from oncebridge.ledgers.sqlite.notes import SQLiteNotes
from oncebridge.ledgers.sqlite.rows import (
    claim_rows,
    conditions,
    extend_rows,
    is_in_force,
    look_rows,
    settle_in_force,
    settle_rows,
)
from oncebridge.ledgers.sqlite.schema import SCHEMA_VERSION, bring_up_to_date, refuse_newer, schema_version
from oncebridge.ledgers.sqlite.troubles import in_our_words
from oncebridge.topics import topic_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from oncebridge.claim import Answer, Ask, Claim, Settlement
    from oncebridge.ledgers.findings import Finding
    from oncebridge.ledgers.grants import Seen
    from oncebridge.ledgers.protocol import Attendance, Found, LetterGroups, LetterPage, Query

T = TypeVar("T")

CACHE_KB: Final = 16_000
LOG_PAGES: Final = 4000  # 16 MB
BUSY_TIMEOUT_S: Final = 30.0
BUSY_LOOK_S: Final = 0.005  # where SQLite itself does not wait
PURGE_AT_ONCE: Final = 1000  # rows per transaction, so that workers get their turn in between

_PURGE: Final = f"""
    DELETE FROM oncebridge_event WHERE (key, handler) IN (
        SELECT key, handler FROM oncebridge_event
        WHERE changed_us < ? AND letter = 0 AND status IN ({", ".join(f"'{status}'" for status in sorted(SETTLED))})
        LIMIT ?)"""  # nosec B608 # constants

_READ_ENTITIES: Final = "SELECT data, changed_us, lease_until_us FROM oncebridge_entity ORDER BY changed_us"

_creating: Final = threading.Lock()


class SQLiteLedger:
    """Keeps the ledger in one file."""

    dialect: Final = "sqlite"

    def __init__(self, path: str | os.PathLike[str], clock: Clock | None = None) -> None:
        """Remember the path of the file; `open` opens it."""
        self.path = Path(path)
        self._clock = clock or SystemClock()
        self._connections = Connections(
            path, self._clock, connect=self._connect, greet=self._greet, connect_lent=self._connect_lent
        )
        self.notes = SQLiteNotes(self._read, self._write, self._clock)
        #: The secret of the open ledger as it is kept there, or a check of it.
        self._agreed: dict[str, bytes] | None = None
        #: Whether a ledger with another secret has taken its place since it was opened.
        self.is_another = False

    def __repr__(self) -> str:
        """Show the file and whether it is open."""
        return f"<SQLiteLedger {self.path} {'closed' if self._agreed is None else 'open'}>"

    @classmethod
    def from_url(cls, url: str, *, retention_us: int = 0) -> Self:  # noqa: ARG003 - an argument of `purge`
        """Read `sqlite:///relative.db` or `sqlite:////absolute.db`."""
        parts = urlsplit(url)
        path = unquote(parts.path.removeprefix("/"))
        if parts.netloc or not path or path == ":memory:":
            raise ConfigurationError(
                "ledger: this URL names no file; write sqlite:///once.db (relative) or sqlite:////var/lib/once.db "
                "(absolute), or memory:// for no file at all"
            )
        return cls(path)

    # --- opening -------------------------------------------------------------------------------------

    def was_opened(self) -> bool:
        """Return whether this ledger was opened before; neither makes a file nor writes into one."""
        return bool(self._found()[1])

    def _found(self) -> tuple[int, dict[str, bytes]]:
        """Return the version of the ledger in the file, and what it keeps of its secret; 0 and nothing without one."""
        if not self.path.is_file():
            return 0, {}
        there = f"{self.path.absolute().as_uri()}?mode=rw"  # never creates
        with self._connections.lock, in_our_words(self.path):
            refuse_inherited(self.path)
            with closing(sqlite3.connect(there, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as db:
                version = schema_version(db)
                return version, _kept(db) if version else {}

    def open_to_look(self, secret: bytes | None) -> bytes | None:
        """Open a file that workers have opened, as it is: an older one is not brought up to date."""
        with self._connections.lock:
            self.close()
            version, kept = self._found()
            if not kept:
                return None
            if version < SCHEMA_VERSION:
                raise LedgerRefused(
                    f"{self.path} was written by an older Oncebridge (schema {version}), and looking changes nothing; "
                    "start a worker of this version, or: oncebridge migrate"
                )
            refuse_newer(version, self.path)
            agreed_secret = agreed(kept, secret)
            self._agreed, self.is_another = kept, False
            return agreed_secret

    def open(self, secret: bytes | None) -> bytes:
        """Open or create the file, readable by its owner alone: it holds the secret and dead letters."""

        def agree(db: sqlite3.Connection) -> dict[str, bytes]:
            bring_up_to_date(db, self.path)
            db.execute("DELETE FROM oncebridge_meta WHERE name = ''")  # fails if the file is read-only
            return _kept(db) or _keep(db, first_kept(secret))

        with self._connections.lock:
            try:
                self._agreed = None
                with in_our_words(self.path):
                    kept = self._connections.write(agree)
                agreed_secret = agreed(kept, secret)
            except BaseException:
                self.close()
                raise
            self._agreed, self.is_another = kept, False
            return agreed_secret

    def _connect(self, place: str) -> sqlite3.Connection:
        _create(self.path)
        db = sqlite3.connect(place, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            self._write_ahead(db)
            _set_up(db)
            db.create_function("topic_matches", 2, lambda pattern, topic: bool(topic_pattern(pattern).fullmatch(topic)))
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first read opens the log
        except BaseException:
            db.close()
            raise
        return db

    def _connect_lent(self, place: str) -> Lent:
        db = sqlite3.connect(
            place,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=0,
            factory=Lent,
        )
        try:
            _set_up(db)
        except BaseException:
            db.close()
            raise
        return db

    def _greet(self, db: sqlite3.Connection) -> None:
        """Check that a reopened file has the same secret; give it to a file that has none."""
        if self._agreed is None or (schema_version(db) == SCHEMA_VERSION and _kept(db) == self._agreed):
            return
        if together(db, self._adopt) != self._agreed:
            self.is_another = True
            raise LedgerRefused(
                f"{self.path} was replaced by a ledger with another secret: every event would look fresh; put the file "
                "back, or start over with this one"
            )

    def _adopt(self, db: sqlite3.Connection) -> dict[str, bytes]:
        assert self._agreed is not None
        bring_up_to_date(db, self.path)
        return _kept(db) or _keep(db, self._agreed)

    def _write_ahead(self, db: sqlite3.Connection) -> None:
        """Switch the file to a write-ahead log.

        Of workers that do so at the same moment only one can; for the others the file is locked at once, since each has
        read it and would keep that one from writing.
        """
        give_up_us = self._clock.monotonic_us() + int(BUSY_TIMEOUT_S * 1_000_000)
        while True:
            try:
                db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or self._clock.monotonic_us() >= give_up_us:
                    raise
                self._clock.wait(NEVER, BUSY_LOOK_S)
            else:
                return

    def migrate(self) -> None:
        """Create missing tables, and bring earlier ones up to date. `open` does so too."""
        with self._connections.lock:
            try:
                with in_our_words(self.path):
                    self._connections.write(lambda db: bring_up_to_date(db, self.path))
            finally:
                if self._agreed is None:
                    self.close()

    def close(self) -> None:
        """Close the file."""
        with self._connections.lock:
            self._agreed = None
            self._connections.close()

    @property
    def _db(self) -> sqlite3.Connection:
        return self._read(lambda db: db)

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._refuse_closed()
        with in_our_words(self.path):
            return self._connections.read(work)

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._refuse_closed()
        with in_our_words(self.path):
            return self._connections.write(work)

    def _refuse_closed(self) -> None:
        if self._agreed is None:
            raise LedgerUnavailable(f"{self.path} is not open")

    # --- claim, extend, settle -----------------------------------------------------------------------

    def claim(self, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> list[Answer]:
        """Answer each fact by itself, and the states of an entity as a chain."""
        return self._write(lambda db: claim_rows(db, asks, Call(nonce, lease_us, self._clock.now_us())))

    def extend(self, claims: Sequence[Claim], *, lease_us: int) -> list[bool]:
        """Extend the leases of claims in force."""
        return self._write(lambda db: extend_rows(db, claims, Call(b"", lease_us, self._clock.now_us())))

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims in force."""
        return self._write(lambda db: settle_rows(db, settlements, self._clock.now_us()))

    def transaction(self, settlement: Settlement) -> Loan[sqlite3.Connection]:
        """Give a handler a connection, and settle as the last statement before the commit."""

        def begin(db: sqlite3.Connection) -> None:
            # From here on no one else can write, so a claim in force now stays in force.
            if not is_in_force(db, settlement, self._clock.now_us()):
                raise ClaimLost

        def end(db: Lent) -> None:
            if not db.in_transaction:
                raise PermanentError("a statement of the handler ended its transaction; use no OR ROLLBACK in it")
            try:
                is_settled = settle_in_force(db, settlement, self._clock.now_us())
            except sqlite3.Error as error:
                if not db.is_marked:
                    raise
                raise HandlerWriteRefused(
                    "a setting that the handler left on its connection prevents the settle"
                ) from error
            if not is_settled:
                raise ClaimLost

        self._refuse_closed()
        return Loan(self._connections.lend(begin, end, lambda: in_our_words(self.path)))

    # --- reading -------------------------------------------------------------------------------------

    def look(self, asks: Sequence[Ask]) -> list[Seen]:
        """Read the rows of events and entities, without the write lock."""
        return self._read(lambda db: look_rows(db, asks, self._clock.now_us()))

    def attendance(self, conversations: Sequence[bytes], *, since_us: int = 0) -> list[Attendance | None]:  # noqa: ARG002
        """Read the rows of conversations."""
        return self._read(lambda db: read_attendance(db, conversations))

    def get(self, key: bytes) -> list[Entry]:
        """Return the event's rows, with the content of dead letters."""
        return self._entries("WHERE event.key = ?", [key], letter="letter.raw, coalesce(letter.detail, '')")

    def scan(self, query: Query) -> Iterator[Entry]:
        """Return the matching entries, the longest unchanged first."""
        if query.entities:
            yield from self._newest(query)
            return
        where, values = conditions(query)
        ordered = f"WHERE {' AND '.join(where)} ORDER BY event.changed_us LIMIT ?"
        yield from self._entries(ordered, [*values, -1 if query.limit is None else query.limit])

    def _entries(self, where: str, values: list[Any], letter: str = pages.NO_CONTENT) -> list[Entry]:
        statement = pages.ENTRIES.format(letter=letter, where=where)
        rows = self._read(lambda db: db.execute(statement, values).fetchall())
        return [Entry.from_row(row) for row in rows]

    def _newest(self, query: Query) -> list[Entry]:
        """Search entities by their own data, which SQL cannot read."""

        def work(db: sqlite3.Connection) -> list[Entry]:
            found = _newest_entries(db.execute(_READ_ENTITIES), query)
            return list(islice(found, query.limit))

        return self._read(work)

    def letter_page(self, query: Query, *, after: str | None = None, limit: int = 50) -> LetterPage:
        """Return dead letters, the newest first."""
        return self._read(lambda db: pages.letter_page(db, query, after, limit))

    def letter_groups(self) -> LetterGroups:
        """Count dead letters by handler, reason and topic."""
        return self._read(pages.letter_groups)

    def about(self, subject: bytes, *, seconds: float) -> Found:
        """Find what is known of a conversation or a user; this reads the whole file, if there is time."""
        return self._read(lambda db: pages.about(db, self._clock, subject, seconds))

    def counts(self) -> dict[Status, int]:
        """Count events by status."""
        count = "SELECT status, count(*) FROM oncebridge_event GROUP BY status"
        rows = self._read(lambda db: db.execute(count).fetchall())
        return {Status(status): number for status, number in rows}

    def examine(self) -> Iterator[Finding]:
        """Check the file, the disk and SQLite's version."""
        yield from self._read(lambda db: [*examine(db, self.path, self._clock)])

    def purge(self, *, older_than_us: int) -> int:
        """Forget events settled before then, a few at a time, and entities unused since."""
        before_us = self._clock.now_us() - older_than_us
        forgotten = 0
        while True:
            number = self._write(lambda db: db.execute(_PURGE, (before_us, PURGE_AT_ONCE)).rowcount)
            forgotten += number
            if number < PURGE_AT_ONCE:
                break
        resting = "DELETE FROM oncebridge_entity WHERE changed_us < ? AND lease_until_us = 0"
        self._write(lambda db: db.execute(resting, (before_us,)))
        self._write(lambda db: forget_attendance(db, before_us))
        return forgotten


def _newest_entries(rows: Iterable[tuple[bytes, int, int]], query: Query) -> Iterator[Entry]:
    for data, changed_us, lease_until_us in rows:
        newest = read_newest(data)
        if newest.key is not None and query.is_about(newest.conversation, newest.user):
            yield Entry.of_newest(newest, changed_us=changed_us, lease_until_us=lease_until_us)


def _keep(db: sqlite3.Connection, kept: dict[str, bytes]) -> dict[str, bytes]:
    db.executemany("INSERT INTO oncebridge_meta VALUES (?, ?)", kept.items())
    return kept


def _kept(db: sqlite3.Connection) -> dict[str, bytes]:
    return dict(db.execute("SELECT name, value FROM oncebridge_meta WHERE name IN (?, ?)", (SECRET, CHECK)))


def _set_up(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")  # a discarded letter is overwritten, not only unlinked
    # Keys are random, so a batch touches pages all over its index: keep more of them in memory, and checkpoint the log
    # less often.
    db.execute(f"PRAGMA cache_size = -{CACHE_KB}")
    db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")


def _create(path: Path) -> None:
    """Make the file, for its owner alone, unless it exists.

    An existing file must not be opened beside SQLite: closing it would release the locks that other connections of this
    process have on it. So no thread here may begin to use a new one before it is closed.
    """
    with _creating:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
