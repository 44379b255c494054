"""Threads that make the calls of a batch at the same time, in a way that an interrupt of the caller cannot break.

The library's pools and futures wait in Python code that holds locks: an exception of a signal's handler that strikes
there leaves a thread waiting for ever. Here only calls of C wait, and each batch has answers of its own.
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from oncebridge.threads import background, start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")


class _Batch(Generic[T, R]):
    """The calls of one batch, and their results so far."""

    def __init__(self, work: Callable[[T], R]) -> None:
        self._work = work
        self.answers: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()
        #: Whether the caller has stopped waiting for it: calls that have not begun are skipped.
        self.is_over = False

    def run(self, place: int, item: T) -> None:
        if not self.is_over:
            try:
                self.answers.put((place, self._work(item), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread, or it would wait for ever
                self.answers.put((place, None, error))


#: A call with its batch, its place there and its item; None ends the thread that gets it.
_Call: TypeAlias = "tuple[_Batch[Any, Any], int, Any] | None"


class CallThreads:
    """Threads that are started as they are needed, and kept."""

    def __init__(self, most: int, name: str) -> None:
        """Start none yet."""
        self._most = most
        self._name = name
        self._started = 0
        self._calls: SimpleQueue[_Call] = SimpleQueue()

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the result of each, in order; if any failed, raise the first error once all calls have ended."""
        batch = _Batch(work)
        try:
            for place, item in enumerate(items):
                self._calls.put((batch, place, item))
            ends = sorted((batch.answers.get() for _ in items), key=lambda end: end[0])
        finally:
            batch.is_over = True
        for _, _, error in ends:
            if error is not None:
                raise error
        return [answer for _, answer, _ in ends]  # type: ignore[misc]  # an answer where there is no error

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


def _work(calls: SimpleQueue[_Call]) -> None:
    while (call := calls.get()) is not None:
        batch, place, item = call
        batch.run(place, item)
        del call, batch, item  # the content of a batch is not kept until the next one
