"""Every shape in which AWS hands out events, into deliveries: pure, by shape alone.

Wrappers nest: a queue's record may hold a topic's notification, which holds the envelope. What is no
wrapper is a delivery, readable or not: that is for the flow to say.
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

#: Without one of these, a text is no wrapper, and need not be parsed to know that.
_MARKS: Final = (
    b'"Records"', b'"records"', b'"rawData"', b'"requestPayload"', b'"requestContext"', b'"httpMethod"', b'"messageId"',
    b'"aws:sqs"', b'"Message"', b'"Sns"', b'"kinesis"', b'"sequenceNumber"', b'"SystemMetadata"',
)  # fmt: skip

_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode


def unwrap(data: bytes, most: int | None = None) -> list[bytes]:
    """Return the deliveries that a text holds, or as many of them as wanted; the text itself where it is no wrapper."""
    return list(islice(_from_text(data, NESTING_MAX), most))


def unwrap_parsed(tree: Any, most: int | None = None) -> list[Any]:
    """Return the deliveries in JSON that somebody has parsed already; texts in it come out byte for byte."""
    return list(islice(_from_part(tree, NESTING_MAX, _as_it_is), most))


def is_event(tree: dict[str, Any]) -> bool:
    """Tell whether an object is an event for sure, whatever else it may look like."""
    return "detail" in tree or "eventBody" in tree


def _from_text(data: bytes, nesting: int) -> Iterator[Any]:
    if nesting and data.lstrip().startswith(b"["):
        yield from _from_array(data, nesting)
        return
    inner = None
    if nesting and _may_be_a_wrapper(data):
        with suppress(Unreadable):
            # With numbers as written: what is inside must keep its identity.
            _, tree = read_json(data, bytes_max=WRAPPER_BYTES_MAX, containers_max=WRAPPER_CONTAINERS_MAX)
            inner = _inner(tree)
    if inner is None:
        yield data
        return
    for part in inner:
        yield from _from_part(part, nesting - 1, msgspec.json.encode)


class _Marks(msgspec.Struct, gc=False):
    """What tells an event from everything else; the rest is skipped."""

    detail: msgspec.Raw = msgspec.Raw()
    eventBody: msgspec.Raw = msgspec.Raw()  # noqa: N815 - as Genesys writes it


_event_marks: Final = msgspec.json.Decoder(_Marks).decode


def _may_be_a_wrapper(data: bytes) -> bool:
    """Tell whether a text is worth a closer look: nearly every one is an event for sure, and many are no JSON."""
    try:
        marks = _event_marks(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False
    return not (bytes(marks.detail) or bytes(marks.eventBody)) and any(mark in data for mark in _MARKS)


def _from_array(data: bytes, nesting: int) -> Iterator[Any]:
    """Take an array apart byte for byte, which is many times faster than to read all of it and write it again."""
    elements: list[msgspec.Raw] = []
    if len(data) <= WRAPPER_BYTES_MAX:
        with suppress(msgspec.MsgspecError, RecursionError, ValueError):
            elements = _elements(data)
    if not elements:
        yield data
    for element in elements:
        text = bytes(element)
        if text.startswith(b'"'):
            with suppress(msgspec.MsgspecError, ValueError):  # else it is refused with a reason later
                text = _text(text).encode()
        yield from _from_text(text, nesting - 1)


def _from_part(part: Any, nesting: int, write: Callable[[Any], Any]) -> Iterator[Any]:
    if isinstance(part, str):
        try:
            part = part.encode()
        except UnicodeEncodeError:  # half of a surrogate pair: to be refused with a reason later
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
    """Return what a wrapper holds; None where it is none, or where it holds nothing."""
    if isinstance(tree, list):
        return tree or None  # Pipes, and buses that deliver in batches
    if not isinstance(tree, dict) or is_event(tree):
        return None
    return next((held for held in (shape(tree) for shape in SHAPES) if held), None)


def _lambda_records(tree: dict[str, Any]) -> list[Any] | None:
    records = tree.get("Records")
    return records if isinstance(records, list) else None


def _firehose_records(tree: dict[str, Any]) -> list[Any] | None:
    records = tree.get("records")
    if not isinstance(records, list):
        return None
    if is_firehose(tree) or all(isinstance(record, dict) and "data" in record for record in records):
        return [firehose_data(record) for record in records]
    return None


def is_firehose(tree: dict[str, Any]) -> bool:
    """Tell whether Firehose says that this comes from it."""
    return "deliveryStreamArn" in tree or "invocationId" in tree


def firehose_data(record: Any) -> Any:
    """Return what a record of Firehose holds; the record itself where that is nothing."""
    return _decoded(record["data"]) if isinstance(record, dict) and "data" in record else record


def _firehose_failure(tree: dict[str, Any]) -> list[Any] | None:
    """Know what Firehose leaves in a bucket of records that were not processed."""
    return [_decoded(tree["rawData"])] if "rawData" in tree and "errorCode" in tree else None


def _failure_destination(tree: dict[str, Any]) -> list[Any] | None:
    return [tree["requestPayload"]] if "requestPayload" in tree else None


def _kinesis_record(tree: dict[str, Any]) -> list[Any] | None:
    record = tree.get("kinesis")
    return [_decoded(record["data"])] if isinstance(record, dict) and "data" in record else None


def _flat_kinesis_record(tree: dict[str, Any]) -> list[Any] | None:
    """Know a record of Kinesis as Pipes hand it on."""
    texts = (tree.get(name) for name in ("data", "sequenceNumber", "partitionKey"))
    return [_decoded(tree["data"])] if all(isinstance(text, str) for text in texts) else None


def _sns_record(tree: dict[str, Any]) -> list[Any] | None:
    record = tree.get("Sns")
    return [record["Message"]] if isinstance(record, dict) and "Message" in record else None


def _sns_notification(tree: dict[str, Any]) -> list[Any] | None:
    return [tree["Message"]] if tree.get("Type") == "Notification" and "Message" in tree else None


def _custom_bus(tree: dict[str, Any]) -> list[Any] | None:
    return [_with_id(tree["Data"], tree["SystemMetadata"])] if "SystemMetadata" in tree and "Data" in tree else None


def _message_or_request(tree: dict[str, Any]) -> list[Any] | None:
    known = tree.get("eventSource") == "aws:sqs" or {"messageId", "requestContext", "httpMethod"}.intersection(tree)
    return [body_of(tree)] if known and isinstance(tree.get("body"), str) else None


def body_of(tree: dict[str, Any]) -> Any:
    """Return the body of a message or request."""
    return _decoded(tree.get("body")) if tree.get("isBase64Encoded") is True else tree.get("body")


#: Every shape of a wrapper: each tells whether a tree is its own, and what it holds.
SHAPES: Final = (
    _lambda_records,
    _firehose_records,
    _firehose_failure,
    _failure_destination,
    _kinesis_record,
    _flat_kinesis_record,
    _sns_record,
    _sns_notification,
    _custom_bus,
    _message_or_request,
)


def _with_id(data: Any, system: Any) -> Any:
    """Give an envelope the id that the bus keeps beside it, where it has none itself."""
    if isinstance(data, dict) and isinstance(system, dict) and "detail" in data and not data.get("id"):
        known = system.get("aws:EventId")
        return {**data, "id": known} if isinstance(known, str) else data
    return data


def _decoded(data: Any) -> Any:
    """Decode base64; leave what is none as it is, to be refused with a reason later."""
    if not isinstance(data, str):
        return data
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return data
