"""Claims of clients are in logs, metrics and books like those of the service's own handlers."""

import logging

import pytest

from oncebridge.retry import RetryPolicy
from oncebridge.sources import remote_claims as lending
from oncebridge.sources.remote_claims import OTHER_NAMES
from oncebridge.telemetry import logger
from oncebridge.telemetry.counting import Counts, Topics
from payloads import ACW, TIME_MS, envelope, presence
from service.clients import BRIEF_S

EVENT = envelope(ACW)


@pytest.fixture
def moves():
    """Collect moves."""
    return []


@pytest.fixture
def desk(place, moves):
    """Return a client whose worker's moves are collected."""
    found = place.desk(retry=RetryPolicy(attempts=2))
    found.bridge.telemetry.add(moves.append)
    return found


def told(moves):
    """Return the moves, in short."""
    return [(move.move, str(move.verdict), move.outcome, move.handler, move.attempt) for move in moves]


def test_each_move_is_told_as_ever(place, desk, moves):
    """Claimed, settled and lost, each delivery once in its column; the time is what the client took."""
    first = desk.claim(EVENT, handler="desktop", lease_seconds=BRIEF_S)
    place.clock.advance(1.5)
    assert desk.settle(first, "retry", EVENT) == "retry"
    second = desk.claim(EVENT, handler="desktop", lease_seconds=BRIEF_S)
    place.clock.advance(1)
    buried = desk.claim(EVENT, handler="desktop")
    assert buried["outcome"] == "dead"
    assert desk.settle(second, "done") is None
    assert told(moves) == [
        ("claimed", "fresh", None, "desktop", 1),
        ("settled", "fresh", "retry", "desktop", 1),
        ("delivered", "fresh", "retry", "", 1),
        ("claimed", "fresh", None, "desktop", 2),
        ("claimed", "fresh", None, "desktop", 3),
        ("settled", "fresh", "dead", "desktop", 3),
        ("delivered", "fresh", "dead", "", 1),
        ("lost", "fresh", "retry", "desktop", 2),
    ]
    assert [move.duration_ms for move in moves if move.move == "settled"] == [1500, None]
    assert {move.topic for move in moves} == {ACW}


def test_metrics_and_books_agree(desk, moves):
    """The deliveries that are counted are those of the books, once their claims have ended."""
    counts = Counts(Topics())
    desk.bridge.telemetry.add(counts)
    for number in range(3):
        event = presence("BUSY", modified_ms=TIME_MS + 10_000 * number)
        claimed = desk.claim(event)
        desk.settle(claimed, "done")
        desk.settle(claimed, "done")
        desk.claim(event)
    delivered = counts.read().counts["deliveries"]
    columns = {}
    for labels, number in delivered.items():
        columns[labels[2]] = columns.get(labels[2], 0) + number
    books = desk.bridge.books.as_dict()
    assert columns == {"processed": 3, "redelivery": 3} == {name: books[name] for name in columns}
    assert sum(counts.read().counts["settled"].values()) == 3


def test_names_from_outside_do_not_flood_the_metrics(desk, moves, monkeypatch):
    """The first of them are labels, the others are counted together; their claims stay apart."""
    monkeypatch.setattr(lending, "NAMES_MAX", 2)
    claims = [desk.claim(EVENT, handler=f"name-{number}") for number in range(4)]
    assert [claimed["verdict"] for claimed in claims] == ["fresh"] * 4
    assert [move.handler for move in moves] == ["name-0", "name-1", OTHER_NAMES, OTHER_NAMES]


def test_nothing_of_a_client_or_an_event_is_logged(desk, caplog, monkeypatch):
    """Neither what the event says nor what the client says of it, nor its claim, nor its key for the call."""
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()
    event = envelope(ACW, {"note": "Jane Doe"})
    with caplog.at_level(logging.INFO, logger="oncebridge"):
        claimed = desk.claim(event, call="call of Jane Doe")
        desk.settle(claimed, "dead", event, detail="Jane Doe did not answer")
        desk.send("/claims", event="Jane Doe")
        desk.send("/claims", event=event, handler="Jane Doe")
    lines = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert lines.count("'move': 'settled'") >= 2
    assert "Doe" not in lines
    assert claimed["claim"] not in lines


def test_a_claim_that_is_never_settled_stays_retrying(desk):
    """It was received, and is in no other column."""
    desk.claim(EVENT)
    assert desk.claim(EVENT)["verdict"] == "busy"
    books = desk.bridge.books.as_dict()
    assert (books["received"], books["retrying"], books["balanced"]) == (2, 2, True)


def test_only_the_last_ends_are_remembered(desk, monkeypatch):
    """The memory of settled claims is bounded, and a claim that is settled twice at once is counted once."""
    monkeypatch.setattr(lending, "REMEMBERED_MAX", 3)
    for number in range(6):
        event = envelope(ACW, {"eventTime": TIME_MS + number})
        claimed = desk.claim(event)
        assert [desk.settle(claimed, "done") for _ in range(2)] == ["done", "done"]
    assert desk.bridge.books.as_dict()["processed"] == 6


def test_a_claim_from_before_a_restart_is_in_the_books_of_its_end(place):
    """The run that lent it has it as retrying; the run that it comes back to has it as a delivery of its own."""
    before = place.desk()
    claims = [before.claim(envelope(ACW, {"eventTime": TIME_MS + number})) for number in range(2)]
    place.clock.advance(5)
    after = place.desk()
    assert [after.settle(claims[0], "done") for _ in range(2)] == ["done", "done"]
    assert after.settle(claims[1], "release") == "release"
    books = after.bridge.books.as_dict()
    assert [books[name] for name in ("received", "processed", "retrying", "balanced")] == [2, 1, 1, True]
    assert before.bridge.books.as_dict()["retrying"] == 2
