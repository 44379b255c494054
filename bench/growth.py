"""Whether Redis stays as fast when it remembers a great deal.

A server that remembers little and one that remembers much take the same new facts in turns. What they remember
was put there by the ledger's own verbs, so it is what a bridge leaves. Both end at the same moment of event
time and are equally dense, so the newest minutes, in which the new facts fall, look the same in both.
"""

from __future__ import annotations

import multiprocessing
import warnings
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import redis
from contestants import Oncebridge
from traffic import HOUR_MS, facts
from turns import Rates, seconds_for

from oncebridge.claim import Ask, Claim, Outcome, Settlement, Verdict
from oncebridge.ledgers import ledger_from_url
from servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.ledgers.protocol import Ledger

FACTS_PER_HOUR: Final = 100_000
LITTLE: Final = 10_000
FILL_CHUNK: Final = 20_000
FILL_BATCH: Final = 1000
FILL_PROCESSES: Final = 2
LEASE_US: Final = 60_000_000
REWRITE_SECONDS: Final = 600
TOPIC: Final = "v2.detail.events.conversation.{id}.acd.end"

_ledger: Ledger  # of a filling process


def rates_at(little: str, much: str, *, end_ms: int, turns: int, events: int, after: Callable[[], None]) -> Rates:
    """Return the rates of a bridge, in batches, on a server that remembers little and on one that remembers much."""
    rates: Rates = {little: [], much: []}
    newest_ms = LITTLE * HOUR_MS // FACTS_PER_HOUR
    for turn in range(turns + 1):
        portion = list(facts(events, seed=turn, start_ms=end_ms - newest_ms, span_ms=newest_ms))
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
    """Let a server forget everything."""
    with redis.Redis.from_url(url) as server:
        server.flushall()


# --- what is remembered ------------------------------------------------------------------------------------------


def fill(url: str, number: int, *, end_ms: int) -> None:
    """Let a ledger remember facts as done."""
    _open(url)
    _fill_chunk((0, number, end_ms))
    _ledger.close()


def fill_quickly(url: str, number: int, *, end_ms: int, after: Callable[[int], None]) -> None:
    """Let a ledger remember a great many facts, with several processes, and see that it does.

    The log is not kept meanwhile but written at the end: filling is not what is measured.
    """
    chunks = [(first, min(first + FILL_CHUNK, number), end_ms) for first in range(0, number, FILL_CHUNK)]
    with redis.Redis.from_url(url) as server:
        server.config_set("appendonly", "no")
        context = multiprocessing.get_context("spawn")
        with context.Pool(FILL_PROCESSES, initializer=_open_unlogged, initargs=(url,)) as pool:
            for filled in pool.imap_unordered(_fill_chunk, chunks):
                after(filled)
        server.config_set("appendonly", "yes")
        wait_until(lambda: _is_written(server), "the log to be written", REWRITE_SECONDS)
    check_remembers(url, number, end_ms=end_ms)


def check_remembers(url: str, number: int, *, end_ms: int) -> None:
    """Require that facts from all over the fill are known as done."""
    ledger = ledger_from_url(url)
    ledger.open(None)
    asks = [_ask(n, end_ms) for n in range(0, number, max(1, number // 100))]
    answers = ledger.claim(asks, nonce=b"the look", lease_us=LEASE_US)
    ledger.close()
    unknown = sum(answer.verdict not in (Verdict.REDELIVERY, Verdict.REPUBLISH) for answer in answers)
    if unknown:
        raise RuntimeError(f"of {len(asks)} facts that were filled in, {unknown} are not remembered")


def _open_unlogged(url: str) -> None:
    """Open a ledger that rightly warns of a server without a log: it gets one when it is full."""
    with warnings.catch_warnings(action="ignore"):
        _open(url)


def _open(url: str) -> None:
    global _ledger  # noqa: PLW0603 - a pool's process has no other place for what it keeps
    _ledger = ledger_from_url(url)
    _ledger.open(None)


def _fill_chunk(chunk: tuple[int, int, int]) -> int:
    first, end, end_ms = chunk
    for start in range(first, end, FILL_BATCH):
        _remember([_ask(n, end_ms) for n in range(start, min(start + FILL_BATCH, end))])
    return end - first


def _remember(asks: list[Ask]) -> None:
    answers = _ledger.claim(asks, nonce=asks[0].key[:8], lease_us=LEASE_US)
    pairs = zip(asks, answers, strict=True)
    settled = _ledger.settle([Settlement(Claim(ask, answer.token), Outcome.DONE) for ask, answer in pairs])
    if not all(settled):
        raise RuntimeError("a fact could not be filled in: the ledger was not empty before")


def _ask(n: int, end_ms: int) -> Ask:
    """Return what a bridge asks for a fact. Facts count back from the end; the same number is the same fact."""
    key = blake2b(n.to_bytes(8, "big"), digest_size=16).digest()
    time_ms = end_ms - n * HOUR_MS // FACTS_PER_HOUR
    return Ask(key=key, envelope=key.hex(), topic=TOPIC, time_ms=time_ms, shared_ms=time_ms)


def _is_written(server: redis.Redis) -> bool:
    found = server.info("persistence")
    return not (found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])
