"""What makes two deliveries the same event: what counts, what does not, and what stands in where nothing does."""

import json
import random
import re

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from oncebridge import Bridge
from oncebridge.event import parse
from oncebridge.identity import (
    conflict_key,
    digest,
    identify,
    key_bytes,
    key_text,
    moment_of,
    read_time,
    subject_digest,
    unreadable_key,
    without,
)
from oncebridge.telemetry import Telemetry
from oncebridge.topics import Kind, Profile, Profiles, paths_of, plain
from payloads import (
    ABSENT,
    ACTIVITY,
    ACW,
    ATTRIBUTES,
    AUDITS,
    BODIES,
    CANARIES,
    HAND_MADE,
    METRICS,
    OBSERVATIONS,
    OTHER_ORG,
    OUTCOME,
    PRESENCE,
    PUBLISHED_MS,
    SNAPSHOT,
    TIME_MS,
    call_status,
    detail,
    envelope,
    in_envelope,
    iso,
    personal,
    presence,
    queue_conversation,
    raw,
    routing_status,
    source,
    status_change,
    tutorial,
)

SECRET = b"a secret for tests, 32 bytes long"
NS = 1_000_000_000


def identity(tree, *own, secret=SECRET, **options):
    """Return the identity of a delivery."""
    event = parse(tree)
    return identify(event, Profiles(own).of(event), secret, **options)


def key(tree, *own, **options):
    """Return the key of a delivery."""
    return identity(tree, *own, **options).key


# --- what does not count ----------------------------------------------------------------------------------------

IGNORED = {
    "envelope id": {"id": "another"},
    "no envelope id": {"id": ABSENT},
    "envelope time": {"time": "2025-06-05T00:00:00Z"},
    "account": {"account": "000000000000"},
    "region": {"region": "ap-south-1"},
    "resources": {"resources": ["arn:aws:events:::x"]},
    "envelope version": {"version": "1"},
    "source suffix": {"source": source(suffix="second-integration")},
    "test source": {"source": source(domain="genesys.com.test")},
    "replay name": {"replay_name": "tuesday again"},
    "correlation id": {"frame": {"metadata": {"CorrelationId": "another"}}},
    "no metadata": {"frame": {"metadata": ABSENT}},
    "payload format": {"frame": {"version": "3"}},
    "unknown envelope field": {"ingestion_time": "now"},
}


@pytest.mark.parametrize("what", IGNORED)
@pytest.mark.parametrize("topic", [ACW, AUDITS, METRICS, PRESENCE, SNAPSHOT, OBSERVATIONS, ACTIVITY])
def test_ignored(what, topic):
    """What the road adds to an event never belongs to its identity, nor to its entity."""
    usual, other = identity(envelope(topic)), identity(envelope(topic, **IGNORED[what]))
    assert (usual.key, usual.entity, usual.state, usual.content) == (
        other.key,
        other.entity,
        other.state,
        other.content,
    )


@pytest.mark.parametrize("what", ["envelope id", "envelope time", "account", "region", "replay name"])
@pytest.mark.parametrize("shape", HAND_MADE)
def test_ignored_of_hand_made_shapes(what, shape):
    """What the road adds does not count for hand-made events either, unless nothing else tells them apart."""
    usual, other = identity(HAND_MADE[shape](id="one")), identity(HAND_MADE[shape](**{"id": "one", **IGNORED[what]}))
    only_the_envelope_tells = shape == "interaction update" and what == "envelope id"
    assert (usual.key == other.key) is not only_the_envelope_tells


def test_missing_detail_type_does_not_count():
    """A target that drops the detail-type does not make an event another."""
    assert key(envelope(ACW, detail_type=ABSENT)) == key(envelope(ACW))


@given(st.randoms(use_true_random=False), st.sampled_from([*BODIES]))
def test_order_and_white_space_do_not_count(chance, topic):
    """Neither the order of keys nor white space makes an event another, at any depth."""

    def shuffled(node):
        if isinstance(node, dict):
            items = [(name, shuffled(value)) for name, value in node.items()]
            chance.shuffle(items)
            return dict(items)
        return [shuffled(item) for item in node] if isinstance(node, list) else node

    tree = envelope(topic)
    assert key(json.dumps(shuffled(tree), indent=chance.choice([None, 1, "\t"]))) == key(tree)


# --- what counts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", BODIES)
def test_every_field_counts(topic):
    """Any other body is another event: each field, missing, null or other, counts."""
    body = detail(topic)["eventBody"]
    versions = [{}, {"somethingNew": 1}, {"somethingNew": None}]
    versions += [{name: value} for name in body for value in (ABSENT, None, "other", 17, {})]
    keys = [identity(envelope(topic, changes)) for changes in versions]
    content = {(one.key, one.content) for one in keys}
    already = sum(value in (None, {}) for value in body.values())  # changing these to themselves changes nothing
    assert len(content) == len(versions) - already


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 1}, {"n": 1.0}),
        ({"n": 1}, {"n": "1"}),
        ({"n": 0}, {"n": False}),
        ({"n": None}, {}),
        ({"n": ""}, {}),
        ({"n": []}, {"n": {}}),
        ({"n": [1, 2]}, {"n": [2, 1]}),
        ({"n": {"a": {"b": 1}}}, {"n": {"a": {"b": 2}}}),
        ({"n": 2**53}, {"n": 2**53 + 1}),
        ({"n": 10**30}, {"n": 10**30 + 1}),
        ({"n": "é"}, {"n": "e\u0301"}),
        ({"n": "a"}, {"n": "а"}),  # noqa: RUF001 - a Cyrillic letter
        ({"n": "A"}, {"n": "a"}),
        ({"n": "a "}, {"n": "a"}),
        ({"n": {"a": 1, "b": 2}}, {"n": {"a": 2, "b": 1}}),
        ({"ab": "c"}, {"a": "bc"}),
    ],
)
def test_bodies_stay_apart(one, other):
    """Bodies that differ in anything but order and white space are different events."""
    assert key(envelope(ACW, one)) != key(envelope(ACW, other))


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
SCALARS = st.none() | st.booleans() | st.integers() | WORDS
NESTED = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=8
)


@given(NESTED, NESTED)
def test_equal_keys_mean_equal_bodies(one, other):
    """Two bodies have one key exactly where they are the same JSON."""
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (key(envelope(ACW, {"more": one})) == key(envelope(ACW, {"more": other}))) is same


def test_topic_name_counts():
    """The same body under another topic name is another event: another user's presence, for one."""
    keys = {
        key(envelope(PRESENCE)),
        key(envelope(PRESENCE, frame={"topicName": "v2.users.somebody-else.presence"})),
        key(envelope(SNAPSHOT)),
        key(envelope("v2.users.{id}.conversations.calls")),
        key(envelope("v2.routing.queues.{id}.conversations")),
    }
    assert len(keys) == 5


@pytest.mark.parametrize("topic", BODIES)
def test_orgs_stay_apart(topic):
    """The same event of another organization is another event of another entity."""
    own, other = identity(envelope(topic)), identity(envelope(topic, source=source(OTHER_ORG)))
    assert own.key != other.key
    assert own.entity is None or own.entity != other.entity


def test_secrets_stay_apart():
    """Under another secret everything has another name, so keys cannot be worked out from payloads."""
    one, other = identity(envelope(PRESENCE)), identity(envelope(PRESENCE), secret=b"another secret for tests, 32 b.")
    assert not {one.key, one.entity, one.state} & {other.key, other.entity, other.state}


def test_two_writes_in_one_millisecond_stay_apart():
    """Two attribute writes in one millisecond are two events, and so are two outcomes of one flow."""
    assert key(envelope(ATTRIBUTES)) != key(envelope(ATTRIBUTES, {"attributes": {"verified": "no"}}))
    assert key(envelope(OUTCOME)) != key(envelope(OUTCOME, {"flowOutcomeId": "another"}))


# --- publish time and envelope id -------------------------------------------------------------------------------

LATER = {"timestamp": iso(PUBLISHED_MS + 5_000)}
WHOLE_SECONDS = iso(TIME_MS, digits=0)

#: Payloads with an own time of millisecond precision or an id, and payloads with neither.
PRECISE = {
    "integer milliseconds": (ACW, {}),
    "ISO text with milliseconds": (PRESENCE, {}),
    "ISO text with microseconds": (PRESENCE, {"modifiedDate": "2025-06-02T10:30:00.123456Z"}),
    "seconds with a fraction": (ACW, {"eventTime": 1748860200.123}),
    "three times with milliseconds": (ACTIVITY, {}),
    "an explicit id, whatever the time": (AUDITS, {"eventTime": WHOLE_SECONDS}),
    "a record id, whatever the time": (METRICS, {"metricDate": WHOLE_SECONDS}),
    "a record id without a time": (METRICS, {"metricDate": ABSENT}),
}
COARSE = {
    "no time": (PRESENCE, {"modifiedDate": ABSENT}),
    "a null time": (PRESENCE, {"modifiedDate": None}),
    "a time that is none": (PRESENCE, {"modifiedDate": "yesterday"}),
    "a snapshot": (SNAPSHOT, {}),
    "a reading": (OBSERVATIONS, {}),
    "a queue's member": ("v2.routing.queues.{id}.users", {}),
    "ISO text with whole seconds": (PRESENCE, {"modifiedDate": WHOLE_SECONDS}),
    "ISO text with tenths": (PRESENCE, {"modifiedDate": "2025-06-02T10:30:00.1Z"}),
    "epoch seconds": (ACW, {"eventTime": TIME_MS // 1000}),
    "one of three times coarse": (ACTIVITY, {"dateActiveQueuesChanged": WHOLE_SECONDS}),
    "a metric without its record id": (METRICS, {"recordId": ABSENT, "metricDate": WHOLE_SECONDS}),
    "an audit without its id": (AUDITS, {"id": ABSENT, "eventTime": WHOLE_SECONDS}),
}


@pytest.mark.parametrize("what", PRECISE)
def test_publish_time_stays_out(what):
    """An event with a time of millisecond precision or an id of its own is the same whenever it is published."""
    topic, body = PRECISE[what]
    keys = {key(envelope(topic, body, frame=frame)) for frame in ({}, LATER, {"timestamp": ABSENT})}
    assert len(keys) == 1


@pytest.mark.parametrize("what", COARSE)
def test_publish_time_joins(what):
    """Where equal bodies recur legitimately, the publish time tells them apart."""
    topic, body = COARSE[what]
    usual = envelope(topic, body)
    assert key(usual) != key(envelope(topic, body, frame=LATER))
    assert key(usual) == key(envelope(topic, body, id="another envelope"))


@pytest.mark.parametrize("what", COARSE)
def test_envelope_id_joins_last(what):
    """Without a publish time either, the envelope id tells equal bodies apart."""
    topic, body = COARSE[what]
    one, other = (envelope(topic, body, frame={"timestamp": ABSENT}, id=name) for name in ("one", "other"))
    assert key(one) == key(one)
    assert key(one) != key(other)


@pytest.mark.parametrize("what", COARSE)
@pytest.mark.parametrize("envelope_id", [ABSENT, None, ""])
def test_without_anything_it_is_always_another(what, envelope_id):
    """An event that nothing tells from its equals is never taken for one of them: when in doubt, process."""
    topic, body = COARSE[what]
    tree = envelope(topic, body, frame={"timestamp": ABSENT}, id=envelope_id)
    assert len({key(tree) for _ in range(3)}) == 3


def test_forms_of_publish_time():
    """A publish time counts in whatever form it comes; an empty one is none."""
    numbers = [
        key(envelope(OBSERVATIONS, frame={"timestamp": at}))
        for at in (PUBLISHED_MS, PUBLISHED_MS + 1, iso(PUBLISHED_MS))
    ]
    assert len(set(numbers)) == 3
    empty = envelope(OBSERVATIONS, frame={"timestamp": ""})
    assert key(empty) == key(envelope(OBSERVATIONS, frame={"timestamp": ABSENT}))


# --- explicit ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "other"),
    [
        (envelope(AUDITS), envelope(AUDITS, {"action": "Delete"})),
        (queue_conversation("waiting"), queue_conversation("accepted")),
        (status_change("held"), status_change("ended")),
        (tutorial("alerting"), tutorial("connected")),
    ],
)
def test_explicit_id_identifies(tree, other):
    """With an explicit id the content does not identify; it is compared, so that a conflict is noticed."""
    one, two = identity(tree), identity(other)
    assert one.key == two.key
    assert None not in (one.content, two.content)
    assert one.content != two.content
    assert identity(tree).content == one.content


@pytest.mark.parametrize("make", [status_change, queue_conversation, tutorial])
def test_other_explicit_id_is_another_event(make):
    """Another explicit id is another event, however equal the rest."""
    assert key(make(event_id="a")) != key(make(event_id="b"))


def test_explicit_ids_keep_their_type():
    """The text "1" and the number 1 are different ids."""
    assert key(status_change(event_id=1)) != key(status_change(event_id="1"))


@pytest.mark.parametrize("event_id", ["", None, {"a": 1}, [1], True])
def test_what_is_no_id_does_not_identify(event_id):
    """An id that is empty or no scalar is none: the body identifies."""
    assert identity(call_status()).content is None
    tree = in_envelope({"conversationId": "call-31", "eventId": event_id, "timestamp": TIME_MS})
    assert identity(tree).content is None
    assert key(tree) != key(in_envelope({**tree["detail"], "timestamp": TIME_MS + 1}))


def test_bare_id_only_by_configuration():
    """A bare `detail.id` is an explicit id only where a profile says so."""
    one, other = (in_envelope({"id": "x", "conversationId": "c", "n": n, "timestamp": TIME_MS}) for n in (1, 2))
    own = Profile(topic="Conversation Changed", explicit_id=plain("id"))
    assert key(one) != key(other)
    assert key(one, own) == key(other, own)


def test_metrics_with_one_record_id_stay_apart():
    """Two metrics under one record id are two events: nothing documents that it is unique across metrics."""
    assert key(envelope(METRICS)) != key(envelope(METRICS, {"metric": "tHeld"}))
    assert key(envelope(METRICS)) != key(envelope(METRICS, {"value": 1}))
    assert identity(envelope(METRICS)).content is None


# --- profiles and replays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("mediaType", {"mediaType": "CHAT"}),
        ("mediaType", {"mediaType": ABSENT}),
        ("extra.score", {"extra": {"score": 2, "kept": 1}}),
        ("items[].score", {"items": [{"score": 9, "kept": 1}, {"kept": 2}]}),
    ],
)
def test_excluded_fields_do_not_count(path, changes):
    """A profile may leave fields out of the identity, in objects and in lists; everything else still counts."""
    usual = {"extra": {"score": 1, "kept": 1}, "items": [{"score": 1, "kept": 1}, {"score": 2, "kept": 2}]}
    own = Profile(topic=ACW, time=(plain("eventTime"),), exclude=(plain(path),))
    assert key(envelope(ACW, usual), own) == key(envelope(ACW, {**usual, **changes}), own)
    assert key(envelope(ACW, usual)) != key(envelope(ACW, {**usual, **changes}))
    assert key(envelope(ACW, usual), own) != key(envelope(ACW, {**usual, **changes, "new": 1}), own)


def left_out(node, path):
    """Leave one path out, the slow way: the rule that `without` follows for all paths at once."""
    name, *rest = path
    if isinstance(node, list):
        return [left_out(item, rest) for item in node] if name == "[]" and rest else node
    if not isinstance(node, dict) or name == "[]" or name not in node:
        return node
    kept = {key: value for key, value in node.items() if key != name}
    return {**kept, name: left_out(node[name], rest)} if rest else kept


NODES = st.recursive(
    st.integers(0, 1), lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from("ab"), below)
)
PATHS = st.lists(st.sampled_from(["a", "b", "a.a", "a.b", "b.a.b", "a[]", "a[].b", "b[][].a", "b[].a.b"]), max_size=3)


@given(st.dictionaries(st.sampled_from("ab"), NODES), PATHS)
@example({"a": {"b": 1, "a": 2}}, ["a", "a.b"])
@example({"a": {"b": 1, "a": 2}}, ["a.b", "a"])
@example({"a": [{"b": 1, "a": 2}, {"a": 3}, [0]]}, ["a[].b", "a[]", "a.b"])
def test_paths_are_left_out_together_as_one_by_one(body, paths):
    """Paths that are left out in one pass leave what is left when each of them is left out by itself."""
    expected = body
    for path in paths:
        expected = left_out(expected, plain(path).path)
    before = json.dumps(body)
    assert without(body, paths_of(map(plain, paths))) == expected
    assert json.dumps(body) == before


def test_excluded_fields_are_no_conflict():
    """What is excluded does not make a conflict under an explicit id, nor another state."""
    own = Profile(topic=AUDITS, explicit_id=plain("id"), exclude=(plain("action"),))
    assert identity(envelope(AUDITS), own).content == identity(envelope(AUDITS, {"action": "Delete"}), own).content


def test_kind_never_counts():
    """The kind of a topic decides echo and stale, never identity."""
    keys = {key(envelope(ACW), Profile(topic=ACW, kind=kind, time=(plain("eventTime"),))) for kind in Kind}
    assert keys == {key(envelope(ACW))}


def test_replays_count_like_anything_else():
    """A replayed event is the same event, unless told otherwise."""
    assert key(envelope(ACW, replay_name="one", id=ABSENT)) == key(envelope(ACW))


@pytest.mark.parametrize("topic", [ACW, AUDITS, PRESENCE, SNAPSHOT])
def test_named_replays_anew(topic):
    """Where each named replay counts anew, its name joins key and entity; without a name nothing changes."""
    live, first, second = (
        identity(envelope(topic, replay_name=name), replays_anew=True) for name in (ABSENT, "first", "second")
    )
    assert len({live.key, first.key, second.key}) == 3
    assert live.entity is None or len({live.entity, first.entity, second.entity}) == 3
    assert (live.key, live.entity) == (identity(envelope(topic)).key, identity(envelope(topic)).entity)
    assert identity(envelope(topic, replay_name="first", id="again"), replays_anew=True).key == first.key


# --- times ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        TIME_MS,
        str(TIME_MS),
        TIME_MS * 1000,
        "2025-06-02T10:30:00.123Z",
        "2025-06-02T10:30:00.123z",
        "2025-06-02T10:30:00.123000Z",
        "2025-06-02T10:30:00.123000000Z",
        "2025-06-02T10:30:00,123Z",
        "2025-06-02 10:30:00.123Z",
        "2025-06-02T12:30:00.123+02:00",
        "2025-06-02T12:30:00.123+0200",
        "2025-06-02T12:30:00.123+02",
        "2025-06-02T05:00:00.123-05:30",
        "2025-06-02T10:30:00.123",
        1748860200.123,
    ],
)
def test_forms_of_one_time(written):
    """Milliseconds, microseconds, seconds and ISO text of one moment are the same time."""
    assert read_time(written) == (TIME_MS * 1_000_000, True)


@pytest.mark.parametrize("written", [TIME_MS // 1000, "2025-06-02T10:30:00Z", str(TIME_MS // 1000), 1748860200.0])
def test_whole_seconds_are_not_precise(written):
    """Whole seconds are a time, but not precise enough to tell events apart."""
    assert read_time(written) == (TIME_MS // 1000 * NS, False)


@pytest.mark.parametrize(
    "written",
    [
        None, True, "", "now", "5", -1, 10**17, 10**40, 1e300, -0.5, [], {}, "2025-06-02", "2025-13-02T10:30:00Z",
        "2025-06-02T25:30:00Z", "2025-06-02T10:30:00.123+25:00", "२०२५-06-02T10:30:00Z",
    ],
)  # fmt: skip
def test_what_is_no_time(written):
    """What cannot be read as a time is none, and nothing is guessed."""
    assert read_time(written) is None


MINUTES = st.sampled_from(
    [
        "1969-12-31T23:59",
        "1970-01-01T00:00",
        "2025-02-30T10:30",
        "2025-06-02T10:30",
        "2262-04-11T23:47",
        "9999-12-31T24:00",
    ]
)


@given(MINUTES, st.from_regex(r"[0-6]\d\.\d{3}", fullmatch=True))
@example("2025-06-02T10:30", "59.999")
@example("2025-06-02T10:30", "60.000")
@example("2025-06-02T10:30", "0\u0663.081")
@example("2025-06-02T10:30", "+1.081")
@example("2262-04-11T23:47", "16.854")
def test_times_of_one_minute_are_read_like_any(minute, seconds):
    """A time as Genesys writes it, read by its minute, is the time that it is in another notation."""
    assert read_time(f"{minute}:{seconds}Z") == read_time(f"{minute}:{seconds}+00:00")


def test_times_before_1970_are_placeholders():
    """Dates long ago are placeholders: times, equal to each other and older than all else."""
    placeholders = {read_time(text) for text in ("0001-01-01T00:00:00.000Z", "1969-12-31T23:59:59.999Z")}
    assert placeholders == {(0, True)}
    assert read_time("9999-12-31T23:59:59.999Z")[0] > read_time(TIME_MS)[0]


@given(
    st.text()
    | st.floats()
    | st.integers()
    | st.from_regex(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?([+-]\d\d:?\d\d|Z)?")
)
@example(99_999_999_999)  # the last second that is read as one, beyond 64 bits of nanoseconds
@example(99_999_999_999_999_999)
@example(99_999_999_999.5)
def test_any_value_is_a_time_or_none(written):
    """Whatever stands where a time should is a time or none; nothing is ever raised."""
    read = read_time(written)
    assert read is None or (0 <= read[0] < 2**63 and isinstance(read[1], bool))


def test_full_precision():
    """Times are compared to the nanosecond, as far as they were given."""
    times = [
        "2025-06-02T10:30:00.123Z", "2025-06-02T10:30:00.1230001Z", "2025-06-02T10:30:00.123000101Z",
        "2025-06-02T10:30:00.123001Z",
    ]  # fmt: skip
    moments = []
    for time in times:
        event = parse(envelope(PRESENCE, {"modifiedDate": time}))
        moments.append(moment_of(event, Profiles().of(event))[0].times[0])
    assert [moment - TIME_MS * 1_000_000 for moment in moments] == [0, 100, 101, 1000]


def test_float_times_keep_their_digits():
    """Seconds with a fraction are read from their digits, not from what a float makes of them."""
    tree = raw(call_status(moment=0)).replace(b'"timestamp":0', b'"timestamp":1748860200.123456789')
    event = parse(tree)
    assert moment_of(event, Profiles().of(event))[0].times == (1748860200123456789,)


@pytest.mark.parametrize(
    ("tree", "time_ms"),
    [
        (envelope(ACW), TIME_MS),
        (envelope(ACTIVITY), TIME_MS),
        (envelope(SNAPSHOT), PUBLISHED_MS),
        (envelope(SNAPSHOT, frame={"timestamp": ABSENT}), PUBLISHED_MS // 1000 * 1000),
        (envelope(SNAPSHOT, frame={"timestamp": ABSENT}, time=ABSENT), None),
    ],
)
def test_time_of_an_event(tree, time_ms):
    """An event's time is its own, the latest of several, else the publish time, else the envelope's."""
    assert identity(tree).time_ms == time_ms


def test_envelope_time_only_orders():
    """The envelope's whole seconds order states, but no echo is told by them."""
    event = parse(envelope(SNAPSHOT, frame={"timestamp": ABSENT}))
    assert not moment_of(event, Profiles().of(event))[0].echoes
    event = parse(envelope(SNAPSHOT))
    assert moment_of(event, Profiles().of(event))[0].echoes


# --- state ------------------------------------------------------------------------------------------------------


def test_state_is_the_body_without_times_and_ids():
    """Two events have one state where they differ in nothing but times and ids."""
    assert identity(routing_status("IDLE", 1)).state == identity(routing_status("IDLE", 99)).state
    assert identity(routing_status("IDLE", 1)).state != identity(routing_status("OFF_QUEUE", 1)).state
    ids = [identity(queue_conversation(event_id=name, moment=TIME_MS + n)).state for n, name in enumerate("ab")]
    assert ids[0] == ids[1]
    assert identity(presence("BUSY", modified_ms=1)).state != identity(presence("AWAY", modified_ms=1)).state


def test_facts_have_no_state():
    """Facts and samples have neither entity nor state."""
    assert [(one.entity, one.state) for one in (identity(envelope(ACW)), identity(envelope(OBSERVATIONS)))] == [
        (None, None)
    ] * 2


# --- digests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([b"a:b", b"c"], [b"a", b"b:c"]),
        ([b"a", b"bc"], [b"ab", b"c"]),
        ([b"a", b""], [b"", b"a"]),
        ([b"a"], [b"a", b""]),
        ([b"\x00\x00\x00\x01a"], [b"a"]),
        ([], [b""]),
    ],
)
def test_parts_stay_apart(one, other):
    """Parts are length-prefixed, so that no two lists of parts read the same."""
    assert digest(SECRET, b"event", one) != digest(SECRET, b"event", other)


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_different_parts_have_different_digests(one, other):
    """Digests are equal exactly where the parts are."""
    assert (digest(SECRET, b"x", one) == digest(SECRET, b"x", other)) is (one == other)


def test_org_and_topic_do_not_run_together():
    """What is moved from the org to the topic name changes the key."""
    inner = {"eventId": "e-1"}
    assert key(in_envelope(inner, source="a", detail_type="b:c")) != key(
        in_envelope(inner, source="a:b", detail_type="c")
    )
    assert key(in_envelope(inner, source="a", detail_type="bc")) != key(
        in_envelope(inner, source="ab", detail_type="c")
    )


def test_purposes_stay_apart():
    """The same bytes have different digests as event, raw, subject and conflict."""
    part = b"same"
    digests = {
        digest(SECRET, b"event", [part]),
        unreadable_key(SECRET, part),
        subject_digest(SECRET, part.decode()),
        conflict_key(SECRET, part, None),
    }
    assert len(digests) == 4


@pytest.mark.parametrize("event_id", ["{}", "a:b", "a\nb", "x" * 256, "ключ", "\\", '"', "ob1_"])
def test_keys_have_one_form(event_id):
    """A key has one fixed form with a version, whatever stands in the ids."""
    text = key_text(key(status_change(event_id=event_id)))
    assert re.fullmatch(r"ob1_[0-9a-f]{32}", text)
    assert key_text(key_bytes(text)) == text


@pytest.mark.parametrize("text", ["", "ob1", "ob1_", "ob2_" + "0" * 32, "ob1_" + "g" * 32, "ob1_" + "0" * 31, "0" * 32])
def test_what_is_no_key(text):
    """What was never a key of this version is read as none."""
    assert key_bytes(text) is None


# --- personal data ----------------------------------------------------------------------------------------------


def canaries_in(text):
    """Return which personal data stand in a text."""
    return [name for name, value in CANARIES.items() if value.lower() in text.lower()]


@pytest.mark.parametrize("number", range(len(personal())))
def test_no_personal_data_outside_the_event(number):
    """Key, entity, results, moves and everything shown of a bridge hold nothing that a payload says."""
    moves, events = [], []
    bridge = Bridge("memory://", telemetry=Telemetry((moves.append,)))

    @bridge.on("*")
    def take(event):
        events.append(event)
        raise ValueError(str(event.body))

    tree = personal()[number]
    results = bridge.process_many([tree, tree, {**tree, "id": "again"}, raw(tree)[:-5]])
    assert len(events) == 1
    assert canaries_in(json.dumps(events[0].body))
    shown = [events[0].key, events[0].entity, *results, *moves, bridge, bridge.books.as_dict(), bridge.ledger]
    assert [canaries_in(repr(one)) for one in shown] == [[]] * len(shown)
    bridge.close()


def test_identity_itself_holds_digests():
    """Of an event, a ledger gets digests, topic and time alone."""
    trees = personal()
    assert trees
    for tree in trees:
        assert canaries_in(json.dumps(tree))
        found = identity(tree)
        told = (found.key, found.entity, found.state, found.content, found.conversation, found.user, found.moment)
        assert not canaries_in(repr(told))


# --- whatever arrives -------------------------------------------------------------------------------------------


@given(st.integers(min_value=0), st.sampled_from([*BODIES]))
def test_odd_values_are_identified(seed, topic):
    """Whatever stands in the fields of a known topic, the event has a key and it is the same every time."""
    chance = random.Random(seed)
    odd = [None, True, "", " ", 0, -1, 1.5, 10**30, [], {}, [None], {"id": None}, "x" * 256, "2025", {"startTime": 7}]
    changes = {name: chance.choice(odd) for name in detail(topic)["eventBody"] if chance.random() < 0.5}
    tree = envelope(topic, changes)
    assert identity(tree) == identity(tree)
