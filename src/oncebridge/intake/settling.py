"""Settles claims as their handlers finish: together where that is quick, but never much later than the effect.

What was done but not yet settled is done again after a crash. So nothing waits longer than about a
millisecond, and nothing waits for a handler that is likely to take longer than that.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.claim import Letter, Outcome, Settlement
from oncebridge.errors import LedgerUnavailable
from oncebridge.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.clock import Clock
    from oncebridge.intake.keeper import Held
    from oncebridge.ledgers.protocol import Ledger

_BACKOFF: Final = RetryPolicy(base_seconds=0.05, cap_seconds=1.0)


class _Waiting(msgspec.Struct, frozen=True):
    settlement: Settlement
    held: Held
    report: Callable[[bool], None]


class Settling:
    """Collects the ends of claims and writes them in as few calls as time allows."""

    def __init__(self, ledger: Ledger, clock: Clock, *, within_us: int) -> None:
        """Take the ledger, and how long an end may wait for others."""
        self._ledger = ledger
        self._clock = clock
        self._within_us = within_us
        self._waiting: list[_Waiting] = []
        self._oldest_us = 0
        self._lock = threading.RLock()
        self._never = threading.Event()

    def add(
        self,
        held: Held,
        outcome: Outcome,
        again_in_us: int,
        letter: Letter | None,
        report: Callable[[bool], None],
        *,
        took_us: int,
    ) -> None:
        """Take one end; write it now if another handler like this one would keep it too long."""
        now_us = self._clock.monotonic_us()
        with self._lock:
            if not self._waiting:
                self._oldest_us = now_us
            self._waiting.append(_Waiting(Settlement(held.claim, outcome, again_in_us, letter), held, report))
            if now_us - self._oldest_us + took_us >= self._within_us:
                self.flush()

    def flush(self) -> None:
        """Write what waits, trying for as long as its leases last."""
        with self._lock:
            if self._waiting:
                kept = self._settle(self._waiting)  # if that raises they still wait, for `release`
                waiting, self._waiting = self._waiting, []
                for one, ok in zip(waiting, kept, strict=True):
                    one.report(ok)

    def _settle(self, waiting: list[_Waiting]) -> list[bool]:
        settlements = [one.settlement for one in waiting]
        attempt = 1
        while True:
            try:
                return self._ledger.settle(settlements)
            except LedgerUnavailable:
                if self._clock.monotonic_us() >= min(one.held.runs_until_us for one in waiting):
                    raise  # too late: whoever claims next repeats these under the same keys
                self._clock.wait(self._never, _BACKOFF.delay_seconds(attempt))
                attempt += 1

    def release(self, helds: list[Held]) -> None:
        """Write what waits and give the rest back, once: for a process on its way out."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            ended = {one.settlement.claim for one in waiting}
            settlements = [one.settlement for one in waiting]
            settlements += [Settlement(held.claim, Outcome.RELEASE) for held in helds if held.claim not in ended]
            with suppress(LedgerUnavailable):
                self._ledger.settle(settlements)
