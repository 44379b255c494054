"""Sends dead letters on, to an SQS queue or an EventBridge bus: each is in the ledger already.

A letter holds the event as it came, so everyone who may read the queue or the bus may read personal data.
"""

from __future__ import annotations

import base64
import hashlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.breaker import Open
from oncebridge.errors import RetryLater, SaysWhy
from oncebridge.handlers import Handler, LetterCopy
from oncebridge.ledgers.findings import Finding, warning
from oncebridge.retry import RetryPolicy
from oncebridge.sinks.batch_sender import BatchSender, Entry, EntryRefused, Failure
from oncebridge.sinks.bus import BusSender, bus_entry
from oncebridge.sinks.queue import QueueSender, printable, queue_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.settings import Settings
    from oncebridge.sinks import SinkContext

SOURCE: Final = "oncebridge"  # sources that begin with `aws.` are Amazon's, so the event's own cannot be used
DETAIL_TYPE: Final = "Dead Letter"
#: Never given up, and never an hour apart: nothing that died is acknowledged before it is sent.
_SENDING: Final = RetryPolicy(base_seconds=0.1, growth=2, cap_seconds=30.0)
#: Characters that a queue takes.
_TEXT_ALLOWED: Final = {0x9, 0xA, 0xD}


class LetterNotSent(RetryLater, SaysWhy):
    """A dead letter could not be sent on; it is in the ledger, and its delivery is not acknowledged yet."""

    def __init__(self, message: str, *, after_seconds: float = 0.0) -> None:
        """Take the words, and how long the queue or bus is left alone."""
        super().__init__(message, after_seconds=after_seconds)


def make_copiers(settings: Settings, context: SinkContext) -> tuple[Handler, ...]:
    """Make the handlers that send dead letters on, as the settings say; nothing is connected before the first."""
    copiers = []
    if settings.dead_letter_queue is not None:
        copiers.append(_copier("dead letters to the queue", LetterQueue(settings.dead_letter_queue, context)))
    if settings.dead_letter_bus is not None:
        copiers.append(_copier("dead letters to the bus", LetterBus(settings.dead_letter_bus, context)))
    return tuple(copiers)


def _copier(name: str, function: Callable[[LetterCopy], None]) -> Handler:
    return Handler(pattern="*", function=function, name=name, persistent=True, retry=_SENDING)


class LetterSender(BatchSender[LetterCopy]):
    """Sends dead letters one at a time, and a note in place of one that is not accepted as it is."""

    @abstractmethod
    def _note_entry(self, item: LetterCopy) -> Entry:
        """Write an entry that says where the letter is."""

    def __call__(self, item: LetterCopy) -> None:
        """Send one. No failure is final: the letter of a letter would be nowhere."""
        error = self._send_one(self._entry(item))
        if isinstance(error, EntryRefused):
            error = self._send_one(self._note_entry(item))
        if isinstance(error, Open):
            raise LetterNotSent(f"could not be sent: {error.last}", after_seconds=error.retry_in_us / 1_000_000)
        if error is not None:
            after_seconds = error.after_seconds if isinstance(error, RetryLater) else 0.0
            raise LetterNotSent(f"could not be sent: {error}", after_seconds=after_seconds) from error


class LetterQueue(LetterSender, QueueSender[LetterCopy]):
    """Sends dead letters to an SQS queue: the event is the body, as in the queues that EventBridge fills itself."""

    def __init__(self, url: str, context: SinkContext) -> None:
        """Take the queue's URL."""
        super().__init__("dead letters", url, "dead_letter_queue", context)

    def _entry(self, item: LetterCopy) -> Entry:
        text = _text(item.raw)
        if text is None:
            return self._letter(item, base64.b64encode(item.raw).decode(), {"oncebridge_encoding": "base64"})
        return self._letter(item, text, {})

    def _note_entry(self, item: LetterCopy) -> Entry:
        return self._letter(item, _note(item).decode(), {})

    def _letter(self, item: LetterCopy, body: str, encoding: dict[str, str]) -> Entry:
        digest = hashlib.sha256(f"{item.key} {item.handler}".encode()).hexdigest()
        return self._message(body, {**_facts(item), **encoding}, group=item.key, once_by=digest)

    def _call(self, contents: list[dict[str, Any]]) -> list[Failure | None]:
        for content in contents:  # always one
            self._client().send_message(QueueUrl=self._url, **content)
        return [None] * len(contents)

    def examine(self) -> Iterator[Finding]:
        """Look whether the queue is there; a letter that is too large for it is sent as a note."""
        found = list(queue_findings(self._client, self._url, "dead_letter_queue", 1))
        fix = "allow sqs:GetQueueAttributes beside sqs:SendMessage, or check by hand that it is there"
        yield from found or [warning("queue", "may not be looked at", fix)]


class LetterBus(LetterSender, BusSender[LetterCopy]):
    """Sends dead letters to an EventBridge bus, as events of our own that hold the one that died."""

    def __init__(self, bus: str, context: SinkContext) -> None:
        """Take the bus's name or ARN."""
        # Without doubts: EventBridge would drop the letter, and its delivery would be acknowledged.
        super().__init__("dead letters", bus, "dead_letter_bus", context, doubts=False)

    def _entry(self, item: LetterCopy) -> Entry:
        return bus_entry(self._bus, SOURCE, DETAIL_TYPE, _detail(item))

    def _note_entry(self, item: LetterCopy) -> Entry:
        return bus_entry(self._bus, SOURCE, DETAIL_TYPE, _note(item))

    def examine(self) -> Iterator[Finding]:
        """Look whether the bus is there."""
        return self._look.findings(self._client, "dead_letter_bus")


def _facts(copy: LetterCopy) -> dict[str, str]:
    """Return the facts about a letter, without anything of the event in it."""
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
    """Write where the letter is, for one that is too large to be sent."""
    return msgspec.json.encode({**_named(copy), "bytes": len(copy.raw), "see": f"oncebridge dead show {copy.key}"})


def _named(copy: LetterCopy) -> dict[str, Any]:
    facts = {name.removeprefix("oncebridge_"): value for name, value in _facts(copy).items()}
    return {**facts, "id": copy.envelope}
