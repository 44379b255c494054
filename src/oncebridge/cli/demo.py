"""`oncebridge demo`: the whole bridge on this machine, in under a minute."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from oncebridge.cli.demo_console import show_console
from oncebridge.cli.demo_road import HANG_AT, Road
from oncebridge.cli.demo_worker import CRM
from oncebridge.cli.output import COLOURS, coloured, results, write_json
from oncebridge.cli.wiring import JSONOption
from oncebridge.clock import SystemClock
from oncebridge.simulation import simulate
from oncebridge.telemetry import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.cli.demo_road import Worker
    from oncebridge.simulation import Delivery

LEASE_SECONDS: Final = 2.0
KILL_AT: Final = 0.4  # of the traffic
SECONDS_TO_WATCH: Final = 15  # in a terminal; nobody watches a pipe
BAR_WIDTH: Final = 12


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo found at its independent sink."""

    received: int
    columns: dict[str, int]
    #: Why, for example, a delivery came to be in each column.
    reasons: dict[str, str]
    balanced: bool
    events: int
    effects: int
    lost: int
    doubled: int
    took_over: int
    naive_lost: int
    naive_doubled: int
    seconds: float


def demo(
    *,
    conversations: Annotated[int, typer.Option(help="How much traffic; about 45 deliveries each.", min=5)] = 60,
    seed: Annotated[int, typer.Option(help="The same seed gives the same traffic.")] = 7,
    console: Annotated[
        bool, typer.Option("--console", help="Let traffic go on, and show it in a browser, until stopped.")
    ] = False,
    port: Annotated[int, typer.Option(help="The console's port; 0 takes a free one.", min=0, max=65_535)] = 8090,
    seconds: Annotated[
        float | None, typer.Option(help="End the console after so long.", min=1, show_default="when stopped")
    ] = None,
    json: JSONOption = False,
) -> None:
    """Show the whole bridge on this machine: traffic, verdicts, a killed worker, the books."""
    if console:
        show_console(seed, port, seconds)
        return
    deliveries = list(simulate(conversations, seed))
    with tempfile.TemporaryDirectory(prefix="oncebridge-demo-") as directory:
        path = Path(directory) / "once.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute(CRM)
        outcome = _run(deliveries, path, quiet=json)
    if json:
        write_json(outcome)
    else:
        _report(outcome)
    if not outcome.balanced or outcome.lost or outcome.doubled:
        raise typer.Exit(1)


def _run(deliveries: list[Delivery], path: Path, *, quiet: bool) -> Outcome:
    clock = SystemClock()
    started_us = clock.monotonic_us()
    per_second = len(deliveries) / SECONDS_TO_WATCH if results.is_terminal and not quiet else None
    road = Road(iter(deliveries), f"sqlite:///{path}", LEASE_SECONDS, clock, per_second=per_second)
    with _shown(road, len(deliveries), quiet=quiet) as show:
        show(f"{len(deliveries):,} deliveries of simulated Genesys traffic, two workers, one SQLite file")
        victim = road.start("worker 1")
        road.start("worker 2")
        while road.turn():
            late_enough = road.received >= KILL_AT * len(deliveries)
            if victim.alive and late_enough and road.kill_in_the_middle(victim):
                number = len(road.lost_with_worker)
                over = f"its claims end in {LEASE_SECONDS:g} s"
                show(f"kill -9 {victim.name} inside a handler, with {number} deliveries; {over}")
                road.start("worker 3")
            show(None)
        road.close()
    return _outcome(road, deliveries, path, (clock.monotonic_us() - started_us) / 1_000_000)


def _outcome(road: Road, deliveries: list[Delivery], path: Path, seconds: float) -> Outcome:
    """Count at the sink, not in the ledger: what took effect, and how often."""
    with closing(sqlite3.connect(path)) as db:
        (effects, once) = db.execute("SELECT count(*), count(DISTINCT key) FROM crm").fetchone()
        numbers = dict(db.execute("SELECT status, count(*) FROM oncebridge_event GROUP BY status"))
    needless = sum(numbers.get(status, 0) for status in ("echo", "stale", "dead"))
    settled = needless + numbers.get("done", 0)
    events = sum(delivery.verdict not in ("redelivery", "republish") for delivery in deliveries)
    naive_lost, naive_doubled = naive(deliveries, road.lost_with_worker)
    columns = {column: road.columns[column] for column in COLUMNS}
    return Outcome(
        received=road.received,
        columns=columns,
        reasons=road.reasons,
        balanced=road.received == sum(columns.values()),
        events=events,
        effects=effects,
        lost=max(events - settled, events - needless - once),
        doubled=effects - once,
        took_over=sum(worker.took_over for worker in road.workers),
        naive_lost=naive_lost,
        naive_doubled=naive_doubled,
        seconds=round(seconds, 1),
    )


def naive(deliveries: list[Delivery], in_hand: list[Delivery]) -> tuple[int, int]:
    """Count what SET NX on the envelope id, then process, does on the same road with the same kill.

    One record after the other: only the one that was being handled is lost, the rest are redelivered.
    """
    tried = [delivery for delivery in in_hand if delivery.verdict == "fresh"][:HANG_AT]
    killed_in = tried[-1].n if tried else None
    seen: set[str] = set()
    lost = doubled = 0
    for delivery in deliveries:
        if delivery.id is None or delivery.id in seen:
            continue  # taken for a duplicate, whether or not anything was done
        seen.add(delivery.id)
        lost += delivery.n == killed_in
        doubled += delivery.verdict in ("republish", "echo")
    return lost, doubled


# --- what a person sees ------------------------------------------------------------------------------


@contextmanager
def _shown(road: Road, total: int, *, quiet: bool) -> Iterator[Callable[[str | None], None]]:
    """Show the road live in a terminal, as plain lines in a pipe, not at all when quiet."""
    if quiet:
        yield lambda _: None
    elif not results.is_terminal:
        yield lambda story: results.print(story, markup=False) if story else None
    else:
        stories: list[str] = []
        with Live(console=results, refresh_per_second=12, transient=False) as live:

            def show(story: str | None) -> None:
                stories.extend([story] if story else [])
                live.update(_picture(road, total, stories))

            yield show


def _picture(road: Road, total: int, stories: list[str]) -> Group:
    verdicts = Table("verdict", "", "deliveries", header_style="bold", box=None)
    verdicts.add_column("why, for example", no_wrap=True, overflow="ellipsis")
    most = max(1, *road.columns.values()) if road.columns else 1
    for column in COLUMNS:
        number = road.columns[column]
        bar = Text("━" * (BAR_WIDTH * number // most), style=COLOURS.get(column, ""))
        verdicts.add_row(coloured(column), bar, f"{number:,}", coloured(road.reasons.get(column, "")))
    workers = Table("worker", "received", "acknowledged", "taken over", "", header_style="bold", box=None)
    for worker in road.workers:
        workers.add_row(worker.name, *_figures(worker), "" if worker.alive else "[red]killed[/red]")
    done = min(1.0, road.received / max(1, total))
    bar_text = Text("█" * int(60 * done) + "░" * (60 - int(60 * done)), style="green")
    return Group(*map(Text, stories), Text(), bar_text, Text(), verdicts, Text(), workers)


def _figures(worker: Worker) -> tuple[str, str, str]:
    return f"{worker.received:,}", f"{worker.acknowledged:,}", f"{worker.took_over:,}"


def _report(outcome: Outcome) -> None:
    say: Callable[[str], Any] = partial(results.print, soft_wrap=not results.is_terminal)
    if not results.is_terminal:
        for column, number in outcome.columns.items():
            say(f"  {column:<11}{number:>7,}  {coloured(outcome.reasons.get(column, ''))}".rstrip())
    balance = "[green]the books balance[/]" if outcome.balanced else "[red]the books do NOT balance[/]"
    say(f"{balance}: {outcome.received:,} received = {' + '.join(str(number) for number in outcome.columns.values())}")
    processed = outcome.columns["processed"]
    say(
        f"{outcome.events:,} distinct events, {outcome.effects:,} effects in the CRM "
        "(echo, stale and conflicts have none): "
        f"[bold]{outcome.lost} lost, {outcome.doubled} doubled[/bold]"
    )
    say(
        f"{outcome.effects:,} effects = {processed:,} processed + {outcome.effects - processed:,} that the killed "
        f"worker had finished but not acknowledged, redelivered since; {outcome.took_over} of its events taken over"
    )
    say(
        f"the usual SET NX on the envelope id, same traffic, same kill: "
        f"[red]{outcome.naive_lost} lost, {outcome.naive_doubled} doubled[/]"
    )
    say(f"done in {outcome.seconds} s; next: oncebridge process YOUR_CAPTURE.jsonl --verdicts verdicts.jsonl")
