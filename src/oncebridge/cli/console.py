"""`oncebridge console`: the pages alone, beside workers that run elsewhere on the same ledger."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec.structs import replace

from oncebridge.cli.logs import chosen_format, log_to_standard_error
from oncebridge.cli.output import say, say_error, say_warning
from oncebridge.cli.serve import EXIT_GAVE_UP, EXIT_SIGNAL, KEY_LENGTH_MIN, server_log, try_ledger
from oncebridge.cli.wiring import BridgeOption, LedgerOption, SettingsOption, existing_bridge, ledger_kind
from oncebridge.console.answers import redirect, trouble
from oncebridge.console.wiring import ConsoleApplication, check_console
from oncebridge.errors import OncebridgeError
from oncebridge.service.connections import ConnectionGuard
from oncebridge.service.metrics import WorkerMetrics
from oncebridge.service.workers import (
    ServiceEnd,
    WorkerApplication,
    Workers,
    address_of,
    is_loopback,
    reserve_address,
)
from oncebridge.telemetry import logger

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge
    from oncebridge.service.request_limits import Application, Receive, Scope, Send
    from oncebridge.service.workers import ListenAddress


def console(
    *,
    host: Annotated[
        str | None,
        typer.Option(help="The address to listen on.", metavar="HOST", show_default="that of listen in [console]"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="The port; 0 takes a free one.", min=0, max=65_535, show_default="that of listen in [console], or 8090"
        ),
    ] = None,
    ledger: LedgerOption = None,
    handler: BridgeOption = None,
    settings: SettingsOption = None,
) -> None:
    """Show in a browser what all workers of a ledger are doing, and act on it, until stopped."""
    plan = ConsolePlan(settings, ledger, handler, logger.level, chosen_format())
    bridge = plan.make_bridge()
    listen = bridge.settings.console.listen.rpartition(":")
    chosen = host or listen[0].strip("[]")
    address = address_of(chosen)
    check_console(bridge.settings, chosen, is_loopback=is_loopback(address))
    ConsoleApplication(bridge).routes()  # a missing package is reported here, and not by the worker
    for key in (*bridge.settings.console.operator_keys, *bridge.settings.console.reader_keys):
        if len(key.value) < KEY_LENGTH_MIN:
            say_warning(f"console: {key.reference} has fewer than {KEY_LENGTH_MIN} characters, and may be guessed")
    try_ledger(bridge, "pages say so until it is back")
    with ExitStack() as stack:
        listening = reserve_address(address, int(listen[2]) if port is None else port)
        stack.callback(listening.held.close)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="oncebridge-console-")))
        plan = replace(plan, folder=folder, port=listening.port)
        serve = replace(bridge.settings.serve, workers=1)
        service = Workers(plan, listening, serve, folder=folder, log=server_log())
        end = service.run(on_ready=partial(_say_ready, bridge, listening), on_stop=lambda: None, on_death=say)
    if end is ServiceEnd.GAVE_UP:
        say_error("the console ended again as soon as it was started; what it said is above")
        raise typer.Exit(EXIT_GAVE_UP)
    if end is ServiceEnd.FORCED:
        raise typer.Exit(EXIT_SIGNAL + service.signals[-1])


def _say_ready(bridge: Bridge, listening: ListenAddress) -> None:
    keys = bridge.settings.console
    who = "give one of its keys" if keys.operator_keys or keys.reader_keys else "no key is needed on this machine"
    say(f"console at {listening.url}/console/, ledger {ledger_kind(bridge)}; {who}; Ctrl-C ends it")


class ConsolePlan(msgspec.Struct, frozen=True):
    """The configuration of the console's process, which it gets through a pipe that no other process can read."""

    settings: str | None
    ledger: str | None
    handler: str | None
    log_level: int
    log_format: str
    folder: Path = Path()
    port: int = 0

    def __repr__(self) -> str:
        """Show none of the options: the ledger's URL may hold a password."""
        return f"<ConsolePlan at port {self.port}>"

    def make_bridge(self) -> Bridge:
        """Make the bridge of the ledger that is looked at."""
        return existing_bridge(self.handler, self.ledger, self.settings)

    def __call__(self) -> Application:
        """Make the application, in the console's own process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log_to_standard_error(self.log_format)
        logger.setLevel(self.log_level)
        try:
            bridge = self.make_bridge()
            pages = ConsoleApplication(bridge, options=self._options())
            guard = ConnectionGuard(self.port, bridge.settings.serve, bridge.telemetry.warn)
            return WorkerApplication(_alone(pages), WorkerMetrics(bridge, self.folder), pages, guard)
        except OncebridgeError as error:
            say_error(str(error))
            sys.exit(EXIT_GAVE_UP)

    def _options(self) -> str:
        """Return what commands need for the same ledger; never a URL, which may hold a password."""
        given = {"--ledger": self.ledger and "URL", "--settings": self.settings, "--handler": self.handler}
        return "".join(f" {name} {value}" for name, value in given.items() if value is not None)


def _alone(pages: ConsoleApplication) -> Application:
    """Make the whole application of a process that shows the pages alone."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import Response
    from starlette.routing import Route

    async def to_pages(_: Any) -> Response:
        return redirect("/console/")

    async def no_page(_: Any, error: Exception) -> Response:
        return trouble(HTTPStatus(getattr(error, "status_code", HTTPStatus.NOT_FOUND)), "There is no such page.")

    whole = Starlette(routes=[Route("/", to_pages), *pages.routes()], exception_handlers={HTTPException: no_page})
    whole.router.redirect_slashes = False

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await whole(scope, receive, send)

    return application
