"""Checks everything that the promise of a Postgres ledger depends on: the server, its settings, and a pooler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.ledgers import DAY_US
from oncebridge.ledgers.findings import Finding, clocks, good, warning, wrong
from oncebridge.ledgers.postgres.migration import FUNCTIONS_VERSION, found_functions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.clock import Clock
    from oncebridge.ledgers.postgres.connections import LedgerConnection

OLDEST: Final = 14_00_00
DAMAGED: Final = (14_00_00, 14_00_04)  # from, until before
PURGE_LATE_DAYS: Final = 3  # a purge runs daily, and may miss a day or two

_LOOK: Final = """
    SELECT current_setting('server_version'), current_setting('server_version_num')::integer,
        pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
        current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
        (SELECT count(*) FROM pg_stat_replication WHERE application_name <> 'pg_basebackup'),
        current_setting('default_transaction_isolation'),
        (SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'),
        pg_backend_pid(), {schema}.now_us(),
        (SELECT {schema}.today() - min(day) FROM {schema}.places()),
        (SELECT max(day) - {schema}.today() FROM {schema}.places())"""


class Seen(msgspec.Struct, frozen=True):
    """The result of one query to the server."""

    version: str
    version_number: int
    in_recovery: bool
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    standby_names: str
    standbys: int
    isolation: str
    idle_timeout_ms: int
    backend_id: int
    now_us: int
    oldest_place_days: int | None
    newest_place_days: int | None


def examine(connection: LedgerConnection, schema: str, clock: Clock, retention_us: int) -> Iterator[Finding]:
    """Examine the server of an open ledger."""
    before_us = clock.now_us()
    (row,) = connection.ask(_LOOK.format(schema=schema))
    after_us = clock.now_us()
    seen = Seen(*row)
    yield _version(seen)
    yield _functions(found_functions(connection, schema))
    yield _role(seen)
    yield from _durability(seen)
    yield _replication(seen)
    yield from _sessions(seen, connection.info.backend_pid)
    yield clocks(max(before_us - seen.now_us, seen.now_us - after_us, 0))
    yield _places(seen, retention_us)


def _version(seen: Seen) -> Finding:
    found = f"Postgres {seen.version}"
    if seen.version_number < OLDEST:
        return wrong("version", found, "use Postgres 14 or newer")
    if DAMAGED[0] <= seen.version_number < DAMAGED[1]:
        return warning(
            "version",
            f"{found}, where CREATE INDEX and REINDEX CONCURRENTLY may damage an index",
            "update to 14.4 or newer, then REINDEX",
            weakens="an index that was damaged while it was built may hide events",
        )
    return good("version", found)


def _functions(found: int) -> Finding:
    if found < FUNCTIONS_VERSION:
        return wrong(
            "functions",
            f"those in the database are of an older Oncebridge ({found}, and this one has {FUNCTIONS_VERSION})",
            "run oncebridge migrate, also while workers run",
            weakens="a mistake that was mended since may still be made",
        )
    return good("functions", "up to date")


def _role(seen: Seen) -> Finding:
    if not seen.in_recovery:
        return good("role", "primary")
    return wrong("role", "a read replica, which cannot claim anything", "use the address of the primary")


def _durability(seen: Seen) -> Iterator[Finding]:
    """Judge which writes are on the disk when a commit returns."""
    if seen.fsync == "on" and seen.full_page_writes == "on":
        yield good("disk", "fsync and full_page_writes are on: a commit survives a power cut")
    else:
        yield wrong(
            "disk",
            f"fsync is {seen.fsync}, full_page_writes is {seen.full_page_writes}: a power cut may damage everything",
            "set both to on",
            weakens="a power cut may damage the ledger",
        )
    if seen.synchronous_commit == "off":
        yield warning(
            "commit",
            "synchronous_commit is off: the last commits before a crash are forgotten",
            "set synchronous_commit to on, for this user at least: ALTER ROLE ... SET synchronous_commit = on",
            weakens="a crash forgets the last commits",
        )
    else:
        yield good("commit", f"synchronous_commit is {seen.synchronous_commit}")


def _replication(seen: Seen) -> Finding:
    if seen.standby_names and seen.synchronous_commit not in ("off", "local"):
        return good("replication", f"commits wait for a standby: synchronous_standby_names is {seen.standby_names!r}")
    if seen.standbys or seen.standby_names:
        return warning(
            "replication",
            f"{seen.standbys} standby servers, and commits do not wait for them",
            "set synchronous_standby_names, or know that a failover forgets the last commits",
            weakens="a standby that is promoted may not know the last commits",
        )
    return good("replication", "none to be seen from here")


def _sessions(seen: Seen, backend_id: int) -> Iterator[Finding]:
    if seen.isolation == "read committed":
        yield good("isolation", "read committed")
    else:
        fix = (
            "leave it to the ledger, which sets read committed on its own connections, or use a user with this default"
        )
        yield warning("isolation", f"{seen.isolation} by default", fix)
    if seen.backend_id != backend_id:
        yield warning(
            "pooler",
            "something such as PgBouncer stands between, and gives each transaction another connection",
            "it works, but statements may not be prepared; connect directly or use session mode to be faster",
        )
    if seen.idle_timeout_ms:
        yield warning(
            "idle transactions",
            f"ended after {seen.idle_timeout_ms / 1000:g} s: a handler with a transaction that computes or waits for "
            "longer than that fails each time",
            "keep handlers shorter than that, or raise idle_in_transaction_session_timeout for this user",
        )
    else:
        yield good("idle transactions", "may stay open as long as handlers need")


def _places(seen: Seen, retention_us: int) -> Finding:
    oldest, newest = seen.oldest_place_days or 0, seen.newest_place_days or 0
    if newest < 1:
        return warning(
            "partitions",
            "none for tomorrow: its events would be kept with the odd ones, and forgotten one by one",
            "leave the tables owned by the user who migrated; a worker makes them daily",
        )
    if oldest > retention_us // DAY_US + PURGE_LATE_DAYS:
        return warning(
            "partitions",
            f"the oldest is {oldest} days old, and the retention is {retention_us / DAY_US:g} days",
            "run oncebridge purge daily; a day that holds dead letters or unfinished events stays",
        )
    return good("partitions", f"from {oldest} days ago to {newest} days ahead")
