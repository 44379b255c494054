"""Sample events: of every topic, made up, always the same, and what the bridge makes of them and of their copies."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from oncebridge import Bridge
from oncebridge.genesys_topics import TOPICS
from oncebridge.testing import (
    LambdaContext,
    kinesis_event,
    message_id,
    redelivery,
    replay,
    republish,
    sample_event,
    sample_topics,
    sns_event,
    sqs_event,
)
from oncebridge.testing.samples import _bodies

ACW = "v2.detail.events.conversation.{id}.acw"
PRESENCE = "v2.users.{id}.presence"


@pytest.fixture
def seen():
    """Collect the events that the handler got."""
    return []


@pytest.fixture
def bridge(seen):
    """Make a bridge that takes everything."""
    with Bridge("memory://") as bridge:
        bridge.on("*")(seen.append)
        yield bridge


def test_every_topic_has_a_shape():
    """There is a body for each topic of Genesys, and for nothing else."""
    assert list(_bodies()) == list(TOPICS)


def test_every_topic_is_processed_once(bridge, seen):
    """Of each topic, samples with different numbers are different events, and copies of each are duplicates of it."""
    for topic in TOPICS:
        seen.clear()
        for n in range(1, 4):
            event = sample_event(topic, n)
            assert event == sample_event(topic, n)
            assert json.loads(json.dumps(event)) == event
            copies = [redelivery(event), republish(event), republish(event, 2), replay(event)]
            results = bridge.process_many([event, *copies])
            verdicts = [result.verdict.value for result in results]
            assert verdicts == ["fresh", "redelivery", "republish", "republish", "redelivery"], topic
            assert results[0].outcome == "done", topic
        assert [event.topic for event in seen] == [topic] * 3
        assert "{" not in "".join(event.topic_name for event in seen)


def test_the_time_of_an_event_is_the_one_given(bridge, seen):
    """The bridge reads the very moment out of the body that was asked for, or out of the publish time just after it."""
    at = datetime(2025, 6, 2, 10, 30, tzinfo=UTC)
    for topic in TOPICS:
        bridge.process(sample_event(topic, time=at))
        assert 0 <= seen[-1].time_ms - at.timestamp() * 1000 <= 300, topic


def test_samples_are_the_same_on_every_python():
    """A sample is the same in every process and on every Python: it can be compared with what was seen before."""
    event = sample_event(ACW, 7)
    assert event["id"] == "bc09fd23-048d-4523-b5f9-5a0ae041db25"
    assert event["detail"]["eventBody"]["wrapupCode"] == "a7f6146f-1757-4112-89d8-b089b5c526ff"


def test_ids_are_given_by_name(bridge, seen):
    """A conversation's and a user's id are in the topic's name and in the body alike."""
    bridge.process(sample_event(ACW, conversation_id="c-1", user_id="anna"))
    bridge.process(sample_event(PRESENCE, user_id="anna"))
    bridge.process(sample_event("v2.users.{id}.conversations", user_id="anna", conversation_id="c-1"))
    assert seen[0].conversation_id == "c-1"
    assert seen[0].topic_name == ACW.replace("{id}", "c-1")
    assert seen[0].body["conversationId"] == "c-1"
    assert seen[0].body["userId"] == "anna"
    assert seen[1].topic_name == "v2.users.anna.presence"
    assert seen[2].topic_name == "v2.users.anna.conversations"
    assert seen[2].conversation_id == "c-1"


def test_ids_are_given_in_the_topic(bridge, seen):
    """A topic's name with its ids is as good as the topic, and the body has the same ids."""
    bridge.process(sample_event("v2.routing.queues.sales.users", user_id="anna"))
    bridge.process(sample_event("v2.audits.entitytype.User.entityid.{id}"))
    bridge.process(sample_event(ACW.replace("{id}", "c-1")))
    queue, audit, acw = seen
    assert (queue.topic, queue.body["queueId"], queue.body["user"]) == (
        "v2.routing.queues.{id}.users", "sales", {"id": "anna"},
    )  # fmt: skip
    assert audit.body["entityType"] == "User"
    assert audit.topic_name == f"v2.audits.entitytype.User.entityid.{audit.body['entity']['id']}"
    assert acw.body["conversationId"] == "c-1"


def test_given_ids_change_nothing_else():
    """Two samples of one number differ in what was asked for, and in their envelope ids."""
    usual, ours = sample_event(ACW), sample_event(ACW, conversation_id="c-1")
    assert usual["id"] != ours["id"]
    ours["detail"]["eventBody"]["conversationId"] = usual["detail"]["eventBody"]["conversationId"]
    assert usual["detail"]["eventBody"] == ours["detail"]["eventBody"]


def test_fields_are_merged_and_removed():
    """A dictionary changes the fields that it names, any other value replaces, and dots leave a field out."""
    body = sample_event(PRESENCE, presenceDefinition={"systemPresence": "MEAL"}, message=..., primary=False, new=[1])
    body = body["detail"]["eventBody"]
    usual = sample_event(PRESENCE)["detail"]["eventBody"]
    assert body["presenceDefinition"] == {**usual["presenceDefinition"], "systemPresence": "MEAL"}
    assert "message" not in body
    assert (body["primary"], body["new"]) == (False, [1])
    assert sample_event(PRESENCE)["detail"]["eventBody"] == usual


def test_a_sample_is_its_callers_own():
    """Changes to a sample, or to what it was made from, reach no other one."""
    given = {"systemPresence": "MEAL", "tags": ["a"]}
    event = sample_event(PRESENCE, presenceDefinition=given)
    event["detail"]["eventBody"]["presenceDefinition"]["tags"].append("b")
    event["detail"]["eventBody"]["source"] = "mine"
    assert given == {"systemPresence": "MEAL", "tags": ["a"]}
    assert sample_event(PRESENCE)["detail"]["eventBody"]["source"] == "PURECLOUD"


def test_states_of_one_user_come_in_order(bridge):
    """Of one user a second sample is news, the same one a little later an echo, and an earlier one stale."""
    at = datetime(2025, 6, 2, 10, 30, tzinfo=UTC)

    def verdict(n, seconds):
        return bridge.process(sample_event(PRESENCE, n, user_id="anna", time=at + timedelta(seconds=seconds))).verdict

    assert [verdict(1, 0), verdict(1, 0.2), verdict(2, 10), verdict(1, 5)] == ["fresh", "echo", "fresh", "stale"]


@pytest.mark.parametrize(
    ("at", "written"),
    [
        (datetime(2025, 6, 2, 12, 30, 0, 123_000, tzinfo=UTC), "2025-06-02T12:30:00.123Z"),
        ("2025-06-02T12:30:00.123Z", "2025-06-02T12:30:00.123Z"),
        ("2025-06-02T14:30:00.123+02:00", "2025-06-02T12:30:00.123Z"),
        (1_748_867_400_123, "2025-06-02T12:30:00.123Z"),
    ],
)
def test_a_time_is_given_in_any_form(at, written):
    """A datetime, ISO 8601 and milliseconds are one moment."""
    assert sample_event(PRESENCE, time=at)["detail"]["eventBody"]["modifiedDate"] == written


def test_another_org_is_another_event(bridge):
    """The organization is part of the identity."""
    verdicts = [bridge.process(sample_event(ACW, org=org)).verdict for org in ("a", "b", "a")]
    assert verdicts == ["fresh", "fresh", "redelivery"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": "v2.users.{id}.presense"}, "did you mean v2.users.{id}.presence?"),
        ({"topic": "Conversation Status Change"}, "sample_topics() lists them"),
        (
            {"topic": "v2.detail.events.conversation.{id}.*"},
            "takes 16, such as v2.detail.events.conversation.{id}.acd.end",
        ),
        ({"topic": "v2.audits.entitytype.User.entityid.*"}, "has no *"),
        ({"topic": None}, "topic: None"),
        ({"topic": ACW, "n": "BUSY"}, "n: 'BUSY'"),
        ({"topic": ACW, "n": True}, "n: True"),
        ({"topic": ACW, "n": 10**15}, "not between 1970 and 9999"),
        ({"topic": ACW, "time": "yesterday"}, "time: 'yesterday' is not ISO 8601"),
        ({"topic": ACW, "time": 1764579600.5}, "whole milliseconds"),
        ({"topic": ACW, "user_id": ""}, "user_id: ''"),
        ({"topic": ACW, "user_id": 7}, "user_id: 7"),
        ({"topic": PRESENCE, "user_id": "a.b"}, "without a dot"),
        ({"topic": ACW, "wrapup_code": "sold"}, f"wrapup_code: events of {ACW} have wrapupCode"),
        ({"topic": ACW, "userID": "anna"}, "have userId"),
        ({"topic": "v2.users.*.presence"}, "v2.users.{id}.presence"),
        ({"topic": ""}, "no topic of Genesys"),
        ({"topic": PRESENCE, "conversation_id": "c-1"}, f"events of {PRESENCE} have no conversation"),
        ({"topic": "v2.outbound.settings", "user_id": "anna"}, "have no user"),
        ({"topic": PRESENCE, "time": datetime(2025, 6, 2)}, "has no time zone"),  # noqa: DTZ001 - the point of it
    ],
)
def test_wrong_arguments_are_explained(arguments, said):
    """An argument that cannot be right is refused, and the error says what to write instead."""
    with pytest.raises(ValueError, match=r".") as error:
        sample_event(**arguments)
    assert said in str(error.value)


def test_topics_by_pattern():
    """A pattern of a handler gives the topics that it takes."""
    assert sample_topics() == list(TOPICS)
    assert sample_topics("*.presence") == [PRESENCE]
    assert len(sample_topics("v2.detail.events.conversation.{id}.*")) == 16
    assert sample_topics("v2.nothing") == []


# --- wrapped ------------------------------------------------------------------------------------------------


def test_a_queue_names_its_failures(bridge):
    """A failed message of a batch is named in the reply by the id that the wrapper gave it."""
    good, bad = sample_event(ACW, 1), sample_event(ACW, 2)
    bridge.on(f"{bad['detail']['topicName']}", name="strict")(lambda event: 1 / 0)
    reply = bridge.lambda_handler(sqs_event(good, bad), LambdaContext())
    assert reply == {"batchItemFailures": [{"itemIdentifier": message_id(bad)}]}
    again = bridge.lambda_handler(sqs_event(bad, good, receive_count=2), LambdaContext())
    assert again == reply


def test_a_fifo_queue_keeps_its_order(bridge):
    """After a failure in a group the rest of the group is handed back untried."""
    first, second = sample_event(ACW, 1), sample_event(ACW, 2)
    bridge.on(first["detail"]["topicName"], name="strict")(lambda event: 1 / 0)
    reply = bridge.lambda_handler(sqs_event(first, second, fifo=True))
    assert [one["itemIdentifier"] for one in reply["batchItemFailures"]] == [message_id(first), message_id(second)]


@pytest.mark.parametrize("wrap", [sqs_event, sns_event, kinesis_event, lambda event: event])
def test_every_wrapper_is_recognised(wrap, bridge, seen):
    """Whatever AWS wraps around it, the handler gets the event."""
    event = sample_event(ACW)
    bridge.lambda_handler(wrap(event))
    bridge.lambda_handler(wrap(republish(event)))
    assert [one.envelope.id for one in seen] == [event["id"]]


def test_events_of_ones_own_making_are_wrapped_too(bridge, seen):
    """An event without envelope id and time is wrapped and repeated like any other, and others have other names."""
    own = [{"detail-type": "Desk Changed", "source": "desk", "detail": {"desk": number}} for number in range(2)]
    for wrap in (sqs_event, kinesis_event):
        bridge.lambda_handler(wrap(*own))
    bridge.lambda_handler(sns_event(republish(own[0])))
    assert [event.body["desk"] for event in seen[:2]] == [0, 1]
    assert message_id(own[0]) != message_id(own[1])
    with pytest.raises(TypeError, match=r"sqs_event\(\*events\)"):
        sqs_event(own)


def test_time_is_up_where_the_context_says_so(bridge, seen):
    """An invocation without any time left begins nothing."""
    reply = bridge.lambda_handler(sqs_event(sample_event(ACW)), LambdaContext(remaining_seconds=0))
    assert len(reply["batchItemFailures"]) == 1
    assert seen == []


def test_nothing_is_imported_without_being_asked_for():
    """A program that imports `oncebridge` loads neither its tests' parts nor pytest; samples need no pytest either."""
    look = "import sys, oncebridge; print([n for n in sys.modules if n.startswith(('oncebridge.testing', 'pytest'))])"
    look += "; import oncebridge.testing; print('pytest' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\nFalse\n"
