"""A road on which every duplicate is planted, with its cause beside it, and captures of it as AWS writes them.

Nothing here asks Oncebridge what a duplicate is: the road knows, because it made each of them. It takes events from
`oncebridge.simulation` or from `payloads`, and everything around them (messages, requests, log streams) is made up.
"""

import copy
import gzip
import hashlib
import json
import random
import uuid
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import payloads
from oncebridge.simulation import Road, simulate

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
START_MS = 1_772_438_400_000  # 2026-03-02T08:00:00Z
QUEUE_ARN = "arn:aws:sqs:eu-west-2:210987654321:genesys-"
LOGGED_AFTER_MS = 12  # from receiving a batch to the function's line about it
RUNS_MS = 15

#: Topics that say in another way what others of the simulation say, too: an org that wants each fact once takes none.
SAID_TWICE = ("v2.users.{id}.activity", "v2.detail.events.conversation.{id}.wrapup")


@dataclass(kw_only=True)
class Arrival:
    """One delivery at the end of the road, and why it is there."""

    envelope: dict
    #: When it was received or logged.
    arrived_ms: int
    #: None: it is no duplicate.
    cause: str | None = None
    message_id: str
    receive_count: int = 1
    sent_ms: int
    first_received_ms: int
    request_id: str
    #: Which queue, function or log group it was delivered to.
    target: int = 0

    @property
    def topic(self):
        """The topic, as EventBridge names it."""
        return self.envelope.get("detail-type")


def clock(moment_ms):
    """Write a moment to the microsecond, as `aws logs tail` does."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="microseconds")


def compact(value):
    """Write JSON without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def published_ms(envelope):
    """Read when Genesys published an event."""
    return round(datetime.fromisoformat(envelope["detail"]["timestamp"]).timestamp() * 1000)


def simulated(conversations, seed, *, without=SAID_TWICE):
    """Make up a working day without any fault; audits of presences say what presences say, and go with activities."""
    for one in simulate(conversations, seed, road=Road.smooth()):
        envelope = json.loads(one.raw)
        body = envelope["detail"]["eventBody"]
        if envelope["detail-type"] not in without and not (without and body.get("entityType") == "UserPresence"):
            yield envelope


class CausedRoad:
    """Carries events to their targets, and repeats them for reasons that it writes down."""

    def __init__(self, seed=0, *, waits_ms=(5, 40)):
        """Draw all chance from a seed; a delivery waits for some milliseconds before it is received."""
        self.random = random.Random(seed)
        self.arrivals = []
        self._waits_ms = waits_ms

    def uuid(self):
        """Make an id."""
        return str(uuid.UUID(int=self.random.getrandbits(128)))

    def between(self, low, high):
        """Draw a whole number, both ends included."""
        return self.random.randint(low, high)

    def in_order(self):
        """Return everything in order of arrival."""
        return sorted(self.arrivals, key=lambda arrival: arrival.arrived_ms)

    # --- events -----------------------------------------------------------------------------------------------

    def event(self, topic, body=None, *, at_ms, ids=None, **frame):
        """Make an event of a topic in `payloads`, published at this moment, with ids of its own in its name."""
        detail = payloads.detail(topic, body, metadata={"CorrelationId": self.uuid()}, timestamp=payloads.iso(at_ms))
        for old, new in (ids or {}).items():
            detail["topicName"] = detail["topicName"].replace(old, new)
        return payloads.in_envelope(
            {**detail, **frame}, id=self.uuid(), detail_type=topic, time=payloads.iso(at_ms, digits=0)
        )

    def status(self, conversation, status, *, at_ms):
        """Make a hand-made event with the status of a conversation."""
        inner = {"conversationId": conversation, "status": status, "timestamp": payloads.iso(at_ms)}
        return payloads.in_envelope(
            inner,
            id=self.uuid(),
            detail_type="conversation status",
            source="contact.centre",
            time=payloads.iso(at_ms, digits=0),
        )

    # --- deliveries -------------------------------------------------------------------------------------------

    def deliver(self, envelope, at_ms=None, *, cause=None, after=None, target=0):
        """Deliver an envelope in a message and a request of its own, at a moment or at that of its publishing.

        Args:
            envelope: The envelope, which is copied.
            at_ms: When it is sent to its target.
            cause: Why it is a duplicate, if it is one.
            after: What it repeats, so that it is received later than that.
            target: Which queue, function or log group gets it.

        """
        sent_ms = published_ms(envelope) if at_ms is None else at_ms
        arrived_ms = sent_ms + self.between(*self._waits_ms)
        if after is not None:
            arrived_ms = max(arrived_ms, after.arrived_ms + 1)
        arrival = Arrival(
            envelope=copy.deepcopy(envelope),
            arrived_ms=arrived_ms,
            cause=cause,
            message_id=self.uuid(),
            sent_ms=sent_ms,
            first_received_ms=arrived_ms,
            request_id=self.uuid(),
            target=target,
        )
        self.arrivals.append(arrival)
        return arrival

    def _later(self, first, after_ms, **changes):
        """Repeat a delivery with what is around it."""
        again = replace(
            first, envelope=copy.deepcopy(first.envelope), arrived_ms=first.arrived_ms + after_ms, **changes
        )
        self.arrivals.append(again)
        return again

    def redelivered(self, first, after_ms, *, times=1):
        """Let SQS hand the same message out again, after its visibility timeout."""
        for _ in range(times):
            first = self._later(
                first,
                after_ms,
                cause="sqs_redelivery",
                receive_count=first.receive_count + 1,
                request_id=self.uuid(),
            )
        return first

    def retried_by_lambda(self, first, *, times=2):
        """Let Lambda try a failed invocation again: after a minute, then after two more."""
        for wait_ms in (MINUTE, 2 * MINUTE)[:times]:
            after_ms = wait_ms + self.between(-SECOND, 12 * SECOND)
            first = self._later(first, after_ms, cause="lambda_retry", message_id=self.uuid())
        return first

    def matched_by_second_rule(self, first, *, target=None):
        """Let a second rule match: the same envelope to the same target, or another one, at once."""
        target = first.target if target is None else target
        sent_ms = first.sent_ms + self.between(0, 30)
        return self.deliver(first.envelope, sent_ms, cause="overlapping_rules", after=first, target=target)

    def retried_by_bus(self, first, after_ms):
        """Let EventBridge deliver an envelope once more, because it heard no answer."""
        cause = "eventbridge_retry"
        return self.deliver(first.envelope, first.sent_ms + after_ms, cause=cause, after=first, target=first.target)

    def again(self, first, after_ms):
        """Deliver the same envelope again, where nothing will tell who did that."""
        return self.deliver(first.envelope, first.sent_ms + after_ms, cause="unknown", after=first)

    def republished(self, first, after_ms, *, restamped=False):
        """Let Genesys publish an event again: a new envelope, and perhaps another publish time and correlation id."""
        envelope = {**copy.deepcopy(first.envelope), "id": self.uuid()}
        if restamped:
            again_ms = published_ms(envelope) + after_ms
            envelope["detail"]["timestamp"] = payloads.iso(again_ms)
            envelope["detail"]["metadata"] = {"CorrelationId": self.uuid()}
            envelope["time"] = payloads.iso(again_ms, digits=0)
        return self.deliver(envelope, first.sent_ms + after_ms, cause="genesys_republish", after=first)

    def integrated_twice(self, first, after_ms, **changes):
        """Let a second integration send the same event: another envelope, and another source unless told otherwise."""
        envelope = {**copy.deepcopy(first.envelope), "id": self.uuid(), **changes}
        if not changes:
            envelope["source"] += "-2"
        return self.deliver(envelope, first.sent_ms + after_ms, cause="second_integration", after=first)

    def replayed(self, first, after_ms, *, name="again-1", keeps_id=True):
        """Let an archive bring an event again."""
        envelope = {**copy.deepcopy(first.envelope), "replay-name": name}
        if not keeps_id:
            envelope["id"] = self.uuid()
        return self.deliver(envelope, first.sent_ms + after_ms, cause="archive_replay", after=first)

    def told_again(self, first, envelope, at_ms=None):
        """Deliver the same fact under another topic."""
        return self.deliver(envelope, at_ms, cause="two_topics", after=first)

    def under_topic(self, first, topic, name, after_ms=3):
        """Deliver the same body under another topic."""
        envelope = {**copy.deepcopy(first.envelope), "id": self.uuid(), "detail-type": topic}
        envelope["detail"]["topicName"] = name
        envelope["detail"]["timestamp"] = payloads.iso(published_ms(envelope) + after_ms)
        return self.told_again(first, envelope, first.sent_ms + after_ms)

    def echoed(self, first, after_ms, *path):
        """Deliver the same state as an event of its own; the path leads to its time in the detail."""
        envelope = {**copy.deepcopy(first.envelope), "id": self.uuid()}
        for *above, last in {path, ("timestamp",)}:
            place = envelope["detail"]
            for name in above:
                place = place[name]
            moment_ms = round(datetime.fromisoformat(place[last]).timestamp() * 1000)
            place[last] = payloads.iso(moment_ms + after_ms)
        return self.deliver(envelope, first.sent_ms + after_ms, cause="echo", after=first)

    # --- by chance --------------------------------------------------------------------------------------------

    def plant(self, chances, *, doubled=lambda topic: False):
        """Repeat what was delivered so far, each cause by its chance, several on one event too.

        A cause that strikes on the way to the target may strike a republished envelope as well. What `doubled` says of
        a topic holds for all of its events: that is how a second rule works.
        """
        moments_ms = sorted(arrival.sent_ms for arrival in self.arrivals)
        # Where nothing else tells that a repeat is late, other events must lie between.
        until_ms = moments_ms[len(moments_ms) // 2]
        for first in list(self.arrivals):
            envelopes = [first, *self._plant_envelopes(first, chances)]
            on_bus = [one for one in envelopes if doubled(one.topic) and one.cause != "second_integration"]
            twins = [self.matched_by_second_rule(one) for one in on_bus]
            for one in (*envelopes, *twins):
                self._plant_hops(one, chances, until_ms)

    def _strikes(self, cause, chances):
        return self.random.random() < chances.get(cause, 0)

    def _plant_envelopes(self, first, chances):
        """Repeat an event in other envelopes; those of an archive are left alone afterwards."""
        made = []
        if self._strikes("second_integration", chances):
            made.append(self.integrated_twice(first, self.between(0, 250)))
        if self._strikes("genesys_republish", chances):
            longest = self.random.choice((200, MINUTE, 3 * HOUR, 4 * DAY))
            timed = "eventTime" in first.envelope["detail"].get("eventBody", {}) and first.topic != payloads.AUDITS
            restamped = timed and self.random.random() < 0.5
            made.append(self.republished(first, self.between(2, longest), restamped=restamped))
        if self._strikes("archive_replay", chances):
            keeps_id = self.random.random() < 0.5
            self.replayed(first, self.between(20 * MINUTE, 21 * MINUTE), keeps_id=keeps_id)
        return made

    def _plant_hops(self, one, chances, until_ms):
        """Repeat an envelope on its way to the target."""
        if self._strikes("sqs_redelivery", chances):
            self.redelivered(one, self.between(30, 40) * SECOND, times=self.between(1, 2))
        if self._strikes("lambda_retry", chances):
            self.retried_by_lambda(one, times=self.between(1, 2))
        if self._strikes("eventbridge_retry", chances):
            longest = self.random.choice((200 * SECOND, HOUR, 20 * HOUR))
            self.retried_by_bus(one, self.between(20 * SECOND, longest))
        if one.sent_ms < until_ms and self._strikes("unknown", chances):
            self.again(one, self.between(2 * MINUTE, 5 * HOUR))


# --- captures of queues ---------------------------------------------------------------------------------------------


def _attributes(arrival):
    return {
        "SenderId": "AIDAIENQZJOLO23YVJ4VO",
        "ApproximateFirstReceiveTimestamp": str(arrival.first_received_ms),
        "ApproximateReceiveCount": str(arrival.receive_count),
        "SentTimestamp": str(arrival.sent_ms),
    }


def _handle(arrival):
    return "AQEB" + hashlib.sha256(f"{arrival.message_id} {arrival.receive_count}".encode()).hexdigest()


def receive_message(arrivals):
    """Write what `aws sqs receive-message` prints, call after call."""
    pages = []
    for start in range(0, len(arrivals), 10):
        messages = [
            {
                "MessageId": arrival.message_id,
                "ReceiptHandle": _handle(arrival),
                "MD5OfBody": hashlib.md5(compact(arrival.envelope).encode()).hexdigest(),
                "Body": compact(arrival.envelope),
                "Attributes": _attributes(arrival),
            }
            for arrival in arrivals[start : start + 10]
        ]
        pages.append(json.dumps({"Messages": messages}, indent=4) + "\n")
    return "".join(pages).encode()


def _record(arrival):
    return {
        "messageId": arrival.message_id,
        "receiptHandle": _handle(arrival),
        "body": compact(arrival.envelope),
        "attributes": _attributes(arrival),
        "messageAttributes": {},
        "md5OfBody": hashlib.md5(compact(arrival.envelope).encode()).hexdigest(),
        "eventSource": "aws:sqs",
        "eventSourceARN": f"{QUEUE_ARN}{arrival.target}",
        "awsRegion": "eu-west-2",
    }


def _batches(arrivals, most=5, within_ms=60):
    """Group what a queue's trigger hands over together, and move it to the moment at which that happens."""
    batches, first_received = [], {}
    for arrival in arrivals:
        batch = batches[-1] if batches else []
        fits = batch and len(batch) < most and arrival.arrived_ms - batch[0].arrived_ms <= within_ms
        if not fits or any(arrival.message_id == other.message_id for other in batch):
            batches.append([])
        batches[-1].append(arrival)
    for batch in batches:
        received_ms, request_id = batch[-1].arrived_ms, batch[0].request_id
        for arrival in batch:
            arrival.first_received_ms = first_received.setdefault(arrival.message_id, received_ms)
            arrival.arrived_ms, arrival.request_id = received_ms + LOGGED_AFTER_MS, request_id
    return batches


def records(arrivals):
    """Write what a queue's trigger gives to a function, a batch a line; without a log nothing says when."""
    return "".join(
        compact({"Records": [_record(one) for one in batch]}) + "\n" for batch in _batches(arrivals)
    ).encode()


# --- captures of functions' logs ------------------------------------------------------------------------------------


class Log:
    """The log of a function: each invocation in a stream that is free, between the lines that Lambda writes."""

    def __init__(self):
        """Start without a line."""
        self._lines = []
        self._free_from = {}

    def invocation(self, at_ms, request_id, message):
        """Note what one invocation printed."""
        free = [stream for stream, from_ms in self._free_from.items() if from_ms < at_ms - 2]
        stream = free[0] if free else f"2026/03/02/[$LATEST]{len(self._free_from):032x}"
        self._free_from[stream] = at_ms + RUNS_MS
        report = f"REPORT RequestId: {request_id}\tDuration: 14.83 ms\tBilled Duration: 15 ms\tMemory Size: 128 MB"
        for moment_ms, line in (
            (at_ms - 2, f"START RequestId: {request_id} Version: $LATEST"),
            (at_ms, message),
            (at_ms + RUNS_MS, f"END RequestId: {request_id}"),
            (at_ms + RUNS_MS, report),
        ):
            self._lines.append((moment_ms, len(self._lines), stream, line + "\n"))

    def lines(self):
        """Return moment, stream and text in order."""
        return [(moment_ms, stream, line) for moment_ms, _, stream, line in sorted(self._lines)]


def _event_id(*written):
    """Make the id of a log event, which is the same in every answer that holds it."""
    return f"3839{int.from_bytes(hashlib.sha256(repr(written).encode()).digest()) % 10**52:052}"


def filtered(lines):
    """Write the answer to `aws logs filter-log-events`."""
    events = [
        {
            "logStreamName": stream,
            "timestamp": moment_ms,
            "message": line,
            "ingestionTime": moment_ms + 830,
            "eventId": _event_id(moment_ms, stream, line),
        }
        for moment_ms, stream, line in lines
    ]
    return json.dumps({"events": events, "searchedLogStreams": []}, indent=4).encode()


def tailed(lines):
    """Write what `aws logs tail` prints."""
    return "".join(f"{clock(moment_ms)} {stream} {line}" for moment_ms, stream, line in lines).encode()


def exported(lines):
    """Write the lines of one stream as an export to S3 does."""
    return gzip.compress("".join(f"{payloads.iso(moment_ms)} {line}" for moment_ms, _, line in lines).encode())


def insights(lines):
    """Write the answer to a query of Logs Insights as it sorts rows unless told otherwise: the newest first."""
    rows = [
        {"@timestamp": clock(moment_ms)[:23].replace("T", " "), "@message": line, "@logStream": stream}
        for moment_ms, stream, line in reversed(lines)
    ]
    cells = [[{"field": name, "value": value} for name, value in row.items()] for row in rows]
    return json.dumps({"results": cells, "status": "Complete"}).encode()


def in_json(lines):
    """Write Lambda's own lines as it does in logs in JSON."""
    for moment_ms, stream, line in lines:
        words = line.split()
        if words[0] in {"START", "REPORT"}:
            record = {"requestId": words[2], "version": "$LATEST"}
            kind = f"platform.{words[0].lower()}"
            yield moment_ms, stream, compact({"time": payloads.iso(moment_ms), "type": kind, "record": record})
        elif words[0] != "END":
            yield moment_ms, stream, line


def subscribed(lines, number):
    """Write the lines of one stream as a subscription filter sends them."""
    entries = [
        {"id": _event_id(moment_ms, number, line), "timestamp": moment_ms, "message": line}
        for moment_ms, _, line in lines
    ]
    head = {"messageType": "DATA_MESSAGE", "owner": "210987654321", "logGroup": "/aws/lambda/genesys-events"}
    stream = {"logStream": f"2026/03/02/[$LATEST]{number:032x}", "subscriptionFilters": ["all"]}
    return compact({**head, **stream, "logEvents": entries}).encode()


def printed_json(arrival):
    """Write an event as `print(json.dumps(event))` does."""
    return json.dumps(arrival.envelope)


def printed_dict(arrival):
    """Write an event as `print(event)` does."""
    return str(arrival.envelope)


def logged_by_node(arrival):
    """Write an event as `console.log` does with a text."""
    return f"{payloads.iso(arrival.arrived_ms)}\t{arrival.request_id}\tINFO\t{compact(arrival.envelope)}"


def logged_by_powertools(arrival):
    """Write an event as Powertools' logger does."""
    moment = datetime.fromtimestamp(arrival.arrived_ms / 1000, UTC)
    record = {
        "level": "INFO",
        "location": "decorate:452",
        "message": arrival.envelope,
        "timestamp": f"{moment:%Y-%m-%d %H:%M:%S},{arrival.arrived_ms % 1000:03}+0000",
        "service": "genesys-events",
        "cold_start": False,
        "function_name": "genesys-events",
        "function_memory_size": "128",
        "function_arn": "arn:aws:lambda:eu-west-2:210987654321:function:genesys-events",
        "function_request_id": arrival.request_id,
    }
    return compact(record)


def logged_as_json(arrival):
    """Write an event as Lambda's own format for logs in JSON does."""
    moment = payloads.iso(arrival.arrived_ms)
    record = {"timestamp": moment, "level": "INFO", "message": compact(arrival.envelope), "logger": "root"}
    return compact({**record, "requestId": arrival.request_id})


def function_lines(arrivals, message=printed_json):
    """Return the log of a function that is a rule's own target."""
    log = Log()
    for arrival in arrivals:
        log.invocation(arrival.arrived_ms, arrival.request_id, message(arrival))
    return log.lines()


def powertools_lines(arrivals):
    """Write only the records of Powertools, as a shipper of logs leaves them."""
    return "".join(logged_by_powertools(arrival) + "\n" for arrival in arrivals).encode()


def queue_lines(arrivals):
    """Return the log of a function that a queue triggers."""
    log = Log()
    for batch in _batches(arrivals):
        message = json.dumps({"Records": [_record(arrival) for arrival in batch]})
        log.invocation(batch[0].arrived_ms, batch[0].request_id, message)
    return log.lines()


# --- captures of the bus itself -------------------------------------------------------------------------------------


def bus_lines(arrivals):
    """Return what a rule writes into a log group that is its target: one stream per event, as EventBridge does."""
    return [(arrival.arrived_ms, arrival.message_id, compact(arrival.envelope)) for arrival in arrivals]


def bus_subscription(arrivals):
    """Write the records of a subscription to that log group, one after another, as Firehose does."""
    batches = defaultdict(list)
    for n, (moment_ms, stream, line) in enumerate(bus_lines(arrivals)):
        batches[stream].append({"id": f"3839{n:052}", "timestamp": moment_ms, "message": line})
    head = {"messageType": "DATA_MESSAGE", "owner": "210987654321", "logGroup": "/aws/events/genesys-capture"}
    return "".join(
        compact({**head, "logStream": stream, "subscriptionFilters": ["all"], "logEvents": events})
        for stream, events in batches.items()
    ).encode()


# --- captures with nothing around an event --------------------------------------------------------------------------


def json_lines(arrivals):
    """Write an event a line."""
    return "".join(compact(arrival.envelope) + "\n" for arrival in arrivals).encode()


def firehose(arrivals):
    """Write events one after another without a line break."""
    return "".join(compact(arrival.envelope) for arrival in arrivals).encode()


def array(arrivals):
    """Write all events as one list."""
    return json.dumps([arrival.envelope for arrival in arrivals], indent=2).encode()


def packed_lines(arrivals):
    """Write an event a line, compressed in two members."""
    half = len(arrivals) // 2
    return gzip.compress(json_lines(arrivals[:half])) + gzip.compress(json_lines(arrivals[half:]))
