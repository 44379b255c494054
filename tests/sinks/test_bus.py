"""Events on another bus: as they came, with their key, and each with an end of its own."""

import json
from datetime import UTC, datetime
from unittest import mock

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ParamValidationError, ReadTimeoutError
from msgspec.structs import replace

from oncebridge import Bridge, ConfigurationError, MissingExtra, PermanentError, RetryLater, Verdict
from oncebridge.breaker import Open
from oncebridge.errors import SaysWhy
from oncebridge.event import parse
from oncebridge.ledgers.findings import Level
from oncebridge.settings import load_settings
from oncebridge.settings.sinks.bus import BusSettings
from oncebridge.sinks import make_sink
from oncebridge.sinks.batch_sender import (
    BYTES_MAX,
    ENTRIES_MAX,
    DestinationBusy,
    DestinationSilent,
    Entry,
    EntryDeferred,
    EntryRefused,
    groups,
)
from oncebridge.sinks.bus import DETAIL_TYPE_MAX, LOOK_EACH_US, own_source, with_key
from oncebridge.sinks.promise import AT_LEAST_ONCE
from payloads import (
    ACW,
    BODIES,
    CANARIES,
    HAND_MADE,
    ORG,
    PUBLISHED_MS,
    TIME_MS,
    call_status,
    detail,
    envelope,
    in_envelope,
    interaction_update,
    iso,
    personal,
    raw,
    source,
    status_change,
)
from sinks.doubles import Amazon, bus_on, named, refusal

KEY = "ob1_00112233445566778899aabbccddeeff"
ARN = "arn:aws:events:eu-central-1:210987654321:event-bus/clean"


def events(number, start=0):
    """Make so many different events."""
    return [named(envelope(ACW, {"eventTime": TIME_MS + start + n})) for n in range(number)]


def entry_for(delivery, context, **settings):
    """Return the entry that an event becomes."""
    amazon = Amazon()
    bus_on(amazon, context, **settings)(named(delivery))
    ((entry,),) = amazon.calls
    return entry


def mark(entry):
    """Return what no two events share."""
    return json.loads(entry["Detail"])["eventBody"]["eventTime"]


# --- what is put ----------------------------------------------------------------------------------------------


def test_an_event_is_put_as_it_came(context):
    """Detail-type, detail, resources and time stay; beside them stands only the key, first in the detail."""
    delivery = envelope(ACW, resources=["arn:aws:x", "arn:aws:ü"])
    entry = entry_for(delivery, context)
    assert entry == {
        "EventBusName": "clean",
        "Source": f"genesys.com/cloud/{ORG}/service-desk",
        "DetailType": ACW,
        "Detail": entry["Detail"],
        "Resources": ["arn:aws:x", "arn:aws:ü"],
        "Time": datetime.fromtimestamp(PUBLISHED_MS // 1000, UTC),
    }
    got = json.loads(entry["Detail"])
    assert got.pop("oncebridge") == {"key": named(delivery).key}
    assert got == delivery["detail"]


ODD = (
    '{ "topicName":"v2.x" ,\n "eventBody" : {"ratio": 1.10, "big":12345678901234567890, "e":1E+2, "minus":-0.0,\t'
    '"text":"\\u00fc\\/\\ud83d\\ude42 \u2028", "list" : [ ] }, "timestamp":"2025-06-02T10:30:00.310Z"}'
)


@pytest.mark.parametrize(
    "frame",
    ['{"detail":%s,"detail-type":"v2.x"}', ' {"id":"1", "d\\u0065tail" :  %s ,"source":"a"} ', "%s", "\n %s \r\n"],
)
def test_a_detail_stays_as_it_was_written(context, frame):
    """Numbers, escapes and white space within the detail are the same bytes as before."""
    entry = entry_for((frame % ODD).encode(), context)
    key = named((frame % ODD).encode()).key
    assert entry["Detail"] == f'{{"oncebridge":{{"key":"{key}"}},{ODD[1:]}'


@pytest.mark.parametrize("empty", ["{}", "{ }", "{\n}"])
def test_an_empty_detail_is_an_object_still(context, empty):
    """A detail without fields gets the key and no comma."""
    entry = entry_for(f'{{"id":"1","detail-type":"ping","detail":{empty}}}'.encode(), context)
    assert list(json.loads(entry["Detail"])) == ["oncebridge"]


@pytest.mark.parametrize("name", ["oncebridge", "onceb\\u0072idge"])
def test_a_key_that_is_there_stays(name):
    """Through a second bridge a detail stays as it is: the first bridge's key names the event from end to end."""
    text = f'{{"a":1, "{name}":{{"key":"ob1_first"}}}}'.encode()
    assert with_key(text, KEY) == text
    assert with_key(with_key(b'{"a":1}', KEY), "ob1_second") == with_key(b'{"a":1}', KEY)


@pytest.mark.parametrize(
    ("given", "put"),
    [
        (source(), f"genesys.com/cloud/{ORG}/service-desk"),
        ("custom.desktop", "custom.desktop"),
        ("aws.s3", "s3"),
        ("aws.aws.partner/aws.x", "x"),
        ("awsome.source", "awsome.source"),
        ("aws.", ""),
        (" ", ""),
        (None, ""),
    ],
)
def test_no_source_is_amazons(given, put):
    """Of a source only what Amazon keeps to itself is dropped, however often it stands there."""
    assert own_source(given) == put


def test_a_source_can_be_chosen(context):
    """A source in the settings takes the place of every event's own."""
    assert entry_for(envelope(ACW), context, source="genesys.clean")["Source"] == "genesys.clean"


@pytest.mark.parametrize(
    ("delivery", "topic", "time"),
    [
        (detail(ACW), ACW, TIME_MS),
        (call_status()["detail"] | {"eventType": "call"}, "call", TIME_MS),
        (status_change()["detail"], "unknown", None),
    ],
    ids=["notification", "hand-made", "without time"],
)
def test_what_came_without_envelope_gets_one(context, delivery, topic, time):
    """Without an envelope the object is the detail, the topic the detail-type, and the time the event's own."""
    entry = entry_for(delivery, context)
    assert (entry["Source"], entry["DetailType"]) == ("oncebridge", topic)
    assert entry.get("Time") == (None if time is None else datetime.fromtimestamp(time / 1000, UTC))
    assert "Resources" not in entry
    assert json.loads(entry["Detail"]) == {"oncebridge": {"key": named(delivery).key}, **delivery}


def test_a_reshaped_event_is_put_as_it_came(context, empty_workplace):
    """What an input transformer made of an event is put as that; its source and topic are where settings find them."""
    (empty_workplace / "oncebridge.toml").write_text(
        '[envelope]\nsource = "from"\ndetail_type = "kind"\ndetail = "what"\n'
    )
    flat = {"from": source(), "kind": "call", "what": {"conversationId": "c", "state": "held"}}
    settings = load_settings()
    event = replace(parse(raw(flat), settings.reshape), key=KEY)
    amazon = Amazon()
    bus_on(amazon, context)(event)
    ((entry,),) = amazon.calls
    assert (entry["Source"], entry["DetailType"]) == (f"genesys.com/cloud/{ORG}/service-desk", "call")
    assert json.loads(entry["Detail"]) == {"oncebridge": {"key": KEY}, **flat}


@pytest.mark.parametrize("resources", [None, "arn", 5, [5, None, ""], {}])
def test_resources_that_are_none_are_left_out(context, resources):
    """Resources that Amazon would not take do not keep an event from being put."""
    assert "Resources" not in entry_for({**envelope(ACW), "resources": resources}, context)


def test_a_time_that_is_none_is_not_put(context):
    """An envelope's time that is no time gives way to the event's own."""
    entry = entry_for({**envelope(ACW), "time": "yesterday"}, context)
    assert entry["Time"] == datetime.fromtimestamp(TIME_MS / 1000, UTC)


# --- a second bridge behind it --------------------------------------------------------------------------------


def put_again(entry, number):
    """Deliver an entry as EventBridge does: every put has an id and an account of its own."""
    time = (
        {"time": iso(int(entry["Time"].timestamp() * 1000), digits=0)}
        if "Time" in entry
        else {"time": iso(TIME_MS + number)}
    )
    frame = {"id": f"put-{number}", "detail-type": entry["DetailType"], "source": entry["Source"], **time}
    return {**frame, "resources": entry.get("Resources", []), "detail": json.loads(entry["Detail"])}


@pytest.mark.parametrize(
    "delivery",
    [
        *(envelope(topic) for topic in BODIES),
        *(make() for name, make in HAND_MADE.items() if name != "interaction update"),
        detail(ACW),
    ],
    ids=lambda delivery: delivery.get("detail-type", "without type"),
)
def test_a_repeated_put_is_one_event_behind_it(context, delivery):
    """For a bridge behind the clean bus an event that was put twice is one event."""
    entry = entry_for(delivery, context)
    got = []
    with Bridge("memory://") as behind:
        behind.on("*")(got.append)
        results = [behind.process(put_again(entry, number)) for number in range(2)]
    assert [result.verdict for result in results] == [Verdict.FRESH, Verdict.REPUBLISH]
    assert len(got) == 1


def test_the_key_can_identify_what_nothing_else_does(context, empty_workplace):
    """An event with neither id nor time is known again behind the clean bus by a profile that names its key."""
    entry = entry_for(interaction_update(), context)
    topic = entry["DetailType"]
    (empty_workplace / "oncebridge.toml").write_text(f'[topics."{topic}"]\nexplicit_id = "oncebridge.key"\n')
    with Bridge("memory://", settings=load_settings()) as behind:
        behind.on("*")(lambda event: None)
        verdicts = [behind.process(put_again(entry, number)).verdict for number in range(2)]
    assert verdicts == [Verdict.FRESH, Verdict.REPUBLISH]


def test_attempts_put_the_same(context):
    """Nothing in an entry changes from attempt to attempt, or with the claim."""
    amazon, event = Amazon(), named(envelope(ACW))
    sink = bus_on(amazon, context)
    for attempt in range(1, 4):
        sink(replace(event, attempt=attempt, token=attempt * 1000))
    assert amazon.calls[0] == amazon.calls[1] == amazon.calls[2]


# --- how many in a call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([], []),
        ([1] * 10, [10]),
        ([1] * 11, [10, 1]),
        ([BYTES_MAX], [1]),
        ([BYTES_MAX, 1], [1, 1]),
        ([BYTES_MAX - 1, 1, 1], [2, 1]),
        ([BYTES_MAX // 2] * 5, [2, 2, 1]),
        ([1, BYTES_MAX, 1], [1, 1, 1]),
    ],
)
def test_a_call_takes_as_many_as_fit(sizes, calls):
    """Ten entries and the bytes of a call are both kept, in order, and to the last byte."""
    entries = [(at, Entry({}, size)) for at, size in enumerate(sizes)]
    cut = list(groups(entries))
    assert [len(group) for group in cut] == calls
    assert [one for group in cut for one in group] == entries
    assert all(sum(entry.size for _, entry in group) <= BYTES_MAX for group in cut)


def test_sizes_are_counted_as_amazon_does(context):
    """Source, detail-type, detail and resources count by their bytes, a time as fourteen; what fits is put."""
    delivery = envelope(ACW, {"note": "ü" * 1000}, resources=["ä"])
    entry = entry_for(delivery, context)
    texts = (entry["Source"], entry["DetailType"], entry["Detail"], *entry["Resources"])
    size = sum(len(text.encode()) for text in texts) + 14
    room = BYTES_MAX - size
    fits = envelope(ACW, {"note": "ü" * 1000 + "x" * room}, resources=["ä"])
    too_large = envelope(ACW, {"note": "ü" * 1000 + "x" * (room + 1)}, resources=["ä"])
    amazon = Amazon()
    sink = bus_on(amazon, context)
    ends = sink.send_many([named(too_large), named(fits), *events(1)])
    assert [type(end) for end in ends] == [EntryRefused, type(None), type(None)]
    assert str(ends[0]) == "it has 1,048,577 bytes, and bus clean takes no more than 1,048,576"
    assert [len(call) for call in amazon.calls] == [1, 1]


def test_a_long_detail_type_is_not_put(context):
    """EventBridge takes detail-types of 128 characters; a longer one is a dead letter without a call."""
    amazon = Amazon()
    sink = bus_on(amazon, context)
    longest, longer = (
        named(in_envelope({"eventId": "1"}, detail_type="ü" * n)) for n in (DETAIL_TYPE_MAX, DETAIL_TYPE_MAX + 1)
    )
    ends = sink.send_many([longest, longer])
    assert ends[0] is None
    assert isinstance(ends[1], EntryRefused)
    assert len(amazon.taken) == 1


def test_what_is_wrong_with_one_event_is_its_own(context):
    """An event that cannot be made into an entry does not keep its neighbours from being put."""
    amazon = Amazon()
    broken = replace(named(envelope(ACW)), raw=b"not what was parsed")
    ends = bus_on(amazon, context).send_many([*events(1), broken, *events(1, start=9)])
    assert [end is None for end in ends] == [True, False, True]
    assert [mark(entry) for entry in amazon.taken] == [TIME_MS, TIME_MS + 9]


# --- what Amazon may say --------------------------------------------------------------------------------------


def test_each_entry_has_its_own_end(context):
    """In one answer entries are taken, refused for good, put off and throttled, each by its index."""
    codes = {
        1: "MalformedDetail",
        3: "ThrottlingException",
        4: "InternalFailure",
        6: "NotAuthorizedForSourceException",
        8: "Odd",
    }
    amazon = Amazon(codes)
    ends = bus_on(amazon, context).send_many(events(10))
    kinds = {at: type(end) for at, end in enumerate(ends) if end is not None}
    assert kinds == {1: EntryRefused, 3: DestinationBusy, 4: DestinationBusy, 6: EntryDeferred, 8: EntryDeferred}
    assert str(ends[1]) == "bus clean answered MalformedDetail"
    assert isinstance(ends[1], PermanentError)
    assert isinstance(ends[3], RetryLater)
    assert len(amazon.taken) == 5


@pytest.mark.parametrize(
    "cut",
    [
        lambda _, answer: {**answer, "Entries": answer["Entries"][:2]},
        lambda _, answer: {**answer, "Entries": [*answer["Entries"][:2], {}, {}]},
    ],
    ids=["short", "empty"],
)
def test_what_the_answer_leaves_out_has_failed(context, cut):
    """An entry that the answer says nothing of is not taken for sent."""
    ends = bus_on(Amazon(cut), context).send_many(events(4))
    assert ends[:2] == [None, None]
    assert [str(end) for end in ends[2:]] == ["bus clean answered nothing for it"] * 2
    assert not any(isinstance(end, PermanentError) for end in ends)


def test_an_answer_without_entries_is_no_success(context):
    """A call that was answered with nothing has taken nothing."""
    assert None not in bus_on(Amazon(lambda *_: {}), context).send_many(events(3))


@pytest.mark.parametrize(
    "silence",
    [
        ReadTimeoutError(endpoint_url="https://x"),
        EndpointConnectionError(endpoint_url="https://x"),
        ValueError("no XML"),
    ],
    ids=["timeout", "connection", "garbage"],
)
def test_without_an_answer_all_have_failed(context, silence):
    """Where nobody knows what was taken, every event is to be repeated, and none is given up for it."""
    amazon = Amazon(silence)
    ends = bus_on(amazon, context).send_many(events(3))
    assert [type(end) for end in ends] == [DestinationSilent] * 3
    assert str(ends[0]) == f"bus clean did not answer ({type(silence).__name__})"
    assert len(amazon.calls) == 1


@pytest.mark.parametrize(
    ("code", "status"), [("ThrottlingException", 400), ("Unheard", 503), ("Unheard", 429), ("InternalFailure", 500)]
)
def test_trouble_of_amazons_own_is_waited_out(context, code, status):
    """Throttling and failures of Amazon's own let all events come again, not at once."""
    amazon = Amazon(refusal(code, status))
    ends = bus_on(amazon, context).send_many(events(3))
    assert [type(end) for end in ends] == [DestinationBusy] * 3
    assert len(amazon.calls) == 1


@pytest.mark.parametrize(
    "error",
    [refusal("ValidationException"), refusal("Unheard", 413), refusal("com.amazonaws.events#ValidationError")],
    ids=["validation", "413", "with a name space"],
)
def test_one_entry_does_not_spoil_a_call(context, error):
    """Where a call is refused as a whole, its entries go one by one, and only those that are refused again are dead."""
    amazon = Amazon(error, None, error, None)
    ends = bus_on(amazon, context).send_many(events(3))
    assert [type(end) for end in ends] == [type(None), EntryRefused, type(None)]
    assert [len(call) for call in amazon.calls] == [3, 1, 1, 1]
    assert [mark(entry) for entry in amazon.taken] == [TIME_MS, TIME_MS + 2]


def test_what_boto3_refuses_is_the_events_own(context):
    """A parameter that boto3 does not even send is a dead letter of its event alone."""
    error = ParamValidationError(report="quotes it")
    ends = bus_on(Amazon(error, error, None), context).send_many(events(2))
    assert [type(end) for end in ends] == [EntryRefused, type(None)]


CLOSED = {
    "denied": refusal("AccessDeniedException"),
    "expired": refusal("ExpiredTokenException"),
    "no credentials": NoCredentialsError(),
    "no region": ConfigurationError("no AWS region is known"),
}


@pytest.mark.parametrize("error", CLOSED.values(), ids=CLOSED)
def test_a_closed_bus_costs_no_attempts(context, error):
    """Rights and credentials are nobody's event's fault: that was no attempt, and the bus is left alone for a while."""
    amazon = Amazon(*[error] * 50)
    sink = bus_on(amazon, context)
    ends = [end for _ in range(5) for end in sink.send_many(events(2))]
    assert [type(end) for end in ends] == [Open] * 10
    assert "bus clean answered" in ends[0].last
    assert min(end.retry_in_us for end in ends) > 0
    assert len(amazon.calls) <= 9, "after three failures in a row nobody asks"


def test_a_policy_that_forbids_one_source(context):
    """A call that is denied for one entry alone is made again entry by entry, and what is denied then does count."""
    denied = refusal("AccessDeniedException")
    amazon = Amazon(denied, None, denied, None)
    ends = bus_on(amazon, context).send_many(events(3))
    assert [end is None for end in ends] == [True, False, True]
    assert not isinstance(ends[1], Open)
    assert not isinstance(ends[1], PermanentError)


def test_a_bus_that_is_back_is_used_again(context, clock):
    """While it is in trouble a bus is asked now and then at no cost; once it answers, everything goes on."""
    amazon = Amazon(*[ReadTimeoutError(endpoint_url="x")] * 4)
    sink = bus_on(amazon, context)
    first = [sink.send_many(events(1))[0] for _ in range(4)]
    assert [type(end) for end in first] == [DestinationSilent, DestinationSilent, DestinationSilent, Open]
    clock.advance(60)
    assert type(sink.send_many(events(1))[0]) is Open, "a look that failed costs nothing"
    assert len(amazon.calls) == 4
    clock.advance(60)
    assert sink.send_many(events(2)) == [None, None]


def test_refused_events_do_not_close_a_bus(context):
    """However many events are refused one after another, the next one is put."""
    amazon = Amazon(*[{0: "MalformedDetail"}] * 20)
    sink = bus_on(amazon, context)
    assert all(isinstance(sink.send_many(events(1))[0], EntryRefused) for _ in range(20))
    assert sink.send_many(events(1)) == [None]


def test_throttled_entries_open_the_breaker_only_if_nothing_was_taken(context):
    """An answer in which something was taken comes from a bus that is there."""
    sink = bus_on(Amazon(*[{0: "ThrottlingException"}] * 10), context)
    assert [type(sink.send_many(events(2))[0]) for _ in range(5)] == [DestinationBusy] * 5
    sink = bus_on(Amazon(*[{0: "ThrottlingException", 1: "InternalFailure"}] * 10), context)
    assert [type(sink.send_many(events(2))[1]) for _ in range(5)] == [DestinationBusy] * 3 + [Open] * 2


def test_buses_have_breakers_of_their_own(context):
    """Trouble at one bus keeps nothing from another; sinks for the same one know of it."""
    silence = [ReadTimeoutError(endpoint_url="x")] * 9
    sick = bus_on(Amazon(*silence), context, bus="sick")
    for _ in range(3):
        sick.send_many(events(1))
    assert bus_on(Amazon(), context, bus="well").send_many(events(1)) == [None]
    assert isinstance(bus_on(Amazon(), context, bus="sick").send_many(events(1))[0], Open)


def test_one_event_raises_what_it_failed_with(context):
    """Called with one event a sink raises what that failed with, as a handler does."""
    sink = bus_on(Amazon({0: "MalformedDetail"}), context)
    with pytest.raises(EntryRefused, match="MalformedDetail"):
        sink(*events(1))
    sink(*events(1))


def test_words_hold_nothing_of_an_event(context):
    """Errors and what is shown of a sink name neither the event nor the account."""
    deliveries = [named(delivery) for delivery in personal()]
    hostile = "<script>" + CANARIES["name"]
    amazon = Amazon({0: "MalformedDetail", 1: hostile, 2: None}, refusal("AccessDenied", message=CANARIES["name"]))
    sink = bus_on(amazon, context, bus=ARN)
    ends = sink.send_many(deliveries) + sink.send_many(deliveries)
    shown = repr(sink) + " ".join(str(end) for end in ends)
    assert not [name for name, canary in CANARIES.items() if canary in shown]
    assert "210987654321" not in shown
    assert "bus clean answered an unknown error" in shown
    assert all(isinstance(end, SaysWhy) for end in ends if end is not None)


# --- whether the bus is there ---------------------------------------------------------------------------------


def test_a_missing_bus_gets_nothing(context, clock):
    """EventBridge takes events for a bus that does not exist, and drops them: so it is looked for first."""
    amazon = Amazon()
    amazon.missing = True
    sink = bus_on(amazon, context)
    (end,) = sink.send_many(events(1))
    assert isinstance(end, Open)
    assert "ResourceNotFoundException" in end.last
    assert not amazon.calls
    amazon.missing = False
    assert sink.send_many(events(1)) == [None]


def test_a_bus_is_looked_for_now_and_then(context, clock):
    """A bus that was seen is not looked for at every call; one that is deleted is missed within a minute."""
    amazon = Amazon()
    sink = bus_on(amazon, context)
    for _ in range(5):
        sink.send_many(events(1))
    assert amazon.looked_at == ["clean"]
    amazon.missing = True
    clock.advance(LOOK_EACH_US / 1e6)
    assert isinstance(sink.send_many(events(1))[0], Open)
    assert len(amazon.calls) == 5


@pytest.mark.parametrize("error", [refusal("AccessDeniedException"), refusal("ThrottlingException")])
def test_a_bus_that_must_not_be_looked_at_is_used(context, error):
    """The right to look is not needed: without it events are put all the same, and nobody asks again for a while."""
    amazon = Amazon()
    amazon.missing = error
    sink = bus_on(amazon, context)
    assert sink.send_many(events(1)) == sink.send_many(events(1)) == [None]
    assert len(amazon.looked_at) == 1


def test_a_bus_of_another_account_is_used(context, clock):
    """An ARN that cannot be seen may be another account's; one that was seen before is missing."""
    amazon = Amazon()
    amazon.missing = True
    assert bus_on(amazon, context, bus=ARN).send_many(events(1)) == [None]
    amazon.missing = False
    sink = bus_on(amazon, context, bus=ARN)
    assert sink.send_many(events(1)) == [None]
    amazon.missing = True
    clock.advance(LOOK_EACH_US / 1e6)
    assert isinstance(sink.send_many(events(1))[0], Open)


def test_an_outage_while_looking_is_one(context):
    """Where nobody answers whether the bus is there, nothing is put."""
    amazon = Amazon()
    amazon.missing = ReadTimeoutError(endpoint_url="x")
    sink = bus_on(amazon, context)
    assert isinstance(sink.send_many(events(1))[0], DestinationSilent)
    assert not amazon.calls


@pytest.mark.parametrize(
    ("missing", "bus", "level", "words"),
    [
        (False, "clean", Level.GOOD, "is there"),
        (True, "clean", Level.WRONG, "does not exist"),
        (True, ARN, Level.WARNING, "cannot be looked at (ResourceNotFoundException)"),
        (refusal("AccessDeniedException"), "clean", Level.WARNING, "cannot be looked at (AccessDeniedException)"),
        (NoCredentialsError(), "clean", Level.WRONG, "cannot be looked at (NoCredentialsError)"),
    ],
)
def test_an_examination_tells_of_a_missing_bus(context, missing, bus, level, words):
    """`doctor` says whether the bus is there, and what the promise loses where that cannot be seen."""
    amazon = Amazon()
    amazon.missing = missing
    (finding,) = bus_on(amazon, context, bus=bus).examine()
    assert (finding.level, finding.subject) == (level, "bus")
    assert words in finding.found
    assert bool(finding.weakens) == (level is Level.WARNING)
    assert bool(finding.fix) == (level is not Level.GOOD)


# --- settings and the rest ------------------------------------------------------------------------------------


def test_the_promise(context):
    """A bus promises at least once, and says where the key is."""
    promise = bus_on(Amazon(), context).promise
    assert promise.level == AT_LEAST_ONCE
    assert "detail.oncebridge.key" in promise.why
    assert not promise.whatever_the_ledger


def test_a_sink_is_closed_and_used_again(context):
    """Closing lets go of the client; whoever needs one again gets a new one. Closing twice does no harm."""
    amazon = Amazon()
    sink = bus_on(amazon, context)
    sink.close()
    sink.close()
    assert amazon.closed == 1
    with mock.patch("oncebridge.sinks.bus.bus_client", return_value=Amazon()):
        assert sink.send_many(events(1)) == [None]


@pytest.fixture
def refused(empty_workplace):
    """Return the words with which settings of a sink are refused, when they are read or the bridge is made."""

    def words(text):
        (empty_workplace / "oncebridge.toml").write_text(f"[sinks.clean]\n{text}\n")
        with pytest.raises(ConfigurationError) as caught:
            Bridge("memory://", settings=load_settings())
        return str(caught.value)

    return words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('bus = ""', "[sinks.clean] bus: expected a text"),
        ('bus = "not a bus"', "sink clean: bus: expected the name or the ARN of an event bus"),
        ('bus = "clean"\nsource = "aws.genesys"', "source: expected a text such as genesys.clean"),
        ('bus = "clean"\nsource = "aws.partner/genesys.com"', "must not begin with aws."),
        ('bus = "clean"\nsource = ""', "source: expected"),
        ('bus = "clean"\nsource = " "', "source: expected"),
        ('bus = "clean"\nsauce = "x"', "did you mean source?"),
        ('bus = "clean"\nqueue = "x"', "has both bus and queue"),
    ],
)
def test_wrong_settings_are_refused(refused, text, words):
    """Errors name the sink, the field and the fix."""
    assert words in refused(text)


def test_a_missing_package_is_named(context):
    """Without boto3 the sink is refused with the line that installs it."""
    with (
        mock.patch("oncebridge.amazon.find_spec", return_value=None),
        pytest.raises(MissingExtra, match=r"sink clean: bus: needs boto3; .*pip install 'oncebridge\[aws\]'"),
    ):
        make_sink(BusSettings(name="clean", bus="clean"), context)


def test_a_sink_by_settings_takes_its_topics(empty_workplace):
    """A table in the settings makes a sink that takes the topics it names, ten events in a call."""
    (empty_workplace / "oncebridge.toml").write_text('[sinks.clean]\nbus = "clean"\ntopics = ["v2.detail.*"]\n')
    bridge = Bridge("memory://", settings=load_settings())
    (handler,) = bridge.handlers
    assert (handler.pattern, handler.name, handler.many) == ("v2.detail.*", "clean", ENTRIES_MAX)
