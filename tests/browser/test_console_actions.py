"""What people do in the console, in a real browser: by mouse, by keyboard alone, without script, and in their role."""

import json
import secrets

import pytest
from playwright.sync_api import expect

from browser.looking import BEYOND_THEIR_CELLS, PHONE, delivery, leave_letters, running_console, running_worker, work
from diagnosis.made_up import HOSTILE
from ledgers.on_postgres import new_schema
from oncebridge import Bridge
from oncebridge.clock import SystemClock
from oncebridge.errors import PermanentError
from oncebridge.journal import writer
from oncebridge.journal.actions import ActionLog
from oncebridge.journal.requests import Requests
from oncebridge.ledgers import ledger_from_url
from payloads import queue_conversation
from servers.process import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("console")]

OPERATOR, READER = "the operator's own key", "the reader's own key"
KEYS = {
    "OPERATOR_KEY": OPERATOR,
    "READER_KEY": READER,
    "ONCEBRIDGE_CONSOLE_OPERATOR_KEYS": "env:OPERATOR_KEY",
    "ONCEBRIDGE_CONSOLE_READER_KEYS": "env:READER_KEY",
}
BOTH_HANDS = pytest.mark.parametrize("by", ["mouse", "keyboard"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for ledgers and logs."""
    return tmp_path_factory.mktemp("acting")


@pytest.fixture(scope="module")
def console(folder):
    """Run a console without keys, whose ledger all tests share: each has letters of a reason of its own."""
    url = f"sqlite:///{folder}/once.db"
    leave_letters(url, 1, "of nobody")
    with running_console(url, folder) as console:
        yield console


@pytest.fixture(scope="module")
def guarded(console, folder):
    """Run a console with keys on the same ledger."""
    with running_console(console.url, folder, **KEYS) as guarded:
        yield guarded


@pytest.fixture(scope="module")
def worker(console, folder):
    """Run a worker beside the console."""
    with running_worker(console.url, folder) as worker:
        yield worker


def outcomes(looked):
    """Return what came of each letter, by its key."""
    rows = looked.page.locator("#items tbody tr").all()
    return {row.locator("th").inner_text(): row.locator("td").nth(2).inner_text() for row in rows}


def logged(looked, what):
    """Return what the log says of actions of a kind, the newest first."""
    looked.go("/log")
    return looked.page.locator("main tbody tr").filter(has_text=what).all_inner_texts()


# --- redrive and discard -------------------------------------------------------------------------------


@BOTH_HANDS
def test_chosen_letters_are_redriven_by_a_worker(window, console, worker, by):
    """The ticked ones alone, after a question with their number; the page shows what came of each of them."""
    reason = f"chosen by {by}"
    keys = leave_letters(console.url, 3, reason)
    looked = window(console, by=by)
    looked.page.clock.install()
    looked.go(f"/dead?reason={reason}")
    for key in keys[:2]:
        looked.hand.tick(looked.page.get_by_label(f"Choose {key}"))
    looked.hand.press(looked.button("Redrive the chosen"))
    looked.says("Redrive 2 dead letters: 2 chosen letters?")
    looked.hand.press(looked.button("Redrive 2 dead letters"))
    looked.update_until(looked.page.locator("main .badge"), "done")
    assert outcomes(looked) == dict.fromkeys(keys[:2], "done")
    looked.says("2 of 2")
    looked.go(f"/dead?reason={reason}")
    assert looked.page.locator("#letters tbody a.key").all_inner_texts() == keys[2:]
    assert looked.complaints == []


def test_all_that_match_are_redriven_and_each_result_is_told(window, console, worker):
    """Those that fail again stay dead letters, with the new reason; the request ends, and so do the questions."""
    reason = "all that match"
    good = leave_letters(console.url, 2, reason)
    bad = leave_letters(console.url, 1, reason, name="hopeless")
    looked = window(console)
    looked.page.clock.install()
    looked.go(f"/dead?reason={reason}")
    looked.button("Redrive all that match").click()
    looked.says(f"Redrive 3 dead letters: every letter with reason {reason}?")
    looked.says("crm: 1 running worker has it.")
    looked.button("Redrive 3 dead letters").click()
    looked.update_until(looked.page.locator("main .badge"), "done")
    assert outcomes(looked) == {**dict.fromkeys(good, "done"), **dict.fromkeys(bad, "dead")}
    looked.says("it is hopeless", "#items")
    before = looked.asked
    looked.pass_time(60)
    assert looked.asked == before
    assert any(reason in line for line in logged(looked, "redrive"))


@BOTH_HANDS
def test_one_letter_is_discarded(window, console, by):
    """From its own page; the console does it itself, and says that it cannot be undone."""
    (key,) = leave_letters(console.url, 1, f"one by {by}")
    looked = window(console, by=by)
    looked.page.clock.install()
    looked.go(f"/dead/{key}")
    looked.hand.press(looked.button("Discard"))
    looked.says("This cannot be undone.")
    looked.hand.press(looked.button("Discard 1 dead letter"))
    looked.update_until(looked.page.locator("main .badge"), "done")
    looked.go(f"/dead?reason=one by {by}")
    looked.says("No dead letter matches.")


def test_a_group_is_discarded_after_one_was_spared(window, console):
    """The question can be answered with no; then nothing has happened."""
    leave_letters(console.url, 3, "a group")
    looked = window(console)
    looked.page.clock.install()
    looked.go("/dead")
    group = looked.page.locator("#groups tr").filter(has_text="a group")
    group.get_by_role("button", name="Discard").click()
    looked.page.get_by_role("link", name="No, go back").click()
    expect(group.locator("td.number")).to_have_text("3")
    group.get_by_role("button", name="Discard").click()
    looked.button("Discard 3 dead letters").click()
    looked.update_until(looked.page.locator("main .badge"), "done")
    looked.go("/dead")
    assert group.count() == 0


def test_without_a_worker_the_page_says_so_and_the_request_is_cancelled(window, console):
    """No worker has the handler: the question says it, the request waits and says it, and can be cancelled."""
    leave_letters(console.url, 1, "nobody has it", handler="nobody's")
    looked = window(console)
    looked.go("/dead?reason=nobody has it")
    looked.button("Redrive all that match").click()
    looked.says("nobody's: no running worker that takes requests has it")
    looked.button("Redrive 1 dead letter").click()
    looked.says("waiting")
    looked.button("Cancel the rest").click()
    looked.says("cancelled")


def test_letters_are_discarded_without_script_on_a_phone(window, console):
    """Boxes, question and result need no script."""
    keys = leave_letters(console.url, 2, "without script")
    looked = window(console, PHONE, java_script_enabled=False)
    looked.go("/dead?reason=without script")
    looked.page.get_by_label(f"Choose {keys[0]}").check()
    looked.button("Discard the chosen").click()
    looked.button("Discard 1 dead letter").click()
    looked.says("Discard of", "h1")
    looked.go("/requests")
    assert looked.page.locator("main tbody tr").first.locator("td").nth(1).inner_text() == "discard"


def test_nothing_chosen_is_said(window, console):
    """Without a tick there is no question, and the page says what to do."""
    leave_letters(console.url, 1, "not chosen")
    looked = window(console)
    looked.go("/dead?reason=not chosen")
    looked.button("Redrive the chosen").click()
    looked.says("tick some first")


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_letters_of_other_ledgers_are_redriven(window, request, tmp_path, kind):
    """The same on Redis and on Postgres, and the event is found by its key."""
    if kind == "redis":
        url = f"{request.getfixturevalue('valkey').url}?name=console-{secrets.token_hex(4)}"
        redriven(window, url, tmp_path)
    else:
        with new_schema(request.getfixturevalue("postgres")) as url:
            redriven(window, url, tmp_path)


def redriven(window, url, folder):
    """Redrive all letters of a ledger, and look one of them up."""
    keys = leave_letters(url, 2, "no such customer")
    with running_console(url, folder) as console, running_worker(url, folder):
        looked = window(console)
        looked.page.clock.install()
        looked.go("/dead")
        looked.button("Redrive all that match").click()
        looked.button("Redrive 2 dead letters").click()
        looked.update_until(looked.page.locator("main .badge"), "done")
        assert outcomes(looked) == dict.fromkeys(keys, "done")
        looked.page.get_by_label("Find").fill(keys[0])
        looked.button("Find").click()
        looked.says("Time line")


# --- pause, payload, and who may ------------------------------------------------------------------------


@BOTH_HANDS
def test_a_handler_is_paused_and_resumed(window, console, monkeypatch, by):
    """The question says how long its events can wait; the log says who did both."""
    monkeypatch.setattr(writer, "EVERY_SECONDS", 0.1)
    name = f"paused by {by}"
    looked = window(console, by=by)
    with Bridge(console.url) as bridge:
        bridge.register("*", lambda _: None, name=name)
        bridge.start_journal("consume", holds="14 days in the queue")
        bridge.process(delivery(name))
        section = looked.page.locator("section.handler").filter(has_text=name)
        wait_until(lambda: looked.go("/handlers") and section.count(), "the handler to be described")
        looked.hand.press(section.get_by_role("button", name="Pause"))
        looked.says("14 days in the queue")
        looked.hand.press(looked.button(f"Pause {name}"))
        expect(section).to_contain_text("unacknowledged")
    looked.go("/")
    looked.says(f"{name} is paused, for")
    looked.go("/handlers")
    looked.hand.press(section.get_by_role("button", name="Resume"))
    expect(section.get_by_role("button", name="Pause")).to_be_visible()
    assert len(logged(looked, name)) == 2


@BOTH_HANDS
def test_a_payload_is_shown_on_request_and_that_is_logged(window, console, by):
    """It is nowhere on the page before, and the log says who looked at which letter."""
    (key,) = leave_letters(console.url, 1, f"payload by {by}", status="a word of the payload")
    looked = window(console, by=by)
    looked.go(f"/dead/{key}")
    assert "a word of the payload" not in looked.page.content()
    looked.hand.press(looked.button("Show payload and error"))
    looked.says("a word of the payload", "#payload")
    assert len(logged(looked, key)) == 1


@BOTH_HANDS
def test_people_log_in_and_out(window, guarded, by):
    """A wrong key is said; a right one leads to the page that was wanted; logged out, nothing is shown any more."""
    looked = window(guarded, by=by)
    looked.go("/log")
    assert looked.unfit() == []
    assert looked.sideways() <= 0
    key = looked.page.get_by_label("Key")
    expect(key).to_be_focused()
    looked.hand.write(key, "no key of ours")
    looked.page.keyboard.press("Enter")
    expect(looked.page.get_by_role("alert")).to_be_visible()
    looked.hand.write(looked.page.get_by_label("Key"), OPERATOR)
    looked.hand.press(looked.button("Log in"))
    looked.says("Log", "h1")
    looked.hand.press(looked.button("Log out"))
    expect(looked.page.get_by_label("Key")).to_be_visible()
    looked.page.go_back()
    expect(looked.page.get_by_label("Key")).to_be_visible()
    assert looked.page.locator("main table").count() == 0


def test_a_page_says_that_its_session_has_ended(window, guarded):
    """Somebody who logs out in one window is told so in the other, which asks no more."""
    looked = window(guarded)
    looked.page.clock.install()
    logged_in(looked, OPERATOR)
    looked.page.context.clear_cookies()
    looked.pass_time()
    looked.says("your session has ended", "#state")
    before = looked.asked
    looked.pass_time(600)
    assert looked.asked == before


def logged_in(looked, key):
    """Log in."""
    looked.go("/log")
    looked.page.get_by_label("Key").fill(key)
    looked.button("Log in").click()
    looked.says("Log", "h1")


def test_a_reader_sees_no_way_to_act(window, console, guarded):
    """Pages are there, buttons that change something are not, and a payload is not."""
    (key,) = leave_letters(console.url, 1, "for readers", status="a word of the payload")
    looked = window(guarded)
    logged_in(looked, READER)
    for path in ("/dead", f"/dead/{key}", "/handlers", "/requests"):
        looked.go(path)
        acting = looked.page.locator("main form[method=post]")
        assert acting.count() == 0, path
        assert looked.page.locator("main input[type=checkbox]").count() == 0, path
        assert "a word of the payload" not in looked.page.content()
    assert looked.unfit() == []


# --- hostile texts ---------------------------------------------------------------------------------------

#: With a very long one, and with markup that would be run from an attribute.
TEXTS = (
    *HOSTILE,
    "' onfocus=alert(1) autofocus x=\"",
    "<svg><animate onbegin=alert(1) attributeName=x>",
    "W" * 30_000,
    "abc\u202egnp.exe\u2066\u200f",
    "a\u0301" * 300,
    "Z" + "\u0351\u036b\u0300" * 200,
)
HOSTILE_PAGES = ("/", "/deliveries", "/dead", "/requests", "/handlers", "/log")
#: What none of our pages holds in its content, but the texts would make.
MADE = "main :is(script, img, iframe, object, style, animate, b b), main [onerror], main [onfocus], main [autofocus]"


@pytest.fixture(scope="module")
def hostile(folder):
    """Run a console on a ledger whose every text, of events, handlers and people, is hostile."""
    url = f"sqlite:///{folder}/hostile.db"
    for at, text in enumerate((*TEXTS, "half a pair: \ud83d")):
        refuse_with(url, text, at)
    ledger = ledger_from_url(url)
    ledger.open(None)
    requests, log = (
        Requests(ledger.notes, SystemClock(), keep_us=10**12),
        ActionLog(ledger.notes, SystemClock(), keep_us=10**12),
    )
    for text in TEXTS:
        requests.put("redrive", text, handler=text, topic=text, reason=text)
        log.write(who=text, via=text, what=text, about=text, said=text)
    ledger.close()
    with running_console(url, folder) as console:
        yield console


def refuse_with(url, text, at):
    """Leave a delivery, and a letter, whose every field holds this text."""

    def refuse(_):
        raise PermanentError(text)

    fields = {"detail_type": text, "source": text, "id": f"{at}{text}", "account": text, "region": text}
    written = queue_conversation(text, event_id=f"{at} {text}", conversation=text, **fields)
    one = json.dumps(written).encode()  # with halves of surrogate pairs as escapes
    work(url, [one, one], handler=text[:100].replace("\0", ""), does=refuse)


@pytest.mark.parametrize("width", [1440, PHONE])
@pytest.mark.parametrize("path", HOSTILE_PAGES)
def test_hostile_texts_stay_texts(window, hostile, path, width):
    """They are read as they are, run nothing, load nothing, and widen nothing; after an update too."""
    looked = window(hostile, width)
    looked.go_live(path)
    for _ in range(2):
        assert looked.page.locator(MADE).count() == 0
        assert looked.sideways() <= 0
        assert looked.page.evaluate(BEYOND_THEIR_CELLS) == []
        looked.update()
    assert looked.unfit() == []
    assert looked.complaints == []
    assert looked.elsewhere() == []
    shown = looked.page.locator("main").inner_text()
    assert "<script>alert(1)</script>" in shown
    assert not any(mark in shown for mark in "\0\x1b\u202e\u2066\u2028")


def test_a_hostile_letter_is_shown_with_its_payload(window, hostile):
    """One letter, its payload and what is known of its event: text, whatever is in them."""
    looked = window(hostile)
    looked.go("/dead")
    for key in looked.page.locator("#letters a.key").all_inner_texts():
        looked.go(f"/event/{key}")
        assert looked.page.locator(MADE).count() == 0
        looked.go(f"/dead/{key}")
        looked.button("Show payload and error").click()
        looked.says("The payload")
        assert looked.page.locator(MADE).count() == 0
        assert looked.sideways() <= 0
    assert looked.complaints == []
    assert looked.elsewhere() == []
