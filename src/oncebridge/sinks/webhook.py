"""Sends events to a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.event import Event
    from oncebridge.settings.sinks import SinkSettings


class Webhook:
    """Posts each event to one URL."""

    def __init__(self, settings: SinkSettings, clock: Clock) -> None:
        """Take the settings."""

    def __call__(self, event: Event) -> None:
        """Post one event."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the pool."""
