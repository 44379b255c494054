"""Settings of the sink that writes events into a table."""

from __future__ import annotations

from typing import Any

from oncebridge.settings.expressions import Search
from oncebridge.settings.secrets import Secret
from oncebridge.settings.sinks.sink import SinkSettings


class TableSettings(SinkSettings, frozen=True, kw_only=True):
    """Which table events are written into, and which of their fields become which columns."""

    #: `ledger` for the ledger's own database; otherwise its URL, which may hold a password.
    database: str | Secret
    table: str
    #: Column -> JMESPath expression over the envelope, with `oncebridge` (key, topic, time and so on) beside `detail`.
    columns: tuple[tuple[str, Search], ...]
    #: Columns that a row is known by; empty: every event is a row of its own.
    key: tuple[str, ...] = ()
    #: The column that says which of two rows is newer; None: the one that was written later.
    newest: str | None = None
    #: The column that decides where those are equal: the larger one stays. None: the one that was written later.
    tie: str | None = None


def read_table(name: str, table: dict[str, Any], where: str) -> TableSettings:
    """Check one table."""
    raise NotImplementedError
