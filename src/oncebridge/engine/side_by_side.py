"""Runs handlings in threads, side by side; an interrupt of the thread that waits for them does not break them.

The library's pools wait in Python code that holds locks: an exception that strikes there leaves a worker waiting for
ever, and everyone who waits for that worker too. Here only calls of C wait.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from oncebridge import forks
from oncebridge.threads import background, start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncebridge.engine.task import Lease


#: The prefix of the names of threads that run handlers.
THREADS: Final = "oncebridge-handler"


def is_one_of_ours() -> bool:
    """Return whether the caller runs in such a thread."""
    return threading.current_thread().name.startswith(THREADS)


class Handling:
    """The handling of some claims, in a thread that an interrupt of their batch does not end."""

    def __init__(self, leases: list[Lease], handle: Callable[[], object]) -> None:
        """Take whose claims these are, and the function that handles them."""
        self._leases = leases
        self._handle = handle

    def run(self) -> None:
        """Handle them; nobody else gives these claims back before that is over."""
        for lease in self._leases:
            lease.runs_elsewhere = True
        try:
            self._handle()
        finally:
            for lease in self._leases:
                lease.runs_elsewhere = False


def run_side_by_side(handlings: Sequence[Handling], threads: int) -> None:
    """Run handlings, this many at a time. After an error no more begin; it is raised when the running ones have ended.

    An interrupt of the waiting thread waits for them too; a second one does not.
    """
    workers = _Workers(handlings, min(threads, len(handlings)))
    try:
        workers.start()
        workers.wait_for_all()
    finally:
        workers.begin_no_more()
        workers.wait_for_running()
    if workers.errors:
        raise workers.errors[0]


class _Workers:
    """Threads that share handlings."""

    def __init__(self, handlings: Sequence[Handling], number: int) -> None:
        self.errors: list[BaseException] = []
        self._todo = deque(handlings)
        #: For each thread: whether it may hold a handling. Set before it takes one, so that none is in neither place.
        self._busy = [False] * number
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._generation = forks.generation()

    def start(self) -> None:
        start([background(self._work, at, name=f"{THREADS}-{at}") for at in range(len(self._busy))])

    def wait_for_all(self) -> None:
        while self._todo or any(self._busy):
            self._bell.get()
            if self.errors:
                self.begin_no_more()

    def begin_no_more(self) -> None:
        self._todo.clear()

    def wait_for_running(self) -> None:
        while any(self._busy):
            self._bell.get()

    def _work(self, at: int) -> None:
        goes_on = True
        while goes_on and forks.generation() == self._generation:  # a child that a handling has forked must end
            self._busy[at] = True
            goes_on = self._run_next()
            self._busy[at] = False
            self._bell.put(None)

    def _run_next(self) -> bool:
        try:
            handling = self._todo.popleft()
        except IndexError:
            return False
        try:
            handling.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            self.errors.append(error)
        return True
