"""Events in an SQS queue: the body as it came, the key beside it, in order where the queue keeps one."""

import json
import re
from unittest import mock

import pytest
from botocore.exceptions import NoCredentialsError, ReadTimeoutError
from msgspec.structs import replace

from oncebridge import Bridge, ConfigurationError, MissingExtra
from oncebridge.breaker import Open
from oncebridge.ledgers.findings import Level
from oncebridge.settings import load_settings
from oncebridge.settings.expressions import compiled
from oncebridge.settings.sinks.queue import QueueSettings
from oncebridge.sinks import make_sink
from oncebridge.sinks.batch_sender import BYTES_MAX, DestinationBusy, DestinationSilent, EntryDeferred, EntryRefused
from oncebridge.sinks.event_tree import NothingToSend
from oncebridge.sinks.promise import AT_LEAST_ONCE
from payloads import (
    ACW,
    CANARIES,
    OBSERVATIONS,
    ORG,
    OTHER_ORG,
    TIME_MS,
    detail,
    envelope,
    in_envelope,
    personal,
    presence,
    raw,
    source,
)
from sinks.doubles import FIFO_URL, QUEUE_URL, Amazon, named, queue_on, refusal


def events(number, start=0):
    """Make so many different events."""
    return [named(envelope(ACW, {"eventTime": TIME_MS + start + n})) for n in range(number)]


def entry_for(event, context, **settings):
    """Return the entry that an event becomes."""
    amazon = Amazon()
    queue_on(amazon, context, **settings)(event)
    ((entry,),) = amazon.calls
    return entry


def facts_of(entry):
    """Read the attributes of a message."""
    return {name: value["StringValue"] for name, value in entry["MessageAttributes"].items()}


# --- what is sent ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        raw(envelope(ACW, {"note": "ünïcode 🙂 \x7f"})),
        b' { "id":"1" , "detail-type":"a", "detail":{"ratio": 1.10, "big":12345678901234567890 }\n}',
        raw(detail(ACW)),
    ],
    ids=["envelope", "oddly written", "bare"],
)
def test_a_message_is_the_event_as_it_came(context, text):
    """The body is what arrived, byte for byte; what the bridge knows stands in attributes."""
    event = replace(named(text), token=1_767_225_600_000_001, attempt=3)
    entry = entry_for(event, context)
    assert entry["MessageBody"].encode() == text
    assert entry["MessageAttributes"] == {
        "oncebridge_key": {"DataType": "String", "StringValue": event.key},
        "oncebridge_topic": {"DataType": "String", "StringValue": event.topic},
        "oncebridge_token": {"DataType": "Number", "StringValue": "1767225600000001"},
        "oncebridge_attempt": {"DataType": "Number", "StringValue": "3"},
    }
    assert entry.keys() == {"Id", "MessageBody", "MessageAttributes"}


def test_characters_that_a_queue_refuses_are_escaped(context):
    """The two characters that JSON may hold and queues refuse are sent as escapes, which say the same."""
    delivery = envelope(ACW, {"note": "a\ufffeb\uffffc", "\uffff": 1})
    for settings in ({}, {"body": compiled("@")}):
        body = entry_for(named(delivery), context, **settings)["MessageBody"]
        assert not re.search("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", body)
        assert json.loads(body)["detail"] == delivery["detail"]


def test_an_attribute_is_one_line(context):
    """A topic from outside is sent without characters that queues refuse."""
    entry = entry_for(
        named(in_envelope({"eventId": "1"}, detail_type="a\x01\n\x1b\ufffe" + "x" * 200)),
        context,
    )
    topic = facts_of(entry)["oncebridge_topic"]
    assert topic == "a????" + "x" * 200


def test_a_body_by_an_expression(context):
    """An expression makes the body, and sees what the bridge knows beside the envelope."""
    body = compiled("{who: detail.eventBody.userId, key: oncebridge.key, at: oncebridge.time, topic: oncebridge.topic}")
    event = named(envelope(ACW))
    for one in (event, named(detail(ACW))):
        sent = json.loads(entry_for(one, context, body=body)["MessageBody"])
        assert sent == {
            "who": event.body["userId"],
            "key": one.key,
            "at": "2025-06-02T10:30:00.123Z",
            "topic": ACW,
        }


def test_an_expression_that_finds_nothing(context):
    """An event in which the expression finds nothing is a dead letter, and its neighbours are sent."""
    amazon = Amazon()
    sink = queue_on(amazon, context, body=compiled("detail.eventBody.wrapupCode"))
    ends = sink.send_many([*events(1), named(envelope(OBSERVATIONS)), *events(1, start=5)])
    assert [type(end) for end in ends] == [type(None), NothingToSend, type(None)]
    assert [len(call) for call in amazon.calls] == [2]


# --- FIFO -----------------------------------------------------------------------------------------------------


def test_a_fifo_queue_knows_events_by_their_key(context):
    """The same event has the same id at every attempt; two sinks to one queue are two effects."""
    event = events(1)[0]
    first, again = (entry_for(replace(event, attempt=n, token=n), context, queue=FIFO_URL) for n in (1, 2))
    other = entry_for(event, context, queue=FIFO_URL, name="board")
    assert first["MessageDeduplicationId"] == again["MessageDeduplicationId"] == f"{event.key}.q"
    assert other["MessageDeduplicationId"] == f"{event.key}.board"
    assert first["MessageGroupId"] == again["MessageGroupId"] == other["MessageGroupId"]


def test_a_group_is_what_must_stay_in_order(context):
    """States of one entity share a group, so do facts of one conversation; what has neither stands alone."""

    def group(delivery):
        return entry_for(named(delivery), context, queue=FIFO_URL)["MessageGroupId"]

    meal, busy = presence("MEAL", modified_ms=TIME_MS), presence("BUSY", modified_ms=TIME_MS + 5)
    assert group(meal) == group(busy) == named(meal).entity
    assert group(meal) != group(presence("MEAL", modified_ms=TIME_MS, user="another"))
    one, later = envelope(ACW), envelope(ACW, {"eventTime": TIME_MS + 1})
    assert group(one) == group(later) != named(one).key
    assert group(one) != group(envelope(ACW, {"conversationId": "another"}))
    assert group(one) != group(envelope(ACW, source=source(OTHER_ORG)))
    reading = envelope(OBSERVATIONS)
    assert group(reading) == named(reading).key


@pytest.mark.parametrize("delivery", personal(), ids=lambda delivery: delivery["detail-type"])
def test_ids_of_a_fifo_queue_hold_no_personal_data(context, delivery):
    """Group and deduplication id are digests, in characters and of a length that SQS takes."""
    entry = entry_for(named(delivery), context, queue=FIFO_URL, name="n" * 40)
    for name in ("MessageGroupId", "MessageDeduplicationId"):
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", entry[name])
        assert not [canary for canary in CANARIES.values() if canary in entry[name]]


# --- sizes ----------------------------------------------------------------------------------------------------


def test_sizes_are_counted_as_amazon_does(context):
    """Body and attributes count, names and types too, by their bytes; what fits to the last byte is sent."""
    entry = entry_for(named(envelope(ACW, {"note": "ü"})), context)
    counted = len(entry["MessageBody"].encode())
    for name, value in entry["MessageAttributes"].items():
        counted += len(f"{name}{value['DataType']}{value['StringValue']}".encode())
    room = BYTES_MAX - counted
    amazon = Amazon()
    ends = queue_on(amazon, context).send_many(
        [named(envelope(ACW, {"note": "ü" + "x" * more})) for more in (room + 1, room)] + events(1)
    )
    assert [type(end) for end in ends] == [EntryRefused, type(None), type(None)]
    assert str(ends[0]) == "it has 1,048,577 bytes, and queue clean takes no more than 1,048,576"
    assert [len(call) for call in amazon.calls] == [1, 1]


def test_large_events_share_calls_as_they_fit(context):
    """Ten events of 300 kB are four calls, in order."""
    large = [named(envelope(ACW, {"eventTime": TIME_MS + n, "note": "x" * 300_000})) for n in range(10)]
    amazon = Amazon()
    assert queue_on(amazon, context).send_many(large) == [None] * 10
    assert [len(call) for call in amazon.calls] == [3, 3, 3, 1]
    assert [facts_of(entry)["oncebridge_key"] for entry in amazon.taken] == [event.key for event in large]


def test_a_queue_that_takes_less(context):
    """Where a whole call is too long for a queue, its messages go one by one, and only the too large one is dead."""
    too_long = refusal("AWS.SimpleQueueService.BatchRequestTooLong")
    amazon = Amazon(too_long, None, {0: "InvalidParameterValue"}, None)
    ends = queue_on(amazon, context).send_many(events(3))
    assert [type(end) for end in ends] == [type(None), EntryRefused, type(None)]


# --- what Amazon may say --------------------------------------------------------------------------------------


def test_each_message_has_its_own_end(context):
    """Answers are matched by their ids, in whatever order they come."""
    codes = {0: "InvalidMessageContents", 4: "RequestThrottled", 5: "InternalError", 9: "Odd"}
    amazon = Amazon(codes)
    sent = events(10)
    ends = queue_on(amazon, context).send_many(sent)
    kinds = {at: type(end) for at, end in enumerate(ends) if end is not None}
    assert kinds == {0: EntryRefused, 4: DestinationBusy, 5: DestinationBusy, 9: EntryDeferred}
    assert [facts_of(entry)["oncebridge_key"] for entry in amazon.taken] == [
        event.key for at, event in enumerate(sent) if at not in codes
    ]


@pytest.mark.parametrize(
    ("cut", "missing"),
    [
        (lambda _, answer: {"Successful": answer["Successful"][:2]}, {0, 1}),
        (lambda _, answer: {"Failed": []}, {0, 1, 2, 3}),
        (lambda _, answer: {}, {0, 1, 2, 3}),
        (lambda _, answer: {"Successful": [{"Id": "7"}, *answer["Successful"][1:]]}, {3}),
    ],
    ids=["half", "nobody", "nothing", "a stranger"],
)
def test_what_the_answer_leaves_out_has_failed(context, cut, missing):
    """A message that the answer says nothing of is not taken for sent."""
    ends = queue_on(Amazon(cut), context).send_many(events(4))
    assert {at for at, end in enumerate(ends) if end is not None} == missing
    assert {str(end) for end in ends if end is not None} == {"queue clean answered nothing for it"}


def test_a_failure_outweighs_a_success(context):
    """A message that is in both lists of an answer is not taken for sent."""
    both = {"Successful": [{"Id": "0"}], "Failed": [{"Id": "0", "Code": "InternalError"}]}
    assert isinstance(queue_on(Amazon(lambda *_: both), context).send_many(events(1))[0], DestinationBusy)


def test_without_an_answer_all_have_failed(context):
    """After a timeout every message is to be sent again, under the same ids."""
    amazon = Amazon(ReadTimeoutError(endpoint_url="x"))
    sink = queue_on(amazon, context, queue=FIFO_URL)
    sent = events(3)
    assert [type(end) for end in sink.send_many(sent)] == [DestinationSilent] * 3
    assert sink.send_many([replace(event, attempt=2) for event in sent]) == [None] * 3
    ids = [[entry["MessageDeduplicationId"] for entry in call] for call in amazon.calls]
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    "code",
    [
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "AccessDenied",
        "KMS.AccessDeniedException",
        "KmsDisabled",
        "InvalidClientTokenId",
    ],
)
def test_a_closed_queue_costs_no_attempts(context, code):
    """A missing queue, rights and keys are nobody's event's fault: that was no attempt."""
    amazon = Amazon(*[refusal(code)] * 50)
    sink = queue_on(amazon, context)
    ends = [end for _ in range(5) for end in sink.send_many(events(1))]
    assert [type(end) for end in ends] == [Open] * 5
    assert "queue clean answered" in ends[0].last
    assert len(amazon.calls) == 3


def test_throttling_of_a_key_is_waited_out(context):
    """Where the key's service is slow, events come again."""
    ends = queue_on(Amazon(refusal("KMS.ThrottlingException"), refusal("KmsThrottled")), context).send_many(events(1))
    assert isinstance(ends[0], DestinationBusy)


def test_queues_have_breakers_of_their_own(context):
    """Trouble at one queue keeps nothing from another."""
    sick = queue_on(Amazon(*[ReadTimeoutError(endpoint_url="x")] * 3), context)
    for _ in range(3):
        sick.send_many(events(1))
    assert isinstance(sick.send_many(events(1))[0], Open)
    assert queue_on(Amazon(), context, queue=FIFO_URL).send_many(events(1)) == [None]


def test_one_event_raises_what_it_failed_with(context):
    """Called with one event a sink raises what that failed with, as a handler does."""
    sink = queue_on(Amazon({0: "InvalidMessageContents"}), context)
    with pytest.raises(EntryRefused, match="queue clean answered InvalidMessageContents"):
        sink(*events(1))
    sink(*events(1))


def test_words_hold_nothing_of_an_event(context):
    """Errors and what is shown of a sink name neither the event nor the account."""
    amazon = Amazon({0: "Invalid " + CANARIES["name"]}, refusal("AccessDenied", message=CANARIES["name"]))
    sink = queue_on(amazon, context)
    deliveries = [named(delivery) for delivery in personal()]
    shown = repr(sink) + " ".join(str(end) for end in sink.send_many(deliveries) + sink.send_many(deliveries))
    assert not [name for name, canary in CANARIES.items() if canary in shown]
    assert "123456789012" not in shown
    assert ORG not in shown


# --- settings and the rest ------------------------------------------------------------------------------------


def test_the_promise(context):
    """Both kinds of queue promise at least once, and a FIFO queue says what its five minutes are worth."""
    plain, fifo = (queue_on(Amazon(), context, queue=url).promise for url in (QUEUE_URL, FIFO_URL))
    assert plain.level == fifo.level == AT_LEAST_ONCE
    assert "five minutes" in fifo.why
    assert "five minutes" not in plain.why
    assert "oncebridge_key" in plain.why
    assert "oncebridge_key" in fifo.why


@pytest.mark.parametrize(
    ("missing", "level", "words"),
    [
        (False, Level.GOOD, "is there"),
        ({"MaximumMessageSize": "262144"}, Level.WARNING, "up to 262,144 bytes"),
        (refusal("AWS.SimpleQueueService.NonExistentQueue"), Level.WRONG, "NonExistentQueue"),
        (NoCredentialsError(), Level.WRONG, "NoCredentialsError"),
    ],
)
def test_an_examination_tells_of_a_missing_queue(context, missing, level, words):
    """`doctor` says whether the queue is there, and whether it takes the largest events."""
    amazon = Amazon()
    amazon.missing = missing
    (finding,) = queue_on(amazon, context).examine()
    assert (finding.level, finding.subject) == (level, "queue")
    assert words in finding.found


def test_a_queue_that_must_not_be_looked_at(context):
    """A worker that may only send needs no other right: a missing queue would be noticed at the first event."""
    amazon = Amazon()
    amazon.missing = refusal("AccessDenied")
    assert not [*queue_on(amazon, context).examine()]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('queue = "events"', "sink q: queue: expected a queue's URL"),
        ('queue = "https://sqs.eu-central-1.amazonaws.com/"', "expected a queue's URL"),
        ('queue = "https://sqs.eu-central-1.amazonaws.com/1/"', "expected a queue's URL"),
        ('queue = "https://key:secret@sqs.eu-central-1.amazonaws.com/1/events"', "expected a queue's URL"),
        ('queue = "https://[1/1/events"', "expected a queue's URL"),
        ('queue = "arn:aws:sqs:eu-central-1:1:events"', "expected a queue's URL"),
        (f'queue = "{QUEUE_URL}"\nbody = "detail.["', "[sinks.q] body: expected a JMESPath expression"),
        (f'queue = "{QUEUE_URL}"\nboddy = "detail"', "did you mean body?"),
    ],
)
def test_wrong_settings_are_refused(empty_workplace, text, words):
    """Errors name the sink, the field and the fix, and never show what may be a secret."""
    (empty_workplace / "oncebridge.toml").write_text(f"[sinks.q]\n{text}\n")
    with pytest.raises(ConfigurationError) as caught:
        Bridge("memory://", settings=load_settings())
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_package_is_named(context):
    """Without boto3 the sink is refused with the line that installs it."""
    with (
        mock.patch("oncebridge.amazon.find_spec", return_value=None),
        pytest.raises(MissingExtra, match=r"sink q: queue: needs boto3; .*pip install 'oncebridge\[aws\]'"),
    ):
        make_sink(QueueSettings(name="q", queue=QUEUE_URL), context)
