"""The one flow that every delivery takes: read, ask, handle, settle.

A batch is worked off in rounds. A round asks for each event and each entity once, in one call, and works
off what it was granted before the next: so a batch gets the verdicts that its deliveries would get one at a
time. Whatever is busy is waited for only when nothing is held.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from oncebridge.claim import Answer, Claim, Letter, Outcome, Verdict
from oncebridge.errors import LedgerUnavailable
from oncebridge.identity import key_text
from oncebridge.intake.asking import Asking
from oncebridge.intake.keeper import Held, Keeper
from oncebridge.intake.reading import Reader
from oncebridge.intake.results import Result, reason_for
from oncebridge.intake.settling import Settling
from oncebridge.intake.tasks import (
    Delivery,
    Task,
    as_twin,
    claim_of,
    each_once,
    give_up,
    is_over,
    move_of,
    names,
    result_from,
    stopped,
)
from oncebridge.intake.work import Ended, Work, check_transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncebridge.breaker import Breaker
    from oncebridge.clock import Clock
    from oncebridge.handlers import Handlers
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.settings import Settings
    from oncebridge.telemetry import Telemetry
    from oncebridge.topics import Profiles

POLL_US: Final = 50_000  # how often a busy event is asked for again


class Flow:
    """Works deliveries off."""

    def __init__(
        self,
        ledger: Ledger,
        secret: bytes,
        *,
        handlers: Handlers,
        profiles: Profiles,
        settings: Settings,
        telemetry: Telemetry,
        clock: Clock,
        breaker: Breaker,
        stopping: threading.Event,
    ) -> None:
        """Take the parts; nothing is started before there is work."""
        self.ledger = ledger
        self.secret = secret
        self.clock = clock
        self.breaker = breaker
        self.stopping = stopping
        self._settings = settings
        self._telemetry = telemetry
        self._lease_us = int(settings.lease_seconds * 1_000_000)
        timeout_us = int(settings.handler_timeout_seconds * 1_000_000)
        self._reader = Reader(secret, handlers=handlers, profiles=profiles, replays_anew=settings.replays_anew)
        self._asking = Asking(ledger, breaker, clock, lease_us=self._lease_us, stopping=stopping)
        self._keeper = Keeper(ledger, breaker, clock, lease_us=self._lease_us, handler_timeout_us=timeout_us)
        self._work = Work(ledger, settings.retry, timeout_us)
        for handler in handlers:
            check_transaction(handler, ledger)

    def run(self, raws: Sequence[Any]) -> list[Result]:
        """Work a batch off; return what became of each delivery, in order."""
        deliveries = [self.read(raw) for raw in raws]
        self.work_off(deliveries, busy_wait_seconds=self._settings.busy_wait_seconds)
        return [delivery.result for delivery in deliveries]

    def read(self, raw: Any) -> Delivery:
        """Parse and identify one delivery, and find the handlers that take it."""
        return self._reader.read(raw)

    def work_off(self, deliveries: Iterable[Delivery], *, busy_wait_seconds: float = 0) -> None:
        """Bring deliveries to a result; those that have one are tried again unless it is for good."""
        tasks = [task for delivery in deliveries for task in delivery.tasks if not is_over(task)]
        for task in tasks:
            task.result = None
        self._rounds(tasks, self.clock.monotonic_us() + int(busy_wait_seconds * 1_000_000))

    def close(self) -> None:
        """End what runs in the background."""
        self._keeper.close()
        self._work.close()

    # --- rounds --------------------------------------------------------------------------------------

    def _rounds(self, tasks: list[Task], give_up_us: int) -> None:
        """Give every task a result, round by round."""
        ended: dict[tuple[bytes, str], Task] = {}
        pending = tasks
        while pending:
            for task in pending:
                twin = ended.get(task.at)
                if twin is not None:
                    task.result = as_twin(task, twin)
                if task.result is not None and self._telemetry.listening:
                    self._telemetry.record(move_of("claimed", task, task.result.reason))
            pending = [task for task in pending if task.result is None]
            if self.stopping.is_set():
                for task in pending:
                    task.result = stopped(task)
                return
            asked = each_once(pending)
            busy = self._round(asked)
            ended.update((task.at, task) for task in asked if task.result is not None)
            if busy and len(busy) == len(asked) and not self._waited(busy, give_up_us):
                give_up(busy, pending)
            pending = [task for task in pending if task.result is None]

    def _waited(self, busy: list[Task], give_up_us: int) -> bool:
        """Wait for what is busy, while nothing is held; False once the time for that is over."""
        left_us = give_up_us - self.clock.monotonic_us()
        if left_us > 0:
            soonest_us = min(task.answer.busy_us for task in busy if task.answer is not None)
            self.clock.wait(self.stopping, max(1000, min(soonest_us, POLL_US, left_us)) / 1_000_000)
        return left_us > 0

    def _round(self, tasks: list[Task]) -> list[Task]:
        """Ask for these, work off what was granted, and return what is busy."""
        if not tasks:
            return []
        alone = len(tasks) == 1
        granted: list[Task] = []
        apart: list[Task] = []
        busy: list[Task] = []
        for task, answer in zip(tasks, self._asking.claim(tasks, alone=alone), strict=True):
            self._sort(task, answer, granted, apart, busy)
        self._work_off_granted(granted)
        for task in apart:
            self._one_alone(task, busy)
        return busy

    def _one_alone(self, task: Task, busy: list[Task]) -> None:
        """Claim by itself, just before its handler starts, an event whose last claim ran out."""
        granted: list[Task] = []
        (answer,) = self._asking.claim([task], alone=True)
        self._sort(task, answer, granted, [], busy)
        self._work_off_granted(granted)

    def _sort(self, task: Task, answer: Answer, granted: list[Task], apart: list[Task], busy: list[Task]) -> None:
        task.answer = answer
        if self._telemetry.listening:
            self._telemetry.record(move_of("claimed", task, reason_for(answer)))
        if answer.wants_alone:
            apart.append(task)
        elif answer.verdict is Verdict.FRESH:
            granted.append(task)
        elif answer.verdict is Verdict.BUSY:
            busy.append(task)
        elif answer.verdict is Verdict.CONFLICT:
            self._reader.turn_into_conflict(task)
        else:
            task.result = result_from(task, answer)

    # --- handle and settle ---------------------------------------------------------------------------

    def _work_off_granted(self, tasks: list[Task]) -> None:
        if not tasks:
            return
        helds = [Held(claim_of(task), task.asked_us + self._lease_us) for task in tasks]
        within_us = int(self._settings.settle_within_seconds * 1_000_000)
        settling = Settling(self.ledger, self.breaker, self.clock, within_us=within_us)
        self._keeper.watch(helds)
        try:
            self._handle_each(tasks, helds, settling)
            settling.flush()
        except BaseException as error:
            # Give back what was not tried; if that fails too, the leases run out.
            untried = [held for task, held in zip(tasks, helds, strict=True) if task.result is None]
            settling.release(untried, patiently=isinstance(error, LedgerUnavailable))
            raise
        finally:
            self._keeper.forget(helds)

    def _handle_each(self, tasks: list[Task], helds: list[Held], settling: Settling) -> None:
        pairs = list(zip(tasks, helds, strict=True))
        if self._settings.concurrency == 1 or len(tasks) == 1:
            for task, held in pairs:
                self._handle(task, held, settling)
            return
        with ThreadPoolExecutor(self._settings.concurrency, "oncebridge-handler") as pool:
            running = [pool.submit(self._handle, task, held, settling) for task, held in pairs]
            try:
                wait(running, return_when=FIRST_EXCEPTION)
            finally:
                # After a failure no other handler starts; those that run are waited for.
                pool.shutdown(cancel_futures=True)
        for handled in running:
            if not handled.cancelled():
                handled.result()

    def _handle(self, task: Task, held: Held, settling: Settling) -> None:
        """Bring one granted task to its end."""
        started_us = self.clock.monotonic_us()
        if self.stopping.is_set():
            ended = Ended(outcome=Outcome.RELEASE, reason="stopped before it was tried")
        elif task.bury is not None:
            ended = Ended(outcome=Outcome.DEAD, reason=task.bury)
        else:
            gone = self._work.ran_out(held.claim)
            if gone is None and not self._keeper.ensure(held):
                return  # taken over before it was tried: asked for again in the next round
            ended = gone or self._give(task, held.claim)
        self._settle(task, held, ended, started_us, settling)

    def _give(self, task: Task, claim: Claim) -> Ended:
        assert task.event is not None
        assert task.handler is not None
        event = replace(task.event, key=key_text(task.ask.key), token=claim.token, attempt=claim.attempt)
        return self._work.run(task.handler, event, claim)

    def _settle(self, task: Task, held: Held, ended: Ended, started_us: int, settling: Settling) -> None:
        now_us = self.clock.monotonic_us()

        def report(ok: bool) -> None:
            held.over = True
            reason = ended.reason if ok else "its claim was taken over while its handler ran; to be looked at again"
            outcome = ended.outcome if ok else Outcome.RETRY
            verdict = task.reported or Verdict.FRESH
            task.result = Result(
                verdict=verdict, outcome=outcome, reason=reason, again_in_us=ended.again_in_us, **names(task)
            )
            if self._telemetry.listening:
                duration_ms = (now_us - started_us) / 1000
                self._telemetry.record(
                    move_of("settled" if ok else "lost", task, reason, outcome=outcome, duration_ms=duration_ms)
                )

        if ended.settled or ended.lost:
            report(not ended.lost)
            return
        letter = None
        if ended.outcome is Outcome.DEAD:
            letter = Letter(raw=task.raw, reason=ended.reason, detail=ended.detail)
        settling.add(held, ended.outcome, ended.again_in_us, letter, report, took_us=now_us - started_us)
