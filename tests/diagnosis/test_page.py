"""The report as a page: what it shows, that nothing from outside acts in it, that it is small, and is read back."""

import base64
import hashlib
import json
import re
import tomllib
from html.parser import HTMLParser
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from diagnosis.made_up import HOSTILE, empty, example, hostile, plausible, unreadable_only, without_duplicates
from diagnosis.test_charts import contrast, schemes
from oncebridge.diagnosis.diagnosis import EXAMPLES_MAX, FORM, TOPICS_MAX, Cause, EchoWindow, OverTime
from oncebridge.diagnosis.echo_settings import echo_settings, toml_text
from oncebridge.diagnosis.page import BYTES_MAX, page, read_page
from oncebridge.errors import ConfigurationError
from oncebridge.markup import tag
from oncebridge.settings import load_settings
from oncebridge.topics import BUILT_IN, Kind

VOID = {"meta", "wbr", "!doctype"}


class Read(HTMLParser):
    """A page as a list of elements: name, attributes, the names above it, and all text in it."""

    def __init__(self, text):
        """Read it."""
        super().__init__()
        self.elements, self._open, self.comments = [], [], []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {[each['name'] for each in self._open]}"

    def handle_starttag(self, name, attributes):
        """Note an element."""
        assert len(dict(attributes)) == len(attributes), f"{name} has an attribute twice"
        element = {"name": name, "text": "", "above": [each["name"] for each in self._open], **dict(attributes)}
        self.elements.append(element)
        if name not in VOID:
            self._open.append(element)

    def handle_startendtag(self, name, attributes):
        """Note an element of SVG without content."""
        self.handle_starttag(name, attributes)
        self._open.pop()

    def handle_endtag(self, name):
        """Close what is open."""
        assert self._open.pop()["name"] == name

    def handle_data(self, data):
        """Add text to all that is open."""
        for element in self._open:
            element["text"] += data

    def handle_comment(self, data):
        """Note a comment."""
        self.comments.append(data)

    def all(self, name, **attributes):
        """Return the elements of a name with these attributes."""
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [each for each in self.elements if each["name"] == name and wanted.items() <= each.items()]

    def section(self, name):
        """Return the text of a section."""
        (found,) = self.all("section", id=name)
        return found["text"]


PAGES = {
    "plausible": lambda: page(plausible()),
    "compared": lambda: page(plausible(), without_duplicates()),
    "empty": lambda: page(empty()),
    "unreadable": lambda: page(unreadable_only()),
    "without duplicates": lambda: page(without_duplicates()),
    "hostile": lambda: page(hostile(), hostile()),
}


@pytest.fixture(scope="module", params=PAGES)
def text(request):
    """Write each kind of page."""
    return PAGES[request.param]()


# --- what every page keeps to -------------------------------------------------------------------------------


def test_a_page_asks_for_nothing(text):
    """Nothing in a page is loaded from anywhere: links lead into the page, and the style names no address."""
    read = Read(text)
    for element in read.elements:
        assert not {"src", "srcset", "action", "data", "poster", "xlink:href", "style"} & element.keys()
        assert element.get("href", "#").startswith("#")
        assert not [name for name in element if name.startswith("on")]
    assert not {each["name"] for each in read.elements} & {"link", "img", "iframe", "object", "embed", "base", "form"}
    (style,) = read.all("style")
    assert "@import" not in style["text"]
    assert set(re.findall(r"url\((.)(.)", style["text"])) == {('"', "#")}


def test_the_policy_allows_this_style_and_this_script_alone(text):
    """The page's policy has the digests of its one style and its one script, and refuses everything else."""
    read = Read(text)
    (policy,) = [each["content"] for each in read.all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    scripts = [each["text"] for each in read.all("script") if "type" not in each]
    digests = [
        f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
        for inside in (read.all("style")[0]["text"], *scripts)
    ]
    assert [rules["style-src"], rules["script-src"]] == digests
    assert (rules["default-src"], rules["base-uri"], rules["form-action"]) == ("'none'",) * 3
    position = text.index("Content-Security-Policy")
    assert position < text.index("<style>"), "a policy holds for what stands behind it"


def test_a_page_can_be_found_one_s_way_in(text):
    """Landmarks, one first heading, headings without gaps, unique ids, and no reference into nothing."""
    read = Read(text)
    for landmark in ("header", "main", "footer"):
        assert len(read.all(landmark)) == 1
    levels = [int(each["name"][1]) for each in read.elements if re.fullmatch(r"h[1-6]", each["name"])]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [each["id"] for each in read.elements if "id" in each]
    assert len(set(ids)) == len(ids)
    for element in read.elements:
        named = [element.get("href", "#main")[1:], element.get("aria-labelledby"), element.get("aria-describedby")]
        assert {name for name in named if name} <= set(ids)
    assert read.all("html", lang="en")
    assert all(each["text"].strip() for each in read.elements if re.fullmatch(r"h[1-6]|a|summary", each["name"]))


def test_tables_are_told_what_they_are(text):
    """Each table has a caption, heads of columns and of rows, as many cells as columns, and a box that scrolls."""
    read = Read(text)
    for table in read.all("table"):
        assert "div" in table["above"]
    assert len(read.all("caption")) == len(read.all("table")) == len(read.all("div", class_="box", tabindex="0"))
    assert {each.get("scope") for each in read.all("th")} <= {"col", "row"}
    for row in re.findall(r"<tbody.*?</tbody>", text):
        columns = {len(re.findall("<t[hd] ", line)) for line in row.split("<tr")[1:]}
        assert len(columns) <= 1


def test_a_page_is_read_back(text):
    """The data inside each page is read back, and makes the same data again."""
    diagnosis = read_page(text.encode(), "report.html")
    assert read_page(page(diagnosis).encode(), "again.html") == diagnosis


def test_only_the_script_s_elements_are_missing_without_script(text):
    """Nothing waits for the script: no button, no field, nothing hidden."""
    read = Read(text)
    assert not {each["name"] for each in read.elements} & {"button", "input", "noscript", "template"}
    assert not [each for each in read.elements if "hidden" in each]


# --- hostile content ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", HOSTILE)
def test_content_stays_text(bad):
    """Markup, script and invisible characters from a capture appear as the text that they are."""
    spoiled = plausible(
        answer=bad, chat=bad, command=bad, settings=bad, files=[bad], skipped=[bad], first=bad, last=bad, made=bad
    )
    causes = [
        replace(each, title=bad, evidence=bad, advice=bad, topics=[(bad, 1)], examples=[example(place=bad, reason=bad)])
        for each in spoiled.found
    ]
    spoiled = replace(spoiled, found=causes, topics=[replace(each, topic=bad, kind=bad) for each in spoiled.topics])
    usual, read = Read(page(plausible())), Read(page(spoiled, spoiled))
    names = {each["name"] for each in usual.elements} | {"a", "li", "span"}
    assert {each["name"] for each in read.elements} <= names
    assert not read.comments
    assert len(read.all("script")) == 2
    shown = "".join(each["text"] for each in read.all("body"))
    assert all(character.isprintable() or character == "\n" for character in shown)
    (title,) = read.all("h1")
    assert title["text"][:6] == bad.replace("\n", " ").encode("unicode_escape").decode()[:6].replace("\\xe9", "é")


def test_attributes_stay_attributes():
    """Whatever an attribute's value or an element's text holds, it is one attribute and one text."""
    bad = "\"><b onclick=alert(1) '&quot;"
    (element,) = Read(tag("p", bad, title=bad)).elements
    assert (element["title"], element["text"]) == (bad, bad)


@pytest.mark.parametrize("bad", HOSTILE)
def test_nothing_ends_the_block_of_data(bad):
    """No text in the data closes the block, opens a comment or ends a line, and each is read back as it is shown."""
    text = page(plausible(answer=bad))
    (block,) = re.findall(r'<script type="application/json" id="oncebridge-diagnosis">(.*?)</script>', text, re.DOTALL)
    assert not set("<>&\u2028\u2029\n") & set(block)
    assert json.loads(block)["answer"] == Read(text).all("h1")[0]["text"]


@pytest.mark.parametrize(
    ("size", "entries", "number"),
    [(400, 200, 10**30), (20_000, 100, -1), (30, 300, 2**53), (2, 100, 0), (100, 40, 7)],
)
def test_a_page_has_a_limit(size, entries, number):
    """Whatever a diagnosis holds, its page is at most 300 kB long, and can be read back."""
    bad = hostile(size, entries, number)
    text = page(bad, bad)
    assert len(text.encode()) <= BYTES_MAX == 300_000
    read_page(text.encode(), "report.html")
    assert "Left out to keep the page small" in text


def most():
    """Make the largest diagnosis up that a capture gives."""
    usual = plausible()
    name = "v2.detail.events.conversation.{id}." + "a" * 60
    rows = [
        replace(
            row,
            key=f"key {at}",
            lost=99,
            let_through=99,
            lost_examples=[example(1000 + at) for at in range(EXAMPLES_MAX)],
            let_through_examples=[example(1000 + at) for at in range(EXAMPLES_MAX)],
        )
        for at, row in enumerate([usual.backtest[1]] * 11)
    ]
    causes = [replace(usual.found[0], cause=cause) for cause in Cause]
    steps = {cause.value: [123_456] * 120 for cause in Cause}
    return replace(
        usual,
        backtest=[*rows, usual.backtest[-1]],
        found=causes,
        causes={cause.value: 4_000_000 for cause in Cause},
        topics=[replace(usual.topics[0], topic=f"{at}{name}", causes=usual.causes) for at in range(TOPICS_MAX)],
        over_time=OverTime(start_ms=1, width_ms=60_000, deliveries=[2_000_000] * 120, duplicates=steps),
        files=[f"captures/{at}.jsonl.gz" for at in range(21)],
    )


def test_all_that_a_capture_gives_is_on_the_page():
    """A page of ten causes, forty topics and twelve keys with all their examples is within the limit uncut."""
    text = page(most())
    assert "Left out" not in text
    assert read_page(text.encode(), "report.html") == most()
    assert len(Read(text).all("tr", role="row")) >= TOPICS_MAX + 12


# --- what is shown ------------------------------------------------------------------------------------------


def test_the_answer_comes_first():
    """The first heading is the answer, and behind it stands the line for a chat, as text that can be selected."""
    diagnosis = plausible()
    read = Read(page(diagnosis))
    texts = [each["text"] for each in read.elements if each["name"] in ("h1", "pre", "h2")]
    assert texts[:3] == [diagnosis.answer, "To paste into a chat", diagnosis.chat]


def test_parts_are_in_their_order():
    """Changes come before causes, causes before pictures, advice before what could not be read."""
    read = Read(page(plausible(), without_duplicates()))
    ids = [each["id"] for each in read.all("section")]
    assert ids == [
        "changed", "causes", "time", "lags", "backtest", "topics", "look-alikes", "advice", "unreadable"
    ]  # fmt: skip
    (nav,) = read.all("nav")
    assert [each["href"][1:] for each in read.all("a") if "nav" in each["above"]] == ids, nav


def test_nothing_is_said_of_changes_without_an_earlier_report():
    """Only a comparison has the part on what changed; one without changes says so."""
    assert 'id="changed"' not in page(plausible())
    assert "Nothing that matters." in Read(page(plausible(), plausible(input_digest="other"))).section("changed")


def test_each_cause_has_its_evidence():
    """A cause has its share, evidence, what to do, lags, topics and examples, which are opened on request."""
    diagnosis = plausible()
    read = Read(page(diagnosis))
    articles = [each["text"] for each in read.all("article", class_="cause")]
    assert len(articles) == len(diagnosis.found)
    for found, said in zip(diagnosis.found, articles, strict=True):
        for words in (found.title[1:], found.evidence, found.advice, found.topics[0][0], found.examples[0].reason):
            assert words in said
    assert "90 % of duplicates · 4,210 deliveries" in articles[0]
    assert "half within 5 min, 99 % within 4 days, the longest 4 days" in articles[1]
    assert all("details" in each["above"] for each in read.all("ol", class_="examples"))


def test_losing_looks_worse():
    """In the back-test only cells with lost events are marked as bad, and they come before what is let through."""
    read = Read(page(plausible()))
    lost = [each["text"] for each in read.all("td") if each.get("class") == "number lost"]
    assert [re.match(r"[\d,]+", said)[0] for said in lost] == ["2,118", "204", "87"]
    heads = [each["text"] for each in read.all("th", scope="col")]
    assert heads.index("Real events lost") < heads.index("Duplicates let through")
    assert "3 of 8 keys would have lost real events." in read.section("backtest")
    assert "The worst, Conversation, 10 s, 2,118 events of 5,620" in read.section("backtest")


def test_our_own_row_is_marked():
    """The row of Oncebridge is marked in the table and in the picture, in words too."""
    text = page(plausible())
    read = Read(text)
    (own,) = read.all("tr", class_="own")
    assert "Oncebridge, these settings" in own["text"]
    assert "this program" in own["text"]
    assert text.count('class="ch-marked"') == 1


def test_mistakes_lead_to_their_examples():
    """Each number of the back-test that has examples leads to them."""
    read = Read(page(plausible()))
    targets = {each["id"] for each in read.all("ol", class_="examples") if "id" in each}
    links = {each["href"][1:] for each in read.all("a") if "table" in each["above"]}
    assert links == targets
    assert len(links) == 10


def test_advice_is_in_words_numbers_and_lines():
    """Retention with what shorter memories forget, memory, windows with lines to copy, and pairs of topics."""
    advice = Read(page(plausible())).section("advice")
    for words in (
        "Remember events for at least 5 days",
        "after 10 s310, 6.6 %after 5 min150, 3.2 %",
        "Redis needs 48 MB for the retention in force",
        '[topics."v2.users.{id}.presence"]\nkind = "state"\ntime = "modifiedDate"\necho_window_ms = 1500',
        "v2.routing.queues.{id}.conversations and v2.routing.queues.{id}.conversations.calls: 212 facts.",
    ):
        assert words in advice


def test_where_it_comes_from_is_said():
    """Version, time, command, settings, files and digest are in the footer."""
    diagnosis = plausible()
    (footer,) = Read(page(diagnosis)).all("footer")
    for words in (diagnosis.command, diagnosis.settings, *diagnosis.files, diagnosis.input_digest):
        assert words in footer["text"]
    assert "2026-03-02 17:04:11 UTC by Oncebridge 0.1.0" in footer["text"]


def test_an_empty_capture_says_what_a_capture_is():
    """Where nothing was read there are no empty tables and pictures, but what to do."""
    read = Read(page(empty()))
    assert [each["id"] for each in read.all("section")] == ["nothing"]
    assert "This input is empty." in read.section("nothing")
    assert not read.all("nav")
    only_bad = Read(page(unreadable_only()))
    assert [each["id"] for each in only_bad.all("section")] == ["nothing", "unreadable"]
    assert "40 lines that are no JSON" in only_bad.section("unreadable")


def test_a_capture_without_duplicates_still_judges_keys():
    """Without duplicates there is no cause and no lag, but keys may still lose events."""
    read = Read(page(without_duplicates()))
    ids = [each["id"] for each in read.all("section")]
    assert ids == ["causes", "time", "backtest", "topics", "advice"]
    assert "nothing to explain" in read.section("causes")
    assert "3 of 8 keys would have lost" in read.section("backtest")


def test_topics_that_are_not_listed_are_counted():
    """The table says how many topics it leaves out."""
    assert "7 more topics with fewer deliveries are not listed." in page(plausible(topics_left_out=7))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_letters_have_contrast(scheme):
    """In both schemes every colour of letters has the contrast of WCAG AA on every ground that it stands on."""
    (style,) = Read(page(plausible())).all("style")
    own = style["text"][style["text"].index("color-scheme: light dark") :]
    colours = schemes(own)[scheme]
    for ink in ("ink", "quiet", "link", "bad", "note"):
        for ground in ("paper", "card", "soft", "own"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    assert contrast(colours["bad"], colours["bad-soft"]) >= 4.5
    assert contrast(colours["good"], colours["good-soft"]) >= 4.5


# --- lines for settings -------------------------------------------------------------------------------------


def window(topic, advised_ms=1500):
    """Make a window up that should be another."""
    return EchoWindow(topic=topic, window_ms=500, echoes=1, outside=1, advised_ms=advised_ms, text="")


@pytest.mark.parametrize("profile", [each for each in BUILT_IN if each.kind is Kind.STATE], ids=lambda each: each.topic)
def test_lines_keep_the_rest_of_a_profile(profile, tmp_path):
    """The lines for a window, put into a file, change the window and nothing else of the built-in profile."""
    path = tmp_path / "oncebridge.toml"
    path.write_text(echo_settings([window(profile.topic)]), encoding="utf-8")
    (own,) = load_settings(path).profiles
    assert own.echo_window_ms == 1500
    assert replace(own, echo_window_ms=profile.echo_window_ms) == profile


def test_lines_for_other_topics_are_comments():
    """For a topic without a built-in profile only its owner knows the table, so the line is a comment."""
    lines = echo_settings([window("Conversation Status Change", 900), window("v2.users.{id}.presence", 500)])
    assert tomllib.loads(lines) == {}
    assert "# echo_window_ms = 900" in lines
    assert "presence" not in lines, "a window that stays needs no line"


@pytest.mark.parametrize("bad", HOSTILE)
def test_a_topic_never_leaves_its_line(bad):
    """Whatever a topic is called, it is one text of TOML, and no line of the settings."""
    assert tomllib.loads(f"a = {toml_text(bad)}") == {"a": bad}
    assert tomllib.loads(echo_settings([window(bad)])) == {}


# --- reading back -------------------------------------------------------------------------------------------


def test_data_is_read_from_pages_and_from_json():
    """A page, JSON, JSON with white space and a mark, and a page that a browser has saved all read the same."""
    diagnosis = plausible()
    text = page(diagnosis)
    data = msgspec.json.encode(diagnosis)
    saved = text.replace("<head>", "<head>\n<!-- saved from url=(0042)file:///report.html -->", 1)
    for raw in (text.encode(), data, b"\xef\xbb\xbf\n" + msgspec.json.format(data), saved.encode()):
        assert read_page(raw, "report.html") == diagnosis


def as_json(**fields):
    """Write the data of a report with other fields."""
    return msgspec.json.encode(msgspec.to_builtins(plausible()) | fields)


PAGE = page(plausible()).encode()
DATA = as_json()
REFUSED = {
    "nothing": (b"  \n", "is empty"),
    "another page": (b"<!doctype html><html><body>Hello</body></html>", "is no report of oncebridge diagnose"),
    "a capture": (b'{"detail-type":"x","detail":{}}\n' * 3, "is no report of oncebridge diagnose"),
    "a picture": (bytes(range(256)) * 40, "is no report of oncebridge diagnose"),
    "a page without data": (PAGE[: PAGE.index(b"<script")], "the block with its data is missing"),
    "a page that is cut off": (PAGE[: PAGE.index(b'"backtest":')], "its data is cut off"),
    "JSON that is cut off": (DATA[:-200], "is damaged"),
    "two blocks": (PAGE + PAGE, "holds two blocks of data"),
    "another form": (as_json(form=FORM + 1), f"was written in form {FORM + 1} by Oncebridge 0.1.0"),
    "no form": (b'{"answer":"form","a":{"form":1}}', "form is not what a report holds"),
    "a field of another type": (as_json(deliveries="many"), "deliveries is not what a report holds"),
    "an unknown cause": (as_json(found=[{"cause": "<b>secret</b>"}]), "found[0].cause is not what a report holds"),
    "a number beyond all": (as_json(events=10**40), "a number out of range (events)"),
    "an endless number": (DATA.replace(b'"events":5620', b'"events":1e999'), "is damaged"),
    "a count below zero": (as_json(unreadable=-4), "a count below zero"),
    "more duplicates than deliveries": (as_json(duplicates=99_999_999), "more duplicates than deliveries"),
    "an endless text": (as_json(answer="x" * 50_000), "a text of 50,000 characters (answer)"),
    "endless entries": (as_json(files=["x"] * 50_000), "50,000 entries (files)"),
    "an endless name": (as_json(causes={"x" * 50_000: 1}), "too many or too long names (causes)"),
    "lags without counts": (as_json(lags={"edges": [1, 2], "counts": [1]}), "lags without their counts"),
    "a deep text": (b'{"form":1,"answer":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested more than"),
    "a huge file": (b"{" + b" " * 5_000_000 + b"}", "is longer than 4,000,000 bytes"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_report_is_refused(kind):
    """Each file that is no report, another form, damaged or hostile is refused by name, reason and remedy."""
    raw, reason = REFUSED[kind]
    with pytest.raises(ConfigurationError, match=re.escape(reason)) as raised:
        read_page(raw, "reports/monday.html")
    said = str(raised.value)
    assert said.startswith("reports/monday.html ")
    assert re.search(r"; (name a page|write it again|diagnose the capture again)", said)
    assert "secret" not in said
    assert len(said) < 300


def test_a_share_beyond_all_is_refused():
    """A share of more than all is no share."""
    found = [replace(each, share=1.5) for each in plausible().found]
    with pytest.raises(ConfigurationError, match="a share that is not from 0 to 1"):
        read_page(msgspec.json.encode(plausible(found=found)), "x.json")


def test_a_name_of_a_file_does_not_act():
    """A file name is shown without what a terminal would obey, and not without end."""
    with pytest.raises(ConfigurationError) as raised:
        read_page(b"", "\x1b[31m" + "x" * 9000)
    assert str(raised.value).startswith("\\x1b[31mxxx")
    assert len(str(raised.value)) < 400
