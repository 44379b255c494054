"""The page that needs no server, opened from disk in a real browser: captures dropped on it, and what it shows."""

import gzip
import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from oncebridge.diagnosis.diagnose import diagnose
from oncebridge.diagnosis.explain import explain
from oncebridge.diagnosis.page import read_page
from oncebridge.settings import Settings
from oncebridge.simulation import simulate
from oncebridge.topics import Profiles
from servers.chromium import AXE
from servers.receiver import running_receiver

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("page")]  # one page is built, and read again by each test

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = Path(sys.prefix) / "page"
READY_MS = 60_000  # a busy machine is not a bug
LOCAL = ("file:", "blob:", "data:", "about:")
PHONE = {"width": 360, "height": 700}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the page as `make page` does: of the wheel, or of the sources where these are tested."""
    assert PARTS.exists(), "what the page holds is missing; run `make .venv/.page`"
    of_sources = os.environ.get("ONCEBRIDGE_TEST_SOURCE") == "1"
    (package,) = [ROOT / "src"] if of_sources else (ROOT / "dist").glob("*.whl")
    path = tmp_path_factory.mktemp("page") / "diagnose.html"
    command = [sys.executable, ROOT / "tools" / "page.py", path, "--package", package, "--parts", PARTS]
    subprocess.run(command, check=True, capture_output=True)
    return path


class Opened:
    """The page in a browser, with every request and every complaint since it was opened."""

    def __init__(self, context, path):
        self.page = context.new_page()
        self.page.set_default_timeout(READY_MS)
        self.requests, self.complaints = [], []
        context.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())
        self.wait("#state", "Ready.")
        self._devtools = context.new_cdp_session(self.page)

    def wait(self, selector, text=""):
        """Wait until an element is there with this text; return it."""
        found = self.page.locator(f"{selector}:visible").filter(has_text=text).first
        found.wait_for()
        return found

    def drop(self, *paths):
        """Drop files and folders, as a hand does; return what is shown in the end."""
        self.begin(*paths)
        self.wait("#result, #trouble:not(:empty)")
        return (
            self.page.inner_text("#trouble")
            if self.page.is_visible("#trouble")
            else self.report.locator("h1").inner_text()
        )

    def begin(self, *paths):
        """Drop files and folders, and do not wait."""
        if self.page.is_visible("#again"):
            self.page.click("#again")
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self._devtools.send("Input.dispatchDragEvent", {"type": kind, "x": 200, "y": 200, "data": data})

    @property
    def report(self):
        """The report within the page."""
        return self.page.frame_locator("#report").locator("html")

    def saved(self):
        """Save the report, and read it."""
        with self.page.expect_download() as download:
            self.page.click("#save")
        return read_page(Path(download.value.path()).read_bytes(), "the report")

    def sideways(self):
        """Return by how many pixels the page and the report are wider than the screen."""
        beyond = "element => element.scrollWidth - element.ownerDocument.defaultView.innerWidth"
        outer = self.page.locator("html").evaluate(beyond)
        return max(outer, self.report.evaluate(beyond) if self.page.is_visible("#report") else 0)

    def unfit(self):
        """Return which rules of accessibility the page breaks; the report in it has tests of its own."""
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("() => axe.run(document, {iframes: false})")["violations"]
        return [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]


@pytest.fixture(scope="module")
def opened_once(chromium, built):
    """Open the page."""
    with chromium.new_context(viewport={"width": 1100, "height": 800}) as context:
        yield Opened(context, built)


@pytest.fixture
def opened(opened_once):
    """Return the page as it is opened; whatever a test does with it, nothing leaves it or goes wrong unseen."""
    if opened_once.page.is_visible("#again"):
        opened_once.page.click("#again")
    yield opened_once
    outside = [address for address in opened_once.requests if not address.startswith(LOCAL)]
    assert not outside
    assert not opened_once.complaints


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    """Write a capture of a thousand deliveries, under a name that must not become markup."""
    path = tmp_path_factory.mktemp("captures") / "cap<b>ture.jsonl"
    path.write_bytes(b"".join(delivery.raw + b"\n" for delivery in simulate(20, seed=1)))
    return path


def diagnosed(monkeypatch, folder, *names):
    """Diagnose the same outside of the browser."""
    monkeypatch.chdir(folder)
    return diagnose(names, settings=Settings())


def comparable(diagnosis):
    """Return a diagnosis without what says when and how it was made."""
    return replace(diagnosis, made="", command="")


def test_a_dropped_capture_is_diagnosed_as_the_command_does(opened, capture, monkeypatch):
    """The report in the page says the same as the command does, in every figure, and can be saved and read back."""
    expected = diagnosed(monkeypatch, capture.parent, capture.name)
    assert opened.drop(capture) == expected.answer
    assert "duplicates" in expected.answer
    assert comparable(opened.saved()) == comparable(expected)
    assert opened.page.inner_text("#about").startswith(f"{expected.deliveries:,} deliveries of cap<b>ture.jsonl, in ")


def test_files_folders_and_gzip_are_read_together(opened, capture, tmp_path, monkeypatch):
    """Files and folders are dropped at once, packed and not; names from outside stay names."""
    lines = capture.read_bytes().splitlines(keepends=True)
    (tmp_path / "day <b>1").mkdir()
    (tmp_path / "day <b>1" / "first.json.gz").write_bytes(gzip.compress(b"".join(lines[:300])))
    (tmp_path / "day <b>1" / "notes.txt").write_text("nothing that happened\n")
    (tmp_path / "-").write_bytes(b"".join(lines[300:]))
    expected = diagnosed(monkeypatch, tmp_path, "day <b>1", "./-")
    assert opened.drop(tmp_path / "day <b>1", tmp_path / "-") == expected.answer
    assert comparable(opened.saved()) == comparable(expected)
    assert expected.deliveries == len(lines)
    assert opened.page.inner_text("#about").startswith(f"{len(lines):,} deliveries of 2 files")


def test_events_are_explained(opened, capture):
    """The first deliveries are explained as the command explains them, and any other on request, with the keyboard."""
    raws = capture.read_bytes().splitlines()
    opened.drop(capture)
    opened.page.focus("#tab-report")
    opened.page.keyboard.press("ArrowRight")
    opened.wait("#explanations li")
    shown = opened.page.locator("#explanations li")
    assert shown.count() == 10
    first = explain(raws[0], Profiles(), b"")
    assert first.topic in shown.first.inner_text()
    assert first.key in shown.first.inner_text()
    opened.page.fill("#first", str(len(raws) - 1))
    opened.page.keyboard.press("Enter")
    opened.wait("#explain-state", "2 explained")
    last = explain(raws[-1], Profiles(), b"")
    assert shown.last.locator("h2").inner_text() == f"{len(raws):,} {last.topic}"
    assert last.reason in shown.last.inner_text()
    assert opened.page.locator("#more").is_hidden()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "There is no event in <b>it.jsonl.", id="empty"),
        pytest.param(os.urandom(5000), "There is no event in <b>it.jsonl.", id="noise"),
        pytest.param(b'{"a": [1, 2', "There is no event in <b>it.jsonl.", id="cut off"),
        pytest.param(b"\x1f\x8b\x08" + bytes(40), "There is no event in <b>it.jsonl.", id="damaged gzip"),
        pytest.param(b"dear diary\n", "There is no event in <b>it.jsonl.", id="prose"),
    ],
)
def test_what_is_no_capture_is_refused_in_words(opened, tmp_path, content, said):
    """A file without a single event is named, with what was looked for, and the page takes the next one."""
    (tmp_path / "<b>it.jsonl").write_bytes(content)
    shown = opened.drop(tmp_path / "<b>it.jsonl")
    assert shown.startswith(said)
    assert "EventBridge envelopes" in shown


def test_broken_parts_of_a_capture_stop_nothing(opened, capture, tmp_path, monkeypatch):
    """Events beside broken lines are diagnosed, and the page says so where a file could not be read to its end."""
    packed = gzip.compress(capture.read_bytes())
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "mixed.jsonl").write_bytes(b"not an event\n" + capture.read_bytes() + b'{"id": \n')
    expected = diagnosed(monkeypatch, tmp_path, "cut.jsonl.gz", "mixed.jsonl")
    assert opened.drop(tmp_path / "cut.jsonl.gz", tmp_path / "mixed.jsonl") == expected.answer
    assert "gzip data is cut off" in opened.page.inner_text("#in-part")


def test_settings_keys_and_an_earlier_report_count(opened, capture, tmp_path):
    """What may be given besides a capture has its effect: settings, keys to try, and a report to compare with."""
    opened.drop(capture)
    (tmp_path / "earlier.html").write_bytes(Path(_download(opened)).read_bytes())
    opened.page.click("#again")
    opened.page.click("#options summary")
    opened.page.fill("#settings", 'ledger = "env:NOT_HERE"\n[topics."v2.users.{id}.presence"]\nkind = "fact"\n')
    opened.page.fill("#keys", "id for 10 s")
    opened.page.set_input_files("#earlier", tmp_path / "earlier.html")
    opened.wait("#earlier-name", "earlier.html")
    opened.drop(capture)
    report = opened.saved()
    assert "id for 10 s" in [row.title for row in report.backtest]
    assert next(one.kind for one in report.topics if one.topic == "v2.users.{id}.presence") == "fact"
    assert opened.report.locator("#changed").count() == 1
    opened.page.click("#again")
    opened.page.fill("#settings", "replays_anew = 7\n")
    assert "replays_anew" in opened.drop(capture)
    opened.page.fill("#settings", "")
    opened.page.fill("#keys", "")
    opened.page.set_input_files("#earlier", [])


def _download(opened):
    with opened.page.expect_download() as download:
        opened.page.click("#save")
    return download.value.path()


def test_made_up_traffic_shows_what_the_page_does(opened):
    """Whoever has no capture at hand gets a report of made-up traffic."""
    opened.page.click("#simulated")
    opened.wait("#result")
    assert opened.saved().deliveries > 2000
    assert "made-up-traffic.jsonl" in opened.page.inner_text("#about")


def test_the_page_fits_a_phone(opened, capture):
    """At the width of a phone nothing has to be scrolled sideways: not the page, not the report, not explanations."""
    before = opened.page.viewport_size
    opened.page.set_viewport_size(PHONE)
    try:
        opened.page.click("#options summary")
        assert opened.sideways() <= 0
        opened.page.click("#options summary")
        opened.drop(capture)
        assert opened.sideways() <= 0
        opened.page.click("#tab-explain")
        opened.wait("#explanations li")
        assert opened.sideways() <= 0
    finally:
        opened.page.set_viewport_size(before)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(opened, capture, tmp_path, scheme):
    """No rule of accessibility is broken: before, with a complaint, with a report and with explanations."""
    opened.page.emulate_media(color_scheme=scheme)
    (tmp_path / "empty").touch()
    opened.drop(tmp_path / "empty")
    for summary in opened.page.locator("#start summary").all():
        summary.click()
    assert opened.unfit() == []
    for summary in opened.page.locator("#start summary").all():
        summary.click()
    opened.drop(capture)
    assert opened.unfit() == []
    opened.page.click("#tab-explain")
    opened.wait("#explanations li")
    assert opened.unfit() == []
    opened.page.emulate_media(color_scheme="light")


def test_the_policy_forbids_every_request(opened):
    """Code in the page could not send anything if it wanted to: page, worker and report are refused the network."""
    asked = "address => fetch(address, {mode: 'no-cors'}).then(() => 'went', () => 'refused')"
    of_worker = (  # whose fetch is answered from memory
        "address => { const asked = new XMLHttpRequest(); try { asked.open('GET', address, false); asked.send();"
        " return 'went'; } catch { return 'refused'; } }"
    )
    opened.page.click("#simulated")
    opened.wait("#result")
    with running_receiver() as receiver:
        (worker,) = opened.page.workers
        assert opened.page.evaluate(asked, receiver.url) == "refused"
        assert worker.evaluate(of_worker, receiver.url) == "refused"
        assert opened.report.evaluate(f"(_, address) => ({asked})(address)", receiver.url) == "refused"
        with opened.page.expect_event("console"):
            opened.page.evaluate("address => { new Image().src = address }", receiver.url)
        assert not receiver.requests
    assert len([complaint for complaint in opened.complaints if "Content Security Policy" in complaint]) >= 4
    opened.requests.clear()
    opened.complaints.clear()


def test_an_old_browser_is_told_so(chromium, built):
    """A browser that lacks what the page needs says so in words, and takes no file."""
    with chromium.new_context() as context:
        page = context.new_page()
        page.add_init_script("delete window.DecompressionStream")
        page.goto(built.as_uri())
        page.locator("#state").filter(has_text="too old").wait_for()
        assert page.is_disabled("#files")


def test_no_address_in_the_page_leads_outside(built):
    """Beside its packed parts the page names no address at all."""
    text = built.read_text(encoding="utf-8")
    markup = re.sub(r"<script type=.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"']?(?!#)", markup)
    assert "://" not in markup


@pytest.mark.slow
def test_a_hundred_thousand_deliveries_are_diagnosed(opened, tmp_path):
    """A capture of 100,000 deliveries is diagnosed in the memory of any browser; stopping on the way costs nothing."""
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.writelines(delivery.raw + b"\n" for delivery in islice(simulate(2300, seed=1), 100_000))
    opened.begin(path)
    opened.wait("#progress-text", "read")
    opened.page.click("#stop")
    opened.wait("#state", "Ready.")
    opened.drop(path)
    assert opened.page.inner_text("#about").startswith("100,000 deliveries of large.jsonl")
    assert int(opened.page.get_attribute("#about", "data-memory")) < 512 * 1_048_576
