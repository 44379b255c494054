"""The ledger in Postgres: a schema of its own in any database, such as the one that handlers write to.

Every verb is one call of a function on the server, and so one transaction and one round trip for a whole batch. Time is
the server's. Rows are locked only while such a call runs, never while a handler works.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import psycopg
from psycopg import errors

from oncebridge.claim import Status, read_newest
from oncebridge.clock import Clock, SystemClock
from oncebridge.errors import LedgerUnavailable
from oncebridge.ledgers import DAY_US, RETENTION_US
from oncebridge.ledgers.grants import Seen
from oncebridge.ledgers.postgres import migration, rows, wire
from oncebridge.ledgers.postgres.address import Address
from oncebridge.ledgers.postgres.attendance import PostgresAttendance, mark_arguments
from oncebridge.ledgers.postgres.connections import Connections, LedgerConnection
from oncebridge.ledgers.postgres.examine import examine
from oncebridge.ledgers.postgres.notes import PostgresNotes
from oncebridge.ledgers.postgres.pages import PostgresPages
from oncebridge.ledgers.postgres.troubles import PASSING, UNPREPARED, in_our_words, is_servers, not_migrated, translated
from oncebridge.ledgers.protocol import Entry
from oncebridge.ledgers.secret import CHECK, SECRET, agreed, first_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncebridge.claim import Answer, Ask, Claim, Settlement
    from oncebridge.ledgers.findings import Finding
    from oncebridge.ledgers.grants import Entity, Record
    from oncebridge.ledgers.protocol import Attendance, Found, LetterGroups, LetterPage, Query

ANSWER_US: Final = 15_000_000  # how long a call may take: connecting, all tries, and the answer to its last byte
LOOK_US: Final = 300_000_000  # the same for calls that may have to read every event
TRIES: Final = 5  # of a call that met a conflict, or whose connection was lost
PURGE_PAGES: Final = 256  # read in one transaction, so that workers get their turn in between

_Result = TypeVar("_Result")


class PostgresLedger:
    """Keeps the ledger in one schema of a database."""

    dialect: Final = "postgres"

    def __init__(self, url: str, clock: Clock | None = None, *, retention_us: int = RETENTION_US) -> None:
        """Read the URL; `open` connects. The clock is only compared with the server's, which is the one that counts."""
        self._address = Address.from_url(url)
        self._schema = self._address.schema
        self._clock = clock or SystemClock()
        self._retention_us = retention_us
        self._own = Connections(self._address, self._clock)
        # Separate from our own: settings that a handler leaves on its connection stay among handlers.
        self._lent = Connections(self._address, self._clock, autocommit=False)
        self.notes = PostgresNotes(self._call, self._address)
        self._pages = PostgresPages(self._call, self._address)
        self._attendance = PostgresAttendance(self._call, self._address)
        self._placed_day = 0

    def __repr__(self) -> str:
        """Show the address, without the password, and whether it is open."""
        return f"<PostgresLedger {self._address} {'open' if self._own.is_open else 'closed'}>"

    @property
    def address(self) -> Address:
        """Where it is; shown without the password."""
        return self._address

    @classmethod
    def from_url(cls, url: str, *, retention_us: int = RETENTION_US) -> Self:
        """Read `postgresql://user:password@host:5432/database`; `?schema=` names another schema than oncebridge."""
        return cls(url, retention_us=retention_us)

    # --- opening -------------------------------------------------------------------------------------

    def open(self, secret: bytes | None) -> bytes:
        """Connect to a database that has the tables, and agree on the secret."""
        self._own.open()
        self._lent.open()
        try:
            return self._call(lambda connection: self._opened(connection, secret))
        except BaseException:
            self.close()
            raise

    def open_to_look(self, secret: bytes | None) -> bytes | None:
        """Connect to a database that has the tables, and whose workers have agreed on the secret."""
        self._own.open()
        try:
            is_there = self._call(lambda one: migration.found_version(one, self._schema) > 0 and bool(self._kept(one)))
        finally:
            self.close()
        return self.open(secret) if is_there else None

    def _opened(self, connection: LedgerConnection, secret: bytes | None) -> bytes:
        found = migration.found_version(connection, self._schema)
        if not found:
            raise not_migrated(self._address)
        migration.check_version(found, self._address)
        kept = self._kept(connection)
        if not kept:
            with connection.transaction():
                # The first worker decides; the others wait here and find it decided.
                connection.execute(f"LOCK TABLE {self._schema}.meta IN SHARE ROW EXCLUSIVE MODE")
                kept = self._kept(connection)
                if not kept:
                    kept = first_kept(secret)
                    for pair in kept.items():
                        connection.execute(f"INSERT INTO {self._schema}.meta VALUES (%s, %s)", pair)  # nosec B608
        return agreed(kept, secret)

    def _kept(self, connection: LedgerConnection) -> dict[str, bytes]:
        statement = f"SELECT name, value FROM {self._schema}.meta WHERE name = ANY (%s)"  # nosec B608 # a checked name
        return dict(connection.ask(statement, [[SECRET, CHECK]]))

    def close(self) -> None:
        """Close all connections."""
        self._own.close()
        self._lent.close()

    def migrate(self) -> None:
        """Make or update the tables; needs no open ledger, but the right to create tables."""
        apart = Connections(self._address, self._clock)
        with in_our_words(self._address), apart.one(self._in(LOOK_US)) as connection:
            migration.migrate(connection, self._address)

    # --- calls ---------------------------------------------------------------------------------------

    def _in(self, time_us: int) -> int:
        return self._clock.monotonic_us() + time_us

    def _call(self, work: Callable[[LedgerConnection], _Result], time_us: int | None = None) -> _Result:
        """Run work that may be repeated, on a connection that works."""
        if not self._own.is_open:
            raise LedgerUnavailable(f"{self._address} is not open")
        until_us = self._in(ANSWER_US if time_us is None else time_us)
        with in_our_words(self._address):
            for _ in range(TRIES - 1):
                connection: LedgerConnection | None = None
                try:
                    with self._own.one(until_us) as connection:
                        return work(connection)
                except PASSING:
                    continue
                except UNPREPARED:
                    self._own.prepares = self._lent.prepares = False
                    self._lent.forget()
                except errors.ReadOnlySqlTransaction:
                    self._own.forget()  # no longer the primary: the next connection finds the new one
                    raise
                except psycopg.OperationalError:
                    # An idle connection may have died meanwhile; a new one shows whether the server has.
                    was_lost = connection is not None and connection.closed and connection.was_kept
                    if not was_lost or self._clock.monotonic_us() >= until_us:
                        raise
                self._own.forget()
            with self._own.one(until_us) as connection:
                return work(connection)

    def _function(self, name: str, arguments: list[Any], time_us: int | None = None) -> tuple[Any, ...]:
        """Call one of the ledger's functions; safe to repeat with the same arguments."""
        statement = wire.call(self._schema, name, len(arguments))
        (row,) = self._call(lambda connection: connection.ask(statement, arguments), time_us)
        return row

    # --- claim, extend, settle -----------------------------------------------------------------------

    def claim(self, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> list[Answer]:
        """Have all asks judged, granted and written in one call."""
        if not asks:
            return []
        self._make_places()
        order = wire.in_order(asks)
        ordered = [asks[place] for place in order]
        row = self._function("claim_batch", wire.claim_arguments(ordered, order, nonce, lease_us))
        return wire.back_in_place(order, wire.answers(row, ordered))

    def extend(self, claims: Sequence[Claim], *, lease_us: int) -> list[bool]:
        """Extend the leases of claims in force."""
        if not claims:
            return []
        extension = wire.Extension(claims)
        return extension.answers(self._function("extend_batch", extension.arguments(lease_us)))

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims in force."""
        if not settlements:
            return []
        order = wire.in_order([settlement.claim.ask for settlement in settlements])
        ordered = [settlements[place] for place in order]
        arguments, marks = wire.settle_arguments(ordered, order), mark_arguments(ordered)
        kept, _ = self._function("settle_marked" if marks else "settle_batch", [*arguments, *marks])
        return wire.back_in_place(order, kept)

    def _make_places(self) -> None:
        """Make the partitions of the next days, once a day; until then their events are kept in the default one."""
        day = self._clock.now_us() // DAY_US
        if day != self._placed_day and self._call(lambda one: migration.make_places(one, self._schema)):
            self._placed_day = day

    # --- a handler's transaction ---------------------------------------------------------------------

    @contextmanager
    def transaction(self, settlement: Settlement) -> Iterator[LedgerConnection]:
        """Give a handler a connection of its own, and write the settlement as the last statement before the commit."""
        connection = self._begun()
        try:
            connection.lent = True
            try:
                yield connection
            except BaseException as error:
                if connection.broken:
                    raise LedgerUnavailable(
                        f"{self._address}: the connection was lost while a handler worked"
                    ) from error
                raise  # the handler's own errors pass through unchanged
            finally:
                connection.lent = False
            self._commit(connection, settlement)
        except BaseException:
            # Not kept: its state is unknown. The server rolls its transaction back.
            connection.close()
            raise
        self._lent.give_back(connection)

    def _begun(self) -> LedgerConnection:
        """Return a connection in a transaction that can only be committed once its claim is settled."""
        if not self._own.is_open:
            raise LedgerUnavailable(f"{self._address} is not open")
        connection: LedgerConnection | None = None
        try:
            with in_our_words(self._address):
                connection = self._pledged(self._in(ANSWER_US))
        except BaseException:
            if connection is not None:  # interrupted at the last moment
                connection.close()
            raise
        return connection

    def _pledged(self, until_us: int) -> LedgerConnection:
        statement = f"SELECT {self._schema}.pledge()"
        while True:
            connection = self._lent.take(until_us)
            try:
                with connection.pipeline():
                    connection.ask(statement)
                connection.until_us = None  # the handler's own statements have no deadline
                return connection
            except psycopg.OperationalError:
                connection.close()
                if not connection.was_kept or self._clock.monotonic_us() >= until_us:
                    raise
                self._lent.forget()
            except BaseException:
                connection.close()
                raise

    def _commit(self, connection: LedgerConnection, settlement: Settlement) -> None:
        """Settle and commit in one round trip, so that the claim is not locked while an answer travels."""
        if connection.is_parents:
            raise LedgerUnavailable(f"{self._address}: the handler has forked, and its transaction is the parent's")
        marks = mark_arguments([settlement])
        arguments = [*wire.settle_arguments([settlement], [0]), *marks]
        statement = wire.call(self._schema, "settle_last_marked" if marks else "settle_last", len(arguments))
        settled: psycopg.Cursor[Any] | None = None
        try:
            with connection.within(ANSWER_US), connection.pipeline():
                settled = connection.send(statement, arguments)
                connection.commit()
        except psycopg.Error as error:
            ours = translated(error, self._address)
            at_commit = settled is not None and settled.pgresult is not None and not connection.closed
            if ours is None or (at_commit and not is_servers(error)):
                raise  # a deferred constraint or trigger of the handler's own tables
            # Perhaps only the answer was lost. Settling again would be wrong: the effect may be missing.
            if not (isinstance(ours, LedgerUnavailable) and self._is_settled(settlement)):
                raise ours from error

    def _is_settled(self, settlement: Settlement) -> bool:
        claim = settlement.claim
        statement = f"SELECT status, token FROM {self._schema}.event WHERE day = %s AND key = %s AND handler = %s"  # nosec B608
        values = [wire.day_of(claim.ask), claim.ask.key, wire.storable(claim.ask.handler)]
        found = self._call(lambda connection: connection.ask(statement, values))
        return found == [(settlement.outcome.value, claim.token)]

    # --- reading -------------------------------------------------------------------------------------

    def look(self, asks: Sequence[Ask]) -> list[Seen]:
        """Read the rows of events, for all handlers, and of their entities."""
        (now_us,) = self._function("now_us", [])
        kept: dict[tuple[int, bytes], dict[str, Record]] = {(wire.day_of(ask), ask.key): {} for ask in asks}
        statement, values = rows.records(self._schema, {ask.key for ask in asks})
        for day, key, handler, status, *rest in self._call(lambda one: one.ask(statement, values)):
            if (day, key) in kept:
                kept[day, key][handler] = wire.record(status, rest)
        entities = self._look_at_entities({ask.entity for ask in asks if ask.entity is not None})
        return [Seen(kept[wire.day_of(ask), ask.key], entities.get(ask.entity or b""), now_us) for ask in asks]

    def _look_at_entities(self, keys: set[bytes]) -> dict[bytes, Entity]:
        if not keys:
            return {}
        statement, values = rows.held(self._schema, keys)
        return {key: wire.entity(rest) for key, *rest in self._call(lambda one: one.ask(statement, values))}

    def attendance(self, conversations: Sequence[bytes], *, since_us: int = 0) -> list[Attendance | None]:  # noqa: ARG002
        """Read the rows of conversations."""
        return self._attendance.read(conversations)

    def get(self, key: bytes) -> list[Entry]:
        """Return the event's rows, with the content of dead letters."""
        return self._entries(*rows.of_key(self._schema, key), ANSWER_US)

    def scan(self, query: Query) -> Iterator[Entry]:
        """Return the matching entries, the longest unchanged first."""
        if query.entities:
            yield from islice(self._newest(query), query.limit)
        else:
            yield from self._entries(*rows.matching(self._schema, query), LOOK_US)

    def _newest(self, query: Query) -> Iterator[Entry]:
        statement, values = rows.entities(self._schema, query.subject)
        for data, changed_us, lease_until_us in self._call(lambda one: one.ask(statement, values), LOOK_US):
            newest = read_newest(data)
            if newest.key is not None and query.is_about(newest.conversation, newest.user):
                yield Entry.of_newest(newest, changed_us=changed_us, lease_until_us=lease_until_us)

    def _entries(self, statement: str, values: list[Any], time_us: int) -> list[Entry]:
        found = self._call(lambda connection: connection.ask(statement, values), time_us)
        return [Entry.from_row(row) for row in found]

    def letter_page(self, query: Query, *, after: str | None = None, limit: int = 50) -> LetterPage:
        """Return dead letters, the newest first."""
        return self._pages.letter_page(query, after, limit)

    def letter_groups(self) -> LetterGroups:
        """Count dead letters by handler, reason and topic."""
        return self._pages.letter_groups()

    def about(self, subject: bytes, *, seconds: float) -> Found:
        """Find what is known of a conversation or a user."""
        return self._pages.about(subject, seconds)

    def counts(self) -> dict[Status, int]:
        """Count events by status."""
        statement = f"SELECT status, count(*) FROM {self._schema}.event GROUP BY status"  # nosec B608 # a checked name
        found = self._call(lambda connection: connection.ask(statement), LOOK_US)
        return {Status(status): number for status, number in found}

    def examine(self) -> Iterator[Finding]:
        """Examine the server."""
        yield from self._call(
            lambda connection: list(examine(connection, self._schema, self._clock, self._retention_us))
        )

    # --- forgetting ----------------------------------------------------------------------------------

    def purge(self, *, older_than_us: int) -> int:
        """Forget events settled before then: whole days where nothing else is in them, else a little at a time."""
        (now_us,) = self._function("now_us", [])
        before_us = now_us - older_than_us
        places = self._call(lambda connection: connection.ask(f"SELECT name, day FROM {self._schema}.places()"))  # nosec B608
        forgotten = sum(self._purge_place(name, day, before_us) for name, day in places)
        self._in_pages("entity", "forget_entities", [before_us])
        if self._attendance.is_there():
            self._in_pages("attendance", "forget_attendance", [before_us])
        return forgotten

    def _purge_place(self, name: str, day: int | None, before_us: int) -> int:
        if day is not None:
            (young,) = self._function("is_young", [name, before_us], LOOK_US)
            if young:
                return 0
            dropped = self._dropped(day, before_us)
            if dropped is not None:
                return dropped
        return self._in_pages(name, "forget_events", [name, before_us])

    def _dropped(self, day: int, before_us: int) -> int | None:
        try:
            (dropped,) = self._function("drop_place", [day, before_us], LOOK_US)
        except LedgerUnavailable as error:
            if isinstance(error.__cause__, (errors.LockNotAvailable, errors.DeadlockDetected)):
                return None  # another session is using it
            raise
        return dropped  # type: ignore[no-any-return]

    def _in_pages(self, table: str, function: str, arguments: list[Any]) -> int:
        (pages,) = self._function("pages", [table])
        return sum(
            self._function(function, [*arguments, first, PURGE_PAGES], LOOK_US)[0]
            for first in range(0, pages, PURGE_PAGES)
        )
