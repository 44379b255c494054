"""`oncebridge find`: what the ledger knows of an event, a conversation or a user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncebridge.cli.output import entry_as_dict, write_json, write_table
from oncebridge.cli.wiring import JSONOption, LedgerOption, SettingsOption, bridge_for
from oncebridge.diagnosis.explain import explain
from oncebridge.errors import Unreadable
from oncebridge.identity import key_bytes, key_text, subject_digest, unreadable_key
from oncebridge.intake.file import read_deliveries
from oncebridge.ledgers.protocol import Query
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
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Show what the ledger knows of an event, or of a conversation's or user's events."""
    with bridge_for(ledger, settings) as bridge:
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
    elif what == "-" or Path(what).is_file():
        for raw in read_deliveries([what]):
            yield from (("event", entry) for entry in bridge.ledger.get(_key_of(bridge, raw)))
    else:
        subject = subject_digest(flow.secret, what)
        yield from (("event", entry) for entry in bridge.ledger.scan(Query(subject=subject)))
        yield from (("newest state", entry) for entry in bridge.ledger.scan(Query(subject=subject, entities=True)))


def _key_of(bridge: Bridge, raw: bytes) -> bytes:
    secret = bridge.open().secret
    try:
        text = explain(raw, Profiles(bridge.settings.profiles), secret, replays_anew=bridge.settings.replays_anew).key
    except Unreadable:
        return unreadable_key(secret, raw)
    key = key_bytes(text)
    assert key is not None
    return key
