"""Sends dead letters on, to an SQS queue or an EventBridge bus: each is in the ledger already.

What is sent holds the event as it came, so whoever may read the queue or the bus may read personal data.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.amazon import (
    LazyClient,
    Meaning,
    bus_client,
    check_bus,
    check_queue,
    code_of,
    meaning_of_code,
    queue_client,
    require_boto3,
    short_code,
)
from oncebridge.clock import SystemClock
from oncebridge.errors import SaysWhy
from oncebridge.handlers import Handler, LetterCopy
from oncebridge.ledgers.findings import Finding, warning
from oncebridge.sinks.bus import BusLook
from oncebridge.sinks.queue import message_attributes, printable, queue_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.clock import Clock
    from oncebridge.settings import Settings

SOURCE: Final = "oncebridge"  # sources that begin with `aws.` are Amazon's, so the event's own cannot be used
DETAIL_TYPE: Final = "Dead Letter"
#: Characters that a queue takes.
_TEXT_ALLOWED: Final = {0x9, 0xA, 0xD}


class LetterNotSent(SaysWhy):
    """A dead letter could not be sent on; it is in the ledger, and its delivery is not acknowledged yet."""


def make_copiers(settings: Settings) -> tuple[Handler, ...]:
    """Make what sends dead letters to where the settings say; nothing is connected before the first."""
    copiers = []
    if settings.dead_letter_queue is not None:
        copiers.append(_copier("dead letters to the queue", LetterQueue(settings.dead_letter_queue)))
    if settings.dead_letter_bus is not None:
        copiers.append(_copier("dead letters to the bus", LetterBus(settings.dead_letter_bus)))
    return tuple(copiers)


def _copier(name: str, function: Callable[[LetterCopy], None]) -> Handler:
    return Handler(pattern="*", function=function, name=name, persistent=True)


class LetterQueue:
    """Sends dead letters to an SQS queue: the event is the body, as in the queues that EventBridge fills itself."""

    def __init__(self, url: str) -> None:
        """Take the queue's URL."""
        require_boto3("dead_letter_queue")
        self._url = check_queue(url, "dead_letter_queue")
        self._client = LazyClient(lambda: queue_client(url, "dead_letter_queue"))

    def __call__(self, copy: LetterCopy) -> None:
        """Send one."""
        text = _text(copy.raw)
        body = base64.b64encode(copy.raw).decode() if text is None else text
        encoding = {"oncebridge_encoding": "base64"} if text is None else {}
        _send(lambda: self._send(copy, body, encoding), lambda: self._send(copy, _note(copy).decode(), {}))

    def _send(self, copy: LetterCopy, body: str, encoding: dict[str, str]) -> None:
        facts = {**_facts(copy), **encoding}
        self._client().send_message(
            QueueUrl=self._url, MessageBody=body, MessageAttributes=message_attributes(facts), **self._order(copy)
        )

    def examine(self) -> Iterator[Finding]:
        """Look whether the queue is there; what is too large for it is sent as a note."""
        found = list(queue_findings(self._client, self._url, "dead_letter_queue", 1))
        fix = "allow sqs:GetQueueAttributes beside sqs:SendMessage, or check by hand that it is there"
        yield from found or [warning("queue", "may not be looked at", fix)]

    def close(self) -> None:
        """Close the connections; it may be used again."""
        self._client.close()

    def _order(self, copy: LetterCopy) -> dict[str, str]:
        if not self._url.endswith(".fifo"):
            return {}
        digest = hashlib.sha256(f"{copy.key} {copy.handler}".encode()).hexdigest()
        return {"MessageGroupId": copy.key, "MessageDeduplicationId": digest}


class LetterBus:
    """Sends dead letters to an EventBridge bus, as events of our own that hold the one that died."""

    def __init__(self, bus: str, clock: Clock | None = None) -> None:
        """Take the bus's name or ARN."""
        require_boto3("dead_letter_bus")
        self._bus = check_bus(bus, "dead_letter_bus")
        # Without doubts: what is dropped there is in nobody's queue, and its delivery would be acknowledged.
        self._look = BusLook(self._bus, clock or SystemClock(), doubts=False)
        self._client = LazyClient(lambda: bus_client(bus, "dead_letter_bus"))

    def __call__(self, copy: LetterCopy) -> None:
        """Send one, to a bus that is there."""
        _send(lambda: self._put(_detail(copy)), lambda: self._put(_note(copy)))

    def examine(self) -> Iterator[Finding]:
        """Look whether the bus is there."""
        return self._look.findings(self._client, "dead_letter_bus")

    def close(self) -> None:
        """Close the connections; it may be used again."""
        self._client.close()

    def _put(self, detail: bytes) -> None:
        entry = {
            "EventBusName": self._bus,
            "Source": SOURCE,
            "DetailType": DETAIL_TYPE,
            "Detail": detail.decode(),
        }
        client = self._client()
        self._look(client)
        (answer,) = client.put_events(Entries=[entry])["Entries"]
        if "EventId" not in answer:  # the call succeeds although its entry does not
            raise _Refused(answer.get("ErrorCode", "no event id"))


class _Refused(Exception):
    """One entry of a call was not taken."""


def _send(whole: Callable[[], None], note: Callable[[], None]) -> None:
    """Send all of it; only a note where Amazon does not take it."""
    try:
        try:
            whole()
        except Exception as error:
            if meaning_of_code(_code(error)) is not Meaning.REFUSED:
                raise
            note()
    except Exception as error:  # whatever boto3 raises becomes ours
        raise LetterNotSent(f"could not be sent: {_why(_code(error))}") from error


def _why(code: str) -> str:
    is_missing = meaning_of_code(code) is Meaning.MISSING
    return f"there is no such bus or queue, or it cannot be seen from here ({code})" if is_missing else code


def _code(error: Exception) -> str:
    return short_code(error.args[0]) if isinstance(error, _Refused) else code_of(error)


def _facts(copy: LetterCopy) -> dict[str, str]:
    """Return what is known of a letter, free of what it holds."""
    return {
        "oncebridge_key": copy.key,
        "oncebridge_topic": printable(copy.topic),
        "oncebridge_handler": printable(copy.handler),
        "oncebridge_reason": printable(copy.reason),
    }


def _text(raw: bytes) -> str | None:
    """Return the event as text; None where a queue would not take that."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    allowed = all(character >= " " or ord(character) in _TEXT_ALLOWED for character in text)
    return text if text and allowed and "\ufffe" not in text and "\uffff" not in text else None


def _detail(copy: LetterCopy) -> bytes:
    """Write the letter with the event inside: as it came where that is an object, else encoded."""
    held: dict[str, Any] = {"raw_base64": base64.b64encode(copy.raw).decode()}
    try:
        if isinstance(msgspec.json.decode(copy.raw), dict):
            held = {"event": msgspec.Raw(copy.raw)}
    except msgspec.DecodeError:
        pass
    return msgspec.json.encode({**_named(copy), **held})


def _note(copy: LetterCopy) -> bytes:
    """Write where the letter is, for those that are too large to be sent."""
    return msgspec.json.encode({**_named(copy), "bytes": len(copy.raw), "see": f"oncebridge dead show {copy.key}"})


def _named(copy: LetterCopy) -> dict[str, Any]:
    facts = {name.removeprefix("oncebridge_"): value for name, value in _facts(copy).items()}
    return {**facts, "id": copy.envelope}
