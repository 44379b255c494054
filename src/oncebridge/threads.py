"""Starts threads in a way that an interrupt of the caller cannot break.

`Thread.start` waits, in Python code that holds a lock, until the thread runs: an exception that strikes there
leaves that lock locked, or becomes another exception. So a helper thread does it, where no signal strikes.
"""

from __future__ import annotations

import _thread
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def background(target: Callable[..., None], *args: object, name: str) -> threading.Thread:
    """Make a thread that does not delay the end of the process; it is not started yet."""
    return threading.Thread(target=target, args=args, name=name, daemon=True)


def start(threads: Sequence[threading.Thread]) -> None:
    """Start threads; they are about to run when this returns."""
    _thread.start_new_thread(_start_each, (threads,))


def _start_each(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
