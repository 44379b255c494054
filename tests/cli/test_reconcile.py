"""`oncebridge reconcile` as a person and as cron run it, against a server of Genesys' endpoints."""

import json
import signal
import threading
import time
from datetime import datetime

import pytest

import genesys_day
from genesys_day import HOUR_MS, MINUTE_MS, conversations, stream, truth
from servers.genesys import CLIENT, SECRET, running_genesys

LEDGER = "sqlite:///once.db"
NOW_MS = int(time.time() * 1000)
TALKS = conversations(16, every_ms=15 * MINUTE_MS, began_ms=NOW_MS - 6 * HOUR_MS)
LATE = TALKS[12]
SETTINGS = """
attendance = true
ledger = "sqlite:///once.db"

[genesys]
region = "eu-central-1"
client_id = "{client}"
client_secret = "env:CLIENT_SECRET"
api_url = "{url}"
login_url = "{url}"
"""
HANDLER = """
from pathlib import Path

def note(event):
    if event.topic == "oncebridge.missing":
        with Path("filled").open("a") as file:
            file.write(event.body["eventId"] + "\\n")
"""


def left_out(talk, family, _at_ms):
    """Leave out one conversation, and the end of another."""
    return talk is TALKS[3] or (talk is TALKS[8] and family == "customer.end") or talk is LATE


@pytest.fixture
def genesys():
    """Return a running Genesys Cloud that knows all conversations."""
    with running_genesys() as server:
        server.talks = list(TALKS)
        server.watermark_ms = NOW_MS - HOUR_MS
        yield server


@pytest.fixture
def desk(cli, genesys):
    """Return the command line of an installation that missed something."""
    (cli.folder / "oncebridge.toml").write_text(SETTINGS.format(client=CLIENT, url=genesys.url))
    (cli.folder / "desk.py").write_text(HANDLER)
    cli.write("in.jsonl", stream(TALKS, left_out))
    assert cli("process", "in.jsonl", "--handler", "desk:note", CLIENT_SECRET=SECRET).code == 0
    return cli


def reconcile(cli, *arguments, **options):
    """Ask about the day."""
    return cli("reconcile", "--since", "12h", *arguments, CLIENT_SECRET=SECRET, **options)


def test_a_run_answers_programs(desk, genesys):
    """One JSON object has the balance and each gap; a second run tells what came late, and the exit code is cron's."""
    ran = reconcile(desk, "--json")
    found = ran.one
    assert ran.code == 1
    assert found["ended"] == found["whole"] + found["partial"] + found["missing"]
    assert (found["ended"] + found["provisional"], found["partial"], found["missing"]) == (16, 1, 2)
    assert found["watermark"] == genesys_day.iso(genesys.watermark_ms // 1000 * 1000).replace(".000Z", "Z")
    assert {gap["conversation"]: sorted(gap["missing"]) for gap in found["gaps"]} == truth(TALKS, left_out)
    assert {gap["cause"] for gap in found["gaps"]} == {"single"}
    assert all(gap["ended"] for gap in found["gaps"])
    desk.write("rest.jsonl", stream(TALKS))
    assert desk("process", "rest.jsonl", "--handler", "desk:note", CLIENT_SECRET=SECRET).code == 0
    again = reconcile(desk, "--json")
    assert (again.code, again.one["gaps"], again.one["compared"]["came"]) == (0, [], 3)


def test_a_run_answers_people(desk):
    """The balance comes first, then what is missing, its cause, and what to do about it; the page says the same."""
    ran = reconcile(desk, "--html", "report.html")
    page = (desk.folder / "report.html").read_text()
    assert "1 without an end; 2 never" in page
    assert TALKS[3].id in page
    first = ran.out.splitlines()[0]
    assert "1 without an end; 2 never; complete up to" in first
    assert "single conversations: 3" in ran.out
    assert TALKS[3].id in ran.out
    assert "--fill" in ran.out


def test_no_secret_is_written_anywhere(desk, genesys):
    """Neither the client's secret nor a token is in any output, log or file."""
    ran = reconcile(desk, "--log-level", "debug")
    written = (ran.out + ran.err).encode() + b"".join(
        path.read_bytes() for path in desk.folder.iterdir() if path.is_file()
    )
    assert SECRET.encode() not in written
    assert genesys.tokens
    assert not any(token.encode() in written for token in genesys.tokens)


def test_filling_twice_is_once(desk):
    """Each missing event is given to the handler once, however often the command is run."""
    number = len({(family, session) for talk in (TALKS[3], LATE) for family, session, _ in talk.events()}) + 1
    for _ in range(2):
        ran = reconcile(desk, "--fill", "--handler", "desk:note", "--json")
        assert ran.code == 1
    assert ran.one["filled"] == {"done": 0, "before": number, "dead": 0, "again": 0}
    assert len(set(desk.lines("filled"))) == len(desk.lines("filled")) == number
    assert reconcile(desk, "--fill").code == 2


def test_an_interrupted_run_goes_on(desk, genesys):
    """Ctrl-C ends a run with exit code 75; the same command goes on, and finds the same."""
    held, gate = threading.Event(), threading.Event()

    def hold(number):
        if number == 15:
            held.set()
            gate.wait(30)

    genesys.before = hold
    started = desk.start("reconcile", "--since", "12h", "--json", CLIENT_SECRET=SECRET)
    assert held.wait(30)
    started.signal(signal.SIGINT)
    gate.set()
    assert started.finish().code == 75
    before = genesys.calls
    ran = reconcile(desk, "--json")
    assert {gap["conversation"] for gap in ran.one["gaps"]} == set(truth(TALKS, left_out))
    assert "interrupted" in ran.err
    assert genesys.asked["/jobs/availability"] == 1
    assert genesys.calls - before < 40


def test_saved_answers_need_nobody(desk, genesys):
    """Answers that were saved are compared without a sign-in; broken ones are an error with their place."""
    answer = {"conversations": [talk.details for talk in TALKS], "totalHits": 16}
    (desk.folder / "details.json").write_text(json.dumps(answer, indent=1))
    ran = desk("reconcile", "--since", "12h", "--details", "details.json", "--json")
    assert {gap["conversation"] for gap in ran.one["gaps"]} == set(truth(TALKS, left_out))
    assert genesys.calls == 0
    piped = desk("reconcile", "--since", "12h", "--details", "-", "--json", stdin=json.dumps(answer).encode())
    assert piped.one["gaps"] == ran.one["gaps"]
    one = desk("reconcile", "--conversation", TALKS[3].id, "--details", "details.json", "--json").one
    assert [gap["conversation"] for gap in one["gaps"]] == [TALKS[3].id]
    since = datetime.fromisoformat(one["since"]).timestamp()  # who asks about one need not know when it was
    assert NOW_MS / 1000 - since > 29 * 86_400
    (desk.folder / "broken.json").write_text(json.dumps(answer)[:-9])
    broken = desk("reconcile", "--since", "12h", "--details", "broken.json")
    assert (broken.code, "cut off" in broken.err) == (2, True)


def test_what_must_be_changed_is_said(desk, genesys):
    """Without a sign-in, with a wrong one, or with a span that makes no sense, the command says what to change."""
    genesys.calls_per_token = 0
    assert reconcile(desk).code == 2
    wrong = desk("reconcile", CLIENT_SECRET="wrong-and-long-enough")
    assert (wrong.code, "client_secret" in wrong.err, "wrong-and" in wrong.err) == (2, True, False)
    assert desk("reconcile", "--from", "1h", "--until", "2h", CLIENT_SECRET=SECRET).code == 2
    assert desk("reconcile", "--from", "90d", CLIENT_SECRET=SECRET).code == 2
    unset = desk("reconcile", "--since", "1h")
    assert (unset.code, "client_secret" in unset.err, "CLIENT_SECRET" in unset.err) == (2, True, True)
    early = desk("reconcile", "--since", "0h", CLIENT_SECRET=SECRET)
    assert (early.code, "--since" in early.err) == (2, True)
    (desk.folder / "oncebridge.toml").write_text("attendance = true")
    unsigned = desk("reconcile", "--ledger", LEDGER)
    assert (unsigned.code, "client_id" in unsigned.err) == (2, True)
