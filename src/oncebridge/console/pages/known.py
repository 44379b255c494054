"""What is known of one conversation, user or event, on a time line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from oncebridge.claim import SETTLED, Status
from oncebridge.console.layout import (
    PREFIX,
    Page,
    Viewer,
    badge,
    day_time,
    empty,
    exact_time,
    facts,
    key_link,
    lag,
    name_of,
    saved_document,
    section,
    text,
)
from oncebridge.identity import key_text
from oncebridge.markup import Cell, Column, Markup, definitions, joined, table, tag, topic
from oncebridge.quantities import count, counted, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.journal.records import SeenDelivery
    from oncebridge.ledgers.protocol import Entry

EVENTS_MAX: Final = 200


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of a conversation, a user, or events by their keys."""

    #: How an address names it: a digest, or keys.
    at: str
    #: Whether it is about a conversation or a user, and not about keys.
    is_subject: bool
    entries: Sequence[Entry]
    #: The newest states of its entities.
    newest: Sequence[Entry]
    #: The latest deliveries of it, from the journal's sample.
    seen: Sequence[SeenDelivery]
    #: Whether the ledger was looked through to its end.
    complete: bool
    #: What this kind of ledger does not keep, in words.
    lacks: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether nothing at all is known."""
        return not (self.entries or self.newest or self.seen)


class Moment(NamedTuple):
    """One line of the time line."""

    at_ms: int
    what: Markup
    about: Markup


def known_page(known: Known) -> Page:
    """Write the page."""
    title = "One conversation or user" if known.is_subject else "One event"
    find = "ID" if known.is_subject else known.at.split(",")[0]
    save = tag("p", tag("a", "Save as a file for a ticket", href=f"{PREFIX}/{_place(known)}/save", download=True))
    return Page(
        title=title,
        name=None,
        main=joined((_body(known), Markup() if known.is_nothing else save)),
        commands=(f"oncebridge find {find}",),
        is_live=True,
    )


def saved(known: Known, viewer: Viewer) -> str:
    """Write the page as one file, to be attached to a ticket; nothing of a payload is in it."""
    title = (
        "What the ledger knows of a conversation or user" if known.is_subject else "What the ledger knows of an event"
    )
    about = f"Written by Oncebridge at {day_time(viewer.now_ms)} UTC, from a {viewer.ledger} ledger. Times are UTC."
    return saved_document(title, _body(known), about)


def _place(known: Known) -> str:
    return f"{'about' if known.is_subject else 'event'}/{known.at}"


def _body(known: Known) -> Markup:
    notes = [*([known.lacks] if known.lacks else [])]
    if not known.complete:
        notes.append(
            "The search ended early, since a page has to answer soon; the command below looks through everything."
        )
    told = [tag("p", note, class_="quiet") for note in notes]
    if known.is_nothing:
        said = "Nothing of it was found in the ledger, nor in the latest deliveries."
        if notes:
            said = "Nothing of it was found where this page could look; that does not mean that nothing came."
        return joined((empty(said), *told))
    return joined((_summary(known), *told, _events(known), _newest(known), _time_line(known)))


def _summary(known: Known) -> Markup:
    copies = [one for one in known.seen if one.verdict in ("redelivery", "republish")]
    lags = [one.lag_ms for one in copies if one.lag_ms is not None]
    letters = sum(1 for entry in known.entries if entry.status is Status.DEAD)
    open_ones = sum(1 for entry in known.entries if entry.status not in SETTLED)
    figures = [
        ("events in the ledger", count(len({entry.key for entry in known.entries}))),
        ("not finished", count(open_ones)),
        ("dead letters", count(letters)),
        ("copies seen lately", count(len(copies))),
        ("latest copy after", span(max(lags)) if lags else "—"),
    ]
    return definitions(figures, class_="figures")


def _events(known: Known) -> Markup:
    if not known.entries:
        return Markup()
    columns = (
        *(Column(name) for name in ("key", "status", "topic", "handler")),
        Column("failed", is_number=True),
        *(Column(name) for name in ("event time", "claimed", "changed", "reason")),
    )
    rows = [(None, _entry_cells(entry)) for entry in known.entries[:EVENTS_MAX]]
    return section("events", "Events", table("In the ledger, one line for each event and handler", columns, rows))


def _entry_cells(entry: Entry) -> list[Cell]:
    key = key_text(entry.key)
    is_letter = entry.status is Status.DEAD
    status = (
        tag("a", badge(entry.status.value), href=f"{PREFIX}/dead/{key}") if is_letter else badge(entry.status.value)
    )
    again = f", again at {day_time(entry.retry_at_us // 1000)}" if entry.retry_at_us else ""
    lease = f", claimed until {day_time(entry.lease_until_us // 1000)}" if entry.lease_until_us else ""
    return [
        Cell(key_link(key)),
        Cell(status),
        Cell(topic(text(entry.topic)) if entry.topic else "not recorded"),
        Cell(name_of(entry.handler)),
        Cell(count(entry.attempts), entry.attempts),
        Cell(_ms(entry.time_ms)),
        Cell(_us(entry.claimed_us)),
        Cell(_us(entry.changed_us)),
        Cell(f"{text(entry.reason)}{again}{lease}", class_="wide"),
    ]


def _newest(known: Known) -> Markup:
    if not known.newest:
        return Markup()
    items = [
        tag(
            "article",
            tag("h3", topic(text(entry.topic))),
            facts(
                [
                    ("newest", key_link(key_text(entry.key))),
                    ("event time", _ms(entry.time_ms)),
                    ("settled", _us(entry.changed_us)),
                    *([("held until", _us(entry.lease_until_us))] if entry.lease_until_us else []),
                ]
            ),
        )
        for entry in known.newest[:EVENTS_MAX]
    ]
    return section("newest", "Newest states", *items)


def _time_line(known: Known) -> Markup:
    moments = sorted([*_moments_of_entries(known.entries), *_moments_of_deliveries(known.seen)])
    if not moments:
        return Markup()
    items = [
        tag("li", tag("span", tag("time", exact_time(one.at_ms)), class_="when"), tag("span", one.what, " ", one.about))
        for one in moments[-EVENTS_MAX * 2 :]
    ]
    number = counted(len(items), "moment")
    lead = f"{number} in UTC, the earliest first. Deliveries are from the workers' sample of the latest."
    return section("time-line", "Time line", tag("ol", *items, class_="timeline"), lead=lead)


def _moments_of_entries(entries: Sequence[Entry]) -> Iterator[Moment]:
    happened: set[bytes] = set()
    for entry in entries[:EVENTS_MAX]:
        about = joined((topic(text(entry.topic)), " ", key_link(key_text(entry.key))))
        who = f" for {name_of(entry.handler)}" if entry.handler else ""
        if entry.time_ms is not None and entry.key not in happened:
            happened.add(entry.key)  # once, however many handlers have it
            yield Moment(entry.time_ms, joined((tag("b", "happened"),)), about)
        if entry.claimed_us:
            yield Moment(entry.claimed_us // 1000, joined((tag("b", "claimed"), who)), about)
        if entry.changed_us and entry.changed_us != entry.claimed_us:
            failed = f" after {counted(entry.attempts, 'failure')}" if entry.attempts else ""
            reason = f": {text(entry.reason)}" if entry.reason else ""
            yield Moment(entry.changed_us // 1000, joined((badge(entry.status.value), who, failed, reason)), about)


def _moments_of_deliveries(seen: Sequence[SeenDelivery]) -> Iterator[Moment]:
    for one in seen[:EVENTS_MAX]:
        late = f", {lag(one.lag_ms)} after it happened" if one.lag_ms is not None else ""
        what = joined((tag("b", "delivered"), " ", badge(one.column), f" {text(one.reason)}{late}"))
        envelope = tag("span", "envelope ", tag("code", text(one.envelope_id, most=60)), class_="sub")
        about = joined((topic(text(one.topic)), " ", key_link(one.key), envelope if one.envelope_id else ""))
        yield Moment(one.at_ms, what, about)


def _ms(ms: int | None) -> str:
    return "not recorded" if ms is None else day_time(ms)


def _us(us: int) -> str:
    return day_time(us // 1000) if us else "not recorded"
