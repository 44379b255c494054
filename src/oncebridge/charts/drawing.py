"""What all charts are made of: textures, texts, legends and axes; everything from outside is escaped and cut here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from oncebridge.quantities import short_count, tame
from oncebridge.visible import visible

SERIES_MAX: Final = 6  # with a texture of their own; one more is for the next, or for all others
STEPS_MAX: Final = 60  # bars beside each other, so that each can be seen on a phone
NAME_MAX: Final = 60  # characters

PLOT: Final = 160  # pixels, the height of what is drawn above an axis
TOP: Final = 12
LEAST: Final = 2  # pixels: what is there is seen, however little it is
LEAST_PERCENT: Final = 0.6
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000  # in milliseconds
_SPACES: Final = str.maketrans({"\u00a0": " ", "\u202f": " ", "\n": " ", "\t": " "})
_LETTER: Final = 2.2  # percent of a phone's width that a letter of an axis takes
#: A line on top of each colour, by which it is told from the others without it.
_LINES: Final = (
    "",
    "M0 8L8 0M-1 1L1 -1M7 9L9 7",
    "M2 2h2v2h-2zM6 6h2v2h-2z",
    "M0 2H8M0 6H8",
    "M0 0L8 8M-1 7L1 9M7 -1L9 1",
    "M2 0V8M6 0V8",
    "M0 4H8M4 0V8",
)


class Series(NamedTuple):
    """One part of every bar."""

    name: str
    values: Sequence[float]


def textures() -> str:
    """Return what the parts of bars are filled with; a page holds it once."""
    patterns = "".join(
        f'<pattern id="ch-t{number}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" class="ch-c{number}"/><path d="{line}" class="ch-line"/></pattern>'
        for number, line in enumerate(_LINES, start=1)
    )
    return f'<svg class="ch-textures" width="0" height="0" aria-hidden="true"><defs>{patterns}</defs></svg>'


def key(number: int) -> str:
    """Draw the sample of a part's texture that stands beside its name; 0 is what lies under the parts."""
    return (
        '<svg class="ch-key" width="14" height="14" aria-hidden="true">'
        f'<rect x="1" y="1" width="12" height="12" class="ch-s{min(max(number, 0), SERIES_MAX + 1)}"/></svg>'
    )


def with_textures(series: Sequence[Series]) -> list[Series]:
    """Return the parts with a texture each; where there are more than textures, the last are one."""
    if len(series) <= SERIES_MAX + 1:
        return list(series)
    rest = series[SERIES_MAX:]
    length = max(len(part.values) for part in rest)
    added = [sum(tame(part.values[at]) for part in rest if at < len(part.values)) for at in range(length)]
    return [*series[:SERIES_MAX], Series(f"{len(rest)} others", added)]


def svg(name: str, title: str, described: str, drawn: str, *, height: float, axis: bool = False) -> str:
    """Frame what is drawn, with its title and its description; `axis`: values stand to its left."""
    id_ = "".join(character if character.isascii() and character.isalnum() else "-" for character in name)[:NAME_MAX]
    return (
        f'<svg class="ch{" ch-left" if axis else ""}" role="img" '
        f'aria-labelledby="{id_}-t" aria-describedby="{id_}-d" '
        f'height="{n(height)}"><title id="{id_}-t">{safe(title, 200)}</title>'
        f'<desc id="{id_}-d">{safe(described, 2000)}</desc>{drawn}</svg>'
    )


def figure(inside: str) -> str:
    """Wrap a chart and its legend."""
    return f'<figure class="ch-figure">{inside}</figure>'


def nothing(title: str) -> str:
    """Say that a chart has nothing to show."""
    return f'<p class="ch-nothing">{safe(title, 200)}: there is nothing to draw.</p>'


def legend(parts: Sequence[tuple[int, Series]], notes: Sequence[str] = ()) -> str:
    """Write the names of parts beside their textures, each with its note."""
    items = [
        f"<li>{key(number)} {safe(part.name)}{f' <b>{notes[at]}</b>' if notes else ''}</li>"
        for at, (number, part) in enumerate(parts)
    ]
    return f'<figcaption><ul class="ch-legend">{"".join(items)}</ul></figcaption>'


def grid(top: float, room: int = 0) -> str:
    """Draw lines across, with their values at the left."""
    drawn = []
    for part in (0, 0.5, 1):
        y = n(room + TOP + PLOT - part * PLOT)
        drawn.append(f'<line x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        if part in (0, 1) or top > 1:
            drawn.append(f'<text x="-8" y="{y}" dy="4" text-anchor="end">{short_count(top * part)}</text>')
    return f'<g class="ch-grid">{"".join(drawn)}</g>'


def nice(most: float) -> float:
    """Return the round number at the top of an axis, even so that its half is round too."""
    most = max(most, 2)
    size = 10.0 ** math.floor(math.log10(most))
    return next(size * factor for factor in (1, 2, 4, 6, 8, 10) if size * factor >= most)


def apart(places: Sequence[float], names: Sequence[str]) -> list[int]:
    """Return which labels of an axis can stand beside each other on a phone."""
    shown, end = [], -100.0
    for at, (place, name) in enumerate(zip(places, names, strict=True)):
        width = len(name) * _LETTER
        start = place - {"start": 0, "middle": width / 2, "end": width}[_anchor(place, name)]
        if start >= end:
            shown.append(at)
            end = start + width + _LETTER
    return shown


def label(at: float, y: float, text: str) -> str:
    """Write a text under a place of an axis, never beyond the chart's edges."""
    return f'<text x="{n(at)}%" y="{y}" text-anchor="{_anchor(at, text)}">{escape(text)}</text>'


def _anchor(at: float, text: str) -> str:
    half = len(text) * _LETTER / 2
    return "start" if at < half else "end" if at > 100 - half else "middle"


def box(x: float, y: float, length: float, kind: str, *, height: int = 13) -> str:
    """Draw a bar, wide enough to be seen; place and length in percent."""
    return f'<rect x="{n(x)}%" y="{y}" width="{n(max(length, LEAST_PERCENT))}%" height="{height}" class="{kind}"/>'


def safe(text: str, most: int = NAME_MAX) -> str:
    """Shorten and escape a text."""
    return escape(shortened(text, most))


def shortened(text: str, most: int = NAME_MAX) -> str:
    """Cut a text in its middle: the ends of topics and paths tell more."""
    ends = text if len(text) <= 4 * most else text[: 2 * most] + text[-2 * most :]  # it may be a million long
    shown = visible(ends.translate(_SPACES))
    if len(shown) <= most:
        return shown
    return f"{shown[: most // 2]}…{shown[len(shown) - most // 2 + 1 :]}"


def n(number: float) -> str:
    """Write a coordinate with no more digits than can be seen."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
