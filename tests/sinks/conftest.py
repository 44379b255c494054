"""What the tests of the webhook share."""

import pytest

from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings.sinks.webhook import WebhookSettings
from oncebridge.sinks import Breakers, SinkContext, make_sink
from oncebridge.testing.clock import ManualClock

PATIENT = 60.0  # no test waits for it
RETENTION_US = 30 * 24 * 3600 * 1_000_000


@pytest.fixture
def clock():
    """A clock that moves when told: deadlines pass only where a test says so."""
    return ManualClock()


@pytest.fixture
def context(clock):
    """What a bridge gives its sinks."""
    return context_at(clock)


def context_at(clock):
    """Return what a bridge with this clock gives its sinks."""
    return SinkContext(clock=clock, breakers=Breakers(clock), ledger=MemoryLedger(clock), retention_us=RETENTION_US)


@pytest.fixture
def sink(clock):
    """Make sinks; they are closed at the end."""
    made = []

    def make(url, clock=clock, **settings):
        usual = {"name": "crm", "private_addresses": True, "timeout_seconds": PATIENT}
        made.append(make_sink(WebhookSettings(url=url, **{**usual, **settings}), context_at(clock)))
        return made[-1]

    yield make
    for one in made:
        one.close()
