"""Tasks: one event on its way to one handler, and the claim that it holds meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from oncebridge.claim import (
    Answer,
    Ask,
    Claim,
    Letter,
    Newest,
    Outcome,
    Settlement,
    Status,
    Verdict,
    newest_after,
    newest_of,
    write_newest,
)
from oncebridge.discreet import Discreet
from oncebridge.engine.result import Result, joined, reason_for, with_error
from oncebridge.engine.unhandled import REASON
from oncebridge.event import Event
from oncebridge.handler_signature import name_of
from oncebridge.handlers import Handler, LetterCopy
from oncebridge.identity import envelope_mark, key_text
from oncebridge.telemetry import Move

#: An event, for a handler that needs no name or for one that has one.
At: TypeAlias = bytes | tuple[bytes, str]


class Lease(msgspec.Struct, eq=False, gc=False):
    """A lease that this process holds, by its own monotonic clock: of a fact, or of an entity for a whole chain."""

    #: A claim that runs under it; extending that claim extends the lease.
    claim: Claim
    #: Until when it surely runs: counted from before the ledger was asked.
    runs_until_us: int
    #: Of a chain: the worker's own copy of the entity's state, as the events that have ended left it.
    newest: Newest | None = None
    #: How many of its events have not ended. The last one frees an entity.
    left: int = 1
    #: When the running handler started; None if none runs.
    started_us: int | None = None
    #: Whether another worker has taken it over.
    lost: bool = False
    #: Whether it was given up: its fact, or the last event of its chain, is settled.
    over: bool = False
    #: Whether a handler runs in another thread than the batch: an interrupt of the batch does not end it.
    runs_elsewhere: bool = False
    #: The claim that a handler's transaction settles, once one has begun. If it breaks off, it may have committed.
    in_transaction: Claim | None = None


class Ended(Discreet, msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a handler ended. `reason` is free of personal data; `detail` is shown only on request."""

    shown = ("outcome", "reason", "retry_in_us", "settled", "lost")

    outcome: Outcome
    reason: str
    detail: str = ""
    #: Where in the user's code it failed; empty if that is not the user's error.
    place: str = ""
    retry_in_us: int = 0
    #: Whether the claim was settled already, in the handler's own transaction.
    settled: bool = False
    #: Whether the claim was taken over meanwhile, so that nothing took effect.
    lost: bool = False


class Task(Discreet, msgspec.Struct, eq=False, gc=False):
    """One event on its way to one handler, or a delivery on its way to the dead letters."""

    shown = ("ask", "dead_reason", "answer", "result")

    ask: Ask
    raw: bytes
    event: Event | None = None
    #: Instead of an event: a copy of a dead letter.
    copy: LetterCopy | None = None
    handler: Handler | None = None
    #: Whether another call of a handler may have changed the event's body.
    body_was_given: bool = False
    #: Why it is kept as a dead letter without a handler, and the verdict to report then.
    dead_reason: str | None = None
    unreadable: bool = False
    reported_verdict: Verdict | None = None
    answer: Answer | None = None
    #: The claim that it holds, and its lease; None once it is settled, or lost.
    claim: Claim | None = None
    lease: Lease | None = None
    #: How its handler ended, how long that took, and how its claim is settled.
    ended: Ended | None = None
    took_us: int = 0
    settlement: Settlement | None = None
    result: Result | None = None
    #: The result that is withheld while its dead letter is kept, but has not been copied everywhere.
    withheld: Result | None = None

    @property
    def at(self) -> At:
        """The event and the handler; copies in a batch share them."""
        ask = self.ask
        return (ask.key, ask.handler) if ask.handler else ask.key


class Delivery(msgspec.Struct, eq=False, gc=False):
    """One delivery: a task for each handler that takes its event; none where no handler does."""

    tasks: list[Task]
    unhandled: Result | None = None

    @property
    def entities(self) -> frozenset[bytes]:
        """The entities that its event is a state of, one for each handler."""
        return frozenset(task.ask.entity for task in self.tasks if task.ask.entity is not None)

    @property
    def is_over(self) -> bool:
        """Whether it is settled for good, at every handler."""
        return all(is_over(task) for task in self.tasks)

    @property
    def result(self) -> Result:
        """Its result, once it has been processed."""
        if len(self.tasks) == 1:
            return result_of(self.tasks[0])
        return self.unhandled or joined([result_of(task) for task in self.tasks])


def results_of(deliveries: Iterable[Delivery], errors: Mapping[At, BaseException]) -> list[Result]:
    """Return the results of deliveries, each with the exception of the handler that it is about, if that raised one."""
    return [_with_error(delivery, delivery.result, errors) for delivery in deliveries]


def _with_error(delivery: Delivery, result: Result, errors: Mapping[At, BaseException]) -> Result:
    if result.outcome in (None, Outcome.DONE):
        return result
    about = next((task for task in delivery.tasks if task.result is result), None)
    return result if about is None else with_error(result, errors.get(about.at))


def who(task: Task) -> str:
    """Return a task's handler in words, by its name or its function's; empty if no handler gets it."""
    handler = task.handler
    if handler is None or task.dead_reason is not None:
        return ""
    return handler.name or name_of(handler.function)


def hold(tasks: list[Task], runs_until_us: int) -> None:
    """Give tasks the claims that they were granted; the states of one entity share a lease."""
    chains: dict[bytes, Lease] = {}
    for task in tasks:
        ask, answer = task.ask, task.answer
        assert answer is not None
        claim = task.claim = Claim(ask, answer.token, answer.attempt, answer.chain)
        if answer.chain is None or ask.entity is None:
            task.lease = Lease(claim, runs_until_us)
        elif ask.entity in chains:
            lease = task.lease = chains[ask.entity]
            lease.left += 1
        else:
            task.lease = chains[ask.entity] = Lease(claim, runs_until_us, newest_of(answer.chain))


def claim_of(task: Task) -> Claim:
    """Return the claim that a task holds."""
    assert task.claim is not None
    return task.claim


def done_settlement(task: Task) -> Settlement:
    """Return the settlement of a task's claim if its handler returns; nothing is noted yet."""
    claim, lease = claim_of(task), task.lease
    if lease is None or lease.newest is None or claim.chain is None:
        return Settlement(claim, Outcome.DONE)
    data = write_newest(newest_after(lease.newest, claim.ask, Outcome.DONE, claim.chain.now_us))
    return Settlement(claim, Outcome.DONE, data=data, frees=lease.left == 1)


def end(task: Task, ended: Ended, took_us: int = 0) -> None:
    """Turn a handler's end into that of its claim; a dead one leaves a letter.

    It is noted in the lease, too: the next state of its chain is judged on that.
    """
    claim, lease, letter = task.claim, task.lease, None
    assert claim is not None
    assert lease is not None
    task.ended, task.took_us = ended, took_us
    lease.left -= 1
    lease.started_us = None
    if ended.outcome is Outcome.DEAD:
        letter = Letter(raw=task.raw, reason=ended.reason, detail=ended.detail)
    if lease.newest is None or claim.chain is None:
        task.settlement = Settlement(claim, ended.outcome, ended.retry_in_us, letter)
        return
    lease.newest = newest_after(lease.newest, claim.ask, ended.outcome, claim.chain.now_us)
    data = write_newest(lease.newest)
    task.settlement = Settlement(claim, ended.outcome, ended.retry_in_us, letter, data, lease.left == 0)


def settlements_of(tasks: list[Task]) -> list[Settlement]:
    """Return how the claims of tasks that have ended are settled."""
    return [task.settlement for task in tasks if task.settlement is not None]


def as_twin(task: Task, twin: Task) -> Result:
    """Take over the result of the same event earlier in this batch."""
    result, answer = result_of(twin), twin.answer
    if not result.acknowledged:
        task.answer = answer
        return replace(result, envelope_id=task.ask.envelope)
    if twin.reported_verdict is not None or answer is None:  # kept as a dead letter, unread or in conflict
        task.answer = answer
        return replace(result, envelope_id=task.ask.envelope)
    original, was = twin.ask.envelope, _settled_as(result, answer)
    if answer.verdict in (Verdict.REDELIVERY, Verdict.REPUBLISH):
        original = answer.of if answer.verdict is Verdict.REPUBLISH else twin.ask.envelope
    envelope, mark = task.ask.envelope, answer.of_mark
    same = envelope is not None and (envelope == original or (mark is not None and envelope_mark(envelope) == mark))
    task.answer = Answer(Verdict.REDELIVERY if same else Verdict.REPUBLISH, of=original, was=was)
    return result_from(task, task.answer)


def _settled_as(result: Result, answer: Answer) -> Status | None:
    if answer.verdict in (Verdict.ECHO, Verdict.STALE):
        return Status(answer.verdict.value)
    if answer.verdict is Verdict.FRESH:
        return Status.DONE if result.outcome is Outcome.DONE else Status.DEAD
    return answer.was


def is_letter(task: Task) -> bool:
    """Return whether a task ended as a dead letter, now or earlier."""
    result, answer = result_of(task), task.answer
    if not result.acknowledged:
        return False
    return result.outcome is Outcome.DEAD or (answer is not None and answer.was is Status.DEAD)


def copy_task(task: Task, handler: Handler) -> Task:
    """Make the task that sends a dead letter on, under a claim of its own."""
    result = result_of(task)
    name = f"{handler.name} {task.ask.handler}".rstrip()
    copy = LetterCopy(
        key=key_text(task.ask.key),
        topic=task.ask.topic,
        handler=task.ask.handler,
        reason=result.reason,
        envelope=task.ask.envelope,
        raw=task.raw,
    )
    ask = Ask(key=task.ask.key, handler=name, envelope=task.ask.envelope, topic=task.ask.topic)
    return Task(ask=ask, raw=task.raw, copy=copy, handler=handler)


def withhold(task: Task, copy: Task) -> None:
    """Do not acknowledge a delivery while a copy of its dead letter could not be sent."""
    unsent = result_of(copy)
    task.withheld = task.withheld or result_of(task)
    reason = f"kept as a dead letter, but not sent on yet: {unsent.reason}"
    task.result = result_as(task, task.withheld.verdict, Outcome.RETRY, reason, retry_in_us=unsent.retry_in_us)


def result_of(task: Task) -> Result:
    """Return the result of a task; every task has one when its batch is over."""
    assert task.result is not None
    return task.result


def result_as(
    task: Task, verdict: Verdict, outcome: Outcome | None, reason: str, *, retry_in_us: int = 0, of: str | None = None
) -> Result:
    """Make the result of a task."""
    event, ask = task.event, task.ask
    plain = event is not None and task.dead_reason is None and not ask.redrive
    return Result(
        verdict,
        reason,
        outcome,
        of,
        event.key if plain and event is not None else key_text(ask.key),
        None if event is None else event.topic,
        ask.envelope,
        retry_in_us,
        ask.time_ms,
        ask.handler,
        ask.conversation,
        ask.user,
    )


def is_over(task: Task) -> bool:
    """Return whether a task is settled for good."""
    return task.result is not None and task.result.acknowledged


def result_from(task: Task, answer: Answer, retry_in_us: int = 0) -> Result:
    """Make the result of a task whose handler was not called."""
    if task.reported_verdict is not None and answer.verdict is not Verdict.BUSY:  # its dead letter is there already
        return result_as(task, task.reported_verdict, Outcome.DEAD, task.dead_reason or "")
    return result_as(task, answer.verdict, None, reason_for(answer), retry_in_us=retry_in_us, of=answer.of)


def unhandled(event: Event) -> Result:
    """Make the result of an event that no handler takes."""
    return Result(
        verdict=Verdict.UNHANDLED, reason=REASON, key=event.key, topic=event.topic, envelope_id=event.envelope.id
    )


def stopped(task: Task) -> Result:
    """Make the result of a task that was not tried because of an orderly stop."""
    return result_as(task, Verdict.FRESH, Outcome.RELEASE, "stopped before it was tried")


def out_of_reach(task: Task) -> Result:
    """Make the result of a task that could not be brought to an end because the ledger is out of reach."""
    return result_as(task, Verdict.FRESH, Outcome.RELEASE, "the ledger is out of reach")


def move_of(
    move: str,
    task: Task,
    reason: str,
    *,
    outcome: Outcome | None = None,
    duration_ms: float | None = None,
    now_us: int | None = None,
) -> Move:
    """Describe one move of a task, for logs and counters."""
    answer = task.answer
    return Move(
        move=move,
        key=key_text(task.ask.key),
        topic=task.ask.topic,
        handler=task.ask.handler,
        verdict=task.reported_verdict or (answer.verdict if answer is not None else None),
        outcome=outcome,
        attempt=answer.attempt if answer is not None else 1,
        reason=reason,
        envelope_id=task.ask.envelope,
        duration_ms=duration_ms,
        age_ms=None if now_us is None or task.ask.time_ms is None else now_us // 1000 - task.ask.time_ms,
    )
