"""Tables fit the terminal that they are drawn in, whatever is in them."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from oncebridge.cli.tables import drawn, shortened, wrapped

KEY = "ob1_0123456789abcdef0123456789abcdef"
COLUMNS = ("key", "since", "topic", "attempts", "reason")
TEXTS = st.text(st.sampled_from(string.ascii_letters + " ._{}ü漢字"), max_size=200)


def drawing(rows, width, **places):
    """Draw a table, and return its lines."""
    return [line.plain for line in drawn(COLUMNS, rows, width, styles={}, **places)]


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=5))
def test_no_line_is_wider_than_the_terminal(texts):
    """Every line fits 80 columns, and every key is whole."""
    rows = [(KEY, time, topic, "10", reason) for time, topic, reason in texts]
    lines = drawing(rows, 80, below=("topic",), prose=("reason",))
    assert max(map(cell_len, lines)) <= 80
    assert sum(line.startswith(KEY) for line in lines) == len(rows)


@given(TEXTS, st.integers(min_value=3, max_value=60))
def test_a_name_is_shortened_in_the_middle(text, width):
    """A shortened name fits, and has the start and the end of the whole one."""
    short = shortened(text, width)
    assert cell_len(short) <= width
    start, dots, end = short.partition("…")
    assert text.startswith(start)
    assert text.endswith(end)
    assert cell_len(short) > width - 3 if dots else short == text


@given(TEXTS, st.integers(min_value=3, max_value=60))
def test_prose_wraps_and_loses_nothing(text, width):
    """Wrapped lines fit, and hold every character but the spaces that they were broken at."""
    lines = wrapped(text, width)
    assert max(map(cell_len, lines)) <= width
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("width", [80, 200])
def test_names_are_below_only_where_the_row_does_not_fit(width):
    """A row that fits is one line; one that does not has its long parts beneath it, with their names."""
    rows = [(KEY, "2026-03-02T08:00:00Z", "v2.users.{id}.presence", "10", "handler raised RuntimeError")]
    lines = drawing(rows, width, below=("topic", "reason"))
    if width == 200:
        assert len(lines) == 2
        return
    assert [line.split() for line in lines] == [
        ["key", "since", "attempts"],
        [KEY, "2026-03-02T08:00:00Z", "10"],
        ["topic", "v2.users.{id}.presence"],
        ["reason", "handler", "raised", "RuntimeError"],
    ]
