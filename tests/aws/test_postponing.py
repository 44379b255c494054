"""A Lambda function hides failed messages in their queue until their next attempt is due, as far as it may."""

import pytest
from botocore.exceptions import ClientError

import payloads
from oncebridge import Bridge, RetryPolicy, Settings
from oncebridge.errors import PermanentError
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.sources.sqs import postponing
from oncebridge.sources.sqs.postponing import url_of
from oncebridge.testing.clock import ManualClock
from shapes import QUEUE_ARN, fifo_message, message

HIDING = {"hide_until_retry": True, "retry": RetryPolicy(base_seconds=1000, growth=1)}


class Client:
    """A client of SQS that notes what it is to hide, or fails."""

    def __init__(self):
        """Begin well."""
        self.calls = []
        self.error = None

    def change_message_visibility_batch(self, **arguments):
        """Take up to ten."""
        self.calls.append(arguments)
        if self.error is not None:
            raise self.error
        return {"Successful": [{"Id": entry["Id"]} for entry in arguments["Entries"]]}

    def close(self):
        """Do nothing."""

    @property
    def hidden(self):
        """For how long messages were hidden, by their receipts."""
        return {entry["ReceiptHandle"]: entry["VisibilityTimeout"] for call in self.calls for entry in call["Entries"]}


@pytest.fixture
def client(monkeypatch):
    """Return the client of every queue."""
    made = Client()
    monkeypatch.setattr(postponing, "queue_client", lambda *_, **__: made)
    return made


@pytest.fixture
def clock():
    """A clock that moves when told."""
    return ManualClock()


@pytest.fixture
def make_bridge(clock):
    """Make bridges whose handler does what the body of an event says."""
    made = []

    def make(**settings):
        bridge = Bridge(MemoryLedger(clock), settings=Settings(**settings), clock=clock)
        bridge.warned = []
        bridge.telemetry.warn = lambda words, **_: bridge.warned.append(words)
        bridge.rewire(bridge.settings)

        @bridge.on("*")
        def handle(event):
            if event.body.get("act") == "fail":
                raise ConnectionError
            if event.body.get("act") == "refuse":
                raise PermanentError

        made.append(bridge)
        return bridge

    yield make
    for bridge in made:
        bridge.close()


def text(n, act=None):
    """Write one of many events."""
    body = {"eventTime": payloads.TIME_MS + n} | ({} if act is None else {"act": act})
    return payloads.raw(payloads.envelope(payloads.ACW, body, id=f"envelope-{n}")).decode()


def names(answer):
    """Return which messages were handed back."""
    return [one["itemIdentifier"] for one in answer["batchItemFailures"]]


def test_a_failed_message_is_hidden_until_it_is_due(client, make_bridge):
    """Only messages whose events failed are hidden, as long as the policy says, and are handed back all the same."""
    acts = [None, "fail", "refuse", "fail"]
    records = [message(text(n, act), f"m{n}") for n, act in enumerate(acts)]
    assert names(make_bridge(**HIDING).lambda_handler({"Records": records})) == ["m1", "m3"]
    assert set(client.hidden) == {"handle of m1", "handle of m3"}
    assert all(500 <= seconds <= 1000 for seconds in client.hidden.values())
    assert {call["QueueUrl"] for call in client.calls} == {"https://sqs.eu-west-2.amazonaws.com/210987654321/events"}


def test_nothing_is_called_unless_set(client, make_bridge):
    """Without the setting, and where nothing failed, SQS is not called: the function may have no right to."""
    assert names(make_bridge().lambda_handler({"Records": [message(text(1, "fail"))]})) == ["message-0"]
    assert names(make_bridge(**HIDING).lambda_handler({"Records": [message(text(2))]})) == []
    assert client.calls == []


def test_ten_messages_go_in_a_call(client, make_bridge):
    """SQS takes ten at a time, and each queue has calls of its own."""
    records = [message(text(n, "fail"), f"m{n}") for n in range(23)]
    records += [fifo_message(text(100, "fail"), "first"), fifo_message(text(101, "fail"), "behind it")]
    assert len(names(make_bridge(**HIDING).lambda_handler({"Records": records}))) == 25
    assert [len(call["Entries"]) for call in client.calls] == [10, 10, 3, 1]
    assert "handle of behind it" not in client.hidden  # it was not tried


def test_no_message_is_hidden_for_longer_than_sqs_allows(client, make_bridge):
    """SQS hides no message for more than twelve hours, and an invocation has taken some of them."""
    bridge = make_bridge(hide_until_retry=True, retry=RetryPolicy(base_seconds=3600, growth=10, cap_seconds=86_400))
    for _ in range(3):
        bridge.lambda_handler({"Records": [message(text(1, "fail"))]})
    assert max(client.hidden.values()) <= 12 * 3600 - 900


def test_what_was_not_tried_is_left_to_the_queue(client, make_bridge):
    """An event that waits, for another worker or an orderly stop, may come soon: its message is not touched."""
    bridge = make_bridge(**HIDING)
    bridge.stop()
    assert names(bridge.lambda_handler({"Records": [message(text(1, "fail"))]})) == ["message-0"]
    assert client.calls == []


@pytest.mark.parametrize("arn", ["", "arn:aws:sqs:eu-west-2:210987654321:a/b", "https://sqs.example/1/2", 7, None])
def test_an_odd_queue_is_not_called(client, make_bridge, arn):
    """A record that does not name its queue as AWS does is handed back, and no more."""
    record = message(text(1, "fail"), eventSourceARN=arn)
    assert names(make_bridge(**HIDING).lambda_handler({"Records": [record]})) == ["message-0"]
    assert client.calls == []


def test_without_the_right_the_queue_decides(client, make_bridge, clock):
    """A call that fails is reported once and not repeated for a while; the answer to Lambda is the same."""
    client.error = ClientError({"Error": {"Code": "AccessDenied", "Message": "<token>"}}, "ChangeMessageVisibility")
    bridge = make_bridge(**HIDING)
    for n in range(3):
        assert names(bridge.lambda_handler({"Records": [message(text(n, "fail"))]})) == ["message-0"]
    assert len(client.calls) == 1
    (words,) = bridge.warned
    assert "sqs:ChangeMessageVisibility" in words
    assert "<token>" not in words
    client.error = None
    clock.advance(60)
    bridge.lambda_handler({"Records": [message(text(4, "fail"))]})
    assert len(client.calls) == 2


def test_near_the_end_of_the_time_nothing_is_hidden(client, make_bridge, clock):
    """A call to SQS must not cost an invocation its answer: then messages that are done would come again."""

    class Context:
        """An invocation whose time passes with its handler."""

        def get_remaining_time_in_millis(self):
            """Ten seconds."""
            return 10_000

    bridge = make_bridge(**HIDING)

    @bridge.on("*", name="slow")
    def handle(event):
        clock.advance(9)

    assert names(bridge.lambda_handler({"Records": [message(text(1, "fail"))]}, Context())) == ["message-0"]
    assert client.calls == []


def test_urls_are_made_of_arns():
    """A queue's URL has the region, the account and the name of its ARN, in every partition."""
    assert url_of(QUEUE_ARN) == "https://sqs.eu-west-2.amazonaws.com/210987654321/events"
    china = "arn:aws-cn:sqs:cn-north-1:210987654321:events.fifo"
    assert url_of(china) == "https://sqs.cn-north-1.amazonaws.com.cn/210987654321/events.fifo"


def test_a_real_queue_shows_it_when_it_is_due(ministack, make_bridge, monkeypatch):
    """What boto3 sends is what SQS understands: a message that is due at once can be received at once."""
    for name, value in ministack.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", ministack.url)
    sqs = ministack.client("sqs")
    url = sqs.create_queue(QueueName="postponed")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.send_message(QueueUrl=url, MessageBody=text(1, "fail"))
    (received,) = sqs.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]
    record = message(received["Body"], receiptHandle=received["ReceiptHandle"], eventSourceARN=arn)
    bridge = make_bridge(hide_until_retry=True, retry=RetryPolicy(base_seconds=0))
    assert names(bridge.lambda_handler({"Records": [record]})) == ["message-0"]
    assert bridge.warned == []
    (again,) = sqs.receive_message(QueueUrl=url)["Messages"]
    assert again["MessageId"] == received["MessageId"]
    sqs.delete_queue(QueueUrl=url)
