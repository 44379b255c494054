"""Captures as people get them out of their accounts, around any events: with all that AWS writes, made up here."""

import base64
import gzip
import json

REQUEST = "8f5e7a1c-3b2d-4c6e-9f10-1a2b3c4d5e6f"
STREAM = "2026/03/02/[$LATEST]1f0b2c3d4e5f60718293a4b5c6d7e8f9"
GROUP = "/aws/lambda/genesys-events"
TIME_MS = 1772438400123
TIME = "2026-03-02T08:00:00.123Z"
START = f"START RequestId: {REQUEST} Version: $LATEST"
END = f"END RequestId: {REQUEST}"
REPORT = (
    f"REPORT RequestId: {REQUEST}\tDuration: 12.83 ms\tBilled Duration: 13 ms\tMemory Size: 128 MB\t"
    "Max Memory Used: 38 MB"
)
INIT = "INIT_START Runtime Version: python:3.12.v38\tRuntime Version ARN: arn:aws:lambda:eu-west-2::runtime:0a1b2c"


def _gzip(data):
    # Without the time, so that the same events are the same bytes.
    return gzip.compress(data, mtime=0)


def compact(value):
    """Write JSON without white space."""
    return json.dumps(value, separators=(",", ":"))


def pretty(value):
    """Write JSON over many lines."""
    return json.dumps(value, indent=4)


def text_of(lines):
    """Join lines, each with its end."""
    return "".join(line + "\n" for line in lines).encode()


def of_invocation(message):
    """Put what a function printed among the lines that Lambda writes."""
    return [INIT, START, "hello from the handler", message, END, REPORT]


def log_event(message, n=0, **fields):
    """Write a log event as `get-log-events` answers it."""
    return {"timestamp": TIME_MS + n, "message": message, "ingestionTime": TIME_MS + n + 900, **fields}


def filter_log_events(messages):
    """Write the answer to `aws logs filter-log-events`."""
    events = [log_event(m, n, logStreamName=STREAM, eventId=f"3839{n:052}") for n, m in enumerate(messages)]
    return {"events": events, "searchedLogStreams": []}


def get_log_events(messages):
    """Write the answer to `aws logs get-log-events`."""
    tokens = {"nextForwardToken": "f/3839/s", "nextBackwardToken": "b/3839/s"}
    return {"events": [log_event(m, n) for n, m in enumerate(messages)], **tokens}


def events_as_text(events):
    """Write the answer to either as the AWS command line does with `--output text`: columns by name, and tabs."""
    names = ("eventId", "ingestionTime", "logStreamName", "message", "timestamp")
    rows = ([str(event[name]) for name in names if name in event] for event in events)
    return text_of("\t".join(["EVENTS", *row]) for row in rows)


def query_results(messages):
    """Write the answer to `aws logs get-query-results`."""
    rows = [
        [
            {"field": "@timestamp", "value": "2026-03-02 08:00:00.123"},
            {"field": "@message", "value": message},
            {"field": "@logStream", "value": STREAM},
            {"field": "@ptr", "value": f"CmEKJgoiMjEwOTg3NjU0{n}"},
        ]
        for n, message in enumerate(messages)
    ]
    statistics = {"recordsMatched": float(len(rows)), "recordsScanned": 9.0, "bytesScanned": 4711.0}
    return {"queryLanguage": "CWLI", "results": rows, "statistics": statistics, "status": "Complete"}


def log_batch(messages, kind="DATA_MESSAGE"):
    """Write what a subscription filter sends."""
    return {
        "messageType": kind,
        "owner": "210987654321",
        "logGroup": GROUP,
        "logStream": STREAM,
        "subscriptionFilters": ["all"],
        "logEvents": [
            {"id": f"3839{n:052}", "timestamp": TIME_MS + n, "message": message} for n, message in enumerate(messages)
        ],
    }


def packed(value):
    """Write JSON as gzip in base64."""
    return base64.b64encode(_gzip(compact(value).encode())).decode()


def received(bodies):
    """Write the answer to `aws sqs receive-message --attribute-names All`."""
    return {
        "Messages": [
            {
                "MessageId": f"message-{n}",
                "ReceiptHandle": f"AQEB{n}",
                "MD5OfBody": "00000000000000000000000000000000",
                "Body": body,
                "Attributes": {
                    "SenderId": "AIDAIENQZJOLO23YVJ4VO",
                    "ApproximateFirstReceiveTimestamp": str(TIME_MS + 50),
                    "ApproximateReceiveCount": str(n + 1),
                    "SentTimestamp": str(TIME_MS),
                },
            }
            for n, body in enumerate(bodies)
        ]
    }


def powertools(**held):
    """Write a record of Powertools' logger."""
    return {
        "level": "INFO",
        "location": "decorate:407",
        "message": "Lambda invocation event",
        "timestamp": "2026-03-02 08:00:00,123+0000",
        "service": "genesys-events",
        "cold_start": True,
        "function_name": "genesys-events",
        "function_memory_size": "128",
        "function_arn": "arn:aws:lambda:eu-west-2:210987654321:function:genesys-events",
        "function_request_id": REQUEST,
        "xray_trace_id": "1-65e2f0a0-0a1b2c3d4e5f60718293a4b5",
        **held,
    }


def powertools_chatter():
    """Write a record without an event, with an id that the function added."""
    return powertools(message="stored", conversation_id="0a6d2f4e-3b1c-4c8e-9d57-6f1e2a3b4c5d")


def lambda_json(kind, **record):
    """Write a line that Lambda itself writes into a log in JSON."""
    return {"time": TIME, "type": kind, "record": {"requestId": REQUEST, **record}}


def _exported(lines):
    return [f"{TIME} {line}" for line in lines]


def every_format(events):
    """Write the same events in every format: name -> (bytes, how many lines and records are skipped)."""
    number = len(events)
    texts = [compact(event) for event in events]
    invocations = [of_invocation(text) for text in texts]
    printed = [line for lines in invocations for line in lines]
    in_python = [line for event in events for line in of_invocation(str(event))]
    logged = [f"[INFO]\t{TIME}\t{REQUEST}\t{text}" for text in texts]
    in_node = [f"{TIME}\t{REQUEST}\tINFO\t{text}" for text in texts]
    talk = 5 * number
    return {
        "JSON lines": (text_of(texts), 0),
        "JSON lines, CRLF and a byte order mark": (b"\xef\xbb\xbf" + "\r\n".join(texts).encode(), 0),
        "UTF-16, as PowerShell writes": (b"\xff\xfe" + "\r\n".join(texts).encode("utf-16-le"), 0),
        "gzip": (_gzip(text_of(texts)), 0),
        "gzip in members": (b"".join(_gzip(text.encode()) for text in texts), 0),
        "gzip in gzip": (_gzip(_gzip(text_of(texts))), 0),
        "array": (compact(events).encode(), 0),
        "array over many lines": (pretty(events).encode(), 0),
        "array with an event a line": (b"[\n" + ",\n".join(texts).encode() + b"\n]\n", 0),
        "events over many lines": (text_of(pretty(event) for event in events), 0),
        "one after another": ("".join(texts).encode(), 0),
        "one after another, over many lines": ("".join(pretty(event) for event in events).encode(), 0),
        "subscription": (text_of([compact({"awslogs": {"data": packed(log_batch(printed))}})]), talk),
        "subscription through Firehose": (
            b"".join(_gzip(compact(log_batch(lines)).encode()) for lines in invocations),
            talk,
        ),
        "control message": (
            (compact(log_batch(["CWL CONTROL MESSAGE"], "CONTROL_MESSAGE")) + compact(log_batch(texts))).encode(),
            1,
        ),
        "export": (_gzip(text_of(_exported(printed))), talk),
        "export of events over many lines": (text_of(_exported([START, *map(pretty, events)])), 1),
        "filter-log-events": (pretty(filter_log_events(printed)).encode(), talk),
        "filter-log-events, event by event": (text_of(map(compact, filter_log_events(texts)["events"])), 0),
        "messages as an array of texts": (pretty(printed).encode(), talk),
        "get-log-events": (pretty(get_log_events([line + "\n" for line in printed])).encode(), talk),
        "filter-log-events as text": (
            events_as_text(filter_log_events([line + "\n" for line in printed])["events"]),
            talk + 6 * number,
        ),
        "get-log-events as text": (events_as_text(get_log_events(texts)["events"]), number),
        "get-query-results": (pretty(query_results(printed)).encode(), talk),
        "results of a query alone": (pretty({"results": query_results(printed)["results"]}).encode(), talk),
        "query results of the console": (pretty([{"@timestamp": TIME, "@message": e} for e in events]).encode(), 0),
        "receive-message": (pretty(received(texts)).encode(), 0),
        "receive-message again and again": ("".join(pretty(received([text])) for text in texts).encode(), 0),
        "Powertools, event": (text_of(compact(powertools(event=event)) for event in events), 0),
        "Powertools, message": (text_of(compact(powertools(message=event)) for event in events), 0),
        "Powertools, message as text": (
            text_of([*(compact(powertools(message=text)) for text in texts), compact(powertools_chatter())]),
            1,
        ),
        "Powertools in filter-log-events": (
            pretty(filter_log_events([compact(powertools(event=event)) for event in events])).encode(),
            0,
        ),
        **{
            f"a logger with {name}": (
                text_of(
                    compact({"level": 30, "time": TIME_MS, name: REQUEST, "msg": "got", "event": e}) for e in events
                ),
                0,
            )
            for name in ("awsRequestId", "aws_request_id", "lambda_request_id", "request_id", "nothing")
        },
        "Lambda's JSON log": (
            text_of([compact(lambda_json("platform.start", version="$LATEST")), *texts]),
            1,
        ),
        "printed": (text_of(printed), talk),
        "printed with words before": (text_of([START, *(f"Received event: {text}" for text in texts)]), 1),
        "printed by Python": (text_of(in_python), talk),
        "logged by Python": (text_of(logged), 0),
        "logged by Node": (text_of(in_node), 0),
        "aws logs tail": (text_of(f"2026-03-02T08:00:00.123000+00:00 {STREAM} {line}" for line in printed), talk),
    }
