"""What is counted while deliveries are grouped: small, and added up from all parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from oncebridge.diagnosis.causes import Regularity
from oncebridge.diagnosis.diagnosis import EXAMPLES_MAX, Lags, OverTime
from oncebridge.diagnosis.evidence import Evidence, Relation
from oncebridge.diagnosis.lags import lag_class, lags_of

if TYPE_CHECKING:
    from oncebridge.diagnosis.arrivals import Arrivals

#: Topics that are counted by name; an attacker can make up any number of them.
TOPICS_COUNTED_MAX: Final = 5000
OTHER_TOPICS: Final = "other topics"
#: Topics whose repeats are counted.
WINDOWS_MAX: Final = 100

_STEPS_MAX: Final = 120
_BINS_MAX: Final = 4096


class Timeline:
    """Counts over time; steps become longer as there are more of them."""

    def __init__(self) -> None:
        """Begin with seconds."""
        self.width_ms = 1000
        self.bins: Counter[int] = Counter()

    @property
    def first_ms(self) -> int | None:
        """When the first was counted, as exactly as the steps are."""
        return min(self.bins) * self.width_ms if self.bins else None

    @property
    def last_ms(self) -> int | None:
        """When the last was counted."""
        return max(self.bins) * self.width_ms if self.bins else None

    def add_all(self, times: Iterable[int]) -> None:
        """Count something at each of these times."""
        width_ms = self.width_ms
        self.bins.update([time // width_ms for time in times])
        while len(self.bins) > _BINS_MAX:
            self.widen(self.width_ms * 2)

    def widen(self, width_ms: int) -> None:
        """Make the steps longer."""
        wider: Counter[int] = Counter()
        for at, number in self.bins.items():
            wider[at * self.width_ms // width_ms] += number
        self.width_ms, self.bins = width_ms, wider

    def merge(self, other: Timeline) -> None:
        """Add another's counts."""
        width_ms = max(self.width_ms, other.width_ms)
        for one in (self, other):
            if one.width_ms != width_ms:
                one.widen(width_ms)
        self.bins.update(other.bins)
        while len(self.bins) > _BINS_MAX:
            self.widen(self.width_ms * 2)


def over_time(deliveries: Timeline, duplicates: dict[str, Timeline]) -> OverTime:
    """Bring timelines to common steps, of which there are at most 120."""
    known = [line for line in (deliveries, *duplicates.values()) if line.bins]
    if not known:
        return OverTime()
    width_ms = max(line.width_ms for line in known)
    first = min(min(line.bins) * line.width_ms for line in known)
    last = max((max(line.bins) + 1) * line.width_ms for line in known)
    while (last - first) / width_ms > _STEPS_MAX:
        width_ms *= 2
    start_ms = first // width_ms * width_ms
    steps = (last - 1 - start_ms) // width_ms + 1

    def counts(line: Timeline) -> list[int]:
        found = [0] * steps
        for at, number in line.bins.items():
            found[(at * line.width_ms - start_ms) // width_ms] += number
        return found

    return OverTime(
        start_ms=start_ms,
        width_ms=width_ms,
        deliveries=counts(deliveries),
        duplicates={name: counts(line) for name, line in duplicates.items() if line.bins},
    )


class Sums:
    """All counts of a part, or of everything."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.events = 0
        #: Copies that came after the retention.
        self.forgotten = 0
        self.entities = 0
        #: By topic: events, and duplicates by relation.
        self.events_by_topic: Counter[str] = Counter()
        self.duplicates: Counter[tuple[str, Relation]] = Counter()
        self.regularity: dict[str, Regularity] = {}
        #: Lags by topic and relation, in classes; the longest exactly.
        self.lags: Counter[tuple[str, Relation, int]] = Counter()
        self.longest_ms: dict[tuple[str, Relation], int] = {}
        self.timelines: dict[tuple[str, Relation], Timeline] = {}
        #: The first few of each relation and topic.
        self.evidence: dict[tuple[str, Relation], list[Evidence]] = {}
        #: Things that only look like duplicates: how many, and the first few as pairs of numbers.
        self.look_alikes: Counter[str] = Counter()
        self.look_alike_examples: dict[str, list[tuple[int, int]]] = {}
        #: By topic: how far apart two equal states of an entity are, in milliseconds.
        self.repeats: Counter[tuple[str, int]] = Counter()
        self.windows_ms: dict[str, int] = {}
        self.topic_pairs: Counter[tuple[str, str]] = Counter()

    def add_events(self, by_topic: Mapping[str, int]) -> None:
        """Count events, each of which came in an envelope at least."""
        for topic, number in by_topic.items():
            self.events += number
            self.events_by_topic[self._counted(topic)] += number
            self.regular(topic).envelopes += number

    def add_duplicates(self, found: Sequence[Evidence], arrivals: Arrivals) -> None:
        """Count duplicates, in the order of the input."""
        by_kind: dict[tuple[str, Relation], list[Evidence]] = {}
        for one in found:
            at = (self._counted(one.topic), one.relation)
            if at in by_kind:
                by_kind[at].append(one)
            else:
                by_kind[at] = [one]
        for (topic, relation), group in by_kind.items():
            at = (topic, relation)
            self.duplicates[at] += len(group)
            lags = Counter([one.lag_ms for one in group if one.lag_ms >= 0])
            for lag_ms, number in lags.items():
                self.lags[topic, relation, lag_class(lag_ms)] += number
            self.longest_ms[at] = max(self.longest_ms.get(at, 0), *lags, 0)
            line = self.timelines.setdefault(at, Timeline())
            line.add_all([time for one in group if (time := arrivals.of(one.n)) >= 0])
            self.evidence[at] = [*self.evidence.get(at, ()), *group[:EXAMPLES_MAX]][:EXAMPLES_MAX]

    def lags_where(self, is_wanted: Callable[[str, Relation], bool]) -> Lags:
        """Sum up the lags of some topics and relations."""
        classes: Counter[int] = Counter()
        for (topic, relation, at), number in self.lags.items():
            if is_wanted(topic, relation):
                classes[at] += number
        longest = [ms for at, ms in self.longest_ms.items() if is_wanted(*at)]
        return lags_of(classes, max(longest, default=0))

    def look_alike(self, name: str, n: int, of: int) -> None:
        """Count something that only looks like a duplicate."""
        self.look_alikes[name] += 1
        examples = self.look_alike_examples.setdefault(name, [])
        if len(examples) < EXAMPLES_MAX:
            examples.append((n, of))

    def window(self, topic: str, window_ms: int) -> bool:
        """Note the echo window of a topic; return whether repeats of its states are counted."""
        if topic not in self.windows_ms and len(self.windows_ms) >= WINDOWS_MAX:
            return False
        self.windows_ms[topic] = window_ms
        return True

    def regular(self, topic: str) -> Regularity:
        """Return how regular copies of a topic's envelopes are."""
        return self.regularity.setdefault(self._counted(topic), Regularity())

    def _counted(self, topic: str) -> str:
        if topic in self.events_by_topic or len(self.events_by_topic) < TOPICS_COUNTED_MAX:
            return topic
        return OTHER_TOPICS

    def merge(self, other: Sums) -> None:
        """Add another part's counts."""
        self.events += other.events
        self.forgotten += other.forgotten
        self.entities += other.entities
        for topic, number in other.events_by_topic.items():
            self.events_by_topic[self._counted(topic)] += number
        for topic, regularity in other.regularity.items():
            known = self.regular(topic)
            known.envelopes += regularity.envelopes
            known.at_once += regularity.at_once
            known.thrice += regularity.thrice
            known.later += regularity.later
        for (topic, relation, lag), number in other.lags.items():
            self.lags[self._counted(topic), relation, lag] += number
        for topic, relation in other.duplicates:
            self._merge_kind((self._counted(topic), relation), (topic, relation), other)
        self.look_alikes.update(other.look_alikes)
        for name, pairs in other.look_alike_examples.items():
            self.look_alike_examples[name] = sorted([*self.look_alike_examples.get(name, ()), *pairs])[:EXAMPLES_MAX]
        for topic, window_ms in other.windows_ms.items():
            self.window(topic, window_ms)
        self.repeats.update({at: number for at, number in other.repeats.items() if at[0] in self.windows_ms})
        self.topic_pairs.update(other.topic_pairs)

    def _merge_kind(self, at: tuple[str, Relation], there: tuple[str, Relation], other: Sums) -> None:
        """Add what another part counted of one topic and relation."""
        self.duplicates[at] += other.duplicates[there]
        self.longest_ms[at] = max(other.longest_ms[there], self.longest_ms.get(at, 0))
        self.timelines.setdefault(at, Timeline()).merge(other.timelines[there])
        both = [*self.evidence.get(at, ()), *other.evidence[there]]
        self.evidence[at] = sorted(both, key=attrgetter("n"))[:EXAMPLES_MAX]
