"""Settings of the sink that sends events to an SQS queue."""

from typing import Annotated, Any

from msgspec import Meta

from oncebridge.settings.reading import Text, declared, read_settings
from oncebridge.settings.sinks.sink import Body, SinkSettings


class QueueSettings(SinkSettings, frozen=True, kw_only=True):
    """Which queue events are sent to, and what of them."""

    queue: Annotated[
        Text,
        Meta(description="its URL; a FIFO queue gets each event under its key, in the order of its entity"),
    ]
    body: Body = None


def read_queue(name: str, table: dict[str, Any], where: str) -> QueueSettings:
    """Check one table."""
    return QueueSettings(name=name, **read_settings(declared(QueueSettings), table, where))
