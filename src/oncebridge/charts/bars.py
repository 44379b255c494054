"""Bars beside each other: under their names, to both sides of a line, as parts of a whole, or as one share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from oncebridge.charts.drawing import (
    LEAST_PERCENT,
    Series,
    box,
    figure,
    legend,
    n,
    nothing,
    safe,
    shortened,
    svg,
    with_textures,
)
from oncebridge.quantities import count, part_of, percent, short_count, tame

ROWS_MAX: Final = 24
_ROW: Final = 38  # pixels


class Bar(NamedTuple):
    """One bar with its name, and the text at its end; the count unless given."""

    name: str
    value: float
    text: str | None = None


class Pair(NamedTuple):
    """Two values of one thing; `marked`: the one that the reader is to find."""

    name: str
    left: float
    right: float
    marked: bool = False


def horizontal_bars(name: str, title: str, bars: Sequence[Bar], *, texture: int = 1) -> str:
    """Draw one bar under each name, the text at its end."""
    shown = bars[:ROWS_MAX]
    if not shown:
        return nothing(title)
    top = max((tame(bar.value) for bar in shown), default=0) or 1
    drawn = []
    for at, bar in enumerate(shown):
        y, length = at * _ROW, tame(bar.value) / top * 74  # the rest is for the text
        drawn.append(
            f'<text x="0" y="{y + 13}">{safe(bar.name)}</text>'
            + (box(0, y + 18, length, f"ch-s{texture}") if length else "")
            + f'<text x="{n(length)}%" dx="6" y="{y + 29}" class="ch-value">{safe(_bar_text(bar))}</text>'
        )
    described = " ".join(f"{shortened(bar.name)}: {shortened(_bar_text(bar))}." for bar in shown)
    return figure(svg(name, title, described, "".join(drawn), height=_ROW * len(shown)))


def _bar_text(bar: Bar) -> str:
    return count(bar.value) if bar.text is None else bar.text


def paired_bars(name: str, title: str, pairs: Sequence[Pair], *, left: str, right: str) -> str:
    """Draw two values of each thing to both sides of a line; those on the right are the worse.

    Each side has its own scale: the worse of the two is often the smaller number.
    """
    shown = pairs[:ROWS_MAX]
    if not shown:
        return nothing(title)
    most_left = max(tame(pair.left) for pair in shown) or 1
    most_right = max(tame(pair.right) for pair in shown) or 1
    drawn = [
        f'<text x="50%" dx="-8" y="13" text-anchor="end" class="ch-head">{safe(left)}</text>',
        f'<text x="50%" dx="8" y="13" class="ch-head ch-worse">{safe(right)}</text>',
    ]
    for at, pair in enumerate(shown):
        drawn.append(_pair(pair, 26 + at * (_ROW + 4), tame(pair.left) / most_left, tame(pair.right) / most_right))
    height = 26 + (_ROW + 4) * len(shown)
    described = " ".join(
        f"{shortened(pair.name)}: {count(pair.left)} {shortened(left)}, {count(pair.right)} {shortened(right)}."
        for pair in shown
    )
    return figure(svg(name, title, described, "".join(drawn), height=height))


def _pair(pair: Pair, y: int, left: float, right: float) -> str:
    """Draw one thing: its name in the middle of its own line, the bars under it."""
    width = 34  # percent; the rest of each half is for the number
    parts = [f'<rect x="0" y="{y}" width="100%" height="{_ROW + 2}" class="ch-marked"/>'] if pair.marked else []
    parts.append(f'<text x="50%" y="{y + 14}" text-anchor="middle" class="ch-name">{safe(pair.name, 46)}</text>')
    parts.append(f'<line x1="50%" x2="50%" y1="{y + 18}" y2="{y + 35}" class="ch-middle"/>')
    lesser, worse = (max(side * width, LEAST_PERCENT) if side else 0 for side in (left, right))
    if lesser:
        parts.append(box(50 - lesser, y + 20, lesser, "ch-lesser"))
    if worse:
        parts.append(box(50, y + 20, worse, "ch-worst"))
    parts.append(
        f'<text x="{n(50 - lesser)}%" dx="-6" y="{y + 31}" text-anchor="end" class="ch-value">'
        f'{_shown(pair.left)}</text><text x="{n(50 + worse)}%" dx="6" y="{y + 31}" '
        f'class="{"ch-value ch-worse" if right else "ch-value"}">{_shown(pair.right)}</text>'
    )
    return "".join(parts)


def _shown(value: float) -> str:
    return count(value) if tame(value) < 1_000_000 else short_count(value)  # noqa: PLR2004 - what fits beside a bar


def parts_bar(name: str, title: str, parts: Sequence[Bar], *, ground: Bar | None = None) -> str:
    """Draw one bar that is the whole, cut into its parts; `ground` is what is left of it."""
    bars = with_textures([Series(part.name, [part.value]) for part in parts])
    rest = tame(ground.value) if ground else 0
    whole = sum(tame(bar.values[0]) for bar in bars) + rest
    if not whole:
        return nothing(title)
    drawn, x = [], 0.0
    numbered = [*enumerate(bars, start=1), *([(0, Series(ground.name, [rest]))] if ground else [])]
    for number, bar in numbered:
        length = tame(bar.values[0]) / whole * 100
        if length:
            drawn.append(box(min(x, 100 - LEAST_PERCENT), 1, length, f"ch-s{number}", height=26))
        x += length
    said = [
        f"{shortened(bar.name)}: {count(bar.values[0])}, {percent(part_of(bar.values[0], whole))}."
        for _, bar in numbered
    ]
    shares = [percent(part_of(bar.values[0], whole)) for _, bar in numbered]
    return figure(svg(name, title, " ".join(said), "".join(drawn), height=28) + legend(numbered, shares))


def share_bar(share: float, label: str, *, texture: int = 1) -> str:
    """Draw a share from 0 to 1 as a thin bar that is filled so far; `label` says what it is, with the number."""
    length = part_of(share, 1) * 100
    return (
        f'<svg class="ch-share" role="img" aria-label="{safe(label)}" height="8">'
        '<rect width="100%" height="8" rx="2" class="ch-track"/>'
        + (box(0, 0, length, f"ch-s{texture}", height=8) if length else "")
        + "</svg>"
    )
