"""Examines the servers of a Redis ledger: which data they would forget, and when."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from oncebridge.errors import LedgerRefused, LedgerUnavailable, LedgerWarning
from oncebridge.ledgers.findings import Finding, clocks, good, warning, wrong
from oncebridge.ledgers.redis.connection import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.clock import Clock
    from oncebridge.ledgers.redis.address import Address
    from oncebridge.ledgers.redis.calls import Calls
    from oncebridge.ledgers.redis.connection import Place

KEEPS: Final = "noeviction"
OLDEST: Final = (6, 2)

_EVICTION_FIX: Final = f"set maxmemory-policy to {KEEPS}"
_AOF_FIX: Final = "set appendonly yes, and appendfsync always if the machine may lose power"


def check_at_start(calls: Calls, address: Address) -> None:
    """Refuse a server that evicts keys when its memory is full; warn of one that forgets in a crash."""
    for place in calls.places():
        info = _info(calls, place)
        policy = info.get("maxmemory_policy", KEEPS)
        if policy != KEEPS and not address.allow_eviction:
            raise LedgerRefused(
                f"{address!r} has maxmemory-policy {policy}: when its memory is full it forgets events, which "
                f"then take effect twice; {_EVICTION_FIX}, or accept that with ?allow_eviction=true"
            )
        if info.get("aof_enabled") == 0:
            warnings.warn(
                f"{address!r} has no append-only file: after a crash it forgets what happened since its last "
                f"snapshot, and that takes effect twice; {_AOF_FIX}",
                LedgerWarning,
                stacklevel=2,
            )


def findings(calls: Calls, address: Address, clock: Clock) -> Iterator[Finding]:
    """Examine each server."""
    for place in calls.places():
        info = _info(calls, place)
        if not info:
            yield warning(
                "permissions", "this user may not run INFO, so the server's settings cannot be seen", "allow it +info"
            )
        yield _version(info)
        yield _eviction(info, address)
        yield _persistence(info, _fsync(calls, place))
        yield _replication(info, address)
        yield _clock(calls, place, clock)


def _version(info: dict[str, Any]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "unknown")
    number = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2] if part.isdigit())
    if info and number < OLDEST:
        return wrong("version", f"{name} {version}", "use Redis 6.2 or newer, or any Valkey")
    return good("version", f"{name} {version}")


def _eviction(info: dict[str, Any], address: Address) -> Finding:
    policy, evicted = info.get("maxmemory_policy", "unknown"), info.get("evicted_keys", 0)
    found = f"maxmemory-policy {policy}, {evicted:,} keys evicted so far"
    if policy in (KEEPS, "unknown"):
        return good("eviction", found)
    judge = warning if address.allow_eviction else wrong
    return judge("eviction", found, _EVICTION_FIX, weakens="Redis forgets events when its memory is full")


def _fsync(calls: Calls, place: Place) -> str:
    """Read when the log reaches the disk; managed servers do not say."""
    try:
        kept: list[bytes] = calls.ask(place, b"CONFIG", b"GET", b"appendfsync")
    except (LedgerRefused, LedgerUnavailable):
        return "unknown"
    return kept[1].decode() if kept else "unknown"


def _persistence(info: dict[str, Any], fsync: str) -> Finding:
    if info.get("aof_enabled", 1) == 0:
        return warning(
            "persistence", "no append-only file", _AOF_FIX, weakens="Redis forgets the newest events when it crashes"
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        return wrong("persistence", "the append-only file cannot be written", "look at the server's log and its disk")
    if fsync == "always":
        return good("persistence", "append-only file, every write on disk")
    return good(
        "persistence",
        f"append-only file, appendfsync {fsync}",
        "set appendfsync always if the machine may lose power" if fsync != "unknown" else "",
        weakens="a power cut takes up to a second of Redis' memory with it",
    )


def _replication(info: dict[str, Any], address: Address) -> Finding:
    role, replicas = info.get("role", "unknown"), int(info.get("connected_slaves", 0))
    if role == "slave":
        return wrong("replication", "this is a replica", "name the master, or its sentinels")
    found = f"{replicas} replicas, a write waits for {address.wait}"
    if replicas < address.wait:
        return wrong("replication", found, "bring the replicas back, or lower ?wait=")
    if replicas == 0 and address.kind == "single":
        return good("replication", "one server, no replicas")
    weakens = "Redis replicates behind the back of its answers, so a failover can grant a claim twice"
    if address.wait:
        return good("replication", found, weakens=weakens)
    return warning("replication", found, "add ?wait=1 to the URL", weakens=weakens)


def _clock(calls: Calls, place: Place, clock: Clock) -> Finding:
    before_us = clock.now_us()
    seconds, microseconds = calls.ask(place, b"TIME")
    now_us = int(seconds) * 1_000_000 + int(microseconds)
    return clocks(max(before_us - now_us, now_us - clock.now_us(), 0))


def _info(calls: Calls, place: Place) -> dict[str, Any]:
    """Read a server's INFO; empty if this user may not ask."""
    try:
        text: bytes = calls.ask(place, b"INFO")
    except LedgerRefused as refused:
        if isinstance(refused.__cause__, ServerError) and refused.__cause__.code == "NOPERM":
            return {}
        raise
    lines = [line.partition(":") for line in text.decode(errors="replace").splitlines() if not line.startswith("#")]
    return {name: int(value) if value.isdecimal() else value for name, _, value in lines if name}
