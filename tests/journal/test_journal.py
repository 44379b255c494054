"""The journal: what all workers did, in the ledger; never in the way of a delivery."""

import importlib.metadata
import secrets
import threading
from collections import Counter
from contextlib import closing
from importlib.metadata import PackageNotFoundError

import psycopg
import pytest

from children import Child
from journal.waiting import until
from ledgers.on_postgres import new_schema, schema_of
from oncebridge import Bridge
from oncebridge.claim import Outcome
from oncebridge.clock import SystemClock
from oncebridge.errors import LedgerRefused, LedgerUnavailable, PermanentError
from oncebridge.journal import writer
from oncebridge.journal.reader import JournalReader
from oncebridge.journal.records import WORKER_KEPT_US, WORKERS, Count, WorkerSeen
from oncebridge.journal.worker import _version
from oncebridge.ledgers import ledger_from_url
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings import Settings
from oncebridge.telemetry import Telemetry
from payloads import CANARIES, TIME_MS, personal, queue_conversation, raw


def delivery(name):
    """Make one delivery of an event of this name, which has a time."""
    return raw(queue_conversation(event_id=name, conversation=name))


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request, tmp_path):
    """Return the URL of an empty ledger."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/once.db"
    elif request.param == "redis":
        yield f"{request.getfixturevalue('valkey').url}?name=journal-{secrets.token_hex(4)}"
    else:
        with new_schema(request.getfixturevalue("postgres")) as made:
            yield made


@pytest.fixture
def journal_at():
    """Return a function that reads the journal of a ledger, by a handle of its own."""
    opened = []

    def reading(url):
        opened.append(ledger_from_url(url))
        opened[-1].open(None)
        return JournalReader(opened[-1].notes, SystemClock())

    yield reading
    for ledger in opened:
        ledger.close()


def books_in(reader):
    """Add up the columns of the last hour."""
    return dict(sum((minute.columns() for minute in reader.minutes()), start=Counter()))


def worked(url, names, *, way_in="consume", fails=()):
    """Let a worker process events, with a journal, and end."""

    def handle(event):
        if event.body["eventId"] in fails:
            raise PermanentError("no such customer")

    with Bridge(url) as bridge:
        bridge.register("*", handle, name="crm")
        bridge.start_journal(way_in)
        results = bridge.process_many([delivery(name) for name in names])
        bridge.process_many([delivery(name) for name in names])
    return bridge, results


def test_the_journal_has_the_books_of_all_workers(url, journal_at):
    """What several workers counted adds up to the sum of their books, and outlives them."""
    books = Counter()
    for worker in range(3):
        bridge, _ = worked(url, [f"{worker}-{number}" for number in range(20)], fails=(f"{worker}-3",))
        books.update({name: number for name, number in bridge.books.as_dict().items() if number and name != "balanced"})
    received = books.pop("received")
    reader = journal_at(url)
    assert books_in(reader) == books
    assert sum(books.values()) == received == 120
    assert books_in_hours(reader) == books


def test_a_worker_is_known_from_its_beginning(url, journal_at):
    """Before any delivery, and before the first few seconds are over, pages know it and its handlers."""
    with Bridge(url) as bridge:
        bridge.register("*", lambda _: None, name="crm")
        bridge.start_journal("consume", holds="14 days in the queue")
        bridge.open()
        reader = journal_at(url)
        (worker,) = until(reader.workers, "the worker to be described")
        assert ([one.name for one in worker.handlers], worker.holds) == (["crm"], "14 days in the queue")
        assert reader.runs(worker)


def test_notes_that_are_locked_at_the_server_delay_no_delivery(postgres, journal_at, monkeypatch):
    """While nobody can read or write notes each delivery ends as ever; once one can, the journal goes on."""
    monkeypatch.setattr(writer, "EVERY_SECONDS", 0.05)
    with new_schema(postgres) as url, Bridge(url) as bridge:
        bridge.register("*", lambda _: None, name="crm")
        bridge.start_journal("consume")
        bridge.process(delivery("before"))
        reader = journal_at(url)
        until(lambda: books_in(reader).get("processed"), "the journal to be written")
        with closing(psycopg.connect(postgres.url)) as other:
            for table in ("count", "note"):
                other.execute(f"LOCK TABLE {schema_of(url)}.{table} IN ACCESS EXCLUSIVE MODE")
            # Whatever waited for notes would wait for the lock, which is held until all of these have ended.
            results = [bridge.process(delivery(f"meanwhile-{at}")) for at in range(200)]
        assert {result.outcome for result in results} == {Outcome.DONE}
        bridge.process(delivery("after"))
        until(lambda: books_in(reader)["processed"] > 1, "the journal to go on")
        assert bridge.books.as_dict()["processed"] == 202


def test_many_workers_hide_nobody(url, journal_at):
    """Workers that came and went by the hundred do not crowd out the one that runs, whatever its name."""
    with Bridge(url):
        reader = journal_at(url)
    now_ms = SystemClock().now_us() // 1000
    names = ["a-runs", *(f"b-{at:03}" for at in range(400))]
    seen = {
        name: WorkerSeen(
            name=name, way_in="consume", version="1", started_ms=now_ms, seen_ms=now_ms, ended=name != "a-runs"
        )
        for name in names
    }
    notes = {name: writer._encode(one) for name, one in seen.items()}
    reader.notes.write_notes(WORKERS, notes, keep_us=WORKER_KEPT_US)
    assert [one.name for one in reader.workers() if reader.runs(one)] == ["a-runs"]


def books_in_hours(reader):
    """Add up the columns of the last day."""
    return dict(sum((hour.columns() for hour in reader.hours()), start=Counter()))


def test_the_journal_knows_handlers_by_their_ends(url, journal_at):
    """For each handler and topic there is how often it did its work, failed and gave up, and how long it took."""
    worked(url, ["a", "b", "c"], fails=("c",))
    (counts,) = [minute.counts for minute in journal_at(url).minutes() if minute.counts][-1:]
    of_crm = {count.what: number for count, number in counts.items() if count.handler == "crm"}
    assert (of_crm["done"], of_crm["dead"]) == (2, 1)
    assert {count.topic for count in counts if count.what != "us"} == {"routing:queueConversation"}


def test_the_latest_deliveries_are_shown_with_their_reasons(url, journal_at):
    """Each of the latest has verdict, reason, key, ids and times; the newest come first, in pages."""
    _, results = worked(url, [f"event-{number}" for number in range(12)], fails=("event-5",))
    reader = journal_at(url)
    first, below = reader.deliveries(limit=5)
    rest, end = reader.deliveries(below=below, limit=200)
    seen = [*first, *rest]
    assert (len(first), end) == (5, None)
    assert [one.at_ms for one in seen] == sorted((one.at_ms for one in seen), reverse=True)
    assert Counter(one.verdict for one in seen)["redelivery"] == 12
    (dead,) = [one for one in seen if one.column == "dead"]
    assert (dead.key, dead.envelope_id, dead.reason) == (
        results[5].key,
        results[5].envelope_id,
        "no such customer",
    )
    assert (dead.time_ms, dead.lag_ms) == (TIME_MS, dead.at_ms - TIME_MS)
    copies, _ = reader.deliveries(wanted=lambda one: one.key == dead.key)
    assert [one.verdict for one in copies] == ["redelivery", "fresh"]


def test_workers_describe_themselves(url, journal_at):
    """A worker is listed with its way in, its handlers, what it promises them, and whether it has ended."""
    worked(url, ["a"])
    (worker,) = journal_at(url).workers()
    assert (worker.way_in, worker.ended) == ("consume", True)
    assert [(one.name, one.topics, one.promise) for one in worker.handlers] == [("crm", ("*",), "at least once")]
    assert not journal_at(url).runs(worker)


def test_a_worker_that_was_not_installed_describes_itself_too(monkeypatch):
    """A function's zip is often made without what installers write: nothing then says which version it is."""

    def find_nothing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", find_nothing)
    _version.cache_clear()
    try:
        ledger = MemoryLedger()
        worked(ledger, ["a"])
    finally:
        _version.cache_clear()
    assert [one.version for one in JournalReader(ledger.notes, SystemClock()).workers()] == ["unknown"]


def test_nothing_of_a_payload_is_in_the_journal(tmp_path, journal_at):
    """Names, numbers and transcripts are in no note, and no text of an error is that a handler did not give."""

    def handle(event):
        raise ValueError(f"wrong: {event.body}")

    path = tmp_path / "once.db"
    with Bridge(f"sqlite:///{path}") as bridge:
        bridge.register("*", handle)
        bridge.start_journal("consume")
        bridge.process_many([raw(tree) for tree in personal()])
    reader = journal_at(f"sqlite:///{path}")
    written = b"".join(note.value + note.name.encode() for note in reader.notes.read_notes("deliveries"))
    written += repr([minute.counts for minute in reader.minutes()]).encode()
    assert written
    assert [name for name, canary in CANARIES.items() if canary.encode() in written] == []


class Hangs(MemoryLedger):
    """A ledger whose notes never answer."""

    def __init__(self):
        """Have notes that hang until they are let go."""
        super().__init__()
        self.let_go = threading.Event()
        self.asked = threading.Event()
        self.notes = self

    def add_counts(self, counts, *, keep_us):
        """Wait for ever."""
        self.asked.set()
        self.let_go.wait()
        raise LedgerUnavailable("it hung")


def test_a_ledger_that_hangs_delays_no_delivery_and_no_end(monkeypatch):
    """While the journal hangs, batches go on as ever, and the worker ends within its few seconds."""
    monkeypatch.setattr(writer, "EVERY_SECONDS", 0.001)
    monkeypatch.setattr(writer, "END_SECONDS", 0.05)
    ledger = Hangs()
    with Bridge(ledger) as bridge:
        bridge.register("*", lambda event: None)
        bridge.start_journal("consume")
        for number in range(50):
            assert bridge.process(delivery(f"{number}")).verdict == "fresh"
            if not number:
                assert ledger.asked.wait(10)
    assert bridge.books.as_dict()["processed"] == 50
    ledger.let_go.set()


class Refuses(MemoryLedger):
    """A ledger whose notes are out of reach, for a time."""

    def __init__(self):
        """Begin out of reach."""
        super().__init__()
        self.right, self.notes = self.notes, self
        self.calls = 0

    def add_counts(self, counts, *, keep_us):
        """Be out of reach."""
        self.calls += 1
        raise LedgerUnavailable("out of reach")


def test_a_journal_that_cannot_be_written_is_said_once(monkeypatch):
    """Events are processed all the same, and one warning says that pages lack this worker."""
    monkeypatch.setattr(writer, "EVERY_SECONDS", 0.001)
    said = []
    telemetry = Telemetry()
    monkeypatch.setattr(telemetry, "warn", lambda words, **_: said.append(words))
    ledger = Refuses()
    with Bridge(ledger, telemetry=telemetry) as bridge:
        bridge.register("*", lambda event: None)
        bridge.start_journal("consume")
        number = 0
        while ledger.calls < 3:
            number += 1
            assert bridge.process(delivery(f"{number}")).verdict == "fresh"
    assert [words for words in said if "journal" in words] == said[:1]
    assert "events are not affected" in said[0]


def test_a_worker_that_may_not_read_pauses_says_so_once(monkeypatch):
    """It writes its journal and goes on; without a word people would wait for a pause that nobody heeds."""
    monkeypatch.setattr(writer, "EVERY_SECONDS", 0.001)
    said, tried = [], []
    telemetry = Telemetry()
    monkeypatch.setattr(telemetry, "warn", lambda words, **_: said.append(words))
    ledger = MemoryLedger()

    def refuse(*_, **__):
        tried.append(1)
        raise LedgerRefused("ledger is not allowed to Query")

    with Bridge(ledger, telemetry=telemetry) as bridge:
        bridge.register("*", lambda event: None)
        with monkeypatch.context() as patched:
            patched.setattr(ledger.notes, "read_notes", refuse)
            bridge.start_journal("consume")
            until(lambda: len(tried) > 5)
            assert bridge.process(delivery("a")).verdict == "fresh"
    assert said == ["pauses are not heeded, since this worker may not read them: ledger is not allowed to Query"]
    assert books_in(JournalReader(ledger.notes, SystemClock())) == {"processed": 1}


def test_the_journal_can_be_switched_off(tmp_path, journal_at):
    """With `journal = false` nothing is written."""
    url = f"sqlite:///{tmp_path}/once.db"
    with Bridge(url, settings=Settings(journal=False)) as bridge:
        bridge.register("*", lambda event: None)
        bridge.start_journal("consume")
        bridge.process(delivery("a"))
    assert journal_at(url).workers() == []
    assert books_in(journal_at(url)) == {}


def test_a_forked_child_is_another_worker(tmp_path, journal_at):
    """A child writes a journal of its own, and nothing that its parent counted twice."""
    url = f"sqlite:///{tmp_path}/once.db"
    with Bridge(url) as bridge:
        bridge.register("*", lambda event: None)
        bridge.start_journal("consume")
        bridge.process_many([delivery("a"), delivery("b")])

        def in_child():
            bridge.process_many([delivery("b"), delivery("c")])
            bridge.close()

        Child(in_child).result()
        bridge.process(delivery("d"))
    reader = journal_at(url)
    assert books_in(reader) == {"processed": 4, "redelivery": 1}
    assert len(reader.workers()) == 2


def test_names_of_counts_are_read_as_they_were_written():
    """A count is the same after it was a note, whatever a handler is called."""
    for count in (Count("v2.a", None, "processed"), Count("v2.a", "", "done"), Count("v2.a", "crm of ours", "us")):
        assert Count.from_name(count.name) == count


def test_an_invocation_writes_at_its_end_and_not_each_time(tmp_path, journal_at):
    """A function writes when its invocation ends, at most once in ten seconds."""

    class Context:
        function_name = "bridge"
        aws_request_id = "one"

        def get_remaining_time_in_millis(self):
            return 60_000

    url = f"sqlite:///{tmp_path}/once.db"
    bridge = Bridge(url)
    bridge.register("*", lambda event: None)
    record = {"eventSource": "aws:sqs", "messageId": "m", "body": delivery("a").decode()}
    bridge.lambda_handler({"Records": [record]}, Context())
    reader = journal_at(url)
    assert books_in(reader) == {"processed": 1}
    bridge.lambda_handler({"Records": [{**record, "body": delivery("b").decode()}]}, Context())
    assert books_in(reader) == {"processed": 1}
    bridge.close()
    assert books_in(reader) == {"processed": 2}
    assert [worker.way_in for worker in reader.workers()] == ["lambda"]
