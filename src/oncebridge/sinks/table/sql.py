"""Statements of the sink that writes into a table: made from names in settings, which are quoted, and of nothing else.

Values are never part of a statement. What Postgres and SQLite spell differently is in their `Dialect`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from oncebridge.settings.sinks.table import TableSettings

#: Beside the user's table: which events have taken effect in it.
EFFECTS: Final = "oncebridge_effects"
#: How many old keys are forgotten in one statement: few enough to hold nothing up.
FORGET_AT_ONCE: Final = 500


class Dialect(msgspec.Struct, frozen=True):
    """How one engine spells what the other spells differently."""

    #: A placeholder for one value.
    value: str
    #: Equal, where NULL equals NULL.
    same: str
    #: A column's name -> the text written behind it, so that texts are compared by their bytes.
    by_bytes: Callable[[str], str]


def quoted(name: str) -> str:
    """Write a name so that it stands for itself, reserved words too."""
    return '"' + name.replace('"', '""') + '"'


def qualified(schema: str | None, table: str) -> str:
    """Write a table's name with its schema's, if it has one."""
    return quoted(table) if schema is None else f"{quoted(schema)}.{quoted(table)}"


def parts_of(table: str) -> tuple[str | None, str]:
    """Split the name of a table in settings into its schema's and its own."""
    schema, _, name = table.rpartition(".")
    return schema or None, name


def write_row(settings: TableSettings, dialect: Dialect, table: str, *, source: str | None = None) -> str:
    """Write the statement for one event: a new row, or the newest state of one that is there.

    Args:
        settings: Which columns, and which of them are the key and decide which row is newer.

        dialect: Of the engine.

        table: Its name, quoted.

        source: Another query whose rows say whether the row is written; None: it is.

    """
    columns = [column for column, _ in settings.columns]
    values = ", ".join([dialect.value] * len(columns))
    rows = f"VALUES ({values})" if source is None else f"SELECT {values} FROM {source}"  # nosec B608 # placeholders
    insert = f"INSERT INTO {table} AS kept ({_list(columns)}) {rows}"
    if not settings.key:
        return insert
    others = [column for column in columns if column not in settings.key]
    conflict = f"{insert} ON CONFLICT ({_list(settings.key)})"
    if not others:
        return f"{conflict} DO NOTHING"
    changes = ", ".join(f"{quoted(column)} = excluded.{quoted(column)}" for column in others)
    statement = f"{conflict} DO UPDATE SET {changes}"  # nosec B608 # quoted names
    return statement if settings.newest is None else f"{statement} WHERE {_is_newer(settings, dialect)}"


def _list(columns: tuple[str, ...] | list[str]) -> str:
    return ", ".join(quoted(column) for column in columns)


def _is_newer(settings: TableSettings, dialect: Dialect) -> str:
    """Write when a row replaces the one that is kept: in any order of arrival the same one stays.

    NULL is older than anything, so a row without a time never hides one that has it. Where `newest` is equal `tie`
    decides in the same way, and a row that is equal in both may replace itself.
    """
    assert settings.newest is not None
    new, kept = _sides(settings.newest, dialect)
    newer = f"{new} > {kept} OR ({kept} IS NULL AND {new} IS NOT NULL)"
    equal = f"{new} {dialect.same} {kept}"
    if settings.tie is not None:
        new_tie, kept_tie = _sides(settings.tie, dialect)
        equal += f" AND ({kept_tie} IS NULL OR {new_tie} >= {kept_tie})"
    return f"{newer} OR ({equal})"


def _sides(column: str, dialect: Dialect) -> tuple[str, str]:
    """Write a column of the new row and of the one that is kept, to be compared."""
    return tuple(f"({row}.{quoted(column)}{dialect.by_bytes(column)})" for row in ("excluded", "kept"))  # type: ignore[return-value]
