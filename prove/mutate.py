"""Spoils samples by their structure: what a broken or hostile sender may make of a real event, from a seed alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

#: Values that have broken somebody's reader before.
NASTY: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1.5, 1e308, -0.0, 2**53 + 1, 2**63, -(2**64), 10**400, float("nan"), float("inf"), "",
    " ", "0", "null", "{}", "[]", "[{}]", '{"detail":', "\x00", "\ud800", "\udfff\ud800", "\u202e", "\ufeff", "e30=",
    "v2.{id}.{id}", "{id}", "..", "%00", "\r\nX: y", "a" * 300, "9" * 5000, "2025-06-02T10:30:00.000Z",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z", [], {}, [[]], [None], {"": {}}, {"a": [{"a": [{}]}]},
    "aws:sqs", "aws:kinesis", "arn:aws:sqs:eu-west-2:210987654321:events.fifo", "Notification", "env:HOME",
    "file:/dev/null", "*",
)  # fmt: skip
#: Names that readers look for, in places where they do not expect them.
NAMES: Final = (
    "id", "detail", "detail-type", "source", "time", "version", "topicName", "eventBody", "timestamp", "metadata",
    "Records", "records", "body", "data", "Message", "Type", "Sns", "kinesis", "eventSource", "eventSourceARN",
    "messageId", "requestContext", "isBase64Encoded", "headers", "event", "handler", "claim", "outcome",
    "lease_seconds", "", "__proto__", "eventTime", "conversationId", "userId", "replay-name", "requestPayload",
    "rawData", "SystemMetadata", "Data",
)  # fmt: skip
#: What may stand between any two bytes.
BITS: Final = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\x00", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\\ud800",
    b"\\u0000", b"1e999", b"-", b"NaN", b"Infinity", b"\n", b"/*", b"//", b"'", b'"id":1,', b"[" * 70, b'{"a":' * 70,
    b"9" * 4400, b"\xe2\x80\xae",
)  # fmt: skip
#: One in this many is large, and as large as this.
LARGE_EACH: Final = 150
LARGE_MAX: Final = 40_000
DEPTH_MAX: Final = 12


def spoiled(dice: random.Random, samples: Sequence[bytes], *, as_json: bool = True) -> bytes:
    """Make something of one sample or two: by its tree, by its bytes, or both."""
    data = dice.choice(samples)
    if as_json and dice.random() < 0.75:
        data = _write(_spoil_tree(dice, json.loads(data), samples))
    if dice.random() < 0.5 or not as_json:
        for _ in range(dice.randint(1, 3)):
            data = dice.choice(_BYTE_MOVES)(dice, data, samples)
    if dice.randrange(LARGE_EACH) == 0 and data:
        data = _grown(dice, data)
    return data


def _nasty(dice: random.Random) -> Any:
    return deepcopy(dice.choice(NASTY))


def _write(tree: Any) -> bytes:
    # Halves of pairs are written as escapes, and so are bytes that any sender can write.
    return json.dumps(tree, separators=(",", ":")).encode()


# --- trees -------------------------------------------------------------------------------------------


def _spoil_tree(dice: random.Random, tree: Any, samples: Sequence[bytes]) -> Any:
    holder = {"": tree}
    for _ in range(dice.randint(1, 4)):
        places = list(_places(holder))
        parent, name = dice.choice(places)
        dice.choice(_TREE_MOVES)(dice, parent, name, samples)
    return holder.get("")


def _places(tree: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if depth > DEPTH_MAX:
        return
    names: list[Any] = []
    if isinstance(tree, dict):
        names = list(tree)
    elif isinstance(tree, list):
        names = list(range(len(tree)))
    for name in names:
        yield tree, name
        yield from _places(tree[name], depth + 1)


def _replace(dice: random.Random, parent: Any, name: Any, _: Sequence[bytes]) -> None:
    parent[name] = _nasty(dice)


def _remove(_dice: random.Random, parent: Any, name: Any, _: Sequence[bytes]) -> None:
    if name != "":
        del parent[name]


def _rename(dice: random.Random, parent: Any, name: Any, _: Sequence[bytes]) -> None:
    if isinstance(parent, dict) and name != "":
        parent[dice.choice(NAMES[1:])] = parent.pop(name)


def _add(dice: random.Random, parent: Any, name: Any, _: Sequence[bytes]) -> None:
    if isinstance(parent[name], dict):
        parent[name][dice.choice(NAMES)] = _nasty(dice)
    elif isinstance(parent[name], list):
        parent[name].insert(dice.randint(0, len(parent[name])), _nasty(dice))
    else:
        parent[name] = [parent[name]] * dice.randint(1, 3)


def _wrap(dice: random.Random, parent: Any, name: Any, _: Sequence[bytes]) -> None:
    parent[name] = {dice.choice(NAMES): parent[name]}


def _as_text(_dice: random.Random, parent: Any, name: Any, _: Sequence[bytes]) -> None:
    parent[name] = json.dumps(parent[name])


def _in_text(dice: random.Random, parent: Any, name: Any, samples: Sequence[bytes]) -> None:
    """Spoil what is written inside a text, as messages hold events."""
    value = parent[name]
    if not isinstance(value, str):
        return
    try:
        inner = json.loads(value)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, dict | list) and dice.random() < 0.7:
        parent[name] = json.dumps(_spoil_tree(dice, inner, samples))
    else:
        moved = dice.choice(_BYTE_MOVES)(dice, value.encode("utf-8", "surrogatepass"), samples)
        parent[name] = moved.decode("utf-8", "replace")


def _graft(dice: random.Random, parent: Any, name: Any, samples: Sequence[bytes]) -> None:
    """Put a part of another sample in its place."""
    other = {"": json.loads(dice.choice(samples))}
    from_parent, from_name = dice.choice(list(_places(other)))
    parent[name] = from_parent[from_name]


def _number(dice: random.Random, parent: Any, name: Any, _: Sequence[bytes]) -> None:
    if isinstance(parent[name], int | float):
        with suppress(OverflowError):  # a number with more digits than a float has
            parent[name] = dice.choice([-1, 10**3, 10**-3, 10**12, 1.0000001]) * parent[name]


_TREE_MOVES: Final[tuple[Callable[[random.Random, Any, Any, Sequence[bytes]], None], ...]] = (
    _replace, _replace, _remove, _rename, _add, _wrap, _as_text, _in_text, _in_text, _graft, _number,
)  # fmt: skip


# --- bytes -------------------------------------------------------------------------------------------


def _cut(dice: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: dice.randint(0, len(data))]


def _insert(dice: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = dice.randint(0, len(data))
    return data[:at] + dice.choice(BITS) + data[at:]


def _flip(dice: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :]


def _leave_out(dice: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = dice.randint(0, len(data))
    return data[:at] + data[at + dice.randint(1, 20) :]


def _repeat(dice: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = dice.randint(0, len(data))
    part = data[at : at + dice.randint(1, 40)]
    return data[:at] + part * dice.randint(2, 20) + data[at:]


def _splice(dice: random.Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    other = dice.choice(samples)
    return data[: dice.randint(0, len(data))] + other[dice.randint(0, len(other)) :]


def _recode(dice: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data.decode("utf-8", "replace").encode(dice.choice(["utf-16", "utf-32", "latin-1", "utf-8-sig"]), "replace")


_BYTE_MOVES: Final[tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...]] = (
    _cut, _insert, _insert, _flip, _flip, _leave_out, _repeat, _splice, _recode,
)  # fmt: skip


def _grown(dice: random.Random, data: bytes) -> bytes:
    """Repeat a part until it is large."""
    at = dice.randrange(len(data))
    part = data[at : at + dice.randint(1, 60)]
    return data[:at] + part * (dice.randint(2_000, LARGE_MAX) // len(part)) + data[at:]


def smaller(data: bytes, fails: Callable[[bytes], bool], tries: int = 400) -> bytes:
    """Leave out what is not needed to fail, by ever smaller parts."""
    size = max(1, len(data) // 2)
    while tries > 0:
        for start in range(0, len(data), size):
            tries -= 1
            less = data[:start] + data[start + size :]
            if fails(less):
                data = less
                break
            if tries <= 0:
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return data
