"""Ledgers with notes, and handles onto them."""

import secrets

import pytest

from ledgers.on_postgres import new_schema
from oncebridge.clock import SystemClock
from oncebridge.journal import writer
from oncebridge.ledgers import ledger_from_url


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request, tmp_path):
    """Return the URL of an empty ledger."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/once.db"
    elif request.param == "redis":
        yield f"{request.getfixturevalue('valkey').url}?name=journal-{secrets.token_hex(4)}"
    else:
        with new_schema(request.getfixturevalue("postgres")) as made:
            yield made


@pytest.fixture
def notes_at():
    """Return a function that opens the notes of a ledger, by a handle of its own."""
    opened = []

    def reading(url):
        opened.append(ledger_from_url(url))
        opened[-1].open(None)
        return opened[-1].notes

    yield reading
    for ledger in opened:
        ledger.close()


@pytest.fixture
def often(monkeypatch):
    """Have workers look every few milliseconds."""
    monkeypatch.setattr(writer, "EVERY_SECONDS", 0.005)


@pytest.fixture
def clock():
    """Return the machine's clock."""
    return SystemClock()
