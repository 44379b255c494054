"""A ledger that is away for minutes, and then slow and faulty, while deliveries keep arriving at the service."""

from __future__ import annotations

import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from prove import exact, measure, ways
from prove.arriving import Arriving, Pace
from prove.attack import judge_round
from prove.handled import environment_for
from prove.outcome import Options, Outcome
from prove.places import kind_of, place_of, prepare
from prove.round import Told, in_child
from prove.shrink import readable
from prove.stream import Stream, make_stream
from prove.worker import Conditions

if TYPE_CHECKING:
    from oncebridge import Bridge

PER_SECOND: Final = 200
#: DynamoDB's emulator takes no more, and no large requests: each of their events has four of its own.
PER_SECOND_DYNAMODB: Final = 5
BATCH_DYNAMODB: Final = 5
CALM_SECONDS_MAX: Final = 10.0
#: As long as it was away, it falters afterwards, times this.
FALTER_SHARE: Final = 0.25
FALTER_SECONDS: Final = 0.05
ERROR_SHARE: Final = 0.3
#: Nothing at all acknowledged for so long, once it is back, is stuck; and how much time there is for that at most.
DRAIN_SECONDS: Final = 90.0
DRAIN_SHARE: Final = 3.0
#: Requests of a sender at a time: with many more, a slow machine would answer most of them too late.
UNDER_WAY: Final = 16
#: What the service's processes may have more than before: each of the two workers may hold bodies of 64 MiB.
MORE_MEMORY_MAX: Final = 2 * 64 * 1024 * 1024
LEASE_SECONDS: Final = 5.0
DELIVERIES_PER_EVENT: Final = 1.8
LOOK_SECONDS: Final = 1.0


class Ledger(Protocol):
    """A ledger that can be taken away."""

    url: str

    def refuse(self) -> None:
        """Let every call fail at once."""

    def hang(self) -> None:
        """Let no call be answered."""

    def falter(self) -> None:
        """Let calls be slow, and some of them fail."""

    def come_back(self) -> None:
        """Be there again."""


class Server:
    """A server behind a network of this machine."""

    def __init__(self, url: str, proxy: Any, dice: random.Random) -> None:
        """Take its address, and what stands before it."""
        self.url, self._proxy, self._dice = url, proxy, dice

    def refuse(self) -> None:
        """Reset every connection, and each new one."""
        self._proxy.refuse()

    def hang(self) -> None:
        """Swallow every byte."""
        self._proxy.swallow()

    def falter(self) -> None:
        """Keep replies back, and lose some."""
        self._proxy.falter(FALTER_SECONDS, ERROR_SHARE, self._dice)

    def come_back(self) -> None:
        """Pass everything on."""
        self._proxy.heal()


class File:
    """SQLite's file: its folder is moved away, or another process has it locked."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        """Take where it is."""
        self.url = f"sqlite:///{path}"
        self._path, self._dice = path, dice
        self._away = path.parent.with_name("moved-away")
        self._lock: sqlite3.Connection | None = None
        self._calm = threading.Event()
        self._faltering: threading.Thread | None = None

    def refuse(self) -> None:
        """Move its folder away, so that no new file can be made either."""
        self._path.parent.rename(self._away)

    def hang(self) -> None:
        """Lock it for writing."""
        self._put_back()
        self._lock = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
        self._lock.execute("BEGIN EXCLUSIVE")

    def falter(self) -> None:
        """Have it locked half of the time, and its folder away for as many moments as calls are to fail."""
        self._unlock()
        self._calm.clear()
        self._faltering = threading.Thread(target=self._falter)
        self._faltering.start()

    def _falter(self) -> None:
        while not self._calm.is_set():
            if self._dice.random() < ERROR_SHARE:
                self.refuse()
                self._calm.wait(0.3)
                self._put_back()
            else:
                self.hang()
                self._calm.wait(0.3)
                self._unlock()
            self._calm.wait(0.3)

    def come_back(self) -> None:
        """Put everything back."""
        self._calm.set()
        if self._faltering is not None:
            self._faltering.join()
            self._faltering = None
        self._unlock()
        self._put_back()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.execute("ROLLBACK")
            self._lock.close()
            self._lock = None

    def _put_back(self) -> None:
        if self._away.exists():
            self._away.rename(self._path.parent)


def outage(options: Options) -> Outcome:
    """Take the ledger away for as many seconds as were asked for, and see what was acknowledged, kept and held."""
    return attacked(options)


def attacked(options: Options, spoil: Callable[[Bridge], None] | None = None) -> Outcome:
    """Do it to the program, or to one that is spoiled."""
    begun = time.monotonic()
    room = (options.seconds - DRAIN_SECONDS) / (1 + FALTER_SHARE + DRAIN_SHARE)
    away_seconds = min(float(options.amount), room)
    if away_seconds <= 0:
        return Outcome(notes=["ended early: there was no time for an outage"])
    with _removable(options) as ledger:
        in_child(lambda: prepare(ledger.url))
        outcome = _attack(options, ledger, away_seconds, spoil)
    if away_seconds < options.amount:
        outcome.notes.append(f"ended early: {away_seconds:.0f} of {options.amount} seconds in the time that it had")
    if options.progress:
        options.progress(outcome.tried)
    outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome


@contextmanager
def _removable(options: Options) -> Iterator[Ledger]:
    dice = random.Random(f"{options.seed} outage")
    if kind_of(options.ledger) == "sqlite":
        path = Path(options.ledger.partition("///")[2] or options.folder / "file" / "once.db")
        path.parent.mkdir(exist_ok=True)
        yield File(path, dice)
        return
    from servers.proxy import running_proxy

    with place_of(options.ledger, options.folder) as url:
        (port,) = re.findall(r":(\d+)(?=/|$)", url)
        with running_proxy(int(port)) as proxy:
            yield Server(url.replace(f":{port}", f":{proxy.port}"), proxy, dice)


class Memory(AbstractContextManager["Memory"]):
    """The most memory that processes had, from one mark to the next."""

    def __init__(self, command: str) -> None:
        """Take by which command they are known."""
        self._command, self._peak, self._over = command, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peaks: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._over.set()
        self._thread.join()

    def mark(self, name: str) -> None:
        """Name what was the most since the last mark."""
        self._look()
        self.peaks[name], self._peak = self._peak, 0

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        self._peak = max(self._peak, measure.read(measure.running(self._command)).memory_bytes)


@dataclass
class Course:
    """How it went, by the clock of the sender."""

    arriving: Arriving
    memory: Memory
    away_seconds: float
    gone: float = 0.0
    #: Of the time without a ledger: deliveries that arrived, and that were sent and acknowledged.
    piled: int = 0
    acknowledged: int = 0
    is_drained: bool = False
    drained_seconds: float = 0.0

    def run(self, ledger: Ledger, calm_seconds: float) -> None:
        """Let it be there, away, silent, slow, and there again."""
        arriving = self.arriving
        time.sleep(calm_seconds)
        self.memory.mark("before")
        ledger.refuse()
        self.gone, before = time.monotonic(), arriving.arrived
        time.sleep(self.away_seconds / 2)
        ledger.hang()
        time.sleep(self.away_seconds / 2)
        self.acknowledged = arriving.acknowledged_within(self.gone, time.monotonic())
        self.piled = arriving.arrived - before
        self.memory.mark("away")
        ledger.falter()
        time.sleep(self.away_seconds * FALTER_SHARE)
        ledger.come_back()
        back = time.monotonic()
        give_up, before = back + DRAIN_SECONDS + max(600.0, DRAIN_SHARE * self.away_seconds), -1
        while not self.is_drained and arriving.acknowledged > before and time.monotonic() < give_up:
            before = arriving.acknowledged
            self.is_drained = arriving.wait(DRAIN_SECONDS)
        self.drained_seconds = time.monotonic() - back
        self.memory.mark("drained")

    @property
    def broken(self) -> dict[str, int]:
        """Say what was promised of the time without a ledger, and broken."""
        more = self.memory.peaks["away"] - self.memory.peaks["before"]
        counts = {
            "acknowledged while the ledger was away": self.acknowledged,
            "memory not bounded": int(more > MORE_MEMORY_MAX),
        }
        return {what: number for what, number in counts.items() if number}

    @property
    def figures(self) -> dict[str, float]:
        """Return what was counted."""
        peaks = {name: round(peak / 1024 / 1024, 1) for name, peak in self.memory.peaks.items()}
        return {
            "deliveries": self.arriving.arrived,
            "deliveries while it was away": self.piled,
            "requests": len(self.arriving.posted),
            "acknowledged while it was away": self.acknowledged,
            "seconds until all was done": round(self.drained_seconds, 1),
            "MB before": peaks["before"],
            "MB at most while it was away": peaks["away"],
            "MB at most afterwards": peaks["drained"],
        }

    def told(self) -> list[str]:
        """Tell of the requests that were acknowledged after the ledger had gone, the first few."""
        return [
            f"{one.sent - self.gone:9.3f} s  {one.deliveries} deliveries sent, and acknowledged after "
            f"{one.answered - one.sent:.3f} s"
            for one in self.arriving.posted
            if one.is_acknowledged and one.sent > self.gone
        ][:10]


def _attack(options: Options, ledger: Ledger, away_seconds: float, spoil: Callable[[Bridge], None] | None) -> Outcome:
    kind = kind_of(options.ledger)
    calm_seconds = min(CALM_SECONDS_MAX, 1 + away_seconds / 5)
    name = f"{options.seed}-outage-{time.monotonic_ns():x}"
    pace = Pace(PER_SECOND, again_seconds_max=min(30.0, 1 + away_seconds / 10), under_way_max=UNDER_WAY)
    if kind == "dynamodb":
        pace = replace(pace, per_second=PER_SECOND_DYNAMODB, batch_max=BATCH_DYNAMODB, under_way_max=8)
    stream = _stream(options.seed, name, pace.per_second * (calm_seconds + away_seconds * (1 + FALTER_SHARE)))
    conditions = Conditions(
        url=ledger.url, name=name, notes=options.folder / "outage.notes", lease_seconds=LEASE_SECONDS,
        exact=kind in exact.LEDGERS, spoil=spoil,
    )  # fmt: skip
    variables = environment_for(conditions, (), options.folder / "faults")
    told = Told()
    with (
        ways.serving(variables, options.folder / "serve.log", "--handler", ways.PROGRAM) as url,
        Memory("-m oncebridge serve") as memory,
        _back_at_end(ledger),
        Arriving(url, stream, pace) as arriving,
    ):
        course = Course(arriving, memory, away_seconds)
        course.run(ledger, calm_seconds)
    told.stuck = [] if course.is_drained else arriving.stuck or [-1]
    judgement, history = judge_round(conditions, stream, told)
    outcome = Outcome(
        tried=int(away_seconds),
        lost=len(judgement.lost),
        doubled=len(judgement.doubled_exactly) + len(judgement.doubled_keyed),
        doubled_plain=judgement.doubled_plain,
        broken=judgement.broken | course.broken,
        figures=course.figures,
    )
    outcome.notes.append(f"{options.ledger}: {', '.join(f'{what} {n:,}' for what, n in course.figures.items())}")
    if outcome.broken:
        outcome.history = [f"seed {options.seed}: {outcome.broken}", *course.told(), *readable(history)[-20:]]
    return outcome


def _stream(seed: int, name: str, deliveries: float) -> Stream:
    events = max(25, deliveries / DELIVERIES_PER_EVENT)
    return make_stream(seed, name, facts=int(events * 0.4), entities=int(events * 0.12))


@contextmanager
def _back_at_end(ledger: Ledger) -> Iterator[None]:
    try:
        yield
    finally:
        ledger.come_back()
