"""What is found in captures: deliveries with their place and surroundings, and a tally of everything else."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Final

import msgspec
from msgspec.structs import replace

from oncebridge.discreet import Discreet

SHOWN_MAX: Final = 5  # files and troubles that are named; the rest is counted
PLACES_MAX: Final = 3  # of each reason


LOOKED_FOR: Final = (
    "looked for EventBridge envelopes, their detail alone, and objects with an eventType, type, eventId or "
    "conversationId, as JSON, in log lines, and in what AWS wraps around them; docs/captures.md shows how to get them"
)


class Surroundings(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What AWS wrote around a delivery: times are milliseconds since 1970."""

    #: SQS
    message_id: str | None = None
    receive_count: int | None = None
    sent_ms: int | None = None
    first_received_ms: int | None = None
    queue: str | None = None
    #: Kinesis and Firehose
    arrived_ms: int | None = None
    #: Lambda: as a log line or a failure destination names it
    request_id: str | None = None
    #: CloudWatch Logs
    log_group: str | None = None
    log_stream: str | None = None
    logged_ms: int | None = None
    ingested_ms: int | None = None


NOTHING_AROUND: Final = Surroundings()

#: AWS gives no longer names: a group of logs may have 512 characters.
NAME_MAX: Final = 512
_NAMES: Final = ("message_id", "queue", "request_id", "log_group", "log_stream")


def with_short_names(around: Surroundings) -> Surroundings:
    """Return surroundings that can be kept: a name that is longer than any of AWS' is known by its digest."""
    long = [name for name in _NAMES if len(getattr(around, name) or "") > NAME_MAX]
    return replace(around, **{name: _digest(getattr(around, name)) for name in long}) if long else around


def _digest(name: str) -> str:
    return sha256(name.encode(errors="surrogatepass")).hexdigest()


class Captured(Discreet, msgspec.Struct, frozen=True, gc=False):
    """One delivery of a capture."""

    shown = ("file", "line", "offset", "part")

    raw: bytes
    file: str
    #: From 1. Behind gzip, lines and offsets are those of the unpacked text.
    line: int
    #: Bytes before the line, value or log message that holds it.
    offset: int
    #: Which delivery of that value it is, from 0.
    part: int = 0
    around: Surroundings = NOTHING_AROUND


class Tally:
    """Counts what was found: nothing is left out of a capture without a count, a reason and a place."""

    def __init__(self) -> None:
        """Start at zero."""
        self.files = 0
        self.deliveries = 0
        self.skipped: Counter[str] = Counter()
        #: The first places that were skipped, by reason; a file as a whole has no line.
        self.places: dict[str, list[str]] = {}
        self.unreadable_total = 0  # deliveries that are no JSON
        self.unreadable_places: list[str] = []
        self.no_events_total = 0  # deliveries that are JSON, and say nothing that an event says
        self.no_events_places: list[str] = []
        self.without_events = 0  # files that hold something else
        self.eventless: list[str] = []  # the first of them
        #: What could not be read, each with its file; the first few.
        self.troubles: list[str] = []
        self.troubles_total = 0

    def skip(self, file: str, line: int, reason: str) -> None:
        """Count something that is no event."""
        self.skipped[reason] += 1
        if self.skipped[reason] <= PLACES_MAX:
            self.places.setdefault(reason, []).append(f"{file}:{line}" if line else file)

    def unreadable(self, file: str, line: int) -> None:
        """Note a delivery that no one can read; it is a delivery all the same."""
        self.unreadable_total += 1
        if len(self.unreadable_places) < PLACES_MAX:
            self.unreadable_places.append(f"{file}:{line}")

    def no_event(self, file: str, line: int) -> None:
        """Note a delivery that is JSON but no event, where somebody looked that far."""
        self.no_events_total += 1
        if len(self.no_events_places) < PLACES_MAX:
            self.no_events_places.append(f"{file}:{line}")

    def end_of_file(self, file: str, deliveries: int, *, has_skipped: bool) -> None:
        """Count a file that was read, and note whether it held no event but something else."""
        self.files += 1
        self.deliveries += deliveries
        if has_skipped and not deliveries:
            self.without_events += 1
            if len(self.eventless) < SHOWN_MAX:
                self.eventless.append(file)

    def trouble(self, file: str, what: str) -> None:
        """Note that something could not be read; reading goes on elsewhere."""
        self.troubles_total += 1
        if len(self.troubles) < SHOWN_MAX:
            self.troubles.append(f"{file}: {what}")

    @property
    def skipped_total(self) -> int:
        """How many places were no events."""
        return self.skipped.total()

    @property
    def trouble_text(self) -> str:
        """All troubles in one sentence."""
        more = self.troubles_total - len(self.troubles)
        return "; ".join(self.troubles) + (f"; and {more:,} more" if more else "")

    @property
    def skipped_text(self) -> list[str]:
        """What cannot be read and what was skipped, in lines: why, how often, and where first."""
        lines = []
        if self.unreadable_total:
            more = ", ..." * (self.unreadable_total > PLACES_MAX)
            lines.append(f"{self.unreadable_total:,} cannot be read: {', '.join(self.unreadable_places)}{more}")
        if self.no_events_total:
            more = ", ..." * (self.no_events_total > PLACES_MAX)
            lines.append(f"{self.no_events_total:,} JSON, but no event: {', '.join(self.no_events_places)}{more}")
        if self.skipped:
            lines.append(f"{self.skipped_total:,} skipped, which are no events:")
        for reason, number in self.skipped.most_common():
            lines.append(f"  {number:,} x {reason}: {', '.join(self.places[reason])}{', ...' * (number > PLACES_MAX)}")
        return lines

    @property
    def eventless_text(self) -> str | None:
        """Which files hold something, but no event, and what was looked for; None if there are none."""
        if not self.without_events:
            return None
        more = self.without_events - len(self.eventless)
        names = ", ".join(self.eventless) + (f" and {more:,} more files" if more else "")
        return f"nothing in {names} is an event: {LOOKED_FOR}"
