"""Deliveries of an event as they arrive in practice: repeated, sent again, and wrapped by AWS for a Lambda function."""

from __future__ import annotations

import base64
from copy import deepcopy
from typing import Any, Final

import msgspec

from oncebridge.simulation.publishing import iso_ms, iso_seconds
from oncebridge.testing.samples import ACCOUNT, FIRST_MS, REGION, made_up_id, moment_ms

_LATER_MS: Final = 60_000


def redelivery(event: dict[str, Any]) -> dict[str, Any]:
    """Deliver it once more in the same envelope, as queues, Lambda and a second rule do."""
    return deepcopy(event)


def republish(event: dict[str, Any], n: int = 1) -> dict[str, Any]:
    """Deliver it in another envelope, with a new id and a later time, as a repeated publish does; `n` counts them."""
    sent = iso_seconds(_sent_ms(event) + n * _LATER_MS)
    return {**deepcopy(event), "id": made_up_id(_name(event), n), "time": sent}


def replay(event: dict[str, Any], name: str = "replay") -> dict[str, Any]:
    """Deliver it from an archive, in a replay of this name."""
    return {**deepcopy(event), "replay-name": name}


def sqs_event(*events: dict[str, Any], fifo: bool = False, receive_count: int = 1) -> dict[str, Any]:
    """Wrap events as messages of an SQS queue, in one invocation."""
    _refuse_lists(events)
    return {"Records": [_message(event, fifo=fifo, receive_count=receive_count) for event in events]}


def _message(event: dict[str, Any], *, fifo: bool, receive_count: int) -> dict[str, Any]:
    sent, name = str(_sent_ms(event)), _name(event)
    ordered = {"MessageGroupId": event.get("detail-type", "group"), "MessageDeduplicationId": name} if fifo else {}
    return {
        "messageId": message_id(event),
        "receiptHandle": made_up_id("receipt", name, receive_count),
        "body": _text(event),
        "attributes": {
            "ApproximateReceiveCount": str(receive_count),
            "SentTimestamp": sent,
            "SenderId": ACCOUNT,
            "ApproximateFirstReceiveTimestamp": sent,
            **ordered,
        },
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:sample{'.fifo' if fifo else ''}",
        "awsRegion": REGION,
    }


def message_id(event: dict[str, Any]) -> str:
    """Return the id of the message that `sqs_event` makes of an event, as `batchItemFailures` names it."""
    return made_up_id("message", _name(event))


def sns_event(event: dict[str, Any]) -> dict[str, Any]:
    """Wrap an event as a notification of an SNS topic."""
    arn = f"arn:aws:sns:{REGION}:{ACCOUNT}:sample"
    notification = {
        "Type": "Notification",
        "MessageId": made_up_id("notification", _name(event)),
        "TopicArn": arn,
        "Message": _text(event),
        "Timestamp": iso_ms(_sent_ms(event)),
        "MessageAttributes": {},
    }
    subscription = f"{arn}:{made_up_id('subscription')}"
    return {
        "Records": [
            {"EventSource": "aws:sns", "EventVersion": "1.0", "EventSubscriptionArn": subscription, "Sns": notification}
        ]
    }


def kinesis_event(*events: dict[str, Any]) -> dict[str, Any]:
    """Wrap events as records of a Kinesis stream, in one invocation; their sequence numbers count from 1."""
    _refuse_lists(events)
    return {"Records": [_stream_record(event, number) for number, event in enumerate(events, 1)]}


def _stream_record(event: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": _name(event),
            "sequenceNumber": str(number),
            "data": base64.b64encode(_text(event).encode()).decode(),
            "approximateArrivalTimestamp": _sent_ms(event) / 1000,
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"shardId-000000000000:{number}",
        "eventName": "aws:kinesis:record",
        "awsRegion": REGION,
        "eventSourceARN": f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/sample",
    }


class LambdaContext:
    """The second argument of a Lambda function."""

    def __init__(self, remaining_seconds: float = 30.0, function_name: str = "sample") -> None:
        """Take the time that the invocation has left; it stays as it is."""
        self.function_name = function_name
        self.function_version = "$LATEST"
        self.invoked_function_arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{function_name}"
        self.memory_limit_in_mb = "128"
        self.aws_request_id = made_up_id("request", function_name)
        self.log_group_name = f"/aws/lambda/{function_name}"
        self.log_stream_name = "sample"
        self._remaining_ms = int(remaining_seconds * 1000)

    def get_remaining_time_in_millis(self) -> int:
        """Return the time that is left."""
        return self._remaining_ms


def _name(event: dict[str, Any]) -> str:
    """Return the envelope's id; of an event without envelope its text, so that others have other names."""
    name = event.get("id")
    return name if isinstance(name, str) else made_up_id(_text(event))


def _sent_ms(event: dict[str, Any]) -> int:
    """Return when EventBridge got it; of an event without envelope any moment will do."""
    time = event.get("time")
    return moment_ms(time) if isinstance(time, str) else FIRST_MS


def _refuse_lists(events: tuple[Any, ...]) -> None:
    if any(isinstance(event, list | tuple) for event in events):
        raise TypeError("events are given one by one, as in sqs_event(*events)")


def _text(event: dict[str, Any]) -> str:
    return msgspec.json.encode(event).decode()
