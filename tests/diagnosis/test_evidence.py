"""How a duplicate is related to the deliveries before it: each witness for itself, and the first one asked wins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebridge.diagnosis.arrivals import UNKNOWN, Arrivals, told_ms
from oncebridge.diagnosis.causes import Regularity, cause_of, ordinal, reason_of
from oncebridge.diagnosis.diagnosis import Cause
from oncebridge.diagnosis.evidence import Evidence, Relation, related
from oncebridge.diagnosis.sighting import Sighting, origin
from oncebridge.sources.captures.found import Surroundings

START_MS = 1_772_438_400_000
MINUTE_MS = 60_000
STREAM = "2026/03/02/[$LATEST]0123456789abcdef0123456789abcdef"
HERE = origin("aws.partner/genesys.com/cloud/org/one", "1", "eu-west-2")
THERE = origin("aws.partner/genesys.com/cloud/org/two", "1", "eu-west-2")


def seen(at_ms=0, envelope="e", *, replay=None, place=HERE, file=0, **around):
    """Make a delivery up: when it arrived after the first, its envelope, and what AWS wrote around it."""
    return at_ms, envelope, replay, place, file, around


def relate(*deliveries, next_ms=MINUTE_MS):
    """Relate the last of some deliveries of one event to those before; something else comes after it."""
    rows = [
        Sighting(
            n=n, file=file, line=n, key=b"k", topic="t", id=envelope, origin=place, replay=replay, content=None,
            published_ms=START_MS, time_ms=None, around=Surroundings(**around) if around else None, facts=(),
            state=None,
        )
        for n, (_, envelope, replay, place, file, around) in enumerate(deliveries, 1)
    ]  # fmt: skip
    times = []
    for row, (at_ms, *_) in zip(rows, deliveries, strict=True):
        told = UNKNOWN if row.around is None else told_ms(row.around)
        times.append(told if told >= 0 else START_MS + at_ms)
    times.append(times[-1] + next_ms)
    return related(rows[-1], rows[:-1], Arrivals(times))


def message(at_ms, name="m1", count=1, **others):
    """Make up what SQS says of a message that was sent at a time."""
    return seen(at_ms, message_id=name, receive_count=count, sent_ms=START_MS + at_ms, queue="q", **others)


def logged(at_ms, request=None, **others):
    """Make up what a function's log says."""
    return seen(at_ms, logged_ms=START_MS + at_ms, request_id=request, log_stream=STREAM, **others)


#: What came, the relation of the last, the number of the one that it repeats, and what the evidence names.
SITUATIONS = {
    "a message again": ([message(0), message(0, count=2)], Relation.SAME_MESSAGE, 1, "2"),
    "a message for the third time": (
        [message(0), message(0, count=2), message(0, count=3)],
        Relation.SAME_MESSAGE,
        2,
        "3",
    ),
    "a file that holds a message twice": ([message(0), message(0)], Relation.CAPTURED_TWICE, 1, "1"),
    "two messages at once": ([message(0), message(40, "m2")], Relation.AT_ONCE, 1, ""),
    "two messages five seconds apart": ([message(0), message(5000, "m2")], Relation.LATER, 1, ""),
    "two messages more than five seconds apart": ([message(0), message(5001, "m2")], Relation.SENT_AGAIN, 1, ""),
    "twins, and one more later": (
        [message(0), message(40, "m2"), message(MINUTE_MS, "m3")],
        Relation.SENT_AGAIN,
        2,
        "",
    ),
    "two queues": (
        [message(0), seen(MINUTE_MS, message_id="m2", sent_ms=START_MS + MINUTE_MS, queue="other")],
        Relation.OTHER_TARGET,
        1,
        "queues",
    ),
    "two functions": (
        [logged(0, "r1", log_group="a"), logged(10, "r2", log_group="b")],
        Relation.OTHER_TARGET,
        1,
        "functions",
    ),
    "one request a minute apart": ([logged(0, "r1"), logged(MINUTE_MS, "r1")], Relation.SAME_REQUEST, 1, ""),
    "one request within a moment": ([logged(0, "r1"), logged(300, "r1")], Relation.SAME_INVOCATION, 1, ""),
    "a log that is there twice": ([logged(0, "r1"), logged(0, "r1")], Relation.CAPTURED_TWICE, 1, ""),
    "a function's log without requests": ([logged(0), logged(MINUTE_MS)], Relation.IN_RHYTHM, 1, ""),
    "a function's log in no rhythm": ([logged(0), logged(30_000)], Relation.LATER_UNTOLD, 1, ""),
    "a log that EventBridge writes": (
        [seen(0, logged_ms=START_MS, log_group="/aws/events/all"),
         seen(0, logged_ms=START_MS + MINUTE_MS, log_group="/aws/events/all")],
        Relation.SENT_AGAIN,
        1,
        "",
    ),
    "nothing around it, close by": ([seen(0), seen(0)], Relation.PERHAPS_AT_ONCE, 1, ""),
    "nothing around it, a third time": ([seen(0), seen(0), seen(0)], Relation.PERHAPS_THRICE, 1, ""),
    "nothing around it, a fourth time": ([seen(0), seen(0), seen(0), seen(0)], Relation.PERHAPS_OFTEN, 1, ""),
    "nothing around it, an hour later": ([seen(0), seen(60 * MINUTE_MS)], Relation.LATER_UNTOLD, 1, ""),
    "nothing around it, in another file": ([seen(0), seen(0, file=1)], Relation.OTHER_FILE, 1, ""),
    "a new envelope": ([seen(0), seen(900, "f")], Relation.NEW_ENVELOPE, 1, ""),
    "a new envelope from elsewhere": (
        [seen(0), seen(900, "f", place=THERE)],
        Relation.OTHER_ORIGIN,
        1,
        f"{HERE} and {THERE}",
    ),
    "a third envelope from here": (
        [seen(0), seen(1, "f", place=THERE), seen(900, "g")],
        Relation.NEW_ENVELOPE,
        1,
        "",
    ),
    "a replay of this envelope": ([seen(0), seen(900, replay="r")], Relation.REPLAY, 1, "r"),
    "a replay in a new envelope": ([seen(0), seen(900, "f", replay="r")], Relation.REPLAY, 1, "r"),
    "a replayed message again": (
        [seen(0), message(5, replay="r"), message(5, count=2, replay="r")],
        Relation.SAME_MESSAGE,
        2,
        "2",
    ),
    "no envelopes": ([seen(0, None), seen(0, None)], Relation.NO_ENVELOPE, 1, ""),
    "no envelope, but a request": (
        [logged(0, "r1", envelope=None), logged(MINUTE_MS, "r1", envelope=None)],
        Relation.SAME_REQUEST,
        1,
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_is_around_a_duplicate_says_how_it_is_related(situation):
    """The relation, the delivery that it repeats and what is named follow from what AWS wrote and when it came."""
    deliveries, relation, of, named = SITUATIONS[situation]
    found = relate(*deliveries)
    assert (found.relation.name, found.of, found.named) == (relation.name, of, named)


def test_every_relation_of_one_event_is_in_the_table():
    """A new relation needs a situation: only echoes and other topics are found by other passes."""
    shown = {relation for _, relation, _, _ in SITUATIONS.values()}
    assert set(Relation) - shown == {Relation.ECHO, Relation.OTHER_TOPIC, Relation.SOON}  # SOON: see below


@pytest.mark.parametrize(
    ("next_ms", "relation"),
    [
        (2000, Relation.AT_ONCE),
        (2001, Relation.SOON),
        (20_000, Relation.SOON),
        (20_001, Relation.PERHAPS_AT_ONCE),
    ],
)
def test_what_stands_below_bounds_when_a_copy_came(next_ms, relation):
    """A copy that came before what stands below it came sooner than a queue or Lambda repeats; the reason says so."""
    found = relate(seen(0), seen(0), next_ms=next_ms)
    assert found.relation is relation
    expected = Cause.UNKNOWN if relation is Relation.PERHAPS_AT_ONCE else Cause.OVERLAPPING_RULES
    assert cause_of(relation, Regularity()) is expected
    assert ("sooner than a queue or Lambda" in reason_of(found, {})) == (relation is Relation.SOON)


@pytest.mark.parametrize(
    ("receive_count", "sent_ms", "relation"),
    [(2, 0, Relation.SAME_MESSAGE), (1, 0, Relation.AT_ONCE), (2, MINUTE_MS, Relation.PERHAPS_AT_ONCE)],
)
def test_a_message_without_its_id_is_known_by_its_count(receive_count, sent_ms, relation):
    """The same envelope, sent at the same time and received more often, is the same message, received again."""
    later = seen(0, receive_count=receive_count, sent_ms=START_MS + sent_ms)
    assert relate(seen(0, receive_count=1, sent_ms=START_MS), later).relation is relation


@pytest.mark.parametrize(("sent_ms", "relation"), [(40, Relation.AT_ONCE), (2500, Relation.LATER)])
def test_two_messages_are_as_far_apart_as_they_were_sent(sent_ms, relation):
    """That one of them was received before, nobody knows when, does not matter."""
    assert relate(message(0), message(sent_ms, "m2", count=3)).relation is relation


def test_a_message_that_is_received_again_has_no_lag():
    """SQS says when it was received first and how often, but not when again: no lag is made up."""
    assert relate(message(0), message(0, count=2)).lag_ms == UNKNOWN


def test_a_lag_is_since_the_first_delivery_of_the_event():
    """How long a memory must last is counted from the first, while the reason names the one that was repeated."""
    found = relate(logged(0, "r1"), logged(MINUTE_MS, "r1"), logged(3 * MINUTE_MS, "r1"))
    assert (found.lag_ms, found.since_ms, found.of) == (3 * MINUTE_MS, 2 * MINUTE_MS, 2)


def test_only_the_first_copy_of_an_envelope_counts_for_regularity():
    """An envelope that comes three times shows once that a second rule matches."""
    twice = [message(0), message(40, "m2")]
    assert relate(*twice).before == 1
    assert relate(*twice, message(80, "m3")).before == 2


AROUND = st.builds(
    lambda **fields: {name: value for name, value in fields.items() if value is not None},
    message_id=st.none() | st.sampled_from(["m1", "m2"]),
    receive_count=st.none() | st.integers(1, 3),
    sent_ms=st.none() | st.integers(START_MS, START_MS + 9 * MINUTE_MS),
    queue=st.none() | st.sampled_from(["q1", "q2"]),
    request_id=st.none() | st.sampled_from(["r1", "r2"]),
    log_stream=st.none() | st.sampled_from([STREAM, "x"]),
    log_group=st.none() | st.sampled_from(["a", "/aws/events/a"]),
    logged_ms=st.none() | st.integers(START_MS, START_MS + 9 * MINUTE_MS),
    arrived_ms=st.none() | st.integers(START_MS, START_MS + 9 * MINUTE_MS),
)
DELIVERIES = st.builds(
    lambda at_ms, envelope, replay, place, file, around: seen(
        at_ms, envelope, replay=replay, place=place, file=file, **around
    ),
    st.integers(0, 9 * MINUTE_MS),
    st.sampled_from([None, "e", "f"]),
    st.none() | st.just("r"),
    st.sampled_from([HERE, THERE]),
    st.integers(0, 1),
    AROUND,
)


@given(st.lists(DELIVERIES, min_size=2, max_size=6))
def test_whatever_is_around_it_a_duplicate_has_a_cause_and_a_reason(deliveries):
    """Any surroundings give a relation to an earlier delivery, a cause and one line of words, and no lag below zero."""
    found = relate(*deliveries)
    assert 1 <= found.of < found.n
    assert found.lag_ms >= UNKNOWN
    assert found.since_ms >= 0
    for regularity in (Regularity(), Regularity(4, 4, 0), Regularity(4, 0, 4)):
        assert cause_of(found.relation, regularity) in Cause
        reason = reason_of(found, {"t": regularity})
        assert reason
        assert "\n" not in reason
        assert "{" not in reason


# --- causes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", Relation)
def test_every_relation_has_a_cause_and_words(relation):
    """Nothing that is found is left without an answer, with or without a name in it."""
    for named in ("", "2", "{}", "{first}", "a name"):
        evidence = Evidence(9, None, "t", relation, 5, 5, 3, named)
        assert "delivery 3" in reason_of(evidence, {}) or "replay" in reason_of(evidence, {})
    assert cause_of(relation, Regularity()) in Cause


@pytest.mark.parametrize(
    ("envelopes", "at_once", "is_rule"),
    [(100, 0, False), (100, 49, False), (100, 50, True), (2, 2, False), (3, 3, True)],
)
def test_half_of_the_envelopes_make_a_rule(envelopes, at_once, is_rule):
    """What happens to half of a topic's envelopes, and to three at least, is no accident."""
    regularity = Regularity(envelopes, at_once, 0)
    assert regularity.is_regular(Relation.AT_ONCE) is is_rule
    expected = Cause.OVERLAPPING_RULES if is_rule else Cause.UNKNOWN
    assert cause_of(Relation.PERHAPS_AT_ONCE, regularity) is expected


def test_a_third_copy_needs_a_rule_of_its_own():
    """That two rules match says nothing of a third copy: three must match as often."""
    assert cause_of(Relation.PERHAPS_THRICE, Regularity(100, 100, 0, 10)) is Cause.UNKNOWN
    assert cause_of(Relation.PERHAPS_THRICE, Regularity(100, 100, 0, 90)) is Cause.OVERLAPPING_RULES


def test_a_second_path_may_be_slower_by_a_little_and_not_by_much():
    """What comes seconds later as a rule is a second path; what is sent again is a retry, rule or not."""
    always = Regularity(4, 0, 4)
    assert cause_of(Relation.LATER, always) is Cause.OVERLAPPING_RULES
    assert cause_of(Relation.LATER, Regularity(40, 0, 4)) is Cause.EVENTBRIDGE_RETRY
    assert cause_of(Relation.SENT_AGAIN, always) is Cause.EVENTBRIDGE_RETRY


@pytest.mark.parametrize(
    ("digits", "written"),
    [("1", "1st"), ("2", "2nd"), ("3", "3rd"), ("4", "4th"), ("11", "11th"), ("12", "12th"), ("13", "13th"),
     ("21", "21st"), ("101", "101st"), ("111", "111th"), ("112", "112th")],
)  # fmt: skip
def test_positions_are_written_as_people_do(digits, written):
    """A receive count is written 2nd, 3rd, 11th."""
    assert ordinal(digits) == written
