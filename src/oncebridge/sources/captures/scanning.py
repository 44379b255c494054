"""Finds where JSON values begin and end in a text: one a line, over many lines, one after another, behind other text.

A line that is a whole value is taken as one; nearly every line is. Any other is looked at closely: a value may go on
over the next lines, several may share a line, and a log line has text before its value. A value that turns out to be
broken ends with its line, as far as that is plain, so that it takes no neighbour with it.

Every byte is in exactly one piece, blank space and the commas between values apart. Memory is bounded by
`LINE_BYTES_MAX`, and the time for each byte by the budget for scans that lead nowhere.
"""

from __future__ import annotations

import json
import re
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.discreet import Discreet
from oncebridge.sources.unwrap import WRAPPER_BYTES_MAX, marked_as_event

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_BYTES_MAX: Final = WRAPPER_BYTES_MAX
VALUE_BYTES_MAX: Final = 4 * 1_048_576  # over many lines, or among others: an event of 1 MB, indented
CANDIDATES_MAX: Final = 8  # places in one line of text where a value might begin

#: Bytes that failed scans may take: this many times what was read, and this many more.
FAILED_TIMES_MAX: Final = 4
FAILED_BYTES_FREE: Final = 4 * VALUE_BYTES_MAX
RECURSION_COST: Final = 65_536
_WINDOWS: Final = (4096, 65_536, 1_048_576, VALUE_BYTES_MAX)  # most values are small


class Kind(IntEnum):
    """What a piece is."""

    EVENT = 0  # a value whose own fields mark it as an event
    VALUE = 1
    BROKEN = 2  # begins like a value
    TEXT = 3
    REST = 4  # text behind a value, in its line
    FRAME = 5  # the beginning or end of a list whose elements are pieces by themselves


class Piece(Discreet, msgspec.Struct, gc=False):
    """A part of a text, with its place."""

    shown = ("kind", "line", "offset")

    kind: Kind
    data: bytes
    line: int
    offset: int
    #: The text before a value, in its line.
    before: bytes = b""


_whole: Final = msgspec.json.Decoder(msgspec.Raw).decode
#: Where a value begins in a line of text: an object that has a field, or a list of such.
_BEGINS: Final = re.compile(rb"""\{(?=\s*["']|\s*\Z)|\[(?=\s*\{\s*["']|\s*\Z)""")
#: The beginning of a list that may be longer than memory: bare, or the answer of an AWS call with few fields before it.
_FRAME: Final = re.compile(
    rb'(?:\{\s*(?:"\w{1,64}"\s*:\s*(?:"[^"\\\n]{0,256}"|\d{1,20}|\[[^\[\]{}]{0,512}\])\s*,\s*){0,8}'
    rb'"(?:events|Messages|results|Records|logEvents)"\s*:\s*)?\[\s*(?=\{\s*"|"|\[\s*\{\s*")'
)
#: The beginning of a list, and not of a text such as [INFO].
_LIST: Final = re.compile(rb"""\[\s*(?:["'{\[\]\d-]|true|false|null|\Z)""")
_SPACE: Final = re.compile(rb"[ \t\r]*")
_GAP: Final = re.compile(rb"[ \t\r,]*")
_ALONE: Final = re.compile(rb"[ \t\r]*,?[ \t\r]*\Z")
_ELEMENT: Final = re.compile(rb"[ \t\r]*(?:[,\]]|\Z)")
_CLOSING: Final = re.compile(rb"[\]}\s,]*\Z")
_FRAME_BYTES_MAX: Final = 8192
#: Python's way to write a dict, of which JSON can be made.
PYTHON: Final = re.compile(rb"\[?\{'[^'\\\n]{0,256}': ")

#: What may be left of a number, a word or an escape that is cut off.
_CUT_TOKEN: Final = re.compile(r"[-+.\w\\]{0,12}\s*\Z")
_TOKEN_MAX: Final = 64
_decoder: Final = json.JSONDecoder(parse_float=len, parse_int=len)  # their values do not matter, nor how long they are


_END: Final = b"the end"  # recognised by identity: a block may have the same bytes


class _Frame(IntEnum):
    """Where the scanner is in a list whose elements are pieces by themselves."""

    NONE = 0
    BARE = 1  # between the brackets of a list
    WITHIN = 2  # the same, in an object
    BEHIND = 3  # behind that list, before the object's end


class _NeedsMore(Exception):
    """What is there so far does not decide."""


class Scanner:
    """Splits blocks of text into pieces."""

    def __init__(self, blocks: Iterator[bytes | None]) -> None:
        """Take blocks; None means that nothing has arrived yet, and is passed on."""
        self._blocks = blocks
        self._data = b""
        self._at = 0  # in the data
        self._offset = 0  # of the data in the text
        self.line = 1
        self._ended = False
        self._within_line = False  # behind a value
        self._frame = _Frame.NONE
        self._failed = 0  # bytes of scans that led nowhere
        self._line_end = -1  # in the data, where it is known

    def pieces(self) -> Iterator[Piece | None]:
        """Yield piece after piece."""
        stuck_at = -1
        while True:
            yield from self._events()
            try:
                piece = self._next()
            except _NeedsMore:
                # A long value is scanned from its beginning: so seldom that it takes twice as long, not many times.
                is_stuck, stuck_at = self._offset + self._at == stuck_at, self._offset + self._at
                yield from self._read(len(self._data) - self._at if is_stuck else 1)
                continue
            if piece is None:
                return
            yield piece

    def _events(self) -> Iterator[Piece]:
        """Yield events as long as each is a line by itself: nearly always, so this is what takes the time."""
        data, at = self._data, self._at
        while not self._within_line:
            end = data.find(b"\n", at)
            line = data[at:end].strip() if end >= 0 else b""
            try:
                if line[:1] != b"{" or not marked_as_event(line):
                    return
            except (msgspec.MsgspecError, RecursionError, ValueError):
                return
            piece = Piece(Kind.EVENT, line, self.line, self._offset + at)
            self._at = at = end + 1
            self.line += 1
            yield piece

    def _read(self, wanted: int) -> Iterator[None]:
        """Read at least so many bytes, or as many as have arrived."""
        parts, number = [self._data[self._at :]], 0
        while number < wanted and not self._ended:
            block = next(self._blocks, _END)
            if block is None:
                yield None
                if number:
                    break
            elif block is _END:
                self._ended = True
            else:
                parts.append(block)
                number += len(block)
        self._offset += self._at
        self._data, self._at, self._line_end = b"".join(parts), 0, -1

    def _next(self) -> Piece | None:
        """Return the next piece; None at the end."""
        data = self._data
        while True:
            start, end = self._at, self._end_of_line()
            if start == len(data):
                return None
            if self._within_line:
                return self._rest_of_line(end)
            line = data[start:end].strip()
            if not line:
                self._advance(end + 1)
            elif line[:1] == b"{":
                try:
                    marked = marked_as_event(line)
                except (msgspec.MsgspecError, RecursionError, ValueError):
                    return self._closely(start, end)
                return self._whole_line(Kind.EVENT if marked else Kind.VALUE, line, end)
            elif line[:1] == b"[" and _is_whole(line):
                return self._whole_line(Kind.VALUE, line, end)
            else:
                return self._closely(start, end)

    def _end_of_line(self) -> int:
        """Return where the line ends; a line may hold many values, so it is looked for once."""
        if self._line_end < self._at or self._at == len(self._data):
            self._line_end = self._data.find(b"\n", self._at)
            if self._line_end < 0:
                if not self._ended and len(self._data) - self._at < LINE_BYTES_MAX:
                    raise _NeedsMore
                self._line_end = len(self._data)
        return self._line_end

    def _whole_line(self, kind: Kind, line: bytes, end: int) -> Piece:
        """Make a piece of a line, and go on with the next."""
        piece = Piece(kind, line, self.line, self._offset + self._at)
        self.line += 1
        self._at = end + 1 if end < len(self._data) else end
        return piece

    def _taken(self, kind: Kind, start: int, end: int, before: int | None = None) -> Piece:
        """Make a piece of the data up to here, and go on behind it."""
        raw = self._data[start:end].strip()
        prefix = b"" if before is None else self._data[before:start].strip(b" \t\r\n,")
        piece = Piece(kind, raw, self.line, self._offset + start, prefix)
        self._advance(end)
        return piece

    def _advance(self, end: int) -> None:
        end = min(end, len(self._data))
        self.line += self._data.count(b"\n", self._at, end)
        self._at = end
        self._within_line = end > 0 and not self._data.endswith(b"\n", 0, end) and end < len(self._data)

    # --- a line that is not one value ------------------------------------------------------------------------

    def _rest_of_line(self, end: int) -> Piece | None:
        """Go on behind a value: with the next one, or with text."""
        gap = _GAP.match(self._data, self._at, end)
        start = self._at if gap is None else gap.end()
        if start < end:
            return self._closely(start, end)
        self._advance(end + 1)
        return self._next()

    def _closely(self, start: int, end: int) -> Piece:
        """Find the value that begins in this line; text if there is none."""
        data = self._data
        gap = _SPACE.match(data, start, end)
        start = start if gap is None else gap.end()
        first = data[start : start + 1]
        if first == b"{" or _LIST.match(data, start, end):
            return self._value(start, end)
        if first == b'"' and self._has_budget and (self._frame or not self._within_line):
            found = self._scan(start, end)
            alone = _ELEMENT if self._frame else _ALONE  # and not the name of a field
            if found > 0 and alone.match(data, found, end):
                return self._taken(Kind.VALUE, start, found)
        within = self._value_within(start, end)
        if within is not None:
            return within
        if self._frame and self._leaves_frame(start, end):
            return self._taken(Kind.FRAME, start, end)
        return self._taken(Kind.REST if self._within_line else Kind.TEXT, start, end)

    def _value_within(self, start: int, end: int) -> Piece | None:
        """Take the first value in a line of text."""
        if self._data.startswith(b"\xef\xbb\xbf", start) or not self._has_budget:
            return None  # a byte order mark is no text, and what follows it is refused for it
        for match in islice(_BEGINS.finditer(self._data, start, end), CANDIDATES_MAX):
            begins = match.start()
            found = end if PYTHON.match(self._data, begins, end) else self._scan(begins, end)
            if found > 0:
                return self._taken(Kind.VALUE, begins, found, before=start)
        return None

    def _value(self, start: int, end: int) -> Piece:
        """Take the value that begins here, be it broken."""
        if PYTHON.match(self._data, start, end):
            return self._taken(Kind.VALUE, start, end)
        if not self._has_budget:
            return self._taken(Kind.BROKEN, start, end)
        found = self._scan(start, end)
        if found > 0:
            return self._taken(Kind.VALUE, start, found)
        frame = _FRAME.match(self._data, start, start + _FRAME_BYTES_MAX)
        if frame is None:
            within = self._value_within(start + 1, end) if self._data[start : start + 1] == b"[" else None
            if within is not None:  # text in brackets before it
                return within
            return self._taken(Kind.BROKEN, start, self._end_of_broken(end, -found))
        # Too long or broken: its elements are read one by one.
        self._frame = _Frame.BARE if self._data[start : start + 1] == b"[" else _Frame.WITHIN
        piece = self._taken(Kind.FRAME, start, frame.end())
        self._within_line = not self._data.endswith(b"\n", 0, self._at)
        return piece

    def _leaves_frame(self, start: int, end: int) -> bool:
        """Return whether this is the end of a list, or stands behind it."""
        closing = _CLOSING.match(self._data, start, end)
        if closing is None:
            return self._frame is _Frame.BEHIND
        is_over = self._frame is _Frame.BARE or b"}" in closing[0]
        self._frame = _Frame.NONE if is_over else _Frame.BEHIND
        return True

    @property
    def is_within_list(self) -> bool:
        """Whether a list has begun whose end has not come."""
        return self._frame is not _Frame.NONE

    def _scan(self, start: int, end: int) -> int:
        """Return where the value that begins here ends; negative: where it breaks; raise if that is not known yet."""
        is_cut, broken = False, end
        for size in _WINDOWS:
            # A character for each byte: what matters is ASCII, and the rest may be anything.
            text = self._data[start : start + size].decode("latin-1")
            try:
                return start + _decoder.raw_decode(text)[1]
            except json.JSONDecodeError as error:
                is_cut, broken = _is_cut(text, error), start + error.pos
            except (RecursionError, MemoryError):
                self._failed += RECURSION_COST
            if not is_cut:
                break
            if start + size >= len(self._data):
                if not self._ended:
                    raise _NeedsMore
                broken = len(self._data)
                break
        broken = max(broken, start + 1)
        self._failed += broken - start
        return -broken

    @property
    def _has_budget(self) -> bool:
        return self._failed <= FAILED_BYTES_FREE + FAILED_TIMES_MAX * (self._offset + self._at)

    def _end_of_broken(self, end: int, broken: int) -> int:
        """Return where a broken value ends: with its line, or before the next line that is whole by itself."""
        data = self._data
        while end < broken and end < len(data):
            following = data.find(b"\n", end + 1)
            following = len(data) if following < 0 else following
            line = data[end:following].strip(b" \t\r\n,")
            if following >= broken and broken < len(data):
                break  # here it breaks, so here something else begins
            if line[:1] == b"{" and _is_whole(line):
                break
            end = following
        return end


def _is_cut(text: str, error: json.JSONDecodeError) -> bool:
    """Return whether a text may be the beginning of a value."""
    if error.msg.startswith("Unterminated"):
        return True
    return len(text) - error.pos <= _TOKEN_MAX and _CUT_TOKEN.match(text, error.pos) is not None


def _is_whole(line: bytes) -> bool:
    """Return whether a line is one JSON value."""
    try:
        _whole(line)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False
    return True
