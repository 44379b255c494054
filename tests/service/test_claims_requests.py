"""Requests about claims are read strictly; a wrong one is answered with its fault, and changes nothing."""

import base64
import json

import pytest

from oncebridge.claim import Ask, Claim, Status
from oncebridge.identity import key_bytes, key_text, unreadable_key
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.service import signed_claim
from oncebridge.service.claim_messages import CALL_KEY_MAX, DETAIL_MAX
from oncebridge.settings.secrets import Secret
from oncebridge.settings.serve import ServeSettings
from oncebridge.sources.remote_claims import RemoteClaim
from oncebridge.testing.clock import START_US
from payloads import ACW, ORG, OTHER_ORG, PRESENCE, TIME_MS, envelope, presence, raw, source
from shapes import message, records

PATHS = ("/claims", "/claims/extend", "/claims/settle")


def counts(desk):
    """Return how many events the ledger knows, by status."""
    return {status: number for status, number in desk.bridge.ledger.counts().items() if number}


def letter_of(desk, data):
    """Return the dead letter that is kept under these bytes."""
    key = unreadable_key(desk.bridge.open().secret, data)
    (entry,) = desk.bridge.ledger.get(key)
    return entry


# --- wrong requests ------------------------------------------------------------------------------------------

EVENT = envelope(ACW)


def sqs_event(*bodies):
    """Wrap deliveries as a queue's."""
    return records(*(message(body.decode()) for body in bodies))


LEASE = "lease_seconds: expected a number from 0.1 to 43200"
HANDLER = "handler: expected up to 40 letters, digits, . _ and -"
WRONG = [
    ("/claims", {}, "event: is missing; expected one delivery, as an object or as a text"),
    ("/claims", {"event": 7}, "event: expected one delivery, as an object or as a text"),
    ("/claims", {"event": None}, "event: expected one delivery, as an object or as a text"),
    ("/claims", {"event": True}, "event: expected one delivery, as an object or as a text"),
    ("/claims", {"event": [EVENT, EVENT]}, "event: holds several deliveries; claim them one by one"),
    ("/claims", {"event": sqs_event(raw(EVENT), raw(EVENT))}, "event: holds several deliveries; claim them one by one"),
    ("/claims", {"event": EVENT, "lease_seconds": "30"}, LEASE),
    ("/claims", {"event": EVENT, "lease_seconds": True}, LEASE),
    ("/claims", {"event": EVENT, "lease_seconds": 0.09}, LEASE),
    ("/claims", {"event": EVENT, "lease_seconds": 43201}, LEASE),
    ("/claims", {"event": EVENT, "lease_seconds": 10**400}, None),
    ("/claims", {"event": EVENT, "handler": ""}, HANDLER),
    ("/claims", {"event": EVENT, "handler": "a b"}, HANDLER),
    ("/claims", {"event": EVENT, "handler": "x" * 41}, HANDLER),
    ("/claims", {"event": EVENT, "handler": "desktop\n"}, HANDLER),
    ("/claims", {"event": EVENT, "handler": 5}, HANDLER),
    ("/claims", {"event": EVENT, "lease": 5}, "lease: no such field; known are event, handler, lease_seconds"),
    ("/claims", [], "the body: expected a JSON object"),
    ("/claims/extend", {}, "claim: is missing; expected the text that a claim was answered with"),
    ("/claims/extend", {"claim": 1}, "claim: expected the text that a claim was answered with"),
    ("/claims/settle", {"outcome": "done"}, "claim: is missing; expected the text that a claim was answered with"),
    ("/claims/settle", {"claim": "x"}, "outcome: is missing; expected done, retry, release or dead"),
    ("/claims/settle", {"claim": "x", "outcome": "discard"}, "outcome: expected done, retry, release or dead"),
    ("/claims/settle", {"claim": "x", "outcome": "Done"}, "outcome: expected done, retry, release or dead"),
    (
        "/claims/settle",
        {"claim": "x", "outcome": "retry", "retry_in_seconds": -1, "event": EVENT},
        "retry_in_seconds: expected a number from 0 to 604800",
    ),
    ("/claims/settle", {"claim": "x", "outcome": "done", "detail": ["x"]}, "detail: expected a text"),
    (
        "/claims/settle",
        {"claim": "x", "outcome": "dead"},
        "event: is missing; with the outcome dead send the delivery again, since it may become a dead letter",
    ),
    (
        "/claims/settle",
        {"claim": "x", "outcome": "retry", "event": None},
        "event: is missing; with the outcome retry send the delivery again, since it may become a dead letter",
    ),
]


@pytest.mark.parametrize(("path", "tree", "detail"), WRONG)
def test_a_wrong_request_is_told_what_is_wrong(desk, path, tree, detail):
    """The answer names the field, the expected value and the fix; nothing is claimed, kept or counted."""
    answered = desk.client.post(path, tree)
    assert answered.status == 400
    assert answered.headers["content-type"] == "application/problem+json"
    assert detail is None or answered.json == {"title": "Bad Request", "status": 400, "detail": detail}
    assert counts(desk) == {}
    assert desk.bridge.books.received == 0


@pytest.mark.parametrize("value", [b"1e400", b"1" * 400])
def test_a_field_that_cannot_be_parsed_is_named(desk, value):
    """A number out of range is an error of its field, like any other value that does not fit."""
    answered = desk.client.post("/claims", raw=b'{"event": {}, "lease_seconds": ' + value + b"}")
    assert (answered.status, answered.json["detail"]) == (400, LEASE)
    assert counts(desk) == {}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"event":}', b"\xff\xfe{}", b'{"claim":"\xff"}', b"null", b'{"event":' + b"[" * 100_000, b"\0"],
)
def test_what_is_no_json_is_refused(desk, path, body):
    """A body that is not JSON is answered with a problem document."""
    answered = desk.client.post(path, raw=body)
    assert answered.status == 400
    assert set(answered.json) == {"title", "status", "detail"}
    assert counts(desk) == {}


@pytest.mark.parametrize(
    "body",
    [
        b'{"event": %s, "event": %s}' % (raw(EVENT), raw(presence("BUSY"))),
        b'{"event": %s, "handler": "one", "handler": "other"}' % raw(EVENT),
        b'{"event": %s, "\\u0065vent": %s}' % (raw(EVENT), raw(EVENT)),
        b'{"\\u0065vent": %s}' % raw(EVENT),
    ],
)
def test_a_field_stands_once(desk, body):
    """A proxy that checks requests must not see another event, or another name, than the service reads."""
    answered = desk.client.post("/claims", raw=body)
    assert (answered.status, "twice" in answered.json["detail"]) == (400, True)
    assert counts(desk) == {}


def test_a_name_from_outside_does_not_flood_the_answer(desk):
    """The name of an unknown field is shown in part, and printable."""
    answered = desk.client.post("/claims", {"event": EVENT, "\r\nx" * 10_000: 1})
    assert answered.status == 400
    assert len(answered.body) < 200
    assert answered.json["detail"].isprintable()


@pytest.mark.parametrize("key", ["", "x" * (CALL_KEY_MAX + 1)])
def test_a_call_has_a_key_of_some_length(desk, key):
    """An empty key would be everybody's."""
    answered = desk.send("/claims", key, event=EVENT)
    assert (answered.status, answered.json["detail"]) == (
        400, "Idempotency-Key: expected 1 to 255 characters, new for each call",
    )  # fmt: skip


def test_what_is_optional_may_be_null(desk):
    """Programs that write every field write null where they have nothing to say."""
    claimed = desk.send("/claims", event=EVENT, handler=None, lease_seconds=None).json
    assert claimed["lease_seconds"] == 30
    answered = desk.send(
        "/claims/settle", claim=claimed["claim"], outcome="done", retry_in_seconds=None, detail=None, event=None
    )
    assert answered.json == {"ok": True, "outcome": "done"}


def test_white_space_and_order_do_not_matter(desk):
    """A request may be written in any way that JSON has."""
    body = json.dumps({"lease_seconds": 5, "handler": "desktop", "event": EVENT}, indent=4).encode()
    assert desk.client.post("/claims", raw=b"\n" + body + b"\n").json["verdict"] == "fresh"


# --- who may ask ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_only_who_knows_a_key_may_ask(place, path):
    """Without one of the keys nothing is looked at."""
    desk = place.desk(api_keys=(Secret("env:A", "first-key"), Secret("env:B", "second-key")))
    for headers in ({}, {"X_API_Key": "third-key"}, {"Authorization": "Bearer first-ke"}):
        answered = desk.client.post(path, {"event": EVENT}, **headers)
        assert answered.status == 401
        assert "www-authenticate" in answered.headers
    assert counts(desk) == {}
    claimed = desk.client.post("/claims", {"event": EVENT}, X_API_Key="second-key")
    assert (claimed.status, claimed.json["verdict"]) == (200, "fresh")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_claims_are_posted(desk, path, method):
    """The answer to any other method names the right one."""
    answered = desk.client.send(method, path)
    assert (answered.status, answered.headers["allow"]) == (405, "POST")


def test_a_body_has_a_limit(place):
    """A larger body is not read."""
    desk = place.desk(serve=ServeSettings(body_bytes_max=500))
    assert desk.client.post("/claims", {"event": envelope(ACW, {"note": "x" * 500})}).status == 413


def test_a_name_that_this_service_has_itself_is_refused(place):
    """Claims under one name are shared, so a handler of the service's own would lose events to the client."""

    def handle(bridge):
        bridge.on(ACW)(lambda event: None)
        bridge.on(PRESENCE, name="wallboard")(lambda event: None)

    desk = place.desk(handle=handle)
    state = presence("BUSY", modified_ms=TIME_MS)
    unnamed = desk.send("/claims", event=EVENT)
    assert (unnamed.status, "that has no name" in unnamed.json["detail"]) == (400, True)
    named = desk.send("/claims", event=state, handler="wallboard")
    assert (named.status, "named 'wallboard'" in named.json["detail"]) == (400, True)
    assert counts(desk) == {}
    assert desk.claim(EVENT, handler="wallboard")["verdict"] == "fresh"
    assert desk.claim(state)["verdict"] == "fresh"


# --- events --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "kept", "reason"),
    [
        ("no event", b"no event", "unreadable: is not JSON: expecting value (character 1)"),
        ("", b"", "unreadable: is empty"),
        ('{"detail":{"a":1,"a":2}}', b'{"detail":{"a":1,"a":2}}', 'unreadable: the key "a" stands twice in one object'),
        (
            {},
            b"{}",
            "unreadable: nothing says what this is: no detail-type, topicName, eventType, type or conversation id",
        ),
    ],
)
def test_what_is_unreadable_is_kept_as_a_dead_letter(desk, event, kept, reason):
    """The answer is 400, so that it is not sent again, and it is kept byte for byte, however often it arrives."""
    for _ in range(2):
        answered = desk.send("/claims", event=event)
        assert (answered.status, answered.json["detail"]) == (400, f"event: kept as a dead letter, {reason}")
        assert answered.headers["content-type"] == "application/problem+json"
        assert [answered.json[name] for name in ("acknowledge", "verdict", "outcome")] == [True, "dead", "dead"]
    letter = letter_of(desk, kept)
    assert answered.json["key"] == key_text(letter.key)
    assert (letter.status, letter.raw, letter.reason) == (Status.DEAD, kept, reason)
    assert desk.bridge.books.as_dict()["dead"] == 2


@pytest.mark.parametrize(
    "event",
    [
        b'{"detail":{"a":1,"a":2}}',
        b'{"detail":{"x":"\\u0000"},"detail-type":"t"}',
        b'{"detail":{"x":"\\ud83d"},"detail-type":"t"}',
        b'{"detail":{"x": NaN },"detail-type":"t"}',
        b'{"detail":{"x":"\xff"},"detail-type":"t"}',
        b'"\xff"',
        b'{"detail":' * 100 + b"{}" + b"}" * 100,
    ],
)
def test_an_object_is_read_as_strictly_as_ever(desk, event):
    """An ambiguous event within a request becomes a dead letter, as it does on every other way in."""
    answered = desk.client.post("/claims", raw=b'{"handler": "desktop", "event": ' + event + b' , "lease_seconds": 5}')
    assert answered.status == 400
    assert letter_of(desk, event).raw == event


def test_who_may_not_come_in_may_not_claim(place):
    """An event of another org is kept as a dead letter, as it is on every other way in."""
    desk = place.desk(allowed_orgs=(OTHER_ORG,))
    answered = desk.send("/claims", event=raw(EVENT).decode())
    assert answered.status == 400
    assert letter_of(desk, raw(EVENT)).reason == "not allowed: its org is not one of allowed_orgs"
    assert desk.claim(envelope(ACW, source=source(OTHER_ORG)))["verdict"] == "fresh"
    assert ORG not in answered.json["detail"]


def test_a_delivery_may_be_wrapped(desk):
    """An object, a text, or one message as AWS wraps it: each is the same event."""
    first = desk.claim(EVENT)
    assert desk.settle(first, "done") == "done"
    for event in (raw(EVENT).decode(), [EVENT], sqs_event(raw(EVENT)), json.dumps(sqs_event(raw(EVENT)))):
        again = desk.claim(event)
        assert (again["verdict"], again["key"]) == ("redelivery", first["key"])


def test_a_dead_letter_is_the_delivery_byte_for_byte(desk):
    """Numbers and white space are kept as they were written, in an object and in a text."""
    event = b'{ "eventType" : "status",  "conversationId":"c-1", "load": 1.10, "timestamp": 1748860200123 }'
    for body in (event, json.dumps(event.decode()).encode()):
        claimed = desk.client.post("/claims", raw=b'{"event":' + body + b"}").json
        settle = {"claim": claimed["claim"], "outcome": "dead"}
        text = json.dumps(settle)[:-1].encode() + b', "event":' + body + b"}"
        if claimed["claim"] is None:  # the second time it is dead already: the same event
            assert claimed["reason"] == "same event in another envelope, already kept as a dead letter"
            continue
        assert desk.client.post("/claims/settle", raw=text).json == {"ok": True, "outcome": "dead"}
        (letter,) = desk.bridge.ledger.get(key_bytes(claimed["key"]))
        assert letter.raw == event


# --- the claim's text ----------------------------------------------------------------------------------------


def test_a_forged_claim_is_refused(desk):
    """Changed in any place, cut anywhere, or longer, it is no claim; and nothing has changed."""
    claimed = desk.claim(EVENT)
    text = claimed["claim"]
    forged = [text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :] for at in range(0, len(text) - 1, 3)]
    forged += [text[:at] for at in range(0, len(text), 7)] + [text + "AAAA", text + "!", "é" + text, " ", "null"]
    for one in forged:
        for path, more in (("/claims/extend", {}), ("/claims/settle", {"outcome": "done"})):
            answered = desk.send(path, claim=one, **more)
            assert (answered.status, answered.json["detail"].partition(":")[0]) == (400, "claim"), one
    assert desk.settle(claimed, "done") == "done"


def test_a_claim_of_another_ledger_is_refused(place, desk):
    """Its secret is another."""
    other = place.desk(MemoryLedger(place.clock))
    claimed = other.claim(EVENT)
    assert desk.send("/claims/settle", claim=claimed["claim"], outcome="done").status == 400


def test_a_claim_of_another_version_is_told_so(desk, monkeypatch):
    """A text that a later version signed is not read as something else."""
    with monkeypatch.context() as later:
        later.setattr(signed_claim, "VERSION", signed_claim.VERSION_WITH_MARK + 1)
        claimed = desk.claim(EVENT)
    answered = desk.send("/claims/extend", claim=claimed["claim"])
    assert (answered.status, "another version" in answered.json["detail"]) == (400, True)


def test_a_claim_holds_nothing_that_the_event_says(desk):
    """It passes through hands and logs of others: keys and digests, the topic, and the envelope's id."""
    for number, event in enumerate((presence("BUSY", modified_ms=TIME_MS), envelope(ACW))):
        text = desk.claim(event, handler="desktop")["claim"]
        assert len(text) < 450, number
        data = base64.urlsafe_b64decode(text + "==")
        said = [value for value in _texts(event) if len(value) > 5]
        shown = {value for value in said if value.encode() in data}
        assert shown <= {event["id"], event["detail-type"]}


def _texts(tree):
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value)
    else:
        yield str(tree)


def test_the_event_must_be_the_one_that_was_claimed(desk):
    """A retry must not bury another event; the same event in another envelope is accepted."""
    claimed = desk.claim(EVENT)
    for event in (envelope(ACW, {"eventTime": TIME_MS + 1}), "no event", presence("BUSY")):
        answered = desk.send("/claims/settle", claim=claimed["claim"], outcome="dead", event=event)
        assert (answered.status, answered.json["detail"][:40]) == (400, "event: is not the one that was claimed; ")
    assert counts(desk) == {Status.CLAIMED: 1}
    assert desk.settle(claimed, "dead", envelope(ACW, id="another envelope")) == "dead"


def test_an_event_that_nothing_identifies_is_known_by_its_bytes(desk):
    """It has a new key each time, and may be settled all the same."""
    event = {"eventType": "note", "conversationId": "c-1"}
    claims = [desk.claim(event) for _ in range(2)]
    assert claims[0]["key"] != claims[1]["key"]
    assert [desk.settle(claimed, "dead", event) for claimed in claims] == ["dead", "dead"]


def test_a_long_story_does_not_keep_anybody_from_settling(desk):
    """Of what a client tells of its failure the beginning is kept."""
    claimed = desk.claim(EVENT)
    assert desk.settle(claimed, "dead", EVENT, detail="ä" * (DETAIL_MAX + 1)) == "dead"
    (letter,) = desk.bridge.ledger.get(key_bytes(claimed["key"]))
    assert letter.detail == "ä" * DETAIL_MAX


# --- the key of a call ---------------------------------------------------------------------------------------


def test_a_repeated_call_gets_the_whole_lease(place, desk):
    """The claim that is answered once more runs for as long as the answer says, from then on."""
    assert START_US % 100_000_000 == 0
    place.clock.advance(60)
    first = desk.claim(EVENT, call="a call", lease_seconds=100)
    place.clock.advance(60)
    again = desk.claim(EVENT, call="a call", lease_seconds=100)
    assert (again["verdict"], again["token"], again["attempt"]) == ("fresh", first["token"], 1)
    place.clock.advance(90)
    assert desk.claim(EVENT)["verdict"] == "busy"
    assert desk.settle(again, "done") == "done"


def test_a_key_for_ever_does_not_hide_attempts(place, desk):
    """A client that sends one key with all its calls, and dies of an event each time, uses its attempts up."""
    attempts = []
    for _ in range(3):
        attempts.append(desk.claim(EVENT, call="one for all", lease_seconds=10)["attempt"])
        place.clock.advance(60)
    assert attempts == [1, 2, 3]


def test_keys_are_texts_like_those_of_handlers(desk):
    """`find` and `dead show` take the key of the answer."""
    claimed = desk.claim(EVENT)
    assert key_text(key_bytes(claimed["key"])) == claimed["key"]


def test_a_claim_keeps_its_mark():
    """Where attendance is kept, a claim's text has its event's mark; elsewhere it is as before."""
    secret = b"x" * 32
    for mark, version in ((b"", signed_claim.VERSION), (b"\x01abc", signed_claim.VERSION_WITH_MARK)):
        ask = Ask(key=b"k" * 16, conversation=b"c" * 16, mark=mark)
        lent = RemoteClaim(claim=Claim(ask, 7), lease_us=5, lent_us=6, raw=b"{}")
        text = signed_claim.sign_claim(secret, lent)
        assert signed_claim.verify_claim(secret, text) == lent
        assert base64.urlsafe_b64decode(text + "==")[signed_claim.MAC_BYTES] == version
