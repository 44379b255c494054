"""The only place that reads time; everything else is handed a clock."""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

#: For waits that no stop may end: nobody sets it.
NEVER: Final = threading.Event()


class Clock(Protocol):
    """Tells the time and waits."""

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
