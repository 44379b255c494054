"""Read one setting as its type says, and refuse a wrong one with its name, its value and the fix.

A setting is declared once, as a field with a type, a default and a description. Its type has the bounds; msgspec
checks them. A setting that msgspec cannot read, such as a secret by reference, has a reader in its type: `read_by`.

Modules that declare settings do without `from __future__ import annotations`: it would make their types texts, which
take 2 ms to read when a program starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, get_origin

import msgspec
from msgspec import Meta

from oncebridge.errors import ConfigurationError
from oncebridge.strict_json import type_name
from oncebridge.validation import expected, field_types, metadata, no_such, required_type, without_metadata

#: What a setting is, by its name.
Types: TypeAlias = Mapping[str, Any]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Texts: TypeAlias = tuple[Text, ...]


def read_by(read: Callable[[Any], Any], expected: str, *, shown: bool = True) -> Meta:
    """Declare how a setting is read; `read` raises ValueError or TypeError for anything else.

    A value that may be a secret, or hold one, is not shown in errors.
    """
    return Meta(extra={"read": read, "expected": expected, "shown": shown})


def declared(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of the fields that can be set: those that say more of themselves than their type."""
    return {name: type_ for name, type_ in field_types(kind).items() if hasattr(type_, "__metadata__")}


def read_settings(known: Types, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read the settings of one table."""
    return {name: read_setting(known, name, value, f"{where} {name}") for name, value in table.items()}


def read_setting(known: Types, name: str, value: Any, where: str, others: Sequence[str] = ()) -> Any:
    """Read one setting; `others` are names that are known too, elsewhere."""
    if name not in known:
        raise ConfigurationError(f"{where}: {no_such('setting', name, [*known, *others])}")
    return read_value(known[name], value, where)


def read_value(type_: Any, value: Any, where: str) -> Any:
    """Read a value of this type."""
    said = metadata(type_)
    try:
        return said["read"](value) if "read" in said else _converted(value, required_type(type_))
    except (ValueError, TypeError):  # msgspec.ValidationError is a ValueError
        got = f", got {value!r}" if said.get("shown", True) else ""
        raise ConfigurationError(f"{where}: expected {expected(type_)}{got}") from None
    except ConfigurationError as error:
        raise type(error)(f"{where}: {error}") from None


def _converted(value: Any, type_: Any) -> Any:
    plain = without_metadata(type_)
    if get_origin(plain) is tuple:
        value = split(value)
    elif isinstance(value, str) and plain is not str:
        value = value.strip()
    # Texts of the environment may be numbers; but the number 1 is not true.
    return msgspec.convert(value, type_, strict=isinstance(value, int))


def split(value: Any) -> list[Any]:
    """Return the items of a list, which is one text with commas in environment variables."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise TypeError
    return [item.strip() if isinstance(item, str) else item for item in items]


def read_text(value: Any) -> str:
    """Read a text that is not empty."""
    return msgspec.convert(value, Text)


def read_texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts that are not empty."""
    return msgspec.convert(split(value), Texts)


def check_table(value: Any, where: str, table: str, written: str | None = None) -> dict[str, Any]:
    """Expect a table; `written` is how it is written, where its name alone does not say that."""
    if not isinstance(value, dict):
        # A text, or an item of a list, may be a secret.
        got = type_name(value) if isinstance(value, str | list) else repr(value)
        raise ConfigurationError(f"{where}: {table}: expected a table, got {got}; write it as [{written or table}]")
    return value
