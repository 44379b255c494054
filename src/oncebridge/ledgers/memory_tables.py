"""The database of the memory ledger, for handlers that take `transaction`: SQLite in memory, made when first needed."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from oncebridge import forks
from oncebridge.errors import LedgerRefused, PermanentError
from oncebridge.ledgers.sqlite.lent import Lent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

FORK_WAIT_S: Final = 3.0  # for a transaction of another thread


class MemoryTables:
    """One database, for one transaction at a time.

    It has one connection, since a database in memory is that of its connection. So a handler cannot end its
    transaction there either, and another one gets a connection on which nothing is set.
    """

    def __init__(self) -> None:
        """Begin with no tables."""
        self._lock = threading.RLock()
        self._db = _connect()
        self._rests = False
        self._is_torn = False
        forks.register(self)

    def lend(
        self, begin: Callable[[], None], end: Callable[[Callable[[], None]], None], is_noted: Callable[[], bool]
    ) -> Generator[sqlite3.Connection, None, None]:
        """Lend the connection, in a transaction, between `begin` and `end`, which gets the function that commits.

        From the moment that `is_noted` the ledger has the commit in its books, and nothing here rolls it back.
        """
        with self._lock:
            self._refuse_unless_idle()
            begin()
            generation, db = forks.generation(), self._db
            try:
                db.execute("BEGIN")
                db.hand_out()
                yield db
                db.take_back()
                if not db.in_transaction:
                    raise PermanentError("a statement of the handler ended its transaction; use no OR ROLLBACK in it")
                end(lambda: _commit(db))
            finally:
                if forks.generation() == generation:
                    db.take_back()
                    if not is_noted():
                        _roll_back(db)
                        self._renew(db)

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Give the connection outside of any transaction: each statement is committed by itself."""
        with self._lock:
            self._refuse_unless_idle()
            db = self._db
            db.is_out = True  # it cannot be closed
            try:
                yield db
            finally:
                db.take_back()
                _commit(db)
                self._renew(db)

    def _renew(self, db: Lent) -> None:
        """Take another connection, with the same tables, if something was set on this one that would last."""
        if db.is_marked:
            self._db = _copied(db)
            sqlite3.Connection.close(db)

    def _refuse_unless_idle(self) -> None:
        if self._is_torn:
            raise LedgerRefused(
                "this process was forked while another thread was in a transaction of memory://; fork outside of "
                "transactions, or start processes with the method spawn"
            )
        if self._db.is_out:
            raise LedgerRefused(
                "memory:// is in a handler's transaction, and nothing else can use its tables meanwhile; give other "
                "events to the bridge when the handler has returned"
            )

    # --- forks ---------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Wait for a transaction of another thread."""
        self._rests = self._lock.acquire(timeout=FORK_WAIT_S)

    def after_fork(self, *, in_child: bool) -> None:
        """Go on; in the child with a copy of the tables as they were before the transaction of any handler."""
        if not in_child:
            if self._rests:
                self._lock.release()
            return
        self._lock = threading.RLock()
        if not self._rests:  # in the middle of a statement, perhaps: its locks are never released here
            forks.leave_to_parent(self._db)
            self._is_torn = True
        elif self._db.is_out:
            lent = self._db
            lent.take_back()
            _roll_back(lent)
            self._db = _copied(lent)
            lent.is_inherited = True
            lent.hand_out()  # to the handler that has forked: it can write no more


def _connect() -> Lent:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=0, factory=Lent)


def _copied(db: sqlite3.Connection) -> Lent:
    fresh = _connect()
    db.backup(fresh)
    return fresh


def _commit(db: sqlite3.Connection) -> None:
    """Commit, unless that is done."""
    if db.in_transaction:
        db.execute("COMMIT")


def _roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")
