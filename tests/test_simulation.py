"""Goal: traffic that can be had again byte for byte, and a truth beside it that can be trusted.

Method: the truth is checked on sequences small enough to judge by hand; on large runs it is checked against a
few plain facts that can be read from the lines themselves; and each fault is switched on alone.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from oncebridge.simulation import START_MS, Delivery, Fault, Road, simulate
from oncebridge.simulation.truth import Event, Truth

# Changes only when the traffic is changed on purpose; that Pythons and machines agree on it is the point.
DIGEST = "6a4efdbcf35070344c9d377a7cd486a588428bbd3e946b1c1c2ad44447433987"

ORIGINALS = {Fault.NONE, Fault.ECHO, Fault.TIE, Fault.CONFLICT, Fault.REORDERING}
STATE_TOPICS = {
    "v2.users.{id}.presence",
    "v2.users.{id}.routingStatus",
    "v2.users.{id}.activity",
    "v2.users.{id}.conversations",
}


def road_with(**faults):
    """Return a road on which nothing goes wrong but this."""
    smooth = Road.smooth()
    return Road(**{name: faults.get(name, getattr(smooth, name)) for name in Road.__slots__})


def run(conversations=40, seed=5, **faults):
    """Simulate with these faults alone; return each delivery with its parsed line."""
    deliveries = list(simulate(conversations, seed, road=road_with(**faults)))
    assert deliveries
    return [(delivery, None if delivery.id is None else json.loads(delivery.raw)) for delivery in deliveries]


def identity_of(line):
    """Return what makes a line the same event, read from the line itself."""
    detail = line["detail"]
    name, body = detail["topicName"], detail["eventBody"]
    if name.startswith("v2.audits."):
        return name, body["id"]
    has_time = any(
        time in json.dumps(body) for time in ('"eventTime"', '"metricDate"', '"modifiedDate"', '"startTime"')
    )
    return name, json.dumps(body, sort_keys=True), None if has_time else detail["timestamp"]


def strictly(raw):
    """Read JSON as strictly as the bridge must."""

    def no_twins(pairs):
        assert len(dict(pairs)) == len(pairs), "a key comes twice"
        return dict(pairs)

    def no_constant(name):
        raise AssertionError(name)

    return json.loads(raw, object_pairs_hook=no_twins, parse_constant=no_constant)


# --- the truth, on sequences that can be judged by hand ------------------------------------------------


def fact(identity, envelope_id, verdict, content=None):
    """Describe a delivery of a fact, and its verdict."""
    return Event(identity=identity, content=content), envelope_id, verdict


def state(identity, value, times_ms, verdict, envelope_id=None, *, entity="agent"):
    """Describe a delivery of a state, and its verdict; each event has its own envelope unless told."""
    times_ms = times_ms if isinstance(times_ms, tuple) else (times_ms,)
    event = Event(identity=identity, entity=entity, state=value, times_ms=times_ms)
    return event, envelope_id or f"envelope {identity}", verdict


SEQUENCES = {
    "the same envelope id as the one that did the work is a redelivery": [
        fact(1, "a", "fresh"), fact(1, "a", "redelivery"), fact(1, "a", "redelivery"),
    ],
    "another envelope id than the one that did the work is a republish": [
        fact(1, "a", "fresh"), fact(1, "b", "republish"), fact(1, "b", "republish"), fact(1, "a", "redelivery"),
    ],
    "another content under an explicit id is a conflict every time, and never a duplicate": [
        fact(1, "a", "fresh", 0), fact(1, "b", "conflict", 1), fact(1, "b", "conflict", 1),
        fact(1, "a", "conflict", 1), fact(1, "a", "redelivery", 0), fact(1, "c", "republish", 0),
    ],
    "of two contents under an explicit id, the one that arrives first is the event": [
        fact(1, "b", "fresh", 1), fact(1, "a", "conflict", 0), fact(1, "b", "redelivery", 1),
    ],
    "facts are never stale": [fact(2, "b", "fresh"), fact(1, "a", "fresh")],
    "the same state within the window, its end included, is an echo": [
        state(1, "busy", 1000, "fresh"), state(2, "busy", 1500, "echo"),
    ],
    "the same state after the window is fresh": [
        state(1, "busy", 1000, "fresh"), state(2, "busy", 1501, "fresh"),
    ],
    "another state within the window is fresh": [
        state(1, "busy", 1000, "fresh"), state(2, "free", 1001, "fresh"),
    ],
    "an echo that overtakes its original is fresh, and the original the echo": [
        state(2, "busy", 1200, "fresh"), state(1, "busy", 1000, "echo"), state(3, "free", 1100, "stale"),
    ],
    "an echo does not move the window": [
        state(1, "busy", 1000, "fresh"), state(2, "busy", 1400, "echo"), state(3, "busy", 1501, "fresh"),
        state(4, "busy", 2001, "echo"),
    ],
    "an echo moves the time by which stale is judged": [
        state(1, "busy", 1000, "fresh"), state(2, "busy", 1400, "echo"), state(3, "free", 1399, "stale"),
        state(4, "free", 1400, "fresh"),
    ],
    "an earlier echo does not move that time back": [
        state(1, "busy", 1000, "fresh"), state(2, "busy", 800, "echo"), state(3, "free", 900, "stale"),
    ],
    "a state strictly older than the newest is stale": [
        state(1, "busy", 1000, "fresh"), state(2, "free", 999, "stale"), state(3, "busy", 499, "stale"),
    ],
    "what is stale changes nothing": [
        state(1, "busy", 1000, "fresh"), state(2, "free", 999, "stale"), state(3, "busy", 1100, "echo"),
    ],
    "different states at one time are both fresh, and the later one handled is the newest": [
        state(1, "busy", 1000, "fresh"), state(2, "free", 1000, "fresh"), state(3, "free", 1200, "echo"),
        state(4, "busy", 1300, "fresh"),
    ],
    "the same state as before the newest is no echo": [
        state(1, "busy", 1000, "fresh"), state(2, "free", 1100, "fresh"), state(3, "busy", 1200, "fresh"),
    ],
    "echo and stale are remembered under their own identity": [
        state(1, "busy", 1000, "fresh"), state(2, "busy", 1100, "echo"), state(3, "free", 900, "stale"),
        state(2, "busy", 1100, "redelivery"), state(3, "free", 900, "redelivery"),
        state(2, "busy", 1100, "republish", "x"), state(3, "free", 900, "republish", "y"),
    ],
    "a duplicate of the newest is a duplicate before it is an echo": [
        state(1, "busy", 1000, "fresh"), state(1, "busy", 1000, "redelivery"), state(1, "busy", 1000, "republish", "x"),
    ],
    "entities do not know of each other": [
        state(1, "busy", 1000, "fresh"), state(2, "busy", 1000, "fresh", entity="other"),
        state(3, "free", 900, "fresh", entity="third"),
    ],
    "with several times, stale means none later and at least one earlier": [
        state(1, "busy", (5000, 1000, 1000), "fresh"), state(2, "free", (4000, 1000, 1000), "stale"),
        state(3, "free", (5000, 1000, 1000), "fresh"), state(4, "gone", (4000, 2000, 1000), "fresh"),
    ],
    "with several times, an echo has each within the window": [
        state(1, "busy", (5000, 1000, 1000), "fresh"), state(2, "busy", (5500, 1000, 1000), "echo"),
        state(3, "busy", (5501, 1000, 1000), "fresh"), state(4, "busy", (5501, 1000, 1600), "fresh"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rule", SEQUENCES)
def test_truth_of_a_sequence(rule):
    """The rule that names the sequence gives each delivery its verdict."""
    truth = Truth()
    verdicts = [(truth.judge(event, envelope_id).verdict, wanted) for event, envelope_id, wanted in SEQUENCES[rule]]
    assert [given for given, _ in verdicts] == [wanted for _, wanted in verdicts]


def test_truth_names_the_delivery_that_did_the_work():
    """A duplicate names the envelope that did the work, not the one it repeats; others name none."""
    truth, event = Truth(), Event(identity=1)
    assert [truth.judge(event, envelope_id).of for envelope_id in ("a", "b", "b", "a")] == [None, "a", "a", "a"]


# --- whole runs --------------------------------------------------------------------------------------


def test_same_seed_gives_the_same_bytes():
    """The same arguments give the same bytes, on every Python and every machine."""
    digest = hashlib.sha256()
    for delivery in simulate(30, 1, road=Road(unreadable=0.02)):
        digest.update(delivery.raw + b"\n" + delivery.truth_line() + b"\n")
    assert digest.hexdigest() == DIGEST


def test_another_seed_gives_other_traffic():
    """Two seeds have no envelope in common."""
    one, other = ({delivery.id for delivery in simulate(5, seed)} for seed in (1, 2))
    assert not one & other


def test_starts_when_told():
    """Another start moves the traffic and changes nothing else about it."""
    day_ms = 24 * 60 * 60 * 1000
    usual, moved = (list(simulate(5, 1, start_ms=START_MS + by)) for by in (0, day_ms))
    assert [(one.id, one.verdict) for one in usual] == [(one.id, one.verdict) for one in moved]
    assert b"2026-03-02T08:0" in usual[0].raw
    assert b"2026-03-03T08:0" in moved[0].raw


def test_holds_only_what_is_under_way():
    """The first delivery of a billion conversations is there at once."""
    assert next(simulate(10**9, 1)).n == 1


def test_every_verdict_occurs():
    """A run of moderate size has every verdict, and about three in ten deliveries are duplicates."""
    verdicts = Counter(delivery.verdict for delivery in simulate(300, 3, road=Road(unreadable=0.01)))
    assert set(verdicts) == {"fresh", "redelivery", "republish", "echo", "stale", "conflict", "dead"}
    duplicates = verdicts["redelivery"] + verdicts["republish"] + verdicts["echo"]
    assert 0.25 < duplicates / verdicts.total() < 0.4


@pytest.mark.parametrize("seed", range(3))
def test_truth_agrees_with_what_the_lines_say(seed):
    """An event's first arrival is no duplicate, every later one is, and names the envelope of the first."""
    first, contents = {}, defaultdict(set)
    for n, delivery in enumerate(simulate(100, seed, road=Road(tie=0.2, conflict=0.5)), 1):
        line = json.loads(delivery.raw)
        event, content = identity_of(line), json.dumps(line["detail"]["eventBody"])
        assert delivery.n == n
        assert delivery.id == line["id"]
        if event not in first:
            assert delivery.verdict in {"fresh", "echo", "stale"}
            first[event] = delivery.id
            contents[event].add(content)
        elif content not in contents[event]:
            assert delivery.verdict == "conflict"
        else:
            assert delivery.verdict == ("redelivery" if delivery.id == first[event] else "republish")
            assert delivery.of == first[event]
    assert 0 < len(first) < n


def test_truth_line():
    """A truth line has the number, the envelope id and the verdict, and nothing else."""
    delivery = Delivery(n=7, raw=b"{", id=None, verdict="dead", of=None, fault=Fault.UNREADABLE)
    assert delivery.truth_line() == b'{"n":7,"id":null,"verdict":"dead"}'


def test_refuses_what_cannot_be():
    """A probability above one and a negative number of conversations are refused at once."""
    with pytest.raises(ValueError, match=r"echo is 1\.5"):
        Road(echo=1.5)
    with pytest.raises(ValueError, match="-1 conversations"):
        simulate(-1, 1)


# --- what Genesys says -------------------------------------------------------------------------------


def test_lines_are_eventbridge_envelopes():
    """Every line is an envelope around Genesys' detail, its time the publish time in whole seconds."""
    sources = re.compile(r"aws\.partner/genesys\.com/cloud/[0-9a-f-]{36}/[a-z0-9-]+")
    deliveries = list(simulate(50, 4))
    assert len(deliveries) > 50
    for delivery in deliveries:
        line = strictly(delivery.raw)
        detail = line["detail"]
        assert b"\n" not in delivery.raw
        assert set(line) - {"replay-name"} == {
            "version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail",
        }  # fmt: skip
        assert list(detail) == ["topicName", "version", "eventBody", "metadata", "timestamp"]
        assert (line["version"], detail["version"]) == ("0", "2")
        assert sources.fullmatch(line["source"])
        template = re.escape(line["detail-type"]).replace(r"\{id\}", "[^.]+")
        assert re.fullmatch(template, detail["topicName"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", detail["timestamp"])
        if delivery.fault in ORIGINALS:
            assert line["time"] == detail["timestamp"][:19] + "Z"


def test_smooth_road_brings_everything_once():
    """Without faults every event is fresh and arrives in the order of publishing."""
    lines = run(100)
    assert {(delivery.verdict, delivery.fault) for delivery, _ in lines} == {("fresh", Fault.NONE)}
    published = [line["detail"]["timestamp"] for _, line in lines]
    assert published == sorted(published)


def test_every_topic_family_occurs():
    """States, facts and samples all occur, and the readings of a queue recur word for word."""
    lines = [line for _, line in run(100)]
    topics = {line["detail-type"] for line in lines}
    detail = {topic.split("{id}.")[1] for topic in topics if topic.startswith("v2.detail.events.")}
    assert detail == {
        "customer.start", "customer.end", "flow.start", "flow.end", "flow.outcome", "attributes", "acd.start",
        "acd.end", "user.start", "user.end", "acw", "wrapup",
    }  # fmt: skip
    assert topics - {f"v2.detail.events.conversation.{{id}}.{name}" for name in detail} == {
        *STATE_TOPICS,
        "v2.audits.entitytype.{id}.entityid.{id}",
        "v2.analytics.conversation.{id}.metrics",
        "v2.analytics.queues.{id}.observations",
        "v2.conversations.{id}.transcription",
    }
    readings = Counter(
        json.dumps(line["detail"]["eventBody"]) for line in lines if line["detail-type"].endswith(".observations")
    )
    assert max(readings.values()) > 1


def test_transfers_overlap():
    """When a call is passed on, the new agent's session begins before the old one's ends."""
    began, passed_on = defaultdict(list), []
    for _, line in run(60):
        body = line["detail"]["eventBody"]
        if line["detail-type"].endswith("user.start"):
            began[body["conversationId"]].append(body["eventTime"])
        elif body.get("disconnectType") == "TRANSFER" and line["detail-type"].endswith("user.end"):
            passed_on.append((body["conversationId"], body["eventTime"]))
    assert passed_on
    for conversation_id, ended in passed_on:
        assert any(0 < ended - start < 500 for start in began[conversation_id])


def test_reopened_messages_wrap_up_again():
    """A messaging conversation that is reopened tells its after-call work several times."""
    bodies = [line["detail"]["eventBody"] for _, line in run(60) if line["detail-type"].endswith(".acw")]
    wrapped_up = Counter((body["conversationId"], body["mediaType"]) for body in bodies)
    assert max(wrapped_up.values()) >= 3
    assert wrapped_up.most_common(1)[0][0][1] == "MESSAGE"


def test_activities_can_be_compared():
    """Of two activities of an agent, one has no time later than the other: none is both newer and older."""
    times = defaultdict(set)
    for _, line in run(60, echo=0.5, tie=0.5, reordering=0.5):
        body = line["detail"]["eventBody"]
        if line["detail-type"].endswith(".activity"):
            its = body["routingStatus"]["startTime"], body["presence"]["modifiedDate"], body["dateActiveQueuesChanged"]
            times[body["id"]].add(its)
    assert max(map(len, times.values())) > 1
    for of_agent in times.values():
        ordered = sorted(of_agent)
        for earlier, later in pairwise(ordered):
            assert all(one <= other for one, other in zip(earlier, later, strict=True))


def test_personal_data_is_there_and_made_up():
    """Numbers, names and transcripts occur, and none of them can be anybody's."""
    text = b"\n".join(delivery.raw for delivery, _ in run(60)).decode()
    assert set(re.findall(r'"ani":"tel:\+1(\d{3})', text)) == {"555"}
    assert re.search(r'"name":"\w+ Example-\d+"', text)
    assert re.search(r'"customerName":"Casey Pretend-\d+"', text)
    assert '"transcript":"' in text


# --- the road, one fault at a time -------------------------------------------------------------------


def by_event(lines):
    """Group deliveries by event."""
    events = defaultdict(list)
    for delivery, line in lines:
        events[identity_of(line)].append((delivery, line))
    return events.values()


@pytest.mark.parametrize("fault", ["redelivery", "overlapping_rule"])
def test_same_envelope_again(fault):
    """Each event arrives again in the very same bytes, and that is a redelivery."""
    for arrivals in by_event(run(**{fault: 1})):
        assert len(arrivals) > 1
        assert len({delivery.raw for delivery, _ in arrivals}) == 1
        assert [delivery.verdict for delivery, _ in arrivals[1:]] == ["redelivery"] * (len(arrivals) - 1)


def test_overlapping_rules_deliver_at_once():
    """What a second rule delivers is overtaken by nothing that was published more than 30 ms later."""
    lines = run(overlapping_rule=1)
    published = [datetime.fromisoformat(line["detail"]["timestamp"]) for _, line in lines]
    first = {}
    for at, (delivery, _) in enumerate(lines):
        began = first.setdefault(delivery.id, at)
        assert max(published[began : at + 1]) - published[began] <= timedelta(milliseconds=30)


@pytest.mark.parametrize("fault", ["republish", "second_integration"])
def test_same_event_under_another_envelope(fault):
    """Each event arrives again with the same detail and another envelope id, and that is a republish."""
    for (first, one), (second, other) in by_event(run(**{fault: 1})):
        assert one["detail"] == other["detail"]
        assert first.id != second.id
        assert second.verdict == "republish"
        assert (one["source"] != other["source"]) == (fault == "second_integration")


def test_archive_replay():
    """A stretch comes again late with a replay name, under the same ids or under new ones."""
    lines = run(150, archive_replay=1)
    assert {delivery.verdict for delivery, line in lines if "replay-name" in line} == {"redelivery", "republish"}
    assert {delivery.verdict for delivery, line in lines if "replay-name" not in line} == {"fresh"}
    names = defaultdict(set)
    for delivery, line in lines:
        if "replay-name" in line:
            names[line["replay-name"]].add(delivery.verdict)
    assert all(len(verdicts) == 1 for verdicts in names.values())


def test_reordering():
    """Deliveries overtake each other, so that some states are stale; nothing comes twice."""
    lines = run(reordering=1)
    published = [line["detail"]["timestamp"] for _, line in lines]
    assert published != sorted(published)
    assert {delivery.verdict for delivery, _ in lines} == {"fresh", "stale"}
    assert all(line["detail-type"] in STATE_TOPICS for delivery, line in lines if delivery.verdict == "stale")
    assert len(lines) == len({delivery.id for delivery, _ in lines})


def test_echo():
    """Each state is said again as an event of its own; only those within the window are echoes."""
    lines = run(echo=1)
    faults = {line["detail-type"] for delivery, line in lines if delivery.fault is Fault.ECHO}
    assert faults == STATE_TOPICS
    echoes = [delivery for delivery, _ in lines if delivery.fault is Fault.ECHO]
    states = [delivery for delivery, line in lines if line["detail-type"] in STATE_TOPICS]
    assert len(echoes) >= len(states) / 2
    assert {delivery.verdict for delivery, _ in lines} == {"fresh", "echo"}
    assert {delivery.verdict for delivery in echoes} == {"fresh", "echo"}


def test_tie():
    """Each state has another beside it in the same millisecond, and both are fresh."""
    lines = run(tie=1)
    states = [delivery for delivery, line in lines if line["detail-type"] in STATE_TOPICS]
    assert Counter(delivery.fault for delivery in states)[Fault.TIE] == len(states) / 2
    assert {delivery.verdict for delivery, _ in lines} == {"fresh"}


def test_conflict():
    """Each audit comes again with the same id and another content, and that is a conflict."""
    audits = [
        (delivery, line["detail"]["eventBody"])
        for delivery, line in run(conflict=1)
        if line["detail-type"].startswith("v2.audits.")
    ]
    assert audits
    by_id = defaultdict(list)
    for delivery, body in audits:
        by_id[body["id"]].append((delivery.verdict, body))
        assert body["eventTime"].endswith(".000Z")
    for (verdict, body), (other_verdict, other_body) in by_id.values():
        assert (verdict, other_verdict) == ("fresh", "conflict")
        assert body != other_body


def test_unreadable():
    """A damaged copy of each event arrives, like no other line, and no strict reader takes it."""
    lines = run(unreadable=1)
    damaged = [delivery.raw for delivery, line in lines if line is None]
    assert {(delivery.verdict, line is None) for delivery, line in lines} == {("fresh", False), ("dead", True)}
    assert len(set(damaged)) == len(damaged) == len(lines) / 2
    for raw in damaged:
        with pytest.raises((ValueError, AssertionError)):
            strictly(raw)
