"""Captures as people have them: every format holds the same deliveries, and nothing is lost, invented or waited for."""

import gzip
import json
import os
import random
import threading
import time
import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import capture_shapes as shapes
from hostile_inputs import worst
from oncebridge.errors import ConfigurationError
from oncebridge.sources.captures import scanning
from oncebridge.sources.captures.found import Surroundings, Tally
from oncebridge.sources.captures.inputs import plain
from oncebridge.sources.captures.reading import read_blocks, read_captures
from oncebridge.sources.file import read_deliveries
from payloads import ACW, PRESENCE, envelope, raw
from shapes import message, notification, records, stream_record


def made(number, start=0):
    """Make events whose text would mislead a reader that does not know where texts end."""
    text = 'it\'s "quoted" \\ {x} }{ ][ \n START RequestId: \u00e9 \U0001f4de'
    return [
        envelope(ACW, {"eventTime": 1_748_860_200_000 + n, "note": text, "ok": True, "none": None}, id=f"e{n}")
        for n in range(start, start + number)
    ]


EVENTS = made(3)
FORMATS = shapes.every_format(EVENTS)


def read(data, block=None, *, is_found=False):
    """Read bytes as a file would be read, in blocks of a size; return deliveries and the tally."""
    tally = Tally()
    size = block or max(1, len(data))
    blocks = iter([data[at : at + size] for at in range(0, len(data), size)])
    found = read_blocks(plain(blocks, "file", tally), "file", tally, is_found=is_found)
    return [one for one in found if one is not None], tally


def parsed(found):
    """Return what deliveries hold."""
    return [json.loads(one.raw) for one in found]


# --- formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("block", [None, 7, 1000])
def test_every_format_holds_the_deliveries(name, block):
    """Each format holds the same deliveries in their order, wherever blocks end, and the rest is counted."""
    data, skipped = FORMATS[name]
    found, tally = read(data, block)
    assert parsed(found) == EVENTS
    assert (tally.skipped_total, tally.troubles, tally.deliveries) == (skipped, [], len(EVENTS))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_in_a_directory_too(name):
    """A file that was found holds the same."""
    data, skipped = FORMATS[name]
    found, tally = read(data, is_found=True)
    assert (parsed(found), tally.skipped_total) == (EVENTS, skipped)


def test_texts_come_out_byte_for_byte():
    """White space, escapes and digits are part of an event, whatever it is wrapped in."""
    text = '{"detail-type":"x","detail":{ "n":1.10, "big":100000000000000000000000, "caf\\u00e9":"\\/"} }'
    answers = [
        text,
        f"[{text}, {text}]",
        f"Received {text}",
        shapes.compact(shapes.received([text])),
        shapes.pretty(shapes.filter_log_events([text])),
        shapes.compact(shapes.powertools(message=text)),
        json.dumps(records(message(text))),
    ]
    for answer in answers:
        found, _ = read(answer.encode())
        assert {one.raw for one in found} == {text.encode()}, answer
    in_object = json.dumps(shapes.powertools(event="@")).replace('"@"', text)
    (one,) = read(in_object.encode())[0]
    assert b"1.10" in one.raw


def test_places_and_surroundings_are_known():
    """A delivery says where it lies, and what AWS wrote around it."""
    first, second = (shapes.compact(event) for event in EVENTS[:2])
    lines = [first, shapes.compact(shapes.received([first, second])), f"[{first},{second}]"]
    found, _ = read(shapes.text_of(lines))
    offset = len(first) + 1
    third = offset + len(lines[1]) + 1
    assert [(one.line, one.offset, one.part) for one in found] == [
        (1, 0, 0), (2, offset, 0), (2, offset, 1), (3, third, 0), (3, third, 1),
    ]  # fmt: skip
    assert found[2].around == Surroundings(
        message_id="message-1", receive_count=2, sent_ms=shapes.TIME_MS, first_received_ms=shapes.TIME_MS + 50
    )
    assert "note" not in repr(found[0])


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("printed", {"request_id": shapes.REQUEST}),
        ("export", {"request_id": shapes.REQUEST, "logged_ms": shapes.TIME_MS}),
        ("logged by Node", {"request_id": shapes.REQUEST, "logged_ms": shapes.TIME_MS}),
        ("aws logs tail", {"request_id": shapes.REQUEST, "logged_ms": shapes.TIME_MS, "log_stream": shapes.STREAM}),
        ("Powertools, event", {"request_id": shapes.REQUEST, "logged_ms": shapes.TIME_MS}),
        ("Lambda's JSON log", {"request_id": shapes.REQUEST}),
        (
            "filter-log-events",
            {
                "request_id": shapes.REQUEST, "log_stream": shapes.STREAM,
                "logged_ms": shapes.TIME_MS + 3, "ingested_ms": shapes.TIME_MS + 903,
            },
        ),
        (
            "subscription",
            {
                "request_id": shapes.REQUEST, "log_stream": shapes.STREAM, "log_group": shapes.GROUP,
                "logged_ms": shapes.TIME_MS + 3,
            },
        ),
        ("a logger with awsRequestId", {"request_id": shapes.REQUEST, "logged_ms": shapes.TIME_MS}),
        ("a logger with request_id", {"request_id": shapes.REQUEST, "logged_ms": shapes.TIME_MS}),
        ("get-query-results", {"request_id": shapes.REQUEST, "log_stream": shapes.STREAM, "logged_ms": shapes.TIME_MS}),
    ],
)  # fmt: skip
def test_logs_say_which_invocation_printed_an_event(name, around):
    """The request is that of the START line before it in its stream, or the one that its own line names."""
    found, _ = read(FORMATS[name][0])
    assert found[0].around == Surroundings(**around)


def test_streams_are_kept_apart():
    """Where the lines of two streams take turns, each event belongs to the invocation of its own stream."""
    ids = ["0" * 7 + f"{n}-0000-4000-8000-000000000000" for n in (1, 2)]
    texts = [shapes.compact(event) for event in EVENTS[:2]]
    lines = [f"START RequestId: {one} Version: 1" for one in ids] + texts
    answer = shapes.filter_log_events(lines)
    for n, entry in enumerate(answer["events"]):
        entry["logStreamName"] = f"2026/03/02/[1]{n % 2}"
    found, _ = read(shapes.compact(answer).encode())
    assert [one.around.request_id for one in found] == ids


def test_wrappers_of_aws_say_what_they_know():
    """Messages of a queue and records of a stream say so inside an invocation that was printed."""
    text = shapes.compact(EVENTS[0])
    queue, stream = records(message(notification(text))), records(stream_record(text))
    found, _ = read(shapes.text_of([str(queue), json.dumps(stream)]))
    assert parsed(found) == [EVENTS[0]] * 2
    assert found[0].around.message_id == "message-0"
    assert (found[0].around.receive_count, found[0].around.sent_ms) == (1, 1748860200310)
    assert found[1].around.arrived_ms == 1748860200310


# --- what is no event ----------------------------------------------------------------------------------------


def test_a_name_that_is_no_text_ends_no_reading():
    """The name of a log stream before an event may have any bytes; those that are no UTF-8 are replaced."""
    text = shapes.compact(EVENTS[0]).encode()
    (one,), tally = read(b"2026-03-02T08:00:00Z 2026/03/02/[\xc5]f " + text)
    assert one.raw == text
    assert one.around.log_stream == "2026/03/02/[\ufffd]f"
    assert tally.troubles == []


def test_what_a_customer_typed_is_no_event():
    """An event is never looked into: text in it that looks like a log or an answer of AWS stays content."""
    inner = shapes.compact(EVENTS[0])
    typed = [
        {"eventType": "chat", "eventId": "1", "message": inner},
        {"conversationId": "c", "events": [shapes.log_event(inner)]},
        {"type": "chat", "level": "INFO", "timestamp": "2026-03-02T08:00:00Z", "message": inner},
        {"id": "7", "timestamp": shapes.TIME_MS, "message": inner},
        {"interactionId": "i", "MessageId": "m", "ReceiptHandle": "r", "Body": inner},
        envelope(PRESENCE, {"message": inner, "awslogs": {"data": shapes.packed(shapes.log_batch([inner]))}}),
    ]
    found, _ = read(shapes.text_of(map(shapes.compact, typed)))
    assert parsed(found) == typed


@pytest.mark.parametrize(
    "line",
    [
        shapes.START, shapes.END, shapes.REPORT, shapes.INIT, f"{shapes.TIME} stored", "[INFO]\t" + shapes.TIME + "\tx",
        shapes.compact(shapes.powertools_chatter()), shapes.compact(shapes.lambda_json("platform.report")),
        shapes.compact({"_aws": {"Timestamp": 1, "CloudWatchMetrics": []}, "count": 1, "type": "x"}),
        shapes.compact({"events": [], "searchedLogStreams": []}), shapes.compact({"Messages": []}),
        f'{shapes.TIME} config {{"retries": 3}}',
    ],
)  # fmt: skip
def test_chatter_is_skipped_with_its_place(line):
    """A log's own lines are no deliveries; they are counted, with a reason and where they are."""
    found, tally = read(shapes.text_of([shapes.compact(EVENTS[0]), line, shapes.compact(EVENTS[1])]))
    assert parsed(found) == EVENTS[:2]
    assert list(tally.places.values()) == [["file:2"]]


@pytest.mark.parametrize("broken", [raw(EVENTS[0])[:-20], b'{"detail-type": "x"', b"{'detail-type': object()}"])
@pytest.mark.parametrize("head", [b"", f"{shapes.TIME} ".encode(), shapes.START.encode() + b"\n"])
def test_an_event_that_cannot_be_read_is_no_chatter(broken, head):
    """What looks like an event is a delivery or a place of its own: it is never one of many lines of talk."""
    found, tally = read(head + broken + b"\n" + raw(EVENTS[1]) + b"\n")
    assert parsed(found[-1:]) == [EVENTS[1]]
    assert len(found) == 2 or "a log line with names of an event's fields that is no JSON" in tally.skipped


@pytest.mark.parametrize("text", ["no event", "<html></html>", "{not json", "[oops", "'x", "\x00\x01", "}{", "]"])
def test_other_text_is_an_unreadable_delivery(text):
    """Where nothing speaks of a log, a line that is no event is a delivery that cannot be read."""
    found, tally = read(shapes.text_of([shapes.compact(EVENTS[0]), text, shapes.compact(EVENTS[1])]))
    assert found[1].raw == text.encode()
    assert parsed([found[0], *found[2:]]) == EVENTS[:2]
    assert not tally.skipped
    assert tally.skipped_text == ["1 cannot be read: file:2"]


@pytest.mark.parametrize("text", ["no event", "# Read me", "import os"])
def test_text_in_a_directory_is_no_delivery(text):
    """A directory holds other files, too."""
    found, tally = read(shapes.text_of([text, shapes.compact(EVENTS[0])]), is_found=True)
    assert (parsed(found), tally.skipped_total) == (EVENTS[:1], 1)


# --- broken and cut off --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, len(raw(EVENTS[0])), 37))
@pytest.mark.parametrize("write", [raw, lambda event: shapes.pretty(event).encode()], ids=["line", "pretty"])
def test_a_cut_event_takes_no_neighbour_with_it(cut, write):
    """Wherever a line is cut off, it is one unreadable delivery, and the lines around it are read."""
    broken = raw(EVENTS[1])[:cut]
    found, _ = read(b"\n".join([write(EVENTS[0]), broken, raw(EVENTS[2]), raw(EVENTS[2])]))
    assert [one.raw for one in found[1:]] == [broken.strip(), raw(EVENTS[2]), raw(EVENTS[2])]
    assert parsed(found[:1]) == EVENTS[:1]


@pytest.mark.parametrize("write", [shapes.pretty, shapes.compact])
@pytest.mark.parametrize("hold", [list, lambda events: shapes.received(list(map(shapes.compact, events)))])
def test_of_a_list_that_is_cut_off_the_whole_elements_are_read(write, hold):
    """The elements before the end are deliveries, and the end is counted."""
    data, texts = write(hold(EVENTS)).encode(), {write(event).encode() for event in EVENTS}
    texts |= {text.replace(b"\n", b"\n    ") for text in texts} | {shapes.compact(event).encode() for event in EVENTS}
    for cut in (len(data) - 2, len(data) - 60):
        found, tally = read(data[:cut])
        whole = [one for one in found if one.raw in texts]
        assert parsed(whole) in (EVENTS, EVENTS[:2])
        assert tally.skipped_total + len(found) - len(whole) >= 1


@pytest.mark.parametrize("write", [shapes.pretty, shapes.compact])
@pytest.mark.parametrize(
    "name", ["array", "filter-log-events", "receive-message", "get-query-results", "texts", "subscription"]
)
def test_a_list_longer_than_memory_is_read_element_by_element(monkeypatch, write, name):
    """No list is too long: it is taken apart while it is read."""
    monkeypatch.setattr(scanning, "LINE_BYTES_MAX", 20_000)
    monkeypatch.setattr(scanning, "VALUE_BYTES_MAX", 10_000)
    monkeypatch.setattr(scanning, "_WINDOWS", (1000, 10_000))
    events = made(60)
    texts = [shapes.compact(event) for event in events]
    whole = {
        "array": lambda: events,
        "filter-log-events": lambda: shapes.filter_log_events(texts),
        "receive-message": lambda: shapes.received(texts),
        "get-query-results": lambda: shapes.query_results(texts),
        "texts": lambda: [shapes.START, *texts, "hello"],
        "subscription": lambda: shapes.log_batch(texts),
    }[name]()
    found, tally = read(write(whole).encode() + b"\n" + raw(EVENTS[0]), 1000)
    assert parsed(found) == [*events, EVENTS[0]]
    assert not tally.troubles


def test_a_line_without_end_is_read_in_pieces(monkeypatch):
    """Memory is bounded, and what follows is read."""
    monkeypatch.setattr(scanning, "LINE_BYTES_MAX", 20_000)
    found, _ = read(b"x" * 100_000 + b"\n" + raw(EVENTS[0]), 1000)
    assert parsed(found[-1:]) == EVENTS[:1]
    assert b"".join(one.raw for one in found[:-1]) == b"x" * 100_000


@pytest.mark.parametrize("size", [1, 100, -12])
def test_damaged_gzip_is_read_as_far_as_it_goes(tmp_path, size):
    """What precedes the damage is read, the file after it too, and both are said at the end."""
    events = made(200)
    whole = gzip.compress(shapes.text_of(map(shapes.compact, events)))
    (tmp_path / "a.gz").write_bytes(whole[:size])
    (tmp_path / "b.jsonl").write_bytes(raw(EVENTS[0]))
    tally = Tally()
    found = list(read_captures([str(tmp_path / "a.gz"), str(tmp_path / "b.jsonl")], tally))
    assert parsed(found[-1:]) == EVENTS[:1]
    assert len(found) > (100 if size < 0 else 0)
    assert "a.gz" in tally.trouble_text


def test_gzip_with_other_things_behind_it_is_read():
    """Zeros and plain text may follow members of gzip."""
    data = (
        gzip.compress(raw(EVENTS[0])) + b"\x00" * 100 + gzip.compress(b"\n" + raw(EVENTS[1]) + b"\n") + raw(EVENTS[2])
    )
    for block in (None, 1, 10):
        found, tally = read(data, block)
        assert (parsed(found), tally.troubles) == (EVENTS, [])


def test_a_file_that_grows_is_said(tmp_path):
    """A file that changes while it is read is read as far as it goes, and named."""
    path = tmp_path / "growing.jsonl"
    path.write_bytes(raw(EVENTS[0]) + b"\n")
    tally = Tally()
    found = read_captures([str(path)], tally)
    first = next(found)
    os.utime(path, ns=(1, 1))
    assert (first.raw, list(found)) == (raw(EVENTS[0]), [])
    assert "growing.jsonl: changed while it was read" in tally.trouble_text


# --- directories ---------------------------------------------------------------------------------------------


def test_a_directory_is_read_whole_in_the_order_of_names(tmp_path):
    """Files of a tree are read in the order of names; hidden ones and others are left out, and counted."""
    events = made(4)
    (tmp_path / "2026" / "03").mkdir(parents=True)
    (tmp_path / ".hidden").write_bytes(raw(events[0]))
    (tmp_path / "2026" / "03" / "b").write_bytes(gzip.compress(raw(events[1])))
    (tmp_path / "2026" / "03" / "a.json").write_text(shapes.pretty([events[0]]))
    (tmp_path / "2026" / "04.jsonl").write_bytes(raw(events[2]))
    (tmp_path / "aws-logs-write-test").write_text("Permission Check Successful")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00" + random.Random(1).randbytes(1000))
    (tmp_path / "z.jsonl").write_bytes(raw(events[3]))
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    tally = Tally()
    found = list(read_captures([str(tmp_path)], tally))
    assert parsed(found) == events
    assert [os.path.relpath(one.file, tmp_path) for one in found] == [
        "2026/03/a.json", "2026/03/b", "2026/04.jsonl", "z.jsonl",
    ]  # fmt: skip
    assert tally.skipped == {"a hidden file": 1, "no capture": 3, "a file that is not text": 1}
    assert not tally.troubles


@pytest.mark.parametrize("shape", ["line", "hole", "database"])
def test_zeros_in_a_directory(tmp_path, shape):
    """Zeros that damaged a line of a capture cost that line; a file that is full of them is no capture."""
    events = made(3)
    first, second, third = (raw(event) for event in events)
    texts = {
        "line": b"\n".join((first, second[:50] + b"\x00" + second[50:], third)),
        "hole": b"\x00" * 4096 + first,
        "database": b"SQLite format 3\x00" + b"\x00\x01" * 1000 + first,
    }
    (tmp_path / "file").write_bytes(texts[shape])
    tally = Tally()
    found = [one.raw for one in read_captures([str(tmp_path)], tally)]
    if shape == "line":
        assert (found[0], found[2], len(found), tally.unreadable_total) == (first, third, 3, 1)
    else:
        assert (found, tally.skipped) == ([], {"a file that is not text": 1})


def test_a_missing_file_stops_no_other(tmp_path):
    """Everything else is read, and then the missing one is an error."""
    (tmp_path / "b").write_bytes(raw(EVENTS[0]))
    deliveries = read_deliveries([str(tmp_path / "a"), str(tmp_path / "b")], threading.Event())
    assert next(deliveries) == raw(EVENTS[0])
    with pytest.raises(ConfigurationError, match=r"a: No such file"):
        next(deliveries)


# --- any mix -------------------------------------------------------------------------------------------------

JOINABLE = [name for name in FORMATS if "gzip" not in name and "UTF-16" not in name and "byte order" not in name]
JOINABLE = [name for name in JOINABLE if name not in ("subscription through Firehose", "export")]
CHATTER = [shapes.START, shapes.REPORT, f"{shapes.TIME} stored", shapes.compact(shapes.powertools_chatter()), "", "  "]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(JOINABLE), st.sampled_from(CHATTER)), min_size=1, max_size=6),
    st.booleans(),
    st.integers(1, 4000),
)
def test_no_mix_of_formats_loses_or_invents_a_delivery(names, is_packed, block):
    """However formats follow each other in one file, each of their deliveries comes out once, in order."""
    parts = [FORMATS[name] if name in FORMATS else (name.encode(), 1 if name.strip() else 0) for name in names]
    data = b"\n".join(part for part, _ in parts)
    found, tally = read(gzip.compress(data) if is_packed else data, block)
    assert parsed(found) == EVENTS * sum(name in FORMATS for name in names)
    assert tally.skipped_total == sum(skipped for _, skipped in parts)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([*worst(200).values(), raw(EVENTS[0]), b"[", b'"', b"{'a': "]), max_size=6), st.booleans()
)
def test_no_rubbish_hides_an_event(lines, in_list):
    """Whatever lines precede it, an event on a line of its own is read."""
    end = [raw(EVENTS[1]), raw(EVENTS[2])]
    found, _ = read(b"\n".join([b"[" * in_list, *lines, *end]), 100)
    assert [one.raw for one in found][-2:] == end


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 50))
def test_every_byte_is_accounted_for(data, block):
    """Of any bytes each is in a delivery, blank, or counted as skipped or as trouble."""
    found, tally = read(data, block)
    text = b"".join(one.raw for one in found)
    blank = b" \t\r\n\v\f,[]{}\xef\xbb\xbf"
    if not tally.skipped and not tally.troubles and not data.startswith((b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b")):
        assert [byte for byte in text if byte not in blank] == [byte for byte in data if byte not in blank]


# --- time and memory -----------------------------------------------------------------------------------------

LINES = [
    b'"\n',
    b"{\n",
    b"[\n",
    b'{"a":\n',
    b'[{"a":\n',
    b"{'a': \n",
    b'x {"a":\n',
    b'{"events":[',
    b'[{"a":1},\n',
    b'"a",',
]


def test_hostile_captures_take_no_longer_for_their_size():
    """Twice as much of the worst takes about twice as long: nothing is scanned again and again."""

    def seconds(unit, size):
        begun = time.process_time()
        read(unit * (size // len(unit)))
        return time.process_time() - begun

    for unit in LINES:
        assert any(seconds(unit, 20_000) < 12 * (0.005 + seconds(unit, 4_000)) for _ in range(3)), unit


def test_memory_stays_flat(monkeypatch):
    """A long capture takes no more memory than its longest value may, in whatever format."""
    monkeypatch.setattr(scanning, "LINE_BYTES_MAX", 100_000)
    monkeypatch.setattr(scanning, "VALUE_BYTES_MAX", 50_000)
    monkeypatch.setattr(scanning, "_WINDOWS", (4096, 50_000))
    text = raw(EVENTS[0])

    def blocks(head, joined):
        yield head
        for _ in range(300):
            yield joined * 10

    for head, joined in ((b"[", text + b","), (b"", text), (b"", text + b"\n"), (b"", b"x" * 1000)):
        tally = Tally()
        tracemalloc.start()
        number = sum(one is not None for one in read_blocks(blocks(head, joined), "file", tally))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert number == 3000 if joined.startswith(text) else 10 < number <= 30
        assert peak < 1_000_000
