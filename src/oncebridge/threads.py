"""Does in other threads what an interrupt of the caller must not break: no signal strikes there.

`Thread.start` and `logging` hold locks in Python code: an exception that strikes there leaves the lock locked, and
every thread that needs it waits for ever.
"""

from __future__ import annotations

import _thread
import threading
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar

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


def call_apart(work: Callable[[], R]) -> R:
    """Return what work returns, from a thread where no interrupt strikes; an interrupted caller leaves it to its end.

    A library that holds locks in Python code, as urllib3 does, would leave one of them locked for ever.
    """
    if _here.is_ours:
        return work()
    answers: SimpleQueue[tuple[R | None, BaseException | None]] = SimpleQueue()
    context = copy_context()

    def answer() -> None:
        try:
            answers.put((context.run(work), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller, who would wait for ever
            answers.put((None, error))

    try:
        _thread.start_new_thread(_run_as_ours, (answer,))
    except RuntimeError:  # there are too many threads, or the interpreter is about to end
        return work()
    result, error = answers.get()
    if error is not None:
        try:
            raise error
        finally:
            del error  # it holds this frame, and what was called with it
    return result  # type: ignore[return-value]  # there is one where there is no error
