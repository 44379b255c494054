"""Which tasks of a batch are asked for next, in order of arrival: the first of each event.

All states of an entity are asked for in one call, as a chain. A copy of an event that came earlier in the batch is not
asked for: it follows the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncebridge.claim import Verdict
from oncebridge.engine.task import result_from

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from oncebridge.claim import Answer
    from oncebridge.engine.result import Result
    from oncebridge.engine.task import Task

#: How many events of a chain are asked for after a run-out has cut it: the next one may have run out, too.
AFTER_CUT_MAX: Final = 10


class BatchOrder:
    """The tasks of a batch that have no result yet."""

    def __init__(self, tasks: Iterable[Task], as_twin: Callable[[Task, Task], Result]) -> None:
        """Take tasks in order of arrival; those that already have a result are there for their copies alone."""
        self._as_twin = as_twin
        self._first: dict[Hashable, Task] = {}
        #: Tasks to ask for, and tasks that follow the first one of their kind.
        self._leading: list[Task] = []
        self._following: list[tuple[Hashable, Task]] = []
        self._cut: set[bytes] = set()
        #: Whether an event may come with two contents; one call must not name both.
        self._has_contents = False
        for task in tasks:
            ask = task.ask
            kind: Hashable = ask.key if not ask.handler else (ask.key, ask.handler)
            if ask.content is not None:
                kind, self._has_contents = (kind, ask.content), True
            first = self._first.setdefault(kind, task)
            if task.result is None:
                if first is task:
                    self._leading.append(task)
                else:
                    self._following.append((kind, task))
        if self._following:
            self._follow()

    @property
    def waiting(self) -> list[Task]:
        """All tasks that have no result yet."""
        return [*self._leading, *(task for _, task in self._following)]

    def front(self) -> list[Task]:
        """Return those to ask for in one call, which names each event at most once."""
        if self._cut or self._has_contents:
            return self._each_event_once()
        return self._leading  # a copy of one of these follows it

    def _each_event_once(self) -> list[Task]:
        named: set[Hashable] = set()
        asked: dict[bytes, int] = {}
        front = []
        for task in self._leading:
            entity = task.ask.entity
            if task.at in named or (entity in self._cut and asked.get(entity, 0) >= AFTER_CUT_MAX):
                continue
            named.add(task.at)
            if entity is not None:
                asked[entity] = asked.get(entity, 0) + 1
            front.append(task)
        return front

    def cut(self, task: Task) -> None:
        """Note that a task cut its chain."""
        if task.ask.entity is not None:
            self._cut.add(task.ask.entity)

    def move_up(self) -> None:
        """Drop tasks that have a result now; their copies take it over."""
        self._leading = [task for task in self._leading if task.result is None]
        if self._following:
            self._follow()

    def _follow(self) -> None:
        following = self._following
        self._following = []
        for kind, task in following:
            first = self._first[kind]
            if first.result is None:
                self._following.append((kind, task))
            else:
                task.result = self._as_twin(task, first)


def chains(tasks: list[Task]) -> list[list[Task]]:
    """Return tasks by their lease: the states of an entity run one after the other."""
    found: dict[int, list[Task]] = {}
    for task in tasks:
        found.setdefault(id(task.lease), []).append(task)
    return list(found.values())


def waves(tasks: list[Task]) -> list[list[Task]]:
    """Return the first tasks of all leases, then the second ones, and so on."""
    found: list[list[Task]] = []
    for chain in chains(tasks):
        for place, task in enumerate(chain):
            if place == len(found):
                found.append([])
            found[place].append(task)
    return found


def is_busy(task: Task) -> bool:
    """Return whether another worker holds a task's event or entity."""
    answer = task.answer
    return task.result is None and answer is not None and answer.verdict is Verdict.BUSY and answer.busy_us > 0


def give_up(busy: list[Task], waiting: list[Task]) -> None:
    """Hand back busy tasks, and the states behind them: none may overtake a busy one."""
    in_the_way: dict[bytes | None, Answer | None] = {
        task.ask.entity: task.answer for task in busy if task.ask.entity is not None
    }
    for task in busy + [task for task in waiting if task.ask.entity in in_the_way and not is_busy(task)]:
        task.answer = answer = in_the_way.get(task.ask.entity) or task.answer
        assert answer is not None
        task.result = result_from(task, answer, retry_in_us=answer.busy_us)
