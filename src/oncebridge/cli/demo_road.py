"""The road of the demo: hands deliveries to workers, and hands them out again until they are acknowledged."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter, deque
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

import msgspec

from oncebridge.cli.demo_worker import HANGING, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess

    from oncebridge.clock import Clock
    from oncebridge.simulation import Delivery

BATCH = 10
HANG_AT = 3  # with two done before it and others untried behind it
REDELIVER_AFTER_US = 200_000


#: What a worker says of one delivery: verdict, column, reason, acknowledged.
Answer = tuple[str, str, str, bool]


class Worker(msgspec.Struct, eq=False):
    """A worker process and what it has in hand."""

    name: str
    process: BaseProcess
    connection: Connection
    in_hand: list[Delivery]
    received: int = 0
    acknowledged: int = 0
    took_over: int = 0
    alive: bool = True


class Road:
    """At-least-once delivery in miniature."""

    def __init__(
        self,
        deliveries: Iterator[Delivery],
        url: str,
        lease_seconds: float,
        clock: Clock,
        *,
        per_second: float | None,
        work: Callable[[str, float, Connection], None] = work,
        is_due: Callable[[Delivery], bool] = lambda _: True,
    ) -> None:
        """Take the traffic, the workers' ledger, and what they do.

        Args:
            deliveries: The traffic, in order of arrival.

            url: The workers' ledger.

            lease_seconds: Their lease.

            clock: Keeps the pace.

            per_second: How fast to send at most; None is as fast as it goes.

            work: What a worker's process does.

            is_due: Whether the time of a delivery has come; those behind it wait for it.

        """
        self._work = work
        self._deliveries = deliveries
        self._next = next(deliveries, None)
        self._is_due = is_due
        self._url = url
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._context = multiprocessing.get_context("spawn")
        self._again: deque[tuple[int, Delivery]] = deque()
        self._orphans: set[int] = set()
        self._per_second = per_second
        self._started_us = clock.monotonic_us()
        self._sent = 0
        self.workers: list[Worker] = []
        self.columns: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self.received = 0
        self.lost_with_worker: list[Delivery] = []

    def start(self, name: str) -> Worker:
        """Start one more worker."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=self._work, args=(self._url, self._lease_seconds, theirs), daemon=True)
        process.start()
        theirs.close()
        worker = Worker(name, process, ours, [])
        self.workers.append(worker)
        return worker

    def kill_in_the_middle(self, worker: Worker) -> bool:
        """Kill a worker inside a handler, others untried in its hand; False if this batch had no such moment."""
        if worker.in_hand:
            self._take_answers(worker, worker.connection.recv())
        self._hand_out(worker, hang_at=HANG_AT)
        if not worker.in_hand:
            return False
        answer = worker.connection.recv()
        if answer != HANGING:
            self._take_answers(worker, answer)
            return False
        assert worker.process.pid is not None
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.join()
        worker.alive = False
        self.lost_with_worker = worker.in_hand
        self._orphans = {delivery.n for delivery in worker.in_hand}
        self.columns["retrying"] += len(worker.in_hand)
        self._come_again(worker.in_hand)
        worker.in_hand = []
        return True

    def turn(self) -> bool:
        """Hand out what there is to idle workers, and take one round of answers; False when all is done."""
        alive = [worker for worker in self.workers if worker.alive]
        for worker in sorted(alive, key=lambda worker: worker.received):
            if not worker.in_hand:
                self._hand_out(worker)
        busy = {worker.connection: worker for worker in alive if worker.in_hand}
        for ready in wait(list(busy), timeout=0.02):
            assert isinstance(ready, Connection)
            self._take_answers(busy[ready], ready.recv())
        return bool(busy or self._again or self._next is not None)

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            if worker.alive:
                worker.connection.send(None)
        for worker in self.workers:
            worker.process.join()
            worker.connection.close()

    def _hand_out(self, worker: Worker, *, hang_at: int | None = None) -> None:
        now_us = self._clock.monotonic_us()
        batch: list[Delivery] = []
        while self._again and self._again[0][0] <= now_us and len(batch) < BATCH:
            batch.append(self._again.popleft()[1])
        while self._next is not None and len(batch) < BATCH and self._may_send(now_us) and self._is_due(self._next):
            batch.append(self._next)
            self._sent += 1
            self._next = next(self._deliveries, None)
        if batch:
            worker.in_hand = batch
            worker.received += len(batch)
            self.received += len(batch)
            worker.connection.send(([delivery.raw for delivery in batch], hang_at))

    def _may_send(self, now_us: int) -> bool:
        """Keep to the pace, so that a person can watch."""
        return self._per_second is None or self._sent < (now_us - self._started_us) / 1_000_000 * self._per_second

    def _take_answers(self, worker: Worker, answers: list[Answer]) -> None:
        again = []
        for delivery, (verdict, column, reason, acknowledged) in zip(worker.in_hand, answers, strict=True):
            self.columns[column] += 1
            self.reasons.setdefault(column, reason)
            if acknowledged:
                worker.acknowledged += 1
                if delivery.n in self._orphans:
                    self._orphans.discard(delivery.n)
                    worker.took_over += verdict == "fresh"
            else:
                again.append(delivery)
        worker.in_hand = []
        self._come_again(again)

    def _come_again(self, deliveries: list[Delivery]) -> None:
        due_us = self._clock.monotonic_us() + REDELIVER_AFTER_US
        self._again.extend((due_us, delivery) for delivery in deliveries)
