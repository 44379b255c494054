"""Notices when a topic that usually comes at this hour does not come: learned from the counts of all workers."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from oncebridge.journal.records import DAY_US, HOUR_US, MINUTE_US, Count, hour_page, minute_page
from oncebridge.journal.tally import OTHER
from oncebridge.quantities import counted, span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncebridge.clock import Clock
    from oncebridge.ledgers.notes import Notes

EVERY_US: Final = MINUTE_US
#: Days that are looked back, and of those like today the least that say anything.
DAYS: Final = 14
DAYS_MIN: Final = 3
#: A topic with fewer events in an hour is rare, and is not watched.
HOURLY_MIN: Final = 12
#: It is silent after so many of its usual pauses, and never before the floor.
PAUSES: Final = 20
FLOOR_US: Final = 15 * MINUTE_US
#: This hour and those beside it: when a day begins or ends, silence is usual.
HOURS: Final = (-1, 0, 1)
#: Not looked for so long, as while the ledger was out of reach: nothing is known of that time.
BLIND_US: Final = 5 * MINUTE_US
_SATURDAY: Final = 5


def usual_hourly(days: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return how many events of each topic came in an hour on most days: of one in four days fewer may have come."""
    topics = {topic for day in days for topic in day}
    return {topic: sorted(day.get(topic, 0) for day in days)[len(days) // 4] for topic in topics}


def allowed_us(hourly: int) -> int:
    """Return how long a topic with so many events in an hour may be silent."""
    return max(FLOOR_US, PAUSES * HOUR_US // hourly)


class SilenceWatch:
    """Looks about once a minute; nothing waits for it."""

    def __init__(self, clock: Clock, warn: Callable[[str], None]) -> None:
        """Take how to say that a topic is silent, and that it comes again."""
        self._clock = clock
        self._warn = warn
        #: How many events of each topic come in an hour at this time, of those that are watched.
        self._usual: dict[str, int] = {}
        self._learned_hour = 0
        #: When a topic last came, or from when on it is watched.
        self._last_us: dict[str, int] = {}
        self._looked_us = 0
        self.silent: frozenset[str] = frozenset()

    def look(self, notes: Notes) -> None:
        """Look, if the last time was a while ago."""
        now_us = self._clock.now_us()
        if now_us - self._looked_us < EVERY_US:
            return
        since_us = self._looked_us
        if now_us // HOUR_US != self._learned_hour:
            self._usual = self._learn(notes, now_us)
            self._learned_hour = now_us // HOUR_US
        if now_us - since_us > BLIND_US:
            self._last_us, since_us = {}, now_us
        self._last_us = {topic: self._last_us.get(topic, now_us) for topic in self._usual}
        self._note_what_came(notes, since_us, now_us)
        self._judge(now_us)
        self._looked_us = now_us  # what could not be read is read by the next look

    def _learn(self, notes: Notes, now_us: int) -> dict[str, int]:
        """Return the topics that come at this hour, and at those beside it, on days like this one."""
        alike = [back for back in range(1, DAYS + 1) if _is_weekend(now_us - back * DAY_US) == _is_weekend(now_us)]
        least: dict[str, int] | None = None
        for hour in HOURS:
            pages = notes.read_counts([hour_page(now_us - back * DAY_US + hour * HOUR_US) for back in alike])
            days = [_by_topic(page) for page in pages if page]
            usual = usual_hourly(days) if len(days) >= DAYS_MIN else {}
            least = usual if least is None else {topic: min(usual.get(topic, 0), n) for topic, n in least.items()}
        return {topic: number for topic, number in (least or {}).items() if number >= HOURLY_MIN}

    def _note_what_came(self, notes: Notes, since_us: int, now_us: int) -> None:
        """Read what all workers have counted since the last look; the minute of that look was not over."""
        minutes = range(since_us // MINUTE_US * MINUTE_US, now_us + 1, MINUTE_US)
        for minute_us, page in zip(minutes, notes.read_counts([*map(minute_page, minutes)]), strict=True):
            for topic in _by_topic(page):
                if topic in self._last_us:
                    self._last_us[topic] = max(self._last_us[topic], min(minute_us + MINUTE_US, now_us))

    def _judge(self, now_us: int) -> None:
        silent = frozenset(
            topic for topic, last_us in self._last_us.items() if now_us - last_us > allowed_us(self._usual[topic])
        )
        for topic in sorted(silent - self.silent):
            quiet = span((now_us - self._last_us[topic]) // 1000)
            self._warn(
                f"silence: no {topic} for {quiet}, and {counted(self._usual[topic], 'event')} an hour are usual now"
            )
        for topic in sorted((self.silent - silent) & self._last_us.keys()):
            self._warn(f"silence is over: {topic} comes again")
        self.silent = silent


def _by_topic(page: Mapping[str, int]) -> Counter[str]:
    """Return how many deliveries of each topic a page has counted, whatever became of them."""
    found: Counter[str] = Counter()
    for name, number in page.items():
        count = Count.from_name(name)
        if count.handler is None and count.topic != OTHER:
            found[count.topic] += number
    return found


def _is_weekend(at_us: int) -> bool:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).weekday() >= _SATURDAY
