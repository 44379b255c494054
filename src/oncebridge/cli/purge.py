"""`oncebridge purge`: forget what was settled longer ago than the retention."""

from __future__ import annotations

from typing import Annotated

import typer

from oncebridge.cli.output import write_json, write_text
from oncebridge.cli.wiring import BridgeOption, JSONOption, LedgerOption, SettingsOption, existing_bridge, upkeep_of
from oncebridge.ledgers import DAY_US


def purge(
    *,
    handler: BridgeOption = None,
    ledger: LedgerOption = None,
    older_than_days: Annotated[
        float | None, typer.Option(help="Instead of the retention from the settings (30 days).", min=0)
    ] = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Forget events settled longer ago than the retention, and keys that sinks wrote before; dead letters stay."""
    with existing_bridge(handler, ledger, settings) as bridge:
        days = bridge.settings.retention_days if older_than_days is None else older_than_days
        older_than_us = int(days * DAY_US)
        forgotten = bridge.ledger.purge(older_than_us=older_than_us)
        remembered = sum(bridge.ledger.counts().values())
        keys = {sink.name: sink.purge(older_than_us=older_than_us) for sink in upkeep_of(bridge)}
    if json:
        write_json({"forgotten": forgotten, "remembered": remembered, **({"sinks": keys} if keys else {})})
        return
    write_text(f"{forgotten:,} events forgotten, {remembered:,} remembered")
    for name, number in keys.items():
        write_text(f"sink {name}: {number:,} keys forgotten")
