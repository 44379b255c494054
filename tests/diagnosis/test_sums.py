"""Counts of many parts: nothing is lost by widening and merging, in any order, and no list grows with the input."""

from collections import Counter
from math import ceil

from hypothesis import example, given
from hypothesis import strategies as st

from oncebridge.diagnosis.arrivals import Arrivals
from oncebridge.diagnosis.diagnosis import EXAMPLES_MAX
from oncebridge.diagnosis.evidence import Evidence, Relation
from oncebridge.diagnosis.lags import lag_class, longest_in
from oncebridge.diagnosis.sums import TOPICS_COUNTED_MAX, Sums, Timeline, over_time

STEPS_MAX, BINS_MAX = 120, 4096
LAST_MS = (2**63 - 1) // 1_000_000  # of what a time may be
TIMES = st.lists(st.integers(0, LAST_MS) | st.integers(10**12, 10**12 + 10_000), max_size=40)
WIDTHS = st.integers(0, 30).map(lambda doublings: 1000 * 2**doublings)


def timeline(times):
    """Count times."""
    line = Timeline()
    line.add_all(times)
    return line


# --- over time -------------------------------------------------------------------------------------------------


@given(TIMES, WIDTHS)
def test_longer_steps_keep_their_counts(times, width_ms):
    """A timeline that is widened has the same total, and each count in the step that its time is in."""
    line = timeline(times)
    line.widen(width_ms)
    assert line.bins == Counter(time // width_ms for time in times)
    assert line.bins.total() == len(times)


@given(st.lists(TIMES, max_size=5))
@example([list(range(0, 5_000_000, 1000)), list(range(5_000_000, 40_000_000, 1000)), [LAST_MS]])
def test_merged_timelines_keep_their_counts(parts):
    """Parts that are merged in any order are what one timeline of all is, and no more than fits."""
    every = [time for part in parts for time in part]
    found = []
    for order in (parts, parts[::-1]):
        line = Timeline()
        for part in order:
            line.merge(timeline(part))
        assert line.bins.total() == len(every)
        assert len(line.bins) <= BINS_MAX
        assert line.bins == Counter(time // line.width_ms for time in every)
        found.append((line.width_ms, line.bins))
    assert found[0] == found[1]


@given(TIMES, st.dictionaries(st.sampled_from(["a", "b", "c"]), TIMES))
@example([0, LAST_MS], {"a": [LAST_MS]})
@example([0], {})
def test_over_time_has_few_steps_and_every_count(times, duplicates):
    """However long a capture is, its picture has at most 120 steps, of one width for all, and nothing is left out."""
    shown = over_time(timeline(times), {name: timeline(part) for name, part in duplicates.items()})
    assert sum(shown.deliveries) == len(times)
    assert {name: sum(counts) for name, counts in shown.duplicates.items()} == {
        name: len(part) for name, part in duplicates.items() if part
    }
    rows = [shown.deliveries, *shown.duplicates.values()]
    assert {len(row) for row in rows} <= {len(shown.deliveries)}
    assert len(shown.deliveries) <= STEPS_MAX + 1
    every = [*times, *(time for part in duplicates.values() for time in part)]
    if every:
        assert shown.start_ms <= min(every)
        assert max(every) < shown.start_ms + shown.width_ms * len(shown.deliveries)


def test_nothing_over_no_time():
    """Without times there is no picture, and no error."""
    assert over_time(Timeline(), {}).deliveries == []
    assert (Timeline().first_ms, Timeline().last_ms) == (None, None)


# --- sums ------------------------------------------------------------------------------------------------------

RELATIONS = st.sampled_from([Relation.AT_ONCE, Relation.LATER, Relation.NEW_ENVELOPE, Relation.ECHO])
EVIDENCE = st.builds(
    Evidence,
    st.integers(1, 50),
    st.none(),
    st.sampled_from(["t1", "t2"]),
    RELATIONS,
    st.integers(-1, 10**9),
    st.integers(0, 10**9),
    st.just(1),
)
ARRIVALS = Arrivals([n * 7000 for n in range(50)])


def summed(found):
    """Count the evidence of a part, which is in the order of the input."""
    sums = Sums()
    sums.add_events({"t1": len(found)})
    sums.add_duplicates(sorted(found, key=lambda one: one.n), ARRIVALS)
    return sums


@given(st.lists(EVIDENCE, max_size=20), st.integers(1, 4), st.randoms())
def test_parts_add_up_to_the_whole(found, number, dice):
    """However deliveries are spread over parts, and in whatever order these are merged, the sums are the same."""
    found = list({one.n: one for one in found}.values())
    parts = [[] for _ in range(number)]
    for one in found:
        dice.choice(parts).append(one)
    whole, merged = summed(found), Sums()
    for part in parts:
        merged.merge(summed(part))
    for name in ("events", "events_by_topic", "duplicates", "lags", "evidence"):
        assert getattr(merged, name) == getattr(whole, name), name
    assert {at: line.bins for at, line in merged.timelines.items()} == {
        at: line.bins for at, line in whole.timelines.items()
    }
    assert {at: ms for at, ms in merged.longest_ms.items() if ms} == {
        at: ms for at, ms in whole.longest_ms.items() if ms
    }


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), max_size=20), st.integers(1, 4))
def test_the_first_look_alikes_are_kept(pairs, number):
    """All are counted, and those shown are the first of the input, not of the part that was merged first."""
    pairs = sorted({n: (n, of) for n, of in pairs}.values())
    parts = [Sums() for _ in range(number)]
    for n, of in pairs:
        parts[n % number].look_alike("late", n, of)
    merged = Sums()
    for part in reversed(parts):
        merged.merge(part)
    assert merged.look_alikes["late"] == len(pairs)
    assert merged.look_alike_examples.get("late", []) == pairs[:EXAMPLES_MAX]


def test_made_up_topics_take_no_more_room_than_so_many():
    """An attacker can make topics up: beyond a number they are counted together, in each part and in all of them."""
    merged = Sums()
    per_part = TOPICS_COUNTED_MAX // 2
    for part in range(4):
        sums, first = Sums(), part * per_part
        sums.add_events({f"t{first + n}": 1 for n in range(per_part)})
        found = [Evidence(n + 1, None, f"t{first + n}", Relation.AT_ONCE, 5, 5, 1, "", True) for n in range(per_part)]
        sums.add_duplicates(found, Arrivals([0] * per_part))
        merged.merge(sums)
    assert merged.events == merged.events_by_topic.total() == merged.duplicates.total() == 4 * per_part
    for kept in (merged.events_by_topic, merged.duplicates, merged.lags, merged.timelines, merged.evidence):
        assert len(kept) <= TOPICS_COUNTED_MAX + 1


# --- lags ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**14))
def test_a_lag_is_no_longer_than_its_class(lag_ms):
    """The class of a lag says how long it is to within a twentieth, and never less."""
    longest = longest_in(lag_class(lag_ms))
    assert lag_ms <= longest + 1
    assert longest <= max(1.06 * lag_ms, lag_ms + 1)


@given(st.lists(st.integers(0, 10**11), min_size=1, max_size=60))
def test_quantiles_are_those_of_the_lags(lags_ms):
    """Half of the lags are within the median, to a twentieth; the longest is exact; the classes hold every lag."""
    found = [Evidence(n, None, "t1", Relation.AT_ONCE, lag, lag, 1) for n, lag in enumerate(lags_ms, 1)]
    sums = Sums()
    sums.add_duplicates(found, Arrivals([0] * len(found)))
    lags = sums.lags_where(lambda _topic, _relation: True)
    assert (lags.count, lags.max, sum(lags.counts)) == (len(found), max(lags_ms), len(found))
    assert len(lags.edges) == len(lags.counts)
    assert lags.edges == sorted(lags.edges)
    assert lags.p50 <= lags.p90 <= lags.p99 <= lags.p999 <= lags.max
    for quantile, share in ((lags.p50, 0.5), (lags.p90, 0.9), (lags.p99, 0.99)):
        assert sum(lag <= quantile + 1 for lag in lags_ms) >= share * len(found)
        exact = sorted(lags_ms)[max(0, ceil(len(found) * share) - 1)]
        assert quantile <= 1.06 * exact + 1
