"""What the promise of a Postgres ledger rests on: the server, its settings, and who stands between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.ledgers.protocol import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.clock import Clock
    from oncebridge.ledgers.postgres.connections import LedgerConnection

OLDEST: Final = 14_00_00
DAMAGED: Final = (14_00_00, 14_00_04)  # from, until before
CLOCK_US_MAX: Final = 5_000_000
DAY_US: Final = 86_400_000_000
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
    """What one look at the server has shown."""

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
    """Look at the server of an open ledger."""
    before_us = clock.now_us()
    (row,) = connection.ask(_LOOK.format(schema=schema))
    after_us = clock.now_us()
    seen = Seen(*row)
    yield _version(seen)
    yield _role(seen)
    yield from _durability(seen)
    yield _replication(seen)
    yield from _sessions(seen, connection.info.backend_pid)
    yield _clock(seen.now_us, before_us, after_us)
    yield _places(seen, retention_us)


def _good(subject: str, found: str) -> Finding:
    return Finding(level=Level.GOOD, subject=subject, found=found)


def _bad(level: Level, subject: str, found: str, fix: str, **more: Any) -> Finding:
    return Finding(level=level, subject=subject, found=found, fix=fix, **more)


def _version(seen: Seen) -> Finding:
    found = f"Postgres {seen.version}"
    if seen.version_number < OLDEST:
        return _bad(Level.WRONG, "version", found, "use Postgres 14 or newer")
    if DAMAGED[0] <= seen.version_number < DAMAGED[1]:
        return _bad(
            Level.WARNING,
            "version",
            f"{found}, where CREATE INDEX and REINDEX CONCURRENTLY may damage an index",
            "update to 14.4 or newer, then REINDEX",
            weakens="an index that was damaged while it was built may hide events",
        )
    return _good("version", found)


def _role(seen: Seen) -> Finding:
    if not seen.in_recovery:
        return _good("role", "primary")
    return _bad(Level.WRONG, "role", "a read replica, which cannot claim anything", "use the address of the primary")


def _durability(seen: Seen) -> Iterator[Finding]:
    """Judge what is on the disk when a commit returns."""
    if seen.fsync == "on" and seen.full_page_writes == "on":
        yield _good("disk", "fsync and full_page_writes are on: what was committed survives a power cut")
    else:
        yield _bad(
            Level.WRONG,
            "disk",
            f"fsync is {seen.fsync}, full_page_writes is {seen.full_page_writes}: a power cut may damage everything",
            "set both to on",
            weakens="a power cut may damage the ledger",
        )
    if seen.synchronous_commit == "off":
        yield _bad(
            Level.WARNING,
            "commit",
            "synchronous_commit is off: the last commits before a crash are forgotten",
            "set synchronous_commit to on, for this user at least: ALTER ROLE ... SET synchronous_commit = on",
            weakens="a crash forgets the last commits",
        )
    else:
        yield _good("commit", f"synchronous_commit is {seen.synchronous_commit}")


def _replication(seen: Seen) -> Finding:
    if seen.standby_names and seen.synchronous_commit not in ("off", "local"):
        return _good("replication", f"commits wait for a standby: synchronous_standby_names is {seen.standby_names!r}")
    if seen.standbys or seen.standby_names:
        return _bad(
            Level.WARNING,
            "replication",
            f"{seen.standbys} standby servers, and commits do not wait for them",
            "set synchronous_standby_names, or know that a failover forgets the last commits",
            weakens="a standby that is promoted may not know the last commits",
        )
    return _good("replication", "none to be seen from here")


def _sessions(seen: Seen, backend_id: int) -> Iterator[Finding]:
    if seen.isolation == "read committed":
        yield _good("isolation", "read committed")
    else:
        fix = (
            "leave it to the ledger, which sets read committed on its own connections, or use a user with this default"
        )
        yield _bad(Level.WARNING, "isolation", f"{seen.isolation} by default", fix)
    if seen.backend_id != backend_id:
        yield _bad(
            Level.WARNING,
            "pooler",
            "something such as PgBouncer stands between, and gives each transaction another connection",
            "it works, but statements may not be prepared; connect directly or use session mode to be faster",
        )
    if seen.idle_timeout_ms:
        yield _bad(
            Level.WARNING,
            "idle transactions",
            f"ended after {seen.idle_timeout_ms / 1000:g} s: a handler with a transaction that computes or waits for "
            "longer than that fails each time",
            "keep handlers shorter than that, or raise idle_in_transaction_session_timeout for this user",
        )
    else:
        yield _good("idle transactions", "may stay open as long as handlers need")


def _clock(server_us: int, before_us: int, after_us: int) -> Finding:
    """Compare clocks: leases go by the server's alone, but stamps ahead of it by ten minutes are not believed."""
    difference_us = max(before_us - server_us, server_us - after_us, 0)
    found = f"{difference_us / 1_000_000:.3f} s from this machine's"
    if difference_us <= CLOCK_US_MAX:
        return _good("clock", found)
    return _bad(Level.WARNING, "clock", found, "let both machines take their time from NTP")


def _places(seen: Seen, retention_us: int) -> Finding:
    oldest, newest = seen.oldest_place_days or 0, seen.newest_place_days or 0
    if newest < 1:
        return _bad(
            Level.WARNING,
            "partitions",
            "none for tomorrow: its events would be kept with the odd ones, and forgotten one by one",
            "let whoever migrated keep owning the tables; a worker makes them daily",
        )
    if oldest > retention_us // DAY_US + PURGE_LATE_DAYS:
        return _bad(
            Level.WARNING,
            "partitions",
            f"the oldest is {oldest} days old, and the retention is {retention_us / DAY_US:g} days",
            "run oncebridge purge daily; a day that holds dead letters or unfinished events stays",
        )
    return _good("partitions", f"from {oldest} days ago to {newest} days ahead")
