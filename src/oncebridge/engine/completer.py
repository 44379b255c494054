"""Completes claims: settles them as their handlers finish, in few calls, and releases those that were not tried.

An effect that is done but not yet settled is done again after a crash. So no end waits longer than about a
millisecond, or than a settle takes if that is longer, and none waits for a handler that is likely to take longer.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from oncebridge.claim import Outcome, Settlement, newest_after, newest_of, write_newest
from oncebridge.clock import NEVER
from oncebridge.engine.task import end, hold, settlements_of
from oncebridge.engine.waiting import BACKOFF
from oncebridge.errors import LedgerRefused, LedgerUnavailable, OncebridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oncebridge.breaker import Breaker
    from oncebridge.claim import Claim, Newest
    from oncebridge.clock import Clock
    from oncebridge.engine.claimer import ClaimCall, LeaseExtender
    from oncebridge.engine.runs import Run
    from oncebridge.engine.task import At, Ended, Lease, Task
    from oncebridge.ledgers.protocol import Ledger, SettlesAhead

WAIT_US_MAX: Final = 10_000  # however long a settle takes


#: A task that has ended, and whether its claim was still in force.
Settled: TypeAlias = "tuple[Task, bool]"


class SettleTime:
    """How long the last settle took: ends may wait as long for each other."""

    def __init__(self, at_least_us: int) -> None:
        """Take how long ends may wait in any case; 0: never."""
        self.within_us = self._at_least_us = at_least_us

    def note(self, took_us: int) -> None:
        """Note how long a settle took."""
        if self._at_least_us:
            self.within_us = min(max(took_us, self._at_least_us), max(WAIT_US_MAX, self._at_least_us))


class BatchCompleter:
    """Holds the claims of one round, and settles them in as few calls as time allows."""

    def __init__(
        self,
        ledger: Ledger,
        breaker: Breaker,
        clock: Clock,
        *,
        run: Run,
        extender: LeaseExtender,
        settle_time: SettleTime,
        ahead: SettlesAhead | None = None,
        tries: int | None = None,
    ) -> None:
        """Take the ledger, the breaker that learns from it, the run whose claims these are, and their extender.

        With `ahead`, a settle is on its way while the next handler runs; then only one thread may add ends. A settle is
        tried `tries` times, or for as long as the leases last.
        """
        self._tries = tries
        self._ledger = ledger
        self._breaker = breaker
        self._clock = clock
        self.run = run
        self._extender = extender
        self._settle_time = settle_time
        self._ahead = ahead
        #: Leases that are extended meanwhile.
        self.leases: list[Lease] = []
        self._held: list[Task] = []
        #: The call whose answers are not held yet: claims that it was granted are released, too.
        self._asked: ClaimCall | None = None
        self._waiting: list[Task] = []
        self._under_way: tuple[list[Task], Callable[[], list[bool]]] | None = None
        self._oldest_us = 0
        self._settled: list[Settled] = []
        self._lock = threading.RLock()
        #: Whether one wait for the ledger lasted until the leases ended: no further wait is needed.
        self._patience_over = False

    @property
    def is_over(self) -> bool:
        """Whether none of its claims is worked on any more."""
        return self.run.is_over

    # --- holding -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Begin; if the run breaks off, it knows which claims to release."""
        self.run.completers.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """End, unless the run breaks off."""
        if error is None:
            self._extender.forget(self)
            self.run.completers.remove(self)

    def expect(self, call: ClaimCall) -> None:
        """Note a claim call before it is made."""
        self.run.check()
        self._asked = call

    def hold(self, tasks: list[Task], runs_until_us: int) -> None:
        """Take in the claims that these tasks were granted, and extend them from now on."""
        if tasks:
            hold(tasks, runs_until_us)
            self._held += tasks
            self.leases += {id(task.lease): task.lease for task in tasks if task.lease is not None}.values()
            self._extender.watch(self)
        self._asked = None

    # --- ends ----------------------------------------------------------------------------------------

    def end(self, task: Task, ended: Ended, now_us: int, took_us: int = 0) -> None:
        """Take the end of one task; write it now if another handler like this one would delay it too long."""
        end(task, ended, took_us)
        if ended.settled or ended.lost:  # in its handler's own transaction
            self._conclude([task], [not ended.lost])
            return
        with self._lock:
            if not self._waiting:
                self._oldest_us = now_us
            self._waiting.append(task)
            if now_us - self._oldest_us + took_us >= self._settle_time.within_us:
                self.flush()

    def end_together(self, tasks: list[Task], ends: list[Ended], now_us: int, took_us: int) -> None:
        """Take the ends of several tasks from one call: they need not be written one by one."""
        with self._lock:
            if not self._waiting:
                self._oldest_us = now_us
            for task, ended in zip(tasks[:-1], ends[:-1], strict=True):
                end(task, ended, took_us)
                self._waiting.append(task)
            self.end(tasks[-1], ends[-1], now_us, took_us)

    def flush(self) -> None:
        """Write the pending ends; where the ledger can, they are on their way when this returns."""
        with self._lock:
            if not self._waiting:
                return
            if self._ahead is None:
                # If this raises they still wait, for `release`.
                kept = self._patiently(settlements_of(self._waiting), self._waiting)
                waiting, self._waiting = self._waiting, []
                self._conclude(waiting, kept)
                return
            self._await_under_way()
            if not self._waiting:  # settled just now, with those whose settle was lost
                return
            waiting = self._waiting
            started = self._started(self._ahead, settlements_of(waiting))
            self._under_way = waiting, started
            self._waiting = []

    def _started(self, ahead: SettlesAhead, settlements: list[Settlement]) -> Callable[[], list[bool]]:
        self.run.check()
        try:
            return ahead.start_settle(settlements)
        except LedgerUnavailable:
            return lambda: self._once(settlements)

    def write_through(self) -> None:
        """Write the pending ends, and wait for those on their way."""
        with self._lock:
            self.flush()
            self._await_under_way()

    def finish(self) -> list[Settled]:
        """Write everything, and return all that was settled since the last time."""
        self.write_through()
        settled, self._settled = self._settled, []
        return settled

    def _await_under_way(self) -> None:
        if self._under_way is None:
            return
        finished, answers = self._under_way  # it stays there until its answer is known
        self.run.check()
        try:
            with self._breaker.informed_by(LedgerUnavailable):
                kept = answers()
        except LedgerUnavailable:
            # They are pending again, first in line: a repeat that finds its own outcome is fine.
            self._wait_again(finished)
            kept = self._patiently(settlements_of(self._waiting), self._waiting)
            waiting, self._waiting = self._waiting, []
            self._conclude(waiting, kept)
        else:
            self._conclude(finished, kept)
            self._under_way = None

    def _wait_again(self, finished: list[Task]) -> None:
        """Put ends whose settle may have been lost first in line again, none of them twice."""
        self._waiting = finished + [one for one in self._waiting if one not in finished]
        self._under_way = None

    # --- release -------------------------------------------------------------------------------------

    def give_back(self, *, patiently: bool) -> list[Settled]:
        """Write the pending ends and release the rest; a handler that still runs elsewhere keeps its claim."""
        with self._lock:
            if self._under_way is not None:
                self._collect(*self._under_way)
            # By event and handler: an interrupt may have left one in two places.
            ends = {task.at: task for task in self._waiting if task.claim is not None}
            self._waiting = list(ends.values())
            self._end_broken_transactions(ends)
            settlements = settlements_of(self._waiting) + self._releases(ends)
            if settlements:
                with suppress(LedgerUnavailable, LedgerRefused):
                    if patiently and self._waiting:
                        kept = self._patiently(settlements, self._waiting)
                    else:
                        kept = self._once(settlements)
                    waiting, self._waiting = self._waiting, []
                    self._conclude(waiting, kept[: len(waiting)])
            self._extender.forget(self)
            settled, self._settled = self._settled, []
            return settled

    def _collect(self, finished: list[Task], answers: Callable[[], list[bool]]) -> None:
        try:
            kept = answers()
        except (LedgerUnavailable, LedgerRefused):
            self._wait_again(finished)
        else:
            self._conclude(finished, kept)
            self._under_way = None

    def _end_broken_transactions(self, ended: Iterable[At]) -> None:
        """Release events whose transaction broke off; a refusal means that it has committed after all.

        The rest of a chain is released with the state of its entity after that. If that is unknown, its lease runs out.
        """
        for task in self._held:
            claim, lease = task.claim, task.lease
            if claim is None or lease is None or lease.in_transaction is not claim:
                continue
            if lease.newest is None or claim.chain is None or lease.runs_elsewhere or task.at in ended:
                continue
            released = newest_after(lease.newest, claim.ask, Outcome.RELEASE, claim.chain.now_us)
            release = Settlement(claim, Outcome.RELEASE, data=write_newest(released), frees=lease.left == 1)
            lease.lost = True
            with suppress(LedgerUnavailable, LedgerRefused):
                (ok,) = self._once([release])
                done = newest_after(lease.newest, claim.ask, Outcome.DONE, claim.chain.now_us)
                lease.newest, lease.lost, task.claim = released if ok else done, False, None

    def _releases(self, ended: Iterable[At]) -> list[Settlement]:
        """Return the releases of all claims held without an end, and of those whose grant was never seen."""
        known = set(ended)
        claims: dict[At, tuple[Claim, Newest | None]] = {}
        for task in self._held:
            lease = task.lease
            if task.claim is None or lease is None or lease.lost or lease.runs_elsewhere:
                continue
            if task.at not in known:
                claims[task.at] = task.claim, lease.newest
        if self._asked is not None:
            with suppress(OncebridgeError):
                for claim in self._asked.granted():
                    newest = None if claim.chain is None else newest_of(claim.chain)
                    claims.setdefault(_at(claim), (claim, newest))
        return _released(list(claims.values()))

    # --- calls ---------------------------------------------------------------------------------------

    def _patiently(self, settlements: list[Settlement], done: Sequence[Task]) -> list[bool]:
        """Try for as long as the leases last; a stop does not end this, since the effect is done."""
        # Until the last lease ends: a claim that ran out earlier is still settled if nobody took it over. Computed
        # once, since a ledger that only half works may let claims be extended for ever.
        give_up_us = max(task.lease.runs_until_us for task in done if task.lease is not None)
        attempt = 1
        while True:
            try:
                return self._once(settlements)
            except LedgerUnavailable:
                left_us = give_up_us - self._clock.monotonic_us()
                if left_us <= 0 or self._patience_over or attempt == self._tries:
                    self._patience_over = True
                    raise  # too late: the next worker to claim these repeats them under the same keys
                self._clock.wait(NEVER, min(BACKOFF.delay_seconds(attempt), left_us / 1_000_000))
                attempt += 1

    def _once(self, settlements: list[Settlement]) -> list[bool]:
        self.run.check()
        started_us = self._clock.monotonic_us()
        with self._breaker.informed_by(LedgerUnavailable):
            kept = self._ledger.settle(settlements)
        self._settle_time.note(self._clock.monotonic_us() - started_us)
        return kept

    def _conclude(self, finished: list[Task], kept: list[bool]) -> None:
        for task, ok in zip(finished, kept, strict=True):
            lease, settlement = task.lease, task.settlement
            assert lease is not None
            assert settlement is not None
            if not ok:
                lease.lost = True  # the rest of its chain goes back, too
            elif settlement.frees:
                lease.over = True
            task.claim = None
            self._settled.append((task, ok))


def _released(claims: list[tuple[Claim, Newest | None]]) -> list[Settlement]:
    """Return releases, in order; the last one of each entity frees it."""
    last = {claim.ask.entity: place for place, (claim, _) in enumerate(claims)}
    releases = []
    for place, (claim, newest) in enumerate(claims):
        data = b""
        if newest is not None and claim.chain is not None:
            data = write_newest(newest_after(newest, claim.ask, Outcome.RELEASE, claim.chain.now_us))
        frees = last[claim.ask.entity] == place
        releases.append(Settlement(claim, Outcome.RELEASE, data=data, frees=frees))
    return releases


def _at(claim: Claim) -> At:
    return (claim.ask.key, claim.ask.handler) if claim.ask.handler else claim.ask.key
