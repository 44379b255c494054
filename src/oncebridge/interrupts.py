"""Exceptions that are nobody's failure: Ctrl-C, and any that a signal's handler raises in the middle of other code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def is_interrupt(error: BaseException) -> bool:
    """Return whether the exception came from outside, not from the code that it ended."""
    return isinstance(error, KeyboardInterrupt) or was_raised_by_signal(error)


def was_raised_by_signal(error: BaseException) -> bool:
    """Return whether a signal's handler raised it: it may strike anywhere, and concerns more than that code."""
    trace = error.__traceback__
    while trace is not None:
        if _handles_signal(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False


def _handles_signal(frame: FrameType) -> bool:
    """Return whether a function is a signal's handler: only these get the very frame that they interrupt."""
    interrupted = frame.f_back
    if interrupted is None:
        return False
    for value in frame.f_locals.values():
        if value is interrupted or (type(value) is tuple and any(one is interrupted for one in value)):
            return True
    return False
