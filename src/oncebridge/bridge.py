"""The public interface: register handlers, pass it deliveries."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from oncebridge import forks
from oncebridge.clock import Clock, Stop, SystemClock
from oncebridge.deadletters import DeadLetters
from oncebridge.engine.claimer import ledger_breaker, reach
from oncebridge.engine.flow import Flow
from oncebridge.engine.limits import USUAL, BatchLimits
from oncebridge.engine.paused import Paused
from oncebridge.engine.result import delivered
from oncebridge.engine.runner import check_transaction
from oncebridge.engine.runs import Closed
from oncebridge.engine.unhandled import Unhandled
from oncebridge.errors import ConfigurationError
from oncebridge.handlers import Handlers, uncalled
from oncebridge.ledgers import DAY_US, ledger_from_url, scheme_of
from oncebridge.ledgers.notes import KeepsNotes
from oncebridge.ledgers.protocol import MayBecomeAnother
from oncebridge.settings import Settings, check_policy, load_settings
from oncebridge.settings.secrets import is_reference, read_reference
from oncebridge.settings.sinks.webhook import downstream_sink
from oncebridge.sinks import Breakers, SinkContext, make_sink
from oncebridge.sinks.letters import make_copiers
from oncebridge.sources.lambda_handler import answer
from oncebridge.sources.sqs.postponing import Postponing
from oncebridge.telemetry import Books, Telemetry, debug
from oncebridge.telemetry.counting import Counts, Topics, columns_by_topic
from oncebridge.telemetry.emf import EmbeddedMetrics
from oncebridge.telemetry.otel import observe_with_otel
from oncebridge.topics import Profiles

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from oncebridge.engine.result import Result
    from oncebridge.handlers import Handler
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.retry import RetryPolicy
    from oncebridge.settings.sinks.sink import SinkSettings
    from oncebridge.sinks import Sink
    from oncebridge.worker_journal import WorkerJournal

#: How long events can wait in front of a function, in words.
LAMBDA_HOLDS: Final = (
    "behind a queue as long as it keeps messages and its maxReceiveCount allows; invoked directly for two more tries "
    "within minutes (6 hours at most), then kept as dead letters"
)

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
        shadow: bool = False,
    ) -> None:
        """Take a ledger or its URL. Reads no file, and connects to nothing before the first delivery.

        A shadow judges and counts the deliveries of events that another program handles. It calls no handler, keeps no
        dead letter, and nothing that it remembers makes an event done for a handler.
        """
        self.books = Books()
        self.telemetry = telemetry or Telemetry()
        self._unhandled: Unhandled | None = None
        self._clock = clock or SystemClock()
        self._breaker = ledger_breaker(self._clock)
        self._flow: Flow | None = None
        self._opening = threading.Lock()
        self.stopping = Stop()  # set once `stop` was called
        self._metrics: EmbeddedMetrics | None = None
        self._by_topic: Counts | None = None
        self._journal: WorkerJournal | None = None
        self._paused = Paused()
        self._url: str | None = None
        settings = settings or Settings()
        self._wire(ledger, replace(settings, shadow=True) if shadow else settings)
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: running batches go on in the parent."""

    def after_fork(self, *, in_child: bool) -> None:
        """Start over in the child, as if just made: its first delivery opens the ledger again."""
        if in_child:
            self._flow = None
            self._opening = threading.Lock()
            self.stopping = Stop()

    def _wire(self, ledger: str | Ledger, settings: Settings) -> None:
        """Take a ledger and settings, and make the parts that depend on them."""
        self.settings = replace(settings, ledger=ledger) if isinstance(ledger, str) else settings
        self.ledger: Ledger = _ledger(ledger, settings) if isinstance(ledger, str) else ledger
        #: Where another handle onto the ledger can be had; the ledger in memory has none.
        self._url = ledger if isinstance(ledger, str) and scheme_of(ledger) != "memory" else self._url
        #: Checked for every batch; an isinstance check would take longer.
        self._changeable = self.ledger if isinstance(self.ledger, MayBecomeAnother) else None
        self.handlers = Handlers()
        self._profiles = Profiles(settings.profiles)
        #: By name; the one of `downstream_url` has none.
        self.sinks: dict[str, Sink] = {}
        #: For sinks, and for the parts that send dead letters on.
        self.sink_context = SinkContext(
            clock=self._clock,
            breakers=Breakers(self._clock, self.telemetry.warn),
            ledger=self.ledger,
            retention_us=int(settings.retention_days * DAY_US),
        )
        self._postponing = Postponing(self._clock, self.telemetry.warn) if settings.hide_until_retry else None
        for sink in settings.sinks:
            self._add_sink(sink)
        if settings.shadow and self._by_topic is None:
            self._by_topic = Counts(Topics(profile.topic for profile in settings.profiles))
            self.telemetry.add(self._by_topic)

    def rewire(self, settings: Settings, ledger: str | None = None) -> None:
        """Take other settings, and another ledger if one is named; handlers stay. Not during a batch.

        For commands: options on the command line win over those that a program has given its bridge.
        """
        self.close()
        own = self._own_handlers()
        self._wire(ledger or self.ledger, settings)
        self._take_over(own)

    def _own_handlers(self) -> list[Handler]:
        """Return the handlers that the settings do not name."""
        sinks = [*self.sinks.values()]
        return [handler for handler in self.handlers if not any(handler.function is sink for sink in sinks)]

    def _take_over(self, handlers: Iterable[Handler]) -> None:
        for handler in handlers:
            self.register(
                handler.pattern,
                handler.function,
                name=handler.name,
                permanent=handler.permanent,
                retry=handler.retry,
            )

    def beside(self, *, with_handlers: bool) -> Bridge:
        """Return a bridge on the same ledger by connections of its own, for pages: no worker waits for their reads."""
        settings = replace(self.settings, journal=False)
        if not with_handlers:
            settings = replace(settings, sinks=(), downstream_url=None, shadow=False)
        other = Bridge(self._url or self.ledger, settings=settings, telemetry=self.telemetry, clock=self._clock)
        if with_handlers:
            other._take_over(self._own_handlers())
        return other

    @classmethod
    def from_settings(cls, path: str | os.PathLike[str] | None = None, **given: Any) -> Self:
        """Make a bridge from `oncebridge.toml`, the environment and these arguments."""
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
        self,
        topic: str,
        *,
        name: str = "",
        permanent: tuple[type[Exception], ...] = (),
        retry: RetryPolicy | None = None,
    ) -> Callable[[Function], Function]:
        """Register a handler for a topic, in Genesys' own notation; `*` works too, and alone it matches everything.

        Args:
            topic: Such as `v2.detail.events.conversation.{id}.acw`.

            name: The name that its claims are remembered under. Of several handlers of one event all but one need a
                name; never change it, since under a new name every remembered event is fresh again.

            permanent: Errors that no retry can fix, beside `PermanentError`.

            retry: How often and when it is tried; unless given, as `[retry]` of the settings says.

        """

        def register(function: Function) -> Function:
            self.register(topic, function, name=name, permanent=permanent, retry=retry)
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
        retry: RetryPolicy | None = None,
    ) -> None:
        """Register a handler for this bridge alone, as commands do; that does not list the bridge for `bridges_of`."""
        if retry is not None:
            check_policy(retry, f"handler for {topic!r}: retry")
        handler = self.handlers.add(topic, function, name=name, permanent=permanent, retry=retry)
        if not self.settings.shadow:
            check_transaction(handler, self.ledger)

    def _add_sink(self, settings: SinkSettings) -> None:
        sink = make_sink(settings, self.sink_context)
        self.sinks[settings.name] = sink
        for topic in settings.topics:
            self.handlers.add(topic, sink, name=settings.name, retry=settings.retry)

    def add_downstream(self) -> bool:
        """Register the sink that `downstream_url` names if there is no handler; return whether events are taken now.

        A shadow without handlers takes every event: it calls none anyway.
        """
        if not self.handlers and self.settings.downstream_url is not None:
            self._add_sink(downstream_sink(self.settings.downstream_url))
        return bool(self.handlers) or self.settings.shadow

    def priming(self) -> Bridge:
        """Return a bridge on the same ledger that remembers events as done, and calls no handler.

        For events that another program has handled: given to this bridge later, they are duplicates. They count as done
        for each handler that takes them now, under its name; without handlers, for one without a name. Close it before
        this bridge gets deliveries.
        """
        if self.settings.shadow:
            raise ConfigurationError(
                "shadow: a shadow makes no event done, and priming does; prime without --shadow, ONCEBRIDGE_SHADOW and "
                "`shadow` in the settings"
            )
        self.add_downstream()
        self.close()
        # Without sinks: registered below like other handlers, and never called.
        settings = replace(self.settings, sinks=(), downstream_url=None)
        priming = Bridge(self.ledger, settings=settings, telemetry=self.telemetry, clock=self._clock)
        # One function for each of ours: handlers that share a function have one claim.
        idle = {id(handler.function): partial(uncalled) for handler in self.handlers}
        for handler in self.handlers:
            priming.register(handler.pattern, idle[id(handler.function)], name=handler.name)
        if not self.handlers:
            priming.register("*", uncalled)
        return priming

    def process(self, raw: bytes | str | dict[str, Any]) -> Result:
        """Process one delivery."""
        return self.process_many([raw])[0]

    def process_many(self, raws: Iterable[bytes | str | dict[str, Any]]) -> list[Result]:
        """Process a batch; return the result of each delivery, in order.

        Raises only when the ledger is out of reach (`LedgerUnavailable`), or refuses (`LedgerRefused`): then nothing
        of this batch may be acknowledged. Events settled before the error are duplicates when the batch is redelivered;
        in the books all of it is still retrying. While the ledger stays out of reach further calls raise at once,
        without calling it, except for an occasional probe.
        """
        return self._run(list(raws), USUAL)

    def lambda_handler(self, event: Any, context: Any = None) -> Any:
        """Process an invocation of AWS Lambda, whatever its shape, and reply in that shape's format.

        Failures of queues and streams are named in the reply; otherwise `NotAcknowledged` is raised, so that Lambda
        retries. Near the end of the invocation's time nothing more begins, and the rest is handed back.
        """
        metrics = self._lambda_metrics(context)
        if self._journal is not None:
            self._journal.begin_invocation()
        try:
            return answer(
                self._run,
                event,
                context,
                settings=self.settings,
                clock=self._clock,
                telemetry=self.telemetry,
                postponing=self._postponing,
            )
        finally:
            if metrics is not None:
                metrics.flush()
                if self._journal is not None:
                    self._journal.end_invocation()

    def _lambda_metrics(self, context: Any) -> EmbeddedMetrics | None:
        """Count for CloudWatch from the first real invocation on; a call by hand writes no lines."""
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
                    shadow=self.settings.shadow,
                    silent=lambda: () if self._journal is None else self._journal.silent_topics,
                )
                self.telemetry.add(self._metrics)
                self.start_journal("lambda", holds=LAMBDA_HOLDS)
            return self._metrics

    def start_journal(self, way_in: str, *, holds: str = "") -> None:
        """Write what this worker does into the ledger from now on, for pages and commands that show all workers.

        Args:
            way_in: Where its deliveries come from, as a word: `consume`, `serve`, `lambda`.

            holds: How long deliveries that are not acknowledged can wait there, in words.

        """
        if self._journal is not None or not self.settings.journal or not isinstance(self.ledger, KeepsNotes):
            return
        from oncebridge.worker_journal import WorkerJournal

        apart = self._ledger_apart()
        self._journal = WorkerJournal(
            way_in,
            holds,
            ledger=apart,
            is_apart=apart is not self.ledger,
            settings=self.settings,
            handlers=lambda: self.handlers,
            topics=self.known_topics,
            gauges=self.gauges,
            clock=self._clock,
            warn=self.telemetry.warn,
            paused=self._paused,
            dead_letters=self.dead_letters,
            is_stopping=lambda: self.stopping.is_set(),  # noqa: PLW0108 - a child has another one
        )
        if self._flow is not None:
            self._flow.on_settled = self._journal.tally.settled
            self._journal.look_first()

    def _ledger_apart(self) -> Ledger:
        """Return another handle onto the ledger, so that nothing waits for it; the same one if it has no URL."""
        return self.ledger if self._url is None else _ledger(self._url, self.settings)

    @property
    def dead_letters(self) -> DeadLetters:
        """The dead letters of the ledger, to list, show, redrive and discard."""
        return DeadLetters(self.open)

    def gauges(self) -> dict[str, int]:
        """Return the state at this moment, for metrics: see `oncebridge.telemetry.counting.GAUGES`."""
        return {
            "ledger_out_of_reach": int(self._breaker.is_open),
            "receivers_out_of_reach": self.sink_context.breakers.number_open,
            "books_out_of_balance": max(0, -self.books.as_dict()["retrying"]),
            "silent_topics": 0 if self._journal is None else len(self._journal.silent_topics),
        }

    @property
    def clock(self) -> Clock:
        """The clock that the whole bridge uses."""
        return self._clock

    @property
    def known_topics(self) -> list[str]:
        """The topics that settings and handlers name: each may be a label of metrics, whatever else arrives."""
        profiles, handlers = self.settings.profiles, self.handlers
        return [*(profile.topic for profile in profiles), *(handler.pattern for handler in handlers)]

    @property
    def books_by_topic(self) -> dict[str, dict[str, int]]:
        """The columns of the books for each topic; a shadow alone keeps them."""
        return {} if self._by_topic is None else columns_by_topic(self._by_topic.read())

    def _run(self, batch: list[Any], limits: BatchLimits) -> list[Result]:
        self.books.receive(len(batch))
        self.account(results := self._opened_run(batch, limits))
        return results

    def _opened_run(self, batch: list[Any], limits: BatchLimits) -> list[Result]:
        while True:
            try:
                return self.open().run(batch, limits)
            except Closed:  # by another thread, just now
                continue

    def account(self, results: Sequence[Result]) -> None:
        """Enter the results of deliveries into the books, and report them to observers."""
        if self._journal is not None:
            self._journal.delivered(results)
        self.books.enter(*[result.column for result in results])
        if self.telemetry.observed:
            for move in delivered(results):
                self.telemetry.observe(move)

    def open(self) -> Flow:
        """Connect to the ledger, unless it is open, and return the flow."""
        with self._opening:
            # An earlier flow finishes its own batches: it keeps its thread.
            if self._flow is None or (self._changeable is not None and self._changeable.is_another):
                self._flow = self._make_flow()
            return self._flow

    def _make_flow(self) -> Flow:
        self.add_downstream()
        observe_with_otel(self.telemetry, self._clock, self.known_topics)
        if self._unhandled is None:  # a ledger that is reopened repeats no warnings
            self._unhandled = Unhandled(self.telemetry, self.settings.unhandled, self.known_topics)
            self._unhandled.warn_of_patterns(self.handlers, self.settings.profiles)
            if self.settings.shadow:
                self.telemetry.warn("shadow: events are judged, counted and acknowledged, and no handler is called")
        secret = reach(self._breaker, lambda: self.ledger.open(self.settings.secret))
        if self._journal is not None:
            self._journal.look_first()
        handlers = [{"topic": handler.pattern, "name": handler.name} for handler in self.handlers]
        debug("ledger opened", ledger=repr(self.ledger), settings=repr(self.settings), handlers=handlers)
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
            on_settled=None if self._journal is None else self._journal.tally.settled,
            paused=self._paused,
            copiers=() if self.settings.shadow else make_copiers(self.settings, self.sink_context),
        )

    def stop(self) -> None:
        """Wait for running handlers, give back untried events, and take nothing more. Safe in signal handlers.

        A finished effect is still settled. While the ledger is out of reach this is tried until the lease ends.
        """
        self.stopping.set()

    def close(self) -> None:
        """Wait for running handlers, give back untried events, then close the ledger; safe beside batches.

        It waits for as long as a handler may take. A handler that calls it cannot wait for its own end: then the batch
        closes the ledger when it ends. The next delivery opens it again.
        """
        if self._journal is not None:
            self._journal.stop_requests()
        with self._opening:
            flow, self._flow = self._flow, None
        if flow is not None:
            flow.close(self._let_go)
        if self._journal is not None:
            self._journal.close()

    def _let_go(self) -> None:
        with self._opening:
            if self._flow is not None:
                return  # reopened meanwhile
            self.ledger.close()
            for sink in self.sinks.values():
                sink.close()
            if self._postponing is not None:
                self._postponing.close()


#: The bridges of this process that functions were registered on.
_WITH_HANDLERS: Final[WeakSet[Bridge]] = WeakSet()


def bridges_of(function: Callable[..., Any]) -> list[tuple[Bridge, Handler]]:
    """Return the bridges that a function is registered on, with its name and topics, which only they know."""
    return [
        (bridge, handler) for bridge in [*_WITH_HANDLERS] for handler in bridge.handlers if handler.function is function
    ]


def _ledger(url: str, settings: Settings) -> Ledger:
    url = read_reference(url).value if is_reference(url) else url
    return ledger_from_url(url, retention_us=int(settings.retention_days * DAY_US))
