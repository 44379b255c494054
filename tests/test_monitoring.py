"""The alerts and the dashboard in deploy/: every metric and label in them is one that the program really writes."""

import json
import re
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from oncebridge import Bridge, PermanentError
from oncebridge.cli.consume import _serve_metrics
from oncebridge.service.metrics import WorkerMetrics
from oncebridge.telemetry import Move
from oncebridge.telemetry.counting import GAUGES
from payloads import ACW, PRESENCE, TIME_MS, envelope

ROOT = Path(__file__).parent.parent
RULES = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
RUNBOOK = (ROOT / "docs/runbook.md").read_text()
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = DASHBOARD["panels"]

#: Labels that Prometheus adds to everything that it scrapes, and `serve` to everything of a worker.
ADDED = {"job", "instance", "worker"}
NAME = re.compile(r"\b(?:oncebridge|process)_\w+")
SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
GROUPED = re.compile(r"\bby \(([^)]*)\)")


def expressions():
    """Yield every expression, with where it is."""
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """Scrape `serve` and `consume` after events of every kind; return the labels of each sample by its name."""
    bridge = Bridge("memory://")

    @bridge.on(ACW, name="crm")
    def handle(event):
        if event.time_ms == TIME_MS:
            raise PermanentError("never")
        if event.time_ms == TIME_MS + 1:
            raise RuntimeError("not yet")

    folder = tmp_path_factory.mktemp("metrics")
    worker = WorkerMetrics(bridge, folder)
    worker.start()
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oncebridge.cli.consume.say", said.append)
        close = _serve_metrics(bridge, SimpleNamespace(in_flight=[]), 0, "127.0.0.1")
    for number in range(3):
        bridge.process(envelope(ACW, {"eventTime": TIME_MS + number}, id=f"e-{number}"))
    bridge.process(envelope(PRESENCE))
    for move in ("lost", "refused"):
        bridge.telemetry.observe(Move(move=move, key="", topic=ACW, handler="crm"))
    with urllib.request.urlopen(said[0].split()[-1], timeout=30) as answer:
        texts = [answer.read().decode(), worker.exposition().decode()]
    close()
    worker.close()
    bridge.close()
    found = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_metric_is_one_that_is_written(scraped):
    """No alert and no panel asks for a metric or a label that no scrape has: it would never fire, and look healthy."""
    for where, expression in expressions():
        names = set(NAME.findall(expression))
        assert names, where
        assert names - set(scraped) == set(), where
        labels = set().union(*(scraped[name] for name in names)) | ADDED
        for name, selected in SELECTOR.findall(expression):
            assert set(LABEL.findall(selected)) <= scraped[name] | ADDED, where
        for grouped in GROUPED.findall(expression):
            assert {label.strip() for label in grouped.split(",")} <= labels, where


def test_every_value_of_a_label_is_one_that_is_written():
    """The columns and outcomes that alerts and panels select are those of the books and of the protocol."""
    from oncebridge.claim import Outcome
    from oncebridge.telemetry import COLUMNS

    known = {"column": set(COLUMNS), "outcome": {outcome.value for outcome in Outcome}}
    for where, expression in expressions():
        for label, values in re.findall(r"(column|outcome)=~?\"([^\"]*)\"", expression):
            assert set(values.split("|")) <= known[label], where


def test_every_metric_is_watched(scraped):
    """Every metric of ours is in an alert or on the dashboard, so a new one is not forgotten."""
    watched = " ".join(expression for _, expression in expressions())
    families = {re.sub(r"_(bucket|sum|count|total|created)$", "", name) for name in scraped if "oncebridge" in name}
    assert {family for family in families if family not in watched} == set()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_its_part_of_the_runbook(rule):
    """Each alert has a severity and a summary, and links to a heading of the runbook."""
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/runbook.md"
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in RUNBOOK.splitlines()
        if line.startswith("#")
    }
    assert anchor in headings
    assert rule["alert"] in RUNBOOK
    for text in (rule["expr"], str(rule["annotations"])):
        for pair in ("()", "[]", "{}"):
            assert text.count(pair[0]) == text.count(pair[1])
    if "for" in rule:
        assert re.fullmatch(r"\d+[smh]", rule["for"])


def test_the_dashboard_is_whole():
    """Panels have numbers of their own, do not overlap, and ask the data source that is chosen."""
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_the_state_of_a_bridge_is_shown():
    """Whatever is out of reach, silent or out of balance is in a gauge; all are 0 where all is well."""
    with Bridge("memory://") as bridge:
        well = bridge.gauges()
        assert set(well.values()) == {0}
        for breaker in (bridge.sink_context.breakers.of("crm.example"), bridge._breaker):
            for _ in range(9):
                with pytest.raises(ConnectionError), breaker.informed_by(ConnectionError):
                    raise ConnectionError("away")
        bridge.books.enter("processed")
        bridge.start_journal("consume")
        bridge._journal._silence.silent = frozenset({"v2.users.{id}.presence"})
        assert set(bridge.gauges()) == set(well) == set(GAUGES)
        assert set(bridge.gauges().values()) == {1}
