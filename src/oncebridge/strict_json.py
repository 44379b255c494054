"""Parses JSON text strictly: text that cannot be read exactly is refused with a reason.

msgspec parses JSON fast, but loses some details of the text: it keeps the last of two equal keys, and 1.10 becomes 1.1.
So every text is written back and compared: the same bytes mean that nothing was lost. Only if they differ is the text
parsed again by a slower parser that loses nothing.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec

from oncebridge.errors import Unreadable

BYTES_MAX: Final = 1_048_576 + 65_536  # an event of 1 MB and the envelope around it
DEPTH_MAX: Final = 64
CONTAINERS_MAX: Final = 100_000  # objects and lists: each costs many times its two bytes
NAME_SHOWN_MAX: Final = 60  # field names come from outside: never print an endless one

_TYPE_NAMES: Final = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
_TOO_MANY_DIGITS: Final = "holds a number with too many digits"

_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_UP, _DOWN = b"\x01", b"\xff"  # as signed bytes: one level more, one less
_STEPS: Final = bytes.maketrans(b"[]{}", (_UP + _DOWN) * 2)

_NULL: Final = b"\\u0000"
_BACKSLASH: Final = _NULL[0]

R = TypeVar("R")

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def as_bytes(raw: object) -> bytes:
    """Convert bytes, text or parsed JSON into the one form that everything else works on."""
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, (bytearray, memoryview)):
        return bytes(raw)
    try:
        text = (
            raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        )
        return text.encode()
    except UnicodeEncodeError:
        raise Unreadable("text holds half of a surrogate pair, which is no character") from None
    except ValueError as error:
        if "digits" in str(error):
            raise Unreadable(_TOO_MANY_DIGITS) from None
        raise Unreadable("holds NaN or Infinity, or itself, which JSON cannot express") from None
    except TypeError as error:
        raise Unreadable(f"is not JSON: {error}") from None
    except RecursionError:
        raise Unreadable(_too_deep()) from None


def read_json(data: bytes, *, bytes_max: int = BYTES_MAX, containers_max: int = CONTAINERS_MAX) -> tuple[Any, Any]:
    """Return the parsed tree, and the tree with numbers as written (the same object where they agree)."""
    check_size(data, bytes_max=bytes_max, containers_max=containers_max)
    return read_tree(data)


def read_tree(data: bytes) -> tuple[Any, Any]:
    """Do the same with a text whose size was checked."""
    try:
        tree = _decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Unreadable(_why_unreadable(data, error)) from None
    return tree, tree if _is_faithful(tree, data) else _read_exactly(data)


def read_record(decoder: msgspec.json.Decoder[R], data: bytes) -> R | None:
    """Parse a text whose size was checked as a record; None if the record cannot hold all of it.

    That is faster than walking a tree, for a text that has just these fields in just this order.
    """
    try:
        record = decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return record if _is_faithful(record, data) else None


def check_size(data: bytes, *, bytes_max: int = BYTES_MAX, containers_max: int = CONTAINERS_MAX) -> None:
    """Refuse a text that is too long, nested too deeply, or has too many objects and lists."""
    if len(data) > bytes_max:
        raise Unreadable(f"is {len(data):,} bytes long; the limit is {bytes_max:,}")
    # `bytes.count` visits each byte; `replace` jumps from one bracket to the next, and stops at the limit.
    others = len(data.replace(b"{", b"", DEPTH_MAX + 1)) + len(data.replace(b"[", b"", DEPTH_MAX + 1))
    if 2 * len(data) - others > DEPTH_MAX:
        _check_brackets(data, containers_max)


def _check_brackets(data: bytes, containers_max: int) -> None:
    """Refuse a text that is nested too deeply or has too many objects and lists, before it is parsed.

    It may be no JSON and very long, so it is scanned a few times as a whole, and never backwards.
    """
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    steps = b"".join(unescaped.split(b'"')[::2]).translate(_STEPS, _NO_BRACKETS)
    if max(accumulate(memoryview(steps).cast("b")), default=0) > DEPTH_MAX:
        raise Unreadable(_too_deep())
    containers = steps.count(_UP)
    if containers > containers_max:
        raise Unreadable(f"holds {containers:,} objects and lists; the limit is {containers_max:,}")


def _too_deep() -> str:
    return f"is nested more than {DEPTH_MAX} levels deep"


def canonical(exact: object) -> bytes:
    """Write a tree of exact numbers in the one form that is compared: keys sorted, no white space."""
    return _encode_sorted(exact)


def _is_faithful(tree: object, data: bytes) -> bool:
    """Return whether writing the tree back gives the same text: no key, digit or escape was lost."""
    again = _encode(tree)
    # White space between tokens has no meaning; removing it leaves every token as it was written.
    if again != data and again != msgspec.json.format(data, indent=-1):
        return False
    return _BACKSLASH not in data or _NULL not in data  # the search for one byte is many times faster


def _read_exactly(data: bytes) -> Any:
    """Parse JSON slowly, keeping numbers as written and refusing ambiguities."""
    try:
        text = data.decode()
        tree = json.loads(
            text,
            object_pairs_hook=_object_without_null_characters if _NULL in data else _object_without_twins,
            parse_float=_as_written,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
        _encode(tree)
    except RecursionError:
        raise Unreadable(_too_deep()) from None
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(_why_unreadable(data, error)) from None
    return tree


def _object_without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Unreadable(f"the key {_shown(twin)} stands twice in one object")
    return result


def _object_without_null_characters(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, value in pairs:
        _refuse_null_characters(name, [name, value])
    return _object_without_twins(pairs)


def _refuse_null_characters(name: str, values: list[Any]) -> None:
    for value in values:
        if type(value) is str and "\x00" in value:
            raise Unreadable(f"{_shown(name)} contains the character U+0000; databases cannot keep it")
        if type(value) is list:
            _refuse_null_characters(name, value)


def _as_written(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def _integer(text: str) -> int | msgspec.Raw:
    return msgspec.Raw(b"-0") if text == "-0" else int(text)


def _refuse_constant(name: str) -> Any:
    raise Unreadable(f"holds {name}, which is not JSON")


def _why_unreadable(data: bytes, error: Exception) -> str:
    """Say in words why a text is no JSON."""
    if isinstance(error, RecursionError):
        return _too_deep()
    if not data.strip():
        return "is empty"
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        return "starts with a byte order mark; send UTF-8 without one"
    if b"\x00" in data[:4]:
        return "is not UTF-8 (it looks like UTF-16 or UTF-32)"
    try:
        text = data.decode()
    except UnicodeDecodeError as wrong:
        return f"is not UTF-8 (byte {wrong.start})"
    return _why_not_json(text, error)


def _why_not_json(text: str, error: Exception) -> str:
    try:
        tree = json.loads(
            text, parse_constant=_refuse_constant, parse_float=str
        )  # the value of a fraction does not matter
        json.dumps(tree, ensure_ascii=False).encode()
    except Unreadable as wrong:
        return str(wrong)
    except json.JSONDecodeError as wrong:
        return f"is not JSON: {wrong.msg.lower()} (character {wrong.pos + 1})"
    except UnicodeEncodeError:
        return "text holds half of a surrogate pair, which is no character"
    except RecursionError:
        return _too_deep()
    except ValueError:
        return _TOO_MANY_DIGITS
    return "holds a number that is out of range" if "range" in str(error) else f"is not JSON: {error}"


def _shown(name: str) -> str:
    """Write a field name from outside in a short form without control characters."""
    text = json.dumps(name)
    return text if len(text) <= NAME_SHOWN_MAX else text[:NAME_SHOWN_MAX] + '…"'


def type_name(value: object) -> str:
    """Return the name of a JSON type for readers."""
    return _TYPE_NAMES.get(type(value), "a number")
