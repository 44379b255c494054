"""Handlers and sinks: what each promises and does, and whether it is paused."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from oncebridge.console.layout import (
    COMMAND_MAX,
    PREFIX,
    Page,
    Viewer,
    ago,
    badge,
    empty,
    facts,
    hidden,
    hidden_token,
    name_of,
    text,
)
from oncebridge.markup import Markup, joined, tag, topic
from oncebridge.quantities import count, counted, part_of, percent, span

if TYPE_CHECKING:
    from oncebridge.journal.overview import HandlerRow, Overview
    from oncebridge.journal.pauses import Pause


def handlers_page(seen: Overview, viewer: Viewer) -> Page:
    """Write the page."""
    known = {row.name for row in seen.handlers}
    parts: list[Markup] = [_handler(row, seen.pauses.get(row.name), viewer) for row in seen.handlers]
    parts += [_forgotten(name, pause, viewer) for name, pause in seen.pauses.items() if name not in known]
    main = (
        tag("div", *parts, class_="handlers")
        if parts
        else empty("No worker that runs, or ran lately, has described its handlers here.")
    )
    commands = ("oncebridge top", "oncebridge pause NAME", "oncebridge resume NAME")
    return Page(title="Handlers and sinks", name="handlers", main=main, commands=commands, is_live=True)


def _handler(row: HandlerRow, pause: Pause | None, viewer: Viewer) -> Markup:
    tried = row.done + row.failed + row.dead
    state = badge("paused", "bad") if pause else badge("runs", "good") if row.workers else badge("no worker", "other")
    told = [
        ("promise", text(row.promise) or "not known"),
        ("what", text(row.kind) or "not known"),
        ("topics", joined((topic(text(one)) for one in row.topics[:20]), " ") if row.topics else "not known"),
        ("rate", f"{tried / 60:,.1f} a minute over the last hour"),
        ("time", _time(row.mean_ms)),
        ("ends", _ends(row, tried)),
        ("workers", counted(row.workers, "running worker has it", "running workers have it")),
        ("can wait", joined((text(one) for one in row.holds), "; ") if row.holds else "not known"),
    ]
    inside: list[str] = [tag("h2", tag("span", name_of(row.name)), " ", state), facts(told)]
    if pause is not None:
        inside.append(_paused(pause, viewer))
    if viewer.may_act:
        inside.append(_button(row.name, "resume" if pause else "pause", viewer))
    return tag("section", *inside, class_="handler")


def _time(mean_ms: float | None) -> str:
    if mean_ms is None:
        return "not called"
    return f"{span(mean_ms)} on average" if mean_ms >= 1 else "less than 1 ms on average"


def _ends(row: HandlerRow, tried: int) -> str:
    failed = f"{counted(row.failed, 'failed attempt')} ({percent(part_of(row.failed, tried))})"
    return f"{count(row.done)} done, {failed}, {count(row.dead)} dead, {count(row.lost)} lost to another worker"


def _paused(pause: Pause, viewer: Viewer) -> Markup:
    by = f"Paused {ago(pause.since_ms, viewer.now_ms)} by {text(pause.who)}"
    said = f"{by}: its events wait at their source, unacknowledged."
    return tag("p", said, class_="bad")


def _forgotten(name: str, pause: Pause, viewer: Viewer) -> Markup:
    inside: list[str] = [tag("h2", tag("span", name_of(name)), " ", badge("paused", "bad")), _paused(pause, viewer)]
    inside.append(tag("p", "No worker that was heard of lately has it.", class_="quiet"))
    if viewer.may_act:
        inside.append(_button(name, "resume", viewer))
    return tag("section", *inside, class_="handler")


def _button(name: str, what: str, viewer: Viewer) -> Markup:
    # A pause is asked about first; to resume needs no question.
    action = f"{PREFIX}/handlers/{'confirm' if what == 'pause' else what}"
    return tag(
        "form",
        hidden_token(viewer),
        hidden("handler", name),
        tag("button", what.capitalize(), type="submit", class_="main" if what == "resume" else None),
        method="post",
        action=action,
    )


def pause_page(row: HandlerRow | None, name: str, viewer: Viewer) -> Page:
    """Ask before a handler is paused, with how long its events can wait."""
    holds = row.holds if row else ()
    waits = (
        joined(tag("li", text(one)) for one in holds)
        if holds
        else tag("li", "Not known: no running worker has said so. Look at the queue's retention first.")
    )
    form = tag(
        "form",
        hidden_token(viewer),
        hidden("handler", name),
        tag(
            "p",
            tag("button", f"Pause {name_of(name)}", type="submit", class_="danger"),
            " ",
            tag("a", "No, go back", href=f"{PREFIX}/handlers"),
            class_="actions",
        ),
        method="post",
        action=f"{PREFIX}/handlers/pause",
    )
    main = joined(
        (
            tag("p", f"Pause {name_of(name)}?", class_="lead"),
            tag(
                "p",
                "Its events are not tried, nor acknowledged: they wait at their source until it is resumed, and lose "
                "no attempt unless the source counts its own. Copies of events that are done are acknowledged as "
                "ever. Workers look every few seconds.",
            ),
            tag("p", "So long they can wait:"),
            tag("ul", waits),
            form,
        )
    )
    command = text(f"oncebridge pause {quote(name)}", most=COMMAND_MAX)
    return Page(title="Pause?", name="handlers", main=main, commands=(command,))
