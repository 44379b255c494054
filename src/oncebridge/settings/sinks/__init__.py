"""Sinks by settings: the tables `[sinks.NAME]`. Where a sink sends to says of which kind it is."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from oncebridge.errors import ConfigurationError
from oncebridge.handlers import overlap
from oncebridge.settings.reading import check_table
from oncebridge.settings.sinks.bus import read_bus
from oncebridge.settings.sinks.queue import read_queue
from oncebridge.settings.sinks.sink import SinkSettings
from oncebridge.settings.sinks.table import read_table
from oncebridge.settings.sinks.webhook import read_webhook

if TYPE_CHECKING:
    from collections.abc import Callable

#: The setting that says where a sink sends to -> what reads the table. One line per kind of sink.
KINDS: Final[dict[str, Callable[[str, dict[str, Any], str], SinkSettings]]] = {
    "url": read_webhook,
    "bus": read_bus,
    "queue": read_queue,
    "database": read_table,
}
_EXAMPLES: Final = (
    'url = "https://crm.example/events", bus = "clean", queue = "https://sqs..." or database = "env:DATABASE_URL"'
)
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,40}")


def read_sink(name: str, given: Any, file: str) -> SinkSettings:
    """Check one table."""
    where = f"{file}: [sinks.{name}]"
    if not NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: a name has up to 40 letters, digits, . _ and -")
    table = {**check_table(given, file, f"sinks.{name}")}
    table.pop("retry", None)  # read by itself, since it may rely on `[retry]`
    kinds = [kind for kind in KINDS if kind in table]
    if not kinds:
        raise ConfigurationError(f"{where}: does not say where the events go; add {_EXAMPLES}")
    if len(kinds) > 1:
        raise ConfigurationError(f"{where}: has both {kinds[0]} and {kinds[1]}; make them two sinks, each with a name")
    sink = KINDS[kinds[0]](name, table, where)
    _refuse_twins(sink, where)
    return sink


def _refuse_twins(sink: SinkSettings, where: str) -> None:
    """Refuse topics that would give a sink an event twice."""
    for one, other in combinations(sink.topics, 2):
        if overlap(one, other):
            raise ConfigurationError(
                f"{where} topics: {one!r} and {other!r} may both take the same event; keep the wider one"
            )
