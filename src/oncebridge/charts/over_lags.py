"""A histogram of lags on a logarithmic scale, from milliseconds to days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from oncebridge.charts.drawing import (
    DAY,
    HOUR,
    LEAST,
    MINUTE,
    PLOT,
    SECOND,
    STEPS_MAX,
    TOP,
    apart,
    figure,
    grid,
    label,
    n,
    nice,
    nothing,
    safe,
    shortened,
    svg,
)
from oncebridge.quantities import count, short_count, span, tame

MARKS_MAX: Final = 4
_COUNTED_MAX: Final = 16
_LAG_TICKS: Final = (
    *(1, 10, 100, SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 4 * DAY, 14 * DAY),
    *(100 * DAY, 1000 * DAY),
)


class Mark(NamedTuple):
    """A named place on an axis of lags."""

    name: str
    ms: float


def lag_histogram(
    name: str, title: str, edges: Sequence[float], counts: Sequence[float], marks: Sequence[Mark] = ()
) -> str:
    """Draw how many came after how long, on a logarithmic scale from milliseconds to days.

    `edges` are the upper ones of the classes, in milliseconds and growing.
    """
    classes = _classes(edges, counts)
    if not classes:
        return nothing(title)
    shown = [mark for mark in marks[:MARKS_MAX] if tame(mark.ms) > 0]
    low = min([classes[0][0], *(tame(mark.ms) for mark in shown)])
    high = max([classes[-1][1], *(tame(mark.ms) for mark in shown)])
    scale = (math.log10(low), max(math.log10(high) - math.log10(low), 0.01))
    room = 15 * len(shown)
    top = nice(max(value for *_, value in classes))
    bars = []
    for least, most, value in classes:
        x, end = _on_scale(least, scale), _on_scale(most, scale)
        height = max(value / top * PLOT, LEAST)
        told = escape(f"{span(least)} to {span(most)}: {count(value)}")
        bars.append(
            f'<rect x="{n(x)}%" y="{n(room + TOP + PLOT - height)}" width="{n(max(end - x - 0.3, 0.4))}%" '
            f'height="{n(height)}"><title>{told}</title></rect>'
        )
    ticks = [tick for tick in _LAG_TICKS if low <= tick <= high]
    places, names = [_on_scale(tick, scale) for tick in ticks], [span(tick) for tick in ticks]
    axis = "".join(label(places[at], room + TOP + PLOT + 17, names[at]) for at in apart(places, names))
    drawn = (
        grid(top, room)
        + f'<g class="ch-s1">{"".join(bars)}</g><g class="ch-axis">{axis}</g>{_lag_counts(classes, top, room, scale)}'
        + "".join(_lag_mark(mark, at, room, scale) for at, mark in enumerate(shown))
    )
    total = sum(value for *_, value in classes)
    peak = max(classes, key=lambda each: each[2])
    described = (
        f"{count(total)} in all, after {span(classes[0][0])} to {span(classes[-1][1])}. Most, {count(peak[2])}, came "
        f"after {span(peak[0])} to {span(peak[1])}. "
        + " ".join(f"{shortened(mark.name)}: {span(mark.ms)}." for mark in shown)
    )
    return figure(svg(name, title, described, drawn, height=room + TOP + PLOT + 24, axis=True))


def _classes(edges: Sequence[float], counts: Sequence[float]) -> list[tuple[float, float, float]]:
    """Return lower edge, upper edge and count of each class that has any; neighbours are one if there are too many."""
    upper: list[tuple[float, float]] = []
    for edge, value in zip(edges, counts, strict=False):
        at = max(tame(edge), 1)
        if upper and at <= upper[-1][0]:  # what came at once, and edges that do not grow
            upper[-1] = (upper[-1][0], upper[-1][1] + tame(value))
        else:
            upper.append((at, tame(value)))
    if not any(value for _, value in upper):
        return []
    ratio = upper[0][0] / upper[1][0] if len(upper) > 1 else 0.1
    lower = [max(upper[0][0] * ratio, 0.5), *(edge for edge, _ in upper)]
    classes = [(lower[at], edge, value) for at, (edge, value) in enumerate(upper)]
    filled = [at for at, (*_, value) in enumerate(classes) if value]
    classes = classes[filled[0] : filled[-1] + 1]
    by = math.ceil(len(classes) / STEPS_MAX)
    groups = [classes[at : at + by] for at in range(0, len(classes), by)]
    joined = [(group[0][0], group[-1][1], sum(value for *_, value in group)) for group in groups]
    return [each for each in joined if each[2]]


def _on_scale(ms: float, scale: tuple[float, float]) -> float:
    return (math.log10(max(ms, 0.1)) - scale[0]) / scale[1] * 100


def _lag_counts(
    classes: Sequence[tuple[float, float, float]], top: float, room: int, scale: tuple[float, float]
) -> str:
    """Write each count above its bar, where there is room: the few after days matter, and are hardly seen."""
    if len(classes) > _COUNTED_MAX:
        return ""
    drawn = []
    for least, most, value in classes:
        x = (_on_scale(least, scale) + _on_scale(most, scale)) / 2
        y = room + TOP + PLOT - max(value / top * PLOT, LEAST) - 5
        drawn.append(f'<text x="{n(x)}%" y="{n(y)}" text-anchor="middle" class="ch-value">{short_count(value)}</text>')
    return f'<g class="ch-roomy">{"".join(drawn)}</g>'


def _lag_mark(mark: Mark, at: int, room: int, scale: tuple[float, float]) -> str:
    x, y = _on_scale(tame(mark.ms), scale), 11 + 15 * at
    side = ' dx="5"' if x < 50 else ' dx="-5" text-anchor="end"'  # noqa: PLR2004 - the half with more room beside it
    return (
        f'<g class="ch-mark"><line x1="{n(x)}%" x2="{n(x)}%" y1="{y - 9}" y2="{room + TOP + PLOT}"/>'
        f'<text x="{n(x)}%" y="{y}"{side}>{safe(f"{mark.name}: {span(mark.ms)}")}</text></g>'
    )
