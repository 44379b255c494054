"""`--shadow` on the commands: verdicts in all and by topic; handlers and the ledgers of workers are left alone."""

import os

import pytest

import payloads
from cli.test_serve import Service

CALLED = """\
from oncebridge import Bridge

bridge = Bridge("sqlite:///once.db")


@bridge.on("v2.detail.events.conversation.{id}.acw", name="crm")
def crm(event, transaction):
    open("called", "w").close()
"""


@pytest.fixture
def app(cli, facts):
    """Write a program whose handler leaves a file when it is called, and three events, one of them twice."""
    (cli.folder / "app.py").write_text(CALLED)
    cli.write("in.jsonl", [*facts(3), *facts(1), payloads.presence("AWAY")])
    return cli


BOOKS = {"received": 5, "processed": 3, "redelivery": 1, "unhandled": 1}
BY_TOPIC = {payloads.ACW: {"processed": 3, "redelivery": 1}, payloads.PRESENCE: {"unhandled": 1}}


@pytest.mark.parametrize("asked", [["--shadow"], []])
def test_a_capture_is_judged_as_the_bridge_would(app, asked):
    """By option or environment: the bridge's own topics and names count, its handlers and its ledger are left alone."""
    environment = {} if asked else {"ONCEBRIDGE_SHADOW": "true"}
    for _ in range(2):
        ran = app("process", "in.jsonl", "--handler", "app:bridge", "--json", *asked, **environment)
        assert ran.code == 0, ran.err
        assert {name: ran.one[name] for name in BOOKS} == BOOKS
        assert (ran.one["shadow"], ran.one["topics"]) == (True, BY_TOPIC)
    assert not (app.folder / "called").exists()
    assert not (app.folder / "once.db").exists()


def test_people_read_it_by_topic(app):
    """Each topic has its line, then its verdicts; the last line says that no handler was called."""
    ran = app("process", "in.jsonl", "--handler", "app:bridge", "--shadow")
    assert f"{payloads.ACW}\n    4 received: 3 processed, 1 redelivery\n" in ran.out
    assert "of 5 deliveries 3 would have gone to one" in ran.err
    assert "dead list" not in ran.err


def test_doctor_warns_of_a_shadow(app):
    """Where a shadow was left on, doctor says that no handler is called; without one it says nothing of it."""
    for environment, found in (({"ONCEBRIDGE_SHADOW": "true"}, 1), ({}, 0)):
        ran = app("doctor", "--ledger", "memory://", "--json", **environment)
        assert sum(finding["subject"] == "shadow" for finding in ran.one["findings"]) == found


def test_a_shadow_redrives_nothing(app, explained):
    """`dead redrive` under a setting that was left on is refused, and the letter is still there."""
    app.write("bad.jsonl", [b"no event"])
    app("process", "bad.jsonl", "--handler", "app:bridge")
    options = ("--all", "--handler", "app:bridge")
    assert "ONCEBRIDGE_SHADOW" in explained(app("dead", "redrive", *options, ONCEBRIDGE_SHADOW="1"), 2)
    assert len(app("dead", "list", "--handler", "app:bridge", "--json").items) == 1


def test_a_shadow_does_not_prime(app, explained):
    """`--prime` makes events done, `--shadow` must not: both together are refused."""
    assert "shadow" in explained(app("process", "in.jsonl", "--handler", "app:bridge", "--shadow", "--prime"), 2)


def test_the_service_reports_by_topic_when_it_ends(app, facts, wait_until):
    """`serve --shadow` answers senders as usual, and reports what would have happened when it is stopped."""
    service = Service(app.start("serve", "--port", "0", "--handler", "app:bridge", "--shadow", "--json"), wait_until)
    assert "as a shadow" in service.started.said
    assert service.post([*facts(3), *facts(1)]).status == 200
    assert service.post(payloads.presence("AWAY")).status == 200
    ran = service.stop()
    assert (ran.code, ran.one["topics"]) == (0, BY_TOPIC)
    assert not (app.folder / "called").exists()
    live = app("process", "in.jsonl", "--handler", "app:bridge", "--json")
    assert live.one["processed"] == 3


def test_a_queue_of_its_own_is_judged_and_the_live_one_is_left(app, facts, ministack):
    """`consume --shadow` empties its own queue, and leaves the live queue and its messages for the other program."""
    sqs, name = ministack.client("sqs"), f"events-{os.urandom(4).hex()}"
    live, own = (sqs.create_queue(QueueName=one)["QueueUrl"] for one in (name, f"{name}-Shadow"))
    for url in (live, own):
        for one in [*facts(3), *facts(1), payloads.presence("AWAY")]:
            sqs.send_message(QueueUrl=url, MessageBody=payloads.raw(one).decode())
    options = ("--handler", "app:bridge", "--shadow", "--until-empty", "--poll-seconds", "1", "--json")
    refused = app("consume", live, *options, **ministack.environment)
    assert (refused.code, "is not a shadow's own" in refused.err) == (2, True)
    ran = app("consume", own, *options, **ministack.environment)
    assert (ran.code, ran.one["topics"]) == (0, BY_TOPIC), ran.err
    waiting = ["ApproximateNumberOfMessages"]
    left = [sqs.get_queue_attributes(QueueUrl=url, AttributeNames=waiting)["Attributes"] for url in (live, own)]
    assert [int(one[waiting[0]]) for one in left] == [5, 0]
    assert not (app.folder / "called").exists()
