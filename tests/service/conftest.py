"""The service for tests that need no other one."""

import pytest

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
