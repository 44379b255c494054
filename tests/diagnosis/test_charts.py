"""Charts: what they draw, that nothing from outside gets out of its text, and that they stay small and readable."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnosis.made_up import HOSTILE
from oncebridge import charts
from oncebridge.charts import Bar, Mark, Pair, Series

LARGEST = 70_000  # bytes of one chart, whatever it is given
HOUR = 3_600_000


def read(text):
    """Read a chart as XML, which is stricter than HTML."""
    return ET.fromstring(text)


def texts(text):
    """Return all that is written in a chart."""
    return [element.text for element in read(text).iter("text")]


def rects(text, kind):
    """Return the bars of a class, or in a group of that class; not the samples of a legend."""
    tree = read(text)
    samples = [each for picture in tree.iter("svg") if picture.get("class") == "ch-key" for each in picture]
    found = [each for each in tree.iter("rect") if each.get("class") == kind and each not in samples]
    return found + [each for group in tree.iter("g") if group.get("class") == kind for each in group.iter("rect")]


def number(element, name):
    """Return a coordinate; percent or pixels."""
    return float(element.get(name).removesuffix("%"))


def described(text):
    """Return the description that a screen reader reads."""
    return read(text).find(".//desc").text


def drawn(name="a", values=(1, 2, 3), text=None):
    """Draw one of each chart from the same names and values."""
    text = text or name
    return {
        "stacked": charts.stacked_bars(
            "one", text, [Series(name, values), Series(name, values)], ground=Series(name, values),
            start_ms=values[0], width_ms=values[-1],
        ),
        "histogram": charts.lag_histogram("two", text, sorted(values, key=str), values, [Mark(name, values[0])]),
        "horizontal": charts.horizontal_bars("three", text, [Bar(name, value, text) for value in values]),
        "paired": charts.paired_bars(
            "four", text, [Pair(name, value, value, marked=True) for value in values], left=text, right=text
        ),
        "parts": charts.parts_bar("five", text, [Bar(name, value) for value in values], ground=Bar(name, values[0])),
        "share": charts.share_bar(values[0], text),
    }  # fmt: skip


KINDS = list(drawn())


# --- what every chart keeps to ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_says_what_it_shows(kind):
    """A screen reader is told that a chart is a picture, its title, and what it shows."""
    tree = read(drawn("Two rules")[kind])
    pictures = [tree] if tree.tag == "svg" else [each for each in tree.iter("svg") if each.get("role")]
    assert [each.get("role") for each in pictures] == ["img"]
    (picture,) = pictures
    if kind == "share":
        assert picture.get("aria-label") == "Two rules"
        return
    ids = {each.get("id"): each.text for each in tree.iter() if each.get("id")}
    assert ids[picture.get("aria-labelledby")] == "Two rules"
    assert "Two rules" in ids[picture.get("aria-describedby")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HOSTILE)
def test_names_stay_text(kind, text):
    """Whatever a name holds, it adds no element and no attribute, and nothing that is not seen."""
    text = text[: charts.NAME_MAX - 20]
    usual, hostile = read(drawn("a")[kind]), read(drawn(text)[kind])
    shape = [(each.tag, sorted(each.keys())) for each in usual.iter()]
    assert [(each.tag, sorted(each.keys())) for each in hostile.iter()] == shape
    assert all(character.isprintable() or character == "\n" for character in "".join(hostile.itertext()))


@pytest.mark.parametrize("kind", KINDS)
def test_colours_are_the_page_s(kind):
    """No chart has a fixed colour or a style of its own: scheme and policy of the page decide."""
    for element in read(drawn()[kind]).iter():
        assert not {"style", "fill", "stroke", "color"} & set(element.keys())


@pytest.mark.parametrize("kind", KINDS)
def test_size_has_a_limit(kind):
    """However many values and however long the names, a chart is no longer than a page can afford."""
    many = drawn('"&<' * 1000, tuple(range(1, 3000)), text='"&<' * 10_000)
    assert len(many[kind].encode()) < LARGEST


def test_series_have_a_limit():
    """However many parts a bar has, the chart is no longer than a page can afford."""
    series = [Series(f"{at}" + "&" * 99, [at] * 500) for at in range(500)]
    assert len(charts.stacked_bars("a", "b", series, start_ms=0, width_ms=1).encode()) < LARGEST
    assert len(charts.parts_bar("a", "b", [Bar(each.name, 1) for each in series]).encode()) < LARGEST


wild = st.one_of(st.integers(-(10**40), 10**40), st.floats(), st.integers(0, 50))


@given(values=st.lists(wild, min_size=1, max_size=70).map(tuple))
def test_any_numbers_can_be_drawn(values):
    """Negative, endless and impossible numbers raise nothing, and put nothing outside of the picture."""
    for kind, text in drawn(values=values).items():
        for element in read(text).iter("rect"):
            for name in ("x", "y", "width", "height"):
                value = number(element, name) if element.get(name) else 0
                assert math.isfinite(value), kind
                assert value >= 0, kind
            if element.get("width").endswith("%"):
                assert (number(element, "x") if element.get("x") else 0) + number(element, "width") <= 100.5, kind


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "share"])
def test_nothing_to_draw_is_said(kind):
    """A chart of nothing is a sentence, not an empty frame."""
    nothing = {
        "stacked": charts.stacked_bars("a", "Over time", [Series("b", [0, 0])], start_ms=0, width_ms=1),
        "histogram": charts.lag_histogram("a", "Over time", [], []),
        "horizontal": charts.horizontal_bars("a", "Over time", []),
        "paired": charts.paired_bars("a", "Over time", [], left="b", right="c"),
        "parts": charts.parts_bar("a", "Over time", [Bar("b", 0)]),
    }[kind]
    assert read(nothing).tag == "p"
    assert "Over time" in nothing


# --- over time ----------------------------------------------------------------------------------------------


def test_a_bar_is_the_sum_of_its_parts():
    """Parts stand on each other and on the ground, each as high as its share of the axis."""
    text = charts.stacked_bars(
        "a", "b", [Series("x", [50, 0]), Series("y", [50, 100])], ground=Series("z", [100, 0]), start_ms=0, width_ms=1
    )
    ground, first, second = (rects(text, kind) for kind in ("ch-s0", "ch-s1", "ch-s2"))
    assert [len(each) for each in (ground, first, second)] == [1, 1, 2], "what is zero is not drawn"
    assert number(ground[0], "height") == 2 * number(first[0], "height") == number(second[1], "height")
    assert number(second[0], "y") + number(second[0], "height") == number(first[0], "y")
    assert number(first[0], "y") + number(first[0], "height") == number(ground[0], "y")
    assert number(second[1], "y") == number(ground[0], "y"), "where nothing is below, a part begins at the bottom"


def test_many_steps_are_added_up():
    """More steps than can be seen become fewer bars that hold the same."""
    text = charts.stacked_bars("a", "b", [Series("x", [1] * 1000)], start_ms=0, width_ms=1000)
    assert len(rects(text, "ch-s1")) <= charts.STEPS_MAX
    assert "x: 1,000." in described(text)


def test_many_parts_are_added_up():
    """More parts than textures become one named others that holds the same."""
    series = [Series(f"part {at}", [1, 1]) for at in range(charts.SERIES_MAX + 4)]
    text = charts.stacked_bars("a", "b", series, start_ms=0, width_ms=1000)
    assert "4 others: 8." in described(text)
    exactly = charts.stacked_bars("a", "b", series[: charts.SERIES_MAX + 1], start_ms=0, width_ms=1000)
    assert "others" not in exactly, "the last texture serves a part as well"


def test_each_part_is_named_beside_its_texture():
    """The legend has every part of the bars with the texture that it is drawn in."""
    series = [Series(f"part {at}", [1]) for at in range(4)]
    tree = read(charts.stacked_bars("a", "b", series, ground=Series("first", [1]), start_ms=0, width_ms=1000))
    named = {"".join(item.itertext()).strip(): item.find(".//rect").get("class") for item in tree.iter("li")}
    assert named == {"first": "ch-s0"} | {f"part {at}": f"ch-s{at + 1}" for at in range(4)}
    groups = {group.get("class") for group in tree.iter("g")}
    assert set(named.values()) <= groups


def test_bars_tell_their_numbers_to_the_pointer():
    """Over each bar the pointer reads its time and its parts, without script."""
    text = charts.stacked_bars(
        "a", "b", [Series("x", [7]), Series("y", [0])], start_ms=1_772_438_400_000, width_ms=HOUR
    )
    (told,) = [each.text for each in read(text).iter("title") if not each.get("id")]
    assert told == "2026-03-02 08:00:00 UTC, 1 h\nx: 7"


@pytest.mark.parametrize(
    ("width_ms", "steps", "expected"),
    [
        (100, 40, ["08:00:00", "2 Mar", "08:00:02", "08:00:04"]),
        (HOUR // 12, 96, ["08:00", "2 Mar", "10:00", "12:00", "14:00", "16:00"]),
        (HOUR, 30, ["12:00", "2 Mar", "18:00", "00:00", "3 Mar", "06:00", "12:00"]),
        (24 * HOUR, 60, ["12 Mar", "26 Mar", "9 Apr", "23 Apr"]),
        (365 * 24 * HOUR, 20, ["2029", "2039"]),
    ],
)
def test_times_are_written_in_units_that_fit(width_ms, steps, expected):
    """An axis over seconds shows seconds, one over years shows years; the day stands where it changes."""
    text = charts.stacked_bars("a", "b", [Series("x", [1] * steps)], start_ms=1_772_438_400_000, width_ms=width_ms)
    (axis,) = [group for group in read(text).iter("g") if group.get("class") == "ch-axis"]
    assert [each.text for each in axis.iter("text")] == expected


# --- over lags ----------------------------------------------------------------------------------------------


def test_lags_are_on_a_logarithmic_scale():
    """From 10 ms to 100 ms it is as far as from 1 h to 10 h."""
    edges = [10**power for power in range(1, 9)]
    bars = rects(charts.lag_histogram("a", "b", edges, [5] * 8), "ch-s1")
    starts = [number(bar, "x") for bar in bars]
    gaps = [after - before for before, after in pairwise(starts)]
    assert gaps == pytest.approx([gaps[0]] * 7, abs=0.02)


def test_few_among_many_are_seen():
    """One duplicate after days is drawn and counted beside a million after milliseconds."""
    text = charts.lag_histogram("a", "b", [10, 1000, 345_600_000], [1_000_000, 0, 1])
    bars = rects(text, "ch-s1")
    assert len(bars) == 2
    assert number(bars[1], "height") >= 2
    assert "1" in texts(text)


def test_marks_are_named():
    """A mark stands at its lag, with its name and its length of time in words."""
    text = charts.lag_histogram("a", "b", [10, 100_000], [4, 4], [Mark("99 %", 90_000), Mark("none", 0)])
    assert "99 %: 1 min 30 s" in texts(text)
    assert not any(each.startswith("none") for each in texts(text) if each)


@given(high=st.integers(1, 10**12), low=st.integers(1, 1000))
def test_labels_of_lags_keep_apart(low, high):
    """However long the axis, no label of it runs into the next on a phone."""
    text = charts.lag_histogram("a", "b", sorted({low, low + high}), [1, 1])
    (axis,) = [group for group in read(text).iter("g") if group.get("class") == "ch-axis"]
    ends = 0.0
    for label in axis.iter("text"):
        width, at = 6.5 * len(label.text), number(label, "x") * 3  # pixels on a phone
        start = {"start": at, "middle": at - width / 2, "end": at - width}[label.get("text-anchor")]
        assert start >= ends
        ends = start + width


def test_edges_that_do_not_grow_lose_no_count():
    """Classes in a wrong order are joined: the sum stays."""
    assert described(charts.lag_histogram("a", "b", [0, 100, 50, 200], [1, 2, 3, 4])).startswith("10 in all")


# --- beside each other --------------------------------------------------------------------------------------


def test_horizontal_bars_are_in_proportion():
    """A bar is as long as its share of the longest, with its own text at its end."""
    text = charts.horizontal_bars("a", "b", [Bar("x", 100), Bar("y", 25, "a quarter"), Bar("z", 0)])
    long, short = rects(text, "ch-s1")
    assert number(long, "width") == 4 * number(short, "width")
    assert texts(text) == ["x", "100", "y", "a quarter", "z", "0"]


def test_the_worse_of_two_looks_worse():
    """Of two mistakes the worse has its own side, class and weight, and its own scale; none has no bar."""
    text = charts.paired_bars(
        "a", "b", [Pair("x", 1000, 2), Pair("y", 500, 0), Pair("z", 0, 0, marked=True)], left="through", right="lost"
    )
    assert len(rects(text, "ch-lesser")) == 2
    (lost,) = rects(text, "ch-worst")
    assert number(lost, "x") == 50
    assert number(lost, "width") == number(rects(text, "ch-lesser")[0], "width"), "two of two is as long as all of all"
    assert [each.text for each in read(text).iter("text") if "ch-worse" in (each.get("class") or "")] == ["lost", "2"]
    assert len(rects(text, "ch-marked")) == 1


def test_parts_fill_the_whole():
    """The parts of a bar and what is left of it fill it, each with its share in the legend."""
    text = charts.parts_bar("a", "b", [Bar("x", 30), Bar("y", 10)], ground=Bar("rest", 60))
    widths = [number(rects(text, kind)[0], "width") for kind in ("ch-s1", "ch-s2", "ch-s0")]
    assert widths == [30, 10, 60]
    assert ["".join(item.itertext()).strip() for item in read(text).iter("li")] == ["x 30 %", "y 10 %", "rest 60 %"]


@pytest.mark.parametrize(("share", "expected"), [(0.25, 25), (1.7, 100), (0.0001, 0.6)])
def test_a_share_is_filled_so_far(share, expected):
    """A share fills its part of the bar, never more than all of it, and what is there can be seen."""
    (filled,) = rects(charts.share_bar(share, "a"), "ch-s1")
    assert number(filled, "width") == expected
    assert not rects(charts.share_bar(0, "a"), "ch-s1")


# --- colours ------------------------------------------------------------------------------------------------


def test_no_two_textures_are_alike():
    """Each part has a texture of its own, so that no two differ by colour alone."""
    patterns = list(read(charts.textures()).iter("pattern"))
    lines = [pattern.find("path").get("d") for pattern in patterns]
    assert len(set(lines)) == len(lines) == charts.SERIES_MAX + 1
    for number_ in range(1, len(patterns) + 1):
        assert f'url("#ch-t{number_}")' in charts.STYLE
        assert f".ch-c{number_} {{" in charts.STYLE


def luminance(colour):
    """Return the relative luminance of a colour, as WCAG defines it."""
    digits = colour.removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """Return the contrast of two colours, as WCAG defines it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def schemes(style, prefix=""):
    """Return the colours by name of the light and the dark scheme."""
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)")[:2]
    found = [dict(re.findall(rf"--({prefix}[\w-]+): (#[0-9a-f]+)", part)) for part in (light, dark)]
    return [found[0], found[0] | found[1]]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_charts_have_contrast(scheme):
    """In both schemes letters have the contrast of WCAG AA, and bars that of graphics."""
    colours = schemes(charts.STYLE, "ch-")[scheme]
    for name in ("ch-ink", "ch-quiet", "ch-worst"):
        assert contrast(colours[name], colours["ch-paper"]) >= 4.5, name
        assert contrast(colours[name], colours["ch-marked"]) >= 4.5, name
    graphics = [f"ch-c{at}" for at in range(1, charts.SERIES_MAX + 2)]
    for name in (*graphics, "ch-ground-edge", "ch-lesser", "ch-worst"):
        assert contrast(colours[name], colours["ch-paper"]) >= 3, name
