"""Charts as inline SVG, drawn from numbers: for the report of `diagnose` and for the console.

A page that shows them holds `STYLE` in its style and `textures()` once in its body. They need no script and no font,
follow the reader's dark or light scheme, print, and keep their letters' size on a phone: whatever depends on the width
is a percentage, all else is in pixels. No part is told by its colour alone: each has a texture and stands in a legend
or beside its name.

Names and numbers may come from outside. Names are escaped and shortened, numbers are tamed, and a chart has at most so
many parts, so its size has a limit whatever it is given.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from oncebridge.charts.bars import ROWS_MAX, Bar, Pair, horizontal_bars, paired_bars, parts_bar, share_bar
from oncebridge.charts.drawing import NAME_MAX, SERIES_MAX, STEPS_MAX, Series, key, shortened, textures
from oncebridge.charts.over_lags import MARKS_MAX, Mark, lag_histogram
from oncebridge.charts.over_time import stacked_bars

__all__ = [
    "MARKS_MAX",
    "NAME_MAX",
    "ROWS_MAX",
    "SERIES_MAX",
    "STEPS_MAX",
    "STYLE",
    "Bar",
    "Mark",
    "Pair",
    "Series",
    "horizontal_bars",
    "key",
    "lag_histogram",
    "paired_bars",
    "parts_bar",
    "share_bar",
    "shortened",
    "stacked_bars",
    "textures",
]

#: The rules for what the charts are made of.
STYLE: Final = files("oncebridge.charts").joinpath("charts.css").read_text(encoding="utf-8")
