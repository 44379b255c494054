"""Sends events to an SQS queue: the body as it came, what the bridge knows in attributes.

A FIFO queue gets each event under its key, so that SQS itself drops a repeat within five minutes, and states of one
entity in their order.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, Final

from oncebridge.amazon import (
    LazyClient,
    Meaning,
    check_queue,
    code_of,
    meaning_of,
    queue_client,
    require_boto3,
    short_code,
)
from oncebridge.ledgers.findings import Finding, good, warning, wrong
from oncebridge.sinks.batch_sender import BYTES_MAX, NO_ANSWER, BatchSender, Entry, Failure, Item
from oncebridge.sinks.event_tree import body_of
from oncebridge.sinks.promise import AT_LEAST_ONCE, SinkPromise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncebridge.event import Event
    from oncebridge.settings.sinks.queue import QueueSettings
    from oncebridge.sinks import SinkContext

#: What JSON may hold and a queue does not take; both can only stand within a text, where an escape says the same.
_ESCAPES: Final = (("\ufffe", "\\ufffe"), ("\uffff", "\\uffff"))


class QueueSender(BatchSender[Item]):
    """Sends messages to one queue."""

    service = "SQS"
    own_words: ClassVar = {
        Meaning.DENIED: "may not be used by this worker; allow it sqs:SendMessage on this queue",
        Meaning.MISSING: "there is no such queue; create it, or correct the setting",
    }

    def __init__(self, name: str, url: str, setting: str, context: SinkContext) -> None:
        """Take its name, and the queue's URL with the setting that names it."""
        require_boto3(setting)
        self._url = check_queue(url, setting)
        self._is_fifo = self._url.endswith(".fifo")
        destination = f"queue {self._url.rpartition('/')[2]}"
        client = LazyClient(lambda: queue_client(url, setting))
        super().__init__(name, destination, client, context.breakers.of(self._url))

    def _message(self, body: str, facts: Mapping[str, str | int], *, group: str, once_by: str) -> Entry:
        """Make a message; a FIFO queue keeps those of a group in order, and drops a repeat of `once_by`."""
        order = {"MessageGroupId": group, "MessageDeduplicationId": once_by} if self._is_fifo else {}
        attributes = message_attributes(facts)
        size = len(body.encode())
        for name, value in attributes.items():
            size += sum(len(text.encode()) for text in (name, *value.values()))
        return Entry({"MessageBody": body, "MessageAttributes": attributes, **order}, size)

    def _call(self, contents: list[dict[str, Any]]) -> list[Failure | None]:
        entries = [{"Id": str(at), **content} for at, content in enumerate(contents)]
        answer = self._client().send_message_batch(QueueUrl=self._url, Entries=entries)
        # Answers come in any order, and by their ids alone.
        ends: dict[Any, Failure | None] = {one.get("Id"): None for one in answer.get("Successful") or ()}
        for one in answer.get("Failed") or ():
            ends[one.get("Id")] = Failure(short_code(one.get("Code")), str(one.get("Message") or ""))
        return [ends.get(entry["Id"], NO_ANSWER) for entry in entries]


class Queue(QueueSender["Event"]):
    """Sends events to one queue, up to ten in a call."""

    def __init__(self, settings: QueueSettings, context: SinkContext) -> None:
        """Take the settings; nothing is connected before the first event."""
        self._search = settings.body
        super().__init__(settings.name, settings.queue, f"sink {settings.name}: queue", context)

    @property
    def promise(self) -> SinkPromise:
        """How often an event takes effect there, and why."""
        why = "SQS may deliver a message twice, and one is sent again where an answer was lost"
        key = "the attribute oncebridge_key stays the same, for receivers that must recognise it"
        if self._is_fifo:
            why = (
                "SQS drops a message that is sent again within five minutes of the first, by its "
                "MessageDeduplicationId, but not one that comes later"
            )
        return SinkPromise(AT_LEAST_ONCE, f"{why}; {key}")

    def _entry(self, event: Event) -> Entry:
        body = body_of(event, self._search).decode()
        for character, escape in _ESCAPES:
            body = body.replace(character, escape)
        facts: dict[str, str | int] = {
            "oncebridge_key": event.key,
            "oncebridge_topic": printable(event.topic),
            "oncebridge_token": event.token,
            "oncebridge_attempt": event.attempt,
        }
        # Two sinks that send to one queue are two effects.
        return self._message(body, facts, group=group_of(event), once_by=f"{event.key}.{self._name}")

    def examine(self) -> Iterator[Finding]:
        """Look whether the queue is there, and takes large events; one that may not be looked at may still be fine."""
        return queue_findings(self._client, self._url, "queue", BYTES_MAX)


def group_of(event: Event) -> str:
    """Return what an event must be in order with: its entity, else its conversation, else nothing but itself."""
    if event.entity is not None:
        return event.entity
    if event.conversation_id is not None:
        return hashlib.sha256(f"{event.org} {event.conversation_id}".encode()).hexdigest()
    return event.key


# --- what a queue takes ------------------------------------------------------------------------------

_FACT_MAX: Final = 500


def message_attributes(facts: Mapping[str, str | int]) -> dict[str, dict[str, str]]:
    """Write facts as attributes of a message; empty ones are left out, since a queue does not take them."""
    return {
        name: {"DataType": "Number" if isinstance(fact, int) else "String", "StringValue": str(fact)}
        for name, fact in facts.items()
        if fact != ""
    }


def printable(text: str) -> str:
    """Write a text from outside in a line that queues, logs and terminals take."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else "?" for character in text)
    return text[:_FACT_MAX]


def queue_findings(client: Callable[[], Any], url: str, setting: str, bytes_max: int) -> Iterator[Finding]:
    """Say whether a queue is there, and takes messages of so many bytes; `setting` is what names it."""
    try:
        answer = client().get_queue_attributes(QueueUrl=url, AttributeNames=["MaximumMessageSize"])
    except Exception as error:  # noqa: BLE001 - any error of boto3 becomes ours
        if meaning_of(error) is not Meaning.DENIED:
            fix = f"check `{setting}`, credentials, region and the way to AWS"
            yield wrong("queue", f"cannot be used ({code_of(error)})", fix)
        return
    size = int(answer.get("Attributes", {}).get("MaximumMessageSize", bytes_max))
    if size < bytes_max:
        found = f"takes messages of up to {size:,} bytes; larger events would become dead letters"
        yield warning("queue", found, f"set its MaximumMessageSize to {bytes_max}")
    else:
        yield good("queue", "is there")
