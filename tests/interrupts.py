"""Exceptions that strike like a signal's handler: at any point of the main thread where CPython looks for signals.

Ctrl-C, `signal.alarm` and a soft time limit raise between two instructions: when a function begins, when a loop goes
round, and when a call of a C function has returned, before its result is stored. `points` lists these places for one
run of a function, and `strike` raises at one of them in another run, so a test can go through all of them:

    for point in sample(points(run)):
        with suppress(Interrupted), strike(point, Interrupted()):
            run()
        check()

A place is known by code, offset and visit rather than by a running number: a loop that waits for a server goes round
more often in one run than in another. So a run may miss its point; `strike` tells.
"""

import dis
import inspect
import os
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

VISITS = 2  # of one place that are tried: the first, and one when it was passed before
#: Try every point instead of a part of them; takes minutes.
EXHAUSTIVE = os.environ.get("ONCEBRIDGE_TEST_EXHAUSTIVE") == "1"

#: Instructions that look for signals when they are through.
_LOOKS = ("JUMP_BACKWARD", "PRECALL", "CALL", "CALL_KW", "CALL_FUNCTION_EX")
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_TOOL = 4  # of those that Python leaves to anybody

_looks: dict[CodeType, dict[int, int]] = {}


class Interrupted(BaseException):
    """Raised by a signal's handler."""


class Point(NamedTuple):
    """A place where a signal can strike: just before this instruction, at this visit."""

    code: CodeType
    offset: int
    visit: int

    def __str__(self) -> str:
        """Say where it is, for the message of a test that fails."""
        lines = [line for start, end, line in self.code.co_lines() if start <= self.offset < end]
        where = "/".join(self.code.co_filename.split("/")[-2:])
        return f"{where}:{lines[0] if lines else '?'} {self.code.co_qualname}+{self.offset} visit {self.visit}"


def points(run: Callable[[], object], *, visits: int = VISITS) -> list[Point]:
    """Run a function, and return where a signal could have struck meanwhile, in order."""
    found: list[Point] = []
    visited: Counter[tuple[CodeType, int]] = Counter()
    just_returned_to: set[FrameType] = set()

    def arrive(frame: FrameType, offset: int) -> None:
        at = (frame.f_code, offset)
        visited[at] += 1
        # The call of a Python function looks when it begins, not when it returns.
        if frame in just_returned_to or visited[at] > visits or _swallows(frame):
            return
        found.append(Point(*at, visited[at]))

    def leave(frame: FrameType) -> None:
        is_plain = not frame.f_code.co_flags & _GENERATORS and frame.f_code.co_name != "__init__"
        if is_plain and frame.f_back is not None:
            just_returned_to.add(frame.f_back)

    with _Trace(None, arrive, leave, just_returned_to.discard):
        run()
    return found


def sample(found: list[Point], number: int = 200) -> list[Point]:
    """Return so many of the points, evenly spread, or all of them in an exhaustive run."""
    return found if EXHAUSTIVE else found[:: max(1, len(found) // number)]


class strike:  # noqa: N801 - reads like the function that it is used as
    """Raise this error when the block comes to the point; `struck` tells whether it did.

    Not a generator, whose machinery in the standard library would be interrupted too.
    """

    def __init__(self, point: Point, error: BaseException) -> None:
        """Take the point, and what to raise there."""
        self.struck = False
        self._point, self._error = point, error
        self._visits = 0
        self._trace = _Trace(point.code, self._arrive)

    def __enter__(self) -> Self:
        """Begin to look for the point."""
        self._trace.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Look no more."""
        self._trace.__exit__()

    def _arrive(self, _: FrameType, offset: int) -> None:
        if offset == self._point.offset:
            self._visits += 1
            if self._visits == self._point.visit:
                self.struck = True
                raise self._error


class _Trace:
    """Calls `arrive` at each place where a signal can strike, in this code or in all code that runs."""

    def __init__(
        self,
        code: CodeType | None,
        arrive: Callable[[FrameType, int], None],
        leave: Callable[[FrameType], None] = lambda _: None,
        go_on: Callable[[FrameType], None] = lambda _: None,
    ) -> None:
        self._code, self._arrive, self._leave, self._go_on = code, arrive, leave, go_on
        self._thread = threading.get_ident()
        self._last: dict[FrameType, int] = {}
        self._outside: set[FrameType] = set()

    def __enter__(self) -> None:
        self._outside = {frame for frame, _ in traceback.walk_stack(sys._getframe())}
        if sys.version_info < (3, 12):
            sys.settrace(self._on_call)
        else:
            self._monitor()

    def __exit__(self, *_: object) -> None:
        if sys.version_info < (3, 12):
            sys.settrace(None)
        else:
            sys.monitoring.set_events(_TOOL, 0)
            if self._code is not None:
                sys.monitoring.set_local_events(_TOOL, self._code, 0)
            sys.monitoring.free_tool_id(_TOOL)

    def _on_instruction(self, frame: FrameType, offset: int) -> None:
        if frame in self._outside:
            return
        before = self._last.get(frame)
        self._last[frame] = offset
        # A function that begins, or goes on after a yield, has just looked.
        if before is None or _looks_after(frame.f_code).get(before, offset) != offset:
            self._arrive(frame, offset)
        self._go_on(frame)

    def _on_return(self, frame: FrameType) -> None:
        self._last.pop(frame, None)
        self._leave(frame)

    # Until Python 3.11.

    def _on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if event != "call" or code.co_filename == __file__ or self._code not in (None, code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._on_event

    def _on_event(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self._on_instruction(frame, frame.f_lasti)
        elif event == "return":
            self._on_return(frame)
        return self._on_event

    # Since Python 3.12.

    def _monitor(self) -> None:
        events = sys.monitoring.events
        every = events.INSTRUCTION | events.PY_RETURN | events.PY_YIELD
        sys.monitoring.use_tool_id(_TOOL, "interrupts")
        sys.monitoring.register_callback(_TOOL, events.INSTRUCTION, self._monitored)
        for event in (events.PY_RETURN, events.PY_YIELD):
            sys.monitoring.register_callback(_TOOL, event, self._monitored_return)
        if self._code is None:
            sys.monitoring.set_events(_TOOL, every)
        else:
            sys.monitoring.set_local_events(_TOOL, self._code, every)

    def _monitored(self, code: CodeType, offset: int) -> None:
        if code.co_filename != __file__ and threading.get_ident() == self._thread:
            self._on_instruction(sys._getframe(1), offset)

    def _monitored_return(self, code: CodeType, *_: object) -> None:
        if code.co_filename != __file__ and threading.get_ident() == self._thread:
            self._on_return(sys._getframe(1))


def _looks_after(code: CodeType) -> dict[int, int]:
    """Return the offsets of instructions after which CPython looks for signals, each with where it does not.

    PRECALL calls some C functions itself, and then CALL is left out; otherwise it looks at nothing.
    """
    found = _looks.get(code)
    if found is None:
        each = list(dis.get_instructions(code))
        found = _looks[code] = {
            one.offset: next_one.offset if one.opname == "PRECALL" else -1
            for one, next_one in pairwise(each)
            if one.opname in _LOOKS
        }
    return found


def _swallows(frame: FrameType | None) -> bool:
    """Tell whether Python would only print an exception that is raised here: in a finalizer, for one."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
