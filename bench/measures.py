"""The rows of the table, each with the goal it is held to."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import growth
import hostile
import serve
import startup
from contestants import BATCH, Contestant, Oncebridge, check_once
from memory import bytes_per_event
from peers import BarePostgres, BareSQLite, Powertools, Tutorial
from report import Pair, Row
from round_trips import CountingProxy
from traffic import facts, hours_ago_ms, mixed, portions
from turns import Rates, paired_ratio, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from progress import Progress

SET_NX: Final = "SET NX per event (tutorial)"
POWERTOOLS: Final = "Powertools idempotent_function"
BARE: Final = "bare statements"
BATCHES: Final = f"batches of {BATCH}"
SINGLE: Final = "single events"
SERVE: Final = "oncebridge serve"
ENDPOINT: Final = "bare endpoint, SET NX"
BLOCKING_ENDPOINT: Final = "bare endpoint, SET NX that blocks"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    turns: int
    #: Deliveries that each contestant gets in one turn.
    events: int
    #: Facts remembered to see what one takes, by us and by peers.
    remembered: int
    remembered_by_peers: int
    #: Facts remembered to see whether it slows down.
    much: int
    starts: int
    #: Turns under load over HTTP, and how long each of them takes.
    loads: int
    load_seconds: float


FULL: Final = Sizes(
    turns=12,
    events=1600,
    remembered=100_000,
    remembered_by_peers=100_000,
    much=10_000_000,
    starts=15,
    loads=5,
    load_seconds=3,
)
QUICK: Final = Sizes(
    turns=5,
    events=800,
    remembered=100_000,
    remembered_by_peers=10_000,
    much=300_000,
    starts=5,
    loads=2,
    load_seconds=1.5,
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

    def redis_url(self, database: int, port: int | None = None) -> str:
        """Return the URL of one of Redis' databases: each contestant has one to itself."""
        return f"redis://127.0.0.1:{port or self.redis}/{database}"


# --- events per second -------------------------------------------------------------------------------------------


def on_redis(place: Place) -> Iterator[Row]:
    """Measure batches and single events on Redis."""
    batches, single = f"Redis, {BATCHES}", f"Redis, {SINGLE}"
    on_facts, on_mixed = _rates_of_all(
        place,
        {
            batches: partial(Oncebridge, place.redis_url(0)),
            single: partial(Oncebridge, place.redis_url(1), size=1),
            SET_NX: partial(Tutorial, place.redis_url(2)),
            POWERTOOLS: partial(Powertools, place.redis_url(3)),
        },
    )
    goals = {(batches, SET_NX): 5.0, (batches, POWERTOOLS): 15.0, (single, SET_NX): None, (single, POWERTOOLS): 2.0}
    for (what, beside), goal in goals.items():
        yield _speed_row(what, beside, on_facts, on_mixed, goal)


def on_sqlite(place: Place) -> Iterator[Row]:
    """Measure batches on SQLite, with every commit on disk."""
    what = f"SQLite, {BATCHES}"
    makers = {
        what: partial(Oncebridge, f"sqlite:///{place.folder}/ours.db"),
        BARE: partial(BareSQLite, f"{place.folder}/bare.db"),
    }
    yield _speed_row(what, BARE, *_rates_of_all(place, makers), 0.5)


def on_postgres(place: Place) -> Iterator[Row]:
    """Measure batches on Postgres, with every commit on disk."""
    what = f"Postgres, {BATCHES}"
    makers = {what: partial(Oncebridge, place.postgres), BARE: partial(BarePostgres, place.postgres)}
    yield _speed_row(what, BARE, *_rates_of_all(place, makers), 0.5)


def _rates_of_all(place: Place, makers: Mapping[str, Callable[..., Contestant]]) -> tuple[Rates, Rates]:
    """Return the rates on facts and on mixed traffic, after a look whether everyone does an event once."""
    sizes = place.sizes
    number = (sizes.turns + 1) * sizes.events
    kinds = {
        "facts": facts(number, seed=1, start_ms=hours_ago_ms(1)),
        "mixed traffic": mixed(number, seed=1, start_ms=hours_ago_ms(6)),
    }
    some = list(facts(7, seed=0, start_ms=hours_ago_ms(1)))
    for name, make in makers.items():
        check_once(name, make, some)
    rates = []
    with ExitStack() as stack:
        contestants = {name: stack.enter_context(closing(make())) for name, make in makers.items()}
        for kind, raws in kinds.items():
            with place.progress.stage(f"{next(iter(makers))} on {kind}", sizes.turns + 1) as advance:
                rates.append(take_turns(contestants, portions(raws, sizes.events), after=advance))
    return rates[0], rates[1]


def _speed_row(what: str, beside: str, on_facts: Rates, on_mixed: Rates, goal: float | None) -> Row:
    return Row(
        what=what,
        beside=beside,
        unit="events/s",
        on_facts=rate_pair(on_facts[what], on_facts[beside]),
        on_mixed=rate_pair(on_mixed[what], on_mixed[beside]),
        goal=goal,
    )


def rate_pair(ours: list[float], theirs: list[float]) -> Pair:
    """Show the best turn of each, and compare turn by turn."""
    return Pair(ours=max(ours), theirs=max(theirs), comes_to=paired_ratio(ours, theirs))


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


def round_trips(place: Place) -> Iterator[Row]:
    """Count the round trips of a duplicate, and of a batch of new events."""
    number = 100
    new = list(facts(number, seed=2, start_ms=hours_ago_ms(1)))
    trips: dict[str, tuple[int, int]] = {}
    with CountingProxy(place.redis) as proxy, place.progress.stage("round trips", 2) as advance:
        makers = {"ours": Oncebridge, POWERTOOLS: Powertools}
        for database, (name, make) in enumerate(makers.items(), 4):
            with closing(make(place.redis_url(database, proxy.port))) as contestant:
                for_new = proxy.count(partial(contestant.work, new))
                trips[name] = proxy.count(partial(contestant.work, new[:1])), for_new
            advance()
    (duplicate, batch), (their_duplicate, their_batch) = trips["ours"], trips[POWERTOOLS]
    count = partial(Row, beside=POWERTOOLS, unit="", at_least=False, is_ratio=False)
    yield count(what="Redis, round trips of a duplicate", on_facts=_counts(duplicate, their_duplicate), goal=1)
    yield count(what=f"Redis, round trips of {number} new events", on_facts=_counts(batch, their_batch))


def _counts(ours: float, theirs: float) -> Pair:
    return Pair(ours=ours, theirs=theirs, comes_to=ours)


def memory(place: Place) -> Iterator[Row]:
    """Weigh what is remembered of an event."""
    sizes, url = place.sizes, place.redis_url(0, place.second_redis)
    makers = {"Oncebridge": Oncebridge, SET_NX: Tutorial, POWERTOOLS: Powertools}
    taken = {}
    for name, make in makers.items():
        number = sizes.remembered if make is Oncebridge else sizes.remembered_by_peers
        with place.progress.stage(f"Redis memory: {name}", number) as advance:
            taken[name] = bytes_per_event(url, partial(make, url), number, start_ms=hours_ago_ms(1), after=advance)
    weight = partial(Row, what="Redis, memory of an event", unit="bytes", at_least=False, is_ratio=False)
    yield weight(beside=SET_NX, on_facts=_counts(taken["Oncebridge"], taken[SET_NX]), goal=30)
    yield weight(beside=POWERTOOLS, on_facts=_counts(taken["Oncebridge"], taken[POWERTOOLS]), goal=30)


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


#: In the order of the table. Growth is last but one: it fills the second server.
MEASURES: Final[Mapping[str, Callable[[Place], Iterator[Row]]]] = {
    "redis": on_redis,
    "trips": round_trips,
    "hostile": worst_inputs,
    "sqlite": on_sqlite,
    "postgres": on_postgres,
    "serve": over_http,
    "memory": memory,
    "growth": grown,
    "start": start,
}
