"""Checks everything that the promise of a DynamoDB ledger depends on: the table's settings, its time, permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.dynamodb.errors import ConditionFailed
from oncebridge.ledgers.dynamodb.items import delete, event_key, put, update
from oncebridge.ledgers.dynamodb.schema import KEYS, META, expires
from oncebridge.ledgers.findings import Finding, clocks, good, warning, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.ledgers.dynamodb.items import Write
    from oncebridge.ledgers.dynamodb.table import Table


def examined(table: Table) -> Iterator[Finding]:
    """Check everything; a check that this worker lacks the rights for is reported, and does not stop the rest."""
    yield from _seen("table", "dynamodb:DescribeTable", lambda: _table_findings(table))
    yield from _seen("time to live", "dynamodb:DescribeTimeToLive", lambda: [_time_to_live(table)])
    yield from _seen("recovery", "dynamodb:DescribeContinuousBackups", lambda: [_recovery(table)])
    yield _secret(table)
    yield _clock(table)
    yield _permissions(table)


def _seen(subject: str, action: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except LedgerRefused:
        return [
            warning(
                subject,
                "this worker may not look at it",
                f"run this with credentials that are allowed {action}; the worker itself does not need it",
            )
        ]


# --- settings of the table ---------------------------------------------------------------------------


def _table_findings(table: Table) -> list[Finding]:
    said = table.on_table(table.patience(), "describe_table", needs="Table")["Table"]
    return [_status(said), _billing(said), _protection(said), _replicas(said)]


def _status(said: dict[str, Any]) -> Finding:
    status, keys = said.get("TableStatus", "unknown"), said.get("KeySchema")
    if keys != KEYS:
        return wrong(
            "table", "its keys are not pk and sk", "choose another table, and let `oncebridge migrate` make it"
        )
    if status in ("ACTIVE", "UPDATING"):
        return good("table", status)
    return wrong("table", status, "wait until it is ACTIVE")


def _billing(said: dict[str, Any]) -> Finding:
    if (said.get("BillingModeSummary") or {}).get("BillingMode") == "PAY_PER_REQUEST":
        return good("capacity", "on demand")
    units = said.get("ProvisionedThroughput") or {}
    return warning(
        "capacity",
        f"provisioned: {units.get('WriteCapacityUnits', 0)} writes and {units.get('ReadCapacityUnits', 0)} reads "
        "per second; a backlog is throttled, and leases may run out meanwhile",
        "switch the table to on-demand billing, or let its capacity scale",
    )


def _protection(said: dict[str, Any]) -> Finding:
    if said.get("DeletionProtectionEnabled"):
        return good("deletion protection", "on")
    return warning(
        "deletion protection",
        "off: one wrong command forgets every event",
        "aws dynamodb update-table --deletion-protection-enabled",
    )


def _replicas(said: dict[str, Any]) -> Finding:
    others = sorted(str(replica.get("RegionName")) for replica in said.get("Replicas") or [])
    if not others:
        return good("replicas", "one region")
    if said.get("MultiRegionConsistency") == "STRONG":
        return warning(
            "replicas",
            f"strongly consistent with {', '.join(others)}, where transactions are not to be had",
            "use a table in one region for topics with a state, which need transactions",
        )
    return wrong(
        "replicas",
        f"a global table, with replicas in {', '.join(others)}; the last writer wins between regions",
        "let all workers of a ledger use one region, or give each region a table of its own",
        weakens="two regions may claim the same event in the same second",
    )


def _time_to_live(table: Table) -> Finding:
    if expires(table, table.patience()):
        return good("time to live", "on, by the attribute expires")
    return warning(
        "time to live",
        "off, or by another attribute than expires: nothing is ever removed by itself",
        "oncebridge migrate",
    )


def _recovery(table: Table) -> Finding:
    response = table.on_table(table.patience(), "describe_continuous_backups", needs="ContinuousBackupsDescription")
    recovery = response["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription") or {}
    if recovery.get("PointInTimeRecoveryStatus") == "ENABLED":
        return good("recovery", "to any point in time")
    return warning(
        "recovery",
        "off: a table damaged by mistake cannot be brought back",
        "aws dynamodb update-continuous-backups; after a restore, events since then are processed again",
    )


# --- secret, time, permissions -----------------------------------------------------------------------


def _secret(table: Table) -> Finding:
    own = "secret" in table.read(table.patience(), META).said
    kept = "made by the ledger and kept in the table: who may read it can compute keys" if own else "kept elsewhere"
    return good("secret", kept)


def _clock(table: Table) -> Finding:
    """Compare clocks; DynamoDB's is known within bounds. AWS refuses requests signed five minutes off."""
    earliest_us, latest_us = table.time.bounds()
    here_us = table.clock.now_us()
    return clocks(max(earliest_us - here_us, here_us - latest_us, 0))


def _permissions(table: Table) -> Finding:
    """Try every write that a worker needs, each on a condition that cannot hold."""
    nowhere = event_key(b"", "examined")
    never: list[tuple[str, str, Any]] = [("rev", "=", -1)]
    tries: dict[str, list[Write]] = {
        "PutItem": [put(nowhere, never)],
        "UpdateItem": [update(nowhere, {"status": ""}, never)],
        "DeleteItem": [delete(nowhere, never)],
    }
    missing = [action for action, writes in tries.items() if not _may(table, writes)]
    if not missing:
        return good("permissions", "all that a worker needs")
    fix = f"allow {', '.join(f'dynamodb:{action}' for action in missing)} on this table"
    return wrong("permissions", f"not allowed: {', '.join(missing)}", fix)


def _may(table: Table, writes: list[Write]) -> bool:
    try:
        table.write(table.patience(), *writes)
    except ConditionFailed:
        return True
    except LedgerRefused:
        return False
    return True
