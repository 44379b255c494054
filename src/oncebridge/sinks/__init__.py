"""Sinks: ready-made handlers, made from settings."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from oncebridge.breaker import Breaker, Outage
from oncebridge.clock import Clock
from oncebridge.ledgers.protocol import Ledger
from oncebridge.settings.sinks.bus import BusSettings
from oncebridge.settings.sinks.queue import QueueSettings
from oncebridge.settings.sinks.sink import SinkSettings
from oncebridge.settings.sinks.table import TableSettings
from oncebridge.settings.sinks.webhook import WebhookSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.sinks.promise import SinkPromise

#: Settings -> module and class. One line per kind of sink; modules are imported when one is first used.
KINDS: Final[dict[type[SinkSettings], tuple[str, str]]] = {
    WebhookSettings: ("webhook", "Webhook"),
    BusSettings: ("bus", "Bus"),
    QueueSettings: ("queue", "Queue"),
    TableSettings: ("table.sink", "make_table"),
}


class Sink(Protocol):
    """A handler that is made from settings. May be called from several threads at once.

    One that sends events together has `many` and `send_many` too, as `handlers.SendsMany` says.
    """

    @property
    def promise(self) -> SinkPromise:
        """How often an event takes effect there, and why."""
        ...

    def __call__(self, event: Any) -> None:
        """Send one event."""
        ...

    def close(self) -> None:
        """Close connections; the sink may be used again."""
        ...


class Breakers:
    """A breaker for each host: what one sink learns of a host, every other that sends there knows too."""

    def __init__(self, clock: Clock, warn: Callable[[str], None] = lambda _: None) -> None:
        """Start with none; take the function that says that a host is out of reach, and that it is back."""
        self._clock = clock
        self._warn = warn
        self._by_host: dict[str, Breaker] = {}

    def of(self, host: str) -> Breaker:
        """Return the breaker of a host and its port."""
        found = self._by_host.get(host)
        if found is None:
            outage = Outage(
                self._warn,
                f"{host} is in reach again",
                prefix=f"{host} is left alone until it is back, and what is for it waits: ",
            )
            found = self._by_host.setdefault(host, Breaker(self._clock, outage=outage))
        return found

    @property
    def number_open(self) -> int:
        """How many hosts are left alone now."""
        return sum(breaker.is_open for breaker in [*self._by_host.values()])


class SinkContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink gets from the bridge that it belongs to."""

    clock: Clock
    breakers: Breakers
    ledger: Ledger
    #: How long the ledger remembers an event that is done.
    retention_us: int


def make_sink(settings: SinkSettings, context: SinkContext) -> Sink:
    """Make the sink that settings describe."""
    module, name = KINDS[type(settings)]
    sink: Sink = getattr(import_module(f"oncebridge.sinks.{module}"), name)(settings, context)
    return sink
