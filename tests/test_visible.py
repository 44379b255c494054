"""Text from outside, safe to show."""

import pytest

from oncebridge.visible import MARKS_MAX, visible


@pytest.mark.parametrize(
    "text", ["plain", "Zoë", "Zoe\u0308", "ไม่มีชื่อ", "क्षेत्र", "مُحَمَّد", "שָׁלוֹם", "Nguye\u0302\u0303n", "名前", "❤\ufe0f"]
)
def test_what_people_write_stays_as_it_is(text):
    """Letters of every script, with the marks that belong to them, are shown as they are."""
    assert visible(text) == text


@pytest.mark.parametrize("mark", ["\u0351", "\u20dd", "\u0e49", "\u093e"])
def test_a_heap_of_marks_is_shown_as_escapes(mark):
    """More marks than any script puts on a letter cover other lines, and no line breaks within them."""
    escape = mark.encode("unicode_escape").decode()
    assert visible("Z" + mark * (MARKS_MAX + 3) + "z" + mark) == "Z" + mark * MARKS_MAX + escape * 3 + "z" + mark


@pytest.mark.parametrize("blank", ["\u3164", "\u115f", "\u1160", "\uffa0", "\u2800", "\u034f", "\u200b", "\U000e0041"])
def test_what_leaves_no_ink_is_shown_as_an_escape(blank):
    """Two names that differ look different."""
    assert visible(f"crm{blank}") == "crm" + blank.encode("unicode_escape").decode()
