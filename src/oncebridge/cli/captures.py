"""What the commands that read captures share: their argument, and what they say of places without events."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oncebridge.cli.output import say
from oncebridge.errors import ConfigurationError
from oncebridge.sources.captures.found import Tally
from oncebridge.sources.captures.inputs import files_in

if TYPE_CHECKING:
    from collections.abc import Sequence

_FILES = typer.Argument(
    help="Captures: JSON of any form, logs, gzip, whole directories; - is standard input.", metavar="FILE..."
)
Captures = Annotated[list[str], _FILES]
CapturesOrNone = Annotated[list[str] | None, _FILES]


def say_skipped(tally: Tally) -> None:
    """Say what was skipped, and which files hold no event."""
    for line in tally.skipped_text:
        say(line)
    if tally.eventless_text is not None:
        say(tally.eventless_text)


def holds_nothing(tally: Tally) -> bool:
    """Return whether captures hold something, but no event."""
    return bool(tally.skipped) and not tally.deliveries


def total_bytes(names: Sequence[str]) -> int | None:
    """Return how much there is to read; unknown for standard input and for pipes."""
    try:
        return sum(_bytes_of(name) for name in names)
    except OSError:
        return None


def _bytes_of(name: str) -> int:
    path = Path(name)
    if path.is_dir():
        return sum(Path(file).stat().st_size for file in files_in(name, Tally()))
    if not path.is_file():
        raise FileNotFoundError
    return path.stat().st_size


def is_read(file: str, names: Sequence[str]) -> bool:
    """Return whether a file is one of these, or lies in one of these directories."""
    if file == "-":
        return False
    where = Path(file).resolve()
    return any(_covers(Path(name).resolve(), where) for name in names if name != "-")


def _covers(path: Path, where: Path) -> bool:
    if where == path or (path.is_dir() and where.is_relative_to(path)):
        return True
    try:
        return path.samefile(where)  # by another name
    except OSError:
        return False


def check_writable(name: str, read: Sequence[str]) -> None:
    """Refuse a file that cannot be written before the work, not after it; one that is there stays as it is."""
    if is_read(name, read):
        raise ConfigurationError(f"{name} is read too, and would be gone; name another file")
    if name == "-":
        return
    is_new = not Path(name).exists()
    try:
        with Path(name).open("ab"):
            pass
        if is_new:
            Path(name).unlink()
    except OSError as error:
        raise ConfigurationError(f"{name}: cannot be written: {error.strerror}") from None
