"""What follows from the data: retention, echo windows, topics to leave, memory."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.diagnosis.diagnosis import Advice, Cause, EchoWindow, TopicPair
from oncebridge.diagnosis.evidence import Relation
from oncebridge.diagnosis.lags import longest_in
from oncebridge.diagnosis.same_fact import narrower
from oncebridge.quantities import size, span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncebridge.diagnosis.sums import Sums

DAY_MS: Final = 86_400_000
#: Genesys repeats for four days, EventBridge for one more.
MACHINES_DAYS: Final = 5
#: What a remembered event and an entity take on Redis, as `make bench` measures it.
REDIS_EVENT_BYTES: Final = 23
REDIS_ENTITY_BYTES: Final = 300
#: Not repeats that a memory has to catch: they come when somebody wants them, or are events of their own.
_NO_REPEATS: Final = frozenset({Relation.REPLAY, Relation.ECHO, Relation.OTHER_TOPIC})
_MEMORIES_S: Final = (10, 300, 3600, 86_400, 4 * 86_400)
_WINDOWS_MS: Final = (500, 750, 1000, 1500, 2000, 3000, 5000)
_OUTSIDE_SHARE: Final = 0.1
_OUTSIDE_LEAST: Final = 3
_PAIRS_MAX: Final = 10
#: So many of a topic's events must have come under the other, too, before it can go: ends of the capture cut pairs.
_CONTAINED_SHARE: Final = 0.9
_WINDOWS_SHOWN: Final = 20
_HOUR_MS: Final = 3_600_000


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What advice is made from."""

    sums: Sums
    causes: Mapping[Cause, int]
    retention_ms: int
    first_ms: int | None
    last_ms: int | None

    @property
    def span_ms(self) -> int:
        """How long the capture lasts."""
        return 0 if self.first_ms is None or self.last_ms is None else self.last_ms - self.first_ms


def advise(observed: Observed) -> Advice:
    """Make all of the advice."""
    days, text, forgotten = _retention(observed)
    redis_bytes, redis_text = _redis(observed)
    return Advice(
        retention_days=days,
        retention_text=text,
        forgotten=forgotten,
        redis_bytes=redis_bytes,
        redis_text=redis_text,
        echo_windows=_echo_windows(observed.sums),
        topic_pairs=_topic_pairs(observed.sums),
    )


def _retention(observed: Observed) -> tuple[int, str, list[tuple[int, int]]]:
    lags = observed.sums.lags_where(lambda _topic, relation: relation not in _NO_REPEATS)
    days = max(MACHINES_DAYS, ceil(1.5 * lags.max / DAY_MS))
    least = (
        f"Genesys repeats for four days and EventBridge for one more: remember events for {days} days at least; behind "
        "a queue, add the time that it keeps messages"
    )
    if not lags.count:
        within = f" in {span(observed.span_ms)}" if observed.span_ms else ""
        return days, f"No repeats were seen{within}. {least}.", []
    seen = (
        f"Half of the {lags.count:,} repeats came within {span(lags.p50)}, 99 of 100 within {span(lags.p99)}, 999 of "
        f"1,000 within {span(lags.p999)}, the last after {span(lags.max)}."
    )
    bound = f" The capture spans {span(observed.span_ms)}, and cannot show longer lags." if observed.span_ms else ""
    replays = observed.causes.get(Cause.ARCHIVE_REPLAY, 0)
    later = f" {replays:,} came by archive replays, which may be of any age." if replays else ""
    forgotten = [(seconds, _later_than(observed.sums, 1000 * seconds)) for seconds in _MEMORIES_S]
    return days, f"{seen}{bound}{later} {least}.", forgotten


def _later_than(sums: Sums, ms: int) -> int:
    return sum(
        number for (_, relation, at), number in sums.lags.items() if relation not in _NO_REPEATS and longest_in(at) > ms
    )


def _redis(observed: Observed) -> tuple[int, str]:
    sums, days = observed.sums, observed.retention_ms / DAY_MS
    if not sums.events or not observed.span_ms:
        return 0, "The capture is too short to say what the retention will cost."
    per_day = sums.events * DAY_MS / max(observed.span_ms, 1)
    total = int(per_day * days * REDIS_EVENT_BYTES) + sums.entities * REDIS_ENTITY_BYTES
    rough = "" if observed.span_ms >= _HOUR_MS else " The capture is shorter than an hour, so this is rough."
    return total, (
        f"At {per_day:,.0f} events a day, {days:g} days on Redis take about {size(total)}: {REDIS_EVENT_BYTES} bytes "
        f"for each event, and {REDIS_ENTITY_BYTES} for each of {sums.entities:,} entities.{rough}"
    )


def _echo_windows(sums: Sums) -> list[EchoWindow]:
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, gap), number in sums.repeats.items():
        by_topic.setdefault(topic, {})[gap] = number
    found = []
    for topic, window_ms in sorted(sums.windows_ms.items()):
        gaps = by_topic.get(topic, {})
        within = sum(number for gap, number in gaps.items() if gap <= window_ms)
        outside = sum(number for gap, number in gaps.items() if gap > window_ms)
        if not within and not outside:
            continue
        is_short = outside >= max(_OUTSIDE_LEAST, _OUTSIDE_SHARE * within)
        advised_ms = _covering(gaps, window_ms) if is_short else window_ms
        found.append(
            EchoWindow(
                topic=topic,
                window_ms=window_ms,
                echoes=within,
                outside=outside,
                advised_ms=advised_ms,
                text=_window_text(window_ms, within, outside, advised_ms),
            )
        )
    return sorted(found, key=lambda one: -(one.echoes + one.outside))[:_WINDOWS_SHOWN]


def _covering(gaps: Mapping[int, int], window_ms: int) -> int:
    """Return the smallest round window that covers nine of ten repeats; the one in force if none does."""
    enough = 0.9 * sum(gaps.values())
    for longer_ms in _WINDOWS_MS:
        if longer_ms > window_ms and sum(number for gap, number in gaps.items() if gap <= longer_ms) >= enough:
            return longer_ms
    return window_ms


def _window_text(window_ms: int, within: int, outside: int, advised_ms: int) -> str:
    seen = f"{within:,} repeats of a state within {window_ms} ms, {outside:,} soon after"
    if advised_ms == window_ms:
        return f"{seen}: {window_ms} ms fits"
    return (
        f"{seen}: {advised_ms} ms would cover nine of ten; look first whether those are real changes, because a longer "
        "window drops them"
    )


def _topic_pairs(sums: Sums) -> list[TopicPair]:
    both: dict[tuple[str, str], int] = {}
    for (one, other), number in sums.topic_pairs.items():
        pair = (min(one, other), max(one, other))
        both[pair] = both.get(pair, 0) + number
    ranked = sorted(both.items(), key=lambda item: -item[1])[:_PAIRS_MAX]
    return [
        TopicPair(
            topic=one,
            other=other,
            count=number,
            text=_pair_text(one, other, number, sums),
        )
        for (one, other), number in ranked
    ]


def _pair_text(one: str, other: str, number: int, sums: Sums) -> str:
    less = narrower(one, other)
    alone = max(0, sums.events_by_topic[less] - number)
    if number >= _CONTAINED_SHARE * (number + alone):
        return f"{number:,} facts came under both; {less} can go if its handlers can read the other"
    return (
        f"{number:,} facts came under both, but {alone:,} events of {less} under it alone, and these would be gone "
        "with it: keep both topics, and let each handler take one"
    )
