"""The keys of a set of events, frozen.

A ledger remembers events by these keys for weeks, and receivers remember them as idempotency keys for longer.
A rule of identity that changes, however slightly, makes every event fresh again that was already done: after the
update each late redelivery, each retry and each dead letter would take effect once more. So these keys must never
change. If a test here fails, the change that made it fail is wrong. Should a change of identity ever be wanted,
it needs a new key version and a ledger that looks under both, and these fixtures stay as they are.
"""

from collections import defaultdict
from hashlib import sha256

import pytest

from oncebridge.errors import Unreadable
from oncebridge.event import parse
from oncebridge.identity import conflict_key, identify, key_text, subject_digest, unreadable_key
from oncebridge.settings import load_settings
from oncebridge.simulation import Road, simulate
from oncebridge.topics import Profiles

SECRET = b"golden secret, thirty-two bytes!"
SOURCE = '"source":"aws.partner/genesys.com/cloud/8a5e1d00-0000-4000-8000-00000000c0de/main"'


def genesys(detail_type, topic_name, body, *, timestamp="2026-01-15T09:00:00.250Z", more=""):
    """Write an envelope as it was written on the day these keys were frozen."""
    published = f',"timestamp":"{timestamp}"' if timestamp else ""
    inner = f'{{"topicName":"{topic_name}","version":"2","eventBody":{body},"metadata":{{}}{published}}}'
    return f'{{"version":"0","id":"e-1","detail-type":"{detail_type}",{SOURCE}{more},"detail":{inner}}}'


FIXTURES = {
    "detail event": genesys(
        "v2.detail.events.conversation.{id}.acw",
        "v2.detail.events.conversation.c-1.acw",
        '{"eventTime":1768467600000,"conversationId":"c-1","participantId":"p-1","sessionId":"s-1","wrapupCode":"w-1"}',
    ),
    "attributes with odd text": genesys(
        "v2.detail.events.conversation.{id}.attributes",
        "v2.detail.events.conversation.c-1.attributes",
        '{"eventTime":1768467600001,"conversationId":"c-1","attributes":{"Zo\\u00eb":"\\ud83c\\udf89","b":"\\t/\\"","a":""}}',
    ),
    "numbers as written": genesys(
        "v2.detail.events.conversation.{id}.acw",
        "v2.detail.events.conversation.c-1.acw",
        '{"eventTime":1768467600000,"n":[1,1.0,1.00,1e2,-0,9007199254740993,0.10000000000000001,null,true]}',
    ),
    "audit": genesys(
        "v2.audits.entitytype.{id}.entityid.{id}",
        "v2.audits.entitytype.Queue.entityid.q-1",
        '{"id":"a-1","eventTime":"2026-01-15T09:00:00.000Z","action":"Update","entity":{"id":"q-1"}}',
    ),
    "metric": genesys(
        "v2.analytics.conversation.{id}.metrics",
        "v2.analytics.conversation.c-1.metrics",
        '{"metric":"tTalk","metricDate":"2026-01-15T09:00:00Z","value":1200,"recordId":"r-1","conversationId":"c-1"}',
    ),
    "observation": genesys(
        "v2.analytics.queues.{id}.observations",
        "v2.analytics.queues.q-1.observations",
        '{"group":{"queueId":"q-1"},"data":[{"metrics":[{"metric":"oWaiting","stats":{"count":0}}]}]}',
    ),
    "presence with a date": genesys(
        "v2.users.{id}.presence",
        "v2.users.u-1.presence",
        '{"presenceDefinition":{"id":"d-1"},"modifiedDate":"2026-01-15T09:00:00.123Z"}',
    ),
    "presence without a date": genesys(
        "v2.users.{id}.presence", "v2.users.u-1.presence", '{"presenceDefinition":{"id":"d-1"}}'
    ),
    "presence with nothing but an envelope id": genesys(
        "v2.users.{id}.presence", "v2.users.u-1.presence", '{"presenceDefinition":{"id":"d-1"}}', timestamp=None
    ),
    "activity": genesys(
        "v2.users.{id}.activity",
        "v2.users.u-1.activity",
        '{"id":"u-1","routingStatus":{"status":"IDLE","startTime":"2026-01-15T09:00:00.001Z"},'
        '"presence":{"modifiedDate":"2026-01-15T08:00:00.000Z"},"dateActiveQueuesChanged":"2026-01-15T07:00:00.000Z"}',
    ),
    "snapshot": genesys(
        "v2.users.{id}.conversations.calls",
        "v2.users.u-1.conversations.calls",
        '{"id":"c-1","participants":[{"id":"p-1","calls":[{"state":"connected"}]}]}',
    ),
    "campaign with a version": genesys(
        "v2.outbound.campaigns.{id}",
        "v2.outbound.campaigns.k-1",
        '{"id":"k-1","version":3,"dateModified":"2026-01-15T09:00:00.500Z"}',
    ),
    "unknown topic": genesys("v2.new.{id}.thing", "v2.new.x-1.thing", '{"eventTime":1768467600000,"x":1}'),
    "torn": genesys("v2.users.{id}.presence", "v2.users.u-1.activity", '{"x":1}'),
    "replay": genesys(
        "v2.detail.events.conversation.{id}.acw",
        "v2.detail.events.conversation.c-1.acw",
        '{"eventTime":1768467600000,"conversationId":"c-1","participantId":"p-1","sessionId":"s-1","wrapupCode":"w-1"}',
        more=',"replay-name":"january"',
    ),
    "hand-made with an event id": '{"id":"e-1","source":"my.desk","detail-type":"Desk Changed","detail":'
    '{"event_id":"d-1","conversation_id":"c-1","status":"open"}}',
    "hand-made without": '{"id":"e-1","source":"my.desk","detail-type":"Desk Changed","detail":'
    '{"interactionId":"c-1","state":"open","timestamp":1768467600.125}}',
    "own profile": '{"id":"e-1","source":"my.desk","detail-type":"Desk Counted","detail":'
    '{"desk":{"id":"k-1"},"at":"2026-01-15T09:00:00.125Z","count":2,"seen":17}}',
}

OWN = '[topics."Desk Counted"]\nkind = "state"\nentity = "desk.id"\ntime = "at"\nexclude = "seen"\n'

#: Name -> key, entity and content; the last two where an event has them.
KEYS = {
    "detail event": ("ob1_8af1da0410b8153db453b134e65d944f", None, None),
    "attributes with odd text": ("ob1_a47b5479419a1a4316dca76f64076686", None, None),
    "numbers as written": ("ob1_b559ede29c2d7d7125ac72eb7f42bbdc", None, None),
    "audit": ("ob1_9418354c802e9e28e3e21a9451249cc5", None, "f16299157b4a2239b45d386bb0ec5ac0"),
    "metric": ("ob1_e72e5e552285eb8df2474ac3746639bd", None, None),
    "observation": ("ob1_2c8b5a4dc2a67db9ffd046079071457a", None, None),
    "presence with a date": ("ob1_9c1f51efe27c471954feabd708389841", "4dc814500102e049667a206554f2dbad", None),
    "presence without a date": ("ob1_8fb70b6c3e3879985b21c98c9d6cc9ba", "4dc814500102e049667a206554f2dbad", None),
    "presence with nothing but an envelope id": (
        "ob1_353d733dfdfe55f79c1c8f2193e7d525",
        "4dc814500102e049667a206554f2dbad",
        None,
    ),
    "activity": ("ob1_a4b2fee4b2d89be8ffbd8408599661ea", "afedba8a8ec502de0c72862b078ae7dd", None),
    "snapshot": ("ob1_942efde2718cd0adb5f826eed70d75b1", "1617c56f238e56afcaf87ceeef5a5b89", None),
    "campaign with a version": ("ob1_daf43c57e77104f47e7f5e78188e94a9", "0f144d8fe0497ab2d11ee345121a69c3", None),
    "unknown topic": ("ob1_a266421261222fcfd901f357fed065c4", None, None),
    "torn": ("ob1_2908cc7ce484c45a2ff315fb5208fc14", None, None),
    "replay": ("ob1_8af1da0410b8153db453b134e65d944f", None, None),
    "hand-made with an event id": (
        "ob1_4a2a517c0f2e7620ccbbf34bd18d9381",
        "2520e7353c54c817f100a0b305c043a7",
        "660698ac9ddeb8dc925bb062fbbf52a3",
    ),
    "hand-made without": ("ob1_928b92033d870974bdda3269b199acfd", "2520e7353c54c817f100a0b305c043a7", None),
    "own profile": ("ob1_b1580ab4ff618062d78b9f7c38df862e", "6fa5d076ae853127c5275289104a2a3f", None),
}
REPLAYED_ANEW = "ob1_6925cefd5553b55ee5a5e472a6eebcfa"
CONFLICT = "ee966ddf7758242629c037f4e5e40275"
UNREADABLE = "0e836185c37ddd72c793bce09e4fec4e"
SUBJECT = "f04092a35f1e0a266c3640efbf71e682"


def frozen(identity):
    """Return what a ledger knows an event by, as text."""
    digests = (identity.entity, identity.content)
    return key_text(identity.key), *(None if one is None else one.hex() for one in digests)


@pytest.fixture
def identified(tmp_path):
    """Identify a fixture as a bridge would."""
    file = tmp_path / "oncebridge.toml"
    file.write_text(OWN, encoding="utf-8")
    profiles = Profiles(load_settings(file).profiles)

    def identify_one(name, **options):
        event = parse(FIXTURES[name])
        return identify(event, profiles.of(event), SECRET, **options)

    return identify_one


def test_every_fixture_is_frozen():
    """There is a frozen key for every fixture."""
    assert list(KEYS) == list(FIXTURES)


@pytest.mark.parametrize("name", FIXTURES)
def test_key_is_what_it_always_was(name, identified):
    """An event has the key that it had when these were frozen."""
    assert frozen(identified(name)) == KEYS[name]


def test_replayed_anew_is_what_it_always_was(identified):
    """A named replay that counts anew has the key that it had, and without that the key of the event itself."""
    assert key_text(identified("replay", replays_anew=True).key) == REPLAYED_ANEW
    assert KEYS["replay"] == KEYS["detail event"]


def test_other_digests_are_what_they_always_were():
    """Conflicts, unreadable deliveries and subjects are found again under the digests they had."""
    assert conflict_key(SECRET, b"k" * 16, b"c" * 16).hex() == CONFLICT
    assert unreadable_key(SECRET, b"no event").hex() == UNREADABLE
    assert subject_digest(SECRET, "c-1").hex() == SUBJECT


# --- a working day ------------------------------------------------------------------------------------------

#: By topic: a digest of all that is known of its events on a simulated day, in order of arrival; where a delivery is
#: no event, of why it is refused.
KNOWN = {
    "unreadable": "a706820333d729e7",
    "v2.analytics.conversation.{id}.metrics": "e4a13e22c2ac0657",
    "v2.analytics.queues.{id}.observations": "a003480d1fcf9f1d",
    "v2.audits.entitytype.{id}.entityid.{id}": "c868c5d42b0980a3",
    "v2.conversations.{id}.transcription": "b6fea46171545270",
    "v2.detail.events.conversation.{id}.acd.end": "5cf1fb1caa9c440c",
    "v2.detail.events.conversation.{id}.acd.start": "dfc983e11a19a627",
    "v2.detail.events.conversation.{id}.acw": "49163d2ffa72a92f",
    "v2.detail.events.conversation.{id}.attributes": "4e57beef236d7095",
    "v2.detail.events.conversation.{id}.customer.end": "f71446e24d5be3b5",
    "v2.detail.events.conversation.{id}.customer.start": "129849c7d81cf0eb",
    "v2.detail.events.conversation.{id}.flow.end": "b666998b49f3fff3",
    "v2.detail.events.conversation.{id}.flow.outcome": "10c2a9f1ece1cb7a",
    "v2.detail.events.conversation.{id}.flow.start": "e0342ec709a8b711",
    "v2.detail.events.conversation.{id}.user.end": "330a15b0fb3e702e",
    "v2.detail.events.conversation.{id}.user.start": "60a9c8c8eea2d06d",
    "v2.detail.events.conversation.{id}.wrapup": "9c2293a0ed4c0a8d",
    "v2.users.{id}.activity": "423cbb2c1eaea9dd",
    "v2.users.{id}.conversations": "ec2af49462c7b231",
    "v2.users.{id}.presence": "7700bab4703f73d8",
    "v2.users.{id}.routingStatus": "7ba6fd527ffe7f29",
}
#: Of the traffic itself.
TRAFFIC = "274e9904c61b989c"


def all_known(raw):
    """Return the topic of a delivery and all that a ledger gets to know of it; or why it is refused."""
    try:
        event = parse(raw)
    except Unreadable as error:
        return "unreadable", (str(error), error.envelope_id)
    identity = identify(event, Profiles().of(event), SECRET)
    moment = identity.moment
    digests = (identity.content, identity.entity, identity.state, identity.conversation, identity.user)
    times = (moment.times, moment.version, moment.echoes, identity.time_ms, identity.shared_ms)
    return event.topic, (key_text(identity.key), identity.basis, *digests, *times, identity.conversation_id)


def test_a_day_is_known_as_it_always_was():
    """Every digest, time and refusal of a day's traffic is the one that it was when these were frozen."""
    deliveries = [delivery.raw for delivery in simulate(40, 11, road=Road(unreadable=0.05))]
    assert sha256(b"\n".join(deliveries)).hexdigest()[:16] == TRAFFIC, "simulate writes another day: freeze it anew"
    known = defaultdict(sha256)
    for topic, found in map(all_known, deliveries):
        known[topic].update(repr(found).encode())
    assert {topic: digest.hexdigest()[:16] for topic, digest in known.items()} == KNOWN
