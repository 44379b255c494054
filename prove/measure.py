"""Looks at processes from outside: memory, file handles, threads and connections, as the kernel counts them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


@dataclass(frozen=True)
class Reading:
    """What one or more processes hold at a moment."""

    #: Of their own: without files that are mapped, and without what they share.
    memory_bytes: int = 0
    handles: int = 0
    threads: int = 0
    connections: int = 0

    def __add__(self, other: Reading) -> Reading:
        """Return what both hold."""
        return Reading(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def read(pids: Iterable[int]) -> Reading:
    """Return what these processes hold together; one that has ended holds nothing."""
    whole = Reading()
    for pid in pids:
        with suppress(OSError):
            whole += _read_one(pid)
    return whole


def _read_one(pid: int) -> Reading:
    status = dict(line.split(":", 1) for line in (PROC / str(pid) / "status").read_text().splitlines() if ":" in line)
    targets = []
    for handle in (PROC / str(pid) / "fd").iterdir():
        with suppress(OSError):  # closed just now
            targets.append(str(handle.readlink()))
    return Reading(
        memory_bytes=int(status.get("RssAnon", "0").split()[0]) * 1024,
        handles=len(targets),
        threads=int(status["Threads"]),
        connections=sum(target.startswith("socket:") for target in targets),
    )


def tree(root: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    children: dict[int, list[int]] = {}
    for path in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def running(command: str) -> list[int]:
    """Return the processes of this one whose command holds this text, and all that those have started."""
    for pid in tree(os.getpid())[1:]:
        with suppress(OSError):
            if command in (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                return tree(pid)
    return []
