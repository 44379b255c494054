"""The rows of the table, each with the goal it is held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Final

import diagnosing
import engine_time
import growth
import hostile
import serve
import startup
from calls import counting, for_each
from contestants import BATCH, Contestant, Oncebridge, check_once, check_verdicts
from delay import delayed, ping_ms
from memory import bytes_used, envelopes_in, events_in, new_calls_in
from peers import BarePostgres, BareSQLite, Powertools, Tutorial
from report import Pair, Row
from traffic import facts, hours_ago_ms, mixed, portions
from turns import Rates, paired_ratio, take_turns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from progress import Progress

SET_NX: Final = "SET NX per event (tutorial)"
POWERTOOLS: Final = "Powertools idempotent_function"
BARE: Final = "bare statements"
BATCHES: Final = f"batches of {BATCH}"
SINGLE: Final = "single events"
SERVE: Final = "oncebridge serve"
ENDPOINT: Final = "bare endpoint, SET NX"
BLOCKING_ENDPOINT: Final = "bare endpoint, SET NX that blocks"
CALLS_BATCHES: Final = 20
CALLS_LOOKS: Final = 3

Traffic = Callable[..., Iterator[bytes]]
MIXED: Final = "mixed traffic"
FACTS: Final = "facts"
TRAFFIC: Final[Mapping[str, Traffic]] = {MIXED: mixed, FACTS: facts}
#: What a delivery of simulated traffic takes, in a file.
DELIVERY_MB: Final = 0.00101
#: As long ago that all of it has happened.
MIXED_HOURS: Final = 12


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    #: Many short ones: a busy moment of the machine then spoils few of them.
    turns: int
    #: Deliveries that each contestant gets in one turn, and with a distant server.
    events: int
    distant_events: int
    #: Deliveries to see what one remembered event takes, by us and by peers.
    remembered: int
    remembered_by_peers: int
    #: Facts remembered to see whether it slows down.
    much: int
    starts: int
    #: Turns under load over HTTP, and how long each of them takes.
    loads: int
    load_seconds: float
    #: Deliveries that are diagnosed.
    diagnosed: int


FULL: Final = Sizes(
    turns=40,
    events=500,
    distant_events=200,
    remembered=100_000,
    remembered_by_peers=30_000,
    much=3_000_000,
    starts=15,
    loads=5,
    load_seconds=3,
    diagnosed=1_000_000,
)
QUICK: Final = Sizes(
    turns=15,
    events=300,
    distant_events=100,
    remembered=40_000,
    remembered_by_peers=10_000,
    much=100_000,
    starts=5,
    loads=2,
    load_seconds=1.5,
    diagnosed=100_000,
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where everything is measured: servers of this run's own, and a folder for files."""

    folder: Path
    #: Redis' port, and that of a second server, which may be filled.
    redis: int
    second_redis: int
    postgres: str
    sizes: Sizes
    progress: Progress
    #: Conditions that show only while measuring.
    notes: list[str] = field(default_factory=list)

    def redis_url(self, database: int, port: int | None = None) -> str:
        """Return the URL of one of Redis' databases: each contestant has one to itself."""
        return f"redis://127.0.0.1:{port or self.redis}/{database}"


# --- events per second -------------------------------------------------------------------------------------------


def on_distant_redis(place: Place) -> Iterator[Row]:
    """Measure batches on a Redis that is a millisecond away, as one in another zone is."""
    batches, tens = f"Redis 1 ms away, {BATCHES}", "Redis 1 ms away, batches of 10"
    with delayed(place.redis) as port:
        near_ms, far_ms = ping_ms(place.redis), ping_ms(port)
        place.notes.append(
            "Redis 1 ms away: behind a proxy that adds half a millisecond each way, for all; a PING takes "
            f"{far_ms:.2f} ms through it and {near_ms:.2f} ms without."
        )
        rates = _rates(
            place,
            {
                batches: partial(Oncebridge, place.redis_url(9, port)),
                tens: partial(Oncebridge, place.redis_url(10, port), size=10),
                SET_NX: partial(Tutorial, place.redis_url(11, port)),
                POWERTOOLS: partial(Powertools, place.redis_url(12, port)),
            },
            {MIXED: mixed},
            events=place.sizes.distant_events,
        )
    goals = {(batches, SET_NX): 15.0, (batches, POWERTOOLS): 35.0, (tens, SET_NX): 4.0, (tens, POWERTOOLS): 9.0}
    for (what, beside), goal in goals.items():
        yield _speed_row(what, beside, rates, goal)


def on_redis(place: Place) -> Iterator[Row]:
    """Measure batches and single events on Redis."""
    batches, single = f"Redis, {BATCHES}", f"Redis, {SINGLE}"
    rates = _rates(
        place,
        {
            batches: partial(Oncebridge, place.redis_url(0)),
            single: partial(Oncebridge, place.redis_url(1), size=1),
            SET_NX: partial(Tutorial, place.redis_url(2)),
            POWERTOOLS: partial(Powertools, place.redis_url(3)),
        },
    )
    goals = {(batches, SET_NX): 3.0, (batches, POWERTOOLS): 9.0, (single, SET_NX): None, (single, POWERTOOLS): 1.3}
    for (what, beside), goal in goals.items():
        yield _speed_row(what, beside, rates, goal)


def on_sqlite(place: Place) -> Iterator[Row]:
    """Measure batches on SQLite, with every commit on disk."""
    what = f"SQLite, {BATCHES}"
    makers = {
        what: partial(Oncebridge, f"sqlite:///{place.folder}/ours.db"),
        BARE: partial(BareSQLite, f"{place.folder}/bare.db"),
    }
    yield _speed_row(what, BARE, _rates(place, makers), 0.5)


def on_postgres(place: Place) -> Iterator[Row]:
    """Measure batches on Postgres, with every commit on disk."""
    what = f"Postgres, {BATCHES}"
    makers = {what: partial(Oncebridge, place.postgres), BARE: partial(BarePostgres, place.postgres)}
    yield _speed_row(what, BARE, _rates(place, makers), 0.5)


def with_journal(place: Place) -> Iterator[Row]:
    """Measure what it costs that each worker keeps a journal."""
    for ledger, url in {"Redis": place.redis_url(4), "SQLite": f"sqlite:///{place.folder}/journal.db"}.items():
        what, beside = f"{ledger}, {BATCHES}, with the journal", "without it"
        other = place.redis_url(5) if ledger == "Redis" else f"sqlite:///{place.folder}/plain.db"
        makers = {what: partial(Oncebridge, url, journal=True), beside: partial(Oncebridge, other)}
        yield _speed_row(what, beside, _rates(place, makers, {MIXED: mixed}), 0.98)


def with_attendance(place: Place) -> Iterator[Row]:
    """Measure what it costs that attendance is kept."""
    ledgers = {
        "Redis": (place.redis_url(13), place.redis_url(14)),
        "SQLite": (f"sqlite:///{place.folder}/attendance.db", f"sqlite:///{place.folder}/no-attendance.db"),
        "Postgres": (schema_url(place.postgres, "attendance_kept"), schema_url(place.postgres, "no_attendance")),
    }
    for ledger, (url, other) in ledgers.items():
        what, beside = f"{ledger}, {BATCHES}, with attendance", "without it"
        makers = {what: partial(Oncebridge, url, attendance=True), beside: partial(Oncebridge, other)}
        yield _speed_row(what, beside, _rates(place, makers, {FACTS: facts}), None)


def schema_url(url: str, schema: str) -> str:
    """Return the URL of another schema of a database."""
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


def _rates(
    place: Place,
    makers: Mapping[str, Callable[..., Contestant]],
    kinds: Mapping[str, Traffic] = TRAFFIC,
    events: int = 0,
) -> dict[str, Rates]:
    """Return the rates on each kind of traffic, after a look whether every contestant is right."""
    turns, events = place.sizes.turns + 1, events or place.sizes.events
    once = list(facts(7, seed=0, start_ms=hours_ago_ms(1)))
    judged = list(mixed(3 * BATCH, seed=0, start_ms=hours_ago_ms(MIXED_HOURS)))
    for name, make in makers.items():
        check_once(name, make, once)
        check_verdicts(name, make, judged)
    rates = {}
    with ExitStack() as stack:
        contestants = {name: stack.enter_context(closing(make())) for name, make in makers.items()}
        for kind, make_up in kinds.items():
            raws = make_up(turns * events, seed=1, start_ms=hours_ago_ms(MIXED_HOURS))
            with place.progress.stage(f"{next(iter(makers))} on {kind}", turns) as advance:
                rates[kind] = take_turns(contestants, portions(raws, events), after=advance)
    return rates


def _speed_row(what: str, beside: str, rates: Mapping[str, Rates], goal: float | None) -> Row:
    pairs = {kind: rate_pair(of_kind[what], of_kind[beside]) for kind, of_kind in rates.items()}
    return Row(
        what=what,
        beside=beside,
        unit="events/s",
        on_mixed=pairs.get(MIXED),
        on_facts=pairs.get(FACTS),
        goal=goal,
    )


def rate_pair(ours: list[float], theirs: list[float]) -> Pair:
    """Show the best turn of each, and compare turn by turn."""
    return Pair(ours=max(ours), theirs=max(theirs), comes_to=paired_ratio(ours, theirs))


def processor_time(place: Place) -> Iterator[Row]:
    """Measure the processor time of the engine alone, beside an earlier commit's."""
    turns, events = place.sizes.turns + 1, 4 * place.sizes.events
    earlier = engine_time.sources_of(engine_time.BASELINE, place.folder)
    if earlier is None:
        place.notes.append(f"Processor time is left out: commit {engine_time.BASELINE} is not in this history.")
        return
    raws = mixed(turns * events, seed=3, start_ms=hours_ago_ms(MIXED_HOURS))
    with place.progress.stage("processor time", turns) as advance:
        taken = engine_time.take_turns(
            {"ours": None, "theirs": earlier}, portions(raws, events), place.folder, after=advance
        )
    pair = Pair(
        ours=min(taken["ours"]), theirs=min(taken["theirs"]), comes_to=paired_ratio(taken["theirs"], taken["ours"])
    )
    yield Row(
        what=f"memory ledger, {BATCHES}, processor time",
        beside=f"commit {engine_time.BASELINE}",
        unit="µs",
        on_mixed=pair,
        goal=2.0,
    )


# --- over HTTP ---------------------------------------------------------------------------------------------------


def over_http(place: Place) -> Iterator[Row]:
    """Measure `oncebridge serve` beside a bare endpoint, with Redis, under load from outside."""
    some = list(facts(7, seed=3, start_ms=hours_ago_ms(1)))
    makers = {
        SERVE: partial(serve.oncebridge, place.redis_url(6)),
        ENDPOINT: partial(serve.bare, place.redis_url(7)),
        BLOCKING_ENDPOINT: partial(serve.bare, place.redis_url(8), path="/blocking"),
    }
    for name, make in makers.items():
        serve.check_once(name, make, place.folder, some)
    with ExitStack() as stack:
        services = {name: stack.enter_context(make(folder=place.folder)) for name, make in makers.items()}
        single = _under_load(place, f"HTTP, {SINGLE}", services, serve.SINGLE)
        both = {name: services[name] for name in (SERVE, ENDPOINT)}
        again = _under_load(place, f"HTTP, {SINGLE}, 30 % sent again", both, serve.REPEATING)
        batches = _under_load(place, f"HTTP, {BATCHES}", services, serve.BATCHES)
    yield _load_row(f"HTTP, {SINGLE}", ENDPOINT, single, goal=1.0)
    yield _load_row(f"HTTP, {SINGLE}", BLOCKING_ENDPOINT, single)
    yield _load_row(f"HTTP, {SINGLE}, 30 % sent again", ENDPOINT, again)
    yield _load_row(f"HTTP, {BATCHES}", ENDPOINT, batches, size=BATCH, goal=5.0)
    yield _load_row(f"HTTP, {BATCHES}", BLOCKING_ENDPOINT, batches, size=BATCH)
    for what, turns in {f"HTTP, {SINGLE}": single, f"HTTP, {BATCHES}": batches}.items():
        yield _delay_row(f"{what}, p50", turns, lambda turn: turn.p50_ms)
        yield _delay_row(f"{what}, p99", turns, lambda turn: turn.p99_ms, goal=2.0)


def _under_load(place: Place, what: str, services: Mapping[str, serve.Service], load: serve.Load) -> serve.Turns:
    sizes = place.sizes
    with place.progress.stage(what, sizes.loads + 1) as advance:
        return serve.take_turns(
            services, load, place.folder, turns=sizes.loads, seconds=sizes.load_seconds, after=advance
        )


def _load_row(what: str, beside: str, turns: serve.Turns, *, size: int = 1, goal: float | None = None) -> Row:
    ours, theirs = ([turn.per_second * size for turn in turns[name]] for name in (SERVE, beside))
    return Row(what=what, beside=beside, unit="events/s", on_facts=rate_pair(ours, theirs), goal=goal)


def _delay_row(what: str, turns: serve.Turns, delay: Callable[[serve.Turn], float], goal: float | None = None) -> Row:
    """Show the median turn of each, and how much longer ours takes."""
    ours, theirs = ([delay(turn) for turn in turns[name]] for name in (SERVE, ENDPOINT))
    pair = Pair(ours=median(ours), theirs=median(theirs), comes_to=paired_ratio(ours, theirs))
    return Row(what=what, beside=ENDPOINT, unit="ms", on_facts=pair, goal=goal, at_least=False)


# --- counted, not timed ------------------------------------------------------------------------------------------


def calls_to_redis(place: Place) -> Iterator[Row]:
    """Count the calls of batches and of duplicates."""
    raws = list(mixed((CALLS_BATCHES + 1) * BATCH, seed=2, start_ms=hours_ago_ms(MIXED_HOURS)))
    found: dict[str, tuple[int, float, int]] = {}
    makers = {"ours": Oncebridge, POWERTOOLS: Powertools}
    with place.progress.stage("calls", len(makers)) as advance:
        for name, make in makers.items():
            # A machine that stalls splits settles, which is not the contestant's doing: the best look counts.
            looks = [_calls(place, make, raws) for _ in range(CALLS_LOOKS)]
            batches, duplicates = ([min(one) for one in zip(*kind, strict=True)] for kind in zip(*looks, strict=True))
            found[name] = max(batches), mean(batches), max(duplicates)
            advance()
    place.notes.append(
        f"Calls: commands at the server, a script is one. Of {CALLS_LOOKS} runs over the same batches, the least "
        "of each batch counts; the first batch of a connection, which loads scripts and checks the ledger, is left out."
    )
    row = partial(Row, beside=POWERTOOLS, unit="", at_least=False, is_ratio=False)
    most, usual, duplicate = zip(found["ours"], found[POWERTOOLS], strict=True)
    yield row(what=f"Redis, calls of the worst of {CALLS_BATCHES} {BATCHES}", on_mixed=_counts(*most), goal=3)
    yield row(what=f"Redis, calls of a batch of {BATCH} on average", on_mixed=_counts(*usual))
    yield row(what="Redis, calls of a duplicate", on_mixed=_counts(*duplicate), goal=1)


def _calls(place: Place, make: Callable[[str], Contestant], raws: list[bytes]) -> tuple[list[int], list[int]]:
    """Return the calls of each batch but the first, which loads scripts, and of each delivery of the last one again."""
    url = place.redis_url(0, place.second_redis)
    growth.empty(url)
    with counting(place.second_redis) as count, closing(make(url)) as contestant:
        batches = for_each(contestant, raws, BATCH, count)[1:]
        return batches, for_each(contestant, raws[-BATCH:], 1, count)


def _counts(ours: float, theirs: float) -> Pair:
    return Pair(ours=ours, theirs=theirs, comes_to=ours)


def memory(place: Place) -> Iterator[Row]:
    """Weigh what is remembered of an event; entities that are new are weighed apart."""
    sizes, peers = place.sizes, {SET_NX: Tutorial, POWERTOOLS: Powertools}
    kinds = {MIXED: partial(mixed, new_calls=False), FACTS: facts}
    pairs: dict[str, dict[str, Pair]] = {name: {} for name in peers}
    for kind, make_up in kinds.items():
        raws = list(make_up(sizes.remembered, seed=4, start_ms=hours_ago_ms(MIXED_HOURS)))
        ours = _used(place, f"{kind}: Oncebridge", Oncebridge, raws) / events_in(raws)
        del raws[sizes.remembered_by_peers :]
        for name, make in peers.items():
            pairs[name][kind] = _counts(ours, _used(place, f"{kind}: {name}", make, raws) / envelopes_in(raws))
    weight = partial(Row, what="Redis, bytes per remembered event", unit="bytes", at_least=False, is_ratio=False)
    for name, of_peer in pairs.items():
        yield weight(beside=name, on_mixed=of_peer[MIXED], on_facts=of_peer[FACTS], goal=25)
    yield _weight_with_entities(place, known=pairs[SET_NX][MIXED].ours)


def _weight_with_entities(place: Place, known: float) -> Row:
    raws = list(mixed(place.sizes.remembered, seed=4, start_ms=hours_ago_ms(MIXED_HOURS)))
    number, calls = events_in(raws), new_calls_in(raws)
    weight = _used(place, f"{MIXED} with new calls", Oncebridge, raws) / number
    return Row(
        what=f"Redis, the same with a new entity for each {number / calls:.0f} events",
        beside="no new entity",
        unit="bytes",
        on_mixed=_counts(weight, known),
        at_least=False,
        is_ratio=False,
    )


def _used(place: Place, what: str, make: Callable[[str], Contestant], raws: list[bytes]) -> int:
    url = place.redis_url(0, place.second_redis)
    with place.progress.stage(f"Redis memory on {what}", len(raws)) as advance:
        return bytes_used(url, partial(make, url), raws, after=advance)


# --- growth and start --------------------------------------------------------------------------------------------


def grown(place: Place) -> Iterator[Row]:
    """Measure batches on a Redis that remembers a great deal beside one that remembers little."""
    sizes, end_ms = place.sizes, hours_ago_ms(0)
    little, much = place.redis_url(0), place.redis_url(0, place.second_redis)
    growth.empty(much)
    with place.progress.stage(f"filling Redis with {sizes.much:,} facts", sizes.much) as advance:
        growth.fill_quickly(much, sizes.much, end_ms=end_ms, after=advance)
    with place.progress.stage(f"Redis with {sizes.much:,} facts", sizes.turns + 1) as advance:
        rates = growth.rates_at(little, much, end_ms=end_ms, turns=sizes.turns, events=sizes.events, after=advance)
    yield Row(
        what=f"Redis, {sizes.much:,} remembered",
        beside=f"the same with {growth.LITTLE:,} remembered",
        unit="events/s",
        on_facts=rate_pair(rates[much], rates[little]),
        goal=0.8,
    )


def start(place: Place) -> Iterator[Row]:
    """Time fresh processes until they could take an event."""
    programs = {
        "ours": startup.ONCEBRIDGE.format(port=place.redis),
        POWERTOOLS: startup.POWERTOOLS.format(port=place.redis),
    }
    with place.progress.stage("import and connect", place.sizes.starts + 1) as advance:
        taken = startup.seconds_to_start(programs, place.sizes.starts, advance)
    ours, theirs = startup.median_ms(taken["ours"]), startup.median_ms(taken[POWERTOOLS])
    yield Row(
        what="Redis, import and connect",
        beside=POWERTOOLS,
        unit="ms",
        on_facts=Pair(ours=ours, theirs=theirs, comes_to=theirs / ours),
        goal=1,
    )


# --- hostile input -----------------------------------------------------------------------------------------------


def worst_inputs(place: Place) -> Iterator[Row]:
    """Measure the worst inputs known beside a usual event of the same size; the table shows the worst of them."""
    with place.progress.stage("hostile input", hostile.NUMBER) as advance:
        usual_ms, costs = hostile.costs_ms(advance)
    name = max(costs, key=costs.__getitem__)
    yield Row(
        what=f"1 MB at its worst: {name}",
        beside="a usual event of 1 MB",
        unit="ms",
        on_facts=Pair(ours=costs[name], theirs=usual_ms, comes_to=costs[name] / usual_ms),
        goal=10,
        at_least=False,
    )


# --- diagnosis ---------------------------------------------------------------------------------------------------


def diagnosed(place: Place) -> Iterator[Row]:
    """Measure `diagnose` on many deliveries out of a pipe, beside a loop that only parses them."""
    number = place.sizes.diagnosed
    with place.progress.stage(f"diagnosing {number:,} deliveries", 1) as advance:
        parsed = diagnosing.parsed_per_core_second()
        cost = diagnosing.cost_of(number, place.folder)
        advance()
    place.notes.append(
        f"Diagnosis: {cost.deliveries:,} deliveries of simulated traffic out of a pipe in {cost.seconds:.0f} s, while "
        "another process made them up on the same cores; speed is by processor time of all its processes."
    )
    pair = Pair(ours=cost.per_core_second, theirs=parsed, comes_to=cost.per_core_second / parsed)
    yield Row(
        what=f"diagnose, {number:,} deliveries, per core",
        beside="a bare json.loads loop",
        unit="deliveries/s",
        on_mixed=pair,
        goal=0.2,
    )
    megabytes = cost.peak_bytes / 1_000_000
    yield Row(
        what=f"diagnose, memory for {number:,} deliveries",
        beside="all of it",
        unit="MB",
        on_mixed=Pair(ours=megabytes, theirs=number * DELIVERY_MB, comes_to=megabytes),
        goal=1000,
        at_least=False,
        is_ratio=False,
    )


#: In the order of the table. Growth is last but one: it fills the second server.
MEASURES: Final[Mapping[str, Callable[[Place], Iterator[Row]]]] = {
    "distant": on_distant_redis,
    "redis": on_redis,
    "calls": calls_to_redis,
    "sqlite": on_sqlite,
    "postgres": on_postgres,
    "journal": with_journal,
    "attendance": with_attendance,
    "engine": processor_time,
    "memory": memory,
    "serve": over_http,
    "diagnose": diagnosed,
    "hostile": worst_inputs,
    "growth": grown,
    "start": start,
}
