"""Invocations of AWS Lambda: their shape, and the deliveries that each record holds. Pure.

How failures are reported depends on what AWS writes around records, never on the content of one, and records are
named only where every one of a batch can be. Where that is not certain, the whole invocation fails.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from oncebridge.discreet import Discreet
from oncebridge.sources.unwrap import batch_of, firehose_data, from_batch, is_event, is_firehose, is_of, unwrap_parsed

if TYPE_CHECKING:
    from collections.abc import Iterable


class FailureReport(Enum):
    """How the sender learns which records must be redelivered."""

    BY_ERROR = "the invocation fails"
    BY_NAME = "batchItemFailures"
    BY_RECORD = "a result for each record"


class Record(Discreet, msgspec.Struct, frozen=True, kw_only=True):
    """One record, and the deliveries in it: acknowledged together or not at all."""

    shown = ("id",)

    raws: list[Any]
    #: Its name in the reply.
    id: str = ""
    #: Records of one group keep their order; None: in any order.
    group: str | None = None
    #: When its queue or stream received it, if stated.
    sent_ms: int | None = None
    #: The data that Firehose expects back.
    data: Any = None
    #: Of a message: its queue, and the receipt by which it can be hidden.
    queue: str = ""
    receipt: str = ""


class Invocation(msgspec.Struct, frozen=True):
    """Everything in one invocation."""

    failure_report: FailureReport
    records: list[Record]


_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")
_SECONDS_MAX: Final = 10**12


def recognise(event: Any) -> Invocation:
    """Return the shape of an invocation, taken apart. Requests over HTTP are not among them."""
    if isinstance(event, list):
        return _batch(event, event) or _whole(event)
    if isinstance(event, dict) and not is_event(event):
        records = batch_of(event)
        if records is not None:
            return _batch(records, map(from_batch, records)) or _whole(event)
        if is_firehose(event):
            return _transformation(event)
    return _whole(event)


def waves(records: list[Record]) -> list[list[Record]]:
    """Sort records into batches that keep the order of each group: the first of every group, the second, and so on."""
    places: Counter[str] = Counter()
    found: list[list[Record]] = []
    for record in records:
        place = 0
        if record.group is not None:
            place = places[record.group]
            places[record.group] += 1
        if place == len(found):
            found.append([])
        found[place].append(record)
    return found


def _whole(event: Any) -> Invocation:
    return Invocation(FailureReport.BY_ERROR, [Record(raws=unwrap_parsed(event))])


class _Label(NamedTuple):
    id: str
    group: str | None
    sent_ms: int | None
    queue: str = ""
    receipt: str = ""


def _batch(records: list[Any], held: Iterable[Any]) -> Invocation | None:
    """Take records apart that all have a name, with the content of each; None where one has no name."""
    for label_of in (_message_label, _stream_label):
        labels = [label_of(record) for record in records if isinstance(record, dict)]
        named = [label for label in labels if label is not None and label.id]
        if len(named) == len(records):
            return Invocation(
                FailureReport.BY_NAME,
                [
                    Record(raws=unwrap_parsed(inner), **label._asdict())
                    for inner, label in zip(held, named, strict=True)
                ],
            )
    return None


def _message_label(record: dict[str, Any]) -> _Label | None:
    """Label a message of SQS, whether the queue's own trigger or a pipe delivers it."""
    if not is_of(record, "aws:sqs"):
        return None
    queue, attributes = _text(record.get("eventSourceARN")), record.get("attributes")
    said = attributes if isinstance(attributes, dict) else {}
    sent = _text(said.get("SentTimestamp"))
    sent_ms = int(sent) if _MILLISECONDS.fullmatch(sent) else None
    # Fair queues have groups too, but no order.
    group = _text(said.get("MessageGroupId")) if queue.endswith(".fifo") else None
    return _Label(_text(record.get("messageId")), group, sent_ms, queue, _text(record.get("receiptHandle")))


def _stream_label(record: dict[str, Any]) -> _Label | None:
    """Label a record of Kinesis: a stream's own trigger names it by its sequence number, a pipe by its event id."""
    if not is_of(record, "aws:kinesis"):
        return None
    inner = record.get("kinesis")
    if isinstance(inner, dict):
        return _Label(_text(inner.get("sequenceNumber")), _text(inner.get("partitionKey")), _arrival_ms(inner))
    return _Label(_text(record.get("eventID")), _text(record.get("partitionKey")), _arrival_ms(record))


def _arrival_ms(record: dict[str, Any]) -> int | None:
    """Return when a stream received a record, which Kinesis gives in seconds."""
    seconds = record.get("approximateArrivalTimestamp")
    return int(seconds * 1000) if isinstance(seconds, int | float) and 0 < seconds < _SECONDS_MAX else None


def _transformation(event: dict[str, Any]) -> Invocation:
    """Take apart a batch that Firehose wants to have transformed."""
    records = [record for record in event["records"] if isinstance(record, dict) and _text(record.get("recordId"))]
    if len(records) < len(event["records"]):
        return _whole(event)
    return Invocation(
        FailureReport.BY_RECORD,
        [
            Record(raws=unwrap_parsed(firehose_data(record)), id=record["recordId"], data=record.get("data"))
            for record in records
        ],
    )


def _text(value: object) -> str:
    """Return a text; None for anything else."""
    return value if isinstance(value, str) else ""


#: How many attempts an event gets before it is kept as a dead letter, where the sender gives up before we would.
ATTEMPTS: Final = {
    # Lambda's own queue repeats a failed invocation twice, then drops the event.
    FailureReport.BY_ERROR: 3,
    # Queues and streams retry for long, or have a place for records they give up on.
    FailureReport.BY_NAME: None,
    # Firehose keeps failed records in its bucket, from which they can be sent again.
    FailureReport.BY_RECORD: None,
}
