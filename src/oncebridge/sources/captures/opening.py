"""Opens values of captures: everything that AWS and loggers put around deliveries, with what it says of them.

What live sources may open is in `unwrap`, and opened here by the same functions. The shapes of this module are for
captures alone: there a log line is where events are looked for, and never in the text of an event.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from oncebridge.errors import Unreadable
from oncebridge.sources.captures.found import NOTHING_AROUND, Surroundings
from oncebridge.sources.captures.inputs import GZIP_MAGIC, GZIP_WINDOW
from oncebridge.sources.captures.log_lines import head_of, json_of_python, time_ms
from oncebridge.sources.captures.log_shapes import MARKS as LOG_MARKS
from oncebridge.sources.captures.log_shapes import OF_LAMBDA, Part, held_envelope, noted, opened_log
from oncebridge.sources.captures.scanning import PYTHON, Kind, Scanner
from oncebridge.sources.unwrap import (
    MARKS,
    NESTING_MAX,
    WRAPPER_BYTES_MAX,
    WRAPPER_CONTAINERS_MAX,
    batch_of,
    content_of,
    elements_of,
    firehose_data,
    from_batch,
    is_event,
    is_firehose,
    marked_as_event,
    text_of,
)
from oncebridge.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.sources.captures.found import Tally
    from oncebridge.sources.captures.log_lines import Head
    from oncebridge.sources.captures.scanning import Piece

Opened: TypeAlias = "Iterator[tuple[bytes, Surroundings]]"

STREAMS_MAX: Final = 10_000  # whose invocation is remembered
_HEAD_MAX: Final = 512  # bytes of a line in which its head ends
_ALL_MARKS: Final = (*LOG_MARKS, *MARKS)
#: A text that names one of these may be an event that cannot be read.
_NAMES_OF_EVENTS: Final = re.compile(rb"detail-type|eventBody|topicName")

NO_EVENT_TEXT: Final = "a log line without an event"
NO_EVENT_JSON: Final = "JSON in a log line that is no event"
UNREADABLE_TEXT: Final = "a log line with names of an event's fields that is no JSON"
BEHIND: Final = "text behind a value"


class _Invocation(msgspec.Struct, frozen=True, gc=False):
    """An invocation of a function, as a line of Lambda's own names it, and when that was written."""

    request_id: str
    logged_ms: int | None


class Opener:
    """Opens the values of one input."""

    def __init__(self, file: str, tally: Tally, *, is_found: bool) -> None:
        """Take where the values are from, and whether that is a file that may be anything."""
        self._file = file
        self._tally = tally
        self._line = 0
        self._requests: dict[str, _Invocation] = {}
        self._is_found = is_found
        #: Whether lines of a log were seen: text that is no JSON is another of them then, and no broken delivery.
        self.is_log = False

    def open(self, piece: Piece) -> Opened:
        """Yield the deliveries in a piece of a text."""
        self._line = piece.line
        return self._piece(piece, NOTHING_AROUND, NESTING_MAX, in_log=False)

    def _skip(self, reason: str) -> None:
        self._tally.skip(self._file, self._line, reason)

    # --- pieces of text --------------------------------------------------------------------------------------

    def _piece(self, piece: Piece, around: Surroundings, nesting: int, *, in_log: bool) -> Opened:
        if piece.kind is Kind.EVENT:
            yield piece.data, self._in_invocation(around)
        elif piece.kind is Kind.VALUE:
            yield from self._value_in_line(piece, around, nesting, in_log=in_log)
        elif piece.kind is Kind.BROKEN:
            yield from self._broken(piece.data, around, in_log=in_log)
        elif piece.kind is Kind.TEXT:
            yield from self._text(piece.data, around, in_log=in_log)
        elif piece.kind is Kind.REST:
            self._skip(BEHIND)

    def _value_in_line(self, piece: Piece, around: Surroundings, nesting: int, *, in_log: bool) -> Opened:
        must_say = False
        if piece.before:
            head = head_of(piece.before)
            in_log = in_log or head.end > 0
            self.is_log = self.is_log or head.end > 0
            around = self._with_head(around, head)
            must_say = head.end < len(piece.before)  # other text: only an event that says so is one
        data = piece.data
        if PYTHON.match(data):
            written = json_of_python(data)
            if written is None:
                yield from self._broken(data, around, in_log=in_log)
                return
            data = written
        yield from self._value(data, self._in_invocation(around), nesting, in_log=in_log, must_say=must_say)

    def _broken(self, data: bytes, around: Surroundings, *, in_log: bool) -> Opened:
        if self._may_be_talk(in_log) and not _NAMES_OF_EVENTS.search(data):
            self._skip(NO_EVENT_TEXT)
        else:
            self._tally.unreadable(self._file, self._line)
            yield data, self._in_invocation(around)

    def _text(self, data: bytes, around: Surroundings, *, in_log: bool) -> Opened:
        head = head_of(data)
        self.is_log = self.is_log or head.end > 0 or head.is_of_lambda
        if head.is_of_lambda:
            if head.request_id is not None:
                logged_ms = head.logged_ms if around.logged_ms is None else around.logged_ms
                found = _Invocation(head.request_id, logged_ms)
                self._note_invocation(around.log_stream or head.log_stream, found, starts=head.starts)
            self._skip(OF_LAMBDA)
        elif self._may_be_talk(in_log):
            self._skip(UNREADABLE_TEXT if _NAMES_OF_EVENTS.search(data) else NO_EVENT_TEXT)
        else:
            self._tally.unreadable(self._file, self._line)
            yield data, around

    def _may_be_talk(self, in_log: bool) -> bool:
        """Return whether text that is no JSON is to be expected."""
        return in_log or self.is_log or self._is_found

    def _note_invocation(self, stream: str | None, found: _Invocation, *, starts: bool) -> None:
        """Remember which invocation a stream is at: a function handles one at a time.

        Lists may begin with the newest line, as Insights sorts them: there an invocation's end comes before its lines.
        """
        last = self._requests.get(stream or "")
        if not starts and last is not None and not _is_before(found, last):
            return
        if len(self._requests) >= STREAMS_MAX:
            self._requests.clear()
        self._requests[stream or ""] = found

    def _in_invocation(self, around: Surroundings) -> Surroundings:
        if not self._requests or around.request_id is not None:
            return around
        found = self._requests.get(around.log_stream or "")
        return around if found is None else replace(around, request_id=found.request_id)

    def _with_head(self, around: Surroundings, head: Head) -> Surroundings:
        return replace(
            around,
            request_id=head.request_id or around.request_id,
            log_stream=around.log_stream or head.log_stream,
            logged_ms=head.logged_ms if around.logged_ms is None else around.logged_ms,
        )

    def _message(self, text: bytes, around: Surroundings, nesting: int) -> Opened:
        """Open the message of a log event, which may be anything that a function printed."""
        line = text.strip()
        if b"\n" not in line and (b"{" not in line or _is_marked(line)):  # nearly always
            yield from self._line_of_log(line, around)
            return
        for piece in Scanner(iter((text,))).pieces():
            if piece is not None:
                yield from self._piece(piece, around, nesting, in_log=True)

    def _line_of_log(self, line: bytes, around: Surroundings) -> Opened:
        if b"{" in line:
            yield line, self._in_invocation(around)
        elif line:
            yield from self._text(line, around, in_log=True)

    # --- values ----------------------------------------------------------------------------------------------

    def _value(
        self, data: bytes, around: Surroundings, nesting: int, *, in_log: bool = False, must_say: bool = False
    ) -> Opened:
        """Open a JSON value as it is written."""
        first = data[:1]
        if first == b"{":
            yield from self._object(data, around, nesting, must_say=must_say)
        elif first == b"[" and nesting:
            row = _row_of(data)
            if row is not None:
                yield from self._tree(row, around, nesting - 1, must_say=False)
                return
            elements = elements_of(data)
            if not elements:
                yield data, around
            for element in elements:
                yield from self._content(element, around, nesting - 1, in_log=in_log or self.is_log)
        elif first == b'"' and nesting and self._holds_more(text := text_of(data), in_log=in_log):
            yield from self._content(text, around, nesting - 1, in_log=in_log or self.is_log)
        elif in_log or must_say:
            self._skip(NO_EVENT_TEXT)
        else:
            yield data, around

    def _holds_more(self, text: bytes, *, in_log: bool) -> bool:
        """Return whether a text by itself is JSON again, or a line of a log."""
        is_json = text.lstrip()[:1] in (b"{", b"[")
        return is_json or in_log or self.is_log or head_of(text[:_HEAD_MAX]).is_of_lambda

    def _object(self, data: bytes, around: Surroundings, nesting: int, *, must_say: bool) -> Opened:
        tree = None
        try:
            if not marked_as_event(data) and (must_say or (nesting and any(mark in data for mark in _ALL_MARKS))):
                # With numbers as written: the content must keep its identity.
                _, tree = read_json(data, bytes_max=WRAPPER_BYTES_MAX, containers_max=WRAPPER_CONTAINERS_MAX)
        except (Unreadable, msgspec.MsgspecError, RecursionError, ValueError):
            pass  # the flow says why
        parts = None if tree is None or not nesting else self._parts(tree, around)
        if parts is not None:
            yield from self._opened(parts, nesting)
        elif must_say and tree is not None and not is_event(tree):
            self._skip(NO_EVENT_JSON)
        else:
            yield data, around

    def _content(self, text: bytes, around: Surroundings, nesting: int, *, in_log: bool) -> Opened:
        """Open what a wrapper holds as text: byte for byte, unless it is a wrapper again."""
        first = text.lstrip()[:1]
        if not nesting:
            yield text, around
        elif text.startswith(GZIP_MAGIC):
            unpacked = unpack(text)
            if unpacked is None:
                yield text, around
            else:
                yield from self._content(unpacked, around, nesting - 1, in_log=in_log)
        elif in_log or (first not in (b"{", b"[") and head_of(text[:_HEAD_MAX]).is_of_lambda):
            yield from self._message(text, around, nesting - 1)
        elif first == b"{":
            yield from self._object(text, around, nesting, must_say=False)
        elif first == b"[":
            yield from self._value(text.strip(), around, nesting)
        else:
            yield text, around

    # --- parsed values ---------------------------------------------------------------------------------------

    def _opened(self, parts: list[Part] | str, nesting: int) -> Opened:
        if isinstance(parts, str):
            self._skip(parts)
            return
        for part in parts:
            around = self._in_invocation(part.around)
            if isinstance(part.content, (str, bytes)):
                yield from self._written(part.content, around, nesting - 1, in_log=part.in_log)
            else:
                yield from self._tree(part.content, around, nesting - 1, must_say=part.in_log)

    def _written(self, content: str | bytes, around: Surroundings, nesting: int, *, in_log: bool) -> Opened:
        # Half of a surrogate pair is refused with a reason later.
        text = content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
        yield from self._content(text, around, nesting, in_log=in_log)

    def _tree(self, tree: Any, around: Surroundings, nesting: int, *, must_say: bool) -> Opened:
        parts: list[Part] | str | None = None
        if isinstance(tree, (str, bytes)):
            yield from self._written(tree, around, nesting, in_log=False)
            return
        if nesting and isinstance(tree, list) and tree:
            parts = [Part(element, around, must_say) for element in tree]
        elif nesting and isinstance(tree, dict):
            parts = self._parts(tree, around)
        if parts is not None:
            yield from self._opened(parts, nesting)
        elif must_say and not (isinstance(tree, dict) and is_event(tree)):
            self._skip(NO_EVENT_JSON)
        else:
            yield msgspec.json.encode(tree), around

    def _parts(self, tree: dict[str, Any], around: Surroundings) -> list[Part] | str | None:
        """Return what a wrapper holds; a reason if it holds nothing, and None if it is no wrapper."""
        logged = opened_log(tree, around)
        if logged is not None:
            found = _invocation_in(tree, around)
            if found is not None:
                self.is_log = True
                self._note_invocation(around.log_stream, found, starts=tree["type"] == "platform.start")
            return logged
        if is_event(tree):
            return None
        records = batch_of(tree)
        if records:
            return [Part(from_batch(record), noted(around, record)) for record in records]
        if is_firehose(tree) and tree["records"]:
            return [Part(firehose_data(record), noted(around, record)) for record in tree["records"]]
        content = content_of(tree)
        if content is not None:
            return [Part(part, noted(around, tree)) for part in content]
        return held_envelope(tree, around)


def _is_marked(line: bytes) -> bool:
    """Return whether a line is one event."""
    try:
        return line.startswith(b"{") and marked_as_event(line)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False


def _is_before(one: _Invocation, other: _Invocation) -> bool:
    return one.logged_ms is not None and other.logged_ms is not None and one.logged_ms < other.logged_ms


def _invocation_in(tree: dict[str, Any], around: Surroundings) -> _Invocation | None:
    """Return the invocation that a line of Lambda's JSON log is about."""
    kind, record, time = tree.get("type"), tree.get("record"), tree.get("time")
    is_own = isinstance(kind, str) and kind.startswith("platform.") and isinstance(record, dict)
    request = record.get("requestId") if is_own and isinstance(record, dict) else None
    if not isinstance(request, str):
        return None
    logged_ms = around.logged_ms if around.logged_ms is not None or not isinstance(time, str) else time_ms(time)
    return _Invocation(request, logged_ms)


def _row_of(data: bytes) -> dict[str, Any] | None:
    """Return a row of CloudWatch Logs Insights as an object; None for any other list."""
    if b'"field"' not in data[:256]:
        return None
    try:
        cells = msgspec.json.decode(data, type=list[_Cell])
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return {cell.field: cell.value for cell in cells}


class _Cell(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    field: str
    value: str


def unpack(data: bytes) -> bytes | None:
    """Unpack gzip that is no larger than a wrapper may be; None if it is larger, or damaged."""
    unpacker = zlib.decompressobj(GZIP_WINDOW)
    try:
        text = unpacker.decompress(data, WRAPPER_BYTES_MAX)
    except zlib.error:
        return None
    return text if unpacker.eof else None
