"""From counts to the answer: sentences, tables and advice, each small whatever was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

from oncebridge.diagnosis.advice import Observed, advise
from oncebridge.diagnosis.backtest import Dropping
from oncebridge.diagnosis.causes import cause_of, reason_of
from oncebridge.diagnosis.diagnosis import (
    EXAMPLES_MAX,
    TOPICS_MAX,
    Cause,
    CauseFound,
    Diagnosis,
    Example,
    KeyTried,
    LookAlike,
    TopicFound,
)
from oncebridge.diagnosis.evidence import Evidence, Relation
from oncebridge.diagnosis.keys import Key
from oncebridge.diagnosis.sighting import Sighting
from oncebridge.diagnosis.sums import Sums, Timeline, over_time
from oncebridge.diagnosis.words import ADVICE, BECAUSE, EVIDENCE, LOOK_ALIKES, TITLES
from oncebridge.event import is_uuid
from oncebridge.quantities import counted as in_words
from oncebridge.quantities import part_of, percent, span

FILES_NAMED_MAX: Final = 20
SKIPPED_MAX: Final = 20
_TEXT_MAX: Final = 300
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_999  # of the year 9999


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was counted."""

    sums: Sums
    rows: list[tuple[Key, Dropping]]
    duplicates: int
    deliveries: int
    unreadable: int
    topics: dict[str, int]
    kinds: dict[str, str]
    timeline: Timeline
    files: list[str]
    retention_ms: int
    replays_anew: bool
    sightings_of: Callable[[set[int]], Mapping[int, Sighting]]
    digest: str
    skipped: list[str]
    made: str
    command: str
    settings: str

    @property
    def events(self) -> int:
        """How many deliveries are neither duplicates nor unreadable."""
        return self.deliveries - self.unreadable - self.duplicates


def answer(counted: Answered) -> Diagnosis:
    """Put everything into words and tables."""
    sums = counted.sums
    causes = _causes(sums)
    shown = _Examples(counted)
    backtest = _backtest(counted, shown)
    observed = Observed(
        sums=sums,
        causes=causes,
        retention_ms=counted.retention_ms,
        first_ms=counted.timeline.first_ms,
        last_ms=counted.timeline.last_ms,
    )
    topics = _topics(counted)
    by_cause: dict[str, Timeline] = {}
    for (topic, relation), line in sums.timelines.items():
        by_cause.setdefault(cause_of(relation, sums.regular(topic)).value, Timeline()).merge(line)
    return Diagnosis(
        answer=first_sentence(counted, causes),
        chat=_chat(counted, causes, backtest),
        deliveries=counted.deliveries,
        events=counted.events,
        duplicates=counted.duplicates,
        unreadable=counted.unreadable,
        causes={cause.value: number for cause, number in causes.items()},
        backtest=backtest,
        found=[_found(cause, counted, causes, shown) for cause in causes],
        topics=topics[:TOPICS_MAX],
        topics_left_out=max(0, len(topics) - TOPICS_MAX),
        over_time=over_time(counted.timeline, by_cause),
        lags=sums.lags_where(lambda _topic, _relation: True),
        look_alikes=_look_alikes(sums, shown),
        advice=advise(observed),
        skipped=[_short(line) for line in counted.skipped[:SKIPPED_MAX]],
        oncebridge=_version(),
        made=counted.made,
        command=_short(counted.command),
        settings=counted.settings,
        files=[_short(name) for name in counted.files[:FILES_NAMED_MAX]]
        + ([f"and {len(counted.files) - FILES_NAMED_MAX:,} more"] if len(counted.files) > FILES_NAMED_MAX else []),
        input_digest=counted.digest,
        first=_iso(counted.timeline.first_ms),
        last=_iso(counted.timeline.last_ms),
    )


def _causes(sums: Sums) -> Counter[Cause]:
    """Count duplicates by cause, the most frequent first."""
    found: Counter[Cause] = Counter()
    for (topic, relation), number in sums.duplicates.items():
        found[cause_of(relation, sums.regular(topic))] += number
    return Counter(dict(found.most_common()))


def _topics(counted: Answered) -> list[TopicFound]:
    sums = counted.sums
    by_topic: dict[str, Counter[str]] = {}
    for (topic, relation), number in sums.duplicates.items():
        by_topic.setdefault(topic, Counter())[cause_of(relation, sums.regular(topic)).value] += number
    rows = [
        TopicFound(
            topic=topic,
            kind=counted.kinds.get(topic, ""),
            deliveries=number,
            events=max(0, number - by_topic.get(topic, Counter()).total()),
            duplicates=by_topic.get(topic, Counter()).total(),
            causes=dict(by_topic.get(topic, Counter()).most_common()),
        )
        for topic, number in counted.topics.items()
    ]
    return sorted(rows, key=lambda row: (-row.duplicates, -row.deliveries, row.topic))


def _found(cause: Cause, counted: Answered, causes: Mapping[Cause, int], shown: _Examples) -> CauseFound:
    sums = counted.sums

    def is_it(topic: str, relation: Relation) -> bool:
        return cause_of(relation, sums.regular(topic)) is cause

    topics: Counter[str] = Counter()
    for (topic, relation), number in sums.duplicates.items():
        if is_it(topic, relation):
            topics[topic] += number
    evidence = [one for key, examples in sums.evidence.items() if is_it(*key) for one in examples]
    first = sorted(evidence, key=lambda one: one.n)[:EXAMPLES_MAX]
    return CauseFound(
        cause=cause,
        title=TITLES[cause],
        count=causes[cause],
        share=causes[cause] / max(1, counted.duplicates),
        evidence=EVIDENCE[cause],
        advice=ADVICE[cause],
        lags=sums.lags_where(is_it),
        topics=topics.most_common(5),
        examples=[shown.of_evidence(one) for one in first],
    )


# --- the back-test -----------------------------------------------------------------------------------------------


def _backtest(counted: Answered, shown: _Examples) -> list[KeyTried]:
    rows = [
        KeyTried(
            key=key.name,
            title=key.title,
            compares=key.compares,
            seconds=key.seconds,
            let_through=counted.duplicates - dropping.duplicates,
            lost=dropping.lost,
            lost_examples=[shown.pair(n, of, "taken for the other, and lost") for n, of in dropping.lost_examples],
            let_through_examples=[shown.pair(n, None, "a duplicate that gets through") for n in dropping.passed],
        )
        for key, dropping in counted.rows
    ]
    return [*rows, _own_row(counted)]


def _own_row(counted: Answered) -> KeyTried:
    """Make Oncebridge's own row: two topics are two events for it, and after the retention it has forgotten."""
    anew = {Relation.OTHER_TOPIC, Relation.REPLAY} if counted.replays_anew else {Relation.OTHER_TOPIC}
    again = sum(number for (_, relation), number in counted.sums.duplicates.items() if relation in anew)
    return KeyTried(
        key="oncebridge",
        title="Oncebridge, these settings",
        compares="the event itself, by its topic's profile; the order of states",
        seconds=counted.retention_ms / 1000,
        let_through=min(again + counted.sums.forgotten, counted.duplicates),
        lost=0,
    )


# --- words -------------------------------------------------------------------------------------------------------


def first_sentence(counted: Answered, causes: Mapping[Cause, int]) -> str:
    """Answer in one sentence."""
    if not counted.deliveries:
        return "There is no delivery in this capture."
    if counted.unreadable == counted.deliveries == 1:
        return "The only delivery cannot be read."
    if counted.unreadable == counted.deliveries:
        return f"None of the {_deliveries(counted.deliveries)} can be read."
    if not counted.duplicates:
        return f"There are no duplicates among {_deliveries(counted.deliveries)} of {_events(counted.events)}."
    cause, number = next(iter(causes.items()))
    share = percent(part_of(counted.duplicates, counted.deliveries - counted.unreadable))
    because = f"because {BECAUSE[cause]}"
    if number == counted.duplicates:
        return f"{share} of your deliveries are duplicates, all of them {because}."
    return (
        f"{share} of your deliveries are duplicates; {percent(part_of(number, counted.duplicates))} of them {because}."
    )


def _deliveries(number: int) -> str:
    return in_words(number, "delivery", "deliveries")


def _events(number: int) -> str:
    return in_words(number, "event", "events")


def _chat(counted: Answered, causes: Mapping[Cause, int], backtest: list[KeyTried]) -> str:
    """Say it in one line, to paste into a chat."""
    if not counted.duplicates:
        return f"oncebridge diagnose: {_events(counted.events)} in {_deliveries(counted.deliveries)}, no duplicates"
    shares = ", ".join(
        f"{TITLES[cause]} {percent(part_of(number, counted.duplicates))}" for cause, number in [*causes.items()][:3]
    )
    worst = max(backtest, key=lambda row: row.lost)
    lost = f"; a key on {worst.title.lower()} would have lost {worst.lost:,} events" if worst.lost else ""
    return (
        f"oncebridge diagnose: {counted.duplicates:,} of {_deliveries(counted.deliveries)} are duplicates ({shares})"
        f"{lost}; the last came {span(max(counted.sums.longest_ms.values(), default=0))} late"
    )


def _look_alikes(sums: Sums, shown: _Examples) -> list[LookAlike]:
    return [
        LookAlike(
            name=name,
            title=title,
            count=sums.look_alikes[name],
            what=what,
            examples=[shown.pair(n, of or None, "") for n, of in sums.look_alike_examples[name]],
        )
        for name, (title, what) in LOOK_ALIKES.items()
        if sums.look_alikes[name]
    ]


# --- examples ----------------------------------------------------------------------------------------------------


class _Examples:
    """Finds deliveries again, to show them: by place, topic and time, never by content."""

    def __init__(self, counted: Answered) -> None:
        self._counted = counted
        self._known = counted.sightings_of(set(_wanted(counted)))

    def of_evidence(self, evidence: Evidence) -> Example:
        """Show a duplicate."""
        return self.pair(evidence.n, evidence.of or None, reason_of(evidence, self._counted.sums.regularity))

    def pair(self, n: int, of: int | None, reason: str) -> Example:
        """Show a delivery beside another."""
        one = self._known.get(n)
        other = None if of is None or of == n else self._known.get(of)
        return Example(
            n=n,
            place=self._place(one),
            topic="" if one is None else _short(one.topic),
            id=_shown_id(one),
            time=_time(one),
            of_n=None if other is None else other.n,
            of_place=None if other is None else self._place(other),
            of_topic=None if other is None else _short(other.topic),
            of_time=_time(other),
            reason=_short(reason),
        )

    def _place(self, one: Sighting | None) -> str:
        return "" if one is None else f"{_short(self._counted.files[one.file])}:{one.line}"


def _wanted(counted: Answered) -> Iterable[int]:
    """Yield the numbers of all deliveries that are shown."""
    for examples in counted.sums.evidence.values():
        for one in examples:
            yield from (one.n, one.of)
    for pairs in counted.sums.look_alike_examples.values():
        for pair in pairs:
            yield from pair
    for _, dropping in counted.rows:
        for pair in dropping.lost_examples:
            yield from pair
        yield from dropping.passed


def _shown_id(one: Sighting | None) -> str | None:
    """Show an id that has the form of an envelope's; any other may be anything."""
    if one is None or one.id is None:
        return None
    return one.id if is_uuid(one.id) else "not a UUID"


def _time(one: Sighting | None) -> str | None:
    return None if one is None else _iso(one.published_ms if one.time_ms is None else one.time_ms)


def _iso(ms: int | None) -> str | None:
    if ms is None or not 0 <= ms <= _LAST_MS:
        return None
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def _version() -> str:
    try:
        return version("oncebridge")
    except PackageNotFoundError:
        return "unknown"
