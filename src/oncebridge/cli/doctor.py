"""`oncebridge doctor`: check an installation, and print the promise that it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.markup import escape

from oncebridge.bridge import Bridge
from oncebridge.cli.output import results, say, write_json, write_table, write_text
from oncebridge.cli.wiring import (
    EXIT_AGAIN,
    JSONOption,
    LedgerOption,
    SettingsOption,
    existing_bridge,
    ledger_kind,
    load_handler,
)
from oncebridge.clock import SystemClock
from oncebridge.diagnosis.examination import examine
from oncebridge.errors import ConfigurationError
from oncebridge.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncebridge.diagnosis.installation import Promise
    from oncebridge.ledgers.findings import Finding

EXIT_SOMETHING_WRONG: Final = 1

Handlers = Annotated[
    list[str] | None,
    typer.Option(
        "--handler",
        help="A Bridge to judge, or a function; functions may be repeated.",
        metavar="MODULE:NAME",
        show_default="the sinks of the settings",
    ),
]


def doctor(
    *,
    ledger: LedgerOption = None,
    handler: Handlers = None,
    queue: Annotated[
        str | None,
        typer.Option(help="The queue in front, to judge too; needs sqs:GetQueueAttributes.", metavar="QUEUE_URL"),
    ] = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Check an installation, and print the promise that it gives to each handler. Changes nothing."""
    bridge = _bridge([*dict.fromkeys(handler or [])], ledger, settings)
    bridge.add_downstream()
    say(f"examining the ledger ({ledger_kind(bridge)}) and its settings")
    examined = examine(bridge, SystemClock(), queue=queue)
    findings, promises = examined.findings, examined.promises
    if json:
        write_json({"findings": findings, "promises": promises, "ok": examined.is_right})
    else:
        _write(findings, promises)
    if examined.out_of_reach:
        raise typer.Exit(EXIT_AGAIN)
    if not examined.is_right:
        raise typer.Exit(EXIT_SOMETHING_WRONG)


def _bridge(names: list[str], ledger: str | None, settings: str | None) -> Bridge:
    """Take the bridge that is named, or make one with all functions that are."""
    functions: dict[str, Callable[..., Any]] = {}
    for name in names:
        found = load_handler(name)
        if not isinstance(found, Bridge):
            functions[name] = found
        elif len(names) == 1:
            return existing_bridge(name, ledger, settings)
        else:
            raise ConfigurationError(f"--handler: {name} is a Bridge, and has its handlers already; name it alone")
    bridge = existing_bridge(None, ledger, settings)
    for name, function in functions.items():
        bridge.register("*", function, name=name)
    return bridge


def _write(findings: Sequence[Finding], promises: Sequence[Promise]) -> None:
    rows = [(finding.level.value, finding.subject, finding.found, finding.fix) for finding in findings]
    write_table(
        ("level", "subject", "found", "what to do"), rows, empty="nothing to examine", prose=("found", "what to do")
    )
    write_text("")
    write_text("the promise of this installation:")
    for promise in promises:
        # Wrapped between words in a terminal; a line each in a pipe.
        results.print(escape(visible(promise.sentence)), soft_wrap=not results.is_terminal)
