"""One event explained: the profile that was used, and the verdict that its delivery would get on every ledger."""

import itertools
import re
import secrets
from contextlib import ExitStack

import pytest

import payloads
from ledgers.on_postgres import new_schema, run, schema_of
from oncebridge.bridge import Bridge
from oncebridge.claim import Ask, Status
from oncebridge.clock import SystemClock
from oncebridge.diagnosis.explain import explain
from oncebridge.diagnosis.on_ledger import OnLedger, _ns_text
from oncebridge.errors import PermanentError
from oncebridge.event import parse
from oncebridge.identity import read_time
from oncebridge.ledgers.dynamodb.ledger import DynamoDBLedger
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.ledgers.protocol import Query, ShowsRecords
from oncebridge.ledgers.redis.ledger import RedisLedger
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.settings import Settings
from oncebridge.simulation import Road, simulate
from oncebridge.topics import Field, Kind, Profile, Profiles, plain

SECRET = b"a secret that was given, 32 bytes"
#: A time to the millisecond, as reasons write it.
TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
AT = rf"(at {TIME}|at a time that this ledger does not keep)"
OTHER_ID = "00000000-0000-4000-8000-000000000002"

DOOR = Profile(
    topic="Door", kind=Kind.STATE, entity=(plain("door"), plain("floor")), time=(plain("at"),), stale=False,
    exclude=(plain("noise"),), version=Field("to_number(v)", (), lambda body: body.get("v")), echo_window_ms=20,
)  # fmt: skip
NEW_TOPIC = {"topicName": "v2.new", "eventBody": {"eventTime": payloads.TIME_MS}}


# --- the profile -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delivery", "said"),
    [
        (
            payloads.envelope(payloads.ACW),
            "the built-in one for v2.detail.events.conversation.{id}.*: time eventTime",
        ),
        (
            payloads.presence("AWAY"),
            "the built-in one for v2.users.{id}.presence: time modifiedDate, echo window 500 ms",
        ),
        (
            payloads.envelope("v2.quality.evaluations"),
            (
                "the built-in one for v2.quality.evaluations: entity id, time eventTime, version version, "
                "echo window 500 ms"
            ),
        ),
        (
            payloads.envelope(payloads.AUDITS),
            "the built-in one for v2.audits.entitytype.{id}.entityid.{id}: time eventTime, explicit id id",
        ),
        (
            payloads.envelope(payloads.METRICS),
            "the built-in one for v2.analytics.conversation.{id}.metrics: time metricDate, record id recordId",
        ),
        (payloads.envelope(payloads.OBSERVATIONS), "the built-in one for v2.analytics.queues.{id}.observations"),
        (
            payloads.in_envelope({"door": 1, "at": payloads.TIME_MS}, detail_type="Door"),
            (
                'your own, [topics."Door"]: entity door and floor, time at, version to_number(v), exclude noise, '
                "echo window 20 ms, never stale"
            ),
        ),
        (
            payloads.queue_conversation(),
            (
                "made from the fields that this hand-made event has: entity conversationId, time timestamp, "
                "explicit id eventId, echo window 500 ms"
            ),
        ),
        (payloads.interaction_update(), "made from the fields that this hand-made event has"),
        (
            payloads.in_envelope(NEW_TOPIC, detail_type="v2.new"),
            "the one for unknown topics, since this topic is not known: time eventTime",
        ),
        (
            payloads.envelope(payloads.ACW, detail_type=payloads.PRESENCE),
            "the one for unknown topics, since detail-type and topic name disagree: time eventTime",
        ),
    ],
)
def test_the_profile_is_named_with_its_fields(delivery, said):
    """Each event says whose profile was used, and which fields of it decide something for its kind."""
    assert explain(payloads.raw(delivery), Profiles([DOOR]), SECRET).profile == said


def test_a_table_that_equals_what_is_made_by_itself_is_still_the_users_own():
    """Where a user has written the very profile that a hand-made event would get, it is called the user's."""
    delivery = payloads.call_status()
    made = Profiles().of(parse(payloads.raw(delivery)))
    own = Profile(**{name: getattr(made, name) for name in ("topic", "kind", "entity", "time", "explicit_id")})
    assert own == made
    assert explain(payloads.raw(delivery), Profiles([own]), SECRET).profile.startswith("your own, [topics.")


def test_the_users_own_profile_holds_where_names_disagree():
    """An own profile is used even where detail-type and topic name disagree, so nothing is said to become a fact."""
    own = Profile(topic=payloads.PRESENCE, kind=Kind.STATE, time=(plain("eventTime"),))
    torn = payloads.raw(payloads.envelope(payloads.ACW, detail_type=payloads.PRESENCE))
    explained = explain(torn, Profiles([own]), SECRET)
    assert (explained.kind, "disagree" in explained.reason) == (Kind.STATE, False)
    assert "disagree, so it is taken for a fact" in explain(torn, Profiles(), SECRET).reason


# --- ledgers -----------------------------------------------------------------------------------------------------


class Place:
    """One ledger: handles onto it, and everything that it has stored."""

    def __init__(self, make, stored, stack):
        """Take how to make a handle, and how to read all that is stored."""
        self._make, self.stored, self._stack = make, stored, stack

    def handle(self):
        """Make one more handle, closed in the end."""
        ledger = self._make()
        self._stack.callback(ledger.close)
        return ledger

    def bridge(self, **settings):
        """Make a bridge of a worker."""
        return self._stack.enter_context(Bridge(self.handle(), settings=Settings(busy_wait_seconds=0, **settings)))

    def looking(self, *handlers, secret=None, **settings):
        """Open the ledger to look, as for a bridge that has handlers of these patterns and names."""
        ledger = self.handle()
        bridge = Bridge(ledger, settings=Settings(**settings))
        for pattern, name in handlers:
            bridge.register(pattern, lambda event: None, name=name)
        return OnLedger(bridge, ledger, ledger.open_to_look(secret))

    def foreseen(self, delivery, **settings):
        """Foresee the one verdict of one delivery, at a handler without a name."""
        raw = delivery if isinstance(delivery, bytes) else payloads.raw(delivery)
        ((one,),) = self.looking(("*", ""), **settings).foresee([raw])
        return one.verdict.value, one.reason


def on_memory(request, stack):
    """Return one ledger in memory, which all share."""
    ledger = MemoryLedger()
    return lambda: ledger, lambda: (dict(ledger.records), dict(ledger.entities), dict(ledger.letters))


def on_sqlite(request, stack):
    """Return a file, with its log."""
    path = request.getfixturevalue("tmp_path") / "once.db"
    files = (path, path.with_name("once.db-wal"))
    return lambda: SQLiteLedger(path), lambda: [file.read_bytes() for file in files if file.exists()]


def on_redis(request, stack):
    """Return keys of its own on a real server."""
    url = f"{request.getfixturevalue('valkey').url}?name=t{secrets.token_hex(6)}"
    client = stack.enter_context(request.getfixturevalue("valkey").client())
    name = url.rpartition("=")[2]

    def stored():
        keys = sorted(client.scan_iter(match=f"*{name}*", count=1000))
        return [(key, client.dump(key), client.expiretime(key)) for key in keys]

    return lambda: RedisLedger(url), stored


def on_postgres(request, stack):
    """Return a schema of its own on a real server; `xmin` and `ctid` show whether a row was written again."""
    url = stack.enter_context(new_schema(request.getfixturevalue("postgres")))
    schema = schema_of(url)

    def stored():
        tables = ("meta", "event", "entity", "letter")
        return [sorted(map(repr, run(url, f"SELECT xmin, ctid, * FROM {schema}.{table}"))) for table in tables]

    return lambda: PostgresLedger(url), stored


def on_dynamodb(request, stack):
    """Return a table of its own on the emulator."""
    server, table = request.getfixturevalue("ministack"), f"once-{secrets.token_hex(4)}"
    client = server.client("dynamodb")
    stack.callback(client.close)
    for name, value in server.environment.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)

    def make():
        # With a clock: the emulator tells the time in whole seconds, and the end of a lease would be waited for.
        return DynamoDBLedger(table, SystemClock(), region=server.region, endpoint_url=server.url)

    make().migrate()
    return make, lambda: sorted(map(repr, client.scan(TableName=table, ConsistentRead=True)["Items"]))


KINDS = {"memory": on_memory, "sqlite": on_sqlite, "redis": on_redis, "postgres": on_postgres, "dynamodb": on_dynamodb}


@pytest.fixture(params=KINDS)
def place(request):
    """Return an empty ledger of each kind."""
    with ExitStack() as stack:
        yield Place(*KINDS[request.param](request, stack), stack)


def presence(says, at_ms, **changes):
    """Build a presence so many milliseconds after the usual time."""
    return payloads.presence(says, modified_ms=payloads.TIME_MS + at_ms, **changes)


def claimed_for_no_time(place, delivery, **fields):
    """Claim an event in another worker's place, under a lease that is over at once."""
    looking = place.looking(("*", ""))
    raw = delivery if isinstance(delivery, bytes) else payloads.raw(delivery)
    ask = looking._reader.read(raw).tasks[0].ask
    ledger = place.handle()
    ledger.open(None)
    fields = {**{name: getattr(ask, name) for name in Ask.__struct_fields__}, **fields}
    (answer,) = ledger.claim([Ask(**fields)], nonce=secrets.token_bytes(8), lease_us=1)
    assert answer.token


def assert_said(foreseen, verdict, reason):
    """Compare a verdict, and its reason with a pattern."""
    assert foreseen[0] == verdict, foreseen
    assert re.fullmatch(reason, foreseen[1]), foreseen[1]


def test_what_is_foreseen_comes_true(place):
    """Of simulated traffic with every fault, each delivery gets the verdict that was foreseen just before it."""
    bridge = place.bridge()
    bridge.register("*", lambda event: None)
    stream = [one.raw for one in simulate(3, 11, road=Road(unreadable=0.02))]
    looking = place.looking(("*", ""))
    foreseen = []
    for raw in stream:
        ((one,),) = looking.foresee([raw])
        foreseen.append((one.verdict, bridge.process(raw).verdict))
    assert [one for one, _ in foreseen] == [verdict for _, verdict in foreseen]
    assert {"fresh", "redelivery", "republish", "echo", "dead"} <= {verdict.value for verdict, _ in foreseen}


def test_duplicates_are_told_apart(place):
    """The same envelope is a redelivery, another or none a republish; the reason says when it was done, and where."""
    first = payloads.envelope(payloads.ACW)
    bridge = place.bridge()
    bridge.register("*", lambda event: None)
    assert place.looking(("*", "")).foresee([]) == []
    assert_said(place.foreseen(first), "fresh", "the ledger does not know it")
    bridge.process(first)
    assert_said(place.foreseen(first), "redelivery", f"the same event in the same envelope was done {AT}")
    known = rf"(with the id {payloads.ENVELOPE_ID}|whose id is not kept)"
    republished = rf"the same event was done {AT}, in an envelope {known}"
    assert_said(place.foreseen({**first, "id": OTHER_ID}), "republish", republished)
    without = {name: value for name, value in first.items() if name != "id"}
    assert_said(place.foreseen(without), "republish", f"the same event was done {AT}; this delivery has no envelope id")


def test_an_envelope_id_that_is_none_is_not_shown(place):
    """An id of the original that has not the form of an envelope's may be anything, and stays out of the reason."""
    bridge = place.bridge()
    bridge.register("*", lambda event: None)
    for given, known in (("tel:+441632960123", "with another id"), (payloads.ABSENT, "without an id")):
        delivery = payloads.envelope(payloads.ACW, {"wrapupCode": known}, id=given)
        bridge.process(delivery)
        said = rf"the same event was done {AT}, in an envelope ({known}|whose id is not kept)"
        assert_said(place.foreseen({**delivery, "id": OTHER_ID}), "republish", said)


def test_a_conflict_is_foreseen(place):
    """An id that came before with other content is a conflict, on every ledger."""
    bridge = place.bridge()
    bridge.register("*", lambda event: None)
    bridge.process(payloads.envelope(payloads.AUDITS, {"action": "Update"}))
    other = payloads.envelope(payloads.AUDITS, {"action": "Delete"}, id=OTHER_ID)
    said = rf"its id was done at {TIME} with other content; it would be kept as a dead letter"
    assert_said(place.foreseen(other), "conflict", said)
    bridge.process(other)
    assert_said(place.foreseen(other), "conflict", said)


def test_order_is_foreseen_with_both_times(place):
    """A state is stale, an echo or news by the times that the reason shows, to the nanosecond where that decides."""
    bridge = place.bridge()
    bridge.register("*", lambda event: None)
    new = "the ledger does not know it; no state of its entity is done yet"
    assert_said(place.foreseen(presence("AWAY", 0)), "fresh", new)
    bridge.process(presence("AWAY", 0))
    newest, compared = payloads.iso(payloads.TIME_MS), "the entity's newest state is of {}, this one of {}"
    older, later = payloads.iso(payloads.TIME_MS - 1500), payloads.iso(payloads.TIME_MS + 200)
    assert place.foreseen(presence("BUSY", -1500)) == ("stale", compared.format(newest, older))
    within = ", with the same content, within the echo window of 500 ms"
    assert place.foreseen(presence("AWAY", 200)) == ("echo", compared.format(newest, later) + within)
    fresh = f"the ledger does not know it; {compared.format(newest, later)}"
    assert place.foreseen(presence("BUSY", 200)) == ("fresh", fresh)
    finer = presence("BUSY", 0)
    finer["detail"]["eventBody"]["modifiedDate"] = newest.replace("Z", "0004Z")
    precise = f"the ledger does not know it; {compared.format(newest, newest.replace('Z', '0004Z'))}"
    assert place.foreseen(finer) == ("fresh", precise)
    bridge.process(presence("AWAY", 200))  # an echo, which moves the line that stale is judged by
    stale = compared.format(later, payloads.iso(payloads.TIME_MS + 100))
    assert place.foreseen(presence("BUSY", 100)) == ("stale", stale)
    untimed = payloads.presence("BUSY")
    incomparable = "the ledger does not know it; its time cannot be compared with that of its entity's newest state"
    assert place.foreseen(untimed) == ("fresh", incomparable)


def test_versions_order_in_the_words_of_versions(place):
    """Where a profile has a version, the reason compares versions."""
    bridge = place.bridge()
    bridge.register("*", lambda event: None)
    bridge.process(payloads.envelope("v2.quality.evaluations", {"version": 4}))
    older = payloads.envelope("v2.quality.evaluations", {"version": 3})
    said = "the entity's newest state is of version 4, this one of version 3"
    assert place.foreseen(older) == ("stale", said)


def test_a_claim_in_force_is_busy_until_its_lease_ends(place):
    """While a handler works, its event is claimed, and so is its entity for every other event of it."""
    deliveries = [payloads.envelope(payloads.ACW), presence("AWAY", 0)]
    others = [presence("BUSY", 1000), presence("OFFLINE", -1000)]
    seen = {}

    def work(event):
        seen[event.topic] = [place.foreseen(event.raw), *map(place.foreseen, others)]

    bridge = place.bridge()
    bridge.register("*", work)
    claimed_for_no_time(place, others[1])
    for delivery in deliveries:
        assert bridge.process(delivery).outcome == "done"
    until = rf"claimed until {TIME}, unless it is settled or extended"
    assert_said(seen[payloads.ACW][0], "busy", until)
    assert [verdict for verdict, _ in seen[payloads.ACW][1:]] == ["fresh", "fresh"]
    assert_said(seen[payloads.PRESENCE][0], "busy", until)
    for foreseen in seen[payloads.PRESENCE][1:]:  # unknown, and claimed by a worker that has died
        assert_said(foreseen, "busy", rf"its entity is {until}, for another event")


def test_what_failed_or_ran_out_is_fresh_with_its_past(place):
    """A failure, a run-out and a dead letter are told with their time and the number of the next attempt."""
    fact, state = payloads.envelope(payloads.ACW), presence("AWAY", 0)

    def fail(event):
        if event.body.get("never"):
            raise PermanentError("never")
        raise ValueError

    bridge = place.bridge()
    bridge.register("*", fail)
    bridge.process(fact)
    assert_said(place.foreseen(fact), "fresh", f"it failed once, the last time at {TIME}; this would be attempt 2")
    bridge.process(fact)
    assert_said(place.foreseen(fact), "fresh", f"it failed 2 times, the last time at {TIME}; this would be attempt 3")
    bridge.process(state)
    assert_said(
        place.foreseen(state), "fresh",
        f"it failed once, the last time at {TIME}; this would be attempt 2; no state of its entity is done yet",
    )  # fmt: skip
    dead = payloads.envelope(payloads.ACW, {"never": True})
    bridge.process(dead)
    kept = f"the same event in the same envelope was kept as a dead letter at {TIME}"
    assert_said(place.foreseen(dead), "redelivery", kept)
    for letter in [*bridge.dead_letters.list()]:
        assert bridge.dead_letters.discard(letter)
    discarded = f"the same event in the same envelope was kept as a dead letter, and discarded at {TIME}"
    assert_said(place.foreseen(dead), "redelivery", discarded)


def test_a_claim_that_ran_out_is_fresh_again(place):
    """An event whose worker died is fresh, its run-out counts if it was alone, and its entity's echo is not judged."""
    bridge = place.bridge()
    bridge.register("*", lambda event: None)
    bridge.process(presence("AWAY", 0))
    fact, state = payloads.envelope(payloads.ACW), presence("AWAY", 100)
    assert place.foreseen(state)[0] == "echo"
    claimed_for_no_time(place, fact)
    claimed_for_no_time(place, state, alone=True)
    ran_out = rf"its last claim ran out at {TIME} without an end"
    assert_said(place.foreseen(fact), "fresh", ran_out)
    unsure = "how a later claim of the entity took effect is not known"
    compared = rf"the entity's newest state is of {TIME}, this one of {TIME}"
    assert_said(place.foreseen(state), "fresh", f"{ran_out}; this would be attempt 2; {compared}; {unsure}")


def test_what_was_given_back_says_so(place):
    """An event that was claimed but not tried is fresh, and no attempt is counted."""
    fact = payloads.envelope(payloads.ACW)
    bridge = place.bridge()

    def stop_first(event):
        bridge.stop()

    bridge.register("*", stop_first)
    results = bridge.process_many([payloads.envelope(payloads.ACW, {"wrapupCode": "first"}), fact])
    assert [result.outcome for result in results] == ["done", "release"]
    assert_said(place.foreseen(fact), "fresh", rf"it was given back untried at {TIME}")


def test_what_is_no_event_is_dead(place):
    """An unreadable delivery and a stranger are dead, with their reason, and whether the letter is there already."""
    bridge = place.bridge(allowed_orgs=(payloads.ORG,))
    bridge.register("*", lambda event: None)
    stranger = payloads.envelope(payloads.ACW, source=payloads.source(payloads.OTHER_ORG))
    for raw, why in ((b"no event", "unreadable: .+"), (payloads.raw(stranger), "not allowed: .+")):
        foreseen = place.foreseen(raw, allowed_orgs=(payloads.ORG,))
        assert_said(foreseen, "dead", f"{why}; the ledger does not know it yet")
        assert bridge.process(raw).verdict == "dead"
        foreseen = place.foreseen(raw, allowed_orgs=(payloads.ORG,))
        assert_said(foreseen, "dead", f"{why}; it was kept as a dead letter at {TIME}")


def test_each_handler_of_a_bridge_has_its_own_verdict(place):
    """Handlers that take the topic are judged under their names, with entities of their own; others are not asked."""
    bridge = place.bridge()
    bridge.register("v2.users.*", lambda event: None, name="board")
    bridge.process(presence("AWAY", 0))
    raws = [payloads.raw(one) for one in (presence("BUSY", -1000), payloads.envelope(payloads.ACW))]
    handlers = [("v2.users.*", "board"), ("v2.users.{id}.presence", ""), ("v2.audits.*", "audit")]
    state, fact = place.looking(*handlers).foresee(raws)
    assert [(one.handler, one.verdict.value) for one in state] == [("board", "stale"), ("", "fresh")]
    assert [(one.handler, one.verdict.value, one.reason) for one in fact] == [
        ("", "unhandled", "no handler takes its topic")
    ]
    (kept,) = place.looking(*handlers, unhandled="dead").foresee(raws[1:])
    assert [(one.verdict.value, one.reason) for one in kept] == [
        ("unhandled", "unhandled: no handler takes its topic; the ledger does not know it yet")
    ]


def test_without_handlers_the_ledgers_records_name_them(place):
    """Where no handler is known, verdicts are for one without a name, and for each that has a record of the event."""
    bridge = place.bridge()
    bridge.register("*", lambda event: None, name="crm")
    bridge.process(payloads.envelope(payloads.ACW))
    shadow = place.bridge(shadow=True)
    shadow.process(payloads.envelope(payloads.ACW))
    looking = place.looking()
    assert not looking.knows_handlers
    (known,) = looking.foresee([payloads.raw(payloads.envelope(payloads.ACW))])
    assert [(one.handler, one.verdict.value) for one in known] == [
        ("", "fresh"), ("crm", "redelivery"), ("shadow of", "redelivery"),
    ]  # fmt: skip
    claimed_for_no_time(place, b"no event", handler="dead letters to the queue")
    (unreadable,) = looking.foresee([b"no event"])
    assert [(one.handler, one.verdict.value) for one in unreadable] == [("", "dead")]
    (judged,) = place.looking(shadow=True).foresee([payloads.raw(payloads.envelope(payloads.ACW))])
    assert [(one.handler, one.verdict.value) for one in judged] == [("shadow of", "redelivery")]


def test_the_receiver_of_a_url_is_a_handler(place):
    """Where the settings name nothing but a URL to send events to, its verdict is the one without a name."""
    place.bridge()
    looking = place.looking(downstream_url="https://crm.example/events")
    assert looking.knows_handlers
    ((one,),) = looking.foresee([payloads.raw(payloads.envelope(payloads.ACW))])
    assert (one.handler, one.verdict.value) == ("", "fresh")


def test_nothing_in_the_ledger_changes(place):
    """Whatever is foreseen, the ledger is byte for byte as before, and so is what it says of itself."""
    bridge = place.bridge()

    def work(event):
        if event.body.get("never"):
            raise PermanentError("never")

    bridge.register("*", work)
    stream = [one.raw for one in simulate(2, 3, road=Road(unreadable=0.05))]
    half = len(stream) // 2
    bridge.process_many([*stream[:half], payloads.envelope(payloads.ACW, {"never": True})])
    ledger = place.handle()
    ledger.open(None)

    def said():
        return ledger.counts(), *[sorted(map(repr, ledger.scan(Query(entities=only)))) for only in (False, True)]

    before, said_before = place.stored(), said()
    assert before
    assert said_before[0][Status.DEAD] > 0
    foreseen = place.looking(("*", "")).foresee(stream)
    assert {one.verdict.value for (one,) in foreseen} >= {"fresh", "redelivery", "republish", "dead"}
    place.looking().foresee(stream)
    place.handle().open_to_look(None)
    assert place.stored() == before
    assert said() == said_before


def test_no_ledger_is_made(place):
    """A ledger that nobody has opened yet stays as it is, and its first worker still chooses the secret."""
    before = place.stored()
    assert place.handle().open_to_look(None) is None
    assert place.stored() == before
    worker = place.handle()
    assert worker.open(SECRET) == SECRET
    assert place.looking(("*", ""), secret=SECRET).foresee([b"x"])[0][0].verdict == "dead"


def test_a_look_is_for_many_deliveries(place):
    """However many deliveries there are, the ledger is asked once, or twice where it has to name the handlers."""
    bridge = place.bridge()
    bridge.register("*", lambda event: None, name="crm")
    stream = [one.raw for one in itertools.islice(simulate(5, 4), 150)]
    bridge.process_many(stream[:100])
    for handlers, calls_at_most in (([("*", "crm"), ("v2.*", "")], 1), ([], 2)):
        looking, calls = place.looking(*handlers), []
        ledger = looking._ledger
        assert isinstance(ledger, ShowsRecords)

        class Counting:
            def look(self, asks, ledger=ledger, calls=calls):
                calls.append(len(asks))
                return ledger.look(asks)

        looking._ledger = Counting()
        assert len(looking.foresee(stream)) == len(stream)
        assert len(calls) == calls_at_most


@pytest.mark.parametrize("ns", [0, 1, 999, 1_000, 999_999_999, 1_748_860_200_123_000_000, 2**63 - 1])
def test_times_are_written_as_precisely_as_they_are(ns):
    """A time is written so that it reads back to the same nanosecond."""
    assert read_time(_ns_text(ns)) == (ns, True)
