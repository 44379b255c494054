"""Runs: one batch each, from its first claim to its last end, in the process that began it."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from oncebridge import forks
from oncebridge.errors import BatchOfParent, LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.engine.limits import BatchLimits


T = TypeVar("T")


class GivesBack(Protocol):
    """Holds claims of a run."""

    def give_back(self, *, patiently: bool) -> list[Any]:
        """Settle the ends that wait, release the rest, and return what was settled."""
        ...


class Run:
    """One batch: its limits, and the claims that it holds."""

    __slots__ = ("_generation", "completers", "is_over", "limits", "thread")

    def __init__(self, limits: BatchLimits) -> None:
        """Begin, in this process and this thread."""
        self.limits = limits
        self.completers: list[GivesBack] = []
        #: Whether it has broken off: then none of its claims is kept alive, whatever becomes of them.
        self.is_over = False
        self._generation = forks.generation()
        self.thread = threading.get_ident()

    def check(self) -> None:
        """Raise in a forked child: the batch is its parent's. Asked before each call of the ledger."""
        if forks.generation() != self._generation:
            raise BatchOfParent

    def break_off(self, error: BaseException) -> list[Any]:
        """Settle the ends that wait and release the rest, unless it is the parent's; return what was settled.

        If that fails, leases run out.
        """
        self.is_over = True
        if forks.generation() != self._generation:
            return []
        try:
            return self._give_back(patiently=isinstance(error, LedgerUnavailable))
        except BaseException:
            # An interrupt, most likely: everything that needs no waiting is done before it goes on.
            self._give_back(patiently=False)
            raise

    def _give_back(self, *, patiently: bool) -> list[Any]:
        settled = []
        for completer in self.completers.copy():
            settled += completer.give_back(patiently=patiently)
            self.completers.remove(completer)
        return settled


class Closed(LedgerUnavailable):
    """The bridge was closed before the batch began; nothing was acknowledged."""


class Runs:
    """The runs of one flow, and its end: nothing new begins, those that run give back what was not tried."""

    def __init__(
        self,
        is_within: Callable[[], bool],
        end: Callable[[], None],
        wait_seconds: float,
        report: Callable[[list[Any]], None],
    ) -> None:
        """Take what tells that the caller is a handler in another thread, what ends the flow, and how long to wait.

        `report` is given what was settled after a run broke off: no result can say it.
        """
        self._report = report
        self.is_closing = False
        self._is_within = is_within
        self._end = end
        self._wait_seconds = wait_seconds
        self._running: set[Run] = set()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_waited_for = False
        #: What is left to do at the end: whoever takes it does it.
        self._left: deque[Callable[[], None]] = deque()

    def run(self, limits: BatchLimits, work: Callable[[Run], T]) -> T:
        """Process a batch; if it breaks off, the ends that wait are settled and the rest is released."""
        run = Run(limits)
        try:
            self._running.add(run)
            if self.is_closing:
                raise Closed  # noqa: TRY301 - it is over like any other
            return work(run)
        except BaseException as error:
            run.is_over = True  # before anything can interrupt what follows: no claim is kept alive for nobody
            self._report(run.break_off(error))
            raise
        finally:
            self._running.discard(run)  # here, where nothing can interrupt it
            if self.is_closing:
                self._tell_of_end()

    def _tell_of_end(self) -> None:
        """Wake whoever waits for it; the last run of a flow that nobody waits for ends that."""
        self._bell.put(None)
        if not self._is_waited_for:
            self._end_if_idle()

    def close(self, then: Callable[[], None]) -> None:
        """Begin nothing more, wait for what runs, and end the flow.

        A handler cannot wait for its own end, and nobody waits longer than a handler may take: the last run ends it.
        """
        self._left.append(then)
        self.is_closing = True
        thread = threading.get_ident()
        if not (self._is_within() or any(run.thread == thread for run in self._running.copy())):
            self._is_waited_for = True
            try:
                self._wait()
            finally:
                self._is_waited_for = False
        self._end_if_idle()

    def _wait(self) -> None:
        with suppress(Empty):
            while self._running:
                self._bell.get(timeout=self._wait_seconds)

    def _end_if_idle(self) -> None:
        if not self._running and self._left:
            with suppress(IndexError):
                then = self._left.pop()
                self._end()
                then()
