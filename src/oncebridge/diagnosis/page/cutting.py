"""Cuts a diagnosis to what fits on a page: fewer entries, shorter texts, numbers that can be drawn."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from oncebridge import charts
from oncebridge.diagnosis.diagnosis import EXAMPLES_MAX, TOPICS_MAX, Cause, Diagnosis
from oncebridge.quantities import tame

S = TypeVar("S", bound=msgspec.Struct)

#: Fields that hold sentences; all other texts are names.
_PROSE: Final = frozenset(
    ("answer", "chat", "evidence", "advice", "reason", "what", "text", "compares", "redis_text", "retention_text",
     "settings", "command", "skipped")
)  # fmt: skip
_STEPS_MAX: Final = 120  # of what is drawn over time or over lags


class Room(NamedTuple):
    """How much of each there is room for."""

    prose: int  # characters of a sentence
    name: int  # characters of a topic, an id, a place
    rows: int  # entries of a list that is shown as a table
    lines: int  # files, and what could not be read
    examples: int


#: From all that a capture gives to what fits in any case.
ROOMS: Final = (
    Room(prose=600, name=160, rows=TOPICS_MAX, lines=50, examples=EXAMPLES_MAX),
    Room(prose=400, name=100, rows=30, lines=20, examples=2),
    Room(prose=200, name=70, rows=15, lines=10, examples=1),
    Room(prose=100, name=40, rows=10, lines=5, examples=1),
    Room(prose=60, name=24, rows=6, lines=2, examples=0),
)


class Cut(NamedTuple):
    """What is left of a diagnosis, and what was left out: how many, by record and field ("Advice.topic_pairs")."""

    diagnosis: Diagnosis
    left_out: Counter[str]


def cut(diagnosis: Diagnosis, room: Room) -> Cut:
    """Cut a diagnosis so that it fits in this room."""
    left_out: Counter[str] = Counter()
    fitting = _struct(diagnosis, room, left_out)
    beyond = int(tame(fitting.topics_left_out + left_out["Diagnosis.topics"]))
    return Cut(msgspec.structs.replace(fitting, topics_left_out=beyond), left_out)


def _struct(value: S, room: Room, left_out: Counter[str]) -> S:
    kind = type(value)
    fields = {
        name: _value(getattr(value, name), f"{kind.__name__}.{name}", room, left_out) for name in kind.__struct_fields__
    }
    return kind(**fields)


def _value(value: Any, field: str, room: Room, left_out: Counter[str]) -> Any:
    name = field.rpartition(".")[2]
    if isinstance(value, StrEnum) or value is None:
        return value
    if isinstance(value, str):
        return _text(value, room.prose if name in _PROSE else room.name, left_out)
    if isinstance(value, (int, float)):
        return tame(value)
    if isinstance(value, msgspec.Struct):
        return _struct(value, room, left_out)
    if isinstance(value, dict):  # by cause
        return dict(_value([*value.items()][: len(Cause)], field, room, left_out))
    return _entries(value, field, room, left_out)


def _entries(value: Any, field: str, room: Room, left_out: Counter[str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_value(item, field, room, left_out) for item in value)
    kept = value[: _length(field.rpartition(".")[2], room)]
    if len(kept) < len(value):
        left_out[field] += len(value) - len(kept)
    return [_value(item, field, room, left_out) for item in kept]


def _length(name: str, room: Room) -> int:
    if name in ("examples", "lost_examples", "let_through_examples"):
        return room.examples
    if name in ("files", "skipped"):
        return room.lines
    if name in ("deliveries", "duplicates", "edges", "counts"):
        return _STEPS_MAX
    return room.rows


def _text(text: str, most: int, left_out: Counter[str]) -> str:
    shown = charts.shortened(text, most)
    if shown.count("…") > text.count("…"):
        left_out["texts"] += 1
    return shown
