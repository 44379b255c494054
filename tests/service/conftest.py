"""The service for tests that need no other one."""

import pytest

from service.clients import place_on
from service.serving import KEYS, Service


@pytest.fixture
def service():
    """A service with nothing wrong, open to everybody."""
    with Service() as service:
        yield service


@pytest.fixture
def locked():
    """A service that wants one of two keys."""
    with Service(api_keys=KEYS) as service:
        yield service


@pytest.fixture
def place(tmp_path):
    """Return a place in memory, by a clock that is moved by hand."""
    with place_on("memory", tmp_path, lambda: None) as found:
        yield found


@pytest.fixture
def desk(place):
    """Return a client and its worker."""
    return place.desk()
