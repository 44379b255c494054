"""Lags: how long after the first delivery of their event duplicates come, in classes and in quantiles."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from math import log
from typing import Final

from oncebridge.diagnosis.diagnosis import Lags

_STEP: Final = 1.05  # each class is a twentieth longer than the one before
_LOG_STEP: Final = log(_STEP)
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
#: Upper edges for people.
EDGES: Final = (
    10, 30, 100, 300, _SECOND, 3 * _SECOND, 10 * _SECOND, 30 * _SECOND, _MINUTE, 2 * _MINUTE, 5 * _MINUTE,
    15 * _MINUTE, 30 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 4 * _DAY, 7 * _DAY,
    14 * _DAY, 30 * _DAY,
)  # fmt: skip


def lag_class(lag_ms: int) -> int:
    """Return the class of a lag; class 0 is none at all."""
    return 0 if lag_ms <= 0 else 1 + int(log(lag_ms) / _LOG_STEP)


def longest_in(lag: int) -> int:
    """Return the longest lag of a class."""
    return 0 if lag == 0 else int(_STEP**lag)


def lags_of(classes: Counter[int], longest: int) -> Lags:
    """Sum up lags that were counted by class, of which the longest is known exactly."""
    total = classes.total()
    if not total:
        return Lags()
    counts = [0] * (len(EDGES) + 1)
    for at, number in classes.items():
        counts[bisect_left(EDGES, min(longest_in(at), longest))] += number
    used = max(place for place, number in enumerate(counts) if number) + 1
    edges = [*EDGES, max(longest, EDGES[-1] + 1)][:used]

    def quantile(share: float) -> int:
        left = share * total
        for at in sorted(classes):
            left -= classes[at]
            if left <= 0:
                return min(longest_in(at), longest)
        return longest

    return Lags(
        count=total,
        p50=quantile(0.5),
        p90=quantile(0.9),
        p99=quantile(0.99),
        p999=quantile(0.999),
        max=longest,
        edges=edges,
        counts=counts[:used],
    )
