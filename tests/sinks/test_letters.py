"""Dead letters that are sent on, to a queue or a bus: once each, and never instead of the ledger."""

import base64
import json
from contextlib import contextmanager
from unittest import mock

import pytest
from botocore.exceptions import EndpointConnectionError

from oncebridge import Bridge, ConfigurationError, MissingExtra, Outcome, PermanentError, Settings, Verdict
from oncebridge.amazon import region_and_endpoint
from oncebridge.claim import Status
from oncebridge.handlers import LetterCopy
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.retry import RetryPolicy
from oncebridge.sinks import letters
from oncebridge.sinks.letters import LetterBus, LetterNotSent, LetterQueue
from payloads import ACW, ENVELOPE_ID, TIME_MS, envelope, raw, status_change
from servers.process import wait_until
from sinks.doubles import QUEUE_URL, Amazon, named, queue_on, refusal

WITHOUT_WAITS = RetryPolicy(attempts=3, base_seconds=0)


class Outbox:
    """Stands in for the queue, so that it can fail on cue."""

    def __init__(self, *failures):
        """Fail at first, once for each of these."""
        self.failures = list(failures)
        self.sent = []

    def __call__(self, copy):
        """Take one, or fail."""
        if self.failures:
            raise self.failures.pop(0)
        self.sent.append(copy)


@contextmanager
def sending_to(outbox, **settings):
    """Make a bridge whose handler always fails for good, and whose dead letters go to the outbox."""
    chosen = Settings(
        dead_letter_queue="https://sqs.eu-central-1.amazonaws.com/1/dead", retry=WITHOUT_WAITS, **settings
    )
    with (
        mock.patch.object(letters, "LetterQueue", return_value=outbox),
        Bridge(MemoryLedger(), settings=chosen) as bridge,
    ):

        @bridge.on("*")
        def give_up(event):
            raise PermanentError

        yield bridge


def copy_of(event, **changes):
    """Make a copy of a dead letter."""
    facts = {
        "key": "ob1_key",
        "topic": ACW,
        "handler": "crm",
        "reason": "the receiver answered 422",
        "envelope": ENVELOPE_ID,
        "raw": event,
    }
    return LetterCopy(**facts | changes)


# --- when ---------------------------------------------------------------------------------------------------


def test_a_dead_letter_is_sent_once():
    """A dead letter is sent on once, however often its event comes again."""
    outbox = Outbox()
    with sending_to(outbox) as bridge:
        results = [bridge.process(envelope(ACW)) for _ in range(3)]
        together = bridge.process_many([envelope(ACW, {"eventTime": TIME_MS + 1})] * 3)
    assert [one.verdict for one in results] == [Verdict.FRESH, Verdict.REDELIVERY, Verdict.REDELIVERY]
    assert [one.outcome for one in together] == [Outcome.DEAD, None, None]
    assert len(outbox.sent) == 2
    assert outbox.sent[0].reason == "handler raised PermanentError, which is permanent"
    assert json.loads(outbox.sent[0].raw) == envelope(ACW)


def test_what_is_done_is_not_sent():
    """Only dead letters are sent on: neither what is done, nor duplicates of it, nor what is to be tried again."""
    outbox = Outbox()
    chosen = Settings(dead_letter_queue="https://sqs.eu-central-1.amazonaws.com/1/dead")
    with mock.patch.object(letters, "LetterQueue", return_value=outbox), Bridge("memory://", settings=chosen) as bridge:
        failing = [ValueError()]

        @bridge.on("*")
        def fail_once(event):
            if failing:
                raise failing.pop()

        outcomes = [bridge.process(envelope(ACW)).outcome for _ in range(3)]
    assert outcomes == [Outcome.RETRY, Outcome.DONE, None]
    assert not outbox.sent


def test_nothing_is_acknowledged_before_it_is_sent():
    """While a dead letter cannot be sent on, its delivery is not acknowledged, and the ledger has the letter."""
    outbox = Outbox(LetterNotSent("could not be sent: down"), LetterNotSent("could not be sent: down"))
    with sending_to(outbox) as bridge:
        first, second, third = (bridge.process(envelope(ACW)) for _ in range(3))
        counts = bridge.ledger.counts()
    assert (first.acknowledged, second.acknowledged, third.acknowledged) == (False, False, True)
    assert first.reason == (
        "kept as a dead letter, but not sent on yet: could not be sent: down at attempt 1; to be tried again"
    )
    assert counts[Status.DEAD] == 1
    assert len(outbox.sent) == 1
    books = bridge.books.as_dict()
    assert books["balanced"]
    assert (books["retrying"], books["redelivery"]) == (2, 1)


def test_sending_is_never_given_up():
    """However often sending fails, it is tried again: the letter of a letter would be nowhere."""
    outbox = Outbox(*(PermanentError() for _ in range(50)))
    with sending_to(outbox) as bridge:
        results = [bridge.process(envelope(ACW)) for _ in range(51)]
    assert [one.acknowledged for one in results] == [False] * 50 + [True]
    assert len(outbox.sent) == 1


def test_a_run_that_waits_reports_the_letter():
    """Where the same delivery is tried until it is settled, it counts as dead once its letter is sent."""
    outbox = Outbox(LetterNotSent("could not be sent: down"))
    with sending_to(outbox) as bridge:
        flow = bridge.open()
        delivery = flow.read(raw(envelope(ACW)))
        flow.process([delivery])
        assert not delivery.is_over
        flow.process([delivery])
    assert delivery.is_over
    assert delivery.result.outcome is Outcome.DEAD
    assert delivery.result.column == "dead"
    assert len(outbox.sent) == 1


def test_every_kind_of_dead_letter_is_sent():
    """Unreadable deliveries, conflicts and strangers are sent on like what a handler gave up."""
    outbox = Outbox()
    with sending_to(outbox, allowed_orgs=("genesys.cloud",)) as bridge:
        bridge.process(b"\xff no JSON")
        bridge.process(envelope(ACW))
        bridge.process({**status_change("held"), "source": "genesys.cloud"})
        bridge.process({**status_change("ended"), "source": "genesys.cloud"})
    reasons = [copy.reason.partition(":")[0] for copy in outbox.sent]
    assert reasons == ["unreadable", "not allowed", "handler raised PermanentError, which is permanent", "conflict"]


def test_each_handler_sends_its_own():
    """Two handlers that give up the same event have a dead letter each, and each is sent on."""
    outbox = Outbox()
    with sending_to(outbox) as bridge:

        @bridge.on("*", name="crm")
        def give_up_too(event):
            raise PermanentError

        assert bridge.process(envelope(ACW)).outcome is Outcome.DEAD
    assert sorted(copy.handler for copy in outbox.sent) == ["", "crm"]


def test_a_redriven_letter_that_dies_again_is_not_sent_again():
    """A redrive that fails leaves the letter in the ledger; the copy that was sent is not repeated."""
    outbox = Outbox()
    with sending_to(outbox) as bridge:
        bridge.process(envelope(ACW))
        dead = bridge.dead_letters
        (entry,) = dead.list()
        assert dead.redrive(entry).outcome is Outcome.DEAD
        assert len([*dead.list()]) == 1
    assert len(outbox.sent) == 1


# --- where, on the emulator ---------------------------------------------------------------------------------


@pytest.fixture
def aws(ministack, monkeypatch):
    """The emulator, where boto3 finds it by itself."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    return ministack


def received(client, url):
    """Wait for the one message of a queue."""
    found = []

    def came():
        found.extend(client.receive_message(QueueUrl=url, MessageAttributeNames=["All"]).get("Messages", []))
        return bool(found)

    wait_until(came, "a message in the queue")
    (message,) = found
    return message


def facts_of(message):
    """Read the attributes of a message."""
    return {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}


def test_a_queue_gets_the_event_as_it_came(aws, context):
    """A queue's message is the event byte for byte, and its attributes say why it is there."""
    client = aws.client("sqs")
    url = client.create_queue(QueueName="letters-as-they-came")["QueueUrl"]
    event = raw(envelope(ACW, {"score": "ünïcode 🙂"}))
    LetterQueue(url, context)(copy_of(event))
    message = received(client, url)
    assert message["Body"].encode() == event
    assert facts_of(message) == {
        "oncebridge_key": "ob1_key",
        "oncebridge_topic": ACW,
        "oncebridge_handler": "crm",
        "oncebridge_reason": "the receiver answered 422",
    }


@pytest.mark.parametrize("event", [b"\xff\xfe no text", b"\x00\x01", b'{"a": "\x0b"}'], ids=repr)
def test_a_queue_gets_bytes_that_it_would_not_take(aws, context, event):
    """What is no text, or holds characters that queues refuse, is sent encoded."""
    client = aws.client("sqs")
    url = client.create_queue(QueueName="letters-encoded")["QueueUrl"]
    client.purge_queue(QueueUrl=url)
    LetterQueue(url, context)(copy_of(event, reason="unreadable: \n\x1b[31m"))
    message = received(client, url)
    assert base64.b64decode(message["Body"]) == event
    assert facts_of(message)["oncebridge_encoding"] == "base64"
    assert facts_of(message)["oncebridge_reason"] == "unreadable: ??[31m"


def test_a_fifo_queue_works_too(aws, context):
    """A FIFO queue takes the letters of two handlers under one key."""
    client = aws.client("sqs")
    url = client.create_queue(QueueName="letters.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    for handler in ("crm", "crm", "board"):
        LetterQueue(url, context)(copy_of(b"{}", handler=handler))
    bodies = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert len(bodies) == 2


def test_a_bus_gets_the_event_inside(aws, context):
    """A bus gets an event of ours that holds the one that died, with its numbers as written."""
    events, queues = aws.client("events"), aws.client("sqs")
    url = queues.create_queue(QueueName="letters-of-the-bus")["QueueUrl"]
    arn = queues.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.create_event_bus(Name="genesys-dead")
    events.put_rule(Name="all", EventBusName="genesys-dead", EventPattern=json.dumps({"source": ["oncebridge"]}))
    events.put_targets(Rule="all", EventBusName="genesys-dead", Targets=[{"Id": "1", "Arn": arn}])
    LetterBus("genesys-dead", context)(copy_of(b'{"id": "e1", "detail": {"ratio": 1.10}}'))
    got = json.loads(received(queues, url)["Body"])
    assert got["detail-type"] == "Dead Letter"
    assert got["detail"] == {
        "key": "ob1_key",
        "topic": ACW,
        "handler": "crm",
        "reason": "the receiver answered 422",
        "id": ENVELOPE_ID,
        "event": {"id": "e1", "detail": {"ratio": 1.10}},
    }


def test_from_settings_to_the_queue(aws):
    """A bridge with a queue for dead letters fills it, from a handler that gives up to the message."""
    client = aws.client("sqs")
    url = client.create_queue(QueueName="letters-of-a-bridge")["QueueUrl"]
    with Bridge("memory://", settings=Settings(dead_letter_queue=url)) as bridge:
        assert bridge.process(b"no JSON").acknowledged
    assert received(client, url)["Body"] == "no JSON"


def test_a_missing_queue_keeps_the_delivery(aws):
    """Where the queue does not exist, nothing is acknowledged, and the reason says why."""
    with Bridge("memory://", settings=Settings(dead_letter_queue=f"{aws.url}/000000000000/nowhere")) as bridge:
        result = bridge.process(b"no JSON")
    assert not result.acknowledged
    assert "could not be sent: " in result.reason
    assert "NonExistentQueue" in result.reason or "QueueDoesNotExist" in result.reason


@pytest.mark.parametrize("by_arn", [True, False])
def test_a_missing_bus_keeps_the_delivery(aws, by_arn):
    """A bus that does not exist takes letters without a word: it is looked for first, and nothing is acknowledged."""
    name = f"letters-missing-{by_arn}"
    bus = f"arn:aws:events:{aws.region}:000000000000:event-bus/{name}" if by_arn else name
    events = aws.client("events")
    with Bridge("memory://", settings=Settings(dead_letter_bus=bus, retry=WITHOUT_WAITS)) as bridge:
        result = bridge.process(b"no JSON")
        assert not result.acknowledged
        assert "could not be sent: " in result.reason
        assert "there is no such bus" in result.reason
        events.create_event_bus(Name=name)
        assert bridge.process(b"no JSON").acknowledged


# --- what Amazon may say ------------------------------------------------------------------------------------


def queue_at(amazon, context, url="https://sqs.eu-central-1.amazonaws.com/1/dead"):
    """Make what sends letters to a queue at this double."""
    with mock.patch("oncebridge.sinks.queue.queue_client", return_value=amazon):
        sender = LetterQueue(url, context)
        sender._client()
    return sender


def bus_at(amazon, context):
    """Make what sends letters to a bus at this double."""
    with mock.patch("oncebridge.sinks.bus.bus_client", return_value=amazon):
        sender = LetterBus("genesys-dead", context)
        sender._client()
    return sender


@pytest.mark.parametrize("code", ["InvalidParameterValue", "com.amazonaws.sqs#InvalidMessageContents"])
def test_a_letter_too_large_for_the_queue_is_announced(context, code):
    """Where Amazon does not take the whole letter, a note says where it is, without what it holds."""
    amazon = Amazon(refusal(code), None)
    queue_at(amazon, context)(copy_of(b"x" * 300_000))
    (entry,) = amazon.calls[1]
    note = json.loads(entry["MessageBody"])
    assert note["bytes"] == 300_000
    assert note["see"] == "oncebridge dead show ob1_key"
    assert "xxx" not in entry["MessageBody"]


@pytest.mark.parametrize("make", [queue_at, bus_at])
def test_a_letter_too_large_for_any_call_is_announced_at_once(context, make):
    """A letter that no call can hold is not sent in vain: the note is the only call."""
    amazon = Amazon()
    make(amazon, context)(copy_of(b"x" * 1_100_000))
    ((entry,),) = amazon.calls
    assert json.loads(entry.get("MessageBody") or entry["Detail"])["bytes"] == 1_100_000


def test_a_note_that_is_refused_too_is_no_success(context):
    """Where not even the note is taken, the letter is not sent, and that is never permanent."""
    sender = queue_at(Amazon(*[refusal("InvalidParameterValue")] * 2), context)
    with pytest.raises(LetterNotSent, match="queue dead answered InvalidParameterValue") as caught:
        sender(copy_of(b"{}"))
    assert not isinstance(caught.value, PermanentError)


@pytest.mark.parametrize(
    "answer",
    [
        {0: "ThrottlingException"},
        refusal("ThrottlingException"),
        EndpointConnectionError(endpoint_url="https://events"),
    ],
    ids=["entry", "call", "network"],
)
def test_a_bus_that_does_not_take_it_is_no_success(context, answer):
    """An entry that failed in a call that succeeded is not sent, and neither is a call that failed."""
    sender = bus_at(Amazon(answer), context)
    with pytest.raises(LetterNotSent) as caught:
        sender(copy_of(b"{}"))
    assert str(caught.value) in (
        "could not be sent: bus genesys-dead answered ThrottlingException",
        "could not be sent: bus genesys-dead did not answer (EndpointConnectionError)",
    )


@pytest.mark.parametrize("make", [queue_at, bus_at])
def test_what_does_not_answer_is_left_alone(context, clock, make):
    """After three failures in a row a queue or bus gets no call until it is looked at, and letters wait that long."""
    amazon = Amazon(*[EndpointConnectionError(endpoint_url="https://x")] * 3)
    sender = make(amazon, context)
    for calls in (1, 2, 3, 3):
        with pytest.raises(LetterNotSent) as caught:
            sender(copy_of(b"{}"))
        assert len(amazon.calls) == calls
    assert caught.value.after_seconds > 0
    assert "did not answer (EndpointConnectionError)" in str(caught.value)
    clock.advance(caught.value.after_seconds)
    sender(copy_of(b"{}"))
    assert len(amazon.taken) == 1


def test_letters_and_events_for_one_queue_share_a_breaker(context):
    """What a sink has learnt of a queue, dead letters for the same queue need not learn again."""
    sick = queue_on(Amazon(*[EndpointConnectionError(endpoint_url="https://x")] * 3), context)
    for _ in range(3):
        sick.send_many([named(envelope(ACW))])
    amazon = Amazon()
    with pytest.raises(LetterNotSent):
        queue_at(amazon, context, QUEUE_URL)(copy_of(b"{}"))
    assert not amazon.calls


def test_what_is_no_object_is_sent_encoded_to_a_bus(context):
    """A bus takes objects only, so anything else is encoded inside one."""
    amazon = Amazon()
    bus_at(amazon, context)(copy_of(b"[1, 2"))
    ((entry,),) = amazon.calls
    assert base64.b64decode(json.loads(entry["Detail"])["raw_base64"]) == b"[1, 2"
    assert entry["EventBusName"] == "genesys-dead"


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "region", "endpoint"),
    [
        ("https://sqs.eu-central-1.amazonaws.com", "eu-central-1", None),
        ("https://sqs.cn-north-1.amazonaws.com.cn", "cn-north-1", None),
        ("https://us-west-2.queue.amazonaws.com", "us-west-2", None),
        ("https://sqs-fips.us-east-1.amazonaws.com", "us-east-1", "https://sqs-fips.us-east-1.amazonaws.com"),
        ("https://sqs.eu-west-1.api.aws", "eu-west-1", "https://sqs.eu-west-1.api.aws"),
        (
            "https://vpce-0a1b-2c3d.sqs.eu-west-1.vpce.amazonaws.com",
            "eu-west-1",
            "https://vpce-0a1b-2c3d.sqs.eu-west-1.vpce.amazonaws.com",
        ),
        ("http://127.0.0.1:4566", None, "http://127.0.0.1:4566"),
        (
            "https://sqs.eu-central-1.amazonaws.com.evil.example",
            None,
            "https://sqs.eu-central-1.amazonaws.com.evil.example",
        ),
    ],
)
def test_a_queue_is_where_its_url_says(host, region, endpoint):
    """Region and endpoint come from the queue's URL, for Amazon's own hosts, endpoints in a VPC and emulators."""
    assert region_and_endpoint(f"{host}/123456789012/events") == (region, endpoint)


@pytest.mark.parametrize("url", ["dead-letters", "https://sqs.eu-central-1.amazonaws.com", "arn:aws:sqs:x:1:q"])
def test_a_wrong_queue_url_is_refused(url):
    """What is no queue's URL is refused by the name of the setting, when the bridge is opened."""
    with pytest.raises(ConfigurationError, match="dead_letter_queue: expected a queue's URL"):
        Bridge("memory://", settings=Settings(dead_letter_queue=url)).open()


def test_a_wrong_bus_is_refused():
    """What is no bus is refused by the name of the setting, when the bridge is opened."""
    with pytest.raises(ConfigurationError, match="dead_letter_bus: expected the name or the ARN"):
        Bridge("memory://", settings=Settings(dead_letter_bus="not a bus")).open()


def test_a_missing_package_is_named():
    """Without boto3 the setting is refused with the line that installs it."""
    with (
        mock.patch("oncebridge.amazon.find_spec", return_value=None),
        pytest.raises(MissingExtra, match=r"pip install 'oncebridge\[aws\]'"),
    ):
        Bridge("memory://", settings=Settings(dead_letter_bus="genesys-dead")).open()
