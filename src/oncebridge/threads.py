"""Does in other threads what an interrupt of the caller must not break: no signal strikes there.

`Thread.start` and `logging` hold locks in Python code: an exception that strikes there leaves the lock locked, and
every thread that needs it waits for ever.
"""

from __future__ import annotations

import _thread
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WAIT_SECONDS: Final = 1.0


def background(target: Callable[..., None], *args: object, name: str) -> threading.Thread:
    """Make a thread that does not delay the end of the process; it is not started yet."""
    return threading.Thread(target=target, args=args, name=name, daemon=True)


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
