"""Whether Redis stays as fast when it remembers a great deal.

A server that remembers little and one that remembers much take the same new facts in turns. A bridge put there what
they remember. Both end at the same moment of event time and are equally dense, so the newest minutes, in which the new
facts fall, look the same in both.
"""

from __future__ import annotations

import multiprocessing
import warnings
from typing import TYPE_CHECKING, Final

import redis
from contestants import Oncebridge
from traffic import HOUR_MS, facts
from turns import Rates, seconds_for

from servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Chunk = tuple[int, int, int]  # the first fact, the one behind the last, and the end of event time

FACTS_PER_HOUR: Final = 100_000
LITTLE: Final = 10_000
FILL_CHUNK: Final = 10_000
FILL_BATCH: Final = 1000
FILL_PROCESSES: Final = 2
REWRITE_SECONDS: Final = 600

_bridge: Oncebridge  # of a filling process


def rates_at(little: str, much: str, *, end_ms: int, turns: int, events: int, after: Callable[[], None]) -> Rates:
    """Return the rates of a bridge, in batches, on a server that remembers little and on one that remembers much."""
    rates: Rates = {little: [], much: []}
    newest_ms = LITTLE * HOUR_MS // FACTS_PER_HOUR
    for turn in range(turns + 1):
        portion = list(facts(events, seed=-1 - turn, start_ms=end_ms - newest_ms, span_ms=newest_ms))
        for url in (little, much) if turn % 2 else (much, little):
            if url == little:
                empty(url)
                fill(url, LITTLE, end_ms=end_ms)
            contestant = Oncebridge(url)
            rate = events / seconds_for(contestant, portion)
            contestant.close()
            if turn:  # the first one warms up
                rates[url].append(rate)
        after()
    return rates


def empty(url: str) -> None:
    """Empty a server."""
    with redis.Redis.from_url(url) as server:
        server.flushall()


# --- what is remembered ------------------------------------------------------------------------------------------


def fill(url: str, number: int, *, end_ms: int) -> None:
    """Process facts, so that the ledger remembers them."""
    _open(url)
    for chunk in _chunks(number, end_ms):
        _fill_chunk(chunk)
    _bridge.close()


def fill_quickly(url: str, number: int, *, end_ms: int, after: Callable[[int], None]) -> None:
    """Process a great many facts in several processes, and see that the ledger remembers them.

    The log is written only at the end: filling is not measured.
    """
    with redis.Redis.from_url(url) as server:
        server.config_set("appendonly", "no")
        context = multiprocessing.get_context("spawn")
        with context.Pool(FILL_PROCESSES, initializer=_open_unlogged, initargs=(url,)) as pool:
            for filled in pool.imap_unordered(_fill_chunk, _chunks(number, end_ms)):
                after(filled)
        server.config_set("appendonly", "yes")
        wait_until(lambda: _is_written(server), "the log to be written", REWRITE_SECONDS)
    check_remembers(url, number, end_ms=end_ms)


def check_remembers(url: str, number: int, *, end_ms: int) -> None:
    """Require that facts from all over the fill are known as done."""
    bridge = Oncebridge(url)
    verdicts = bridge.verdicts([next(_facts(chunk)) for chunk in _chunks(number, end_ms)])
    bridge.close()
    if unknown := sum(verdict != "redelivery" for verdict in verdicts):
        raise RuntimeError(f"of {len(verdicts)} facts that were filled in, {unknown} are not remembered")


def _open_unlogged(url: str) -> None:
    """Open a ledger that rightly warns of a server without a log: it gets one when it is full."""
    with warnings.catch_warnings(action="ignore"):
        _open(url)


def _open(url: str) -> None:
    global _bridge  # noqa: PLW0603 - a pool's process has no other place for what it keeps
    _bridge = Oncebridge(url, size=FILL_BATCH)


def _chunks(number: int, end_ms: int) -> list[Chunk]:
    return [(first, min(first + FILL_CHUNK, number), end_ms) for first in range(0, number, FILL_CHUNK)]


def _fill_chunk(chunk: Chunk) -> int:
    raws = list(_facts(chunk))
    _bridge.work(raws)
    return len(raws)


def _facts(chunk: Chunk) -> Iterator[bytes]:
    """Make up the facts of a chunk. Chunks count back from the end of event time."""
    first, end, end_ms = chunk
    start_ms = end_ms - end * HOUR_MS // FACTS_PER_HOUR
    return facts(end - first, seed=first, start_ms=start_ms, span_ms=(end - first) * HOUR_MS // FACTS_PER_HOUR)


def _is_written(server: redis.Redis) -> bool:
    found = server.info("persistence")
    return not (found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])
