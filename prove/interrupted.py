"""A worker whose batches are struck by exceptions, in a process of its own.

They strike as a signal's handler does, at a given place or when a timer ends, or as `PyThreadState_SetAsyncExc` does in
a thread. Every other batch is left alone: nothing that was begun before may get in its way.
"""

from __future__ import annotations

import _thread
import ctypes
import faulthandler
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from oncebridge import Bridge
from oncebridge.errors import LedgerUnavailable
from prove.round import AGAIN_SECONDS
from prove.stream import GROUP, Stream
from prove.worker import Conditions, Notes, Strikes, make_bridge

#: What was not acknowledged is delivered again for so long.
DRAIN_SECONDS: Final = 60.0
#: Batches that are left alone before anything strikes: from the last of them the usual time is taken.
CALM: Final = 3
#: A timer may end a little after the batch that it is for.
BEYOND: Final = 1.1


class Interrupt(BaseException):
    """Goes through everything."""


class TimeLimit(Exception):
    """An ordinary error, as Celery's soft time limit is."""


Error = type[BaseException]
ERRORS: Final[tuple[Error, ...]] = (KeyboardInterrupt, TimeLimit, Interrupt)
#: Delivers a batch; returns what was not acknowledged.
Deliver = Callable[[], list[int]]
#: Calls this, and lets an error strike it meanwhile.
Way = Callable[[Deliver, Error], list[int]]


@dataclass
class Draw:
    """What decides where a worker is struck."""

    dice: random.Random
    #: Places are struck in order, from this one on.
    first: int
    #: How long a batch takes that nothing strikes.
    usual_seconds: float = 0.0

    def seconds(self) -> float:
        """Draw when to strike."""
        return max(self.dice.uniform(0, BEYOND * self.usual_seconds), 1e-6)


def live(conditions: Conditions, stream: Stream, way: str, draw: Draw) -> dict[str, Any]:
    """Take a round of groups to its end, and strike every other batch."""
    faulthandler.enable()
    sys.unraisablehook = lambda _: None  # where an exception cannot go on, Python prints it
    notes = Notes(conditions.notes)
    with closing(make_bridge(conditions, Strikes(None, notes), notes)) as bridge:
        worker = Worker(bridge, stream)
        groups = iter([range(at, at + GROUP) for at in range(0, len(stream.arrivals), GROUP)])
        for group in islice(groups, CALM):
            draw.usual_seconds = worker.calm(list(group))
        strikes = WAYS[way](worker, next(groups), draw)
        for number, group in enumerate(groups):
            strike = next(strikes, None)
            if strike is None:
                worker.left += group
                continue
            notes.write("fault", f"interrupt_by_{way}")
            worker.strike(list(group), strike, ERRORS[number % len(ERRORS)])
            worker.go_on()
        until = time.monotonic() + DRAIN_SECONDS
        while worker.left and time.monotonic() < until:
            worker.go_on()
    return worker.told()


class Worker:
    """A bridge, and what it has not acknowledged yet."""

    def __init__(self, bridge: Bridge, stream: Stream) -> None:
        """Begin with nothing."""
        self.left: deque[int] = deque()
        #: Where the batch that was looked at could be struck.
        self.places = 0
        self._bridge, self._stream = bridge, stream
        self._columns: Counter[str] = Counter()
        self._troubles: Counter[str] = Counter()
        self._unbalanced = 0

    def deliver(self, batch: Sequence[int]) -> list[int]:
        """Deliver a batch; return what was not acknowledged."""
        try:
            results = self._bridge.process_many([self._stream.arrivals[at][1] for at in batch])
        except LedgerUnavailable as error:
            self._troubles[str(error)] += 1
            return list(batch)
        self._columns.update(result.column for result in results)
        return [at for at, result in zip(batch, results, strict=True) if not result.acknowledged]

    def calm(self, batch: Sequence[int]) -> float:
        """Deliver a batch that nothing strikes; return how long that took."""
        begun = time.monotonic()
        self.left += self.deliver(batch)
        return time.monotonic() - begun

    def strike(self, batch: Sequence[int], way: Way, error: Error) -> None:
        """Deliver a batch that is struck; if that goes through, nothing of it is acknowledged."""
        left = list(batch)
        with suppress(*ERRORS):
            left = way(lambda: self.deliver(batch), error)
        self.left += left
        self._unbalanced += not self._bridge.books.as_dict()["balanced"]

    def go_on(self) -> None:
        """Deliver some of what was not acknowledged once more."""
        batch = [self.left.popleft() for _ in range(min(GROUP, len(self.left)))]
        left = self.deliver(batch)
        self.left += left
        if left and len(left) == len(batch):
            time.sleep(AGAIN_SECONDS)  # until leases end

    def told(self) -> dict[str, Any]:
        """Say what came of it."""
        stuck = sorted({self._stream.arrivals[at][0] for at in self.left})
        return {
            "columns": self._columns, "troubles": self._troubles, "unbalanced": self._unbalanced, "stuck": stuck,
            "places": self.places,
        }  # fmt: skip


# --- ways ------------------------------------------------------------------------------------------------


def _at_places(worker: Worker, group: Sequence[int], draw: Draw) -> Iterator[Way]:
    """Strike at each place of a batch where a signal can, in order; the group is for finding them."""
    from interrupts import points, strike

    found = points(lambda: worker.calm(group))
    worker.places = len(found)

    def at(point: Any) -> Way:
        def struck(deliver: Deliver, error: Error) -> list[int]:
            with strike(point, error()):
                return deliver()

        return struck

    yield from map(at, found[draw.first :])


def _by_alarm(worker: Worker, group: Sequence[int], draw: Draw) -> Iterator[Way]:
    """Strike when a timer ends."""
    worker.calm(group)

    def struck(deliver: Deliver, error: Error) -> list[int]:
        with _alarm(error, draw.seconds()):
            return deliver()

    while True:
        yield struck


@contextmanager
def _alarm(error: Error, seconds: float) -> Iterator[None]:
    armed = True

    def ring(*_: object) -> None:
        if armed:
            raise error

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def _in_thread(worker: Worker, group: Sequence[int], draw: Draw) -> Iterator[Way]:
    """Strike a thread from another one."""
    worker.calm(group)

    def struck(deliver: Deliver, error: Error) -> list[int]:
        return _from_outside(deliver, error, draw.seconds())

    while True:
        yield struck


def _from_outside(deliver: Deliver, error: Error, seconds: float) -> list[int]:
    """Run it in a thread that is none of `threading`, whose own locks would be struck; raise if it was struck there."""
    answers: list[list[int]] = []
    ended = _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            answers.append(deliver())
        finally:
            ended.release()

    thread = _thread.start_new_thread(_quietly, (run,))
    if not ended.acquire(timeout=seconds):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
        # It may be struck before it says that it ended.
        while not ended.acquire(timeout=AGAIN_SECONDS) and thread in sys._current_frames():  # noqa: SLF001 - the only list of all threads
            pass
    if not answers:
        raise error
    return answers[0]


def _quietly(run: Callable[[], None]) -> None:
    with suppress(*ERRORS):
        run()


WAYS: Final[dict[str, Callable[[Worker, Sequence[int], Draw], Iterator[Way]]]] = {
    "place": _at_places,
    "alarm": _by_alarm,
    "thread": _in_thread,
}
