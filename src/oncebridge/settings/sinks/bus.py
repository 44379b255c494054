"""Settings of the sink that puts events on another EventBridge bus."""

from __future__ import annotations

from typing import Any, Final

from oncebridge.settings.checks import TEXT, Check, check, read_text
from oncebridge.settings.sinks.sink import TOPICS, SinkSettings


class BusSettings(SinkSettings, frozen=True, kw_only=True):
    """Which bus events are put on, and as whose."""

    #: Its name or ARN.
    bus: str
    #: As which source; None: the event's own, without the `aws.partner/` that is Amazon's alone.
    source: str | None = None


def read_bus(name: str, table: dict[str, Any], where: str) -> BusSettings:
    """Check one table."""
    return BusSettings(name=name, **check(BUS, table, where))


_SOURCE_MAX: Final = 256


def _read_source(value: Any) -> str:
    source = read_text(value)
    if source.startswith("aws.") or not source.strip() or len(source) > _SOURCE_MAX:
        raise ValueError
    return source


BUS: Final = {
    "bus": TEXT,
    "topics": TOPICS,
    "source": Check("a text such as genesys.clean, which must not begin with aws., as only Amazon's do", _read_source),
}
