"""The parts of the page, each made from a diagnosis; one with nothing to say is empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from oncebridge import charts
from oncebridge.diagnosis.comparison import Change, Trend, readable
from oncebridge.diagnosis.diagnosis import CauseFound, Diagnosis, Lags, TopicFound
from oncebridge.diagnosis.page.examples import examples
from oncebridge.markup import Cell, Column, Markup, definitions, details, joined, moment, table, tag, to_copy, topic
from oncebridge.quantities import count, counted, part_of, percent, span

_REPEATS: Final = "repeats"
_CHANGES_OPEN: Final = 8
_TRENDS: Final = {Trend.WORSE: "worse", Trend.BETTER: "better", Trend.OTHER: "changed"}
#: Names of what was left out, by where it was.
_LEFT_OUT: Final = {
    "texts": "long texts in part",
    "Diagnosis.backtest": "keys of the back-test",
    "Diagnosis.found": "causes",
    "Diagnosis.look_alikes": "look-alikes",
    "Diagnosis.files": "files",
    "Diagnosis.skipped": "lines on what could not be read",
    "Advice.echo_windows": "echo windows",
    "Advice.topic_pairs": "pairs of topics",
    "Advice.forgotten": "shorter memories",
}


def section(name: str, title: str, *inside: str) -> Markup:
    """Write a part of the page with its heading."""
    return tag("section", tag("h2", title, id=f"{name}-h"), *inside, id=name, aria_labelledby=f"{name}-h")


def texture(diagnosis: Diagnosis, cause: str) -> int:
    """Return the texture by which a cause is known all over the page: those with most duplicates have their own."""
    names = [found.cause.value for found in diagnosis.found]
    return min(names.index(cause), charts.SERIES_MAX) + 1 if cause in names else charts.SERIES_MAX + 1


def capital(text: str) -> str:
    """Write a title, which may come from the middle of a sentence, as one of its own."""
    return text[:1].upper() + text[1:]


def answer(diagnosis: Diagnosis) -> Markup:
    """Write the answer, the figures that it rests on, and the line for a chat."""
    ends = [moment(end, to_the_second=True) for end in (diagnosis.first, diagnosis.last) if end]
    between = " to ".join(ends)
    figures = [
        ("deliveries", count(diagnosis.deliveries)),
        ("events", count(diagnosis.events)),
        ("duplicates", count(diagnosis.duplicates)),
        ("of deliveries", percent(part_of(diagnosis.duplicates, readable(diagnosis)))),
    ]
    if diagnosis.unreadable:
        figures.append(("unreadable", count(diagnosis.unreadable)))
    bar = ""
    if diagnosis.duplicates:
        bar = charts.parts_bar(
            "parts",
            "All deliveries: first ones, and duplicates by cause",
            [charts.Bar(capital(found.title), found.count) for found in diagnosis.found],
            ground=charts.Bar("first deliveries", readable(diagnosis) - diagnosis.duplicates),
        )
    return tag(
        "header",
        tag("p", tag("span", "Oncebridge", class_="brand"), " Why do I get duplicates?", class_="eyebrow"),
        tag("h1", diagnosis.answer),
        tag("p", f"Arrived {between}.", class_="quiet") if between else Markup(),
        definitions(figures, class_="figures"),
        Markup(bar),
        tag("h2", "To paste into a chat", class_="small"),
        to_copy(diagnosis.chat, "Line for a chat"),
    )


def changed(found: Sequence[Change], earlier: Diagnosis) -> Markup:
    """Write what changed since an earlier report."""
    deliveries = counted(earlier.deliveries, "delivery", "deliveries")
    since = tag("p", f"Compared with the report of {moment(earlier.made)}, of {deliveries}.", class_="quiet")
    if not found:
        return section("changed", "What changed", since, tag("p", "Nothing that matters."))
    items = [
        tag("li", tag("span", _TRENDS[change.trend], class_=f"badge {change.trend.value}"), tag("span", change.text))
        for change in found
    ]
    first, rest = items[:_CHANGES_OPEN], items[_CHANGES_OPEN:]
    more = details(f"{counted(len(rest), 'smaller change')}", tag("ul", *rest, class_="changes")) if rest else Markup()
    return section("changed", "What changed", since, tag("ul", *first, class_="changes"), more)


def nothing(diagnosis: Diagnosis) -> Markup:
    """Say what to do where no delivery was found."""
    return section(
        "nothing",
        "No deliveries",
        tag(
            "p",
            "Nothing in this input could be read as an event, so there is nothing to say about duplicates. "
            "A capture is files or folders with events as JSON, one per line or one after another: what Lambda logged, "
            "what Firehose stored, or what ",
            tag("code", "aws sqs receive-message"),
            " prints. ",
            "See below what was found instead." if diagnosis.skipped else "This input is empty.",
        ),
    )


def causes(diagnosis: Diagnosis) -> Markup:
    """Write each cause with its evidence and what to do about it."""
    if not diagnosis.found:
        return section("causes", "Causes", tag("p", "No delivery repeats another: there is nothing to explain."))
    return section("causes", "Causes", *(_cause(diagnosis, found) for found in diagnosis.found))


def _cause(diagnosis: Diagnosis, found: CauseFound) -> Markup:
    number = texture(diagnosis, found.cause.value)
    share = percent(found.share)
    facts = [("Lags", _lags_in_words(found.lags))] if found.lags.count else []
    if found.topics:
        named = [joined((topic(name), f" {count(number_)}")) for name, number_ in found.topics[:5]]
        facts.append(("Most in", tag("ul", *(tag("li", each) for each in named), class_="plain")))
    return tag(
        "article",
        tag("h3", Markup(charts.key(number)), " ", capital(found.title)),
        tag(
            "p",
            tag("b", share),
            f" of duplicates · {counted(found.count, 'delivery', 'deliveries')}",
            class_="share",
        ),
        Markup(charts.share_bar(found.share, f"{found.title}: {share} of duplicates", texture=number)),
        tag(
            "div",
            tag("p", found.evidence),
            tag("p", tag("b", "What to do: "), found.advice, class_="advice"),
            class_="words",
        ),
        definitions(facts, class_="facts") if facts else Markup(),
        details(f"Examples ({len(found.examples)})", examples(found.examples, _REPEATS))
        if found.examples
        else Markup(),
        class_="cause",
    )


def _lags_in_words(lags: Lags) -> str:
    if lags.p50 == lags.max:
        return f"all within {span(lags.max)}" if lags.max else "all at once"
    half = f"half within {span(lags.p50)}" if lags.p50 else "half at once"
    return f"{half}, 99 % within {span(lags.p99)}, the longest {span(lags.max)}"


def over_time(diagnosis: Diagnosis) -> Markup:
    """Draw deliveries and duplicates over time."""
    over = diagnosis.over_time
    if not any(over.deliveries):
        return Markup()
    titles = {found.cause.value: capital(found.title) for found in diagnosis.found}
    order = sorted(over.duplicates, key=lambda name: (texture(diagnosis, name), -sum(over.duplicates[name])))
    series = [charts.Series(titles.get(name, name), over.duplicates[name]) for name in order]
    firsts = [
        max(number - sum(values[at] for values in over.duplicates.values() if at < len(values)), 0)
        for at, number in enumerate(over.deliveries)
    ]
    duplicates = "; duplicates stand on the pale bars" if diagnosis.duplicates else ""
    return section(
        "time",
        "Over time",
        tag("p", f"Deliveries by when they arrived, in UTC{duplicates}."),
        Markup(
            charts.stacked_bars(
                "time-chart",
                "Deliveries over time, duplicates by cause",
                series,
                ground=charts.Series("first deliveries", firsts),
                start_ms=over.start_ms,
                width_ms=over.width_ms,
            )
        ),
    )


def lags(diagnosis: Diagnosis) -> Markup:
    """Draw how long after the first delivery duplicates came."""
    found = diagnosis.lags
    if not found.count:
        return Markup()
    marks = [charts.Mark("half", found.p50), charts.Mark("99 %", found.p99), charts.Mark("longest", found.max)]
    return section(
        "lags",
        "Lags",
        tag("p", f"How long after the first delivery of their event duplicates came: {_lags_in_words(found)}."),
        Markup(charts.lag_histogram("lag-chart", "Duplicates by lag", found.edges, found.counts, marks)),
    )


def topics(diagnosis: Diagnosis) -> Markup:
    """Write a row for each topic."""
    if not diagnosis.topics:
        return Markup()
    columns = [
        Column("Topic"),
        Column("Duplicates", is_number=True),
        Column("Share", is_number=True),
        Column("Deliveries", is_number=True),
        Column("Events", is_number=True),
        Column("Kind"),
        Column("Causes"),
    ]
    titles = {found.cause.value: found.title for found in diagnosis.found}
    left = diagnosis.topics_left_out
    return section(
        "topics",
        "Topics",
        table(
            "Deliveries, events and duplicates by topic",
            columns,
            [(None, _topic_row(found, titles)) for found in diagnosis.topics],
            filter_label="Filter topics",
        ),
        tag(
            "p",
            f"{counted(left, 'more topic')} with fewer deliveries {'is' if left == 1 else 'are'} not listed.",
            class_="quiet",
        )
        if left
        else Markup(),
    )


def _topic_row(found: TopicFound, titles: dict[str, str]) -> list[Cell]:
    share = part_of(found.duplicates, found.deliveries)
    named = sorted(found.causes.items(), key=lambda item: -item[1])
    said = [f"{titles.get(name, name)} ({count(number)})" for name, number in named[:2] if number]
    others = sum(number for _, number in named[2:])
    said += [f"others ({count(others)})"] if others else []
    bar = Markup(charts.share_bar(share, f"{percent(share)} duplicates"))
    return [
        Cell(topic(found.topic)),
        Cell(count(found.duplicates), found.duplicates),
        Cell(joined((percent(share), bar)), share),
        Cell(count(found.deliveries), found.deliveries),
        Cell(count(found.events), found.events),
        Cell(found.kind),
        Cell("; ".join(said) or "none", class_="wide"),
    ]


def look_alikes(diagnosis: Diagnosis) -> Markup:
    """Write what only looks like duplication."""
    shown = [found for found in diagnosis.look_alikes if found.count]
    if not shown:
        return Markup()
    parts = [
        tag(
            "article",
            tag("h3", capital(found.title)),
            tag("p", tag("b", counted(found.count, "delivery", "deliveries")), class_="share"),
            tag("p", found.what, class_="words"),
            details(f"Examples ({len(found.examples)})", examples(found.examples, "beside"))
            if found.examples
            else Markup(),
            class_="look-alike",
        )
        for found in shown
    ]
    return section("look-alikes", "What only looks like duplicates", *parts)


def unreadable(diagnosis: Diagnosis) -> Markup:
    """Write what could not be read."""
    if not diagnosis.unreadable and not diagnosis.skipped:
        return Markup()
    said = f"{counted(diagnosis.unreadable, 'delivery', 'deliveries')} could not be read as events"
    lines = tag("ul", *(tag("li", line) for line in diagnosis.skipped), class_="plain")
    whole = f"{said}; everything else was." if readable(diagnosis) else f"{said}."
    return section("unreadable", "What could not be read", tag("p", whole), lines if diagnosis.skipped else Markup())


def provenance(diagnosis: Diagnosis, left_out: Counter[str]) -> Markup:
    """Write where the page comes from, and what it leaves out."""
    files = tag("ul", *(tag("li", topic(name)) for name in diagnosis.files), class_="plain")
    pairs: list[tuple[str, str]] = [
        ("Made", f"{moment(diagnosis.made)} by Oncebridge {diagnosis.oncebridge}"),
        ("Command", tag("code", diagnosis.command)),
        ("Settings", topic(diagnosis.settings) if diagnosis.settings else "none: the defaults"),
        ("Files", files if diagnosis.files else "standard input"),
        ("Digest of the input", topic(diagnosis.input_digest)),
    ]
    named: Counter[str] = Counter()
    for field, number in left_out.items():
        if field != "Diagnosis.topics":  # those are counted under the table
            named[_LEFT_OUT.get(field, "examples and details")] += number
    if named:
        said = ", ".join(f"{count(number)} {name}" for name, number in named.items())
        pairs.append(("Left out to keep the page small", f"{said}. The JSON of --json has all of it."))
    return tag(
        "footer",
        tag("h2", "Where this comes from", class_="small"),
        definitions(pairs, class_="provenance"),
        tag(
            "p",
            "This page is complete in itself and asks for nothing from anywhere. It holds sums and a few examples, and "
            "no bodies of events. Read it back with ",
            tag("code", "oncebridge diagnose --from"),
            ", or compare a later capture with it by ",
            tag("code", "--against"),
            ".",
            class_="quiet",
        ),
    )
