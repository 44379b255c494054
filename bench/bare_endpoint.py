"""The endpoint that one would write instead: parse the body, the tutorial's SET NX for each event, then the handler.

It runs in a process of its own, on the server that `oncebridge serve` runs on.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
from peers import TUTORIAL_SECONDS
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

_URL = os.environ["BENCH_REDIS"]
_MODULE, _, _NAME = os.environ["BENCH_HANDLER"].partition(":")
handle = getattr(import_module(_MODULE), _NAME)
waiting = redis.asyncio.Redis.from_url(_URL, decode_responses=True)
blocking = redis.Redis.from_url(_URL, decode_responses=True)


async def events(request: Request) -> JSONResponse:
    """Take events with the client that fits an asynchronous endpoint."""
    done = 0
    for event in _events(await request.body()):
        if await waiting.set(f"gc-event-{event['id']}", "1", nx=True, ex=TUTORIAL_SECONDS):
            handle(event)
            done += 1
    return JSONResponse({"processed": done})


async def events_blocking(request: Request) -> JSONResponse:
    """Take events with the tutorial's own client, which lets everybody wait for Redis."""
    done = 0
    for event in _events(await request.body()):
        if blocking.set(f"gc-event-{event['id']}", "1", nx=True, ex=TUTORIAL_SECONDS):
            handle(event)
            done += 1
    return JSONResponse({"processed": done})


async def health(_: Request) -> JSONResponse:
    """Say that it runs."""
    return JSONResponse({"status": "ok"})


def _events(body: bytes) -> list[dict[str, Any]]:
    parsed = json.loads(body)
    return parsed if isinstance(parsed, list) else [parsed]


app = Starlette(
    routes=[
        Route("/events", events, methods=["POST"]),
        Route("/blocking", events_blocking, methods=["POST"]),
        Route("/health", health),
    ]
)
