"""Captured deliveries, processed until each is settled.

No one redelivers the contents of a file, so this source waits and retries by itself, as long as that does not take
long. The rest stays unsettled in the ledger, and the next run over the same file tries it again.
"""

from __future__ import annotations

import heapq
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.engine.limits import GOES_ON
from oncebridge.engine.result import Result
from oncebridge.engine.task import out_of_reach, stopped
from oncebridge.engine.waiting import OUTAGE_BACKOFF, PATIENCE_US, POLL_US, made_attempt
from oncebridge.errors import ConfigurationError, LedgerUnavailable
from oncebridge.sources.captures.found import Tally
from oncebridge.sources.captures.reading import read_captures

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator

    from oncebridge.engine.flow import Flow
    from oncebridge.engine.task import Delivery
    from oncebridge.telemetry import Books

BATCH: Final = 100
WAITING_MAX: Final = 1000  # beyond that, waiting deliveries are processed before more is read
NOTICED_US: Final = 1_000_000  # a person wonders about a wait of this length
OUTAGE_PATIENCE_US: Final = 60_000_000  # in an outage during which nothing is settled


def read_deliveries(
    paths: Iterable[str],
    stopping: threading.Event,
    progress: Callable[[int], None] = lambda _: None,
    tally: Tally | None = None,
) -> Iterator[bytes | None]:
    """Yield the deliveries of captures; None means that standard input is silent for now.

    A pipe may be quiet for long, and deliveries already read should not wait for the next ones. After the last one,
    `ConfigurationError` names the files that could not be read to their end.
    """
    found = Tally() if tally is None else tally
    for one in read_captures(paths, found, stopping=stopping, progress=progress):
        yield None if one is None else one.raw
    if found.troubles:
        raise ConfigurationError(found.trouble_text)


Numbered = tuple[int, "Delivery"]
_END: Final = b"the end"  # recognised by identity: a delivery may be empty, or have the same bytes


class _Waiting(msgspec.Struct, frozen=True):
    due_us: int
    n: int
    delivery: Delivery
    #: The entities on which later deliveries must not overtake it.
    entities: frozenset[bytes]

    def __lt__(self, other: _Waiting) -> bool:
        return (self.due_us, self.n) < (other.due_us, other.n)


class FileRun:
    """Processes a stream of deliveries until each is settled, or would take too long, or the flow is stopped."""

    def __init__(
        self,
        flow: Flow,
        books: Books,
        *,
        batch: int = BATCH,
        on_outage: Callable[[str], None] = lambda _: None,
        on_wait: Callable[[int, int], None] = lambda _number, _wait_us: None,
        rereadable: bool = True,
    ) -> None:
        """Take the flow, the books to keep, and where to report an outage of the ledger and the first long wait.

        A wait is reported with how many deliveries wait for their next try, and how long it is until the first of them.
        What is not rereadable, such as a pipe, is read to its end, however long that takes.
        """
        self._flow = flow
        self._books = books
        self._batch = batch
        self._on_outage = on_outage
        self._on_wait: Callable[[int, int], None] | None = on_wait
        self._rereadable = rereadable
        self._waiting: list[_Waiting] = []
        self._last: dict[int, Result] = {}
        self._read = 0
        self._next = 1
        self._exhausted = False
        #: When an event was last tried.
        self._tried_us = self._now_us()
        #: How long until the next try, where that is too long to wait for.
        self.next_try_us: int | None = None
        #: The error that ended reading; deliveries read before it are still processed.
        self.unread: ConfigurationError | None = None

    @property
    def finished(self) -> bool:
        """Whether every delivery was read and settled."""
        return self._exhausted and not self._waiting and self.unread is None

    def results(self, deliveries: Iterator[bytes | None]) -> Iterator[tuple[int, Result]]:
        """Yield the result of each delivery, numbered from 1, in order of arrival.

        Raises `LedgerUnavailable` after an outage that lasts too long, or if the flow is stopped during one.
        """
        outage: LedgerUnavailable | None = None
        try:
            while (self._waiting or not self._exhausted) and not self._flow.stopping.is_set():
                batch = self._take(deliveries)
                if batch:
                    self._process(batch)
                    yield from self._in_order()
                elif self._waiting and (self._exhausted or self._is_full):
                    wait_us = max(0, self._waiting[0].due_us - self._now_us())
                    if self._takes_too_long():
                        self.next_try_us = wait_us
                        break
                    self._report_wait(wait_us)
                    self._flow.clock.wait(self._flow.stopping, wait_us / 1_000_000)
        except LedgerUnavailable as error:
            outage = error
        for one in self._waiting:  # stopped: a delivery without a column in the books is still retrying
            self._last.setdefault(one.n, stopped(one.delivery.tasks[0]))
        yield from sorted(self._last.items())
        if outage is not None:
            raise outage

    def _report_wait(self, wait_us: int) -> None:
        """Report the first wait that a person notices."""
        if wait_us >= NOTICED_US and self._on_wait is not None:
            self._on_wait(len(self._waiting), wait_us)
            self._on_wait = None

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) >= WAITING_MAX

    def _takes_too_long(self) -> bool:
        """Return whether the next try is due long after the last, and waiting for it is of no use."""
        may_end = self._exhausted or self._rereadable
        return may_end and self._waiting[0].due_us > self._tried_us + PATIENCE_US

    def _take(self, deliveries: Iterator[bytes | None]) -> list[Numbered]:
        """Take deliveries that are due again, and new ones unless too many wait; in order of arrival."""
        now_us = self._now_us()
        batch: list[Numbered] = []
        while self._waiting and self._waiting[0].due_us <= now_us and len(batch) < self._batch:
            due = heapq.heappop(self._waiting)
            batch.append((due.n, due.delivery))
        if not self._is_full and not self._exhausted:
            batch += self._new(deliveries, self._batch - len(batch))
        return sorted(batch, key=itemgetter(0))

    def _new(self, deliveries: Iterator[bytes | None], number: int) -> list[Numbered]:
        new: list[Numbered] = []
        while len(new) < number:
            try:
                raw = next(deliveries, _END)
            except ConfigurationError as error:
                self.unread, raw = error, _END
            if raw is _END:
                self._exhausted = True
                break
            if raw is None:
                break
            self._read += 1
            self._books.receive()
            new.append((self._read, self._flow.read(raw)))
        return new

    def _process(self, batch: list[Numbered]) -> None:
        batch = self._hold_back(batch)
        try:
            self._through_outages([delivery for _, delivery in batch])
        except LedgerUnavailable:
            for n, delivery in batch:
                self._note(n, delivery.result if delivery.is_over else out_of_reach(delivery.tasks[0]))
            raise
        now_us = self._now_us()
        for n, delivery in batch:
            result = delivery.result
            self._note(n, result)
            if made_attempt(result):
                self._tried_us = now_us
            if result.acknowledged:
                continue
            if result.outcome is None:  # busy: later deliveries must not overtake it
                due_us = now_us + min(result.retry_in_us, POLL_US)
                heapq.heappush(self._waiting, _Waiting(due_us, n, delivery, delivery.entities))
            else:
                due_us = now_us + result.retry_in_us
                heapq.heappush(self._waiting, _Waiting(due_us, n, delivery, frozenset()))

    def _note(self, n: int, result: Result) -> None:
        self._last[n] = result
        if result.acknowledged:
            self._books.enter(result.column)

    def _hold_back(self, batch: list[Numbered]) -> list[Numbered]:
        """Hold back deliveries whose entity an earlier one waits for, so that the earlier one does not become stale."""
        if not self._waiting:
            return batch
        first = {
            entity: one for one in sorted(self._waiting, key=attrgetter("n"), reverse=True) for entity in one.entities
        }
        free = []
        for n, delivery in batch:
            ahead = [first[entity].due_us for entity in delivery.entities if entity in first and first[entity].n < n]
            if ahead:
                heapq.heappush(self._waiting, _Waiting(max(ahead), n, delivery, delivery.entities))
            else:
                free.append((n, delivery))
        return free

    def _through_outages(self, deliveries: list[Delivery]) -> None:
        """Process a batch, and wait while the ledger is out of reach; nothing more is read meanwhile."""
        left, since_us, attempt = len(deliveries) + 1, 0, 1
        while True:
            try:
                self._flow.process(deliveries, limits=GOES_ON)
            except LedgerUnavailable as error:
                still_left = sum(not delivery.is_over for delivery in deliveries)
                if still_left < left:  # the first time, or some progress since: a new outage
                    left, since_us, attempt = still_left, self._now_us(), 1
                    self._on_outage(str(error))
                if not self._waited_out(attempt, since_us + OUTAGE_PATIENCE_US):
                    raise
                attempt += 1
            else:
                return

    def _waited_out(self, attempt: int, give_up_us: int) -> bool:
        """Wait until the ledger may be called again; False if patience is over, or the flow is stopped."""
        left_us = give_up_us - self._now_us()
        wait_us = max(self._flow.breaker.retry_in_us, int(OUTAGE_BACKOFF.delay_seconds(attempt) * 1_000_000))
        return left_us > 0 and not self._flow.clock.wait(self._flow.stopping, min(wait_us, left_us) / 1_000_000)

    def _in_order(self) -> Iterator[tuple[int, Result]]:
        while self._next in self._last and self._last[self._next].acknowledged:
            yield self._next, self._last.pop(self._next)
            self._next += 1

    def _now_us(self) -> int:
        return self._flow.clock.monotonic_us()
