"""Every shape in which AWS hands out events holds the same delivery."""

import json
import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given

from oncebridge import Bridge, Settings
from oncebridge.sources.file import FileRun, read_deliveries
from oncebridge.sources.unwrap import NESTING_MAX, unwrap, unwrap_parsed
from payloads import PRESENCE, envelope
from shapes import (
    balancer_request,
    encoded,
    every_shape,
    gateway_request,
    given_up,
    message,
    not_transformed,
    piped_stream_record,
    records,
    signed,
    stream_record,
    topic_record,
    transformation,
    trees,
    url_request,
    with_metadata,
)

#: An event with fields that are called like a wrapper's.
EVENT = envelope(
    PRESENCE, {"Records": [], "records": [{"data": ""}], "Message": "hello", "messageId": "m", "body": "b"}
)
SHAPES = every_shape(EVENT)
TEXT = json.dumps(EVENT)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_holds_the_event(shape):
    """Whatever AWS wraps around an event, the delivery inside is the same."""
    (delivery,) = unwrap(json.dumps(SHAPES[shape]).encode())
    assert json.loads(delivery) == EVENT


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_holds_the_event_when_it_was_parsed_already(shape):
    """What Lambda has parsed is taken apart like text."""
    (delivery,) = unwrap_parsed(json.loads(json.dumps(SHAPES[shape])))
    assert (json.loads(delivery) if isinstance(delivery, bytes) else delivery) == EVENT


#: What only AWS writes, of each shape: without any one of these it is no wrapper.
WRITTEN_BY_AWS = {
    "message": (message(TEXT), ["receiptHandle", "md5OfBody", "eventSource", "body"]),
    "stream": (stream_record(TEXT), ["kinesis", "eventSource", "eventID", "eventSourceARN"]),
    "piped stream": (
        piped_stream_record(TEXT),
        ["data", "sequenceNumber", "partitionKey", "eventSource", "eventID", "eventSourceARN"],
    ),
    "topic": (topic_record(TEXT), ["EventSource", "EventSubscriptionArn", "Sns"]),
    "notification": (
        signed(TEXT),
        ["Type", "MessageId", "TopicArn", "Timestamp", "SignatureVersion", "Signature"],
    ),
    "destination": (given_up(EVENT), ["version", "timestamp", "requestContext", "requestPayload"]),
    "Firehose": (transformation(TEXT), ["invocationId", "deliveryStreamArn", "records"]),
    "Firehose's bucket": (
        not_transformed(TEXT),
        ["attemptsMade", "arrivalTimestamp", "attemptEndingTimestamp", "errorCode", "rawData"],
    ),
    "custom bus": (with_metadata(EVENT), ["SystemMetadata", "Data"]),
    "function URL": (url_request(TEXT), ["version", "routeKey", "rawPath", "requestContext", "body"]),
    "API Gateway": (gateway_request(TEXT), ["resource", "path", "httpMethod", "requestContext", "body"]),
    "load balancer": (balancer_request(TEXT), ["path", "httpMethod", "requestContext", "body"]),
    "records": ({**records(message(TEXT)), "window": {}}, ["Records"]),
}


@pytest.mark.parametrize("shape", WRITTEN_BY_AWS)
def test_a_wrapper_needs_all_that_aws_writes(shape):
    """A wrapper is one with everything by which it is known, and none without any single one of that."""
    whole, fields = WRITTEN_BY_AWS[shape]
    for tree in (whole, [whole], [json.dumps(whole)]):
        (delivery,) = unwrap(json.dumps(tree).encode())
        assert json.loads(delivery) == EVENT
    for field in fields:
        lacking = {name: value for name, value in whole.items() if name != field}
        assert unwrap_parsed(lacking) == [lacking]
        assert [json.loads(raw) for raw in unwrap(json.dumps(lacking).encode())] == [lacking]


SAYING = [
    *("detail", "detail-type", "eventBody", "topicName", "eventType", "type"),
    *("conversationId", "conversation_id", "interactionId", "eventId", "event_id"),
]


@pytest.mark.parametrize("shape", WRITTEN_BY_AWS)
@pytest.mark.parametrize("says", SAYING)
def test_what_says_what_it_is_is_never_looked_into(shape, says):
    """An object that says itself what it is holds no other event, whatever stands in it."""
    tree = {**WRITTEN_BY_AWS[shape][0], says: "chat"}
    assert unwrap_parsed(tree) == [tree]
    assert [json.loads(raw) for raw in unwrap(json.dumps(tree).encode())] == [tree]


#: What a customer types into a chat, as programs put it beside their own fields.
TYPED = {
    "message": {"messageId": "m-1", "body": TEXT},
    "message of a queue": {"messageId": "m-1", "body": TEXT, "eventSource": "aws:sqs"},
    "notification": {"Type": "Notification", "Message": TEXT},
    "payload": {"requestPayload": TEXT},
    "records": {"Records": [TEXT], "status": "open"},
    "data": {"records": [{"data": encoded(TEXT)}]},
    "raw data": {"rawData": encoded(TEXT), "errorCode": "none"},
    "stream": {"kinesis": {"data": encoded(TEXT)}},
    "flat stream": {"data": encoded(TEXT), "sequenceNumber": "1", "partitionKey": "k"},
    "topic": {"Sns": {"Message": TEXT}},
    "metadata": {"SystemMetadata": {}, "Data": EVENT},
    "request": {"requestContext": {}, "body": TEXT},
    "method": {"httpMethod": "POST", "body": TEXT},
}


@pytest.mark.parametrize("typed", TYPED)
def test_typed_text_is_no_event(typed):
    """What a customer typed stays content: it becomes no event, and the event that holds it is the one processed."""
    bridge, got = Bridge("memory://", settings=Settings(allowed_sources=("aws.partner/*", ""))), []
    bridge.on("*")(got.append)
    bare, named = TYPED[typed], {"eventType": "chat.message", "eventId": "e-1", **TYPED[typed]}
    with bridge:
        bridge.lambda_handler(bare, None)
        bridge.lambda_handler(named, None)
        bridge.lambda_handler(records(message(json.dumps(bare)), message(json.dumps(named))), None)
    assert [(event.topic, event.body) for event in got] == [("chat.message", named)]


def test_a_captured_file_may_hold_every_shape(tmp_path):
    """Of a file with the same event in every shape, one delivery is processed, and the others are its duplicates."""
    (tmp_path / "captured").write_text("\n".join(json.dumps(shape) for shape in SHAPES.values()))
    bridge, got = Bridge("memory://"), []
    bridge.on("*")(got.append)
    with bridge:
        flow = bridge.open()
        deliveries = read_deliveries([str(tmp_path / "captured")], threading.Event())
        results = [result for _, result in FileRun(flow, bridge.books).results(deliveries)]
    assert [result.verdict for result in results] == ["fresh"] + ["redelivery"] * (len(SHAPES) - 1)
    assert len(got) == 1


@pytest.mark.parametrize("holding", [message, stream_record, piped_stream_record, not_transformed])
def test_a_text_is_passed_on_byte_for_byte(holding):
    """What a wrapper holds as text comes out as it was written: white space, escapes and digits are part of it."""
    text = '{ "detail":{"n":1.10, "big":100000000000000000000000, "caf\\u00e9":"\\/"} }\n'
    for wrapper in (holding(text), [holding(text)], records(holding(text))):
        assert unwrap(json.dumps(wrapper).encode()) == [text.encode()]
        assert unwrap_parsed(wrapper) == [text.encode()]


def test_a_batch_holds_its_deliveries_in_order():
    """A wrapper with several records holds as many deliveries, in their order."""
    batch = records(*[message(json.dumps({**EVENT, "id": f"e{n}"})) for n in range(5)])
    assert [json.loads(raw)["id"] for raw in unwrap(json.dumps(batch).encode())] == [f"e{n}" for n in range(5)]


def test_elements_of_an_array_come_out_byte_for_byte():
    """What stands in an array is handed on as it was written, events and everything else."""
    elements = [
        b'{ "detail":{"n":1.10,\t"big":100000000000000000000000} }',
        b'{"detail" : "caf\\u00e9 \\/"}',
        b"1.0",
        b"{}",
    ]
    assert unwrap(b" [" + b" ,\n".join(elements) + b"] ") == elements


@pytest.mark.parametrize(
    "bad", [b'{"detail":1,"detail":2}', b'{"detail":"\xff"}', b'{"Records":[],"Records":[3]}', b"1e999"]
)
def test_a_bad_element_leaves_its_neighbours_alone(bad):
    """An element that cannot be read is refused by itself, as long as it is plain where it ends."""
    assert unwrap(b"[" + TEXT.encode() + b"," + bad + b"," + TEXT.encode() + b"]") == [
        TEXT.encode(),
        bad,
        TEXT.encode(),
    ]


@pytest.mark.parametrize("broken", [b"[%s", b"[%s,]", b"[%s %s]", b"[%s]]", b'["%s]', b"[%s, nul]", b"[%s, \xff]"])
def test_a_broken_array_is_one_delivery(broken):
    """Where it is not plain what stands in an array, all of it is kept for somebody to look at."""
    data = broken.replace(b"%s", TEXT.encode())
    assert unwrap(data) == [data]


def test_an_array_that_is_too_large_is_one_delivery(monkeypatch):
    """Up to the limit it is taken apart."""
    data = f"[{TEXT}, {TEXT}]".encode()
    monkeypatch.setattr("oncebridge.sources.unwrap.WRAPPER_BYTES_MAX", len(data))
    assert unwrap(data) == [TEXT.encode()] * 2
    assert unwrap(data + b" ") == [data + b" "]


def test_numbers_stay_as_written():
    """What stood as 1.10 inside a wrapper that is no text comes out as 1.10: it is part of the identity."""
    text = TEXT.replace('"primary": true', '"primary": 1.10')
    wrapper = json.dumps(given_up(["@"])).replace('"@"', text)
    (delivery,) = unwrap(wrapper.encode())
    assert b"1.10" in delivery


@pytest.mark.parametrize("bad", ["hello", "", "\x00", "[1", '"text"', "3"])
def test_a_bad_record_leaves_its_neighbours_alone(bad):
    """A record that holds no event is a delivery of its own, to be refused by itself."""
    batch = records(message(TEXT), message(bad), message(TEXT))
    first, second, third = unwrap_parsed(batch)
    assert (json.loads(first), second, json.loads(third)) == (EVENT, bad.encode(), EVENT)


def test_a_record_of_firehose_without_data_leaves_its_neighbours_alone():
    """Firehose's frame says what it is, whatever one of its records looks like."""
    batch = transformation(TEXT, names=["a"])
    batch["records"] += [{"recordId": "b"}, None]
    first, second, third = unwrap_parsed(batch)
    assert (json.loads(first), second, third) == (EVENT, {"recordId": "b"}, None)


def test_an_empty_message_does_not_end_a_file(tmp_path):
    """A delivery without a single byte is a dead letter like other unreadable ones, and what follows it is read."""
    lines = [json.dumps(records(message(""), message(TEXT))), TEXT]
    (tmp_path / "captured").write_text("\n".join(lines))
    bridge = Bridge("memory://")
    bridge.on("*")(lambda event: None)
    with bridge:
        deliveries = read_deliveries([str(tmp_path / "captured")], threading.Event())
        run = FileRun(bridge.open(), bridge.books)
        assert [result.column for _, result in run.results(deliveries)] == ["dead", "processed", "redelivery"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[",
        b"[]",
        b'{"Records": []}',
        b'{"Records": 3}',
        b'{"requestContext": {}}',
        b'{"requestContext": {}, "body": null}',
        b'{"messageId": "m", "body": {"type": "no message of a queue: its body is no text"}}',
        b'{"data": "hello", "sequenceNumber": 7, "partitionKey": "no record of a stream: that has texts only"}',
        b'{"records": [{"data": "AAAA"}, 3]}',
        b'"Records"',
        b"\xff",
    ],
)
def test_what_holds_nothing_is_a_delivery_itself(raw):
    """Nothing disappears: a text without deliveries is one, unreadable as it may be."""
    assert unwrap(raw) == [raw]


def test_wrappers_in_wrappers_end():
    """A text wrapped over and over is not followed for ever."""
    text, tree = TEXT, EVENT
    for _ in range(NESTING_MAX):
        text, tree = json.dumps([text]), [tree]
    assert [json.loads(raw) for raw in unwrap(text.encode())] == unwrap_parsed(tree) == [EVENT]
    assert unwrap(json.dumps([text]).encode()) == [json.dumps([TEXT]).encode()]
    assert unwrap_parsed([tree]) == [[EVENT]]


@given(st.lists(trees(TEXT), min_size=1, max_size=4), st.sampled_from([None, 0, 3]), st.booleans())
def test_text_and_parsed_json_hold_the_same(tree, indent, ascii_only):
    """Any JSON holds at least one delivery, and the same ones whether or not somebody has parsed it before."""
    parsed = unwrap_parsed(tree)
    assert parsed
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)
    for raw, same in zip(unwrap(text.encode()), parsed, strict=True):
        assert raw == same if isinstance(same, bytes) else json.loads(raw) == same


@given(trees(TEXT))
def test_no_record_hides_its_neighbour(tree):
    """Whatever stands beside it, an event comes out."""
    assert TEXT.encode() in unwrap_parsed({"Records": [tree, TEXT]})
    assert TEXT.encode() in unwrap_parsed({"Records": [tree, message(TEXT)], "window": {}})
    assert TEXT.encode() in unwrap_parsed([TEXT, tree])


@given(st.binary(max_size=50))
def test_bytes_that_are_no_text_are_a_delivery(data):
    """Base64 may hold anything."""
    for wrapper in (stream_record(data), piped_stream_record(data), not_transformed(data)):
        (delivery,) = unwrap_parsed(wrapper)
        assert delivery == data or data.lstrip().startswith(b"[")
