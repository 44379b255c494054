"""Does in other threads what an interrupt of the caller must not break: no signal strikes there.

`Thread.start` and `logging` hold locks in Python code: an exception that strikes there leaves the lock locked, and
every thread that needs it waits for ever.
"""

from __future__ import annotations

import _thread
import threading
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

R = TypeVar("R")

WAIT_SECONDS: Final = 1.0


class _Here(threading.local):
    #: Whether this thread is one of ours, where nothing strikes.
    is_ours = False


_here = _Here()


def background(target: Callable[..., None], *args: object, name: str) -> threading.Thread:
    """Make a thread that does not delay the end of the process; it is not started yet."""
    return threading.Thread(target=_run_as_ours, args=(target, *args), name=name, daemon=True)


def _run_as_ours(target: Callable[..., None], *args: object) -> None:
    _here.is_ours = True
    target(*args)


def start(threads: Sequence[threading.Thread]) -> None:
    """Start threads; they are about to run when this returns."""
    _thread.start_new_thread(_start_each, (threads,))


def _start_each(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()


def run_apart(work: Callable[[], None]) -> None:
    """Run work to its end in another thread, in the caller's context, and wait for it unless interrupted.

    The wait has a limit, since the caller may hold a lock that the work needs.
    """
    ended = threading.Lock()
    ended.acquire()
    context = copy_context()

    def run() -> None:
        try:
            context.run(work)
        finally:
            ended.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # there are too many threads, or the interpreter is about to end
        work()
    else:
        ended.acquire(timeout=WAIT_SECONDS)


class Struck(Exception):
    """A thread of ours was struck all the same; it is not known what it had done."""


class Errand(Generic[R]):
    """A call that is made in a thread of ours, and always told the end of, at least once.

    CPython knows a new thread by the name of the one that starts it, until it runs: an exception that is meant for the
    other one may strike it, before it has begun or anything can catch that.
    """

    _is_told = True  # until it is made whole: an interrupt may strike meanwhile

    def __init__(self, work: Callable[[], R], tell: Callable[[R | None, BaseException | None], object]) -> None:
        """Take what to do, and whom to tell the result or the error."""
        self._work, self._tell = work, tell
        self._is_told = False

    def run(self) -> None:
        """Do it."""
        try:
            self._tell(self._work(), None)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._tell(None, error)
        self._is_told = True

    def __del__(self) -> None:
        """Tell the end if nobody else did."""
        if not self._is_told:
            self._tell(None, Struck("a thread of ours was struck by an exception that was meant for another"))


def call_apart(work: Callable[[], R]) -> R:
    """Return what work returns, from a thread where no interrupt strikes; an interrupted caller leaves it to its end.

    A library that holds locks in Python code, as urllib3 does, would leave one of them locked for ever.
    """
    if _here.is_ours:
        return work()
    answers: SimpleQueue[tuple[R | None, BaseException | None]] = SimpleQueue()
    within = partial(copy_context().run, work)
    try:
        # The thread alone holds the errand.
        _thread.start_new_thread(_run_as_ours, (Errand(within, lambda *end: answers.put(end)).run,))
    except RuntimeError:  # there are too many threads, or the interpreter is about to end
        return work()
    result, error = answers.get()
    if error is not None:
        try:
            raise error
        finally:
            del error  # it holds this frame, and what was called with it
    return result  # type: ignore[return-value]  # there is one where there is no error
