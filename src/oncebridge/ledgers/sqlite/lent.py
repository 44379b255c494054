"""The connection that handlers get: to the ledger's file, but not the ledger's own."""

from __future__ import annotations

import sqlite3
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

#: Statements that change a connection beyond the transaction.
_LASTING: Final = frozenset(
    {
        sqlite3.SQLITE_PRAGMA,
        sqlite3.SQLITE_ATTACH,
        sqlite3.SQLITE_DETACH,
        sqlite3.SQLITE_CREATE_TEMP_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_TABLE,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TEMP_VIEW,
    }
)
#: Methods that do.
_LASTING_METHODS: Final = (
    "create_aggregate",
    "create_collation",
    "create_function",
    "create_window_function",
    "deserialize",
    "enable_load_extension",
    "load_extension",
    "set_progress_handler",
    "set_trace_callback",
    "setconfig",
    "setlimit",
)


class Lent(sqlite3.Connection):
    """A connection in a transaction that its borrower cannot end.

    `INSERT OR ROLLBACK`, a trigger's `RAISE(ROLLBACK)` and some errors end the transaction from within, and SQLite
    would commit each later statement by itself. So every later statement is refused. That is checked when a statement
    is compiled: a connection of this class must cache no compiled ones (`cached_statements=0`).
    """

    #: No others: an attribute set by one handler would be seen by the next.
    __slots__ = ("__weakref__", "is_inherited", "is_marked", "is_out")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Open the file as `sqlite3.Connection` does."""
        super().__init__(*arguments, **named)
        #: Whether a handler has it.
        self.is_out = False
        #: Whether a handler has changed it beyond its transaction, so that no other one may get it.
        self.is_marked = False
        #: Whether this process was forked while a handler of its parent's had it.
        self.is_inherited = False

    def hand_out(self) -> None:
        """Prevent the borrower from ending the transaction; savepoints are fine."""
        # No call in here: SQLite would swallow the exception of a signal's handler.
        db: Any = weakref.proxy(self)

        def authorize(action: int, *_: object) -> int:
            if db.is_inherited or action == sqlite3.SQLITE_TRANSACTION or not db.in_transaction:
                return sqlite3.SQLITE_DENY
            if action in _LASTING:
                db.is_marked = True
            return sqlite3.SQLITE_OK

        super().set_authorizer(authorize)
        self.is_out = True

    def take_back(self) -> None:
        """Prepare it for statements of the ledger, whatever the handler has set."""
        self.is_out = False
        super().set_authorizer(None)
        super().set_progress_handler(None, 0)
        self.row_factory = None
        self.text_factory = str
        if self.isolation_level is not None or getattr(self, "autocommit", -1) != -1:
            self.is_marked = True

    def set_authorizer(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the authorizer protects the transaction."""
        raise sqlite3.ProgrammingError("the connection of `transaction` is the ledger's: its authorizer stays as it is")

    def close(self) -> None:
        """Refuse while a handler has it."""
        if self.is_out:
            raise sqlite3.ProgrammingError("the connection of `transaction` is the ledger's, which closes it")
        super().close()

    def blobopen(self, *arguments: Any, **named: Any) -> sqlite3.Blob:
        """Open a blob in the transaction; this compiles no statement."""
        if self.is_out and not self.in_transaction:
            raise sqlite3.ProgrammingError("a statement has ended the transaction, so nothing more can be written")
        return super().blobopen(*arguments, **named)


def _marking(name: str) -> Callable[..., Any]:
    def method(self: Lent, *arguments: Any, **named: Any) -> Any:
        self.is_marked = True
        return getattr(super(Lent, self), name)(*arguments, **named)

    method.__name__ = name
    return method


for _name in _LASTING_METHODS:
    if hasattr(sqlite3.Connection, _name):  # some are not built in everywhere, and some are new
        setattr(Lent, _name, _marking(_name))
