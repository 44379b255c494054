"""Which tasks of a batch may be asked for next: the first of each event and of each entity, in order of arrival.

A task is looked at when it comes to the front of its lines, and not in every round: otherwise a batch of events of one
entity, which takes as many rounds as it has events, would take time by their square.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from oncebridge.engine.task import Picking

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from oncebridge.engine.result import Result
    from oncebridge.engine.task import Task


class Lines:
    """Tasks without a result: each in the line of its event, and of its entity if it has one."""

    def __init__(self, tasks: Iterable[Task], as_twin: Callable[[Task, Task], Result | None]) -> None:
        """Line up tasks in order of arrival; those that have a result already are there for their twins alone."""
        self._as_twin = as_twin
        #: Each task in order of arrival, with the lines that it stands in.
        self._names: dict[Task, tuple[Hashable, ...]] = {}
        self._lines: dict[Hashable, deque[Task]] = {}
        self._alike: dict[Hashable, deque[Task]] = {}
        self._front: set[Task] = set()
        every = list(tasks)
        waiting = [task for task in every if task.result is None]
        #: Nearly always nothing comes twice: then there are no lines, and each is at the front.
        self._apart: list[Task] | None = None
        if len(waiting) == len(every) == len(Picking().pick(every)):
            self._apart = waiting
            return
        waiting = list(dict.fromkeys(waiting))
        for task in waiting:
            self._join(task)
        self._place = {task: place for place, task in enumerate(waiting)}
        if waiting:
            self._look(waiting)
            self.end(dict.fromkeys(task for task in every if task.result is not None))

    @property
    def front(self) -> list[Task]:
        """Those that may be asked for, in order of arrival."""
        return self._apart if self._apart is not None else sorted(self._front, key=self._place.__getitem__)

    @property
    def waiting(self) -> list[Task]:
        """All that have no result yet, in order of arrival."""
        return [task for task in self._apart or self._place if task.result is None]

    def move_up(self, asked: Sequence[Task]) -> None:
        """See what became of those that were asked for: some have ended, and some are asked for by another name now."""
        self.end([task for task in asked if task.result is not None])
        for task in asked if self._apart is None else ():
            if task.result is None and self._names[task] != _names(task):
                self._leave(task)
                self._join(task)
                self._look([task])

    def end(self, ended: Iterable[Task]) -> None:
        """Let those behind these come forward; what is alike takes over what became of them, where that is known."""
        if self._apart is not None:
            self._apart = [task for task in self._apart if task.result is None]
            return
        for task in ended:
            self._leave(task)
            alike = self._alike.get(_kind(task), ())
            while alike:
                twin = alike[0]
                if twin.result is None and _kind(twin) == _kind(task):
                    # All that are alike get the same: if the ledger must say, it is asked for each in its turn.
                    twin.result = self._as_twin(twin, task)
                    if twin.result is None:
                        break
                    self._leave(twin)
                alike.popleft()

    def _join(self, task: Task) -> None:
        self._names[task] = _names(task)
        for name in self._names[task]:
            self._lines.setdefault(name, deque()).append(task)
        self._alike.setdefault(_kind(task), deque()).append(task)

    def _leave(self, task: Task) -> None:
        """Let go of the places of one task, and see who is first after it."""
        self._front.discard(task)
        for name in self._names.pop(task, ()):
            line = self._lines[name]
            while line and name not in self._names.get(line[0], ()):
                line.popleft()
            if line:
                self._look([line[0]])

    def _look(self, tasks: Iterable[Task]) -> None:
        """Note those that are first in all their lines."""
        for task in tasks:
            if all(self._lines[name][0] is task for name in self._names[task]):
                self._front.add(task)


def _names(task: Task) -> tuple[Hashable, ...]:
    entity = task.ask.entity
    return (task.at,) if entity is None else (task.at, ("entity", entity))


def _kind(task: Task) -> Hashable:
    return task.at, task.ask.content
