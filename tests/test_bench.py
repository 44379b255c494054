"""The bench: contestants are right before they are timed, counts and delays are true, and a missed goal shows."""

import io
import json
import sys
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace

import pytest
import redis
from rich.console import Console

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

import engine_time
import growth
import run
import serve
from calls import counting, for_each
from contestants import Oncebridge, WrongError, check_once, check_verdicts
from delay import ONE_WAY_SECONDS, delayed
from measures import MEASURES
from memory import bytes_used, envelopes_in, events_in
from peers import BarePostgres, BareSQLite, Tutorial
from picture import panels
from report import Pair, Report, Row, cells, show
from traffic import facts, mixed, portions, templates
from turns import paired_ratio, take_turns

from servers.postgres import own_postgres
from servers.valkey import running_valkey

START_MS = 1_760_000_000_000
FACTS = list(facts(300, seed=1, start_ms=START_MS))
MIXED = list(mixed(1000, seed=1, start_ms=START_MS))


def read_json(raw):
    """Read a delivery as the tutorial does, without its models: pydantic is there only for the bench."""
    event = json.loads(raw)
    return event["id"], event


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory):
    """Return the port of a server that may be emptied."""
    with running_valkey(tmp_path_factory.mktemp("bench-valkey")) as server:
        yield server.port


@pytest.fixture
def redis_url(own_redis):
    """Return the URL of an empty database."""
    url = f"redis://127.0.0.1:{own_redis}/0"
    growth.empty(url)
    return url


# --- traffic -----------------------------------------------------------------------------------------------------


def test_facts_are_distinct_events():
    """No two facts are the same event, whether made here or from templates, so no duplicate is measured by mistake."""
    made = [f"{n:032}".join(one).encode() for n, one in enumerate(templates(40, start_ms=START_MS) * 3)]
    with closing(Oncebridge("memory://")) as bridge:
        assert set(bridge.verdicts(FACTS + made)) == {"fresh"}


def test_mixed_traffic_is_mixed_as_it_says():
    """Six in ten deliveries are states, three in ten duplicates, and a batch holds many states of one entity."""
    topics = [json.loads(raw)["detail"]["topicName"] for raw in MIXED]
    assert 0.55 < sum(topic.startswith("v2.users.") for topic in topics) / len(MIXED) < 0.65
    with closing(Oncebridge("memory://")) as bridge:
        verdicts = bridge.verdicts(MIXED)
    assert 0.25 < sum(one in {"redelivery", "republish"} for one in verdicts) / len(MIXED) < 0.35
    assert {"fresh", "echo", "stale"} <= set(verdicts)
    batches = list(portions(iter(topics), 100))
    assert [topic for batch in batches for topic in batch] == topics
    assert all(max(map(batch.count, batch)) >= 6 for batch in batches)


# --- contestants -------------------------------------------------------------------------------------------------


def test_everyone_who_is_compared_does_an_event_once(tmp_path, redis_url):
    """The bridge in batches and alone, the tutorial and bare statements each give an event to their handler once."""
    check_once("Redis", partial(Oncebridge, redis_url), FACTS)
    check_once("Redis, single", partial(Oncebridge, redis_url, size=1), list(facts(9, seed=2, start_ms=START_MS)))
    check_once("SET NX", partial(Tutorial, redis_url, read=read_json), FACTS)
    check_once("SQLite", partial(BareSQLite, f"{tmp_path}/bare.db"), FACTS)
    with own_postgres(tmp_path) as server:
        check_once("Postgres", partial(BarePostgres, server.url), FACTS)


def test_bare_statements_lose_nothing(tmp_path):
    """An event whose worker died is taken again after the lease, and not before."""
    bare, handled = BareSQLite(f"{tmp_path}/bare.db", lambda event: handled.append(event["id"])), []
    with closing(bare):
        bare.work(FACTS[:2])
        for until in (2**40, 0):
            bare.commit("UPDATE seen SET done = 0, until = ? WHERE id = ?", [(until, handled[0])])
            bare.work([*FACTS[:2], b"{"])
    assert handled == [handled[0], handled[1], handled[0]]


@pytest.mark.parametrize("at_most", [sys.maxsize, 0, 2])
def test_a_contestant_that_forgets_or_loses_is_not_compared(at_most):
    """A contestant that handles an event twice, or never, is refused."""
    left = iter(range(at_most))

    def forgetful(handler):
        work = lambda raws: [handler(raw) for raw, _ in zip(raws, left, strict=False)]  # noqa: E731
        return SimpleNamespace(work=work, close=lambda: None)

    with pytest.raises(WrongError, match="3 events, each delivered three times"):
        check_once("forgetful", forgetful, FACTS[:3])


def test_a_bridge_with_a_wrong_verdict_is_not_compared(monkeypatch):
    """Batches must get the verdicts that deliveries get one at a time."""
    check_verdicts("right", partial(Oncebridge, "memory://"), MIXED[:200])
    monkeypatch.setattr(Oncebridge, "verdicts", lambda self, raws: ["fresh" if self._size > 1 else "echo"] * len(raws))
    with pytest.raises(WrongError, match="200 of 200 deliveries got another verdict"):
        check_verdicts("wrong", partial(Oncebridge, "memory://"), MIXED[:200])


def test_contestants_take_the_same_events_in_turns():
    """All take each portion before the next one comes, another begins each time, and the first turn does not count."""
    notes, turns = [], count()
    contestants = {
        name: SimpleNamespace(work=lambda raws, name=name: notes.append((name, raws[0]))) for name in ("ours", "theirs")
    }
    rates = take_turns(contestants, [[0], [1], [2]], after=lambda: next(turns))
    assert notes == [("ours", 0), ("theirs", 0), ("theirs", 1), ("ours", 1), ("ours", 2), ("theirs", 2)]
    assert next(turns) == 3
    assert [len(of_one) for of_one in rates.values()] == [2, 2]
    assert paired_ratio([50.0, 5.0, 60.0], [10.0, 10.0, 12.0]) == 5  # one disturbed turn changes no ratio


# --- over HTTP ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "service",
    [serve.oncebridge, serve.bare, partial(serve.bare, path="/blocking")],
    ids=["serve", "bare", "blocking"],
)
def test_services_do_an_event_once(service, redis_url, tmp_path):
    """Every service that is measured gives an event to its handler once, in a batch and alone."""
    serve.check_once("a service", partial(service, redis_url), tmp_path, FACTS[:5])


def test_a_service_that_forgets_is_not_compared(tmp_path):
    """A service that handles an event twice is refused."""

    @contextmanager
    def forgetful(folder, handler, notes):
        notes.write_bytes(b"......")
        yield SimpleNamespace(post=lambda body: True)

    with pytest.raises(WrongError, match="3 events, each posted three times, were handled 6 times"):
        serve.check_once("forgetful", forgetful, tmp_path, FACTS[:3])


@pytest.mark.parametrize(
    ("answer", "code", "problem"),
    [('{"failed": 1}', 0, "did not answer every request with 200"), ("", 107, "k6 ended with 107")],
)
def test_requests_that_failed_are_not_measured(answer, code, problem, tmp_path, monkeypatch):
    """A quick error is no speed."""
    k6 = tmp_path / "k6"
    k6.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
    k6.chmod(0o755)
    monkeypatch.setattr(serve, "K6", k6)
    services = {"ours": serve.Service(url="http://ours")}
    with pytest.raises(RuntimeError, match=problem):
        serve.take_turns(services, serve.SINGLE, tmp_path, turns=0, seconds=1, after=lambda: None)


# --- the line, and what is counted -------------------------------------------------------------------------------


def test_the_line_delays_each_way_and_lets_requests_overlap(own_redis):
    """A round trip takes a millisecond more; twenty requests under way at once take little more than one."""

    def seconds(work):
        started = perf_counter()
        work()
        return perf_counter() - started

    def overlap():
        for connection in connections * 2:
            connection.send_command("PING")
        assert [connection.read_response() for connection in connections * 2] == [b"PONG"] * 20

    with ExitStack() as stack:
        port = stack.enter_context(delayed(own_redis))
        clients = [
            stack.enter_context(redis.Redis(port=port, single_connection_client=True, protocol=2)) for _ in range(10)
        ]
        connections = [client.connection for client in clients]
        trips = [seconds(clients[0].ping) for _ in range(50)]
        assert min(trips) >= 2 * ONE_WAY_SECONDS
        assert min(trips) < 3 * ONE_WAY_SECONDS
        assert min(seconds(overlap) for _ in range(20)) < 10 * ONE_WAY_SECONDS
        clients[0].set("large", b"x" * 1_000_000)
        assert clients[0].strlen("large") == 1_000_000


def test_calls_are_counted_at_the_server(own_redis, redis_url):
    """Every command of a client is a call, also in a pipeline; what a script does is none, and a duplicate is one."""
    with counting(own_redis) as calls, redis.Redis(port=own_redis) as client:
        client.ping()  # connecting has calls of its own
        assert calls(lambda: None) == 0
        assert calls(lambda: client.eval("server.call('SET', 'a', 1) return server.call('GET', 'a')", 0)) == 1
        many = client.pipeline(transaction=False)
        many.set("b", 2).get("b")
        assert calls(many.execute) == 2
        with closing(Oncebridge(redis_url)) as ours:
            ours.work(MIXED[:100])
            assert for_each(ours, MIXED[90:100], 1, calls) == [1] * 10


def test_memory_is_that_of_the_events_alone(redis_url):
    """A SET NX takes more than its key of 45 bytes and less than a few of them; only new ones are counted."""
    steps = []
    used = bytes_used(redis_url, partial(Tutorial, redis_url, read=read_json), MIXED, after=steps.append)
    assert 45 < used / envelopes_in(MIXED) < 300
    assert sum(steps) == len(MIXED)
    assert events_in(FACTS) == envelopes_in(FACTS) == 270
    assert events_in(MIXED) < envelopes_in(MIXED) < 900


def test_a_fill_is_remembered(redis_url):
    """A fill is seen to be there, and one that is not is found out."""
    with pytest.raises(RuntimeError, match="not remembered"):
        growth.check_remembers(redis_url, 500, end_ms=START_MS)
    growth.empty(redis_url)
    growth.fill(redis_url, 500, end_ms=START_MS)
    growth.check_remembers(redis_url, 500, end_ms=START_MS)


def test_processor_time_is_that_of_the_package_that_is_named(tmp_path):
    """Each process runs the sources that it is given, and nothing but processing is timed."""
    package = tmp_path / "src" / "oncebridge"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import time, contextlib\n"
        "class Bridge(contextlib.nullcontext):\n"
        "    __enter__ = lambda self: self\n"
        "    on = lambda self, topic: lambda handler: None\n"
        "    def process_many(self, raws):\n"
        "        end = time.process_time() + 0.001 * len(raws)\n"
        "        while time.process_time() < end: pass\n"
    )
    sources = {"ours": None, "slow": package.parent}
    taken = engine_time.take_turns(sources, portions(iter(FACTS), 100), tmp_path, after=lambda: None)
    assert [len(of_one) for of_one in taken.values()] == [2, 2]
    assert all(1000 <= microseconds < 1500 for microseconds in taken["slow"])
    assert max(taken["ours"]) < 1000
    with pytest.raises(RuntimeError, match="was to be measured, but"):
        engine_time.take_turns({"elsewhere": tmp_path}, [], tmp_path, after=lambda: None)
    assert engine_time.sources_of("no-such-commit", tmp_path) is None


# --- the report --------------------------------------------------------------------------------------------------


def row(comes_to, **changes):
    """Make a row of the table."""
    usual = {"what": "Redis, batches of 100", "beside": "SET NX", "unit": "events/s", "goal": 5.0}
    return Row(**{**usual, "on_mixed": Pair(ours=40_000, theirs=8_000, comes_to=comes_to), **changes})


@pytest.mark.parametrize(
    ("one", "figure", "said"),
    [
        (row(5.0), "at least 5 x: 5 x", "reached"),
        (row(4.99), "at least 5 x: 5.0 x", "MISSED"),
        (row(22.0, goal=30, at_least=False, is_ratio=False, unit="bytes"), "at most 30 bytes: 22 bytes", "reached"),
        (row(31.0, goal=30, at_least=False, is_ratio=False, unit="bytes"), "at most 30 bytes: 31 bytes", "MISSED"),
        (row(0.1, goal=None), "0.10 x", ""),
        (row(4.0, on_facts=Pair(ours=9, theirs=1, comes_to=9.0)), "at least 5 x: 4 x", "MISSED"),
    ],
)
def test_a_goal_is_reached_or_missed_in_so_many_words(one, figure, said):
    """Each row shows its goal and its figure, and whether the goal is reached, on mixed traffic if there is any."""
    assert cells(one)[2:4] == (figure, said)


def report(*rows):
    """Make a report."""
    return Report(machine="a machine", versions={"Python": "3"}, conditions=["idle"], rows=list(rows))


@pytest.mark.parametrize("terminal", [False, True])
def test_the_table_shows_a_row_in_one_line(terminal):
    """Both figures, the ratio and the goal stand in one line, however narrow a pipe is."""
    shown = io.StringIO()
    width = 200 if terminal else 20
    console = Console(file=shown, force_terminal=terminal, width=width, color_system=None, highlight=False)
    show(report(row(4.0, on_facts=Pair(ours=900, theirs=300, comes_to=3.0))), console)
    (line,) = [line for line in shown.getvalue().splitlines() if "SET NX" in line]
    for part in ("40,000 events/s", "8,000 events/s", "at least 5 x: 4 x", "MISSED", "900 : 300 = 3 x"):
        assert part in line
    assert "a machine" in shown.getvalue()


def test_json_holds_every_figure_and_whether_goals_are_reached():
    """Everything that is saved can be read back."""
    saved = json.loads(report(row(4.0), row(6.0)).as_json())
    assert [one["reached"] for one in saved["rows"]] == [False, True]
    assert saved["rows"][0]["on_mixed"] == {"ours": 40_000, "theirs": 8_000, "comes_to": 4.0}
    assert (saved["machine"], saved["conditions"]) == ("a machine", ["idle"])


def test_the_picture_has_a_bar_for_each_contestant():
    """A contestant that stands in several rows is drawn once, ours first; counts of calls are not drawn."""
    calls = row(1, what="Redis, calls of a duplicate", unit="", goal=1)
    single = row(2.0, what="Redis, single events", beside="Powertools")
    drawn = panels(report(row(5.0), row(15.0, beside="Powertools"), single, calls))
    (bars,) = drawn.values()
    expected = ["Oncebridge, batches of 100", "Oncebridge, single events", "SET NX", "Powertools"]
    assert [(bar.label, bar.ours) for bar in bars] == list(zip(expected, [True, True, False, False], strict=True))


# --- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "saves"),
    [([], True), (["--quick"], False), (["--only", "redis"], False), (["--quick", "--save"], True)],
)
def test_only_a_full_run_is_saved_unless_asked(given, saves):
    """Figures that are kept come from everything, in full; every part can be run by itself."""
    assert run.arguments(given).save is saves
    assert list(MEASURES) == list(run.PARTS)


def test_missing_packages_are_named_with_what_installs_them():
    """A run by hand says what is missing and how to get it."""
    assert run.missing_packages(("json",)) is None
    assert run.missing_packages(("json", "no_such_package")) == (
        "missing: no_such_package; `make bench` installs them and runs this"
    )
