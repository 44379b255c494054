"""Tables that fit a terminal: long names are shortened in the middle, keys never, and prose wraps between words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

GAP: Final = "  "
INDENT: Final = "    "
#: Columns that the next command needs as they are.
WHOLE: Final = frozenset({"key"})
#: The least that a name is shortened to.
LEAST: Final = 8
DOTS: Final = "…"


def shortened(text: str, width: int) -> str:
    """Shorten a text to so many columns of a terminal, in the middle: names differ at their ends."""
    if cell_len(text) <= width:
        return text
    room = max(width - 1, 0)
    tail = _start(text[::-1], room // 2)[::-1]
    return _start(text, room - cell_len(tail)) + DOTS + tail


def _start(text: str, width: int) -> str:
    """Return the start of a text that takes no more than so many columns; some characters take two."""
    taken = 0
    for at, character in enumerate(text):
        taken += cell_len(character)
        if taken > width:
            return text[:at]
    return text


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a text between words; a word that is longer than a line is folded, and nothing is left out."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(longer) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        while cell_len(word) > width and (start := _start(word, width)):
            lines[-1] = start
            lines.append("")
            word = word[len(start) :]  # noqa: PLW2901 - the rest of it
        lines[-1] = word
    return lines


def drawn(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    below: Collection[str] = (),
    prose: Collection[str] = (),
    styles: Mapping[str, str],
) -> Iterator[Text]:
    """Draw a table in lines of this width.

    Where a row does not fit, the columns of `below` and `prose` are written under it, a line each with its name: the
    former shortened, the latter wrapped. The columns that are left are shortened, the widest first.
    """
    natural = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    fits = _total(natural) <= width
    under = [] if fits else [at for at, name in enumerate(columns) if name in below or name in prose]
    beside = [at for at in range(len(columns)) if at not in under]
    widths = _narrowed([natural[at] for at in beside], [columns[at] for at in beside], width)
    yield _line([columns[at] for at in beside], widths, dict.fromkeys(columns, "bold"))
    label = max((len(columns[at]) for at in under), default=0)
    for row in rows:
        yield _line([row[at] for at in beside], widths, styles)
        for at in under:
            room = width - len(INDENT) - label - len(GAP)
            texts = wrapped(row[at], room) if columns[at] in prose else [shortened(row[at], room)]
            for number, text in enumerate(texts if row[at] else ()):
                name = "" if number else columns[at]
                yield Text.assemble(INDENT, (f"{name:<{label}}{GAP}", "dim"), text)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _narrowed(widths: list[int], names: list[str], width: int) -> list[int]:
    """Take columns from the widest that may be shortened, until all fit or nothing is left to take."""
    while _total(widths) > width:
        may = [at for at, name in enumerate(names) if name not in WHOLE and widths[at] > max(LEAST, len(name))]
        if not may:
            break
        widest = max(may, key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _line(cells: Sequence[str], widths: Sequence[int], styles: Mapping[str, str]) -> Text:
    line = Text()
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        text = shortened(cell, width)
        line.append(text, style=styles.get(cell, ""))
        if at < len(cells) - 1:
            line.append(" " * (width - cell_len(text)) + GAP)
    return line
