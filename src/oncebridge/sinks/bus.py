"""Puts events on another EventBridge bus: rules and targets there get each event once, as it came.

EventBridge gives every put an id of its own, so a repeated one is a new event to it. What stays the same is the event's
key, in `detail.oncebridge.key`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.identity import read_time
from oncebridge.sinks.amazon import BusLook, OnceMade, bus_client, check_bus, require_boto3, short_code
from oncebridge.sinks.promise import AT_LEAST_ONCE, SinkPromise
from oncebridge.sinks.sending import NO_ANSWER, Entry, EntryRefused, Failure, Sending

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.event import Event
    from oncebridge.ledgers.findings import Finding
    from oncebridge.settings.sinks.bus import BusSettings
    from oncebridge.sinks import Means

#: For events that came without one.
SOURCE: Final = "oncebridge"
DETAIL_TYPE_MAX: Final = 128
_TIME_BYTES: Final = 14


class Bus(Sending):
    """Puts events on one bus, up to ten in a call."""

    def __init__(self, settings: BusSettings, means: Means) -> None:
        """Take the settings; nothing is connected before the first event."""
        setting = f"sink {settings.name}: bus"
        require_boto3(setting)
        self._source = settings.source
        self._bus = check_bus(settings.bus, setting)
        self._look = BusLook(self._bus, means.clock, doubts=True)
        place = f"bus {self._bus.rpartition('event-bus/')[2]}"
        client = OnceMade(lambda: bus_client(settings.bus, setting))
        super().__init__(settings.name, place, client, means.breakers.of(f"bus {self._bus}"))

    @property
    def promise(self) -> SinkPromise:
        """How often an event takes effect there, and why."""
        why = (
            "EventBridge takes a put that is repeated after a lost answer for a new event, and delivers at least once "
            "itself; detail.oncebridge.key stays the same, for targets that must know it again"
        )
        return SinkPromise(AT_LEAST_ONCE, why)

    def _entry(self, event: Event) -> Entry:
        frame = msgspec.json.decode(event.raw, type=_Frame)
        detail = with_key(frame.detail or event.raw.strip(), event.key)
        detail_type = event.envelope.detail_type or event.topic
        if len(detail_type) > DETAIL_TYPE_MAX:
            raise EntryRefused(f"its detail-type is longer than the {DETAIL_TYPE_MAX} characters that a bus takes")
        source = self._source or own_source(event.envelope.source) or SOURCE
        resources = frame.texts()
        time = _time_of(event)
        content = {
            "EventBusName": self._bus,
            "Source": source,
            "DetailType": detail_type,
            "Detail": detail.decode(),
            **({"Resources": resources} if resources else {}),
            **({} if time is None else {"Time": time}),
        }
        texts = (source, detail_type, *resources)
        size = len(detail) + sum(len(text.encode()) for text in texts) + (0 if time is None else _TIME_BYTES)
        return Entry(content, size)

    def _call(self, contents: list[dict[str, Any]]) -> list[Failure | None]:
        client = self._client()
        self._look(client)
        answers = client.put_events(Entries=contents).get("Entries") or []
        failures = [_failure(answer) for answer in answers[: len(contents)]]
        return failures + [NO_ANSWER] * (len(contents) - len(failures))

    def examine(self) -> Iterator[Finding]:
        """Look whether the bus is there."""
        return self._look.findings(self._client, "bus")


def _failure(answer: dict[str, Any]) -> Failure | None:
    """Read what became of one entry: the call succeeds although its entry does not."""
    code = answer.get("ErrorCode")
    if code is None:
        return None if answer.get("EventId") else NO_ANSWER
    return Failure(short_code(code), str(answer.get("ErrorMessage") or ""))


class _Frame(msgspec.Struct):
    """An envelope with its detail as it was written; empty where there is no envelope."""

    detail: msgspec.Raw = msgspec.Raw(b"")
    resources: Any = None

    def texts(self) -> list[str]:
        """Return the resources, if they are what resources are."""
        resources = self.resources if isinstance(self.resources, list) else []
        return [one for one in resources if isinstance(one, str) and one]


class _Detail(msgspec.Struct):
    """What of a detail tells whether it came through a bridge before."""

    oncebridge: msgspec.Raw = msgspec.Raw(b"")


def with_key(detail: bytes | msgspec.Raw, key: str) -> bytes:
    """Put the key into a detail, and leave everything else as it was written.

    What stands there already stays: the first bridge's key names the event at every bridge behind it, and the same
    text comes out however often it passes.
    """
    text = bytes(detail)
    if msgspec.json.decode(text, type=_Detail).oncebridge:
        return text
    rest = text[1:]
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    return b'{"oncebridge":{"key":"' + key.encode() + b'"}' + comma + rest


_RESERVED: Final = re.compile(r"\A(?:aws\.(?:partner/)?)+")


def own_source(source: str | None) -> str:
    """Return a source as others may use it: what begins with `aws.` is Amazon's alone. Empty where nothing is left."""
    return _RESERVED.sub("", source or "").strip()


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _time_of(event: Event) -> datetime | None:
    """Return the envelope's time, or else the event's: without one each put would have another."""
    known = read_time(event.envelope.time)
    if known is not None:
        return _EPOCH + timedelta(microseconds=known[0] // 1000)
    return None if event.time_ms is None else _EPOCH + timedelta(milliseconds=event.time_ms)
