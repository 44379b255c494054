"""Claims and their leases.

A claim call is repeated where its reply was lost, and not made while the ledger is known to be out of reach. Leases are
extended in the background while handlers work under them.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from oncebridge import forks
from oncebridge.breaker import Breaker, Open
from oncebridge.claim import Claim
from oncebridge.clock import Stop
from oncebridge.engine.waiting import BACKOFF, CALL_TRIES
from oncebridge.errors import LedgerRefused, LedgerUnavailable, OncebridgeError
from oncebridge.threads import background, start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncebridge.claim import Answer, Ask
    from oncebridge.clock import Clock
    from oncebridge.engine.task import Lease, Task
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

        Raises `LedgerUnavailable`; the outcome is then unknown, and a claim that was granted runs out.
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
                # While the breaker is open no repeat gets through, so there is nothing to wait for.
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
        #: Whether the call has failed, so that a repeat can bring nothing new.
        self._is_known = False

    @property
    def runs_until_us(self) -> int:
        """Until when the claims that it is granted surely run."""
        return self.asked_us + self._claimer.lease_us

    def answers(self) -> list[Answer]:
        """Return an answer for each ask, in order."""
        try:
            return self._claimer.claim(self)
        except OncebridgeError:
            self._is_known = True
            raise

    def granted(self) -> list[Claim]:
        """Return claims that were granted in an answer nobody saw: the call is repeated under its nonce."""
        if self._is_known:
            return []
        answers = self._claimer.claim_once(self)
        return [
            Claim(ask, one.token, one.attempt, one.chain)
            for ask, one in zip(self.asks, answers, strict=True)
            if one.token
        ]


class Holds(Protocol):
    """Holds leases, for as long as they are to be extended."""

    leases: list[Lease]

    @property
    def is_over(self) -> bool:
        """Whether no handler works under any of them any more."""
        ...


class _Thread:
    """The signal that ends the thread, and those that say it has begun and ended."""

    def __init__(self) -> None:
        self.begun = Stop()
        self.stop = Stop()
        self.ended = Stop()


class LeaseExtender:
    """Extends every lease each third of its time, until its handler's timeout and no longer."""

    def __init__(
        self, ledger: Ledger, breaker: Breaker, clock: Clock, *, lease_us: int, handler_timeout_us: int
    ) -> None:
        """Start no thread yet: most batches end before the first tick."""
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
        """Do nothing: the child uses none of it."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start over in the child: its parent's claims are not its own, and the thread does not exist there."""
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
                start([background(self._run, thread, name="oncebridge-extender")])
                thread.begun.wait()
                self._thread = thread
            except BaseException:  # it may run anyway
                self._thread = None
                thread.stop.set()
                raise

    def forget(self, holds: Holds) -> None:
        """Extend them no longer."""
        self._watched.discard(holds)

    def ensure(self, lease: Lease, now_us: int) -> bool:
        """Check just before a handler starts that its lease still runs; False if another worker took it over."""
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
            if holds.is_over:  # an interrupt prevented the end from being noted
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
