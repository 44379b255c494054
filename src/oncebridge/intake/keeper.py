"""Keeps claims alive in the background while their handlers work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec

from oncebridge.errors import LedgerRefused, LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

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


class Keeper:
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
        self._held: set[Held] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, helds: Iterable[Held]) -> None:
        """Keep these alive from now on."""
        with self._lock:
            self._held.update(helds)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="oncebridge-keeper", daemon=True)
                self._thread.start()

    def forget(self, helds: Iterable[Held]) -> None:
        """Stop keeping these alive."""
        with self._lock:
            self._held.difference_update(helds)

    def ensure(self, held: Held, now_us: int) -> bool:
        """Make sure just before its handler starts that a claim still runs; False if it was taken over."""
        if not held.lost and held.runs_until_us - now_us < self._lease_us // 2:
            self._extend([held])
        held.started_us = now_us
        return not held.lost

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        self._stop.clear()

    def _run(self) -> None:
        while not self._clock.wait(self._stop, self._lease_us / 3_000_000):
            self.tick()

    def tick(self) -> None:
        """Extend what is held and in time."""
        now_us = self._clock.monotonic_us()
        with self._lock:
            due = [held for held in self._held if not (held.lost or held.over or self._timed_out(held, now_us))]
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
