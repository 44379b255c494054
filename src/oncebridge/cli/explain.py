"""`oncebridge explain`: what identifies an event, what counts, what is ignored, and its verdict on a ledger."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final

import typer
from msgspec.structs import replace
from rich.text import Text

from oncebridge.cli.captures import Captures, holds_nothing, say_skipped
from oncebridge.cli.output import results, say, write_json, write_text
from oncebridge.cli.tables import wrapped
from oncebridge.cli.wiring import (
    EXIT_NOTHING_FOUND,
    BridgeOption,
    JSONOption,
    LedgerOption,
    SettingsOption,
    bridge_for,
    is_unnamed,
    ledger_kind,
    with_ledger_there,
)
from oncebridge.diagnosis.explain import Explanation, Foreseen
from oncebridge.diagnosis.explain import explain as explain_one
from oncebridge.diagnosis.on_ledger import OnLedger
from oncebridge.errors import ConfigurationError, Unreadable
from oncebridge.ledgers.protocol import ShowsRecords
from oncebridge.sources.captures.found import Tally
from oncebridge.sources.file import read_deliveries
from oncebridge.topics import Profiles
from oncebridge.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.bridge import Bridge

AT_ONCE: Final = 500  # deliveries that one look at the ledger is for


def explain(
    files: Captures,
    *,
    handler: BridgeOption = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Explain events: what identifies each, what counts, what is ignored, and its verdict on the ledger as it is now.

    The ledger is only read: nothing is claimed, and no ledger is made.
    """
    bridge = bridge_for(handler, ledger, settings)
    profiles, loaded, tally, number = Profiles(bridge.settings.profiles), bridge.settings, Tally(), 0
    try:
        secret, on_ledger = _looking(bridge, is_named=ledger is not None)
        deliveries = read_deliveries(files, threading.Event(), tally=tally)
        for number, (raw, verdicts) in enumerate(_with_verdicts(deliveries, on_ledger), start=1):
            try:
                one = explain_one(raw, profiles, secret, replays_anew=loaded.replays_anew, reshape=loaded.reshape)
            except Unreadable as error:
                _write_unreadable(number, str(error), verdicts, json=json)
            else:
                _write(number, replace(one, verdicts=verdicts), json=json)
    finally:
        bridge.ledger.close()
    say_skipped(tally)
    if on_ledger is not None and number > 1:
        say("each verdict is for the ledger as it is now: the events above change nothing for those below them")
    if holds_nothing(tally):
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _looking(bridge: Bridge, *, is_named: bool) -> tuple[bytes, OnLedger | None]:
    """Open the ledger to look, where there is one; its own secret makes the keys that it keeps."""
    ledger, own = bridge.ledger, bridge.settings.secret
    found = ledger.open_to_look(own) if isinstance(ledger, ShowsRecords) else None
    if found is not None and isinstance(ledger, ShowsRecords):
        on_ledger = OnLedger(bridge, ledger, found)
        if not on_ledger.knows_handlers:
            say("no handlers named: verdicts for one without a name, and for those with a record (see --handler)")
        return found, on_ledger
    if is_named:
        with_ledger_there(bridge)
        raise ConfigurationError(
            f"--ledger: no worker has opened this ledger yet ({ledger_kind(bridge)}), so there is nothing to look at; "
            "name the one that your workers use"
        )
    if not is_unnamed(bridge):
        say(
            f"no verdicts: the ledger ({ledger_kind(bridge)}) has not been opened by a worker, or cannot be looked into"
        )
    if own is None:
        say("no ledger and no secret: the keys shown are not those of any ledger (see --ledger)")
    return own or b"", None


def _with_verdicts(
    deliveries: Iterator[bytes | None], on_ledger: OnLedger | None
) -> Iterator[tuple[bytes, list[Foreseen]]]:
    """Foresee the verdicts of many deliveries in one look; without a ledger there are none."""
    for raws in _batches(deliveries):
        if on_ledger is None:
            yield from ((raw, []) for raw in raws)
        else:
            yield from zip(raws, on_ledger.foresee(raws), strict=True)
        sys.stdout.flush()  # for whoever watches a pipe


def _batches(deliveries: Iterator[bytes | None]) -> Iterator[list[bytes]]:
    """Gather deliveries for one look; those that were read do not wait for a pipe that is silent."""
    batch: list[bytes] = []
    try:
        for raw in deliveries:
            if raw is not None:
                batch.append(raw)
            if batch and (raw is None or len(batch) == AT_ONCE):
                yield batch
                batch = []
    except ConfigurationError:  # a file cannot be read to its end
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _write(number: int, explanation: Explanation, *, json: bool) -> None:
    if json:
        write_json(explanation)
        return
    _write_line(f"{number}  ", explanation.topic)
    for name, value in (
        ("kind", explanation.kind),
        ("profile", explanation.profile),
        ("entity", explanation.entity or "none"),
        ("time", "none" if explanation.time_ms is None else f"{explanation.time_ms} ms"),
        ("key", explanation.key),
        ("counts", ", ".join(explanation.counts)),
        ("ignored", ", ".join(explanation.ignored) or "nothing"),
        ("because", explanation.reason),
    ):
        _write_line(f"   {name:<8} ", value)
    _write_verdicts(explanation.verdicts)


def _write_unreadable(number: int, reason: str, verdicts: list[Foreseen], *, json: bool) -> None:
    if json:
        nothing = dict.fromkeys(("topic", "kind", "entity", "time_ms", "key"))
        found = {"reason": f"unreadable: {reason}", "profile": None, "verdicts": verdicts}
        write_json({**nothing, "counts": [], "ignored": [], **found})
    else:
        _write_line(f"{number}  ", "unreadable")
        _write_line("   because  ", reason)
        _write_verdicts(verdicts)


def _write_verdicts(verdicts: list[Foreseen]) -> None:
    are_named = any(one.handler for one in verdicts)
    for one in verdicts:
        handler = f"{one.handler or 'without a name'}: " if are_named else ""
        _write_line("   verdict  ", f"{handler}{one.verdict}: {one.reason}")


def _write_line(name: str, value: str) -> None:
    text = visible(value)
    if not results.is_terminal:  # a file of thousands of events: rich would take ten times as long
        write_text(name + text)
        return
    for number, line in enumerate(wrapped(text, results.width - len(name))):
        # As text, not as markup: topics and ids come from outside.
        results.print(Text.assemble((" " * len(name) if number else name, "bold"), line))
