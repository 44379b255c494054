"""Metrics for CloudWatch from Lambda: its embedded metric format, lines of JSON on standard output.

CloudWatch bills each combination of dimensions separately. So there are few of them, each with few values: a topic is
one that the settings, the handlers or the built-in profiles name, whatever else arrives.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oncebridge import forks
from oncebridge.telemetry import logger
from oncebridge.telemetry.counting import Counts, Topics, Totals
from oncebridge.visible import visible_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from oncebridge.clock import Clock
    from oncebridge.telemetry import Move

Dimensions: TypeAlias = tuple[tuple[str, ...], ...]

#: The properties and the metrics of a document.
Content: TypeAlias = tuple[dict[str, str], dict[str, Any]]

VALUES_MAX: Final = 100  # of one metric in one document, by the format
#: Silence lasts, and an alarm looks every few minutes: it is not said at every invocation.
SILENCE_EVERY_US: Final = 60_000_000

#: Written whenever anything is, zeros too, so that an alarm has data.
_COLUMNS: Final = {
    "DeadLetters": "dead", "Conflicts": "conflict", "Unhandled": "unhandled", "Retrying": "retrying",
}  # fmt: skip
_UNITS: Final = {"HandlerTime": "Milliseconds", "EventAge": "Seconds", "OldestUnfinished": "Seconds"}
#: The dimensions of each metric; all others have the function alone.
_DIMENSIONS: Final[dict[str, Dimensions]] = {
    "Deliveries": (("Function",), ("Function", "Verdict"), ("Function", "Topic")),
    "Settled": (("Function", "Outcome"),),
    "SilentTopics": (("Function",), ("Function", "Topic")),
}
_BY_FUNCTION: Final[Dimensions] = (("Function",),)


class EmbeddedMetrics:
    """Counts the moves of one invocation, and writes them out when it ends."""

    def __init__(
        self,
        *,
        namespace: str,
        function: str,
        clock: Clock,
        known: Iterable[str] = (),
        shadow: bool = False,
        silent: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """Take the metrics' namespace and function, topics that are known beside the built-in ones, and what is silent.

        The lines of a shadow say so, in a property that is no dimension.
        """
        self._namespace = namespace
        self._properties = {"Shadow": True} if shadow else {}
        self._function = function
        self._clock = clock
        self._topics = Topics(known, others=0)
        self._counts = Counts(self._topics, each=True)
        self._silent = silent
        self._silence_told_us = 0
        self._oldest_ms: int | None = None
        self._writing = threading.Lock()
        forks.free_locks(self, "_writing")

    def __call__(self, move: Move) -> None:
        """Count one move."""
        if move.move != "handed_back":
            self._counts(move)
        elif move.age_ms is not None:
            with self._writing:
                self._oldest_ms = max(self._oldest_ms or 0, move.age_ms)

    def flush(self) -> None:
        """Write the counts since the last time, and what is silent, if there is any. Never fails an invocation."""
        with self._writing:
            oldest_ms, self._oldest_ms = self._oldest_ms, None
        made = documents(
            self._counts.take(),
            oldest_ms,
            self._silent_now(),
            namespace=self._namespace,
            function=self._function,
            timestamp_ms=self._clock.now_us() // 1000,
        )
        if not made:
            return
        text = "".join(f"{visible_json({**document, **self._properties})}\n" for document in made)
        try:
            with self._writing:
                sys.stdout.write(text)
                sys.stdout.flush()
        except (OSError, ValueError):
            logger.exception("metrics could not be written to standard output; the events are not affected")

    def _silent_now(self) -> list[str]:
        """Return the topics that are silent, under the names that metrics may have, if it is time to say so."""
        silent, now_us = self._silent(), self._clock.monotonic_us()
        if not silent or (self._silence_told_us and now_us - self._silence_told_us < SILENCE_EVERY_US):
            return []
        self._silence_told_us = now_us
        return sorted({self._topics.label(topic) for topic in silent})


def documents(
    totals: Totals,
    oldest_ms: int | None = None,
    silent: Iterable[str] = (),
    *,
    namespace: str,
    function: str,
    timestamp_ms: int,
) -> list[dict[str, Any]]:
    """Write totals as documents: one of the whole, more for many values, and one per topic, verdict and outcome.

    No number is in two of them, so the sum over log lines is CloudWatch's.
    """
    made: list[dict[str, Any]] = []
    silences: list[Content] = [({"Topic": topic}, {"SilentTopics": 1}) for topic in silent]
    for properties, metrics in [*_whole(totals, oldest_ms), *_groups(totals), *silences]:
        directives = [
            {
                "Namespace": namespace,
                "Dimensions": dimensions,
                "Metrics": [{"Name": name, "Unit": _UNITS.get(name, "Count")} for name in names],
            }
            for dimensions, names in _by_dimensions(metrics).items()
        ]
        about = {"Timestamp": timestamp_ms, "CloudWatchMetrics": directives}
        made.append({"_aws": about, "Function": function, **properties, **metrics})
    return made


def _whole(totals: Totals, oldest_ms: int | None) -> Iterator[Content]:
    """Yield the metrics whose only dimension is the function; none if nothing was counted or handed back."""
    if not totals and oldest_ms is None:
        return
    columns: Counter[str] = Counter()
    for (_, _, column, _), number in totals.counts["deliveries"].items():
        columns[column] += number
    metrics: dict[str, Any] = {name: columns[column] for name, column in _COLUMNS.items()}
    metrics["LostClaims"] = sum(totals.counts["lost_claims"].values())
    refused = sum(totals.counts["refused_dead_letters"].values())
    metrics |= {"RefusedDeadLetters": refused} if refused else {}  # billed where there is a bound to reach
    metrics["OldestUnfinished"] = (oldest_ms or 0) / 1000
    handler_ms = [round(seconds * 1000, 3) for seconds in _values(totals, "handler_seconds")]
    ages = [round(seconds, 3) for seconds in _values(totals, "event_age_seconds")]
    for some_ms, some_ages in zip_longest(_pieces(handler_ms), _pieces(ages)):
        lists = {"HandlerTime": some_ms, "EventAge": some_ages}
        yield {}, {**metrics, **{name: values for name, values in lists.items() if values}}
        metrics = {}
    if metrics:
        yield {}, metrics


def _groups(totals: Totals) -> Iterator[Content]:
    """Yield deliveries and settled claims, grouped by topic, verdict and outcome."""
    groups: dict[tuple[str, str, str], Counter[str]] = {}
    for (verdict, outcome, _, topic), number in totals.counts["deliveries"].items():
        groups.setdefault((topic, verdict, outcome), Counter())["Deliveries"] += number
    for (verdict, outcome, topic, _), number in totals.counts["settled"].items():
        groups.setdefault((topic, verdict, outcome), Counter())["Settled"] += number
    for (topic, verdict, outcome), metrics in groups.items():
        yield {"Topic": topic, "Verdict": verdict, **({"Outcome": outcome} if outcome else {})}, dict(metrics)


def _values(totals: Totals, name: str) -> list[float]:
    return [value for spread in totals.spreads[name].values() for value in spread.values or ()]


def _pieces(values: list[float]) -> list[list[float]]:
    return [values[start : start + VALUES_MAX] for start in range(0, len(values), VALUES_MAX)]


def _by_dimensions(metrics: Iterable[str]) -> dict[Dimensions, list[str]]:
    found: dict[Dimensions, list[str]] = {}
    for name in metrics:
        found.setdefault(_DIMENSIONS.get(name, _BY_FUNCTION), []).append(name)
    return found
