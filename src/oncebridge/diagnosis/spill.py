"""Rows on disk, in parts that fit into memory one by one.

A run is what one chunk of the input left, a block for each part. Runs are read in the order of their chunks, so the
rows of a part come back in the order of the input, whichever process wrote them.
"""

from __future__ import annotations

import errno
import os
from array import array
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PARTS: Final = 256


class Run(msgspec.Struct, frozen=True):
    """Where the blocks of one chunk are: in a file, from here, each up to its end."""

    file: str
    offset: int
    ends: bytes  # unsigned 32-bit integers, the first of them 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in any block."""
        return memoryview(self.ends).cast("I")[-1] == 0

    def place_of(self, part: int) -> tuple[int, int]:
        """Return offset and length of a part's block."""
        ends = memoryview(self.ends).cast("I")
        return self.offset + ends[part], ends[part + 1] - ends[part]


def parts_in(runs: Iterable[Run]) -> list[int]:
    """Return which parts hold anything."""
    used: set[int] = set()
    for run in runs:
        if not run.is_empty:
            ends = memoryview(run.ends).cast("I")
            used.update(part for part in range(len(ends) - 1) if ends[part + 1] > ends[part])
    return sorted(used)


class Writer:
    """Appends runs to a file of its own."""

    def __init__(self, folder: str, name: str) -> None:
        """Take where to write; the file is made with the first run."""
        self._path = str(Path(folder) / f"{name}-{os.getpid()}")
        self._offset = 0

    def write(self, blocks: Sequence[bytes | bytearray]) -> Run:
        """Write the blocks of a run."""
        if not any(blocks):
            return Run(self._path, self._offset, bytes(array("I").itemsize * (len(blocks) + 1)))
        try:
            with Path(self._path).open("ab") as file:
                file.write(b"".join(blocks))
        except OSError as error:
            raise disk_error(error, self._path) from None
        ends = array("I", [0, *accumulate(map(len, blocks))])
        run = Run(self._path, self._offset, ends.tobytes())
        self._offset += ends[-1]
        return run


def disk_error(error: OSError, path: str) -> ConfigurationError:
    """Say that there is no room for the rows, and where there might be."""
    reason = "is full" if error.errno == errno.ENOSPC else f"cannot be written: {error.strerror}"
    return ConfigurationError(
        f"{Path(path).parent}: {reason}; a capture needs about a third of its size there while it is read: make room, "
        "or name another directory with --work-dir or TMPDIR"
    )


def read_part(runs: Sequence[Run], part: int) -> Iterator[bytes]:
    """Yield the blocks of a part in order."""
    files: dict[str, int] = {}
    try:
        for run in runs:
            offset, length = run.place_of(part)
            if length:
                if run.file not in files:
                    files[run.file] = os.open(run.file, os.O_RDONLY)
                yield os.pread(files[run.file], length, offset)
    finally:
        for number in files.values():
            os.close(number)


def read_run(run: Run) -> Iterator[bytes]:
    """Yield the blocks of one run."""
    parts = len(run.ends) // array("I").itemsize - 1
    for part in range(parts):
        yield from read_part([run], part)
