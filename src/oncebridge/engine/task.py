"""Tasks: one event on its way to one handler, and what can be said of it without asking a ledger."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from oncebridge.claim import Answer, Ask, Claim, Outcome, Status, Verdict
from oncebridge.discreet import Discreet
from oncebridge.engine.result import Result, joined, reason_for
from oncebridge.engine.unhandled import REASON
from oncebridge.event import Event
from oncebridge.handlers import Handler, LetterCopy
from oncebridge.identity import key_text
from oncebridge.telemetry import Move

#: An event, for a handler that needs no name or for one that has one.
At: TypeAlias = bytes | tuple[bytes, str]


class Task(Discreet, msgspec.Struct, eq=False, kw_only=True, gc=False):
    """One event on its way to one handler, or a delivery on its way to the dead letters."""

    shown = ("ask", "bury", "answer", "result")

    ask: Ask
    raw: bytes
    event: Event | None = None
    #: Instead of an event: a copy of a dead letter.
    copy: LetterCopy | None = None
    handler: Handler | None = None
    #: Whether another call of a handler may have changed the event's body.
    body_was_given: bool = False
    #: Why it is kept as a dead letter without a handler, and the verdict to report then.
    bury: str | None = None
    unreadable: bool = False
    reported: Verdict | None = None
    answer: Answer | None = None
    #: When the claim was asked for, by this process's clock.
    asked_us: int = 0
    result: Result | None = None
    #: What became of it, while that must not be told yet: its dead letter is kept, but not everybody has a copy.
    kept: Result | None = None

    @property
    def at(self) -> At:
        """The event and the handler, by which twins are known."""
        ask = self.ask
        return (ask.key, ask.handler) if ask.handler else ask.key


class Delivery(msgspec.Struct, eq=False, kw_only=True, gc=False):
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
        """What became of it, once it was worked off."""
        if len(self.tasks) == 1:
            return result_of(self.tasks[0])
        return self.unhandled or joined([result_of(task) for task in self.tasks])


class Picking:
    """Picks, in order of arrival, the first task of each event and of each entity."""

    def __init__(self) -> None:
        """Start with nothing picked."""
        self._events: set[At] = set()
        self._entities: set[bytes] = set()

    def pick(self, tasks: list[Task]) -> list[Task]:
        """Return those of the tasks that are the first."""
        events, entities, picked = self._events, self._entities, []
        for task in tasks:
            at, entity = task.at, task.ask.entity
            if entity is not None:
                if at not in events and entity not in entities:
                    picked.append(task)
                entities.add(entity)
            elif at not in events:
                picked.append(task)
            events.add(at)
        return picked


class Sorted(NamedTuple):
    """Tasks by what their answers ask for."""

    granted: list[Task]
    apart: list[Task]
    busy: list[Task]


def as_twin(task: Task, twin: Task) -> Result | None:
    """Take over what became of the same event earlier in this batch; None where the ledger must say."""
    result = result_of(twin)
    if twin.ask.content != task.ask.content or task.bury is not twin.bury:
        return None
    if not result.acknowledged:
        task.answer = twin.answer
        return replace(result, envelope_id=task.ask.envelope)
    if result.verdict is not Verdict.FRESH:
        return None
    same = task.ask.envelope is not None and task.ask.envelope == twin.ask.envelope
    was = Status.DONE if result.outcome is Outcome.DONE else Status.DEAD
    task.answer = Answer(Verdict.REDELIVERY if same else Verdict.REPUBLISH, of=twin.ask.envelope, was=was)
    return result_from(task, task.answer)


def give_up(busy: list[Task], pending: list[Task]) -> list[Task]:
    """Hand back what is busy, and with it what must not overtake it: later twins, and states of its entity."""
    given_up = []
    by_event = {task.at: task for task in busy}
    by_entity: dict[bytes | None, Task] = {task.ask.entity: task for task in busy if task.ask.entity is not None}
    for task in pending:
        ahead = by_event.get(task.at) or by_entity.get(task.ask.entity)
        if ahead is not None and ahead.answer is not None:
            task.result = result_from(task, ahead.answer, retry_in_us=ahead.answer.busy_us)
            given_up.append(task)
    return given_up


def is_letter(task: Task) -> bool:
    """Tell whether a task ended as a dead letter, now or earlier."""
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


def keep_back(task: Task, copy: Task) -> None:
    """Let a delivery come again whose dead letter could not be sent on."""
    unsent = result_of(copy)
    task.kept = task.kept or result_of(task)
    reason = f"kept as a dead letter, but not sent on yet: {unsent.reason}"
    task.result = result_as(task, task.kept.verdict, Outcome.RETRY, reason, retry_in_us=unsent.retry_in_us)


def claim_of(task: Task) -> Claim:
    """Return the claim that a task was granted."""
    assert task.answer is not None
    return Claim(task.ask, task.answer.token, task.answer.attempt)


def result_of(task: Task) -> Result:
    """Return what became of a task; every task has a result when its batch is over."""
    assert task.result is not None
    return task.result


def result_as(
    task: Task, verdict: Verdict, outcome: Outcome | None, reason: str, *, retry_in_us: int = 0, of: str | None = None
) -> Result:
    """Make the result of a task."""
    event, ask = task.event, task.ask
    plain = event is not None and task.bury is None and not ask.redrive
    return Result(
        verdict=verdict,
        outcome=outcome,
        reason=reason,
        original_envelope_id=of,
        key=event.key if plain and event is not None else key_text(ask.key),
        topic=None if event is None else event.topic,
        envelope_id=ask.envelope,
        retry_in_us=retry_in_us,
    )


def is_over(task: Task) -> bool:
    """Tell whether a task is settled for good."""
    return task.result is not None and task.result.acknowledged


def result_from(task: Task, answer: Answer, retry_in_us: int = 0) -> Result:
    """Make the result of a task that the ledger gave no claim for."""
    if task.reported is not None and answer.verdict is not Verdict.BUSY:  # its dead letter is there already
        return result_as(task, task.reported, Outcome.DEAD, task.bury or "")
    return result_as(task, answer.verdict, None, reason_for(answer), retry_in_us=retry_in_us, of=answer.of)


def unhandled(event: Event) -> Result:
    """Make the result of an event that no handler takes."""
    return Result(
        verdict=Verdict.UNHANDLED, reason=REASON, key=event.key, topic=event.topic, envelope_id=event.envelope.id
    )


def stopped(task: Task) -> Result:
    """Make the result of a task that an orderly stop came before."""
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
        verdict=task.reported or (answer.verdict if answer is not None else None),
        outcome=outcome,
        attempt=answer.attempt if answer is not None else 1,
        reason=reason,
        duration_ms=duration_ms,
        age_ms=None if now_us is None or task.ask.time_ms is None else now_us // 1000 - task.ask.time_ms,
    )
