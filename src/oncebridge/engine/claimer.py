"""Asks the ledger for claims: repeated where a reply was lost, and not at all while it is known to be out of reach."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from oncebridge.breaker import Breaker, Open
from oncebridge.claim import Claim
from oncebridge.errors import LedgerUnavailable, OncebridgeError
from oncebridge.retry import RetryPolicy

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from oncebridge.claim import Answer, Ask
    from oncebridge.clock import Clock
    from oncebridge.engine.task import Task
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
            f"{shut.retry_in_us / 1_000_000:.1f} s; the last time: {shut.last}"
        ) from None


class Claimer:
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

    def prepared(self, tasks: Sequence[Task], *, alone: bool = False, nonce: bytes | None = None) -> Asked:
        """Return the call that asks for these, under a new nonce unless one is given; it is not made yet."""
        asks = [replace(task.ask, alone=True) if alone else task.ask for task in tasks]
        asked_us = self._clock.monotonic_us()  # before the first try, which may be the one that counts
        for task in tasks:
            task.asked_us = asked_us
        return Asked(self, asks, secrets.token_bytes(8) if nonce is None else nonce)

    def start(self, ledger: WorksAhead, asked: Asked) -> None:
        """Make a call whose answers are waited for later; these repeat it if it was lost."""
        if not self._breaker.retry_in_us:
            with suppress(LedgerUnavailable):
                asked.under_way = ledger.start_claim(asked.asks, nonce=asked.nonce, lease_us=self._lease_us)

    def claim(self, asked: Asked) -> list[Answer]:
        """Make a call, or wait for the answers of one that is under way; return an answer for each, in order.

        Raises `LedgerUnavailable`, and then nothing is known: a claim that was granted all the same runs out.
        """
        attempt = 1
        if asked.under_way is not None:
            try:
                with self._breaker.informed_by(LedgerUnavailable):
                    return asked.under_way()
            except LedgerUnavailable:
                if self._clock.wait(self._stopping, _BACKOFF.delay_seconds(1)):
                    raise
                attempt = 2
        while True:
            try:
                return self.claim_once(asked)
            except LedgerUnavailable:
                # No repeat is let through while the breaker is open: then there is nothing to wait for.
                if attempt == CLAIM_TRIES or self._breaker.retry_in_us:
                    raise
                if self._clock.wait(self._stopping, _BACKOFF.delay_seconds(attempt)):
                    raise
                attempt += 1

    def claim_once(self, asked: Asked) -> list[Answer]:
        """Make a call, for the first time or again."""
        return reach(self._breaker, lambda: self._ledger.claim(asked.asks, nonce=asked.nonce, lease_us=self._lease_us))


class Asked:
    """One call for claims: what it asks for, and what it is known by when it is repeated."""

    __slots__ = ("_asking", "_is_known", "asks", "nonce", "under_way")

    def __init__(self, asking: Claimer, asks: list[Ask], nonce: bytes) -> None:
        """Ask for nothing yet."""
        self._asking = asking
        self.asks = asks
        self.nonce = nonce
        #: What waits for the answers, where the call was started before.
        self.under_way: Callable[[], list[Answer]] | None = None
        #: Whether the call has come to an end, so that there is nothing more to learn by asking again.
        self._is_known = False

    def answers(self) -> list[Answer]:
        """Return an answer for each, in order."""
        try:
            return self._asking.claim(self)
        except OncebridgeError:
            self._is_known = True
            raise

    def granted(self) -> list[Claim]:
        """Return what was granted although nobody saw the answer: it is asked for once more under its nonce."""
        if self._is_known:
            return []
        answers = self._answers_again()
        return [Claim(ask, one.token, one.attempt) for ask, one in zip(self.asks, answers, strict=True) if one.token]

    def _answers_again(self) -> list[Answer]:
        if self.under_way is not None:
            with suppress(LedgerUnavailable):
                return self.under_way()
        return self._asking.claim_once(self)
