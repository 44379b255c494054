"""Whole streams through a bridge: every delivery gets the verdict that it must get, however the stream is cut.

The situations are those that people report: each is a list of deliveries, and the verdict of each.
"""

import gc
import random
import threading
import time
from collections import Counter
from functools import cache
from itertools import combinations

import pytest

from oncebridge import Bridge, Settings
from oncebridge.clock import SystemClock
from oncebridge.simulation import Road, simulate
from payloads import (
    ABSENT,
    ACTIVITY,
    ACW,
    ATTRIBUTES,
    AUDITS,
    METRICS,
    OBSERVATIONS,
    OTHER_ORG,
    OUTCOME,
    PUBLISHED_MS,
    SNAPSHOT,
    TIME_MS,
    call_status,
    envelope,
    in_envelope,
    interaction_update,
    iso,
    presence,
    queue_conversation,
    raw,
    routing_status,
    source,
    status_change,
    tutorial,
)

DAY_MS = 24 * 60 * 60 * 1000
CAMPAIGN = "v2.outbound.campaigns.{id}"
DETAILS = "v2.detail.events.conversation.{id}."


def acw(**changes):
    """Build a wrap-up that is told apart by envelope fields alone."""
    return envelope(ACW, **changes)


def wrapped_up(after_ms, session="session-1", **changes):
    """Build the end of an agent's notes, so long after the first."""
    return envelope(ACW, {"eventTime": TIME_MS + after_ms, "sessionId": session}, id=f"acw-{after_ms}", **changes)


def routed(status, after_ms, event_id, envelope_id=None):
    """Build a routing event with an event id and an envelope of its own."""
    return queue_conversation(status, event_id=event_id, moment=TIME_MS + after_ms, id=envelope_id or f"by {event_id}")


def shown(system, after_ms, envelope_id=None, **changes):
    """Build a presence with its date."""
    return presence(system, modified_ms=TIME_MS + after_ms, id=envelope_id or f"{system} {after_ms}", **changes)


def audit(action, envelope_id, **changes):
    """Build an audit under one audit id."""
    return envelope(AUDITS, {"action": action, **changes}, id=envelope_id)


def active(status_ms, presence_ms, message, **changes):
    """Build an activity with two of its three times."""
    body = {
        "routingStatus": {"status": "IDLE", "startTime": iso(TIME_MS + status_ms)},
        "presence": {"presenceMessage": message, "modifiedDate": iso(TIME_MS + presence_ms)},
    }
    return envelope(ACTIVITY, body, id=f"{status_ms} {presence_ms} {message}", **changes)


def campaign(version, after_ms, status, **changes):
    """Build a campaign, whose version orders."""
    body = {"version": version, "dateModified": iso(TIME_MS + after_ms), "campaignStatus": status}
    return envelope(CAMPAIGN, body, id=f"{version} {after_ms} {status}", **changes)


def read_at(published_ms, **changes):
    """Build a reading that is like every other but for its publish time."""
    return envelope(OBSERVATIONS, frame={"timestamp": iso(published_ms)}, **changes)


def seen_at(published_ms, state, **changes):
    """Build the snapshot of a conversation."""
    frame = {"timestamp": ABSENT if published_ms is None else iso(published_ms)}
    return envelope(SNAPSHOT, {"recordingState": state}, frame=frame, **changes)


NOTHING_IDENTIFIES = "an update that nothing tells from the next"  # and so is processed every time
SITUATIONS = {
    # What the road does.
    "one envelope, delivered again and again": [
        (acw(), "fresh"), (acw(), "redelivery"), (acw(time="2025-06-02T11:00:00Z"), "redelivery"),
    ],
    "two invocations with the same content and time": [
        (call_status(id="one"), "fresh"), (call_status(id="one"), "redelivery"),
    ],
    "overlapping rules": [(acw(id="one"), "fresh")] + [(acw(id="one"), "redelivery")] * 3,
    "published again under a new envelope id": [
        (acw(id="one"), "fresh"), (acw(id="two"), "republish"), (acw(id="one"), "redelivery"),
        (acw(id="two"), "republish"),
    ],
    "published again with another correlation and publish time": [
        (acw(id="one"), "fresh"),
        (acw(id="two", frame={"timestamp": iso(PUBLISHED_MS + 4 * DAY_MS), "metadata": {"CorrelationId": "x"}}),
         "republish"),
    ],
    "a second integration": [
        (acw(id="one"), "fresh"), (acw(id="two", source=source(suffix="second")), "republish"),
    ],
    "another organization": [
        (acw(id="one"), "fresh"), (acw(id="one", source=source(OTHER_ORG)), "fresh"),
    ],
    "a replay with the same id": [(acw(), "fresh"), (acw(replay_name="tuesday"), "redelivery")],
    "a replay with a new id": [(acw(id="one"), "fresh"), (acw(id="two", replay_name="tuesday"), "republish")],
    "a bus that drops the id": [
        (acw(id="one"), "fresh"), (acw(id=ABSENT), "republish"), (acw(id=ABSENT), "republish"),
    ],
    "no id from the beginning": [
        (acw(id=ABSENT), "fresh"), (acw(id=ABSENT), "republish"), (acw(id="one"), "republish"),
    ],
    "the same text written differently": [
        (raw(acw()), "fresh"), (acw(), "redelivery"), (raw(acw()).decode(), "redelivery"),
    ],
    # Hand-made shapes.
    "a status with its own event id, sent twice": [
        (status_change(), "fresh"), (status_change(), "republish"), (status_change("ended", event_id="2"), "fresh"),
    ],
    "the tutorial's event, run twice": [(tutorial(id="one"), "fresh"), (tutorial(id="one"), "redelivery")],
    "the same event id several times within a short while": [
        (tutorial(id="one"), "fresh"), (tutorial(id="two"), "republish"), (tutorial(id="three"), "republish"),
    ],
    "an interaction update that only its envelope tells from the next": [
        (interaction_update(id="one"), "fresh"), (interaction_update(id="one"), "redelivery"),
        (interaction_update(id="two"), "fresh"),
    ],
    NOTHING_IDENTIFIES: [
        (interaction_update(id=ABSENT), "fresh"), (interaction_update(id=ABSENT), "fresh"),
    ],
    "the status again, some milliseconds later": [
        (call_status(id="one"), "fresh"), (call_status(id="two", moment=TIME_MS + 3), "echo"),
        (call_status("held", id="three", moment=TIME_MS + 5), "fresh"),
    ],
    "the status again, in seconds with a fraction": [
        (call_status(id="one", moment=1748860200.1), "fresh"), (call_status(id="two", moment=1748860200.35), "echo"),
        (call_status(id="three", moment=1748860200.75), "fresh"),
    ],
    "the same status with another number of participants": [
        (call_status(id="one"), "fresh"),
        (in_envelope({**call_status()["detail"], "participantCount": 3, "timestamp": TIME_MS + 50},
                     detail_type="conversation:call:status", source="custom.desktop"), "fresh"),
    ],
    "one change under different event ids, within the window": [
        (routed("waiting", 0, "a"), "fresh"), (routed("accepted", 900, "b"), "fresh"),
        (routed("accepted", 1200, "c"), "echo"), (routed("accepted", 1200, "c"), "redelivery"),
        (routed("accepted", 1200, "c", "again"), "republish"), (routed("accepted", 900, "b", "again"), "republish"),
    ],
    "one change under different event ids, in one millisecond": [
        (routed("accepted", 0, "a"), "fresh"), (routed("accepted", 0, "b"), "echo"),
    ],
    "different states in one millisecond": [
        (routed("waiting", 0, "a"), "fresh"), (routed("accepted", 0, "b"), "fresh"),
        (routed("waiting", 0, "a"), "redelivery"), (routed("accepted", 0, "b"), "redelivery"),
    ],
    "the window has an end": [
        (routed("accepted", 0, "a"), "fresh"), (routed("accepted", 500, "b"), "echo"),
        (routed("accepted", 501, "c"), "fresh"),
    ],
    "an event id that comes again with other content": [
        (routed("waiting", 0, "a"), "fresh"), (routed("accepted", 0, "a", "other"), "conflict"),
        (routed("accepted", 0, "a", "other"), "conflict"), (routed("ended", 0, "a", "third"), "conflict"),
        (routed("waiting", 0, "a"), "redelivery"),
    ],
    # Conversations.
    "a reopened conversation wraps up once, twice and three times": [
        (wrapped_up(0), "fresh"), (wrapped_up(60_000), "fresh"), (wrapped_up(90_000), "fresh"),
        (wrapped_up(90_007), "fresh"), (wrapped_up(200_000), "fresh"), (wrapped_up(200_003), "fresh"),
        (wrapped_up(200_003), "redelivery"), (wrapped_up(200_003, session="session-2"), "fresh"),
    ],
    "user.start of a new session before user.end of the old one": [
        (envelope(DETAILS + "user.start", {"sessionId": "new", "eventTime": TIME_MS + 825}),
         "fresh"),
        (envelope(DETAILS + "user.end", {"sessionId": "old", "eventTime": TIME_MS + 1000}),
         "fresh"),
        (envelope(DETAILS + "user.start", {"sessionId": "old", "eventTime": TIME_MS}), "fresh"),
    ],
    "facts that arrive late": [(wrapped_up(5000), "fresh"), (wrapped_up(0), "fresh"), (wrapped_up(5000), "redelivery")],
    "several outcomes with one event time": [
        (envelope(OUTCOME, {"flowOutcomeId": "a"}), "fresh"), (envelope(OUTCOME, {"flowOutcomeId": "b"}), "fresh"),
        (envelope(OUTCOME, {"flowOutcomeId": "a"}), "redelivery"),
    ],
    "two attribute writes in one millisecond": [
        (envelope(ATTRIBUTES), "fresh"), (envelope(ATTRIBUTES, {"attributes": {"verified": "no"}}), "fresh"),
    ],
    "one conversation on a broad and on a narrow topic": [
        (envelope(SNAPSHOT), "fresh"), (envelope("v2.users.{id}.conversations.calls"), "fresh"),
        (envelope("v2.routing.queues.{id}.conversations"), "fresh"),
    ],
    "metrics under one record id": [
        (envelope(METRICS), "fresh"), (envelope(METRICS, {"metric": "tHeld"}), "fresh"),
        (envelope(METRICS, id="two", frame={"timestamp": iso(PUBLISHED_MS + 9)}), "republish"),
    ],
    "equal readings of different moments": [
        (read_at(PUBLISHED_MS), "fresh"), (read_at(PUBLISHED_MS + 1000), "fresh"),
        (read_at(PUBLISHED_MS, id="again"), "republish"), (read_at(PUBLISHED_MS + 1000), "redelivery"),
    ],
    "an audit with other content": [
        (audit("Update", "one"), "fresh"), (audit("Delete", "two"), "conflict"),
        (audit("Update", "three"), "republish"), (audit("Delete", "two"), "conflict"),
        (audit("Update", "one"), "redelivery"),
    ],
    # States.
    "presence from one to another and back": [
        (shown("BUSY", 0), "fresh"), (shown("MEAL", 100), "fresh"), (shown("BUSY", 200), "fresh"),
        (shown("MEAL", 100), "redelivery"), (shown("BUSY", 0, "again"), "republish"),
    ],
    "presence without a date, from one to another and back": [
        (presence("BUSY", published_ms=PUBLISHED_MS), "fresh"),
        (presence("MEAL", published_ms=PUBLISHED_MS + 100), "fresh"),
        (presence("BUSY", published_ms=PUBLISHED_MS + 200), "fresh"),
        (presence("BUSY", published_ms=PUBLISHED_MS + 300, id="echo"), "echo"),
        (presence("BUSY", published_ms=PUBLISHED_MS, id="again"), "republish"),
    ],
    "presence that arrives late": [
        (shown("MEAL", 10_000), "fresh"), (shown("BUSY", 0), "stale"), (shown("BUSY", 0), "redelivery"),
        (shown("BUSY", 0, "again"), "republish"), (shown("AWAY", 20_000), "fresh"),
    ],
    "presences of different users": [
        (shown("BUSY", 10_000), "fresh"),
        (shown("BUSY", 0, user="somebody else"), "fresh"),
    ],
    "a login storm": [
        (shown("AVAILABLE", n, user=f"agent {n % 7}"), "fresh" if n < 7 else "echo")
        for n in range(21)
    ],
    "an echo moves the line but not the window": [
        (routing_status("IDLE", TIME_MS, id="1"), "fresh"), (routing_status("IDLE", TIME_MS + 400, id="2"), "echo"),
        (routing_status("OFF_QUEUE", TIME_MS + 399, id="3"), "stale"),
        (routing_status("IDLE", TIME_MS + 501, id="4"), "fresh"),
        (routing_status("IDLE", TIME_MS + 1001, id="5"), "echo"),
    ],
    "an echo that overtakes its original": [
        (routing_status("IDLE", TIME_MS + 200, id="2"), "fresh"), (routing_status("IDLE", TIME_MS, id="1"), "echo"),
        (routing_status("OFF_QUEUE", TIME_MS + 100, id="3"), "stale"),
    ],
    "several times in one body": [
        (active(5000, 1000, "a"), "fresh"), (active(4000, 1000, "b"), "stale"), (active(5000, 1000, "c"), "fresh"),
        (active(4000, 2000, "d"), "fresh"), (active(4400, 2100, "d"), "echo"), (active(4901, 2100, "d"), "fresh"),
    ],
    "a version that orders instead of the time": [
        (campaign(8, 0, "on"), "fresh"), (campaign(7, 60_000, "off"), "stale"), (campaign(9, -60_000, "off"), "fresh"),
        (campaign(9, -60_000, "on"), "fresh"),
    ],
    "a version out of the blue": [
        (campaign(8, 0, "on"), "fresh"), (campaign(2**63 - 1, 1000, "off"), "fresh"),
        (campaign(9, 2000, "on"), "fresh"), (campaign(8, 3000, "off"), "stale"), (campaign(10, 4000, "off"), "fresh"),
    ],
    "versions far apart": [
        (campaign(5000, 0, "on"), "fresh"), (campaign(4000, 1000, "off"), "stale"),
        (campaign(3999, 2000, "off"), "fresh"), (campaign(3998, 3000, "on"), "stale"),
        (campaign(5000, 0, "off"), "fresh"),
    ],
    "a stamp from the future": [
        (presence("BUSY", modified_ms=4_070_908_800_000, id="2099"), "fresh"), (shown("MEAL", 0), "fresh"),
        (shown("BUSY", 1000), "fresh"), (shown("AWAY", 500), "stale"),
        (presence("BUSY", modified_ms=4_070_908_800_000, id="2099"), "redelivery"),
    ],
    "whole seconds of the envelope order, but tell no echo": [
        (seen_at(None, "none", id="one"), "fresh"), (seen_at(None, "none", id="two"), "fresh"),
        (seen_at(None, "none", id="three", time="2025-06-02T10:29:00Z"), "stale"),
    ],
    "snapshots that say the same": [
        (seen_at(PUBLISHED_MS, "none", id="one"), "fresh"), (seen_at(PUBLISHED_MS + 90, "none", id="two"), "echo"),
        (seen_at(PUBLISHED_MS + 95, "paused", id="three"), "fresh"),
    ],
    "detail-type and topic name that disagree": [
        (shown("BUSY", 5000, detail_type="v2.users.{id}.activity"), "fresh"),
        (shown("MEAL", 0, detail_type="v2.users.{id}.activity"), "fresh"),
    ],
    # What cannot be read.
    "a delivery that is no JSON": [
        (b"{", "dead"), (acw(), "fresh"), (b"{", "dead"), (b"}", "dead"), (acw(), "redelivery"),
    ],
}  # fmt: skip


@pytest.fixture(params=["memory", "sqlite"])
def make_bridge(request, tmp_path):
    """Make bridges on ledgers of their own, each with one handler, which usually notes what it was given."""
    bridges = []

    def make(handler=None, **settings):
        url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/{len(bridges)}.db"
        bridge = Bridge(url, settings=Settings(**settings))
        bridge.given = []
        bridge.on("*", permanent=(LookupError,))(handler or bridge.given.append)
        bridges.append(bridge)
        return bridge

    yield make
    for bridge in bridges:
        bridge.close()


def process(bridge, deliveries, sizes):
    """Give a bridge a stream in batches of these sizes."""
    results, at = [], 0
    for size in sizes:
        results += bridge.process_many(deliveries[at : at + size])
        at += size
    assert at >= len(deliveries)
    return results


def batches_of(size, number):
    """Return the sizes of equal batches."""
    return [size] * -(-number // size)


def splits(number):
    """Return every way to cut so many deliveries into batches, or some of them where there are many."""
    cuts = [cut for size in range(number) for cut in combinations(range(1, number), size)]
    chosen = cuts if len(cuts) <= 64 else [*cuts[:8], *random.Random(number).sample(cuts, 24), cuts[-1]]
    return [[b - a for a, b in zip((0, *cut), (*cut, number), strict=True)] for cut in chosen]


# --- situations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("situation", SITUATIONS)
def test_situation(situation, make_bridge):
    """Every delivery of a situation gets its verdict, one by one and in one batch."""
    deliveries, wanted = zip(*SITUATIONS[situation], strict=True)
    for size in (1, len(deliveries)):
        bridge = make_bridge()
        results = process(bridge, deliveries, batches_of(size, len(deliveries)))
        assert [result.verdict for result in results] == list(wanted)
        assert len(bridge.given) == wanted.count("fresh")


@pytest.mark.parametrize("situation", SITUATIONS)
def test_situation_in_any_batches(situation):
    """A stream gets the same verdicts however it is cut into batches."""
    deliveries, wanted = zip(*SITUATIONS[situation], strict=True)
    for sizes in splits(len(deliveries)):
        bridge = Bridge("memory://")
        bridge.on("*")(lambda event: None)
        assert [result.verdict for result in process(bridge, deliveries, sizes)] == list(wanted), sizes
        bridge.close()


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {NOTHING_IDENTIFIES}))
def test_second_pass_processes_nothing(situation, make_bridge):
    """The same stream again finds everything settled: no handler is called, and nothing is an echo or stale."""
    deliveries, wanted = zip(*SITUATIONS[situation], strict=True)
    bridge = make_bridge()
    bridge.process_many(deliveries)
    again = bridge.process_many(deliveries)
    assert {result.verdict for result in again} <= {"redelivery", "republish", "conflict", "dead"}
    assert [one.verdict == "conflict" for one in again] == [verdict == "conflict" for verdict in wanted]
    assert len(bridge.given) == wanted.count("fresh")


@pytest.mark.parametrize("situation", SITUATIONS)
def test_books_balance(situation, make_bridge):
    """Each delivery stands in exactly one column of the books, the one of its verdict."""
    deliveries, wanted = zip(*SITUATIONS[situation], strict=True)
    bridge = make_bridge()
    bridge.process_many(deliveries)
    books = bridge.books.as_dict()
    assert (books.pop("received"), books.pop("balanced")) == (len(deliveries), True)
    counted = Counter("processed" if verdict == "fresh" else verdict for verdict in wanted)
    assert {name: number for name, number in books.items() if number} == counted


def test_duplicates_name_the_original(make_bridge):
    """A duplicate names the envelope that did the work, and says in words what it repeats."""
    bridge = make_bridge()
    deliveries = [acw(id="one"), acw(id="one"), acw(id="two"), acw(id=ABSENT)]
    for results in (bridge.process_many(deliveries), bridge.process_many(deliveries)):
        assert [result.original_envelope_id for result in results[1:]] == ["one"] * 3
        assert ["same envelope" in result.reason for result in results[1:]] == [True, False, False]
        assert all("already done" in result.reason for result in results[1:])
        assert [result.envelope_id for result in results] == ["one", "one", "two", None]


def test_replays_anew(make_bridge):
    """Where each named replay counts anew, every event is processed once more, and once only."""
    bridge = make_bridge(replays_anew=True)
    names = [ABSENT, "one", "one", "two", ABSENT]
    deliveries = [shown("BUSY", 0, replay_name=name) for name in names]
    verdicts = [result.verdict for result in bridge.process_many(deliveries)]
    assert verdicts == ["fresh", "fresh", "redelivery", "fresh", "redelivery"]


# --- echoes need a state that is sure ---------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "outcome"), [(OSError, "retry"), (LookupError, "dead")])
def test_no_echo_after_a_failure(error, outcome, make_bridge):
    """While a state since the newest ended otherwise than done, the sink may show it: nothing is an echo."""
    tried = []

    def fail_second(event):
        tried.append(event.envelope.id)
        if event.envelope.id == "2":
            raise error

    bridge = make_bridge(fail_second)
    stream = [
        routing_status("IDLE", TIME_MS, id="1"),
        routing_status("OFF_QUEUE", TIME_MS + 100, id="2"),
        routing_status("IDLE", TIME_MS + 200, id="3"),
        routing_status("IDLE", TIME_MS + 300, id="4"),
    ]
    results = [bridge.process(delivery) for delivery in stream]
    assert [result.verdict for result in results] == ["fresh", "fresh", "fresh", "echo"]
    assert tried == ["1", "2", "3"]
    assert results[1].outcome == outcome


def test_failed_state_is_stale_when_it_comes_again(make_bridge):
    """A state that failed and was overtaken meanwhile is stale when it is delivered again."""

    def fail_first(event):
        if event.envelope.id == "1":
            raise OSError

    bridge = make_bridge(fail_first)
    old, new = routing_status("IDLE", TIME_MS, id="1"), routing_status("OFF_QUEUE", TIME_MS + 9000, id="2")
    assert [bridge.process(one).outcome for one in (old, new)] == ["retry", "done"]
    assert bridge.process(old).verdict == "stale"
    assert bridge.process(old).verdict == "redelivery"


# --- two at once ------------------------------------------------------------------------------------------------


class WaitsFor(SystemClock):
    """A clock whose waits say so, and end when something has happened."""

    def __init__(self, happened):
        """Take what waits end with."""
        self.waiting = threading.Event()
        self._happened = happened

    def wait(self, stop, seconds):
        """Wait for what happens instead of for the time."""
        self.waiting.set()
        self._happened.wait(30)
        return stop.is_set()


MEETINGS = {
    "same envelope": (acw(id="one"), acw(id="one"), "redelivery"),
    "another envelope": (acw(id="one"), acw(id="two"), "republish"),
    "same change": (routed("accepted", 0, "a"), routed("accepted", 0, "b"), "echo"),
    "two states in one millisecond": (routed("waiting", 0, "a"), routed("accepted", 0, "b"), "fresh"),
    "an older state": (shown("BUSY", 5000), shown("MEAL", 0), "stale"),
}


@pytest.mark.parametrize("meeting", MEETINGS)
@pytest.mark.parametrize("ledger", ["memory", "sqlite"])
def test_two_invocations_in_a_millisecond(ledger, meeting, tmp_path):
    """Whoever comes second while the first still works waits, and then gets the verdict that it must get."""
    first, second, verdict = MEETINGS[meeting]
    first_done = threading.Event()
    clock = WaitsFor(first_done)
    one = Bridge("memory://" if ledger == "memory" else f"sqlite:///{tmp_path}/shared.db")
    other = Bridge(one.ledger if ledger == "memory" else f"sqlite:///{tmp_path}/shared.db", clock=clock)
    given, answers = [], []

    @one.on("*")
    def slow(event):
        given.append(event)
        later.start()
        assert clock.waiting.wait(30)

    other.on("*")(given.append)
    later = threading.Thread(target=lambda: answers.append(other.process(second)))
    assert one.process(first).outcome == "done"
    first_done.set()
    later.join(30)
    assert [answer.verdict for answer in answers] == [verdict]
    assert len(given) == (2 if verdict == "fresh" else 1)
    one.close()
    other.close()


# --- against the truth ------------------------------------------------------------------------------------------

SEEDS = range(20)
CONVERSATIONS = 20
START_MS = 1_748_000_000_000  # long past, so that no stamp is ahead of anybody's clock


@cache
def simulated(seed):
    """Return a stream with its truth, some of it damaged."""
    return tuple(simulate(CONVERSATIONS, seed, road=Road(unreadable=0.02), start_ms=START_MS))


def mistakes(deliveries, results):
    """Return the deliveries whose verdict is not the truth, with both."""
    return [
        (delivery.n, delivery.fault, delivery.verdict, result.verdict, delivery.of, result.original_envelope_id)
        for delivery, result in zip(deliveries, results, strict=True)
        if (result.verdict, result.original_envelope_id) != (delivery.verdict, delivery.of)
    ]


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_stream_gets_the_truth(seed, size, make_bridge):
    """Every delivery of simulated traffic gets the verdict that is the truth, in batches of any size."""
    deliveries = simulated(seed)
    bridge = make_bridge()
    results = process(bridge, [one.raw for one in deliveries], batches_of(size, len(deliveries)))
    assert mistakes(deliveries, results) == []
    assert len(bridge.given) == sum(one.verdict == "fresh" for one in deliveries)
    assert bridge.books.as_dict()["balanced"]


@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_stream_in_random_batches(seed):
    """Batches of random sizes change no verdict, and a second pass processes nothing."""
    deliveries, chance = simulated(seed), random.Random(seed)
    sizes = []
    while sum(sizes) < len(deliveries):
        sizes.append(chance.choice([1, 2, 3, 10, 50, 400]))
    bridge, calls = Bridge("memory://"), []
    bridge.on("*")(lambda event: calls.append(event.key))
    assert mistakes(deliveries, process(bridge, [one.raw for one in deliveries], sizes)) == []
    assert len(calls) == len(set(calls))
    again = {result.verdict for result in bridge.process_many([one.raw for one in deliveries])}
    assert again <= {"redelivery", "republish", "conflict", "dead"}
    assert len(calls) == sum(one.verdict == "fresh" for one in deliveries)
    bridge.close()


# --- many of one entity ------------------------------------------------------------------------------------------


def cpu_seconds(number):
    """Measure what a batch takes in which all are states of one entity, of this thread alone."""
    deliveries = [raw(shown("AVAILABLE" if n % 2 else "BUSY", n)) for n in range(number)]
    with Bridge("memory://") as bridge:
        bridge.on("*")(lambda event: None)
        gc.collect()
        gc.disable()  # it goes through all that other tests have left, now and then
        try:
            before = time.thread_time()
            results = bridge.process_many(deliveries)
            took = time.thread_time() - before
        finally:
            gc.enable()
    assert {result.verdict for result in results} == {"fresh"}
    return took


def test_a_batch_of_one_entity_takes_time_in_proportion():
    """They are worked off one after the other, so eight times as many take about eight times as long."""
    limit = 24 * min(cpu_seconds(400) for _ in range(3))
    # A busy machine may disturb one look, not each of three.
    assert any(cpu_seconds(3200) < limit for _ in range(3))
