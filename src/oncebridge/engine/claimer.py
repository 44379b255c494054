"""Claims: calls that are repeated where a reply was lost, and not made while the ledger is known to be out of reach."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from oncebridge.breaker import Breaker, Open
from oncebridge.claim import Claim
from oncebridge.engine.waiting import BACKOFF, CALL_TRIES
from oncebridge.errors import LedgerUnavailable, OncebridgeError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from oncebridge.claim import Answer, Ask
    from oncebridge.clock import Clock
    from oncebridge.engine.task import Task
    from oncebridge.ledgers.protocol import Ledger

T = TypeVar("T")


def ledger_breaker(clock: Clock) -> Breaker:
    """Make the breaker that all calls of one bridge to its ledger share.

    One call that failed at each of its tries does not open it yet; if the next one fails too, it does.
    """
    return Breaker(clock, failures=CALL_TRIES + 1)


def reach(breaker: Breaker, call: Callable[[], T]) -> T:
    """Call the ledger through its breaker; while that is open, raise at once that the ledger is out of reach."""
    try:
        with breaker.call(LedgerUnavailable):
            return call()
    except Open as shut:
        raise LedgerUnavailable(
            f"the ledger was out of reach {shut.failures} times in a row and is tried next in "
            f"{shut.retry_in_us / 1_000_000:.1f} s; the last time: {shut.last}"
        ) from None


class Claimer:
    """Asks the ledger for claims."""

    def __init__(
        self, ledger: Ledger, breaker: Breaker, clock: Clock, *, lease_us: int, stopping: threading.Event
    ) -> None:
        """Take the ledger and its breaker, how long claims run, and the event that ends the wait for a repeat."""
        self._ledger = ledger
        self._breaker = breaker
        self._clock = clock
        self.lease_us = lease_us
        self._stopping = stopping

    def prepare(self, tasks: Sequence[Task], *, alone: bool = False, nonce: bytes | None = None) -> ClaimCall:
        """Return the call that asks for these, under a new nonce unless one is given; it is not made yet."""
        asks = [replace(task.ask, alone=True) if alone else task.ask for task in tasks]
        # The time before the first try, which may be the one that counts.
        return ClaimCall(self, asks, secrets.token_bytes(8) if nonce is None else nonce, self._clock.monotonic_us())

    def claim(self, call: ClaimCall) -> list[Answer]:
        """Make a call; return an answer for each ask, in order.

        Raises `LedgerUnavailable`, and then nothing is known: a claim that was granted all the same runs out.
        """
        return self._repeated(lambda: self.claim_once(call))

    def extend(self, claim: Claim) -> bool:
        """Extend one claim to a whole lease from now; False where it is no longer in force."""
        (ok,) = self._repeated(lambda: self._extend_once(claim))
        return ok

    def _extend_once(self, claim: Claim) -> list[bool]:
        with self._breaker.informed_by(LedgerUnavailable):
            return self._ledger.extend([claim], lease_us=self.lease_us)

    def _repeated(self, call: Callable[[], T]) -> T:
        attempt = 1
        while True:
            try:
                return call()
            except LedgerUnavailable:
                # No repeat is let through while the breaker is open: then there is nothing to wait for.
                if attempt == CALL_TRIES or self._breaker.retry_in_us:
                    raise
                if self._clock.wait(self._stopping, BACKOFF.delay_seconds(attempt)):
                    raise
                attempt += 1

    def claim_once(self, call: ClaimCall) -> list[Answer]:
        """Make a call, for the first time or again."""
        return reach(self._breaker, lambda: self._ledger.claim(call.asks, nonce=call.nonce, lease_us=self.lease_us))


class ClaimCall:
    """One call for claims: its asks, and the nonce that it is known by when it is repeated."""

    __slots__ = ("_claimer", "_is_known", "asked_us", "asks", "nonce")

    def __init__(self, claimer: Claimer, asks: list[Ask], nonce: bytes, asked_us: int) -> None:
        """Ask for nothing yet."""
        self._claimer = claimer
        self.asks = asks
        self.nonce = nonce
        self.asked_us = asked_us
        #: Whether the call has failed, so that nothing more can be learnt by repeating it.
        self._is_known = False

    @property
    def runs_until_us(self) -> int:
        """Until when claims that it is granted surely run."""
        return self.asked_us + self._claimer.lease_us

    def answers(self) -> list[Answer]:
        """Return an answer for each ask, in order."""
        try:
            return self._claimer.claim(self)
        except OncebridgeError:
            self._is_known = True
            raise

    def granted(self) -> list[Claim]:
        """Return the claims that were granted although nobody saw the answer: the call is repeated under its nonce."""
        if self._is_known:
            return []
        answers = self._claimer.claim_once(self)
        return [
            Claim(ask, one.token, one.attempt, one.chain)
            for ask, one in zip(self.asks, answers, strict=True)
            if one.token
        ]
