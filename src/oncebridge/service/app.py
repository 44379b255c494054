"""The ASGI application of the service: its routes, how it starts and how it ends."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from oncebridge.errors import ConfigurationError, LedgerUnavailable, MissingExtra
from oncebridge.service.events import Events
from oncebridge.service.openapi import Health, document
from oncebridge.service.request_batcher import UNEXPECTED, RequestBatcher
from oncebridge.service.request_limits import STOPPING, RequestLimits
from oncebridge.sources.http_reply import Reply, ok, problem, wrong_method

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from oncebridge.bridge import Bridge
    from oncebridge.service.request_limits import Application, Receive, Scope, Send

READING: Final = ("GET", "HEAD")
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def make_application(
    bridge: Bridge, *, metrics: Callable[[], bytes] | None = None, more: Sequence[BaseRoute] = ()
) -> Application:
    """Make the ASGI application of one process, with more routes beside its own; it closes the bridge when it ends."""
    limits = RequestLimits(bridge.settings)
    batcher = RequestBatcher(bridge, limits)
    deliveries_max = bridge.settings.deliveries_per_request
    events = Events(limits, batcher, has_handlers=bridge.add_downstream(), deliveries_max=deliveries_max)
    other_routes = _make_other_routes(bridge, limits, batcher, metrics, more)
    lifespan = Lifespan(bridge, batcher)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        try:
            await (events if scope["path"] == "/events" else other_routes)(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the server would log the message, which may quote a request
            batcher.report_unexpected(error)

    return application


class Lifespan:
    """Opens the bridge when the server starts, and closes it when the server stops."""

    def __init__(self, bridge: Bridge, batcher: RequestBatcher) -> None:
        """Take the bridge, and the batcher that has to finish before the bridge is closed."""
        self._bridge = bridge
        self._batcher = batcher

    async def __call__(self, receive: Receive, send: Send) -> None:
        """Speak ASGI's lifespan protocol."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                error = await asyncio.to_thread(self._open)
                if error is not None:
                    await send({"type": "lifespan.startup.failed", "message": error})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._batcher.close()
                await asyncio.to_thread(self._bridge.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _open(self) -> str | None:
        """Open the ledger; return the reason if the service must not start."""
        try:
            self._bridge.open()
        except LedgerUnavailable as error:
            # It may be back before the first event arrives; until then requests are answered with 503.
            self._bridge.telemetry.warn(f"starting all the same: {error}")
        except ConfigurationError as error:
            return str(error)
        return None


def _make_other_routes(
    bridge: Bridge,
    limits: RequestLimits,
    batcher: RequestBatcher,
    metrics: Callable[[], bytes] | None,
    more: Sequence[BaseRoute],
) -> Application:
    """Make the application of every route but `/events`."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra("the service needs starlette; install it with: pip install 'oncebridge[http]'") from None
    from oncebridge.service.claims import routes

    async def health(_: Request) -> Response:
        return _response(_health(batcher))

    async def openapi(_: Request) -> Response:
        return _response(ok(document()))

    async def show_metrics(request: Request) -> Response:
        refused = limits.refusal(request.scope, READING)
        if refused is not None:
            return _response(refused)
        if metrics is None:
            return _response(problem(HTTPStatus.NOT_FOUND, "nothing is measured here"))
        text = await asyncio.to_thread(metrics)
        return _response(Reply(HTTPStatus.OK.value, {"Content-Type": METRICS_TYPE}, text))

    application = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", show_metrics),
            Route("/openapi.json", openapi),
            *routes(bridge, limits),
            *more,
        ],
        exception_handlers={404: _not_found, 405: _method_not_allowed, Exception: _failed},
    )
    # A path with a trailing slash is not one of ours. A redirect would say http:// behind a proxy, and need no key.
    application.router.redirect_slashes = False
    return application


def _health(batcher: RequestBatcher) -> Reply:
    """Say that the service answers, and whether its ledger was in reach the last time it was needed."""
    if batcher.stopping:
        return STOPPING
    return ok(Health(status="ok", ledger="out of reach" if batcher.outage else "in reach"))


def _response(reply: Reply) -> Response:
    from starlette.responses import Response

    return Response(reply.body, reply.status, reply.headers)


async def _not_found(*_: object) -> Response:
    return _response(problem(HTTPStatus.NOT_FOUND, "no such route; /openapi.json lists them all"))


async def _method_not_allowed(_: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None) or {}
    return _response(wrong_method(*headers.get("Allow", "GET").split(", ")))


async def _failed(*_: object) -> Response:
    return _response(UNEXPECTED)
