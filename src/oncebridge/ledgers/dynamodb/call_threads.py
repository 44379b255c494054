"""Threads that make the calls of a batch at the same time, in a way that an interrupt of the caller cannot break.

The library's pools and futures wait in Python code that holds locks: an exception of a signal's handler that strikes
there leaves a thread waiting for ever. Here only calls of C wait, and each batch has answers of its own.
"""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from oncebridge.threads import Errand, background, start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")


class _Batch(Generic[T, R]):
    """The calls of one batch, and their ends so far."""

    def __init__(self, work: Callable[[T], R]) -> None:
        self._work = work
        self.ends: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()
        #: Whether the caller has stopped waiting for it: calls that have not begun are skipped.
        self.is_over = False

    def errand(self, place: int, item: T) -> Errand[R | None]:
        return Errand(lambda: None if self.is_over else self._work(item), partial(self._tell, place))

    def _tell(self, place: int, answer: R | None, error: BaseException | None) -> None:
        self.ends.put((place, answer, error))


class CallThreads:
    """Threads that are started as they are needed, and kept."""

    def __init__(self, most: int, name: str) -> None:
        """Start none yet."""
        self._most = most
        self._name = name
        self._started = 0
        #: None ends the thread that gets it.
        self._calls: SimpleQueue[Errand[Any] | None] = SimpleQueue()

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the result of each, in order; if any failed, raise the first error once all calls have ended."""
        batch = _Batch(work)
        ends: dict[int, tuple[R | None, BaseException | None]] = {}
        try:
            for place, item in enumerate(items):
                self._calls.put(batch.errand(place, item))
            while len(ends) < len(items):
                place, answer, error = batch.ends.get()
                ends.setdefault(place, (answer, error))
        finally:
            batch.is_over = True
        in_order = [ends[place] for place in range(len(items))]
        for _, error in in_order:
            if error is not None:
                raise error
        return [answer for answer, _ in in_order]  # type: ignore[misc]  # an answer where there is no error

    def make_ready(self, number: int) -> None:
        """Have threads for this many calls at once; one caller at a time."""
        wanted = min(number, self._most)
        if self._started < wanted:
            start([background(_work, self._calls, name=f"{self._name}-{at}") for at in range(self._started, wanted)])
            self._started = wanted  # last: an interrupt may leave a few too many, but never none

    def close(self) -> None:
        """End the threads, each after its present call."""
        for _ in range(self._started):
            self._calls.put(None)
        self._started = 0

    def __del__(self) -> None:
        """End the threads: no more calls can arrive."""
        self.close()


def _work(calls: SimpleQueue[Errand[Any] | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
        del call  # the content of a batch is not kept until the next one
