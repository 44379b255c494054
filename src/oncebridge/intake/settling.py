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

    from oncebridge.breaker import Breaker
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

    def __init__(self, ledger: Ledger, breaker: Breaker, clock: Clock, *, within_us: int) -> None:
        """Take the ledger and the breaker that learns from it, and how long an end may wait for others."""
        self._ledger = ledger
        self._breaker = breaker
        self._clock = clock
        self._within_us = within_us
        self._waiting: list[_Waiting] = []
        self._oldest_us = 0
        self._lock = threading.RLock()
        self._never = threading.Event()
        #: Whether somebody has waited in vain until the leases were over: nobody else has to.
        self._patience_over = False

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
        """Write what waits, trying for as long as its leases last: a stop does not end that, an effect is done."""
        with self._lock:
            if self._waiting:
                # If this raises they still wait, for `release`.
                kept = self._patiently([one.settlement for one in self._waiting])
                self._report(kept)

    def release(self, helds: list[Held], *, patiently: bool) -> None:
        """Write what waits and give the rest back: once, or patiently if anything waits that was done."""
        with self._lock:
            ended = {one.settlement.claim for one in self._waiting}
            settlements = [one.settlement for one in self._waiting]
            settlements += [Settlement(held.claim, Outcome.RELEASE) for held in helds if held.claim not in ended]
            settle = self._patiently if patiently and self._waiting else self._once
            with suppress(LedgerUnavailable):
                self._report(settle(settlements)[: len(self._waiting)])

    def _patiently(self, settlements: list[Settlement]) -> list[bool]:
        # Until the last lease is over: what ran out before is still settled if nobody took it over. Judged once,
        # since a ledger that is half there may let claims be extended for ever.
        give_up_us = max(one.held.runs_until_us for one in self._waiting)
        attempt = 1
        while True:
            try:
                return self._once(settlements)
            except LedgerUnavailable:
                left_us = give_up_us - self._clock.monotonic_us()
                if left_us <= 0 or self._patience_over:
                    self._patience_over = True
                    raise  # too late: whoever claims next repeats these under the same keys
                self._clock.wait(self._never, min(_BACKOFF.delay_seconds(attempt), left_us / 1_000_000))
                attempt += 1

    def _once(self, settlements: list[Settlement]) -> list[bool]:
        with self._breaker.informed_by(LedgerUnavailable):
            return self._ledger.settle(settlements)

    def _report(self, kept: list[bool]) -> None:
        waiting, self._waiting = self._waiting, []
        for one, ok in zip(waiting, kept, strict=True):
            one.report(ok)
