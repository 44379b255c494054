"""What the usual keys would have done, as `diagnose` counts it, beside a count that shares no code with it."""

import json
from collections import Counter

import pytest

import payloads
from cli.conftest import cli  # noqa: F401 - a fixture, by being here
from diagnosis import road_with_causes as captures
from diagnosis.independent_backtest import backtest, dropped_by
from diagnosis.road_with_causes import HOUR, MINUTE, SECOND, START_MS, CausedRoad, simulated

#: What no `status` is in cannot be judged by state; such captures are compared by the other keys.
BY_STATE = "conversation_state_500ms"
ENVELOPES = {"second_integration": 0.1, "genesys_republish": 0.15, "archive_replay": 0.08}
TO_QUEUE = {**ENVELOPES, "sqs_redelivery": 0.1, "eventbridge_retry": 0.05}
TO_FUNCTION = {**ENVELOPES, "lambda_retry": 0.08, "eventbridge_retry": 0.05}
SEEDS = (101, 102, 103)
SHAPES = {
    "a queue's messages": ({**ENVELOPES, "eventbridge_retry": 0.05}, captures.receive_message),
    "a log behind a queue": (TO_QUEUE, lambda arrivals: captures.filtered(captures.queue_lines(arrivals))),
    "a log behind a rule": (TO_FUNCTION, lambda arrivals: captures.filtered(captures.function_lines(arrivals))),
    "a tail behind a rule": (TO_FUNCTION, lambda arrivals: captures.tailed(captures.function_lines(arrivals))),
}


@pytest.fixture
def diagnosed(cli):  # noqa: F811 - the fixture
    """Diagnose a capture: check that its duplicates are those that were planted, and return the back-test's rows."""

    def run(data, arrivals):
        (cli.folder / "capture").write_bytes(data)
        ran = cli("diagnose", "capture", "--json", "--causes", "causes.jsonl")
        assert ran.code == 0, ran
        lines = [json.loads(line) for line in (cli.folder / "causes.jsonl").read_bytes().splitlines()]
        planted = {n for n, arrival in enumerate(arrivals, 1) if arrival.cause is not None}
        assert {line["n"] for line in lines} == planted
        rows = json.loads(ran.out)["backtest"]
        assert len({row["key"] for row in rows}) == len(rows)
        return {row["key"]: (row["let_through"], row["lost"]) for row in rows}

    return run


def doubled(topic):
    """Tell of which topics two rules match all events."""
    return topic.endswith((".acw", ".customer.end", ".transcription"))


def genesys_day(seed, chances, conversations=15):
    """Let a working day come down a road, with snapshots of conversations under two topics."""
    road = CausedRoad(seed)
    for envelope in simulated(conversations, seed):
        first = road.deliver(envelope)
        if first.topic == payloads.SNAPSHOT and road.random.random() < 0.4:
            topic, name = f"{first.topic}.calls", f"{first.envelope['detail']['topicName']}.calls"
            road.under_topic(first, topic, name, road.between(0, 5))
    road.plant(chances, doubled=doubled)
    return road.in_order()


def hand_made_day(seed, chances, conversations=25):
    """Let hand-made status events come down a road: conversations that are held, return, and echo."""
    road = CausedRoad(seed, waits_ms=(5, 30))
    for n in range(conversations):
        conversation, at_ms = road.uuid(), START_MS + n * 2 * SECOND
        for status in ("alerting", "connected", "held", "connected", "held", "connected", "disconnected"):
            first = road.deliver(road.status(conversation, status, at_ms=at_ms), at_ms)
            if road.random.random() < 0.2:
                road.echoed(first, road.between(60, 90), "timestamp")
            at_ms += road.random.choice((140, 230, 900, 4 * SECOND, 13 * SECOND))
    road.plant(chances)
    return road.in_order()


def without_integrations(chances):
    """Leave out what hand-made events cannot have: a second partner source."""
    return {**chances, "second_integration": 0}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_keys_on_a_working_day(diagnosed, shape, seed):
    """For every key, the duplicates let through and the events lost are those of an independent count."""
    chances, write = SHAPES[shape]
    arrivals = genesys_day(seed, chances)
    data = write(arrivals)  # a batch's deliveries arrive together, which is decided by writing
    rows, expected = diagnosed(data, arrivals), backtest(arrivals)
    assert rows.keys() >= expected.keys()
    del expected[BY_STATE]
    assert {key: rows[key] for key in expected} == expected


def test_keys_on_streams_one_after_another(diagnosed):
    """Keys get the deliveries in the order in which they came, whatever the order of the streams that logged them."""
    arrivals = genesys_day(104, TO_FUNCTION)
    streams = [arrivals[at::3] for at in range(3)]
    data = b"".join(captures.subscribed(captures.function_lines(stream), at) for at, stream in enumerate(streams))
    rows, expected = diagnosed(data, [one for stream in streams for one in stream]), backtest(arrivals)
    del expected[BY_STATE]
    assert {key: rows[key] for key in expected} == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_keys_on_hand_made_states(diagnosed, shape, seed):
    """The key on conversation and state loses states that return within its half second, and forgets the rest."""
    chances, write = SHAPES[shape]
    arrivals = hand_made_day(seed, without_integrations(chances))
    data = write(arrivals)
    rows, expected = diagnosed(data, arrivals), backtest(arrivals)
    assert expected[BY_STATE][1] > 0, "no state returned in time"
    assert {key: rows[key] for key in expected} == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_that_are_received_again(diagnosed, seed):
    """Messages do not say when they were received again, so here only keys are compared that remember for long."""
    arrivals = genesys_day(seed, TO_QUEUE)
    rows, expected = diagnosed(captures.receive_message(arrivals), arrivals), backtest(arrivals)
    for key in ("envelope_id", "conversation_time", "content_hash", "sqs_fifo", "powertools", "oncebridge"):
        assert rows[key] == expected[key], key


@pytest.mark.parametrize("shape", ["a log behind a queue", "a log behind a rule"])
def test_memories_end(diagnosed, shape):
    """A memory is counted from the delivery that was let through, and nothing that is dropped prolongs it."""
    road = CausedRoad(110)
    for n in range(4):
        body = {"eventTime": START_MS + n * MINUTE, "conversationId": road.uuid()}
        first = road.deliver(road.event(payloads.ACW, body, at_ms=START_MS + n * MINUTE))
        for minutes in (2, 4, 6, 8, 10, 40, 59, 62, 118, 125, 180):
            road.retried_by_bus(first, minutes * MINUTE + 10 * SECOND)
    arrivals = road.in_order()
    data = SHAPES[shape][1](arrivals)
    rows, expected = diagnosed(data, arrivals), backtest(arrivals)
    # From first to last: 6 and then 40, 59 (by 19 minutes), and so on; within the hour, 62 and 125.
    assert expected["powertools"] == (2 * 4, 0)
    assert expected["envelope_id"] == (0, 0)
    assert expected["sqs_fifo"][0] > expected["powertools"][0]
    assert {key: rows[key] for key in expected} == expected


def test_a_redelivery_passes_a_fifo_queue(diagnosed):
    """FIFO compares what is sent: it drops the second rule's message, and hands out its own again."""
    road = CausedRoad(111)
    for n in range(10):
        body = {"eventTime": START_MS + n * SECOND, "conversationId": road.uuid()}
        first = road.deliver(road.event(payloads.ACW, body, at_ms=START_MS + n * SECOND))
        road.matched_by_second_rule(first)
        road.redelivered(first, 30 * SECOND)
    arrivals = road.in_order()
    rows = diagnosed(captures.receive_message(arrivals), arrivals)
    assert rows["sqs_fifo"] == backtest(arrivals)["sqs_fifo"] == (10, 0)
    assert rows["powertools"] == (0, 0)


def test_a_redelivery_renews_no_memory_of_a_fifo_queue(diagnosed):
    """What was sent counts: a message that is received again after five minutes hides none that is sent after it."""
    road = CausedRoad(112)
    body = {"eventTime": START_MS, "conversationId": road.uuid()}
    first = road.deliver(road.event(payloads.ACW, body, at_ms=START_MS))
    road.redelivered(first, 6 * MINUTE)
    road.retried_by_bus(first, 7 * MINUTE)
    arrivals = road.in_order()
    rows = diagnosed(captures.filtered(captures.queue_lines(arrivals)), arrivals)
    assert rows["sqs_fifo"] == backtest(arrivals)["sqs_fifo"] == (2, 0)


def test_equal_readings_and_ties_are_lost_by_no_content(diagnosed):
    """A hash of the detail loses no reading, as publish times differ; so it lets events pass that are sent again."""
    road = CausedRoad(112)
    for n in range(10):
        road.deliver(road.event(payloads.OBSERVATIONS, at_ms=START_MS + n * SECOND))
        body = {"eventTime": START_MS + n * HOUR, "conversationId": road.uuid()}
        first = road.deliver(road.event(payloads.ACW, body, at_ms=START_MS + n * HOUR + 80))
        road.republished(first, 5 * SECOND, restamped=n % 2 == 0)
    arrivals = road.in_order()
    rows, expected = diagnosed(captures.receive_message(arrivals), arrivals), backtest(arrivals)
    assert expected["content_hash"] == (5, 0)
    del expected[BY_STATE]
    assert {key: rows[key] for key in expected} == expected


# --- the road itself ----------------------------------------------------------------------------------------------

EXPECTED_VERDICTS = {
    None: {"fresh"},
    "two_topics": {"fresh"},
    "echo": {"echo"},
    "genesys_republish": {"republish"},
    "second_integration": {"republish"},
    "archive_replay": {"redelivery", "republish"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_road_plants_what_it_says(cli, shape):  # noqa: F811 - the fixture
    """What the road calls a duplicate is one to `process`, and what it calls an event is one: none is stale."""
    chances, write = SHAPES[shape]
    for arrivals in (genesys_day(120, chances), hand_made_day(121, without_integrations(chances))):
        (cli.folder / "capture").write_bytes(write(arrivals))
        ran = cli("process", "capture", "--json", "--verdicts", "verdicts.jsonl")
        assert ran.code == 0, ran
        lines = [json.loads(line) for line in (cli.folder / "verdicts.jsonl").read_bytes().splitlines()]
        assert [line["id"] for line in lines] == [arrival.envelope["id"] for arrival in arrivals]
        wrong = [
            (line, arrival.cause)
            for line, arrival in zip(lines, arrivals, strict=True)
            if line["verdict"] not in EXPECTED_VERDICTS.get(arrival.cause, {"redelivery", "republish"})
        ]
        assert not wrong, wrong[:5]
        planted = Counter(arrival.cause for arrival in arrivals)
        assert all(planted[cause] for cause, chance in chances.items() if chance and cause != "second_integration")


def test_the_count_drops_what_it_should():
    """The independent count is right where it can be counted by hand."""
    road = CausedRoad(122)
    conversation = road.uuid()
    for moment_ms, status in ((0, "connected"), (200, "held"), (400, "connected"), (650, "connected"), (1300, "held")):
        road.deliver(road.status(conversation, status, at_ms=START_MS + moment_ms), START_MS + moment_ms)
    arrivals = road.in_order()
    assert dropped_by("conversation_10s", arrivals) == {1, 2, 3, 4}
    assert dropped_by(BY_STATE, arrivals) == {2}
    assert dropped_by("conversation_time", arrivals) == set()
    assert dropped_by("envelope_id", arrivals) == set()
