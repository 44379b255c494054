"""The public face: register handlers, give it deliveries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from oncebridge import forks
from oncebridge.clock import Clock, Stop, SystemClock
from oncebridge.deadletters import DeadLetters
from oncebridge.engine.claimer import ledger_breaker, reach
from oncebridge.engine.flow import Flow
from oncebridge.engine.limits import USUAL, BatchLimits
from oncebridge.engine.result import delivered
from oncebridge.engine.runner import check_transaction
from oncebridge.engine.runs import Closed
from oncebridge.engine.unhandled import Unhandled
from oncebridge.genesys_topics import is_known, looks_like_one, nearest
from oncebridge.handlers import Handlers
from oncebridge.ledgers import DAY_US, ledger_from_url
from oncebridge.ledgers.protocol import MayBecomeAnother
from oncebridge.settings import Settings, load_settings
from oncebridge.settings.secrets import is_reference, read_reference
from oncebridge.settings.sinks.webhook import downstream_sink
from oncebridge.sinks import Breakers, SinkContext, make_sink
from oncebridge.sinks.letters import make_copiers
from oncebridge.sources.lambda_handler import answer
from oncebridge.telemetry import Books, Telemetry
from oncebridge.telemetry.emf import EmbeddedMetrics
from oncebridge.telemetry.otel import observe_with_otel
from oncebridge.topics import Profiles

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from oncebridge.engine.result import Result
    from oncebridge.handlers import Handler
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.settings.sinks.sink import SinkSettings
    from oncebridge.sinks import Sink

Function = TypeVar("Function", bound="Callable[..., Any]")


class Bridge:
    """Makes at-least-once delivery of events take effect once."""

    def __init__(
        self,
        ledger: str | Ledger,
        *,
        settings: Settings | None = None,
        telemetry: Telemetry | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take a ledger or its URL. Reads no file and connects to nothing before the first delivery."""
        self.books = Books()
        self.telemetry = telemetry or Telemetry()
        self._unhandled: Unhandled | None = None
        self._clock = clock or SystemClock()
        self._breaker = ledger_breaker(self._clock)
        self._flow: Flow | None = None
        self._opening = threading.Lock()
        #: Set once it was told to stop.
        self.stopping = Stop()
        self._metrics: EmbeddedMetrics | None = None
        self._wire(ledger, settings or Settings())
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: batches that run go on in the parent."""

    def after_fork(self, *, in_child: bool) -> None:
        """Begin anew in the child, as if just made: the ledger is opened again for its first delivery."""
        if in_child:
            self._flow = None
            self._opening = threading.Lock()
            self.stopping = Stop()

    def _wire(self, ledger: str | Ledger, settings: Settings) -> None:
        """Take a ledger and settings, and make what hangs on them."""
        self.settings = replace(settings, ledger=ledger) if isinstance(ledger, str) else settings
        self.ledger: Ledger = _ledger(ledger, settings) if isinstance(ledger, str) else ledger
        #: Looked at for every batch, and that it is one of these takes longer to find out.
        self._changeable = self.ledger if isinstance(self.ledger, MayBecomeAnother) else None
        self.handlers = Handlers()
        self._profiles = Profiles(settings.profiles)
        #: By name; the one of `downstream_url` has none.
        self.sinks: dict[str, Sink] = {}
        #: For sinks, and for what sends dead letters on.
        self.sink_context = SinkContext(
            clock=self._clock,
            breakers=Breakers(self._clock, self.telemetry.warn),
            ledger=self.ledger,
            retention_us=int(settings.retention_days * DAY_US),
        )
        for sink in settings.sinks:
            self._add_sink(sink)

    def rewire(self, settings: Settings, ledger: str | None = None) -> None:
        """Take other settings, and another ledger if one is named; handlers stay. Not beside a running batch.

        For commands: what stands on the command line wins over what a program has given its bridge.
        """
        self.close()
        sinks = [*self.sinks.values()]
        own = [handler for handler in self.handlers if not any(handler.function is sink for sink in sinks)]
        self._wire(ledger or self.ledger, settings)
        for handler in own:
            self.register(handler.pattern, handler.function, name=handler.name, permanent=handler.permanent)

    @classmethod
    def from_settings(cls, path: str | os.PathLike[str] | None = None, **given: Any) -> Self:
        """Make a bridge from `oncebridge.toml`, the environment and what is given here."""
        settings = load_settings(path, **given)
        return cls(settings.ledger, settings=settings)

    def __repr__(self) -> str:
        """Show the ledger and the books."""
        return f"<Bridge {self.ledger!r} {self.books!r}>"

    def __enter__(self) -> Self:
        """Open the ledger."""
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def on(
        self, topic: str, *, name: str = "", permanent: tuple[type[Exception], ...] = ()
    ) -> Callable[[Function], Function]:
        """Register a handler for a topic, in Genesys' own notation; `*` works too, alone it is everything.

        Args:
            topic: Such as `v2.detail.events.conversation.{id}.acw`.

            name: Under which its claims are remembered. Of several handlers of one event all but one need a
                name; keep it for good, since under a new name every remembered event is fresh again.

            permanent: Errors that trying again cannot mend, beside `PermanentError`.

        """

        def register(function: Function) -> Function:
            self.register(topic, function, name=name, permanent=permanent)
            _WITH_HANDLERS.add(self)
            return function

        return register

    def register(
        self,
        topic: str,
        function: Callable[..., Any],
        *,
        name: str = "",
        permanent: tuple[type[Exception], ...] = (),
    ) -> None:
        """Register a handler for this bridge alone, as commands do: nobody is told that it belongs to one."""
        handler = self.handlers.add(topic, function, name=name, permanent=permanent)
        check_transaction(handler, self.ledger)

    def _add_sink(self, settings: SinkSettings) -> None:
        sink = make_sink(settings, self.sink_context)
        self.sinks[settings.name] = sink
        for topic in settings.topics:
            self.handlers.add(topic, sink, name=settings.name)

    def add_downstream(self) -> bool:
        """Register the sink that `downstream_url` names if there is no handler; tell whether there is one now."""
        if not self.handlers and self.settings.downstream_url is not None:
            self._add_sink(downstream_sink(self.settings.downstream_url))
        return bool(self.handlers)

    def process(self, raw: bytes | str | dict[str, Any]) -> Result:
        """Work one delivery off."""
        return self.process_many([raw])[0]

    def process_many(self, raws: Iterable[bytes | str | dict[str, Any]]) -> list[Result]:
        """Work a batch off; return what became of each delivery, in order.

        Raises only when the ledger is out of reach (`LedgerUnavailable`), or refuses (`LedgerRefused`): then nothing
        of this batch may be acknowledged. What was settled before that is a duplicate when the batch comes again;
        in the books all of it is still retrying. While the ledger stays out of reach further calls raise at once,
        without asking it, but for one now and then that looks whether it is back.
        """
        return self._run(list(raws), USUAL)

    def lambda_handler(self, event: Any, context: Any = None) -> Any:
        """Work off what AWS Lambda hands over, whatever its shape, and answer as that shape wants it.

        Failures of queues and streams are named in the answer; otherwise `NotAcknowledged` is raised, so that Lambda
        tries again. Near the end of the invocation's time no more is begun, and the rest is handed back.
        """
        metrics = self._lambda_metrics(context)
        try:
            return answer(
                self._run,
                event,
                context,
                settings=self.settings,
                clock=self._clock,
                telemetry=self.telemetry,
            )
        finally:
            if metrics is not None:
                metrics.flush()

    def _lambda_metrics(self, context: Any) -> EmbeddedMetrics | None:
        """Count for CloudWatch from the first real invocation on; what is called by hand writes no lines."""
        function = getattr(context, "function_name", None)
        if not isinstance(function, str):
            return None
        with self._opening:
            if self._metrics is None:
                self._metrics = EmbeddedMetrics(
                    namespace=self.settings.metrics_namespace,
                    function=function,
                    clock=self._clock,
                    known=self.known_topics,
                )
                self.telemetry.add(self._metrics)
            return self._metrics

    @property
    def dead_letters(self) -> DeadLetters:
        """The dead letters of the ledger, to list, show, redrive and discard."""
        return DeadLetters(self.open)

    @property
    def clock(self) -> Clock:
        """The clock that everything here goes by."""
        return self._clock

    @property
    def known_topics(self) -> list[str]:
        """The topics that settings and handlers name: each may be a label of metrics, whatever comes in beside them."""
        profiles, handlers = self.settings.profiles, self.handlers
        return [*(profile.topic for profile in profiles), *(handler.pattern for handler in handlers)]

    def _run(self, batch: list[Any], limits: BatchLimits) -> list[Result]:
        self.books.receive(len(batch))
        results = self._opened_run(batch, limits)
        self.account(results)
        return results

    def _opened_run(self, batch: list[Any], limits: BatchLimits) -> list[Result]:
        while True:
            try:
                return self.open().run(batch, limits)
            except Closed:  # by another thread, just now
                continue

    def account(self, results: Sequence[Result]) -> None:
        """Enter what became of deliveries into the books, and tell whoever counts."""
        self.books.enter(*[result.column for result in results])
        if self.telemetry.observed:
            for move in delivered(results):
                self.telemetry.observe(move)

    def open(self) -> Flow:
        """Connect to the ledger, if that has not been done, and return the flow."""
        with self._opening:
            # What a flow before has under way ends in it: its thread is left to it.
            if self._flow is None or (self._changeable is not None and self._changeable.is_another):
                self._flow = self._make_flow()
            return self._flow

    def _warn_of_topics(self) -> None:
        """Say which handlers may never get an event, because their pattern takes no topic that is known."""
        own = [profile.topic for profile in self.settings.profiles]
        for pattern in dict.fromkeys(handler.pattern for handler in self.handlers):
            # Topics of one's own making are known to nobody, and right.
            if not is_known(pattern, own) and looks_like_one(pattern):
                near = nearest(pattern)
                meant = f"; did you mean {near}?" if near else ""
                self.telemetry.warn(f"handler for {pattern}: no known topic of Genesys matches{meant}", topic=pattern)

    def _make_flow(self) -> Flow:
        self.add_downstream()
        observe_with_otel(self.telemetry, self._clock, self.known_topics)
        if self._unhandled is None:  # a ledger that is opened anew repeats no warnings
            self._unhandled = Unhandled(self.telemetry, self.settings.unhandled, self.known_topics)
            self._warn_of_topics()
        secret = reach(self._breaker, lambda: self.ledger.open(self.settings.secret))
        return Flow(
            self.ledger,
            secret,
            handlers=self.handlers,
            profiles=self._profiles,
            settings=self.settings,
            telemetry=self.telemetry,
            clock=self._clock,
            breaker=self._breaker,
            stopping=self.stopping,
            on_unhandled=self._unhandled,
            copiers=make_copiers(self.settings, self.sink_context),
        )

    def stop(self) -> None:
        """Let running handlers finish, give back what was not tried, take nothing more. Safe in signal handlers.

        An effect that is done is still settled. While the ledger is out of reach that is tried until the lease is over.
        """
        self.stopping.set()

    def close(self) -> None:
        """Let running handlers finish, give back what was not tried, then let go of the ledger; safe beside batches.

        It waits for as long as a handler may take. A handler that calls it cannot wait for its own end: then the batch
        lets go when it is over. The next delivery opens the ledger again.
        """
        with self._opening:
            flow, self._flow = self._flow, None
        if flow is not None:
            flow.close(self._let_go)

    def _let_go(self) -> None:
        with self._opening:
            if self._flow is not None:
                return  # opened again meanwhile
            self.ledger.close()
            for sink in self.sinks.values():
                sink.close()


#: The bridges of this process that functions were registered on.
_WITH_HANDLERS: Final[WeakSet[Bridge]] = WeakSet()


def bridges_of(function: Callable[..., Any]) -> list[tuple[Bridge, Handler]]:
    """Return the bridges that a function is registered on, and as what: its name and topics are only known there."""
    return [
        (bridge, handler) for bridge in [*_WITH_HANDLERS] for handler in bridge.handlers if handler.function is function
    ]


def _ledger(url: str, settings: Settings) -> Ledger:
    url = read_reference(url).value if is_reference(url) else url
    return ledger_from_url(url, retention_us=int(settings.retention_days * DAY_US))
