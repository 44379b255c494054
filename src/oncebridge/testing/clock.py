"""Clocks for tests: one that is moved by hand, one that is wrong."""

from __future__ import annotations

import threading
from typing import Final

from oncebridge.clock import Clock
from oncebridge.engine.side_by_side import THREADS

START_US: Final = 1_767_225_600_000_000  # 2026-01-01
_LOOK_SECONDS: Final = 0.001


class ManualClock:
    """Stands still until it is moved; a thread that waits moves it instead of sleeping.

    Background threads (daemons that run no handlers, such as the one that keeps claims alive) have no say over time:
    they wait until another thread has moved it far enough. Otherwise one of them alone would make years pass.
    """

    def __init__(self, now_us: int = START_US) -> None:
        """Start at this moment, by both the wall clock and the monotonic one."""
        self._now_us = now_us
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Show the time."""
        return f"<ManualClock {self._now_us}>"

    def now_us(self) -> int:
        """Return the time it was moved to."""
        with self._lock:
            return self._now_us

    def monotonic_us(self) -> int:
        """Return the same time: it is only ever moved forward."""
        return self.now_us()

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        if seconds < 0:
            raise ValueError("time goes forward only; for a clock that is behind, use SkewedClock")
        with self._lock:
            self._now_us += round(seconds * 1_000_000)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Move time by that much at once, unless `stop` is set; return whether it is."""
        if stop.is_set():
            return True
        thread = threading.current_thread()
        if thread.daemon and not thread.name.startswith(THREADS):
            return self._wait_for_others(stop, self.now_us() + round(seconds * 1_000_000))
        self.advance(max(0.0, seconds))
        return stop.is_set()

    def _wait_for_others(self, stop: threading.Event, until_us: int) -> bool:
        while self.now_us() < until_us:
            if stop.wait(_LOOK_SECONDS):
                return True
        return stop.is_set()


class SkewedClock:
    """Another clock, but wrong: ahead of it, or behind where the offset is negative."""

    def __init__(self, base: Clock, offset_seconds: float) -> None:
        """Take the right clock and by how much this one is wrong."""
        self._base = base
        self._offset_us = round(offset_seconds * 1_000_000)

    def __repr__(self) -> str:
        """Show how wrong it is."""
        return f"<SkewedClock {self._offset_us / 1_000_000:+g} s>"

    def now_us(self) -> int:
        """Return the wrong time."""
        return self._base.now_us() + self._offset_us

    def monotonic_us(self) -> int:
        """Return the base's: a monotonic clock is compared with nobody else's, so it cannot be wrong."""
        return self._base.monotonic_us()

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait as the base does: seconds are as long as elsewhere."""
        return self._base.wait(stop, seconds)
