"""Connections to Postgres: kept for the next call, replaced when they are lost, lent to handlers with care."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from oncebridge import forks
from oncebridge.clock import Clock, SystemClock
from oncebridge.errors import PermanentError
from oncebridge.ledgers.postgres import arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.ledgers.postgres.address import Address

_FIRST_ANSWER_US: Final = 5_000_000
#: The shortest time to connect that libpq accepts.
_CONNECT_SECONDS_MIN: Final = 2
_NOT_YOURS: Final = (
    "a handler's transaction is ended by the bridge, together with its claim: leave {} out of the handler, return when "
    "all is done, and raise an error when it is not"
)


class LedgerConnection(psycopg.Connection[TupleRow]):
    """A connection that can be lent to a handler, which cannot end its transaction."""

    lent = False
    was_kept = False
    #: Whether it belongs to the parent of this forked process.
    is_parents = False
    clock: Clock = SystemClock()
    #: The deadline of whole answers, by the monotonic clock; None: no deadline.
    until_us: int | None = None

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Wait for the server, but not for ever: TCP alone does not notice one that is silent, or very slow."""
        if self.until_us is not None:
            gen = self._in_time(gen, self.until_us)
        return super().wait(gen, *args, **options)

    def _in_time(self, gen: Any, until_us: int) -> Any:
        """Yield the waits of psycopg's generator; psycopg wakes up ten times a second, ready or not."""
        try:
            wanted = next(gen)
            while True:
                # Data that has arrived by now is read first: the answer may be complete.
                wanted = gen.send((yield wanted))
                if self.clock.monotonic_us() > until_us:
                    self.pgconn.finish()  # an answer that arrives later has no reader
                    raise psycopg.OperationalError("timeout: the server takes too long to answer")
        except StopIteration as end:
            return end.value

    @contextmanager
    def within(self, time_us: int) -> Iterator[None]:
        """Give our own statements on a lent connection this much time together."""
        before, self.until_us = self.until_us, self.clock.monotonic_us() + time_us
        try:
            yield
        finally:
            self.until_us = before

    def leave_to_parent(self) -> None:
        """Drop it in a forked child, without a message to the server: the session is the parent's.

        Closing it would end the session. So its file number becomes that of a file which leads nowhere, and code that
        still uses it, such as the handler that has forked, gets an error.
        """
        self.is_parents = True
        _PARENTS.append(self)  # libpq's clean-up must not run here: another thread may have been using it
        with suppress(OSError, psycopg.Error):
            nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.dup2(nowhere, self.pgconn.socket, inheritable=False)
            finally:
                os.close(nowhere)

    def commit(self) -> None:
        """Commit, unless it is lent."""
        self._refuse_if_lent("commit()")
        super().commit()

    def rollback(self) -> None:
        """Roll back, unless it is lent."""
        self._refuse_if_lent("rollback()")
        super().rollback()

    def close(self) -> None:
        """Close, unless it is lent, or the parent's."""
        self._refuse_if_lent("close()")
        if not self.is_parents:
            super().close()

    def _refuse_if_lent(self, call: str) -> None:
        if self.lent:
            _refuse(call)

    def ask(self, statement: str, parameters: Sequence[Any] = ()) -> list[TupleRow]:
        """Run one statement of the ledger's own, whatever a handler has set on the connection."""
        with psycopg.Cursor(self, row_factory=tuple_row) as cursor:
            return cursor.execute(statement, parameters or None, binary=True).fetchall()

    def send(self, statement: str, parameters: Sequence[Any]) -> psycopg.Cursor[TupleRow]:
        """Send one statement of the ledger's own down a pipeline; its error is raised later."""
        return psycopg.Cursor(self, row_factory=tuple_row).execute(statement, parameters, binary=True)


#: Connections of parents, kept for ever.
_PARENTS: Final[list[LedgerConnection]] = []


def _refuse(call: str) -> NoReturn:
    raise PermanentError(_NOT_YOURS.format(call))


class Connections:
    """Connections that one thread at a time uses, and that are kept when idle.

    Only a connection whose use ended well is kept. An exception, such as that of a signal's handler, may strike
    anywhere and leave an unread answer, which the next user would take for its own.
    """

    def __init__(self, address: Address, clock: Clock, *, autocommit: bool = True) -> None:
        """Connect to nothing yet."""
        self._address = address
        self._clock = clock
        self._autocommit = autocommit
        self._lock = threading.Lock()
        self._idle: list[LedgerConnection] = []
        self._made: weakref.WeakSet[LedgerConnection] = weakref.WeakSet()
        self._is_open = False
        #: Whether statements are prepared: a pooler in between may not support that.
        self.prepares = True
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: calls of other threads go on in the parent."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start over in a child."""
        if in_child:
            self._lock = threading.Lock()  # another thread may have held it
            made, self._made, self._idle = list(self._made), weakref.WeakSet(), []
            for connection in made:
                connection.leave_to_parent()

    @property
    def is_open(self) -> bool:
        """Whether connections may be made."""
        return self._is_open

    def open(self) -> None:
        """Allow connections from now on."""
        self._is_open = True

    def close(self) -> None:
        """Close all idle connections, and the others once they are given back."""
        self._is_open = False
        self.forget()

    def forget(self) -> None:
        """Close idle connections: after one was lost, the others are likely to be lost as well."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def one(self, until_us: int) -> Iterator[LedgerConnection]:
        """Lend a connection until this deadline, and keep it if it can be used again."""
        connection = self.take(until_us)
        try:
            yield connection
        except psycopg.Error:
            self.give_back(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self.give_back(connection)

    def take(self, until_us: int) -> LedgerConnection:
        """Take an idle connection, or a new one, with this deadline."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connected(until_us)
        connection.until_us = until_us
        return connection

    def give_back(self, connection: LedgerConnection) -> None:
        """Keep a connection for the next call, unless it is lost, in the middle of something, or the parent's."""
        connection.until_us = None
        info = connection.info
        rests = info.transaction_status is TransactionStatus.IDLE and info.pipeline_status is PipelineStatus.OFF
        if rests and self._is_open and not connection.is_parents:
            connection.was_kept = True
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()

    def _connected(self, until_us: int) -> LedgerConnection:
        # By default psycopg returns no text from a database whose encoding is SQL_ASCII.
        parameters = {"client_encoding": "UTF8", **self._address.parameters}
        connection = LedgerConnection.connect(
            **{**parameters, "connect_timeout": self._connect_seconds(until_us)},
            autocommit=True,
            prepare_threshold=1 if self.prepares else None,
        )
        self._made.add(connection)
        arrays.register(connection)
        connection.clock = self._clock
        connection.until_us = min(until_us, self._clock.monotonic_us() + _FIRST_ANSWER_US)
        try:
            ((isolation,),) = connection.ask("SELECT current_setting('transaction_isolation')")
            if isolation != "read committed":
                connection.execute("SET default_transaction_isolation = 'read committed'")
            connection.set_autocommit(self._autocommit)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_seconds(self, until_us: int) -> int:
        """Return how long each address of the server may take, including the handshake and password."""
        left = max(_CONNECT_SECONDS_MIN, (until_us - self._clock.monotonic_us()) // 1_000_000)
        given = self._address.connect_seconds
        return min(given, left) if given > 0 else left  # none is given: no limit, as libpq has it
