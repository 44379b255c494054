"""Asks the ledger for claims: repeated where a reply was lost, and not at all while it is known to be out of reach."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from oncebridge.breaker import Breaker, Open
from oncebridge.errors import LedgerUnavailable
from oncebridge.retry import RetryPolicy

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence

    from oncebridge.claim import Answer
    from oncebridge.clock import Clock
    from oncebridge.intake.tasks import Task
    from oncebridge.ledgers.protocol import Ledger

CLAIM_TRIES: Final = 3  # a claim is repeated under its nonce, so a lost reply does no harm
_BACKOFF: Final = RetryPolicy(base_seconds=0.05, cap_seconds=1.0)


def ledger_breaker(clock: Clock) -> Breaker:
    """Make the breaker that all calls of one bridge to its ledger share.

    One call that had no luck at any of its tries does not open it yet; if the next one fails too, it does.
    """
    return Breaker(clock, failures=CLAIM_TRIES + 1)


@contextmanager
def reaching(breaker: Breaker) -> Iterator[None]:
    """Call the ledger through its breaker; while that is open, say at once that the ledger is out of reach."""
    try:
        with breaker.call(LedgerUnavailable):
            yield
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

    def claim(self, tasks: Sequence[Task], *, alone: bool) -> list[Answer]:
        """Ask for these in one call; return an answer for each, in order.

        Raises `LedgerUnavailable`, and then nothing is known: a claim that was granted all the same runs out.
        """
        asks = [replace(task.ask, alone=True) if alone else task.ask for task in tasks]
        asked_us = self._clock.monotonic_us()  # before the first try, which may be the one that counts
        for task in tasks:
            task.asked_us = asked_us
        nonce = secrets.token_bytes(8)
        attempt = 1
        while True:
            try:
                with reaching(self._breaker):
                    return self._ledger.claim(asks, nonce=nonce, lease_us=self._lease_us)
            except LedgerUnavailable:
                # No repeat is let through while the breaker is open: then there is nothing to wait for.
                if attempt == CLAIM_TRIES or self._breaker.again_in_us:
                    raise
                if self._clock.wait(self._stopping, _BACKOFF.delay_seconds(attempt)):
                    raise
                attempt += 1
