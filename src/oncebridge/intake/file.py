"""Captured deliveries from files: JSON lines, plain or gzipped, `-` for standard input.

Nobody redelivers what a file holds, so this way in waits and tries again by itself.
"""

from __future__ import annotations

import gzip
import heapq
import sys
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Final

import msgspec

from oncebridge.errors import ConfigurationError, LedgerUnavailable
from oncebridge.intake.results import Result
from oncebridge.intake.unwrap import WRAPPER_BYTES_MAX, unwrap
from oncebridge.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oncebridge.intake.flow import Flow
    from oncebridge.intake.tasks import Delivery
    from oncebridge.telemetry import Books

BATCH: Final = 100
WAITING_MAX: Final = 1000  # beyond that, what waits is worked off before more is read
BUSY_POLL_US: Final = 100_000
OUTAGE_PATIENCE_US: Final = 60_000_000
_OUTAGE_BACKOFF: Final = RetryPolicy(base_seconds=0.1, cap_seconds=5.0)


def read_deliveries(paths: Iterable[str], progress: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """Yield the deliveries in each line; blank lines have none. `progress` is told how many bytes were read."""
    for path in paths:
        with _opened(path) as file:
            for line in _lines_in(file, progress):
                yield from unwrap(line)


def _lines_in(file: IO[bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
    first = True
    for line in file:
        progress(len(line))
        text = line.strip()
        if not text:
            continue
        if first and text in (b"{", b"["):
            # Nobody's first JSON line is a lone brace: this is one value, written over many lines.
            rest = file.read(WRAPPER_BYTES_MAX)
            if file.read(1):
                raise ConfigurationError(
                    f"a file is one JSON value of more than {WRAPPER_BYTES_MAX:,} bytes; write it as JSON lines"
                )
            progress(len(rest))
            yield line + rest
        else:
            yield text
        first = False


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        # gzip's reader is a binary file in all but name.
        file: IO[bytes] = gzip.open(path) if path.endswith(".gz") else open(path, "rb")  # type: ignore[assignment]  # noqa: PTH123, SIM115
    except OSError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror}; give a file of JSON lines, or - for standard input"
        ) from None
    with file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError) as error:
            raise ConfigurationError(f"{path}: not readable as gzip: {error}") from None
        except IsADirectoryError:
            raise ConfigurationError(f"{path}: is a directory; name the files in it") from None


Numbered = tuple[int, "Delivery"]


class _Waiting(msgspec.Struct, frozen=True):
    due_us: int
    n: int
    delivery: Delivery

    def __lt__(self, other: _Waiting) -> bool:
        return (self.due_us, self.n) < (other.due_us, other.n)


class FileRun:
    """Works a stream of deliveries off until each is settled, or the flow is told to stop."""

    def __init__(self, flow: Flow, books: Books, *, batch: int = BATCH) -> None:
        """Take the flow and the books to keep."""
        self._flow = flow
        self._books = books
        self._batch = batch
        self._waiting: list[_Waiting] = []
        self._last: dict[int, Result] = {}
        self._next = 1
        #: Whether every delivery was read and settled.
        self.finished = False

    def results(self, deliveries: Iterator[bytes]) -> Iterator[tuple[int, Result]]:
        """Yield what became of each delivery, numbered from 1, in order of arrival."""
        numbered = enumerate(deliveries, start=1)
        while not self._flow.stopping.is_set():
            batch = self._take(numbered)
            if not batch:
                if not self._waiting:
                    self.finished = True
                    break
                self._flow.clock.wait(self._flow.stopping, max(0, self._waiting[0].due_us - self._now_us()) / 1_000_000)
                continue
            self._work_off(batch)
            yield from self._in_order()
        yield from sorted(self._last.items())  # stopped: what has no column in the books is still retrying

    def _take(self, numbered: Iterator[tuple[int, bytes]]) -> list[Numbered]:
        """Take what is due again, and new deliveries unless too many wait."""
        now_us = self._now_us()
        batch: list[Numbered] = []
        while self._waiting and self._waiting[0].due_us <= now_us and len(batch) < self._batch:
            due = heapq.heappop(self._waiting)
            batch.append((due.n, due.delivery))
        if len(self._waiting) < WAITING_MAX:
            new = list(islice(numbered, self._batch - len(batch)))
            self._books.receive(len(new))
            batch += [(n, self._flow.read(raw)) for n, raw in new]
        # In order of arrival, so that an entity's events stay in theirs.
        return sorted(batch, key=itemgetter(0))

    def _work_off(self, batch: list[Numbered]) -> None:
        self._through_outages([delivery for _, delivery in batch])
        now_us = self._now_us()
        for n, delivery in batch:
            result = self._last[n] = delivery.result
            if result.acknowledged:
                self._books.enter(result.column)
            else:
                wait_us = result.again_in_us if result.outcome else min(result.again_in_us, BUSY_POLL_US)
                heapq.heappush(self._waiting, _Waiting(now_us + wait_us, n, delivery))

    def _through_outages(self, deliveries: list[Delivery]) -> None:
        """Work a batch off, with patience while the ledger is out of reach."""
        give_up_us = self._now_us() + OUTAGE_PATIENCE_US
        attempt = 1
        while True:
            try:
                return self._flow.work_off(deliveries)
            except LedgerUnavailable:
                wait_seconds = _OUTAGE_BACKOFF.delay_seconds(attempt)
                if self._now_us() >= give_up_us or self._flow.clock.wait(self._flow.stopping, wait_seconds):
                    raise
                attempt += 1

    def _in_order(self) -> Iterator[tuple[int, Result]]:
        while self._next in self._last and self._last[self._next].acknowledged:
            yield self._next, self._last.pop(self._next)
            self._next += 1

    def _now_us(self) -> int:
        return self._flow.clock.monotonic_us()
