"""When deliveries arrived: never before what stands above them, and no wrong clock moves its neighbours."""

from array import array
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebridge.diagnosis.arrivals import JUMP_MS, UNKNOWN, ArrivalClock, Arrivals, earliest_ms, told_ms
from oncebridge.diagnosis.sighting import Sighting
from oncebridge.sources.captures.found import Surroundings

START_MS = 1_772_438_400_000
YEAR_MS = 365 * 86_400_000
SOME_MS = st.integers(0, 10 * JUMP_MS).map(START_MS.__add__)
PERHAPS_MS = st.just(UNKNOWN) | SOME_MS


def sighting(n, **around):
    """Make the sighting of a delivery up, of which only number and surroundings matter."""
    return Sighting(
        n=n, file=0, line=n, key=b"k", topic="t", id="e", origin="o", replay=None, content=None, published_ms=None,
        time_ms=None, around=Surroundings(**around) if around else None, facts=(), state=None,
    )  # fmt: skip


def estimated(told_and_published):
    """Let deliveries arrive at a clock of their own."""
    clock = ArrivalClock()
    return [clock.next(told, published) for told, published in told_and_published]


# --- what AWS says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("around", "told"),
    [
        ({}, UNKNOWN),
        ({"sent_ms": 5}, 5),
        ({"sent_ms": 5, "receive_count": 1}, 5),
        ({"sent_ms": 5, "first_received_ms": 7, "receive_count": 1}, 7),
        ({"sent_ms": 5, "first_received_ms": 7, "receive_count": 2}, UNKNOWN),
        ({"sent_ms": 5, "arrived_ms": 9, "receive_count": 2}, 9),
        ({"sent_ms": 5, "arrived_ms": 9, "logged_ms": 11}, 11),
        ({"receive_count": 1}, UNKNOWN),
    ],
)
def test_the_best_witness_is_believed(around, told):
    """A log says when, then a stream, then the first receive; of a message received again nothing says when."""
    assert told_ms(Surroundings(**around)) == told


@pytest.mark.parametrize(
    ("around", "earliest"), [({}, UNKNOWN), ({"sent_ms": 5}, 5), ({"sent_ms": 5, "first_received_ms": 7}, 7)]
)
def test_a_message_has_not_arrived_before_it_was_sent(around, earliest):
    """However often a message was received, it was sent and first received before."""
    assert earliest_ms(Surroundings(**around, receive_count=4)) == earliest


# --- what the neighbours say -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(PERHAPS_MS, PERHAPS_MS), max_size=30))
def test_what_is_told_is_kept(deliveries):
    """Where AWS wrote when a delivery arrived, that is when it arrived."""
    for (told, _), arrived in zip(deliveries, estimated(deliveries), strict=True):
        assert told in (UNKNOWN, arrived)


@given(st.lists(st.just(UNKNOWN) | st.integers(START_MS, START_MS + JUMP_MS), max_size=30))
def test_nothing_arrives_before_it_was_published(published):
    """The estimate is never earlier than the publishing, and unknown only where nothing above is known either."""
    arrived = estimated([(UNKNOWN, one) for one in published])
    for n, (at, own) in enumerate(zip(arrived, published, strict=True)):
        assert at >= own
        assert at >= 0 or all(before == UNKNOWN for before in published[: n + 1])


@given(st.lists(st.integers(0, JUMP_MS), max_size=30))
def test_a_late_copy_arrives_where_it_stands(steps):
    """An old event among newer ones has arrived with them, however old it is."""
    times, now = [], START_MS
    for step in steps:
        now += step
        times.append(now)
    arrived = estimated([(UNKNOWN, one) for time in times for one in (time, START_MS - YEAR_MS)])
    assert arrived == [time for time in times for _ in range(2)]


@given(st.integers(0, 9), st.integers(2 * JUMP_MS, YEAR_MS))
def test_one_clock_that_is_ahead_moves_no_neighbour(at, ahead_ms):
    """All others arrive when they would have arrived without the delivery whose stamp is wrong."""
    published = [START_MS + n * 1000 for n in range(1, 11)]
    wrong = [(UNKNOWN, START_MS)] + [(UNKNOWN, one + ahead_ms * (n == at)) for n, one in enumerate(published)]
    arrived = estimated(wrong)[1:]
    assert [one for n, one in enumerate(arrived) if n != at] == [one for n, one in enumerate(published) if n != at]


def test_a_pause_is_believed():
    """After a night without events all that follows arrived the next day."""
    morning = START_MS + 40 * JUMP_MS
    assert estimated([(UNKNOWN, START_MS), *((UNKNOWN, morning + n) for n in range(3))])[-1] == morning + 2


# --- how far apart ---------------------------------------------------------------------------------------------


def test_messages_are_as_far_apart_as_they_were_sent():
    """A consumer that lags receives both at once; when they were sent says who repeated."""
    one = sighting(1, message_id="a", sent_ms=1000, first_received_ms=90_000, receive_count=1)
    other = sighting(2, message_id="b", sent_ms=61_000, first_received_ms=90_001, receive_count=1)
    assert Arrivals([90_000, 90_001]).between(one, other) == 60_000


def test_one_message_that_is_received_twice_is_as_far_apart_as_it_was_received():
    """Both receives share the time of sending, which then says nothing."""
    one = sighting(1, message_id="a", sent_ms=1000, logged_ms=2000)
    other = sighting(2, message_id="a", sent_ms=1000, logged_ms=32_000)
    assert Arrivals([2000, 32_000]).between(one, other) == 30_000


@pytest.mark.parametrize("times", [[-1, 5], [5, -1], [-1, -1]])
def test_what_is_not_known_is_no_distance(times):
    """Without both times there is no lag, rather than one since 1970."""
    assert Arrivals(times).between(sighting(1), sighting(2)) == 0


def test_what_stands_below_bounds_an_arrival():
    """A delivery without a time arrived before the next later one, so two may be known to be close."""
    assert Arrivals([1000, 1000, 1700]).apart(sighting(1), sighting(2)) == (0, 700)
    assert Arrivals([1000, 1000]).apart(sighting(1), sighting(2)) == (0, None)
    assert Arrivals([1000, -1, 1700]).apart(sighting(1), sighting(2)) == (0, None)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.data())
def test_a_bound_depends_on_no_other(times, data):
    """Whatever was asked before, a delivery came before the first later time below it, if there is one near by."""
    arrivals = Arrivals(times)
    for n in data.draw(st.lists(st.integers(1, len(times)), min_size=1, max_size=20)):
        later = [time for time in times[n : n + 5] if time > times[n - 1]]
        with patch("oncebridge.diagnosis.arrivals._LOOK_MAX", 5):
            found = arrivals.apart(sighting(n), sighting(n))
        assert found == (0, later[0] - times[n - 1] if later else None)


def test_a_long_stretch_without_a_later_time_is_looked_at_once():
    """Old events that come again all arrive at the same time: asking for each of them takes no longer than for one."""
    times = Counting([7] * 10_000)
    arrivals = Arrivals(times)
    assert {arrivals.apart(sighting(n), sighting(n)) for n in range(1, 8000)} == {(0, None)}
    assert times.read < 60_000


class Counting(list):
    """A list that counts how often it is read."""

    read = 0

    def __getitem__(self, at):
        """Read one."""
        self.read += 1
        return super().__getitem__(at)


def test_told_times_need_no_bound():
    """Where both arrivals are told, their distance is known exactly."""
    one, other = sighting(1, logged_ms=1000), sighting(2, logged_ms=4000)
    assert Arrivals([1000, 4000, 9000]).apart(one, other) == (3000, 3000)


def test_numbers_begin_at_one():
    """The first delivery has the number 1."""
    arrivals = Arrivals(array("q", [7, 8]))
    assert [arrivals.of(1), arrivals.of(2)] == [7, 8]


# --- order -----------------------------------------------------------------------------------------------------


@given(
    st.lists(PERHAPS_MS, min_size=1, max_size=30).flatmap(
        lambda times: st.tuples(st.just(times), st.permutations(range(len(times))))
    )
)
def test_rows_are_put_in_order(times_and_order):
    """Rows come in the order of the capture; of one that tells times in another order, in that of the times."""
    times, order = times_and_order
    rows = [sighting(n + 1) for n in order]
    numbers = list(range(1, len(times) + 1))
    assert [row.n for row in Arrivals(times).in_order(rows)] == numbers
    told = [row.n for row in Arrivals(times, is_disordered=True).in_order(rows)]
    assert told == sorted(numbers, key=lambda n: (times[n - 1], n))
