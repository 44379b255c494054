"""Tasks: one event on its way to one handler, and what can be said of it without asking a ledger."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from oncebridge.claim import Answer, Ask, Claim, Outcome, Status, Verdict
from oncebridge.event import Event
from oncebridge.handlers import Handler
from oncebridge.identity import key_text
from oncebridge.intake.results import Result, joined, reason_for
from oncebridge.telemetry import Move


class Task(msgspec.Struct, eq=False, kw_only=True):
    """One event on its way to one handler, or a delivery on its way to the dead letters."""

    ask: Ask
    raw: bytes
    event: Event | None = None
    handler: Handler | None = None
    #: Why it is kept as a dead letter without a handler, and the verdict to report then.
    bury: str | None = None
    reported: Verdict | None = None
    answer: Answer | None = None
    #: When the claim was asked for, by this process's clock.
    asked_us: int = 0
    result: Result | None = None

    @property
    def at(self) -> tuple[bytes, str]:
        """The event and the handler, by which twins are known."""
        return self.ask.key, self.ask.handler


class Delivery(msgspec.Struct, eq=False, kw_only=True):
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
        return self.unhandled or joined([result_of(task) for task in self.tasks])


def each_once(tasks: list[Task]) -> list[Task]:
    """Pick, in order of arrival, the first task of each event and of each entity."""
    seen: set[tuple[bytes, str]] = set()
    entities: set[bytes] = set()
    picked = []
    for task in tasks:
        entity = task.ask.entity
        if task.at not in seen and entity not in entities:
            picked.append(task)
        seen.add(task.at)
        if entity is not None:
            entities.add(entity)
    return picked


def as_twin(task: Task, twin: Task) -> Result | None:
    """Take over what became of the same event earlier in this batch; None where the ledger must say."""
    result = result_of(twin)
    if twin.ask.content != task.ask.content or task.bury is not twin.bury:
        return None
    if not result.acknowledged:
        task.answer = twin.answer
        return replace(result, envelope=task.ask.envelope)
    if result.verdict is not Verdict.FRESH:
        return None
    same = task.ask.envelope is not None and task.ask.envelope == twin.ask.envelope
    was = Status.DONE if result.outcome is Outcome.DONE else Status.DEAD
    task.answer = Answer(Verdict.REDELIVERY if same else Verdict.REPUBLISH, of=twin.ask.envelope, was=was)
    return result_from(task, task.answer)


def give_up(busy: list[Task], pending: list[Task]) -> None:
    """Hand back what is busy, and with it what must not overtake it: later twins, and states of its entity."""
    by_event = {task.at: task for task in busy}
    by_entity: dict[bytes | None, Task] = {task.ask.entity: task for task in busy if task.ask.entity is not None}
    for task in pending:
        ahead = by_event.get(task.at) or by_entity.get(task.ask.entity)
        if ahead is not None and ahead.answer is not None:
            task.result = result_from(task, ahead.answer, again_in_us=ahead.answer.busy_us)


def claim_of(task: Task) -> Claim:
    """Return the claim that a task was granted."""
    assert task.answer is not None
    return Claim(task.ask, task.answer.token, task.answer.attempt)


def result_of(task: Task) -> Result:
    """Return what became of a task; every task has a result when its batch is over."""
    assert task.result is not None
    return task.result


def names(task: Task) -> dict[str, Any]:
    """Return what a result says of where it came from."""
    topic = task.event.topic if task.event is not None else None
    return {"key": key_text(task.ask.key), "topic": topic, "envelope": task.ask.envelope}


def is_over(task: Task) -> bool:
    """Tell whether a task is settled for good."""
    return task.result is not None and task.result.acknowledged


def result_from(task: Task, answer: Answer, again_in_us: int = 0) -> Result:
    """Make the result of a task that the ledger gave no claim for."""
    if task.reported is not None and answer.verdict is not Verdict.BUSY:  # its dead letter is there already
        return Result(verdict=task.reported, outcome=Outcome.DEAD, reason=task.bury or "", **names(task))
    return Result(
        verdict=answer.verdict, reason=reason_for(answer), of=answer.of, again_in_us=again_in_us, **names(task)
    )


def unhandled(event: Event) -> Result:
    """Make the result of an event that no handler takes."""
    return Result(
        verdict=Verdict.FRESH, reason="no handler", key=event.key, topic=event.topic, envelope=event.envelope.id
    )


def stopped(task: Task) -> Result:
    """Make the result of a task that an orderly stop came before."""
    return Result(verdict=Verdict.FRESH, outcome=Outcome.RELEASE, reason="stopped before it was tried", **names(task))


def out_of_reach(task: Task) -> Result:
    """Make the result of a task that could not be brought to an end because the ledger is out of reach."""
    return Result(verdict=Verdict.FRESH, outcome=Outcome.RELEASE, reason="the ledger is out of reach", **names(task))


def move_of(
    move: str, task: Task, reason: str, outcome: Outcome | None = None, duration_ms: float | None = None
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
    )
