"""From a bus over a bridge to a clean bus and to queues: each event arrives once, and what listens there is unchanged.

EventBridge and SQS are an emulator's, `oncebridge consume` is a process of its own, and what arrived is counted in the
queues behind it.
"""

import json
import signal
from collections import Counter
from contextlib import contextmanager

import pytest

import payloads
from cli.conftest import CommandLine
from oncebridge import Bridge, Outcome, Settings, Verdict
from oncebridge.retry import RetryPolicy
from oncebridge.settings.sinks.bus import BusSettings
from oncebridge.settings.sinks.queue import QueueSettings
from servers.process import wait_until
from servers.proxy import running_proxy

SOURCE = "genesys.com.test/cloud/an-org/desk"  # the emulator keeps those that begin with `aws.` to itself
EVENTS = 15
#: What somebody listens to on the bus that doubles events, and on the clean one without a change.
PATTERN = json.dumps(
    {
        "detail-type": [payloads.ACW],
        "detail": {"eventBody": {"mediaType": ["VOICE"], "wrapupCode": [{"exists": True}]}},
    }
)
SETTINGS = """\
lease_seconds = 1

[retry]
attempts = 100
base_seconds = 0.05
cap_seconds = 0.5

"""


class Account:
    """Buses and queues that no other test has."""

    def __init__(self, ministack, name):
        """Take the name that all of them begin with."""
        self._name = name
        self.events = ministack.client("events")
        self.sqs = ministack.client("sqs")

    def queue(self, name, **attributes):
        """Make a queue; return its URL."""
        attributes |= {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        return self.sqs.create_queue(QueueName=f"{self._name}-{name}", Attributes=attributes)["QueueUrl"]

    def bus(self, name, *rules):
        """Make a bus with rules, each a name and a pattern, that lead to one queue; return its name and the queue."""
        bus, url = f"{self._name}-{name}", self.queue(f"behind-{name}")
        self.events.create_event_bus(Name=bus)
        arn = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for rule, pattern in rules:
            self.events.put_rule(Name=rule, EventBusName=bus, EventPattern=pattern)
            self.events.put_targets(Rule=rule, EventBusName=bus, Targets=[{"Id": "queue", "Arn": arn}])
        return bus, url

    def put(self, bus, details, topic=payloads.ACW):
        """Put events on a bus; each gets an envelope id of its own, every time."""
        for one in details:
            entry = {"Source": SOURCE, "DetailType": topic, "Detail": json.dumps(one), "EventBusName": bus}
            assert self.events.put_events(Entries=[entry])["FailedEntryCount"] == 0

    def send(self, url, envelopes):
        """Send events to a queue, as a rule does."""
        for one in envelopes:
            self.sqs.send_message(QueueUrl=url, MessageBody=json.dumps(one))

    def is_empty(self, url):
        """Tell whether nothing is left in a queue, seen or hidden."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        return set(self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"].values()) == {"0"}

    def drain(self, url, number):
        """Take all messages out of a queue, in order, once there are so many."""
        messages = []

        def take():
            found = self.sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            ).get("Messages", [])
            messages.extend(found)
            for one in found:
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
            return len(messages) >= number and not found

        wait_until(take, f"{number} messages in {url}")
        return messages


@pytest.fixture
def account(ministack, request, monkeypatch):
    """Return an account in the emulator, where boto3 finds it by itself."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    return Account(ministack, "".join(one if one.isalnum() else "-" for one in request.node.name)[:50])


@pytest.fixture
def commands(tmp_path, ministack):
    """Run commands in an empty folder; nothing outlives the test."""
    (tmp_path / "work").mkdir()
    commands = CommandLine(tmp_path / "work")

    def consume(url, sinks, *arguments):
        (commands.folder / "oncebridge.toml").write_text(SETTINGS + sinks)
        options = ("--ledger", "sqlite:///once.db", "--json", "--poll-seconds", "1", *arguments)
        return commands.start("consume", url, *options, **ministack.environment, AWS_ENDPOINT_URL=ministack.url)

    commands.consume = consume
    yield commands
    commands.close()


@contextmanager
def bridge_to(*sinks):
    """Make a bridge with these sinks that never gives up."""
    settings = Settings(sinks=sinks, retry=RetryPolicy(attempts=1000, base_seconds=0.01, cap_seconds=0.05))
    with Bridge("memory://", settings=settings) as bridge:
        yield bridge


def details(number):
    """Make so many different events, as Genesys puts them on a bus."""
    return [payloads.detail(payloads.ACW, {"eventTime": payloads.TIME_MS + n}) for n in range(number)]


def facts(number, **body):
    """Make so many different events in their envelopes."""
    return [payloads.envelope(payloads.ACW, {"eventTime": payloads.TIME_MS + n, **body}) for n in range(number)]


def mark(detail):
    """Return what no two events share."""
    return detail["eventBody"]["eventTime"]


def marks(messages):
    """Count the events in messages whose bodies are envelopes."""
    return Counter(mark(json.loads(message["Body"])["detail"]) for message in messages)


def keys(messages):
    """Count the keys of messages."""
    return Counter(message["MessageAttributes"]["oncebridge_key"]["StringValue"] for message in messages)


# --- a clean bus ------------------------------------------------------------------------------------------------


def test_rules_of_a_clean_bus_get_each_event_once(account, commands):
    """Events that come two, three and four times, on a bus whose two rules both match, are one each behind the bridge.

    The rule on the clean bus has the pattern of the one before, and a rule by the source gets them too.
    """
    raw_bus, url = account.bus("raw", ("calls", PATTERN), ("all", json.dumps({"source": [SOURCE]})))
    clean_bus, behind = account.bus("clean", ("calls", PATTERN))
    by_source, behind_too = account.bus("too", ("by-source", json.dumps({"source": [{"prefix": "genesys.com.test/"}]})))
    events = details(EVENTS)
    account.put(raw_bus, events + events[:5])
    account.put(raw_bus, [{"eventType": "not a call", "eventId": "1"}], topic="something else")
    sinks = f'[sinks.clean]\nbus = "{clean_bus}"\n[sinks.too]\nbus = "{by_source}"\ntopics = ["v2.*"]\n'
    ran = commands.consume(url, sinks, "--until-empty").finish()
    assert ran.code == 0, ran.err
    assert ran.one["balanced"]
    assert (ran.one["received"], ran.one["processed"]) == (2 * (EVENTS + 5) + 1, EVENTS + 1)
    assert account.is_empty(url)
    for queue in (behind, behind_too):
        messages = account.drain(queue, EVENTS)
        assert marks(messages) == dict.fromkeys(map(mark, events), 1)
        for message in messages:
            got = json.loads(message["Body"])
            assert got["detail-type"] == payloads.ACW
            assert got["source"] == SOURCE
            assert got["detail"].pop("oncebridge")["key"].startswith("ob1_")
            assert got["detail"] in events


def test_a_partner_source_is_put_without_what_is_amazons(account):
    """Events of a partner source arrive under the rest of it: that alone may have to change in a pattern."""
    bus, behind = account.bus("clean", ("all", json.dumps({"source": [{"prefix": "genesys.com/cloud/"}]})))
    with bridge_to(BusSettings(name="clean", bus=bus)) as bridge:
        bridge.process_many(facts(3) * 2)
    messages = account.drain(behind, 3)
    assert {json.loads(message["Body"])["source"] for message in messages} == {
        payloads.source().removeprefix("aws.partner/")
    }
    assert set(marks(messages).values()) == {1}


def test_a_bridge_behind_the_clean_bus(account):
    """What was put twice on the clean bus is one event for a bridge behind it."""
    bus, behind = account.bus("clean", ("all", json.dumps({"source": [{"prefix": ""}]})))
    for _ in range(2):
        with bridge_to(BusSettings(name="clean", bus=bus)) as bridge:
            bridge.process_many(facts(3))
    messages = account.drain(behind, 6)
    with Bridge("memory://") as second:
        second.on("*")(lambda event: None)
        results = second.process_many([message["Body"] for message in messages])
    assert Counter(result.verdict for result in results) == {Verdict.FRESH: 3, Verdict.REPUBLISH: 3}


def test_events_wait_for_a_bus_that_is_missing(account):
    """For a bus that does not exist nothing is put and nothing is lost: it goes on once the bus is there."""
    name = account.queue("x").rpartition("/")[2]
    with bridge_to(BusSettings(name="clean", bus=f"{name}-bus")) as bridge:
        results = bridge.process_many(facts(3))
        assert [result.outcome for result in results] == [Outcome.RELEASE] * 3
        assert "ResourceNotFoundException" in results[0].reason
        account.events.create_event_bus(Name=f"{name}-bus")
        wait_until(lambda: all(one.acknowledged for one in bridge.process_many(facts(3))), "the bus to be used")


def test_a_source_of_amazons_is_refused_for_good(account):
    """What the emulator says of a source it keeps to itself is understood: the event comes again, no other waits."""
    bus, _ = account.bus("clean")
    with bridge_to(BusSettings(name="clean", bus=bus, source="aws.smuggled")) as bridge:
        (result,) = bridge.process_many(facts(1))
    assert result.outcome is Outcome.RETRY
    assert "NotAuthorizedForSource" in result.reason


# --- queues -----------------------------------------------------------------------------------------------------


def test_a_queue_gets_each_event_as_it_came(account):
    """A queue gets each event once, byte for byte, with its key beside it."""
    url, batch = account.queue("clean"), [json.dumps(one) for one in facts(25)]
    with bridge_to(QueueSettings(name="q", queue=url)) as bridge:
        bridge.process_many(batch + batch[:10])
    messages = account.drain(url, 25)
    assert sorted(message["Body"] for message in messages) == sorted(batch)
    assert set(keys(messages).values()) == {1}


def test_states_arrive_in_order_per_entity(account, commands):
    """A FIFO queue has the states of each user in their order, in groups of their own, however often they came."""
    url, clean = account.queue("in.fifo"), account.queue("clean.fifo")
    users = ("ann", "bob", "cleo")
    for n in range(5):
        for user in users:
            state = payloads.presence(f"P{n}", modified_ms=payloads.TIME_MS + n * 1000, user=user)
            for again in range(2):
                account.sqs.send_message(
                    QueueUrl=url,
                    MessageBody=json.dumps(state),
                    MessageGroupId=user,
                    MessageDeduplicationId=f"{user}-{n}-{again}",
                )
    ran = commands.consume(url, f'[sinks.q]\nqueue = "{clean}"\n', "--until-empty").finish()
    assert ran.code == 0, ran.err
    arrived = {}
    for message in account.drain(clean, 5 * len(users)):
        detail = json.loads(message["Body"])["detail"]
        group = arrived.setdefault(message["Attributes"]["MessageGroupId"], [])
        group.append((detail["topicName"], detail["eventBody"]["presenceDefinition"]["systemPresence"]))
    assert sorted(arrived.values()) == [[(f"v2.users.{user}.presence", f"P{n}") for n in range(5)] for user in users]


@pytest.mark.parametrize(("name", "is_doubled"), [("clean", True), ("clean.fifo", False)])
def test_a_lost_answer_repeats_under_the_same_key(account, ministack, name, is_doubled):
    """What is sent again after a lost answer has the same key; a FIFO queue drops it by that."""
    url = account.queue(name)
    with running_proxy(int(ministack.url.rpartition(":")[2])) as proxy:
        proxy.drop_reply_to(lambda data: b"SendMessageBatch" in data)
        with bridge_to(QueueSettings(name="q", queue=proxy.url(url))) as bridge:
            batch = facts(3)
            wait_until(lambda: all(one.acknowledged for one in bridge.process_many(batch)), "all to be sent")
        assert proxy.dropped.is_set()
    found = keys(account.drain(url, 6 if is_doubled else 3))
    assert len(found) == 3
    assert {number > 1 for number in found.values()} == {is_doubled}


def test_a_killed_worker_is_taken_over_under_the_same_keys(account, ministack, commands):
    """`kill -9` after the queue took a batch and before the worker knew: the next one repeats it, and nothing more."""
    url, clean = account.queue("in"), account.queue("clean.fifo")
    account.send(url, facts(EVENTS))
    with running_proxy(int(ministack.url.rpartition(":")[2])) as proxy:
        sinks = f'[sinks.q]\nqueue = "{proxy.url(clean)}"\n'
        proxy.drop_reply_to(lambda data: b"SendMessageBatch" in data)
        killed = commands.consume(url, sinks)
        assert proxy.dropped.wait(60)
        killed.kill()
        second = commands.consume(url, sinks)
        wait_until(lambda: account.is_empty(url), "the second worker has done the rest")
        second.signal(signal.SIGTERM)
        ran = second.finish()
    assert ran.code == 0, ran.err
    assert ran.one["retrying"] == 0
    messages = account.drain(clean, EVENTS)
    assert marks(messages) == dict.fromkeys(range(payloads.TIME_MS, payloads.TIME_MS + EVENTS), 1)


def test_large_events_arrive(account):
    """Ten events of 300 kB, which no one call takes, all arrive; one too large for the queue is a dead letter alone."""
    url, small = account.queue("large"), account.queue("small", MaximumMessageSize="262144")
    with bridge_to(QueueSettings(name="q", queue=url)) as bridge:
        results = bridge.process_many(facts(10, note="ü" * 150_000))
        assert [result.outcome for result in results] == [Outcome.DONE] * 10
    with bridge_to(QueueSettings(name="q", queue=small)) as bridge:
        batch = facts(4)
        batch[2]["detail"]["eventBody"]["note"] = "x" * 300_000
        results = bridge.process_many(batch)
        assert [result.outcome for result in results] == ["done", "done", "dead", "done"]
        assert (
            results[2].reason == f"queue {small.rpartition('/')[2]} answered InvalidParameterValue, which is permanent"
        )
    assert len(account.drain(url, 10)) == 10
    assert len(account.drain(small, 3)) == 3


def test_characters_that_a_queue_refuses_arrive(account):
    """What JSON may hold and a queue does not take arrives as an escape."""
    url = account.queue("odd")
    batch = facts(2, note="\ufffe\uffff\x7f\u2028🙂")
    with bridge_to(QueueSettings(name="q", queue=url)) as bridge:
        assert [result.outcome for result in bridge.process_many(batch)] == [Outcome.DONE] * 2
    assert [json.loads(message["Body"]) for message in account.drain(url, 2)] == batch


def test_a_missing_queue_costs_no_attempts(account, ministack):
    """For a queue that does not exist everything waits, and goes on once it is there."""
    url = account.queue("later")
    account.sqs.delete_queue(QueueUrl=url)
    settings = Settings(sinks=(QueueSettings(name="q", queue=url),), retry=RetryPolicy(attempts=1))
    with Bridge("memory://", settings=settings) as bridge:
        results = bridge.process_many(facts(2))
        assert [result.outcome for result in results] == [Outcome.RELEASE] * 2
        account.queue("later")
        wait_until(lambda: all(one.acknowledged for one in bridge.process_many(facts(2))), "the queue to be used")
        assert bridge.books.as_dict()["dead"] == 0
