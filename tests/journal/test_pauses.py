"""Pauses: events of a handler wait untried, nothing is lost or doubled, and no delivery waits for a slow ledger."""

import threading
from collections import Counter

import pytest

from children import Child
from journal.waiting import until
from oncebridge import Bridge, NotAcknowledged
from oncebridge.claim import Outcome
from oncebridge.errors import LedgerUnavailable
from oncebridge.identity import key_bytes
from oncebridge.journal import writer
from oncebridge.journal.pauses import Pauses
from oncebridge.journal.reader import JournalReader
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings import Settings
from oncebridge.testing import ManualClock
from payloads import presence, queue_conversation, raw


def delivery(name):
    """Make one delivery of an event of this name."""
    return raw(queue_conversation(event_id=name, conversation=name))


def working(url, did, name="crm", *, way_in="consume", settings=None):
    """Make a worker with a journal that remembers what its handler got."""
    bridge = Bridge(url, settings=settings)
    bridge.register("*", lambda event: did.append(event.body["eventId"]), name=name)
    bridge.start_journal(way_in)
    return bridge


# --- the notes -----------------------------------------------------------------------------------------


def test_a_pause_stands_until_it_is_resumed(url, notes_at, clock):
    """A second pause changes nothing, names may be empty or anything, and resuming says whether there was one."""
    pauses = Pauses(notes_at(url), clock)
    assert pauses.read() == {}
    names = ["", "crm", "a\x00b", "ü" * 3000]
    made = {name: pauses.pause(name, "anna@laptop") for name in names}
    assert pauses.pause("crm", "bert") == made["crm"]
    assert {name: pause.who for name, pause in pauses.read().items()} == dict.fromkeys(names, "anna@laptop")
    assert pauses.resume("crm", "bert")
    assert not pauses.resume("crm", "bert")
    assert sorted(pauses.read()) == sorted(["", "a\x00b", "ü" * 3000])


def test_a_pause_says_since_when_and_by_whom():
    """Of today only the time is named, of other days the date too; who is printable and short."""
    clock = ManualClock()
    ledger = MemoryLedger(clock=clock)
    pauses = Pauses(ledger.notes, clock)
    pause = pauses.pause("crm", "anna\x1b[2J@laptop" + "x" * 500)
    now_ms = clock.now_us() // 1000
    assert pause.reason(now_ms).startswith("handler crm is paused since 00:00 UTC by anna [2J@laptop")
    assert len(pause.who) == 100
    assert "since 2026-01-01 00:00 UTC by" in pause.reason(now_ms + 86_400_000)
    assert pauses.pause("", "b").reason(now_ms) == "the handler without a name is paused since 00:00 UTC by b"


def test_two_who_pause_at_once_make_one_pause(url, notes_at, clock):
    """Of two people at the same moment one has paused it, and both are told the same."""
    both = [Pauses(notes_at(url), clock) for _ in range(2)]
    found = []
    threads = [
        threading.Thread(target=lambda one=one, who=who: found.append(one.pause("crm", who)))
        for who, one in enumerate(both)
        for who in (f"person {who}",)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == both[0].read()["crm"]


# --- workers -------------------------------------------------------------------------------------------


def test_a_worker_that_starts_knows_the_pauses(url, notes_at, clock):
    """Not even the first event is tried: it is released with the reason, which is no attempt, and not acknowledged."""
    Pauses(notes_at(url), clock).pause("crm", "anna@laptop")
    did = []
    with working(url, did) as bridge:
        result = bridge.process(delivery("a"))
        assert (result.verdict, result.outcome, result.acknowledged) == ("fresh", Outcome.RELEASE, False)
        assert result.reason.startswith("handler crm is paused since ")
        assert result.reason.endswith(" UTC by anna@laptop; this was no attempt")
        assert result.retry_in_us == 5_000_000
        assert [entry.attempts for entry in bridge.ledger.get(key_bytes(result.key))] in ([0], [])
        assert bridge.books.as_dict()["retrying"] == 1
    assert did == []


class Source:
    """Events that are handed out until each is acknowledged."""

    def __init__(self, number):
        """Have events by number."""
        self._left = [f"{at}" for at in range(number)]
        self._lock = threading.Lock()
        self.over = threading.Event()

    def work(self, bridge):
        """Give a worker batches until all is over; what it hands back comes again."""
        while not self.over.is_set():
            with self._lock:
                batch = [self._left.pop(0) for _ in range(min(7, len(self._left)))]
            results = bridge.process_many([delivery(name) for name in batch])
            back = [name for name, result in zip(batch, results, strict=True) if not result.acknowledged]
            with self._lock:
                self._left += back


def test_pause_and_resume_under_traffic_lose_and_double_nothing(url, notes_at, clock, often):
    """While workers are paused and resumed, each event is done once and at its first attempt."""
    pauses, did, source = Pauses(notes_at(url), clock), [], Source(300)
    bridges = [Bridge(url) for _ in range(2)]
    for bridge in bridges:
        bridge.register("*", lambda event: did.append((event.body["eventId"], event.attempt)), name="crm")
        bridge.start_journal("consume")
    threads = [threading.Thread(target=source.work, args=(bridge,)) for bridge in bridges]
    pauses.pause("crm", "anna")
    for thread in threads:
        thread.start()
    until(lambda: all(bridge.books.as_dict()["received"] > 20 for bridge in bridges))
    assert did == []
    for _ in range(3):
        before = len(did)
        pauses.resume("crm", "anna")
        until(lambda before=before: len(did) > before or len(did) >= 300)
        pauses.pause("crm", "anna")
    pauses.resume("crm", "anna")
    until(lambda: len(did) >= 300)
    source.over.set()
    for thread in threads:
        thread.join()
    for bridge in bridges:
        bridge.close()
    assert Counter(did) == Counter({(f"{number}", 1): 1 for number in range(300)})


def test_duplicates_of_done_events_are_acknowledged_while_paused(tmp_path, notes_at, clock):
    """Only fresh events wait; those that are done, and states that are stale, end as ever."""
    url, did = f"sqlite:///{tmp_path}/once.db", []
    with Bridge(url) as bridge:
        bridge.register("*", did.append, name="crm")
        new, old = (raw(presence(state, modified_ms=ms)) for state, ms in (("BUSY", 2_000_000), ("AWAY", 1_000_000)))
        bridge.process_many([delivery("a"), new])
    Pauses(notes_at(url), clock).pause("crm", "anna")
    with Bridge(url) as bridge:
        bridge.register("*", did.append, name="crm")
        bridge.start_journal("consume")
        results = bridge.process_many([delivery("a"), new, old, delivery("b")])
    assert [result.verdict for result in results] == ["redelivery", "redelivery", "stale", "fresh"]
    assert [result.acknowledged for result in results] == [True, True, True, False]
    assert len(did) == 2


def test_other_handlers_go_on(tmp_path, notes_at, clock):
    """Of two handlers of an event the one that is not paused gets it, once; the delivery waits for the other."""
    url, did = f"sqlite:///{tmp_path}/once.db", Counter()
    with working(url, []):
        pass
    pauses = Pauses(notes_at(url), clock)
    pauses.pause("", "anna")
    bridge = Bridge(url)
    bridge.register("*", lambda event: did.update(["unnamed"]))
    bridge.register("*", lambda event: did.update(["crm"]), name="crm")
    bridge.start_journal("consume")
    with bridge:
        assert not bridge.process(delivery("a")).acknowledged
        assert not bridge.process(delivery("a")).acknowledged
        assert did == {"crm": 1}
    pauses.resume("", "anna")
    with bridge:
        assert bridge.process(delivery("a")).acknowledged
    assert did == {"crm": 1, "unnamed": 1}


def test_workers_say_which_pauses_they_know(url, notes_at, clock, often):
    """A pause has arrived at a worker when the journal says that it knows it."""
    notes = notes_at(url)
    reader, pauses = JournalReader(notes, clock), Pauses(notes, clock)
    with working(url, []):
        (worker,) = until(reader.workers)
        assert (worker.paused, worker.takes_requests) == ((), True)
        pauses.pause("crm", "anna")
        until(lambda: reader.workers()[0].paused == ("crm",))
        pauses.resume("crm", "anna")
        until(lambda: reader.workers()[0].paused == ())


def test_without_a_journal_no_pause_is_heeded(tmp_path, notes_at, clock):
    """With `journal = false` a worker does not know of pauses, and processes."""
    url, did = f"sqlite:///{tmp_path}/once.db", []
    with working(url, []):
        pass
    Pauses(notes_at(url), clock).pause("crm", "anna")
    with working(url, did, settings=Settings(journal=False)) as bridge:
        assert bridge.process(delivery("a")).acknowledged
    assert did == ["a"]


def test_a_shadow_is_not_paused(tmp_path, notes_at, clock):
    """A shadow calls no handler, so a pause changes nothing that it counts."""
    url = f"sqlite:///{tmp_path}/once.db"
    with working(url, []):
        pass
    Pauses(notes_at(url), clock).pause("crm", "anna")
    with working(url, [], settings=Settings(shadow=True)) as bridge:
        assert bridge.process(delivery("a")).acknowledged


def test_a_forked_child_knows_the_pauses(tmp_path, notes_at, clock):
    """A child looks for itself before its first event, and goes on with what its parent knew until then."""
    url = f"sqlite:///{tmp_path}/once.db"
    with working(url, []) as bridge:
        assert bridge.process(delivery("a")).acknowledged
        Pauses(notes_at(url), clock).pause("crm", "anna")

        def in_child():
            outcome = bridge.process(delivery("b")).outcome
            bridge.close()
            return outcome

        assert Child(in_child).result() == "release"


# --- a ledger that hangs, or is out of reach ------------------------------------------------------------


class Hangs(MemoryLedger):
    """A ledger whose notes never answer, once they are stuck."""

    def __init__(self):
        """Answer at first."""
        super().__init__()
        self.right, self.notes = self.notes, self
        self.stuck, self.asked, self.let_go = threading.Event(), threading.Event(), threading.Event()

    def _answer(self):
        if self.stuck.is_set():
            self.asked.set()
            self.let_go.wait()
            raise LedgerUnavailable("it hung")
        return self.right

    def add_counts(self, *given, **named):
        """Add counts."""
        return self._answer().add_counts(*given, **named)

    def write_notes(self, *given, **named):
        """Write notes."""
        return self._answer().write_notes(*given, **named)

    def read_notes(self, *given, **named):
        """Read notes."""
        return self._answer().read_notes(*given, **named)


def test_a_ledger_that_hangs_at_the_start_delays_the_first_event_for_a_moment_only(monkeypatch):
    """The first look is not waited for longer than its moment: when in doubt, process."""
    monkeypatch.setattr(writer, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(writer, "END_SECONDS", 0.05)
    ledger, did = Hangs(), []
    ledger.stuck.set()
    with working(ledger, did) as bridge:
        assert bridge.process(delivery("a")).acknowledged
        assert ledger.asked.is_set()
    ledger.let_go.set()
    assert did == ["a"]


@pytest.mark.parametrize("is_paused", [True, False])
def test_while_the_ledger_hangs_the_last_known_state_stays(monkeypatch, often, clock, is_paused):
    """Neither does a pause end by itself, nor does one begin, and deliveries do not wait."""
    monkeypatch.setattr(writer, "END_SECONDS", 0.05)
    ledger, did = Hangs(), []
    if is_paused:
        Pauses(ledger.right, clock).pause("crm", "anna")
    with working(ledger, did) as bridge:
        bridge.open()
        ledger.stuck.set()
        assert ledger.asked.wait(10)
        results = [bridge.process(delivery(f"{number}")) for number in range(50)]
    ledger.let_go.set()
    assert {result.acknowledged for result in results} == {not is_paused}
    assert len(did) == (0 if is_paused else 50)


# --- ways in -------------------------------------------------------------------------------------------


class Context:
    """What Lambda tells a function."""

    function_name = "bridge"
    aws_request_id = "one"

    def get_remaining_time_in_millis(self):
        """Have a minute left."""
        return 60_000


def test_lambda_names_events_of_a_queue_in_its_reply(tmp_path, notes_at, clock):
    """Messages of a paused handler are failed items; once it is resumed, the next look finds it."""
    url, did = f"sqlite:///{tmp_path}/once.db", []
    with working(url, []):
        pass
    pauses = Pauses(notes_at(url), clock)
    pauses.pause("crm", "anna")
    bridge = Bridge(url)
    bridge.register("*", lambda event: did.append(event.body["eventId"]), name="crm")
    record = {"eventSource": "aws:sqs", "messageId": "m", "body": delivery("a").decode()}
    for _ in range(12):  # more often than a failing event is tried
        assert bridge.lambda_handler({"Records": [record]}, Context()) == {
            "batchItemFailures": [{"itemIdentifier": "m"}]
        }
    pauses.resume("crm", "anna")
    bridge.close()
    assert bridge.lambda_handler({"Records": [record]}, Context()) == {"batchItemFailures": []}
    bridge.close()
    assert did == ["a"]
    (worker,) = [one for one in JournalReader(notes_at(url), clock).workers() if one.way_in == "lambda"]
    assert "maxReceiveCount" in worker.holds
    assert not worker.takes_requests


def test_a_function_that_slept_looks_before_its_next_invocation():
    """A pause of the time between two invocations is known before the second begins."""
    clock = ManualClock()
    ledger, did = MemoryLedger(clock=clock), []
    bridge = Bridge(ledger, clock=clock)
    bridge.register("*", lambda event: did.append(event.body["eventId"]), name="crm")
    record = {"eventSource": "aws:sqs", "messageId": "m", "body": delivery("a").decode()}
    assert bridge.lambda_handler({"Records": [record]}, Context()) == {"batchItemFailures": []}
    Pauses(ledger.notes, clock).pause("crm", "anna")
    clock.advance(600)
    later = {**record, "body": delivery("b").decode()}
    assert bridge.lambda_handler({"Records": [later]}, Context()) == {"batchItemFailures": [{"itemIdentifier": "m"}]}
    bridge.close()
    assert did == ["a"]


def test_a_direct_invocation_fails_and_at_its_last_try_becomes_a_dead_letter(tmp_path, notes_at, clock):
    """Lambda drops an event after three tries: so that it is not lost, the third keeps it as a dead letter."""
    url = f"sqlite:///{tmp_path}/once.db"
    with working(url, []):
        pass
    Pauses(notes_at(url), clock).pause("crm", "anna")
    bridge = working(url, [], way_in="lambda")
    event = queue_conversation(event_id="a", conversation="a")
    for _ in range(2):
        with pytest.raises(NotAcknowledged, match="handler crm is paused since"):
            bridge.lambda_handler(event, Context())
    assert bridge.lambda_handler(event, Context())["dead"] == 1
    (letter,) = bridge.dead_letters.list()
    assert letter.reason.startswith("handler crm is paused since")
    bridge.close()
