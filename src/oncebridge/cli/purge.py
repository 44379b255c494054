"""`oncebridge purge`: forget events that were settled longer ago than the retention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from oncebridge.claim import Outcome
from oncebridge.cli.action_log import log_action
from oncebridge.cli.output import can_ask, confirmed, say, write_json, write_text
from oncebridge.cli.wiring import (
    EXIT_DECLINED,
    BridgeOption,
    JSONOption,
    LedgerOption,
    SettingsOption,
    existing_bridge,
    setting_or,
    upkeep_of,
)
from oncebridge.errors import ConfigurationError
from oncebridge.ledgers import DAY_US

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge


def purge(
    *,
    handler: BridgeOption = None,
    ledger: LedgerOption = None,
    older_than_days: Annotated[
        float | None,
        typer.Option(help="Forget what was settled longer ago.", min=0, show_default=setting_or("retention_days")),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before events of the last day are forgotten.")
    ] = False,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Forget events settled longer ago than the retention, and keys that sinks wrote before.

    Dead letters stay, unless the settings have dead_letter_retention_days: older ones are discarded for good then.
    """
    if older_than_days is not None and older_than_days < 1 and not yes:
        _ask(older_than_days)
    with existing_bridge(handler, ledger, settings) as bridge:
        days = bridge.settings.retention_days if older_than_days is None else older_than_days
        older_than_us = int(days * DAY_US)
        forgotten = bridge.ledger.purge(older_than_us=older_than_us)
        letters = _discard_old_letters(bridge)
        remembered = sum(bridge.ledger.counts().values())
        keys = {sink.name: sink.purge(older_than_us=older_than_us) for sink in upkeep_of(bridge)}
        discarded = f", {letters:,} dead letters discarded" if letters else ""
        log_action(bridge, "purge", f"settled more than {days:g} days ago", f"{forgotten:,} forgotten{discarded}")
    if json:
        told = {"forgotten": forgotten, "remembered": remembered}
        told |= {} if letters is None else {"dead_letters_discarded": letters}
        write_json({**told, **({"sinks": keys} if keys else {})})
        return
    write_text(f"{forgotten:,} events forgotten, {remembered:,} remembered")
    if letters is not None:
        write_text(f"{letters:,} dead letters discarded")
    for name, number in keys.items():
        write_text(f"sink {name}: {number:,} keys forgotten")


def _ask(days: float) -> None:
    """Ask a person before events are forgotten whose duplicates may still arrive; refuse where nobody can answer."""
    what = f"--older-than-days {days:g} forgets events of today, and a duplicate that comes later is processed again"
    if not can_ask():
        raise ConfigurationError(f"{what}; give --yes if that is meant")
    say(what)
    if not confirmed("Forget them?"):
        say("nothing is forgotten")
        raise typer.Exit(EXIT_DECLINED)


def _discard_old_letters(bridge: Bridge) -> int | None:
    """Discard dead letters that are older than they may be; return how many, None where any age will do."""
    days = bridge.settings.dead_letter_retention_days
    if days is None:
        return None
    until = datetime.fromtimestamp(bridge.clock.now_us() / 1_000_000, UTC) - timedelta(days=days)
    old = [*bridge.dead_letters.list(until=until)]
    return sum(bridge.dead_letters.discard(letter).outcome is Outcome.DISCARD for letter in old)
