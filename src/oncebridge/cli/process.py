"""`oncebridge process`: captured events through the bridge."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec.structs import replace

from oncebridge.cli.captures import Captures, holds_nothing, is_read, say_skipped, total_bytes
from oncebridge.cli.output import draws, opened_for_writing, progress_bar, report_books, report_shadow, say
from oncebridge.cli.pause import heed_pauses
from oncebridge.cli.wiring import (
    EXIT_AGAIN,
    EXIT_NOTHING_FOUND,
    ErrorsOption,
    HandlerOption,
    JSONOption,
    LeaseOption,
    LedgerOption,
    SettingsOption,
    ShadowOption,
    bridge_for,
    ledger_kind,
    opened,
    say_which_ledger,
    setting_or,
    without_handlers,
)
from oncebridge.engine.result import delivered
from oncebridge.errors import ConfigurationError, LedgerUnavailable, OncebridgeError
from oncebridge.sources.captures.found import Tally
from oncebridge.sources.file import BATCH, FileRun, read_deliveries
from oncebridge.visible import visible_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.bridge import Bridge
    from oncebridge.engine.result import Result

#: The ledger of a trial.
MEMORY: Final = "memory://"


def process(
    files: Captures,
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
    prime: Annotated[
        bool, typer.Option("--prime", help="Remember the events as done for their handlers, and call none.")
    ] = False,
    shadow: ShadowOption = False,
    errors: ErrorsOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Put captured events through the bridge.

    Without --handler or sinks, and with --shadow, events are counted in memory.

    Then only a ledger given as --ledger is written, not one of the settings.
    """
    given: dict[str, Any] = {"lease_seconds": lease, "concurrency": concurrency, "shadow": shadow or None}
    shown = True if errors is None and draws() else errors  # a person who tries a handler wants to see its errors
    make = partial(bridge_for, handler, settings=settings, log_errors=shown, **given)
    bridge = _bridge_of_run(make, handler, ledger, prime=prime)
    if verdicts is not None and is_read(verdicts, files):
        raise ConfigurationError(f"--verdicts: {verdicts} is read too, and would be gone; name another file")
    outage: OncebridgeError | None = None
    with ExitStack() as stack:
        lines = None if verdicts is None else stack.enter_context(opened_for_writing(verdicts))
        stack.enter_context(opened(bridge))
        bar = stack.enter_context(progress_bar(over_bytes=True))
        task = bar.add_task("processing", total=total_bytes(files))
        flow = bridge.open()
        heed_pauses(bridge)
        tally = Tally()
        deliveries = read_deliveries(files, flow.stopping, lambda number: bar.advance(task, number), tally)
        run = FileRun(
            flow,
            bridge.books,
            batch=batch,
            on_outage=lambda error: say(f"{error}; waiting for it"),
            on_wait=_say_wait,
            rereadable="-" not in files,
        )
        try:
            for n, result in run.results(deliveries):
                if bridge.settings.shadow:
                    bridge.telemetry.observe(*delivered([result]))
                if lines is not None:
                    _write_verdict(lines, n, result)
        except LedgerUnavailable as error:
            outage = error
    if run.unread is None or bridge.books.received:
        _report(bridge, run, json=json, verdicts=verdicts)
    say_skipped(tally)
    trouble = outage or run.unread
    if trouble is not None:
        raise trouble
    if not run.finished:
        raise typer.Exit(EXIT_AGAIN)
    if holds_nothing(tally):
        raise typer.Exit(EXIT_NOTHING_FOUND)


def _bridge_of_run(make: Callable[..., Bridge], handler: str | None, ledger: str | None, *, prime: bool) -> Bridge:
    """Make the bridge of a run: one that handles events, one that primes a ledger, a shadow, or one for a trial."""
    # With effects, each is settled before the next begins: a crash repeats one, not a millisecond's worth.
    bridge = make(ledger=ledger, settle_within_seconds=None if prime else 0.0)
    has_handlers = bridge.add_downstream()
    if not has_handlers and handler is not None:
        raise without_handlers(handler)
    if prime:
        if not has_handlers and ledger is None:
            raise ConfigurationError(
                "--prime: no handler and no ledger are named; name the bridge whose handlers the events count as done "
                "for (--handler), or the ledger that is to remember them (--ledger)"
            )
        priming = bridge.priming()
        say("priming: events are remembered as done, and no handler is called")
        say_which_ledger(bridge)
        return priming
    if bridge.settings.shadow:
        if ledger is None:
            bridge.rewire(bridge.settings, MEMORY)
        return bridge
    if not has_handlers:
        return _bridge_of_trial(make, ledger).priming()
    say_which_ledger(bridge)
    return bridge


def _bridge_of_trial(make: Callable[..., Bridge], ledger: str | None) -> Bridge:
    """Make a bridge for events that nobody handles: only a ledger named on the command line remembers them.

    One in the environment or the settings is that of workers: what it remembers as done, they would never handle.
    """
    if ledger is not None:
        say("no --handler and no sinks: events are counted, and remembered as done")
        return make(ledger=ledger)
    bridge = make(ledger=MEMORY)
    bridge.rewire(replace(bridge.settings, dead_letter_queue=None, dead_letter_bus=None))
    bridge.telemetry.warns_of_letters = False  # the report counts them
    say("a trial in memory: no --handler, no sinks and no --ledger, so nothing is kept")
    return bridge


def _say_wait(number: int, wait_us: int) -> None:
    """Tell a person why a bar that is full does not end."""
    if draws():
        say(
            f"{number:,} wait to be tried again, the first in {wait_us / 1_000_000:,.0f} s; Ctrl-C ends the wait, and "
            "the same command goes on later"
        )


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


def _report(bridge: Bridge, run: FileRun, *, json: bool, verdicts: str | None) -> None:
    books = bridge.books.as_dict()
    is_kept = ledger_kind(bridge) != "memory" and not bridge.settings.shadow
    if bridge.settings.shadow:
        report_shadow(books, bridge.books_by_topic, json=json)
    else:
        report_books(books, json=json, is_kept=is_kept)
    letters = books["dead"] + books["conflict"]
    if letters and not is_kept and verdicts is None:
        say(f"{letters:,} would be kept as dead letters; --verdicts FILE says why")
    if run.next_try_us is not None:
        say(
            f"{books['retrying']:,} not settled, because their handler failed or their receiver is out of reach; the "
            f"next try is due in {run.next_try_us / 1_000_000:,.0f} s. Run the same command again then: what is "
            "settled is not repeated"
        )
    elif not run.finished:
        say("stopped before everything was settled; run the same command again to go on")
