"""Interleaved turns: contestants take the same events one right after the other, so noise falls on all of them."""

from __future__ import annotations

import gc
import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from contestants import Contestant

Rates = dict[str, list[float]]


def take_turns(
    contestants: Mapping[str, Contestant],
    portions: Iterable[Sequence[bytes]],
    *,
    after: Callable[[], None] = lambda: None,
) -> Rates:
    """Return the deliveries per second of each contestant, turn by turn.

    The first portion warms up and does not count. Another contestant begins each turn.

    Args:
        contestants: By name.

        portions: One for each turn.

        after: Called after each turn of all.

    """
    names = list(contestants)
    rates: Rates = {name: [] for name in names}
    for turn, portion in enumerate(portions):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            rate = len(portion) / seconds_for(contestants[name], portion)
            if turn:
                rates[name].append(rate)
        after()
    return rates


def seconds_for(contestant: Contestant, raws: Sequence[bytes]) -> float:
    """Return how long a contestant takes, with no garbage of its predecessor's to collect."""
    gc.collect()
    started = time.perf_counter()
    contestant.work(raws)
    return time.perf_counter() - started


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of neighbours' ratios: a slow moment of the machine spoils one of them, not the result."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
