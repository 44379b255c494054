"""A Lambda function: each shape it may be handed is recognised, worked off, and answered so that nothing is lost."""

import json
from math import inf, nan

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lambda_function import Function, fact, text
from oncebridge import Bridge, LedgerRefused, LedgerUnavailable, NotAcknowledged, PermanentError
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.sources.unwrap import unwrap_parsed
from oncebridge.testing.faults import Fault, faulty
from payloads import ACW, CANARIES, PRESENCE, envelope, personal
from shapes import (
    every_shape,
    fifo_message,
    given_up,
    message,
    notification,
    piped_stream_record,
    records,
    stream_record,
    topic_record,
    transformation,
    trees,
    url_request,
    with_metadata,
)

#: By what name each shape knows the one record it holds; the others fail as a whole, but for Firehose and HTTP.
NAMES = {
    "queue": "message-0",
    "FIFO queue": "message-0",
    "queue behind a topic": "message-0",
    "queue of failed invocations": "message-0",
    "queue with a list in a message": "message-0",
    "Kinesis": "4959033827",
    "pipe from a queue": "message-0",
    "pipe from Kinesis": "shardId-000000000000:4959033827",
}
HTTP = ("function URL", "API Gateway", "load balancer")
SHAPES = every_shape(fact(1))


@pytest.fixture
def function():
    """A function with nothing wrong."""
    with Function() as function:
        yield function


def named(answer):
    """Return the records that an answer names as failed; it says nothing else."""
    assert list(answer) == ["batchItemFailures"]
    assert all(list(item) == ["itemIdentifier"] for item in answer["batchItemFailures"])
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def messages(*numbers, make=message):
    """Write a batch with a message for each number, named after it."""
    return records(*[make(text(number), str(number)) for number in numbers])


def succeeded(shape, answer):
    """Tell whether an answer says that everything may be forgotten."""
    if shape in NAMES:
        return named(answer) == []
    if shape == "Firehose":
        return [record["result"] for record in answer["records"]] == ["Ok"]
    if shape.startswith(HTTP):
        return answer["statusCode"] == 200
    return answer["received"] == 1 and answer["retrying"] == 0


# --- every shape --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_an_event_is_handled_once_in_every_shape(function, shape):
    """However often an event comes in a shape, it takes effect once, and each delivery is acknowledged."""
    assert succeeded(shape, function(SHAPES[shape]))
    assert succeeded(shape, function(SHAPES[shape]))
    assert function.done == [1]
    assert function.books == {"received": 2, "processed": 1, "redelivery": 1}


def test_it_is_the_same_event_in_every_shape(function):
    """An event that comes by several ways takes effect once."""
    for shape, event in SHAPES.items():
        assert succeeded(shape, function(event)), shape
    assert function.done == [1]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_told_of_a_failure_in_its_own_way(function, shape):
    """What is not acknowledged is named where that is understood; elsewhere the invocation fails, or the request."""
    function.does[1] = RuntimeError("no luck")
    if shape in NAMES:
        assert named(function(SHAPES[shape])) == [NAMES[shape]]
    elif shape == "Firehose":
        record = SHAPES[shape]["records"][0]
        failed = {"recordId": record["recordId"], "result": "ProcessingFailed", "data": record["data"]}
        assert function(SHAPES[shape]) == {"records": [failed]}
    elif shape.startswith(HTTP):
        assert function(SHAPES[shape])["statusCode"] == 503
    else:
        with pytest.raises(
            NotAcknowledged, match=r"1 of 1 deliveries .* handler raised RuntimeError at attempt 1 of 3"
        ):
            function(SHAPES[shape])
    assert function.tried == [1]
    assert function.done == []


@pytest.mark.parametrize("shape", SHAPES)
def test_a_dead_letter_is_acknowledged(function, shape):
    """What is kept as a dead letter need not come again; only Firehose is told to set it aside as well."""
    function.does[1] = PermanentError()
    answer = function(SHAPES[shape])
    assert succeeded(shape, answer) is (shape != "Firehose")
    assert function.statuses == {"dead": 1}


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_acknowledged_while_the_ledger_is_out_of_reach(shape):
    """Without a ledger the whole invocation fails, whatever its shape, so that everything comes again."""
    with Function(faulty(MemoryLedger(), Fault("claim", call=0))) as function:
        if shape.startswith(HTTP):
            assert function(SHAPES[shape])["statusCode"] == 503
        else:
            with pytest.raises(LedgerUnavailable):
                function(SHAPES[shape])
        assert function.tried == []


@pytest.mark.parametrize("shape", SHAPES)
def test_a_ledger_that_refuses_is_an_error_whatever_the_shape(shape):
    """Somebody has to change the settings, so it is not made to look like something that passes."""

    def refuse():
        raise LedgerRefused("another secret")

    with Function(faulty(MemoryLedger(), Fault("open", call=0, act=refuse))) as function, pytest.raises(LedgerRefused):
        function(SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
def test_what_somebody_else_works_on_is_not_acknowledged(function, shape):
    """A duplicate of an event that is not done yet has to come again: whoever works on it may die."""
    answers = []

    def deliver_again():
        try:
            answers.append(succeeded(shape, other(SHAPES[shape])))
        except NotAcknowledged:
            answers.append(False)

    with Function(function.ledger) as other:
        function.does[1] = deliver_again
        function(SHAPES[shape])
        assert answers == [False]
        assert other.tried == []


def test_detail_alone_is_an_event(function):
    """Behind an input path there is no envelope, and the invocation fails as a whole."""
    event = fact(1)["detail"]
    function.does[1] = RuntimeError()
    with pytest.raises(NotAcknowledged):
        function(event)
    del function.does[1]
    assert function(event)["processed"] == 1
    assert function.done == [1]


@pytest.mark.parametrize("event", [fact(1), fact(1)["detail"]])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_event_is_one_whatever_else_it_looks_like(function, shape, event):
    """Fields beside those of an event do not turn it into something that is answered in another way."""
    function.does[1] = RuntimeError("no luck")
    disguise = {} if isinstance(SHAPES[shape], list) else SHAPES[shape]
    with pytest.raises(NotAcknowledged):
        function({**disguise, **event})
    assert function.tried == [1]


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        ({"Records": []}, {"batchItemFailures": []}),
        ([], {"batchItemFailures": []}),
        (transformation(), {"records": []}),
    ],
)
def test_an_empty_batch_is_answered(function, event, answer):
    """Nothing came, so nothing is kept, and nothing has to come again."""
    assert function(event) == answer
    assert function.books == {}


def test_text_is_taken_byte_for_byte(function):
    """Numbers in a message keep the way they are written, so its event is the one that any other way in gives."""
    written = text(1, share=7).replace('"share": 7', '"share": 1.10')
    other = text(1, share=7).replace('"share": 7', '"share": 1.1')
    function(records(message(written)))
    assert function.bridge.process(written).verdict == "redelivery"
    assert function.bridge.process(other).verdict == "fresh"


def test_what_json_cannot_express_is_kept_as_a_dead_letter(function):
    """Lambda's parser lets NaN through; it is set aside rather than rounded to something else."""
    event = fact(1, share=nan)
    assert function.bridge.lambda_handler(event, None)["dead"] == 1
    assert function.bridge.lambda_handler(fact(2, share=inf), None)["dead"] == 1
    assert function.statuses == {"dead": 2}


def test_reasons_hold_no_personal_data():
    """What an invocation fails with is logged by Lambda, so it says nothing that a payload says."""
    bridge = Bridge("memory://")

    @bridge.on("*")
    def fail(event):
        raise ValueError(f"no luck with {event.body}")

    with pytest.raises(NotAcknowledged) as failure:
        bridge.lambda_handler(personal(), None)
    assert "6 of 6" in str(failure.value)
    answer = bridge.lambda_handler(url_request(json.dumps(personal())), None)
    for canary in CANARIES.values():
        assert canary not in str(failure.value)
        assert canary not in str(answer)


# --- attempts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["EventBridge direct", "topic", "failure destination", "list of envelopes"])
def test_where_lambda_gives_up_the_third_failure_is_a_dead_letter(function, shape):
    """Lambda invokes three times at most; at the third failure the event is kept, and the invocation succeeds."""
    function.does[1] = RuntimeError("no luck")
    for attempt in (1, 2):
        with pytest.raises(NotAcknowledged, match=f"attempt {attempt} of 3"):
            function(SHAPES[shape])
    assert function(SHAPES[shape])["dead"] == 1
    assert function.statuses == {"dead": 1}
    assert function(SHAPES[shape])["redelivery"] == 1
    assert function.tried == [1, 1, 1]


@pytest.mark.parametrize("shape", ["queue", "FIFO queue", "Kinesis", "pipe from a queue", "function URL"])
def test_where_deliveries_go_on_there_are_as_many_attempts_as_set(function, shape):
    """Queues, streams and senders go on for long, so the limit is the settings' own."""
    function.does[1] = RuntimeError("no luck")
    for _ in range(9):
        assert not succeeded(shape, function(SHAPES[shape]))
    assert succeeded(shape, function(SHAPES[shape]))
    assert function.tried == [1] * 10
    assert function.statuses == {"dead": 1}


def test_what_firehose_set_aside_is_taken_when_it_comes_again(function):
    """A record that failed is in Firehose's bucket; put through again, it takes effect once."""
    function.does[1] = RuntimeError("no luck")
    assert not succeeded("Firehose", function(SHAPES["Firehose"]))
    assert function.statuses == {"retry": 1}
    function.does.clear()
    assert [succeeded("Firehose", function(SHAPES["Firehose"])) for _ in range(2)] == [True, True]
    assert function.done == [1]


# --- queues and streams -------------------------------------------------------------------------------------


def test_only_the_messages_that_failed_come_again(function):
    """A message that failed is named; its neighbours are done."""
    function.does |= {2: RuntimeError(), 4: RuntimeError()}
    assert named(function(messages(1, 2, 3, 4, 5))) == ["2", "4"]
    assert function.done == [1, 3, 5]


def test_a_message_succeeds_only_with_all_that_it_holds(function):
    """A message with several deliveries comes again while one of them has to; the others are not repeated."""
    body = json.dumps([fact(1), json.loads(notification(text(2))), given_up(fact(3)), "unreadable"])
    function.does[2] = RuntimeError()
    assert named(function(records(message(body), message(text(4), "other")))) == ["message-0"]
    del function.does[2]
    assert named(function(records(message(body)))) == []
    assert sorted(function.done) == [1, 2, 3, 4]
    assert function.tried.count(2) == 2


def test_a_message_is_named_once(function):
    """A name that stands twice in a batch stands once in the answer, and stands for both."""
    function.does[2] = RuntimeError()
    assert named(function(records(message(text(1)), message(text(2)), message(text(2))))) == ["message-0"]


def test_messages_without_a_name_fail_as_a_whole(function):
    """Who cannot be named can only come again with all the others."""
    batch = messages(1, 2)
    del batch["Records"][1]["messageId"]
    function.does[1] = RuntimeError()
    with pytest.raises(NotAcknowledged):
        function(batch)
    assert function.done == [2]


@pytest.mark.parametrize("name", ["", None, 7, ["m"], {"m": 1}, True])
def test_a_name_that_is_no_text_is_none(function, name):
    """An answer with a wrong name would be taken for success, or for something else than was meant."""
    function.does[1] = RuntimeError()
    with pytest.raises(NotAcknowledged):
        function(records(message(text(1), name), message(text(2), "m")))


@pytest.mark.parametrize("make", [fifo_message, stream_record, piped_stream_record])
def test_order_is_kept_behind_a_failure(function, make):
    """After one that has to come again, the later ones of its group are not tried, and come again too."""
    batch = records(*[make(text(n), f"n{n}", group) for n, group in enumerate("aabbaab", 1)])
    function.does[2] = RuntimeError()
    assert named(function(batch))[0].endswith("n2")
    function.tried.clear()
    failed = [name.removeprefix("shardId-000000000000:") for name in named(function(batch))]
    assert failed == ["n2", "n5", "n6"]
    assert function.tried == [2]
    assert sorted(function.done) == [1, 3, 4, 7]
    del function.does[2]
    assert named(function(batch)) == []
    assert function.done[-3:] == [2, 5, 6]


def test_what_was_held_back_is_in_the_books(function):
    """Whatever an invocation brought is received; what was not tried is still retrying."""
    batch = records(*[fifo_message(text(n), str(n)) for n in (1, 2, 3)])
    function.does[1] = RuntimeError()
    assert named(function(batch)) == ["1", "2", "3"]
    assert function.books == {"received": 3, "retrying": 3}
    assert function.tried == [1]


def test_what_no_handler_takes_keeps_its_place_too():
    """Whoever adds a handler later gets a group in order: nothing in it is skipped because nobody wanted it today."""
    bridge = Bridge("memory://")

    @bridge.on(ACW)
    def fail(event):
        raise RuntimeError

    unwanted = json.dumps(envelope(PRESENCE))
    with bridge:
        answer = bridge.lambda_handler(records(fifo_message(text(1), "1"), fifo_message(unwanted, "2")), None)
    assert named(answer) == ["1", "2"]


def test_a_group_does_not_wait_for_a_dead_letter(function):
    """A message that is unreadable, or failed for good, is acknowledged, and the next of its group is tried."""
    function.does[2] = PermanentError()
    batch = records(fifo_message("hello", "1"), fifo_message(text(2), "2"), fifo_message(text(3), "3"))
    assert named(function(batch)) == []
    assert function.done == [3]


def test_groups_are_worked_off_side_by_side():
    """The first of every group is one batch, then the second of each: order costs as few calls as it can."""
    batch = records(*[fifo_message(text(n), str(n), f"group-{n % 5}") for n in range(15)])
    with Function(faulty(MemoryLedger())) as function:
        assert named(function(batch)) == []
        assert function.done == list(range(15))
        assert function.ledger.calls["claim"] == 3


@pytest.mark.parametrize("arn", ["arn:aws:sqs:eu-west-2:210987654321:events", "arn:aws:sqs:fifo", "", None, 3])
def test_a_fair_queue_has_groups_without_order(function, arn):
    """Only a FIFO queue keeps order; a group of another queue does not hold its messages back."""
    batch = records(*[{**fifo_message(text(n), str(n)), "eventSourceARN": arn} for n in (1, 2, 3)])
    function.does[1] = RuntimeError()
    assert named(function(batch)) == ["1"]
    assert function.done == [2, 3]


@pytest.mark.parametrize("attributes", [None, {}, {"MessageGroupId": None}, {"MessageGroupId": 3}, "group"])
def test_messages_of_a_fifo_queue_without_a_group_are_one(function, attributes):
    """Where it is not known whose order to keep, all order is kept."""
    batch = records(*[{**fifo_message(text(n), str(n)), "attributes": attributes} for n in (1, 2, 3)])
    function.does[2] = RuntimeError()
    assert named(function(batch)) == ["2", "3"]


def test_records_of_a_stream_that_is_not_ours_are_kept(function):
    """What comes from a table's stream is no event: each record is a dead letter, and the invocation succeeds."""
    changes = {"Keys": {"id": {"S": "7"}}, "SequenceNumber": "111", "StreamViewType": "KEYS_ONLY"}
    batch = [
        {"eventID": str(n), "eventName": "INSERT", "eventSource": "aws:dynamodb", "dynamodb": changes} for n in "ab"
    ]
    assert function(records(*batch))["dead"] == 2
    assert function(batch)["dead"] == 2


# --- Firehose -----------------------------------------------------------------------------------------------


def test_firehose_gets_every_record_back(function):
    """Each record is answered once, in order, with its data as it was."""
    event = transformation(text(1), text(2), "hello", json.dumps([fact(3), fact(4)]), text(5))
    function.does |= {2: RuntimeError(), 4: PermanentError()}
    answer = function(event)["records"]
    assert [record["recordId"] for record in answer] == [f"record-{n}" for n in range(5)]
    assert [record["data"] for record in answer] == [record["data"] for record in event["records"]]
    assert [record["result"] for record in answer] == ["Ok", *["ProcessingFailed"] * 3, "Ok"]
    assert function.done == [1, 3, 5]


def test_firehose_gets_duplicates_back_too(function):
    """An invocation whose answer was lost is repeated, and what was done the first time must still be passed on."""
    event = transformation(text(1), text(1), text(2))
    assert function(event) == function(event)
    assert [record["result"] for record in function(event)["records"]] == ["Ok", "Ok", "Ok"]
    assert function.done == [1, 2]


def test_a_conflict_is_set_aside_by_firehose(function):
    """An id that came before with other content is a dead letter too."""
    one, other = ({"eventId": "7", "eventType": "changed", "n": n} for n in (1, 2))
    answer = function(transformation(json.dumps(one), json.dumps(other)))
    assert [record["result"] for record in answer["records"]] == ["Ok", "ProcessingFailed"]


@pytest.mark.parametrize("record", [None, 3, "text", {}, {"recordId": 7, "data": ""}, {"recordId": "", "data": ""}])
def test_records_of_firehose_without_a_name_fail_as_a_whole(function, record):
    """Firehose refuses an answer that leaves one out, so it gets none while something has to come again."""
    event = transformation(text(1))
    event["records"].append(record)
    function.does[1] = RuntimeError()
    with pytest.raises(NotAcknowledged):
        function(event)


@pytest.mark.parametrize("data", [None, 3, "no base64", "e30", [], {}])
def test_data_that_is_no_base64_is_set_aside(function, data):
    """A record without anything to read is kept as a dead letter, and goes back as it was."""
    event = transformation(text(1), text(2))
    event["records"][0]["data"] = data
    first, second = function(event)["records"]
    assert first == {"recordId": "record-0", "result": "ProcessingFailed", "data": data}
    assert second["result"] == "Ok"
    assert function.statuses == {"dead": 1, "done": 1}


# --- time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [message, fifo_message])
def test_near_the_end_of_its_time_nothing_more_is_begun(function, make):
    """What there is no time for is handed back untried, without counting as an attempt, and done the next time."""
    function.does = {n: lambda: function.clock.advance(1) for n in range(10)}
    batch = messages(*range(10), make=make)
    assert named(function(batch, seconds=5)) == [str(n) for n in range(4, 10)]
    assert function.tried == [0, 1, 2, 3]
    assert named(function(batch, seconds=60)) == []
    assert function.done == list(range(10))
    assert function.books == {"received": 20, "processed": 10, "redelivery": 4, "retrying": 6}


def test_of_a_long_time_five_seconds_are_kept_free(function):
    """A batch may use nearly all of its time, however long that is."""
    function.does = {n: lambda: function.clock.advance(100) for n in range(10)}
    assert len(named(function(messages(*range(10)), seconds=800))) == 2
    assert function.tried == list(range(8))


@pytest.mark.parametrize("seconds", [0, -1, 0.0005])
def test_no_time_left_is_not_unknown_time(function, seconds):
    """An invocation that is over already tries nothing, and says so."""
    assert named(function(messages(1, 2), seconds=seconds)) == ["1", "2"]
    with pytest.raises(NotAcknowledged, match="stopped before it was tried"):
        function(fact(3), seconds=seconds)
    answer = function(url_request(text(4)), seconds=seconds)
    assert (answer["statusCode"], answer["headers"]["Retry-After"]) == (503, "1")
    assert [record["result"] for record in function(transformation(text(5)), seconds=0)["records"]] == [
        "ProcessingFailed"
    ]
    assert function.tried == []
    assert function.statuses.get("dead") is None


@pytest.mark.parametrize("left", [None, "soon", nan, inf, object()])
def test_a_context_that_knows_no_time_is_no_hindrance(function, left):
    """Called by hand there may be no context, or one that tells nothing."""

    class Odd:
        def get_remaining_time_in_millis(self):
            return left

    for n, context in enumerate([None, object(), Odd()]):
        assert function.bridge.lambda_handler(fact(n), context)["processed"] == 1


# --- whatever comes -----------------------------------------------------------------------------------------

#: Bodies that look like something else than a message.
DISGUISED = [
    json.dumps(shape)
    for shape in [
        *every_shape(fact(50)).values(),
        {"Records": []},
        [],
        {"batchItemFailures": []},
        {"statusCode": 200},
        {"httpMethod": "GET", "requestContext": {}, "headers": None},
        records(message(text(51), "2")),
        records(message(text(51), name="")),
        {"messageId": "2", "eventSource": "aws:kinesis", "body": text(52)},
    ]
]


@pytest.mark.parametrize("body", [*DISGUISED, "", "null", "hello", "[" * 500, "\x00"])
@pytest.mark.parametrize("make", [message, fifo_message, stream_record, piped_stream_record])
def test_no_message_changes_what_is_said_of_the_others(function, make, body):
    """However a message is disguised, its neighbour's failure is told in the same way."""
    function.does[2] = RuntimeError()
    batch = records(make(body, "1", "one"), make(text(2), "2", "two"))
    assert [name[-1] for name in named(function(batch))] == ["2"]


def test_half_a_character_is_kept_as_a_dead_letter(function):
    """What JSON can escape, but no text can be, is set aside; its neighbours are done."""
    assert named(function(records(message("\ud800", "1"), message(text(2), "2")))) == []
    assert function.statuses == {"dead": 1, "done": 1}


@pytest.mark.parametrize("disguise", [message(text(1), "1"), piped_stream_record(text(1), "1"), message("", "2")])
@pytest.mark.parametrize("event", [fact(2), text(2), topic_record(text(2)), with_metadata(fact(2))])
def test_a_list_is_named_only_if_all_of_it_can_be(function, disguise, event):
    """A bus that delivers in batches ignores names: one event in disguise must not hide the failure of another."""
    function.does[2] = RuntimeError()
    for batch in ([disguise, event], records(event, disguise)):
        with pytest.raises(NotAcknowledged):
            function(batch)


GOOD, BAD = text(1), text(2)


def all_is_well(answer):
    """Tell whether an answer says, in whatever way, that everything may be forgotten."""
    if "statusCode" in answer:
        return answer["statusCode"] in (200, 400)
    return not answer.get("batchItemFailures") and all(one["result"] == "Ok" for one in answer.get("records", ()))


def is_empty_batch(event):
    """Tell whether there is nothing to be known."""
    return event == [] or (isinstance(event, dict) and [] in (event.get("Records"), event.get("records")))


@settings(max_examples=300)
@given(trees(GOOD, BAD, json.dumps([fact(1), fact(2)])))
def test_whatever_comes_is_known_or_comes_again(event):
    """For any JSON, either the answer says that something failed, or the ledger knows all that it held."""
    held = unwrap_parsed(event)
    with Function() as function:
        function.does[2] = RuntimeError("no luck")
        try:
            answer = function(event)
        except NotAcknowledged:
            return
        if all_is_well(answer):
            assert BAD.encode() not in held
            assert GOOD.encode() not in held or function.done == [1]
            assert "retrying" not in function.books
            assert function.statuses or is_empty_batch(event)


#: What may become of a delivery, and what its handler does then.
FATES = {"done": None, "fails": RuntimeError(), "dead": PermanentError(), "unreadable": None}
batches = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(list(FATES)), min_size=1, max_size=3)), max_size=8
)


@settings(max_examples=60)
@given(batches, st.sampled_from([message, fifo_message, stream_record, piped_stream_record]), st.booleans())
def test_exactly_what_failed_is_named(batch, make, in_list):
    """In any batch those records are named that hold a failure, and in a group with order those behind them."""
    does, made, failed, done, broken = {}, [], [], [], set()
    for n, (group, fates) in enumerate(batch):
        numbers = {10 * n + at: fate for at, fate in enumerate(fates)}
        does |= {number: FATES[fate] for number, fate in numbers.items()}
        parts = [f"hello {number}" if fate == "unreadable" else fact(number) for number, fate in numbers.items()]
        made.append(make(json.dumps(parts), f"n{n}", group))
        if group not in broken:
            done += [number for number, fate in numbers.items() if fate == "done"]
        if group in broken or "fails" in fates:
            failed.append(f"n{n}")
            broken |= {group} if make is not message else set()
    with Function() as function:
        function.does = does
        answer = function(made if in_list else records(*made))
        assert [name.removeprefix("shardId-000000000000:") for name in named(answer)] == failed
        assert sorted(function.done) == done
