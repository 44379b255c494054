"""How commands speak: results on standard output, everything else on standard error."""

from __future__ import annotations

import errno
import gzip
import logging
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from oncebridge.claim import SETTLED
from oncebridge.cli.hints import with_ledger
from oncebridge.cli.tables import drawn, wrapped
from oncebridge.errors import ConfigurationError
from oncebridge.identity import key_text
from oncebridge.letter_filter import EPOCH
from oncebridge.telemetry import JSONFormatter
from oncebridge.visible import visible, visible_json, visible_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from rich.progress import Task
    from rich.text import Text

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


#: The disk is full, or one's share of it is.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: As wide as the longest name of a field usually is.
FIELD_LABEL: Final = "envelope id"
NOT_RECORDED: Final = "not recorded"


class Narration:
    """How everything on standard error is written: in words, or as JSON lines, which no word may stand between."""

    def __init__(self) -> None:
        """Speak in words."""
        self.json = False

    def line(self, text: str, level: int) -> None:
        """Write a line in the chosen format."""
        record = logging.LogRecord("oncebridge.cli", level, "", 0, text, (), None)
        sys.stderr.write(JSONFormatter().format(record) + "\n")
        sys.stderr.flush()


narration = Narration()


def draws() -> bool:
    """Return whether a person looks at standard error: bars and live lines are drawn then."""
    return narrator.is_terminal and not narration.json


def say(text: str) -> None:
    """Show the person something that is no result."""
    text = with_ledger(text)
    if narration.json:
        narration.line(text, logging.INFO)
    else:
        narrator.print(escape(visible(text)), soft_wrap=True)


def say_warning(text: str) -> None:
    """Warn the person."""
    if narration.json:
        narration.line(with_ledger(text), logging.WARNING)
    else:
        say(f"warning: {text}")


def say_error(text: str) -> None:
    """Show the person an error."""
    if narration.json:
        narration.line(with_ledger(text), logging.ERROR)
        return
    narrator.print(f"[red]oncebridge:[/red] {escape(visible(with_ledger(text)))}", soft_wrap=True)


def write_json(value: Any) -> None:
    """Write one result as one line of JSON."""
    _write_line(visible_json(value))


def write_text(text: str) -> None:
    """Write one result as plain text, of one line or of several."""
    _write_line(visible_lines(text))


def write_fields(fields: Mapping[str, object]) -> None:
    """Write one result as a line for each field; in a terminal, long ones wrap beside their names."""
    label = 1 + max(len(FIELD_LABEL), *map(len, fields))
    for name, value in fields.items():
        text = "" if value is None else visible(str(value))
        lines = wrapped(text, max(results.width - label, 1)) if results.is_terminal else [text]
        for number, line in enumerate(lines):
            _write_line(f"{'' if number else name:<{label}}{line}".rstrip())


def _write_line(safe: str) -> None:
    sys.stdout.write(safe + "\n")


def coloured(word: str) -> str:
    """Colour a verdict, a status or a level."""
    return f"[{COLOURS[word]}]{word}[/]" if word in COLOURS else escape(visible(word))


def write_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    below: Collection[str] = (),
    prose: Collection[str] = (),
) -> None:
    """Write a table: drawn to fit a terminal, tab-separated and whole in a pipe.

    In a terminal that is too narrow, the columns of `below` and `prose` are lines under their row.
    """
    lines = [["" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    if not lines:
        say(empty)
    elif not results.is_terminal:
        for line in [columns, *lines]:
            _write_line("\t".join(line))
    else:
        for drawing in drawn(columns, lines, results.width, below=below, prose=prose, styles=COLOURS):
            results.print(drawing, soft_wrap=True)


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
        "changed_ms": entry.changed_us // 1000 or None,
        "retry_at_ms": entry.retry_at_us // 1000 or None,
        "lease_until_ms": entry.lease_until_us // 1000 or None,
        "reason": entry.reason or None,
        "claimed_ms": entry.claimed_us // 1000 or None,
        "settled_ms": settled_us(entry) // 1000 or None,
    }


def settled_us(entry: Entry) -> int:
    """Return when an entry was settled; 0 if it is not, or if the ledger does not record that."""
    return entry.changed_us if entry.status in SETTLED else 0


def iso_time(us: int, unit: str = "milliseconds") -> str:
    """Write a time as ISO 8601 does, with its zone; a text that says so where none was recorded."""
    if not us:
        return NOT_RECORDED
    return (EPOCH + timedelta(microseconds=us)).isoformat(timespec=unit).replace("+00:00", "Z")


def can_ask() -> bool:
    """Return whether a person at a terminal can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty() and narrator.is_terminal


def confirmed(question: str) -> bool:
    """Ask the person at a terminal; a script is not asked."""
    return typer.confirm(visible(question), err=True) if can_ask() else True


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
    try:
        with file:
            yield file  # type: ignore[misc]  # gzip's writer is a binary file in all but name
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}; make room, or name another") from None


def report_shadow(books: Mapping[str, int | bool], by_topic: Mapping[str, Mapping[str, int]], *, json: bool) -> None:
    """Write the verdicts of a shadow, in all and by topic."""
    if json:
        write_json({**books, "shadow": True, "topics": by_topic})
    else:
        write_books(books)
        for topic, columns in by_topic.items():
            write_text(topic or "no topic")
            figures = ", ".join(f"{number:,} {column}" for column, number in columns.items())
            write_text(f"    {sum(columns.values()):,} received: {figures}")
    say(
        f"a shadow: no handler was called; of {books['received']:,} deliveries {books['processed']:,} would have gone "
        "to one"
    )


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


class _Amount(ProgressColumn):
    """How much of a task is done: in bytes or in parts, as it says itself or all tasks of its bar do."""

    def __init__(self, *, over_bytes: bool) -> None:
        super().__init__()
        self._over_bytes = over_bytes
        self._bytes, self._parts = DownloadColumn(), MofNCompleteColumn()

    def render(self, task: Task) -> Text:
        """Write it."""
        return (self._bytes if task.fields.get("over_bytes", self._over_bytes) else self._parts).render(task)


def progress_bar(*, over_bytes: bool = False) -> Progress:
    """Make a progress bar; nothing is drawn where nobody looks."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        _Amount(over_bytes=over_bytes),
        TimeElapsedColumn(),
        console=narrator,
        disable=not draws(),
        transient=True,
    )
