"""Which granted tasks go to their handler together, in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from oncebridge.handlers import Handler

if TYPE_CHECKING:
    from oncebridge.engine.extender import Held
    from oncebridge.engine.task import Task

Granted: TypeAlias = "tuple[Task, Held]"


class Group(NamedTuple):
    """Tasks that one call of their handler takes."""

    handler: Handler
    tasks: list[Granted]


def gathered(granted: list[Granted]) -> tuple[list[Group], list[Granted]]:
    """Return groups for handlers that take several events in a call, each as large as one takes, and the rest."""
    open_groups: dict[Any, Group] = {}
    groups: list[Group] = []
    alone: list[Granted] = []
    for one in granted:
        task, handler = one[0], one[0].handler
        if handler is None or handler.many == 1 or task.event is None or task.bury is not None:
            alone.append(one)
            continue
        # One sink may have several patterns; what is permanent is said with each of them.
        kind = (id(handler.function), handler.permanent)
        group = open_groups.get(kind)
        if group is None or len(group.tasks) == handler.many:
            group = open_groups[kind] = Group(handler, [])
            groups.append(group)
        group.tasks.append(one)
    return groups, alone
