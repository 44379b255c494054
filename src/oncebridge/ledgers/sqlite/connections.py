"""The connections of this process to one SQLite file: reopened after a fork, and when the file was replaced.

A forked child does not inherit SQLite's locks, but it does inherit SQLite's list of them: a child that opened the file
again beside a connection of its parent's would lock nothing, and lose its writes when the parent closes. So connections
are closed before a fork, and reopened in both processes when they are needed. Where that cannot be done, the child
refuses: it must neither use nor close what it inherited.

A file that is deleted or moved stays open, and writes to it are lost to everyone else. So each transaction checks the
path before and after it commits.

The exception of a signal's handler may strike wherever Python runs. So a transaction is a function that takes its work
as an argument: its `finally` begins with a call of C, and nothing can strike before that.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from oncebridge import forks
from oncebridge.ledgers.sqlite.files import Files, Identity, files_at, identity, is_open_here

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from oncebridge.clock import Clock
    from oncebridge.ledgers.sqlite.lent import Lent

T = TypeVar("T")

FORK_WAIT_S: Final = 3.0  # for threads of the parent that are in the middle of a call
RESCUE_WAIT_MS: Final = 1000
#: A file that was moved away may be moved back: for this long no other file is accepted in its place.
MISSED_US: Final = 1_000_000

#: Files that the parent had open when this process was forked.
_inherited: Final[set[Identity]] = set()
_kept_for_ever: Final[list[sqlite3.Connection]] = []


class FileGone(Exception):
    """The file was deleted, moved or replaced while it was in use."""


class OpenBeforeFork(Exception):
    """The file was in use when this process was forked, so that its locks cannot be relied upon here."""


class InTransaction(Exception):
    """A handler has a transaction, during which nothing else can be written."""


class Opened(NamedTuple):
    """An open connection, with the files behind it."""

    db: sqlite3.Connection
    files: Files
    pid: int


class Connections:
    """One connection for all threads, since SQLite has one writer anyway, and one to lend."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock,
        *,
        connect: Callable[[str], sqlite3.Connection],
        greet: Callable[[sqlite3.Connection], None] = lambda _: None,
        connect_lent: Callable[[str], Lent] | None = None,
    ) -> None:
        """Take the path of the file, and how to open it. `greet` is called with each new connection."""
        self._path = path
        self._clock = clock
        self._connect, self._greet, self._connect_lent = connect, greet, connect_lent
        # Reentrant, so that a handler may read its own ledger.
        self.lock = threading.RLock()
        self._opened: Opened | None = None
        self._lent: Lent | None = None
        #: The path as it was when the file was opened: a change of directory does not lead elsewhere.
        self._place = ""
        self._last: Identity = None
        self._missed_us: int | None = None
        #: Another object in another process, which can be checked without a call.
        self._process = object()
        self._rests = False
        #: The files behind the path just before this process forked.
        self._found = Files(None, None, None)
        forks.register(self)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._opened is not None

    # --- using ---------------------------------------------------------------------------------------

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read on the connection; a handler's transaction is not visible to it."""
        with self.lock:
            return work(self._ready().db)

    def write(self, work: Callable[[sqlite3.Connection], T], *, patience_ms: int | None = None) -> T:
        """Hold the write lock: all writes take effect together, or not at all."""
        with self.lock:
            self._refuse_inside_transaction()
            if self._opened is not None and self._opened.db.in_transaction:  # it could not even be rolled back
                self._close()
            process, db = self._process, self._ready().db
            if patience_ms is not None:
                db.execute(f"PRAGMA busy_timeout = {patience_ms}")
            try:
                db.execute("BEGIN IMMEDIATE")
                result = work(db)
                self._commit(db)
                return result
            finally:
                if process is self._process and db.in_transaction:
                    db.execute("ROLLBACK")

    def lend(
        self,
        begin: Callable[[Lent], None],
        end: Callable[[Lent], None],
        in_our_words: Callable[[], AbstractContextManager[None]],
    ) -> Generator[sqlite3.Connection, None, None]:
        """Lend a connection in a transaction, between `begin` and `end`.

        The borrower's errors pass through unchanged. Everything is held in this one function: if it called another
        context manager, an interrupt could strike between the two.
        """
        with self.lock:
            process, db, is_clean = self._process, None, False
            try:
                with in_our_words():
                    db = self._lendable()
                    db.execute("BEGIN IMMEDIATE")
                    begin(db)
                    db.hand_out()
                yield db
                with in_our_words():
                    if process is not self._process:
                        raise OpenBeforeFork
                    db.take_back()
                    end(db)
                    self._commit(db)
                is_clean = not db.is_marked
            finally:
                if db is not None and process is self._process:
                    db.is_out = False
                    try:
                        sqlite3.Connection.set_authorizer(db, None)
                    finally:
                        try:
                            # Explicitly: while a cursor of the handler's lives, closing would end nothing.
                            if db.in_transaction:
                                db.execute("ROLLBACK")
                        finally:
                            if not is_clean:
                                self._lent = None
                                sqlite3.Connection.close(db)

    def close(self) -> None:
        """Close the connections; they are reopened when needed."""
        with self.lock:
            self._close()
            self._last = self._missed_us = None
            self._place = ""

    def _close(self) -> None:
        # Nothing can strike between dropping a name and the call that closes.
        lent, self._lent = self._lent, None
        if lent is not None:
            sqlite3.Connection.close(lent)
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.db.close()

    def _commit(self, db: sqlite3.Connection) -> None:
        """Commit into the file that is at the path, or raise: a commit into any other file does not count."""
        self._look()
        db.execute("COMMIT")
        self._look()

    def _look(self) -> None:
        if self._opened is None or not files_at(self._place).are_still(self._opened.files):
            self._miss()
            raise FileGone

    def _miss(self) -> None:
        if self._missed_us is None:
            self._missed_us = self._clock.monotonic_us()

    def _refuse_inside_transaction(self) -> None:
        if self._lent is not None and self._lent.is_out:
            raise InTransaction

    # --- opening -------------------------------------------------------------------------------------

    def _ready(self) -> Opened:
        """Return the connection, reopened if the previous one must not be used any more."""
        if not self._place:
            self._place = os.path.abspath(self._path)  # noqa: PTH100 - a link may lead elsewhere one day
        found = files_at(self._place)
        self._refuse_inherited(found)
        opened = self._opened
        if opened is None:
            return self._open(found.database)
        if not found.are_still(opened.files):
            self._miss()
            self._refuse_inside_transaction()
            self._drop(opened, found)
            raise FileGone
        self._missed_us = None
        return opened

    def _open(self, found: Identity) -> Opened:
        if self._last not in (None, found):
            self._miss()
            if self._missed_us is not None and self._clock.monotonic_us() < self._missed_us + MISSED_US:
                raise FileGone
        db = self._connect(self._place)
        try:
            opened = self._greeted(db, found)
        except BaseException:
            db.close()
            raise
        self._opened, self._last, self._missed_us = opened, opened.files.database, None
        return opened

    def _greeted(self, db: sqlite3.Connection, found: Identity) -> Opened:
        self._greet(db)
        files = files_at(self._place)
        if found not in (None, files.database):
            raise FileGone  # replaced just now: it is unknown which of the two is open
        return Opened(db, files, os.getpid())

    def _lendable(self) -> Lent:
        self._refuse_inside_transaction()
        self._ready()
        lent = self._lent
        if lent is None:
            assert self._connect_lent is not None
            self._lent = lent = self._connect_lent(self._place)
            self._look()
        return lent

    def _drop(self, opened: Opened, found: Files) -> None:
        """Drop a file that is gone; committed data is moved into it from its log, in case it is found again."""
        if found.have_no_other_log(opened.files):  # otherwise others may have the file open, with a log of their own
            with suppress(sqlite3.Error):
                opened.db.execute(f"PRAGMA busy_timeout = {RESCUE_WAIT_MS}")
                opened.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._close()

    # --- forks ---------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Close, unless a call is under way: a long one in another thread, or one in this very thread."""
        self._rests = self.lock.acquire(timeout=FORK_WAIT_S)
        opened, lent = self._opened, self._lent
        is_idle = not (opened and opened.db.in_transaction) and not (lent and lent.is_out)
        if self._rests and is_idle:
            self._close()
        with suppress(OSError):
            self._found = files_at(self._place or os.path.abspath(self._path))  # noqa: PTH100

    def after_fork(self, *, in_child: bool) -> None:
        """Go on; in the child nothing is open, and connections that could not be closed are kept as they are."""
        if not in_child:
            if self._rests:
                self.lock.release()
            return
        self.lock = threading.RLock()
        # The index is open as long as any connection is, ours or not. All of ours have been closed by now.
        if self._opened is not None or self._lent is not None or is_open_here(self._found.log_index):
            _inherited.add(self._found.database)
        self._abandon()

    def _abandon(self) -> None:
        self._process = object()
        opened, lent = self._opened, self._lent
        self._opened = self._lent = None
        if opened is not None:
            _keep_for_ever(opened.db)
        if lent is not None:
            lent.is_inherited = True
            _keep_for_ever(lent)

    def _refuse_inherited(self, found: Files) -> None:
        if self._opened is not None and self._opened.pid != os.getpid():  # forked by code that called no fork hooks
            _inherited.add(self._opened.files.database)
            self._abandon()
        if found.database is not None and found.database in _inherited:
            raise OpenBeforeFork


def together(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Do everything in one transaction, or nothing, on a connection that is just being opened."""
    try:
        db.execute("BEGIN IMMEDIATE")
        result = work(db)
        db.execute("COMMIT")
        return result
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def refuse_inherited(path: str | os.PathLike[str]) -> None:
    """Refuse a file that this process inherited while it was in use."""
    found = identity(os.fspath(path))
    if found is not None and found in _inherited:
        raise OpenBeforeFork


def _keep_for_ever(db: sqlite3.Connection) -> None:
    """Never close a connection that the parent uses too, not even at the end of this process.

    Closing would undo the parent's pending commit, in the index that both have in memory.
    """
    import ctypes  # only if something forked at the wrong moment

    _kept_for_ever.append(db)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
