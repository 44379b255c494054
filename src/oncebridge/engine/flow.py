"""The one way that every delivery takes: read, claim, judge, run, complete.

A batch is one claim call: its facts, and for each entity the chain of its states, in order of arrival. The worker that
holds an entity judges each state just before its turn, on the entity as the state before left it. Further rounds are
for tasks that were not granted: busy events, conflicts, and events whose last claim ran out, which are claimed alone.
A busy event is waited for only while nothing is held.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import force_setattr, replace

from oncebridge.claim import Answer, Outcome, Verdict, judge, newest_of
from oncebridge.engine.attending import attending
from oncebridge.engine.batch_order import BatchOrder, chains, give_up, is_busy, waves
from oncebridge.engine.claimer import Claimer, LeaseExtender
from oncebridge.engine.completer import BatchCompleter, SettleTime
from oncebridge.engine.joining import join_unreadable
from oncebridge.engine.letter_room import LetterRoom
from oncebridge.engine.limits import USUAL, BatchLimits
from oncebridge.engine.paused import Paused
from oncebridge.engine.reader import Reader
from oncebridge.engine.result import Result, reason_for
from oncebridge.engine.runner import HandlerRunner, check_transaction, escapes, group_for_send_many
from oncebridge.engine.runs import Run, Runs
from oncebridge.engine.side_by_side import Handling, is_one_of_ours, run_side_by_side
from oncebridge.engine.task import (
    Delivery,
    Ended,
    Task,
    as_twin,
    claim_of,
    copy_task,
    is_letter,
    is_over,
    move_of,
    result_as,
    result_from,
    results_of,
    stopped,
    who,
    withhold,
)
from oncebridge.engine.waiting import CALL_TRIES, busy_wait_us
from oncebridge.identity import key_text
from oncebridge.ledgers.protocol import SettlesAhead
from oncebridge.telemetry.failures import FailureLog

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence

    from oncebridge.breaker import Breaker
    from oncebridge.clock import Clock
    from oncebridge.engine.completer import Settled
    from oncebridge.engine.task import At, Lease
    from oncebridge.event import Event
    from oncebridge.handlers import Handler, Handlers
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.settings import Settings
    from oncebridge.telemetry import Telemetry
    from oncebridge.topics import Profiles

T = TypeVar("T")

_STOPPED = Ended(outcome=Outcome.RELEASE, reason="stopped before it was tried")
_NO_NEWS = {verdict: Ended(outcome=Outcome(verdict.value), reason="") for verdict in (Verdict.ECHO, Verdict.STALE)}


class Flow:
    """Processes deliveries."""

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
        on_unhandled: Callable[[str], None],
        on_settled: Callable[[Sequence[Settled]], None] | None = None,
        copiers: tuple[Handler, ...] = (),
        paused: Paused | None = None,
    ) -> None:
        """Take the parts; nothing is started before there is work. `copiers` send dead letters on."""
        #: Handlers that are not called for now.
        self.paused = paused or Paused()
        self.on_settled = on_settled
        self.ledger = ledger
        self.secret = secret
        #: Whether no handler is called and no dead letter is kept.
        self.is_shadow = settings.shadow
        self.clock = clock
        self.breaker = breaker
        self.stopping = stopping
        self._settings = settings
        self._attending = attending(ledger, clock, settings)
        self.telemetry = telemetry
        self._lease_us = int(settings.lease_seconds * 1_000_000)
        timeout_us = int(settings.handler_timeout_seconds * 1_000_000)
        self._copiers = copiers
        self.reader = Reader(secret, handlers=handlers, profiles=profiles, settings=settings, on_unhandled=on_unhandled)
        self._claimer = self.claimer(self._lease_us)
        self._extender = LeaseExtender(ledger, breaker, clock, lease_us=self._lease_us, handler_timeout_us=timeout_us)
        self._runner = HandlerRunner(ledger, settings)
        self.failures = FailureLog(telemetry, clock, log_errors=settings.log_errors)
        self._ahead = ledger if isinstance(ledger, SettlesAhead) else None
        self._settle_time = SettleTime(int(settings.settle_within_seconds * 1_000_000))
        self.letter_room = LetterRoom(ledger, clock, telemetry, settings)
        self._handlers = handlers
        self._runs = Runs(self._is_handler, self._end_background, settings.handler_timeout_seconds, self._report)
        self._refresh_flags()
        for handler in () if self.is_shadow else handlers:
            check_transaction(handler, ledger)

    def run(self, raws: Sequence[Any], limits: BatchLimits = USUAL) -> list[Result]:
        """Process a batch; return the result of each delivery, in order."""
        return self._run(limits, partial(self._process, raws))

    def _run(self, limits: BatchLimits, work: Callable[[Run], T]) -> T:
        self._refresh_flags()
        return self._runs.run(limits, work)

    def _process(self, raws: Sequence[Any], run: Run) -> list[Result]:
        seconds = run.limits.busy_wait_seconds
        seconds = self._settings.busy_wait_seconds if seconds is None else seconds
        give_up_us = self.clock.monotonic_us() + int(seconds * 1_000_000)
        deliveries = [self.reader.read(raw) for raw in raws]
        requests = run.limits.requests
        if requests and not self.is_shadow:
            join_unreadable(deliveries, requests, self.secret)
        tasks = [task for delivery in deliveries for task in delivery.tasks]
        # Unreadable deliveries of one request may share a task.
        errors = self._bring_to_results(list(dict.fromkeys(tasks)) if requests else tasks, give_up_us, run)
        return results_of(deliveries, errors) if errors else [delivery.result for delivery in deliveries]

    def read(self, raw: Any) -> Delivery:
        """Parse and identify one delivery, and find the handlers that take it."""
        return self.reader.read(raw)

    def process(
        self, deliveries: Iterable[Delivery], *, busy_wait_seconds: float = 0, limits: BatchLimits = USUAL
    ) -> dict[At, BaseException]:
        """Bring deliveries to a result, those that have one again unless it is final; return what handlers raised."""
        tasks = [task for delivery in deliveries for task in delivery.tasks if not is_over(task)]
        for task in tasks:
            task.result, task.withheld = task.withheld, None
        give_up_us = self.clock.monotonic_us() + int(busy_wait_seconds * 1_000_000)
        return self._run(limits, partial(self._bring_to_results, tasks, give_up_us))

    def _bring_to_results(self, tasks: list[Task], give_up_us: int, run: Run) -> dict[At, BaseException]:
        self._rounds(tasks, give_up_us, run)
        if self._copiers:
            self._send_on(tasks, give_up_us, run)
        return {} if run.errors is None else run.take_errors()

    def send_on(self, tasks: list[Task]) -> None:
        """Send dead letters to the queues and buses beside the ledger; an unsent one is not acknowledged."""
        self._run(USUAL, partial(self._send_on, tasks, self.clock.monotonic_us()))

    # --- claims for handlers that run elsewhere --------------------------------------------------------

    def claim_alone(self, task: Task, *, lease_us: int, nonce: bytes | None = None) -> Answer:
        """Claim one event for a handler that runs elsewhere; a state that is no news is settled at once."""
        return self._run(USUAL, partial(self._claim_alone, task, lease_us, nonce))

    def _claim_alone(self, task: Task, lease_us: int, nonce: bytes | None, run: Run) -> Answer:
        with self.completer(run) as completer:
            call = self.claimer(lease_us).prepare([task], alone=True, nonce=nonce)
            completer.expect(call)
            (task.answer,) = call.answers()
            if task.answer.chain is None:
                return task.answer
            verdict = judge(task.ask, newest_of(task.answer.chain))
            if verdict is Verdict.FRESH:
                return task.answer
            completer.hold([task], call.runs_until_us)
            completer.end(task, _NO_NEWS[verdict], self.clock.monotonic_us())
            ((_, ok),) = completer.finish()
            task.answer = Answer(verdict if ok else Verdict.BUSY)
            return task.answer

    def settle_alone(self, task: Task, ended: Ended) -> bool:
        """Settle the claim of a task whose handler ran elsewhere; False if it was taken over."""
        return self._run(USUAL, partial(self._settle_alone, task, ended))

    def _settle_alone(self, task: Task, ended: Ended, run: Run) -> bool:
        with self.completer(run, tries=CALL_TRIES) as completer:
            now_us = self.clock.monotonic_us()
            completer.hold([task], now_us + self._lease_us)
            completer.end(task, ended, now_us)
            ((_, ok),) = completer.finish()
        return ok

    def claimer(self, lease_us: int) -> Claimer:
        """Make a claimer whose claims run this long."""
        return Claimer(self.ledger, self.breaker, self.clock, lease_us=lease_us, stopping=self.stopping)

    def completer(self, run: Run, ahead: SettlesAhead | None = None, tries: int | None = None) -> BatchCompleter:
        """Make a completer for the claims of a run."""
        return BatchCompleter(
            self.ledger,
            self.breaker,
            self.clock,
            run=run,
            extender=self._extender,
            settle_time=self._settle_time,
            ahead=ahead,
            tries=tries,
        )

    def _refresh_flags(self) -> None:
        """Check once per batch whether anyone listens to moves, and whether any handler takes several events."""
        self._listening = self.telemetry.listening
        self._sends_many = any(handler.many > 1 for handler in self._handlers)

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Wait for running handlers, release the rest, and end the background threads."""
        self._runs.close(then)

    def _is_handler(self) -> bool:
        """Return whether the caller is a thread that runs handlers beside their batch."""
        return is_one_of_ours() or self._runner.loop.is_current()

    def _end_background(self) -> None:
        self._extender.close()
        self._runner.close()
        self.failures.close()

    # --- rounds --------------------------------------------------------------------------------------

    def _concurrency(self, run: Run) -> int:
        return run.limits.concurrency or self._settings.concurrency

    def _must_stop(self, run: Run) -> bool:
        """Return whether nothing more may begin."""
        until_us = run.limits.until_us
        out_of_time = until_us is not None and self.clock.monotonic_us() >= until_us
        return out_of_time or self._runs.is_closing or self.stopping.is_set()

    def _rounds(self, tasks: list[Task], give_up_us: int, run: Run) -> None:
        """Give every task a result; those that already have one only serve their copies."""
        order = BatchOrder(tasks, self._as_twin)
        while asked := order.front():
            if self._must_stop(run):
                for task in order.waiting:
                    task.result = stopped(task)
                return
            self._round(asked, order, run)
            busy = [task for task in asked if is_busy(task)]
            order.move_up()
            if busy and len(busy) == len(order.front()) and not self._waited(busy, give_up_us):
                give_up(busy, order.waiting)
                order.move_up()

    def _as_twin(self, task: Task, first: Task) -> Result:
        """Give a copy of an event in this batch the end of the first one."""
        result = as_twin(task, first)
        if self._listening:
            self.telemetry.record(move_of("claimed", task, result.reason))
        return result

    def _waited(self, busy: list[Task], give_up_us: int) -> bool:
        """Wait for busy tasks, while nothing is held; False once the time for that is over."""
        left_us = give_up_us - self.clock.monotonic_us()
        if left_us > 0:
            self.clock.wait(self.stopping, busy_wait_us(busy, left_us) / 1_000_000)
        return left_us > 0

    def _send_on(self, tasks: list[Task], give_up_us: int, run: Run) -> None:
        copies = [(task, copy_task(task, copier)) for task in tasks if is_letter(task) for copier in self._copiers]
        if not copies:
            return
        self._rounds([copy for _, copy in copies], give_up_us, run)
        for task, copy in copies:
            if not is_over(copy):
                withhold(task, copy)

    def _round(self, tasks: list[Task], order: BatchOrder, run: Run) -> None:
        """Claim these, and bring the granted ones to their ends."""
        for task in self._claim_and_run(tasks, run, alone=len(tasks) == 1):
            order.cut(task)
            self._claim_and_run([task], run, alone=True)  # by itself, just before its handler starts: it ran out

    def _claim_and_run(self, tasks: list[Task], run: Run, *, alone: bool) -> list[Task]:
        """Claim and run tasks; return those that must be claimed alone."""
        with self.completer(run, self._ahead if self._concurrency(run) == 1 else None) as completer:
            call = self._claimer.prepare(tasks, alone=alone)
            completer.expect(call)
            granted, lonely = self._sort(tasks, call.answers())
            completer.hold(granted, call.runs_until_us)
            self._run_all(granted, completer)
            self._report(completer.finish())
        return lonely

    def _sort(self, tasks: list[Task], answers: list[Answer]) -> tuple[list[Task], list[Task]]:
        """Return the granted tasks, and those that must be claimed alone; duplicates get their result here."""
        granted: list[Task] = []
        lonely: list[Task] = []
        for task, answer in zip(tasks, answers, strict=True):
            task.answer = answer
            if answer.verdict is Verdict.FRESH:
                if answer.token == 0:
                    lonely.append(task)
                    continue
                granted.append(task)
                if answer.chain is not None:
                    continue  # its verdict is reported at its turn
            elif answer.verdict is Verdict.CONFLICT:
                self._note_claimed(task, answer)
                self.reader.turn_into_conflict(task)
                continue
            elif answer.verdict is not Verdict.BUSY:
                task.result = result_from(task, answer)
            if self._listening:
                self._note_claimed(task, answer)
        return granted, lonely

    def _note_claimed(self, task: Task, answer: Answer) -> None:
        if self._listening:
            self.telemetry.record(move_of("claimed", task, reason_for(answer), now_us=self.clock.now_us()))

    # --- run -----------------------------------------------------------------------------------------

    def _run_all(self, tasks: list[Task], completer: BatchCompleter) -> None:
        """Bring granted tasks to their ends, in order of arrival."""
        concurrency = self._concurrency(completer.run)
        if self._sends_many:
            for wave in waves(tasks):
                self._run_wave(wave, completer, concurrency)
        elif concurrency == 1 or len(tasks) == 1:
            now_us = self.clock.monotonic_us()
            for task in tasks:
                now_us = self._run_one(task, now_us, completer)
        else:
            run_side_by_side([self._handling(chain, completer) for chain in chains(tasks)], concurrency)

    def _run_wave(self, tasks: list[Task], completer: BatchCompleter, concurrency: int) -> None:
        """Run tasks of which no two share a lease; tasks for one sink share a few calls."""
        groups, alone = group_for_send_many([task for task in tasks if not self._ended_untried(task, completer)])
        if concurrency > 1 and len(groups) + len(alone) > 1:
            handlings = [Handling(_leases(group), partial(self._run_group, group, completer)) for group in groups]
            run_side_by_side([*handlings, *(self._handling([task], completer) for task in alone)], concurrency)
            return
        for group in groups:
            self._run_group(group, completer)
        for task in alone:
            self._run_one(task, self.clock.monotonic_us(), completer)

    def _handling(self, chain: list[Task], completer: BatchCompleter) -> Handling:
        return Handling(_leases(chain[:1]), partial(self._run_chain, chain, completer))

    def _run_chain(self, chain: list[Task], completer: BatchCompleter) -> None:
        for task in chain:
            self._run_one(task, self.clock.monotonic_us(), completer)

    def _run_one(self, task: Task, started_us: int, completer: BatchCompleter) -> int:
        """Bring one granted task to its end; return the time then."""
        if self._ended_untried(task, completer):
            return started_us
        lease, handler, run = task.lease, task.handler, completer.run
        assert lease is not None
        assert handler is not None
        if not self._extender.ensure(lease, started_us):
            return started_us  # taken over before it was tried: claimed again in the next round
        if handler.wants_transaction and lease.newest is not None:
            completer.write_through()  # the ends before it in its chain, since the transaction settles this one
        given = self._event_for(task) if task.copy is None else task.copy
        ended, error = self._runner.run(handler, given, task, run.limits.attempts if task.copy is None else None)
        now_us = self.clock.monotonic_us()
        self._end(task, ended, now_us, now_us - started_us, completer)
        if error is not None:
            self._note_failure(task, error, run)
            error = None  # this frame is one of its traceback's
        return now_us

    def _note_failure(self, task: Task, error: BaseException, run: Run) -> None:
        """Keep a handler's exception for its result, and log it; raise one that ends more than its handler."""
        run.failed(task.at, error)
        ended = task.ended
        assert ended is not None
        if ended.outcome is not Outcome.DEAD:  # that is reported once the letter is kept
            move = move_of("failed", task, ended.reason)
            self.failures.failed(move, who(task), type(error).__name__, place=ended.place, detail=ended.detail)
        if run.limits.escapes and escapes(error):
            raise error

    def _ended_untried(self, task: Task, completer: BatchCompleter) -> bool:
        """End a task whose handler must not be called, or leave one whose lease is lost; False if neither applies."""
        lease, run = task.lease, completer.run
        assert lease is not None
        if lease.lost or task.claim is None:
            return True
        ended: Ended | None = None
        if self._must_stop(run):
            ended = _STOPPED
        elif task.dead_reason is not None:
            ended = Ended(outcome=Outcome.DEAD, reason=task.dead_reason)
        else:
            if lease.newest is not None:
                ended = self._judged(task, lease)
            if ended is None and self.paused.reasons:
                ended = self._runner.paused(task, self.paused.reasons, run.limits.attempts)
            if ended is None and task.claim.attempt > 1:
                assert task.handler is not None
                ended = self._runner.ran_out(task.handler, task.claim, run.limits.attempts)
        if ended is None:
            return False
        self._end(task, ended, self.clock.monotonic_us(), 0, completer)
        return True

    def _judged(self, task: Task, lease: Lease) -> Ended | None:
        """Report the verdict of a state at its turn; return its end if it is no news."""
        assert lease.newest is not None
        assert task.answer is not None
        verdict = judge(task.ask, lease.newest)
        if verdict is not Verdict.FRESH:
            task.answer = replace(task.answer, verdict=verdict)
        if self._listening:
            self._note_claimed(task, task.answer)
        return _NO_NEWS.get(verdict)

    def _end(self, task: Task, ended: Ended, now_us: int, took_us: int, completer: BatchCompleter) -> None:
        """Settle one task as its handler ended; a dead letter only if there is room for one."""
        if ended.outcome is Outcome.DEAD:
            ended = self.letter_room.checked(task, ended)
        completer.end(task, ended, now_us, took_us)

    def _run_group(self, tasks: list[Task], completer: BatchCompleter) -> None:
        """Bring several granted tasks of one handler to their ends in one call."""
        handler, limits, started_us = tasks[0].handler, completer.run.limits, self.clock.monotonic_us()
        assert handler is not None
        ready = []
        for task in tasks:
            assert task.lease is not None
            if self._must_stop(completer.run):
                self._end(task, _STOPPED, started_us, 0, completer)
            elif self._extender.ensure(task.lease, started_us):  # otherwise claimed again in the next round
                ready.append(task)
        if not ready:
            return
        events, claims = [self._event_for(task) for task in ready], [claim_of(task) for task in ready]
        worked = self._runner.run_many(handler, events, claims, limits.attempts)
        now_us = self.clock.monotonic_us()
        ends = [self.letter_room.checked(task, ended) for task, (ended, _) in zip(ready, worked, strict=True)]
        completer.end_together(ready, ends, now_us, now_us - started_us)
        for task, (_, error) in zip(ready, worked, strict=True):
            if error is not None:
                self._note_failure(task, error, completer.run)

    def _event_for(self, task: Task) -> Event:
        """Return the event as its handler gets it: its body unchanged, with the claim's token and attempt."""
        assert task.event is not None
        event, given, claim = task.event, task.body_was_given, claim_of(task)
        task.body_was_given = True
        if not given and claim.attempt == 1 and not task.ask.redrive:
            force_setattr(event, "token", claim.token)  # nobody has seen it yet
            return event
        if given:
            event = self.reader.with_own_body(event)
        return replace(event, key=key_text(task.ask.key), token=claim.token, attempt=claim.attempt)

    def _report(self, settled: list[Settled]) -> None:
        """Give tasks their results, once their claims are settled."""
        if self.on_settled is not None:
            self.on_settled(settled)
        if self._attending is not None:
            self._attending.note(settled)
        for task, ok in settled:
            ended = task.ended
            assert ended is not None
            outcome, reason = ended.outcome, ended.reason
            if not ok:
                outcome, reason = Outcome.RETRY, "its claim was taken over while its handler ran; to be looked at again"
            elif outcome is not Outcome.DONE and outcome in (Outcome.ECHO, Outcome.STALE):
                assert task.answer is not None
                task.result = result_from(task, task.answer)
                continue
            verdict = task.reported_verdict or Verdict.FRESH
            task.result = result_as(task, verdict, outcome, reason, retry_in_us=ended.retry_in_us)
            if self._listening or outcome is Outcome.DEAD:
                move = "settled" if ok else "lost"
                made = move_of(move, task, reason, outcome=outcome, duration_ms=task.took_us / 1000)
                if outcome is Outcome.DEAD:
                    self.failures.kept(made, who(task), place=ended.place, detail=ended.detail)
                else:
                    self.telemetry.record(made)


def _leases(tasks: list[Task]) -> list[Lease]:
    return [task.lease for task in tasks if task.lease is not None]
