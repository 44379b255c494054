"""Metrics for Prometheus, served on a port of this process."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.errors import ConfigurationError, MissingExtra
from oncebridge.telemetry import logger
from oncebridge.telemetry.counting import COUNTS, GAUGES, MEASURES, Counts, Topics

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from oncebridge.telemetry import Move
    from oncebridge.telemetry.counting import Totals

STOP_SECONDS: Final = 5.0


class Prometheus:
    """Counts moves: an observer for `Telemetry`, and the collector that Prometheus scrapes."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """Take topics that are known beside the built-in ones; raise `MissingExtra` without prometheus_client."""
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector
        except ImportError:
            raise MissingExtra(
                "metrics for Prometheus need prometheus_client; install it with: pip install 'oncebridge[cli]'"
            ) from None
        self._counts = Counts(Topics(known))
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        #: A registry of our own: metrics of the surrounding program are not ours to show. It also has memory, files and
        #: CPU.
        self.registry: CollectorRegistry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def __call__(self, move: Move) -> None:
        """Count one move."""
        self._counts(move)

    def gauge(self, name: str, explained: str, read: Callable[[], float]) -> None:
        """Show a number as `oncebridge_NAME`, read at each scrape; it is left out while it is unknown."""
        self._gauges[name] = (explained, read)

    def serve(self, port: int, host: str = "127.0.0.1") -> Served:
        """Serve on a port, in a thread of its own; with 0 the system chooses one."""
        from prometheus_client import start_http_server

        try:
            return Served(*start_http_server(port, host, self.registry))
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"metrics: cannot answer on {host} port {port}: {error}; name another") from None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; the library calls this method by its name."""
        yield from families(self._counts.read())
        yield from self._read_gauges()

    def _read_gauges(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        for name, (explained, read) in self._gauges.items():
            try:
                value = read()
            except Exception:  # noqa: BLE001 - the other metrics are still shown
                logger.exception("the gauge %s failed, and is left out", name)
            else:
                yield GaugeMetricFamily(f"oncebridge_{name}", explained, value)


def families(totals: Totals) -> Iterator[Metric]:
    """Convert counts and measures to the library's form."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    for count in COUNTS.values():
        counter = CounterMetricFamily(f"oncebridge_{count.name}", count.explained, labels=count.labels)
        for labels, number in totals.counts[count.name].items():
            counter.add_metric(labels, number)
        yield counter
    for measure in MEASURES:
        histogram = HistogramMetricFamily(f"oncebridge_{measure.name}", measure.explained, labels=measure.labels)
        bounds = [*(str(float(bound)) for bound in measure.bounds), "+Inf"]
        for labels, spread in totals.spreads[measure.name].items():
            histogram.add_metric(labels, list(zip(bounds, accumulate(spread.counts), strict=True)), spread.sum)
        yield histogram


def gauge_families(gauges: Mapping[str, int]) -> Iterator[Metric]:
    """Convert the state of a bridge to the library's form."""
    from prometheus_client.core import GaugeMetricFamily

    for name, value in gauges.items():
        yield GaugeMetricFamily(f"oncebridge_{name}", GAUGES[name], value)


class Served(msgspec.Struct, frozen=True):
    """A server that answers Prometheus."""

    server: WSGIServer
    thread: threading.Thread

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.server.server_port

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(STOP_SECONDS)
