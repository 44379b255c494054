"""The page of the evidence in a real browser: a file that asks for nothing, and checks the specification by itself."""

import pytest
from playwright.sync_api import expect
from prove.evidence import page, write_page
from prove.specification import NEEDED_IN

from servers.chromium import AXE

pytestmark = [
    pytest.mark.browser,
    pytest.mark.specification,
    pytest.mark.xdist_group("page"),
]

DESK, PHONE = 1440, 390
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN_ALL = "document.querySelectorAll('details').forEach(one => one.open = true)"
PATIENCE_MS = 120_000  # a busy machine is not a bug


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write the page of the results that are kept."""
    path = tmp_path_factory.mktemp("evidence") / "evidence.html"
    write_page(path)
    return path


@pytest.fixture
def look(chromium, written):
    """Open the page in a window of this width and scheme."""
    contexts = []

    def looked(width=DESK, **given):
        contexts.append(chromium.new_context(viewport={"width": width, "height": 900}, **given))
        window = contexts[-1].new_page()
        window.requests, window.complaints = [], []
        window.on("request", lambda request: window.requests.append(request.url))
        window.on("console", lambda message: window.complaints.append(message.text))
        window.on("pageerror", lambda error: window.complaints.append(str(error)))
        window.goto(written.as_uri())
        return window

    yield looked
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("width", "scheme"), [(DESK, "light"), (PHONE, "dark")])
def test_the_evidence_is_accessible_fits_and_asks_for_nothing(look, width, scheme):
    """With everything in it open, axe finds nothing, it is no wider than its window, and nothing is requested."""
    window = look(width, color_scheme=scheme)
    window.evaluate(OPEN_ALL)
    expect(window.locator("#source pre")).to_contain_text("MODULE Oncebridge", timeout=PATIENCE_MS)
    assert window.evaluate(SIDEWAYS) <= 0
    window.evaluate(AXE.read_text(encoding="utf-8"))
    found = window.evaluate("() => axe.run(document)")["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    assert len(window.requests) == 1
    assert window.complaints == []


def test_the_button_checks_the_specification_in_the_page(look):
    """A rule that is left out is told as the shortest way to what breaks; with all rules, nothing breaks."""
    window = look(PHONE)
    window.check("input[value='nonce']")
    window.click("button[name=go]")
    window.wait_for_selector("#checked .broken", timeout=PATIENCE_MS)
    assert window.locator("#checked li").all_inner_texts() == [
        "A claims event 1, but the reply is lost.",
        "A repeats its call: busy.",
    ]
    window.uncheck("input[value='nonce']")
    window.click("button[name=go]")
    window.wait_for_selector("#checked .held", timeout=PATIENCE_MS)
    assert "835 states, every promise kept" in window.inner_text("#checked")
    assert [url for url in window.requests[1:] if not url.startswith("blob:")] == []
    assert window.complaints == []


def test_a_rule_chooses_its_world_and_a_check_can_be_stopped(look):
    """What is needed to see a rule missed is chosen with it, and nobody has to wait for the end."""
    window = look()
    window.check("input[value='echo in the window']")
    assert window.input_value("#world") == NEEDED_IN["echo in the window"]
    window.select_option("#world", "back")
    window.click("button[name=go]")
    window.click("#stop")
    assert window.inner_text("#checked") == "Stopped."
    assert window.is_enabled("button[name=go]")


def test_values_of_results_are_never_markup():
    """A ledger's URL or a note is shown as it is."""
    hostile = "<hostile>"
    row = {
        "part": "kill", "ledger": hostile, "seed": 1, "tried": 10, "unit": "kills", "lost": 0, "doubled": 0,
        "held": True, "doubled_plain": 0, "seconds": 1.0, "notes": [hostile], "history": [],
        "commit": hostile, "date": "2026-01-01", "machine": hostile, "figures": {}, "broken": {},
    }  # fmt: skip
    text = page([row])
    assert text.count("&lt;hostile&gt;") >= 4
    assert hostile not in text
