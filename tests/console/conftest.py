"""The console on small ledgers, with and without keys."""

import pytest

from console.visiting import KEYS, OPERATOR, READER, place_on
from oncebridge.testing import ManualClock


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    """Return a console with keys, on each of the ledgers."""
    with place_on(request.param, tmp_path, **KEYS) as place:
        yield place


@pytest.fixture
def timed(tmp_path):
    """Return a console with keys, whose clock is moved by hand."""
    with place_on("memory", tmp_path, clock=ManualClock(), **KEYS) as place:
        yield place


@pytest.fixture
def keyless(tmp_path):
    """Return a console without keys, whose clock is moved by hand."""
    with place_on("memory", tmp_path, clock=ManualClock()) as place:
        yield place


@pytest.fixture
def operator(place):
    """Return somebody who may act."""
    return place.person(OPERATOR)


@pytest.fixture
def reader(place):
    """Return somebody who may only look."""
    return place.person(READER)
