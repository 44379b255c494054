"""Opens captures: files, whole directories and standard input into blocks of plain text."""

from __future__ import annotations

import codecs
import os
import re
import select
import stat
import sys
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeAlias

import msgspec

from oncebridge.visible import visible

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator

    from oncebridge.sources.captures.found import Tally

BLOCK_BYTES: Final = 1_048_576
INPUT_POLL_SECONDS: Final = 0.1
GZIP_MAGIC: Final = b"\x1f\x8b\x08"
GZIP_LAYERS_MAX: Final = 3  # what CloudWatch compressed, Firehose may compress again, and so may its owner
GZIP_WINDOW: Final = 31  # zlib's name for the largest window, with gzip's header

BOM: Final = codecs.BOM_UTF8
#: UTF-16 with its mark, and a first character as every capture has: bytes that only begin like it stay as they are.
_WIDE: Final = re.compile(rb"\xff\xfe[\x01-\x7f]\0|\xfe\xff\0[\x01-\x7f]")
HEAD_BYTES: Final = 4
#: CloudWatch writes this file beside an export to find out whether it may.
_NO_CAPTURES: Final = frozenset({"aws-logs-write-test"})

NO_STANDARD_INPUT: Final = "there is no standard input; name a file instead, or start the command with one"

#: A database is full of zeros; in text that was damaged there are fewer.
BYTES_PER_ZERO_MIN: Final = 100

PIECE_BYTES: Final = 16_384  # of gzip: damage costs no more than what one piece unpacks to

#: Gets the number of bytes as they are read, before they are unpacked.
Progress: TypeAlias = "Callable[[int], None]"


class Input(msgspec.Struct, frozen=True):
    """One thing to read. A block that is None means that nothing has arrived yet."""

    #: As it is shown: a name need not be text, and may hold what a terminal obeys.
    name: str
    blocks: Iterator[bytes | None]
    #: Whether it was found in a directory, so that it may be anything.
    is_found: bool = False


def inputs_of(paths: Iterable[str], stopping: threading.Event, tally: Tally, progress: Progress) -> Iterator[Input]:
    """Yield what there is to read, directories as a whole and in the order of names."""
    for path in paths:
        if path == "-":
            yield Input(path, plain(_standard_input(stopping, tally, progress), path, tally))
        elif Path(path).is_dir():
            yield from _directory(path, tally, progress)
        else:
            name = visible(path)
            yield Input(name, plain(_file(path, name, tally, progress), name, tally))


def files_in(directory: str, tally: Tally) -> Iterator[str]:
    """Yield the regular files of a tree in the order of names; hidden ones and those of no capture are counted."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        tally.trouble(visible(directory), f"cannot be listed: {error.strerror}")
        return
    for entry in entries:
        if entry.name.startswith("."):
            tally.skip(visible(entry.path), 0, "a hidden file")
        elif entry.is_dir(follow_symlinks=False):
            yield from files_in(entry.path, tally)
        elif entry.name in _NO_CAPTURES or not _is_regular(entry):
            tally.skip(visible(entry.path), 0, "no capture")
        else:
            yield entry.path


def _is_regular(entry: os.DirEntry[str]) -> bool:
    """Return whether a name leads to a file: a pipe would be waited for, and a directory may lead back here."""
    try:
        return stat.S_ISREG(entry.stat().st_mode)
    except OSError:
        return False


def _directory(path: str, tally: Tally, progress: Progress) -> Iterator[Input]:
    empty = True
    for file in files_in(path, tally):
        empty, name = False, visible(file)
        blocks = plain(_file(file, name, tally, progress), name, tally)
        yield Input(name, _text_only(blocks, name, tally), is_found=True)
    if empty:
        tally.trouble(visible(path), "is a directory without a file to read")


def _text_only(blocks: Iterator[bytes | None], name: str, tally: Tally) -> Iterator[bytes | None]:
    """Leave out a file that is no text: pictures, archives and databases lie in directories, too."""
    first = next(blocks, b"")
    if first is not None and _is_binary(first):
        tally.skip(name, 1, "a file that is not text")
        return
    yield first
    yield from blocks


def _is_binary(block: bytes) -> bool:
    """Return whether a block is no text: a few zeros are in one that was damaged, and stop nothing."""
    zeros = block.count(0)
    if not zeros:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(block)  # whose last character may be cut off
    except UnicodeDecodeError:
        return True
    return zeros * BYTES_PER_ZERO_MIN > len(block)


def _file(path: str, name: str, tally: Tally, progress: Progress) -> Iterator[bytes]:
    """Yield a file's bytes; a trouble ends them and is noted."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a name such as /dev/fd/63 is fine, too
            yield from _blocks_of(file, name, tally, progress)
    except OSError as error:
        tally.trouble(name, f"{error.strerror}; give files, directories, or - for standard input")


def _blocks_of(file: IO[bytes], name: str, tally: Tally, progress: Progress) -> Iterator[bytes]:
    before, read = os.fstat(file.fileno()), 0
    while block := file.read(BLOCK_BYTES):
        read += len(block)
        progress(len(block))
        yield block
    after = os.fstat(file.fileno())
    if stat.S_ISREG(after.st_mode) and (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        tally.trouble(name, f"changed while it was read ({read:,} bytes); read it again when it is complete")


def _standard_input(stopping: threading.Event, tally: Tally, progress: Progress) -> Iterator[bytes | None]:
    """Read standard input without blocking in it, so that a signal is noticed while it is quiet."""
    if sys.stdin is None:  # closed by whoever started this process
        tally.trouble("-", NO_STANDARD_INPUT)
        return
    source = sys.stdin.fileno()
    while not stopping.is_set():
        if not select.select([source], [], [], INPUT_POLL_SECONDS)[0]:
            yield None
            continue
        block = os.read(source, BLOCK_BYTES)
        if not block:
            return
        progress(len(block))
        yield block


# --- into plain text ----------------------------------------------------------------------------------------------


def plain(
    blocks: Iterator[bytes | None], name: str, tally: Tally, layers: int = GZIP_LAYERS_MAX
) -> Iterator[bytes | None]:
    """Unpack gzip, whatever the name says, and drop a byte order mark; UTF-16 becomes UTF-8."""
    head = b""
    for block in blocks:
        if block is None:
            yield None
            continue
        head += block
        if len(head) >= HEAD_BYTES:
            break
    rest = _behind(head, blocks)
    if head.startswith(GZIP_MAGIC) and layers:
        yield from plain(_unpacked(rest, name, tally), name, tally, layers - 1)
        return
    if layers == GZIP_LAYERS_MAX and name.endswith(".gz") and head:
        tally.trouble(name, "is not gzip, though its name says so; it was read as it is")
    if _WIDE.match(head):
        yield from _narrow(rest)
    else:
        yield head.removeprefix(BOM)
        yield from blocks


def _behind(head: bytes, blocks: Iterator[bytes | None]) -> Iterator[bytes | None]:
    yield head
    yield from blocks


def _unpacked(blocks: Iterator[bytes | None], name: str, tally: Tally) -> Iterator[bytes | None]:
    """Unpack members of gzip one after another, as Firehose and `cat` join them; text behind them is passed on."""
    unpack, unpacked = zlib.decompressobj(GZIP_WINDOW), 0
    pieces = _pieces(blocks)
    for piece in pieces:
        data = piece
        if data is None:
            yield None
        while data:
            if unpack.eof:
                data = data.lstrip(b"\x00")  # some tools fill the last block with zeros
                if not data:
                    break
                if not GZIP_MAGIC.startswith(data[: len(GZIP_MAGIC)]):
                    yield data
                    yield from pieces
                    return
                unpack = zlib.decompressobj(GZIP_WINDOW)
            try:
                text = unpack.decompress(data, BLOCK_BYTES)
            except zlib.error:
                tally.trouble(name, f"its gzip data is damaged behind {unpacked:,} unpacked bytes; those were read")
                return
            unpacked += len(text)
            if text:
                yield text
            data = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
    yield unpack.flush()
    if not unpack.eof:
        tally.trouble(name, f"its gzip data is cut off behind {unpacked:,} unpacked bytes; those were read")


def _pieces(blocks: Iterator[bytes | None]) -> Iterator[bytes | None]:
    for block in blocks:
        if block is None:
            yield None
        else:
            yield from (block[at : at + PIECE_BYTES] for at in range(0, len(block), PIECE_BYTES))


def _narrow(blocks: Iterator[bytes | None]) -> Iterator[bytes | None]:
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    for block in blocks:
        yield None if block is None else decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()
