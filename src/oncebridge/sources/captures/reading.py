"""Reads captures: the one place that turns files, directories and standard input into deliveries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from oncebridge.sources.captures.found import Captured, Tally
from oncebridge.sources.captures.inputs import inputs_of
from oncebridge.sources.captures.opening import Opener
from oncebridge.sources.captures.scanning import Kind, Scanner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def read_captures(
    paths: Iterable[str],
    tally: Tally,
    *,
    stopping: threading.Event | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[Captured | None]:
    """Yield the deliveries of captures in order; None means that standard input is silent for now.

    Anything else is counted in the tally, with its place and a reason, and stops nothing. `progress` gets the number of
    bytes as they are read.
    """
    for one in inputs_of(paths, stopping or threading.Event(), tally, progress):
        yield from read_blocks(one.blocks, one.name, tally, is_found=one.is_found)


def read_blocks(
    blocks: Iterator[bytes | None], file: str, tally: Tally, *, is_found: bool = False
) -> Iterator[Captured | None]:
    """Yield the deliveries in blocks of plain text. In a file that was found, text is no delivery."""
    scanner, opener = Scanner(blocks), Opener(file, tally, is_found=is_found)
    skipped_before, number = tally.skipped_total, 0
    for piece in scanner.pieces():
        if piece is None:
            yield None
        elif piece.kind is Kind.EVENT and not opener.is_log:  # nearly always
            number += 1
            yield Captured(piece.data, file, piece.line, piece.offset)
        else:
            for part, (raw, around) in enumerate(opener.open(piece)):
                number += 1
                yield Captured(raw, file, piece.line, piece.offset, part, around)
    if scanner.is_within_list:
        tally.skip(file, scanner.line, "the end of a list, which is missing")
    tally.end_of_file(file, number, has_skipped=tally.skipped_total > skipped_before)
