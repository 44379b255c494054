"""A network strikes at replies: the program keeps its promises, a broken one is caught, and each reply is known."""

import pytest
from prove.nemesis import besiege
from prove.network import KINDS, by_request
from prove.outcome import Options
from prove.parts.networks import besieged, strike_replies
from prove.places import place_of, prepare
from prove.round import in_child
from prove.wires import Http, Postgres, Redis

from spoiled_programs import acknowledged_without_a_ledger

SEED = 20


@pytest.mark.slow
def test_no_promise_is_broken_by_replies_that_are_lost_late_or_cut(tmp_path):
    """Nothing is lost, and nothing is doubled that its sink can prevent."""
    outcome = strike_replies(Options("redis", SEED, 5, 60.0, tmp_path))
    assert outcome.broken == {}, "\n".join(outcome.history)
    assert all(outcome.figures["replies"][kind] >= 1 for kind in KINDS)
    assert sum(sum(kinds.values()) for kinds in outcome.figures["befell"].values()) == outcome.tried


def test_a_program_that_takes_events_without_an_answer_for_duplicates_is_caught(tmp_path):
    """Its events are lost, and the few strikes that do it are told."""
    with place_of("redis", tmp_path) as url:
        in_child(lambda: prepare(url))
        with besieged(url, Options("redis", SEED, 1, 60.0, tmp_path), acknowledged_without_a_ledger) as siege:
            *_, tally = besiege(siege, lambda now: now.faults > 200, seconds=60.0)
    assert tally.broken["lost"] > 0


# --- where replies end -----------------------------------------------------------------------------------


def message(kind, body=b""):
    """Return a message of Postgres' protocol."""
    return kind + (len(body) + 4).to_bytes(4, "big") + body


READY = message(b"Z", b"I")
DONE = message(b"C", b"SELECT 1\0")
STARTUP = (8).to_bytes(4, "big") + (196608).to_bytes(4, "big")
CALL = (
    message(b"P", b"\0SELECT granted FROM oncebridge.claim_batch($1)\0\0\0")
    + message(b"B", b"\0\0\0\0\0\0\0\0") + message(b"E", b"\0\0\0\0\0")
)  # fmt: skip
SIMPLE = message(b"Q", b"BEGIN\0")


@pytest.mark.parametrize(
    ("conversation", "requests", "replies"),
    [
        (Redis, [b"*1\r\n$4\r\nPING\r\n", b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n"],
         [("PING", b"+PONG\r\n"), ("GET", b"$2\r\n\r\n\r\n")]),
        (Redis, [b"*1\r\n$4\r\nINFO\r\n"], [("INFO", b"*2\r\n*-1\r\n*2\r\n:1\r\n$-1\r\n")]),
        (Postgres, [STARTUP, SIMPLE], [("startup", message(b"R", bytes(4)) + READY), ("BEGIN", DONE + READY)]),
        (Postgres, [STARTUP, CALL + message(b"S")],
         [("startup", READY), ("claim_batch", message(b"2") + DONE + READY)]),
        (Postgres, [STARTUP, CALL + message(b"H"), message(b"S")],
         [("startup", READY), ("claim_batch", message(b"2") + DONE), ("sync", READY)]),
        (Postgres, [STARTUP, CALL + message(b"H") + CALL + message(b"H") + message(b"S")],
         [("startup", READY), ("claim_batch", message(b"E", b"\0")), ("sync", READY)]),
        (Http, [b"POST / HTTP/1.1\r\nX-Amz-Target: DynamoDB_20120810.GetItem\r\nContent-Length: 2\r\n\r\n{}"] * 2,
         [("GetItem", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
          ("GetItem", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_each_reply_is_known_by_its_request_however_bytes_arrive(conversation, requests, replies, size):
    """Where a reply ends is told by the protocol, not by what the network delivers at once."""
    spoken = conversation()
    for request in requests:
        for at in range(0, len(request), size):
            spoken.request(request[at : at + size])
    data = b"".join(reply for _, reply in replies)
    found = [one for at in range(0, len(data), size) for one in spoken.replies(data[at : at + size])]
    assert found == replies


def test_strikes_are_counted_by_request():
    """The most struck request comes first."""
    strikes = {"lost_at_reply_2_to_claim": 1, "cut_at_reply_9_to_claim": 2, "lost_at_reply_3_to_password": 1}
    assert by_request(strikes) == {"claim": {"lost": 1, "cut": 2}, "password": {"lost": 1}}
