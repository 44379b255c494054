"""`oncebridge demo --console`: live traffic with the console beside it, a worker killed, a receiver that fails."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.bridge import Bridge
from oncebridge.cli.demo_road import Road
from oncebridge.cli.demo_worker import CRM, work_for_console
from oncebridge.cli.output import results, say
from oncebridge.clock import SystemClock
from oncebridge.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.simulation import Delivery

#: At first, until traffic has caught up with the time: about fifteen deliveries happen in a second.
PER_SECOND: Final = 60.0
BEGUN_MS_AGO: Final = 90_000
LEASE_SECONDS: Final = 2.0
#: Soon, so that it is seen; then seldom enough for the list of workers to stay short.
FIRST_KILL_US: Final = 45_000_000
KILL_EVERY_US: Final = 180_000_000
#: Conversations of one stretch of traffic, about an hour; the next one begins when it is over.
STRETCH: Final = 1000


def show_console(seed: int, port: int, seconds: float | None) -> None:
    """Run workers on endless traffic beside the console, until stopped or for this many seconds."""
    with tempfile.TemporaryDirectory(prefix="oncebridge-demo-") as directory:
        path = Path(directory) / "once.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute(CRM)
        url, clock = f"sqlite:///{path}", SystemClock()
        road = Road(
            _endless(seed, clock),
            url,
            LEASE_SECONDS,
            clock,
            per_second=PER_SECOND,
            work=work_for_console,
            is_due=lambda delivery: _has_happened(delivery, clock),
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with _console(url, port):
            say("a worker is killed now and then, and the receiver called warehouse fails for a part of each minute")
            _drive(road, clock, seconds)
    results.print(f"{road.received:,} deliveries, the books: {dict(road.columns)}", markup=False)


def _drive(road: Road, clock: SystemClock, seconds: float | None) -> None:
    number = count(1)
    for _ in range(2):
        road.start(f"worker {next(number)}")
    begun_us = clock.monotonic_us()
    kill_us = begun_us + FIRST_KILL_US
    try:
        while road.turn():
            now_us = clock.monotonic_us()
            if seconds is not None and now_us - begun_us > seconds * 1_000_000:
                break
            if now_us > kill_us:
                victim = next(worker for worker in road.workers if worker.alive)
                if road.kill_in_the_middle(victim):
                    say(f"kill -9 {victim.name} inside a handler; another takes over in {LEASE_SECONDS:g} s")
                    road.start(f"worker {next(number)}")
                    kill_us = now_us + KILL_EVERY_US
    except KeyboardInterrupt:
        say("ending: workers finish what they have in hand")
    road.close()


def _endless(seed: int, clock: SystemClock) -> Iterator[Delivery]:
    """Make up traffic of just now, for as long as somebody looks."""
    for stretch in count():
        yield from simulate(STRETCH, seed + stretch, start_ms=clock.now_us() // 1000 - BEGUN_MS_AGO)


class _Frame(msgspec.Struct):
    """Of an envelope only when it was sent."""

    time: datetime | None = None


def _has_happened(delivery: Delivery, clock: SystemClock) -> bool:
    """Return whether a delivery's second is over: nothing arrives before it happens. The unreadable come at once."""
    try:
        sent = msgspec.json.decode(delivery.raw, type=_Frame).time
    except msgspec.DecodeError:
        return True
    return sent is None or (sent.timestamp() + 1) * 1_000_000 <= clock.now_us()


@contextmanager
def _console(url: str, port: int) -> Iterator[None]:
    """Run the console as a process of its own, as one would beside workers that run elsewhere."""
    command = [sys.executable, "-m", "oncebridge", "console", "--ledger", url, "--port", str(port)]
    with Bridge(url):
        pass  # the console shows only a ledger that is there
    process = subprocess.Popen(command)  # noqa: S603 - ourselves
    try:
        yield
    finally:
        process.terminate()
        process.wait()
