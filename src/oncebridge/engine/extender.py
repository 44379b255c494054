"""Keeps claims alive in the background while their handlers work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

import msgspec

from oncebridge import forks
from oncebridge.clock import Stop
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.threads import background, start

if TYPE_CHECKING:
    from oncebridge.breaker import Breaker
    from oncebridge.claim import Claim
    from oncebridge.clock import Clock
    from oncebridge.ledgers.protocol import Ledger


class Held(msgspec.Struct, eq=False, gc=False):
    """A claim that this process holds, by its own monotonic clock."""

    claim: Claim
    #: Until when the claim surely runs: counted from before the ledger was asked.
    runs_until_us: int
    #: When its handler started; None while it waits for its turn.
    started_us: int | None = None
    lost: bool = False
    over: bool = False
    #: Whether its handler runs in another thread than the batch: an interrupt of the batch does not end it.
    runs_elsewhere: bool = False


class Holds(Protocol):
    """Who holds claims, for as long as they are to be kept alive."""

    held: list[Held]

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is worked on any more."""
        ...


class _Thread:
    """What ends the thread, and what tells that it has begun and ended."""

    def __init__(self) -> None:
        self.begun = Stop()
        self.stop = Stop()
        self.ended = Stop()


class LeaseExtender:
    """Extends every held claim each third of a lease, until its handler's time is over and no longer."""

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
        """Keep the claims of this one alive from now on, those too that come later."""
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
        """Stop keeping them alive."""
        self._watched.discard(holds)

    def ensure(self, held: Held, now_us: int) -> bool:
        """Make sure just before its handler starts that a claim still runs; False if it was taken over."""
        if not held.lost and held.runs_until_us - now_us < self._lease_us // 2:
            self._extend([held])
        held.started_us = now_us
        return not held.lost

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
        """Extend what is held and in time."""
        now_us = self._clock.monotonic_us()
        due: list[Held] = []
        for holds in list(self._watched):
            if holds.is_over:  # and whoever should have said so was interrupted
                self.forget(holds)
            else:
                due += [one for one in list(holds.held) if not (one.lost or one.over or self._timed_out(one, now_us))]
        if due:
            try:
                self._extend(due)
            except (LedgerUnavailable, LedgerRefused):
                return  # whoever works hears of it, too; the next tick tries again, as long as the leases last

    def _timed_out(self, held: Held, now_us: int) -> bool:
        return held.started_us is not None and now_us - held.started_us > self._handler_timeout_us

    def _extend(self, helds: list[Held]) -> None:
        now_us = self._clock.monotonic_us()
        with self._breaker.informed_by(LedgerUnavailable):
            kept = self._ledger.extend([held.claim for held in helds], lease_us=self._lease_us)
        for held, ok in zip(helds, kept, strict=True):
            if ok:
                held.runs_until_us = now_us + self._lease_us
            else:
                # It may have been settled while we asked; whoever settles it does not look at `lost`.
                held.lost = True
