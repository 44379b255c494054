"""Asks the ledger for claims: repeated where a reply was lost, and not at all while it is known to be out of reach."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from oncebridge.breaker import Breaker, Open
from oncebridge.errors import LedgerUnavailable
from oncebridge.retry import RetryPolicy

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from oncebridge.claim import Answer, Ask
    from oncebridge.clock import Clock
    from oncebridge.intake.tasks import Task
    from oncebridge.ledgers.protocol import Ledger, WorksAhead

T = TypeVar("T")

CLAIM_TRIES: Final = 3  # a claim is repeated under its nonce, so a lost reply does no harm
_BACKOFF: Final = RetryPolicy(base_seconds=0.05, cap_seconds=1.0)


def ledger_breaker(clock: Clock) -> Breaker:
    """Make the breaker that all calls of one bridge to its ledger share.

    One call that had no luck at any of its tries does not open it yet; if the next one fails too, it does.
    """
    return Breaker(clock, failures=CLAIM_TRIES + 1)


def reach(breaker: Breaker, call: Callable[[], T]) -> T:
    """Call the ledger through its breaker; while that is open, say at once that the ledger is out of reach."""
    try:
        with breaker.call(LedgerUnavailable):
            return call()
    except Open as shut:
        raise LedgerUnavailable(
            f"the ledger was out of reach {shut.failures} times in a row and is tried next in "
            f"{shut.again_in_us / 1_000_000:.1f} s; the last time: {shut.last}"
        ) from None


class Asking:
    """Asks for claims."""

    def __init__(
        self, ledger: Ledger, breaker: Breaker, clock: Clock, *, lease_us: int, stopping: threading.Event
    ) -> None:
        """Take the ledger and its breaker, how long claims run, and what ends the wait for a repeat."""
        self._ledger = ledger
        self._breaker = breaker
        self._clock = clock
        self._lease_us = lease_us
        self._stopping = stopping

    def claim(self, tasks: Sequence[Task], *, alone: bool, nonce: bytes | None = None) -> list[Answer]:
        """Ask for these in one call, under a new nonce unless one is given; return an answer for each, in order.

        Raises `LedgerUnavailable`, and then nothing is known: a claim that was granted all the same runs out.
        """
        asks = [replace(task.ask, alone=True) if alone else task.ask for task in tasks]
        self._stamp(tasks)
        return self._claim(asks, secrets.token_bytes(8) if nonce is None else nonce, attempt=1)

    def start(self, ledger: WorksAhead, tasks: Sequence[Task]) -> Callable[[], list[Answer]]:
        """Ask for these now, and return what waits for the answers; these repeat the call if it was lost."""
        asks = [task.ask for task in tasks]
        self._stamp(tasks)
        nonce = secrets.token_bytes(8)
        if self._breaker.again_in_us:
            return lambda: self._claim(asks, nonce, attempt=1)
        try:
            under_way = ledger.start_claim(asks, nonce=nonce, lease_us=self._lease_us)
        except LedgerUnavailable:
            return lambda: self._claim(asks, nonce, attempt=1)

        def answers() -> list[Answer]:
            try:
                with self._breaker.informed_by(LedgerUnavailable):
                    return under_way()
            except LedgerUnavailable:
                if self._clock.wait(self._stopping, _BACKOFF.delay_seconds(1)):
                    raise
                return self._claim(asks, nonce, attempt=2)

        return answers

    def _stamp(self, tasks: Sequence[Task]) -> None:
        """Note the time before the first try, which may be the one that counts."""
        asked_us = self._clock.monotonic_us()
        for task in tasks:
            task.asked_us = asked_us

    def _claim(self, asks: list[Ask], nonce: bytes, *, attempt: int) -> list[Answer]:
        while True:
            try:
                return reach(self._breaker, lambda: self._ledger.claim(asks, nonce=nonce, lease_us=self._lease_us))
            except LedgerUnavailable:
                # No repeat is let through while the breaker is open: then there is nothing to wait for.
                if attempt == CLAIM_TRIES or self._breaker.again_in_us:
                    raise
                if self._clock.wait(self._stopping, _BACKOFF.delay_seconds(attempt)):
                    raise
                attempt += 1
