"""Makes a failure smaller: fewer faults that still break the same promise, and a history that a person can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

#: The machine decides who comes first, so a failure may need more than one try to show itself again.
TRIES: Final = 5


def shrink(faults: Sequence[T], breaks: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return as few of the faults as still break something: by halves first, then one by one."""
    kept, size = list(faults), max(1, len(faults) // 2)
    while kept:
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            if any(breaks(fewer) for _ in range(TRIES)):
                kept = fewer
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return kept


def readable(history: Sequence[str]) -> list[str]:
    """Write what happened in order, with milliseconds since the first line and workers by number."""
    if not history:
        return []
    lines = sorted(history, key=_when)
    workers: dict[str, int] = {}
    told = []
    for line in lines:
        _, pid, what, *words = line.split(" ")
        who = "beside" if what == "trouble" else f"worker {workers.setdefault(pid, len(workers) + 1)}"
        ms = (_when(line) - _when(lines[0])) / 1e6
        told.append(f"{ms:9.2f} ms  {who}: {_SENTENCES[what].format(*words).replace('_', ' ')}")
    return told


def _when(line: str) -> int:
    return int(line.partition(" ")[0])


_SENTENCES: Final = {
    "effect": "event {0} takes effect under key {1}, token {2}",
    "settled": "the ledger took the end of {0}, token {1}",
    "vain": "{0} was acknowledged, and is not settled",
    "fault": "struck: {0}",
    "trouble": "{0}",
}
