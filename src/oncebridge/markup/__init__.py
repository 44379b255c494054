"""Pieces of HTML for the report of `diagnose` and for the console: everything from outside is escaped here.

A page that holds them has `STYLE` in its style; `SCRIPT` sorts and filters tables and copies texts, and is not needed
to read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

STYLE: Final = files("oncebridge.markup").joinpath("base.css").read_text(encoding="utf-8")
SCRIPT: Final = files("oncebridge.markup").joinpath("base.js").read_text(encoding="utf-8")

#: Elements that hold nothing, and are not closed.
_VOID: Final = frozenset({"br", "input", "wbr"})
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)((?:\.\d{1,9})?)Z", re.ASCII)


class Markup(str):
    """Text that is HTML already; any other text is escaped before it becomes part of a page."""

    __slots__ = ()


def markup(text: str) -> Markup:
    """Escape a text, unless it is HTML already."""
    return text if isinstance(text, Markup) else Markup(escape(text))


def tag(name: str, /, *inside: str, **attributes: str | bool | None) -> Markup:
    """Write an element; `class_` and `aria_label` stand for the attributes' names, True for one without a value."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{''.join(markup(part) for part in inside)}</{name}>")


def joined(parts: Iterable[str], between: str = "") -> Markup:
    """Put pieces after each other."""
    return Markup(markup(between).join(markup(part) for part in parts))


def topic(text: str) -> Markup:
    """Write a topic or a path, which may break after its dots and slashes."""
    return Markup(f"<code>{escape(text).replace('.', '.<wbr>').replace('/', '/<wbr>')}</code>")


def moment(text: str, *, to_the_second: bool = False) -> str:
    """Write a time as people do: a space for the T, UTC for the Z; a text that is no time stays as it is."""
    found = _MOMENT.fullmatch(text)
    if not found:
        return text
    return f"{found[1]} {found[2]}{'' if to_the_second else found[3]} UTC"


class Cell(NamedTuple):
    """A cell of a table: what is shown, and the number by which it is sorted."""

    shown: str
    number: float | None = None
    class_: str | None = None


class Column(NamedTuple):
    """A column of a table."""

    title: str
    is_number: bool = False
    #: Whether the title is there only for those who hear the page: boxes to tick and buttons need none to be seen.
    is_unseen: bool = False


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[tuple[str | None, Sequence[Cell]]],
    *,
    filter_label: str | None = None,
) -> Markup:
    """Write a table whose first column names its rows; a row comes with its class.

    It scrolls within its box; on a phone each row is a block of its own.
    """
    heads = [
        tag(
            "th",
            tag("span", column.title, class_="unseen") if column.is_unseen else column.title,
            scope="col",
            role="columnheader",
            class_="number" if column.is_number else None,
        )
        for column in columns
    ]
    body = [tag("tr", *_cells(columns, cells), role="row", class_=class_) for class_, cells in rows]
    inside = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *heads, role="row"), role="rowgroup"),
        tag("tbody", *body, role="rowgroup"),
        role="table",  # on a phone its rows are blocks, and some browsers take such a table for none
        data_filter=filter_label,
    )
    return tag("div", inside, class_="box", role="region", aria_label=caption, tabindex="0")


def _cells(columns: Sequence[Column], cells: Sequence[Cell]) -> list[Markup]:
    written = []
    for at, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        classes = " ".join(part for part in ("number" if column.is_number else "", cell.class_ or "") if part)
        number = None if cell.number is None else f"{cell.number:.15g}"
        if at == 0:
            written.append(tag("th", cell.shown, scope="row", role="rowheader", class_=classes or None))
        else:
            attributes = {
                "class_": classes or None,
                "data_n": number,
                "data_label": None if column.is_unseen else column.title,
            }
            written.append(tag("td", tag("span", cell.shown), role="cell", **attributes))
    return written


def details(summary: str, *inside: str) -> Markup:
    """Write something that is opened on request."""
    return tag("details", tag("summary", summary), *inside)


def definitions(pairs: Iterable[tuple[str, str]], **attributes: str) -> Markup:
    """Write names with what belongs to each."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", said)) for name, said in pairs), **attributes)


def to_copy(text: str, what: str) -> Markup:
    """Write text that is made to be copied; the script puts a button beside it."""
    return tag(
        "div", tag("pre", tag("code", text), role="group", tabindex="0", aria_label=what), class_="copy", data_copy=what
    )
