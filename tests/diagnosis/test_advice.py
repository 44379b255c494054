"""What follows from the data: a retention that outlives what was seen, windows by what repeats, and short lists."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import payloads
from oncebridge.diagnosis.advice import DAY_MS, REDIS_ENTITY_BYTES, REDIS_EVENT_BYTES, Observed, advise
from oncebridge.diagnosis.arrivals import Arrivals
from oncebridge.diagnosis.diagnose import diagnose
from oncebridge.diagnosis.diagnosis import Cause
from oncebridge.diagnosis.evidence import Evidence, Relation
from oncebridge.diagnosis.lags import lag_class
from oncebridge.diagnosis.sums import Sums
from oncebridge.settings import load_settings

HOUR_MS = 3_600_000
START_MS = 1_772_438_400_000
LAGS = st.lists(st.integers(0, 60 * DAY_MS), max_size=30)
NO_REPEATS = (Relation.REPLAY, Relation.ECHO, Relation.OTHER_TOPIC)


def repeated(lags_ms, relation=Relation.NEW_ENVELOPE, events=100):
    """Count repeats with these lags."""
    sums = Sums()
    sums.add_events({"t": events})
    found = [Evidence(n, None, "t", relation, lag, lag, 1) for n, lag in enumerate(lags_ms, 1)]
    sums.add_duplicates(found, Arrivals([START_MS] * len(found)))
    return sums


def advised(sums, *, span_ms=DAY_MS, retention_days=30.0, causes=None):
    """Make the advice for sums of a capture."""
    return advise(
        Observed(
            sums=sums,
            causes=causes or {},
            retention_ms=int(retention_days * DAY_MS),
            first_ms=START_MS,
            last_ms=START_MS + span_ms,
        )
    )


# --- retention -------------------------------------------------------------------------------------------------


@given(LAGS)
def test_the_retention_outlives_every_repeat_that_was_seen(lags_ms):
    """Genesys' four days and EventBridge's one are the least, and half as much again as the longest lag."""
    days = advised(repeated(lags_ms)).retention_days
    assert days >= 5
    assert days * DAY_MS >= 1.5 * max(lags_ms, default=0)
    assert days == 5 or (days - 1) * DAY_MS < 1.5 * max(lags_ms)


@given(LAGS)
def test_shorter_memories_forget_more(lags_ms):
    """What a memory would have let through falls with its length; it is the number of longer lags, to a twentieth."""
    forgotten = advised(repeated(lags_ms)).forgotten
    counts = [number for _, number in forgotten]
    assert counts == sorted(counts, reverse=True)
    for seconds, number in forgotten:
        assert sum(lag > 1000 * seconds for lag in lags_ms) <= number
        assert number <= sum(1.06 * lag + 1 > 1000 * seconds for lag in lags_ms)


@pytest.mark.parametrize("relation", NO_REPEATS)
def test_what_is_wanted_needs_no_memory(relation):
    """A replay of last year, an echo and a second topic say nothing of how long a memory must last."""
    advice = advised(repeated([400 * DAY_MS], relation))
    assert (advice.retention_days, advice.forgotten) == (5, [])
    assert "No repeats were seen" in advice.retention_text


def test_the_text_says_how_long_the_capture_is():
    """A capture of an hour cannot show lags of a day, and says so; replays are named beside it."""
    advice = advised(repeated([5000] * 10), span_ms=HOUR_MS, causes={Cause.ARCHIVE_REPLAY: 3})
    assert "spans 1 h" in advice.retention_text
    assert "3 came by archive replays" in advice.retention_text


# --- memory ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**7), st.integers(0, 10**6), st.integers(1, 400), st.integers(1, 90))
def test_memory_is_what_the_retention_holds(events, entities, hours, days):
    """So many events a day for so many days, and each entity once."""
    sums = repeated([], events=events)
    sums.entities = entities
    advice = advised(sums, span_ms=hours * HOUR_MS, retention_days=days)
    exact = events * 24 / hours * days * REDIS_EVENT_BYTES + entities * REDIS_ENTITY_BYTES
    assert advice.redis_bytes == pytest.approx(exact, rel=1e-6, abs=1)


@pytest.mark.parametrize(("events", "span_ms"), [(0, DAY_MS), (5, 0)])
def test_nothing_is_said_of_memory_without_traffic(events, span_ms):
    """No events or no time give no number, and no division by zero."""
    advice = advised(repeated([], events=events), span_ms=span_ms)
    assert advice.redis_bytes == 0
    assert "too short" in advice.redis_text


def test_a_short_capture_is_called_rough():
    """What was seen for a minute is not a day's traffic."""
    assert "rough" in advised(repeated([]), span_ms=60_000).redis_text
    assert "rough" not in advised(repeated([]), span_ms=2 * HOUR_MS).redis_text


# --- echo windows ----------------------------------------------------------------------------------------------


def windowed(gaps_ms, window_ms=500):
    """Diagnose calls whose state is said twice with these gaps; return what is advised for their topic."""
    lines = [
        payloads.raw(payloads.call_status(moment=at_ms, conversation=f"call-{n}", id=f"{n}-{at_ms}"))
        for n, gap in enumerate(gaps_ms)
        for at_ms in (payloads.TIME_MS, payloads.TIME_MS + gap)
    ]
    with TemporaryDirectory() as folder:
        (Path(folder) / "in.jsonl").write_bytes(b"\n".join(lines))
        (Path(folder) / "in.toml").write_text(
            '[topics."conversation:call:status"]\nkind = "state"\nentity = "conversationId"\ntime = "timestamp"\n'
            f"echo_window_ms = {window_ms}\n"
        )
        found = diagnose([f"{folder}/in.jsonl"], settings=load_settings(f"{folder}/in.toml"))
    (window,) = found.advice.echo_windows
    return window


@pytest.mark.parametrize("gap_ms", [1, 100, 470, 480, 490, 495, 499, 500])
def test_an_echo_is_counted_within_its_window(gap_ms):
    """A state that is repeated within the window is an echo up to its last millisecond, so nothing is too short."""
    window = windowed([gap_ms] * 10)
    assert (window.echoes, window.outside, window.advised_ms) == (10, 0, 500)


@pytest.mark.parametrize("gap_ms", [530, 600, 900, 4000])
def test_repeats_behind_the_window_are_outside(gap_ms):
    """Ten repeats soon after the window ask for a longer one, which covers them."""
    window = windowed([gap_ms] * 10)
    assert (window.echoes, window.outside) == (0, 10)
    assert window.advised_ms >= gap_ms


def test_few_repeats_outside_change_nothing():
    """Two of a hundred are accidents, or real changes."""
    window = windowed([100] * 98 + [900] * 2)
    assert (window.advised_ms, window.outside) == (500, 2)
    assert "500 ms" in window.text


@settings(max_examples=25)
@given(st.lists(st.integers(1, 990), min_size=1, max_size=20), st.sampled_from([100, 500]))
def test_an_advised_window_is_never_shorter(gaps_ms, window_ms):
    """What the settings recognise today is recognised tomorrow, and all repeats are counted."""
    window = windowed(gaps_ms, window_ms)
    assert window.advised_ms >= window_ms
    assert window.echoes + window.outside == len(gaps_ms)


def test_a_topic_without_repeats_is_not_listed():
    """There is nothing to say of a window that nothing came near."""
    sums = Sums()
    sums.windows_ms["t"] = 500
    assert advised(sums).echo_windows == []


def test_the_lists_are_short_whatever_was_made_up():
    """Topics that an attacker makes up, each with an echo, are no list of thousands, and take no time squared."""
    sums = Sums()
    for n in range(3000):
        sums.windows_ms[f"t{n}"] = 500
        sums.repeats[f"t{n}", lag_class(900)] += 4 if n == 7 else 3
        sums.topic_pairs[f"t{n}", f"u{n}"] += 1
    advice = advised(sums)
    assert len(advice.topic_pairs) <= 10
    assert len(advice.echo_windows) <= 100
    assert advice.echo_windows[0].topic == "t7"


# --- topics that bring the same --------------------------------------------------------------------------------


def test_a_pair_of_topics_is_one_whichever_came_first():
    """Facts that came first under one topic and first under the other are added up; most come first."""
    activity, presence = "v2.users.{id}.activity", "v2.users.{id}.presence"
    sums = Sums()
    sums.topic_pairs.update({(activity, presence): 3, (presence, activity): 4, ("a", "b"): 9})
    pairs = advised(sums).topic_pairs
    assert [(pair.topic, pair.other, pair.count) for pair in pairs] == [("a", "b", 9), (activity, presence, 7)]
    assert f"{presence} can go" in pairs[1].text


@pytest.mark.parametrize(("events", "can_go"), [(7, True), (10, True), (12, False), (600, False)])
def test_a_topic_can_go_only_if_the_other_brings_nearly_all_of_it(events, can_go):
    """Whoever leaves a topic loses what came under it alone, so that is said with its number."""
    activity, presence = "v2.users.{id}.activity", "v2.users.{id}.presence"
    sums = Sums()
    sums.topic_pairs[activity, presence] = 9
    sums.events_by_topic.update({activity: 900, presence: events})
    (pair,) = advised(sums).topic_pairs
    assert (f"{presence} can go" in pair.text) is can_go
    assert (f"but {events - 9:,} events of {presence} under it alone" in pair.text) is not can_go
