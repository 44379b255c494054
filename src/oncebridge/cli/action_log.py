"""`oncebridge log`: who did what, with commands and on the console's pages."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from oncebridge.cli.output import iso_time, say_warning, write_json, write_table
from oncebridge.cli.top import notes_of
from oncebridge.cli.wiring import JSONOption, LedgerOption, SettingsOption, existing_bridge
from oncebridge.journal.actions import COMMAND, ActionLog
from oncebridge.ledgers import DAY_US
from oncebridge.ledgers.notes import KeepsNotes

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge

#: How a ledger begins that has not been migrated since notes came: it goes without.
NO_TABLES: Final = "there are no tables for notes"
COLUMNS: Final = ("at", "who", "via", "what", "about", "said")


def log(
    *,
    ledger: LedgerOption = None,
    limit: Annotated[int, typer.Option(help="At most so many, the newest.", min=1, max=500, metavar="N")] = 50,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Show who did what to the events of a ledger, the newest first: redrives, discards, pauses, letters shown."""
    with existing_bridge(None, ledger, settings) as bridge:
        actions, _ = ActionLog(notes_of(bridge), bridge.clock).read(limit=limit)
    if json:
        for action in actions:
            write_json(msgspec.to_builtins(action))
        return
    rows = [(iso_time(one.at_ms * 1000, "seconds"), one.who, one.via, one.what, one.about, one.said) for one in actions]
    write_table(COLUMNS, rows, empty="no action has been logged here", below=("about",), prose=("said",))


def log_action(bridge: Bridge, what: str, about: str, said: str) -> None:
    """Write an action into the log of a ledger that is open; whatever happens, the command goes on."""
    if not isinstance(bridge.ledger, KeepsNotes):
        return
    keep_us = int(bridge.settings.retention_days * DAY_US)
    try:
        log = ActionLog(bridge.ledger.notes, bridge.clock, keep_us=keep_us)
        log.write(who=person(), via=COMMAND, what=what, about=about, said=said)
    except Exception as error:  # noqa: BLE001 - what the command did is done
        if NO_TABLES not in str(error):
            say_warning(f"this {what} is not in the log of actions: {error}")


def person() -> str:
    """Return who runs this command, as the system knows it."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
