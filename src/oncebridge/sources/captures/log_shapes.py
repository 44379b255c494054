"""The shapes of logs and of answers of the AWS command line, as they are found in captures: pure, by shape alone."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from oncebridge.sources.captures.found import Surroundings
from oncebridge.sources.captures.log_lines import time_ms
from oncebridge.sources.unwrap import decoded, has_texts, is_event

#: Without one of these a text is none of these shapes, which saves parsing it.
MARKS: Final = (
    b'"message"', b'"event"', b'"ReceiptHandle"', b'"@message"', b'"awslogs"', b'"logEvents"', b'"events"',
    b'"Messages"', b'"results"', b'"msg"', b'"platform.', b'"CloudWatchMetrics"', b'"searchedCompletely"',
    b'"approximateArrivalTimestamp"', b'"ApproximateReceiveCount"', b'"MD5OfBody"', b'"Attributes"', b'"detail-type"',
)  # fmt: skip

LEVELS: Final = frozenset({"TRACE", "DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"})
_SECONDS_MAX: Final = 100_000_000_000  # more than this is milliseconds
_DIGITS_MAX: Final = 16

NO_EVENT: Final = "a log record without an event"
OF_LAMBDA: Final = "a line of Lambda's own log"
METRICS: Final = "metrics in a log"
CONTROL: Final = "a control message of CloudWatch"
EMPTY: Final = "an empty answer of AWS"


class Part(msgspec.Struct, frozen=True, gc=False):
    """Something that a wrapper holds."""

    content: Any
    around: Surroundings
    #: Whether it is what a program logged, and so may be anything.
    in_log: bool = False


Parts = list[Part] | str | None


def opened_log(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Return what a log or an answer holds; a reason if it holds nothing, and None if it is neither."""
    if "detail" in tree or "eventBody" in tree:
        return None
    return next((parts for parts in (shape(tree, around) for shape in _SHAPES) if parts is not None), None)


# --- CloudWatch Logs ----------------------------------------------------------------------------------------------


def _subscription(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise what a subscription filter gives to a function."""
    held = tree.get("awslogs")
    return [Part(decoded(held["data"]), around)] if isinstance(held, dict) and has_texts(held, "data") else None


def _log_batch(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise what a subscription filter sends, unpacked."""
    entries = tree.get("logEvents")
    if not has_texts(tree, "messageType", "logGroup", "logStream") or not isinstance(entries, list):
        return None
    if tree["messageType"] != "DATA_MESSAGE":
        return CONTROL
    place = replace(around, log_group=tree["logGroup"], log_stream=tree["logStream"])
    return [_logged(entry, place) for entry in entries] or EMPTY


def _logged(entry: Any, around: Surroundings) -> Part:
    if not isinstance(entry, dict) or not isinstance(entry.get("message"), str):
        return Part(entry, around)
    stream = entry.get("logStreamName")
    place = replace(
        around,
        log_stream=stream if isinstance(stream, str) else around.log_stream,
        logged_ms=_ms(entry.get("timestamp")),
        ingested_ms=_ms(entry.get("ingestionTime")),
    )
    return Part(entry["message"], place, True)


_ANSWER: Final = frozenset(
    {"events", "searchedLogStreams", "nextToken", "nextForwardToken", "nextBackwardToken", "ResponseMetadata"}
)


_LOG_EVENT: Final = frozenset({"logStreamName", "timestamp", "message", "ingestionTime", "eventId"})
_IN_BATCH: Final = frozenset({"id", "timestamp", "message"})
_ID_DIGITS: Final = 56  # of a log event's id


def _log_events(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise the answer to `filter-log-events` and `get-log-events`."""
    entries = tree.get("events")
    if not isinstance(entries, list) or not _ANSWER.issuperset(tree):
        return None
    if not all(isinstance(entry, dict) and _is_log_event(entry) for entry in entries):
        return None
    return [_logged(entry, around) for entry in entries] or EMPTY


def _is_log_event(entry: dict[str, Any]) -> bool:
    return isinstance(entry.get("message"), str) and type(entry.get("timestamp")) is int


def _log_event(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise one log event of such an answer."""
    name = tree.get("id")
    in_batch = tree.keys() == _IN_BATCH and isinstance(name, str) and len(name) == _ID_DIGITS and name.isdigit()
    is_log = type(tree.get("ingestionTime")) is int or not is_event(tree)
    named = in_batch or (is_log and _LOG_EVENT.issuperset(tree))
    return [_logged(tree, around)] if named and _is_log_event(tree) else None


_QUERY: Final = frozenset({"results", "status", "statistics", "queryLanguage", "encryptionKey", "ResponseMetadata"})


def _insights(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise the answer to `get-query-results`."""
    rows = tree.get("results")
    if not isinstance(rows, list) or not (isinstance(tree.get("status"), str) or (rows and _QUERY.issuperset(tree))):
        return None
    if not all(isinstance(row, list) and all(_is_cell(cell) for cell in row) for row in rows):
        return None
    return [Part({cell["field"]: cell["value"] for cell in row}, around) for row in rows] or EMPTY


def _is_cell(cell: Any) -> bool:
    return isinstance(cell, dict) and has_texts(cell, "field", "value")


def _insights_row(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise a row of a query, as an object."""
    message = tree.get("@message")
    if not isinstance(message, (str, dict)):
        return None
    stream, logged, ingested = (tree.get(name) for name in ("@logStream", "@timestamp", "@ingestionTime"))
    request = tree.get("@requestId")
    place = replace(
        around,
        log_stream=stream if isinstance(stream, str) else None,
        logged_ms=_ms(logged),
        ingested_ms=_ms(ingested),
        request_id=request if isinstance(request, str) else around.request_id,
    )
    return [Part(message, place, isinstance(message, str))]


# --- what loggers write -------------------------------------------------------------------------------------------

#: Fields that only loggers for Lambda write; of hand-made events some have a level and a message, too.
_OF_LOGGERS: Final = frozenset(
    {
        "location", "service", "logger", "cold_start", "function_name", "function_request_id", "requestId",
        "AWSRequestId", "awsRequestId", "aws_request_id", "lambda_request_id", "xray_trace_id", "sampling_rate",
    }
)  # fmt: skip
_EVENT_OF_ITS_OWN: Final = frozenset({"detail-type", "topicName", "eventType", "eventId", "event_id"})
_HOLDERS: Final = ("event", "message", "msg")
_REQUEST_IDS: Final = (
    "function_request_id", "requestId", "AWSRequestId", "awsRequestId", "aws_request_id", "lambda_request_id",
    "request_id",
)  # fmt: skip
#: As loggers name the time of a record, and people the arrival of an event that they keep.
_TIMES: Final = (
    "timestamp", "time", "@timestamp", "receivedAt", "received_at", "arrivedAt", "arrived_at", "ingestionTime",
    "ingestion_time",
)  # fmt: skip


def _log_record(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise a record of a logger, such as that of Powertools, with an event in it as an object or as text."""
    if not _EVENT_OF_ITS_OWN.isdisjoint(tree):
        return None
    if not any(_is_envelope(tree.get(name)) for name in _HOLDERS) and not _is_logged(tree):
        return None
    place = _noted_beside(tree, around)
    held = [Part(tree[name], place, True) for name in _HOLDERS if _may_hold_an_event(tree.get(name))]
    return held or NO_EVENT


def _is_logged(tree: dict[str, Any]) -> bool:
    """Return whether a record has what only loggers for Lambda write."""
    level, time = tree.get("level"), tree.get("timestamp", tree.get("time"))
    if not isinstance(time, (str, int)) or _OF_LOGGERS.isdisjoint(tree):
        return False
    if isinstance(level, str):
        return level.upper() in LEVELS
    return _request_in(tree) is not None and not is_event(tree)


def _noted_beside(tree: dict[str, Any], around: Surroundings) -> Surroundings:
    """Add what a record says beside the event in it: when, and by which request."""
    time = next((tree[name] for name in _TIMES if isinstance(tree.get(name), (str, int, float))), None)
    context = tree.get("context")
    request = _request_in(tree) or (_request_in(context) if isinstance(context, dict) else None)
    return replace(
        around,
        request_id=request or around.request_id,
        logged_ms=_ms(time) if around.logged_ms is None else around.logged_ms,
    )


def _request_in(tree: dict[str, Any]) -> str | None:
    return next((tree[name] for name in _REQUEST_IDS if isinstance(tree.get(name), str)), None)


def held_envelope(tree: dict[str, Any], around: Surroundings) -> list[Part] | None:
    """Recognise an object that is no event itself, and holds an envelope: somebody noted something beside it."""
    place = _noted_beside(tree, around)
    return [Part(value, place) for value in tree.values() if _is_envelope(value)] or None


def _is_envelope(value: Any) -> bool:
    """Return whether it can only be an envelope of EventBridge: whatever holds it has logged it."""
    return (
        isinstance(value, dict) and has_texts(value, "detail-type", "source") and isinstance(value.get("detail"), dict)
    )


def _may_hold_an_event(value: Any) -> bool:
    return isinstance(value, (dict, list)) or (isinstance(value, str) and "{" in value)


def _of_lambda(tree: dict[str, Any], _: Surroundings) -> Parts:
    """Recognise a line that Lambda itself writes into a log in JSON."""
    kind = tree.get("type")
    written = isinstance(kind, str) and kind.startswith("platform.") and isinstance(tree.get("record"), dict)
    return OF_LAMBDA if written and isinstance(tree.get("time"), str) else None


def _metrics(tree: dict[str, Any], _: Surroundings) -> Parts:
    """Recognise metrics in CloudWatch's embedded format."""
    held = tree.get("_aws")
    return METRICS if isinstance(held, dict) and "CloudWatchMetrics" in held else None


def _searched(tree: dict[str, Any], _: Surroundings) -> Parts:
    """Recognise a line of the end of a long answer to `filter-log-events`."""
    return EMPTY if "searchedCompletely" in tree and has_texts(tree, "logStreamName") else None


# --- SQS and streams ----------------------------------------------------------------------------------------------


def _received(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise the answer to `receive-message`."""
    messages = tree.get("Messages")
    if not isinstance(messages, list) or not {"Messages", "ResponseMetadata"}.issuperset(tree):
        return None
    if not all(isinstance(message, dict) and _is_received(message) for message in messages):
        return None
    return [Part(message["Body"], noted(around, message)) for message in messages] or EMPTY


#: One of these is beside the id and the body of a message, whatever else of it was kept.
_OF_MESSAGES: Final = frozenset({"ReceiptHandle", "MD5OfBody", "Attributes"})


def _is_received(message: dict[str, Any]) -> bool:
    return has_texts(message, "MessageId", "Body") and not _OF_MESSAGES.isdisjoint(message)


def _received_message(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise one message of such an answer."""
    return [Part(tree["Body"], noted(around, tree))] if _is_received(tree) and not is_event(tree) else None


def _counted_message(tree: dict[str, Any], around: Surroundings) -> Parts:
    """Recognise a message of which somebody kept no more than its body, and how often SQS says it was received."""
    attributes = tree.get("attributes", tree.get("Attributes"))
    body = tree.get("body", tree.get("Body"))
    if not isinstance(attributes, dict) or "ApproximateReceiveCount" not in attributes or not isinstance(body, str):
        return None
    return None if is_event(tree) else [Part(body, noted(around, tree))]


def noted(around: Surroundings, record: Any) -> Surroundings:
    """Add what a record says of its content."""
    if not isinstance(record, dict):
        return around
    attributes = record.get("attributes", record.get("Attributes"))
    if isinstance(attributes, dict):
        name, queue = record.get("messageId", record.get("MessageId")), record.get("eventSourceARN")
        return replace(
            around,
            message_id=name if isinstance(name, str) else None,
            receive_count=_whole(attributes.get("ApproximateReceiveCount")),
            sent_ms=_whole(attributes.get("SentTimestamp")),
            first_received_ms=_whole(attributes.get("ApproximateFirstReceiveTimestamp")),
            queue=queue if isinstance(queue, str) else None,
        )
    if isinstance(record.get("MessageId"), str) and "Body" in record:
        return replace(around, message_id=record["MessageId"])
    stream = record["kinesis"] if isinstance(record.get("kinesis"), dict) else record
    arrived = stream.get("approximateArrivalTimestamp", record.get("arrivalTimestamp"))
    if arrived is not None:
        return replace(around, arrived_ms=_ms(arrived))
    context = record.get("requestContext")
    request = context.get("requestId") if isinstance(context, dict) and "functionArn" in context else None
    return replace(around, request_id=request) if isinstance(request, str) else around


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and len(value) <= _DIGITS_MAX and value.isascii() and value.isdigit():
        return int(value)
    return value if type(value) is int and abs(value) < 10**_DIGITS_MAX else None


def _ms(value: Any) -> int | None:
    """Read a time in seconds or milliseconds, or as text."""
    if isinstance(value, str):
        return time_ms(value) if len(value) <= 64 else None  # noqa: PLR2004 - no time is longer
    if isinstance(value, msgspec.Raw):
        value = float(bytes(value))
    if type(value) not in (int, float) or not abs(value) < 10**_DIGITS_MAX:
        return None
    return int(value if value > _SECONDS_MAX else value * 1000)


_SHAPES: Final = (
    _subscription,
    _log_batch,
    _log_events,
    _log_event,
    _insights,
    _insights_row,
    _received,
    _received_message,
    _counted_message,
    _log_record,
    _of_lambda,
    _metrics,
    _searched,
)
