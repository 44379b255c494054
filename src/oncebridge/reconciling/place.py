"""What a run compares with: a ledger that keeps attendance, and what is known of the installation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from oncebridge.engine.attending import read_kept
from oncebridge.errors import ConfigurationError
from oncebridge.ledgers import DAY_US
from oncebridge.ledgers.notes import KeepsNotes
from oncebridge.ledgers.protocol import KeepsAttendance
from oncebridge.reconciling.comparison import Known
from oncebridge.reconciling.runs import Runs
from oncebridge.reconciling.subscribed import expected_by_name, subscribed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.bridge import Bridge


class Place(NamedTuple):
    """What a run compares with, and where it is kept."""

    ledger: KeepsAttendance
    known: Known
    runs: Runs


def place_of(bridge: Bridge, expect: Sequence[str] | None) -> Place:
    """Return what a bridge's ledger knows; refuse one that knows nothing that could be compared."""
    flow = bridge.open()
    ledger, now_us = bridge.ledger, bridge.clock.now_us()
    keep_us = int(bridge.settings.retention_days * DAY_US)
    if not isinstance(ledger, KeepsAttendance) or not isinstance(ledger, KeepsNotes):
        raise ConfigurationError(f"--ledger: {type(ledger).__name__} keeps no attendance; see docs/reconcile.md")
    kept = read_kept(ledger.notes)
    if kept is None and not expect:
        raise ConfigurationError(
            "attendance: the ledger keeps none yet; set attendance = true for the workers, or say with --expect what "
            "should have come"
        )
    patterns = [one.pattern for one in bridge.handlers]
    families = expected_by_name(expect) if expect else subscribed(kept, patterns, since_us=now_us - keep_us)
    if not families:
        raise ConfigurationError("--expect: no event of a conversation's course ever came; say what should have come")
    since_ms = 0 if kept is None else kept.since_ms
    if kept is not None and kept.began_us < now_us - keep_us:
        since_ms = max(since_ms, (now_us - keep_us) // 1000)  # older attendance is forgotten
    return Place(ledger, Known(flow.secret, families, since_ms), Runs(ledger.notes, bridge.clock, keep_us))
