"""Every shape in which AWS hands out events holds the same delivery."""

import json
import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given

from oncebridge import Bridge
from oncebridge.intake.file import FileRun, read_deliveries
from oncebridge.intake.unwrap import NESTING_MAX, unwrap, unwrap_parsed
from payloads import PRESENCE, envelope
from shapes import encoded, every_shape, message, not_transformed, piped_stream_record, records, stream_record, trees

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


@pytest.mark.parametrize(
    "wrapper",
    [
        {"Records": [EVENT]},
        {"records": [{"data": encoded(TEXT)}]},
        {"rawData": encoded(TEXT), "errorCode": "Lambda.FunctionError"},
        {"requestPayload": EVENT},
        {"requestContext": {}, "body": TEXT},
        {"httpMethod": "POST", "body": TEXT},
        {"messageId": "m", "body": TEXT},
        {"eventSource": "aws:sqs", "body": TEXT},
        {"Type": "Notification", "Message": TEXT},
        {"Sns": {"Message": TEXT}},
        {"kinesis": {"data": encoded(TEXT)}},
        {"data": encoded(TEXT), "sequenceNumber": "1", "partitionKey": "k"},
        {"SystemMetadata": {}, "Data": EVENT},
    ],
)
def test_a_wrapper_is_known_by_little(wrapper):
    """What people cut out of a log to try it again holds the event still."""
    for tree in (wrapper, [wrapper], [json.dumps(wrapper)]):
        (delivery,) = unwrap(json.dumps(tree).encode())
        assert json.loads(delivery) == EVENT
        (parsed,) = unwrap_parsed(tree)
        assert (json.loads(parsed) if isinstance(parsed, bytes) else parsed) == EVENT


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


def test_numbers_stay_as_written():
    """What stood as 1.10 inside a wrapper that is no text comes out as 1.10: it is part of the identity."""
    text = TEXT.replace('"primary": true', '"primary": 1.10')
    (delivery,) = unwrap(b'{"requestPayload": [' + text.encode() + b"]}")
    assert b"1.10" in delivery


@pytest.mark.parametrize("bad", ["hello", "", "\x00", "[1", '"text"', "3"])
def test_a_bad_record_leaves_its_neighbours_alone(bad):
    """A record that holds no event is a delivery of its own, to be refused by itself."""
    batch = records(message(TEXT), message(bad), message(TEXT))
    first, second, third = unwrap_parsed(batch)
    assert (json.loads(first), second, json.loads(third)) == (EVENT, bad.encode(), EVENT)


def test_a_record_of_firehose_without_data_leaves_its_neighbours_alone():
    """Firehose's frame says what it is, whatever one of its records looks like."""
    batch = {"invocationId": "i", "records": [{"recordId": "a", "data": encoded(TEXT)}, {"recordId": "b"}, None]}
    first, second, third = unwrap_parsed(batch)
    assert (json.loads(first), second, third) == (EVENT, {"recordId": "b"}, None)


def test_an_empty_message_does_not_end_a_file(tmp_path):
    """A delivery without a single byte is a dead letter like other unreadable ones, and what follows it is read."""
    lines = [json.dumps(records(message(""), message(TEXT))), TEXT]
    (tmp_path / "captured").write_text("\n".join(lines))
    bridge = Bridge("memory://")
    with bridge:
        deliveries = read_deliveries([str(tmp_path / "captured")], threading.Event())
        run = FileRun(bridge.open(), bridge.books)
        assert [result.column for _, result in run.results(deliveries)] == ["dead", "processed", "processed"]


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


@given(trees(TEXT))
def test_text_and_parsed_json_hold_the_same(tree):
    """Any JSON holds at least one delivery, and the same ones whether or not somebody has parsed it before."""
    parsed = unwrap_parsed([tree])
    assert parsed
    for raw, same in zip(unwrap(json.dumps([tree]).encode()), parsed, strict=True):
        assert raw == same if isinstance(same, bytes) else json.loads(raw) == same


@given(trees(TEXT))
def test_no_record_hides_its_neighbour(tree):
    """Whatever stands beside it, an event comes out."""
    assert TEXT.encode() in unwrap_parsed({"Records": [tree, TEXT]})
    assert TEXT.encode() in unwrap_parsed([TEXT, tree])


@given(st.binary(max_size=50))
def test_bytes_that_are_no_text_are_a_delivery(data):
    """Base64 may hold anything."""
    for wrapper in (stream_record(data), piped_stream_record(data), not_transformed(data)):
        (delivery,) = unwrap_parsed(wrapper)
        assert delivery == data or data.lstrip().startswith(b"[")
