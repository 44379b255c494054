"""An interrupt may strike the bridge at any point: nothing is lost, forgotten or held for ever, and it goes on."""

import gc
import json
import threading
from collections import Counter

import pytest

from interrupts import points, sample, strike
from oncebridge import Bridge, Settings
from oncebridge.claim import Status
from payloads import ACW, PRESENCE, TIME_MS, envelope

SECONDS = 10
NUMBER = 4
NUMBER_OF_POINTS = 100


class Struck(KeyboardInterrupt):
    """Ctrl-C."""


class TimeLimit(Exception):
    """A soft time limit: an ordinary error, raised by a signal's handler."""


def deliveries():
    """Build events that have nothing to do with each other, two states of one entity, a twin, and one unreadable."""
    facts = [envelope(ACW, {"eventTime": TIME_MS + n}, id=f"fact {n}") for n in range(NUMBER)]
    times = ["2026-01-15T09:00:00.000Z", "2026-01-15T09:00:01.000Z"]
    states = [envelope(PRESENCE, {"modifiedDate": time}, id=time) for time in times]
    return [*map(json.dumps, [*facts, *states, facts[0]]), b"no event"]


class Worker:
    """A bridge on a ledger in memory, and what it did as its handlers saw it."""

    def __init__(self, handlers, concurrency):
        self.effects = Counter()
        self.attempts = set()
        # Ends are written at once in one run and together in another: both ways are gone through.
        self.bridge = Bridge("memory://", settings=Settings(concurrency=concurrency))
        for name, kind in handlers.items():
            self.bridge.on("*", name=name)(kind(self, name))

    def note(self, name, event):
        """Count an effect."""
        self.effects[name, event.key] += 1
        self.attempts.add(event.attempt)

    def run(self):
        """Give it everything."""
        return self.bridge.process_many(deliveries())


def plain(worker, name):
    """Make a plain handler."""
    return lambda event: worker.note(name, event)


def coroutine(worker, name):
    """Make an async handler."""

    async def handle(event):
        worker.note(name, event)

    return handle


WAYS = {
    "plain": ({"": plain}, 1),
    "async": ({"": coroutine}, 1),
    "side by side": ({"": plain}, 2),
    "several handlers": ({"": plain, "second": plain, "third": coroutine}, 1),
}


def in_time(function):
    """Call a function in a thread, and fail if it hangs."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(function()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert answers, "it waits for ever"
    return answers[0]


def check(worker, handlers, error, point):
    """See that nothing was forgotten, and that the same bridge brings everything to its end."""
    books = worker.bridge.books.as_dict()
    size = len(deliveries())
    assert books["balanced"], point
    assert books["received"] in (0, size), point
    assert Status.CLAIMED not in worker.bridge.ledger.counts(), point
    results = in_time(worker.run)
    assert all(result.acknowledged for result in results), (point, [result.reason for result in results])
    counts = worker.bridge.ledger.counts()
    assert counts.pop(Status.DEAD) == 1, point
    assert counts == {Status.DONE: (NUMBER + 2) * len(handlers)}, (point, counts)
    assert len(worker.effects) == (NUMBER + 2) * len(handlers), point
    repeated = [at for at, number in worker.effects.items() if number > 1]
    assert len(repeated) <= 2, (point, repeated)
    if isinstance(error, KeyboardInterrupt):
        assert worker.attempts == {1}, point
    in_time(worker.bridge.close)


# A coroutine that is struck between its handler's return and its first step never runs.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("error", [Struck, TimeLimit])
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_anywhere_in_a_batch(way, error):
    """Wherever it strikes, it goes through, claims are given back, books balance, and the bridge works afterwards."""
    handlers, concurrency = WAYS[way]
    first = Worker(handlers, concurrency)
    found = points(first.run)
    first.bridge.close()
    assert len(found) > 500
    struck = 0
    found = [point for point in found if "_weakrefset" not in point.code.co_filename]  # there it would only be printed
    for point in sample(found, NUMBER_OF_POINTS):
        worker, raised = Worker(handlers, concurrency), error()
        block = strike(point, raised)
        try:
            with block:
                worker.run()
        except error:
            pass
        struck += block.struck
        check(worker, handlers, raised, point)
    assert struck > NUMBER
    del worker, block
    gc.collect()  # what never ran is known of here, and not in another test
