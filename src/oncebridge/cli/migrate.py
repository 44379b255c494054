"""`oncebridge migrate`: bring the ledger's tables up to date, and those that sinks keep beside their own."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from oncebridge.cli.action_log import log_action
from oncebridge.cli.output import write_json, write_text
from oncebridge.cli.wiring import (
    BridgeOption,
    JSONOption,
    LedgerOption,
    SettingsOption,
    bridge_for,
    ledger_kind,
    upkeep_of,
)
from oncebridge.errors import OncebridgeError
from oncebridge.sinks.table.sql import EFFECTS

#: Ledgers whose tables must be made first, with the right to make tables.
NEED_IT: Final = frozenset({"postgresql", "postgres", "dynamodb"})


def migrate(
    *,
    handler: BridgeOption = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Make or update the tables of the ledger and of sinks; safe to repeat, and while workers work."""
    bridge = bridge_for(handler, ledger, settings)
    scheme = ledger_kind(bridge)
    try:
        bridge.ledger.migrate()  # not opened first: without its tables it may refuse
        if scheme in NEED_IT:
            with suppress(OncebridgeError):  # one that cannot be opened yet goes without
                bridge.ledger.open(bridge.settings.secret)
                log_action(bridge, "migrate", f"ledger {scheme}", "its tables are up to date")
    finally:
        bridge.ledger.close()
    sinks = upkeep_of(bridge)
    for sink in sinks:
        try:
            sink.migrate()
        finally:
            sink.close()
    if json:
        names = {"sinks": [sink.name for sink in sinks]} if sinks else {}
        write_json({"ledger": scheme, "needed": scheme in NEED_IT, **names})
        return
    if scheme in NEED_IT:
        write_text(f"the tables of the ledger ({scheme}) are up to date")
    else:
        write_text(f"a ledger of {scheme}:// needs no migrate: all it needs is made when it is opened")
    for sink in sinks:
        write_text(f"sink {sink.name}: its keys have their table {EFFECTS}")
