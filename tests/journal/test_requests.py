"""Requests for dead letters: taken once, by a worker that can, gone on with after a crash, and ended on demand."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from children import Child
from journal.waiting import until
from oncebridge import Bridge, request_runner
from oncebridge.claim import Status
from oncebridge.errors import ConfigurationError, PermanentError
from oncebridge.journal import requests as module
from oncebridge.journal.actions import ActionLog
from oncebridge.journal.pauses import Pauses
from oncebridge.journal.requests import KEYS_MAX, Progress, RequestItem, Requests
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.request_runner import RequestRunner
from oncebridge.testing import ManualClock
from payloads import queue_conversation, raw


def delivery(name):
    """Make one delivery of an event of this name."""
    return raw(queue_conversation(event_id=name, conversation=name))


def refuse(event):
    """Give an event up."""
    raise PermanentError("no such customer")


def letters_for(url, number, handler="crm"):
    """Leave dead letters of a handler."""
    with Bridge(url) as bridge:
        bridge.register("*", refuse, name=handler)
        results = bridge.process_many([delivery(f"{handler}-{at}") for at in range(number)])
    return [result.key for result in results]


def worker(url, did, *names):
    """Make a worker that takes requests and remembers what its handlers got; it begins when it is opened."""
    bridge = Bridge(url)
    for name in names or ("crm",):
        bridge.register("*", lambda event, name=name: did.append((name, event.body["eventId"])), name=name)
    bridge.start_journal("consume")
    return bridge


def ended(requests, request):
    """Wait for the end of a request."""
    return until(lambda: (found := requests.get(request.id)).has_ended and found, "the end of the request")


@pytest.fixture
def requests(url, notes_at, clock):
    """Return the requests of a ledger that is there."""
    with Bridge(url):
        return Requests(notes_at(url), clock)


# --- the notes -----------------------------------------------------------------------------------------


def test_a_request_is_kept_as_it_was_put(requests):
    """All that was given is there again, and the newest come first."""
    first = requests.put("redrive", "anna", handler="crm", topic="v2.*", reason="timeout", since_ms=1, until_ms=2)
    second = requests.put("discard", "bert", keys=["ob1_b", "ob1_a", "ob1_b"], expected=2)
    assert requests.get(first.id) == first
    assert requests.latest() == [second, first]
    assert requests.latest(1) == [second]
    assert (second.keys, second.state, second.expected) == (("ob1_b", "ob1_a"), "waiting", 2)
    assert (
        first.about
        == "handler crm, topic v2.*, reason 'timeout', since 1970-01-01 00:00 UTC, until 1970-01-01 00:00 UTC"
    )
    assert requests.get("00000000000000-000000000000") is None


def test_the_same_request_of_two_consoles_is_one_while_it_waits(requests):
    """Whoever asks for the same gets the one that waits already; a form that is sent twice makes one request."""
    first = requests.put("redrive", "anna", handler="crm")
    assert requests.put("redrive", "bert", handler="crm") == first
    assert requests.put("redrive", "bert", handler="crm", force=True) != first
    name = requests.new_id()
    sent = requests.put("discard", "anna", id=name, keys=["ob1_a"])
    requests.take(sent.id, "w", ["crm"], discards=True)
    requests.finish(sent.id, "w", Progress(sent))
    assert requests.put("discard", "anna", id=name, keys=["ob1_a"]).state == "done"
    assert len(requests.latest()) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "name keys, a filter, or all"),
        ({"what": "erase", "all": True}, "expected redrive or discard"),
        ({"keys": [f"{at}" for at in range(KEYS_MAX + 1)]}, "at most 1,000"),
        ({"all": True, "id": "../../x"}, "id: expected one"),
    ],
)
def test_a_request_that_chooses_nothing_or_too_much_is_refused(given, said):
    """Nothing is put, and the error says what to do."""
    requests = Requests(MemoryLedger().notes, ManualClock())
    with pytest.raises(ConfigurationError, match=said):
        requests.put(given.pop("what", "redrive"), "anna", **given)
    assert requests.latest() == []


def test_one_of_many_takes_a_request(url, notes_at, clock):
    """However many workers reach for it at once, one gets it."""
    each = [Requests(notes_at(url), clock) for _ in range(4)]
    request = each[0].put("redrive", "anna", handler="crm")
    taken = []
    reached = threading.Barrier(4)

    def reach(number):
        reached.wait()
        taken.append(each[number].take(request.id, f"worker {number}", ["crm"], discards=True))

    threads = [threading.Thread(target=reach, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one is not None for one in taken) == 1
    assert each[0].takeable(["crm"], discards=True) == []


def test_a_worker_takes_what_it_can():
    """Redrives need the handler, those of any handler need some, and discards need nothing."""
    requests = Requests(MemoryLedger().notes, ManualClock())
    crm = requests.put("redrive", "anna", handler="crm")
    some = requests.put("redrive", "anna", topic="v2.*")
    gone = requests.put("discard", "anna", topic="v2.*")
    assert {one.id for one in requests.takeable(["crm"], discards=True)} == {crm.id, some.id, gone.id}
    assert {one.id for one in requests.takeable(["other"], discards=False)} == {some.id}
    assert {one.id for one in requests.takeable([], discards=True)} == {gone.id}


def test_a_request_whose_worker_is_silent_is_taken_by_another():
    """Progress holds it; without any for its lease another takes it, and the first one learns that it is lost."""
    clock = ManualClock()
    requests = Requests(MemoryLedger(clock=clock).notes, clock)
    request = requests.take(requests.put("redrive", "anna", handler="crm").id, "one", ["crm"], discards=True)
    done = Progress(request)
    done.add(RequestItem("k", "crm", "fresh", "done", "x" * 1000), "processed")
    for _ in range(10):
        clock.advance(module.LEASE_MS / 1000 - 1)
        assert requests.progress(request.id, "one", done).tried == 1
        assert requests.take(request.id, "two", ["crm"], discards=True) is None
    clock.advance(module.LEASE_MS / 1000)
    taken = requests.take(request.id, "two", ["crm"], discards=True)
    assert (taken.worker, taken.tried, taken.outcomes, len(taken.items)) == ("two", 1, {"processed": 1}, 1)
    assert taken.deaths == 1
    back = requests.give_back(request.id, "two", Progress(taken))
    taken = requests.take(back.id, "two", ["crm"], discards=True)
    assert (taken.takes, taken.deaths) == (3, 1)
    assert requests.progress(request.id, "one", done) is None
    assert requests.finish(request.id, "one", done) is None
    more = Progress(taken)
    more.add(RequestItem("l", "crm", "fresh", "done", ""), "processed")
    assert requests.finish(request.id, "two", more).outcomes == {"processed": 2}


def test_old_requests_are_forgotten():
    """What is older than requests are kept goes when the next one is put."""
    clock = ManualClock()
    requests = Requests(MemoryLedger(clock=clock).notes, clock, keep_us=10**15)
    old = requests.put("discard", "anna", all=True)
    requests.cancel(old.id)
    later = Requests(requests._notes, clock, keep_us=3_600_000_000)
    clock.advance(7200)
    new = later.put("discard", "anna", all=True)
    assert later.latest() == [new]


# --- workers -------------------------------------------------------------------------------------------


def test_a_thousand_letters_are_redriven_by_one_of_two_workers(url, notes_at, clock, often, monkeypatch):
    """Each is tried once, page by page; the request says what became of them, and the log who asked."""
    monkeypatch.setattr(request_runner, "PAGE", 64)
    number = 1000 if url.startswith("sqlite") else 200
    letters_for(url, number)
    requests = Requests(notes_at(url), clock)
    request = requests.put("redrive", "anna@laptop", handler="crm", expected=number)
    did = []
    with worker(url, did) as one, worker(url, did) as two:
        one.open()
        two.open()
        done = ended(requests, request)
    assert Counter(did) == Counter({("crm", f"crm-{at}"): 1 for at in range(number)})
    assert (done.state, done.tried, done.outcomes) == ("done", number, {"processed": number})
    assert len(done.items) == 200
    actions, _ = ActionLog(notes_at(url), clock).read()
    assert [(one.who, one.via, one.what, one.about) for one in actions] == [
        ("anna@laptop", "console", "redrive", "handler crm")
    ]
    assert actions[0].said.startswith(f"{number:,} processed; by ")
    assert requests.takeable(["crm"], discards=True) == []


def test_letters_that_fail_again_are_tried_once(tmp_path, notes_at, clock, often, monkeypatch):
    """A letter that is dead again is newer than the request, or remembered, and does not come round."""
    monkeypatch.setattr(request_runner, "PAGE", 3)
    url, tried = f"sqlite:///{tmp_path}/once.db", []
    letters_for(url, 10)

    def fail(event):
        tried.append(event.body["eventId"])
        raise PermanentError("still none")

    notes = notes_at(url)
    requests = Requests(notes, clock)
    bridge = Bridge(url)
    bridge.register("*", fail, name="crm")
    bridge.start_journal("consume")
    request = requests.put("redrive", "anna", all=True)
    ahead = module.replace(request, at_ms=request.at_ms + 3_600_000)  # of a console whose clock is an hour ahead
    assert notes.swap_note(
        "requests", request.id, notes.read_notes("requests")[0].value, module._encode(ahead), keep_us=10**12
    )
    with bridge:
        done = ended(requests, request)
    assert Counter(tried) == Counter({f"crm-{at}": 1 for at in range(10)})
    assert done.outcomes == {"dead": 10}
    assert {item.reason for item in done.items} == {"still none"}


def test_without_the_handler_a_request_waits(tmp_path, notes_at, clock, often):
    """A worker without the handler leaves it; one that comes later takes it."""
    url, did = f"sqlite:///{tmp_path}/once.db", []
    letters_for(url, 2)
    requests = Requests(notes_at(url), clock)
    request = requests.put("redrive", "anna", handler="crm")
    marker = requests.put("discard", "anna", keys=["ob1_" + "0" * 32])
    with worker(url, did, "warehouse"):
        assert ended(requests, marker).outcomes == {"gone": 1}
        assert requests.get(request.id) == request
    with worker(url, did):
        ended(requests, request)
    assert sorted(did) == [("crm", "crm-0"), ("crm", "crm-1")]


def test_a_request_for_any_handler_goes_from_worker_to_worker(tmp_path, notes_at, clock, often):
    """Each worker tries the letters of its own handlers, and leaves the names of the others."""
    url, did = f"sqlite:///{tmp_path}/once.db", []
    letters_for(url, 2)
    letters_for(url, 3, "warehouse")
    requests = Requests(notes_at(url), clock)
    request = requests.put("redrive", "anna", all=True)
    with worker(url, did):
        until(lambda: requests.get(request.id).left == ("warehouse",))
        assert (requests.get(request.id).state, requests.get(request.id).tried) == ("waiting", 2)
    with worker(url, did, "warehouse"):
        assert ended(requests, request).outcomes == {"processed": 5}
    assert Counter(name for name, _ in did) == {"crm": 2, "warehouse": 3}


def test_letters_that_nobody_could_read_go_to_any_worker(tmp_path, notes_at, clock, often):
    """An unreadable delivery is tried by whoever takes the request, and stays a letter if it still is unreadable."""
    url = f"sqlite:///{tmp_path}/once.db"
    with Bridge(url) as bridge:
        bridge.register("*", refuse, name="crm")
        bridge.process(b"{")
    requests = Requests(notes_at(url), clock)
    request = requests.put("redrive", "anna", all=True)
    with worker(url, [], "warehouse"):
        assert ended(requests, request).outcomes == {"dead": 1}


def test_discards_need_no_handler(url, notes_at, clock, often):
    """A process without handlers works off a request to discard, by key and by filter, and says what it did."""
    keys = letters_for(url, 3)
    notes = notes_at(url)
    requests = Requests(notes, clock)
    with Bridge(url) as bridge:
        runner = RequestRunner(bridge.dead_letters, handlers=lambda: (), worker=lambda: "console", clock=clock)
        first = requests.put("discard", "anna", keys=[keys[0], "nonsense", "ob1_" + "0" * 32])
        runner.look(notes)
        assert ended(requests, first).outcomes == {"discarded": 1, "unreadable": 1, "gone": 1}
        second = requests.put("discard", "anna", reason="customer")
        until(lambda: runner.look(notes) or requests.get(second.id).has_ended)
        assert requests.get(second.id).outcomes == {"discarded": 2}
        runner.close()
        assert [*bridge.dead_letters.list()] == []
        assert [entry.status for entry in bridge.ledger.get(bytes.fromhex(keys[0][4:]))] == [Status.DISCARD]


def test_a_cancelled_request_stops_after_the_letter_at_hand(tmp_path, notes_at, clock, often):
    """What was done stays done, the rest stay letters, and a worker may take the next request."""
    url, did, gate, begun = f"sqlite:///{tmp_path}/once.db", [], threading.Event(), threading.Event()
    letters_for(url, 50)
    requests = Requests(notes_at(url), clock)
    request = requests.put("redrive", "anna", all=True)

    def handle(event):
        begun.set()
        gate.wait(30)
        did.append(event.key)

    bridge = Bridge(url)
    bridge.register("*", handle, name="crm")
    bridge.start_journal("consume")
    with bridge:
        assert begun.wait(30)
        assert requests.cancel(request.id).state == "cancelled"
        until(bridge._journal._runner._at_hand.stop.is_set)
        gate.set()
        until(bridge._journal._runner._at_hand.ended.is_set)
        assert len(did) == 1
        assert len([*bridge.dead_letters.list()]) == 49
        assert requests.cancel(request.id) is None
        again = requests.put("redrive", "anna", all=True)
        assert ended(requests, again).outcomes == {"processed": 49}


def test_a_worker_that_closes_gives_its_request_back(tmp_path, notes_at, clock, often):
    """Closing waits for the letter at hand, not for the request; the next worker goes on at once."""
    url, did, gate, begun = f"sqlite:///{tmp_path}/once.db", [], threading.Event(), threading.Event()
    letters_for(url, 20)
    requests = Requests(notes_at(url), clock)
    request = requests.put("redrive", "anna", all=True)

    def handle(event):
        did.append(event.key)
        begun.set()
        gate.wait(30)

    bridge = Bridge(url)
    bridge.register("*", handle, name="crm")
    bridge.start_journal("consume")
    bridge.open()
    assert begun.wait(30)
    closing = threading.Thread(target=bridge.close)
    closing.start()
    until(lambda: bridge._journal._runner._at_hand is None)
    gate.set()
    closing.join(30)
    assert len(did) == 1
    given_back = requests.get(request.id)
    assert (given_back.state, given_back.tried) == ("waiting", 1)
    with worker(url, did):
        assert ended(requests, request).outcomes == {"processed": 20}
    assert len(did) == 20


def test_a_request_for_a_paused_handler_waits_until_it_is_resumed(tmp_path, notes_at, clock, often):
    """Letters are no more tried than events; those of any handler that is paused are left as they are."""
    url, did = f"sqlite:///{tmp_path}/once.db", []
    letters_for(url, 2)
    notes = notes_at(url)
    requests, pauses = Requests(notes, clock), Pauses(notes, clock)
    pauses.pause("crm", "anna")
    request = requests.put("redrive", "anna", handler="crm")
    with worker(url, did, "crm", "warehouse"):
        everything = requests.put("redrive", "anna", all=True)
        assert ended(requests, everything).outcomes == {"paused": 2}
        assert requests.get(request.id).state == "waiting"
        pauses.resume("crm", "anna")
        assert ended(requests, request).outcomes == {"processed": 2}


def test_a_forked_child_leaves_the_request_to_its_parent(tmp_path, notes_at, clock, often):
    """A child of a worker that works one off neither goes on with it nor ends it; closing it waits for nothing."""
    url, did, gate, begun = f"sqlite:///{tmp_path}/once.db", [], threading.Event(), threading.Event()
    letters_for(url, 5)
    requests = Requests(notes_at(url), clock)
    request = requests.put("redrive", "anna", all=True)

    def handle(event):
        did.append(event.key)
        begun.set()
        gate.wait(30)

    bridge = Bridge(url)
    bridge.register("*", handle, name="crm")
    bridge.start_journal("consume")
    with bridge:
        assert begun.wait(30)

        def in_child():
            gate.set()
            result = bridge.process(delivery("of the child"))
            bridge.close()
            return result.verdict

        assert Child(in_child).result() == "fresh"
        assert requests.get(request.id).state == "running"
        gate.set()
        assert ended(requests, request).outcomes == {"processed": 5}
    assert len(did) == 5


# --- crashes -------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, threading
from oncebridge import Bridge
from oncebridge.journal import writer
from oncebridge.settings import Settings

writer.EVERY_SECONDS = 0.01
url, effects = sys.argv[1:]
bridge = Bridge(url, settings=Settings(lease_seconds=1))

@bridge.on("*", name="crm")
def handle(event):
    file = os.open(effects, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(file, (event.body["eventId"] + "\\n").encode())
    os.close(file)

bridge.start_journal("consume")
bridge.open()
threading.Event().wait()
"""


def test_after_a_kill_another_worker_goes_on(tmp_path, notes_at, clock, often, monkeypatch):
    """A worker is killed in the midst of a request: another one ends it, and only letters at hand are repeated."""
    monkeypatch.setattr(module, "LEASE_MS", 500)
    url, effects = f"sqlite:///{tmp_path}/once.db", tmp_path / "effects"
    letters_for(url, 400)
    requests = Requests(notes_at(url), clock)
    request = requests.put("redrive", "anna", all=True)
    source = str(Path(request_runner.__file__).parents[1])
    program = PROGRAM.replace("writer.EVERY", "import oncebridge.journal.requests as r; r.LEASE_MS = 500\nwriter.EVERY")
    kills = 3  # each takes a letter with it, until its lease of a second ends
    for kill in range(kills):
        had = len(effects.read_text().split()) if effects.exists() else 0
        child = subprocess.Popen(
            [sys.executable, "-c", program, url, str(effects)], env={**os.environ, "PYTHONPATH": source}
        )
        until(lambda had=had: effects.exists() and len(effects.read_text().split()) >= had + 20, f"kill {kill}")
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert not requests.get(request.id).has_ended
    did = []
    with worker(url, did):
        ended(requests, request)
    got = Counter(effects.read_text().split()) + Counter(name for _, name in did)
    assert set(got) == {f"crm-{at}" for at in range(400)}
    assert sum(got.values()) <= 400 + kills
