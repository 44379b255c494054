"""Stands in for Amazon, in cases that no emulator knows: notes every call, and fails on cue."""

from unittest import mock

from botocore.exceptions import ClientError

from oncebridge import sinks
from oncebridge.event import parse
from oncebridge.identity import identify, named_event
from oncebridge.settings.sinks.bus import BusSettings
from oncebridge.settings.sinks.queue import QueueSettings
from oncebridge.topics import Profiles
from payloads import raw

SECRET = b"a secret of the tests' own, 32 b"
QUEUE_URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/clean"
FIFO_URL = f"{QUEUE_URL}.fifo"


def refusal(code, status=400, operation="PutEvents", message="<the event, quoted>"):
    """Make the error of a call that Amazon answered with this code."""
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation
    )


class Amazon:
    """A client of EventBridge and SQS."""

    def __init__(self, *script):
        """Take what becomes of each call in order; after that every entry is taken.

        An exception is raised; of a dictionary each index fails with its code; a function of the entries and their
        usual answer makes another; None is no trouble at all.
        """
        self.script = list(script)
        #: The entries of each call.
        self.calls = []
        #: What was taken, in order.
        self.taken = []
        self.looked_at = []
        self.missing = False
        self.closed = 0

    def put_events(self, **call):
        """Take entries, each or none."""
        entries = call["Entries"]
        failed, change = self._next(entries)
        answers = [
            {"ErrorCode": failed[at], "ErrorMessage": f"quotes {entry['Detail']}"}
            if at in failed
            else {"EventId": f"e{at}"}
            for at, entry in enumerate(entries)
        ]
        return change(entries, {"FailedEntryCount": len(failed), "Entries": answers})

    def describe_event_bus(self, **call):
        """Tell whether a bus is there."""
        self.looked_at.append(call["Name"])
        if isinstance(self.missing, Exception):
            raise self.missing
        if self.missing:
            raise refusal("ResourceNotFoundException", operation="DescribeEventBus")

    def send_message_batch(self, **call):
        """Take entries, each or none; the answers come in another order."""
        entries = call["Entries"]
        assert len({entry["Id"] for entry in entries}) == len(entries)
        failed, change = self._next(entries)
        done = [{"Id": entry["Id"], "MessageId": "m"} for at, entry in enumerate(entries) if at not in failed]
        wrong = [
            {"Id": entries[at]["Id"], "Code": code, "SenderFault": True, "Message": "quotes it"}
            for at, code in failed.items()
        ]
        return change(entries, {"Successful": done[::-1], "Failed": wrong[::-1]})

    def send_message(self, **call):
        """Take one message, or fail as a whole."""
        failed, _ = self._next([call])
        if failed:
            raise refusal(failed[0], operation="SendMessage")

    def get_queue_attributes(self, **call):
        """Tell whether a queue is there, and what it takes."""
        self.looked_at.append(call["QueueUrl"])
        if isinstance(self.missing, Exception):
            raise self.missing
        return {"Attributes": self.missing or {"MaximumMessageSize": "1048576"}}

    def close(self):
        """Note that."""
        self.closed += 1

    def _next(self, entries):
        assert 1 <= len(entries) <= 10
        self.calls.append(entries)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, BaseException):
            raise step
        failed = step if isinstance(step, dict) else {}
        if not callable(step):
            self.taken += [entry for at, entry in enumerate(entries) if at not in failed]
        return failed, step if callable(step) else lambda _, answer: answer


def bus_on(amazon, context, bus="clean", **settings):
    """Make the sink for a bus at this double."""
    with mock.patch("oncebridge.sinks.bus.bus_client", return_value=amazon):
        sink = sinks.make_sink(BusSettings(name="clean", bus=bus, **settings), context)
        sink._client()
    return sink


def queue_on(amazon, context, queue=QUEUE_URL, name="q", **settings):
    """Make the sink for a queue at this double."""
    with mock.patch("oncebridge.sinks.queue.queue_client", return_value=amazon):
        sink = sinks.make_sink(QueueSettings(name=name, queue=queue, **settings), context)
        sink._client()
    return sink


def named(delivery):
    """Read an event as a handler gets it, under its key."""
    data = delivery if isinstance(delivery, bytes) else raw(delivery)
    event = parse(data)
    return named_event(event, identify(event, Profiles().of(event), SECRET))
