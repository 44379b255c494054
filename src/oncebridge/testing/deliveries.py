"""Deliveries of an event as they arrive in practice: repeated, sent again, and wrapped by AWS for a Lambda function."""

from __future__ import annotations

import base64
from copy import deepcopy
from typing import Any, Final

import msgspec

from oncebridge.simulation.publishing import iso_seconds
from oncebridge.testing.samples import ACCOUNT, REGION, made_up_id, moment_ms

_LATER_MS: Final = 60_000


def redelivery(event: dict[str, Any]) -> dict[str, Any]:
    """Deliver it once more in the same envelope, as queues, Lambda and a second rule do."""
    return deepcopy(event)


def republish(event: dict[str, Any], n: int = 1) -> dict[str, Any]:
    """Deliver it in another envelope, with a new id and a later time, as a repeated publish does; `n` counts them."""
    sent = iso_seconds(moment_ms(event["time"]) + n * _LATER_MS)
    return {**deepcopy(event), "id": made_up_id(event["id"], n), "time": sent}


def replay(event: dict[str, Any], name: str = "replay") -> dict[str, Any]:
    """Deliver it from an archive, in a replay of this name."""
    return {**deepcopy(event), "replay-name": name}


def sqs_event(*events: dict[str, Any], fifo: bool = False, receive_count: int = 1) -> dict[str, Any]:
    """Wrap events as messages of an SQS queue, in one invocation."""
    return {"Records": [_message(event, fifo=fifo, receive_count=receive_count) for event in events]}


def _message(event: dict[str, Any], *, fifo: bool, receive_count: int) -> dict[str, Any]:
    sent = str(moment_ms(event["time"]))
    ordered = {"MessageGroupId": event["detail-type"], "MessageDeduplicationId": event["id"]} if fifo else {}
    return {
        "messageId": message_id(event),
        "receiptHandle": made_up_id("receipt", event["id"], receive_count),
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
    return made_up_id("message", event["id"])


def sns_event(event: dict[str, Any]) -> dict[str, Any]:
    """Wrap an event as a notification of an SNS topic."""
    arn = f"arn:aws:sns:{REGION}:{ACCOUNT}:sample"
    notification = {
        "Type": "Notification",
        "MessageId": made_up_id("notification", event["id"]),
        "TopicArn": arn,
        "Message": _text(event),
        "Timestamp": event["time"],
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
    return {"Records": [_stream_record(event, number) for number, event in enumerate(events, 1)]}


def _stream_record(event: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": event["id"],
            "sequenceNumber": str(number),
            "data": base64.b64encode(_text(event).encode()).decode(),
            "approximateArrivalTimestamp": moment_ms(event["time"]) / 1000,
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


def _text(event: dict[str, Any]) -> str:
    return msgspec.json.encode(event).decode()
