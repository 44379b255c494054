"""The figures as a picture for the README: bars, ours beside theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from report import Report

OURS: Final = "#1f6feb"
THEIRS: Final = "#9aa4b2"
INK: Final = "#1f2328"
PAPER: Final = "#ffffff"  # opaque, so that it can be read on dark pages too


#: Title of a panel -> what its rows are called in the table, and how our bar is labelled there.
PANELS: Final = {
    "Redis, one millisecond away: events per second": {
        "Redis 1 ms away, batches of 100": "Oncebridge, batches of 100",
        "Redis 1 ms away, batches of 10": "Oncebridge, batches of 10",
    },
    "Redis: events per second": {
        "Redis, batches of 100": "Oncebridge, batches of 100",
        "Redis, single events": "Oncebridge, single events",
    },
    "SQLite: events per second": {"SQLite, batches of 100": "Oncebridge, batches of 100"},
    "Postgres: events per second": {"Postgres, batches of 100": "Oncebridge, batches of 100"},
    "HTTP, single events, Redis: events per second": {"HTTP, single events": "oncebridge serve"},
    "HTTP, batches of 100, Redis: events per second": {"HTTP, batches of 100": "oncebridge serve"},
    "Redis: bytes per remembered event": {"Redis, bytes per remembered event": "Oncebridge"},
}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar."""

    label: str
    value: float
    ours: bool


def panels(report: Report) -> dict[str, list[Bar]]:
    """Choose what is drawn: each contestant once in a panel, ours first."""
    chosen = {title: _bars(report, labels) for title, labels in PANELS.items()}
    return {title: bars for title, bars in chosen.items() if bars}


def _bars(report: Report, labels: Mapping[str, str]) -> list[Bar]:
    rows = [row for row in report.rows if row.what in labels]
    ours = {labels[row.what]: row.judged.ours for row in rows}
    theirs = {row.beside: row.judged.theirs for row in rows}
    return [
        *(Bar(label=label, value=value, ours=True) for label, value in ours.items()),
        *(Bar(label=label, value=value, ours=False) for label, value in theirs.items()),
    ]


def draw(report: Report, path: Path) -> None:
    """Write the picture: the same figures give the same bytes."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    chosen = panels(report)
    style = {
        "svg.hashsalt": "oncebridge",
        "svg.fonttype": "none",  # text stays text: small, and searchable
        "font.family": "sans-serif",
        "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
        "font.size": 10,
        "text.color": INK,
    }
    with mpl.rc_context(style):
        heights = [len(bars) for bars in chosen.values()]
        figure, axes = plt.subplots(
            len(chosen), 1, figsize=(8, 0.36 * sum(heights) + 0.55 * len(heights)), height_ratios=heights, squeeze=False
        )
        for axis, (title, bars) in zip(axes[:, 0], chosen.items(), strict=True):
            _draw_panel(axis, title, bars)
        figure.tight_layout(h_pad=1.2)
        figure.savefig(path, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _draw_panel(axis, title: str, bars: list[Bar]) -> None:  # noqa: ANN001 - matplotlib is imported late
    """Draw one panel: bars with their figures beside them, and no frame."""
    axis.barh(
        [bar.label for bar in bars],
        [bar.value for bar in bars],
        color=[OURS if bar.ours else THEIRS for bar in bars],
        height=0.72,
    )
    axis.invert_yaxis()
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axis.set_xlim(0, max(bar.value for bar in bars) * 1.15)
    for place, bar in enumerate(bars):
        axis.text(bar.value, place, f" {bar.value:,.0f}", va="center")
    axis.tick_params(left=False, bottom=False, labelbottom=False)
    for side in axis.spines.values():
        side.set_visible(False)
