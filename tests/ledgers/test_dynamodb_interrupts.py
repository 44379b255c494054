"""The DynamoDB ledger under exceptions that strike anywhere: nothing hangs, and nothing interrupted is believed."""

import gc
import itertools
import secrets
from contextlib import suppress

import pytest

from children import bring_to_end, delivery
from interrupts import Interrupted, points, sample, strike
from oncebridge import Bridge
from oncebridge.ledgers import ledger_from_url
from oncebridge.settings import Settings

#: Of the engine's own code other tests look after.
OTHERS = "/oncebridge/"
OWN = "oncebridge/ledgers/dynamodb/"


class SoftLimit(Exception):
    """Raised by a signal's handler, and an Exception, as Celery's is."""


@pytest.fixture
def bridge(ministack):
    """Return a bridge on a new ledger."""
    url = f"dynamodb://struck-{secrets.token_hex(6)}?region={ministack.region}&endpoint_url={ministack.url}"
    ledger = ledger_from_url(url)
    ledger.migrate()
    ledger.close()
    with Bridge(url, settings=Settings(lease_seconds=1, busy_wait_seconds=0)) as bridge:
        yield bridge


# A connection that is struck between two hands is closed as it is deleted, and Python warns of that.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("error", [Interrupted, SoftLimit])
def test_nothing_of_an_interrupted_call_is_believed(bridge, error, size):
    """Wherever an exception strikes, later events are what they are, and every event takes effect.

    Calls are made in threads, where no signal strikes: in boto3 one would leave a lock of its pool held for ever.
    """
    effects: set[str] = set()
    bridge.on("*")(lambda event: effects.add(event.body["eventId"]))
    numbers = itertools.count()
    names: list[str] = []

    def batch(name):
        """Deliver so many events; return their verdicts."""
        names.extend(f"{name}-{number}" for number in range(size))
        return {result.verdict.value for result in bridge.process_many([delivery(one) for one in names[-size:]])}

    batch("warm")
    found = points(lambda: batch(f"found-{next(numbers)}"))
    chosen = [one for one in found if OTHERS not in one.code.co_filename or OWN in one.code.co_filename]
    hits = 0
    for point in sample(chosen, 30):
        with suppress(error), strike(point, error()) as striking:
            batch(f"struck-{next(numbers)}")
        hits += striking.struck
        after = f"after-{next(numbers)}"
        assert (batch(after), batch(after)) == ({"fresh"}, {"redelivery"}), point
    assert hits
    bring_to_end(bridge, names)
    assert effects >= set(names)
    gc.collect()  # here, where the warning is expected, and not in the next test
