"""One round: a source that redelivers until it is acknowledged, workers that something befalls, and what came of it."""

from __future__ import annotations

import os
import random
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn

from prove.faults import Fault
from prove.forked import fork
from prove.stream import Stream
from prove.worker import Conditions, live, open_before_fork, receive, send

BATCH_MAX: Final = 12
#: Where anything works, something is acknowledged within so long, with leases of a fraction of a second.
PATIENCE_SECONDS: Final = 30.0
#: Until a delivery that was not acknowledged comes again.
AGAIN_SECONDS: Final = 0.03

Start = Callable[[Conditions, Fault | None, socket.socket], NoReturn]


@dataclass
class Told:
    """What the workers themselves said; nothing of it is taken as proof."""

    columns: Counter[str] = field(default_factory=Counter)
    unbalanced: int = 0
    troubles: Counter[str] = field(default_factory=Counter)
    #: Ended by a signal, or by an error of their own.
    killed: int = 0
    stopped: int = 0
    failed: int = 0
    lives: int = 0
    #: Deliveries that were never acknowledged.
    stuck: list[int] = field(default_factory=list)


@dataclass
class _Life:
    pid: int
    socket: socket.socket
    dice: random.Random
    #: Positions of the deliveries that it has, empty while it waits.
    batch: list[int] = field(default_factory=list)
    stopped_at: float | None = None
    #: How its process ended, where that was seen before its socket told so.
    status: int | None = None


class Round:
    """Gives a stream to workers until every delivery of it is acknowledged."""

    def __init__(
        self,
        conditions: Conditions,
        stream: Stream,
        faults: Sequence[Fault],
        seed: int,
        workers: int,
        *,
        spread_seconds: float = 0.0,
        patience_seconds: float = PATIENCE_SECONDS,
        start: Start = live,
        between: Callable[[], None] | None = None,
    ) -> None:
        """Take what is to happen, for how long deliveries go on to arrive and how long all may take beyond that.

        A forked process begins to work with `start`. `between` is called once, when half of it is over and no worker is
        at work.
        """
        self._start = start
        self._patience_seconds, self._between = patience_seconds, between
        self._conditions, self._stream = conditions, stream
        self._faults, self._seed, self._workers = list(faults), seed, workers
        self._selector = selectors.DefaultSelector()
        self._lives: dict[int, _Life] = {}
        self._patience = patience_seconds + spread_seconds + len(faults)
        self._give_up = 0.0
        begun, each = time.monotonic(), spread_seconds / len(stream.arrivals)
        self._due: list[tuple[float, int]] = [(begun + at * each, at) for at in range(len(stream.arrivals))]
        #: As with a queue, whoever acknowledges a delivery deletes it, also where somebody else has it by now.
        self._acknowledged: set[int] = set()
        self.told = Told()

    def run(self) -> Told:
        """Run it to its end."""
        self._give_up, lives_max = time.monotonic() + self._patience, 3 * len(self._faults) + 20
        if self._conditions.inherit:
            self._start = partial(live, inherited=open_before_fork(self._conditions))
        try:
            while (self._due or self._is_any_busy()) and time.monotonic() < self._give_up:
                if self.told.lives > lives_max:
                    raise RuntimeError("workers die without a fault; their errors are above")
                self._start_workers()
                self._hand_out()
                self._look_after_the_stopped()
                for key, _ in self._selector.select(0.01):
                    self._hear(key.data)
        finally:
            self._end()
        return self.told

    def _is_any_busy(self) -> bool:
        return any(life.batch for life in self._lives.values())

    def _start_workers(self) -> None:
        while len(self._lives) < self._workers:
            fault = self._faults.pop(0) if self._faults else None
            ours, theirs = socket.socketpair()
            pid = fork()
            if not pid:
                ours.close()
                for life in self._lives.values():
                    life.socket.close()
                self._start(self._conditions, fault, theirs)
            theirs.close()
            self.told.lives += 1
            life = _Life(pid, ours, random.Random(f"{self._seed} {self.told.lives}"))
            self._lives[pid] = life
            self._selector.register(ours, selectors.EVENT_READ, life)

    def _hand_out(self) -> None:
        if self._between is not None and len(self._due) <= len(self._stream.arrivals) // 2:
            if self._is_any_busy():
                return
            self._between()
            self._between = None
        now = time.monotonic()
        for life in self._lives.values():
            if life.batch or life.stopped_at:
                continue
            due = [at for when, at in self._due if when <= now][: life.dice.randint(1, BATCH_MAX)]
            if not due:
                return
            taken = set(due)
            self._due = [(when, at) for when, at in self._due if at not in taken]
            life.batch = due
            with suppress(OSError):  # it died meanwhile, which is heard of next
                send(life.socket, [self._stream.arrivals[at][1].decode() for at in due])

    def _look_after_the_stopped(self) -> None:
        now = time.monotonic()
        for life in self._lives.values():
            if life.status is not None:
                continue
            if life.stopped_at is None:
                pid, status = os.waitpid(life.pid, os.WNOHANG | os.WUNTRACED)
                if pid and not os.WIFSTOPPED(status):
                    life.status = status
                elif pid:
                    life.stopped_at = now
                    self.told.stopped += 1
                    # Everybody else may have what it holds: that is what the lease is for.
                    self._come_again(life.batch, now)
            elif now - life.stopped_at > 1.5 * self._conditions.lease_seconds:
                os.kill(life.pid, signal.SIGCONT)
                life.stopped_at = None

    def _hear(self, life: _Life) -> None:
        answer = receive(life.socket)
        if answer is None:
            self._bury(life)
            return
        self.told.columns.update(answer["columns"])
        self.told.unbalanced += not answer.get("balanced", True)
        if trouble := answer.get("trouble"):
            self.told.troubles[trouble] += 1
        unacknowledged = [at for at, ok in zip(life.batch, answer["acknowledged"], strict=True) if not ok]
        acknowledged = set(life.batch).difference(unacknowledged)
        if acknowledged:  # slow is not stuck
            self._give_up = max(self._give_up, time.monotonic() + self._patience_seconds)
        self._acknowledged |= acknowledged
        self._due = [(when, at) for when, at in self._due if at not in acknowledged]
        life.batch = []
        self._come_again(unacknowledged, time.monotonic() + AGAIN_SECONDS)

    def _come_again(self, batch: Sequence[int], when: float) -> None:
        known = self._acknowledged.union(at for _, at in self._due)
        self._due += [(when, at) for at in batch if at not in known]

    def _bury(self, life: _Life) -> None:
        self._selector.unregister(life.socket)
        life.socket.close()
        del self._lives[life.pid]
        self._come_again(life.batch, time.monotonic())
        self._ended(life)

    def _ended(self, life: _Life) -> None:
        status = os.waitpid(life.pid, 0)[1] if life.status is None else life.status
        self.told.killed += os.WIFSIGNALED(status)
        self.told.failed += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0

    def _end(self) -> None:
        """Let the stopped go on, for what they do late must be seen; then end everybody."""
        left = {at for _, at in self._due}.union(*(life.batch for life in self._lives.values()))
        self.told.stuck = sorted({self._stream.arrivals[at][0] for at in left - self._acknowledged})
        for life in self._lives.values():
            if life.stopped_at is not None:
                os.kill(life.pid, signal.SIGCONT)
            life.socket.shutdown(socket.SHUT_WR)
        for life in list(self._lives.values()):
            life.socket.settimeout(self._patience_seconds)
            try:
                while receive(life.socket) is not None:
                    pass
            except TimeoutError:
                os.kill(life.pid, signal.SIGKILL)
            life.batch = []
            self._bury(life)
        self._selector.close()


class Child:
    """A process of its own, which does one thing and shares nothing with the next."""

    def __init__(self, work: Callable[[], Any]) -> None:
        """Begin the work."""
        self._ours, theirs = socket.socketpair()
        self.pid = fork()
        if not self.pid:
            self._ours.close()
            try:
                send(theirs, [work()])
            except BaseException:  # noqa: BLE001 - a forked process must never return into what its parent was doing
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(0)
        theirs.close()

    def fileno(self) -> int:
        """Return where its answer comes, to wait for one of several."""
        return self._ours.fileno()

    def kill(self) -> None:
        """End it, whatever it does."""
        self._ours.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def answer(self) -> Any:
        """Wait for what came of it, which JSON can hold."""
        with self._ours:
            answer = receive(self._ours)
        os.waitpid(self.pid, 0)
        if answer is None:
            raise RuntimeError("a process that looks at the outcome died; its error is above")
        return answer[0]


def in_child(work: Callable[[], Any]) -> Any:
    """Do something in a process of its own; return what JSON can hold."""
    return Child(work).answer()


def each_in_child(works: Iterable[Callable[[], Any]], at_once: int) -> Iterator[Any]:
    """Do things in processes of their own, so many at once; yield what comes of each, whichever ends first.

    The next one is asked for when there is room for it, so it can depend on what came of those before.
    """
    waiting, running = iter(works), list[Child]()
    try:
        while True:
            while len(running) < at_once and (work := next(waiting, None)) is not None:
                running.append(Child(work))
            if not running:
                return
            ready, _, _ = select.select(running, [], [])
            for child in ready:
                running.remove(child)
                yield child.answer()
    finally:
        for child in running:
            child.kill()
