"""One event loop in a thread of its own, for `async def` handlers: callers may have a loop already."""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge import forks
from oncebridge.clock import Stop
from oncebridge.threads import background, start

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from oncebridge.engine.task import Lease

#: How long an interrupt waits for a cancelled handler; one that runs on keeps its claim until the lease ends.
CANCEL_SECONDS: Final = 5.0

#: A parent's loops, in its forked child: closing one there would break it in the parent.
_OF_PARENTS: Final[list[_Thread]] = []


class LoopThread:
    """Runs awaitables, and starts its thread with the first one."""

    def __init__(self, timeout_seconds: float) -> None:
        """Take how long each may take."""
        self._timeout_seconds = timeout_seconds
        self._thread: _Thread | None = None
        self._lock = threading.Lock()
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: the child uses none of it."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start over in the child: the thread does not exist there."""
        if in_child:
            self._lock = threading.Lock()
            if self._thread is not None:
                _OF_PARENTS.append(self._thread)
            self._thread = None

    def is_current(self) -> bool:
        """Return whether the caller runs in the loop."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def run(self, awaitable: Awaitable[Any], lease: Lease) -> None:
        """Wait for an awaitable, and raise what it raises; one that is interrupted is cancelled."""
        call = _Call(awaitable, self._timeout_seconds, lease)
        try:
            thread = self._started()
            thread.soon(call.begin)
            error = call.ended.get()
        except BaseException:
            self._cancel(call)
            raise
        if error is not None:
            raise error

    def _cancel(self, call: _Call) -> None:
        if self._thread is None:
            call.cancel()
            return
        self._thread.soon(call.cancel)
        with suppress(Empty):
            call.ended.get(timeout=CANCEL_SECONDS)

    def _started(self) -> _Thread:
        with self._lock:
            if self._thread is None:
                thread = _Thread()
                try:
                    start([background(thread.run, name="oncebridge-async")])
                    self._thread = thread
                except BaseException:  # it may run anyway
                    self._thread = None
                    thread.stop()
                    raise
            return self._thread

    def close(self) -> None:
        """End the loop, if one was needed."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()


class _Thread:
    """A thread with its loop, which is made and closed in it, where no interrupt strikes."""

    def __init__(self) -> None:
        self.ident: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_unwanted = False
        self._ready = Stop()
        self._ended = Stop()

    def run(self) -> None:
        import asyncio  # only where a handler is async: it is a tenth of a cold start

        generation = forks.generation()
        loop = self._loop = asyncio.new_event_loop()
        self.ident = threading.get_ident()
        self._ready.set()
        try:
            if not self._is_unwanted:
                loop.run_forever()
        finally:
            if forks.generation() == generation:
                loop.close()
                self._ended.set()

    def soon(self, act: Callable[[], None]) -> None:
        """Call this in the loop."""
        self._ready.wait()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(act)

    def stop(self) -> None:
        """End the loop once it exists, if it ever does."""
        self._is_unwanted = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._loop.stop)

    def end(self) -> None:
        """End the loop, and wait for that."""
        self.stop()
        self._ended.wait()


class _Escaped(msgspec.Struct, frozen=True):
    """An error that wants to end more than its handler."""

    error: BaseException


class _Call:
    """One awaitable on its way. All but the first happens in the loop."""

    def __init__(self, awaitable: Awaitable[Any], timeout_seconds: float, lease: Lease) -> None:
        self.ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._awaitable = awaitable
        self._timeout_seconds = timeout_seconds
        self._lease = lease
        self._task: asyncio.Task[Any] | None = None
        self._generation = forks.generation()

    def begin(self) -> None:
        import asyncio

        self._lease.runs_elsewhere = True
        self._task = asyncio.get_running_loop().create_task(asyncio.wait_for(self._caught(), self._timeout_seconds))
        self._task.add_done_callback(self._conclude)  # called even if the task is cancelled before its first step

    def cancel(self) -> None:
        if self._task is None:
            self._close()
            self.ended.put(None)
        else:
            self._task.cancel()

    async def _caught(self) -> Any:
        # Left alone, these two would end the loop itself, and callers waiting on it would wait for ever.
        try:
            return await self._awaitable
        except (SystemExit, KeyboardInterrupt) as error:
            return _Escaped(error)

    def _conclude(self, task: asyncio.Task[Any]) -> None:
        import asyncio

        if forks.generation() != self._generation:
            # The handler has forked, and this is the child: nobody waits here, and the loop is the parent's.
            raise SystemExit
        error: BaseException | None
        if task.cancelled():
            self._close()
            error = asyncio.CancelledError()
        else:
            error = task.exception()
            if error is None and isinstance(task.result(), _Escaped):
                error = task.result().error
        self._lease.runs_elsewhere = False
        self.ended.put(error)

    def _close(self) -> None:
        """End a coroutine that may not have begun; closing one that has ended is harmless."""
        close = getattr(self._awaitable, "close", None)
        if close is not None:
            close()
