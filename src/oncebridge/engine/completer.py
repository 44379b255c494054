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
from oncebridge.clock import NEVER
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.breaker import Breaker
    from oncebridge.claim import Claim
    from oncebridge.clock import Clock
    from oncebridge.engine.extender import Held
    from oncebridge.engine.runner import Ended
    from oncebridge.engine.runs import Run
    from oncebridge.engine.task import Task
    from oncebridge.ledgers.protocol import Ledger, WorksAhead

_BACKOFF: Final = RetryPolicy(base_seconds=0.05, cap_seconds=1.0)


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A task whose handler has ended, and how its claim is settled."""

    task: Task
    held: Held
    ended: Ended
    settlement: Settlement
    took_us: int


def finished_as(task: Task, held: Held, ended: Ended, took_us: int) -> Finished:
    """Write down how a task ended; what is dead leaves a letter."""
    letter = None
    if ended.outcome is Outcome.DEAD:
        letter = Letter(raw=task.raw, reason=ended.reason, detail=ended.detail)
    settlement = Settlement(held.claim, ended.outcome, ended.retry_in_us, letter)
    return Finished(task, held, ended, settlement, took_us)


class BatchCompleter:
    """Collects the ends of claims and writes them in as few calls as time allows."""

    def __init__(
        self,
        ledger: Ledger,
        breaker: Breaker,
        clock: Clock,
        *,
        run: Run,
        within_us: int,
        report: Callable[[Finished, bool], None],
        ahead: WorksAhead | None = None,
    ) -> None:
        """Take the ledger and the breaker that learns from it, and the run whose ends these are.

        They may wait for as long as `within_us`, and `report` is told of them. With `ahead`, ends are on their way
        while the next handler runs; then only one thread may add them.
        """
        self._ledger = ledger
        self._breaker = breaker
        self._clock = clock
        self._run = run
        self._within_us = within_us
        self._tell = report
        self._ahead = ahead
        self._waiting: list[Finished] = []
        self._under_way: list[tuple[list[Finished], Callable[[], list[bool]]]] = []
        self._oldest_us = 0
        self._lock = threading.RLock()
        #: Whether somebody has waited in vain until the leases were over: nobody else has to.
        self._patience_over = False

    def add(self, finished: Finished, now_us: int) -> None:
        """Take one end; write it now if another handler like this one would keep it too long."""
        with self._lock:
            if not self._waiting:
                self._oldest_us = now_us
            self._waiting.append(finished)
            if now_us - self._oldest_us + finished.took_us >= self._within_us:
                self.flush()

    def add_together(self, finished: list[Finished], now_us: int) -> None:
        """Take the ends of several that one call has brought: they need not be written one by one."""
        with self._lock:
            if not self._waiting:
                self._oldest_us = now_us
            self._waiting += finished[:-1]
            self.add(finished[-1], now_us)

    def flush(self, *, soon: bool = False) -> None:
        """Write what waits, or let it be on its way; with `soon`, more is asked for right away, and it goes along."""
        with self._lock:
            if not self._waiting:
                return
            if self._ahead is None:
                # If this raises they still wait, for `release`.
                kept = self._patiently([one.settlement for one in self._waiting], self._waiting)
                self._report(kept)
                return
            waiting = self._waiting
            started = self._started(self._ahead, [one.settlement for one in waiting], soon=soon)
            self._under_way.append((waiting, started))
            self._waiting = []

    def _started(self, ahead: WorksAhead, settlements: list[Settlement], *, soon: bool) -> Callable[[], list[bool]]:
        self._run.check()
        try:
            return ahead.start_settle(settlements, soon=soon)
        except LedgerUnavailable:
            return lambda: self._once(settlements)

    def finish(self) -> None:
        """Write what waits, and wait for what is on its way."""
        self.flush()
        with self._lock:
            while self._under_way:
                finished, answers = self._under_way[0]  # it stays there until its answer is known
                self._run.check()
                try:
                    with self._breaker.informed_by(LedgerUnavailable):
                        kept = answers()
                except LedgerUnavailable:
                    # They wait again, first of all: a repeat that finds its own outcome is fine.
                    self._wait_again(finished)
                    self._report(self._patiently([one.settlement for one in self._waiting], self._waiting))
                else:
                    self._report_to(finished, kept)
                    del self._under_way[0]

    def _wait_again(self, finished: list[Finished]) -> None:
        """Let ends wait first of all whose way is not known; none of them twice."""
        self._waiting = finished + [one for one in self._waiting if one not in finished]
        del self._under_way[0]

    def release(self, untried: list[Claim], *, patiently: bool) -> None:
        """Write what waits and give the rest back: once, or patiently if anything waits that was done."""
        with self._lock:
            while self._under_way:
                self._collect(*self._under_way[0])
            # By event and handler: an interrupt may have left one in two places.
            ends = {_at(one.settlement.claim): one for one in self._waiting if not one.held.over}
            self._waiting = list(ends.values())
            settlements = [one.settlement for one in self._waiting]
            rest = {_at(claim): claim for claim in untried}
            settlements += [Settlement(claim, Outcome.RELEASE) for at, claim in rest.items() if at not in ends]
            if not settlements:
                return
            with suppress(LedgerUnavailable, LedgerRefused):
                if patiently and self._waiting:
                    kept = self._patiently(settlements, self._waiting)
                else:
                    kept = self._once(settlements)
                self._report(kept[: len(self._waiting)])

    def _collect(self, finished: list[Finished], answers: Callable[[], list[bool]]) -> None:
        try:
            kept = answers()
        except (LedgerUnavailable, LedgerRefused):
            self._wait_again(finished)
        else:
            self._report_to(finished, kept)
            del self._under_way[0]

    def _patiently(self, settlements: list[Settlement], done: list[Finished]) -> list[bool]:
        """Try for as long as the leases last: a stop does not end that, since an effect is done."""
        # Until the last lease is over: what ran out before is still settled if nobody took it over. Judged once,
        # since a ledger that is half there may let claims be extended for ever.
        give_up_us = max(one.held.runs_until_us for one in done)
        attempt = 1
        while True:
            try:
                return self._once(settlements)
            except LedgerUnavailable:
                left_us = give_up_us - self._clock.monotonic_us()
                if left_us <= 0 or self._patience_over:
                    self._patience_over = True
                    raise  # too late: whoever claims next repeats these under the same keys
                self._clock.wait(NEVER, min(_BACKOFF.delay_seconds(attempt), left_us / 1_000_000))
                attempt += 1

    def _once(self, settlements: list[Settlement]) -> list[bool]:
        self._run.check()
        with self._breaker.informed_by(LedgerUnavailable):
            return self._ledger.settle(settlements)

    def _report(self, kept: list[bool]) -> None:
        waiting, self._waiting = self._waiting, []
        self._report_to(waiting, kept)

    def _report_to(self, finished: list[Finished], kept: list[bool]) -> None:
        for one, ok in zip(finished, kept, strict=True):
            self._tell(one, ok)


def _at(claim: Claim) -> tuple[bytes, str]:
    return claim.ask.key, claim.ask.handler
