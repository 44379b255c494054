"""The console as people use it: real processes, a window of a real browser, a hand on the mouse or on the keyboard."""

import os
import sys
from contextlib import contextmanager

from playwright.sync_api import expect

from oncebridge import Bridge
from oncebridge.errors import PermanentError, RetryLater
from oncebridge.journal.records import DAY_US
from oncebridge.reconciling.comparison import Counts
from oncebridge.reconciling.result import Run, ShownGap, ShownSilence
from oncebridge.reconciling.runs import Runs
from oncebridge.reconciling.silences import Cause
from payloads import queue_conversation, raw
from servers.chromium import AXE
from servers.process import ServerProcess, free_port, listens
from servers.serving import ask

DESK, PHONE = 1440, 390
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
#: What is shown in a table beyond its cell, so that it lies over another.
BEYOND_THEIR_CELLS = """() => [...document.querySelectorAll("main tbody td, main tbody th")]
    .filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => one.outerHTML.slice(0, 200))"""
LIVE_SECONDS = 5
#: Presses of the tab key within which everything on a page is reached.
TABS_MAX = 400
PATIENCE_MS = 20_000  # a busy machine is not a bug

#: A worker that serves; it cannot do what is hopeless, and looks for requests often, so that no test waits for it.
WORKER = """
import os
from oncebridge import Bridge
from oncebridge.errors import PermanentError
from oncebridge.journal import writer

writer.EVERY_SECONDS = 0.2
bridge = Bridge(os.environ["WORKER_LEDGER"])

@bridge.on("*", name="crm")
def crm(event):
    if b"hopeless" in event.raw:
        raise PermanentError("it is hopeless")
"""


def delivery(name, **changes):
    """Make one delivery of an event of this name, in a conversation of the same name."""
    return raw(queue_conversation(event_id=name, conversation=name, **changes))


def work(url, deliveries, *, handler="crm", does=None, topic="*"):
    """Let a worker with a journal process deliveries to its end; return what came of each."""
    with Bridge(url) as bridge:
        bridge.register(topic, does or (lambda _: None), name=handler)
        bridge.start_journal("consume", holds="14 days in the queue")
        return bridge.process_many(deliveries)


def leave_letters(url, number, reason, *, name=None, handler="crm", **changes):
    """Leave dead letters of this reason, and return their keys, the oldest first."""

    def refuse(_):
        raise PermanentError(reason)

    deliveries = [delivery(f"{name or reason}-{at}", **changes) for at in range(number)]
    return [result.key for result in work(url, deliveries, handler=handler, does=refuse)]


def leave_traffic(url):
    """Leave what every page has something to show of: copies, letters on two pages, events that wait, and a log."""

    def wait(_):
        raise RetryLater("the receiver is out of reach", after_seconds=3600)

    calm = [delivery(f"calm-{at}") for at in range(6)]
    work(url, calm)
    work(url, [*calm, delivery("other topic", detail_type="Conversation Changed")])
    work(url, [delivery(f"slow-{at}") for at in range(3)], handler="warehouse", does=wait)
    leave_letters(url, 55, "no such customer")
    leave_letters(url, 3, "the address is missing", detail_type="Address Changed", handler="warehouse")
    leave_runs(url)


def leave_runs(url):
    """Leave two runs of `reconcile`: one that found gaps of each cause, and a later one that found them closed."""
    since, hour, until = (f"2026-03-02T{at:02}:00:00Z" for at in (8, 9, 10))
    missing = ["customer.start", "customer.end", "agent.start"]
    gaps = [
        ShownGap(
            f"00000000-0000-4000-8000-{at:012}", hour, missing, cause, since, hour, never=cause is not Cause.SINGLE
        )
        for at, cause in enumerate([*Cause] * 4)
    ]
    topic = "v2.detail.events.conversation.{id}.customer.end"
    found = Run(
        made=hour, since=since, until=hour, watermark=hour, gaps=gaps, causes={one.value: 4 for one in Cause},
        counts=Counts(ended=90, whole=90 - len(gaps), partial=4, missing=len(gaps) - 4),
        silences=[ShownSilence(Cause.TOPIC, topic, since, hour, 4)], families=missing,
    )  # fmt: skip
    closed = Run(
        made=until, since=since, until=hour, watermark=until, counts=Counts(ended=90, whole=90), families=missing,
        changes=["what was missing came late"],
    )  # fmt: skip
    with Bridge(url) as bridge:
        for run in (closed, found):
            Runs(bridge.ledger.notes, bridge.clock, DAY_US).keep(run)


@contextmanager
def running(command, folder, name, port, **environment):
    """Run a command of ours that listens at a port."""
    minimum = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
    places = [str(folder), *([os.environ["PYTHONPATH"]] if os.environ.get("ONCEBRIDGE_TEST_SOURCE") == "1" else [])]
    process = ServerProcess(
        [sys.executable, "-m", "oncebridge", *command],
        log=folder / f"{name}.log",
        ready=lambda: listens(port) and ask(f"http://127.0.0.1:{port}/").status,
        environment={**minimum, "PYTHONPATH": os.pathsep.join(places), **environment},
    )
    process.start()
    try:
        yield process
    finally:
        process.stop()


class Console:
    """A running console, and the ledger that it shows."""

    def __init__(self, url, port, process):
        self.url, self.process = url, process
        self.at = f"http://127.0.0.1:{port}"

    def address(self, path):
        """Return the address of a page."""
        return f"{self.at}/console{path}"


@contextmanager
def running_console(url, folder, **environment):
    """Run a console on a ledger."""
    port = free_port()
    command = ["console", "--ledger", url, "--port", str(port)]
    with running(command, folder, f"console-{port}", port, **environment) as process:
        yield Console(url, port, process)


@contextmanager
def running_worker(url, folder):
    """Run a worker that has the handler crm, and takes requests."""
    (folder / "worker_of_tests.py").write_text(WORKER, encoding="utf-8")
    port = free_port()
    command = ["serve", "--handler", "worker_of_tests:bridge", "--port", str(port)]
    with running(command, folder, f"worker-{port}", port, WORKER_LEDGER=url) as process:
        yield process


class Hand:
    """What acts on a page: the mouse, or the keyboard alone."""

    def __init__(self, page, by):
        self._page, self._by_mouse = page, by == "mouse"

    def reach(self, target):
        """Go on by the tab key until an element has the focus."""
        for _ in range(TABS_MAX):
            if target.evaluate("element => element === document.activeElement"):
                return
            self._page.keyboard.press("Tab")
        raise AssertionError(f"the keyboard does not reach {target}")

    def press(self, target):
        """Press a button, or follow a link."""
        if self._by_mouse:
            target.click()
        else:
            self.reach(target)
            self._page.keyboard.press("Enter")

    def tick(self, target):
        """Tick a box."""
        if self._by_mouse:
            target.click()
        else:
            self.reach(target)
            self._page.keyboard.press("Space")

    def write(self, target, text):
        """Write into a field."""
        if self._by_mouse:
            target.click()
        else:
            self.reach(target)
        self._page.keyboard.insert_text(text)


class Looked:
    """A window on the console, with every request, complaint and dialog since it was opened."""

    def __init__(self, context, console, by="mouse"):
        self.console, self.page = console, context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        self.hand = Hand(self.page, by)
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)

    def _dismiss(self, dialog):
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def go(self, path):
        """Open a page."""
        return self.page.goto(self.console.address(path))

    def go_live(self, path):
        """Open a page whose time passes when the test says so."""
        self.page.clock.install()
        self.go(path)

    def pass_time(self, seconds=LIVE_SECONDS):
        """Let time pass in the page."""
        self.page.clock.run_for(seconds * 1000)

    def update(self, seconds=LIVE_SECONDS):
        """Let the page ask for news, and return when it has its answer."""
        with self.page.expect_response(lambda response: response.request.resource_type == "fetch") as answered:
            self.pass_time(seconds)
        answered.value.finished()
        self.page.evaluate("() => new Promise(requestAnimationFrame)")

    def update_until(self, locator, text):
        """Let the page ask for news until something says this."""
        locator.first.wait_for()
        for _ in range(60):
            if text in (locator.first.text_content() if locator.count() else ""):
                return
            self.update()
        raise AssertionError(f"never said: {text}; but: {self.page.locator('main').inner_text()[:500]}")

    @property
    def asked(self):
        """The pages that were asked for news, and not opened."""
        return self.requests.count(self.page.url)

    def button(self, name):
        """Return the button of this name."""
        return self.page.get_by_role("button", name=name, exact=True)

    def unfit(self, only=None):
        """Return which rules of accessibility the page breaks, and where."""
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        wanted = {"resultTypes": ["violations"], **({} if only is None else {"runOnly": [only]})}
        found = self.page.evaluate("wanted => axe.run(document, wanted)", wanted)["violations"]
        return [(one["id"], one["nodes"][0]["html"][:200]) for one in found]

    def sideways(self):
        """Return by how many pixels the page is wider than its window."""
        return self.page.evaluate(SIDEWAYS)

    def elsewhere(self):
        """Return the requests to other hosts."""
        return [url for url in self.requests if not url.startswith(f"{self.console.at}/")]

    def says(self, text, at="main"):
        """Wait until the page says this."""
        expect(self.page.locator(at).first).to_contain_text(text)
