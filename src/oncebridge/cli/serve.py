"""`oncebridge serve`: events over HTTP through the bridge, and claims for other languages."""

from __future__ import annotations

import signal
import sys
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from msgspec.structs import replace

from oncebridge.bridge import Bridge
from oncebridge.cli.hints import repeat_in_hints
from oncebridge.cli.logs import chosen_format, formatter, log_to_standard_error
from oncebridge.cli.output import report_books, report_shadow, say, say_error, say_warning
from oncebridge.cli.wiring import (
    ErrorsOption,
    HandlerOption,
    JSONOption,
    LeaseOption,
    LedgerOption,
    SettingsOption,
    ShadowOption,
    bridge_for,
    ledger_kind,
    load_handler,
    say_which_ledger,
    setting_or,
    take_bridge,
)
from oncebridge.console.wiring import ConsoleApplication, check_console
from oncebridge.errors import ConfigurationError, LedgerUnavailable, LedgerWarning, OncebridgeError
from oncebridge.ledgers import scheme_of
from oncebridge.service.app import make_application
from oncebridge.service.connections import ConnectionGuard
from oncebridge.service.metrics import BEFORE, NEWEST, WorkerMetrics, books_of, read_snapshots
from oncebridge.service.workers import (
    ListenAddress,
    ServiceEnd,
    WorkerApplication,
    Workers,
    address_of,
    is_loopback,
    reserve_address,
)
from oncebridge.settings import Settings, load_settings
from oncebridge.settings.serve import ServeSettings
from oncebridge.telemetry import logger
from oncebridge.telemetry.counting import columns_by_topic

if TYPE_CHECKING:
    from oncebridge.service.request_limits import Application

EXIT_GAVE_UP: Final = 1
EXIT_SIGNAL: Final = 128  # and the signal's number, as shells have it
KEY_LENGTH_MIN: Final = 16  # shorter ones can be guessed


def serve(
    *,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on.", metavar="HOST", show_default=setting_or("host"))
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="The port; 0 takes a free one.", min=0, max=65_535, show_default=setting_or("port")),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that share the work.", min=1, max=256, show_default=setting_or("workers")),
    ] = None,
    ledger: LedgerOption = None,
    handler: HandlerOption = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Handlers at a time, in each.", min=1, max=256, show_default=setting_or("concurrency")),
    ] = None,
    lease: LeaseOption = None,
    shadow: ShadowOption = False,
    errors: ErrorsOption = None,
    console: Annotated[
        bool, typer.Option("--console", help="Show pages at /console, too: what all workers of the ledger are doing.")
    ] = False,
    settings: SettingsOption = None,
    json: JSONOption = False,
) -> None:
    """Take events over HTTP until stopped, and serve claims to programs in other languages."""
    given: dict[str, Any] = {"host": host, "port": port, "workers": workers}
    given |= {"ledger": ledger, "concurrency": concurrency, "lease_seconds": lease, "shadow": shadow or None}
    given |= {"log_errors": errors}
    plan = WorkerPlan(settings, given, handler, logger.level, chosen_format(), console=console)
    bridge = plan.make_bridge()
    address = check_address(bridge.settings, ledger_kind(bridge))
    if console:
        check_console(bridge.settings, bridge.settings.serve.host, is_loopback=is_loopback(address))
    make_application(bridge)  # a missing package is reported here, and not by each worker
    with ExitStack() as stack:
        listening = reserve_address(address, bridge.settings.serve.port)
        stack.callback(listening.held.close)
        _say_before_start(bridge)
        reached = try_ledger(bridge, "requests get 503 until it is back")
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="oncebridge-serve-")))
        plan = replace(plan, folder=folder, port=listening.port, said=reached)
        service = Workers(plan, listening, bridge.settings.serve, folder=folder, log=server_log())
        end = service.run(
            on_ready=partial(_say_ready, bridge, listening, handler, console=console),
            on_stop=_say_stopping,
            on_death=say,
        )
        _report(folder, json=json, shadow=bridge.settings.shadow)
    if end is ServiceEnd.GAVE_UP:
        say_error("the workers ended again as soon as they were started; what they said is above")
        raise typer.Exit(EXIT_GAVE_UP)
    if end is ServiceEnd.FORCED:
        raise typer.Exit(EXIT_SIGNAL + service.signals[-1])


def server_log() -> dict[str, Any]:
    """Configure granian's own log: the format of ours, on the same stream."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"ours": {"()": type(formatter(chosen_format()))}},
        "handlers": {"errors": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "ours"}},
        "loggers": {"_granian": {"handlers": ["errors"], "propagate": False}},
    }


class WorkerPlan(msgspec.Struct, frozen=True):
    """The configuration of a worker process, which it gets through a pipe that no other process can read."""

    settings: str | None
    given: dict[str, Any]
    handler: str | None
    log_level: int
    log_format: str
    folder: Path = Path()
    port: int = 0
    #: Whether the ledger's warnings have been printed already.
    said: bool = False
    #: Whether the pages are shown, too.
    console: bool = False

    def __repr__(self) -> str:
        """Show none of the options: the ledger's URL may hold a password."""
        return f"<WorkerPlan for {self.handler or 'sinks'} at port {self.port}>"

    def make_bridge(self) -> Bridge:
        """Make the bridge with its handlers and sinks."""
        named = None if self.handler is None else load_handler(self.handler)
        if isinstance(named, Bridge):
            repeat_in_hints(ledger=self.given.get("ledger"), handler=self.handler, settings=None)
            bridge = self._served(named)
        else:
            bridge = bridge_for(self.handler, settings=self.settings, **self.given)
        bridge.add_downstream()
        return bridge

    def _served(self, bridge: Bridge) -> Bridge:
        """Take address and keys from options, environment and file, unless the program's own bridge has set them.

        The bridge alone decides how events are identified and where they go: that must not depend on where it runs.
        """
        around, own = load_settings(self.settings, **self.given), bridge.settings
        bridge = take_bridge(bridge, str(self.handler), **self.given)
        chosen = bridge.settings
        serve = around.serve if own.serve == ServeSettings() else chosen.serve
        bridge.rewire(replace(chosen, api_keys=own.api_keys or around.api_keys, serve=serve))
        return bridge

    def __call__(self) -> Application:
        """Make the application, in the process of a worker."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log_to_standard_error(self.log_format)
        logger.setLevel(self.log_level)
        if self.said:
            warnings.simplefilter("ignore", LedgerWarning)
        try:
            bridge = self.make_bridge()
            bridge.start_journal("serve", holds="as long as the sender tries again: EventBridge does for 24 hours")
            metrics = WorkerMetrics(bridge, self.folder)
            guard = ConnectionGuard(self.port, bridge.settings.serve, bridge.telemetry.warn)
            pages = ConsoleApplication(bridge) if self.console else None
            more = () if pages is None else pages.routes()
            application = make_application(bridge, metrics=metrics.exposition, more=more)
            return WorkerApplication(application, metrics, *([] if pages is None else [pages]), guard)
        except OncebridgeError as error:
            say_error(str(error))
            sys.exit(EXIT_GAVE_UP)


def check_address(settings: Settings, ledger: str | None = None) -> str:
    """Return the address to listen on; without keys it must be reachable from this machine only."""
    address = address_of(settings.serve.host)
    if not settings.api_keys and not is_loopback(address):
        raise ConfigurationError(
            f"host: {settings.serve.host} can be reached from elsewhere, and no keys are set; name keys by where "
            'they are, as api_keys = ["env:ONCEBRIDGE_KEY"] in the settings or in ONCEBRIDGE_API_KEYS, or listen on '
            "127.0.0.1"
        )
    if settings.serve.workers > 1 and (ledger or scheme_of(settings.ledger)) == "memory":
        raise ConfigurationError(
            "workers: with memory:// each worker has a memory of its own, and would process events again that another "
            "has processed; use another ledger, or one worker"
        )
    return address


# --- output ------------------------------------------------------------------------------------------


def _say_before_start(bridge: Bridge) -> None:
    settings = bridge.settings
    say_which_ledger(bridge)
    for key in settings.api_keys:
        if len(key.value) < KEY_LENGTH_MIN:
            say_warning(f"api_keys: {key.reference} has fewer than {KEY_LENGTH_MIN} characters, and may be guessed")
    if not bridge.handlers and not settings.shadow:
        say("no --handler and no sinks: only claims are served; POST /events answers 503")


def try_ledger(bridge: Bridge, otherwise: str) -> bool:
    """Open the ledger once before the workers do; return whether it was in reach, and warn of what follows if not."""
    try:
        with bridge:
            return True
    except LedgerUnavailable as error:
        say_warning(f"{error}; {otherwise}")
        return False


def _say_ready(bridge: Bridge, listening: ListenAddress, handler: str | None, *, console: bool) -> None:
    workers, sinks = bridge.settings.serve.workers, bridge.settings.sinks
    names = [*([handler] if handler else []), *(sink.name for sink in sinks)]
    to = f", events go to {', '.join(names) or 'downstream_url'}" if bridge.handlers else ""
    to = ", as a shadow: no handler is called" if bridge.settings.shadow else to
    several = "workers" if workers > 1 else "worker"
    say(f"serving {listening.url} with {workers} {several}, ledger {ledger_kind(bridge)}{to}")
    if console:
        say(f"console at {listening.url}/console/")


def _say_stopping() -> None:
    say("stopping: running requests finish; a second signal waits for nobody")


def _report(folder: Path, *, json: bool, shadow: bool) -> None:
    snapshots = list(read_snapshots(folder, NEWEST, BEFORE))
    books = books_of(snapshots)
    if shadow:
        report_shadow(books, columns_by_topic(*(snapshot.totals.unpacked() for snapshot in snapshots)), json=json)
    else:
        report_books(books, json=json)
    if books["retrying"]:
        say(f"{books['retrying']:,} not settled; their senders were answered to send them again")
    killed = sum(not snapshot.ended for snapshot in snapshots)
    if killed:
        were = "worker was" if killed == 1 else "workers were"
        say(f"{killed} {were} killed; what each did in its last second may not be counted")
