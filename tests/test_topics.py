"""The profiles: what is known of each topic family, where hand-made events keep things, and who overrules whom."""

import json
import re
import time
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given

from oncebridge.event import parse
from oncebridge.handlers import overlap
from oncebridge.identity import NS_PER_MS, entity_parts, moment_of
from oncebridge.topics import (
    BUILT_IN,
    Kind,
    Profile,
    Profiles,
    conversation_id,
    plain,
    plain_expression,
    topic_pattern,
    user_id,
)
from payloads import (
    ABSENT,
    ACTIVITY,
    ACW,
    AUDIT,
    AUDITS,
    BODIES,
    CONVERSATION,
    ENVELOPE_ID,
    HAND_MADE,
    PRESENCE,
    PUBLISHED_MS,
    RECORD,
    ROUTING_STATUS,
    SNAPSHOT,
    STATION,
    TIME_MS,
    USER,
    call_status,
    detail,
    envelope,
    in_envelope,
    interaction_update,
    iso,
    queue_conversation,
    status_change,
    tutorial,
)


@dataclass
class Known:
    """What must be known of an event of a family."""

    kind: Kind
    #: The ids beside org and topic name; None where there is no entity.
    entity: tuple[str, ...] | None = None
    #: In milliseconds, in the order of the profile; the publish time where the family has none of its own.
    times: tuple[int, ...] = (TIME_MS,)
    explicit_id: str | None = None
    record_id: str | None = None
    version: int | None = None
    conversation: str | None = None
    user: str | None = None


def fact(**known):
    """Expect a fact."""
    return Known(Kind.FACT, **known)


def sample(**known):
    """Expect a reading, which has only its publish time."""
    return Known(Kind.SAMPLE, times=(PUBLISHED_MS,), **known)


def state(*entity, **known):
    """Expect a state of an entity with these ids."""
    return Known(Kind.STATE, entity=entity, **known)


def snapshot(**known):
    """Expect the snapshot of a conversation, which has only its publish time."""
    return state(CONVERSATION, times=(PUBLISHED_MS,), conversation=CONVERSATION, **known)


HAS_USER = ("user.start", "user.end", "acw")
EXPECTED = {
    **{
        topic: fact(conversation=CONVERSATION, user=USER if topic.endswith(HAS_USER) else None)
        for topic in BODIES
        if topic.startswith("v2.detail.events.conversation.")
    },
    "v2.detail.events.agent.{id}.state": fact(conversation=CONVERSATION, user=USER),
    "v2.analytics.conversation.{id}.metrics": fact(record_id=RECORD, conversation=CONVERSATION),
    "v2.analytics.flow.{id}.metrics": fact(record_id=RECORD, conversation=CONVERSATION),
    "v2.analytics.queues.{id}.observations": sample(),
    "v2.analytics.queues.{id}.activity": sample(),
    "v2.analytics.users.{id}.aggregates": sample(user=USER),
    "v2.analytics.flow.{id}.aggregates": sample(),
    "v2.analytics.flowoutcome.{id}.aggregates": sample(),
    "v2.analytics.wrapup.{id}.aggregates": sample(),
    "v2.audits.entitytype.{id}.entityid.{id}": fact(explicit_id=AUDIT, times=(TIME_MS // 1000 * 1000,), user=USER),
    "v2.users.{id}.presence": state(user=USER),
    "v2.users.{id}.routingStatus": state(user=USER),
    "v2.users.{id}.activity": state(times=(TIME_MS - 40_000, TIME_MS, TIME_MS - 3_600_000), user=USER),
    "v2.users.{id}.persistentconnection": state(STATION, user=USER),
    "v2.users.{id}.geolocation": fact(times=(PUBLISHED_MS,), user=USER),
    "v2.users.{id}.conversations": snapshot(user=USER),
    "v2.users.{id}.conversations.calls": snapshot(user=USER),
    "v2.users.{id}.conversations.messages": snapshot(user=USER),
    "v2.routing.queues.{id}.conversations": snapshot(),
    "v2.routing.queues.{id}.conversations.emails": snapshot(),
    "v2.routing.queues.{id}.users": state(USER, times=(PUBLISHED_MS,)),
    "v2.conversations.{id}.transcription": fact(conversation=CONVERSATION),
    "v2.operations.events.{id}": fact(),
    "v2.taskmanagement.workitems.{id}": fact(),
    "v2.taskmanagement.workitems.queues.{id}": fact(),
    "v2.taskmanagement.workitems.users.{id}": fact(user=USER),
    "v2.outbound.campaigns.{id}": state(version=7),
    "v2.outbound.schedules.campaigns.{id}": state(version=7),
    "v2.outbound.settings": state(version=7),
    "v2.outbound.voice.campaigns.contact.preContact": fact(),
    "v2.quality.evaluations": state(BODIES["v2.quality.evaluations"][1]["id"], version=4, conversation=CONVERSATION),
    "v2.externalcontacts.contacts.{id}": state(),
    "v2.webmessaging.deployments.{id}.undelivered.messages": fact(conversation=CONVERSATION),
}


def known_of(tree, *own):
    """Read a delivery, and say what is known of it."""
    event = parse(tree)
    profile = Profiles(own).of(event)
    moment, _ = moment_of(event, profile)
    ids = entity_parts(event, profile)
    return Known(
        kind=profile.kind,
        entity=None if ids is None else tuple(json.loads(one) for one in ids),
        times=tuple(time // NS_PER_MS for time in moment.times if time is not None),
        explicit_id=profile.explicit_id.read(event.body) if profile.explicit_id else None,
        record_id=profile.record_id.read(event.body) if profile.record_id else None,
        version=moment.version,
        conversation=conversation_id(event),
        user=user_id(event),
    )


# --- the built-in profiles --------------------------------------------------------------------------------------


def test_every_family_has_its_expectations():
    """There is a row of expectations for every topic that there is a payload of."""
    assert set(EXPECTED) == set(BODIES)


@pytest.mark.parametrize("topic", BODIES)
def test_family(topic):
    """Kind, entity, times, explicit id, record id and version of a family are where its row says."""
    assert known_of(envelope(topic)) == EXPECTED[topic]


@pytest.mark.parametrize("topic", BODIES)
def test_family_without_envelope(topic):
    """A notification alone is known as well as one in its envelope: its template is guessed."""
    assert known_of(detail(topic)) == EXPECTED[topic]


def test_every_row_is_used():
    """Every built-in profile is found for some payload, but for the media of snapshots, which are all alike."""
    found = {Profiles().of(parse(envelope(topic))).topic for topic in BODIES}
    media = (".conversations.", "v2.outbound.schedules", "v2.outbound.{config}")
    assert {row.topic for row in BUILT_IN if not any(part in row.topic for part in media)} <= found


@pytest.mark.parametrize(
    "topic",
    [
        "v2.users.{id}.station",
        "v2.outbound.campaigns.{id}.progress",
        "v2.externalcontacts.contacts.{id}.notes.{id}",
        "v2.users.{id}.conversations.summaries",
        "v2.invented.yesterday.{id}.thing",
        "v3.users.{id}.presence",
        "EC2 Instance State-change Notification",
    ],
)
def test_unknown_topics_are_facts(topic):
    """A topic that nobody told us of is a fact, with Genesys' usual name for its time."""
    name = topic.replace("{id}", USER)
    tree = in_envelope(
        {"topicName": name, "eventBody": {"eventTime": TIME_MS, "status": "on", "id": "x"}}, detail_type=topic
    )
    known = known_of(tree)
    assert (known.kind, known.entity, known.times, known.explicit_id) == (Kind.FACT, None, (TIME_MS,), None)


@pytest.mark.parametrize(
    ("detail_type", "topic"),
    [(PRESENCE, ROUTING_STATUS), (ROUTING_STATUS, PRESENCE), (SNAPSHOT, PRESENCE), ("Something Else", PRESENCE)],
)
def test_torn_events_are_facts(detail_type, topic):
    """Where detail-type and topic name disagree, no state is taken for another's."""
    known = known_of(envelope(topic, detail_type=detail_type))
    assert (known.kind, known.entity) == (Kind.FACT, None)


@pytest.mark.parametrize(
    ("topic", "body"),
    [
        (SNAPSHOT, {"id": ABSENT}),
        (SNAPSHOT, {"id": ""}),
        (SNAPSHOT, {"id": {"odd": 1}}),
        ("v2.users.{id}.persistentconnection", {"stationId": ABSENT}),
        ("v2.routing.queues.{id}.users", {"user": "odd"}),
    ],
)
def test_no_entity_without_its_ids(topic, body):
    """A state that does not say what it is the state of has no entity, so nothing of it is stale or an echo."""
    assert known_of(envelope(topic, body)).entity is None


def test_states_lie_with_their_topic_name():
    """A state whose entity is only in its topic name, as presence, has no other ids."""
    assert known_of(envelope(PRESENCE)).entity == ()


@pytest.mark.parametrize(
    ("missing", "times"),
    [
        ({"routingStatus": {"status": "IDLE"}}, (TIME_MS, TIME_MS - 3_600_000)),
        ({"routingStatus": {"status": "IDLE"}, "dateActiveQueuesChanged": ABSENT}, (TIME_MS,)),
        ({"routingStatus": ABSENT, "presence": ABSENT, "dateActiveQueuesChanged": ABSENT}, (PUBLISHED_MS,)),
    ],
)
def test_some_times_may_be_missing(missing, times):
    """Of several times those that are there count; the publish time only where none is."""
    assert known_of(envelope(ACTIVITY, missing)).times == times


@pytest.mark.parametrize(
    ("version", "read"),
    [(7, 7), ("7", 7), (0, 0), ("seven", None), (-1, None), (True, None), (ABSENT, None), (2**70, None)],
)
def test_version_is_a_whole_number(version, read):
    """A version orders where it is a whole number, as a number or as text."""
    assert known_of(envelope("v2.outbound.campaigns.{id}", {"version": version})).version == read


# --- hand-made shapes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (call_status(), state("call-31", conversation="call-31")),
        (status_change(), state("call-31", times=(), explicit_id="change-0001", conversation="call-31")),
        (queue_conversation(), state("call-31", explicit_id="route-0001", conversation="call-31")),
        (
            tutorial(),
            state("call-31", times=(TIME_MS // 1000 * 1000,), explicit_id="tutorial-0001", conversation="call-31"),
        ),
        (interaction_update(), fact(times=(PUBLISHED_MS // 1000 * 1000,), conversation="call-31")),
    ],
    ids=HAND_MADE,
)
def test_hand_made_shape(tree, expected):
    """The shapes that people make by hand are known without any configuration."""
    assert known_of(tree) == expected


@pytest.mark.parametrize(
    "inner",
    [
        {"conversationId": "call-31"},
        {"conversation_id": "call-31"},
        {"interactionId": "call-31"},
        {"data": {"id": "call-31"}},
        {"body": {"conversationId": "call-31"}},
        {"conversationId": "", "interactionId": "call-31"},
        {"conversationId": None, "data": {"id": "call-31"}},
        {"conversationId": "call-31", "interactionId": "another"},
    ],
)
def test_conversation_of_a_hand_made_event(inner):
    """The conversation is found under each of its usual names, the first that says something."""
    assert known_of(in_envelope(inner)).conversation == "call-31"


@pytest.mark.parametrize("where", ["status", "state"])
@pytest.mark.parametrize("put", [lambda name: {name: "held"}, lambda name: {"body": {name: "held"}}])
def test_a_status_makes_a_state(where, put):
    """`status` or `state`, at the top or in the body, makes a hand-made event a state of its conversation."""
    known = known_of(in_envelope({"conversationId": "call-31", **put(where)}))
    assert (known.kind, known.entity) == (Kind.STATE, ("call-31",))


@pytest.mark.parametrize(
    "inner",
    [
        {"conversationId": "call-31"},
        {"conversationId": "call-31", "status": ""},
        {"conversationId": "call-31", "data": {"status": "held"}},
        {"status": "held"},
    ],
)
def test_without_a_status_it_is_a_fact(inner):
    """A hand-made event without a status, or without anything it could be the status of, is a fact."""
    known = known_of(in_envelope(inner))
    assert (known.kind, known.entity) == (Kind.FACT, None)


@pytest.mark.parametrize(
    ("times", "read"),
    [
        ({"timestamp": TIME_MS}, TIME_MS),
        ({"eventTime": iso(TIME_MS)}, TIME_MS),
        ({"time": TIME_MS // 1000}, TIME_MS // 1000 * 1000),
        ({"timestamp": iso(TIME_MS), "eventTime": 5, "time": 6}, TIME_MS),
        ({}, PUBLISHED_MS // 1000 * 1000),
    ],
)
def test_time_of_a_hand_made_event(times, read):
    """The time is found under each of its usual names; else the envelope's orders."""
    assert known_of(in_envelope({"conversationId": "call-31", **times})).times == (read,)


@pytest.mark.parametrize(
    ("inner", "explicit_id"),
    [
        ({"eventId": "e-1"}, "e-1"),
        ({"event_id": "e-1"}, "e-1"),
        ({"event_id": 17}, 17),
        ({"eventId": "", "event_id": "e-1"}, "e-1"),
        ({"id": "e-1"}, None),
        ({"conversationId": "call-31"}, None),
    ],
)
def test_explicit_id_of_a_hand_made_event(inner, explicit_id):
    """`eventId` and `event_id` identify a hand-made event; a bare `id` may be anything, so it does not."""
    assert known_of(in_envelope(inner)).explicit_id == explicit_id


# --- users' own profiles ----------------------------------------------------------------------------------------

OWN_STATE = Profile(topic=ACW, kind=Kind.STATE, entity=(plain("conversationId"),), time=(plain("eventTime"),))


@pytest.mark.parametrize(
    ("topic", "pattern"),
    [(ACW, ACW), (ACW, "v2.detail.events.conversation.{any}.acw"), (ACW, "v2.detail.*"), (ACW, "*"), (PRESENCE, "*")],
)
def test_own_profile_overrides_a_built_in_one(topic, pattern):
    """A user's own profile is asked before the built-in ones, by template or by pattern."""
    known = known_of(envelope(topic), Profile(topic=pattern, kind=Kind.SAMPLE))
    assert known.kind is Kind.SAMPLE


def test_own_profile_of_an_unknown_topic():
    """A user can tell of a topic that nobody else knows."""
    known = known_of(envelope(ACW), OWN_STATE)
    assert (known.kind, known.entity, known.times) == (Kind.STATE, (CONVERSATION,), (TIME_MS,))


def test_own_profile_of_a_hand_made_event():
    """A user's own profile is asked before a hand-made event's fields are looked at."""
    own = Profile(topic="conversation:call:*", explicit_id=plain("participantCount"))
    known = known_of(call_status(), own)
    assert (known.kind, known.explicit_id) == (Kind.FACT, 2)


def test_first_own_profile_wins():
    """Of several own profiles the first that matches is taken."""
    first, second = Profile(topic="v2.detail.*", kind=Kind.SAMPLE), OWN_STATE
    assert known_of(envelope(ACW), first, second).kind is Kind.SAMPLE
    assert known_of(envelope(ACW), second, first).kind is Kind.STATE


def test_own_profile_leaves_others_alone():
    """An own profile changes nothing for topics that it does not match."""
    assert known_of(envelope(PRESENCE), OWN_STATE) == EXPECTED[PRESENCE]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("v2.users.{id}.presence", "v2.users.{id}.presence", "v2.users.a.b.presence"),
        ("v2.users.{id}.presence", f"v2.users.{USER}.presence", "v2.users..presence"),
        ("v2.users.*", "v2.users.{id}.conversations.calls", "v2.user.{id}"),
        ("*", "anything at all", None),
        ("*.acw", ACW, "v2.acw.x"),
        ("conversation:call:status", "conversation:call:status", "conversation:call:status2"),
        ("a.b", "a.b", "axb"),
        ("Status (of) [a] Conversation+", "Status (of) [a] Conversation+", "Status of a Conversation"),
    ],
)
def test_topic_pattern(pattern, matching, other):
    """`{...}` is one part of a topic, `*` any text, and everything else is only itself."""
    assert topic_pattern(pattern).fullmatch(matching)
    assert other is None or not topic_pattern(pattern).fullmatch(other)


# --- who it is about --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "conversation"),
    [
        (envelope(ACW), CONVERSATION),
        (envelope(ACW, {"conversationId": ABSENT}), CONVERSATION),
        (envelope("v2.analytics.conversation.{id}.metrics", {"conversationId": ABSENT}), CONVERSATION),
        (envelope("v2.conversations.{id}.transcription", {"conversationId": ABSENT}), CONVERSATION),
        (envelope(SNAPSHOT), CONVERSATION),
        (envelope("v2.routing.queues.{id}.conversations"), CONVERSATION),
        (envelope(PRESENCE), None),
        (envelope("v2.taskmanagement.workitems.{id}"), None),
        (envelope(AUDITS), None),
        (
            in_envelope(
                {
                    "topicName": f"v2.users.{USER}.conversations.{CONVERSATION}.recordings",
                    "eventBody": {"id": "a recording", "fileState": "AVAILABLE"},
                },
                detail_type="v2.users.{id}.conversations.{id}.recordings",
            ),
            CONVERSATION,
        ),
        (in_envelope({"conversationId": 4711}), "4711"),
        (in_envelope({"conversationId": True}), None),
        (in_envelope({"conversationId": ["x"]}), None),
    ],
)
def test_conversation_id(tree, conversation):
    """The conversation is known from the body, from what a snapshot is of, or from the topic name."""
    assert conversation_id(parse(tree)) == conversation


@pytest.mark.parametrize(
    ("tree", "user"),
    [
        (envelope(ACW), USER),
        (envelope(PRESENCE), USER),
        (envelope(ROUTING_STATUS), USER),
        (envelope("v2.taskmanagement.workitems.users.{id}"), USER),
        (envelope(AUDITS), USER),
        (envelope("v2.detail.events.conversation.{id}.customer.start"), None),
        (in_envelope({"userId": "agent-7"}), "agent-7"),
        (in_envelope({"user_id": "agent-7"}), "agent-7"),
        (in_envelope({"conversationId": ENVELOPE_ID}), None),
    ],
)
def test_user_id(tree, user):
    """The user is known from the body or from the topic name."""
    assert user_id(parse(tree)) == user


def matches(pattern, topic):
    """Say what a pattern means, by trying everything: short texts alone can be looked at like this."""
    if not pattern:
        return not topic
    head, rest = pattern[0], pattern[1:]
    if head == "*":
        return any(matches(rest, topic[end:]) for end in range(len(topic) + 1))
    if head == "{id}":
        ends = (end for end in range(1, len(topic) + 1) if "." not in topic[:end])
        return any(matches(rest, topic[end:]) for end in ends)
    return topic.startswith(head) and matches(rest, topic[len(head) :])


@given(
    st.lists(st.sampled_from(["*", "{id}", "a", "b", ".", "ab", ".a", "a.", "b.a"]), max_size=7),
    st.lists(st.sampled_from("ab.\n"), max_size=9).map("".join),
)
def test_patterns_mean_what_they_say(pattern, topic):
    """A pattern matches exactly the topics in which its pieces can be found one after the other."""
    assert bool(topic_pattern("".join(pattern)).fullmatch(topic)) is matches(pattern, topic)
    assert bool(re.fullmatch(plain_expression("".join(pattern)), topic, re.DOTALL)) is matches(pattern, topic)


@pytest.mark.parametrize("pattern", ["*a*a*a*b", "{x}a{x}a{x}a{x}b", "*{x}a*{x}a{x}b*", "{a}{b}{c}{d}b", "*aab*aab*c"])
def test_a_pattern_of_many_pieces_is_as_quick_as_one_of_few(pattern):
    """However many wildcards a pattern has, no text is gone through again for each of them."""
    topic = "a" * 1500

    def seconds(compiled):
        begun = time.process_time()
        assert not compiled.fullmatch(topic)
        return time.process_time() - begun

    one, many = topic_pattern("*{x}b"), topic_pattern(pattern)
    assert min(seconds(many) for _ in range(3)) < 10 * max(seconds(one) for _ in range(3))


def test_long_patterns_are_compared_quickly():
    """Whether two long patterns overlap is found in one pass over both."""
    one, other = "*a" * 2000, "*a" * 1999 + "*{id}b"
    begun = time.process_time()
    assert not overlap(one, other)
    assert overlap(one, other + "*")
    assert time.process_time() - begun < 5  # place by place, it were minutes
