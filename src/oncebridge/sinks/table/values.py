"""An event as the values of a row: what the expressions in settings find in it, with every number as it was written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from oncebridge.errors import PermanentError, SaysWhy
from oncebridge.sinks.event_tree import event_tree

if TYPE_CHECKING:
    from oncebridge.event import Event
    from oncebridge.settings.sinks.table import TableSettings


class NothingForKey(PermanentError, SaysWhy):
    """What a row is known by is not in this event."""


class _Written(float):
    """A number that remembers how it was written: as a float, 1.10 is 1.1 and long ones lose their last digits."""

    __slots__ = ("text",)

    def __new__(cls, text: str) -> Self:
        """Read a number."""
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


_Written.__name__ = "float"  # JMESPath tells types by their names


def values_of(event: Event, settings: TableSettings) -> list[Any]:
    """Return what an event has for each column; None where it has nothing."""
    context = event_tree(event, decoded(event))
    values = [search(context) for _, search in settings.columns]
    for (column, _), value in zip(settings.columns, values, strict=True):
        if value is None and column in settings.key:
            raise NothingForKey(f"key column {column}: its expression finds nothing in this event")
    return values


def decoded(event: Event) -> Any:
    """Read what arrived, every number as written; usually the quick reader forgets nothing, which the event knows."""
    if event.exact is event.body:
        return msgspec.json.decode(event.raw)
    return json.loads(event.raw, parse_float=_Written)


def as_json(value: Any) -> str:
    """Write a value as JSON."""
    return _encode(value).decode()


def as_text(value: Any) -> str | None:
    """Write a value as a text from which a column of any type can read it; objects and lists as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, _Written):
        return value.text
    return as_json(value) if isinstance(value, (bool, dict, list)) else repr(value)


def _as_written(value: Any) -> Any:
    if isinstance(value, _Written):
        return msgspec.Raw(value.text.encode())
    raise TypeError(f"no JSON for {type(value).__name__}")


_encode: Final = msgspec.json.Encoder(enc_hook=_as_written).encode
