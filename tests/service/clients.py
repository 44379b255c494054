"""Clients outside that claim over HTTP, and the three ledgers that they are tried on."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oncebridge import Bridge, Settings
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.redis.ledger import RedisLedger
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.service.app import make_application
from oncebridge.settings.serve import ServeSettings
from oncebridge.testing.clock import ManualClock
from servers.process import wait_until
from service.asgi import Answered, Client

PATIENT = ServeSettings(read_within_seconds=60, answer_within_seconds=60)  # a busy machine is not a bug
BRIEF_S = 0.1
LONG_S = 600
_names = itertools.count()


class Desk:
    """A program that claims over HTTP, at a worker of its own: several on one ledger are several workers."""

    def __init__(self, bridge: Bridge) -> None:
        """Talk to the application of this bridge."""
        self.bridge = bridge
        self.client = Client(make_application(bridge))

    def close(self) -> None:
        """End the worker."""
        self.client.close()
        self.bridge.close()

    def send(self, path: str, call: str | None = None, **fields: Any) -> Answered:
        """Send a request, under a key for the call if there is one."""
        return self.client.post(path, fields, **({} if call is None else {"Idempotency_Key": call}))

    def claim(self, event: Any, *, call: str | None = None, lease_seconds: float = LONG_S, **fields: Any) -> Any:
        """Claim an event, and return the answer."""
        answered = self.send("/claims", call, event=event, lease_seconds=lease_seconds, **fields)
        assert answered.status == 200, answered
        return answered.json

    def extend(self, claimed: Any, seconds: float | None = None) -> bool:
        """Extend a claim, and return whether that was accepted."""
        answered = self.send("/claims/extend", claim=claimed["claim"], lease_seconds=seconds)
        assert answered.status == 200, answered
        return answered.json["ok"]

    def settle(self, claimed: Any, outcome: str, event: Any = None, **fields: Any) -> Any:
        """Settle a claim; return its outcome, or None if that was not accepted."""
        more = fields if event is None else {**fields, "event": event}
        answered = self.send("/claims/settle", claim=claimed["claim"], outcome=outcome, **more)
        assert answered.status == 200, answered
        assert answered.json["ok"] is (answered.json["outcome"] is not None)
        return answered.json["outcome"]

    def all_at_once(self, requests: list[tuple[str, dict[str, Any]]]) -> list[Answered]:
        """Send several requests, and wait for all answers."""
        started = [self.client.start("POST", path, json.dumps(fields).encode()) for path, fields in requests]
        return [one.result() for one in started]


class Place:
    """One ledger, by a clock that is moved by hand or by real time, and the workers on it."""

    def __init__(self, new_ledger: Callable[[], Any], clock: ManualClock | None) -> None:
        """Start without workers."""
        self._new_ledger = new_ledger
        self.clock = clock
        self._desks: list[Desk] = []

    def desk(self, ledger: Any = None, handle: Callable[[Bridge], None] | None = None, **settings: Any) -> Desk:
        """Start a worker; unless set, it does not wait for busy events, and has time enough for everything else."""
        bridge = Bridge(
            ledger or self._new_ledger(),
            settings=Settings(**{"busy_wait_seconds": 0, "serve": PATIENT, **settings}),
            clock=self.clock,
        )
        if handle is not None:
            handle(bridge)
        desk = Desk(bridge)
        self._desks.append(desk)
        return desk

    def new_ledger(self) -> Any:
        """Make one more handle onto the ledger."""
        return self._new_ledger()

    def after_the_lease(self, claim: Callable[[], Any]) -> Any:
        """Claim once a brief lease is over; where time is real, as soon as that is so."""
        if self.clock is not None:
            self.clock.advance(1)
            return claim()
        found: list[Any] = []

        def is_granted() -> bool:
            found.append(claim())
            return found[-1]["verdict"] != "busy"

        wait_until(is_granted, "the lease to be over")
        return found[-1]

    def close(self) -> None:
        """End all workers."""
        for desk in self._desks:
            desk.close()


@contextmanager
def place_on(kind: str, directory: Any, server: Callable[[], Any]) -> Iterator[Place]:
    """Open a place on a ledger of this kind: memory, sqlite or valkey."""
    if kind == "valkey":
        url = f"{server().url}?name=claims{next(_names)}"
        place = Place(lambda: RedisLedger(url), None)
    else:
        clock = ManualClock()
        memory = MemoryLedger(clock)
        file = directory / "claims.db"
        place = Place((lambda: memory) if kind == "memory" else (lambda: SQLiteLedger(file, clock)), clock)
    try:
        yield place
    finally:
        place.close()
