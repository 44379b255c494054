"""People who look at the console: its application in this process, with cookies and forms as a browser has them."""

import re
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urlencode

from oncebridge import Bridge, Settings
from oncebridge.console.wiring import ConsoleApplication
from oncebridge.errors import PermanentError
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings.console import ConsoleSettings
from oncebridge.settings.secrets import Secret
from oncebridge.testing import ManualClock
from payloads import queue_conversation, raw
from service.asgi import Answered, Client

OPERATOR = Secret("env:OPERATOR_KEY", "the operator's own key")
READER = Secret("env:READER_KEY", "the reader's own key")
KEYS = {"operator_keys": (OPERATOR,), "reader_keys": (READER,)}
FORM = "application/x-www-form-urlencoded"


def delivery(name: str, **changes: Any) -> bytes:
    """Make one delivery of an event of this name."""
    return raw(queue_conversation(event_id=name, conversation=name, **changes))


class Shaped:
    """An application as a server calls it: the path decoded, the query apart, from this address."""

    def __init__(self, application: Any) -> None:
        """Take the application."""
        self._application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Take the test's own headers off, and go on."""
        headers = dict(scope["headers"])
        peer = headers.pop(b"x-peer", b"127.0.0.1").decode()
        scheme = headers.pop(b"x-scheme", b"http").decode()
        path, _, query = scope["path"].partition("?")
        shaped = {"path": unquote(path), "raw_path": path.encode(), "query_string": query.encode()}
        more = {"scheme": scheme, "client": (peer, 50_000), "headers": [*headers.items()]}
        await self._application({**scope, **shaped, **more}, receive, send)


class Forms(HTMLParser):
    """The forms of a page: where each leads, and what it sends."""

    def __init__(self, page: str) -> None:
        """Read them."""
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str]]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what a form sends along by itself."""
        given = dict(attrs)
        if tag == "form":
            self.found.append((given.get("action") or "", []))
        if tag == "input" and given.get("type") == "hidden":
            self.found[-1][1].append((given["name"] or "", given["value"] or ""))


class Person:
    """Somebody with a browser."""

    def __init__(self, client: Client) -> None:
        """Come without cookies."""
        self._client = client
        self.cookie: str | None = None

    def get(self, path: str = "/", **headers: str) -> Answered:
        """Ask for a page of the console."""
        return self._sent("GET", path, b"", headers)

    def page(self, path: str = "/") -> str:
        """Ask for a page that is there, and return it."""
        answered = self.get(path)
        assert answered.status == 200, (path, answered)
        return answered.body.decode()

    def post(
        self,
        path: str,
        form: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        *,
        raw: bytes | None = None,
        **headers: str,
    ) -> Answered:
        """Send just these fields."""
        body = urlencode([*(form.items() if isinstance(form, Mapping) else form)]).encode() if raw is None else raw
        return self._sent("POST", path, body, {"Content_Type": FORM, **headers})

    def submit(self, path: str, form: Mapping[str, str] | Iterable[tuple[str, str]] = (), **headers: str) -> Answered:
        """Send these fields and the token of a page."""
        fields = [*(form.items() if isinstance(form, Mapping) else form)]
        return self.post(path, [*fields, ("token", self.token())], **headers)

    def press(self, answered: Answered | str, action: str, *more: tuple[str, str]) -> Answered:
        """Send the first form of a page that leads there, with what a person has chosen."""
        page = answered if isinstance(answered, str) else answered.body.decode()
        fields = next(fields for to, fields in Forms(page).found if to == f"/console{action}")
        return self.post(action, [*fields, *more])

    def token(self) -> str:
        """Return what forms have to send."""
        found = re.search(r'name="token" value="([^"]+)"', self.page("/log"))
        assert found
        return unescape(found[1])

    def login(self, key: str, **headers: str) -> Answered:
        """Give a key."""
        return self.post("/login", {"key": key, "next": "/console/log"}, **headers)

    def _sent(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answered:
        cookies = {} if self.cookie is None else {"Cookie": f"oncebridge-session={self.cookie}"}
        place = path if path.startswith("/console") else f"/console{path}"
        given = {"Host": "127.0.0.1:8090", **cookies, **headers}
        answered = self._client.send(method, place, body, **given)
        found = re.match(r'oncebridge-session="?([^;"]*)', answered.headers.get("set-cookie", ""))
        if found:
            self.cookie = found[1] or None
        return answered


class Place:
    """One ledger, its console, and workers beside it."""

    def __init__(self, ledger: Any, *, clock: Any = None, telemetry: Any = None, **console: Any) -> None:
        """Open the console; the ledger is a URL or a ledger."""
        self.ledger, self.clock = ledger, clock
        settings = Settings(console=ConsoleSettings(**console))
        self.bridge = Bridge(ledger, settings=settings, clock=clock, telemetry=telemetry)
        self.application = ConsoleApplication(self.bridge)
        self._client = Client(Shaped(self.application))

    def close(self) -> None:
        """End it."""
        self._client.close()
        self.application.close()
        self.bridge.close()

    @property
    def console(self) -> Any:
        """What reads for the pages."""
        self.application.start()
        return self.application._console

    def person(self, key: Secret | None = None) -> Person:
        """Return somebody, logged in by a key."""
        person = Person(self._client)
        if key is not None:
            assert person.login(key.value).status == 303
        return person

    def worker(self, *names: str, does: Any = None) -> Bridge:
        """Make a worker whose handlers do this; it begins when it is opened."""
        worker = Bridge(self.ledger, clock=self.clock)
        for name in names or ("crm",):
            worker.register("*", does or (lambda _: None), name=name)
        worker.start_journal("consume", holds="14 days in the queue")
        return worker

    def letters(
        self, number: int, reason: str = "no such customer", handler: str = "crm", name: str = "e", **changes: Any
    ):
        """Leave dead letters, and return their keys."""

        def refuse(_: Any) -> None:
            raise PermanentError(reason)

        with self.worker(handler, does=refuse) as worker:
            results = worker.process_many([delivery(f"{name}-{at}", **changes) for at in range(number)])
        return [result.key for result in results]


@contextmanager
def place_on(kind: str, folder: Any, *, clock: Any = None, **console: Any):
    """Open a place on a ledger of this kind."""
    ledger = MemoryLedger(clock=clock) if kind == "memory" else f"sqlite:///{folder}/once.db"
    place = Place(ledger, clock=clock, **console)
    try:
        yield place
    finally:
        place.close()


def moved(place: Place, minutes: float) -> None:
    """Let time pass."""
    assert isinstance(place.clock, ManualClock)
    place.clock.advance(minutes * 60)
