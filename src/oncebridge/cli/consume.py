"""`oncebridge consume`: events from an SQS queue through the bridge."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec.structs import replace
from rich.live import Live
from rich.text import Text

from oncebridge.bridge import Bridge
from oncebridge.cli.output import draws, narrator, report_books, report_shadow, say
from oncebridge.cli.wiring import (
    EXIT_AGAIN,
    ErrorsOption,
    HandlerOption,
    JSONOption,
    LeaseOption,
    LedgerOption,
    SettingsOption,
    ShadowOption,
    bridge_for,
    opened,
    say_which_ledger,
    without_handlers,
)
from oncebridge.clock import SystemClock
from oncebridge.errors import ConfigurationError, OncebridgeError
from oncebridge.sources.shadow_queue import check_queue
from oncebridge.sources.sqs.consumer import HIDDEN_WAIT_SECONDS, QueueRun
from oncebridge.sources.sqs.queue import Queue
from oncebridge.telemetry.counting import GAUGES
from oncebridge.telemetry.prometheus import Prometheus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS: Final = 8  # where settings say nothing: most handlers mostly wait for a receiver
IN_FLIGHT: Final = 1000
POLL_SECONDS: Final = 5  # an orderly stop waits for the poll that is under way

Concurrency = Annotated[
    int | None,
    typer.Option(help="Handlers at a time.", min=1, max=256, show_default=f"setting concurrency, or {WORKERS}"),
]
HiddenWait = Annotated[
    float,
    typer.Option(
        help="With --until-empty: seconds to wait for messages that other workers hide, or that are delayed.",
        min=0,
        max=43_200,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        help="Answer Prometheus on this port; 0 takes a free one.", min=0, max=65_535, show_default="no metrics"
    ),
]


def consume(
    queue_url: Annotated[str, typer.Argument(help="The queue, as AWS names it: https://sqs...", metavar="QUEUE_URL")],
    *,
    ledger: LedgerOption = None,
    handler: HandlerOption = None,
    concurrency: Concurrency = None,
    lease: LeaseOption = None,
    in_flight: Annotated[
        int, typer.Option(help="Messages held at a time, those included that wait for their next try.", min=1)
    ] = IN_FLIGHT,
    poll_seconds: Annotated[
        int, typer.Option(help="How long SQS waits for a message before it answers.", min=1, max=20)
    ] = POLL_SECONDS,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="End when the queue has nothing more.")] = False,
    hidden_wait: HiddenWait = HIDDEN_WAIT_SECONDS,
    metrics_port: MetricsPort = None,
    metrics_host: Annotated[str, typer.Option(help="The address for that.", metavar="HOST")] = "127.0.0.1",
    shadow: ShadowOption = False,
    errors: ErrorsOption = None,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Process the messages of an SQS queue until stopped: settled ones are deleted, failed ones are retried."""
    # Each effect is settled before the next of its worker begins: a crash repeats one of each.
    given = {"lease_seconds": lease, "settle_within_seconds": 0.0, "shadow": shadow or None, "log_errors": errors}
    bridge = bridge_for(handler, ledger, settings, **given)
    chosen = bridge.settings
    if chosen.shadow:
        check_queue(queue_url.partition("?")[0].rpartition("/")[2])
    workers = concurrency or (chosen.concurrency if chosen.concurrency > 1 else WORKERS)
    bridge.rewire(replace(chosen, concurrency=1))
    _check_takers(bridge, handler)
    queue = Queue.connected(queue_url, poll_seconds=poll_seconds, workers=workers)
    say_which_ledger(bridge)
    bridge.start_journal("consume", holds="as long as the queue keeps messages: 4 days unless set, 14 at most")
    trouble: OncebridgeError | None = None
    with ExitStack() as stack:
        stack.callback(queue.close)
        stack.enter_context(opened(bridge))
        run = QueueRun(
            bridge.open(),
            queue,
            bridge.settings,
            workers=workers,
            limit=in_flight,
            until_empty=until_empty,
            hidden_wait_seconds=hidden_wait,
            receive=bridge.books.receive,
            account=bridge.account,
            say=say,
        )
        if metrics_port is not None:
            stack.callback(_serve_metrics(bridge, run, metrics_port, metrics_host))
        doing = "judging as a shadow" if chosen.shadow else "consuming"
        say(f"{doing} {queue_url}: {workers} at a time, up to {in_flight:,} in flight")
        look = stack.enter_context(_shown(bridge, run))
        try:
            run.run(look)
        except OncebridgeError as error:
            trouble = error
    if trouble is None or bridge.books.received:
        _report(bridge, json=json)
    if trouble is not None:
        raise trouble
    if run.left:
        say(f"about {run.left:,} messages are left, hidden or delayed; run the same command again")
    if until_empty and (run.left or bridge.books.as_dict()["retrying"]):
        raise typer.Exit(EXIT_AGAIN)


def _gauge(bridge: Bridge, name: str) -> int:
    return bridge.gauges()[name]


def _check_takers(bridge: Bridge, handler: str | None) -> None:
    """Refuse a run without handlers and sinks: its messages would be deleted, and nothing done."""
    if not bridge.add_downstream():
        if handler is not None:
            raise without_handlers(handler)
        raise ConfigurationError(
            "events would go nowhere, and be deleted from the queue; give --handler, or name a sink: [sinks.NAME] in "
            "the settings, or DOWNSTREAM_URL"
        )


def _serve_metrics(bridge: Bridge, run: QueueRun, port: int, host: str) -> Callable[[], None]:
    metrics = Prometheus(bridge.known_topics)
    metrics.gauge("in_flight", "Messages held, worked on or waiting for their next try.", lambda: len(run.in_flight))
    for name, explained in GAUGES.items():
        metrics.gauge(name, explained, partial(_gauge, bridge, name))
    bridge.telemetry.add(metrics)
    served = metrics.serve(port, host)
    say(f"metrics: http://{f'[{host}]' if ':' in host else host}:{served.port}/metrics")
    return served.close


def _report(bridge: Bridge, *, json: bool) -> None:
    books = bridge.books.as_dict()
    if bridge.settings.shadow:
        report_shadow(books, bridge.books_by_topic, json=json)
    else:
        report_books(books, json=json)
    if books["retrying"]:
        say(f"{books['retrying']:,} not settled; handed back to the queue, they come again")


# --- what a person sees ------------------------------------------------------------------------------


@contextmanager
def _shown(bridge: Bridge, run: QueueRun) -> Iterator[Callable[[], None]]:
    """Show a line that is kept up to date in a terminal; nothing where nobody looks."""
    if not draws():
        yield lambda: None
        return
    pace = Pace()
    with Live(console=narrator, refresh_per_second=5, transient=True) as live:
        yield lambda: live.update(Text(line(bridge.books.as_dict(), len(run.in_flight), pace), no_wrap=True))


class Pace:
    """How many deliveries come per second, over the last few."""

    WINDOW_US: Final = 5_000_000

    def __init__(self) -> None:
        """Begin now."""
        self._clock = SystemClock()
        self._seen: list[tuple[int, int]] = [(self._clock.monotonic_us(), 0)]

    def per_second(self, received: int) -> float:
        """Note how many there are now, and return the pace."""
        now_us = self._clock.monotonic_us()
        self._seen.append((now_us, received))
        while self._seen[1][0] < now_us - self.WINDOW_US:
            self._seen.pop(0)
        since_us, before = self._seen[0]
        return (received - before) * 1_000_000 / max(1, now_us - since_us)


def line(books: dict[str, int | bool], in_flight: int, pace: Pace) -> str:
    """Write the books in one line: what has happened, at what pace, and what has not."""
    received = int(books["received"])
    parts = {
        "processed": books["processed"],
        "duplicates": books["redelivery"] + books["republish"],
        "echo": books["echo"],
        "stale": books["stale"],
        "dead": books["dead"] + books["conflict"],
        "unhandled": books["unhandled"],
        "in flight": in_flight,
    }
    figures = [f"received {received:,} ({pace.per_second(received):,.0f}/s)"]
    return "  ".join(figures + [f"{name} {number:,}" for name, number in parts.items() if number])
