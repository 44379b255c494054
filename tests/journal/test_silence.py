"""A topic that usually comes at this hour, and does not, is noticed; rare ones and the edges of a day are not."""

import pytest

from oncebridge.journal.records import Count, hour_page, minute_page
from oncebridge.journal.silence import FLOOR_US, SilenceWatch, allowed_us, usual_hourly
from oncebridge.ledgers.memory_notes import MemoryNotes
from oncebridge.testing.clock import ManualClock

HOUR, DAY = 3600, 86_400
MONDAY_US = 1_772_438_400_000_000  # 2026-03-02T08:00:00Z
BUSY, RARE = "v2.users.{id}.presence", "v2.detail.events.conversation.{id}.voicemail.start"
KEEP_US = 60 * DAY * 1_000_000


class Place:
    """A worker that looks every minute, at the counts of two weeks in which everything was as usual."""

    def __init__(self, opens=6, closes=18):
        """Begin at ten on a Monday."""
        self.clock = ManualClock(MONDAY_US + 2 * HOUR * 1_000_000)
        self.notes = MemoryNotes(self.clock)
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
