"""From a bus over a queue to a receiver that fails: every event takes effect once, and the queue is empty then.

EventBridge and SQS are an emulator's, Redis is a real Valkey, `oncebridge consume` is a process of its own, and what
took effect is counted at the receiver, where nothing of ours can touch it.
"""

import json
import os
import signal
import threading
from collections import Counter

import pytest

import payloads
from cli.conftest import CommandLine
from servers.process import wait_until
from servers.receiver import Reply, running_receiver
from servers.valkey import running_valkey

SOURCE = "genesys.test"  # the emulator keeps sources that begin with `aws.` to itself
RULES = ("calls", "all")  # both match, so that each event is delivered twice
EVENTS = 18
AGAIN = 6

SETTINGS = """\
lease_seconds = 1

[retry]
attempts = 100
base_seconds = 0.05
cap_seconds = 0.5

[sinks.crm]
url = "{url}"
private_addresses = true
timeout_seconds = 1
"""


def details(number, start=0):
    """Make so many different events, as Genesys puts them on a bus."""
    return [payloads.detail(payloads.ACW, {"eventTime": payloads.TIME_MS + start + n}) for n in range(number)]


def mark(detail):
    """Return what no two events share."""
    return detail["eventBody"]["eventTime"]


class Bus:
    """A bus with two rules that lead to one queue."""

    def __init__(self, ministack, name):
        """Make them."""
        self._events = ministack.client("events")
        self._sqs = ministack.client("sqs")
        self._name = name
        self.url = self._sqs.create_queue(QueueName=name)["QueueUrl"]
        self._events.create_event_bus(Name=name)
        for rule in RULES:
            self._events.put_rule(Name=rule, EventBusName=name, EventPattern=json.dumps({"source": [SOURCE]}))
            target = {"Id": "queue", "Arn": self._attributes("QueueArn")["QueueArn"]}
            self._events.put_targets(Rule=rule, EventBusName=name, Targets=[target])

    def put(self, details):
        """Put events on the bus; each gets an envelope id of its own, every time."""
        for one in details:
            entry = {
                "Source": SOURCE,
                "DetailType": payloads.ACW,
                "Detail": json.dumps(one),
                "EventBusName": self._name,
            }
            assert self._events.put_events(Entries=[entry])["FailedEntryCount"] == 0

    @property
    def is_empty(self):
        """Whether nothing is left in the queue, seen or hidden."""
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        return set(self._attributes(*names).values()) == {"0"}

    def _attributes(self, *names):
        return self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]


@pytest.fixture
def bus(ministack, request):
    """Return a bus that no other test has."""
    return Bus(ministack, "".join(character if character.isalnum() else "-" for character in request.node.name)[:60])


class Commands(CommandLine):
    """Starts `consume` with a sink by settings."""

    def __init__(self, folder, bus, environment):
        """Take the bus whose queue is worked off."""
        super().__init__(folder)
        self._bus = bus
        self._environment = environment

    def consume(self, receiver, ledger, *arguments):
        """Start it."""
        (self.folder / "oncebridge.toml").write_text(SETTINGS.format(url=receiver.url))
        options = ("--ledger", ledger, "--json", "--poll-seconds", "1", *arguments)
        return self.start("consume", self._bus.url, *options, **self._environment)


@pytest.fixture
def commands(tmp_path, bus, ministack):
    """Run commands in an empty folder; nothing outlives the test."""
    (tmp_path / "work").mkdir()
    commands = Commands(tmp_path / "work", bus, ministack.environment)
    yield commands
    commands.close()


@pytest.fixture
def redis_url(valkey):
    """Return a ledger that no other test has."""
    return f"{valkey.url}?name=consume-{os.urandom(4).hex()}"


def assert_each_once(receiver, events):
    """Check at the receiver: each event under one key, each key in effect once, and no others."""
    keys = {}
    for request in receiver.requests:
        keys.setdefault(mark(json.loads(request.body)["detail"]), set()).add(request.key)
    assert sorted(keys) == sorted(map(mark, events))
    assert {len(found) for found in keys.values()} == {1}
    assert receiver.effects == dict.fromkeys((key for found in keys.values() for key in found), 1)


def accounted(ran):
    """Return the books of a run that ended in order."""
    assert ran.code == 0, ran.err
    assert ran.one["balanced"]
    assert (
        sum(number for name, number in ran.one.items() if name not in ("received", "balanced")) == ran.one["received"]
    )
    return ran.one


# --- a receiver in every trouble ---------------------------------------------------------------------------------

#: What happens to the first tries of an event, in turn; then it is accepted.
TROUBLES = (
    (),
    (Reply(500),),
    (Reply(then="hang until closed"),),  # it took effect, but who waits for the answer never learns
    (Reply(then="close before answer"),),
    (Reply(503, {"Retry-After": "1"}), Reply(500, then="close before answer")),
    (Reply(429), Reply(408)),
)


class Troubled:
    """A script: each event has its trouble, by the order in which it comes first."""

    def __init__(self):
        """Begin with nobody known."""
        self._lock = threading.Lock()
        self._known = {}
        self.tries = Counter()

    def __call__(self, request):
        """Answer one request."""
        with self._lock:
            troubles = self._known.setdefault(request.key, TROUBLES[len(self._known) % len(TROUBLES)])
            self.tries[request.key] += 1
            tries = self.tries[request.key]
        return troubles[tries - 1] if tries <= len(troubles) else Reply()


def test_a_receiver_in_every_trouble_gets_every_event_once(bus, commands, redis_url):
    """Errors, silence, lost answers and pauses asked for: each event takes effect once, duplicates are known."""
    events, script = details(EVENTS), Troubled()
    bus.put(events + events[:AGAIN])
    with running_receiver(script) as receiver:
        ran = commands.consume(receiver, redis_url, "--until-empty").finish()
        assert_each_once(receiver, events)
        assert max(receiver.raw_effects.values()) > 1, "no answer was lost, so the test shows less than it says"
    books = accounted(ran)
    assert books["received"] == len(RULES) * (EVENTS + AGAIN)
    assert books["processed"] == EVENTS
    assert books["redelivery"] + books["republish"] == books["received"] - EVENTS
    assert books["republish"] >= AGAIN
    assert bus.is_empty


def test_a_receiver_that_goes_away_is_said_once_and_waited_for(bus, commands, redis_url):
    """Whoever is on call reads which host is out of reach and why, and when it is back; no event is lost or dead."""
    events, away = details(EVENTS), threading.Event()
    away.set()
    bus.put(events)
    with running_receiver(lambda _: Reply(503 if away.is_set() else 200)) as receiver:
        host = f"127.0.0.1:{receiver.port}"
        consuming = commands.consume(receiver, redis_url)
        wait_until(lambda: f"{host} is left alone until it is back" in consuming.said, "the outage is said")
        wait_until(lambda: len(receiver.requests) > 6, "it was looked whether it is back")
        away.clear()
        wait_until(lambda: bus.is_empty, "what waited is done")
        consuming.signal(signal.SIGTERM)
        ran = consuming.finish()
        assert_each_once(receiver, events)
    books = accounted(ran)
    assert (books["retrying"], books["dead"]) == (0, 0)
    # Beside the first failures of single events, which have keys.
    said = [record["message"] for record in ran.records if host in record["message"] and "key" not in record]
    assert len(said) == 2, said
    assert said[0].endswith(f"{host} answered 503")
    assert said[1].endswith(f"{host} is in reach again")


# --- a worker that is killed -------------------------------------------------------------------------------------


def test_a_killed_worker_is_taken_over_by_the_next(bus, commands, redis_url):
    """`kill -9` in the middle of requests: the next worker does the rest, and repeats under the same keys."""
    events, gate = details(EVENTS), threading.Event()
    bus.put(events)

    def let_some_in(request):
        if request.n > EVENTS // 3:
            gate.wait(60)
        return Reply()

    with running_receiver(let_some_in) as receiver:
        first = commands.consume(receiver, redis_url, "--concurrency", "4")
        wait_until(lambda: len(receiver.requests) >= EVENTS // 3 + 4, "four requests hang")
        first.kill()
        gate.set()
        second = commands.consume(receiver, redis_url)
        wait_until(lambda: bus.is_empty, "the second worker has done the rest")
        second.signal(signal.SIGTERM)
        books = accounted(second.finish())
        assert_each_once(receiver, events)
        assert max(receiver.raw_effects.values()) > 1, "nothing was repeated, so nothing was in flight"
    assert books["retrying"] == 0
    assert books["processed"] >= EVENTS - EVENTS // 3 - 4


# --- a ledger that goes away -------------------------------------------------------------------------------------


def test_a_ledger_that_goes_away_is_waited_for(bus, commands, tmp_path):
    """Redis is killed under load and comes back with what it had: nothing is lost, and nothing takes effect twice."""
    early, late, gate = details(EVENTS), details(EVENTS, start=1000), threading.Event()
    bus.put(early)

    def let_some_in(request):
        if request.n > EVENTS // 3:
            gate.wait(60)
        return Reply()

    with running_valkey(tmp_path / "valkey") as server, running_receiver(let_some_in) as receiver:
        run = commands.consume(receiver, server.url, "--concurrency", "4")
        wait_until(lambda: len(receiver.requests) >= EVENTS // 3 + 4, "four requests hang")
        server.process.kill()
        gate.set()
        wait_until(lambda: "waiting for it" in run.said, "the outage is noticed")
        bus.put(late)
        server.process.start()
        wait_until(lambda: bus.is_empty, "all is done")
        run.signal(signal.SIGTERM)
        ran = run.finish()
        assert_each_once(receiver, early + late)
    books = accounted(ran)
    assert books["retrying"] == 0
    assert ran.err.count("the ledger is back") == ran.err.count("waiting for it")
