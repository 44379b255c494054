"""What all workers are doing now, from their journal: for the console's first page and for `top`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.journal.pauses import Pause
from oncebridge.telemetry import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncebridge.journal.reader import JournalReader, Period
    from oncebridge.journal.records import HandlerSeen, WorkerSeen

#: Columns that are copies of an event that is done.
COPIES: Final = ("redelivery", "republish", "echo")
MINUTES: Final = 60
#: A topic is silent if it has not come for this many times its usual distance, and for at least so many minutes.
SILENT_TIMES: Final = 10
SILENT_MINUTES: Final = 10


class TopicRow(msgspec.Struct, frozen=True):
    """One topic in the last hour."""

    topic: str
    columns: dict[str, int]
    #: Minutes since it last came.
    quiet_minutes: int

    @property
    def received(self) -> int:
        """How many deliveries came."""
        return sum(self.columns.values())


class HandlerRow(msgspec.Struct, frozen=True):
    """One handler or sink in the last hour."""

    name: str
    kind: str
    topics: tuple[str, ...]
    promise: str
    done: int
    failed: int
    dead: int
    lost: int
    #: Mean time of a call; None if there was none.
    mean_ms: float | None
    #: Workers that have it, and run.
    workers: int
    #: How long its events can wait at their source, in words.
    holds: tuple[str, ...]


class Overview(msgspec.Struct, frozen=True):
    """What all workers did in the last hour."""

    at_ms: int
    start_ms: int
    #: By column of the books: a number for each minute.
    columns: dict[str, list[int]]
    topics: list[TopicRow]
    #: Topics that came in the hour, and then no more.
    silent: list[TopicRow]
    handlers: list[HandlerRow]
    workers: list[WorkerSeen]
    #: Names of those that run.
    running: list[str]
    waiting: int
    oldest_waiting_ms: int | None
    #: By the name of the handler.
    pauses: dict[str, Pause] = {}
    #: Other topics that usually come at this hour and do not, as running workers have noticed.
    overdue: list[str] = []

    @property
    def totals(self) -> dict[str, int]:
        """The columns of the books over the whole hour."""
        return {name: sum(numbers) for name, numbers in self.columns.items()}

    @property
    def received(self) -> int:
        """All deliveries of the hour."""
        return sum(self.totals.values())


def overview(reader: JournalReader, now_ms: int) -> Overview:
    """Read the last hour."""
    minutes, workers = reader.minutes(MINUTES), reader.workers()
    running = [worker for worker in workers if reader.runs(worker)]
    topics = _topics(minutes)
    silent = [row for row in topics if _is_silent(row, minutes)]
    noticed = {name for worker in running for name in worker.silent}
    oldest = [one.oldest_waiting_ms for one in running if one.oldest_waiting_ms is not None]
    return Overview(
        at_ms=now_ms,
        start_ms=minutes[0].start_ms,
        columns=_columns(minutes),
        topics=topics,
        silent=silent,
        handlers=_handlers(minutes, workers, running),
        workers=workers,
        running=[worker.name for worker in running],
        waiting=sum(worker.waiting for worker in running),
        oldest_waiting_ms=min(oldest, default=None),
        pauses=reader.pauses(),
        overdue=sorted(noticed - {row.topic for row in silent}),
    )


def _columns(minutes: Sequence[Period]) -> dict[str, list[int]]:
    by_minute = [minute.columns() for minute in minutes]
    return {name: [columns[name] for columns in by_minute] for name in COLUMNS}


def _topics(minutes: Sequence[Period]) -> list[TopicRow]:
    columns: dict[str, Counter[str]] = {}
    last: dict[str, int] = {}
    for at, minute in enumerate(minutes):
        for count, number in minute.counts.items():
            if count.handler is None:
                columns.setdefault(count.topic, Counter())[count.what] += number
                last[count.topic] = at
    rows = [TopicRow(topic, dict(found), len(minutes) - 1 - last[topic]) for topic, found in columns.items()]
    return sorted(rows, key=lambda row: (-row.received, row.topic))


def _is_silent(row: TopicRow, minutes: Sequence[Period]) -> bool:
    """Return whether a topic that came often has stopped."""
    came_in = sum(any(count.topic == row.topic and count.handler is None for count in one.counts) for one in minutes)
    usual = (len(minutes) - row.quiet_minutes) / max(1, came_in)
    return came_in > 1 and row.quiet_minutes >= max(SILENT_MINUTES, SILENT_TIMES * usual)


def _handlers(
    minutes: Sequence[Period], workers: Sequence[WorkerSeen], running: Sequence[WorkerSeen]
) -> list[HandlerRow]:
    ends: dict[str, Counter[str]] = {}
    for minute in minutes:
        for count, number in minute.counts.items():
            if count.handler is not None:
                ends.setdefault(count.handler, Counter())[count.what] += number
    described = {handler.name: handler for worker in reversed(workers) for handler in worker.handlers}
    return [
        _handler_row(name, ends.get(name, Counter()), described.get(name), running)
        for name in sorted({*ends, *described})
    ]


def _handler_row(name: str, ends: Counter[str], seen: HandlerSeen | None, running: Iterable[WorkerSeen]) -> HandlerRow:
    having = [worker for worker in running if any(handler.name == name for handler in worker.handlers)]
    calls = ends["done"] + ends["retry"] + ends["dead"]
    return HandlerRow(
        name=name,
        kind=seen.kind if seen else "",
        topics=seen.topics if seen else (),
        promise=seen.promise if seen else "",
        done=ends["done"],
        failed=ends["retry"],
        dead=ends["dead"],
        lost=ends["lost"],
        mean_ms=ends["us"] / calls / 1000 if calls else None,
        workers=len(having),
        holds=tuple(sorted({worker.holds for worker in having if worker.holds})),
    )
