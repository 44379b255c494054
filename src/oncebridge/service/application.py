"""The whole application: what is where, and how it starts and ends."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from oncebridge.errors import ConfigurationError, LedgerUnavailable, MissingExtra
from oncebridge.service.door import STOPPING, Door
from oncebridge.service.events import Events
from oncebridge.service.gathering import UNEXPECTED, Gathering
from oncebridge.sources.http_reply import Reply, ok, problem, wrong_method

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from oncebridge.bridge import Bridge
    from oncebridge.service.door import Application, Receive, Scope, Send

READING: Final = ("GET", "HEAD")
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def make_application(bridge: Bridge, *, metrics: Callable[[], bytes] | None = None) -> Application:
    """Make the ASGI application of one process; it closes the bridge when it ends."""
    door = Door(bridge.settings)
    gathering = Gathering(bridge, door)
    events = Events(door, gathering, handled=bridge.add_downstream(), most=bridge.settings.deliveries_per_request)
    others = _others(bridge, door, gathering, metrics)
    life = Life(bridge, gathering)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await life(receive, send)
            return
        try:
            await (events if scope["path"] == "/events" else others)(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the server would log its words, which may quote a request
            gathering.unexpected(error)

    return application


class Life:
    """Starts and ends with the server's process."""

    def __init__(self, bridge: Bridge, gathering: Gathering) -> None:
        """Take what is to be opened and closed."""
        self._bridge = bridge
        self._gathering = gathering

    async def __call__(self, receive: Receive, send: Send) -> None:
        """Go through it as ASGI has it."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                trouble = await asyncio.to_thread(self._open)
                if trouble is not None:
                    await send({"type": "lifespan.startup.failed", "message": trouble})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._gathering.close()
                await asyncio.to_thread(self._bridge.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _open(self) -> str | None:
        """Open the ledger; return why the service must not start, if so."""
        try:
            self._bridge.open()
        except LedgerUnavailable as error:
            # It may be back before the first event comes; until then requests are told to come again.
            self._bridge.telemetry.warn(f"starting all the same: {error}")
        except ConfigurationError as error:
            return str(error)
        return None


def _others(bridge: Bridge, door: Door, gathering: Gathering, metrics: Callable[[], bytes] | None) -> Application:
    """Make the application of everything that is asked for less often."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra("the service needs starlette; install it with: pip install 'oncebridge[http]'") from None
    from oncebridge.service.claims import routes
    from oncebridge.service.openapi import document

    async def health(_: Request) -> Response:
        return _response(_health(gathering))

    async def openapi(_: Request) -> Response:
        return _response(ok(document()))

    async def measured(request: Request) -> Response:
        refused = door.refusal(request.scope, READING)
        if refused is not None:
            return _response(refused)
        if metrics is None:
            return _response(problem(HTTPStatus.NOT_FOUND, "nothing is measured here"))
        text = await asyncio.to_thread(metrics)
        return _response(Reply(HTTPStatus.OK.value, {"Content-Type": METRICS_TYPE}, text))

    application = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", measured),
            Route("/openapi.json", openapi),
            *routes(bridge, door),
        ],
        exception_handlers={404: _not_there, 405: _not_so, Exception: _failed},
    )
    # A path with a slash too many is none of ours; a redirect would name http:// behind a proxy, and ask for no key.
    application.router.redirect_slashes = False
    return application


def _health(gathering: Gathering) -> Reply:
    """Say that the service answers, and what it last knew of its ledger."""
    if gathering.stopping:
        return STOPPING
    return ok({"status": "ok", "ledger": "out of reach" if gathering.outage else "in reach"})


def _response(reply: Reply) -> Response:
    from starlette.responses import Response

    return Response(reply.body, reply.status, reply.headers)


async def _not_there(*_: object) -> Response:
    return _response(problem(HTTPStatus.NOT_FOUND, "/openapi.json says what there is"))


async def _not_so(_: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None) or {}
    return _response(wrong_method(*headers.get("Allow", "GET").split(", ")))


async def _failed(*_: object) -> Response:
    return _response(UNEXPECTED)
