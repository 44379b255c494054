"""`oncebridge find`: what the ledger knows of an event, a conversation or a user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from oncebridge.claim import SETTLED
from oncebridge.cli.captures import say_skipped
from oncebridge.cli.output import (
    NOT_RECORDED,
    entry_as_dict,
    iso_time,
    results,
    say,
    settled_us,
    write_fields,
    write_json,
    write_table,
    write_text,
)
from oncebridge.cli.wiring import (
    EXIT_NOTHING_FOUND,
    BridgeOption,
    JSONOption,
    LedgerOption,
    SettingsOption,
    existing_bridge,
)
from oncebridge.errors import ConfigurationError
from oncebridge.identity import key_bytes, key_text, subject_digest
from oncebridge.known_keys import keys_of
from oncebridge.ledgers.protocol import Query
from oncebridge.sources.captures.found import Tally
from oncebridge.sources.file import read_deliveries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.bridge import Bridge
    from oncebridge.ledgers.protocol import Entry

#: As many are shown in a terminal with a line for each field; more are a table.
BLOCKS_MAX: Final = 3
NEWEST: Final = "newest state"


def find(
    what: Annotated[
        str, typer.Argument(help="A key, a capture, or the id of a conversation or user.", metavar="ID|FILE")
    ],
    *,
    handler: BridgeOption = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Show what the ledger knows of an event, or of a conversation's or user's events."""
    with existing_bridge(handler, ledger, settings) as bridge:
        tally = Tally()
        found = [*_found(bridge, what, tally)]
    say_skipped(tally)
    if json:
        for role, entry in found:
            write_json({"role": role, **entry_as_dict(entry)})
    elif not found:
        say(f"the ledger knows nothing of {what}")
    elif results.is_terminal and len(found) <= BLOCKS_MAX:
        for number, (role, entry) in enumerate(found):
            if number:
                write_text("")
            write_fields({"found": role, **dict(_fields(entry))})
    elif results.is_terminal:
        _write_summary(found)
        say("one of them in full: oncebridge find KEY")
    else:
        _write_table(found)
    if not found:
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _write_summary(found: Sequence[tuple[str, Entry]]) -> None:
    """Write what fits a line or two for each."""
    rows = [
        (
            key_text(entry.key),
            "newest" if role == NEWEST else entry.status.value,
            iso_time(entry.changed_us),
            entry.topic,
            entry.handler,
            entry.reason,
        )
        for role, entry in found
    ]
    columns = ("key", "status", "changed", "topic", "handler", "reason")
    write_table(columns, rows, empty="", below=("topic", "handler", "reason"))


def _write_table(found: Sequence[tuple[str, Entry]]) -> None:
    columns = ("role", "status", "key", "handler", "topic", "attempts", "envelope id", "reason", *_TIMES)
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
            *_times(entry).values(),
        )
        for role, entry in found
    ]
    write_table(columns, rows, empty="")


_TIMES: Final = ("event time", "claimed", "settled", "retry at", "lease until")


def _times(entry: Entry) -> dict[str, str | None]:
    """Return the times of an entry; None for those that it does not have, as a settled one has no lease."""
    times = ((entry.time_ms or 0) * 1000, entry.claimed_us, settled_us(entry), entry.retry_at_us, entry.lease_until_us)
    has = {"event time": True, "claimed": True, "settled": entry.status in SETTLED}
    return {name: iso_time(us) if us or has.get(name) else None for name, us in zip(_TIMES, times, strict=True)}


def _fields(entry: Entry) -> Iterator[tuple[str, object]]:
    """Name everything that is known of an entry, and what a ledger does not record."""
    is_kept = bool(entry.changed_us)  # else only its key and its status are
    yield "status", entry.status.value
    yield "key", key_text(entry.key)
    yield "topic", entry.topic or NOT_RECORDED
    yield "handler", entry.handler or "the one without a name"
    if entry.reason:
        yield "reason", entry.reason
    yield "attempts", f"{entry.attempts} failed" if is_kept else NOT_RECORDED
    yield "envelope id", entry.envelope or NOT_RECORDED
    yield from ((name, time) for name, time in _times(entry).items() if time is not None)
    if entry.status not in SETTLED:
        yield "worker", f"{NOT_RECORDED}; the log of the one that claimed it has the key, at level info"


def _found(bridge: Bridge, what: str, tally: Tally) -> Iterator[tuple[str, Entry]]:
    flow = bridge.open()
    key = key_bytes(what)
    if key is not None:
        yield from (("event", entry) for entry in bridge.ledger.get(key))
    elif what == "-" or is_capture(what):
        for raw in read_deliveries([what], flow.stopping, tally=tally):
            for known in [] if raw is None else keys_of(bridge, raw):
                yield from (("event", entry) for entry in bridge.ledger.get(known))
    elif "/" in what or what.endswith(_FILES):
        raise ConfigurationError(
            f"{what}: no such file; give a key, a file of events, or the id of a conversation or user"
        )
    else:
        subject = subject_digest(flow.secret, what)
        yield from (("event", entry) for entry in bridge.ledger.scan(Query(subject=subject)))
        yield from ((NEWEST, entry) for entry in bridge.ledger.scan(Query(subject=subject, entities=True)))


#: No id ends like this.
_FILES: Final = (".json", ".jsonl", ".gz", ".log", ".txt")


def is_capture(name: str) -> bool:
    """Return whether a name is that of a file or directory; one too long for a name is none."""
    try:
        return name != "" and (Path(name).is_file() or Path(name).is_dir())
    except OSError:
        return False
