"""The advice on the page: retention, memory, echo windows and topics that arrive twice."""

from __future__ import annotations

from oncebridge import charts
from oncebridge.diagnosis.diagnosis import Diagnosis
from oncebridge.diagnosis.echo_settings import echo_settings
from oncebridge.diagnosis.page.sections import section
from oncebridge.markup import Cell, Column, Markup, joined, table, tag, to_copy, topic
from oncebridge.quantities import count, counted, part_of, percent, size, span


def advice(diagnosis: Diagnosis) -> Markup:
    """Write what follows from the data."""
    return section("advice", "Advice", _retention(diagnosis), _redis(diagnosis), _echoes(diagnosis), _pairs(diagnosis))


def _retention(diagnosis: Diagnosis) -> Markup:
    found = diagnosis.advice
    days = counted(found.retention_days, "day")
    parts: list[str] = [tag("h3", f"Remember events for at least {days}"), tag("p", found.retention_text)]
    if found.forgotten:
        bars = [
            charts.Bar(
                f"after {span(seconds * 1000)}",
                number,
                f"{count(number)}, {percent(part_of(number, diagnosis.duplicates))}" if number else "none",
            )
            for seconds, number in found.forgotten
        ]
        parts.append(tag("p", "Duplicates that a shorter memory would have let through, by when it forgets:"))
        parts.append(
            Markup(charts.horizontal_bars("forgotten-chart", "Duplicates let through by shorter memories", bars))
        )
    return tag("article", *parts)


def _redis(diagnosis: Diagnosis) -> Markup:
    found = diagnosis.advice
    if not found.redis_bytes and not found.redis_text:
        return Markup()
    heading = f"Redis needs {size(found.redis_bytes)} for the retention in force"
    return tag("article", tag("h3", heading), tag("p", found.redis_text))


def _echoes(diagnosis: Diagnosis) -> Markup:
    windows = diagnosis.advice.echo_windows
    if not windows:
        return Markup()
    rows = [
        (
            None,
            [
                Cell(joined((topic(window.topic), tag("span", window.text, class_="sub")), " ")),
                Cell(span(window.window_ms), window.window_ms),
                Cell(
                    span(window.advised_ms),
                    window.advised_ms,
                    "strong" if window.advised_ms != window.window_ms else None,
                ),
                Cell(count(window.echoes), window.echoes),
                Cell(count(window.outside), window.outside),
            ],
        )
        for window in windows
    ]
    columns = [
        Column("Topic"),
        *(Column(title, is_number=True) for title in ("In force", "Advised", "Echoes", "Just outside")),
    ]
    lines = echo_settings([window for window in windows if "…" not in window.topic])
    return tag(
        "article",
        tag("h3", "Echo windows"),
        tag("p", "Within its window, the same state again is an echo and reaches no handler."),
        table("Echo windows by topic", columns, rows),
        tag(
            "p",
            "For ",
            tag("code", "oncebridge.toml"),
            "; where it has a table for the topic already, change the window in that one:",
        )
        if lines
        else Markup(),
        to_copy(lines, "Lines for oncebridge.toml") if lines else Markup(),
    )


def _pairs(diagnosis: Diagnosis) -> Markup:
    pairs = diagnosis.advice.topic_pairs
    if not pairs:
        return Markup()
    items = [
        tag(
            "li",
            joined((topic(pair.topic), " and ", topic(pair.other), f": {counted(pair.count, 'fact')}. ", pair.text)),
        )
        for pair in pairs
    ]
    return tag("article", tag("h3", "Topics that bring the same facts"), tag("ul", *items))
