"""Canaries for personal data and secrets, through every path: to be read by who asks for them, and nowhere else."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from unittest import mock

from oncebridge.errors import OncebridgeError
from prove.canaries import Canary, deliveries, found_in, make_canaries, stored
from prove.outcome import Options, Outcome
from prove.places import kind_of, place_of
from prove.private import VARIABLE
from prove.round import Child, in_child

SECONDS_MAX: Final = 180
PROGRAM: Final = ("--handler", "prove.private:bridge")
#: A dead letter is the one place in a ledger for a payload, as docs/guarantees.md has it.
LETTERS: Final = re.compile(r"ledger: (oncebridge_)?letter\.(raw|detail)")
#: The port of a service that no machine has any more.
NOBODY_LISTENS: Final = 9
#: Asked for, it must be there: otherwise the search would find nothing anywhere.
ASKED: Final = "asked for: "
#: What a signal leaves: an exit code of its own.
ENDS: Final = {"kill": -9, "stop": None, "abort": -6}


def canaries(options: Options) -> Outcome:
    """Let them loose, and look for them."""
    begun = time.monotonic()
    found = make_canaries(options.seed, options.amount)
    with place_of(options.ledger, options.folder) as plain_url:
        password = next(canary.value for canary in found if canary.kind == "ledger password")
        url = _with_password(plain_url, password)
        surfaces: dict[str, bytes] = {}
        with _receiver() as (port, received):
            place = Place(options.folder, url, found, port)
            for step in STEPS:
                if time.monotonic() - begun > options.seconds:
                    return Outcome(notes=["ended early: it has to see every path to say anything"])
                surfaces |= step(place)
            surfaces[f"{ASKED}the receiver's requests"] = b"\n".join(received)
        surfaces |= in_child_bytes(lambda: stored(kind_of(url), plain_url))
        return judged(surfaces, found)


@contextlib.contextmanager
def _receiver() -> Iterator[tuple[int, list[bytes]]]:
    """Refuse every event; what was sent is for the receiver alone, secrets included."""
    received: list[bytes] = []

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(HTTPStatus.UNPROCESSABLE_ENTITY)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def judged(surfaces: Mapping[str, bytes], canaries: list[Canary]) -> Outcome:
    """Say what was found where it must not be, and what was not found where it must be."""
    outcome = Outcome(tried=len(canaries), figures={"places": len(surfaces)})
    outcome.figures["bytes looked through"] = sum(len(data) for data in surfaces.values())
    personal = [canary for canary in canaries if not canary.is_secret]
    for name, there in sorted(found_in(surfaces, canaries).items()):
        is_for_it = name.startswith(ASKED) or LETTERS.fullmatch(name)
        for canary in there:
            if canary.is_secret or not is_for_it:
                what = f"{canary.kind} in {name}"
                outcome.broken[what] = outcome.broken.get(what, 0) + 1
                outcome.history += _around(surfaces[name], canary)
    asked = {name: data for name, data in surfaces.items() if name.startswith(ASKED)}
    asked["dead letters"] = b"\n".join(data for name, data in surfaces.items() if LETTERS.fullmatch(name))
    for name, data in asked.items():
        for canary in missing_in(data, personal):
            what = f"{canary.kind} not in {name}, where it must be"
            outcome.broken[what] = outcome.broken.get(what, 0) + 1
    return outcome


def missing_in(data: bytes, canaries: Sequence[Canary]) -> list[Canary]:
    """Return those that cannot be read there."""
    there = found_in({"": data}, canaries).get("", [])
    return [canary for canary in canaries if canary not in there]


def _around(data: bytes, canary: Canary) -> list[str]:
    at = max(0, data.find(canary.value.encode()))
    return [f"{canary.kind} {canary.value!r}: ...{data[max(0, at - 150) : at + 80]!r}..."]


def in_child_bytes(work: Callable[[], dict[str, bytes]]) -> dict[str, bytes]:
    """Do something in a process of its own that returns bytes by name."""
    return _as_bytes(in_child(partial(_as_text, work)))


def _as_text(work: Callable[[], dict[str, bytes]]) -> dict[str, str]:
    return {name: data.decode("latin-1") for name, data in work().items()}


def _as_bytes(told: Mapping[str, str]) -> dict[str, bytes]:
    return {name: text.encode("latin-1") for name, text in told.items()}


def _with_password(url: str, password: str) -> str:
    """Give the ledger a password, which its URL then has."""
    if url.startswith("postgres"):
        scheme, _, rest = url.partition("://")
        user, at, place = rest.partition("@")
        return f"{scheme}://{user.partition(':')[0]}:{password}@{place}" if at else url
    if kind_of(url) == "redis" and "@" not in url:
        # A user without a password is let in with any.
        return url.replace("://", f"://default:{password}@", 1)
    return url


@dataclass(frozen=True)
class Place:
    """Where it happens: files, settings, and a ledger."""

    folder: Path
    url: str
    canaries: list[Canary]
    #: Where the receiver of the sink listens.
    port: int

    def secret(self, kind: str) -> str:
        """Return the canary of a kind."""
        return next(canary.value for canary in self.canaries if canary.kind == kind)

    def apart(self, name: str) -> Place:
        """Return one with files of its own."""
        (self.folder / name).mkdir()
        return replace(self, folder=self.folder / name)

    @property
    def settings(self) -> Path:
        """Write the settings."""
        path = self.folder / "oncebridge.toml"
        path.write_text(
            'secret = "env:KEY_OF_KEYS"\napi_keys = ["env:OUR_API_KEY"]\n[retry]\nattempts = 1\n[console]\n'
            'operator_keys = ["env:OPERATOR_KEY"]\nreader_keys = ["env:READER_KEY"]\n'
            f'[sinks.crm]\nurl = "http://127.0.0.1:{self.port}/events"\n'
            'private_addresses = true\nbearer = "env:CRM_TOKEN"\n'
            'headers = { X-More = "env:CRM_HEADER" }\ntopics = ["v2.audits.*"]\n'
        )
        return path

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of a process."""
        return {
            "ONCEBRIDGE_LEDGER": self.url, "ONCEBRIDGE_SETTINGS": str(self.settings), VARIABLE: "go on",
            "KEY_OF_KEYS": self.secret("secret for keys"), "OUR_API_KEY": self.secret("API key"),
            "OPERATOR_KEY": self.secret("operator's key"), "READER_KEY": self.secret("reader's key"),
            "CRM_TOKEN": self.secret("bearer token"), "CRM_HEADER": self.secret("key in a header"),
            "PYTHONFAULTHANDLER": "1", "PYTHONPATH": os.pathsep.join(str(Path(place).absolute()) for place in sys.path),
        }  # fmt: skip

    @property
    def capture(self) -> Path:
        """Write the deliveries into a file."""
        path = self.folder / "capture.jsonl"
        path.write_bytes(b"\n".join(deliveries(self.canaries)) + b"\n")
        return path

    def run(
        self, name: str, *words: str, codes: Sequence[int | None] = (0, 1, 75), **variables: str
    ) -> dict[str, bytes]:
        """Run a command with every log line that it has; return what it wrote."""
        command = [sys.executable, "-m", "oncebridge", *words, "--log-level", "debug"]
        done = subprocess.run(
            command, env=os.environ | self.environment | variables, cwd=self.folder, capture_output=True,
            timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        if None not in codes and done.returncode not in codes:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]!r}")
        return {name: done.stdout, f"{name}, its log": done.stderr}


# --- steps -----------------------------------------------------------------------------------------------


def _commands(place: Place) -> dict[str, bytes]:
    """Process, with handlers that fail and processes that die; then everything that shows what there is."""
    capture, verdicts, page = str(place.capture), place.folder / "verdicts.jsonl", place.folder / "report.html"
    found: dict[str, bytes] = {}
    found |= place.run("migrate", "migrate")
    for end, code in ENDS.items():
        found |= place.run(
            f"process, {end}", "process", capture, *PROGRAM, "--lease", "1", codes=(code,), **{VARIABLE: end}
        )
    found |= place.run("process", "process", capture, *PROGRAM, "--verdicts", str(verdicts), "--lease", "1")
    found |= place.run("process, as JSON", "process", capture, *PROGRAM, "--lease", "1", "--json")
    found["verdicts"] = verdicts.read_bytes()
    listed = place.run("dead list, as JSON", "dead", "list", "--json")
    found |= listed
    keys = sorted(set(re.findall(rb"ob1_[0-9a-f]{32}", listed["dead list, as JSON"])))
    for number, key in enumerate(keys[:2]):
        found |= place.run(f"find {number}", "find", key.decode())
    for name, words in LOOKS.items():
        found |= place.run(name, *words, codes=(0, 1, 2, 75))
    found |= place.run("diagnose", "diagnose", capture, "--html", str(page))
    found["report"] = page.read_bytes()
    return found


LOOKS: Final = {
    "doctor": ("doctor", *PROGRAM),
    "doctor, as JSON": ("doctor", *PROGRAM, "--json"),
    "top, as JSON": ("top", "--once", "--json"),
    "deliveries, as JSON": ("deliveries", "--json"),
    "log": ("log",),
    "redrive": ("dead", "redrive", "--all", *PROGRAM),
}


def _in_process(place: Place) -> dict[str, bytes]:
    return in_child_bytes(lambda: _watched(place))


def _watched(place: Place) -> dict[str, bytes]:
    """Use the library with everything that counts and tells beside it."""
    os.environ.update(place.environment)
    log, printed = io.StringIO(), io.StringIO()
    logging.basicConfig(stream=log, level=logging.DEBUG, force=True)
    # At this level it writes down every request, and so dead letters; docs/guarantees.md warns of it.
    logging.getLogger("botocore").setLevel(logging.INFO)
    found: dict[str, bytes] = {}
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        found |= _observed(place)
        found |= _by_lambda(place)
        found |= _over_http(place)
        found |= _on_pages(place)
        found |= _shown_to_who_asks()
    return {**found, "the library's log": log.getvalue().encode(), "printed": printed.getvalue().encode()}


def _bridge() -> Any:
    from prove.private import _make

    return _make()


def _observed(place: Place) -> dict[str, bytes]:
    """Process with OpenTelemetry; look at results as people print them, and at tracebacks."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from oncebridge.telemetry.otel import OpenTelemetry

    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    with _bridge() as bridge:
        observer = OpenTelemetry(MeterProvider([reader]).get_meter("proof"), tracers.get_tracer("proof"), bridge.clock)
        bridge.telemetry.add(observer)
        results = bridge.process_many(deliveries(place.canaries))
        letters = list(bridge.dead_letters.list())
        shown = [repr(letter) + str(letter) for letter in letters]
        told = [repr(result) + str(result) for result in results]
        state = f"{bridge!r} {bridge.settings!r} {bridge.books.as_dict()}"
    data = reader.get_metrics_data()
    return {
        "results": "\n".join(told).encode(),
        "letters in a program": "\n".join(shown).encode(),
        "bridge and settings": state.encode(),
        "OpenTelemetry's metrics": (data.to_json() if data else "").encode(),
        "OpenTelemetry's spans": "\n".join(span.to_json() for span in spans.get_finished_spans()).encode(),
    }


def _by_lambda(place: Place) -> dict[str, bytes]:
    """Invoke a function, whose metrics are on its standard output."""
    from shapes import message, records

    told = io.StringIO()
    with contextlib.redirect_stdout(told), _bridge() as bridge:
        for raw in deliveries(place.canaries)[::3]:
            answer = bridge.lambda_handler(records(message(raw.decode(errors="replace"))), None)
            told.write(json.dumps(answer))
    return {"Lambda's answers and metrics": told.getvalue().encode()}


def _over_http(place: Place) -> dict[str, bytes]:
    """Post events and claims, with the key and with wrong ones; look at everything that the service shows."""
    from oncebridge.service.app import make_application
    from service.asgi import Client

    key, wrong = place.secret("API key"), place.secret("wrong API key")
    answers: list[bytes] = []
    with _bridge() as bridge:
        client = Client(make_application(bridge))
        try:
            for raw in deliveries(place.canaries)[::3]:
                claim = {"event": raw.decode(errors="replace"), "handler": "desk", "lease_seconds": 1}
                for given in (key, wrong):
                    sent = client.send("POST", "/events", raw, X_API_Key=given)
                    lent = client.post("/claims", claim, Authorization=f"Bearer {given}")
                    late = client.post(
                        "/claims/settle", {"claim": "e30.e30", "outcome": "dead", **claim}, X_API_Key=given
                    )
                    answers += [sent.body, lent.body, late.body]
            looks = {
                path: client.send("GET", path, X_API_Key=key).body for path in ("/metrics", "/health", "/openapi.json")
            }
        finally:
            client.close()
    return {"answers over HTTP": b"\n".join(answers), **{f"GET {path}": body for path, body in looks.items()}}


def _on_pages(place: Place) -> dict[str, bytes]:
    """Look at every page of the console, as an operator; then ask for a payload."""
    from console.visiting import Person, Shaped
    from oncebridge import Bridge
    from oncebridge.console.wiring import ConsoleApplication
    from service.asgi import Client

    bridge = Bridge.from_settings()
    application = ConsoleApplication(bridge)
    client = Client(Shaped(application))
    found: dict[str, bytes] = {}
    try:
        wrong = Person(client)
        found["console: a wrong key"] = wrong.login(place.secret("wrong console key")).body
        person = Person(client)
        person.login(place.secret("operator's key"))
        for path in ("/", "/deliveries", "/dead", "/requests", "/handlers", "/doctor", "/log"):
            found[f"console: {path}"] = person.get(path).body
        keys = sorted(set(re.findall(r"/console/dead/([^\"?/ ]+)", found["console: /dead"].decode())))
        few = [key for key in keys if "ob1" in key][:3]
        found["console: letters"] = b"".join(person.get(f"/dead/{key}").body for key in few)
        found["console: events"] = b"".join(person.get(f"/event/{key}").body for key in few)
        payloads = [person.submit(f"/dead/{letter}/payload").body for letter in _letters()]
        found[f"{ASKED}payloads on the console"] = b"".join(payloads)
    finally:
        client.close()
        application.close()
        bridge.close()
    return found


def _letters() -> list[str]:
    with _bridge() as bridge:
        return sorted({letter.key for letter in bridge.dead_letters.list()})


def _shown_to_who_asks() -> dict[str, bytes]:
    """Ask for every payload on the command line."""
    told = [_command("dead", "show", letter) for letter in _letters()]
    return {f"{ASKED}dead show": b"".join(told)}


def _command(*words: str) -> bytes:
    """Run a command in this process; return what it printed and its exit code."""
    from oncebridge.cli.app import run

    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told), mock.patch("sys.argv", ["", *words]):
        code = run()
    return f"{told.getvalue()}\nexit code {code}\n".encode()


def _out_of_reach(place: Place) -> dict[str, bytes]:
    """Use ledgers that are away, and those that refuse a password, each in a process of its own."""
    password = place.secret("ledger password")
    works = {name: partial(_at, place.apart(name), url) for name, url in refusing(place.url, password).items()}
    works["console"] = partial(_console_that_loses_its_ledger, place.apart("console"))
    children = {name: Child(partial(_as_text, work)) for name, work in works.items()}
    return {
        f"{name}: {what}": data for name, child in children.items() for what, data in _as_bytes(child.answer()).items()
    }


def refusing(url: str, password: str) -> dict[str, str]:
    """Return URLs with a password that nobody takes: where no server listens, and at the server that is there."""
    away = {
        "Redis away": f"redis://default:{password}@127.0.0.1:{NOBODY_LISTENS}/0",
        "Postgres away": f"postgresql://postgres:{password}@127.0.0.1:{NOBODY_LISTENS}/postgres",
    }
    scheme, _, rest = url.partition("://")
    place = rest.rpartition("@")[2]
    # The test's own Postgres asks this user alone for a password, and no Redis has made it.
    refused = {f"{scheme} refuses": f"{scheme}://guarded:{password}@{place}"}
    return away | (refused if kind_of(url) in ("redis", "postgres") else {})


def _at(place: Place, url: str) -> dict[str, bytes]:
    """Use one that does not work in every way that says so."""
    os.environ.update(place.environment | {"ONCEBRIDGE_LEDGER": url})
    log = io.StringIO()
    logging.basicConfig(stream=log, level=logging.DEBUG, force=True)
    capture = str(place.capture)
    commands = {
        "doctor": ("doctor",), "doctor, as JSON": ("doctor", "--json"), "top": ("top", "--once", "--json"),
        "process": ("process", capture, "--handler", "prove.private:_dying", "--log-level", "debug"),
        "process, as JSON": ("process", capture, "--handler", "prove.private:_dying", "--json"),
        "dead list": ("dead", "list", "--json"), "migrate": ("migrate",),
    }  # fmt: skip
    found = {name: _command(*words) for name, words in commands.items()}
    for name, told in found.items():
        if told.endswith(b"exit code 0\n"):
            raise RuntimeError(f"{name} did not notice that its ledger is out of reach")
    found["traceback"] = _as_raised()
    return {**found, "log": log.getvalue().encode()}


def _as_raised() -> bytes:
    """Let an error come out of a program as it does where nobody handles it."""
    try:
        with _bridge() as bridge:
            bridge.open()
    except OncebridgeError as error:
        return "".join(traceback.format_exception(error)).encode()
    raise RuntimeError("a ledger that is out of reach was opened")


def _console_that_loses_its_ledger(place: Place) -> dict[str, bytes]:
    """Log in; then the server ends, and the doctor and the first page have to say so."""
    from console.visiting import Person, Shaped
    from oncebridge import Bridge
    from oncebridge.console.wiring import ConsoleApplication
    from servers.valkey import running_valkey
    from service.asgi import Client

    os.environ.update(place.environment)
    with running_valkey(place.folder / "ends") as server:
        url = _with_password(server.url, place.secret("ledger password"))
        bridge = Bridge.from_settings(ledger=url)
        application = ConsoleApplication(bridge)
        client = Client(Shaped(application))
        try:
            person = Person(client)
            person.login(place.secret("operator's key"))
            before = person.get("/doctor")
            server.process.stop()
            after = [person.get("/doctor"), person.get("/")]
        finally:
            client.close()
            application.close()
            bridge.close()
    if before.body == after[0].body:
        raise RuntimeError("the doctor's page did not notice that its ledger is out of reach")
    return {"pages": b"\n".join(answer.body for answer in (before, *after))}


STEPS: Final = (_commands, _in_process, _out_of_reach)
