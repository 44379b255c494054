"""Room for dead letters, where there is a bound: a delivery that would exceed it is not acknowledged, so it returns."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from oncebridge import forks
from oncebridge.claim import Outcome
from oncebridge.engine.task import Ended, move_of
from oncebridge.ledgers.protocol import Query

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.engine.task import Task
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.settings import Settings
    from oncebridge.telemetry import Telemetry

LOOK_EVERY_US: Final = 10_000_000
WARN_EVERY_US: Final = 60_000_000
AGAIN_IN_US: Final = 60_000_000


class LetterRoom:
    """Keeps an approximate count of dead letters. Other workers keep some too, so a few may exceed the bound."""

    def __init__(self, ledger: Ledger, clock: Clock, telemetry: Telemetry, settings: Settings) -> None:
        """Take the ledger that keeps them, where to warn, and how many there may be."""
        self._ledger = ledger
        self._clock = clock
        self._telemetry = telemetry
        #: None: any number.
        self._most = settings.dead_letters_max
        self._is_shadow = settings.shadow
        self._known = 0
        self._looked_us: int | None = None
        self._warned_us: int | None = None
        self._lock = threading.Lock()
        forks.free_locks(self, "_lock")

    def checked(self, task: Task, ended: Ended) -> Ended:
        """Return the end of a task; if its dead letter would be one too many, it is to be retried instead.

        A shadow only remembers that it has judged the delivery, and keeps nothing of its content.
        """
        if self._is_shadow and ended.outcome is Outcome.DEAD:
            return Ended(outcome=Outcome.DONE, reason=ended.reason)
        if ended.outcome is not Outcome.DEAD or task.ask.redrive or task.copy is not None or self.is_there():
            return ended
        self._telemetry.record(move_of("refused", task, self.words, outcome=Outcome.RETRY))
        return replace(ended, outcome=Outcome.RETRY, reason=self.words, retry_in_us=AGAIN_IN_US)

    @property
    def words(self) -> str:
        """The reason where there is no room, and the fix."""
        return (
            f"there are dead_letters_max = {self._most} dead letters already, so it is not acknowledged, and comes "
            "again; redrive or discard some: oncebridge dead list"
        )

    def is_there(self) -> bool:
        """Return whether one more dead letter may be kept, and count it."""
        if self._most is None:
            return True
        now_us = self._clock.monotonic_us()
        with self._lock:
            if self._looked_us is None or now_us - self._looked_us >= LOOK_EVERY_US:
                self._known = sum(1 for _ in islice(self._ledger.scan(Query(letters=True)), self._most))
                self._looked_us = now_us
            self._known += 1
            if self._known <= self._most:
                return True
            warns = self._warned_us is None or now_us - self._warned_us >= WARN_EVERY_US
            self._warned_us = now_us if warns else self._warned_us
        if warns:
            self._telemetry.warn(self.words)
        return False
