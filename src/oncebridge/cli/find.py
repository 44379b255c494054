"""`oncebridge find`: what the ledger knows of an event, a conversation or a user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncebridge.cli.output import entry_as_dict, write_json, write_table
from oncebridge.cli.wiring import BridgeOption, JSONOption, LedgerOption, SettingsOption, existing_bridge
from oncebridge.errors import Unreadable
from oncebridge.event import parse
from oncebridge.identity import conflict_key, identify, key_bytes, key_text, subject_digest, unreadable_key
from oncebridge.ledgers.protocol import Query
from oncebridge.sources.file import read_deliveries
from oncebridge.topics import Profiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.bridge import Bridge
    from oncebridge.ledgers.protocol import Entry


def find(
    what: Annotated[
        str, typer.Argument(help="A key, a file of events, or the id of a conversation or user.", metavar="ID|FILE")
    ],
    *,
    handler: BridgeOption = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Show what the ledger knows of an event, or of a conversation's or user's events."""
    with existing_bridge(handler, ledger, settings) as bridge:
        found = [*_found(bridge, what)]
    if json:
        for role, entry in found:
            write_json({"role": role, **entry_as_dict(entry)})
    else:
        rows = [
            (
                role,
                entry.status.value,
                key_text(entry.key),
                entry.handler,
                entry.topic,
                entry.attempts,
                entry.envelope,
                entry.reason,
            )
            for role, entry in found
        ]
        columns = ("role", "status", "key", "handler", "topic", "attempts", "envelope id", "reason")
        write_table(columns, rows, empty=f"the ledger knows nothing of {what}")
    if not found:
        raise typer.Exit(1)


def _found(bridge: Bridge, what: str) -> Iterator[tuple[str, Entry]]:
    flow = bridge.open()
    key = key_bytes(what)
    if key is not None:
        yield from (("event", entry) for entry in bridge.ledger.get(key))
    elif what == "-" or is_file(what):
        for raw in read_deliveries([what], flow.stopping):
            for known in [] if raw is None else _keys_of(bridge, raw):
                yield from (("event", entry) for entry in bridge.ledger.get(known))
    else:
        subject = subject_digest(flow.secret, what)
        yield from (("event", entry) for entry in bridge.ledger.scan(Query(subject=subject)))
        yield from (("newest state", entry) for entry in bridge.ledger.scan(Query(subject=subject, entities=True)))


def is_file(name: str) -> bool:
    """Return whether a name is that of a file; one too long for a name is none."""
    try:
        return Path(name).is_file()
    except OSError:
        return False


def _keys_of(bridge: Bridge, raw: bytes) -> list[bytes]:
    """Return the keys that a delivery may be known under: its own, its bytes', and that of a conflict with its id."""
    secret = bridge.open().secret
    try:
        event = parse(raw, bridge.settings.reshape)
    except Unreadable:
        return [unreadable_key(secret, raw)]
    profile = Profiles(bridge.settings.profiles).of(event)
    identity = identify(event, profile, secret, replays_anew=bridge.settings.replays_anew)
    keys = [identity.key, unreadable_key(secret, raw)]
    if identity.content is not None:
        keys.append(conflict_key(secret, identity.key, identity.content))
    return keys
