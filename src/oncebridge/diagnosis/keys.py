"""The keys that people compare deliveries by: what each would have remembered, as a number for each delivery."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.errors import ConfigurationError
from oncebridge.settings.expressions import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.event import Event
    from oncebridge.identity import Identity

MINUTE: Final = 60.0
HOUR: Final = 3600.0
MASK: Final = (1 << 64) - 1


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and how long it is remembered after the first delivery that it let through."""

    name: str
    title: str
    compares: str
    #: Which of the numbers of a delivery it compares.
    stream: int
    seconds: float | None = None
    #: Whether it compares when a message is sent: one that is received again is not compared.
    at_sending: bool = False


#: What is compared; keys that differ only in how long they remember share one.
ENVELOPE, CONVERSATION, CONVERSATION_STATE, CONVERSATION_TIME, CONTENT, WHOLE = range(6)
STREAMS: Final = 6

#: A new key is one row here, and a number in `numbers_of` unless it compares the same as another.
BUILT_IN: Final = (
    Key(name="envelope_id", title="Envelope id", compares="the id of the envelope", stream=ENVELOPE),
    Key(
        name="conversation_10s",
        title="Conversation, 10 s",
        compares="the conversation's id",
        stream=CONVERSATION,
        seconds=10,
    ),
    Key(
        name="conversation_state_500ms",
        title="Conversation and state, 500 ms",
        compares="the conversation's id and its state: status or state of the body and the topic; for a state all of "
        "the body but times and ids",
        stream=CONVERSATION_STATE,
        seconds=0.5,
    ),
    Key(
        name="conversation_time",
        title="Conversation and timestamp",
        compares="the conversation's id and the time of the event",
        stream=CONVERSATION_TIME,
    ),
    Key(name="content_hash", title="Content hash", compares="all of detail, as it is written", stream=CONTENT),
    Key(
        name="sqs_fifo",
        title="SQS FIFO, 5 min",
        compares="the whole message when it is sent; one that is received again passes",
        stream=WHOLE,
        seconds=5 * MINUTE,
        at_sending=True,
    ),
    Key(
        name="powertools",
        title="Powertools, 1 h",
        compares="the whole event, which is what Powertools compares unless it is told otherwise",
        stream=WHOLE,
        seconds=HOUR,
    ),
)


def numbers_of(event: Event, identity: Identity, content: int, whole: int) -> list[int | None]:
    """Return a number for each stream; None where the delivery lacks what is compared."""
    numbers = [id_number(event.envelope.id), None, None, None, content, whole]
    if identity.conversation is not None:
        conversation = int.from_bytes(identity.conversation[:8], "big")
        numbers[CONVERSATION] = conversation
        numbers[CONVERSATION_STATE] = joined(conversation, _state_number(event, identity))
        if identity.time_ms is not None:
            numbers[CONVERSATION_TIME] = joined(conversation, identity.time_ms)
    return numbers


def number(data: bytes) -> int:
    """Return a number that equal bytes share, and others practically never: in all processes the same."""
    return number_in(sha256(data).digest())


def number_in(digest: bytes) -> int:
    """Return the number of bytes with this SHA-256."""
    found: int = _first_eight(digest)[0]
    return found


def joined(one: int, other: int) -> int:
    """Return the number of two numbers: whatever the size of a machine's words, others practically never share it."""
    return ((one ^ (other * _ODD)) * _OTHER_ODD) & MASK


_ODD: Final = 0x9E3779B97F4A7C15
_OTHER_ODD: Final = 0xC2B2AE3D27D4EB4F
_first_eight: Final = Struct("<Q24x").unpack


@lru_cache(maxsize=4096)
def _text_number(text: str) -> int:
    return number(text.encode(errors="surrogatepass"))


@lru_cache(maxsize=64)
def id_number(envelope_id: str | None) -> int | None:
    """Return the number of an envelope's id."""
    return None if envelope_id is None else number(envelope_id.encode())


def _state_number(event: Event, identity: Identity) -> int:
    if identity.state is not None:
        return int.from_bytes(identity.state[:8], "big")
    body = event.body
    return _text_number(f"{event.topic} {_short(body.get('status'))} {_short(body.get('state'))}")


def _short(value: Any) -> str:
    return value[:256] if type(value) is str else ""


# --- a user's own key ------------------------------------------------------------------------------------------

_SPAN: Final = re.compile(r"(?s)(.+?)\s+for\s+(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": 24 * HOUR}


class OwnKey:
    """A key that a user wrote as JMESPath over the whole event, as Powertools takes it."""

    def __init__(self, text: str, stream: int) -> None:
        """Read `EXPRESSION` or `EXPRESSION for 10 s`; raises `ConfigurationError` where it is no expression."""
        match = _SPAN.fullmatch(text.strip())
        expression, seconds = (text.strip(), None) if match is None else (match[1], float(match[2]) * _UNITS[match[3]])
        try:
            text.encode()  # a terminal may hand over bytes that are no text
            self._search: Callable[[Any], Any] = compiled(expression)
        except ValueError:
            raise ConfigurationError(
                f"--key: {text!r} is not a JMESPath expression; write one over the whole event, such as "
                "'[detail.eventBody.conversationId, detail.topicName] for 10 s'"
            ) from None
        self.key = Key(name=text.strip(), title=text.strip(), compares=expression, stream=stream, seconds=seconds)

    def number_of(self, raw: bytes) -> int | None:
        """Return a delivery's number; None where it lacks the field, and is processed."""
        try:
            found = self._search(msgspec.json.decode(raw))
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
        return None if _is_missing(found) else number(msgspec.json.encode(found, order="sorted"))


def _is_missing(found: Any) -> bool:
    """Return whether an expression found nothing to compare; Powertools processes such an event, too."""
    if isinstance(found, (list, dict)):
        values = found if isinstance(found, list) else found.values()
        return all(value is None for value in values)
    return found is None or found == ""
