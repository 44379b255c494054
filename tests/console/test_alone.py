"""The console as a process of its own: what is around its pages."""

import logging
from contextlib import closing

import pytest

from console.visiting import OPERATOR, Place, Shaped
from oncebridge.cli.console import ConsolePlan, _alone
from oncebridge.ledgers.memory import MemoryLedger
from service.asgi import Client


@pytest.fixture
def alone():
    """Return a client of the whole application."""
    with closing(Place(MemoryLedger(), operator_keys=(OPERATOR,))) as place:
        client = Client(Shaped(_alone(place.application)))
        yield client
        client.close()


@pytest.mark.parametrize("path", ["/", "/nothing", "/console/log%0d%0aX-A:%20b", "//console/log", "/CONSOLE/log"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_answers_beside_the_pages_have_the_same_headers(alone, method, path):
    """Whatever is asked of the console's port, nothing may be framed, kept or run."""
    answered = alone.send(method, path, b"", Host="evil.example")
    assert answered.status in (303, 404, 405)
    assert "default-src 'none'" in answered.headers["content-security-policy"]
    assert answered.headers["cache-control"] == "no-store"
    assert answered.headers.get("location", "/console/") == "/console/"
    assert "x-a" not in answered.headers


def test_commands_on_pages_say_that_the_ledger_is_to_be_named():
    """Where the console was given its ledger commands need it too; its URL may hold a password, and is not repeated."""
    plan = ConsolePlan("own.toml", "redis://:hunter2@cache/0", None, logging.INFO, "text")
    assert plan._options() == " --ledger URL --settings own.toml"
    assert ConsolePlan(None, None, "crm:bridge", logging.INFO, "text")._options() == " --handler crm:bridge"
