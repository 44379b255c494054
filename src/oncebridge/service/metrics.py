"""Metrics and books of all worker processes: each worker writes a snapshot of its own into a shared folder.

Any worker can show the metrics of all, and the parent adds up the books when the workers have ended.
"""

from __future__ import annotations

import fcntl
import os
import threading
from itertools import chain, count
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.errors import MissingExtra
from oncebridge.telemetry import COLUMNS
from oncebridge.telemetry.counting import Counts, Packed, Topics
from oncebridge.telemetry.prometheus import families, gauge_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from prometheus_client.metrics_core import Metric

    from oncebridge.bridge import Bridge

EVERY_SECONDS: Final = 1.0
#: An unchanged snapshot is written again after so many intervals: systems delete old files in temporary folders.
IDLE_TIMES: Final = 3600


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one worker since it was started."""

    #: From 1; a worker's replacement takes its number.
    number: int
    pid: int
    books: dict[str, int]
    totals: Packed
    gauges: dict[str, int] = {}
    #: Whether the worker ended in order, so that nothing is missing.
    ended: bool = False


#: The newest snapshot of each number, and those of workers that were replaced.
NEWEST: Final = "worker-*"
BEFORE: Final = "before-*"


def read_snapshots(folder: Path, *patterns: str) -> Iterator[Snapshot]:
    """Read snapshots."""
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        try:
            yield msgspec.json.decode(path.read_bytes(), type=Snapshot)
        except FileNotFoundError:
            continue  # moved just now, by the worker's replacement


def books_of(snapshots: Iterable[Snapshot]) -> dict[str, int | bool]:
    """Add up the books of workers."""
    books: dict[str, int] = dict.fromkeys(("received", *COLUMNS), 0)
    for snapshot in snapshots:
        for name in books:
            books[name] += snapshot.books[name]
    return {**books, "balanced": books["retrying"] >= 0}


class WorkerMetrics:
    """Counts the moves of this worker, writes its snapshots, and shows the metrics of all workers."""

    def __init__(self, bridge: Bridge, folder: Path) -> None:
        """Count the moves of this bridge from now on; raise `MissingExtra` without prometheus_client."""
        try:
            import prometheus_client  # noqa: F401 - fail at start, not at the first request for metrics
        except ImportError:
            raise MissingExtra(
                "metrics for Prometheus need prometheus_client; install it with: pip install 'oncebridge[cli]'"
            ) from None
        self._bridge = bridge
        self._folder = folder
        self._counts = Counts(Topics(bridge.known_topics))
        bridge.telemetry.add(self._counts)
        self._number, self._place = _take_place(folder)
        self._path = folder / f"worker-{self._number}"
        if self._path.exists():
            # The worker that had this number has died; its books stay.
            self._path.replace(folder / f"before-{os.getpid()}")
        self._written = b""
        self._idle = 0
        self._writes = True
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._keep_writing, name="oncebridge-snapshot", daemon=True)

    def start(self) -> None:
        """Write the first snapshot, and then one after each interval with changes."""
        self._write(self._snapshot())
        self._writer.start()

    def close(self) -> None:
        """Write the last snapshot."""
        self._closing.set()
        self._writer.join()
        self._write(self._snapshot(ended=True))
        os.close(self._place)

    def exposition(self) -> bytes:
        """Return the metrics of all workers in the text format of Prometheus."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, with the number of the worker as a label. The library calls it by this name."""
        from prometheus_client.metrics_core import Metric

        merged: dict[str, Metric] = {}
        for snapshot in sorted(self._current(), key=lambda snapshot: snapshot.number):
            own = families(snapshot.totals.unpacked()), gauge_families(snapshot.gauges), _process_families(snapshot.pid)
            for family in chain(*own):
                whole = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.add_sample(sample.name, {"worker": str(snapshot.number), **sample.labels}, sample.value)
        yield from merged.values()

    def _current(self) -> Iterator[Snapshot]:
        """Yield the newest snapshot of each running worker; for this one, its counts at this moment."""
        yield self._snapshot()
        for snapshot in read_snapshots(self._folder, NEWEST):
            if snapshot.number != self._number and not snapshot.ended and _runs(snapshot.pid):
                yield snapshot

    def _snapshot(self, *, ended: bool = False) -> Snapshot:
        return Snapshot(
            number=self._number,
            pid=os.getpid(),
            books={name: number for name, number in self._bridge.books.as_dict().items() if name != "balanced"},
            totals=Packed.of(self._counts.read()),
            gauges=self._bridge.gauges(),
            ended=ended,
        )

    def _keep_writing(self) -> None:
        while not self._closing.wait(EVERY_SECONDS):
            self._write(self._snapshot())

    def _write(self, snapshot: Snapshot) -> None:
        text = msgspec.json.encode(snapshot)
        self._idle += 1
        if text == self._written and self._idle < IDLE_TIMES:
            return
        draft = self._folder / f".draft-{self._number}"
        try:
            draft.write_bytes(text)
            draft.replace(self._path)  # a reader never sees half of it
            os.utime(self._place)
        except OSError as error:
            if self._writes:  # once
                # Other workers, and the books at the end, miss these counts; events are not affected.
                self._bridge.telemetry.warn(f"what this worker has counted cannot be kept: {error.strerror}")
            self._writes = False
        else:
            self._written, self._idle, self._writes = text, 0, True


def _take_place(folder: Path) -> tuple[int, int]:
    """Lock the lowest free number; the lock ends with this process, even if it is killed."""
    for number in count(1):
        place = os.open(folder / f".place-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(place)
        else:
            return number, place
    raise AssertionError  # numbers do not run out


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _process_families(pid: int) -> Iterable[Metric]:
    """Return the memory, files and processor time of a process, where the system shows them."""
    from prometheus_client import ProcessCollector

    return ProcessCollector(pid=lambda: pid, registry=None).collect()
