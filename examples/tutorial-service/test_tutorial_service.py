"""The tutorial's service, by its own environment: what it loses and doubles, and what takes its place."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from oncebridge import NotAcknowledged
from payloads import ABSENT, in_envelope, tutorial
from servers.process import wait_until
from servers.receiver import Reply, running_receiver
from servers.valkey import running_valkey

README = Path(__file__).with_name("README.md")
PASSWORD = "s3cret, with: odd/characters@"
DAY_SECONDS = 86_400
CHANGE = tutorial("alerting", event_id="evt-1", time="2025-06-02T10:30:07Z")  # published seconds later


def in_the_tutorial(event_type, event_id, moment, body):
    """Build an event of the tutorial's shape: its type is inside, and its envelope has none."""
    inner = {"eventId": event_id, "eventType": event_type, "timestamp": moment, "body": body}
    return in_envelope(inner, id=f"envelope of {event_id}", detail_type=ABSENT, source="contact.centre")


def renamed(name, event_id):
    """Build the change of a user's name."""
    return in_the_tutorial("user.update", event_id, "2025-06-02T10:30:00Z", {"id": "user-8", "name": name})


def through_a_queue(*events):
    """Wrap events as SQS does for Lambda."""
    records = [{"messageId": f"message-{n}", "body": json.dumps(event)} for n, event in enumerate(events)]
    return {"Records": [{**record, "eventSource": "aws:sqs"} for record in records]}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Run a Redis that wants a password; return a client of it."""
    with running_valkey(tmp_path_factory.mktemp("guarded")) as server:
        with server.client() as client:
            client.config_set("requirepass", PASSWORD)
        with server.client(password=PASSWORD) as client:
            yield client


@pytest.fixture
def cache(guarded, monkeypatch):
    """Empty that Redis, and tell the service where it is."""
    guarded.flushall()
    address = guarded.get_connection_kwargs()
    monkeypatch.setenv("REDIS_HOST", address["host"])
    monkeypatch.setenv("REDIS_PORT", str(address["port"]))
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)
    return guarded


@pytest.fixture
def downstream(cache, monkeypatch):
    """Run a receiver that accepts whatever comes, and tell the service where it is."""
    with running_receiver() as receiver:
        monkeypatch.setenv("DOWNSTREAM_URL", receiver.url)
        yield receiver


@pytest.fixture
def naive(cold_start, downstream):
    """Start the tutorial's service."""
    return cold_start("naive")


@pytest.fixture
def service_with(cold_start, downstream):
    """Return what starts what takes its place, with a settings file."""
    started = []

    def start(settings):
        Path("oncebridge.toml").write_text(settings)
        started.append(cold_start("oncebridge.aws"))
        return started[-1].handler

    yield start
    for entry in started:
        entry._bridge().close()  # noqa: SLF001 - in Lambda nobody closes it


@pytest.fixture
def service(service_with):
    """Start it with nothing but the environment to tell it what to do."""
    return service_with("")


def failing_once(request):
    """Be out of order at the first request."""
    return Reply(503 if request.n == 1 else 200)


def received(receiver):
    """Return what a receiver was sent."""
    return [json.loads(request.body) for request in receiver.requests]


# --- as the tutorial has it --------------------------------------------------------------------------------------


def test_a_failure_loses(naive, deliver, downstream):
    """The receiver fails once: the answer is 200, so nobody tries again; and who does is told it is a duplicate."""
    downstream.script = failing_once
    answers = [deliver(naive.lambda_handler, CHANGE) for _ in range(2)]
    assert [answer["statusCode"] for answer in answers] == [200, 200]
    assert [json.loads(answer["body"])["errors"] for answer in answers] == [1, 0]
    assert downstream.effects == {}


def test_ten_minutes_later_it_doubles(naive, deliver, downstream, cache):
    """What is delivered again after the mark has expired is sent again; Genesys may try for four days."""
    deliver(naive.lambda_handler, CHANGE)
    cache.pexpire("event evt-1", 0)
    deliver(naive.lambda_handler, CHANGE)
    assert (
        received(downstream)
        == [
            {
                "eventType": "conversation.changed",
                "body": CHANGE["detail"]["body"],
                "timestamp": CHANGE["detail"]["timestamp"],
            }
        ]
        * 2
    )


def test_a_key_on_the_user_loses(naive, deliver, downstream):
    """A user who is renamed twice within ten minutes keeps the first name."""
    for event in (renamed("Ada", "evt-2"), renamed("Ada King", "evt-3")):
        deliver(naive.lambda_handler, event)
    assert [event["body"]["name"] for event in received(downstream)] == ["Ada"]


def test_behind_a_queue_it_loses_everything(naive, deliver, downstream):
    """A queue's records hold events as text: each is an error, the answer is 200, and the queue deletes them all."""
    answer = deliver(naive.lambda_handler, through_a_queue(CHANGE, renamed("Ada", "evt-2")))
    assert answer == {"statusCode": 200, "body": '{"processed": 0, "skipped": 0, "errors": 2}'}
    assert received(downstream) == []


# --- with Oncebridge ---------------------------------------------------------------------------------------------


def test_the_receiver_sees_no_difference(naive, service, deliver, downstream):
    """The same environment brings the same payload to the same receiver."""
    deliver(naive.lambda_handler, CHANGE)
    deliver(service, CHANGE)
    before, now = received(downstream)
    assert now == before


def test_a_failure_comes_again(service, deliver, downstream):
    """The receiver fails once: Lambda is told so, tries again, and the event is there, once."""
    downstream.script = failing_once
    with pytest.raises(NotAcknowledged):
        service(CHANGE, None)
    deliver(service, CHANGE)
    deliver(service, CHANGE)
    assert [request.key for request in downstream.requests] == [downstream.requests[0].key] * 2
    assert list(downstream.raw_effects.values()) == [1]


def test_nothing_is_forgotten_for_weeks(service, deliver, downstream, cache):
    """Whatever the ledger keeps, it keeps for longer than anybody tries."""
    deliver(service, CHANGE)
    lasting = [cache.ttl(name) for name in cache.scan_iter()]
    assert lasting
    assert all(seconds == -1 or seconds > 29 * DAY_SECONDS for seconds in lasting)


def test_every_change_of_a_user_counts(service, deliver, downstream):
    """A user who is renamed twice has the second name, and each change is sent once."""
    changes = [renamed("Ada", "evt-2"), renamed("Ada King", "evt-3")]
    for event in (*changes, *changes):
        deliver(service, event)
    assert [event["body"]["name"] for event in received(downstream)] == ["Ada", "Ada King"]


def test_a_queue_keeps_what_failed(service, downstream):
    """Behind a queue, only what failed is named and comes again."""
    downstream.script = failing_once
    batch = through_a_queue(CHANGE, renamed("Ada", "evt-2"))
    assert service(batch, None) == {"batchItemFailures": [{"itemIdentifier": "message-0"}]}
    assert service(batch, None) == {"batchItemFailures": []}
    assert list(downstream.raw_effects.values()) == [1, 1]


def changed(status, event_id, moment):
    """Build the change of a conversation."""
    return in_the_tutorial("conversation.update", event_id, moment, {"conversationId": "call-31", "status": status})


@pytest.mark.parametrize(("as_facts", "posted"), [(False, ["held"]), (True, ["held", "connected"])])
def test_what_is_older_is_posted_on_request(service_with, deliver, downstream, as_facts, posted):
    """A status that is older than what was sent is left out, unless the settings in the README ask for it."""
    service = service_with(README.read_text().split("```toml\n")[1].split("```")[0] if as_facts else "")
    deliver(service, changed("held", "evt-5", "2025-06-02T10:31:00Z"))
    deliver(service, changed("connected", "evt-4", "2025-06-02T10:30:00Z"))
    assert [event["body"]["status"] for event in received(downstream)] == posted


@pytest.fixture
def letters(ministack, monkeypatch):
    """Make the bus for dead letters, with a rule that copies all of them to a queue; return what reads that."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    monkeypatch.setenv("DLQ_EVENT_BUS", "genesys-dlq")
    with closing(ministack.client("events")) as events, closing(ministack.client("sqs")) as sqs:
        queue = sqs.create_queue(QueueName="letters")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        events.create_event_bus(Name="genesys-dlq")
        events.put_rule(Name="all", EventBusName="genesys-dlq", EventPattern='{"source": [{"prefix": ""}]}')
        events.put_targets(Rule="all", EventBusName="genesys-dlq", Targets=[{"Id": "queue", "Arn": arn}])

        def read():
            messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
            return [json.loads(message["Body"]) for message in messages]

        yield read


def test_what_is_refused_reaches_the_bus(letters, service, deliver, downstream):
    """An event that the receiver will never take is acknowledged once it is kept, and is on the tutorial's bus."""
    downstream.script = lambda request: Reply(422)
    deliver(service, CHANGE)
    found = []
    wait_until(lambda: found.extend(letters()) or found, "the dead letter in the queue behind the bus")
    (letter,) = found
    assert letter["detail"]["event"] == CHANGE
    assert len(downstream.requests) == 1
