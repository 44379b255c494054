"""`oncebridge process`: books and verdicts, bad lines, failing handlers, an orderly stop, a ledger out of reach."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest

import payloads
from oncebridge.simulation import simulate

LEDGER = "sqlite:///once.db"
COLUMNS = ["processed", "redelivery", "republish", "echo", "stale", "conflict", "dead", "unhandled", "retrying"]
BOOKS = ["received", *COLUMNS, "balanced"]
VERDICT_FIELDS = ["n", "id", "topic", "verdict", "of", "reason"]
FEW_SECONDS = {"ONCEBRIDGE_RETRY_BASE_SECONDS": "0.01", "ONCEBRIDGE_RETRY_CAP_SECONDS": "0.1"}


def verdicts_in(cli, name="verdicts.jsonl"):
    """Read what `--verdicts` wrote."""
    return [json.loads(line) for line in (cli.folder / name).read_bytes().splitlines()]


def balances(books):
    """Tell whether each delivery received stands in exactly one column."""
    return books["balanced"] is True and books["received"] == sum(books[name] for name in COLUMNS)


# --- books and verdicts --------------------------------------------------------------------------------------


def test_the_books_have_the_fields_of_the_contract_and_balance(cli, facts):
    """`--json` prints one object with the columns in their order, whole numbers that add up, and `balanced`."""
    cli.write("in.jsonl", [*facts(5), *facts(2), b"no event"])
    ran = cli.process("in.jsonl")
    assert ran.code == 0
    assert list(ran.one) == BOOKS
    assert all(type(ran.one[name]) is int for name in BOOKS[:-1])
    assert ran.one == dict.fromkeys(BOOKS, 0) | {
        "received": 8, "processed": 5, "redelivery": 2, "dead": 1, "balanced": True,
    }  # fmt: skip


def test_the_books_are_written_for_people_too(cli, facts):
    """Without `--json` the books are lines of text that say whether they balance."""
    cli.write("in.jsonl", facts(3))
    ran = cli("process", "in.jsonl")
    assert ran.code == 0
    assert "the books balance: 3 received = 3 accounted for" in ran.out
    assert all(name in ran.out for name in BOOKS[:-1])
    assert "a trial in memory" in ran.err


def test_a_verdict_line_has_the_fields_of_the_contract_in_order(cli):
    """`--verdicts` writes a line per delivery in order of arrival, with `n` from 1 and the original where known."""
    first = payloads.envelope(payloads.ACW, id="one")
    again = payloads.envelope(payloads.ACW, id="two")
    cli.write("in.jsonl", [first, again, first, b"{}", payloads.envelope(payloads.ACW, {"eventTime": 7}, id=None)])
    ran = cli.process("in.jsonl", "--verdicts", "verdicts.jsonl")
    assert ran.code == 0
    lines = verdicts_in(cli)
    assert all(list(line) == VERDICT_FIELDS for line in lines)
    assert all(line["reason"] and isinstance(line["reason"], str) for line in lines)
    assert [(line["n"], line["id"], line["topic"], line["verdict"], line["of"]) for line in lines] == [
        (1, "one", payloads.ACW, "fresh", None),
        (2, "two", payloads.ACW, "republish", "one"),
        (3, "one", payloads.ACW, "redelivery", "one"),
        (4, None, None, "dead", None),
        (5, None, payloads.ACW, "fresh", None),
    ]


@pytest.mark.parametrize(
    ("seed", "arguments"),
    [(11, ()), (12, ()), (13, ()), (14, ("--batch", "1")), (15, ("--batch", "1000")), (16, ("--concurrency", "4"))],
    ids=str,
)
def test_verdicts_are_the_truth_of_the_simulation(cli, seed, arguments):
    """Every delivery of simulated traffic gets the verdict that the traffic's maker knows, whatever the batches."""
    cli("simulate", "--conversations", "8", "--seed", str(seed), "--out", "in.jsonl", "--truth", "truth.jsonl")
    ran = cli.process("in.jsonl", "--verdicts", "verdicts.jsonl", *arguments)
    assert ran.code == 0
    truth = verdicts_in(cli, "truth.jsonl")
    lines = verdicts_in(cli)
    assert [(line["n"], line["id"], line["verdict"]) for line in lines] == [
        (line["n"], line["id"], line["verdict"]) for line in truth
    ]
    originals = [delivery.of for delivery in simulate(8, seed)]
    assert [line["of"] for line in lines if line["verdict"] in ("redelivery", "republish")] == [
        original for original in originals if original is not None
    ]
    count = Counter(line["verdict"] for line in truth)
    assert ran.one["received"] == len(truth)
    assert ran.one["processed"] == count["fresh"]
    assert {name: ran.one[name] for name in COLUMNS[1:]} == {name: count[name] for name in COLUMNS[1:]}
    assert balances(ran.one)


@pytest.mark.parametrize("seed", [21, 22])
def test_a_second_pass_processes_nothing(cli, seed):
    """What went through once is known afterwards: nothing is handled again, and the books balance again."""
    cli.write_hooks()
    cli("simulate", "--conversations", "6", "--seed", str(seed), "--out", "in.jsonl")
    cli.write("more.jsonl", [b"no event", payloads.status_change(), payloads.presence("AWAY")])
    first = cli.process("in.jsonl", "more.jsonl", "--handler", "hooks:note")
    effects = cli.effects()
    second = cli.process("in.jsonl", "more.jsonl", "--handler", "hooks:note", "--verdicts", "verdicts.jsonl")
    assert (first.code, second.code) == (0, 0)
    assert second.one["received"] == first.one["received"]
    assert second.one["processed"] == second.one["echo"] == second.one["stale"] == 0
    assert (second.one["conflict"], second.one["dead"]) == (first.one["conflict"], first.one["dead"])
    assert balances(second.one)
    assert cli.effects() == effects
    assert not {"fresh", "busy"} & {line["verdict"] for line in verdicts_in(cli)}


def test_several_files_are_one_run(cli, facts):
    """Files are read one after the other into one set of books, and `n` goes on counting."""
    cli.write("one.jsonl", facts(2))
    cli.write("two.jsonl", facts(3))
    ran = cli.process("one.jsonl", "two.jsonl", "--verdicts", "verdicts.jsonl")
    assert (ran.one["processed"], ran.one["redelivery"]) == (3, 2)
    assert [line["n"] for line in verdicts_in(cli)] == [1, 2, 3, 4, 5]


def test_compressed_files_and_standard_input_are_read_like_plain_files(cli, facts):
    """`.gz` and `-` give the verdicts that the plain file gives."""
    lines = b"".join(payloads.raw(one) + b"\r\n\n" for one in facts(4))
    (cli.folder / "in.jsonl.gz").write_bytes(gzip.compress(lines))
    assert cli.process("in.jsonl.gz").one["processed"] == 4
    from_standard_input = cli.process("-", stdin=lines)
    assert from_standard_input.code == 0
    assert (from_standard_input.one["received"], from_standard_input.one["redelivery"]) == (4, 4)


@pytest.mark.parametrize("way", ["file", "gz", "-"])
def test_one_event_over_many_lines_is_one_delivery(cli, way):
    """A pretty-printed event, as people copy it from a console, is one event and not a hundred bad lines."""
    text = b"\n" + json.dumps(payloads.envelope(payloads.ACW), indent=2).encode() + b"\n"
    (cli.folder / "in.json").write_bytes(text)
    (cli.folder / "in.json.gz").write_bytes(gzip.compress(text))
    name = {"file": "in.json", "gz": "in.json.gz", "-": "-"}[way]
    ran = cli.process(name, stdin=text)
    assert ran.code == 0
    assert (ran.one["received"], ran.one["processed"]) == (1, 1)
    cli.write("in.jsonl", [payloads.envelope(payloads.ACW)])
    assert cli.process("in.jsonl").one["redelivery"] == 1


def test_a_line_may_hold_several_deliveries(cli, facts):
    """What AWS wraps together is unwrapped: each record is a delivery of its own, numbered and judged by itself."""
    one, two = (payloads.raw(fact).decode() for fact in facts(2))
    messages = [
        {"messageId": f"m{n}", "body": body, "eventSource": "aws:sqs"} for n, body in enumerate([one, "no event", two])
    ]
    cli.write("in.jsonl", [{"Records": messages}, facts(2)])
    ran = cli.process("in.jsonl", "--verdicts", "verdicts.jsonl")
    assert (ran.code, ran.one["received"]) == (0, 5)
    assert [(line["n"], line["verdict"]) for line in verdicts_in(cli)] == [
        (1, "fresh"), (2, "dead"), (3, "fresh"), (4, "redelivery"), (5, "redelivery"),
    ]  # fmt: skip


def test_an_empty_file_is_no_delivery(cli):
    """Nothing in, nothing in the books, and no error."""
    (cli.folder / "in.jsonl").write_bytes(b"\n  \n\r\n")
    ran = cli.process("in.jsonl", "--verdicts", "verdicts.jsonl")
    assert ran.code == 0
    assert ran.one == dict.fromkeys(BOOKS, 0) | {"balanced": True}
    assert verdicts_in(cli) == []


# --- bad lines -----------------------------------------------------------------------------------------------

GOOD = payloads.raw(payloads.envelope(payloads.ACW, {"eventTime": 1_748_860_200_999}))
VALUE = b'"mediaType":"VOICE"'
NAME = b'"mediaType":'
NOISE = random.Random(4).randbytes(4000).replace(b"\n", b"").replace(b"\r", b"")


def with_value(value):
    """Write the good event with another value in its body."""
    assert VALUE in GOOD
    return GOOD.replace(VALUE, NAME + value)


def with_field(name, value):
    """Write the good event with another field in its envelope."""
    return payloads.raw(json.loads(GOOD) | {name: value})


#: What is wrong -> the line, and a word that its reason must have.
BAD_LINES = {
    "D1 a key twice": (GOOD.replace(VALUE, VALUE + b"," + VALUE), "twice"),
    "D1 a key twice in the envelope": (GOOD.replace(b'{"version"', b'{"id":"x","version"', 1), "twice"),
    "D2 NaN": (with_value(b"NaN"), "NaN"),
    "D2 Infinity": (with_value(b"Infinity"), "Infinity"),
    "D2 minus Infinity": (with_value(b"-Infinity"), "Infinity"),
    "D2 out of range": (with_value(b"1e999"), "range"),
    "D3 half a pair": (with_value(rb'"\ud800"'), "surrogate"),
    "D3 the wrong half first": (with_value(rb'"\udc00\ud800"'), "surrogate"),
    "D4 U+0000": (with_value(rb'"a\u0000b"'), "U+0000"),
    "D4 U+0000 in a key": (GOOD.replace(VALUE, rb'"media\u0000Type":"VOICE"'), "U+0000"),
    "D5 4301 digits": (with_value(b"1" * 4301), "digits"),
    "D6 a thousand levels": (with_value(b"[" * 1000 + b"]" * 1000), "deep"),
    "D6 a hundred thousand levels": (b"[" * 100_000, "deep"),
    "D6 sixty-five levels": (with_value(b'{"a":' * 65 + b"1" + b"}" * 65), "deep"),
    "D7 UTF-16 with its mark": (GOOD.decode().encode("utf-16"), "byte order mark"),
    "D7 UTF-16 without": (GOOD.decode().encode("utf-16-le"), "UTF-16"),
    "D7 UTF-16, the big end first": (GOOD.decode().encode("utf-16-be"), "UTF-16"),
    "D7 UTF-8 with a mark": (b"\xef\xbb\xbf" + GOOD, "byte order mark"),
    "D7 Latin-1": (with_value('"Müller"'.encode("latin-1")), "UTF-8"),
    "D9 two megabytes": (with_value(b'"' + b"x" * 2_000_000 + b'"'), "limit"),
    "D10 a number as id": (with_field("id", 17), "id is a number"),
    "D10 an object as id": (with_field("id", {}), "id is an object"),
    "D10 an empty list": (b"[]", "list"),
    "D10 detail encoded twice": (with_field("detail", "{}"), "detail is text"),
    "D10 no detail": (with_field("detail", None), "detail is missing"),
    "D10 a list as body": (with_field("detail", {"topicName": "v2.x", "eventBody": []}), "eventBody is a list"),
    "D10 a number as topic": (with_field("detail", {"topicName": 5, "eventBody": {}}), "topicName is a number"),
    "a number": (b"42", "number"),
    "a text": (b'"event"', "text"),
    "null": (b"null", "null"),
    "true": (b"true", "true or false"),
    "nothing inside": (b"{}", "nothing says"),
    "cut off": (GOOD[:-20], "not JSON"),
    "a trailing comma": (GOOD[:-1] + b",}", "not JSON"),
    "single quotes": (GOOD.replace(b'"', b"'"), "not JSON"),
    "an HTML page": (b"<html><body>502 Bad Gateway</body></html>", "not JSON"),
    "zero bytes": (b"\x00" * 100, "UTF-16"),
    "noise": (NOISE, "not UTF-8"),
    "a compressed event": (gzip.compress(GOOD, mtime=0).replace(b"\n", b""), "not UTF-8"),
}


def test_bad_lines_are_dead_letters_and_hurt_no_neighbour(cli, facts):
    """Each bad line is kept with a reason that names what is wrong; the events around it are processed; exit is 0."""
    cli.write_hooks()
    neighbours = facts(len(BAD_LINES) + 1)
    lines = [payloads.raw(neighbours[0])]
    for (bad, _), neighbour in zip(BAD_LINES.values(), neighbours[1:], strict=True):
        lines += [bad, b"", b"   ", payloads.raw(neighbour)]
    cli.write("in.jsonl", lines)
    ran = cli.process("in.jsonl", "--verdicts", "verdicts.jsonl", "--handler", "hooks:note")
    assert ran.code == 0
    assert "Traceback" not in ran.err
    assert (ran.one["processed"], ran.one["dead"]) == (len(neighbours), len(BAD_LINES))
    assert balances(ran.one)
    assert cli.effects().total() == len(cli.effects()) == len(neighbours)
    judged = verdicts_in(cli)
    assert {line["verdict"] for line in judged[::2]} == {"fresh"}
    for (name, (_, word)), line in zip(BAD_LINES.items(), judged[1::2], strict=True):
        assert line["verdict"] == "dead", name
        assert word in line["reason"], name
        assert len(line["reason"]) < 200, name
    letters = cli.dead("list", "--json").items
    assert sorted(letter["reason"] for letter in letters) == sorted(line["reason"] for line in judged[1::2])


@pytest.mark.parametrize("name", ["D1 a key twice", "noise", "D9 two megabytes"])
def test_a_bad_line_that_comes_again_is_one_dead_letter(cli, name):
    """An unreadable delivery is known by its bytes: each arrival counts as dead, one letter is kept."""
    bad, _ = BAD_LINES[name]
    cli.write("in.jsonl", [bad, bad])
    for _ in range(2):
        ran = cli.process("in.jsonl")
        assert (ran.code, ran.one["received"], ran.one["dead"]) == (0, 2, 2)
    assert len(cli.dead("list", "--json").items) == 1


def test_numbers_count_as_they_are_written(cli):
    """D8: 1 and 1.0 are two events, and so are integers that a float cannot tell apart."""
    numbers = [b"1", b"1.0", b"1e0", b"9007199254740992", b"9007199254740993", b"-0", b"0", b"123456789012345678901"]
    cli.write("in.jsonl", [with_value(number) for number in numbers])
    ran = cli.process("in.jsonl")
    assert (ran.code, ran.one["processed"]) == (0, len(numbers))


@pytest.mark.parametrize("size", ["one long text", "70,000 keys"])
def test_an_event_of_one_megabyte_is_processed(cli, size):
    """D9: what EventBridge delivers is not too large, in whatever form."""
    text = '"' + "x" * (1_048_576 - len(GOOD)) + '"'
    value = text if size == "one long text" else json.dumps({f"k{n}": n for n in range(70_000)}, separators=(",", ":"))
    line = with_value(value.encode())
    assert 900_000 < len(line) <= 1_048_576
    cli.write("in.jsonl", [line, line])
    ran = cli.process("in.jsonl")
    assert (ran.code, ran.one["processed"], ran.one["redelivery"]) == (0, 1, 1)


def test_a_missing_or_blank_envelope_id_is_no_reason_to_refuse(cli):
    """D10: behind some targets events have no envelope id; they are processed, and their twins are known."""
    cli.write("in.jsonl", [with_field("id", ""), with_field("id", None), with_field("id", " ")])
    ran = cli.process("in.jsonl", "--verdicts", "verdicts.jsonl")
    assert ran.code == 0
    assert [line["verdict"] for line in verdicts_in(cli)] == ["fresh", "republish", "republish"]


def test_strange_ids_stay_apart(cli):
    """D11: braces, colons, line breaks, great length and look-alike letters never make two events one."""
    pairs = [("a:b", "c"), ("a", "b:c"), ("a\nb", "c"), ("d", "b\nc"), ("{a}", "c"), ("{b}", "c"), ("1", "c")]
    alike = ["ab", "AB", "ab ", "\u0430b", "\u00e9", "e\u0301", "x" * 10_000, "x" * 10_001]
    pairs += [(name, "c") for name in alike]
    inner = [{"eventId": event_id, "conversationId": conversation} for event_id, conversation in pairs]
    cli.write("in.jsonl", [payloads.in_envelope(detail, detail_type="called") for detail in inner])
    ran = cli.process("in.jsonl", "--verdicts", "verdicts.jsonl")
    assert (ran.code, ran.one["processed"]) == (0, len(pairs))


def test_an_event_of_any_topic_reaches_the_handler(cli):
    """The handler of `process` is for every event, whatever stands in its topic."""
    cli.write_hooks()
    topics = ["line\nbreak", "[/bold]", "\x1b[31m", "{}", "*", "v2..x", "two\u2028lines", "x" * 256]
    times = range(payloads.TIME_MS, payloads.TIME_MS + len(topics))
    inner = [{"conversationId": "c", "eventTime": time} for time in times]
    lines = [payloads.in_envelope(one, detail_type=topic) for one, topic in zip(inner, topics, strict=True)]
    cli.write("in.jsonl", [*lines, *lines])
    ran = cli.process("in.jsonl", "--handler", "hooks:note", "--verdicts", "verdicts.jsonl")
    assert ran.code == 0
    assert cli.effects() == Counter(map(str, times))
    assert (ran.one["processed"], ran.one["redelivery"]) == (len(topics), len(topics))
    assert [line["topic"] for line in verdicts_in(cli)] == [*topics, *topics]


# --- handlers that fail --------------------------------------------------------------------------------------


def test_a_handler_that_fails_once_is_tried_again(cli, facts, marks):
    """A failure is waited out within the run: the event is processed, once, and says at which attempt."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(3))
    ran = cli.process("in.jsonl", "--handler", "hooks:flaky", "--verdicts", "verdicts.jsonl", **FEW_SECONDS)
    assert (ran.code, ran.one["processed"], ran.one["retrying"]) == (0, 3, 0)
    assert cli.effects() == Counter(marks(facts(3)))
    assert [line["verdict"] for line in verdicts_in(cli)] == ["fresh"] * 3
    assert all("attempt 2" in line["reason"] for line in verdicts_in(cli))


def test_a_handler_that_always_fails_ends_in_a_dead_letter(cli, facts, marks):
    """After the last attempt the event is a dead letter, which settles it: exit is 0, and it is not tried again."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(2))
    environment = {**FEW_SECONDS, "ONCEBRIDGE_RETRY_ATTEMPTS": "3"}
    ran = cli.process("in.jsonl", "--handler", "hooks:fail", **environment)
    assert (ran.code, ran.one["dead"]) == (0, 2)
    assert balances(ran.one)
    assert Counter(cli.lines("tries")) == dict.fromkeys(marks(facts(2)), 3)
    assert {letter["attempts"] for letter in cli.dead("list", "--json").items} == {3}
    again = cli.process("in.jsonl", "--handler", "hooks:fail", **environment)
    assert (again.code, again.one["redelivery"], len(cli.lines("tries"))) == (0, 2, 6)


def test_a_permanent_error_is_not_tried_again(cli, facts):
    """A handler that says that trying again cannot help is believed."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(1))
    ran = cli.process("in.jsonl", "--handler", "hooks:refuse")
    assert (ran.code, ran.one["dead"], len(cli.lines("tries"))) == (0, 1, 1)


def test_one_failing_handler_holds_up_nobody_else(cli, facts, marks):
    """Events beside one that fails again and again are processed, and the verdicts stay in order of arrival."""
    cli.write_hooks()
    (cli.folder / "picky.py").write_text(
        "import hooks\n\ndef handle(event):\n    (hooks.fail if event.body.get('bad') else hooks.note)(event)\n"
    )
    deliveries = [*facts(1, bad=True), *facts(5, start=1)]
    cli.write("in.jsonl", deliveries)
    environment = {**FEW_SECONDS, "ONCEBRIDGE_RETRY_ATTEMPTS": "4"}
    ran = cli.process("in.jsonl", "--handler", "picky:handle", "--verdicts", "verdicts.jsonl", **environment)
    assert (ran.code, ran.one["processed"], ran.one["dead"]) == (0, 5, 1)
    assert cli.effects() == Counter(marks(deliveries[1:]))
    assert [line["n"] for line in verdicts_in(cli)] == [1, 2, 3, 4, 5, 6]
    assert verdicts_in(cli)[0]["verdict"] == "fresh"  # its claim was granted; the books tell how it ended


# --- an orderly stop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_handler_finish_and_gives_the_rest_back(cli, facts, marks, wait_until, number):
    """After SIGTERM or Ctrl-C exit is 75, the books balance, and another process takes the rest at once."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(8))
    arguments = ("in.jsonl", "--handler", "hooks:wait", "--lease", "3600")
    started = cli.start("process", "--ledger", LEDGER, "--json", "--verdicts", "verdicts.jsonl", *arguments)
    wait_until(lambda: cli.lines("started"), "the first handler runs")
    started.signal(number)
    wait_until(lambda: "stopping" in started.said, "it has taken notice")
    assert not started.over  # the handler is not cut off
    (cli.folder / "gate").touch()
    ran = started.finish()
    assert ran.code == 75
    assert "Traceback" not in ran.err
    assert (ran.one["received"], ran.one["processed"], ran.one["retrying"]) == (8, 1, 7)
    assert balances(ran.one)
    assert cli.lines("started") == marks(facts(1))
    assert [line["n"] for line in verdicts_in(cli)] == list(range(1, 9))
    assert cli.statuses() == {"done": 1, "release": 7}
    assert {event["attempts"] for event in cli.events()} == {0}
    second = cli.process(*arguments, timeout=30)  # far less than the lease
    assert (second.code, second.one["processed"], second.one["redelivery"]) == (0, 7, 1)
    assert cli.effects() == Counter(marks(facts(8)))


def test_a_signal_lets_all_running_handlers_finish(cli, facts, wait_until):
    """With several handlers at a time, all that have begun finish, and no other begins."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(9))
    arguments = ("in.jsonl", "--handler", "hooks:wait", "--lease", "3600")
    started = cli.start("process", "--ledger", LEDGER, "--json", *arguments, "--concurrency", "3")
    wait_until(lambda: len(cli.lines("started")) == 3, "three handlers run")
    started.signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in started.said, "it has taken notice")
    assert not started.over
    (cli.folder / "gate").touch()
    ran = started.finish()
    assert (ran.code, ran.one["processed"], ran.one["retrying"]) == (75, 3, 6)
    assert sorted(cli.lines("effects")) == sorted(cli.lines("started"))
    assert cli.process(*arguments, timeout=30).one["processed"] == 6


@pytest.mark.parametrize("disposition", ["-", ""], ids=["in the foreground", "in the background"])
def test_a_second_interrupt_does_not_wait_for_the_handler(cli, facts, wait_until, disposition):
    """Ctrl-C twice cuts the handler off, and still gives back what was held; also where a shell had it ignored."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(4))
    arguments = ("in.jsonl", "--handler", "hooks:wait", "--lease", "3600")
    command = (sys.executable, "-m", "oncebridge", "process", "--ledger", LEDGER, *arguments)
    started = cli.start_program("sh", "-c", f"trap '{disposition}' INT; exec \"$@\"", "sh", *command)
    wait_until(lambda: cli.lines("started"), "the first handler runs")
    started.signal(signal.SIGINT)
    wait_until(lambda: "stopping" in started.said, "it has taken notice")
    assert not started.over
    started.signal(signal.SIGINT)
    ran = started.finish(30)
    assert ran.code == 130
    assert "Traceback" not in ran.err
    (cli.folder / "gate").touch()
    second = cli.process(*arguments, timeout=30)
    assert (second.code, second.one["processed"]) == (0, 4)


def test_a_signal_ends_the_wait_for_a_retry(cli, facts, wait_until):
    """Whoever waits to try an event again stops waiting when told to stop, and leaves it for the next run."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(1))
    started = cli.start(
        "process", "in.jsonl", "--ledger", LEDGER, "--json", "--handler", "hooks:flaky",
        ONCEBRIDGE_RETRY_BASE_SECONDS="55", ONCEBRIDGE_RETRY_CAP_SECONDS="55",
    )  # fmt: skip
    wait_until(lambda: cli.statuses() == {"retry": 1}, "the first try has failed")
    started.signal(signal.SIGTERM)
    ran = started.finish(20)
    assert (ran.code, ran.one["retrying"]) == (75, 1)
    second = cli.process("in.jsonl", "--handler", "hooks:flaky", timeout=20)  # earlier than advised is fine
    assert (second.code, second.one["processed"]) == (0, 1)


def test_a_signal_ends_the_wait_for_input(cli, facts, wait_until):
    """A process that waits for standard input stops when told to, rather than with the next line."""
    cli.write_hooks()
    started = cli.start(
        "process", "-", "--ledger", LEDGER, "--json", "--batch", "1", "--handler", "hooks:note", stdin=subprocess.PIPE
    )
    started.process.stdin.write(payloads.raw(facts(1)[0]) + b"\n")
    started.process.stdin.flush()
    wait_until(lambda: cli.statuses() == {"done": 1}, "the one line given is done")
    started.signal(signal.SIGTERM)
    ran = started.finish(5)
    assert ran.code in (0, 75)  # all that was read is settled, but not all was read
    assert balances(ran.one)


# --- what goes wrong before anything is done -----------------------------------------------------------------


def test_a_missing_file_is_said(cli, explained):
    """A file that is not there is named, with exit 2."""
    assert "nowhere.jsonl" in explained(cli.process("nowhere.jsonl"), 2)


def test_a_folder_is_no_file(cli, explained):
    """A folder in place of a file is said, with exit 2."""
    (cli.folder / "folder").mkdir()
    assert "folder" in explained(cli.process("folder"), 2)


@pytest.mark.parametrize("damage", ["not gzip", "cut off", "broken inside"])
def test_a_damaged_compressed_file_is_said(cli, facts, explained, damage):
    """A `.gz` that cannot be read to its end is named, with exit 2."""
    whole = gzip.compress(b"".join(payloads.raw(one) + b"\n" for one in facts(50)))
    middle = len(whole) // 2
    broken = {
        "not gzip": payloads.raw(facts(1)[0]),
        "cut off": whole[:-12],
        "broken inside": whole[:middle]
        + bytes(255 - byte for byte in whole[middle : middle + 8])
        + whole[middle + 8 :],
    }[damage]
    (cli.folder / "in.jsonl.gz").write_bytes(broken)
    ran = cli.process("in.jsonl.gz")
    assert "in.jsonl.gz" in explained(ran._replace(out=""), 2)
    done = cli.statuses().get("done", 0)
    assert done == (ran.one["processed"] if ran.out else 0)  # what could be read before the damage is not dropped
    assert done > 0 or damage != "cut off"


def test_what_was_read_before_a_missing_file_is_worked_off(cli, facts, explained):
    """A second file that is not there does not take the first with it, not even the last part of a batch."""
    cli.write("in.jsonl", facts(30))
    ran = cli.process("in.jsonl", "nowhere.jsonl")
    assert "nowhere.jsonl" in explained(ran._replace(out=""), 2)
    assert ran.one["processed"] == 30


def test_a_dead_line_keeps_the_envelope_id_that_it_has(cli):
    """A line whose detail is no object is dead, and its verdict still names the envelope it came in."""
    envelope = "0f8fad5b-d9cb-469f-a165-70867728950e"
    cli.write("in.jsonl", [f'{{"id":"{envelope}","detail-type":"x","detail":"text"}}'.encode(), b"no event"])
    cli.process("in.jsonl", "--verdicts", "verdicts.jsonl")
    assert [(line["verdict"], line["id"]) for line in verdicts_in(cli)] == [("dead", envelope), ("dead", None)]


@pytest.mark.parametrize(
    "url", ["oracle://scott:tiger-canary@host/db", "once.db", "sqlite://", "sqlite:///:memory:", "redis"]
)
def test_an_unknown_ledger_is_said_without_its_password(cli, facts, explained, url):
    """A ledger URL that names no ledger is refused with exit 2; a password in it is not repeated."""
    cli.write("in.jsonl", facts(1))
    said = explained(cli("process", "in.jsonl", "--ledger", url), 2)
    assert "ledger" in said
    assert "tiger-canary" not in said


@pytest.mark.parametrize(
    "name", ["nowhere:handle", "hooks", "hooks:", ":note", "hooks:nothing", "hooks:PermanentErrors", "./hooks.py:note"]
)
def test_a_wrong_handler_name_is_said(cli, facts, explained, name):
    """A handler that cannot be found is named, with exit 2, before any event is claimed."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(1))
    assert "--handler" in explained(cli.process("in.jsonl", "--handler", name), 2)
    assert not (cli.folder / "once.db").exists()


@pytest.mark.parametrize("where", ["sqlite:///no/such/folder/once.db", "sqlite:///in.jsonl/once.db"])
def test_a_ledger_that_cannot_be_written_is_said(cli, facts, explained, where):
    """A folder that is missing or no folder is named, with the code for something to be put right."""
    cli.write("in.jsonl", facts(1))
    said = explained(cli("process", "in.jsonl", "--ledger", where), 2, 75)
    assert "once.db" in said


def test_a_folder_that_may_not_be_written_is_said(cli, facts, explained):
    """A folder without the right to write is named."""
    cli.write("in.jsonl", facts(1))
    (cli.folder / "locked").mkdir(mode=0o500)
    locked = "locked" if os.geteuid() else "/sys"  # there not even root may write
    assert locked in explained(cli("process", "in.jsonl", "--ledger", f"sqlite:///{locked}/once.db"), 2, 75)


def test_a_file_that_is_no_ledger_is_left_alone(cli, facts, explained):
    """A file of something else is refused, and not a byte of it changes."""
    cli.write("in.jsonl", facts(1))
    before = b"this is somebody's diary\n" * 200
    (cli.folder / "once.db").write_bytes(before)
    assert "once.db" in explained(cli.process("in.jsonl"), 2)
    assert (cli.folder / "once.db").read_bytes() == before


@pytest.mark.parametrize("name", ["no/such/folder/verdicts.jsonl", "."])
def test_verdicts_that_cannot_be_written_are_said(cli, facts, explained, name):
    """A path that `--verdicts` cannot write to is named, before any event is claimed."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(1))
    assert name in explained(cli.process("in.jsonl", "--verdicts", name, "--handler", "hooks:note"), 2)
    assert cli.effects() == {}


def test_verdicts_never_replace_what_is_read(cli, facts, explained):
    """`--verdicts` with the name of an input is refused: the events would be gone before they were read."""
    cli.write("in.jsonl", facts(1))
    before = (cli.folder / "in.jsonl").read_bytes()
    assert "in.jsonl" in explained(cli.process("in.jsonl", "--verdicts", "./in.jsonl"), 2)
    assert (cli.folder / "in.jsonl").read_bytes() == before


def test_a_transaction_that_the_ledger_does_not_have_is_said(cli, facts, explained):
    """A handler that asks for the transaction is refused where the ledger has none."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(1))
    said = explained(cli("process", "in.jsonl", "--ledger", "redis://localhost", "--handler", "hooks:insert"), 2)
    assert "transaction" in said


@pytest.mark.parametrize("lease", ["0", "-3", "0.05", "nan", "inf", "soon"])
def test_a_lease_that_makes_no_sense_is_refused(cli, facts, lease):
    """`--lease` is held to what the setting allows; without a running lease nothing keeps two workers apart."""
    cli.write("in.jsonl", facts(1))
    ran = cli.process("in.jsonl", "--lease", lease)
    assert (ran.code, ran.out) == (2, "")
    assert "lease" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments", [("process",), ("process", "--no-such-option"), ("no-such-command",), ("dead", "x")]
)
def test_wrong_usage_is_said(cli, arguments):
    """Wrong usage ends with exit 2 and a hint, not with a traceback."""
    ran = cli(*arguments)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert "--help" in ran.err


def test_a_wrong_log_level_is_said(cli, explained):
    """A log level that does not exist is named, with exit 2."""
    assert "--log-level" in explained(cli("--log-level", "chatty", "purge"), 2)


def test_a_wrong_environment_is_said(cli, facts, explained):
    """A setting in the environment that cannot be is named with what it should be."""
    cli.write("in.jsonl", facts(1))
    said = explained(cli.process("in.jsonl", ONCEBRIDGE_RETRY_ATTEMPTS="many"), 2)
    assert "ONCEBRIDGE_RETRY_ATTEMPTS" in said


# --- nothing is given away -----------------------------------------------------------------------------------

SECRET = "a-canary-secret-of-some-length-4711"


@pytest.mark.parametrize("handler", [None, "hooks:fail", "hooks:refuse"])
def test_what_payloads_say_is_never_printed(cli, handler):
    """Names, numbers, transcripts and the secret stay out of output, logs and verdicts, even when handlers fail."""
    cli.write_hooks()
    personal = [payloads.raw(one) for one in payloads.personal()]
    spoiled = [line[:-1] for line in personal] + [line.replace(b'"version":"0"', b'"version":NaN') for line in personal]
    cli.write("in.jsonl", [*personal, *spoiled, *personal])
    arguments = [] if handler is None else ["--handler", handler]
    environment = {**FEW_SECONDS, "ONCEBRIDGE_RETRY_ATTEMPTS": "2", "ONCEBRIDGE_SECRET": SECRET}
    for form in ([], ["--json"]):
        ran = cli(
            "--log-level", "info", "process", "in.jsonl", "--ledger", f"sqlite:///once{len(form)}.db",
            "--verdicts", "verdicts.jsonl", *form, *arguments, **environment,
        )  # fmt: skip
        assert ran.code == 0
        assert len(ran.records) >= len(personal)
        shown = ran.out + ran.err + (cli.folder / "verdicts.jsonl").read_text()
        assert [name for name, canary in payloads.CANARIES.items() if canary in shown] == []
        assert SECRET not in shown


def test_another_secret_is_refused_and_not_shown(cli, facts, explained):
    """A worker with another secret than the ledger's does not start: to it every event would look fresh."""
    cli.write("in.jsonl", facts(1))
    assert cli.process("in.jsonl", ONCEBRIDGE_SECRET=SECRET).code == 0
    for other in ({}, {"ONCEBRIDGE_SECRET": SECRET[::-1]}):
        said = explained(cli.process("in.jsonl", **other), 2)
        assert SECRET not in said
        assert SECRET[::-1] not in said
    assert "16" in explained(cli.process("in.jsonl", ONCEBRIDGE_SECRET="short-canary"), 2)


def test_each_move_is_one_json_record(cli, facts):
    """With `--log-level info` every claim and every settle is one line of JSON on standard error."""
    cli.write_hooks()
    cli.write("in.jsonl", [*facts(3), b"no event"])
    arguments = ("--log-level", "info", "process", "in.jsonl", "--ledger", LEDGER, "--json", "--batch", "1")
    first = cli(*arguments, "--handler", "hooks:flaky", **FEW_SECONDS)
    assert first.one["processed"] == 3
    moves = Counter((record["move"], record.get("verdict"), record.get("outcome")) for record in first.records)
    assert moves == {
        ("claimed", "fresh", None): 6, ("settled", "fresh", "retry"): 3, ("settled", "fresh", "done"): 3,
        ("failed", "fresh", None): 3,
        ("claimed", "dead", None): 1, ("settled", "dead", "dead"): 1,
    }  # fmt: skip
    assert all({"time", "level", "key", "reason", "attempt"} <= set(record) for record in first.records)
    found = cli("find", "in.jsonl", "--ledger", LEDGER, "--json").items
    assert {record["key"] for record in first.records} == {item["key"] for item in found}
    second = cli(*arguments)
    assert [record["verdict"] for record in second.records] == ["redelivery"] * 3 + ["dead"]
    assert cli.process("in.jsonl").err.count("{") == 0


# --- several processes, one ledger ---------------------------------------------------------------------------


def test_two_processes_over_the_same_file_take_effect_once(cli, facts, marks):
    """Two processes that work through one file at the same time handle every event exactly once, and both finish."""
    cli.write_hooks()
    deliveries = facts(120)
    cli.write("in.jsonl", deliveries)
    arguments = ("process", "in.jsonl", "--ledger", LEDGER, "--json", "--handler", "hooks:insert", "--batch", "10")
    both = [cli.start(*arguments, "--verdicts", f"verdicts{n}.jsonl") for n in range(2)]
    ran = [started.finish() for started in both]
    assert [one.code for one in ran] == [0, 0]
    assert cli.inserted() == Counter(marks(deliveries))
    assert all(balances(one.one) for one in ran)
    assert sum(one.one["processed"] for one in ran) == len(deliveries)
    fresh = [
        line["id"] for n in range(2) for line in verdicts_in(cli, f"verdicts{n}.jsonl") if line["verdict"] == "fresh"
    ]
    assert sorted(fresh) == sorted(one["id"] for one in deliveries)


def test_two_processes_over_the_states_of_one_entity_never_go_back(cli, states):
    """Two processes on the same states handle an entity's events one at a time, and never an older after a newer."""
    cli.write_hooks()
    cli.write("in.jsonl", states(40))
    arguments = ("process", "in.jsonl", "--ledger", LEDGER, "--json", "--handler", "hooks:insert", "--batch", "5")
    both = [cli.start(*arguments) for _ in range(2)]
    ran = [started.finish() for started in both]
    assert [one.code for one in ran] == [0, 0]
    order = [effect["mark"] for effect in cli.table("effect")]
    assert order == sorted(set(order))
    assert order[-1] == str(payloads.TIME_MS + 39_000)
    assert len(order) + sum(one.one["stale"] for one in ran) == 40


def test_many_processes_may_create_one_ledger_together(cli, facts):
    """Processes that start at the same moment on a file that does not exist agree on one ledger and one secret."""
    cli.write("in.jsonl", facts(3))
    started = [cli.start("process", "in.jsonl", "--ledger", LEDGER, "--json") for _ in range(6)]
    ran = [one.finish() for one in started]
    assert [one.code for one in ran] == [0] * 6, ran
    assert sum(one.one["processed"] for one in ran) == 3


# --- a ledger out of reach -----------------------------------------------------------------------------------

#: Wraps SQLite as this process sees it, so that a disk fills up, or a commit fails, on cue.
FAULTS = """\
import os
import sqlite3
from pathlib import Path

from hooks import append, insert, note

real_connect = sqlite3.connect
pages = os.environ.get("PAGES")
failing_commits = int(os.environ.get("FAILING_COMMITS", "0"))


class Faults:
    inserted = False

    def execute(self, statement, *values):
        global failing_commits
        if statement == "COMMIT" and self.inserted and failing_commits:
            failing_commits -= 1
            append("refused", statement)
            raise sqlite3.OperationalError("disk I/O error")
        self.inserted = (self.inserted or statement.startswith("INSERT INTO effect")) and statement != "COMMIT"
        if statement.startswith("BEGIN") and Path("room").exists():
            super().execute("PRAGMA max_page_count = 1000000")
        try:
            return super().execute(statement, *values)
        except sqlite3.OperationalError as error:
            append("refused", " ".join(statement.split()[:3]))
            raise


def connect(*arguments, factory=sqlite3.Connection, **options):
    db = real_connect(*arguments, factory=type("Faulty", (Faults, factory), {}), **options)
    if pages:
        db.execute(f"PRAGMA max_page_count = {pages}")
    return db


sqlite3.connect = connect
"""


def claims_are_refused(cli):
    """Tell whether the last that was tried, several times, was to write down claims."""
    return cli.lines("refused")[-4:] == ["INSERT INTO oncebridge_event"] * 4


@pytest.mark.parametrize("handler", ["note", "insert"])
def test_a_full_disk_loses_nothing(cli, facts, marks, wait_until, handler):
    """On a full disk the run ends with 75 and one sentence; after room was made the next run does what is left."""
    cli.write_hooks()
    (cli.folder / "faults.py").write_text(FAULTS)
    deliveries = facts(150)
    cli.write("in.jsonl", deliveries)
    arguments = ("in.jsonl", "--handler", f"faults:{handler}", "--batch", "10", "--lease", "1")
    started = cli.start("process", "--ledger", LEDGER, "--json", *arguments, PAGES="14")
    wait_until(lambda: claims_are_refused(cli), "the disk is full")
    started.signal(signal.SIGTERM)
    ran = started.finish(30)
    done = cli.effects() + cli.inserted()
    assert ran.code == 75
    assert "full" in ran.err
    assert "Traceback" not in ran.err
    assert 0 < len(done) < len(deliveries)
    second = cli.process(*arguments)
    assert second.code == 0
    assert balances(second.one)
    effects = cli.effects() + cli.inserted()
    assert set(effects) == set(marks(deliveries))
    assert effects.total() - len(effects) <= (1 if handler == "note" else 0)
    assert cli.statuses() == {"done": len(deliveries)}


def test_a_disk_that_has_room_again_is_noticed(cli, facts, marks, wait_until):
    """A run waits while the disk is full, and goes on by itself once there is room."""
    cli.write_hooks()
    (cli.folder / "faults.py").write_text(FAULTS)
    deliveries = facts(150)
    cli.write("in.jsonl", deliveries)
    arguments = ("in.jsonl", "--handler", "faults:insert", "--batch", "10", "--lease", "1")
    started = cli.start("process", "--ledger", LEDGER, "--json", *arguments, PAGES="14")
    wait_until(lambda: claims_are_refused(cli), "the disk is full")
    (cli.folder / "room").touch()
    ran = started.finish()
    assert (ran.code, ran.one["processed"]) == (0, len(deliveries))
    assert cli.inserted() == Counter(marks(deliveries))


def test_a_commit_that_fails_is_not_the_handlers_failure(cli, facts, marks):
    """A ledger that hiccups while it settles costs no attempt: an event is never a dead letter for that."""
    cli.write_hooks()
    (cli.folder / "faults.py").write_text(FAULTS)
    cli.write("in.jsonl", facts(3))
    ran = cli.process(
        "in.jsonl", "--handler", "faults:insert", "--lease", "1", FAILING_COMMITS="1", ONCEBRIDGE_RETRY_ATTEMPTS="1"
    )
    assert cli.lines("refused") == ["COMMIT"]
    assert (ran.code, ran.one["processed"], ran.one["dead"]) == (0, 3, 0)
    assert cli.inserted() == Counter(marks(facts(3)))


def test_whoever_stops_reading_is_no_error(cli):
    """`oncebridge simulate | head -1` ends quietly."""
    ran = cli.start_program(
        "sh", "-c", f"'{sys.executable}' -m oncebridge simulate --conversations 30 | head -1"
    ).finish()
    assert len(ran.out.splitlines()) == 1
    assert "Traceback" not in ran.err
    assert "Exception ignored" not in ran.err
