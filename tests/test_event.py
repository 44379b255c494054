"""Raw deliveries into events: what can be read exactly is read, everything else is refused with its reason."""

import json
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from oncebridge.errors import Unreadable
from oncebridge.event import parse
from oncebridge.simulation import simulate
from oncebridge.strict_json import BYTES_MAX, CONTAINERS_MAX, DEPTH_MAX, canonical
from payloads import (
    ABSENT,
    ACW,
    BODIES,
    CONVERSATION,
    ENVELOPE_ID,
    HAND_MADE,
    ORG,
    PRESENCE,
    PUBLISHED_MS,
    TRANSCRIPTION,
    USER,
    call_status,
    detail,
    envelope,
    in_envelope,
    iso,
    raw,
    source,
    tutorial,
)

MEGABYTE = 1_048_576  # the largest event that EventBridge, SQS and Lambda take


def seen(delivery):
    """Return everything that is read from a delivery, but not the bytes it was read from."""
    event = parse(delivery)
    return (
        event.topic,
        event.topic_name,
        event.org,
        event.body,
        canonical(event.exact),
        event.envelope,
        event.published,
        event.genesys,
        event.torn,
    )


def refusal(delivery):
    """Return the reason for which a delivery is refused."""
    with pytest.raises(Unreadable) as refused:
        parse(delivery)
    return str(refused.value)


def with_value(text):
    """Write an event in which one field holds this JSON text."""
    return raw(in_envelope({"eventId": "e-1", "field": "PLACEHOLDER"})).replace(b'"PLACEHOLDER"', text.encode())


# --- what is read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", BODIES)
def test_every_family_is_read(topic):
    """An event of every topic family is read with its template, its concrete name, its body and its org."""
    event = parse(envelope(topic))
    assert (event.topic, event.topic_name) == (topic, detail(topic)["topicName"])
    assert event.body == detail(topic)["eventBody"]
    assert (event.org, event.genesys, event.torn) == (ORG, True, False)
    assert event.published == iso(PUBLISHED_MS)


@pytest.mark.parametrize("tree", [*map(envelope, BODIES), *(make() for make in HAND_MADE.values())])
def test_forms_of_one_delivery_agree(tree):
    """Bytes, text and parsed JSON of one delivery are the same event, however it is written."""
    compact = raw(tree)
    forms = [
        tree,
        compact.decode(),
        bytearray(compact),
        memoryview(compact),
        json.dumps(tree),
        json.dumps(tree, indent=2),
        json.dumps(tree, indent="\t", sort_keys=True),
        json.dumps(tree, ensure_ascii=True).replace("/", "\\/"),
        b" \r\n\t" + json.dumps(tree, separators=(" , ", " : ")).encode() + b"\n",
    ]
    assert all(seen(form) == seen(compact) for form in forms)


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "a, b",
        'say ": "',
        "a,  b: c",
        "line\nbreak",
        "back\\slash",
        "Zoë 日本 🎉",
        "\u2028",
        "\\u0000",
        "{}[]:,",
    ],
)
def test_text_is_read_as_it_is(text):
    """Text keeps every character, whether it was escaped or not and whatever stands in it."""
    tree = in_envelope({"eventId": "e-1", "note": text, "list": [text, {text: text}]})
    written = [raw(tree), json.dumps(tree), json.dumps(tree, indent=1), json.dumps(tree, ensure_ascii=False)]
    assert [parse(one).body for one in written] == [tree["detail"]] * len(written)
    assert len({canonical(parse(one).exact) for one in written}) == 1


def test_raw_is_kept_byte_for_byte():
    """What arrived is kept byte for byte, for forwarding and for dead letters."""
    written = json.dumps(envelope(ACW), indent=3).encode()
    assert parse(written).raw == written


def test_placeholder_is_literal():
    """The detail-type keeps its literal `{id}`, and the concrete id is only in the topic name."""
    event = parse(envelope(ACW))
    assert event.topic == "v2.detail.events.conversation.{id}.acw"
    assert event.topic_name == f"v2.detail.events.conversation.{CONVERSATION}.acw"


@pytest.mark.parametrize(
    "envelope_id", ["6efd5506-3fd6-09a1-5599-09ae48bd6dd8", "made-by-hand", "1", "ключ", "a b\nc", "x" * 256]
)
def test_envelope_id_may_be_any_text(envelope_id):
    """An envelope id is any text: nothing promises a UUID of any version."""
    assert parse(envelope(ACW, id=envelope_id)).envelope.id == envelope_id


@pytest.mark.parametrize("envelope_id", [ABSENT, None, "", " ", "\t\n"])
def test_blank_envelope_id_is_none(envelope_id):
    """A missing or blank envelope id is no id: taking it for one would make strangers twins."""
    assert parse(envelope(ACW, id=envelope_id)).envelope.id is None


@pytest.mark.parametrize(
    "changes",
    [
        {name: ABSENT}
        for name in ("version", "id", "source", "account", "time", "region", "resources", "detail_type", "replay_name")
    ],
)
def test_envelope_fields_may_be_missing(changes):
    """Every envelope field may be missing: some targets drop them."""
    event = parse({**envelope(ACW, **changes), **({"detail-type": ACW} if "detail_type" in changes else {})})
    assert (event.topic, event.body) == (ACW, detail(ACW)["eventBody"])


@pytest.mark.parametrize("missing", ["metadata", "version", "timestamp"])
def test_frame_fields_may_be_missing(missing):
    """Of the notification only topic name and body are needed."""
    event = parse(envelope(ACW, frame={missing: ABSENT}))
    assert event.body == detail(ACW)["eventBody"]
    assert (event.published is None) == (missing == "timestamp")


@pytest.mark.parametrize(
    ("given", "org"),
    [
        (source(), ORG),
        (source(suffix="_odd.-"), ORG),
        (source(domain="genesys.com.test"), ORG),
        (f"aws.partner/genesys.com/cloud/{ORG}", ORG),
        ("contact.centre", "contact.centre"),
        ("aws.partner/another.example/cloud/1/x", "aws.partner/another.example/cloud/1/x"),
        (ABSENT, ""),
    ],
)
def test_org_is_read_from_the_source(given, org):
    """The org stands in the partner source, in that of Genesys' own tests too; else the source stands for it."""
    assert parse(envelope(ACW, source=given)).org == org


def test_org_is_read_from_the_body():
    """Without a partner source, a body that names its organization is believed."""
    assert parse(detail(TRANSCRIPTION)).org == ORG


def test_replay_name_is_read():
    """The name of an archive replay is kept apart from everything else."""
    assert parse(envelope(ACW, replay_name="tuesday again")).envelope.replay_name == "tuesday again"
    assert parse(envelope(ACW)).envelope.replay_name is None


#: What may be unlike a usual delivery, in its envelope, its notification or its body.
UNUSUAL = {
    **{
        f"{name} {what}": {name: value}
        for name in ("id", "source", "detail_type", "account", "time", "region", "replay_name")
        for what, value in {
            "absent": ABSENT, "null": None, "empty": "", "blank": " \t", "long": "x" * 257, "a number": 1, "a list": [],
        }.items()
    },
    **{
        f"{name} {what}": {"frame": {name: value}}
        for name in ("topicName", "version", "eventBody", "metadata", "timestamp", "more")
        for what, value in {
            "absent": ABSENT, "null": None, "empty": "", "blank": " ", "long": "x" * 257, "a number": 1, "a list": [],
        }.items()
    },
    **{
        f"{name} in the body long": {"body": {name: "x" * 257}}
        for name in ("id", "conversationId", "userId", "conversation_id", "interactionId", "user_id")
    },
    "another field": {"more": 1},
    "another version": {"version": 0},
    "an organization without end": {"source": "contact.centre", "body": {"organizationId": "x" * 257}},
    "two things wrong": {"frame": {"timestamp": "x" * 257}, "body": {"userId": "x" * 257}},
    "a fraction that is not read back": {"body": {"n": 1e22}},
    "text that needs escapes": {"body": {"note": 'a "b" \n \\'}},
    "U+0000": {"body": {"note": "\x00"}},
    "as usual": {},
    "replayed": {"replay_name": "tuesday again"},
}  # fmt: skip


def seen_or_refused(delivery):
    """Return everything that is read from a delivery; or why it is refused, and the id by which it is known then."""
    try:
        return seen(delivery)
    except Unreadable as error:
        return str(error), error.envelope_id


@pytest.mark.parametrize("what", UNUSUAL)
def test_order_of_fields_says_nothing(what):
    """A delivery in the usual order, which is read in one go, is read or refused like one in any other order."""
    usual = envelope(ACW, **UNUSUAL[what])
    inner = usual["detail"]
    other = {**dict(reversed(usual.items())), "detail": dict(reversed(inner.items()))}
    assert seen_or_refused(raw(usual)) == seen_or_refused(raw(other))


def test_usual_deliveries_are_read_in_one_go(monkeypatch):
    """Nothing is looked for in a delivery that is written as Genesys and EventBridge write it."""
    monkeypatch.setattr("oncebridge.event.read_tree", None)
    for delivery in simulate(2, 5):
        assert parse(delivery.raw).envelope.id == delivery.id
    assert [parse(raw(envelope(topic))).topic for topic in BODIES] == list(BODIES)


def test_notification_without_envelope():
    """A notification alone is read too, and its template is guessed from the ids in its name."""
    event = parse(detail(PRESENCE))
    assert (event.topic, event.topic_name) == (PRESENCE, f"v2.users.{USER}.presence")
    assert (event.envelope.id, event.org, event.genesys) == (None, "", True)


def test_missing_detail_type_is_guessed():
    """Without a detail-type the template is guessed from the topic name."""
    assert parse(envelope(ACW, detail_type=ABSENT)).topic == ACW


@pytest.mark.parametrize(
    ("tree", "topic"),
    [
        (call_status(), "conversation:call:status"),
        (tutorial(), "conversation.changed"),
        (tutorial(detail_type="Contact"), "Contact"),
        (in_envelope({"type": "held"}, detail_type=ABSENT), "held"),
        (in_envelope({"topicName": "v2.mine"}, detail_type=ABSENT), "v2.mine"),
        ({"conversationId": "call-31", "status": "held"}, "unknown"),
    ],
)
def test_topic_of_a_hand_made_event(tree, topic):
    """A hand-made event takes its topic from detail-type, eventType, type or topicName, and is a whole body."""
    event = parse(tree)
    assert (event.topic, event.topic_name, event.genesys) == (topic, topic, False)
    assert event.body == tree.get("detail", tree)


def test_disagreeing_names_are_noticed():
    """An event whose detail-type and topic name speak of different topics is known as torn."""
    assert parse(envelope(PRESENCE, detail_type="v2.users.{id}.activity")).torn
    assert parse(envelope(PRESENCE, detail_type="v2.users.{id}.presence.more")).torn
    assert not parse(envelope(PRESENCE, detail_type="v2.users.{userId}.presence")).torn


# --- size -------------------------------------------------------------------------------------------------------


def padded(size):
    """Write an event of exactly so many bytes."""
    empty = raw(envelope(ACW, {"note": ""}))
    return raw(envelope(ACW, {"note": "x" * (size - len(empty))}))


@pytest.mark.parametrize("size", [MEGABYTE - 1, MEGABYTE, MEGABYTE + 1, BYTES_MAX])
def test_large_events_are_read(size):
    """An event of a megabyte is legal and is read, with an envelope around it."""
    delivery = padded(size)
    assert len(delivery) == size
    assert len(parse(delivery).body["note"]) > MEGABYTE // 2


@pytest.mark.parametrize("size", [BYTES_MAX + 1, 10 * MEGABYTE])
def test_larger_than_possible_is_refused(size):
    """What is larger than any event can be is refused before it is parsed, with its size."""
    reason = refusal(b"[" + b" " * (size - 1))
    assert f"{size:,} bytes" in reason
    assert f"{BYTES_MAX:,}" in reason


def test_brackets_in_text_do_not_count():
    """Only objects and lists count towards their limits, not what a customer typed."""
    assert parse(with_value(json.dumps('[{"' * CONTAINERS_MAX + "\\"))).topic
    assert parse(with_value("[" + "[]," * (CONTAINERS_MAX - 10) + "1]")).topic


def test_many_keys_are_read():
    """An event may have as many fields as fit."""
    fields = {f"field{number}": number for number in range(50_000)}
    assert len(parse(raw(in_envelope({"eventId": "e-1", **fields}))).body) == 50_001


# --- numbers ----------------------------------------------------------------------------------------------------

NUMBERS = [
    "1", "1.0", "1.00", "1e0", "1E0", "10e-1", "0", "-0", "0.0", "-0.0", "0e0",
    str(2**53), str(2**53 + 1), str(2**63), str(2**64 + 1), str(10**30), str(10**30 + 1), "1e30", "9" * 400,
    "0.1", "0.10", "0.10000000000000001", "0.1000000000000000055511151231257827",
    "1e-400", "1e16", "1e+16", "10000000000000000.0",
]  # fmt: skip


def test_numbers_stay_apart():
    """No two numbers that are written differently count as the same, whatever a float makes of them."""
    canonicals = [canonical(parse(with_value(number)).exact) for number in NUMBERS]
    assert len(set(canonicals)) == len(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_count_as_written(number):
    """A number counts digit by digit as it was written, on every way of reading."""
    plain, spaced = with_value(number), with_value(f" {number} ")
    assert canonical(parse(plain).exact) == canonical(parse(spaced).exact)
    assert f'"field":{number}}}'.encode() in canonical(parse(plain).exact).replace(b'"eventId":"e-1",', b"")


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_numbers_of_any_size_are_read(fraction, whole):
    """Every number that Python can write is read back as that number."""
    event = parse(in_envelope({"eventId": "e-1", "fraction": fraction, "whole": whole}))
    assert (event.body["fraction"], event.body["whole"]) == (fraction, whole)
    assert type(event.body["whole"]) is int


# --- what is refused --------------------------------------------------------------------------------------------

SECRET_WORD = "canary-4711"
TREE = in_envelope({"eventId": "e-1", "note": SECRET_WORD})
TEXT = raw(TREE).decode()
HALF = "\\" + "ud83d"
NUL = "\\" + "u0000"
DEEP = "{" + '"a":{' * 2000

#: What stands in the input, the input, and the words that its reason must have.
UNREADABLE = {
    "D1 a key twice": (TEXT.replace('"note":', '"eventId":'), ["eventId", "twice"]),
    "D1 a key twice in the envelope": (TEXT.replace('"version":"0"', '"id":"0"'), ['"id"', "twice"]),
    "D1 a key twice, once escaped": (with_value('{"ab":1,"\\u0061b":2}'), ['"ab"', "twice"]),
    "D1 a key twice, deep in a list": (with_value('[[{"deep":[{"x":1,"x":1}]}]]'), ['"x"', "twice"]),
    "D2 NaN": (with_value("NaN"), ["NaN"]),
    "D2 Infinity": (with_value("Infinity"), ["Infinity"]),
    "D2 minus Infinity": (with_value("-Infinity"), ["Infinity"]),
    "D2 a number beyond floats": (with_value("1e999"), ["number", "range"]),
    "D2 NaN in parsed JSON": (in_envelope({"eventId": "e-1", "n": float("nan")}), ["NaN"]),
    "D2 Infinity in parsed JSON": (in_envelope({"eventId": "e-1", "n": float("inf")}), ["Infinity"]),
    "D3 half a surrogate pair": (with_value(f'"{HALF}"'), ["surrogate"]),
    "D3 the wrong half": (with_value('"\\udc00x"'), ["surrogate"]),
    "D3 half a pair as a key": (with_value(f'{{"{HALF}":1}}'), ["surrogate"]),
    "D3 half a pair in parsed JSON": (in_envelope({"eventId": "e-1", "note": "\ud800"}), ["surrogate"]),
    "D3 half a pair in text": ('{"detail":{"eventId":"\ud800"}}', ["surrogate"]),
    "D4 U+0000": (with_value(f'"a{NUL}b"'), ["U+0000", "field"]),
    "D4 U+0000 in a key": (with_value(f'{{"a{NUL}":1}}'), ["U+0000"]),
    "D4 U+0000 in a list": (with_value(f'[1,["{NUL}"]]'), ["U+0000", "field"]),
    "D4 U+0000 in an object in a list": (with_value(f'[{{"inner":"{NUL}"}}]'), ["U+0000", "inner"]),
    "D4 U+0000 in parsed JSON": (in_envelope({"eventId": "e-1", "note": "\x00"}), ["U+0000", "note"]),
    "D4 U+0000 in the envelope": (TEXT.replace(ENVELOPE_ID, f"a{NUL}"), ["U+0000", '"id"']),
    "D4 the bare byte 0": (TEXT.replace("e-1", "\x00"), ["control character"]),
    "D5 4,301 digits": (with_value("9" * 4301), ["digits"]),
    "D5 4,301 digits, negative": (with_value("-" + "9" * 4301), ["digits"]),
    "D5 4,301 digits in parsed JSON": (in_envelope({"eventId": "e-1", "n": 10**4301}), ["digits"]),
    "D6 nesting": (with_value("[" * 200_000 + "]" * 200_000), ["nested", str(DEPTH_MAX)]),
    "D6 nesting of objects": (with_value('{"a":' * 5_000 + "1" + "}" * 5_000), ["nested", str(DEPTH_MAX)]),
    "D6 nesting without end": (DEEP, ["nested"]),
    "D6 too many lists": (with_value("[" + "[]," * CONTAINERS_MAX + "1]"), ["100,00", "objects and lists"]),
    "D7 UTF-16 with a mark": (TEXT.encode("utf-16"), ["byte order mark"]),
    "D7 UTF-16 without a mark": (TEXT.encode("utf-16-le"), ["UTF-16"]),
    "D7 UTF-16, big end first": (TEXT.encode("utf-16-be"), ["UTF-16"]),
    "D7 UTF-32": (TEXT.encode("utf-32-be"), ["UTF-32"]),
    "D7 UTF-8 with a mark": (b"\xef\xbb\xbf" + TEXT.encode(), ["byte order mark"]),
    "D7 a mark in text": ("\ufeff" + TEXT, ["byte order mark"]),
    "D7 Latin-1": (TEXT.replace("e-1", "é").encode("latin-1"), ["UTF-8"]),
    "D7 an overlong sequence": (TEXT.encode().replace(b"e-1", b"\xc0\xaf"), ["UTF-8"]),
    "D7 an encoded surrogate": (TEXT.encode().replace(b"e-1", b"\xed\xa0\x80"), ["UTF-8"]),
    "D9 too large": (b" " * (BYTES_MAX + 1), ["bytes", "limit"]),
    "D10 a list": (f"[{TEXT}]", ["list", "object"]),
    "D10 a text": (json.dumps(TEXT), ["text", "object"]),
    "D10 a number": ("1", ["number", "object"]),
    "D10 true": (b"true", ["true or false", "object"]),
    "D10 null": (b"null", ["null", "object"]),
    "D10 None": (None, ["null", "object"]),
    "D10 a detail written twice over": (in_envelope(json.dumps(TREE["detail"])), ["detail", "text"]),
    "D10 a detail that is a list": (in_envelope([TREE["detail"]]), ["detail", "list"]),
    "D10 no detail": (in_envelope(ABSENT) | {"detail": None}, ["detail", "missing"]),
    "D10 an id that is a number": ({**TREE, "id": 17}, ["id", "number"]),
    "D10 an id that is an object": ({**TREE, "id": {"v": SECRET_WORD}}, ["id", "object"]),
    "D10 a source that is a list": ({**TREE, "source": [SECRET_WORD]}, ["source", "list"]),
    "D10 a detail-type that is true": ({**TREE, "detail-type": True}, ["detail-type", "true or false"]),
    "D10 a topic name that is a number": (envelope(ACW, frame={"topicName": 5}), ["topicName", "number"]),
    "D10 an empty topic name": (envelope(ACW, frame={"topicName": ""}), ["topicName"]),
    "D10 a body that is text": (envelope(ACW, frame={"eventBody": SECRET_WORD}), ["eventBody", "text"]),
    "D10 a body that is null": (envelope(ACW, frame={"eventBody": None}), ["eventBody", "null"]),
    "D10 nothing that tells what it is": ({"note": SECRET_WORD}, ["detail-type", "topicName"]),
    "nothing": (b"", ["empty"]),
    "white space": (" \n\t", ["empty"]),
    "no JSON": (SECRET_WORD, ["not JSON"]),
    "cut off": (TEXT[:-10], ["not JSON", "character"]),
    "followed by more": (TEXT + TEXT, ["not JSON", "extra data"]),
    "a comma too many": (TEXT.replace("}}", "},}"), ["not JSON", "character"]),
    "single quotes": (str(TREE["detail"]), ["not JSON"]),
    "a leading zero": (with_value("007"), ["not JSON"]),
    "a comment": (with_value("1 /* one */"), ["not JSON"]),
    "a line break in text": (TEXT.replace("e-1", "e\n1"), ["control character"]),
    "an unknown escape": (with_value('"\\x41"'), ["escape"]),
    "something that JSON has not": (in_envelope({"eventId": "e-1", "when": {1, 2}}), ["set"]),
    "a key that JSON has not": ({("a", "b"): 1}, ["keys"]),
}  # fmt: skip


@pytest.mark.parametrize("what", UNREADABLE)
def test_unreadable_names_what_is_wrong(what):
    """Input that cannot be read exactly is refused, and the reason names what is wrong."""
    delivery, words = UNREADABLE[what]
    reason = refusal(delivery)
    assert all(word in reason for word in words), reason


@pytest.mark.parametrize("what", UNREADABLE)
def test_reason_holds_no_value(what):
    """A reason is short, of one line, and never repeats what a payload says."""
    reason = refusal(UNREADABLE[what][0])
    assert SECRET_WORD not in reason
    assert len(reason) < 200
    assert reason.isprintable()


def test_long_names_are_cut():
    """Of a field name from outside only the beginning is shown, without control characters."""
    name = json.dumps("\x1b[31m" + "n" * 10_000)
    reason = refusal(with_value(f"{{{name}:1,{name}:2}}"))
    assert "twice" in reason
    assert len(reason) < 200
    assert reason.isprintable()


def test_itself_is_refused():
    """A structure that holds itself is refused like any other that is no JSON."""
    tree = in_envelope({"eventId": "e-1"})
    tree["detail"]["self"] = tree
    assert "itself" in refusal(tree)


@pytest.mark.parametrize("nest", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_parsed_json_of_any_depth_is_refused(nest):
    """Parsed JSON that is nested too deeply is refused, however deep."""
    inner = 1
    for _ in range(100_000):
        inner = nest(inner)
    assert "nested" in refusal({"detail-type": "x", "detail": {"eventId": "e-1", "deep": inner}})


def test_depth_has_an_exact_limit():
    """Nesting up to the limit is read, one level more is refused."""
    inside = DEPTH_MAX - 2  # the envelope and the detail are levels too
    assert parse(with_value("[" * inside + "]" * inside)).topic
    assert "nested" in refusal(with_value("[" * (inside + 1) + "]" * (inside + 1)))


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]"), ("[ ", " ]")])
def test_no_depth_crashes(opening, closing):
    """Around the depth at which Python itself gives up, every level is refused in words."""
    for depth in range(400, 1100):
        assert "nested" in refusal(with_value(opening * depth + "1" + closing * depth))


# --- whatever arrives -------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["detail", "detail-type", "id", "source", "time", "replay-name", "topicName", "eventBody", "timestamp", "version",
     "eventId", "conversationId", "status", "body", "data", "type", "metadata", "resources"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(ACW)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=6)
)


def is_read_or_refused(delivery):
    """Tell that a delivery ends as an event or as a refusal in words, and as nothing else."""
    try:
        event = parse(delivery)
    except Unreadable as refused:
        return bool(str(refused))
    return bool(event.topic) and type(event.body) is dict


@given(st.dictionaries(NAMES | st.text(max_size=4), JSON, max_size=8))
def test_any_object_is_read_or_refused(tree):
    """Any JSON object is read, or refused in words; nothing else is ever raised."""
    assert is_read_or_refused(tree)
    assert is_read_or_refused(json.dumps(tree))


@given(st.binary(max_size=64) | st.text(max_size=64) | JSON)
def test_anything_is_read_or_refused(delivery):
    """Bytes, text or JSON of any kind is read, or refused in words."""
    assert is_read_or_refused(delivery)


@given(
    st.sampled_from([raw(envelope(ACW)), raw(envelope(TRANSCRIPTION)), raw(tutorial())]),
    st.integers(min_value=0),
    st.integers(1, 8),
)
def test_damaged_events_are_read_or_refused(delivery, seed, changes):
    """However the bytes of an event are damaged, it is read or refused in words."""
    chance = random.Random(seed)
    damaged = bytearray(delivery)
    for _ in range(changes):
        at = chance.randrange(len(damaged))
        match chance.randrange(4):
            case 0:
                damaged[at] = chance.randrange(256)
            case 1:
                del damaged[at : at + chance.randrange(1, 9)]
            case 2:
                damaged[at:at] = chance.choice([b'"', b"{", b"}", b"[", b",", b"\\", b"\x00", b"1e9", b"null", b"\xf0"])
            case _:
                damaged[at:at] = damaged[: chance.randrange(20)]
        damaged = damaged or bytearray(b" ")
    assert is_read_or_refused(bytes(damaged))
