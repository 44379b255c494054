"""Why is this delivery a duplicate? Captures whose every duplicate was planted, and what `diagnose` says of each."""

import gzip
import json
from collections import Counter
from dataclasses import replace

import pytest

import payloads
from cli.conftest import cli  # noqa: F401 - a fixture, by being here
from diagnosis import road_with_causes as captures
from diagnosis.road_with_causes import DAY, HOUR, MINUTE, SECOND, START_MS, CausedRoad, simulated

CAUSES = {
    "sqs_redelivery",
    "lambda_retry",
    "eventbridge_retry",
    "overlapping_rules",
    "second_integration",
    "genesys_republish",
    "archive_replay",
    "two_topics",
    "echo",
    "unknown",
}
#: Parts of names, numbers, notes and transcripts of the simulation and of `payloads`.
PERSONAL = ("pretend-", "+1555", "invented order", "made up caller", "447700900123", "where is my parcel", "canar")
PERSONAL_DIGITS = "2079460958"
CALLS = "v2.users.{id}.conversations.calls"
QUEUE_CONVERSATIONS = "v2.routing.queues.{id}.conversations"
WORKITEMS = ("v2.taskmanagement.workitems.{id}", "v2.taskmanagement.workitems.queues.{id}")
WORKITEMS_OF_USERS = "v2.taskmanagement.workitems.users.{id}"
CUSTOMER_START = "v2.detail.events.conversation.{id}.customer.start"

ENVELOPES = {"second_integration": 0.08, "genesys_republish": 0.08, "archive_replay": 0.05}
TO_QUEUE = {**ENVELOPES, "sqs_redelivery": 0.08, "eventbridge_retry": 0.03}
TO_FUNCTION = {**ENVELOPES, "lambda_retry": 0.06, "eventbridge_retry": 0.03}
TO_LOG = {**ENVELOPES, "eventbridge_retry": 0.03}
BARE = {**ENVELOPES, "unknown": 0.05}


#: Duplicates that are events of their own to Oncebridge: like conflicts, they are counted in a test of their own.
OWN_EVENTS = ("echo", "two_topics")


def has_conflicts(arrivals):
    """Tell whether an audit came with another content than before."""
    contents = {}
    for arrival in arrivals:
        if arrival is not None and arrival.topic == payloads.AUDITS:
            body = arrival.envelope["detail"]["eventBody"]
            contents.setdefault(body["id"], set()).add(json.dumps(body, sort_keys=True))
    return any(len(found) > 1 for found in contents.values())


class Answer:
    """What `diagnose` said of a capture."""

    def __init__(self, ran, lines):
        """Take the finished command, and the lines of its file of causes."""
        assert ran.code == 0, ran
        self.ran = ran
        self.report = json.loads(ran.out)
        self.lines = {line["n"]: line for line in lines}
        assert len(self.lines) == len(lines), "a delivery has two lines"

    def holds(self, arrivals, *, allowed=None):
        """Check everything that the contract says against the truth.

        Args:
            arrivals: The deliveries in the order of the capture, the first of which is number 1; None: unreadable.
            allowed: Causes that may stand for another one, where the evidence is thin.

        """
        wrong, planted = [], Counter()
        for n, arrival in enumerate(arrivals, 1):
            line = self.lines.get(n)
            said = line and line["cause"]
            expected = arrival and arrival.cause
            planted[expected] += 1
            if said != expected and said not in (allowed or {}).get(expected, ()):
                wrong.append((n, arrival and arrival.topic, f"planted {expected}", f"said {said}", line))
            if line is not None:
                assert line["id"] == arrival.envelope.get("id"), (n, line)
        assert not wrong, f"{len(wrong)} of {len(arrivals)} wrong: {wrong[:8]}"
        assert max(self.lines, default=0) <= len(arrivals)
        self.adds_up(len(arrivals))
        if planted.keys().isdisjoint(OWN_EVENTS) and not has_conflicts(arrivals):
            assert self.report["events"] == len(arrivals) - arrivals.count(None) - len(self.lines)
        if not allowed:
            assert self.causes == {cause: number for cause, number in planted.items() if cause is not None}

    def adds_up(self, deliveries):
        """Check the sums, and that each line has a known cause with a reason that shows nothing personal."""
        assert self.report["deliveries"] == deliveries
        assert self.causes == Counter(line["cause"] for line in self.lines.values())
        assert set(self.report["causes"]) <= CAUSES
        for line in self.lines.values():
            assert {"n", "id", "cause", "reason"} <= line.keys()
            assert isinstance(line["reason"], str)
            assert line["reason"].strip()
        shows_nothing_personal(self.ran.out, self.ran.err, json.dumps(list(self.lines.values()), ensure_ascii=False))

    @property
    def causes(self):
        """The causes that were found at all, with their numbers."""
        return {name: number for name, number in self.report["causes"].items() if number}


def shows_nothing_personal(*texts):
    """Check that no text has a name, a number, a note or a transcript in it."""
    for text in texts:
        found = [part for part in PERSONAL if part in text.lower()]
        assert not found, found
        assert PERSONAL_DIGITS not in "".join(filter(str.isdigit, text))


@pytest.fixture
def diagnose(cli):  # noqa: F811 - the fixture
    """Write captures and diagnose them: a name and bytes each; a name with a slash is in a directory."""

    def run(named, *paths, stdin=None):
        for name, data in named.items():
            path = cli.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        ran = cli("diagnose", *(paths or named), "--json", "--causes", "causes.jsonl", stdin=stdin)
        file = cli.folder / "causes.jsonl"
        lines = file.read_bytes().splitlines() if file.exists() else []
        return Answer(ran, [json.loads(line) for line in lines])

    return run


def doubled(topic):
    """Tell of which topics two rules match all events."""
    return topic.endswith((".acw", ".user.start", ".metrics"))


def busy_road(seed, chances, conversations=12):
    """Let a working day come down a road with these causes, and two rules that match some topics."""
    road = CausedRoad(seed)
    for envelope in simulated(conversations, seed):
        road.deliver(envelope)
    road.plant(chances, doubled=doubled)
    return road.in_order()


# --- every shape of a capture -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_messages_of_a_queue(diagnose, seed):
    """What `receive-message` prints tells redelivery, retry and overlap apart, by message id, count and times."""
    arrivals = busy_road(seed, TO_QUEUE)
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


@pytest.mark.parametrize("seed", [1, 2])
def test_batches_of_a_queue_without_a_log(diagnose, seed):
    """Lambda's records hold all that is needed, though nothing says when they were received again."""
    arrivals = busy_road(seed, TO_QUEUE)
    diagnose({"records.jsonl": captures.records(arrivals)}).holds(arrivals)


@pytest.mark.parametrize("seed", [1, 2])
def test_log_of_a_function_behind_a_queue(diagnose, seed):
    """Two messages in one batch have one request id, which is not Lambda's retry; a redelivery has another."""
    arrivals = busy_road(seed, TO_QUEUE)
    diagnose({"function.json": captures.filtered(captures.queue_lines(arrivals))}).holds(arrivals)


@pytest.mark.parametrize(
    "message",
    [
        captures.printed_json,
        captures.printed_dict,
        captures.logged_by_node,
        captures.logged_by_powertools,
        captures.logged_as_json,
    ],
)
@pytest.mark.parametrize("write", [captures.filtered, captures.tailed])
def test_log_of_a_function_behind_a_rule(diagnose, message, write):
    """However a function prints its events, the request ids and times tell who repeated them."""
    arrivals = busy_road(4, TO_FUNCTION)
    diagnose({"function.log": write(captures.function_lines(arrivals, message))}).holds(arrivals)


def test_records_of_powertools_alone(diagnose):
    """Records of Powertools hold request id and time, so no line of Lambda's is needed."""
    arrivals = busy_road(5, TO_FUNCTION)
    diagnose({"app.jsonl": captures.powertools_lines(arrivals)}).holds(arrivals)


def in_streams(arrivals, number=3):
    """Let the instances of a function take turns: each writes a stream of its own."""
    return [arrivals[at::number] for at in range(number)]


def test_streams_of_a_function_one_after_another(diagnose):
    """An export holds stream after stream: which delivery came first, and how long before, is told by their times."""
    streams = in_streams(busy_road(11, TO_FUNCTION))
    named = {
        f"export/{at}/000000.gz": captures.exported(captures.function_lines(stream))
        for at, stream in enumerate(streams)
    }
    diagnose(named, "export").holds([one for stream in streams for one in stream])


def test_streams_of_a_subscription_one_after_another(diagnose):
    """What a subscription sends holds stream after stream, in one file, too."""
    streams = in_streams(busy_road(12, TO_FUNCTION))
    data = b"".join(captures.subscribed(captures.function_lines(stream), at) for at, stream in enumerate(streams))
    diagnose({"subscription": data}).holds([one for stream in streams for one in stream])


@pytest.mark.parametrize("form", [list, lambda lines: list(captures.in_json(lines))])
def test_the_newest_line_of_a_log_first(diagnose, form):
    """Insights begins with the newest row: there an invocation's end comes before what it printed, and its start."""
    arrivals = busy_road(14, TO_FUNCTION)
    data = captures.insights(form(captures.function_lines(arrivals)))
    diagnose({"insights.json": data}).holds(arrivals[::-1])


def test_pages_of_a_queue_in_the_order_of_names(diagnose):
    """The tenth file is named before the second, and is read so; each message says when it was received."""
    arrivals = busy_road(13, {**ENVELOPES, "eventbridge_retry": 0.03})
    size = len(arrivals) // 11
    pages = {f"pages/{at + 1}.json": arrivals[at * size : (at + 1) * size] for at in range(12)}
    named = {name: captures.receive_message(page) for name, page in pages.items()}
    diagnose(named, "pages").holds([one for name in sorted(pages) for one in pages[name]])


def test_log_group_as_target(diagnose):
    """In a log group of the bus nothing but EventBridge can repeat an envelope."""
    arrivals = busy_road(6, TO_LOG)
    diagnose({"subscription.json": captures.bus_subscription(arrivals)}).holds(arrivals)


def test_log_group_without_its_name(diagnose):
    """In lines of an unnamed log without requests a late repeat is EventBridge's, or nobody knows whose."""
    arrivals = busy_road(7, TO_LOG)
    answer = diagnose({"log.json": captures.filtered(captures.bus_lines(arrivals))})
    answer.holds(arrivals, allowed={"eventbridge_retry": {"unknown"}})


@pytest.mark.parametrize("write", [captures.json_lines, captures.firehose, captures.array, captures.packed_lines])
@pytest.mark.parametrize("seed", [8, 9])
def test_events_with_nothing_around_them(diagnose, write, seed):
    """Twins at once are overlapping rules; the same envelope much later may be anybody's, and is unknown."""
    arrivals = busy_road(seed, BARE)
    diagnose({"capture": write(arrivals)}).holds(arrivals)


@pytest.mark.parametrize(("apart_ms", "cause"), [(15 * SECOND, "overlapping_rules"), (40 * SECOND, "unknown")])
@pytest.mark.parametrize("write", [captures.json_lines, captures.firehose])
def test_twins_in_sparse_traffic(diagnose, write, apart_ms, cause):
    """Twins between deliveries that are seconds apart are two rules; a minute apart, they may be anybody's."""
    road = CausedRoad(45)
    firsts = [road.deliver(acw(road, START_MS + n * apart_ms)) for n in range(20)]
    for first in firsts[4:12:2]:
        road.matched_by_second_rule(first).cause = cause
    arrivals = road.in_order()
    diagnose({"in.jsonl": write(arrivals)}).holds(arrivals)


def test_what_people_keep_beside_an_envelope(diagnose):
    """When an envelope arrived and by which request may be noted in an object around it, in any of several ways."""
    road = CausedRoad(46)
    firsts = [road.deliver(acw(road, START_MS + n * 5 * MINUTE)) for n in range(12)]
    for n, first in enumerate(firsts):
        _ = road.matched_by_second_rule(first) if n % 3 == 0 else n % 3 == 1 and road.retried_by_lambda(first, times=1)
    arrivals = road.in_order()
    notes = [
        lambda one: {"receivedAt": payloads.iso(one.arrived_ms), "requestId": one.request_id, "event": one.envelope},
        lambda one: {"arrived_at": one.arrived_ms, "context": {"aws_request_id": one.request_id}, "it": one.envelope},
        lambda one: {
            "timestamp": one.arrived_ms, "requestId": one.request_id, "message": json.dumps(one.envelope),
        },
    ]  # fmt: skip
    for note in notes:
        lines = "\n".join(json.dumps(note(one)) for one in arrivals)
        diagnose({"in.jsonl": lines.encode()}).holds(arrivals)


@pytest.mark.parametrize("names", ["MessageId Body Attributes", "messageId body attributes", "body attributes"])
def test_messages_of_which_somebody_kept_the_least(diagnose, names):
    """Body and counts are enough to know a message that SQS hands out again, with its id or without."""
    road = CausedRoad(47)
    firsts = [road.deliver(acw(road, START_MS + n * MINUTE)) for n in range(12)]
    for first in firsts[::2]:
        road.redelivered(first, 30 * SECOND)
    arrivals = road.in_order()
    lines = []
    for one in arrivals:
        counts = {"ApproximateReceiveCount": str(one.receive_count), "SentTimestamp": str(one.sent_ms)}
        kept = (one.message_id, json.dumps(one.envelope), counts)[-len(names.split()) :]
        lines.append(json.dumps(dict(zip(names.split(), kept, strict=True))))
    diagnose({"in.jsonl": "\n".join(lines).encode()}).holds(arrivals)


def test_standard_input(diagnose):
    """A dash is standard input."""
    arrivals = busy_road(10, BARE)
    diagnose({}, "-", stdin=captures.json_lines(arrivals)).holds(arrivals)


def test_a_directory_of_several_shapes(diagnose):
    """Each file of a directory is judged by what is around its events, and all of them are numbered through."""
    shapes = {
        "all/1-messages.json": (TO_QUEUE, captures.receive_message),
        "all/2-function.json": (TO_FUNCTION, lambda some: captures.filtered(captures.function_lines(some))),
        "all/3-queue.log": (TO_QUEUE, lambda some: captures.tailed(captures.queue_lines(some))),
        "all/4-lines.gz": (BARE, captures.packed_lines),
        "all/5-bus.json": (TO_LOG, captures.bus_subscription),
    }
    named, arrivals = {}, []
    for seed, (name, (chances, write)) in enumerate(shapes.items(), 20):
        some = busy_road(seed, chances, conversations=4)
        named[name] = write(some)
        arrivals += some
    diagnose(named, "all").holds(arrivals)


def test_two_functions(diagnose):
    """Two functions that get every event are overlapping rules or targets, also where each log is a file."""
    road = CausedRoad(30)
    for envelope in simulated(4, 30):
        road.matched_by_second_rule(road.deliver(envelope), target=1)
    arrivals = road.in_order()
    logs = [[one for one in arrivals if one.target == target] for target in (0, 1)]
    named = {f"{n}.json": captures.filtered(captures.function_lines(log)) for n, log in enumerate(logs)}
    diagnose(named).holds(logs[0] + logs[1])


def test_a_queue_and_a_function(diagnose):
    """A rule that feeds a queue and another that feeds a function are overlapping rules or targets, too."""
    road = CausedRoad(31)
    for envelope in simulated(4, 31):
        road.matched_by_second_rule(road.deliver(envelope), target=1)
    queue, function = ([one for one in road.in_order() if one.target == target] for target in (0, 1))
    named = {
        "1-messages.json": captures.receive_message(queue),
        "2-function.log": captures.tailed(captures.function_lines(function)),
    }
    diagnose(named).holds(queue + function)


def test_two_queues(diagnose):
    """Two rules may feed two queues, whose function is the same."""
    road = CausedRoad(32)
    for envelope in simulated(4, 32):
        road.matched_by_second_rule(road.deliver(envelope), target=1)
    arrivals = road.in_order()
    diagnose({"function.log": captures.tailed(captures.queue_lines(arrivals))}).holds(arrivals)


def test_nothing_wrong(diagnose):
    """A smooth day has no duplicates."""
    arrivals = busy_road(33, {})
    for arrival in arrivals:
        assert arrival.cause in (None, "overlapping_rules")
    arrivals = [arrival for arrival in arrivals if arrival.cause is None]
    answer = diagnose({"messages.json": captures.receive_message(arrivals)})
    answer.holds(arrivals)
    assert answer.causes == {}


def test_a_smooth_day_with_every_topic(diagnose):
    """Where an org subscribes to everything, only topics that say the same are duplicates."""
    road = CausedRoad(34)
    for envelope in simulated(8, 34, without=()):
        road.deliver(envelope)
    answer = diagnose({"messages.json": captures.receive_message(road.in_order())})
    answer.adds_up(len(road.arrivals))
    assert set(answer.causes) <= {"two_topics"}


def test_unreadable_parts_are_counted(diagnose):
    """A delivery that cannot be read has a number, but no cause, and stops nothing."""
    arrivals = busy_road(35, BARE, conversations=2)
    lines = captures.json_lines(arrivals).splitlines(keepends=True)
    lines.insert(3, lines[3][:200] + b"\n")
    lines.insert(9, lines[9].replace(b'"version":"0"', b'"version":"0","version":"1"'))
    arrivals[3:3] = [None]
    arrivals[9:9] = [None]
    diagnose({"capture.jsonl": b"".join(lines)}).holds(arrivals)


def an_echo(road):
    """Deliver a state and its echo."""
    road.echoed(road.deliver(road.status(road.uuid(), "connected", at_ms=START_MS)), 200, "timestamp")


def two_topics(road):
    """Deliver a snapshot under two topics."""
    first = road.deliver(snapshot(road, START_MS))
    road.under_topic(first, CALLS, f"v2.users.{payloads.USER}.conversations.calls")


def a_conflict(road):
    """Deliver an audit, and another one under its id."""
    for n, value in enumerate(("45000", "46000")):
        change = {"property": "acwTimeoutMs", "oldValues": ["30000"], "newValues": [value]}
        road.deliver(road.event(payloads.AUDITS, {"propertyChanges": [change]}, at_ms=START_MS + n * SECOND))


@pytest.mark.parametrize("some", [an_echo, two_topics, a_conflict])
def test_events_and_duplicates_are_all_deliveries(diagnose, some):
    """A reader takes the duplicates from the deliveries and has the events: what is no duplicate is an event."""
    road = CausedRoad(36)
    some(road)
    answer = diagnose({"capture.jsonl": captures.json_lines(road.in_order())})
    assert answer.report["deliveries"] == 2
    assert answer.report["events"] == 2 - len(answer.lines)


# --- several causes on one event ----------------------------------------------------------------------------------


def acw(road, at_ms=START_MS, **body):
    """Make an event with a time of its own to the millisecond."""
    return road.event(payloads.ACW, {"eventTime": at_ms - 120, **body}, at_ms=at_ms)


def pause(road, start_ms, number=40):
    """Deliver other events, one a second, so that a capture has a before and an after."""
    for n in range(number):
        body = {"eventTime": start_ms + n * SECOND, "conversationId": road.uuid()}
        road.deliver(road.event(CUSTOMER_START, body, at_ms=start_ms + n * SECOND))


def test_overlap_redelivery_and_republish_of_one_event_in_a_queue(diagnose):
    """Each delivery has the cause of its own last step: the message, then the envelope, then the event."""
    road = CausedRoad(40)
    pause(road, START_MS - MINUTE)
    first = road.deliver(acw(road))
    twin = road.matched_by_second_rule(first)
    road.redelivered(first, 30 * SECOND, times=3)
    road.redelivered(twin, 31 * SECOND)
    again = road.republished(first, 7 * SECOND, restamped=True)
    road.redelivered(road.matched_by_second_rule(again), 30 * SECOND)
    other = road.integrated_twice(first, 140)
    road.redelivered(other, 45 * SECOND)
    road.retried_by_bus(first, 3 * HOUR)
    road.replayed(first, 2 * DAY)
    pause(road, START_MS + 2 * MINUTE)
    arrivals = road.in_order()
    answer = diagnose({"messages.json": captures.receive_message(arrivals)})
    answer.holds(arrivals)
    assert answer.report["events"] == 81


@pytest.mark.parametrize("write", [captures.json_lines, captures.firehose])
@pytest.mark.parametrize("rules", [2, 3])
def test_what_rules_repeat_may_be_repeated_once_more(diagnose, write, rules):
    """Rules that match a topic explain as many copies as there are rules; who made one more is not told."""
    road = CausedRoad(44)
    firsts = [road.deliver(acw(road, START_MS + n * 3 * SECOND)) for n in range(20)]
    for first in firsts:
        for _ in range(rules - 1):
            road.matched_by_second_rule(first)
    for first in firsts[-4:]:
        road.again(first, 5 * MINUTE)  # nothing else comes between: that it was late is not to be seen
    arrivals = road.in_order()
    diagnose({"in.jsonl": write(arrivals)}).holds(arrivals)


def test_overlap_retry_and_republish_of_one_event_in_a_function(diagnose):
    """Two rules invoke a function, both invocations are tried three times, and Genesys sends the event again."""
    road = CausedRoad(41)
    pause(road, START_MS - MINUTE)
    first = road.deliver(acw(road))
    road.retried_by_lambda(first)
    road.retried_by_lambda(road.matched_by_second_rule(first))
    road.retried_by_lambda(road.republished(first, 400), times=1)
    road.retried_by_lambda(road.retried_by_bus(first, 40 * MINUTE))
    road.integrated_twice(first, 90)
    road.replayed(first, HOUR, keeps_id=False)
    pause(road, START_MS + 2 * MINUTE)
    arrivals = road.in_order()
    answer = diagnose({"function.log": captures.tailed(captures.function_lines(arrivals))})
    answer.holds(arrivals)
    assert answer.report["events"] == 81


@pytest.mark.parametrize("after_ms", [6 * SECOND, 40 * SECOND, 3 * MINUTE])
def test_a_target_to_which_everything_is_sent_again(diagnose, after_ms):
    """However many envelopes come again, after the five seconds in which a target must answer that is a retry."""
    road = CausedRoad(44)
    for n in range(6):
        event = acw(road, START_MS + n * SECOND, conversationId=road.uuid())
        road.retried_by_bus(road.deliver(event), after_ms + n * SECOND)
    arrivals = road.in_order()
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


def test_a_message_that_others_received_before(diagnose):
    """A high receive count is no evidence by itself: what is there once is no duplicate."""
    road = CausedRoad(42)
    first = road.deliver(acw(road))
    first.receive_count = 4
    pause(road, START_MS + SECOND, 5)
    arrivals = road.in_order()
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


def test_a_queue_with_a_backlog(diagnose):
    """What counts is when messages were sent: sent at once and received late is overlap, and the reverse a retry."""
    road = CausedRoad(43)
    for n in range(10):
        first = road.deliver(acw(road, START_MS + n * SECOND))
        twin = road.matched_by_second_rule(first)
        twin.arrived_ms = twin.first_received_ms = first.arrived_ms + 20 * MINUTE
    held = road.deliver(road.event(CUSTOMER_START, at_ms=START_MS))
    again = road.retried_by_bus(held, 20 * MINUTE - SECOND)
    held.arrived_ms = held.first_received_ms = again.arrived_ms - 5
    arrivals = road.in_order()
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


# --- other envelopes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [captures.json_lines, captures.receive_message])
@pytest.mark.parametrize("restamped", [False, True])
def test_republished_after_milliseconds_to_days(diagnose, write, restamped):
    """Genesys sends again with another envelope id, whatever the lag, and perhaps with another publish time."""
    road = CausedRoad(50)
    for n, lag_ms in enumerate((3, 40, 900, 5 * SECOND, 3 * MINUTE, 2 * HOUR, 20 * HOUR, 4 * DAY - MINUTE)):
        road.republished(road.deliver(acw(road, START_MS + n * 10 * SECOND)), lag_ms, restamped=restamped)
    pause(road, START_MS + MINUTE)
    arrivals = road.in_order()
    diagnose({"capture": write(arrivals)}).holds(arrivals)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": payloads.source(suffix="reporting")},
        {"account": "345678901234", "source": payloads.source(suffix="reporting")},
        {"account": "345678901234"},
        {"region": "eu-central-1"},
    ],
)
@pytest.mark.parametrize("write", [captures.json_lines, captures.receive_message])
def test_second_integration(diagnose, write, changes):
    """A second integration has a source, an account or a region of its own, and mostly comes at once."""
    road = CausedRoad(51)
    for n in range(20):
        first = road.deliver(acw(road, START_MS + n * SECOND))
        road.integrated_twice(first, road.between(0, 250), **changes)
    arrivals = road.in_order()
    diagnose({"capture": write(arrivals)}).holds(arrivals)


def test_either_integration_may_be_first(diagnose):
    """Whichever of two integrations is later, it brought the duplicate."""
    road = CausedRoad(52)
    for n in range(20):
        envelope = acw(road, START_MS + n * SECOND)
        if n % 2:
            envelope["source"] = payloads.source(suffix="reporting")
        road.integrated_twice(
            road.deliver(envelope), 60, source=payloads.source(suffix="service-desk" if n % 2 else "reporting")
        )
    arrivals = road.in_order()
    diagnose({"capture.jsonl": captures.json_lines(arrivals)}).holds(arrivals)


@pytest.mark.parametrize("write", [captures.json_lines, captures.receive_message])
def test_a_state_that_two_integrations_publish_at_times_of_their_own(diagnose, write):
    """A state without a time in it looks like an echo then, but its source says that another integration brought it."""
    road = CausedRoad(58)
    for n in range(8):
        at_ms = START_MS + n * 5 * SECOND
        body = {"presenceDefinition": {"id": "x", "systemPresence": "AWAY" if n % 2 else "BUSY"}, "primary": True}
        event = road.event(payloads.PRESENCE, body, at_ms=at_ms)
        del event["detail"]["eventBody"]["modifiedDate"]
        first = road.deliver(event)
        detail = {**first.envelope["detail"], "timestamp": payloads.iso(at_ms + 90)}
        road.integrated_twice(first, 90, detail=detail, source=first.envelope["source"] + "-2")
        if n % 3 == 0:
            road.echoed(first, 200, "timestamp")
    arrivals = road.in_order()
    diagnose({"capture": write(arrivals)}).holds(arrivals)


def test_a_second_integration_that_is_hours_late(diagnose):
    """An integration may have been out of reach for hours: its source says where the event came from, not its lag."""
    road = CausedRoad(56)
    for n in range(10):
        road.integrated_twice(road.deliver(acw(road, START_MS + n * SECOND)), 3 * HOUR)
    arrivals = road.in_order()
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


def test_either_integration_may_send_again(diagnose):
    """What came by a second integration before, and comes by it again in a new envelope, was sent again."""
    road = CausedRoad(57)
    for n in range(10):
        other = road.integrated_twice(road.deliver(acw(road, START_MS + n * SECOND)), 80)
        if n % 3 == 0:
            road.republished(other, 5 * SECOND, restamped=n % 2 == 0)
    arrivals = road.in_order()
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


def test_two_organizations_share_nothing(diagnose):
    """The same body from another organization is another event."""
    road = CausedRoad(53)
    first = road.deliver(acw(road))
    road.deliver({**first.envelope, "id": road.uuid(), "source": payloads.source(payloads.OTHER_ORG)}, START_MS + 50)
    arrivals = road.in_order()
    diagnose({"capture.jsonl": captures.json_lines(arrivals)}).holds(arrivals)


@pytest.mark.parametrize("keeps_id", [True, False])
@pytest.mark.parametrize("write", [captures.json_lines, captures.receive_message])
def test_archive_replay(diagnose, write, keeps_id):
    """A replay brings a stretch again, out of order, twice under two names."""
    road = CausedRoad(54)
    firsts = [road.deliver(acw(road, START_MS + n * SECOND)) for n in range(30)]
    for first in firsts:
        road.replayed(first, HOUR + road.between(0, MINUTE), keeps_id=keeps_id)
        road.replayed(first, 3 * DAY + road.between(0, MINUTE), name="again-2", keeps_id=keeps_id)
    arrivals = road.in_order()
    diagnose({"capture": write(arrivals)}).holds(arrivals)


def test_a_replay_of_what_is_not_in_the_capture(diagnose):
    """An event that only a replay brought is no duplicate."""
    road = CausedRoad(55)
    for n in range(5):
        road.deliver({**acw(road, START_MS + n * SECOND), "replay-name": "again"}, START_MS + HOUR + n)
    arrivals = road.in_order()
    diagnose({"capture.jsonl": captures.json_lines(arrivals)}).holds(arrivals)


# --- the same fact under two topics -------------------------------------------------------------------------------


def snapshot(road, at_ms, topic=payloads.SNAPSHOT, **participant):
    """Make a snapshot of a conversation of its own."""
    who = {"id": road.uuid(), "purpose": "customer", "name": "Casey Pretend-7", "address": "tel:+15550004711"}
    body = {"id": road.uuid(), "participants": [{**who, **participant}]}
    return road.event(topic, body, at_ms=at_ms)


def on_snapshots(road, topic, name):
    """Deliver snapshots under the topic of the user, and each of them under another one."""
    for n in range(20):
        at_ms = START_MS + n * SECOND
        sessions = [{"id": road.uuid(), "state": "alerting", "held": False}]
        first = road.deliver(snapshot(road, at_ms, calls=sessions, connectedTime=payloads.iso(at_ms)))
        road.under_topic(first, topic, name, after_ms=n % 4)


@pytest.mark.parametrize("write", [captures.json_lines, captures.receive_message])
@pytest.mark.parametrize(
    ("topic", "name"),
    [
        (CALLS, f"v2.users.{payloads.USER}.conversations.calls"),
        (QUEUE_CONVERSATIONS, f"v2.routing.queues.{payloads.QUEUE}.conversations"),
    ],
)
def test_snapshots_under_two_topics(diagnose, write, topic, name):
    """A conversation's snapshot comes under its user, and again by media or under its queue."""
    road = CausedRoad(60)
    on_snapshots(road, topic, name)
    arrivals = road.in_order()
    diagnose({"capture": write(arrivals)}).holds(arrivals)


def test_snapshots_by_media_have_a_form_of_their_own(diagnose):
    """Genesys lists sessions below participants in the broad topic, and not in the narrow one: still one fact."""
    road = CausedRoad(61)
    for n in range(20):
        at_ms = START_MS + n * 3 * SECOND
        session = {"id": road.uuid(), "state": "connected", "direction": "inbound", "held": False, "muted": False}
        first = road.deliver(snapshot(road, at_ms, calls=[session], connectedTime=payloads.iso(at_ms)))
        narrow = {**first.envelope, "id": road.uuid(), "detail-type": CALLS, "detail": {**first.envelope["detail"]}}
        (who,) = first.envelope["detail"]["eventBody"]["participants"]
        flat = {name: value for name, value in who.items() if name != "calls"}
        narrow["detail"]["topicName"] = f"v2.users.{payloads.USER}.conversations.calls"
        narrow["detail"]["eventBody"] = {
            "id": first.envelope["detail"]["eventBody"]["id"],
            "participants": [{**flat, "state": "connected", "direction": "inbound", "held": False, "muted": False}],
            "otherMediaUris": [],
            "recordingState": "none",
        }
        road.told_again(first, narrow)
    arrivals = road.in_order()
    diagnose({"capture.jsonl": captures.json_lines(arrivals)}).holds(arrivals)


@pytest.mark.parametrize("write", [captures.json_lines, captures.receive_message])
def test_work_items_under_three_topics(diagnose, write):
    """A change of a work item comes under the item, its queue and its user."""
    road = CausedRoad(62)
    for n in range(15):
        at_ms = START_MS + n * SECOND
        item = road.uuid()
        body = {"id": item, "dateModified": payloads.iso(at_ms - 80), "name": "Call Casey Pretend-3 back"}
        usual = payloads.BODIES[WORKITEMS[0]][0][0]
        first = road.deliver(road.event(WORKITEMS[0], body, at_ms=at_ms, ids={usual: item}))
        road.under_topic(first, WORKITEMS[1], f"v2.taskmanagement.workitems.queues.{payloads.QUEUE}", 1)
        road.under_topic(first, WORKITEMS_OF_USERS, f"v2.taskmanagement.workitems.users.{payloads.USER}", 2)
    arrivals = road.in_order()
    diagnose({"capture": write(arrivals)}).holds(arrivals)


class Agent:
    """An agent whose presence and routing status are told twice: by topics of their own, and as an activity."""

    def __init__(self, road):
        """Take the road, and begin long ago."""
        self.road = road
        self.id = road.uuid()
        self.definition = {"id": road.uuid(), "systemPresence": "AVAILABLE"}
        self.status = "OFF_QUEUE"
        self.presence_ms = self.status_ms = self.queues_ms = START_MS - HOUR

    def _event(self, topic, body, at_ms):
        return self.road.event(topic, body, at_ms=at_ms, ids={payloads.USER: self.id})

    def presence(self, at_ms):
        """Tell the presence."""
        body = {"presenceDefinition": self.definition, "modifiedDate": payloads.iso(self.presence_ms)}
        return self._event(payloads.PRESENCE, {**body, "message": "Lunch with Casey Pretend-1"}, at_ms)

    def routing_status(self, at_ms):
        """Tell the routing status."""
        status = {"status": self.status, "startTime": payloads.iso(self.status_ms)}
        return self._event(payloads.ROUTING_STATUS, {"id": self.id, "routingStatus": status}, at_ms)

    def activity(self, at_ms, **more):
        """Tell everything."""
        presence = {
            "presenceDefinition": self.definition,
            "presenceMessage": "Lunch with Casey Pretend-1",
            "modifiedDate": payloads.iso(self.presence_ms),
        }
        body = {
            "id": self.id,
            "routingStatus": {"status": self.status, "startTime": payloads.iso(self.status_ms)},
            "presence": presence,
            "dateActiveQueuesChanged": payloads.iso(self.queues_ms),
            **more,
        }
        return self._event(payloads.ACTIVITY, body, at_ms)


@pytest.mark.parametrize("broad_first", [False, True])
@pytest.mark.parametrize("write", [captures.json_lines, captures.receive_message])
def test_activity_beside_presence_and_routing_status(diagnose, write, broad_first):
    """An activity tells what presence and routing status tell; the later one is the duplicate."""
    road = CausedRoad(63)
    agents = [Agent(road) for _ in range(5)]
    for n in range(20):
        agent, at_ms = agents[n % 5], START_MS + n * 3 * SECOND
        if n % 2:
            agent.definition = {"id": road.uuid(), "systemPresence": "MEAL" if n % 4 == 1 else "ON_QUEUE"}
            agent.presence_ms, narrow = at_ms - 90, agent.presence
        else:
            agent.status = "IDLE" if n % 4 else "INTERACTING"
            agent.status_ms, narrow = at_ms - 90, agent.routing_status
        earlier, later = (agent.activity, narrow) if broad_first else (narrow, agent.activity)
        road.told_again(road.deliver(earlier(at_ms)), later(at_ms + 4))
    arrivals = road.in_order()
    diagnose({"capture": write(arrivals)}).holds(arrivals)


def test_an_activity_may_tell_something_of_its_own(diagnose):
    """Queues that were joined are told by the activity alone, which is then no duplicate."""
    road = CausedRoad(64)
    agent = Agent(road)
    road.deliver(agent.presence(START_MS - HOUR))
    for n in range(5):
        agent.queues_ms = START_MS + n * MINUTE
        road.deliver(agent.activity(agent.queues_ms + 90))
    arrivals = road.in_order()
    diagnose({"capture.jsonl": captures.json_lines(arrivals)}).holds(arrivals)


def test_a_second_activity_with_the_same_status_has_other_news(diagnose):
    """One activity tells what the routing status told; the next one, a moment later, is there for something else."""
    road = CausedRoad(66)
    for n in range(5):
        agent, at_ms = Agent(road), START_MS + n * MINUTE
        agent.status, agent.status_ms = "IDLE", at_ms - 90
        road.told_again(road.deliver(agent.routing_status(at_ms)), agent.activity(at_ms + 4))
        road.deliver(agent.activity(at_ms + 3 * SECOND, outOfOffice={"active": True}))
    arrivals = road.in_order()
    diagnose({"capture.jsonl": captures.json_lines(arrivals)}).holds(arrivals)


def test_two_topics_and_a_redelivery(diagnose):
    """What is a duplicate already for its topic may be redelivered, and is both."""
    road = CausedRoad(65)
    on_snapshots(road, CALLS, f"v2.users.{payloads.USER}.conversations.calls")
    for arrival in list(road.arrivals):
        road.redelivered(arrival, 30 * SECOND)
    arrivals = road.in_order()
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


# --- echoes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [captures.json_lines, captures.receive_message])
def test_echoes(diagnose, write):
    """The same state again within half a second, as an event of its own, is an echo."""
    road = CausedRoad(70)
    for n in range(12):
        at_ms, agent = START_MS + n * 5 * SECOND, Agent(road)
        agent.presence_ms = agent.status_ms = at_ms - 60
        road.echoed(road.deliver(agent.presence(at_ms)), road.between(50, 440), "eventBody", "modifiedDate")
        path = ("eventBody", "routingStatus", "startTime")
        road.echoed(road.deliver(agent.routing_status(at_ms + 1)), road.between(50, 440), *path)
        first = road.deliver(road.status(road.uuid(), "connected", at_ms=at_ms + 2))
        road.echoed(first, road.between(50, 440), "timestamp")
    arrivals = road.in_order()
    diagnose({"capture": write(arrivals)}).holds(arrivals)


def test_an_echo_is_redelivered(diagnose):
    """An echo that SQS hands out again is a redelivery the second time."""
    road = CausedRoad(71)
    first = road.deliver(road.status(road.uuid(), "connected", at_ms=START_MS))
    road.redelivered(road.echoed(first, 200, "timestamp"), 30 * SECOND)
    pause(road, START_MS + SECOND)
    arrivals = road.in_order()
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


def test_the_same_state_after_a_second_is_no_echo(diagnose):
    """Out of the echo window a state that is told again is an event."""
    road = CausedRoad(72)
    conversation = road.uuid()
    for n in range(6):
        road.deliver(road.status(conversation, "connected", at_ms=START_MS + n * SECOND), START_MS + n * SECOND)
    arrivals = road.in_order()
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


# --- unknown ------------------------------------------------------------------------------------------------------


def test_the_same_log_line_in_two_files(diagnose):
    """Two downloads that overlap repeat lines that AWS wrote once: no hop did that."""
    arrivals = [one for one in busy_road(80, {}, conversations=3) if one.cause is None]
    lines = captures.function_lines(arrivals)
    number = len(lines) // 4 * 2
    moment_ms = lines[number][0]
    both = [line for line in lines if line[0] >= moment_ms]
    again = [replace(one, cause="unknown") for one in arrivals if one.arrived_ms >= moment_ms]
    named = {"1.json": captures.filtered(lines), "2.json": captures.filtered(both)}
    answer = diagnose(named)
    answer.holds(arrivals + again)


# --- what only looks like duplication -----------------------------------------------------------------------------


def late_states(road):
    """Deliver an older state after a newer one."""
    agent = Agent(road)
    agent.status, agent.status_ms = "IDLE", START_MS
    older = agent.routing_status(START_MS + 50)
    agent.status, agent.status_ms = "INTERACTING", START_MS + 20 * SECOND
    road.deliver(agent.routing_status(START_MS + 20 * SECOND))
    road.deliver(older, START_MS + 30 * SECOND)


def two_states_in_a_millisecond(road):
    """Deliver two presences with one time."""
    agent = Agent(road)
    for n in range(2):
        agent.definition = {"id": road.uuid(), "systemPresence": "MEAL"}
        road.deliver(agent.presence(START_MS + n * 3))


def wrapped_up_again(road):
    """Deliver after-call work for each time that a conversation was reopened."""
    for n in range(3):
        road.deliver(road.event(payloads.ACW, {"eventTime": START_MS + n * 21}, at_ms=START_MS + n * 21 + 50))


def equal_readings(road):
    """Deliver the same reading every second."""
    for n in range(5):
        road.deliver(road.event(payloads.OBSERVATIONS, at_ms=START_MS + n * SECOND))


def a_state_returns(road):
    """Deliver a conversation that is put on hold for a moment."""
    conversation = road.uuid()
    for n, status in enumerate(("connected", "held", "connected", "held", "connected")):
        road.deliver(road.status(conversation, status, at_ms=START_MS + n * 150), START_MS + n * 150)


def attributes_written_twice(road):
    """Deliver two writes of attributes in one millisecond."""
    for n, verified in enumerate(("yes", "no")):
        body = {"eventTime": START_MS, "attributes": {"customer": "Casey Pretend-9", "verified": verified}}
        road.deliver(road.event(payloads.ATTRIBUTES, body, at_ms=START_MS + 40 + n))


LOOK_ALIKES = [
    late_states,
    two_states_in_a_millisecond,
    wrapped_up_again,
    equal_readings,
    a_state_returns,
    a_conflict,
    attributes_written_twice,
]


@pytest.mark.parametrize("write", [captures.json_lines, captures.receive_message])
@pytest.mark.parametrize("look_alike", LOOK_ALIKES)
def test_look_alikes_are_no_duplicates(diagnose, write, look_alike):
    """Disorder, ties, readings, returns and conflicts are no duplicates."""
    road = CausedRoad(90)
    look_alike(road)
    arrivals = road.in_order()
    diagnose({"capture": write(arrivals)}).holds(arrivals)


@pytest.mark.parametrize("look_alike", LOOK_ALIKES)
def test_look_alikes_are_repeated_like_any_event(diagnose, look_alike):
    """What only looks like a duplicate can be redelivered and sent again, and then each repeat has its cause."""
    road = CausedRoad(91)
    look_alike(road)
    for first in list(road.arrivals):
        road.redelivered(road.matched_by_second_rule(first), MINUTE)
        road.republished(first, 3 * MINUTE)
    arrivals = road.in_order()
    diagnose({"messages.json": captures.receive_message(arrivals)}).holds(arrivals)


# --- personal data ------------------------------------------------------------------------------------------------


def test_nothing_personal_is_shown(diagnose, cli):  # noqa: F811 - the fixture
    """Numbers, names, notes and transcripts are in no output: not in words, JSON, causes or the page."""
    road = CausedRoad(95)
    for n, envelope in enumerate(payloads.personal()):
        first = road.deliver({**envelope, "id": road.uuid()}, START_MS + n * SECOND)
        road.redelivered(road.matched_by_second_rule(first), MINUTE)
        road.republished(first, 2 * SECOND)
    for envelope in simulated(3, 95, without=()):
        road.redelivered(road.deliver(envelope), MINUTE)
    arrivals = road.in_order()
    answer = diagnose({"messages.json": captures.receive_message(arrivals)})
    answer.adds_up(len(arrivals))
    ran = cli("diagnose", "messages.json", "--html", "report.html")
    assert ran.code == 0, ran
    page = (cli.folder / "report.html").read_text()
    assert "<html" in page
    shows_nothing_personal(ran.out, ran.err, page)


def test_an_id_that_is_none_is_not_in_the_report(diagnose, cli):  # noqa: F811 - the fixture
    """An envelope id may be any text: lines of causes have it, to be joined with others, but no report shows it."""
    road = CausedRoad(96)
    first = road.deliver({**acw(road), "id": payloads.CANARIES["name"]})
    road.redelivered(first, MINUTE)
    arrivals = road.in_order()
    answer = diagnose({"messages.json": captures.receive_message(arrivals)})
    assert {n: (line["id"], line["cause"]) for n, line in answer.lines.items()} == {
        2: (payloads.CANARIES["name"], "sqs_redelivery")
    }
    ran = cli("diagnose", "messages.json", "--html", "report.html")
    shows_nothing_personal(answer.ran.out, answer.ran.err, ran.out, ran.err, (cli.folder / "report.html").read_text())


def test_gzip_of_a_log_in_a_directory(diagnose):
    """An export of CloudWatch is a directory of compressed files, one for each stream of the function."""
    road = CausedRoad(97)
    for n in range(20):
        road.retried_by_lambda(road.deliver(acw(road, START_MS + n * 10 * SECOND)), times=n % 3)
    arrivals = road.in_order()
    streams = {}
    for moment_ms, stream, line in captures.function_lines(arrivals):
        streams.setdefault(stream, []).append(f"{payloads.iso(moment_ms)} {line}")
    named = {
        f"export/{n}/000000.gz": gzip.compress("".join(lines).encode()) for n, lines in enumerate(streams.values())
    }
    answer = diagnose(named, "export")
    answer.adds_up(len(arrivals))
    assert answer.causes == {"lambda_retry": sum(n % 3 for n in range(20))}
