"""The report of `diagnose --html` in a real browser: read, sorted, copied, printed, on a phone, without script."""

import pytest

from diagnosis.made_up import hostile, plausible
from oncebridge.diagnosis.page import page, read_page
from servers.chromium import AXE

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("page")]

DESK, PHONE, SMALL = 1440, 390, 320
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN_ALL = "document.querySelectorAll('details').forEach(one => one.open = true)"
PAGES = {"plausible": plausible, "hostile": hostile}


class Looked:
    """A report in a browser, with every request, complaint and dialog since it was opened."""

    def __init__(self, context, path):
        self.page = context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.goto(path.as_uri())

    def _dismiss(self, dialog):
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write the reports that are looked at."""
    folder = tmp_path_factory.mktemp("reports")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(page(make()), encoding="utf-8")
    return folder


@pytest.fixture
def look(chromium, written):
    """Open a report in a window of this width and scheme."""
    contexts = []

    def looked(name="plausible", width=DESK, **given):
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **given))
        return Looked(contexts[-1], written / f"{name}.html")

    yield looked
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(DESK, "light"), (PHONE, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_a_report_is_accessible_and_asks_for_nothing(look, name, width, scheme):
    """With everything in it open, axe finds nothing, nothing is requested, nothing runs that came from outside."""
    looked = look(name, width, color_scheme=scheme)
    looked.page.evaluate(OPEN_ALL)
    looked.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = looked.page.evaluate("() => axe.run(document)")["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    assert len(looked.requests) == 1
    assert looked.complaints == []


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [DESK, PHONE, SMALL])
def test_a_report_never_scrolls_sideways(look, name, width):
    """Whatever it holds, a report is no wider than its window, closed and with everything open."""
    looked = look(name, width)
    assert looked.page.evaluate(SIDEWAYS) <= 0
    looked.page.evaluate(OPEN_ALL)
    assert looked.page.evaluate(SIDEWAYS) <= 0


def test_a_table_is_sorted_by_number_and_says_so(look):
    """A column sorts down and up, by what its numbers are worth, and tells screen readers which."""
    table = look().page.locator("#topics table")

    def column():
        return [int(text.replace(",", "")) for text in table.locator("tbody tr td:nth-child(2)").all_text_contents()]

    button = table.get_by_role("button", name="Duplicates")
    button.click()
    assert len(set(column())) > 1
    assert column() == sorted(column(), reverse=True)
    assert table.locator("th[aria-sort=descending]").count() == 1
    button.click()
    assert column() == sorted(column())
    assert table.locator("th[aria-sort=ascending]").count() == 1


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_topics_are_filtered(look, width):
    """What is typed leaves only the topics that hold it, also where rows are stacked."""
    looked = look(width=width)
    rows = looked.page.locator("#topics tbody tr:visible")
    before = rows.count()
    looked.page.get_by_label("Filter topics").fill("presence")
    assert 0 < rows.count() < before
    assert all("presence" in text for text in rows.all_text_contents())


def test_the_line_for_a_chat_is_copied(look):
    """The button copies just the line that is shown."""
    looked = look(permissions=["clipboard-read", "clipboard-write"])
    looked.page.get_by_role("button", name="Copy: Line for a chat").click()
    looked.page.get_by_text("Copied").wait_for()
    assert looked.page.evaluate("navigator.clipboard.readText()") == plausible().chat


def test_a_number_of_lost_events_opens_its_examples(look):
    """The number of events that a key would have lost leads to some of them."""
    looked = look()
    assert looked.page.locator("#backtest details[open]").count() == 0
    looked.page.locator("#backtest td.lost a").first.click()
    assert looked.page.locator("#backtest details[open]").count() == 1


def test_without_script_everything_can_be_read(look):
    """Without script there is no button that does nothing, and every section is there with its picture."""
    looked = look(java_script_enabled=False)
    assert looked.page.locator("button:visible").count() == 0
    assert looked.page.locator("h1").inner_text() == plausible().answer
    for section in ("causes", "time", "lags", "backtest", "topics", "advice"):
        assert looked.page.locator(f"#{section}").is_visible(), section
    assert looked.page.locator("svg").count() >= 4


def test_a_saved_report_is_read_back(look):
    """A report that a browser saved after it was used says the same as the one that was opened."""
    looked = look()
    looked.page.get_by_label("Filter topics").fill("presence")
    assert read_page(looked.page.content().encode(), "saved.html") == plausible()


def test_a_report_is_printed_light(look):
    """Printed from a dark screen, a report is dark on white: ink is dear."""
    looked = look(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    on_screen = looked.page.evaluate(background)
    looked.page.emulate_media(media="print", color_scheme="dark")
    printed = looked.page.evaluate(background)
    assert printed != on_screen
    assert printed in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")
