"""What a table must have for its sink, whatever the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncebridge.ledgers.findings import Finding, good, wrong
from oncebridge.sinks.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncebridge.settings.sinks.table import TableSettings


def columns_there(settings: TableSettings, columns: Sequence[str]) -> Finding:
    """Judge whether the table has what settings want to write."""
    missing = [column for column, _ in settings.columns if column not in columns]
    if not missing:
        return good("table", f"{settings.table} has every column")
    return wrong(
        "table",
        f"{settings.table} has no column {', '.join(missing)}",
        f"add it, or correct [sinks.{settings.name}.columns]",
    )


def key_is_unique(settings: TableSettings, indexes: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Judge whether the table knows a row by the key of settings; `indexes` are the columns of each unique one."""
    if not settings.key:
        return
    key = ", ".join(settings.key)
    if any(sorted(index) == sorted(settings.key) for index in indexes):
        yield good("key", f"unique by {key}")
        return
    names = ", ".join(quoted(column) for column in settings.key)
    yield wrong(
        "key",
        f"no unique index of {settings.table} is on exactly {key}",
        f"CREATE UNIQUE INDEX ON {settings.table} ({names})",
    )
