"""`oncebridge top`: what all workers of a ledger are doing, live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from oncebridge.cli.output import COLOURS, draws, narrator, write_json, write_text
from oncebridge.cli.tables import drawn
from oncebridge.cli.wiring import JSONOption, LedgerOption, SettingsOption, existing_bridge
from oncebridge.clock import NEVER
from oncebridge.errors import ConfigurationError
from oncebridge.journal.overview import Overview, overview
from oncebridge.journal.reader import JournalReader
from oncebridge.ledgers.notes import KeepsNotes
from oncebridge.quantities import count, counted, span
from oncebridge.visible import visible

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge
    from oncebridge.ledgers.notes import Notes

TOPICS_SHOWN: Final = 12
BARS: Final = " ▁▂▃▄▅▆▇█"


def top(
    *,
    ledger: LedgerOption = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=1, max=3600)] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Show what all workers of a ledger are doing, from their journal; in a pipe once."""
    bridge = existing_bridge(None, ledger, settings)
    bridge.open()
    reader = journal_of(bridge)
    if json:
        write_json(as_json(overview(reader, _now_ms(bridge))))
        return
    if once or not draws():
        for line in lines(overview(reader, _now_ms(bridge))):
            write_text(line)
        return
    with Live(console=narrator, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(_picture(overview(reader, _now_ms(bridge))), refresh=True)
                bridge.clock.wait(NEVER, every)
        except KeyboardInterrupt:
            return


def notes_of(bridge: Bridge) -> Notes:
    """Return the notes of a bridge's ledger, which is open."""
    if not isinstance(bridge.ledger, KeepsNotes):
        raise ConfigurationError(f"ledger: {type(bridge.ledger).__name__} keeps no notes, so workers have no journal")
    return bridge.ledger.notes


def journal_of(bridge: Bridge) -> JournalReader:
    """Return the journal of a bridge's ledger, which is open."""
    return JournalReader(notes_of(bridge), bridge.clock)


def _now_ms(bridge: Bridge) -> int:
    return bridge.clock.now_us() // 1000


def as_json(seen: Overview) -> dict[str, Any]:
    """Return what is shown, for programs."""
    whole: dict[str, Any] = msgspec.to_builtins(seen)
    return {"received": seen.received, **seen.totals, **whole}


def lines(seen: Overview) -> list[str]:
    """Write everything as lines."""
    paused = [f"Paused: {pause.reason(seen.at_ms)}" for pause in seen.pauses.values()]
    if not seen.workers and not seen.received:
        return [
            *paused,
            *([""] if paused else []),
            "No worker has written a journal here in the last hour; consume, serve and Lambda functions do.",
        ]
    written = [_headline(seen), *paused, "", *_books(seen)]
    for title, table in (("Topics", _topics(seen)), ("Handlers", _handlers(seen)), ("Workers", _workers(seen))):
        if table:
            written += ["", title, *table]
    quiet = [*(f"{row.topic} ({row.quiet_minutes} min)" for row in seen.silent), *seen.overdue]
    if quiet:
        written += ["", f"Silent, though they usually come: {', '.join(quiet)}"]
    return written


def _headline(seen: Overview) -> str:
    copies = sum(seen.totals[name] for name in ("redelivery", "republish", "echo"))
    share = f", {copies / seen.received:.0%} of them copies" if seen.received else ""
    running = counted(len(seen.running), "worker runs", "workers run")
    waits = ""
    if seen.waiting and seen.oldest_waiting_ms is not None:
        waits = f"; {count(seen.waiting)} wait, the oldest for {span(seen.at_ms - seen.oldest_waiting_ms)}"
    return f"{count(seen.received)} deliveries in the last hour{share}; {running}{waits}"


def _books(seen: Overview) -> list[str]:
    rows = [(name, numbers) for name, numbers in seen.columns.items() if any(numbers)]
    wide = max((len(name) for name, _ in rows), default=0)
    return [f"{name:<{wide}}  {sum(numbers):>12,}  {sparkline(numbers)}" for name, numbers in rows]


def sparkline(numbers: list[int]) -> str:
    """Draw numbers as a line of bars."""
    highest = max(numbers, default=0) or 1
    return "".join(BARS[-(-number * (len(BARS) - 1) // highest)] for number in numbers)


def _topics(seen: Overview) -> list[str]:
    rows = [
        {
            "topic": row.topic,
            "received": count(row.received),
            "copies": count(sum(row.columns.get(name, 0) for name in ("redelivery", "republish", "echo"))),
            "dead": count(row.columns.get("dead", 0) + row.columns.get("conflict", 0)),
            "quiet": f"{row.quiet_minutes} min" if row.quiet_minutes else "",
        }
        for row in seen.topics[:TOPICS_SHOWN]
    ]
    return _table(rows)


def _handlers(seen: Overview) -> list[str]:
    rows = [
        {
            "handler": row.name or "(no name)",
            "state": "paused" if row.name in seen.pauses else "",
            "promise": row.promise,
            "done": count(row.done),
            "failed": count(row.failed),
            "dead": count(row.dead),
            "mean": "" if row.mean_ms is None else span(row.mean_ms),
            "workers": str(row.workers),
        }
        for row in seen.handlers
    ]
    return _table(rows)


def _workers(seen: Overview) -> list[str]:
    rows = [
        {
            "worker": worker.name,
            "way in": worker.way_in,
            "state": "runs" if worker.name in seen.running else "ended" if worker.ended else "silent",
            "seen": f"{span(max(0, seen.at_ms - worker.seen_ms))} ago",
            "trouble": _trouble(worker.ledger_out_of_reach, worker.receivers_out_of_reach),
        }
        for worker in seen.workers[:TOPICS_SHOWN]
    ]
    return _table(rows)


def _trouble(ledger: bool, receivers: int) -> str:
    return "; ".join(
        [*(["ledger out of reach"] if ledger else []), *([f"{receivers} receivers out of reach"] if receivers else [])]
    )


def _table(rows: list[dict[str, str]]) -> list[str]:
    if not rows:
        return []
    cells = [list(row.values()) for row in rows]
    return [line.plain.rstrip() for line in drawn(list(rows[0]), cells, narrator.width, styles={})]


def _picture(seen: Overview) -> Group:
    shown = [Text(visible(line), style=COLOURS.get(line.split(" ", 1)[0], "")) for line in lines(seen)]
    return Group(*shown, Text("Ctrl-C ends", style="dim"))
