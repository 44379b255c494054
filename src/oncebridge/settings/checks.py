"""What a setting must be, and errors that name it, its value and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from oncebridge.errors import ConfigurationError
from oncebridge.strict_json import type_name


class Check(msgspec.Struct, frozen=True):
    """What a setting must be: in words, and as a function that raises ValueError for anything else."""

    expected: str
    read: Callable[[Any], Any]
    #: Whether an error may show the value: not where somebody may have put a secret by mistake.
    shown: bool = True


def number(low: float, high: float) -> Check:
    """Expect a number between these."""

    def read(value: Any) -> float:
        found = float(value)
        if isinstance(value, bool) or not low <= found <= high:
            raise ValueError
        return found

    return Check(f"a number from {low:g} to {high:g}", read)


def whole(low: int, high: int) -> Check:
    """Expect a whole number between these."""

    def read(value: Any) -> int:
        found = int(value)
        if isinstance(value, bool) or found != float(value) or not low <= found <= high:
            raise ValueError
        return found

    return Check(f"a whole number from {low} to {high}", read)


def one_of(*words: str) -> Check:
    """Expect one of these words."""

    def read(value: Any) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return Check(" or ".join(f'"{word}"' for word in words), read)


def read_text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _read_flag(value: Any) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in known:
        raise ValueError
    return known[value.lower()]


def read_texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts; in the environment they stand in one, with commas between them."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError  # noqa: TRY004 - the caller says what was expected
    return tuple(read_text(item.strip() if isinstance(item, str) else item) for item in items)


TEXT: Final = Check("a text that is not empty", read_text)
TEXTS: Final = Check("a list of texts", read_texts)
FLAG: Final = Check("true or false", _read_flag)


def check(known: Mapping[str, Check], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check the settings of one table."""
    return {name: check_one(known, name, value, f"{where} {name}") for name, value in given.items()}


def check_one(known: Mapping[str, Check], name: str, value: Any, where: str, others: Sequence[str] = ()) -> Any:
    """Check one setting; `others` are names that are known too, elsewhere."""
    if name not in known:
        names = [*known, *others]
        close = difflib.get_close_matches(name, names, n=1)
        fix = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
        raise ConfigurationError(f"{where}: no such setting; {fix}")
    try:
        return known[name].read(value)
    except (ValueError, TypeError, OverflowError):
        got = f", got {value!r}" if known[name].shown else ""
        raise ConfigurationError(f"{where}: expected {known[name].expected}{got}") from None
    except ConfigurationError as error:
        raise type(error)(f"{where}: {error}") from None


def check_table(value: Any, where: str, table: str, written: str | None = None) -> dict[str, Any]:
    """Expect a table; `written` is how it is, where that is not simply by its name."""
    if not isinstance(value, dict):
        # Texts, and whatever is in a list, may be somebody's secret.
        got = type_name(value) if isinstance(value, str | list) else repr(value)
        raise ConfigurationError(f"{where}: {table}: expected a table, got {got}; write it as [{written or table}]")
    return value
