"""The first page: what all workers are doing now."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from oncebridge import charts
from oncebridge.console.layout import Page, Viewer, ago, badge, empty, name_of, section, text, time_of
from oncebridge.journal.overview import COPIES
from oncebridge.journal.tally import waits_until_ms
from oncebridge.markup import Cell, Column, Markup, definitions, joined, table, tag, topic
from oncebridge.quantities import count, counted, part_of, percent, span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncebridge.journal.overview import HandlerRow, Overview, TopicRow
    from oncebridge.journal.records import SeenDelivery, WorkerSeen
    from oncebridge.ledgers.protocol import LetterGroups

TOPICS_MAX: Final = 40
WORKERS_MAX: Final = 50
MINUTE_MS: Final = 60_000
#: What the chart shows, from the bottom up: columns of the books, the last two together.
_SERIES: Final = {
    "processed": ("processed",),
    "redelivery": ("redelivery",),
    "republish": ("republish",),
    "echo": ("echo",),
    "stale": ("stale",),
    "retrying": ("retrying",),
    "dead or conflict": ("dead", "conflict"),
}


def now_page(seen: Overview, latest: Sequence[SeenDelivery], letters: LetterGroups | None, viewer: Viewer) -> Page:
    """Write the page; `letters` is None if the ledger cannot count them at once."""
    if not seen.workers and not seen.received:
        main: Markup = joined((_nothing(), _letters_alone(letters)))
    else:
        main = joined(
            (
                _headline(seen),
                _alerts(seen, letters),
                _figures(seen, letters),
                _books(seen),
                _waiting(seen, latest, viewer),
                _topics(seen.topics),
                _handlers(seen.handlers),
                _workers(seen, viewer),
            )
        )
    return Page(title="Now", name="", main=main, commands=("oncebridge top",), is_live=True)


def _nothing() -> Markup:
    return tag(
        "div",
        tag("p", "No worker has written a journal here in the last hour.", class_="lead"),
        tag(
            "p",
            "consume, serve and Lambda functions keep one in this ledger, unless `journal` is false in their settings. "
            "Is this the ledger that your workers use?",
        ),
        class_="empty",
    )


def _letters_alone(letters: LetterGroups | None) -> Markup:
    if letters is None or not letters.total:
        return Markup()
    return tag("p", _waiting_letters(letters))


def _waiting_letters(letters: LetterGroups) -> Markup:
    """Say how many dead letters there are; at least so many, if the ledger could not count all of them at once."""
    link = tag("a", counted(letters.total, "dead letter"), href="/console/dead")
    one = letters.total == 1 and letters.complete
    return joined(
        ("" if letters.complete else "At least ", link, " waits for a decision." if one else " wait for a decision.")
    )


def _headline(seen: Overview) -> Markup:
    copies = sum(seen.totals[name] for name in COPIES)
    said = f"{counted(seen.received, 'delivery', 'deliveries')} in the last hour"
    if seen.received:
        said += f", {percent(part_of(copies, seen.received))} of them copies"
    return tag("p", f"{said}; {counted(len(seen.running), 'worker runs', 'workers run')}.", class_="lead")


def _alerts(seen: Overview, letters: LetterGroups | None) -> Markup:
    """Write what somebody on call has to know first."""
    found: list[Markup] = []
    running = [worker for worker in seen.workers if worker.name in seen.running]
    cut_off = [worker.name for worker in running if worker.ledger_out_of_reach]
    if cut_off:
        found.append(joined(("The ledger was out of reach for ", text(", ".join(cut_off)), ".")))
    receivers = [worker for worker in running if worker.receivers_out_of_reach]
    if receivers:
        named = ", ".join(f"{worker.name} ({worker.receivers_out_of_reach})" for worker in receivers)
        found.append(joined(("Receivers are out of reach, and their breakers open, at ", text(named), ".")))
    for name, pause in seen.pauses.items():
        by = f"{name_of(name)} is paused, for {span(max(0, seen.at_ms - pause.since_ms))} now, by {text(pause.who)}. "
        found.append(joined((by, tag("a", "Handlers", href="/console/handlers"))))
    found += [
        joined((topic(text(row.topic)), f" has been silent for {span(row.quiet_minutes * MINUTE_MS)}."))
        for row in seen.silent
    ]
    found += [
        joined((topic(text(name)), " usually comes at this hour, and does not.")) for name in seen.overdue[:TOPICS_MAX]
    ]
    gone = [worker for worker in seen.workers if worker.name not in seen.running and not worker.ended]
    if gone:
        said = ", ".join(f"{worker.name} ({ago(worker.seen_ms, seen.at_ms)})" for worker in gone[:5])
        found.append(joined((f"{counted(len(gone), 'worker')} stopped without a word: ", text(said), ".")))
    if not seen.running:
        found.append(Markup("No worker runs: events wait at their source."))
    if letters is not None and letters.total:
        found.append(_waiting_letters(letters))
    if not found:
        return tag("p", badge("all well", "good"), " no outage, no silence, no dead letter.", class_="well")
    return tag("ul", *(tag("li", one) for one in found), class_="alerts", aria_label="What needs a look")


def _figures(seen: Overview, letters: LetterGroups | None) -> Markup:
    totals = seen.totals
    oldest = "none" if seen.oldest_waiting_ms is None else span(seen.at_ms - seen.oldest_waiting_ms)
    figures = [
        ("received", count(seen.received)),
        ("processed", count(totals["processed"])),
        ("copies", count(sum(totals[name] for name in COPIES))),
        ("stale", count(totals["stale"])),
        ("unhandled", count(totals["unhandled"])),
        ("waiting", count(seen.waiting)),
        ("oldest unfinished", oldest),
        (
            "dead letters",
            "not counted" if letters is None else f"{'' if letters.complete else '≥ '}{count(letters.total)}",
        ),
    ]
    return definitions(figures, class_="figures")


def _books(seen: Overview) -> Markup:
    series = [
        charts.Series(name, [sum(values) for values in zip(*(seen.columns[column] for column in columns), strict=True)])
        for name, columns in _SERIES.items()
    ]
    ground = charts.Series("unhandled", seen.columns["unhandled"]) if any(seen.columns["unhandled"]) else None
    drawn = charts.stacked_bars(
        "books",
        "Deliveries per minute, by what became of them",
        series,
        ground=ground,
        start_ms=seen.start_ms,
        width_ms=MINUTE_MS,
    )
    return section("books", "The books, per minute", Markup(drawn))


def _waiting(seen: Overview, latest: Sequence[SeenDelivery], viewer: Viewer) -> Markup:
    """Say what is not finished, and for what it waits."""
    last = {one.key: one for one in reversed(latest)}
    reasons = Counter(
        (one.topic, one.reason)
        for one in last.values()
        if one.column == "retrying" and waits_until_ms(one.at_ms, one.retry_in_ms) > viewer.now_ms
    )
    if not seen.waiting and not reasons:
        return Markup()
    rows = [
        (None, [Cell(topic(text(name))), Cell(text(reason), class_="wide"), Cell(count(number), number)])
        for (name, reason), number in reasons.most_common(10)
    ]
    columns = (Column("topic"), Column("waits because"), Column("of the latest", is_number=True))
    shown = table("Of the latest, from the sample of deliveries", columns, rows) if rows else Markup()
    lead = f"{counted(seen.waiting, 'delivery waits', 'deliveries wait')} for the next try"
    if seen.oldest_waiting_ms is not None:
        lead += f", the oldest for {span(seen.at_ms - seen.oldest_waiting_ms)}"
    if not seen.waiting:
        lead = "No running worker waits for one of these; their source may deliver them again"
    return section("waiting", "Not finished", shown, lead=f"{lead}.")


def _topics(topics: Sequence[TopicRow]) -> Markup:
    if not topics:
        return section("topics", "Topics", empty("Nothing came in the last hour."))
    columns = (
        Column("topic"),
        *(Column(name, is_number=True) for name in ("received", "redelivery", "republish", "echo", "stale", "dead")),
        Column("quiet for"),
    )
    rows = [(None, _topic_cells(row)) for row in topics[:TOPICS_MAX]]
    shown = table("Deliveries of the last hour by topic, with the copies by kind", columns, rows)
    more = len(topics) - TOPICS_MAX
    rest = tag("p", f"and {counted(more, 'topic')} more", class_="quiet") if more > 0 else Markup()
    return section("topics", "Topics", shown, rest)


def _topic_cells(row: TopicRow) -> list[Cell]:
    numbers: Mapping[str, int] = row.columns
    dead = numbers.get("dead", 0) + numbers.get("conflict", 0)
    return [
        Cell(topic(text(row.topic))),
        _number(row.received),
        *(_number(numbers.get(name, 0)) for name in ("redelivery", "republish", "echo", "stale")),
        _number(dead, "bad" if dead else None),
        Cell(span(row.quiet_minutes * MINUTE_MS) if row.quiet_minutes else "", row.quiet_minutes),
    ]


def _number(number: int, class_: str | None = None) -> Cell:
    return Cell(count(number), number, class_ or (None if number else "none"))


def _handlers(handlers: Sequence[HandlerRow]) -> Markup:
    if not handlers:
        return Markup()
    rows = [
        (
            None,
            [
                Cell(tag("span", name_of(row.name), class_="title")),
                Cell(text(row.promise)),
                _number(row.done),
                _number(row.failed, "bad" if row.failed else None),
                _number(row.dead, "bad" if row.dead else None),
                _number(row.workers),
            ],
        )
        for row in handlers
    ]
    columns = (
        Column("handler"),
        Column("promise"),
        *(Column(name, is_number=True) for name in ("done", "failed", "dead", "workers")),
    )
    link = tag("p", tag("a", "Rates, times, pause and resume", href="/console/handlers"))
    return section("handlers", "Handlers and sinks", table("In the last hour", columns, rows), link)


def _workers(seen: Overview, viewer: Viewer) -> Markup:
    if not seen.workers:
        return Markup()
    rows = [(None, _worker_cells(worker, seen, viewer)) for worker in seen.workers[:WORKERS_MAX]]
    columns = (
        *(Column(name) for name in ("worker", "way in", "state", "started", "heard of")),
        Column("waiting", is_number=True),
        Column("trouble"),
    )
    return section("workers", "Workers", table("Workers that were heard of lately", columns, rows))


def _worker_cells(worker: WorkerSeen, seen: Overview, viewer: Viewer) -> list[Cell]:
    runs = worker.name in seen.running
    state = badge("runs", "good") if runs else badge("ended", "other") if worker.ended else badge("silent", "bad")
    trouble = [
        *(["ledger out of reach"] if worker.ledger_out_of_reach else []),
        *([f"{worker.receivers_out_of_reach} receivers out of reach"] if worker.receivers_out_of_reach else []),
    ]
    return [
        Cell(tag("span", text(worker.name), class_="title")),
        Cell(text(worker.way_in)),
        Cell(state),
        Cell(time_of(worker.started_ms, viewer.now_ms)),
        Cell(ago(min(worker.seen_ms, viewer.now_ms), viewer.now_ms)),  # clocks differ
        _number(worker.waiting),
        Cell("; ".join(trouble) if runs else ""),
    ]
