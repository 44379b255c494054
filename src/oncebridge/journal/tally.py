"""Adds up what one worker does, between two writes of the journal: cheaply, since every delivery passes here."""

from __future__ import annotations

import threading
from collections import Counter, deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge import forks
from oncebridge.claim import Outcome, Verdict
from oncebridge.engine.result import column_of
from oncebridge.journal.records import Count, SeenDelivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncebridge.clock import Clock
    from oncebridge.engine.result import Result
    from oncebridge.engine.task import Task
    from oncebridge.telemetry.counting import Topics

#: Of each batch, and between two writes.
LATEST_OF_BATCH: Final = 20
LATEST: Final = 100
USUAL_OF_BATCH: Final = 2
USUAL: Final = 10
WAITING_MAX: Final = 10_000
#: How long after its next try is due a delivery that did not come again here still counts as waiting.
GONE_MS: Final = 30_000
#: Rows of one write; a worker with more than that counts the rest under one topic.
ROWS_MAX: Final = 400
OTHER: Final = "other"
#: The end of a claim that was no longer in force.
LOST: Final = "lost"
# A member of an enumeration takes longer to look up than everything else that is done with a result here.
_DONE: Final = Outcome.DONE
_BUSY: Final = Verdict.BUSY
_RETRY: Final = Outcome.RETRY
_RELEASE: Final = Outcome.RELEASE
_counted_by: Final = attrgetter("topic", "verdict", "outcome")


class Taken(msgspec.Struct, frozen=True):
    """What was added up since the last time."""

    counts: dict[str, int]
    latest: list[SeenDelivery]


class Tally:
    """Counts deliveries and settled claims, and remembers the latest."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        """Start at zero."""
        self._topics = topics
        self._clock = clock
        self._lock = threading.Lock()
        self._clear()
        #: Deliveries that were handed back: by key, when they first were, and until when they count as waiting here.
        self._waiting: dict[str | None, tuple[int, int]] = {}
        forks.register(self)

    def _clear(self) -> None:
        self._delivered: Counter[tuple[str | None, Verdict, Outcome | None]] = Counter()
        self._settled: dict[tuple[str, str, str], int] = {}
        self._took_us: dict[str, int] = {}
        self._latest: deque[tuple[int, Result]] = deque(maxlen=LATEST)
        self._usual: deque[tuple[int, Result]] = deque(maxlen=USUAL)

    def before_fork(self) -> None:
        """Do nothing: what was counted stays the parent's."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start over in the child."""
        if in_child:
            self._lock = threading.Lock()
            self._waiting = {}
            self._clear()

    def delivered(self, results: Sequence[Result]) -> None:
        """Add the results of a batch."""
        now_ms = self._clock.now_us() // 1000
        with self._lock:
            self._delivered.update(map(_counted_by, results))
            unusual = [one for one in results if one.outcome is not _DONE]
            self._usual.extend([(now_ms, one) for one in results[-USUAL_OF_BATCH:] if one.outcome is _DONE])
            self._latest.extend([(now_ms, one) for one in unusual[-LATEST_OF_BATCH:]])
            waiting = self._waiting
            if waiting:
                for result in results:
                    if result.key in waiting and result.acknowledged:
                        del waiting[result.key]
            for result in unusual:
                outcome = result.outcome
                if outcome is _RETRY or outcome is _RELEASE or result.verdict is _BUSY:
                    self._note_waiting(result, now_ms)

    def _note_waiting(self, result: Result, now_ms: int) -> None:
        since_ms, _ = self._waiting.get(result.key, (now_ms, 0))
        if len(self._waiting) < WAITING_MAX or since_ms < now_ms:
            self._waiting[result.key] = since_ms, waits_until_ms(now_ms, result.retry_in_us // 1000)

    def settled(self, settled: Sequence[tuple[Task, bool]]) -> None:
        """Add claims that were settled, each with whether it was still in force."""
        with self._lock:
            ends, took_us = self._settled, self._took_us
            for task, ok in settled:
                ask, ended = task.ask, task.ended
                handler = ask.handler
                end = ask.topic, handler, ended.outcome if ok and ended is not None else LOST
                ends[end] = ends.get(end, 0) + 1
                took_us[handler] = took_us.get(handler, 0) + task.took_us

    def waiting(self) -> tuple[int, int | None]:
        """Return how many deliveries wait for their next try, and since when the oldest does."""
        now_ms = self._clock.now_us() // 1000
        with self._lock:
            # One that does not come again in time has gone to another worker, which counts it if it waits there.
            self._waiting = {key: times for key, times in self._waiting.items() if times[1] > now_ms}
            return len(self._waiting), min((since_ms for since_ms, _ in self._waiting.values()), default=None)

    def take(self) -> Taken:
        """Return what was added up, and start over."""
        with self._lock:
            delivered, settled, took = self._delivered, self._settled, self._took_us
            latest = [*self._latest, *self._usual]
            self._clear()
        rows: Counter[Count] = Counter()
        for (topic, verdict, outcome), number in delivered.items():
            rows[Count(self._label(topic), None, column_of(verdict, outcome))] += number
        for (topic, handler, what), number in settled.items():
            rows[Count(self._label(topic), _plain(handler), str(what))] += number
        for handler, took_us in took.items():
            rows[Count(OTHER, _plain(handler), "us")] += took_us
        return Taken(_bounded(rows), [self._seen(at_ms, result) for at_ms, result in sorted(latest, key=_by_time)])

    def _label(self, topic: str | None) -> str:
        return self._topics.label(topic) if topic else OTHER

    def _seen(self, at_ms: int, result: Result) -> SeenDelivery:
        return SeenDelivery(
            at_ms=at_ms,
            verdict=result.verdict.value,
            column=result.column,
            reason=result.reason,
            outcome=result.outcome and result.outcome.value,
            topic=self._label(result.topic),
            key=result.key,
            envelope_id=result.envelope_id,
            original_envelope_id=result.original_envelope_id,
            time_ms=result.time_ms,
            retry_in_ms=result.retry_in_us // 1000,
            handler=_plain(result.handler),
            conversation=result.conversation,
            user=result.user,
        )


def waits_until_ms(at_ms: int, retry_in_ms: int) -> int:
    """Return until when a delivery that was handed back counts as waiting, unless it comes again before."""
    return at_ms + 2 * retry_in_ms + GONE_MS


def _by_time(one: tuple[int, Any]) -> int:
    return one[0]


def _plain(handler: str) -> str:
    """Return the name of a handler as a note may hold it: names of handlers elsewhere come from outside."""
    return "".join(letter for letter in handler if letter.isprintable())[:100]


def _bounded(rows: Counter[Count]) -> dict[str, int]:
    """Return the rows by name; where there are too many, the rest under one topic."""
    kept: Counter[str] = Counter()
    for at, (count, number) in enumerate(rows.most_common()):
        kept[(count if at < ROWS_MAX else count._replace(topic=OTHER)).name] += number
    return dict(kept)
