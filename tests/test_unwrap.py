"""Every shape in which AWS hands out events holds the same delivery."""

from __future__ import annotations

import base64
import json

import pytest

from oncebridge.intake.unwrap import unwrap

EVENT = {
    "version": "0",
    "id": "0c1d9d3e-0000-1111-5555-000000000001",
    "detail-type": "v2.users.{id}.presence",
    "source": "aws.partner/genesys.com/cloud/org-1/suffix",
    "detail": {
        "topicName": "v2.users.user-1.presence",
        "eventBody": {"primary": True, "Records": [], "Message": "a field called like a wrapper's"},
        "timestamp": "2026-03-02T08:00:00.000Z",
    },
}
TEXT = json.dumps(EVENT)
BASE64 = base64.b64encode(TEXT.encode()).decode()
NOTIFICATION = json.dumps({"Type": "Notification", "MessageId": "n", "Message": TEXT})
WITHOUT_ID = {name: value for name, value in EVENT.items() if name != "id"}

SHAPES = {
    "EventBridge direct": EVENT,
    "queue": {"Records": [{"messageId": "m", "eventSource": "aws:sqs", "body": TEXT}]},
    "queue behind a topic": {"Records": [{"messageId": "m", "eventSource": "aws:sqs", "body": NOTIFICATION}]},
    "topic": {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": TEXT}}]},
    "Kinesis": {"Records": [{"eventSource": "aws:kinesis", "kinesis": {"data": BASE64}}]},
    "Firehose": {"invocationId": "i", "records": [{"recordId": "r", "data": BASE64}]},
    "Pipes": [{"messageId": "m", "body": TEXT}],
    "records of JSON text": {"Records": [TEXT]},
    "function URL": {"version": "2.0", "requestContext": {"http": {}}, "body": TEXT, "isBase64Encoded": False},
    "API Gateway, base64": {"httpMethod": "POST", "requestContext": {}, "body": BASE64, "isBase64Encoded": True},
    "failure destination": {"requestContext": {"condition": "RetriesExhausted"}, "requestPayload": EVENT},
    "custom bus, in a batch": [EVENT],
    "custom bus, with metadata": {
        "Data": WITHOUT_ID,
        "Metadata": {},
        "SystemMetadata": {"aws:EventId": EVENT["id"], "aws:DeliveryType": "LIVE"},
    },
    "failed call of a queue's function": {"requestPayload": {"Records": [{"messageId": "m", "body": NOTIFICATION}]}},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_holds_the_event(shape):
    """Whatever AWS wraps around an event, the delivery inside is the same."""
    (delivery,) = unwrap(json.dumps(SHAPES[shape]).encode())
    assert json.loads(delivery) == EVENT


def test_a_batch_holds_its_deliveries_in_order():
    """A wrapper with several records holds as many deliveries, in their order."""
    records = [{"messageId": str(n), "body": json.dumps({**EVENT, "id": f"e{n}"})} for n in range(5)]
    assert [json.loads(raw)["id"] for raw in unwrap(json.dumps({"Records": records}).encode())] == [
        f"e{n}" for n in range(5)
    ]


def test_numbers_stay_as_written():
    """What stood as 1.10 inside a wrapper that is no text comes out as 1.10: it is part of the identity."""
    text = TEXT.replace('"primary": true', '"primary": 1.10')
    (delivery,) = unwrap(b'{"requestPayload": ' + text.encode() + b"}")
    assert b"1.10" in delivery


def test_a_bad_record_leaves_its_neighbours_alone():
    """A record that holds no JSON is a delivery of its own, to be refused by itself."""
    records = [{"messageId": "1", "body": TEXT}, {"messageId": "2", "body": "hello"}, {"messageId": "3", "body": TEXT}]
    first, second, third = unwrap(json.dumps({"Records": records}).encode())
    assert (json.loads(first), second, json.loads(third)) == (EVENT, b"hello", EVENT)


@pytest.mark.parametrize(
    "raw", [b"", b"[", b"[]", b'{"Records": []}', b'{"Records": 3}', b'{"requestContext": {}}', b'"Records"', b"\xff"]
)
def test_what_holds_nothing_is_a_delivery_itself(raw):
    """Nothing disappears: a text without deliveries is one, unreadable as it may be."""
    assert unwrap(raw) == [raw]


def test_wrappers_in_wrappers_end():
    """A text wrapped a hundred times over is not followed for ever."""
    raw = TEXT
    for _ in range(10):
        raw = json.dumps([raw])
    assert len(unwrap(raw.encode())) == 1
