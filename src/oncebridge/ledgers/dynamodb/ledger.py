"""The ledger in a DynamoDB table: conditional writes, one for each verb and event where that is possible.

DynamoDB keeps one item consistent at a time, so everything depends on conditions: no worker relies on an earlier read.
It has no clock to ask, so leases are judged by the `Date` of its answers (`server_time`).
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

from oncebridge import forks
from oncebridge.claim import Answer, Claim, Verdict, attended
from oncebridge.clock import Clock, SystemClock
from oncebridge.errors import ConfigurationError, LedgerUnavailable
from oncebridge.ledgers import RETENTION_US
from oncebridge.ledgers.dynamodb import moves, pages, schema, search
from oncebridge.ledgers.dynamodb.attendance import read_attendance
from oncebridge.ledgers.dynamodb.call_threads import CallThreads
from oncebridge.ledgers.dynamodb.errors import Place
from oncebridge.ledgers.dynamodb.examine import examined
from oncebridge.ledgers.dynamodb.notes import DynamoDBNotes
from oncebridge.ledgers.dynamodb.server_time import DateTime, GivenTime, ServerTime
from oncebridge.ledgers.dynamodb.table import PARALLEL, PATIENCE_US, Table, connected
from oncebridge.ledgers.dynamodb.transaction import settle_with
from oncebridge.ledgers.grants import Seen
from oncebridge.threads import Struck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from oncebridge.claim import Ask, Settlement, Status
    from oncebridge.ledgers.findings import Finding
    from oncebridge.ledgers.protocol import Attendance, Entry, Found, LetterGroups, LetterPage, Query

T = TypeVar("T")
R = TypeVar("R")

SETTLE_WITHIN_US: Final = 10_000_000  # the caller knows the lease, and retries
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")


class DynamoDBLedger:
    """Keeps the ledger in one table."""

    def __init__(
        self,
        table: str,
        clock: Clock | None = None,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        retention_us: int = RETENTION_US,
    ) -> None:
        """Remember the table; `open` connects to it. Only tests pass a clock."""
        self.place = Place(table, region, endpoint_url)
        self._clock: Clock = SystemClock()
        self._time: ServerTime = DateTime(self._clock) if clock is None else GivenTime(clock)
        self._retention_us = retention_us
        self._lock = threading.Lock()
        self._connection: Table | None = None
        self._threads: CallThreads | None = None
        self._is_open = False
        self.notes = DynamoDBNotes(lambda: self._table, self._each)
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: calls of other threads go on in the parent."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start over in a child: it has none of the threads, and shared connections would mix up the answers."""
        if in_child:
            forks.leave_to_parent(self._connection, self._threads)
            self._lock = threading.Lock()
            self._connection = self._threads = None

    def __repr__(self) -> str:
        """Show the table and whether it is open."""
        return f"<DynamoDBLedger {self.place} {'open' if self._is_open else 'closed'}>"

    @classmethod
    def from_url(cls, url: str, *, retention_us: int = RETENTION_US) -> Self:
        """Read `dynamodb://table?region=eu-central-1&endpoint_url=http://localhost:8000`; both are optional."""
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(set(given) - {"region", "endpoint_url"})
        wrong = ""
        if unknown:
            wrong = f"no parameter of a DynamoDB URL is called {' or '.join(unknown)}"
        elif not _NAME.fullmatch(parts.netloc) or parts.path.strip("/"):
            wrong = "this URL names no DynamoDB table (3 to 255 letters, digits, dots and dashes)"
        if wrong:
            raise ConfigurationError(
                f"ledger: {wrong}; write dynamodb://table?region=eu-central-1, with "
                "&endpoint_url=http://localhost:8000 where it is not AWS' own"
            )
        return cls(
            parts.netloc,
            region=given.get("region") or None,
            endpoint_url=given.get("endpoint_url") or None,
            retention_us=retention_us,
        )

    # --- opening -------------------------------------------------------------------------------------

    def open(self, secret: bytes | None) -> bytes:
        """Find the table, learn the time from its first answer, and agree on the secret."""
        agreed = schema.opened(self._reached(), secret)
        self._is_open = True
        return agreed

    def open_to_look(self, secret: bytes | None) -> bytes | None:
        """Open a table that another process has opened before."""
        return self.open(secret) if schema.was_opened(self._reached()) else None

    def migrate(self) -> None:
        """Create the table if it is missing, and have DynamoDB remove expired items."""
        schema.migrate(self._reached())

    def close(self) -> None:
        """Close connections and end threads."""
        with self._lock:
            connection, self._connection = self._connection, None
            threads, self._threads = self._threads, None
            self._is_open = False
        if threads is not None:
            threads.close()
        if connection is not None:
            connection.close()

    def _connect(self) -> Any:
        return connected(self.place)

    def _reached(self) -> Table:
        with self._lock:
            if self._connection is None:
                self._connection = Table(
                    self._connect(),
                    self.place,
                    clock=self._clock,
                    time=self._time,
                    retention_us=self._retention_us,
                )
            return self._connection

    @property
    def _table(self) -> Table:
        if not self._is_open:
            raise LedgerUnavailable(f"{self.place} is not open")
        return self._connection or self._reached()

    def _each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Run `work` on all items in parallel, as far as connections allow; raise only once all calls have ended."""
        if len(items) <= 1:
            return [work(item) for item in items]
        with self._lock:
            if self._threads is None:
                self._threads = CallThreads(PARALLEL, "oncebridge-dynamodb")
            threads = self._threads
            threads.make_ready(len(items))
        try:
            return threads.each(work, items)
        except Struck as error:
            raise LedgerUnavailable(f"{self.place}: {error}") from None

    # --- claim, extend, settle -----------------------------------------------------------------------

    def claim(self, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> list[Answer]:
        """Claim every fact and every chain at the same time."""
        table = self._table
        patience = table.patience(min(PATIENCE_US, lease_us // 2))
        contradictions = self._time.contradictions
        answers = self._by_entity(
            lambda chain: moves.claim(table, patience, chain, nonce, lease_us), asks, [ask.entity for ask in asks]
        )
        if self._time.contradictions == contradictions:
            return answers
        return self._renewed(asks, answers, lease_us)

    def _by_entity(
        self, work: Callable[[list[T]], list[R]], items: Sequence[T], entities: Iterable[bytes | None]
    ) -> list[R]:
        """Do the work for each fact, and for the states of each entity together; return its results in order."""
        groups: dict[bytes | int, list[int]] = {}
        for place, entity in enumerate(entities):
            groups.setdefault(place if entity is None else entity, []).append(place)
        places = list(groups.values())
        results: list[Any] = [None] * len(items)
        each = self._each(lambda group: work([items[place] for place in group]), places)
        for group, found in zip(places, each, strict=True):
            for place, result in zip(group, found, strict=True):
                results[place] = result
        return results

    def _renewed(self, asks: Sequence[Ask], answers: list[Answer], lease_us: int) -> list[Answer]:
        """Extend claims from now if the time turned out to be wrong: this machine may have been frozen."""
        granted = [n for n, answer in enumerate(answers) if answer.token]
        claims = [Claim(asks[n], answers[n].token, chain=answers[n].chain) for n in granted]
        kept = self.extend(claims, lease_us=lease_us)
        lost = {n for n, ok in zip(granted, kept, strict=True) if not ok}
        return [Answer(Verdict.BUSY, busy_us=lease_us) if n in lost else one for n, one in enumerate(answers)]

    def extend(self, claims: Sequence[Claim], *, lease_us: int) -> list[bool]:
        """Extend the leases of claims in force."""
        table = self._table
        patience = table.patience(min(PATIENCE_US, lease_us // 3))
        contradictions = self._time.contradictions
        kept = self._each(lambda claim: moves.extend(table, patience, claim, lease_us), claims)
        if self._time.contradictions != contradictions:  # it is later than assumed: once more, by the right time
            kept = self._each(lambda claim: moves.extend(table, patience, claim, lease_us), claims)
        return kept

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """End claims in force."""
        table = self._table
        patience = table.patience(SETTLE_WITHIN_US)
        return self._by_entity(
            lambda some: moves.settle(table, patience, some), settlements, map(_settled_with, settlements)
        )

    @contextmanager
    def transaction(self, settlement: Settlement) -> Iterator[list[Any]]:
        """Give a handler a list for its own writes, as `TransactWriteItems` takes them, and settle with them."""
        table = self._table
        writes: list[Any] = []
        yield writes  # the handler's own errors pass through as they are: nothing is written yet
        settle_with(table, table.patience(SETTLE_WITHIN_US), settlement, writes)

    # --- reading and upkeep --------------------------------------------------------------------------

    def look(self, asks: Sequence[Ask]) -> list[Seen]:
        """Read the items of each event and of each entity, many at the same time."""
        table = self._table
        keys = list(dict.fromkeys(ask.key for ask in asks))
        records = dict(zip(keys, self._each(lambda key: search.records_of(table, key), keys), strict=True))
        held = list(dict.fromkeys(ask.entity for ask in asks if ask.entity is not None))
        entities = dict(zip(held, self._each(lambda key: search.entity_of(table, key), held), strict=True))
        now_us = table.now_us()
        return [Seen(records[ask.key], entities.get(ask.entity or b""), now_us) for ask in asks]

    def attendance(self, conversations: Sequence[bytes], *, since_us: int = 0) -> list[Attendance | None]:  # noqa: ARG002
        """Read the items of conversations, a hundred with each call."""
        return read_attendance(lambda: self._table, self._each, conversations)

    def get(self, key: bytes) -> list[Entry]:
        """Return the event's items, with the content of dead letters."""
        return search.entries_of(self._table, key)

    def scan(self, query: Query) -> Iterator[Entry]:
        """Return the matching entries, the longest unchanged first; this reads the whole table."""
        yield from search.found(self._table, query)

    def letter_page(self, query: Query, *, after: str | None = None, limit: int = 50) -> LetterPage:
        """Return dead letters in the order of the table."""
        return pages.letter_page(self._table, query, after, limit)

    def letter_groups(self) -> LetterGroups:
        """Count dead letters by handler, reason and topic, in the first part of the table."""
        return pages.letter_groups(self._table)

    def about(self, subject: bytes, *, seconds: float) -> Found:
        """Find what is known of a conversation or a user; this reads the table as far as time allows."""
        return pages.about(self._table, self._clock, subject, seconds)

    def counts(self) -> dict[Status, int]:
        """Count events by status; this reads the whole table."""
        return search.counts(self._table)

    def purge(self, *, older_than_us: int) -> int:
        """Forget sooner than DynamoDB does by itself; this reads the whole table."""
        return search.purge(self._table, older_than_us, self._each)

    def examine(self) -> Iterator[Finding]:
        """Check the table's settings, the clock, and this worker's permissions."""
        return examined(self._table)


def _settled_with(settlement: Settlement) -> bytes | None:
    """Return what ends have in common that are written together: transactions on one item conflict."""
    if settlement.claim.chain is not None:
        return settlement.claim.ask.entity
    came = attended(settlement)
    return None if came is None else b"conversation " + came[0]
