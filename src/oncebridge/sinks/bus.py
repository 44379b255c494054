"""Puts events on another EventBridge bus: rules and targets there get each event once, as it came.

EventBridge gives every put an id of its own, so a repeated one is a new event to it. What stays the same is the event's
key, in `detail.oncebridge.key`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from oncebridge.amazon import (
    LazyClient,
    Meaning,
    bus_client,
    check_bus,
    code_of,
    meaning_of,
    require_boto3,
    short_code,
    status_of,
)
from oncebridge.identity import read_time
from oncebridge.ledgers.findings import Finding, good, warning, wrong
from oncebridge.sinks.batch_sender import NO_ANSWER, BatchSender, Entry, EntryRefused, Failure, Item
from oncebridge.sinks.promise import AT_LEAST_ONCE, SinkPromise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncebridge.clock import Clock
    from oncebridge.event import Event
    from oncebridge.settings.sinks.bus import BusSettings
    from oncebridge.sinks import SinkContext

#: For events that came without one.
SOURCE: Final = "oncebridge"
DETAIL_TYPE_MAX: Final = 128
_TIME_BYTES: Final = 14


class BusSender(BatchSender[Item]):
    """Puts entries on one bus that is there."""

    service = "EventBridge"
    own_words: ClassVar = {
        Meaning.DENIED: "may not be used by this worker; allow it events:PutEvents on this bus",
        Meaning.MISSING: "there is no such bus, or it cannot be seen from here; create it, or correct the setting",
    }

    def __init__(self, name: str, bus: str, setting: str, context: SinkContext, *, doubts: bool) -> None:
        """Take its name, the bus with the setting that names it, and whether one that is unseen may still be there."""
        require_boto3(setting)
        self._bus = check_bus(bus, setting)
        self._look = BusLook(self._bus, context.clock, doubts=doubts)
        destination = f"bus {self._bus.rpartition('event-bus/')[2]}"
        client = LazyClient(lambda: bus_client(bus, setting))
        super().__init__(name, destination, client, context.breakers.of(f"bus {self._bus}"))

    def _call(self, contents: list[dict[str, Any]]) -> list[Failure | None]:
        client = self._client()
        self._look(client)
        answers = client.put_events(Entries=contents).get("Entries") or []
        failures = [_failure(answer) for answer in answers[: len(contents)]]
        return failures + [NO_ANSWER] * (len(contents) - len(failures))


def bus_entry(bus: str, source: str, detail_type: str, detail: bytes, **more: Any) -> Entry:
    """Make an entry for a bus; its size is counted as EventBridge counts it."""
    content = {"EventBusName": bus, "Source": source, "DetailType": detail_type, "Detail": detail.decode(), **more}
    texts = (source, detail_type, *more.get("Resources", ()))
    size = len(detail) + sum(len(text.encode()) for text in texts) + (_TIME_BYTES if "Time" in more else 0)
    return Entry(content, size)


class Bus(BusSender["Event"]):
    """Puts events on one bus, up to ten in a call."""

    def __init__(self, settings: BusSettings, context: SinkContext) -> None:
        """Take the settings; nothing is connected before the first event."""
        self._source = settings.source
        super().__init__(settings.name, settings.bus, f"sink {settings.name}: bus", context, doubts=True)

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
        more: dict[str, Any] = {"Resources": frame.texts(), "Time": _time_of(event)}
        return bus_entry(
            self._bus, source, detail_type, detail, **{name: value for name, value in more.items() if value}
        )

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


# --- a bus that is not there -------------------------------------------------------------------------

#: How long a bus is taken to be there.
LOOK_EACH_US: Final = 60_000_000
_ARN: Final = "arn:"


class BusLook:
    """Sees that a bus is there, now and then: one that is not takes every event without a word, and drops it."""

    def __init__(self, bus: str, clock: Clock, *, doubts: bool) -> None:
        """Take its name or ARN. With `doubts` one of another account that is not found may only be unseen from here."""
        self._bus = bus
        self._clock = clock
        self._doubts = doubts and bus.startswith(_ARN)
        self._look_again_us: int | None = None
        self._was_seen = False

    def __call__(self, client: Any) -> None:
        """Look, unless that was done lately; raise what Amazon says of a bus that is not there, or does not answer."""
        now_us = self._clock.monotonic_us()
        if self._look_again_us is not None and now_us < self._look_again_us:
            return
        try:
            self._describe(client)
            self._was_seen = True
        except Exception as error:
            if status_of(error) is None or self._is_missing(error):
                raise
        self._look_again_us = now_us + LOOK_EACH_US

    def _describe(self, client: Any) -> None:
        try:
            client.describe_event_bus(Name=self._bus)
        except Exception as error:
            if meaning_of(error) is not Meaning.MISSING or not self._is_there_by_name(client):
                raise

    def _is_there_by_name(self, client: Any) -> bool:
        """Tell whether a bus of this account has the ARN: emulators of AWS know buses by their names alone."""
        _, is_arn, name = self._bus.rpartition("event-bus/")
        with suppress(Exception):
            return bool(is_arn) and client.describe_event_bus(Name=name).get("Arn") == self._bus
        return False

    def _is_missing(self, error: Exception) -> bool:
        """Tell a bus that does not exist from one that cannot be seen."""
        return meaning_of(error) is Meaning.MISSING and (self._was_seen or not self._doubts)

    def findings(self, client: Callable[[], Any], setting: str) -> Iterator[Finding]:
        """Say whether the bus is there; `setting` is what names it."""
        drops = "EventBridge takes events for a bus that does not exist, and drops them"
        try:
            self._describe(client())
        except Exception as error:  # noqa: BLE001 - any error of boto3 becomes ours
            code = code_of(error)
            if self._is_missing(error):
                yield wrong("bus", f"does not exist ({code}), and {drops}", f"create it, or correct `{setting}`")
            elif status_of(error) is None:
                yield wrong("bus", f"cannot be looked at ({code})", "check credentials, region and the way to AWS")
            else:
                fix = "allow events:DescribeEventBus; of a bus in another account, check the ARN by hand"
                yield warning("bus", f"cannot be looked at ({code})", fix, weakens=f"nobody sees it missing: {drops}")
        else:
            yield good("bus", "is there")
