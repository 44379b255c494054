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
    from oncebridge.engine.task import At


T = TypeVar("T")


class GivesBack(Protocol):
    """Holds claims of a run."""

    def give_back(self, *, patiently: bool) -> list[Any]:
        """Settle the pending ends, release the rest, and return the settled tasks."""
        ...


class Run:
    """One batch: its limits, and the claims that it holds."""

    __slots__ = ("_generation", "completers", "errors", "is_over", "limits", "thread")

    def __init__(self, limits: BatchLimits) -> None:
        """Begin, in this process and this thread."""
        self.limits = limits
        self.completers: list[GivesBack] = []
        #: What handlers have raised, by event and handler. Not in tasks: these are invisible to the garbage collector,
        #: and an exception refers to the frames of its callers, which refer to their tasks.
        self.errors: dict[At, BaseException] | None = None
        #: Whether it has broken off: then none of its claims is extended any more.
        self.is_over = False
        self._generation = forks.generation()
        self.thread = threading.get_ident()

    def failed(self, at: At, error: BaseException) -> None:
        """Note what a handler has raised."""
        if self.errors is None:
            self.errors = {}
        self.errors[at] = error

    def take_errors(self) -> dict[At, BaseException]:
        """Return what handlers have raised, and forget it: the run must not keep its own frames alive."""
        errors, self.errors = self.errors, None
        return errors or {}

    def check(self) -> None:
        """Raise in a forked child: the batch is its parent's. Checked before each call of the ledger."""
        if forks.generation() != self._generation:
            raise BatchOfParent

    def break_off(self, error: BaseException) -> list[Any]:
        """Settle the pending ends and release the rest, unless the run is the parent's; return the settled tasks.

        If that fails, leases run out.
        """
        self.is_over = True
        if forks.generation() != self._generation:
            return []
        try:
            return self._give_back(patiently=isinstance(error, LedgerUnavailable))
        except BaseException:
            # Most likely an interrupt: everything that needs no waiting is done before it goes on.
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
    """The runs of one flow, and its end: nothing new begins, and running batches give back untried claims."""

    def __init__(
        self,
        is_within: Callable[[], bool],
        end: Callable[[], None],
        wait_seconds: float,
        report: Callable[[list[Any]], None],
    ) -> None:
        """Take a check whether the caller is a handler in another thread, what ends the flow, and how long to wait.

        `report` gets the tasks that were settled after a run broke off: no result can carry them.
        """
        self._report = report
        self.is_closing = False
        self._is_within = is_within
        self._end = end
        self._wait_seconds = wait_seconds
        self._running: set[Run] = set()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_waited_for = False
        #: Callbacks left for the end; the caller that pops one runs it.
        self._left: deque[Callable[[], None]] = deque()

    def run(self, limits: BatchLimits, work: Callable[[Run], T]) -> T:
        """Process a batch; if it breaks off, the pending ends are settled and the rest is released."""
        run = Run(limits)
        try:
            self._running.add(run)
            if self.is_closing:
                raise Closed  # noqa: TRY301 - ends like any other run
            return work(run)
        except BaseException as error:
            run.is_over = True  # before anything can interrupt the next steps: no claim is extended for nothing
            self._report(run.break_off(error))
            raise
        finally:
            self._running.discard(run)  # here, where nothing can interrupt it
            if self.is_closing:
                self._notify_ended()

    def _notify_ended(self) -> None:
        """Wake a waiting `close`; if none waits, the last run ends the flow."""
        self._bell.put(None)
        if not self._is_waited_for:
            self._end_if_idle()

    def close(self, then: Callable[[], None]) -> None:
        """Begin nothing more, wait for running batches, and end the flow.

        A handler cannot wait for its own end, and `close` waits no longer than a handler may take; after that the
        last run ends the flow.
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
