"""A Lambda function around a bridge on a ledger in memory, and events that tell it what to do with them."""

import json

from oncebridge import Bridge, Settings
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.testing.clock import ManualClock
from payloads import ACW, TIME_MS, envelope


def fact(number, /, **body):
    """Make a fact that is known by its number."""
    return envelope(ACW, {"eventTime": TIME_MS + number, **body}, id=f"envelope-{number}")


def text(number, /, **body):
    """Write such a fact as text."""
    return json.dumps(fact(number, **body))


def number_of(event):
    """Return the number of a fact that a handler got; what has no time has none."""
    return None if event.time_ms is None else event.time_ms - TIME_MS


class Context:
    """What Lambda tells a function of its invocation, by a clock of ours."""

    def __init__(self, clock, seconds):
        """Let it end so many seconds from now."""
        self._clock = clock
        self._until_us = clock.monotonic_us() + int(seconds * 1_000_000)

    def get_remaining_time_in_millis(self):
        """Return what is left, and never less than nothing."""
        return max(0, self._until_us - self._clock.monotonic_us()) // 1000


class Function:
    """A function whose handler notes the facts it is given, and does with each what `does` says."""

    def __init__(self, ledger=None, **settings):
        """Take a ledger, or make one. It is open to everybody unless told otherwise."""
        settings = {"allow_requests_without_key": True, **settings}
        self.clock = ManualClock()
        self.ledger = MemoryLedger(self.clock) if ledger is None else ledger
        self.bridge = Bridge(self.ledger, settings=Settings(**settings), clock=self.clock)
        self.bridge.on("*")(self._handle)
        #: Numbers of facts, in the order in which they were tried; and those that took effect.
        self.tried, self.done = [], []
        #: Number -> what to do, or to raise.
        self.does = {}

    def __call__(self, event, seconds=None):
        """Invoke it as Lambda does: what goes in and out is JSON, and it has so many seconds."""
        context = None if seconds is None else Context(self.clock, seconds)
        return json.loads(json.dumps(self.bridge.lambda_handler(json.loads(json.dumps(event)), context)))

    def __enter__(self):
        """Begin."""
        return self

    def __exit__(self, *_):
        """End what runs in the background."""
        self.bridge.close()

    def _handle(self, event):
        number = number_of(event)
        self.tried.append(number)
        act = self.does.get(number)
        if isinstance(act, Exception):
            raise act
        if act is not None:
            act()
        self.done.append(number)

    @property
    def books(self):
        """The columns of the books that are not nought."""
        return {
            column: count for column, count in self.bridge.books.as_dict().items() if count and column != "balanced"
        }

    @property
    def statuses(self):
        """What the ledger knows, by status."""
        return {str(status): count for status, count in self.ledger.counts().items() if count}
