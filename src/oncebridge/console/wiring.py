"""Puts the console together, beside a worker or alone."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from oncebridge.console.answers import HEADERS
from oncebridge.console.app import ConsoleRoutes
from oncebridge.console.reading import Console
from oncebridge.errors import ConfigurationError, LedgerUnavailable, MissingExtra

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from oncebridge.bridge import Bridge
    from oncebridge.service.request_limits import Application, Receive, Scope, Send
    from oncebridge.settings import Settings


class ConsoleApplication:
    """The pages of one process; whatever opens the ledger waits until the first page is asked for."""

    def __init__(self, bridge: Bridge, *, options: str = "") -> None:
        """Take the bridge of a worker, or one that is there for the console alone."""
        self._bridge = bridge
        self._options = options
        self._console: Console | None = None
        self._application: Application | None = None
        self._opening = threading.Lock()

    def start(self) -> None:
        """Open the ledger; one that is out of reach is opened when a page is asked for."""
        try:
            self._opened()
        except LedgerUnavailable as error:
            self._bridge.telemetry.warn(f"console: pages are not answered: {error}")

    def close(self) -> None:
        """Close the ledger."""
        if self._console is not None:
            self._console.close()

    def _opened(self) -> Application:
        with self._opening:
            if self._application is None:
                self._application = self._make()
            return self._application

    def _make(self) -> Application:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException

        self._console = Console(
            self._bridge.beside(with_handlers=False),
            examined_bridge=lambda: self._bridge.beside(with_handlers=True),
        )
        self._console.start()
        pages = ConsoleRoutes(self._console, self._bridge.telemetry, options=self._options)
        made = Starlette(
            routes=pages.routes(), exception_handlers={HTTPException: pages.on_other, Exception: pages.on_error}
        )
        made.router.redirect_slashes = False
        return made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        from starlette.responses import PlainTextResponse

        application = self._application
        try:
            application = await asyncio.to_thread(self._opened) if application is None else application
        except LedgerUnavailable as error:
            self._bridge.telemetry.warn(f"console: pages are not answered: {error}")
            response = PlainTextResponse("The ledger is out of reach; load this again in a while.\n", 503, HEADERS)
            await response(scope, receive, send)
            return
        await application(scope, receive, send)

    def routes(self) -> list[BaseRoute]:
        """Return what another application puts beside its own routes."""
        try:
            from starlette.routing import Route
        except ImportError:
            raise MissingExtra("the console needs starlette; install it with: pip install 'oncebridge[http]'") from None
        return [Route(path, self) for path in ("/console", "/console/{path:path}")]


def check_console(settings: Settings, host: str, *, is_loopback: bool) -> None:
    """Refuse to show the console to everybody: without keys it must be reachable from this machine only."""
    console = settings.console
    if not is_loopback and not (console.operator_keys or console.reader_keys):
        raise ConfigurationError(
            f"host: {host} can be reached from elsewhere, and the console has no keys; name keys by where they are, as "
            'operator_keys = ["env:OPERATOR_KEY"] in [console] of the settings or in '
            "ONCEBRIDGE_CONSOLE_OPERATOR_KEYS, or listen on 127.0.0.1"
        )
