"""Extends leases in the background while handlers work under them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from oncebridge import forks
from oncebridge.clock import Stop
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.threads import background, start

if TYPE_CHECKING:
    from oncebridge.breaker import Breaker
    from oncebridge.clock import Clock
    from oncebridge.engine.task import Lease
    from oncebridge.ledgers.protocol import Ledger


class Holds(Protocol):
    """Holds leases, for as long as they are to be extended."""

    leases: list[Lease]

    @property
    def is_over(self) -> bool:
        """Whether none of them is worked under any more."""
        ...


class _Thread:
    """What ends the thread, and what tells that it has begun and ended."""

    def __init__(self) -> None:
        self.begun = Stop()
        self.stop = Stop()
        self.ended = Stop()


class LeaseExtender:
    """Extends every lease each third of its time, until its handler's timeout and no longer."""

    def __init__(
        self, ledger: Ledger, breaker: Breaker, clock: Clock, *, lease_us: int, handler_timeout_us: int
    ) -> None:
        """Start no thread yet: most batches are over before the first tick."""
        self._ledger = ledger
        self._breaker = breaker
        self._clock = clock
        self._lease_us = lease_us
        self._handler_timeout_us = handler_timeout_us
        #: Changed and copied in one step each, so that no lock is needed.
        self._watched: set[Holds] = set()
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: nothing of it is used in the child."""

    def after_fork(self, *, in_child: bool) -> None:
        """Begin anew in the child: its parent's claims are not its own, and the thread is not there."""
        if in_child:
            self._watched = set()
            self._lock = threading.Lock()
            self._thread = None

    def watch(self, holds: Holds) -> None:
        """Extend these leases from now on, and those that are added later."""
        self._watched.add(holds)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            thread = _Thread()
            try:
                start([background(self._run, thread, name="oncebridge-keeper")])
                thread.begun.wait()
                self._thread = thread
            except BaseException:  # it may run all the same
                self._thread = None
                thread.stop.set()
                raise

    def forget(self, holds: Holds) -> None:
        """Extend them no longer."""
        self._watched.discard(holds)

    def ensure(self, lease: Lease, now_us: int) -> bool:
        """Make sure just before a handler starts that its lease still runs; False if it was taken over."""
        if not lease.lost and lease.runs_until_us - now_us < self._lease_us // 2:
            self._extend([lease])
        lease.started_us = now_us
        return not lease.lost

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop.set()
            thread.ended.wait()

    def _run(self, thread: _Thread) -> None:
        thread.begun.set()
        try:
            while not self._clock.wait(thread.stop, self._lease_us / 3_000_000):
                self.tick()
        finally:
            thread.ended.set()

    def tick(self) -> None:
        """Extend the leases that are held and in time."""
        now_us = self._clock.monotonic_us()
        due: list[Lease] = []
        for holds in list(self._watched):
            if holds.is_over:  # an interrupt kept it from saying so
                self.forget(holds)
            else:
                due += [one for one in list(holds.leases) if not (one.lost or one.over or self._timed_out(one, now_us))]
        if due:
            try:
                self._extend(due)
            except (LedgerUnavailable, LedgerRefused):
                return  # the batch meets the same error; the next tick tries again, as long as the leases last

    def _timed_out(self, lease: Lease, now_us: int) -> bool:
        started_us = lease.started_us
        return started_us is not None and now_us - started_us > self._handler_timeout_us

    def _extend(self, leases: list[Lease]) -> None:
        now_us = self._clock.monotonic_us()
        with self._breaker.informed_by(LedgerUnavailable):
            kept = self._ledger.extend([lease.claim for lease in leases], lease_us=self._lease_us)
        for lease, ok in zip(leases, kept, strict=True):
            if ok:
                lease.runs_until_us = now_us + self._lease_us
            elif not lease.over:  # it may have been settled meanwhile
                lease.lost = True
