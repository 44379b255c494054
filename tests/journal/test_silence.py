"""A topic that usually comes at this hour, and does not, is noticed; rare ones and the edges of a day are not."""

import json

import pytest

from journal.waiting import until
from oncebridge import Bridge
from oncebridge.cli.top import lines
from oncebridge.errors import LedgerUnavailable
from oncebridge.journal.overview import overview
from oncebridge.journal.reader import JournalReader
from oncebridge.journal.records import Count, hour_page, minute_page
from oncebridge.journal.silence import FLOOR_US, SilenceWatch, allowed_us, usual_hourly
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.memory_notes import MemoryNotes
from oncebridge.testing.clock import ManualClock
from payloads import queue_conversation, raw

HOUR, DAY = 3600, 86_400
MONDAY_US = 1_772_438_400_000_000  # 2026-03-02T08:00:00Z
BUSY, RARE = "v2.users.{id}.presence", "v2.detail.events.conversation.{id}.voicemail.start"
KEEP_US = 60 * DAY * 1_000_000


class Place:
    """A worker that looks every minute, at the counts of two weeks in which everything was as usual."""

    def __init__(self, opens=6, closes=18):
        """Begin at ten on a Monday."""
        self.clock = ManualClock(MONDAY_US + 2 * HOUR * 1_000_000)
        self.ledger = MemoryLedger(clock=self.clock)
        self.ledger.open(None)
        self.notes = self.ledger.notes
        self.said = []
        self.watch = SilenceWatch(self.clock, self.said.append)
        for hours_back in range(1, 15 * 24):
            at_us = self.clock.now_us() - hours_back * HOUR * 1_000_000
            hour_of_day, day = at_us // 1_000_000 // HOUR % 24, (at_us // 1_000_000 // DAY + 3) % 7
            if opens <= hour_of_day < closes and day < 5:
                self.count(hour_page(at_us), BUSY, 300)
                self.count(hour_page(at_us), RARE, 3)

    def count(self, page, topic, number):
        """Count deliveries as workers do."""
        self.notes.add_counts({page: {Count(topic, None, "processed").name: number}}, keep_us=KEEP_US)

    def pass_by(self, minutes, *topics):
        """Let minutes pass, in each of which an event of these topics comes."""
        for _ in range(minutes):
            for topic in topics:
                self.count(minute_page(self.clock.now_us()), topic, 1)
            self.clock.advance(60)
            self.watch.look(self.notes)


@pytest.fixture
def place():
    """Return a worker at its place."""
    return Place()


def test_silence_is_noticed_once_and_so_is_its_end(place):
    """A topic that usually comes and does not is warned of once, counts as silent, and is said to come again."""
    place.pass_by(30, BUSY, RARE)
    assert place.said == []
    place.pass_by(15)
    assert place.said == []
    place.pass_by(40)
    assert len(place.said) == 1
    assert BUSY in place.said[0]
    assert "300 events an hour" in place.said[0]
    assert place.watch.silent == {BUSY}
    place.pass_by(2, BUSY)
    assert place.said[1:] == [f"silence is over: {BUSY} comes again"]
    assert place.watch.silent == frozenset()


def test_rare_topics_are_not_watched(place):
    """A topic with a few events an hour may be silent for hours."""
    place.pass_by(240, BUSY)
    assert place.said == []


def test_any_worker_will_do(place):
    """What another worker has counted is no silence here."""
    place.pass_by(10, BUSY)
    for _ in range(6):
        place.pass_by(9)
        place.count(minute_page(place.clock.now_us()), BUSY, 2)
    assert place.said == []


def test_the_end_of_a_day_is_no_silence(place):
    """When the last hour of the day comes, and after it, nothing is expected; the next morning begins anew."""
    place.pass_by(7 * 60, BUSY)
    place.pass_by(14 * 60)
    assert place.said == []
    place.pass_by(3 * 60)
    assert len(place.said) == 1


def test_weekends_are_like_weekends(place):
    """On a Saturday nothing is expected that comes from Monday to Friday."""
    place.clock.advance(5 * DAY)
    place.pass_by(180)
    assert place.said == []


def test_nothing_is_known_of_a_time_without_looks(place):
    """After the ledger was out of reach for long, silence counts from then on."""
    place.pass_by(10, BUSY)
    place.clock.advance(3000)
    place.pass_by(10)
    assert place.said == []
    place.pass_by(10)
    assert len(place.said) == 1


def test_too_little_is_known_of_a_new_installation(place):
    """Without some days like this one nothing is expected."""
    place.notes = MemoryNotes(place.clock)
    place.pass_by(120)
    assert place.said == []


def test_one_quiet_day_does_not_change_what_is_usual():
    """Of a topic that came on most days the lower quarter counts, so that a holiday does not switch it off."""
    assert usual_hourly([{"a": 100}, {"a": 120}, {}, {"a": 110}, {"a": 90}, {"a": 95}, {"a": 99}, {"a": 97}]) == {
        "a": 95
    }
    assert usual_hourly([{"a": 100}, {}, {}, {}]) == {"a": 0}
    assert allowed_us(3600) == FLOOR_US
    assert allowed_us(12) == 100 * 60 * 1_000_000


def test_looks_are_rare(place):
    """The journal looks every few seconds; the counts are read once a minute."""
    reads = []
    read = place.notes.read_counts
    place.notes.read_counts = lambda pages: reads.append(len(pages)) or read(pages)
    for _ in range(120):
        place.clock.advance(5)
        place.watch.look(place.notes)
    assert len(reads) <= 3 + 11


class Flaky:
    """Notes that cannot be read for a while."""

    def __init__(self, notes):
        self.notes, self.is_away = notes, False

    def read_counts(self, pages):
        """Read them, or fail."""
        if self.is_away:
            raise LedgerUnavailable("away")
        return self.notes.read_counts(pages)


def test_what_could_not_be_read_is_read_later(place):
    """A look that failed says nothing of its time: what came then is found by the next one."""
    place.pass_by(10, BUSY)
    notes, place.notes = place.notes, Flaky(place.notes)
    place.notes.is_away = True
    for _ in range(4):
        notes.add_counts({minute_page(place.clock.now_us()): {Count(BUSY, None, "processed").name: 1}}, keep_us=KEEP_US)
        place.clock.advance(60)
        with pytest.raises(LedgerUnavailable):
            place.watch.look(place.notes)
    place.notes.is_away = False
    place.clock.advance(12 * 60 - 5 * 60)
    place.watch.look(notes)
    assert place.said == []


class Context:
    """What Lambda says of an invocation."""

    function_name = "bridge"
    aws_request_id = "one"

    def get_remaining_time_in_millis(self):
        """Say that there is much."""
        return 60_000


def test_a_function_notices_that_one_topic_is_silent_while_others_come(place, capsys, caplog):
    """A Lambda function that goes on being invoked names the silent topic in its log and metrics, once a minute."""
    bridge = Bridge(place.ledger, clock=place.clock)
    bridge.register("*", lambda event: None)
    written = []
    for minute in range(20):
        for second in range(3):
            body = raw(queue_conversation(event_id=f"{minute}:{second}", conversation="c")).decode()
            bridge.lambda_handler({"Records": [{"eventSource": "aws:sqs", "messageId": "m", "body": body}]}, Context())
            until(lambda: bridge._journal._silence._looked_us == place.clock.now_us(), "the look")
        written.append(capsys.readouterr().out)
        place.clock.advance(60)
    seen = overview(JournalReader(place.notes, place.clock), place.clock.now_us() // 1000)
    assert seen.overdue == [BUSY]
    assert any(BUSY in line for line in lines(seen) if line.startswith("Silent"))
    bridge.close()
    documents = [[one for one in map(json.loads, text.splitlines()) if "SilentTopics" in one] for text in written]
    assert [len(found) for found in documents] == [0] * 16 + [1] * 4
    (directive,) = documents[-1][0]["_aws"]["CloudWatchMetrics"]
    assert (documents[-1][0]["Topic"], documents[-1][0]["SilentTopics"]) == (BUSY, 1)
    assert directive["Dimensions"] == [["Function"], ["Function", "Topic"]]
    assert sum(f"silence: no {BUSY}" in record.getMessage() for record in caplog.records) == 1
