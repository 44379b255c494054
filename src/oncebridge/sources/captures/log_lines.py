"""Reads log lines: the head before a message, Lambda's own lines, and dicts as Python writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

_ID: Final = rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
#: One part of a line's head: a time, a level, the id of a request, the name of a log stream, or the beginning of a row
#: that the AWS command line writes as text.
_PART: Final = re.compile(
    rb"(?:(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
    rb"|(?P<row>EVENTS\t(?:\d{56}\t)?\d{13})"
    rb"|(?P<level>\[?(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\]?)"
    rb"|(?P<request>" + _ID + rb")"
    rb"|(?P<stream>\d{4}/\d\d/\d\d/\S{0,256}?\[[^\]\s]{1,128}\]\w{1,64}))(?:[ \t]+|\Z)"
)
_PARTS_MAX: Final = 6
#: Lines that Lambda itself writes.
_OF_LAMBDA: Final = re.compile(
    rb"(?:START|END|REPORT|RequestId:?|XRAY TraceId:|INIT_START|INIT_REPORT|RESTORE_START|RESTORE_REPORT|EXTENSION|LOGS"
    rb"|TELEMETRY)(?:[ \t]+(?:RequestId:[ \t]+)?(?P<request>" + _ID + rb"))?(?=[ \t])"
)
_STARTS: Final = b"START"


class Head(msgspec.Struct, gc=False):
    """What stands before a message in its line."""

    #: Where the message begins; 0 if the line has no head.
    end: int = 0
    logged_ms: int | None = None
    request_id: str | None = None
    log_stream: str | None = None
    #: Whether the rest of the line is Lambda's own.
    is_of_lambda: bool = False
    #: Whether an invocation begins here, so that what follows in its stream belongs to it.
    starts: bool = False


def head_of(line: bytes) -> Head:
    """Read the head of a line."""
    head = Head()
    for _ in range(_PARTS_MAX):
        part = _PART.match(line, head.end)
        if part is None:
            break
        head.end = part.end()
        _note(head, part)
    own = _OF_LAMBDA.match(line, head.end)
    if own is not None:
        head.is_of_lambda, head.starts = True, own[0].startswith(_STARTS)
        head.request_id = head.request_id if own["request"] is None else own["request"].decode()
    return head


def _note(head: Head, part: re.Match[bytes]) -> None:
    # A stream may have any name: what is no UTF-8 in it must not end the reading.
    value = part[part.lastgroup or 0].decode(errors="replace")
    if part.lastgroup == "time":
        # CloudWatch's own time is first; the logger's may follow.
        head.logged_ms = time_ms(value) if head.logged_ms is None else head.logged_ms
    elif part.lastgroup == "request":
        head.request_id = value
    elif part.lastgroup == "stream":
        head.log_stream = value


def time_ms(text: str) -> int | None:
    """Read a time as loggers write it, in UTC where it names no zone; None if it is none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)


# --- Python -------------------------------------------------------------------------------------------------------

_PYTHON_TOKEN: Final = re.compile(
    r"""'(?P<single>[^'\\\n]*+(?:\\.[^'\\\n]*+)*+)'|"(?P<double>[^"\\\n]*+(?:\\.[^"\\\n]*+)*+)"|\b(?:True|False|None)\b"""
    r"""|\b(?:true|false|null)\b"""
)
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))")
_SHORT: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_whole: Final = msgspec.json.Decoder(msgspec.Raw).decode


class _NotPython(Exception):
    """The text is no dict as Python writes it."""


def json_of_python(data: bytes) -> bytes | None:
    """Write Python's repr of a dict as JSON, with every number as it is; None if it is something else.

    `print(event)` leaves this in logs. It is read token by token: nothing is evaluated, and a long text takes no more
    than its length.
    """
    try:
        text = _PYTHON_TOKEN.sub(_as_json, data.decode()).encode()
        _whole(text)
    except (_NotPython, UnicodeError, msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return text


def _as_json(token: re.Match[str]) -> str:
    inner = token["single"] if token["single"] is not None else token["double"]
    if inner is None:
        if token[0] not in _WORDS:
            raise _NotPython  # JSON's words: it is neither the one nor the other
        return _WORDS[token[0]]
    if "\\" in inner:
        inner = _ESCAPE.sub(_character, inner)
    return msgspec.json.encode(inner).decode()


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is not None:
        return chr(int(code, 16))
    if escape[4] not in _SHORT:
        raise _NotPython
    return _SHORT[escape[4]]
