"""The one flow that every delivery takes: read, ask, handle, settle.

A batch is worked off in rounds. A round asks for each event and each entity once, in one call, and works
off what it was granted before the next: so a batch gets the verdicts that its deliveries would get one at a
time. Whatever is busy is waited for only when nothing is held.

Where the ledger can work ahead, the first round is cut into slices: while the ledger looks at one, the next
is read, and the one before is handled.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import force_setattr, replace

from oncebridge.claim import Answer, Outcome, Verdict
from oncebridge.engine.claimer import Claimer
from oncebridge.engine.completer import BatchCompleter, Finished, finished_as
from oncebridge.engine.extender import Held, LeaseExtender
from oncebridge.engine.joining import join_unreadable
from oncebridge.engine.letter_room import LetterRoom
from oncebridge.engine.limits import USUAL, BatchLimits
from oncebridge.engine.lines import Lines
from oncebridge.engine.reader import Reader
from oncebridge.engine.result import Result, reason_for
from oncebridge.engine.runner import Ended, Work, Worked, check_transaction
from oncebridge.engine.runs import Run, Runs
from oncebridge.engine.scope import Holding
from oncebridge.engine.side_by_side import Handling, is_one_of_ours, run_side_by_side
from oncebridge.engine.task import (
    Delivery,
    Picking,
    Sorted,
    Task,
    as_twin,
    copy_task,
    give_up,
    is_letter,
    is_over,
    keep_back,
    move_of,
    result_as,
    result_from,
    stopped,
)
from oncebridge.engine.together import Granted, Group, gathered
from oncebridge.identity import key_text
from oncebridge.ledgers.protocol import WorksAhead

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence

    from oncebridge.breaker import Breaker
    from oncebridge.claim import Claim
    from oncebridge.clock import Clock
    from oncebridge.event import Event
    from oncebridge.handlers import Handler, Handlers
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.settings import Settings
    from oncebridge.telemetry import Telemetry
    from oncebridge.topics import Profiles

POLL_US: Final = 50_000  # how often a busy event is asked for again
SLICE: Final = 50  # deliveries that are read while the ledger looks at those before


T = TypeVar("T")


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
        on_unhandled: Callable[[str], None],
        copiers: tuple[Handler, ...] = (),
    ) -> None:
        """Take the parts; nothing is started before there is work. `copiers` send dead letters on."""
        self.ledger = ledger
        self.secret = secret
        self.clock = clock
        self.breaker = breaker
        self.stopping = stopping
        self._settings = settings
        self.telemetry = telemetry
        self._lease_us = int(settings.lease_seconds * 1_000_000)
        timeout_us = int(settings.handler_timeout_seconds * 1_000_000)
        self._copiers = copiers
        self.reader = Reader(secret, handlers=handlers, profiles=profiles, settings=settings, on_unhandled=on_unhandled)
        self._asking = Claimer(ledger, breaker, clock, lease_us=self._lease_us, stopping=stopping)
        self._keeper = LeaseExtender(ledger, breaker, clock, lease_us=self._lease_us, handler_timeout_us=timeout_us)
        self._work = Work(ledger, settings.retry, timeout_us)
        self.letter_room = LetterRoom(ledger, clock, telemetry, settings.dead_letters_max)
        self._handlers = handlers
        self._runs = Runs(self._is_handler, self._end_background, settings.handler_timeout_seconds)
        self._look_around()
        for handler in handlers:
            check_transaction(handler, ledger)

    def run(self, raws: Sequence[Any], terms: BatchLimits = USUAL) -> list[Result]:
        """Work a batch off; return what became of each delivery, in order."""
        return self._run(terms, partial(self._work_off_raws, raws))

    def _run(self, terms: BatchLimits, work: Callable[[Run], T]) -> T:
        self._look_around()
        return self._runs.run(terms, work)

    def _work_off_raws(self, raws: Sequence[Any], run: Run) -> list[Result]:
        seconds = run.terms.busy_wait_seconds
        seconds = self._settings.busy_wait_seconds if seconds is None else seconds
        give_up_us = self.clock.monotonic_us() + int(seconds * 1_000_000)
        # Ends that are on their way have one thread to wait for them.
        if len(raws) > SLICE and self._concurrency(run) == 1 and isinstance(self.ledger, WorksAhead):
            deliveries = self._run_ahead(self.ledger, raws, run)
        else:
            deliveries = [self.reader.read(raw) for raw in raws]
        requests = run.terms.requests
        if requests:
            join_unreadable(deliveries, requests, self.secret)
        tasks = [task for delivery in deliveries for task in delivery.tasks]
        self._bring_to_results(list(dict.fromkeys(tasks)) if requests else tasks, give_up_us, run)
        return [delivery.result for delivery in deliveries]

    def read(self, raw: Any) -> Delivery:
        """Parse and identify one delivery, and find the handlers that take it."""
        return self.reader.read(raw)

    def work_off(
        self, deliveries: Iterable[Delivery], *, busy_wait_seconds: float = 0, terms: BatchLimits = USUAL
    ) -> None:
        """Bring deliveries to a result; those that have one are tried again unless it is for good."""
        tasks = [task for delivery in deliveries for task in delivery.tasks if not is_over(task)]
        for task in tasks:
            task.result, task.kept = task.kept, None
        give_up_us = self.clock.monotonic_us() + int(busy_wait_seconds * 1_000_000)
        self._run(terms, partial(self._bring_to_results, tasks, give_up_us))

    def _bring_to_results(self, tasks: list[Task], give_up_us: int, run: Run) -> None:
        self._rounds(tasks, give_up_us, run)
        if self._copiers:
            self._send_on(tasks, give_up_us, run)

    def send_on(self, tasks: list[Task]) -> None:
        """Send dead letters to wherever they go beside the ledger; what could not be sent has to come again."""
        self._run(USUAL, partial(self._send_on, tasks, self.clock.monotonic_us()))

    def _look_around(self) -> None:
        """See, once for a batch, who is there: handlers and listeners may have come since the last."""
        self._listening = self.telemetry.listening
        self._sends_many = any(handler.many > 1 for handler in self._handlers)

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Let what runs finish, give back what was not tried, and end what runs in the background."""
        self._runs.close(then)

    def _is_handler(self) -> bool:
        """Tell whether the caller runs in a thread that handlers run in beside their batch."""
        return is_one_of_ours() or self._work.loop.is_current()

    def _end_background(self) -> None:
        self._keeper.close()
        self._work.close()

    # --- rounds --------------------------------------------------------------------------------------

    def _concurrency(self, run: Run) -> int:
        return run.terms.concurrency or self._settings.concurrency

    def _must_stop(self, run: Run) -> bool:
        """Tell whether nothing more may be begun."""
        return self.stopping.is_set() or self._runs.is_closing or run.is_out_of_time(self.clock)

    def _rounds(self, tasks: list[Task], give_up_us: int, run: Run) -> None:
        """Give every task a result, round by round; those that have one already are looked at for their twins."""
        if all(task.result is not None for task in tasks):
            return
        lines = Lines(tasks, self._as_twin)
        while asked := lines.front:
            if self._must_stop(run):
                for task in lines.waiting:
                    task.result = stopped(task)
                return
            busy = self._round(asked, run)
            lines.move_up(asked)
            if busy and len(busy) == len(asked) and not self._waited(busy, give_up_us):
                lines.end(give_up(busy, lines.waiting))

    def _as_twin(self, task: Task, twin: Task) -> Result | None:
        """Give what came twice in this batch the end of what came first."""
        result = as_twin(task, twin)
        if result is not None and self._listening:
            self.telemetry.record(move_of("claimed", task, result.reason))
        return result

    def _waited(self, busy: list[Task], give_up_us: int) -> bool:
        """Wait for what is busy, while nothing is held; False once the time for that is over."""
        left_us = give_up_us - self.clock.monotonic_us()
        if left_us > 0:
            soonest_us = min(task.answer.busy_us for task in busy if task.answer is not None)
            self.clock.wait(self.stopping, max(1000, min(soonest_us, POLL_US, left_us)) / 1_000_000)
        return left_us > 0

    def _send_on(self, tasks: list[Task], give_up_us: int, run: Run) -> None:
        copies = [(task, copy_task(task, copier)) for task in tasks if is_letter(task) for copier in self._copiers]
        self._rounds([copy for _, copy in copies], give_up_us, run)
        for task, copy in copies:
            if not is_over(copy):
                keep_back(task, copy)

    def _round(self, tasks: list[Task], run: Run) -> list[Task]:
        """Ask for these, work off what was granted, and return what is busy."""
        if not tasks:
            return []
        sorted_ = self._ask_and_work_off(tasks, run, alone=len(tasks) == 1)
        busy = sorted_.busy
        for task in sorted_.apart:  # by itself, just before its handler starts: its last claim ran out
            busy += self._ask_and_work_off([task], run, alone=True).busy
        return busy

    def _ask_and_work_off(self, tasks: list[Task], run: Run, *, alone: bool) -> Sorted:
        with self._holding(None, run) as holding:
            asked = self._asking.prepared(tasks, alone=alone)
            holding.asked.append(asked)
            run.check()
            sorted_ = self._sort(tasks, asked.answers())
            self._work_off(sorted_.granted, holding)
        return sorted_

    def _run_ahead(self, ledger: WorksAhead, raws: Sequence[Any], run: Run) -> list[Delivery]:
        """Read a batch slice by slice, and work off the first task of each event and entity on the way.

        What is busy, wants to be alone, or comes second is left without a result, for the rounds that follow.
        """
        deliveries: list[Delivery] = []
        picking = Picking()
        picked: deque[list[Task]] = deque()
        with self._holding(ledger, run) as holding:
            for start in range(0, len(raws), SLICE):
                new = [self.reader.read(raw) for raw in raws[start : start + SLICE]]
                deliveries += new
                every = [task for delivery in new for task in delivery.tasks]
                tasks = picking.pick([task for task in every if not (run.terms.requests and task.unreadable)])
                if tasks and not self._must_stop(run):
                    self._start_to_ask(ledger, tasks, holding)
                    picked.append(tasks)
                if len(picked) > 1:
                    self._work_off_asked(picked.popleft(), holding)
                    holding.settling.flush(soon=start + SLICE < len(raws))
            while picked:
                self._work_off_asked(picked.popleft(), holding)
                holding.settling.flush()
        return deliveries

    def _start_to_ask(self, ledger: WorksAhead, tasks: list[Task], holding: Holding) -> None:
        asked = self._asking.prepared(tasks)
        holding.asked.append(asked)
        holding.run.check()
        self._asking.start(ledger, asked)

    def _work_off_asked(self, tasks: list[Task], holding: Holding) -> None:
        holding.run.check()
        self._work_off(self._sort(tasks, holding.asked[0].answers()).granted, holding)

    def _sort(self, tasks: list[Task], answers: list[Answer]) -> Sorted:
        """Look at the answers: what was granted, what must be asked for alone, what is busy. The rest has a result."""
        sorted_ = Sorted([], [], [])
        now_us = self.clock.now_us() if self._listening else None
        for task, answer in zip(tasks, answers, strict=True):
            task.answer = answer
            if self._listening:
                self.telemetry.record(move_of("claimed", task, reason_for(answer), now_us=now_us))
            if answer.verdict is Verdict.FRESH:
                (sorted_.apart if answer.wants_alone else sorted_.granted).append(task)
            elif answer.verdict is Verdict.BUSY:
                sorted_.busy.append(task)
            elif answer.verdict is Verdict.CONFLICT:
                self.reader.turn_into_conflict(task)
            else:
                task.result = result_from(task, answer)
        return sorted_

    # --- handle and settle ---------------------------------------------------------------------------

    def _holding(self, ahead: WorksAhead | None, run: Run) -> Holding:
        within_us = int(self._settings.settle_within_seconds * 1_000_000)
        settling = BatchCompleter(
            self.ledger, self.breaker, self.clock, run=run, within_us=within_us, report=self._report, ahead=ahead
        )
        return Holding(self._keeper, settling, self._lease_us, run)

    def _work_off(self, tasks: list[Task], holding: Holding) -> None:
        """Give each granted task to its handler, and those that go together in one call."""
        granted = list(zip(tasks, holding.hold(tasks), strict=True))
        groups, alone = gathered(granted) if self._sends_many else ([], granted)
        concurrency = self._concurrency(holding.run)
        if concurrency == 1 or len(groups) + len(alone) <= 1:
            for group in groups:
                self._handle_many(group, holding)
            now_us = self.clock.monotonic_us()
            for task, held in alone:
                now_us = self._handle(task, held, now_us, holding)
            return
        work = [Handling([held for _, held in one.tasks], partial(self._handle_many, one, holding)) for one in groups]
        work += [Handling([held], partial(self._handle, task, held, None, holding)) for task, held in alone]
        run_side_by_side(work, concurrency)

    def _handle(self, task: Task, held: Held, started_us: int | None, holding: Holding) -> int:
        """Bring one granted task to its end; return the time then. It starts now, unless that is known already."""
        if started_us is None:
            started_us = self.clock.monotonic_us()
        run, escaping = holding.run, None
        if self._must_stop(run):
            ended = Ended(outcome=Outcome.RELEASE, reason="stopped before it was tried")
        elif task.bury is not None:
            ended = Ended(outcome=Outcome.DEAD, reason=task.bury)
        else:
            assert task.handler is not None
            gone = self._work.ran_out(task.handler, held.claim, run.terms.attempts)
            if gone is None:
                if not self._keeper.ensure(held, started_us):
                    return started_us  # taken over before it was tried: asked for again in the next round
                ended, escaping = self._give(task, task.handler, held, run.terms.attempts)
            else:
                ended = gone
        now_us = self._end(task, held, ended, started_us, holding)
        if escaping is not None and run.terms.escapes:
            raise escaping
        return now_us

    def _end(self, task: Task, held: Held, ended: Ended, started_us: int, holding: Holding) -> int:
        """Settle one task as its handler ended; return the time."""
        now_us = self.clock.monotonic_us()
        ended = self.letter_room.checked(task, ended)
        finished = finished_as(task, held, ended, now_us - started_us)
        if ended.settled or ended.lost:
            self._report(finished, not ended.lost)
        else:
            holding.settling.add(finished, now_us)
        return now_us

    def _handle_many(self, group: Group, holding: Holding) -> None:
        """Bring several granted tasks of one handler to their ends in one call."""
        attempts, started_us = holding.run.terms.attempts, self.clock.monotonic_us()
        ready: list[Granted] = []
        for task, held in group.tasks:
            if self._must_stop(holding.run) or self._work.ran_out(group.handler, held.claim, attempts) is not None:
                self._handle(task, held, started_us, holding)
            elif self._keeper.ensure(held, started_us):  # otherwise asked for again in the next round
                ready.append((task, held))
        if not ready:
            return
        events = [self._event_for(task, held.claim) for task, held in ready]
        ends, escaping = self._work.run_many(group.handler, events, [held.claim for _, held in ready], attempts)
        now_us = self.clock.monotonic_us()
        ends = [self.letter_room.checked(task, ended) for (task, _), ended in zip(ready, ends, strict=True)]
        finished = [finished_as(*one, ended, now_us - started_us) for one, ended in zip(ready, ends, strict=True)]
        holding.settling.add_together(finished, now_us)
        if escaping is not None and holding.run.terms.escapes:
            raise escaping

    def _give(self, task: Task, handler: Handler, held: Held, attempts: int | None) -> Worked:
        given = self._event_for(task, held.claim) if task.copy is None else task.copy
        return self._work.run(handler, given, held, attempts if task.copy is None else None)

    def _event_for(self, task: Task, claim: Claim) -> Event:
        """Return the event as its handler gets it: its body unchanged, with the claim's token and attempt."""
        assert task.event is not None
        event, given = task.event, task.body_was_given
        task.body_was_given = True
        if not given and claim.attempt == 1 and not task.ask.redrive:
            force_setattr(event, "token", claim.token)  # nobody has seen it yet
            return event
        if given:
            event = self.reader.with_own_body(event)
        return replace(event, key=key_text(task.ask.key), token=claim.token, attempt=claim.attempt)

    def _report(self, finished: Finished, ok: bool) -> None:
        """Note what became of a task, once its claim is settled."""
        task, ended = finished.task, finished.ended
        finished.held.over = True
        reason = ended.reason if ok else "its claim was taken over while its handler ran; to be looked at again"
        outcome = ended.outcome if ok else Outcome.RETRY
        task.result = result_as(task, task.reported or Verdict.FRESH, outcome, reason, retry_in_us=ended.retry_in_us)
        if self._listening:
            duration_ms = finished.took_us / 1000
            self.telemetry.record(
                move_of("settled" if ok else "lost", task, reason, outcome=outcome, duration_ms=duration_ms)
            )
