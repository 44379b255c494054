"""Sinks: ready-made handlers, by the scheme of their URL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from oncebridge.breaker import Breaker
from oncebridge.errors import ConfigurationError

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.settings.sinks import SinkSettings

#: URL scheme -> module and class. One line per scheme; modules are imported when one is first used.
SCHEMES: Final = {
    "https": ("webhook", "Webhook"),
    "http": ("webhook", "Webhook"),
}


class Sink(Protocol):
    """A handler that is made from settings. May be called from several threads at once."""

    def __call__(self, event: Any) -> None:
        """Send one event."""
        ...

    def close(self) -> None:
        """Let go of connections; the sink may be used again."""
        ...


class Breakers:
    """A breaker for each host: what one sink learns of a host, every other that sends there knows too."""

    def __init__(self, clock: Clock) -> None:
        """Start with none."""
        self._clock = clock
        self._by_host: dict[str, Breaker] = {}

    def of(self, host: str) -> Breaker:
        """Return the breaker of a host and its port."""
        return self._by_host.setdefault(host, Breaker(self._clock))


def make_sink(settings: SinkSettings, clock: Clock, breakers: Breakers) -> Sink:
    """Make the sink that settings describe."""
    scheme = settings.url.partition("://")[0].lower()
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"sink {settings.name or 'downstream_url'}: url: expected one that starts with "
            f"{', '.join(f'{known}://' for known in SCHEMES)}"
        )
    module, name = SCHEMES[scheme]
    sink: Sink = getattr(import_module(f"oncebridge.sinks.{module}"), name)(settings, clock, breakers)
    return sink
