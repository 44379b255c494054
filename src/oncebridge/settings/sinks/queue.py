"""Settings of the sink that sends events to an SQS queue."""

from __future__ import annotations

from typing import Any, Final

from oncebridge.settings.checks import TEXT, check
from oncebridge.settings.expressions import Search
from oncebridge.settings.sinks.sink import BODY, TOPICS, SinkSettings


class QueueSettings(SinkSettings, frozen=True, kw_only=True):
    """Which queue events are sent to, and what of them."""

    #: Its URL; one that ends in `.fifo` gets each event under its key, in the order of its entity.
    queue: str
    #: What is sent, as a JMESPath expression over the envelope; None: the envelope as it came.
    body: Search | None = None


def read_queue(name: str, table: dict[str, Any], where: str) -> QueueSettings:
    """Check one table."""
    return QueueSettings(name=name, **check(QUEUE, table, where))


QUEUE: Final = {
    "queue": TEXT,
    "topics": TOPICS,
    "body": BODY,
}
