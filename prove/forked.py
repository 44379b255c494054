"""A fork that ends with whoever made it: nothing that a run of the proof has begun outlives it, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def fork() -> int:
    """Fork; the kernel ends the child once its parent has ended, even where it is stopped (Linux only)."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    # What the run does at these is none of its children's business.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with(parent)
    return 0


def end_with(parent: int) -> None:
    """Let this process end with its parent."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)
