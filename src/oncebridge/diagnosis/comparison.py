"""What changed since an earlier diagnosis, in words with numbers, the most important first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from oncebridge.diagnosis.diagnosis import Diagnosis, KeyTried
from oncebridge.quantities import count, counted, part_of, percent, size, span

#: The row of the back-test that is Oncebridge with the settings in force.
OWN_KEY: Final = "oncebridge"

_POINTS_MIN: Final = 0.001  # of a share: less than a tenth of a percentage point is no change
_FACTOR_MIN: Final = 1.1  # and neither is less than a tenth more or less,
_POINTS_MUCH: Final = 0.01  # unless that is a whole point
_TAIL_FACTOR_MIN: Final = 1.5  # the longest lags vary more
_NAMED_MAX: Final = 4


class Trend(StrEnum):
    """Which way something changed."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "other"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that changed."""

    #: What it is about, for programs: "duplicates", "cause.overlapping_rules", "retention".
    about: str
    text: str
    trend: Trend
    #: The larger, the more it matters.
    weight: float


def readable(diagnosis: Diagnosis) -> int:
    """Return how many deliveries could be read; shares are of these."""
    return max(diagnosis.deliveries - diagnosis.unreadable, 0)


def changes(now: Diagnosis, earlier: Diagnosis) -> list[Change]:
    """Compare two diagnoses; both are of captures, so counts are compared as shares of what was delivered."""
    found = [
        *_inputs(now, earlier),
        *_duplicates(now, earlier),
        *_causes(now, earlier),
        *_keys(now, earlier),
        *_tail(now, earlier),
        *_advice(now, earlier),
        *_topics(now, earlier),
        *_unreadable(now, earlier),
    ]
    return sorted(found, key=lambda change: -change.weight)


# Weights: what loses events comes before what doubles them, that before what costs, that before what is only news.
_LOSS, _DOUBLING, _COST, _NEWS = 400.0, 300.0, 200.0, 100.0


def _inputs(now: Diagnosis, earlier: Diagnosis) -> Iterator[Change]:
    """Say first what makes the comparison itself mean less."""
    if not _comparable(now, earlier):
        which = "The earlier report" if readable(now) else "This report"
        text = f"{which} is of no delivery that could be read: nothing can be compared."
        yield _change("input", text, Trend.OTHER, _LOSS + 90)
    elif now.input_digest == earlier.input_digest:
        text = "Both reports are of the same capture: what differs comes from settings or from another version."
        yield _change("input", text, Trend.OTHER, _NEWS + 80)
    if now.settings != earlier.settings:
        text = f"Other settings: {now.settings or 'the defaults'} now, {earlier.settings or 'the defaults'} before."
        yield _change("settings", text, Trend.OTHER, _NEWS + 70)


def _duplicates(now: Diagnosis, earlier: Diagnosis) -> Iterator[Change]:
    after, before = part_of(now.duplicates, readable(now)), part_of(earlier.duplicates, readable(earlier))
    if _comparable(now, earlier) and _moved(after, before):
        text = f"Duplicates {_went(after, before)} of deliveries."
        yield _change("duplicates", text, _less_is_better(after, before), _DOUBLING + 90)


def _causes(now: Diagnosis, earlier: Diagnosis) -> Iterator[Change]:
    """Compare each cause by its share of all deliveries: a share of duplicates falls when another cause grows."""
    if not _comparable(now, earlier):
        return
    titles = {found.cause.value: found.title for found in (*earlier.found, *now.found)}
    for name in dict.fromkeys([*now.causes, *earlier.causes]):
        after = part_of(now.causes.get(name, 0), readable(now))
        before = part_of(earlier.causes.get(name, 0), readable(earlier))
        title = titles.get(name, name.replace("_", " "))
        weight = _DOUBLING + min(abs(after - before), 1) * 80
        if after and not before:
            text = f"New cause: {title}, {percent(after)} of deliveries ({count(now.causes[name])})."
            yield _change(f"cause.{name}", text, Trend.WORSE, weight + 5)
        elif before and not after:
            text = f"Gone: {title}, {percent(before)} of deliveries ({count(earlier.causes[name])}) before."
            yield _change(f"cause.{name}", text, Trend.BETTER, weight + 5)
        elif _moved(after, before):
            text = f"{title[:1].upper()}{title[1:]}: {_went(after, before)} of deliveries."
            yield _change(f"cause.{name}", text, _less_is_better(after, before), weight)


def _keys(now: Diagnosis, earlier: Diagnosis) -> Iterator[Change]:
    """Compare the rows of the back-test; real events lost come before everything else."""
    before_of = {row.key: row for row in earlier.backtest}
    for row in now.backtest:
        before = before_of.get(row.key)
        if before is None:
            if earlier.backtest:
                yield _new_key(row)
        elif _comparable(now, earlier):
            is_own = row.key == OWN_KEY
            yield from _side(now, earlier, row, before, is_own=is_own, loses=True)
            yield from _side(now, earlier, row, before, is_own=is_own, loses=False)


def _new_key(row: KeyTried) -> Change:
    text = (
        f"New in the back-test: {row.title}, {counted(row.let_through, 'duplicate')} let through and "
        f"{counted(row.lost, 'real event')} lost."
    )
    return _change(f"key.{row.key}", text, Trend.OTHER, _NEWS + 40)


def _side(
    now: Diagnosis, earlier: Diagnosis, row: KeyTried, before: KeyTried, *, is_own: bool, loses: bool
) -> Iterator[Change]:
    count_of: Callable[[KeyTried], int] = (lambda key: key.lost) if loses else (lambda key: key.let_through)
    whole_of: Callable[[Diagnosis], int] = (lambda d: d.events) if loses else (lambda d: d.duplicates)
    after_share = part_of(count_of(row), whole_of(now))
    before_share = part_of(count_of(before), whole_of(earlier))
    began = bool(count_of(row)) != bool(count_of(before))
    if _ratio(after_share, before_share) < _FACTOR_MIN or not (_moved(after_share, before_share) or (began and is_own)):
        return
    what = "lose" if loses else "let through"
    whole = "of real events" if loses else "of duplicates"
    text = (
        f"{row.title} would {what} {percent(after_share)} {whole} ({count(count_of(row))}), {percent(before_share)} "
        f"({count(count_of(before))}) before."
    )
    weight = (_LOSS if loses else _DOUBLING) if is_own else _COST if loses else _NEWS
    points = min(abs(after_share - before_share), 1) * 50
    side = "lost" if loses else "let_through"
    trend = _less_is_better(after_share, before_share) if is_own or loses else Trend.OTHER  # nobody uses that key yet
    yield _change(f"key.{row.key}.{side}", text, trend, weight + points)


def _tail(now: Diagnosis, earlier: Diagnosis) -> Iterator[Change]:
    """Compare the longest lags: they say how long events have to be remembered."""
    if not now.lags.count or not earlier.lags.count:
        return
    for about, words, after, before in (
        ("lags.max", "The longest lag", now.lags.max, earlier.lags.max),
        ("lags.p99", "The lag within which 99 % of duplicates come", now.lags.p99, earlier.lags.p99),
    ):
        longer, shorter = max(after, before), max(min(after, before), 1)
        if longer - shorter >= 1000 and longer / shorter >= _TAIL_FACTOR_MIN:  # noqa: PLR2004 - a second, in ms
            text = f"{words} {'rose' if after > before else 'fell'} from {span(before)} to {span(after)}."
            yield _change(about, text, _less_is_better(after, before), _COST + 20)
            return  # the other says the same again


def _advice(now: Diagnosis, earlier: Diagnosis) -> Iterator[Change]:
    after, before = now.advice, earlier.advice
    if not _comparable(now, earlier):
        return
    if after.retention_days != before.retention_days:
        text = (
            f"The smallest safe retention is {counted(after.retention_days, 'day')} now, "
            f"{counted(before.retention_days, 'day')} before."
        )
        trend = _less_is_better(after.retention_days, before.retention_days)
        yield _change("retention", text, trend, _COST + 60)
    if _ratio(after.redis_bytes, before.redis_bytes) >= _TAIL_FACTOR_MIN:
        text = f"Redis would need {size(after.redis_bytes)} now, {size(before.redis_bytes)} before."
        yield _change("redis", text, _less_is_better(after.redis_bytes, before.redis_bytes), _COST)
    windows = {window.topic: window.advised_ms for window in before.echo_windows}
    for window in after.echo_windows:
        was = windows.get(window.topic)
        if was is not None and was != window.advised_ms:
            text = f"The advised echo window of {window.topic} is {span(window.advised_ms)} now, {span(was)} before."
            yield _change(f"echo.{window.topic}", text, Trend.OTHER, _NEWS + 30)
    pairs = {(pair.topic, pair.other) for pair in before.topic_pairs}
    new = [f"{pair.topic} and {pair.other}" for pair in after.topic_pairs if (pair.topic, pair.other) not in pairs]
    if new:
        text = f"New topics that bring the same facts: {_named(new)}."
        yield _change("topic_pairs", text, Trend.WORSE, _NEWS + 50)


def _topics(now: Diagnosis, earlier: Diagnosis) -> Iterator[Change]:
    """Name topics that came and went; a list that is not complete says nothing of what is missing in it."""
    after, before = ({found.topic: found.deliveries for found in each.topics} for each in (now, earlier))
    if not _comparable(now, earlier):
        return
    if not earlier.topics_left_out and (new := _missing(after, before)):
        text = f"{counted(len(new), 'new topic')}: {_named(new)}."
        yield _change("topics.new", text, Trend.OTHER, _NEWS + 20)
    if not now.topics_left_out and (gone := _missing(before, after)):
        text = f"{counted(len(gone), 'topic')} did not come this time: {_named(gone)}."
        yield _change("topics.gone", text, Trend.OTHER, _NEWS + 20)


def _unreadable(now: Diagnosis, earlier: Diagnosis) -> Iterator[Change]:
    after, before = part_of(now.unreadable, now.deliveries), part_of(earlier.unreadable, earlier.deliveries)
    if _moved(after, before):
        text = f"Unreadable deliveries {_went(after, before)} of all."
        yield _change("unreadable", text, _less_is_better(after, before), _NEWS + 60)


# --- words and measures -----------------------------------------------------------------------------------


def _change(about: str, text: str, trend: Trend, weight: float) -> Change:
    return Change(about=about, text=text, trend=trend, weight=weight)


def _comparable(now: Diagnosis, earlier: Diagnosis) -> bool:
    return bool(readable(now) and readable(earlier))


def _moved(after: float, before: float) -> bool:
    points = abs(after - before)
    return points >= _POINTS_MUCH or (points >= _POINTS_MIN and _ratio(after, before) >= _FACTOR_MIN)


def _ratio(after: float, before: float) -> float:
    """Return how many times the larger is the smaller."""
    larger, smaller = max(after, before), min(after, before)
    return larger / smaller if smaller else (_TAIL_FACTOR_MIN if larger else 1.0)


def _went(after: float, before: float) -> str:
    return f"{'rose' if after > before else 'fell'} from {percent(before)} to {percent(after)}"


def _less_is_better(after: float, before: float) -> Trend:
    return Trend.BETTER if after < before else Trend.WORSE if after > before else Trend.OTHER


def _missing(here: Mapping[str, int], there: Mapping[str, int]) -> list[str]:
    """Return the topics that are here and not there, those with most deliveries first."""
    return sorted((topic for topic in here if topic not in there), key=lambda topic: -here[topic])


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown} and {count(len(names) - _NAMED_MAX)} more"
