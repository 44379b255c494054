"""What the promise of the DynamoDB ledger rests on: the table's settings, its time, and what this worker may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.dynamodb.items import check, delete, event_key, put, update
from oncebridge.ledgers.dynamodb.schema import KEYS, META, expires
from oncebridge.ledgers.dynamodb.troubles import ConditionFailed
from oncebridge.ledgers.protocol import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.ledgers.dynamodb.items import Write
    from oncebridge.ledgers.dynamodb.table import Table

SLOW_US: Final = 100_000
SKEWED_US: Final = 60_000_000  # AWS refuses a signature that is five minutes off
_TRIES: Final = 5


def examined(table: Table) -> Iterator[Finding]:
    """Look at everything; what this worker may not look at is said, and no reason to stop."""
    yield from _seen("table", "dynamodb:DescribeTable", lambda: _table_findings(table))
    yield from _seen("time to live", "dynamodb:DescribeTimeToLive", lambda: [_time_to_live(table)])
    yield from _seen("recovery", "dynamodb:DescribeContinuousBackups", lambda: [_recovery(table)])
    yield _secret(table)
    yield from _time(table)
    yield from _permissions(table)


def _seen(subject: str, action: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except LedgerRefused:
        return [
            Finding(
                level=Level.WARNING,
                subject=subject,
                found="this worker may not look at it",
                fix=f"run this with credentials that are allowed {action}; the worker itself does not need it",
            )
        ]


# --- settings of the table ---------------------------------------------------------------------------


def _table_findings(table: Table) -> list[Finding]:
    said = table.on_table(table.patience(), "describe_table", needs="Table")["Table"]
    return [_status(said), _billing(said), _protection(said), _replicas(said)]


def _status(said: dict[str, Any]) -> Finding:
    status, keys = said.get("TableStatus", "unknown"), said.get("KeySchema")
    if keys != KEYS:
        return Finding(
            level=Level.WRONG,
            subject="table",
            found="its keys are not pk and sk",
            fix="choose another table, and let `oncebridge migrate` make it",
        )
    level = Level.GOOD if status in ("ACTIVE", "UPDATING") else Level.WRONG
    return Finding(level=level, subject="table", found=status, fix="" if level is Level.GOOD else "wait until ACTIVE")


def _billing(said: dict[str, Any]) -> Finding:
    if (said.get("BillingModeSummary") or {}).get("BillingMode") == "PAY_PER_REQUEST":
        return Finding(level=Level.GOOD, subject="capacity", found="on demand")
    units = said.get("ProvisionedThroughput") or {}
    return Finding(
        level=Level.WARNING,
        subject="capacity",
        found=f"provisioned: {units.get('WriteCapacityUnits', 0)} writes and {units.get('ReadCapacityUnits', 0)} reads "
        "per second; a backlog is throttled, and leases may run out meanwhile",
        fix="switch the table to on-demand billing, or let its capacity scale",
    )


def _protection(said: dict[str, Any]) -> Finding:
    if said.get("DeletionProtectionEnabled"):
        return Finding(level=Level.GOOD, subject="deletion protection", found="on")
    return Finding(
        level=Level.WARNING,
        subject="deletion protection",
        found="off: one wrong command forgets every event",
        fix="aws dynamodb update-table --deletion-protection-enabled",
    )


def _replicas(said: dict[str, Any]) -> Finding:
    others = sorted(str(replica.get("RegionName")) for replica in said.get("Replicas") or [])
    if not others:
        return Finding(level=Level.GOOD, subject="replicas", found="one region")
    if said.get("MultiRegionConsistency") == "STRONG":
        return Finding(
            level=Level.WARNING,
            subject="replicas",
            found=f"strongly consistent with {', '.join(others)}, where transactions are not to be had",
            fix="use a table in one region for topics with a state, which need transactions",
        )
    return Finding(
        level=Level.WRONG,
        subject="replicas",
        found=f"a global table, with replicas in {', '.join(others)}; the last writer wins between regions",
        fix="let all workers of a ledger use one region, or give each region a table of its own",
        weakens="two regions may claim the same event in the same second",
    )


def _time_to_live(table: Table) -> Finding:
    if expires(table, table.patience()):
        return Finding(level=Level.GOOD, subject="time to live", found="on, by the attribute expires")
    return Finding(
        level=Level.WARNING,
        subject="time to live",
        found="off, or by another attribute than expires: nothing is ever removed by itself",
        fix="oncebridge migrate",
    )


def _recovery(table: Table) -> Finding:
    response = table.on_table(table.patience(), "describe_continuous_backups", needs="ContinuousBackupsDescription")
    recovery = response["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription") or {}
    if recovery.get("PointInTimeRecoveryStatus") == "ENABLED":
        return Finding(level=Level.GOOD, subject="recovery", found="to any point in time")
    return Finding(
        level=Level.WARNING,
        subject="recovery",
        found="off: a table damaged by mistake cannot be brought back",
        fix="aws dynamodb update-continuous-backups; after a restore, events since then are processed again",
    )


# --- secret, time, permissions -----------------------------------------------------------------------


def _secret(table: Table) -> Finding:
    own = "secret" in table.read(table.patience(), META).said
    kept = "made by the ledger and kept in the table: who may read it can compute keys" if own else "kept elsewhere"
    return Finding(level=Level.GOOD, subject="secret", found=kept)


def _time(table: Table) -> Iterator[Finding]:
    took_us = []
    for _ in range(_TRIES):
        before_us = table.clock.monotonic_us()
        table.read(table.patience(), META)
        took_us.append(table.clock.monotonic_us() - before_us)
    median_us = sorted(took_us)[_TRIES // 2]
    slow = median_us > SLOW_US
    yield Finding(
        level=Level.WARNING if slow else Level.GOOD,
        subject="latency",
        found=f"{median_us / 1000:.1f} ms for a read",
        fix="run the workers in the table's region, with a VPC endpoint for DynamoDB" if slow else "",
    )
    earliest_us, latest_us = table.time.bounds()
    here_us = table.clock.now_us()
    off_us = max(earliest_us - here_us, here_us - latest_us, 0)
    yield Finding(
        level=Level.WARNING if off_us > SKEWED_US else Level.GOOD,
        subject="clock",
        found=f"DynamoDB's time is known to {(latest_us - earliest_us) / 1_000_000:.1f} s; this machine's clock is "
        + (f"{off_us / 1_000_000:.0f} s off" if off_us else "within that"),
        fix="set this machine's clock: leases do not go by it, but AWS refuses what is signed five minutes off"
        if off_us > SKEWED_US
        else "",
    )


def _permissions(table: Table) -> Iterator[Finding]:
    """Try every write that a worker needs, each on a condition that cannot hold."""
    nowhere = event_key(b"", "examined")
    never: list[tuple[str, str, Any]] = [("rev", "=", -1)]
    tries: dict[str, list[Write]] = {
        "PutItem": [put(nowhere, never)],
        "UpdateItem": [update(nowhere, {"status": ""}, never)],
        "DeleteItem": [delete(nowhere, never)],
        "ConditionCheckItem": [check(nowhere, never), put(META, never)],
    }
    missing = [action for action, writes in tries.items() if not _may(table, writes)]
    yield Finding(
        level=Level.WRONG if missing else Level.GOOD,
        subject="permissions",
        found=f"not allowed: {', '.join(missing)}" if missing else "all that a worker needs",
        fix=f"allow {', '.join(f'dynamodb:{action}' for action in missing)} on this table" if missing else "",
    )


def _may(table: Table, writes: list[Write]) -> bool:
    try:
        table.write(table.patience(), *writes)
    except ConditionFailed:
        return True
    except LedgerRefused:
        return False
    return True
