"""Every shape in which AWS hands events over, around any text: with all that AWS writes around it, made up here."""

import base64
import json

import hypothesis.strategies as st

QUEUE_ARN = "arn:aws:sqs:eu-west-2:210987654321:events"
STREAM_ARN = "arn:aws:kinesis:eu-west-2:210987654321:stream/events"
DELIVERY_ARN = "arn:aws:firehose:eu-west-2:210987654321:deliverystream/events"


def encoded(text):
    """Write a text or bytes as base64."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


# --- single records -----------------------------------------------------------------------------------------


def message(body, name="message-0", group=None, **changes):
    """Write a message as a queue's own trigger hands it over; a group may be fair, without order."""
    grouped = {} if group is None else {"MessageGroupId": group}
    usual = {
        "messageId": name,
        "receiptHandle": f"handle of {name}",
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1748860200310", **grouped},
        "messageAttributes": {},
        "md5OfBody": "00000000000000000000000000000000",
        "eventSource": "aws:sqs",
        "eventSourceARN": QUEUE_ARN,
        "awsRegion": "eu-west-2",
    }
    return {**usual, **changes}


def fifo_message(body, name="message-0", group="group-0"):
    """Write a message of a FIFO queue."""
    return message(body, name, group, eventSourceARN=f"{QUEUE_ARN}.fifo")


def stream_record(body, number="4959033827", key="key-0"):
    """Write a record of Kinesis as a stream's own trigger hands it over."""
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": key,
            "sequenceNumber": number,
            "data": encoded(body),
            "approximateArrivalTimestamp": 1748860200.31,
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"shardId-000000000000:{number}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": "arn:aws:iam::210987654321:role/events",
        "awsRegion": "eu-west-2",
        "eventSourceARN": STREAM_ARN,
    }


def piped_stream_record(body, number="4959033827", key="key-0"):
    """Write a record of Kinesis as a pipe hands it over: flat."""
    record = stream_record(body, number, key)
    return {**record.pop("kinesis"), **record}


def topic_record(body):
    """Write a notification as a topic hands it to a function."""
    return {
        "EventSource": "aws:sns",
        "EventVersion": "1.0",
        "EventSubscriptionArn": "arn:aws:sns:eu-west-2:210987654321:events:1",
        "Sns": signed(body),
    }


def notification(body):
    """Write a notification as a topic sends it to a queue."""
    return json.dumps(signed(body))


def signed(body):
    """Write a notification with everything that a topic writes around a message."""
    return {
        "Type": "Notification",
        "MessageId": "notification-0",
        "TopicArn": "arn:aws:sns:eu-west-2:210987654321:events",
        "Subject": None,
        "Message": body,
        "Timestamp": "2025-06-02T10:30:00.310Z",
        "SignatureVersion": "1",
        "Signature": "AAAA",
        "SigningCertURL": "https://sns.eu-west-2.amazonaws.com/SimpleNotificationService.pem",
        "UnsubscribeURL": "https://sns.eu-west-2.amazonaws.com/?Action=Unsubscribe",
    }


def given_up(event):
    """Write what Lambda sends to a failure destination."""
    return {
        "version": "1.0",
        "timestamp": "2025-06-02T10:35:00.000Z",
        "requestContext": {
            "requestId": "request-0",
            "functionArn": "arn:aws:lambda:eu-west-2:210987654321:function:events:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": 3,
        },
        "requestPayload": event,
        "responseContext": {"statusCode": 200, "functionError": "Unhandled"},
        "responsePayload": {"errorMessage": "no luck", "errorType": "NotAcknowledged"},
    }


def with_metadata(event):
    """Write what a bus sends that keeps the envelope's id beside it."""
    data = {name: value for name, value in event.items() if name != "id"}
    system = {"aws:EventId": event.get("id"), "aws:DeliveryType": "LIVE", "aws:Source": "events"}
    return {"Data": data, "Metadata": {}, "SystemMetadata": system}


# --- whole invocations --------------------------------------------------------------------------------------


def records(*items):
    """Write a batch as triggers do."""
    return {"Records": list(items)}


def transformation(*bodies, names=None):
    """Write what Firehose wants to have transformed."""
    names = names or [f"record-{n}" for n in range(len(bodies))]
    return {
        "invocationId": "invocation-0",
        "deliveryStreamArn": DELIVERY_ARN,
        "region": "eu-west-2",
        "records": [
            {"recordId": name, "approximateArrivalTimestamp": 1748860200310, "data": encoded(body)}
            for name, body in zip(names, bodies, strict=True)
        ],
    }


def not_transformed(body):
    """Write what Firehose leaves in a bucket of a record that was not processed."""
    return {
        "attemptsMade": 4,
        "arrivalTimestamp": 1748860200310,
        "errorCode": "Lambda.FunctionError",
        "errorMessage": "no luck",
        "attemptEndingTimestamp": 1748860204310,
        "rawData": encoded(body),
        "lambdaArn": "arn:aws:lambda:eu-west-2:210987654321:function:events",
    }


def url_request(body, headers=None, method="POST", **changes):
    """Write a request by function URL, or by API Gateway's second version."""
    usual = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/",
        "headers": {"content-type": "application/json", **(headers or {})},
        "requestContext": {"http": {"method": method, "path": "/"}, "requestId": "request-0"},
        "body": body,
        "isBase64Encoded": False,
    }
    return {**usual, **changes}


def gateway_request(body, headers=None, method="POST", **changes):
    """Write a request by API Gateway's first version: headers come in both ways."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    usual = {
        "resource": "/events",
        "path": "/events",
        "httpMethod": method,
        "headers": sent,
        "multiValueHeaders": {name: [value] for name, value in sent.items()},
        "requestContext": {"resourcePath": "/events", "httpMethod": method, "requestId": "request-0"},
        "body": body,
        "isBase64Encoded": False,
    }
    return {**usual, **changes}


def balancer_request(body, headers=None, method="POST", *, many=False, **changes):
    """Write a request by a load balancer, with headers one way or the other."""
    sent = {"content-type": "application/json", **(headers or {})}
    usual = {
        "requestContext": {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:eu-west-2:210987654321:t/e/0"}},
        "httpMethod": method,
        "path": "/events",
        "body": body,
        "isBase64Encoded": False,
    }
    own = {"multiValueHeaders": {name: [value] for name, value in sent.items()}} if many else {"headers": sent}
    return {**usual, **own, **changes}


def every_shape(event):
    """Put one event, or whatever stands for one, into every shape: name -> what Lambda hands over."""
    text = json.dumps(event)
    return {
        "EventBridge direct": event,
        "queue": records(message(text)),
        "FIFO queue": records(fifo_message(text)),
        "queue behind a topic": records(message(notification(text))),
        "queue of failed invocations": records(message(json.dumps(given_up(event)))),
        "queue with a list in a message": records(message(f"[{text}]")),
        "topic": records(topic_record(text)),
        "Kinesis": records(stream_record(text)),
        "Firehose": transformation(text),
        "what Firehose gave up": not_transformed(text),
        "pipe from a queue": [message(text)],
        "pipe from Kinesis": [piped_stream_record(text)],
        "pipe with a template": [text],
        "list of envelopes": [event],
        "bus with metadata": with_metadata(event),
        "bus with metadata, in batches": [with_metadata(event)],
        "records of JSON text": records(text),
        "records of envelopes": records(event),
        "function URL": url_request(text),
        "function URL, base64": url_request(encoded(text), isBase64Encoded=True),
        "function URL, a list": url_request(f"[{text}]"),
        "API Gateway": gateway_request(text),
        "load balancer": balancer_request(text),
        "load balancer, headers as lists": balancer_request(text, many=True),
        "failure destination": given_up(event),
        "failed invocation of a queue's function": given_up(records(message(notification(text)))),
    }


# --- what looks like one of them, or nearly ------------------------------------------------------------------

#: Fields by which wrappers are known, and others that answers depend on.
FIELDS = (
    "Records", "records", "recordId", "data", "rawData", "errorCode", "invocationId", "messageId", "body", "attributes",
    "eventSource", "eventSourceARN", "eventID", "kinesis", "sequenceNumber", "partitionKey", "Sns", "Type", "Message",
    "requestPayload", "Data", "SystemMetadata", "isBase64Encoded", "requestContext", "http", "httpMethod", "method",
    "headers", "multiValueHeaders", "detail", "eventBody",
)  # fmt: skip
VALUES = ("aws:sqs", "aws:kinesis", "arn:aws:sqs:eu-west-2:210987654321:events.fifo", "POST", "Notification", "e30=")


def trees(*texts):
    """Draw JSON of fields that wrappers have, with these texts in it, in every wrong place."""
    words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5)
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | numbers | words | st.sampled_from([*VALUES, *texts]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
        max_leaves=15,
    )
