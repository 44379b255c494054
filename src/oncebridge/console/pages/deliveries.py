"""The latest deliveries, each with what became of it and why."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import msgspec

from oncebridge.console.layout import (
    COMMAND_MAX,
    PREFIX,
    TEXT_MAX,
    Page,
    Viewer,
    badge,
    choice,
    empty,
    field,
    key_link,
    lag,
    name_of,
    next_link,
    text,
    time_of,
)
from oncebridge.journal.wanted import DeliveryFilter
from oncebridge.markup import Cell, Column, Markup, joined, table, tag, topic
from oncebridge.telemetry import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncebridge.journal.records import SeenDelivery

SHOWN: Final = 50


def filter_of(given: Mapping[str, str]) -> DeliveryFilter:
    """Read the filter of an address."""
    names = DeliveryFilter.__struct_fields__
    return DeliveryFilter(**{name: given.get(name, "").strip()[:TEXT_MAX] for name in names})


def _query(chosen: DeliveryFilter, **more: str) -> str:
    given = {name: value for name, value in msgspec.structs.asdict(chosen).items() if value}
    return urlencode({**given, **more})


def deliveries_page(
    found: Sequence[SeenDelivery], below: str | None, chosen: DeliveryFilter, viewer: Viewer, *, is_first: bool
) -> Page:
    """Write the page."""
    command = "".join(
        (
            "oncebridge deliveries",
            *(f" --{name} {quote(value)}" for name, value in msgspec.structs.asdict(chosen).items() if value),
        )
    )
    shown = rows(found, viewer) if found else empty("None of the latest deliveries matches.")
    older = None if below is None else f"{PREFIX}/deliveries?{_query(chosen, below=below)}"
    lead = tag(
        "p",
        "A sample that the workers keep: what went wrong or came twice first, and a few of the rest. "
        "The books count all.",
        class_="quiet",
    )
    return Page(
        title="Deliveries",
        name="deliveries",
        main=joined((lead, _form(chosen), shown, next_link(older))),
        commands=(text(command, most=COMMAND_MAX),),
        is_live=is_first,
    )


def _form(chosen: DeliveryFilter) -> Markup:
    return tag(
        "form",
        field("Topic", "topic", chosen.topic, hint="v2.users.{id}.presence"),
        choice("Became", "column", chosen.column, {"": "anything", **{name: name for name in COLUMNS}, "busy": "busy"}),
        field("Reason has", "reason", chosen.reason),
        field("Handler", "handler", chosen.handler),
        field("Since", "since", chosen.since, hint="30m, 2h"),
        tag("button", "Show", type="submit"),
        method="get",
        action=f"{PREFIX}/deliveries",
        class_="filters",
    )


def rows(found: Sequence[SeenDelivery], viewer: Viewer) -> Markup:
    """Write deliveries as a table."""
    columns = (
        Column("came"),
        Column("became"),
        Column("late by", is_number=True),
        Column("handler"),
        Column("topic"),
        Column("why"),
        Column("key"),
        Column("envelope"),
    )
    written = [(None, _cells(one, viewer)) for one in found]
    return table("The newest first", columns, written)


def _cells(one: SeenDelivery, viewer: Viewer) -> list[Cell]:
    of = tag("span", "copy of ", tag("code", text(one.original_envelope_id, most=60)), class_="sub")
    is_copy = one.original_envelope_id is not None and one.original_envelope_id != one.envelope_id
    envelope = joined((tag("code", text(one.envelope_id, most=60) or "—"), of if is_copy else ""))
    why = joined(
        (text(one.reason), tag("span", f"again in {lag(one.retry_in_ms)}", class_="sub") if one.retry_in_ms else "")
    )
    return [
        Cell(time_of(one.at_ms, viewer.now_ms)),
        Cell(joined((badge(one.column), "" if one.verdict in (one.column, "fresh") else f" {one.verdict}"))),
        Cell(lag(one.lag_ms), one.lag_ms),
        Cell(name_of(one.handler) if one.handler else ""),
        Cell(topic(text(one.topic)), class_="topic"),
        Cell(why, class_="wide"),
        Cell(key_link(one.key)),
        Cell(envelope, class_="envelope"),
    ]
