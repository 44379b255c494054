"""Quantities as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebridge import quantities

S, MIN, H, DAY = 1000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"), (999, "999 ms"), (1000, "1 s"), (1500, "1.5 s"), (59_999, "59 s"), (MIN, "1 min"),
        (3 * MIN + 20 * S, "3 min 20 s"), (H, "1 h"), (26 * H, "1 day 2 h"), (4 * DAY + 59 * MIN, "4 days"),
        (5000 * DAY, "5,000 days"),
    ],
)  # fmt: skip
def test_spans_have_two_units_at_most(ms, text):
    """A length of time is written in its largest unit and the next smaller."""
    assert quantities.span(ms) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"), (1, "100 %"), (0.41, "41 %"), (0.085, "8.5 %"), (0.0001, "under 0.1 %"), (0.99995, "over 99.9 %"),
        (0.995, "99.5 %"), (7, "100 %"), (float("nan"), "0 %"),
    ],
)  # fmt: skip
def test_a_few_are_not_none_and_most_are_not_all(share, text):
    """Only nothing is 0 %, only all is 100 %."""
    assert quantities.percent(share) == text


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [(0, "0 B"), (900, "900 B"), (999.9, "1 kB"), (12_300, "12 kB"), (3_400_000_000, "3.4 GB"), (10**16, "9,007 TB")],
)
def test_sizes_are_in_the_unit_that_fits(bytes_, text):
    """A size has one to three digits, and the unit that makes it so."""
    assert quantities.size(bytes_) == text


@pytest.mark.parametrize(
    ("value", "text"), [(950, "950"), (9999, "9,999"), (12_345, "12 k"), (3_400_000, "3.4 M"), (2 * 10**13, "20 T")]
)
def test_short_counts_fit_on_an_axis(value, text):
    """A count where room is scarce is rounded to the digits that matter."""
    assert quantities.short_count(value) == text


def test_counts_come_with_their_noun():
    """One is singular, all others are plural, by a word of their own where they have one."""
    assert quantities.counted(1, "event") == "1 event"
    assert quantities.counted(1282, "event") == "1,282 events"
    assert quantities.counted(0, "delivery", "deliveries") == "0 deliveries"


def test_a_part_of_nothing_is_none():
    """A share is from 0 to 1 whatever is divided."""
    assert quantities.part_of(3, 0) == 0
    assert quantities.part_of(3, 2) == 1
    assert quantities.part_of(1, 4) == 0.25
    assert quantities.part_of(float("inf"), 4) == 0


@given(value=st.one_of(st.integers(-(10**5000), 10**5000), st.floats()))
def test_any_number_is_written_shortly(value):
    """Whatever a number is, its text is short, and nothing raises."""
    for write in (quantities.count, quantities.short_count, quantities.percent, quantities.span, quantities.size):
        assert 0 < len(write(value)) <= 24
