"""Sinks in forked processes: no child sends on its parent's connections, or reads its answers there."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from children import Child, bring_to_end, in_children
from oncebridge import Bridge
from oncebridge.settings import load_settings
from servers.receiver import Reply, running_receiver
from tables import log, make_tables, postgres_desk  # noqa: F401 - a fixture among them

pytestmark = pytest.mark.usefixtures("empty_workplace")

THREADS = 4
EVENTS = 20


@pytest.fixture
def aws(ministack, monkeypatch):
    """The emulator, where boto3 finds it by itself."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    return ministack


@pytest.fixture
def bridge(tmp_path):
    """Make a bridge from the text of `oncebridge.toml`, with a ledger that each process has for itself."""
    made = []

    def make(text):
        (tmp_path / "oncebridge.toml").write_text(text, encoding="utf-8")
        made.append(Bridge("memory://", settings=load_settings()))
        return made[-1]

    yield make
    for one in made:
        one.close()


def names(who):
    """Name events of one process."""
    return [f"{who}-{number}" for number in range(EVENTS)]


def send_from_all(bridge):
    """Send in threads, fork, and go on sending in children and the parent; return the names of all that was sent."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda name: bring_to_end(bridge, [name]), names("before")))
    children = [Child(lambda who=who: bring_to_end(bridge, names(who))) for who in ("one", "two", "three")]
    assert bring_to_end(bridge, names("parent")) == {"fresh": EVENTS}
    assert [child.result() for child in children] == [{"fresh": EVENTS}] * 3
    in_children(bridge.close)
    bring_to_end(bridge, names("after"))
    return {name for who in ("before", "one", "two", "three", "parent", "after") for name in names(who)}


def test_a_webhook(bridge):
    """Each process posts on connections of its own, and what is refused is refused for the right event."""

    def script(request):
        return Reply(503 if json.loads(request.body)["id"].endswith("-13") and request.n % 2 else 200)

    with running_receiver(script) as receiver:
        made = bridge(f'[sinks.crm]\nurl = "{receiver.url}"\nprivate_addresses = true\n[retry]\nbase_seconds = 0\n')
        sent = send_from_all(made)
        took = [json.loads(request.body)["id"] for request in receiver.requests]
    assert set(took) == sent


def test_a_queue(bridge, aws):
    """Each process sends on connections of its own."""
    client = aws.client("sqs")
    url = client.create_queue(QueueName="sink-of-forks")["QueueUrl"]
    sent = send_from_all(bridge(f'[sinks.out]\nqueue = "{url}"\n'))
    found = set()
    while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found |= {json.loads(message["Body"])["id"] for message in messages}
    assert found == sent


def test_a_table(bridge, postgres_desk):  # noqa: F811
    """Each process writes on connections of its own."""
    make_tables(postgres_desk)
    table = f"{postgres_desk.prefix}names"
    postgres_desk(f"CREATE TABLE {table} (name text)")
    made = bridge(
        f'[sinks.names]\ndatabase = "{postgres_desk.url}"\ntable = "{table}"\n[sinks.names.columns]\nname = "id"\n'
    )
    made.sinks["names"].migrate()
    sent = send_from_all(made)
    assert sorted(name for (name,) in postgres_desk(f"SELECT name FROM {table}")) == sorted(sent)
