"""Describes a worker to those who look at all of them."""

from __future__ import annotations

import os
import secrets
import socket
from functools import cache
from typing import TYPE_CHECKING

from oncebridge import forks
from oncebridge.handler_signature import name_of
from oncebridge.journal.records import HandlerSeen, WorkerSeen
from oncebridge.sinks.promise import AT_LEAST_ONCE, EXACTLY_ONCE, SinkPromise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oncebridge.clock import Clock
    from oncebridge.engine.paused import Paused
    from oncebridge.handlers import Handler
    from oncebridge.journal.tally import Tally


class Worker:
    """This process, as the journal names it."""

    def __init__(
        self,
        way_in: str,
        holds: str,
        *,
        handlers: Callable[[], Iterable[Handler]],
        gauges: Callable[[], dict[str, int]],
        clock: Clock,
        paused: Paused,
        silent: Callable[[], Iterable[str]] = tuple,
        takes_requests: bool = False,
    ) -> None:
        """Take where its deliveries come from, its handlers, and its state."""
        self._way_in, self._holds = way_in, holds
        self._paused, self._silent, self._takes_requests = paused, silent, takes_requests
        self._handlers, self._gauges = handlers, gauges
        self._clock = clock
        self._begin()
        forks.register(self)

    def _begin(self) -> None:
        host = "".join(letter for letter in socket.gethostname() if letter.isalnum() or letter in ".-")[:40]
        self.name = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
        self._started_ms = self._clock.now_us() // 1000

    def before_fork(self) -> None:
        """Do nothing."""

    def after_fork(self, *, in_child: bool) -> None:
        """Be another worker in the child."""
        if in_child:
            self._begin()

    def seen(self, tally: Tally) -> WorkerSeen:
        """Return this worker as it is now."""
        gauges = self._gauges()
        waiting, oldest_ms = tally.waiting()
        return WorkerSeen(
            name=self.name,
            way_in=self._way_in,
            version=_version(),
            started_ms=self._started_ms,
            handlers=described(self._handlers()),
            ledger_out_of_reach=bool(gauges["ledger_out_of_reach"]),
            receivers_out_of_reach=gauges["receivers_out_of_reach"],
            waiting=waiting,
            oldest_waiting_ms=oldest_ms,
            holds=self._holds,
            takes_requests=self._takes_requests,
            paused=tuple(sorted(self._paused.reasons)),
            silent=tuple(sorted(self._silent())),
        )


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # takes longer than all else here; only pages show it

    try:
        return version("oncebridge")
    except PackageNotFoundError:  # a function's zip is often made without what installers write
        return "unknown"


def described(handlers: Iterable[Handler]) -> tuple[HandlerSeen, ...]:
    """Describe handlers, each once with all its topics."""
    topics: dict[tuple[str, int], list[str]] = {}
    first: dict[tuple[str, int], Handler] = {}
    for handler in handlers:
        at = handler.name, id(handler.function)
        first.setdefault(at, handler)
        topics.setdefault(at, []).append(handler.pattern)
    return tuple(
        HandlerSeen(
            name=handler.name, topics=tuple(topics[at]), kind=name_of(handler.function), promise=_promise(handler)
        )
        for at, handler in first.items()
    )


def _promise(handler: Handler) -> str:
    own = getattr(handler.function, "promise", None)
    if isinstance(own, SinkPromise):
        return own.level
    return EXACTLY_ONCE if handler.wants_transaction else AT_LEAST_ONCE
