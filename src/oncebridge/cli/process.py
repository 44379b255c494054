"""`oncebridge process`: captured events through the bridge."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from oncebridge.cli.output import opened_for_writing, progress_bar, report_books, say
from oncebridge.cli.wiring import (
    EXIT_AGAIN,
    HandlerOption,
    JSONOption,
    LeaseOption,
    LedgerOption,
    SettingsOption,
    bridge_for,
    opened,
    say_which_ledger,
    setting_or,
    without_handlers,
)
from oncebridge.errors import ConfigurationError, LedgerUnavailable, OncebridgeError
from oncebridge.sources.file import BATCH, FileRun, read_deliveries
from oncebridge.visible import visible_json

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge
    from oncebridge.engine.result import Result
    from oncebridge.event import Event


def process(
    files: Annotated[list[str], typer.Argument(help="JSON lines, .gz too; - is standard input.", metavar="FILE...")],
    *,
    ledger: LedgerOption = None,
    handler: HandlerOption = None,
    verdicts: Annotated[
        str | None,
        typer.Option(help="Write a JSON line per delivery to this file.", metavar="FILE", show_default="none"),
    ] = None,
    lease: LeaseOption = None,
    batch: Annotated[int, typer.Option(help="Deliveries asked for at once.", min=1, max=10_000)] = BATCH,
    concurrency: Annotated[
        int | None, typer.Option(help="Handlers at a time.", min=1, max=256, show_default=setting_or("concurrency"))
    ] = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Put captured events through the bridge; without --handler or sinks in the settings they are only counted."""
    # With effects, each is settled before the next begins: a crash repeats one, not a millisecond's worth.
    make = partial(bridge_for, handler, ledger, settings, lease_seconds=lease, concurrency=concurrency)
    bridge = make(settle_within_seconds=0.0)
    say_which_ledger(bridge)
    if not bridge.add_downstream():
        if handler is not None:
            raise without_handlers(handler)
        bridge = make()
        bridge.register("*", count_only)
        say("no --handler and no sinks: events are counted, and remembered as done")
    if verdicts is not None and any(_same_file(verdicts, name) for name in files):
        raise ConfigurationError(f"--verdicts: {verdicts} is read too, and would be gone; name another file")
    outage: OncebridgeError | None = None
    with ExitStack() as stack:
        lines = None if verdicts is None else stack.enter_context(opened_for_writing(verdicts))
        stack.enter_context(opened(bridge))
        bar = stack.enter_context(progress_bar(over_bytes=True))
        task = bar.add_task("processing", total=_total_bytes(files))
        flow = bridge.open()
        deliveries = read_deliveries(files, flow.stopping, progress=lambda number: bar.advance(task, number))
        run = FileRun(flow, bridge.books, batch=batch, on_outage=lambda error: say(f"{error}; waiting for it"))
        try:
            for n, result in run.results(deliveries):
                if lines is not None:
                    _write_verdict(lines, n, result)
        except LedgerUnavailable as error:
            outage = error
    if run.unread is None or bridge.books.received:
        _report(bridge, json=json, finished=run.finished)
    trouble = outage or run.unread
    if trouble is not None:
        raise trouble
    if not run.finished:
        raise typer.Exit(EXIT_AGAIN)


def count_only(event: Event) -> None:
    """Do nothing: the event is claimed, settled and remembered, and that is all."""


def _write_verdict(lines: IO[bytes], n: int, result: Result) -> None:
    line = {
        "n": n,
        "id": result.envelope_id,
        "topic": result.topic,
        "verdict": result.verdict,
        "of": result.original_envelope_id,
        "reason": result.reason,
    }
    lines.write(visible_json(line).encode() + b"\n")


def _report(bridge: Bridge, *, json: bool, finished: bool) -> None:
    report_books(bridge.books.as_dict(), json=json)
    if not finished:
        say("stopped before everything was settled; run the same command again to go on")


def _same_file(one: str, other: str) -> bool:
    return Path(one).exists() and Path(other).exists() and Path(one).samefile(other)


def _total_bytes(files: list[str]) -> int | None:
    """Return how much there is to read; unknown for standard input and compressed files."""
    if any(name == "-" or name.endswith(".gz") or not Path(name).is_file() for name in files):
        return None
    return sum(Path(name).stat().st_size for name in files)
