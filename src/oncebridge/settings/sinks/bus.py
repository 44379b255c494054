"""Settings of the sink that puts events on another EventBridge bus."""

from typing import Annotated, Any, Final

from msgspec import Meta

from oncebridge.settings.reading import Text, declared, read_by, read_settings, read_text
from oncebridge.settings.sinks.sink import SinkSettings

_SOURCE_MAX: Final = 256


def _read_source(value: Any) -> str:
    source = read_text(value)
    if source.startswith("aws.") or not source.strip() or len(source) > _SOURCE_MAX:
        raise ValueError
    return source


class BusSettings(SinkSettings, frozen=True, kw_only=True):
    """Which bus events are put on, and as whose."""

    bus: Annotated[Text, Meta(description="its name or ARN")]
    source: Annotated[
        str | None,
        read_by(_read_source, "a text such as genesys.clean, which must not begin with aws., as only Amazon's do"),
        Meta(description="as which source; without it the event's own, less `aws.partner/`, which is Amazon's alone"),
    ] = None


def read_bus(name: str, table: dict[str, Any], where: str) -> BusSettings:
    """Check one table."""
    return BusSettings(name=name, **read_settings(declared(BusSettings), table, where))
