"""Metrics and spans for OpenTelemetry, if the program around the bridge has set it up."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from oncebridge.claim import Outcome
from oncebridge.telemetry import logger
from oncebridge.telemetry.counting import COUNTS, MEASURES, Measure, Topics, measured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import Histogram, Meter
    from opentelemetry.trace import Tracer

    from oncebridge.clock import Clock
    from oncebridge.telemetry import Move, Telemetry

#: Names by OpenTelemetry's conventions, where they differ from the others'.
_NAMES: Final = {"handler_seconds": "handler.duration", "event_age_seconds": "event.age"}


def observe_with_otel(telemetry: Telemetry, clock: Clock, known: Iterable[str] = ()) -> None:
    """Add the observer for OpenTelemetry, once, if the program has configured a provider.

    Checked only if its library is loaded already: a program that has set it up has loaded it, and for others loading it
    would take longer than everything else at a cold start.
    """
    if "opentelemetry" not in sys.modules or telemetry.has(OpenTelemetry):
        return
    try:
        from opentelemetry import metrics, trace

        meters, tracers = metrics.get_meter_provider(), trace.get_tracer_provider()
        # Providers from the API's own modules are placeholders for real ones.
        if type(meters).__module__.startswith(metrics.__name__) and type(tracers).__module__.startswith(trace.__name__):
            return
        telemetry.add(OpenTelemetry(meters.get_meter("oncebridge"), tracers.get_tracer("oncebridge"), clock, known))
    except Exception:  # noqa: BLE001 - whatever is wrong with it, events go on
        logger.exception("OpenTelemetry could not be used; the events are not affected")


class OpenTelemetry:
    """Counts and traces moves: an observer for `Telemetry`."""

    def __init__(self, meter: Meter, tracer: Tracer, clock: Clock, known: Iterable[str] = ()) -> None:
        """Take where to count and trace, and topics that are known beside the built-in ones."""
        self._tracer = tracer
        self._clock = clock
        self._topics = Topics(known)
        self._counters = {
            move: meter.create_counter(f"oncebridge.{count.name}", description=count.explained)
            for move, count in COUNTS.items()
        }
        self._histograms = {measure.name: _histogram(meter, measure) for measure in MEASURES}

    def __call__(self, move: Move) -> None:
        """Count and measure one move; the end of a handler's call is a span too."""
        topic = self._topics.label(move.topic)
        count = COUNTS.get(move.move)
        if count is not None:
            self._counters[move.move].add(move.number, dict(zip(count.labels, count.read(move, topic), strict=True)))
        for measure, value in measured(move):
            labels = dict(zip(measure.labels, measure.labels_of(move), strict=True))
            self._histograms[measure.name].record(value, labels)
            if measure.name == "handler_seconds":
                self._trace(move, topic, value)

    def _trace(self, move: Move, topic: str, seconds: float) -> None:
        """Write a span after the fact: it ends when the claim was settled, a moment after its handler."""
        from opentelemetry.trace import StatusCode

        end_ns = self._clock.now_us() * 1000
        attributes: dict[str, str | int] = {
            "oncebridge.topic": topic,
            "oncebridge.handler": move.handler,
            "oncebridge.outcome": str(move.outcome),
            "oncebridge.attempt": move.attempt,
        }
        span = self._tracer.start_span(f"handle {topic}", attributes=attributes, start_time=end_ns - int(seconds * 1e9))
        if move.outcome != Outcome.DONE:
            span.set_status(StatusCode.ERROR)
        span.end(end_ns)


def _histogram(meter: Meter, measure: Measure) -> Histogram:
    name = f"oncebridge.{_NAMES.get(measure.name, measure.name)}"
    try:
        return meter.create_histogram(
            name, measure.unit, measure.explained, explicit_bucket_boundaries_advisory=measure.bounds
        )
    except TypeError:  # before 1.30 only the program could set bounds, in a view
        return meter.create_histogram(name, measure.unit, measure.explained)
