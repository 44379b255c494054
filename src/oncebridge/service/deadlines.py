"""What is cut off when its time is over: one timer for all, since all have the same time.

A timer for each request would cost more than most of what a request does, and nearly all would be for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Deadline:
    """One thing that has its time."""

    __slots__ = ("_act", "at", "passed")

    def __init__(self, at: float, act: Callable[[], object]) -> None:
        """Take when it is over, by the loop's clock, and what to do then."""
        self.at = at
        self.passed = False
        self._act: Callable[[], object] | None = act

    @property
    def is_met(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._act is None

    def meet(self) -> None:
        """Let nothing happen: it was in time, and whatever was to be done is let go of."""
        self._act = None

    def pass_by(self) -> None:
        """Do what is to be done."""
        act, self._act = self._act, None
        if act is not None:
            self.passed = True
            act()


class Deadlines:
    """Things that all have the same time, from when each begins."""

    def __init__(self, seconds: float) -> None:
        """Take the time."""
        self.seconds = seconds
        self._ahead: deque[Deadline] = deque()
        self._is_set = False

    def begin(self, act: Callable[[], object]) -> Deadline:
        """Do this when the time is over, unless it is met before."""
        loop = asyncio.get_running_loop()
        deadline = Deadline(loop.time() + self.seconds, act)
        self._ahead.append(deadline)
        if not self._is_set:
            self._set(loop)
        return deadline

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_set = True
        loop.call_at(self._ahead[0].at, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        ahead = self._ahead
        while ahead and (ahead[0].is_met or ahead[0].at <= loop.time()):
            ahead.popleft().pass_by()
        self._is_set = False
        if ahead:
            self._set(loop)
