"""Looks at the servers of a Redis ledger: what they would forget, and when."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

import redis

from oncebridge.errors import LedgerRefused, LedgerWarning
from oncebridge.ledgers.protocol import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncebridge.clock import Clock
    from oncebridge.ledgers.redis.server import Address

KEEPS: Final = "noeviction"
CLOCK_US_MAX: Final = 5_000_000
OLDEST: Final = (6, 2)

_EVICTION_FIX: Final = f"set maxmemory-policy to {KEEPS}"
_AOF_FIX: Final = "set appendonly yes, and appendfsync always if the machine may lose power"


def check_at_start(servers: Iterable[redis.Redis], address: Address) -> None:
    """Refuse a server that throws keys away when its memory is full; warn of one that forgets with a crash."""
    for server in servers:
        info = _info(server)
        policy = info.get("maxmemory_policy", KEEPS)
        if policy != KEEPS and not address.allow_eviction:
            raise LedgerRefused(
                f"Redis at {address!r} has maxmemory-policy {policy}: when its memory is full it forgets events, which "
                f"then take effect twice; {_EVICTION_FIX}, or accept that with ?allow_eviction=true"
            )
        if info.get("aof_enabled") == 0:
            warnings.warn(
                f"Redis at {address!r} has no append-only file: after a crash it forgets what happened since its last "
                f"snapshot, and that takes effect twice; {_AOF_FIX}",
                LedgerWarning,
                stacklevel=2,
            )


def findings(servers: Iterable[redis.Redis], address: Address, clock: Clock) -> Iterator[Finding]:
    """Look at each server."""
    for server in servers:
        info = _info(server)
        if not info:
            yield Finding(
                level=Level.WARNING,
                subject="permissions",
                found="this user may not run INFO, so the server's settings cannot be seen",
                fix="allow it +info",
            )
        yield _version(info)
        yield _eviction(info, address)
        yield _persistence(info, _fsync(server))
        yield _replication(info, address)
        yield _clock(server, clock)


def _version(info: dict[str, Any]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "unknown")
    number = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2] if part.isdigit())
    if info and number < OLDEST:
        return Finding(
            level=Level.WRONG, subject="version", found=f"{name} {version}", fix="use Redis 6.2 or newer, or any Valkey"
        )
    return Finding(level=Level.GOOD, subject="version", found=f"{name} {version}")


def _eviction(info: dict[str, Any], address: Address) -> Finding:
    policy, evicted = info.get("maxmemory_policy", "unknown"), info.get("evicted_keys", 0)
    found = f"maxmemory-policy {policy}, {evicted:,} keys evicted so far"
    if policy in (KEEPS, "unknown"):
        return Finding(level=Level.GOOD, subject="eviction", found=found)
    return Finding(
        level=Level.WARNING if address.allow_eviction else Level.WRONG,
        subject="eviction",
        found=found,
        fix=_EVICTION_FIX,
        weakens="Redis forgets events when its memory is full",
    )


def _fsync(server: redis.Redis) -> str:
    """Read when the log reaches the disk; managed servers do not tell."""
    try:
        kept: dict[str, str] = server.config_get("appendfsync")  # type: ignore[assignment]
    except redis.ResponseError:
        return "unknown"
    return str(kept.get("appendfsync", "unknown"))


def _persistence(info: dict[str, Any], fsync: str) -> Finding:
    if info.get("aof_enabled", 1) == 0:
        return Finding(
            level=Level.WARNING,
            subject="persistence",
            found="no append-only file",
            fix=_AOF_FIX,
            weakens="Redis forgets the newest events when it crashes",
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        return Finding(
            level=Level.WRONG,
            subject="persistence",
            found="the append-only file cannot be written",
            fix="look at the server's log and its disk",
        )
    if fsync == "always":
        return Finding(level=Level.GOOD, subject="persistence", found="append-only file, every write on disk")
    return Finding(
        level=Level.GOOD,
        subject="persistence",
        found=f"append-only file, appendfsync {fsync}",
        fix="set appendfsync always if the machine may lose power" if fsync != "unknown" else "",
        weakens="a power cut takes up to a second of Redis' memory with it",
    )


def _replication(info: dict[str, Any], address: Address) -> Finding:
    role, replicas = info.get("role", "unknown"), int(info.get("connected_slaves", 0))
    if role == "slave":
        return Finding(
            level=Level.WRONG, subject="replication", found="this is a replica", fix="name the master, or its sentinels"
        )
    found = f"{replicas} replicas, a write waits for {address.wait}"
    if replicas < address.wait:
        return Finding(
            level=Level.WRONG, subject="replication", found=found, fix="bring the replicas back, or lower ?wait="
        )
    if replicas == 0 and address.kind == "single":
        return Finding(level=Level.GOOD, subject="replication", found="one server, no replicas")
    return Finding(
        level=Level.GOOD if address.wait else Level.WARNING,
        subject="replication",
        found=found,
        fix="" if address.wait else "add ?wait=1 to the URL",
        weakens="Redis replicates behind the back of its answers, so a failover can grant a claim twice",
    )


def _clock(server: redis.Redis, clock: Clock) -> Finding:
    before_us = clock.now_us()
    seconds, microseconds = server.time()
    apart_us = int(seconds) * 1_000_000 + int(microseconds) - (before_us + clock.now_us()) // 2
    found = f"the server's clock is {apart_us / 1_000_000:+.3f} s from this machine's"
    if abs(apart_us) > CLOCK_US_MAX:
        return Finding(
            level=Level.WARNING, subject="clock", found=found, fix="let NTP set both; leases go by the server's"
        )
    return Finding(level=Level.GOOD, subject="clock", found=found)


def _info(server: redis.Redis) -> dict[str, Any]:
    """Read what a server says of itself; nothing where this user may not ask."""
    try:
        found: dict[str, Any] = server.info()
    except redis.exceptions.NoPermissionError:
        return {}
    return found
