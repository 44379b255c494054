"""Claims over HTTP keep the ledger's rules on every kind of ledger, however their clients behave."""

from collections import Counter

import pytest

from oncebridge.claim import Status
from oncebridge.identity import key_bytes
from oncebridge.retry import RetryPolicy
from payloads import ACW, AUDITS, TIME_MS, envelope, presence, raw
from service.clients import BRIEF_S, place_on

OTHER_ENVELOPE = "0e1d2c3b-4a59-6877-8695-a4b3c2d1e0f9"


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def place(request, tmp_path):
    """Return a place on each kind of ledger."""
    with place_on(request.param, tmp_path, lambda: request.getfixturevalue("valkey")) as found:
        yield found


@pytest.fixture
def desk(place):
    """Return a client and its worker."""
    return place.desk()


def fact(number=1, **changes):
    """Build an event of its own conversation time."""
    return envelope(ACW, {"eventTime": TIME_MS + number}, **changes)


def entries(desk, key):
    """Return what the ledger knows of an event."""
    return desk.bridge.ledger.get(key_bytes(key))


# --- the usual way -------------------------------------------------------------------------------------------


def test_an_event_is_handed_out_once(desk):
    """Who claims first handles it; once that is done, every other delivery of it is a duplicate."""
    claimed = desk.claim(fact())
    assert (claimed["verdict"], claimed["acknowledge"], claimed["attempt"]) == ("fresh", False, 1)
    assert desk.settle(claimed, "done") == "done"
    again = desk.claim(fact())
    assert (again["verdict"], again["acknowledge"], again["claim"]) == ("redelivery", True, None)
    twin = desk.claim(fact(id=OTHER_ENVELOPE))
    assert (twin["verdict"], twin["acknowledge"], twin["key"]) == ("republish", True, claimed["key"])
    assert desk.bridge.books.as_dict() == {
        "received": 3, "processed": 1, "redelivery": 1, "republish": 1, "echo": 0, "stale": 0, "conflict": 0,
        "dead": 0, "unhandled": 0, "retrying": 0, "balanced": True,
    }  # fmt: skip


def test_of_many_at_once_one_is_fresh(place):
    """However many ask at the same moment, at however many workers, one is granted the event."""
    desks = [place.desk(), place.desk()]
    requests = [("/claims", {"event": fact(id=f"envelope {number}")}) for number in range(6)]
    answers = [answer.json for desk in desks for answer in desk.all_at_once(requests)]
    assert Counter(answer["verdict"] for answer in answers) == {"fresh": 1, "busy": 11}
    assert all(answer["acknowledge"] is False for answer in answers)
    assert all(answer["retry_in_seconds"] > 0 for answer in answers if answer["verdict"] == "busy")


def test_any_worker_settles_a_claim(place):
    """Nothing of a claim is kept where it was given out: another worker extends and settles it."""
    one, other = place.desk(), place.desk()
    claimed = one.claim(fact(), handler="desktop")
    assert other.extend(claimed)
    assert other.settle(claimed, "done") == "done"
    assert one.claim(fact(), handler="desktop")["verdict"] == "redelivery"
    books = [desk.bridge.books.as_dict() for desk in (one, other)]
    assert [sum(book[name] for book in books) for name in ("received", "processed", "redelivery", "retrying")] == [
        2, 1, 1, 0,
    ]  # fmt: skip


def test_names_have_claims_of_their_own(desk):
    """Two programs under two names each get every event, states too."""
    for event in (fact(), presence("BUSY", modified_ms=TIME_MS)):
        claims = [desk.claim(event, handler=name) for name in ("desktop", "wallboard")]
        assert [claimed["verdict"] for claimed in claims] == ["fresh", "fresh"]
        assert [desk.settle(claimed, "done") for claimed in claims] == ["done", "done"]
        assert desk.claim(event, handler="desktop")["verdict"] == "redelivery"


# --- late, lost and repeated ---------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [fact(), presence("BUSY", modified_ms=TIME_MS)], ids=["fact", "state"])
def test_a_late_worker_changes_nothing(place, event):
    """After its lease another client takes over with a higher token, and the first one's requests are refused."""
    late, quick = place.desk(), place.desk()
    first = late.claim(event, lease_seconds=BRIEF_S)
    second = place.after_the_lease(lambda: quick.claim(event))
    assert (second["verdict"], second["attempt"]) == ("fresh", 2)
    assert second["token"] > first["token"]
    before = entries(quick, first["key"])
    assert not late.extend(first)
    assert [late.settle(first, outcome, event) for outcome in ("done", "retry", "release", "dead")] == [None] * 4
    assert entries(quick, first["key"]) == before
    assert quick.settle(second, "done") == "done"
    assert late.bridge.books.as_dict()["retrying"] == 1


def test_a_client_that_does_not_look_at_ok_harms_nobody_else(place):
    """One that acknowledges although it was not accepted has only its own effect to answer for."""
    careless, other = place.desk(), place.desk()
    first = careless.claim(fact(), lease_seconds=BRIEF_S)
    second = place.after_the_lease(lambda: other.claim(fact()))
    careless.send("/claims/settle", claim=first["claim"], outcome="done")  # whatever is answered
    assert other.extend(second)
    assert other.settle(second, "retry", fact()) == "retry"
    assert other.claim(fact())["verdict"] == "fresh"


def test_who_is_late_but_alone_still_settles(place, desk):
    """A claim that ran out is in force until another client takes over."""
    claimed = desk.claim(fact(), lease_seconds=BRIEF_S)
    if place.clock is not None:
        place.clock.advance(1)
    assert desk.extend(claimed, 60)
    assert desk.settle(claimed, "done") == "done"


def test_an_extended_claim_is_not_taken_over(place, desk):
    """A claim runs for as long as it was last extended."""
    claimed = desk.claim(fact(), lease_seconds=BRIEF_S)
    assert desk.extend(claimed, 600)
    if place.clock is not None:
        place.clock.advance(300)
    assert desk.claim(fact())["verdict"] == "busy"
    assert desk.settle(claimed, "done") == "done"
    assert not desk.extend(claimed)


def test_a_settle_may_be_repeated(desk):
    """The same outcome again is answered with ok, another one is refused, and the books count it once."""
    claimed = desk.claim(fact())
    assert [desk.settle(claimed, "done") for _ in range(3)] == ["done"] * 3
    assert desk.settle(claimed, "release") is None
    assert desk.bridge.books.as_dict()["processed"] == 1
    assert desk.bridge.books.as_dict()["balanced"]


def test_a_call_whose_answer_was_lost_gets_the_same_claim(desk):
    """A repeated call with its key raises neither token nor attempt; without the key it finds the event busy."""
    first = desk.claim(fact(), call="a random text")
    again = desk.claim(fact(), call="a random text")
    assert [again[name] for name in ("verdict", "token", "attempt")] == ["fresh", first["token"], 1]
    assert desk.claim(fact())["verdict"] == "busy"
    assert desk.claim(fact(), call="another")["verdict"] == "busy"
    assert desk.claim(fact(2), call="a random text")["verdict"] == "fresh"
    assert desk.claim(fact(), call="a random text", handler="desktop")["verdict"] == "fresh"
    assert desk.settle(again, "done") == "done"
    assert desk.settle(first, "done") == "done"
    assert desk.claim(fact(), call="a random text")["verdict"] == "redelivery"


def test_a_crash_between_claim_and_settle_counts_as_an_attempt(place, desk):
    """The event is fresh again once the lease is over, with the next attempt."""
    attempts = [desk.claim(fact(), lease_seconds=BRIEF_S)["attempt"]]
    for _ in range(2):
        claimed = place.after_the_lease(lambda: desk.claim(fact(), lease_seconds=BRIEF_S))
        attempts.append(claimed["attempt"])
    assert attempts == [1, 2, 3]


# --- states --------------------------------------------------------------------------------------------------


def test_the_newest_state_wins(desk):
    """A state that is older than the newest is stale, the same again within the window is an echo."""
    newest = desk.claim(presence("BUSY", modified_ms=TIME_MS))
    assert desk.settle(newest, "done") == "done"
    echo = desk.claim(presence("BUSY", modified_ms=TIME_MS + 100))
    stale = desk.claim(presence("AWAY", modified_ms=TIME_MS - 5_000))
    assert [(one["verdict"], one["acknowledge"], one["claim"]) for one in (echo, stale)] == [
        ("echo", True, None), ("stale", True, None),
    ]  # fmt: skip
    assert desk.claim(presence("AWAY", modified_ms=TIME_MS + 5_000))["verdict"] == "fresh"
    books = desk.bridge.books.as_dict()
    assert (books["processed"], books["echo"], books["stale"], books["retrying"]) == (1, 1, 1, 1)


def test_states_of_one_entity_are_handled_one_at_a_time(desk):
    """While a state is claimed every other of its entity is busy; then a newer one is fresh, with a higher token."""
    first = desk.claim(presence("BUSY", modified_ms=TIME_MS))
    newer = presence("AWAY", modified_ms=TIME_MS + 5_000)
    assert desk.claim(newer)["verdict"] == "busy"
    assert desk.settle(first, "done") == "done"
    second = desk.claim(newer)
    assert second["verdict"] == "fresh"
    assert second["token"] > first["token"]


# --- failures ------------------------------------------------------------------------------------------------


def test_what_failed_is_fresh_until_its_attempts_are_used_up(place):
    """Each retry is an attempt; the last one makes a dead letter, with the client's words where only show looks."""
    desk = place.desk(retry=RetryPolicy(attempts=3))
    ends = []
    for _ in range(3):
        claimed = desk.claim(fact())
        ends.append((claimed["attempt"], desk.settle(claimed, "retry", fact(), detail="Doe's phone\0 is off")))
    assert ends == [(1, "retry"), (2, "retry"), (3, "dead")]
    after = desk.claim(fact())
    assert (after["verdict"], after["acknowledge"]) == ("redelivery", True)
    (letter,) = entries(desk, after["key"])
    assert (letter.status, letter.reason) == (Status.DEAD, "its handler failed at attempt 3 of 3")
    assert letter.raw == raw(fact()).replace(b'":', b'": ').replace(b',"', b', "')  # as json.dumps wrote it
    assert letter.detail == "Doe's phone\\x00 is off"
    books = desk.bridge.books.as_dict()
    assert (books["received"], books["dead"], books["redelivery"], books["retrying"]) == (4, 1, 1, 2)


def test_what_is_given_back_was_no_attempt(desk):
    """However often it is released, the next attempt is the first."""
    for _ in range(3):
        claimed = desk.claim(fact())
        assert claimed["attempt"] == 1
        assert desk.settle(claimed, "release") == "release"


def test_dead_needs_no_second_attempt(desk):
    """What cannot be mended is a dead letter at once, and may be settled so twice."""
    claimed = desk.claim(fact(), handler="desktop")
    assert [desk.settle(claimed, "dead", fact()) for _ in range(2)] == ["dead", "dead"]
    (letter,) = entries(desk, claimed["key"])
    assert (letter.handler, letter.reason, letter.detail) == ("desktop", "its handler gave it up at attempt 1", "")
    assert desk.bridge.books.as_dict()["dead"] == 1


def test_an_event_that_its_clients_die_of_is_buried(place):
    """After as many claims as there are attempts have run out, no client gets the event any more."""
    desk = place.desk(retry=RetryPolicy(attempts=2))
    desk.claim(fact(), lease_seconds=BRIEF_S)
    place.after_the_lease(lambda: desk.claim(fact(), lease_seconds=BRIEF_S))
    buried = place.after_the_lease(lambda: desk.claim(fact()))
    assert [buried[name] for name in ("verdict", "outcome", "claim", "acknowledge")] == ["fresh", "dead", None, True]
    assert buried["reason"] == "the worker died or hung with it at each of 2 attempts"
    (letter,) = entries(desk, buried["key"])
    assert letter.status is Status.DEAD
    assert letter.raw is not None


def test_another_content_under_the_same_id_is_a_conflict(desk):
    """It is kept as a dead letter of its own, the first one's claim is not touched, and neither is taken for done."""
    first = desk.claim(envelope(AUDITS))
    other = envelope(AUDITS, {"action": "Something else"})
    conflicts = [desk.claim(other) for _ in range(2)]
    for conflict in conflicts:
        assert [conflict[name] for name in ("verdict", "outcome", "claim", "acknowledge")] == [
            "conflict", "dead", None, True,
        ]  # fmt: skip
        assert conflict["key"] != first["key"]
    assert entries(desk, conflicts[0]["key"])[0].status is Status.DEAD
    assert desk.settle(first, "done") == "done"
    assert desk.bridge.books.as_dict()["conflict"] == 2
