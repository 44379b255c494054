"""The claims that a round holds."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from oncebridge.engine.completer import BatchCompleter
from oncebridge.engine.extender import Held, LeaseExtender
from oncebridge.engine.task import Task, claim_of
from oncebridge.errors import OncebridgeError

if TYPE_CHECKING:
    from oncebridge.engine.claimer import Asked
    from oncebridge.engine.runs import Run


class Holding:
    """Claims that are asked for and held: kept alive, settled as they end, and given back if their run breaks off."""

    def __init__(self, keeper: LeaseExtender, settling: BatchCompleter, lease_us: int, run: Run) -> None:
        """Hold nothing yet."""
        self.run = run
        self.settling = settling
        self.held: list[Held] = []
        #: Calls whose answers are not held yet: whatever they were granted is given back, too.
        self.asked: deque[Asked] = deque()
        self._keeper = keeper
        self._lease_us = lease_us

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is worked on any more."""
        return self.run.is_over

    def hold(self, tasks: list[Task]) -> list[Held]:
        """Take in what the first of the calls was granted, and keep these claims alive."""
        helds = [Held(claim_of(task), task.asked_us + self._lease_us) for task in tasks]
        if helds:
            self.held += helds
            self._keeper.watch(self)
        self.asked.popleft()
        return helds

    def __enter__(self) -> Self:
        """Begin; should it break off, its run knows what to give back."""
        self.run.holdings.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Settle what is done, unless its run breaks off."""
        if error is None:
            self.settling.finish()
            self._keeper.forget(self)
            self.run.holdings.remove(self)

    def give_back(self, *, patiently: bool) -> None:
        """Settle what is done, and give back the rest; a handler that still runs elsewhere keeps its claim."""
        untried = [held.claim for held in self.held if not (held.over or held.runs_elsewhere)]
        for asked in self.asked:
            with suppress(OncebridgeError):
                untried += asked.granted()
        self.settling.release(untried, patiently=patiently)
        self._keeper.forget(self)
