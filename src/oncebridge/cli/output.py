"""How commands speak: results on standard output, everything else on standard error."""

from __future__ import annotations

import gzip
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from oncebridge.errors import ConfigurationError
from oncebridge.identity import key_text
from oncebridge.visible import visible, visible_json, visible_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from oncebridge.ledgers.protocol import Entry

#: Narration and progress.
narrator = Console(stderr=True, highlight=False, emoji=False)
#: Results.
results = Console(highlight=False, soft_wrap=True, emoji=False)

COLOURS = {
    **dict.fromkeys(("fresh", "processed", "done", "good"), "green"),
    **dict.fromkeys(("stale", "unhandled", "retrying", "busy", "retry", "claimed", "warning"), "yellow"),
    **dict.fromkeys(("conflict", "dead", "wrong"), "red"),
    "redelivery": "cyan",
    "republish": "blue",
    "echo": "magenta",
}


def say(text: str) -> None:
    """Show the person something that is no result."""
    narrator.print(escape(visible(text)), soft_wrap=True)


def say_error(text: str) -> None:
    """Show the person an error."""
    narrator.print(f"[red]oncebridge:[/red] {escape(visible(text))}", soft_wrap=True)


def write_json(value: Any) -> None:
    """Write one result as one line of JSON."""
    _write_line(visible_json(value))


def write_text(text: str) -> None:
    """Write one result as plain text, of one line or of several."""
    _write_line(visible_lines(text))


def write_fields(fields: Mapping[str, object]) -> None:
    """Write one result as a line for each field."""
    for name, value in fields.items():
        _write_line(f"{name:<14} {'' if value is None else visible(str(value))}")


def _write_line(safe: str) -> None:
    sys.stdout.write(safe + "\n")


def coloured(word: str) -> str:
    """Colour a verdict, a status or a level."""
    return f"[{COLOURS[word]}]{word}[/]" if word in COLOURS else escape(visible(word))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Write a table: drawn in a terminal, tab-separated in a pipe."""
    lines = [["" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    if not lines:
        say(empty)
    elif not results.is_terminal:
        for line in [columns, *lines]:
            _write_line("\t".join(line))
    else:
        table = Table(header_style="bold", box=None, pad_edge=False)
        for name in columns:
            # A key that is cut off is of no use to the next command.
            table.add_column(name, no_wrap=name == "key", overflow="fold")
        for line in lines:
            table.add_row(*map(coloured, line))
        results.print(table, soft_wrap=False)


def write_books(books: Mapping[str, int | bool]) -> None:
    """Write the books, and whether they balance."""
    width = max(len(name) for name in books)
    for name, number in books.items():
        if name != "balanced":
            results.print(f"{coloured(name)}{' ' * (width - len(name))}  {number:>9,}")
    columns = sum(number for name, number in books.items() if name not in ("received", "balanced"))
    verdict = "[green]the books balance[/]" if books["balanced"] else "[red]the books do NOT balance[/]"
    results.print(f"{verdict}: {books['received']:,} received = {columns:,} accounted for")


def entry_as_dict(entry: Entry) -> dict[str, Any]:
    """Write a ledger's entry for JSON output, without what a dead letter holds."""
    return {
        "key": key_text(entry.key),
        "handler": entry.handler,
        "status": entry.status,
        "topic": entry.topic,
        "time_ms": entry.time_ms,
        "id": entry.envelope,
        "attempts": entry.attempts,
        "changed_ms": entry.changed_us // 1000,
        "retry_at_ms": entry.retry_at_us // 1000 or None,
        "lease_until_ms": entry.lease_until_us // 1000 or None,
        "reason": entry.reason or None,
    }


@contextmanager
def opened_for_writing(path: str) -> Iterator[IO[bytes]]:
    """Open a file to write results to, .gz too; - is standard output."""
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        file = gzip.open(path, "wb") if path.endswith(".gz") else Path(path).open("wb")  # noqa: SIM115 - below
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None
    with file:
        yield file  # type: ignore[misc]  # gzip's writer is a binary file in all but name


def report_books(books: Mapping[str, int | bool], *, json: bool, is_kept: bool = True) -> None:
    """Write the books of a run that is over, and where to look next if dead letters are kept."""
    if json:
        write_json(books)
    else:
        write_books(books)
    if is_kept and (books["dead"] or books["conflict"]):
        say("see what was kept: oncebridge dead list")
    if books["unhandled"]:
        say(f"{books['unhandled']:,} unhandled: no handler and no sink takes their topics; see oncebridge doctor")


def progress_bar(*, over_bytes: bool = False) -> Progress:
    """Make a progress bar; nothing is drawn where nobody looks."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if over_bytes else MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=narrator,
        disable=not narrator.is_terminal,
        transient=True,
    )
