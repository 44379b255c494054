"""`oncebridge explain`: what identifies an event, what counts, what is ignored, and why."""

from __future__ import annotations

import threading
from pathlib import Path

import typer
from rich.text import Text

from oncebridge.bridge import Bridge
from oncebridge.cli.captures import Captures, holds_nothing, say_skipped
from oncebridge.cli.output import results, say, write_json
from oncebridge.cli.tables import wrapped
from oncebridge.cli.wiring import (
    EXIT_NOTHING_FOUND,
    BridgeOption,
    JSONOption,
    LedgerOption,
    SettingsOption,
    bridge_for,
    is_unnamed,
)
from oncebridge.diagnosis.explain import Explanation
from oncebridge.diagnosis.explain import explain as explain_one
from oncebridge.errors import Unreadable
from oncebridge.settings import DEFAULT_LEDGER
from oncebridge.sources.captures.found import Tally
from oncebridge.sources.file import read_deliveries
from oncebridge.topics import Profiles
from oncebridge.visible import visible


def explain(
    files: Captures,
    *,
    handler: BridgeOption = None,
    ledger: LedgerOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Explain events: what identifies each, what counts, what is ignored, and why."""
    bridge = bridge_for(handler, ledger, settings)
    loaded = bridge.settings
    profiles, secret = Profiles(loaded.profiles), _secret(bridge)
    tally = Tally()
    deliveries = (raw for raw in read_deliveries(files, threading.Event(), tally=tally) if raw is not None)
    for number, raw in enumerate(deliveries, start=1):
        try:
            explanation = explain_one(raw, profiles, secret, replays_anew=loaded.replays_anew, reshape=loaded.reshape)
        except Unreadable as error:
            _write_unreadable(number, str(error), json=json)
            continue
        if json:
            write_json(explanation)
        else:
            _write(number, explanation)
    say_skipped(tally)
    if holds_nothing(tally):
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _secret(bridge: Bridge) -> bytes:
    """Take the ledger's own secret where there is a ledger, so that keys are the ones it keeps."""
    if not is_unnamed(bridge) or Path(DEFAULT_LEDGER.removeprefix("sqlite:///")).exists():
        with bridge:
            return bridge.open().secret
    if bridge.settings.secret is None:
        say("no ledger and no secret: the keys shown are not those of any ledger (see --ledger)")
    return bridge.settings.secret or b""


def _write(number: int, explanation: Explanation) -> None:
    _write_line(f"{number}  ", explanation.topic)
    for name, value in (
        ("kind", explanation.kind),
        ("entity", explanation.entity or "none"),
        ("time", "none" if explanation.time_ms is None else f"{explanation.time_ms} ms"),
        ("key", explanation.key),
        ("counts", ", ".join(explanation.counts)),
        ("ignored", ", ".join(explanation.ignored) or "nothing"),
        ("because", explanation.reason),
    ):
        _write_line(f"   {name:<8} ", value)


def _write_unreadable(number: int, reason: str, *, json: bool) -> None:
    if json:
        nothing = dict.fromkeys(("topic", "kind", "entity", "time_ms", "key"))
        write_json({**nothing, "counts": [], "ignored": [], "reason": f"unreadable: {reason}"})
    else:
        _write_line(f"{number}  ", "unreadable")
        _write_line("   because  ", reason)


def _write_line(name: str, value: str) -> None:
    text = visible(value)
    lines = wrapped(text, results.width - len(name)) if results.is_terminal else [text]
    for number, line in enumerate(lines):
        # As text, not as markup: topics and ids come from outside.
        results.print(Text.assemble((" " * len(name) if number else name, "bold"), line))
