"""The peers that users would pick instead, each as its own documentation has it: no worse, and no better.

The clients are the same as the bridge's: redis-py with hiredis, sqlite3, psycopg.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import psycopg
import redis
from contestants import BATCH, Handler, do_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TUTORIAL_SECONDS: Final = 600  # how long the tutorial remembers
POWERTOOLS_SECONDS: Final = 3600  # how long Powertools remembers by default
LEASE_SECONDS: Final = 60  # after which bare statements take an event of a dead worker again


class Tutorial:
    """The tutorial's cure: parse with pydantic, SET NX with an expiry, then the handler. One event at a time.

    It loses the event when the worker dies in between, which is not measured here.
    """

    def __init__(
        self,
        url: str,
        handler: Handler = do_nothing,
        *,
        read: Callable[[bytes], tuple[str, Any]] | None = None,
    ) -> None:
        """Connect. `read` returns an envelope's id and the parsed event."""
        self._client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=2, socket_connect_timeout=2)
        self._client.ping()
        self._handler = handler
        self._read = read or pydantic_reader()

    def work(self, raws: Sequence[bytes]) -> None:
        """Process deliveries; one that cannot be parsed is passed over, as the tutorial does."""
        for raw in raws:
            try:
                envelope_id, event = self._read(raw)
            except ValueError:
                continue
            if self._client.set(f"gc-event-{envelope_id}", "1", nx=True, ex=TUTORIAL_SECONDS):
                self._handler(event)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def pydantic_reader() -> Callable[[bytes], tuple[str, Any]]:
    """Return the tutorial's parser: its models, with the field names that Genesys really sends."""
    from pydantic import BaseModel

    class Detail(BaseModel):
        topicName: str  # noqa: N815 - as Genesys spells it
        timestamp: str | None = None
        eventBody: dict[str, Any] = {}  # noqa: N815 - as Genesys spells it

    class Envelope(BaseModel):
        id: str
        source: str
        account: str
        time: str
        region: str
        resources: list[str]
        detail: Detail

    Detail.model_rebuild(_types_namespace={"Any": Any})
    Envelope.model_rebuild(_types_namespace={"Detail": Detail})

    def read(raw: bytes) -> tuple[str, Any]:
        envelope = Envelope(**json.loads(raw))
        return envelope.id, envelope

    return read


class Powertools:
    """AWS Powertools' `idempotent_function` on its cache layer, keyed on the envelope id. One event at a time."""

    def __init__(self, url: str, handler: Handler = do_nothing) -> None:
        """Connect. A context is registered, as its documentation asks, so that records of dead workers run out."""
        from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
        from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._client.ping()
        config = IdempotencyConfig(
            event_key_jmespath="id", expires_after_seconds=POWERTOOLS_SECONDS, use_local_cache=False
        )
        config.register_lambda_context(LambdaContext())

        @idempotent_function(
            data_keyword_argument="event",
            persistence_store=CachePersistenceLayer(client=self._client),
            config=config,
        )
        def handle(event: dict[str, Any]) -> None:
            handler(event)

        self._handle = handle

    def work(self, raws: Sequence[bytes]) -> None:
        """Process deliveries; one that is no JSON cannot even be given to it."""
        for raw in raws:
            try:
                event = json.loads(raw)
            except ValueError:
                continue
            self._handle(event=event)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class LambdaContext:
    """As much of Lambda's context as Powertools looks at."""

    def get_remaining_time_in_millis(self) -> int:
        """Return the time left, as Lambda does."""
        return 60_000


class BareStatements(ABC):
    """The least that is safe in a database: two transactions a batch, an insert and an update an event.

    An event whose worker died can be taken again after a lease. Which events are new is asked only when some are not.
    Subclasses have the statements of their database.
    """

    INSERT: str
    UPDATE: str
    NEW: str

    def __init__(self, handler: Handler = do_nothing, *, size: int = BATCH) -> None:
        """Take the handler and the size of batches."""
        self._handler = handler
        self._size = size
        self._batch = secrets.randbits(62)  # no other worker's

    def work(self, raws: Sequence[bytes]) -> None:
        """Process deliveries, a batch at a time."""
        for start in range(0, len(raws), self._size):
            self._batch += 1
            self._work_batch(dict(readable(raws[start : start + self._size])))

    def _work_batch(self, events: dict[str, Any]) -> None:
        now = int(time.time())
        rows = [(envelope_id, self._batch, now + LEASE_SECONDS, now) for envelope_id in events]
        inserted = self.commit(self.INSERT, rows)
        new = list(events) if inserted == len(events) else self.ask(self.NEW, (self._batch,))
        for envelope_id in new:
            self._handler(events[envelope_id])
        self.commit(self.UPDATE, [(envelope_id,) for envelope_id in new])

    @abstractmethod
    def commit(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for all rows in one transaction; return how many rows it changed."""

    @abstractmethod
    def ask(self, statement: str, parameters: tuple[Any, ...]) -> list[str]:
        """Return the first column of a query."""


def readable(raws: Sequence[bytes]) -> Iterator[tuple[str, Any]]:
    """Yield the envelope id and the parsed event of each delivery that is JSON."""
    for raw in raws:
        try:
            event = json.loads(raw)
        except ValueError:
            continue
        yield event["id"], event


class BareSQLite(BareStatements):
    """Bare statements on SQLite, in a write-ahead log that is on disk with every commit."""

    INSERT = (
        "INSERT INTO seen (id, batch, until, done) VALUES (?, ?, ?, 0) "
        "ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, until = excluded.until "
        "WHERE seen.done = 0 AND seen.until < ?"
    )
    UPDATE = "UPDATE seen SET done = 1 WHERE id = ?"
    NEW = "SELECT id FROM seen WHERE batch = ? AND done = 0"

    def __init__(self, path: str, handler: Handler = do_nothing, *, size: int = BATCH) -> None:
        """Make the file and its table."""
        super().__init__(handler, size=size)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, batch INTEGER, until INTEGER, done INTEGER) "
            "WITHOUT ROWID"
        )

    def commit(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for all rows in one transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        changed = self._db.executemany(statement, rows).rowcount
        self._db.execute("COMMIT")
        return changed

    def ask(self, statement: str, parameters: tuple[Any, ...]) -> list[str]:
        """Return the first column of a query."""
        return [row[0] for row in self._db.execute(statement, parameters)]

    def close(self) -> None:
        """Close the file."""
        self._db.close()


class BarePostgres(BareStatements):
    """Bare statements on Postgres; psycopg sends those of one transaction in a pipeline."""

    INSERT = (
        "INSERT INTO seen (id, batch, until, done) VALUES (%s, %s, %s, false) "
        "ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, until = excluded.until "
        "WHERE NOT seen.done AND seen.until < %s"
    )
    UPDATE = "UPDATE seen SET done = true WHERE id = %s"
    NEW = "SELECT id FROM seen WHERE batch = %s AND NOT done"

    def __init__(self, url: str, handler: Handler = do_nothing, *, size: int = BATCH) -> None:
        """Connect and make the table."""
        super().__init__(handler, size=size)
        self._db = psycopg.connect(url, autocommit=True)
        self._db.execute("SET synchronous_commit = on")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS seen (id text PRIMARY KEY, batch bigint, until bigint, done boolean)"
        )

    def commit(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for all rows in one transaction."""
        with self._db.transaction(), self._db.cursor() as cursor:
            cursor.executemany(statement, rows)
            return cursor.rowcount

    def ask(self, statement: str, parameters: tuple[Any, ...]) -> list[str]:
        """Return the first column of a query."""
        return [row[0] for row in self._db.execute(statement, parameters)]

    def close(self) -> None:
        """Close the connection."""
        self._db.close()
