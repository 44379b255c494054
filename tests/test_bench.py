"""The bench: whoever is compared does an event once, round trips are counted right, and a missed goal shows."""

import io
import json
import re
import sys
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from rich.console import Console

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

import growth
import run
import serve
import startup
from contestants import ForgetfulError, Oncebridge, check_once
from measures import MEASURES
from memory import bytes_per_event
from peers import BarePostgres, BareSQLite, Tutorial
from picture import panels
from progress import Progress
from report import Pair, Report, Row, cells, filesystem, machine, show
from round_trips import CountingProxy
from traffic import HOUR_MS, facts, mixed, portions, templates
from turns import paired_ratio, take_turns

from oncebridge import Bridge
from oncebridge.event import parse
from oncebridge.simulation import simulate
from servers.postgres import own_postgres
from servers.valkey import running_valkey

START_MS = 1_760_000_000_000
FACTS = list(facts(300, seed=1, start_ms=START_MS))


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


def test_facts_are_distinct_events_of_about_a_kilobyte(tmp_path):
    """No two facts are the same event, so nothing is measured on duplicates by mistake."""
    with Bridge("memory://") as bridge:
        bridge.on("*")(lambda event: None)
        results = bridge.process_many(FACTS)
    assert {result.verdict for result in results} == {"fresh"}
    assert 800 < sum(map(len, FACTS)) / len(FACTS) < 1200


def test_facts_fill_their_span_of_event_time():
    """The event times lie in the span, evenly and in order."""
    times = [parse(raw).body["eventTime"] for raw in facts(50, seed=3, start_ms=START_MS, span_ms=HOUR_MS)]
    assert times[0] == START_MS
    assert {b - a for a, b in pairwise(times)} == {HOUR_MS // 50}


def test_templates_make_as_many_facts_as_there_are_ids():
    """Whatever posts templates under ids of its own posts distinct events, of the time that was asked for."""
    made = [f"{n:032}".join(template) for n, template in enumerate(templates(40, start_ms=START_MS) * 3)]
    with Bridge("memory://") as bridge:
        bridge.on("*")(lambda event: None)
        results = bridge.process_many([raw.encode() for raw in made])
    assert {result.verdict for result in results} == {"fresh"}
    assert parse(made[0].encode()).body["eventTime"] == START_MS
    assert parse(made[39].encode()).body["eventTime"] == START_MS + 39 * HOUR_MS // 40


def test_mixed_traffic_is_the_simulations():
    """Mixed traffic is what the simulation makes up, as much as was asked for."""
    expected = [delivery.raw for delivery in simulate(6, 4, start_ms=START_MS)]
    assert list(mixed(200, seed=4, start_ms=START_MS)) == expected[:200]


def test_portions_leave_nothing_out():
    """Every delivery is in one portion."""
    assert list(portions(iter([b"1", b"2", b"3"]), 2)) == [[b"1", b"2"], [b"3"]]


# --- contestants -------------------------------------------------------------------------------------------------


def test_the_bridge_does_an_event_once(tmp_path, redis_url):
    """On every ledger that is measured, an event reaches its handler once."""
    check_once("SQLite", partial(Oncebridge, f"sqlite:///{tmp_path}/once.db"), FACTS)
    check_once("Redis", partial(Oncebridge, redis_url), FACTS)
    check_once("Redis, single", partial(Oncebridge, redis_url, size=1), list(facts(9, seed=2, start_ms=START_MS)))


def test_the_tutorials_code_does_an_event_once(redis_url):
    """SET NX recognises a duplicate, as long as nobody dies."""
    check_once("SET NX", partial(Tutorial, redis_url, read=read_json), FACTS)


def test_bare_statements_do_an_event_once(tmp_path):
    """Bare statements recognise duplicates within a batch and between batches, on SQLite and Postgres."""
    check_once("SQLite", partial(BareSQLite, f"{tmp_path}/bare.db"), FACTS)
    with own_postgres(tmp_path) as server:
        check_once("Postgres", partial(BarePostgres, server.url), FACTS)


def test_peers_pass_over_what_they_cannot_read(tmp_path, redis_url):
    """An unreadable delivery stops no peer."""
    handled = count()
    handle = lambda _: next(handled) and None  # noqa: E731 - a handler counts, and returns nothing
    for make in (
        partial(Tutorial, redis_url, read=read_json),
        partial(BareSQLite, f"{tmp_path}/bare.db"),
    ):
        with closing(make(handle)) as peer:
            peer.work([b"{", FACTS[0]])
    assert next(handled) == 2


class Forgetful:
    """Handles whatever comes."""

    def __init__(self, handler, *, at_most=sys.maxsize):
        self._handler = handler
        self._left = at_most

    def work(self, raws):
        """Give everything to the handler, until it has had enough."""
        for raw in raws[: self._left]:
            self._handler(raw)
        self._left -= min(self._left, len(raws))

    def close(self):
        """Let go of nothing."""


@pytest.mark.parametrize("at_most", [sys.maxsize, 0, 2])
def test_whoever_forgets_or_loses_is_not_compared(at_most):
    """A contestant that handles an event twice, or never, is refused."""
    with pytest.raises(ForgetfulError, match="3 events, each delivered three times"):
        check_once("forgetful", partial(Forgetful, at_most=at_most), FACTS[:3])


# --- turns -------------------------------------------------------------------------------------------------------


class Noting:
    """Notes who got what."""

    def __init__(self, name, notes):
        self._name = name
        self._notes = notes

    def work(self, raws):
        """Note it."""
        self._notes.append((self._name, list(raws)))

    def close(self):
        """Let go of nothing."""


def test_everyone_gets_the_same_events_and_nobody_always_begins():
    """All take each portion before the next one comes, and who begins changes."""
    notes, turns = [], count()
    contestants = {name: Noting(name, notes) for name in ("ours", "theirs")}
    take_turns(contestants, [[b"0"], [b"1"], [b"2"]], after=lambda: next(turns))
    assert [name for name, _ in notes] == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert [raws for _, raws in notes] == [[b"0"], [b"0"], [b"1"], [b"1"], [b"2"], [b"2"]]
    assert next(turns) == 3


def test_the_first_turn_warms_up_and_does_not_count():
    """There is a rate for each turn but the first."""
    rates = take_turns({"ours": Noting("ours", [])}, [[b"0"], [b"1"], [b"2"]])
    assert [len(of_one) for of_one in rates.values()] == [2]
    assert min(rates["ours"]) > 0


def test_one_disturbed_turn_changes_no_ratio():
    """Ratios are taken turn by turn, and their median is robust."""
    assert paired_ratio([50.0, 5.0, 60.0], [10.0, 10.0, 12.0]) == 5


# --- over HTTP ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "service",
    [serve.oncebridge, serve.bare, partial(serve.bare, path="/blocking")],
    ids=["serve", "bare", "blocking"],
)
def test_services_do_an_event_once(service, redis_url, tmp_path):
    """Whoever is measured over HTTP gives an event to its handler once, in a batch and alone."""
    serve.check_once("a service", partial(service, redis_url), tmp_path, FACTS[:5])


@pytest.mark.parametrize("times", [0, 2])
def test_a_service_that_forgets_or_loses_is_not_compared(times, tmp_path):
    """A service that handles an event twice, or never, is refused."""

    @contextmanager
    def forgetful(folder, handler, notes):
        notes.write_bytes(b"." * 3 * times)
        yield SimpleNamespace(post=lambda body: True)

    with pytest.raises(ForgetfulError, match=f"3 events, each posted three times, were handled {3 * times} times"):
        serve.check_once("forgetful", forgetful, tmp_path, FACTS[:3])


@pytest.fixture
def k6(tmp_path, monkeypatch):
    """Put a program in k6's place, which says what it was told and answers with what it is given."""

    def put(answer, code=0):
        file = tmp_path / "k6"
        file.write_text(
            f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n"
            f"with Path({str(tmp_path / 'told')!r}).open('a') as told:\n    print(*sys.argv[1:], file=told)\n"
            f"print({answer!r})\nsys.exit({code})\n"
        )
        file.chmod(0o755)
        monkeypatch.setattr(serve, "K6", file)
        return tmp_path / "told"

    return put


GOOD_TURN = '{"requests": 9, "per_second": 3.0, "p50_ms": 1.0, "p99_ms": 2.0, "failed": 0}'
TWO = {"ours": serve.Service(url="http://ours"), "theirs": serve.Service(url="http://theirs", path="/blocking")}


def test_services_take_turns_under_the_same_load(k6, tmp_path):
    """Both get the same events, in turns that another begins each time; the first one does not count."""
    told = k6(GOOD_TURN)
    turns = serve.take_turns(TWO, serve.BATCHES, tmp_path, turns=2, seconds=1.5, after=lambda: None)
    assert {name: len(of_one) for name, of_one in turns.items()} == {"ours": 2, "theirs": 2}
    assert turns["ours"][0] == serve.Turn(requests=9, per_second=3.0, p50_ms=1.0, p99_ms=2.0)
    loads = [dict(re.findall(r"--env (\w+)=(\S+)", line)) for line in told.read_text().splitlines()]
    ours, theirs = "http://ours/events", "http://theirs/blocking"
    assert [load["URL"] for load in loads] == [ours, theirs, theirs, ours, ours, theirs]
    runs = [load["RUN"] for load in loads]
    assert runs[0::2] == runs[1::2]
    assert len(set(runs)) == 3
    assert {(load["SIZE"], load["CONNECTIONS"], load["SECONDS"]) for load in loads} == {("100", "8", "1.5")}


def test_the_load_is_told_what_it_reads(k6, tmp_path):
    """Every variable that the script for k6 reads is given, and no other."""
    told = k6(GOOD_TURN)
    serve.take_turns(TWO, serve.SINGLE, tmp_path, turns=0, seconds=1, after=lambda: None)
    script = (serve.BENCH / "load.js").read_text()
    (unpacked,) = re.findall(r"const \{ (.+?) \} = __ENV;", script)
    read = {*unpacked.split(", "), *re.findall(r"__ENV\.(\w+)", script)}
    assert set(re.findall(r"--env (\w+)=", told.read_text())) == read


@pytest.mark.parametrize(
    ("answer", "code", "problem"),
    [
        (GOOD_TURN.replace('"failed": 0', '"failed": 1'), 0, "did not answer every request with 200"),
        ("", 107, "k6 ended with 107"),
    ],
)
def test_requests_that_failed_are_not_measured(answer, code, problem, k6, tmp_path):
    """A quick error is no speed."""
    k6(answer, code)
    with pytest.raises(RuntimeError, match=problem):
        serve.take_turns(TWO, serve.SINGLE, tmp_path, turns=0, seconds=1, after=lambda: None)


# --- counted -----------------------------------------------------------------------------------------------------


def test_round_trips_are_counted_as_the_network_sees_them(own_redis):
    """Two commands are two round trips, commands sent together are one, whatever the connection."""
    with CountingProxy(own_redis) as proxy, redis.Redis(port=proxy.port) as one, redis.Redis(port=proxy.port) as two:
        for client in (one, two):
            client.ping()  # connecting has round trips of its own
        assert proxy.count(lambda: None) == 0
        assert proxy.count(lambda: (one.set("a", 1), one.get("a"))) == 2
        assert proxy.count(lambda: (one.get("a"), two.get("a"))) == 2
        many = one.pipeline(transaction=False)
        for _ in range(20):
            many.set("b", 2)
        assert proxy.count(many.execute) == 1


def test_a_duplicate_takes_one_round_trip(own_redis, redis_url):
    """A duplicate on Redis costs one round trip; a hundred are under way in a few, while the next are read."""
    with CountingProxy(own_redis) as proxy, closing(Oncebridge(f"redis://127.0.0.1:{proxy.port}/0")) as ours:
        ours.work(FACTS[:100])
        assert proxy.count(lambda: ours.work(FACTS[:1])) == 1
        assert proxy.count(lambda: ours.work(FACTS[:100])) <= 4


def test_memory_is_that_of_the_events_alone(redis_url):
    """What one SET NX takes is more than its key of 45 bytes and less than a few of them."""
    steps = []
    taken = bytes_per_event(
        redis_url, partial(Tutorial, redis_url, read=read_json), 2000, start_ms=START_MS, after=steps.append
    )
    assert 45 < taken < 300
    assert sum(steps) == 2000


def test_what_is_filled_in_is_remembered(redis_url):
    """A fill is seen to be there, and one that is not is found out."""
    with pytest.raises(RuntimeError, match="not remembered"):
        growth.check_remembers(redis_url, 500, end_ms=START_MS)
    growth.empty(redis_url)
    growth.fill(redis_url, 500, end_ms=START_MS)
    growth.check_remembers(redis_url, 500, end_ms=START_MS)


def test_a_fresh_process_tells_its_own_time():
    """Each program runs as often as asked, not counting the first, in processes of their own."""
    taken = startup.seconds_to_start({"nothing": "", "something": "import json"}, 2, lambda: None)
    assert [len(seconds) for seconds in taken.values()] == [2, 2]
    assert startup.median_ms([0.001, 0.002, 0.5]) == 2


# --- the report --------------------------------------------------------------------------------------------------


def row(comes_to, **changes):
    """Make a row of the table."""
    usual = {"what": "Redis, batches of 100", "beside": "SET NX", "unit": "events/s", "goal": 5.0}
    return Row(**{**usual, "on_facts": Pair(ours=40_000, theirs=8_000, comes_to=comes_to), **changes})


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (row(5.0), "reached"),
        (row(4.99), "MISSED"),
        (row(22.0, goal=30, at_least=False, is_ratio=False, unit="bytes"), "reached"),
        (row(31.0, goal=30, at_least=False, is_ratio=False, unit="bytes"), "MISSED"),
        (row(0.1, goal=None), ""),
    ],
)
def test_a_goal_is_reached_or_missed_in_so_many_words(one, said):
    """The table says of each row whether its goal is reached; a row without one claims nothing."""
    assert cells(one)[-2] == said


def report(*rows):
    """Make a report."""
    return Report(machine="a machine", versions={"Python": "3"}, conditions=["idle"], rows=list(rows))


def test_json_holds_every_figure_and_whether_goals_are_reached():
    """What is saved can be read back whole."""
    mixed_pair = Pair(ours=3, theirs=2, comes_to=1.5)
    saved = json.loads(report(row(4.0, on_mixed=mixed_pair), row(6.0)).as_json())
    assert [one["reached"] for one in saved["rows"]] == [False, True]
    assert saved["rows"][0]["on_facts"] == {"ours": 40_000, "theirs": 8_000, "comes_to": 4.0}
    assert saved["rows"][0]["on_mixed"] == {"ours": 3, "theirs": 2, "comes_to": 1.5}
    assert (saved["machine"], saved["conditions"]) == ("a machine", ["idle"])


@pytest.mark.parametrize("terminal", [False, True])
def test_the_table_shows_ours_beside_theirs(terminal):
    """Both figures, the ratio and the goal stand in one line, in a terminal and in a pipe."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=200, color_system=None, highlight=False)
    show(report(row(4.0, on_mixed=Pair(ours=900, theirs=300, comes_to=3.0))), console)
    (line,) = [line for line in shown.getvalue().splitlines() if "SET NX" in line]
    for part in ("40,000 events/s", "8,000 events/s", "4 x", "at least 5 x", "MISSED", "900 : 300 = 3 x"):
        assert part in line
    assert "a machine" in shown.getvalue()


def test_a_pipe_gets_whole_lines():
    """Outside of a terminal nothing is cut off or wrapped, however long it is."""
    shown = io.StringIO()
    show(report(row(4.0, beside="a peer with a long name " * 9)), Console(file=shown, width=80))
    assert "a peer with a long name " * 8 in shown.getvalue()


def test_the_picture_has_a_bar_for_each_contestant():
    """Whoever stands in several rows is drawn once, ours first; counts of round trips are not drawn."""
    trips = row(1, what="Redis, round trips of a duplicate", unit="", goal=1)
    single = row(2.0, what="Redis, single events", beside="Powertools")
    drawn = panels(report(row(5.0), row(15.0, beside="Powertools"), single, trips))
    assert {title: [bar.label for bar in bars] for title, bars in drawn.items()} == {
        "Redis: events per second": [
            "Oncebridge, batches of 100",
            "Oncebridge, single events",
            "SET NX",
            "Powertools",
        ]
    }
    assert [bar.ours for bar in drawn["Redis: events per second"]] == [True, True, False, False]


def test_the_machine_is_named(tmp_path):
    """Figures without their machine mean nothing."""
    assert "cores" in machine()
    assert filesystem(tmp_path)


def test_progress_in_a_pipe_is_a_line_for_each_stage():
    """Where no bar can be drawn, each stage is named once."""
    shown = io.StringIO()
    with Progress(Console(file=shown)).stage("filling", 3) as advance:
        advance()
        advance(2)
    assert shown.getvalue() == "filling ...\n"


# --- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "saves"),
    [
        ([], True),
        (["--quick"], False),
        (["--only", "redis"], False),
        (["--quick", "--save"], True),
        (["--no-save"], False),
    ],
)
def test_only_a_full_run_is_saved_unless_asked(given, saves):
    """Figures that are kept come from everything, in full."""
    assert run.arguments(given).save is saves


def test_every_part_can_be_run_by_itself():
    """What can be asked for is what can be measured."""
    assert list(MEASURES) == list(run.PARTS)
    with pytest.raises(SystemExit):
        run.arguments(["--only", "nonsense"])


def test_missing_packages_are_named_with_what_installs_them():
    """Whoever runs the script by hand is told what to do."""
    assert run.missing_packages(("json",)) is None
    assert run.missing_packages(("json", "no_such_package")) == (
        "missing: no_such_package; `make bench` installs them and runs this"
    )
