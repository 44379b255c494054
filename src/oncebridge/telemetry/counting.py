"""The totals of moves in this process: one aggregate for every exporter, so that no two of them disagree.

Topics come from outside and may hold any text; as labels they are few and plain.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from oncebridge import forks
from oncebridge.claim import Outcome, Verdict
from oncebridge.telemetry import COLUMNS
from oncebridge.topics import BUILT_IN, topic_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oncebridge.telemetry import Move

OTHER: Final = "other"
TOPICS_MAX: Final = 100
TOPIC_LENGTH_MAX: Final = 100
TOPIC_DIGITS_MAX: Final = 4  # ids and phone numbers have more, topics hardly ever

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 .:_{}/-]*")


class Topics:
    """Decides under which label a topic is counted.

    Known topics are labels; so are others that look like a topic, but only the first few. A topic that may not be a
    label is counted under its family's, or under `other`.
    """

    def __init__(self, known: Iterable[str] = (), *, others: int = TOPICS_MAX) -> None:
        """Take topics that are known beside the built-in ones, and how many others may become labels."""
        self._known = frozenset(topic for topic in known if _is_plain(topic))
        self._others = others
        self._admitted: set[str] = set()
        self._lock = threading.Lock()
        forks.free_locks(self, "_lock")
        self._cached = lru_cache(maxsize=4096)(self._find)

    def label(self, topic: str) -> str:
        """Return the label of a topic."""
        return self._cached(topic) if len(topic) <= TOPIC_LENGTH_MAX else OTHER

    def _find(self, topic: str) -> str:
        family = next((row.topic for row in BUILT_IN if topic_pattern(row.topic).fullmatch(topic)), None)
        exact = topic if family is None else _without_ids(topic, family)
        for name in (topic, exact):
            if name in self._known:
                return name
        if exact == family or (_is_plain(exact) and self._admits(exact)):
            return exact
        return family or OTHER

    def _admits(self, topic: str) -> bool:
        with self._lock:
            if len(self._admitted) < self._others:
                self._admitted.add(topic)
            return topic in self._admitted


def _is_plain(topic: str) -> bool:
    """Return whether a text looks like a topic, and not like a number, an id or an address."""
    few_digits = sum(map(str.isdigit, topic)) <= TOPIC_DIGITS_MAX
    return few_digits and len(topic) <= TOPIC_LENGTH_MAX and _PLAIN.fullmatch(topic) is not None


def _without_ids(topic: str, family: str) -> str:
    """Write a topic as its family does; where the family ends in `*`, with the topic's own rest."""
    start = family.removesuffix("*")
    return family if start == family else start + topic.split(".", start.count("."))[-1]


# --- counters and measures: one row each -------------------------------------------------------------------------

Labels: TypeAlias = tuple[str, ...]


class Count(NamedTuple):
    """A counter: moves of one kind, by labels."""

    name: str
    explained: str
    labels: Labels
    #: The values of the labels, for a move and the label of its topic.
    read: Callable[[Move, str], Labels]


class Measure(NamedTuple):
    """A measurement: a value that some moves have."""

    name: str
    explained: str
    unit: str
    bounds: tuple[float, ...]
    #: The moves that may have it.
    moves: tuple[str, ...]
    read: Callable[[Move], float | None]
    #: None, or the handler.
    labels: Labels = ()

    def labels_of(self, move: Move) -> Labels:
        """Return the values of the labels."""
        return (move.handler,) if self.labels else ()


_FRESH: Final = Verdict.FRESH
_RELEASE: Final = Outcome.RELEASE
_ENDS: Final = (Outcome.DONE, Outcome.DEAD)


def _handler_seconds(move: Move) -> float | None:
    """Return how long a handler had an event; None for a claim given back untried, or buried without a handler."""
    if move.duration_ms is None or move.verdict != _FRESH or move.outcome == _RELEASE:
        return None
    return move.duration_ms / 1000


def _age_seconds(move: Move) -> float | None:
    """Return how old an event was when it was claimed, never below zero although clocks differ."""
    return None if move.age_ms is None or move.verdict != _FRESH else max(0, move.age_ms) / 1000


def _attempts(move: Move) -> int | None:
    """Return the attempt at which an event ended."""
    return move.attempt if move.outcome in _ENDS and move.verdict == _FRESH else None


#: By the move that they count.
COUNTS: Final = {
    "delivered": Count(
        "deliveries", "Deliveries, each in one column of the books.", ("verdict", "outcome", "column", "topic"),
        lambda move, topic: (str(move.verdict), str(move.outcome or ""), move.column, topic),
    ),
    "settled": Count(
        "settled", "Claims that were settled, one for each handler of an event.",
        ("verdict", "outcome", "topic", "handler"),
        lambda move, topic: (str(move.verdict), str(move.outcome), topic, move.handler),
    ),
    "lost": Count(
        "lost_claims", "Claims that were taken over while a handler ran.", ("topic", "handler"),
        lambda move, topic: (topic, move.handler),
    ),
    "refused": Count(
        "refused_dead_letters", "Dead letters that were not kept, since there were too many; they are redelivered.",
        ("topic", "handler"), lambda move, topic: (topic, move.handler),
    ),
}  # fmt: skip

MEASURES: Final = (
    Measure(
        "handler_seconds", "How long handlers took.", "s",
        (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900),
        ("settled", "lost"), _handler_seconds, labels=("handler",),
    ),
    # From the usual to the days for which Genesys and EventBridge still retry.
    Measure(
        "event_age_seconds", "How old events were when a handler was to get them.", "s",
        (0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400, 345_600), ("claimed",), _age_seconds,
    ),
    Measure(
        "attempts", "How many attempts events took to their end.", "{attempt}",
        (1, 2, 3, 5, 10), ("settled",), _attempts,
    ),
)  # fmt: skip

#: The state of a bridge at one moment, by name.
GAUGES: Final = {
    "ledger_out_of_reach": "1 while calls of the ledger fail: events wait, and nothing is acknowledged.",
    "receivers_out_of_reach": "Receivers that are left alone because calls to them failed: events for them wait.",
    "books_out_of_balance": "Deliveries by which the columns of the books exceed what was received; 0 unless wrong.",
    "silent_topics": "Topics that usually come at this hour, and have not come for much longer than usual.",
}


def measured(move: Move) -> Iterator[tuple[Measure, float]]:
    """Yield the measured values of a move."""
    for measure in MEASURES_OF.get(move.move, ()):
        value = measure.read(move)
        if value is not None:
            yield measure, value


#: By the move that may have them.
MEASURES_OF: Final = {
    move: tuple(measure for measure in MEASURES if move in measure.moves)
    for move in {move for measure in MEASURES for move in measure.moves}
}


# --- totals --------------------------------------------------------------------------------------------------------


class Spread:
    """The distribution of some values: how many are at most each bound, and their sum; each value too, if wanted."""

    def __init__(self, bounds: tuple[float, ...], *, each: bool) -> None:
        """Start without values."""
        self.bounds = bounds
        #: For each bound, the values above the bound before; last, those above all.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.values: list[float] | None = [] if each else None

    def add(self, value: float) -> None:
        """Add one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        if self.values is not None:
            self.values.append(value)

    def copy(self) -> Spread:
        """Return an independent copy."""
        other = Spread(self.bounds, each=False)
        other.counts, other.sum = self.counts.copy(), self.sum
        other.values = None if self.values is None else self.values.copy()
        return other


#: Where moves of one kind are counted, under which labels, and where they are measured, under which.
_Place: TypeAlias = tuple[
    "dict[Labels, int] | None", Labels, "tuple[tuple[Measure, dict[Labels, Spread], Labels], ...]"
]


class Totals:
    """All counts and measures since the beginning, or since they were last taken; by name, then by labels."""

    def __init__(self, *, each: bool) -> None:
        """Start at zero; `each` keeps every value of a spread."""
        self.each = each
        self.counts: dict[str, dict[Labels, int]] = {count.name: {} for count in COUNTS.values()}
        self.spreads: dict[str, dict[Labels, Spread]] = {measure.name: {} for measure in MEASURES}
        self._places: dict[tuple[str | None, ...], _Place] = {}

    def __bool__(self) -> bool:
        """Return whether there is anything."""
        return any(self.counts.values()) or any(self.spreads.values())

    def add(self, move: Move, topic: str) -> None:
        """Add one move, under the label of its topic."""
        alike = (move.move, topic, move.handler, move.verdict, move.outcome, move.column)
        place = self._places.get(alike)
        if place is None:
            place = self._places[alike] = self._place(move, topic)
        counts, labels, measures = place
        if counts is not None:
            counts[labels] = counts.get(labels, 0) + move.number
        for measure, spreads, handler in measures:
            value = measure.read(move)
            if value is not None:
                if handler not in spreads:
                    spreads[handler] = Spread(measure.bounds, each=self.each)
                spreads[handler].add(value)

    def _place(self, move: Move, topic: str) -> _Place:
        """Return the counters and measures for moves like this one: there are few kinds, and each is looked up once."""
        count = COUNTS.get(move.move)
        counts = None if count is None else self.counts[count.name]
        measures = MEASURES_OF.get(move.move, ())
        return (
            counts,
            () if count is None else count.read(move, topic),
            tuple((measure, self.spreads[measure.name], measure.labels_of(move)) for measure in measures),
        )

    def copy(self) -> Totals:
        """Return an independent copy."""
        other = Totals(each=self.each)
        other.counts = {name: counts.copy() for name, counts in self.counts.items()}
        other.spreads = {
            name: {labels: spread.copy() for labels, spread in spreads.items()}
            for name, spreads in self.spreads.items()
        }
        return other


def columns_by_topic(*counted: Totals) -> dict[str, dict[str, int]]:
    """Return for each topic how many deliveries ended in each column of the books, of one process or of several."""
    found: dict[str, dict[str, int]] = {}
    for totals in counted:
        for (_, _, column, topic), number in totals.counts["deliveries"].items():
            columns = found.setdefault(topic, {})
            columns[column] = columns.get(column, 0) + number
    return {
        topic: {column: found[topic][column] for column in COLUMNS if column in found[topic]} for topic in sorted(found)
    }


class Packed(msgspec.Struct, frozen=True):
    """Totals in a form that can be sent to another process."""

    counts: dict[str, list[tuple[Labels, int]]]
    spreads: dict[str, list[tuple[Labels, list[int], float]]]

    @classmethod
    def of(cls, totals: Totals) -> Packed:
        """Pack the counts; single values are dropped."""
        return cls(
            {name: list(counts.items()) for name, counts in totals.counts.items()},
            {
                name: [(labels, spread.counts, spread.sum) for labels, spread in spreads.items()]
                for name, spreads in totals.spreads.items()
            },
        )

    def unpacked(self) -> Totals:
        """Return the totals."""
        totals = Totals(each=False)
        for name, counts in self.counts.items():
            totals.counts[name] = dict(counts)
        for measure in MEASURES:
            for labels, numbers, total in self.spreads.get(measure.name, ()):
                spread = totals.spreads[measure.name][labels] = Spread(measure.bounds, each=False)
                spread.counts, spread.sum = numbers, total
        return totals


class Counts:
    """Counts moves: an observer for `Telemetry`, safe in threads."""

    def __init__(self, topics: Topics, *, each: bool = False) -> None:
        """Take the labels of topics; `each` keeps every value of a spread."""
        self._topics = topics
        self._totals = Totals(each=each)
        self._lock = threading.Lock()
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: the counts stay the parent's."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start over in the child: the sum of both would count moves twice."""
        if in_child:
            self._totals = Totals(each=self._totals.each)
            self._lock = threading.Lock()

    def __call__(self, move: Move) -> None:
        """Count one move."""
        topic = self._topics.label(move.topic)
        with self._lock:
            self._totals.add(move, topic)

    def read(self) -> Totals:
        """Return the counts so far."""
        with self._lock:
            return self._totals.copy()

    def take(self) -> Totals:
        """Return the counts, and start over."""
        with self._lock:
            taken, self._totals = self._totals, Totals(each=self._totals.each)
            return taken
