"""A bridge for tests of handlers: in memory, on a clock that is moved by hand, and with their exceptions raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from oncebridge.bridge import Bridge
from oncebridge.clock import SystemClock
from oncebridge.errors import ConfigurationError
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings import Settings
from oncebridge.testing.clock import ManualClock

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from oncebridge.engine.limits import BatchLimits
    from oncebridge.engine.result import Result
    from oncebridge.event import Event
    from oncebridge.ledgers.protocol import Ledger

#: Far more than any event is delivered for: the limit of attempts comes first.
_DELIVERIES_MAX: Final = 1000
#: A delivery that no time was named for comes back after this long.
_AGAIN_SECONDS: Final = 1.0


class TestBridge(Bridge):
    """A bridge whose `process` and `process_many` raise what a handler raises, once the event is settled as usual.

    If several deliveries of a batch fail, an `ExceptionGroup` is raised. `lambda_handler` answers as it does in
    production; `deliver` returns results, whatever handlers raise.
    """

    __test__ = False  # for pytest: no class of tests

    def __init__(
        self,
        bridge: Bridge | None = None,
        *,
        ledger: str | Ledger | None = None,
        settings: Settings | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        """Take the handlers of a program's bridge, or none; the program's ledger and sinks are never used.

        Args:
            bridge: The bridge to test; its settings count, except for those that send events somewhere.

            ledger: Where to remember events; in memory unless given.

            settings: Others than those of the bridge.

            clock: The clock of the bridge, and of its ledger in memory; it begins now unless given.

        """
        if not isinstance(bridge, Bridge | None):
            raise ConfigurationError(
                f"TestBridge takes the bridge of your program, not a {type(bridge).__name__}; a ledger is given by "
                "name: TestBridge(app.bridge, ledger=...)"
            )
        #: What handlers have raised, in order.
        self.errors: list[Exception] = []
        #: The result of each delivery, in order.
        self.results: list[Result] = []
        # From now on, so that no captured event is from the future.
        self._manual_clock = clock or ManualClock(SystemClock().now_us())
        given = settings or (Settings() if bridge is None else _alone(bridge.settings))
        kept_in = MemoryLedger(self._manual_clock) if ledger is None else ledger
        super().__init__(kept_in, settings=replace(given, busy_wait_seconds=0.0), clock=self._manual_clock)
        if bridge is not None:
            self._register_all(bridge)

    def _register_all(self, bridge: Bridge) -> None:
        for one in bridge.handlers:
            if not any(one.function is sink for sink in bridge.sinks.values()):
                self.register(one.pattern, one.function, name=one.name, permanent=one.permanent, retry=one.retry)

    @property
    def clock(self) -> ManualClock:
        """The clock of the bridge; `clock.advance(seconds)` moves it."""
        return self._manual_clock

    def process_many(self, raws: Iterable[bytes | str | dict[str, Any]]) -> list[Result]:
        """Process a batch; raise what its handlers have raised, else return the result of each delivery, in order."""
        results = super().process_many(raws)
        raised = _errors(results)
        if len(raised) > 1:
            raise ExceptionGroup(f"{len(raised)} deliveries failed", raised)
        if raised:
            raise raised[0]
        return results

    def deliver(self, raw: bytes | str | dict[str, Any]) -> list[Result]:
        """Deliver an event as a queue does: each time that it is due, until it is acknowledged. Return every result.

        The clock is moved to when the event is due; nothing is waited for, and nothing is raised.
        """
        results: list[Result] = []
        for _ in range(_DELIVERIES_MAX):
            (result,) = super().process_many([raw])
            results.append(result)
            if result.acknowledged:
                return results
            self.clock.advance(result.retry_in_us / 1_000_000 or _AGAIN_SECONDS)
        raise AssertionError(f"not acknowledged after {_DELIVERIES_MAX} deliveries: {results[-1].reason}")

    def _run(self, batch: list[Any], limits: BatchLimits) -> list[Result]:
        results = super()._run(batch, limits)
        self.results += results
        self.errors += _errors(results)
        return results

    def database(self) -> AbstractContextManager[sqlite3.Connection]:
        """Open the tables that handlers with a `transaction` write to: to create them first, and to look at them."""
        if not isinstance(self.ledger, MemoryLedger):
            raise ConfigurationError(
                f"database: {type(self.ledger).__name__} is not in memory; connect to its database as usual"
            )
        return self.ledger.database()


def event_of(raw: bytes | str | dict[str, Any], settings: Settings | None = None) -> Event:
    """Return the event that a handler gets of a delivery, to call the function by itself."""
    events: list[Event] = []
    with TestBridge(settings=settings) as bridge:
        bridge.on("*")(events.append)
        result = bridge.process(raw)
    if not events:
        raise ValueError(f"no handler would get this delivery: {result.reason}")
    return events[0]


def _errors(results: list[Result]) -> list[Exception]:
    """Return what handlers raised; anything that is no `Exception` has been raised by now."""
    return [result.error for result in results if isinstance(result.error, Exception)]


def _alone(settings: Settings) -> Settings:
    """Return settings that send nothing anywhere, and call handlers."""
    return replace(
        settings,
        sinks=(),
        downstream_url=None,
        dead_letter_queue=None,
        dead_letter_bus=None,
        hide_until_retry=False,
        shadow=False,
    )
