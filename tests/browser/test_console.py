"""The console in a real browser: every page read, live, printed, on a phone and without script."""

from collections import Counter

import pytest
from playwright.sync_api import expect

from browser.looking import (
    BEYOND_THEIR_CELLS,
    DESK,
    LIVE_SECONDS,
    PHONE,
    Looked,
    delivery,
    leave_letters,
    leave_traffic,
    running_console,
    work,
)

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("console")]

FOUND = "/missing?run=2026-03-02T09%3A00%3A00Z"
LISTS = ("/", "/deliveries", "/dead", "/requests", "/handlers", "/missing", "/doctor", "/log")
PAGES = (*LISTS, FOUND, "letter", "event", "request", "conversation")
#: On paper a page is as wide as A4 without its margins.
PAPER = {"width": 696, "height": 1000}


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """Run a console on a ledger that every page has something to show of."""
    folder = tmp_path_factory.mktemp("console")
    url = f"sqlite:///{folder}/once.db"
    leave_traffic(url)
    with running_console(url, folder) as console:
        yield console


@pytest.fixture
def live(tmp_path):
    """Run a console whose ledger is a test's own."""
    url = f"sqlite:///{tmp_path}/once.db"
    leave_letters(url, 3, "no such customer")
    with running_console(url, tmp_path) as console:
        yield console


@pytest.fixture
def look(window, request):
    """Open a window on a console: that of all tests, unless another is named."""
    return lambda of=None, *given, **more: window(of or request.getfixturevalue("console"), *given, **more)


@pytest.fixture(scope="module")
def paths(chromium, console):
    """Return where the pages are; one letter, one event and one request are what the lists lead to."""
    with chromium.new_context() as context:
        looked = Looked(context, console)
        looked.go("/dead?reason=address")
        key = looked.page.locator("#letters a.key").first.inner_text()
        looked.page.locator("#letters tbody input").first.check()
        looked.button("Redrive the chosen").click()
        looked.button("Redrive 1 dead letter").click()
        looked.says("nothing yet")
        request = looked.page.url.removeprefix(console.address(""))
        looked.page.get_by_label("Find").fill("calm-3")
        looked.button("Find").click()
        looked.says("Time line")
        conversation = looked.page.url.removeprefix(console.address(""))
    own = {"letter": f"/dead/{key}", "event": f"/event/{key}", "request": request, "conversation": conversation}
    return {page: own.get(page, page) for page in PAGES}


# --- every page --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), [(DESK, "light"), (PHONE, "dark")])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_fit_for_everybody(look, paths, page, width, scheme):
    """Axe finds nothing, it is no wider than its window, no cell lies over another, no other host is asked."""
    looked = look(width=width, color_scheme=scheme)
    looked.go(paths[page])
    assert looked.unfit() == []
    assert looked.sideways() <= 0
    assert looked.page.evaluate(BEYOND_THEIR_CELLS) == []
    other = {"light": "dark", "dark": "light"}[scheme]
    looked.page.emulate_media(color_scheme=other)
    assert looked.unfit(only="color-contrast") == []
    assert looked.complaints == []
    assert looked.elsewhere() == []


@pytest.mark.parametrize(("width", "scheme"), [(DESK, "light"), (PHONE, "dark")])
@pytest.mark.parametrize(("path", "button"), [("/dead", "Redrive"), ("/dead", "Discard"), ("/handlers", "Pause")])
def test_a_question_is_fit_for_everybody(look, path, button, width, scheme):
    """What is asked before something happens is read by everybody too, with both answers in the window."""
    looked = look(width=width, color_scheme=scheme)
    looked.go(path)
    looked.button(button).first.click()
    looked.says("?", "h1")
    assert looked.unfit() == []
    assert looked.sideways() <= 0
    answers = [looked.page.locator("main .actions").locator(kind) for kind in ("button", "a")]
    for answer in answers:
        box = answer.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= 900


@pytest.mark.parametrize("path", LISTS)
def test_on_a_phone_every_page_is_a_touch_away(look, path):
    """The list of pages is in the window as a whole, and says which of them is shown."""
    looked = look(width=PHONE)
    looked.go(path)
    links = looked.page.locator("nav a").all()
    assert len(links) == len(LISTS)
    for link in links:
        box = link.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE
    expect(looked.page.locator("nav a[aria-current=page]")).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_read_without_script(look, paths, page):
    """Without script a page says the same, and has no button that does nothing."""
    with_script, without = look(), look(java_script_enabled=False)
    for looked in (with_script, without):
        looked.go(paths[page])
    rows = [looked.page.locator("main tbody tr").count() for looked in (with_script, without)]
    assert rows[0] == rows[1]
    assert without.page.locator("h1").inner_text() == with_script.page.locator("h1").inner_text()
    assert without.page.locator("button:not([type=submit])").count() == 0


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_printed_whole_and_light(look, paths, page):
    """On paper nothing is beyond the margin or behind a scroll bar, and a dark screen is printed light."""
    looked = look(color_scheme="dark")
    looked.go(paths[page])
    looked.page.set_viewport_size(PAPER)
    looked.page.emulate_media(media="print", color_scheme="dark")
    assert looked.sideways() <= 0
    assert looked.page.evaluate(CUT_OFF) == []
    assert looked.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    unseen = looked.page.locator("main tbody tr:not(:visible), main dd:not(:visible), main section:not(:visible)")
    assert unseen.count() == 0


def test_a_long_payload_is_printed_whole(look, live):
    """What is scrolled through on a screen is on paper from its first line to its last."""
    (key,) = leave_letters(live.url, 1, "a long one", status="many words " * 2000)
    looked = look(live)
    looked.go(f"/dead/{key}")
    looked.button("Show payload and error").click()
    looked.says("many words", "#payload")
    assert looked.page.evaluate(CUT_OFF) != []
    looked.page.emulate_media(media="print")
    assert looked.page.evaluate(CUT_OFF) == []


#: Elements whose content does not fit in them, and cannot be scrolled to on paper.
CUT_OFF = """() => [...document.querySelectorAll("main *, footer *")]
    .filter(one => getComputedStyle(one).overflow !== "visible" && !one.closest(".unseen, svg, select, input"))
    .filter(one => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1)
    .map(one => one.outerHTML.slice(0, 200))"""


def test_the_buttons_for_what_is_ticked_are_at_hand(look):
    """Wherever on a long list somebody ticks a letter, the buttons for it are in the window, and hide no focus."""
    looked = look()
    looked.go("/dead")
    box = looked.page.locator("#letters tbody input").nth(20)
    looked.hand.reach(looked.page.locator("#letters a.key").nth(30))
    bar = looked.button("Redrive the chosen").bounding_box()
    assert bar["y"] + bar["height"] <= 900
    focused = looked.page.locator(":focus").bounding_box()
    assert focused["y"] + focused["height"] <= bar["y"]
    box.check()


# --- live --------------------------------------------------------------------------------------------


def test_news_arrive_without_a_reload(look, live):
    """A delivery that a worker takes is on the page at its next look, and the page is still the same document."""
    looked = look(live)
    looked.go_live("/deliveries")
    looked.page.evaluate("window.document_before = document.documentElement")
    rows = looked.page.locator("main tbody tr")
    assert rows.count() == 3
    work(live.url, [delivery("the news")])
    looked.update()
    expect(rows).to_have_count(4)
    assert looked.page.evaluate("window.document_before === document.documentElement")
    assert looked.complaints == []


def test_a_sorted_table_stays_sorted(look, live):
    """News take their place in the order that a person has chosen."""
    looked = look(live)
    looked.go_live("/deliveries")
    looked.page.get_by_role("button", name="topic").click()
    looked.page.get_by_role("button", name="topic").click()
    work(live.url, [delivery("news", detail_type="A first"), delivery("more", detail_type="Z last")])
    looked.update()
    expect(looked.page.locator("main tbody tr")).to_have_count(5)
    topics = [text.lower() for text in looked.page.locator("main td[data-label=topic]").all_inner_texts()]
    assert topics == sorted(topics, reverse=True)
    assert len(set(topics)) == 3
    assert looked.page.locator("th[aria-sort=descending]").inner_text().startswith("topic")


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize(("path", "links"), [("/dead", "#letters a.key"), ("/deliveries", "main a.key")])
def test_the_focus_stays_on_what_it_was_on(look, live, path, links, is_sorted):
    """While rows come in above, the focus stays on the same letter: Enter must never open another one."""
    looked = look(live)
    looked.go_live(path)
    if is_sorted:
        looked.page.get_by_role("button", name="topic").last.click()
    focused = "document.activeElement.getAttribute('href')"
    looked.page.locator(links).nth(1).focus()
    before = looked.page.evaluate(focused)
    leave_letters(live.url, 2, "the news")
    looked.update()
    expect(looked.page.locator(links)).to_have_count(5)
    assert looked.page.evaluate(focused) == before


def test_the_place_on_a_long_page_stays(look, live):
    """An update does not scroll: what is read stays where it is."""
    looked = look(live, reduced_motion="reduce")
    keys = leave_letters(live.url, 40, "so many")
    looked.go_live("/dead")
    row = looked.page.locator("#letters tbody tr").filter(has_text=keys[20])
    row.evaluate("row => row.scrollIntoView()")
    before = row.bounding_box()["y"]
    leave_letters(live.url, 2, "the news")
    looked.update()
    expect(looked.page.locator("#letters tbody tr")).to_have_count(45)
    assert looked.page.evaluate("scrollY") > 0
    assert abs(row.bounding_box()["y"] - before) < 2


def test_what_is_ticked_stays_ticked_and_the_page_says_that_it_waits(look, live):
    """Nothing moves under the hand of somebody who chooses letters; news come when nothing is ticked any more."""
    looked = look(live)
    looked.go_live("/dead")
    box = looked.page.locator("#letters tbody input").nth(1)
    box.check()
    chosen = box.get_attribute("value")
    leave_letters(live.url, 1, "the news")
    looked.update()
    looked.says("News wait", "#state")
    assert looked.page.locator("#letters input:checked").evaluate_all("all => all.map(one => one.value)") == [chosen]
    box.uncheck()
    looked.page.evaluate("document.activeElement.blur()")
    looked.update()
    expect(looked.page.locator("#letters tbody tr")).to_have_count(4)
    expect(looked.page.locator("#state")).to_be_empty()


def test_what_is_written_into_a_filter_stays(look, live):
    """An update takes nothing away from somebody who is writing."""
    looked = look(live)
    looked.go_live("/dead")
    field = looked.page.get_by_label("Reason has")
    field.click()
    looked.page.keyboard.insert_text("no such")
    looked.update()
    assert field.input_value() == "no such"
    assert field.evaluate("field => field === document.activeElement")


def test_a_hidden_tab_asks_for_nothing(look, live):
    """While nobody sees it, a page asks for nothing, however long; shown again, it asks at once."""
    looked = look(live)
    looked.go_live("/")
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
    hide += "document.dispatchEvent(new Event('visibilitychange')) }"
    looked.update()
    looked.page.evaluate(hide, True)
    before = looked.asked
    looked.pass_time(3600)
    assert looked.asked == before
    with looked.page.expect_response(looked.page.url):
        looked.page.evaluate(hide, False)
    looked.update()
    assert looked.asked >= before + 2


def test_a_console_that_is_away_is_said_and_asked_again(look, live):
    """While the console does not answer, the page says that it is old; it goes on when the console is back."""
    looked = look(live)
    looked.go_live("/log")
    live.process.stop()
    looked.pass_time()
    looked.says("Not up to date", "#state")
    live.process.start()
    looked.update(2 * LIVE_SECONDS)
    expect(looked.page.locator("#state")).to_be_empty()


# --- reading, without script too ---------------------------------------------------------------------


@pytest.mark.parametrize("has_script", [True, False])
def test_letters_are_filtered_and_paged(look, has_script):
    """A filter leaves what matches; pages follow each other, and each letter is on one of them, once."""
    looked = look(java_script_enabled=has_script)
    looked.go("/dead")
    looked.page.get_by_label("Reason has").fill("no such customer")
    looked.button("Show").click()
    keys = looked.page.locator("#letters tbody a.key").all_inner_texts()
    assert len(keys) == 50
    looked.page.get_by_role("link", name="Older ones").click()
    expect(looked.page.locator("#letters tbody tr")).to_have_count(5)
    keys += looked.page.locator("#letters tbody a.key").all_inner_texts()
    assert len(set(keys)) == 55
    assert looked.page.get_by_label("Reason has").input_value() == "no such customer"


@pytest.mark.parametrize("has_script", [True, False])
def test_deliveries_are_filtered(look, has_script):
    """What became of them is chosen from a list; the table has nothing else."""
    looked = look(java_script_enabled=has_script)
    looked.go("/deliveries")
    looked.page.get_by_label("Became").select_option("redelivery")
    looked.button("Show").click()
    became = Counter(looked.page.locator("main tbody .badge").all_inner_texts())
    assert became == {"redelivery": 6}
    looked.says("--column redelivery", "footer")


def test_the_command_is_copied(look):
    """The button copies just the command that is shown."""
    looked = look(permissions=["clipboard-read", "clipboard-write"])
    looked.go("/deliveries?topic=v2.users.{id}.presence")
    looked.button("Copy: command").click()
    looked.page.get_by_text("Copied").wait_for()
    shown = looked.page.locator("footer code").inner_text()
    assert "--topic 'v2.users.{id}.presence'" in shown
    assert looked.page.evaluate("navigator.clipboard.readText()") == shown


@pytest.mark.parametrize("has_script", [True, False])
def test_a_conversation_is_found_by_its_id(look, has_script):
    """An id leads to what is known of it, and no id is in the address."""
    looked = look(java_script_enabled=has_script)
    looked.go("/")
    looked.page.get_by_label("Find").fill("calm-3")
    looked.button("Find").click()
    looked.says("Time line")
    looked.says("redelivery")
    assert "calm-3" not in looked.page.url


def test_an_event_is_found_by_the_keyboard(look):
    """The slash key leads to the field, and Enter finds what was pasted, with the lines that it has."""
    looked = look()
    looked.go("/log")
    looked.page.keyboard.press("/")
    looked.page.keyboard.insert_text(delivery("calm-3").decode().replace(",", ",\n"))
    looked.page.keyboard.press("Enter")
    looked.says("One event", "h1")
    looked.says("Time line")


def test_what_is_known_is_saved_as_a_file_that_asks_for_nothing(look, tmp_path):
    """The file for a ticket says the same, complete in itself: nothing runs, nothing is loaded, axe finds nothing."""
    looked = look()
    looked.go("/")
    looked.page.get_by_label("Find").fill("calm-3")
    looked.page.keyboard.press("Enter")
    looked.says("Time line")
    moments = looked.page.locator(".timeline li").all_inner_texts()
    with looked.page.expect_download() as download:
        looked.page.get_by_role("link", name="Save as a file").click()
    path = tmp_path / "saved.html"
    download.value.save_as(path)
    opened = look()
    opened.page.goto(path.as_uri())
    assert opened.page.locator(".timeline li").all_inner_texts() == moments
    assert opened.unfit() == []
    assert opened.requests == [path.as_uri()]
    assert opened.complaints == []
