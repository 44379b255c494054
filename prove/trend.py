"""Whether what a process holds grows with its work: a trend over points, and a bound that a small leak breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from prove.measure import Reading

#: Bytes that a delivery may leave behind, by the trend; a leak of twice as much is beyond doubt.
BYTES_PER_DELIVERY: Final = 50.0
#: How far memory wanders without any leak, in a run that is too short for that bound: arenas, and pages of ledgers.
WANDER_BYTES: Final = 2 * 1024 * 1024
#: What comes before that share of all work is the start: caches fill, threads and connections are made.
START_SHARE: Final = 0.4
#: How many handles, threads and connections more or less there may be at the end.
FEW: Final = 3
POINTS_MIN: Final = 6


@dataclass(frozen=True)
class Point:
    """What a program held when so many deliveries were done."""

    done: int
    held: Reading


@dataclass(frozen=True)
class Judged:
    """What came of one program."""

    #: The trend after the start, and the bound for it.
    bytes_per_delivery: float
    bound: float
    memory_bytes: int
    more_handles: float
    more_threads: float
    more_connections: float
    points: int

    @property
    def growing(self) -> list[str]:
        """Name what is not flat."""
        if self.points < POINTS_MIN:
            return ["too few points"]
        few = {"handles": self.more_handles, "threads": self.more_threads, "connections": self.more_connections}
        return [
            *(["memory"] if self.bytes_per_delivery > self.bound else []),
            *(name for name, more in few.items() if more > FEW),
        ]


def judge_points(points: Sequence[Point], cache_bytes: int = 0) -> Judged:
    """Judge what a program held from the end of its start on; caches of so many bytes may still fill."""
    whole = points[-1].done if points else 0
    kept = [point for point in points if point.done >= whole * START_SHARE]
    if len(kept) < POINTS_MIN:
        return Judged(0.0, 0.0, 0, 0, 0, 0, len(kept))
    deliveries = max(1, kept[-1].done - kept[0].done)
    return Judged(
        bytes_per_delivery=slope([(point.done, point.held.memory_bytes) for point in kept]),
        bound=max(BYTES_PER_DELIVERY, (WANDER_BYTES + cache_bytes) / deliveries),
        memory_bytes=kept[-1].held.memory_bytes,
        more_handles=_more([point.held.handles for point in kept]),
        more_threads=_more([point.held.threads for point in kept]),
        more_connections=_more([point.held.connections for point in kept]),
        points=len(kept),
    )


def slope(places: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all pairs (Theil and Sen): a few wild points do not move it."""
    slopes = [(y2 - y1) / (x2 - x1) for at, (x1, y1) in enumerate(places) for x2, y2 in places[at + 1 :] if x2 > x1]
    return median(slopes) if slopes else 0.0


def _more(numbers: Sequence[int]) -> float:
    """Return by how much the last third has more than the first, by their medians."""
    third = max(1, len(numbers) // 3)
    return median(numbers[-third:]) - median(numbers[:third])
