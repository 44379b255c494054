"""Metrics: what is counted, under which labels, and the three ways out, which agree with the books and each other."""

import io
import itertools
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly_parsed
from prometheus_client.parser import text_string_to_metric_families

from oncebridge import Bridge, ConfigurationError, LedgerUnavailable, NotAcknowledged, PermanentError, Settings
from oncebridge.claim import Outcome, Verdict
from oncebridge.errors import MissingExtra
from oncebridge.settings import load_settings
from oncebridge.telemetry import COLUMNS, Move, Telemetry
from oncebridge.telemetry.counting import OTHER, TOPICS_MAX, Counts, Topics
from oncebridge.telemetry.emf import EmbeddedMetrics, documents
from oncebridge.telemetry.otel import OpenTelemetry, observe_with_otel
from oncebridge.telemetry.prometheus import Prometheus
from oncebridge.testing.clock import ManualClock
from oncebridge.topics import BUILT_IN
from payloads import (
    ACW,
    AUDITS,
    CANARIES,
    CONVERSATION,
    PRESENCE,
    ROUTING_STATUS,
    TIME_MS,
    envelope,
    in_envelope,
    personal,
    raw,
    routing_status,
)
from servers.process import free_port

LATER_MS = 20_000  # the events reach the bridge so long after they happened
HANDLER_MS = 30
FUNCTION = "wrapups"
DETAILS = "v2.detail.events.conversation.{id}.*"


class Otel:
    """OpenTelemetry with everything kept in memory."""

    def __init__(self, clock):
        """Set it up, for this object alone."""
        self._reader = InMemoryMetricReader()
        self._spans = InMemorySpanExporter()
        self.meters = MeterProvider([self._reader])
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.observer = OpenTelemetry(self.meters.get_meter("test"), self.tracers.get_tracer("test"), clock)

    def points(self, name):
        """Return the points of a metric, by what they have."""
        data = self._reader.get_metrics_data()
        metrics = [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
        return {
            frozenset(point.attributes.items()): point
            for metric in metrics
            if metric.name == name
            for point in metric.data.data_points
        }

    @property
    def spans(self):
        """Return the spans that have ended."""
        return self._spans.get_finished_spans()

    @property
    def text(self):
        """Return everything there is as text."""
        return self._reader.get_metrics_data().to_json() + "".join(span.to_json() for span in self.spans)


class Watched:
    """A bridge whose handler takes a while, watched in all three ways."""

    def __init__(self, handler=None, *, name="crm", topics=("*",), **settings):
        """Make the bridge; events of the handler that raise fail."""
        self.clock = ManualClock((TIME_MS + LATER_MS) * 1000)
        self.prometheus = Prometheus()
        self.emf = EmbeddedMetrics(namespace="Oncebridge", function=FUNCTION, clock=self.clock)
        self.otel = Otel(self.clock)
        observers = (self.prometheus, self.emf, self.otel.observer)
        self.bridge = Bridge(
            "memory://", clock=self.clock, telemetry=Telemetry(observers), settings=Settings(**settings)
        )
        self._handler = handler
        take = self._handle
        for topic in topics:
            self.bridge.on(topic, name=name)(take)

    def _handle(self, event):
        self.clock.advance(HANDLER_MS / 1000)
        if self._handler is not None:
            self._handler(event)

    def process(self, *deliveries):
        """Work deliveries off, one at a time."""
        for delivery in deliveries:
            self.bridge.process(delivery)

    @property
    def exposition(self):
        """Return what Prometheus would be shown."""
        return generate_latest(self.prometheus.registry).decode()

    def samples(self, name):
        """Return the samples of that name in the exposition, by their labels."""
        return samples(self.exposition, name)

    def written(self, capsys):
        """Return the documents that are written for CloudWatch now."""
        self.emf.flush()
        return documents_in(capsys.readouterr().out)


def samples(text, name):
    """Return the samples of a name in an exposition, by their labels."""
    return {
        frozenset(sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def documents_in(text):
    """Read the lines written for CloudWatch, and hold each against what the format asks for."""
    found = [json.loads(line) for line in text.splitlines()]
    for document in found:
        check_document(document)
    return found


def check_document(document):
    """Require what CloudWatch requires: it drops what it does not understand, and tells nobody."""
    about = document["_aws"]
    assert set(about) == {"Timestamp", "CloudWatchMetrics"}
    assert type(about["Timestamp"]) is int
    names = []
    for directive in about["CloudWatchMetrics"]:
        assert set(directive) == {"Namespace", "Dimensions", "Metrics"}
        assert directive["Namespace"]
        for dimensions in directive["Dimensions"]:
            assert 1 <= len(dimensions) <= 30
            for dimension in dimensions:
                assert type(document[dimension]) is str
                assert re.fullmatch(r"(?=.*\S)[ -~]{1,1024}", document[dimension])
        for metric in directive["Metrics"]:
            assert metric["Unit"] in ("Count", "Milliseconds", "Seconds")
            value = document[metric["Name"]]
            values = value if type(value) is list else [value]
            assert 1 <= len(values) <= 100
            assert all(type(one) in (int, float) for one in values)
            names.append(metric["Name"])
    assert 1 <= len(names) == len(set(names)) <= 100


def kept_by(written, name, *dimensions):
    """Add up a metric as CloudWatch would, by the values of these dimensions."""
    sums = Counter()
    for document in written:
        for directive in document["_aws"]["CloudWatchMetrics"]:
            if list(dimensions) in directive["Dimensions"] and any(one["Name"] == name for one in directive["Metrics"]):
                value = document[name]
                sums[tuple(document[one] for one in dimensions)] += sum(value) if type(value) is list else value
    return sums


def failing(*errors):
    """Make a handler that fails with one after the other, and then no more; None lets an event pass."""
    ahead = iter(errors)

    def handle(event):
        error = next(ahead, None)
        if error is not None:
            raise error

    return handle


def mixed():
    """Build deliveries for a handler that fails at the third and the fourth: each column of the books gets some."""
    audit = envelope(AUDITS, id="audit")
    return [
        audit, routing_status("IDLE", TIME_MS), *wrapups(2),  # processed, processed, retrying, dead
        audit, audit, envelope(AUDITS, id="again"), envelope(AUDITS, {"action": "Delete"}), b"{",
        routing_status("IDLE", TIME_MS + 100, id="echo"), routing_status("OFF_QUEUE", TIME_MS - 100, id="stale"),
        envelope(PRESENCE),  # which no handler takes
    ]  # fmt: skip


def wrapups(number):
    """Build some facts."""
    return [envelope(ACW, {"conversationId": f"call-{n}"}, id=f"e-{n}") for n in range(number)]


@pytest.fixture
def mixed_up():
    """Return a bridge that has worked off some of everything."""
    watched = Watched(failing(None, None, OSError(), PermanentError()), topics=(AUDITS, ROUTING_STATUS, ACW))
    watched.process(*mixed())
    return watched


def labels(**values):
    """Write labels as the samples have them."""
    return frozenset(values.items())


# --- what is counted --------------------------------------------------------------------------------------------


def test_every_way_out_agrees_with_the_books(mixed_up, capsys):
    """Each delivery is counted once, in its column of the books, by Prometheus and OpenTelemetry as by the books."""
    books = mixed_up.bridge.books.as_dict()
    assert [books[column] for column in COLUMNS] == [2, 2, 1, 1, 1, 1, 2, 1, 1]
    by_column = {"Prometheus": Counter(), "OpenTelemetry": Counter()}
    for key, value in mixed_up.samples("oncebridge_deliveries_total").items():
        by_column["Prometheus"][dict(key)["column"]] += value
    for key, point in mixed_up.otel.points("oncebridge.deliveries").items():
        by_column["OpenTelemetry"][dict(key)["column"]] += point.value
    for columns in by_column.values():
        assert columns == {column: books[column] for column in COLUMNS}
    written = mixed_up.written(capsys)
    in_cloudwatch = {
        "DeadLetters": "dead", "Conflicts": "conflict", "Unhandled": "unhandled", "Retrying": "retrying",
        "Deliveries": "received",
    }  # fmt: skip
    for metric, column in in_cloudwatch.items():
        assert kept_by(written, metric, "Function") == {(FUNCTION,): books[column]}


def test_deliveries_by_verdict_outcome_and_topic(mixed_up):
    """Deliveries are told apart by verdict, outcome, column and topic."""
    expected = {
        ("fresh", "done", "processed", AUDITS): 1,
        ("fresh", "done", "processed", ROUTING_STATUS): 1,
        ("fresh", "retry", "retrying", ACW): 1,
        ("fresh", "dead", "dead", ACW): 1,
        ("redelivery", "", "redelivery", AUDITS): 2,
        ("republish", "", "republish", AUDITS): 1,
        ("conflict", "dead", "conflict", AUDITS): 1,
        ("dead", "dead", "dead", OTHER): 1,
        ("echo", "", "echo", ROUTING_STATUS): 1,
        ("stale", "", "stale", ROUTING_STATUS): 1,
        ("unhandled", "", "unhandled", PRESENCE): 1,
    }
    names = ("verdict", "outcome", "column", "topic")
    counted = {frozenset(zip(names, values, strict=True)): number for values, number in expected.items()}
    assert mixed_up.samples("oncebridge_deliveries_total") == counted
    points = mixed_up.otel.points("oncebridge.deliveries")
    assert {key: point.value for key, point in points.items()} == counted


def test_settled_by_outcome_topic_and_handler(mixed_up):
    """Settled claims are told apart by outcome, topic and handler; what nobody handles has none."""
    expected = {
        ("fresh", "done", AUDITS, "crm"): 1,
        ("fresh", "done", ROUTING_STATUS, "crm"): 1,
        ("fresh", "retry", ACW, "crm"): 1,
        ("fresh", "dead", ACW, "crm"): 1,
        ("conflict", "dead", AUDITS, "crm"): 1,
        ("dead", "dead", OTHER, ""): 1,
    }
    names = ("verdict", "outcome", "topic", "handler")
    counted = {frozenset(zip(names, values, strict=True)): number for values, number in expected.items()}
    assert mixed_up.samples("oncebridge_settled_total") == counted
    points = mixed_up.otel.points("oncebridge.settled")
    assert {key: point.value for key, point in points.items()} == counted


def test_only_calls_of_handlers_take_time(mixed_up, capsys):
    """The time of each call of a handler is measured; what no handler got takes none."""
    calls = 4
    assert mixed_up.samples("oncebridge_handler_seconds_count") == {labels(handler="crm"): calls}
    assert mixed_up.samples("oncebridge_handler_seconds_sum") == {
        labels(handler="crm"): pytest.approx(calls * HANDLER_MS / 1000)
    }
    buckets = mixed_up.samples("oncebridge_handler_seconds_bucket")
    assert [buckets[labels(handler="crm", le=bound)] for bound in ("0.025", "0.05", "+Inf")] == [0, calls, calls]
    (point,) = mixed_up.otel.points("oncebridge.handler.duration").values()
    assert (point.count, point.sum) == (calls, pytest.approx(calls * HANDLER_MS / 1000))
    times = [document["HandlerTime"] for document in mixed_up.written(capsys) if "HandlerTime" in document]
    assert times == [[HANDLER_MS] * calls]


def test_age_is_that_of_events_given_to_handlers(mixed_up, capsys):
    """How old an event is counts when a handler is to get it: duplicates come late by nature, and wait for nobody."""
    whole_second_ms = TIME_MS // 1000 * 1000  # audits say no more of their time
    granted = [(whole_second_ms, 0), (TIME_MS, 1), (TIME_MS, 2), (TIME_MS, 3)]  # and the calls of handlers before
    ages = [(TIME_MS + LATER_MS + calls * HANDLER_MS - time_ms) / 1000 for time_ms, calls in granted]
    (age,) = mixed_up.samples("oncebridge_event_age_seconds_sum").values()
    (count,) = mixed_up.samples("oncebridge_event_age_seconds_count").values()
    assert (age, count) == (pytest.approx(sum(ages)), 4)
    (point,) = mixed_up.otel.points("oncebridge.event.age").values()
    assert (point.count, point.sum) == (4, pytest.approx(sum(ages)))
    written = [document["EventAge"] for document in mixed_up.written(capsys) if "EventAge" in document]
    assert written == [pytest.approx(ages)]


def test_attempts_to_the_end():
    """An event that was done at its third attempt has taken three."""
    watched = Watched(failing(OSError(), OSError()))
    watched.process(*[envelope(ACW)] * 4)
    (attempts,) = watched.samples("oncebridge_attempts_sum").values()
    (events,) = watched.samples("oncebridge_attempts_count").values()
    assert (attempts, events) == (3, 1)


def move(**changes):
    """Make the move that settles one fact, with changes."""
    usual = {"move": "settled", "key": "k", "topic": ACW, "verdict": Verdict.FRESH, "outcome": Outcome.DONE}
    return Move(**{**usual, **changes})


@pytest.mark.parametrize(
    "made",
    [
        move(outcome=Outcome.RELEASE, duration_ms=5.0),
        move(verdict=Verdict.CONFLICT, outcome=Outcome.DEAD, duration_ms=5.0),
        move(verdict=Verdict.DEAD, outcome=Outcome.DEAD, duration_ms=5.0),
        move(move="claimed", verdict=Verdict.BUSY, outcome=None, age_ms=5),
        move(move="claimed", verdict=Verdict.REDELIVERY, outcome=None, age_ms=5),
    ],
    ids=["given back", "conflict", "unreadable", "busy", "duplicate"],
)
def test_moves_without_a_handler_measure_nothing(made):
    """What was not given to a handler has neither a time nor an age nor attempts."""
    counts = Counts(Topics())
    counts(made)
    assert not any(counts.read().spreads.values())


def test_lost_claims():
    """A claim that was taken over is counted as lost, not as settled; its handler took its time all the same."""
    counts = Counts(Topics())
    counts(move(move="lost", outcome=Outcome.RETRY, duration_ms=1500.0, handler="crm"))
    totals = counts.read()
    assert {name: counted for name, counted in totals.counts.items() if counted} == {"lost_claims": {(ACW, "crm"): 1}}
    assert totals.spreads["handler_seconds"][("crm",)].sum == 1.5
    assert not totals.spreads["attempts"]


def test_an_event_from_the_future_is_new():
    """Where clocks differ an event may come from the future: its age is nought, and sums never shrink."""
    counts = Counts(Topics())
    counts(move(move="claimed", outcome=None, age_ms=-400))
    assert counts.read().spreads["event_age_seconds"][()].sum == 0


def test_what_was_read_stays_as_it_is():
    """Totals that were read do not change while more is counted."""
    counts = Counts(Topics(), each=True)
    counts(move(duration_ms=1000.0))
    totals = counts.read()
    counts(move(duration_ms=1000.0))
    assert totals.counts["settled"] == {("fresh", "done", ACW, ""): 1}
    assert totals.spreads["handler_seconds"][("",)].values == [1.0]
    assert sum(totals.spreads["handler_seconds"][("",)].counts) == 1


def test_threads_lose_no_count():
    """Whatever several threads count, also while totals are taken, adds up exactly."""
    counts, taken = Counts(Topics(), each=True), []
    threads, moves = 4, 2000

    def run():
        for _ in range(moves):
            counts(move(duration_ms=1.0))

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running):
        taken.append(counts.take())
    taken.append(counts.take())
    assert sum(sum(totals.counts["settled"].values()) for totals in taken) == threads * moves
    spreads = [spread for totals in taken for spread in totals.spreads["handler_seconds"].values()]
    assert sum(len(spread.values) for spread in spreads) == threads * moves
    assert sum(sum(spread.counts) for spread in spreads) == threads * moves


# --- labels -----------------------------------------------------------------------------------------------------

HOSTILE = {
    "phone number": "call from +44 20 7946 0958",
    "phone number of digits": "sms:442079460958",
    "phone number in groups": "callback 020-7946",
    "address": "mail:canary@birdcage.example",
    "id": f"conversation:{CONVERSATION}:ended",
    "id without hyphens": f"conversation:{CONVERSATION.replace('-', '')}",
    "line break": 'a"}\noncebridge_forged_total 1\n',
    "quotes": 'say "hello"',
    "backslash": "a\\",
    "half a character": "a\udc80",
    "not a letter": "größe",
    "escape": "a\x1b[31m",
    "blank": " ",
    "nothing": "",
    "long": "a" * 101,
    "other digits": "call ١٢٣",
}


@pytest.mark.parametrize("topic", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_topic_is_no_label(topic):
    """Only what looks like a topic is a label; a number, an id, an address or a control character is not shown."""
    assert Topics().label(topic) == OTHER
    assert Topics([topic]).label(topic) == OTHER


def test_long_topics_take_no_memory():
    """A topic that is too long for a label is not remembered either: many of them would fill the memory."""
    topics = Topics()
    for n in range(10):
        assert topics.label(f"v2.detail.events.conversation.{{id}}.{'a' * 1000}{n}") == OTHER
    assert topics._cached.cache_info().currsize == 0


@pytest.mark.parametrize(
    "topic", [ACW, PRESENCE, "v2.users.{id}.geolocation", "conversation:call:status", "Status Of Conversation"]
)
def test_topics_are_labels(topic):
    """Genesys' topics are labels, and so are those of hand-made events."""
    assert Topics().label(topic) == topic


@pytest.mark.parametrize(
    ("topic", "label"),
    [
        (f"v2.users.{CANARIES['user']}.presence", PRESENCE),
        ("v2.detail.events.conversation.wilhelmina.acw", ACW),
        ("v2.detail.events.conversation.{id}.by.442079460958", DETAILS),
        ("v2.detail.events.conversation.wilhelmina.\n", DETAILS),
    ],
)
def test_ids_are_taken_out_of_known_topics(topic, label):
    """Where the place of an id is known it is taken out, whatever it looks like."""
    assert Topics().label(topic) == label


def words():
    """Yield any number of different words without digits."""
    for letters in itertools.product("abcdefghij", repeat=4):
        yield "topic " + "".join(letters)


def test_labels_are_few():
    """Of ten thousand topics some hundred are labels, and the known ones among them whenever they come."""
    metrics = Prometheus()
    bridge = Bridge("memory://", telemetry=Telemetry((metrics,)))
    bridge.on("*")(lambda event: None)
    topics = list(words())
    bridge.process_many([in_envelope({"eventId": topic}, detail_type=topic) for topic in topics])
    bridge.process_many([*wrapups(1), envelope(AUDITS)])
    exposition = generate_latest(metrics.registry).decode()
    counted = samples(exposition, "oncebridge_deliveries_total")
    shown = {dict(key)["topic"]: value for key, value in counted.items()}
    assert len(topics) == 10_000
    assert set(shown) == {*topics[:TOPICS_MAX], OTHER, DETAILS, AUDITS}
    assert shown[OTHER] == len(topics) - TOPICS_MAX
    assert len(samples(exposition, "oncebridge_settled_total")) == len(counted) == TOPICS_MAX + 3


def test_only_known_topics_are_billed(capsys):
    """CloudWatch bills by topic, and processes come and go: there only topics that we name ourselves are dimensions."""
    known = [ACW, "v2.outbound.campaigns.{id}"]
    emf = EmbeddedMetrics(namespace="Oncebridge", function=FUNCTION, clock=ManualClock(), known=[*known, "*"])
    sent = [*known, "v2.detail.events.conversation.{id}.acd.start", PRESENCE, *itertools.islice(words(), 10)]
    sent.append("v2.detail.events.conversation.wilhelmina.acw")
    for topic in sent:
        emf(move(move="delivered", topic=topic, column="processed"))
    emf.flush()
    by_topic = kept_by(documents_in(capsys.readouterr().out), "Deliveries", "Function", "Topic")
    assert {topic: number for (_, topic), number in by_topic.items()} == {
        ACW: 2, "v2.outbound.campaigns.{id}": 1, DETAILS: 1, PRESENCE: 1, OTHER: 10,
    }  # fmt: skip
    assert DETAILS in {row.topic for row in BUILT_IN}


def test_metrics_hold_no_personal_data(capsys):
    """Neither what a payload, an error or a topic's name says, nor a key, an id or a conversation is in any metric."""

    def careless(event):
        raise PermanentError from ValueError(str(event.body))

    watched = Watched(careless)
    hand_made = [in_envelope({"eventId": "e-1"}, detail_type=f"call of {CANARIES['phone']}")]
    hand_made += [in_envelope({"eventId": "e-1"}, detail_type=CANARIES["address"])]
    watched.process(*personal(), *personal(), *(raw(tree)[:-9] for tree in personal()), *hand_made)
    watched.emf.flush()
    line = capsys.readouterr().out
    for shown in (watched.exposition, line, watched.otel.text):
        assert len(shown) > 1000
        assert [name for name, value in CANARIES.items() if value in shown] == []
        assert "ob1_" not in shown
        assert CONVERSATION not in shown


# --- Prometheus -------------------------------------------------------------------------------------------------


def fetched(served):
    """Return what a server answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def test_prometheus_is_answered(mixed_up):
    """The metrics are on a port of this machine alone, with gauges asked anew, until the server is closed."""
    in_flight = iter([3, 5])
    mixed_up.prometheus.gauge("in_flight", "Messages.", lambda: next(in_flight))
    served = mixed_up.prometheus.serve(0)
    try:
        assert served.server.server_address[0] == "127.0.0.1"
        texts = [fetched(served), fetched(served)]
    finally:
        served.close()
    assert [samples(text, "oncebridge_in_flight") for text in texts] == [{frozenset(): 3}, {frozenset(): 5}]
    ours = {family.name: family.type for family in text_string_to_metric_families(texts[0])}
    assert {name: kind for name, kind in ours.items() if name.startswith("oncebridge_")} == {
        "oncebridge_deliveries": "counter",
        "oncebridge_settled": "counter",
        "oncebridge_lost_claims": "counter",
        "oncebridge_refused_dead_letters": "counter",
        "oncebridge_handler_seconds": "histogram",
        "oncebridge_event_age_seconds": "histogram",
        "oncebridge_attempts": "histogram",
        "oncebridge_in_flight": "gauge",
    }
    assert sum(samples(texts[0], "oncebridge_deliveries_total").values()) == len(mixed())
    with pytest.raises(OSError, match="refused"):
        fetched(served)


def test_buckets_add_up(mixed_up):
    """Each bucket holds those below it too, and the last one all."""
    for name in ("handler_seconds", "event_age_seconds", "attempts"):
        buckets = mixed_up.samples(f"oncebridge_{name}_bucket")
        by_bound = sorted((float(dict(key)["le"]), value) for key, value in buckets.items())
        assert [value for _, value in by_bound] == sorted(value for _, value in by_bound)
        (count,) = mixed_up.samples(f"oncebridge_{name}_count").values()
        assert by_bound[-1] == (float("inf"), count)


def test_the_stricter_format_is_right_too(mixed_up):
    """Prometheus may ask for OpenMetrics, whose readers refuse what is not exact."""
    text = generate_openmetrics(mixed_up.prometheus.registry).decode()
    families = {family.name: family for family in strictly_parsed(text)}
    deliveries = families["oncebridge_deliveries"].samples
    assert sum(sample.value for sample in deliveries) == len(mixed())


def test_a_bound_belongs_to_its_bucket():
    """A value that is exactly a bound is at most that bound."""
    counts = Counts(Topics())
    counts(move(move="claimed", outcome=None, age_ms=1000))
    spread = counts.read().spreads["event_age_seconds"][()]
    assert dict(zip(spread.bounds, spread.counts, strict=False))[1] == 1


def test_the_process_is_shown():
    """Memory and open files of the process are shown beside the rest, where the system tells."""
    text = Watched().exposition
    for name in ("process_resident_memory_bytes", "process_open_fds"):
        assert bool(samples(text, name)) is Path("/proc/self/stat").exists()


def test_metrics_of_others_stay_theirs():
    """What the program keeps in the library's own registry is not shown here, nor ours there."""
    watched = Watched()
    assert "python_info" in generate_latest(REGISTRY).decode()
    assert "python_info" not in watched.exposition
    assert "oncebridge" not in generate_latest(REGISTRY).decode()


def test_a_gauge_that_fails_is_left_out(mixed_up, caplog):
    """A gauge that fails takes no other metric with it."""
    mixed_up.prometheus.gauge("broken", "Fails.", lambda: 1 / 0)
    mixed_up.prometheus.gauge("whole", "Works.", lambda: 7)
    assert mixed_up.samples("oncebridge_whole") == {frozenset(): 7}
    assert "oncebridge_broken" not in mixed_up.exposition
    assert mixed_up.samples("oncebridge_deliveries_total")
    assert "the gauge broken failed" in caplog.text


def test_a_port_in_use_is_named():
    """A port that somebody else has is refused, by name."""
    metrics = Prometheus()
    served = metrics.serve(0)
    try:
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1 port {served.port}: .*in use; name another"):
            metrics.serve(served.port)
    finally:
        served.close()
    for port, host in ((70_000, "127.0.0.1"), (0, "nowhere.invalid")):
        with pytest.raises(ConfigurationError, match=f"{host} port {port}"):
            metrics.serve(port, host)


def test_prometheus_without_its_library(monkeypatch):
    """Without the library the error names the line that installs it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"pip install 'oncebridge\[cli\]'"):
        Prometheus()


# --- CloudWatch -------------------------------------------------------------------------------------------------


def context(**changes):
    """Make what Lambda hands over beside the event."""
    usual = {"function_name": FUNCTION, "aws_request_id": "r-1", "get_remaining_time_in_millis": lambda: 60_000}
    return SimpleNamespace(**{**usual, **changes})


def messages(*trees):
    """Build the invocation for some messages of a queue."""
    records = [
        {"messageId": f"m-{n}", "body": raw(tree).decode(), "eventSource": "aws:sqs"} for n, tree in enumerate(trees)
    ]
    return {"Records": records}


@pytest.fixture
def bridge():
    """Return a bridge at a known time whose handler takes anything."""
    bridge = Bridge("memory://", clock=ManualClock((TIME_MS + LATER_MS) * 1000))
    bridge.on("*")(lambda event: None)
    yield bridge
    bridge.close()


def test_an_invocation_writes_its_metrics(bridge, capsys):
    """Each invocation writes what became of its own deliveries: one line of the whole, one for each group of them."""
    first, second = wrapups(2)
    bridge.lambda_handler(messages(first, second, first), context())
    written = documents_in(capsys.readouterr().out)
    plain = [{name: value for name, value in document.items() if name != "_aws"} for document in written]
    age = LATER_MS / 1000
    assert plain == [
        {
            "Function": FUNCTION, "DeadLetters": 0, "Conflicts": 0, "Unhandled": 0, "Retrying": 0, "LostClaims": 0,
            "OldestUnfinished": 0.0,
            "HandlerTime": [0.0, 0.0], "EventAge": [age, age],
        },
        {
            "Function": FUNCTION, "Topic": DETAILS, "Verdict": "fresh", "Outcome": "done",
            "Deliveries": 2, "Settled": 2,
        },
        {"Function": FUNCTION, "Topic": DETAILS, "Verdict": "redelivery", "Deliveries": 1},
    ]  # fmt: skip
    assert {document["_aws"]["Timestamp"] for document in written} == {TIME_MS + LATER_MS}
    bridge.lambda_handler(messages(first), context())
    again = documents_in(capsys.readouterr().out)
    assert kept_by(again, "Deliveries", "Function", "Verdict") == {(FUNCTION, "redelivery"): 1}
    assert len(bridge.telemetry._observers) == 1


def test_dimensions_are_as_documented(mixed_up, capsys):
    """Alarms hang on names, units and dimensions: these."""
    kept = {
        (metric["Name"], metric["Unit"], tuple(map(tuple, directive["Dimensions"])))
        for document in mixed_up.written(capsys)
        for directive in document["_aws"]["CloudWatchMetrics"]
        for metric in directive["Metrics"]
    }
    by_function = (("Function",),)
    assert kept == {
        ("Deliveries", "Count", (("Function",), ("Function", "Verdict"), ("Function", "Topic"))),
        ("Settled", "Count", (("Function", "Outcome"),)),
        ("DeadLetters", "Count", by_function),
        ("Conflicts", "Count", by_function),
        ("Unhandled", "Count", by_function),
        ("Retrying", "Count", by_function),
        ("LostClaims", "Count", by_function),
        ("OldestUnfinished", "Seconds", by_function),
        ("HandlerTime", "Milliseconds", by_function),
        ("EventAge", "Seconds", by_function),
    }


def test_cloudwatch_by_verdict_topic_and_outcome(mixed_up, capsys):
    """CloudWatch keeps deliveries by verdict and by topic, and settled claims by outcome."""
    written = mixed_up.written(capsys)
    by_verdict = kept_by(written, "Deliveries", "Function", "Verdict")
    assert {verdict: number for (_, verdict), number in by_verdict.items()} == {
        "fresh": 4, "redelivery": 2, "republish": 1, "conflict": 1, "dead": 1, "echo": 1, "stale": 1, "unhandled": 1,
    }  # fmt: skip
    by_topic = kept_by(written, "Deliveries", "Function", "Topic")
    assert {topic: number for (_, topic), number in by_topic.items()} == {
        AUDITS: 5, ROUTING_STATUS: 3, DETAILS: 2, PRESENCE: 1, OTHER: 1,
    }  # fmt: skip
    by_outcome = kept_by(written, "Settled", "Function", "Outcome")
    assert {outcome: number for (_, outcome), number in by_outcome.items()} == {"done": 2, "retry": 1, "dead": 3}


def test_an_invocation_that_fails_writes_its_metrics(capsys):
    """Metrics are written also where an invocation fails, so that whoever tries again can be seen to."""
    bridge = Bridge("memory://")
    bridge.on("*")(failing(OSError()))
    with pytest.raises(NotAcknowledged):
        bridge.lambda_handler(envelope(ACW), context())
    written = documents_in(capsys.readouterr().out)
    assert kept_by(written, "Retrying", "Function") == {(FUNCTION,): 1}
    bridge.close()


def sent(invocation, *ages_s):
    """Say of each message of an invocation how long it has been in the queue."""
    for record, age_s in zip(invocation["Records"], ages_s, strict=True):
        record["attributes"] = {"SentTimestamp": str(TIME_MS + LATER_MS - age_s * 1000)}
    return invocation


def test_the_oldest_message_that_is_handed_back_is_told(capsys):
    """How long the oldest unfinished message has waited is written, and 0 once everything is done."""
    clock = ManualClock((TIME_MS + LATER_MS) * 1000)
    bridge = Bridge("memory://", clock=clock)
    failing_ones = {"call-1", "call-2"}

    @bridge.on("*")
    def handle(event):
        if event.conversation_id in failing_ones:
            raise OSError

    invocation = sent(messages(*wrapups(3)), 90_000, 60, 7_200)
    assert len(bridge.lambda_handler(invocation, context())["batchItemFailures"]) == 2
    assert kept_by(documents_in(capsys.readouterr().out), "OldestUnfinished", "Function") == {(FUNCTION,): 7_200}
    clock.advance(3_600)
    failing_ones.clear()
    assert not bridge.lambda_handler(invocation, context())["batchItemFailures"]
    assert kept_by(documents_in(capsys.readouterr().out), "OldestUnfinished", "Function") == {(FUNCTION,): 0}
    bridge.close()


def test_the_oldest_message_is_told_while_the_ledger_is_out_of_reach(capsys):
    """Where nothing could even be asked, the oldest of all messages is what waits."""
    bridge = Bridge(f"redis://127.0.0.1:{free_port()}/0", clock=ManualClock((TIME_MS + LATER_MS) * 1000))
    bridge.on("*")(lambda event: None)
    with pytest.raises(LedgerUnavailable):
        bridge.lambda_handler(sent(messages(*wrapups(2)), 86_400, 30), context())
    assert kept_by(documents_in(capsys.readouterr().out), "OldestUnfinished", "Function") == {(FUNCTION,): 86_400}
    bridge.close()


@pytest.mark.parametrize("said", [None, "", "soon", "-1", "9" * 20, 5, {}], ids=repr)
def test_a_message_that_does_not_say_when_it_was_sent(bridge, capsys, said):
    """What is no time is no age, and fails nothing."""
    bridge.on("*", name="down")(failing(OSError()))
    invocation = messages(*wrapups(1))
    invocation["Records"][0]["attributes"] = {"SentTimestamp": said}
    assert bridge.lambda_handler(invocation, context())["batchItemFailures"] == [{"itemIdentifier": "m-0"}]
    assert kept_by(documents_in(capsys.readouterr().out), "OldestUnfinished", "Function") == {(FUNCTION,): 0}


def test_an_invocation_without_deliveries_writes_nothing(bridge, capsys):
    """Where there was nothing to count there is nothing to pay for."""
    bridge.lambda_handler({"Records": []}, context())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("given", [None, SimpleNamespace(), context(function_name=None)])
def test_nothing_is_written_outside_lambda(bridge, given, capsys):
    """Standard output is left alone unless it is Lambda that calls."""
    bridge.lambda_handler(messages(envelope(ACW)), given)
    bridge.process(envelope(ACW))
    assert capsys.readouterr().out == ""


def test_topics_that_the_program_names_are_known(capsys):
    """A topic with a handler of its own is counted by its own name."""
    bridge = Bridge("memory://")
    bridge.on(ACW)(lambda event: None)
    bridge.lambda_handler(envelope(ACW), context())
    written = documents_in(capsys.readouterr().out)
    assert kept_by(written, "Deliveries", "Function", "Topic") == {(FUNCTION, ACW): 1}
    bridge.close()


def documents_of(counts):
    """Return the documents that counts would be written as."""
    made = documents(counts.take(), namespace="Oncebridge", function=FUNCTION, timestamp_ms=TIME_MS)
    return documents_in("\n".join(map(json.dumps, made)))


def test_many_values_are_written_in_pieces():
    """A document takes a hundred values: of more events there are more documents, and no number stands in two."""
    counts = Counts(Topics(), each=True)
    for n in range(250):
        counts(move(duration_ms=float(n)))
        counts(move(move="delivered", column="retrying", outcome=Outcome.RETRY))
    written = documents_of(counts)
    assert [len(document["HandlerTime"]) for document in written if "HandlerTime" in document] == [100, 100, 50]
    assert kept_by(written, "HandlerTime", "Function") == {(FUNCTION,): sum(range(250))}
    assert kept_by(written, "Retrying", "Function") == kept_by(written, "Deliveries", "Function") == {(FUNCTION,): 250}


def test_lost_claims_alone_are_written():
    """A lost claim is told of also where nothing else happened."""
    counts = Counts(Topics(), each=True)
    counts(move(move="lost", verdict=Verdict.DEAD, outcome=Outcome.RETRY))
    (document,) = documents_of(counts)
    assert document["LostClaims"] == 1


class Broken(io.StringIO):
    """A standard output that is gone."""

    def write(self, text):
        """Fail."""
        raise BrokenPipeError


def test_metrics_that_cannot_be_written(bridge, monkeypatch, caplog):
    """Where standard output is gone the invocation ends as it would have; the log says so."""
    monkeypatch.setattr(sys, "stdout", Broken())
    answered = bridge.lambda_handler(messages(envelope(ACW)), context())
    monkeypatch.undo()
    assert answered == {"batchItemFailures": []}
    assert "metrics could not be written" in caplog.text


def test_namespace(bridge, capsys):
    """The namespace is a setting."""
    bridge.settings = load_settings(metrics_namespace="Shop/Events")
    bridge.lambda_handler(messages(envelope(ACW)), context())
    directives = [one for line in documents_in(capsys.readouterr().out) for one in line["_aws"]["CloudWatchMetrics"]]
    assert {directive["Namespace"] for directive in directives} == {"Shop/Events"}


@pytest.mark.parametrize("name", ["AWS/Lambda", "größe", "a b", "a" * 256, "", 7, "line\n"])
def test_wrong_namespaces(name):
    """A namespace that CloudWatch would not take is refused when settings are read."""
    with pytest.raises(ConfigurationError, match=r"metrics_namespace: expected a CloudWatch namespace"):
        load_settings(metrics_namespace=name)


# --- OpenTelemetry ----------------------------------------------------------------------------------------------


def test_calls_of_handlers_are_spans(mixed_up):
    """Each call of a handler is a span as long as the call, with topic, handler, outcome and attempt, and no key."""
    shown = [
        (span.name, dict(span.attributes), span.status.is_ok, span.end_time - span.start_time)
        for span in mixed_up.otel.spans
    ]
    expected = [
        (AUDITS, "done", True), (ROUTING_STATUS, "done", True), (ACW, "retry", False), (ACW, "dead", False),
    ]  # fmt: skip
    assert shown == [
        (
            f"handle {topic}",
            {
                "oncebridge.topic": topic,
                "oncebridge.handler": "crm",
                "oncebridge.outcome": outcome,
                "oncebridge.attempt": 1,
            },
            ok,
            HANDLER_MS * 1_000_000,
        )
        for topic, outcome, ok in expected
    ]
    assert mixed_up.otel.spans[0].start_time == (TIME_MS + LATER_MS) * 1_000_000


def test_bounds_are_the_same_everywhere(mixed_up):
    """OpenTelemetry sorts values into the buckets that Prometheus has."""
    (point,) = mixed_up.otel.points("oncebridge.handler.duration").values()
    buckets = mixed_up.samples("oncebridge_handler_seconds_bucket")
    assert {*map(float, point.explicit_bounds), float("inf")} == {float(dict(key)["le"]) for key in buckets}


@pytest.fixture
def set_up(monkeypatch):
    """Let the program around the bridge have set OpenTelemetry up."""
    otel = Otel(ManualClock())
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: otel.meters)
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: otel.tracers)
    return otel


def test_opentelemetry_is_found(set_up, bridge):
    """Where the program has set OpenTelemetry up the bridge uses it, once, however often it is opened."""
    for _ in range(2):
        with bridge:
            bridge.process(envelope(ACW))
    points = set_up.points("oncebridge.deliveries")
    assert sorted(dict(key)["verdict"] for key in points) == ["fresh", "redelivery"]
    assert {point.value for point in points.values()} == {1}
    assert len(set_up.spans) == 1


@pytest.mark.parametrize("left", ["meters", "tracers"])
def test_half_of_opentelemetry_is_enough(set_up, bridge, monkeypatch, left):
    """Whoever wants metrics alone, or spans alone, gets them."""
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.trace import NoOpTracerProvider

    if left == "meters":
        monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", NoOpTracerProvider)
    else:
        monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", NoOpMeterProvider)
    bridge.process(envelope(ACW))
    assert bool(set_up.spans) is (left == "tracers")
    if left == "meters":
        assert set_up.points("oncebridge.deliveries")


def test_opentelemetry_that_goes_nowhere_costs_nothing(bridge):
    """Where it is installed and loaded, but not set up, nothing is counted for it."""
    with bridge:
        assert not bridge.telemetry.observed


def test_opentelemetry_that_is_broken(bridge, monkeypatch, caplog):
    """Whatever is wrong with OpenTelemetry is not the events' trouble."""
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: 1 / 0)
    assert bridge.process(envelope(ACW)).outcome is Outcome.DONE
    assert "OpenTelemetry could not be used" in caplog.text


def test_opentelemetry_of_an_earlier_version(set_up):
    """An API that does not know of bounds yet is used without them."""
    meter = set_up.meters.get_meter("earlier")

    class Earlier:
        create_counter = meter.create_counter

        def create_histogram(self, name, unit="", description=""):
            return meter.create_histogram(name, unit, description)

    observer = OpenTelemetry(Earlier(), set_up.tracers.get_tracer("earlier"), ManualClock())
    observer(move(duration_ms=1000.0))
    (point,) = set_up.points("oncebridge.handler.duration").values()
    assert point.sum == 1


LOADED = """
import sys
from oncebridge import Bridge
bridge = Bridge("memory://")
bridge.on("*")(lambda event: None)
bridge.process({"eventId": "e-1", "type": "order"})
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"opentelemetry", "prometheus_client"}))
"""


def test_nothing_is_loaded_for_metrics():
    """A bridge loads neither library by itself: cold starts count."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == ""


def test_telemetry_knows_its_observers():
    """Telemetry tells whether an observer of some kind is there, and adding is for good."""
    telemetry = Telemetry()
    observe_with_otel(telemetry, ManualClock())
    assert not telemetry.has(Counts)
    telemetry.add(Counts(Topics()))
    assert telemetry.has(Counts)
