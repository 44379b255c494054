"""The Lambda entry that needs no code: what it asks of the settings, and what it does then."""

import os
import subprocess
import sys

import pytest

from lambda_function import fact, text
from oncebridge import ConfigurationError, NotAcknowledged, aws
from servers.receiver import Reply, running_receiver
from shapes import message, records


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path):
    """Start in an empty folder, with nothing set in the environment, as a function that was just deployed."""
    known = ("ONCEBRIDGE_", "REDIS_", "DOWNSTREAM_", "DLQ_")
    for name in [name for name in os.environ if name.startswith(known)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    aws._bridge.cache_clear()
    yield
    if aws._bridge.cache_info().currsize:
        aws._bridge().close()
        aws._bridge.cache_clear()


@pytest.fixture
def ledger(monkeypatch, tmp_path):
    """Name a ledger that any function could open."""
    monkeypatch.setenv("ONCEBRIDGE_LEDGER", f"sqlite:///{tmp_path}/shared.db")


@pytest.fixture
def receiver():
    """Run a receiver that accepts whatever comes."""
    with running_receiver() as receiver:
        yield receiver


def test_the_default_ledger_is_refused(monkeypatch):
    """A file beside one function is no memory that functions share, so a server has to be named."""
    monkeypatch.setenv("ONCEBRIDGE_DOWNSTREAM_URL", "http://127.0.0.1:9/events")
    with pytest.raises(ConfigurationError, match=r"ONCEBRIDGE_LEDGER.*REDIS_HOST"):
        aws.handler(fact(1))


def test_without_a_receiver_nothing_is_taken(ledger):
    """Events that nobody takes would be counted as done; instead what to set is named."""
    with pytest.raises(ConfigurationError, match=r"ONCEBRIDGE_DOWNSTREAM_URL.*\[sinks\.NAME\]"):
        aws.handler(fact(1))


@pytest.mark.parametrize("name", ["ONCEBRIDGE_DOWNSTREAM_URL", "DOWNSTREAM_URL"])
def test_events_go_downstream_once(ledger, receiver, monkeypatch, name):
    """With a ledger and a URL everything is said."""
    monkeypatch.setenv(name, receiver.url)
    assert aws.handler(records(message(text(1)), message(text(2)))) == {"batchItemFailures": []}
    assert aws.handler(fact(1))["redelivery"] == 1
    assert sorted(receiver.raw_effects.values()) == [1, 1]


def test_events_go_to_the_sinks_of_the_file(ledger, receiver, tmp_path):
    """A settings file beside the function may name sinks."""
    sink = f'[sinks.crm]\nurl = "{receiver.url}"\nprivate_addresses = true\n'
    (tmp_path / "oncebridge.toml").write_text(sink)
    assert aws.handler(fact(1))["processed"] == 1
    assert list(receiver.raw_effects.values()) == [1]


def test_the_bridge_is_made_once(ledger, receiver, monkeypatch):
    """Later invocations find connections and all else as the first one left it."""
    monkeypatch.setenv("ONCEBRIDGE_DOWNSTREAM_URL", receiver.url)
    for number in range(3):
        aws.handler(fact(number))
    assert aws._bridge.cache_info().misses == 1
    assert receiver.connections == 1


def test_a_wrong_setting_is_named_at_each_invocation_until_it_is_right(ledger, receiver, monkeypatch):
    """A mistake is not remembered: the first invocation with right settings is worked off."""
    monkeypatch.setenv("ONCEBRIDGE_DOWNSTREAM_URL", receiver.url)
    monkeypatch.setenv("ONCEBRIDGE_LEASE_SECONDS", "for ever")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="ONCEBRIDGE_LEASE_SECONDS"):
            aws.handler(fact(1))
    monkeypatch.delenv("ONCEBRIDGE_LEASE_SECONDS")
    assert aws.handler(fact(1))["processed"] == 1


def test_what_the_receiver_refuses_comes_again(ledger, monkeypatch):
    """A receiver's failure is an event's failure, told as each shape wants it."""
    monkeypatch.setenv("ONCEBRIDGE_RETRY_BASE_SECONDS", "0")
    with running_receiver(lambda _: Reply(500)) as receiver:
        monkeypatch.setenv("ONCEBRIDGE_DOWNSTREAM_URL", receiver.url)
        with pytest.raises(NotAcknowledged):
            aws.handler(fact(1))
        assert aws.handler(records(message(text(2))))["batchItemFailures"]


def run(code, **environment):
    """Run a program with nothing else set."""
    path = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-c", code], env=path | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_importing_it_never_fails():
    """An error while a function starts is told once, as an error of an import; so it waits for the invocation."""
    ran = run(
        "import oncebridge.aws\ntry: oncebridge.aws.handler({})\nexcept oncebridge.ConfigurationError as e: print(e)",
        ONCEBRIDGE_LEASE_SECONDS="for ever",
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("ONCEBRIDGE_LEASE_SECONDS")


def test_importing_it_does_the_work_of_a_cold_start():
    """While it is imported a function has the whole machine, so the bridge is made then, and its ledger's client."""
    ran = run(
        "import oncebridge.aws, sys; print(oncebridge.aws._bridge.cache_info().currsize, 'hiredis' in sys.modules)",
        ONCEBRIDGE_LEDGER="redis://127.0.0.1:9/0",
        ONCEBRIDGE_DOWNSTREAM_URL="http://127.0.0.1:9/events",
    )
    assert (ran.stdout, ran.stderr) == ("1 True\n", "")


def test_importing_it_loads_nothing_that_is_not_used():
    """A cold start pays only for what the settings ask for."""
    heavy = (
        "boto3",
        "botocore",
        "urllib3",
        "jmespath",
        "prometheus_client",
        "opentelemetry",
        "hiredis",
        "redis",
        "psycopg",
        "rich",
    )
    ran = run(f"import oncebridge.aws, sys; print([name for name in {heavy} if name in sys.modules])")
    assert (ran.stdout, ran.stderr) == ("[]\n", "")
