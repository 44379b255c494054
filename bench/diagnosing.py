"""How much processor time and memory `oncebridge diagnose` takes, beside a loop that only parses the same lines.

Deliveries are made up and written into a pipe, so any number of them can be measured without a disk to keep them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from oncebridge.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

PER_CONVERSATION: Final = 44  # deliveries, a little less than there are
_SAMPLE: Final = 20_000
_LOOK_SECONDS: Final = 0.2
_COMMAND: Final = (sys.executable, "-m", "oncebridge")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a diagnosis took."""

    deliveries: int
    processor_seconds: float
    seconds: float
    #: Of all its processes together, at the worst moment.
    peak_bytes: int

    @property
    def per_core_second(self) -> float:
        """Deliveries for each second of one core."""
        return self.deliveries / self.processor_seconds


def parsed_per_core_second() -> float:
    """Return how many deliveries a bare loop parses in a second of one core: the best of three."""
    lines = [one.raw for one in islice(simulate(_SAMPLE // PER_CONVERSATION, seed=1), _SAMPLE)]
    return max(_parsed(lines) for _ in range(3))


def _parsed(lines: list[bytes]) -> float:
    begun = time.process_time()
    for line in lines:
        json.loads(line)
    return len(lines) / (time.process_time() - begun)


def cost_of(deliveries: int, folder: Path) -> Cost:
    """Diagnose so many made-up deliveries, out of a pipe."""
    conversations = str(deliveries // PER_CONVERSATION + 1)
    simulating = (*_COMMAND, "simulate", "--conversations", conversations, "--seed", "1", "--out", "-")
    with (folder / "diagnosis.json").open("wb") as answer:
        traffic = subprocess.Popen(simulating, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        begun = time.monotonic()
        diagnosing = subprocess.Popen(
            (*_COMMAND, "diagnose", "-", "--json"), stdin=traffic.stdout, stdout=answer, stderr=subprocess.DEVNULL
        )
        assert traffic.stdout is not None
        traffic.stdout.close()
        with _watched(diagnosing.pid) as peak:
            _, status, usage = os.wait4(diagnosing.pid, 0)
        seconds = time.monotonic() - begun
        diagnosing.returncode = os.waitstatus_to_exitcode(status)
        traffic.wait()
    found = json.loads((folder / "diagnosis.json").read_bytes())
    assert diagnosing.returncode == 0, diagnosing.returncode
    assert found["deliveries"] >= deliveries, found["deliveries"]
    return Cost(
        deliveries=found["deliveries"],
        processor_seconds=usage.ru_utime + usage.ru_stime,
        seconds=seconds,
        peak_bytes=peak.bytes,
    )


class _watched:  # noqa: N801 - used as a context, like those of contextlib
    """Watches the memory of a process and all below it."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self.bytes = max(self.bytes, sum(map(_resident, _tree(self._pid))))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))
    except OSError:
        return


def _resident(pid: int) -> int:
    """Return the memory of a process that is its own: pages of files that are mapped count for the system."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES
