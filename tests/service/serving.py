"""The service on a ledger in memory, with a handler that does what a test tells it, and requests of every kind."""

import asyncio
import itertools
import json
import threading
from collections import Counter

from lambda_function import number_of, text
from oncebridge import Bridge, Settings
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.service.app import make_application
from oncebridge.settings.secrets import Secret
from oncebridge.settings.serve import ServeSettings
from service.asgi import Answered, Client

PATIENCE_SECONDS = 60
#: Enough quick events that the service takes its handlers for quick.
MANY = 60
KEYS = (Secret("env:OLD_KEY", "old key of ours"), Secret("env:NEW_KEY", "new-key-of-ours"))
SERVE = {"answer_within_seconds": PATIENCE_SECONDS, "read_within_seconds": PATIENCE_SECONDS}


class Gate:
    """Blocks every caller until it is opened."""

    def __init__(self):
        """Start closed."""
        self._open = threading.Event()
        self.reached = threading.Semaphore(0)

    def __call__(self, *_):
        """Wait."""
        self.reached.release()
        assert self._open.wait(PATIENCE_SECONDS)

    def open(self):
        """Let all callers through from now on."""
        self._open.set()

    def wait_for_somebody(self):
        """Return when one more has come."""
        assert self.reached.acquire(timeout=PATIENCE_SECONDS)


class Service(Client):
    """The service, started and stopped as a server does it."""

    def __init__(self, ledger=None, *, handled=True, metrics=None, serve=None, **settings):
        """Take a ledger, or make one; there is time enough unless `serve` says otherwise."""
        self.ledger = MemoryLedger() if ledger is None else ledger
        limits = ServeSettings(**{**SERVE, **(serve or {})})
        self.bridge = Bridge(self.ledger, settings=Settings(serve=limits, **settings))
        if handled:
            self.bridge.on("*")(self._handle)
        #: Number -> what to do, or to raise; how often each was tried and took effect.
        self.does = {}
        self.tried, self.done = Counter(), Counter()
        self._numbers = itertools.count(1_000_000)
        super().__init__(make_application(self.bridge, metrics=metrics))
        self._life = [asyncio.Queue(), asyncio.Queue()]
        self._living = None

    def _handle(self, event):
        number = number_of(event)
        self.tried[number] += 1
        act = self.does.get(number)
        if isinstance(act, Exception):
            raise act
        if act is not None:
            act()
        self.done[number] += 1

    # --- its life ---------------------------------------------------------------------------------

    def __enter__(self):
        """Start it."""
        assert self.begin()["type"] == "lifespan.startup.complete"
        return self

    def __exit__(self, *_):
        """Stop it."""
        self.end()
        self.close()

    def begin(self):
        """Tell it to start, and return what it says to that."""
        to, back = self._life
        self._living = asyncio.run_coroutine_threadsafe(
            self._application({"type": "lifespan"}, to.get, back.put), self._loop
        )
        asyncio.run_coroutine_threadsafe(to.put({"type": "lifespan.startup"}), self._loop)
        return asyncio.run_coroutine_threadsafe(back.get(), self._loop).result(PATIENCE_SECONDS)

    def start_to_end(self):
        """Tell it to stop, and return the future of its end."""
        asyncio.run_coroutine_threadsafe(self._life[0].put({"type": "lifespan.shutdown"}), self._loop)
        return self._living

    def end(self):
        """Tell it to stop, and wait until it has."""
        if not self._living.done():
            self.start_to_end().result(PATIENCE_SECONDS)
            assert self._life[1].get_nowait() == {"type": "lifespan.shutdown.complete"}

    # --- requests ---------------------------------------------------------------------------------

    def events(self, body, method="POST", **headers):
        """Send a body to the path of events, and return the future of the answer."""
        return self.start(method, "/events", body if isinstance(body, bytes) else body.encode(), **headers)

    def event(self, *numbers, **headers):
        """Send facts by their numbers, one alone or several together; return the answer."""
        body = text(numbers[0]) if len(numbers) == 1 else f"[{','.join(map(text, numbers))}]"
        return self.events(body, **headers).result(PATIENCE_SECONDS)

    def dribble(self, parts, *, ends=False, leaves=False, **headers):
        """Send a body in parts; it ends, or its sender goes away, or nothing more comes. Return a future."""
        return asyncio.run_coroutine_threadsafe(self._dribble(parts, ends, leaves, headers), self._loop)

    async def _dribble(self, parts, ends, leaves, headers):
        coming, sent = iter(parts), []

        async def receive():
            part = next(coming, None)
            if part is not None:
                return {"type": "http.request", "body": part, "more_body": True}
            if ends:
                return {"type": "http.request", "body": b"", "more_body": False}
            if leaves:
                return {"type": "http.disconnect"}
            return await asyncio.Future()

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": "/events",
            "headers": [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()],
        }
        await self._application(scope, receive, send)
        start, body = sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answered(start["status"], headers, body["body"]), sum(1 for _ in coming)

    def become_quick(self):
        """Send quick events until the service batches requests."""
        self.event(*[next(self._numbers) for _ in range(MANY)])

    # --- what became of it --------------------------------------------------------------------------

    @property
    def books(self):
        """The columns of the books that are not 0; they balance."""
        books = self.bridge.books.as_dict()
        assert books.pop("balanced")
        return {column: count for column, count in books.items() if count}

    @property
    def statuses(self):
        """What the ledger knows, by status."""
        return {str(status): count for status, count in self.ledger.counts().items() if count}


def answers(futures):
    """Wait for several answers."""
    return [future.result(PATIENCE_SECONDS) for future in futures]


def problem(answered):
    """Return what a problem document says, whose form is checked."""
    assert answered.headers["content-type"] == "application/problem+json"
    body = json.loads(answered.body)
    assert body["status"] == answered.status
    assert body["title"]
    return body["detail"]
