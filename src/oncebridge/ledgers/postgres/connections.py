"""Connections to Postgres: kept for the next call, made again when they are lost, lent to handlers with care."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from oncebridge.clock import Clock, SystemClock
from oncebridge.errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.ledgers.postgres.address import Address

_FIRST_ANSWER_US: Final = 5_000_000
_NOT_YOURS: Final = (
    "a handler's transaction is ended by the bridge, together with its claim: leave {} out of the handler, return when "
    "all is done, and raise an error when it is not"
)


class LedgerConnection(psycopg.Connection[TupleRow]):
    """A connection that can be lent to a handler, who cannot end the transaction it is in."""

    lent = False
    was_kept = False
    clock: Clock = SystemClock()
    #: How long an answer may take; None: as long as it takes.
    patience_us: int | None = None

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Wait for the server, but not for ever: TCP alone does not notice a server that is there and silent."""
        if self.patience_us is not None:
            gen = self._in_time(gen, self.clock.monotonic_us() + self.patience_us)
        return super().wait(gen, *args, **options)

    def _in_time(self, gen: Any, until_us: int) -> Any:
        """Pass on what a wait is about; psycopg looks in ten times a second, ready or not."""
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and self.clock.monotonic_us() > until_us:
                    self.pgconn.finish()  # an answer that comes later is for nobody
                    raise psycopg.OperationalError("timeout: the server takes too long to answer")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value

    def commit(self) -> None:
        """Commit, unless it is lent."""
        self._refuse_if_lent("commit()")
        super().commit()

    def rollback(self) -> None:
        """Roll back, unless it is lent."""
        self._refuse_if_lent("rollback()")
        super().rollback()

    def close(self) -> None:
        """Close, unless it is lent."""
        self._refuse_if_lent("close()")
        super().close()

    def _refuse_if_lent(self, call: str) -> None:
        if self.lent:
            _refuse(call)

    def ask(self, statement: str, parameters: Sequence[Any] = ()) -> list[TupleRow]:
        """Run one statement of the ledger's own, whatever a handler has set on the connection."""
        with psycopg.Cursor(self, row_factory=tuple_row) as cursor:
            return cursor.execute(statement, parameters or None, binary=True).fetchall()

    def send(self, statement: str, parameters: Sequence[Any]) -> None:
        """Send one statement of the ledger's own down a pipeline; an error comes with what follows."""
        with psycopg.Cursor(self, row_factory=tuple_row) as cursor:
            cursor.execute(statement, parameters, binary=True)


def _refuse(call: str) -> NoReturn:
    raise PermanentError(_NOT_YOURS.format(call))


class Connections:
    """Connections that are used one thread at a time, and kept when nobody does."""

    def __init__(self, address: Address, clock: Clock, *, autocommit: bool = True) -> None:
        """Connect to nothing yet."""
        self._address = address
        self._clock = clock
        self._autocommit = autocommit
        self._lock = threading.Lock()
        self._idle: list[LedgerConnection] = []
        self._is_open = False
        #: Whether statements are prepared: a pooler between may not be able to.
        self.prepares = True

    @property
    def is_open(self) -> bool:
        """Whether connections may be made."""
        return self._is_open

    def open(self) -> None:
        """Allow connections from now on."""
        self._is_open = True

    def close(self) -> None:
        """Let go of all that nobody uses, and of the others once they come back."""
        self._is_open = False
        self.forget()

    def forget(self) -> None:
        """Close what is kept: after one was lost, the others are likely to be lost as well."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def one(self) -> Iterator[LedgerConnection]:
        """Give a connection to whoever asks, and keep it if it can be used again."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def take(self) -> LedgerConnection:
        """Take one that is kept, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connected()

    def give_back(self, connection: LedgerConnection) -> None:
        """Keep a connection for the next, unless it is lost or in the middle of something."""
        connection.patience_us = None
        if connection.info.transaction_status is TransactionStatus.IDLE and self._is_open:
            connection.was_kept = True
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()

    def _connected(self) -> LedgerConnection:
        connection = LedgerConnection.connect(
            **self._address.parameters, autocommit=True, prepare_threshold=1 if self.prepares else None
        )
        connection.clock = self._clock
        connection.patience_us = _FIRST_ANSWER_US
        try:
            ((isolation,),) = connection.ask("SELECT current_setting('transaction_isolation')")
            if isolation != "read committed":
                connection.execute("SET default_transaction_isolation = 'read committed'")
            connection.set_autocommit(self._autocommit)
            connection.patience_us = None
        except BaseException:
            connection.close()
            raise
        return connection
