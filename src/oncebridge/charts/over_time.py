"""Bars over time, each made of parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final

from oncebridge.charts.drawing import (
    DAY,
    HOUR,
    MINUTE,
    PLOT,
    SECOND,
    STEPS_MAX,
    TOP,
    Series,
    apart,
    figure,
    grid,
    label,
    legend,
    n,
    nice,
    nothing,
    shortened,
    svg,
    with_textures,
)
from oncebridge.quantities import count, span, tame

TICKS_MAX: Final = 6
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_STEPS: Final = (
    *(1, 10, 100),
    *(SECOND * number for number in (1, 2, 5, 10, 15, 30)),
    *(MINUTE * number for number in (1, 2, 5, 10, 15, 30)),
    *(HOUR * number for number in (1, 2, 3, 6, 12)),
    *(DAY * number for number in (1, 2, 7, 14, 30, 91, 365, 3650, 36_500)),
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def stacked_bars(
    name: str, title: str, series: Sequence[Series], *, ground: Series | None = None, start_ms: float, width_ms: float
) -> str:
    """Draw bars over time, each made of parts; `ground` lies under them, and is not what the chart is about.

    `name` makes ids of the page that are unique.
    """
    layers = [*([(0, ground)] if ground else []), *enumerate(with_textures(series), start=1)]
    steps = max((len(layer.values) for _, layer in layers), default=0)
    merged = math.ceil(steps / STEPS_MAX) or 1
    columns = [_merged(layer.values, merged, steps) for _, layer in layers]
    totals = [sum(values) for values in zip(*columns, strict=True)]
    if not any(totals):
        return nothing(title)
    start, width = tame(start_ms), max(tame(width_ms), 1) * merged
    top = nice(max(totals))
    drawn = [grid(top)]
    floor = [0.0] * len(totals)
    for (number, _), values in zip(layers, columns, strict=True):
        drawn.append(f'<g class="ch-s{number}">{_column_parts(values, floor, top)}</g>')
        floor = [under + value for under, value in zip(floor, values, strict=True)]
    names = [layer.name for _, layer in layers]
    drawn += [_time_axis(start, width * len(totals)), _hits(names, columns, start, width)]
    highest = totals.index(max(totals))
    described = (
        f"From {_moment(start)} to {_moment(start + width * len(totals))} in {len(totals)} bars of {span(width)} each. "
        + " ".join(f"{shortened(each)}: {count(sum(values))}." for each, values in zip(names, columns, strict=True))
        + f" The highest bar, with {count(totals[highest])}, begins at {_moment(start + width * highest)}."
    )
    return figure(legend(layers) + svg(name, title, described, "".join(drawn), height=TOP + PLOT + 36, axis=True))


def _merged(values: Sequence[float], by: int, length: int) -> list[float]:
    """Add up each `by` neighbours, so that there are never too many bars."""
    padded = [tame(value) for value in values] + [0] * (length - len(values))
    return [sum(padded[at : at + by]) for at in range(0, length, by)]


def _column_parts(values: Sequence[float], floor: Sequence[float], top: float) -> str:
    each = 100 / len(values)
    drawn = []
    for at, (value, under) in enumerate(zip(values, floor, strict=True)):
        if value:
            height = max(value / top * PLOT, 1)
            x, y = at * each + each * 0.07, TOP + PLOT - under / top * PLOT - height
            drawn.append(f'<rect x="{n(x)}%" y="{n(y)}" width="{n(each * 0.86)}%" height="{n(height)}"/>')
    return "".join(drawn)


def _hits(names: Sequence[str], columns: Sequence[Sequence[float]], start: float, width: float) -> str:
    """Cover each bar with what the pointer reads: its time and its parts."""
    each = 100 / len(columns[0])
    drawn = []
    for at in range(len(columns[0])):
        said = [
            f"{shortened(name, 24)}: {count(values[at])}"
            for name, values in zip(names, columns, strict=True)
            if values[at]
        ]
        if said:
            told = escape("\n".join([f"{_moment(start + at * width)}, {span(width)}", *said]))
            area = f'x="{n(at * each)}%" y="{TOP}" width="{n(each)}%" height="{PLOT}"'
            drawn.append(f"<rect {area}><title>{told}</title></rect>")
    return f'<g class="ch-hits">{"".join(drawn)}</g>'


def _time_axis(start: float, length: float) -> str:
    drawn, last_day = [], ""
    for tick, day, clock in _ticks(start, length):
        place = (tick - start) / length * 100
        drawn.append(
            f'<line x1="{n(place)}%" x2="{n(place)}%" y1="{TOP + PLOT}" y2="{TOP + PLOT + 4}"/>'
            + label(place, TOP + PLOT + 17, clock or day)
            + (label(place, TOP + PLOT + 31, day) if clock and day != last_day else "")
        )
        last_day = day
    return f'<g class="ch-axis">{"".join(drawn)}</g>'


def _ticks(start: float, length: float) -> list[tuple[float, str, str]]:
    """Return round times with their day and clock, as many as can stand beside each other."""
    for step in (*_TIME_STEPS, length):
        if length / step > TICKS_MAX:
            continue
        first = math.ceil(start / step) * step
        ticks = [first + step * at for at in range(TICKS_MAX + 1) if first + step * at <= start + length]
        named = [(tick, *_day_and_clock(tick, step)) for tick in ticks]
        places = [(tick - start) / length * 100 for tick in ticks]
        if len(apart(places, [clock or day for _, day, clock in named])) == len(named):
            return named
    return []


def _day_and_clock(ms: float, step: float) -> tuple[str, str]:
    """Write a tick's day, and its time of day in UTC where that differs from one tick to the next."""
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return "later", ""
    day = f"{moment.day} {_MONTHS[moment.month - 1]}" if step < 300 * DAY else f"{moment.year}"
    if step >= DAY:
        return day, ""
    if step < SECOND:
        return day, f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}"
    return day, f"{moment:%H:%M:%S}" if step < MINUTE else f"{moment:%H:%M}"


def _moment(ms: float) -> str:
    """Write a time in full."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=tame(ms)):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return "a time beyond the calendar"
