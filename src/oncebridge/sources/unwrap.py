"""Unwraps every shape in which AWS hands out events into deliveries: pure, by shape alone.

Wrappers nest: a queue's record may hold a topic's notification, which holds the envelope. Anything that is no
wrapper is a delivery; whether it is readable is for the flow to decide.

A text inside an object may be anything that a customer typed. So an object is a wrapper only with the fields that only
AWS writes, all of them, and never if its own fields mark it as an event. docs/aws.md lists them.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.errors import Unreadable
from oncebridge.strict_json import CONTAINERS_MAX, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WRAPPER_BYTES_MAX: Final = 16 * 1_048_576  # a whole batch for Lambda, escaped twice
WRAPPER_CONTAINERS_MAX: Final = 16 * CONTAINERS_MAX
NESTING_MAX: Final = 8  # a wrapper in a wrapper in a wrapper is real; more is an attack

#: Without one of these a text is no wrapper, which saves parsing it.
MARKS: Final = (
    b'"Records"', b'"deliveryStreamArn"', b'"rawData"', b'"requestPayload"', b'"requestContext"', b'"aws:sqs"',
    b'"aws:kinesis"', b'"aws:sns"', b'"TopicArn"', b'"SystemMetadata"',
)  # fmt: skip

_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode


def unwrap(data: bytes, most: int | None = None) -> list[bytes]:
    """Return the deliveries in a text, or as many as wanted; the text itself if it is no wrapper."""
    if not _is_array(data) and not _may_be_a_wrapper(data):
        return [data]  # nearly always
    return list(islice(_from_text(data, NESTING_MAX), most))


def unwrap_parsed(tree: Any, most: int | None = None) -> list[Any]:
    """Return the deliveries in parsed JSON; texts in it come out byte for byte."""
    return list(islice(_from_part(tree, NESTING_MAX, _as_it_is), most))


def is_event(tree: dict[str, Any]) -> bool:
    """Return whether an object's own fields mark it as an event, whatever else it may look like."""
    return not SAYING.isdisjoint(tree)


def _is_array(data: bytes) -> bool:
    return data.lstrip().startswith(b"[")


def _from_text(data: bytes, nesting: int) -> Iterator[Any]:
    if nesting and _is_array(data):
        yield from _from_array(data, nesting)
        return
    inner = None
    if nesting and _may_be_a_wrapper(data):
        with suppress(Unreadable):
            # With numbers as written: the content must keep its identity.
            _, tree = read_json(data, bytes_max=WRAPPER_BYTES_MAX, containers_max=WRAPPER_CONTAINERS_MAX)
            inner = _inner(tree)
    if inner is None:
        yield data
        return
    for part in inner:
        yield from _from_part(part, nesting - 1, msgspec.json.encode)


_ABSENT: Final = msgspec.Raw()


class _Marks(msgspec.Struct, gc=False):
    """The fields that mark an event; the rest is skipped."""

    detail: msgspec.Raw = _ABSENT
    eventBody: msgspec.Raw = _ABSENT  # noqa: N815 - as Genesys writes it


_event_marks: Final = msgspec.json.Decoder(_Marks).decode


def marked_as_event(data: bytes) -> bool:
    """Return whether a text is an object with a field that marks an event; msgspec's error if it is no object."""
    marks = _event_marks(data)
    return marks.detail is not _ABSENT or marks.eventBody is not _ABSENT


def _may_be_a_wrapper(data: bytes) -> bool:
    """Return whether a text is worth parsing: nearly every one is clearly an event, and many are no JSON."""
    try:
        return not marked_as_event(data) and any(mark in data for mark in MARKS)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False


def _from_array(data: bytes, nesting: int) -> Iterator[Any]:
    """Take an array apart byte for byte, which is many times faster than parsing and writing all of it."""
    elements = elements_of(data)
    if not elements:
        yield data
    for text in elements:
        yield from _from_text(text, nesting - 1)


def elements_of(data: bytes) -> list[bytes]:
    """Return the elements of an array as they are written, texts without their quotes; none if it is broken."""
    if len(data) > WRAPPER_BYTES_MAX:
        return []
    try:
        return [text_of(bytes(element)) for element in _elements(data)]
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return []


def text_of(value: bytes) -> bytes:
    """Return the text of a JSON text; any other value as it is."""
    if value.startswith(b'"'):
        with suppress(msgspec.MsgspecError, ValueError):  # else it is refused with a reason later
            return _text(value).encode()
    return value


def _from_part(part: Any, nesting: int, write: Callable[[Any], Any]) -> Iterator[Any]:
    if isinstance(part, str):
        try:
            part = part.encode()
        except UnicodeEncodeError:  # half of a surrogate pair: refused with a reason later
            yield part
            return
    if isinstance(part, bytes):
        yield from _from_text(part, nesting)
        return
    inner = _inner(part) if nesting else None
    if inner is None:
        yield write(part)
        return
    for inner_part in inner:
        yield from _from_part(inner_part, nesting - 1, write)


def _as_it_is(tree: Any) -> Any:
    return tree


def _inner(tree: Any) -> list[Any] | None:
    """Return the content of a wrapper; None if it is no wrapper, or empty."""
    if isinstance(tree, list):
        return tree or None  # Pipes, and buses that deliver in batches
    return content_of(tree) if isinstance(tree, dict) else None


def content_of(tree: dict[str, Any]) -> list[Any] | None:
    """Return the content of an object that is a wrapper; None if it is none, or empty."""
    if is_event(tree):
        return None
    return next((held for held in (shape(tree) for shape in SHAPES) if held), None)


# --- each shape, by what only AWS writes ------------------------------------------------------------------------


def batch_of(tree: dict[str, Any]) -> list[Any] | None:
    """Return the records of a batch: of `Records` alone, or with one among them that AWS wrote."""
    records = tree.get("Records")
    if not isinstance(records, list):
        return None
    return records if len(tree) == 1 or any(from_batch(record) is not record for record in records) else None


def _records(tree: dict[str, Any]) -> list[Any] | None:
    records = batch_of(tree)
    return None if records is None else [from_batch(record) for record in records]


def from_batch(record: Any) -> Any:
    """Return the content of a record of a batch, recognised by its source alone; the record itself if it has none."""
    if not isinstance(record, dict) or is_event(record):
        return record
    stream, topic = record.get("kinesis"), record.get("Sns")
    if is_of(record, "aws:sqs"):
        return record["body"] if isinstance(record.get("body"), str) else record
    if is_of(record, "aws:kinesis"):
        return decoded(stream["data"]) if isinstance(stream, dict) and has_texts(stream, "data") else record
    if record.get("EventSource") == "aws:sns":
        return topic["Message"] if isinstance(topic, dict) and has_texts(topic, "Message") else record
    return record


def is_of(record: dict[str, Any], source: str) -> bool:
    """Return whether a record names this source."""
    return bool(record.get("eventSource") == source)


def _firehose_records(tree: dict[str, Any]) -> list[Any] | None:
    return [firehose_data(record) for record in tree["records"]] if is_firehose(tree) else None


def is_firehose(tree: dict[str, Any]) -> bool:
    """Return whether an object is a batch that Firehose wants to have transformed."""
    named = has_texts(tree, "invocationId") and _is_arn(tree.get("deliveryStreamArn"), "firehose")
    return named and isinstance(tree.get("records"), list)


def firehose_data(record: Any) -> Any:
    """Return the content of a record of Firehose; the record itself if it has none."""
    return decoded(record["data"]) if isinstance(record, dict) and "data" in record else record


def _firehose_failure(tree: dict[str, Any]) -> list[Any] | None:
    """Recognise a record that Firehose could not have processed, as it leaves it in a bucket."""
    counted = all(
        type(tree.get(name)) is int for name in ("attemptsMade", "arrivalTimestamp", "attemptEndingTimestamp")
    )
    return [decoded(tree["rawData"])] if counted and has_texts(tree, "rawData", "errorCode") else None


def _failure_destination(tree: dict[str, Any]) -> list[Any] | None:
    """Recognise what Lambda sends to a destination of a function's invocations."""
    context = tree.get("requestContext")
    if not isinstance(context, dict) or not has_texts(tree, "version", "timestamp"):
        return None
    named = has_texts(context, "requestId", "condition") and _is_arn(context.get("functionArn"), "lambda")
    return [tree["requestPayload"]] if named and "requestPayload" in tree else None


def _message(tree: dict[str, Any]) -> list[Any] | None:
    """Recognise a message of SQS, whether the queue's own trigger or a pipe delivers it."""
    return [tree["body"]] if is_of(tree, "aws:sqs") and has_texts(tree, "receiptHandle", "md5OfBody", "body") else None


def _stream_record(tree: dict[str, Any]) -> list[Any] | None:
    """Recognise a record of Kinesis, whether the stream's own trigger or, flat, a pipe delivers it."""
    if not is_of(tree, "aws:kinesis") or not _is_arn(tree.get("eventSourceARN"), "kinesis"):
        return None
    inner = tree.get("kinesis")
    held = inner if isinstance(inner, dict) else tree
    named = has_texts(tree, "eventID") and has_texts(held, "sequenceNumber", "partitionKey", "data")
    return [decoded(held["data"])] if named else None


def _topic_record(tree: dict[str, Any]) -> list[Any] | None:
    """Recognise a notification as a topic hands it to a function."""
    if tree.get("EventSource") != "aws:sns" or not _is_arn(tree.get("EventSubscriptionArn"), "sns"):
        return None
    held = tree.get("Sns")
    return [held["Message"]] if isinstance(held, dict) and _is_notification(held) else None


def _notification(tree: dict[str, Any]) -> list[Any] | None:
    """Recognise a notification as a topic sends it to a queue or over HTTP."""
    signed = has_texts(tree, "Timestamp", "SignatureVersion", "Signature")
    return [tree["Message"]] if signed and _is_notification(tree) else None


def _is_notification(tree: dict[str, Any]) -> bool:
    named = tree.get("Type") == "Notification" and _is_arn(tree.get("TopicArn"), "sns")
    return named and has_texts(tree, "MessageId", "Message")


def _custom_bus(tree: dict[str, Any]) -> list[Any] | None:
    """Recognise an event of a custom event bus that sends its metadata beside it."""
    system = tree.get("SystemMetadata")
    named = isinstance(system, dict) and has_texts(system, "aws:EventId", "aws:DeliveryType")
    return [_with_id(tree["Data"], system)] if named and isinstance(tree.get("Data"), dict) else None


def is_request(tree: Any) -> bool:
    """Return whether an object is a request: by function URL, API Gateway (both versions) or load balancer."""
    if not isinstance(tree, dict) or is_event(tree):
        return False
    context = tree.get("requestContext")
    if not isinstance(context, dict):
        return False
    if isinstance(context.get("http"), dict):
        return has_texts(tree, "version", "routeKey", "rawPath")
    balancer = context.get("elb")
    if isinstance(balancer, dict):
        return has_texts(tree, "httpMethod", "path") and _is_arn(balancer.get("targetGroupArn"), "elasticloadbalancing")
    return has_texts(tree, "httpMethod", "path", "resource") and has_texts(context, "httpMethod", "requestId")


def _request(tree: dict[str, Any]) -> list[Any] | None:
    return [body_of(tree)] if is_request(tree) and isinstance(tree.get("body"), str) else None


def body_of(tree: dict[str, Any]) -> Any:
    """Return the body of a request."""
    return decoded(tree.get("body")) if tree.get("isBase64Encoded") is True else tree.get("body")


def has_texts(tree: dict[str, Any], *names: str) -> bool:
    """Return whether an object has a text in each of these fields."""
    return all(isinstance(tree.get(name), str) for name in names)


def _is_arn(value: Any, service: str) -> bool:
    """Return whether a text is an ARN of this service, in any of AWS' partitions."""
    parts = value.split(":", 3) if isinstance(value, str) else []
    return len(parts) > _ARN_SERVICE + 1 and parts[0] == "arn" and parts[_ARN_SERVICE] == service


_ARN_SERVICE: Final = 2

#: Fields that mark an object as an event: anything inside it is content, whatever it looks like.
SAYING: Final = frozenset(
    {
        "detail", "detail-type", "eventBody", "topicName", "eventType", "type",
        "conversationId", "conversation_id", "interactionId", "eventId", "event_id",
    }
)  # fmt: skip

#: Every shape of a wrapper: each returns the content of a tree of its shape, and None for any other.
SHAPES: Final = (
    _records,
    _message,
    _stream_record,
    _topic_record,
    _firehose_records,
    _firehose_failure,
    _failure_destination,
    _notification,
    _custom_bus,
    _request,
)


def _with_id(data: Any, system: Any) -> Any:
    """Give an envelope the id that the bus keeps beside it, if it has none itself."""
    if isinstance(data, dict) and isinstance(system, dict) and "detail" in data and not data.get("id"):
        known = system.get("aws:EventId")
        return {**data, "id": known} if isinstance(known, str) else data
    return data


def decoded(data: Any) -> Any:
    """Decode base64; return text that is no base64 as it is, to be refused with a reason later."""
    if not isinstance(data, str):
        return data
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return data
