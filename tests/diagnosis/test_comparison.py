"""What changed since an earlier diagnosis: what is said, how it is judged, and in which order."""

import pytest
from msgspec.structs import replace

from diagnosis.made_up import empty, hostile, lags, plausible
from oncebridge.diagnosis.comparison import OWN_KEY, Trend, changes
from oncebridge.diagnosis.diagnosis import Advice, EchoWindow, TopicPair

OTHER_DIGEST = "0" * 64


def earlier(**fields):
    """Make a diagnosis of an earlier capture up; without fields it differs from the later by its digest alone."""
    return plausible(**({"input_digest": OTHER_DIGEST} | fields))


def about(found):
    """Return what changes are about."""
    return [change.about for change in found]


def one(found, name):
    """Return the one change about this."""
    (change,) = [change for change in found if change.about == name]
    return change


def with_key(diagnosis, key, **fields):
    """Change one row of the back-test."""
    rows = [replace(row, **fields) if row.key == key else row for row in diagnosis.backtest]
    return replace(diagnosis, backtest=rows)


def test_nothing_changed():
    """Two captures that behave alike give no change."""
    assert changes(plausible(), earlier()) == []


def test_twice_as_much_of_the_same_is_no_change():
    """A capture that is twice as long is compared by shares: nothing changed."""
    later = plausible()
    twice = earlier(
        deliveries=2 * later.deliveries,
        events=2 * later.events,
        duplicates=2 * later.duplicates,
        unreadable=2 * later.unreadable,
        causes={name: 2 * number for name, number in later.causes.items()},
        backtest=[replace(row, lost=2 * row.lost, let_through=2 * row.let_through) for row in later.backtest],
    )
    assert changes(later, twice) == []


def test_the_share_of_duplicates_is_compared_in_words():
    """A change in the share of duplicates is said with both numbers, and less is better."""
    later = plausible(deliveries=10_012, unreadable=12, duplicates=3000)
    before = earlier(deliveries=10_012, unreadable=12, duplicates=1000)
    assert one(changes(later, before), "duplicates").text == "Duplicates rose from 10 % to 30 % of deliveries."
    assert one(changes(later, before), "duplicates").trend is Trend.WORSE
    assert one(changes(before, later), "duplicates").trend is Trend.BETTER


@pytest.mark.parametrize(("before", "is_said"), [(3000, False), (3050, False), (3101, True), (2600, True)])
def test_small_differences_are_no_change(before, is_said):
    """What may be chance is not said: less than a point that is less than a tenth."""
    found = changes(plausible(deliveries=10_012, duplicates=3000), earlier(deliveries=10_012, duplicates=before))
    assert ("duplicates" in about(found)) == is_said


def test_causes_are_compared_by_their_share_of_deliveries():
    """One cause that grows makes no other look smaller; what is new and what is gone is called so."""
    later = plausible(deliveries=10_012, unreadable=12, causes={"echo": 500, "sqs_redelivery": 4000, "unknown": 300})
    before = earlier(deliveries=10_012, unreadable=12, causes={"echo": 500, "sqs_redelivery": 100, "two_topics": 90})
    found = changes(later, before)
    assert "cause.echo" not in about(found)
    grown = one(found, "cause.sqs_redelivery")
    assert grown.text == "SQS delivered the same message again: rose from 1.0 % to 40 % of deliveries."
    new, gone = one(found, "cause.unknown"), one(found, "cause.two_topics")
    assert (new.trend, gone.trend) == (Trend.WORSE, Trend.BETTER)
    assert new.text == "New cause: the capture does not tell who repeated it, 3.0 % of deliveries (300)."
    assert gone.text == "Gone: two topics, 0.9 % of deliveries (90) before."


def test_lost_events_come_first():
    """An event lost by the settings in force, be it one, stands before everything else."""
    later = with_key(plausible(duplicates=9000, causes={"unknown": 9000}), OWN_KEY, lost=900, let_through=300)
    found = changes(later, earlier())
    assert about(found)[0] == f"key.{OWN_KEY}.lost"
    assert found[0].trend is Trend.WORSE
    assert "lose 16 % of real events (900), 0 % (0) before" in found[0].text
    single = changes(with_key(plausible(), OWN_KEY, lost=1), earlier())
    assert about(single) == [f"key.{OWN_KEY}.lost"]


def test_other_keys_are_news():
    """That another key would have done better or worse comes after what happened; nobody is better off by it."""
    later = with_key(plausible(duplicates=9000), "content_hash", let_through=4000)
    found = changes(later, earlier())
    change = one(found, "key.content_hash.let_through")
    assert change.trend is Trend.OTHER
    assert about(found).index("duplicates") < about(found).index(change.about)


def test_a_new_key_is_named():
    """A row that the earlier back-test did not have is named with both of its mistakes."""
    before = earlier()
    before = replace(before, backtest=before.backtest[1:])
    change = one(changes(plausible(), before), "key.envelope_id")
    assert change.text == "New in the back-test: Envelope id, 372 duplicates let through and 0 real events lost."


def test_the_tail_of_lags_is_compared():
    """Lags that became much longer are said; a little longer is no change."""
    days = lags([0] * 10 + [50, 20])
    hours = lags([0] * 9 + [50, 0, 0])
    change = one(changes(plausible(lags=days), earlier(lags=hours)), "lags.max")
    assert change.text == "The longest lag rose from 1 h to 4 days."
    little = replace(days, max=days.max + 3_600_000)
    assert changes(plausible(lags=little), earlier(lags=days)) == []


def test_advice_is_compared():
    """Another retention, other windows, new pairs of topics and much more memory are said."""
    usual = plausible().advice
    window = EchoWindow(topic="v2.users.{id}.presence", window_ms=500, echoes=1, outside=0, advised_ms=3000, text="")
    later = plausible(
        advice=Advice(
            retention_days=9,
            retention_text="",
            redis_bytes=2 * usual.redis_bytes,
            echo_windows=[window],
            topic_pairs=[*usual.topic_pairs, TopicPair(topic="a", other="b", count=1, text="")],
        )
    )
    found = changes(later, earlier())
    assert {change.about: change.text for change in found} == {
        "retention": "The smallest safe retention is 9 days now, 5 days before.",
        "redis": "Redis would need 97 MB now, 48 MB before.",
        "topic_pairs": "New topics that bring the same facts: a and b.",
        "echo.v2.users.{id}.presence": "The advised echo window of v2.users.{id}.presence is 3 s now, 1.5 s before.",
    }


def test_topics_that_came_and_went():
    """New topics and those that are gone are counted and named, only a few of many."""
    later = plausible()
    fewer = replace(earlier(), topics=later.topics[6:])
    new = one(changes(later, fewer), "topics.new")
    assert new.text.startswith("6 new topics: v2.detail.events.conversation.{id}.customer.start, ")
    assert new.text.endswith(" and 2 more.")
    gone = one(changes(fewer, later), "topics.gone")
    assert gone.text.startswith("6 topics did not come this time: ")


def test_a_list_that_is_cut_proves_nothing():
    """Where a report lists only some of its topics, one that is missing in it may have been there."""
    later = plausible()
    cut = replace(earlier(), topics=later.topics[2:], topics_left_out=5)
    assert changes(later, cut) == []
    assert changes(replace(cut, input_digest="1"), later) == []


def test_what_cannot_be_compared_is_said():
    """With a capture of nothing on one side, that is all that is said about numbers."""
    assert changes(empty(), earlier())[0].text == (
        "This report is of no delivery that could be read: nothing can be compared."
    )
    assert changes(plausible(), empty())[0].text.startswith("The earlier report is of no delivery")
    assert about(changes(plausible(), empty(settings="oncebridge.toml"))) == ["input", "unreadable"]


def test_the_same_capture_is_named():
    """Two reports of one capture differ by settings or version only, and that is said."""
    found = changes(plausible(settings="new.toml"), plausible(settings=""))
    assert [change.text for change in found] == [
        "Both reports are of the same capture: what differs comes from settings or from another version.",
        "Other settings: new.toml now, the defaults before.",
    ]


def test_unreadable_deliveries_are_compared():
    """A capture of which less can be read than before says so."""
    found = changes(plausible(unreadable=2000, duplicates=3760), earlier())
    assert one(found, "unreadable").text == "Unreadable deliveries rose from 0.1 % to 19 % of all."


def test_anything_can_be_compared():
    """Numbers and texts that no capture gives raise nothing, in either direction."""
    wild = hostile(size=20, entries=5)
    for pair in ((wild, plausible()), (plausible(), wild), (wild, hostile(size=30, entries=3, number=-7))):
        found = changes(*pair)
        assert found == sorted(found, key=lambda change: -change.weight)
