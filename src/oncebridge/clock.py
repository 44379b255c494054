"""The only place that reads time; everything else gets a clock."""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol


class Stop(threading.Event):
    """An event that may be set in a signal's handler, and whose waits may be interrupted at any point.

    The library's own holds a lock in Python code: an exception that strikes there leaves it locked for ever. Here
    waiting means acquiring the lock, and only calls of C touch it.
    """

    def __init__(self) -> None:
        """Begin not set."""
        super().__init__()
        self._is_set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Wake everyone who waits."""
        self._is_set = True
        try:
            self._gate.release()
        except RuntimeError:
            return  # already set

    def clear(self) -> None:
        """Make waits block again."""
        self._is_set = False
        self._gate.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for this many seconds; return whether it is set."""
        if self._is_set:
            return True
        try:
            self._gate.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX))
        finally:
            if self._is_set:  # pass it on to the next waiting thread
                try:  # noqa: SIM105 - no Python code that could be interrupted
                    self._gate.release()
                except RuntimeError:
                    pass
        return self._is_set


#: For waits that no stop may end: it is never set.
NEVER: Final = Stop()


class Clock(Protocol):
    """Reads the time, and waits."""

    def now_us(self) -> int:
        """Return microseconds since 1970, UTC: comparable between machines, but it may jump."""
        ...

    def monotonic_us(self) -> int:
        """Return microseconds that never go back: comparable only within this process."""
        ...

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait until `stop` is set or `seconds` have passed; return whether it is set."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        """Return the wall clock."""
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        """Return the monotonic clock."""
        return time.monotonic_ns() // 1000

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait on the event itself, so that a stop is noticed at once."""
        return stop.wait(seconds)
