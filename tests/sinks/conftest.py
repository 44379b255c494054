"""What the tests of the webhook share."""

import pytest

from oncebridge.settings.sinks import SinkSettings
from oncebridge.sinks import Breakers, make_sink
from oncebridge.testing.clock import ManualClock

PATIENT = 60.0  # no test waits for it


@pytest.fixture
def clock():
    """A clock that moves when told: deadlines pass only where a test says so."""
    return ManualClock()


@pytest.fixture
def sink(clock):
    """Make sinks; they are closed at the end."""
    made = []

    def make(url, clock=clock, **settings):
        usual = {"name": "crm", "private_addresses": True, "timeout_seconds": PATIENT}
        made.append(make_sink(SinkSettings(url=url, **{**usual, **settings}), clock, Breakers(clock)))
        return made[-1]

    yield make
    for one in made:
        one.close()
