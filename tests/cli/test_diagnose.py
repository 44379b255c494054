"""`oncebridge diagnose`: what it answers, what it reads and writes, and what outlives whom when it is stopped."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress

import pytest
from rich.cells import cell_len

import hostile_inputs
import payloads
from cli.test_exit_codes import PROGRAM
from cli.test_terminal import CANARY, OURS, in_terminal, look
from cli.test_terminal import deliveries as hostile_deliveries
from oncebridge.cli.output import progress_bar
from oncebridge.simulation import simulate

FIELDS = ("deliveries", "events", "causes", "backtest")
KEYS = (
    "envelope_id", "conversation_10s", "conversation_state_500ms", "conversation_time", "content_hash", "sqs_fifo",
    "powertools", "oncebridge",
)  # fmt: skip
PAGE_BYTES_MAX = 300_000
#: More than one process reads by itself, and enough for two others.
MANY = 32_768


def diagnose(cli, *arguments, **options):
    """Diagnose, with the answer as JSON."""
    return cli("diagnose", "--json", *arguments, **options)


def keys_of(found):
    """Return what each key of the back-test let through and lost."""
    return {row["key"]: (row["let_through"], row["lost"]) for row in found["backtest"]}


def causes_in(cli, name="causes.jsonl"):
    """Read what `--causes` wrote."""
    return [json.loads(line) for line in (cli.folder / name).read_bytes().splitlines()]


def balances(found):
    """Tell whether each delivery is an event, a duplicate or unreadable, and each duplicate has a cause."""
    whole = found["events"] + found["duplicates"] + found["unreadable"]
    return found["deliveries"] == whole and found["duplicates"] == sum(found["causes"].values())


def same_answer(one, other):
    """Tell whether two answers differ in nothing but in where they come from."""
    whence = ("command", "made", "files", "input_digest")
    places = ("place", "of_place")

    def bare(value):
        if isinstance(value, dict):
            return {name: bare(item) for name, item in value.items() if name not in places}
        return [bare(item) for item in value] if isinstance(value, list) else value

    first, second = (bare({name: found[name] for name in found if name not in whence}) for found in (one, other))
    return first == second


@pytest.fixture(scope="module")
def traffic():
    """Simulated traffic with its faults, as lines."""
    return b"".join(one.raw + b"\n" for one in simulate(10, 3))


@pytest.fixture
def capture(cli, traffic):
    """A capture of it."""
    (cli.folder / "in.jsonl").write_bytes(traffic)
    return "in.jsonl"


@pytest.fixture
def left_behind(cli):
    """List what lies in the folder that rows are kept in, which is the working directory of a test."""
    return lambda: [path.name for path in cli.folder.glob("oncebridge-diagnose-*")]


# --- the answer ------------------------------------------------------------------------------------------------


def test_the_answer_has_the_fields_of_the_contract_and_balances(cli, capture):
    """`--json` is one object; deliveries are events, duplicates and unreadable ones; each key has its counts."""
    (cli.folder / "bad.jsonl").write_bytes(b"no event\n{}\n")
    ran = diagnose(cli, capture, "bad.jsonl")
    assert ran.code == 0
    found = ran.one
    assert set(FIELDS) <= set(found)
    assert balances(found)
    assert found["unreadable"] == 2
    assert found["duplicates"] > 100
    assert tuple(row["key"] for row in found["backtest"]) == KEYS
    for let_through, lost in keys_of(found).values():
        assert 0 <= let_through <= found["duplicates"]
        assert 0 <= lost <= found["events"]
    assert keys_of(found)["oncebridge"] == (found["causes"]["two_topics"], 0)


def test_causes_are_a_line_for_each_duplicate_in_order(cli, capture):
    """`--causes` writes `n`, `id`, `cause` and `reason`, as many of each cause as the answer says; .gz too."""
    found = diagnose(cli, capture, "--causes", "causes.jsonl").one
    lines = causes_in(cli)
    assert all(list(line) == ["n", "id", "cause", "reason"] for line in lines)
    numbers = [line["n"] for line in lines]
    assert numbers == sorted(set(numbers))
    assert Counter(line["cause"] for line in lines) == found["causes"]
    raws = (cli.folder / capture).read_bytes().splitlines()
    assert all(json.loads(raws[line["n"] - 1])["id"] == line["id"] for line in lines)
    diagnose(cli, capture, "--causes", "causes.jsonl.gz")
    assert gzip.decompress((cli.folder / "causes.jsonl.gz").read_bytes()) == (cli.folder / "causes.jsonl").read_bytes()


def test_a_number_counts_everything_that_was_delivered(cli, facts):
    """`n` is the position of a delivery in the input, unwrapped: records of a batch and unreadable lines count."""
    one, two = (payloads.raw(fact).decode() for fact in facts(2))
    batch = {
        "Records": [
            {"messageId": f"m{n}", "body": body, "eventSource": "aws:sqs"} for n, body in enumerate([one, "?", two])
        ]
    }
    cli.write("in.jsonl", [b"no event", batch, b"{", *facts(2)])
    found = diagnose(cli, "in.jsonl", "--causes", "causes.jsonl").one
    assert (found["deliveries"], found["events"], found["unreadable"]) == (7, 2, 3)
    assert [line["n"] for line in causes_in(cli)] == [6, 7]


def test_the_answer_comes_first_for_people(cli, capture):
    """In words the first line answers the question, and the last one can be pasted into a chat."""
    ran = cli("diagnose", capture)
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert "of your deliveries are duplicates" in lines[0]
    assert lines[-1].startswith("oncebridge diagnose: ")
    assert "real events lost" in ran.out
    assert lines[0] == diagnose(cli, capture).one["answer"]


def test_no_duplicates_are_good_news(cli, facts):
    """A capture without duplicates is an answer too."""
    cli.write("in.jsonl", facts(5))
    ran = cli("diagnose", "in.jsonl")
    assert ran.code == 0
    assert ran.out.startswith("There are no duplicates among 5 deliveries of 5 events.\n")
    cli.write("in.jsonl", facts(1))
    one = diagnose(cli, "in.jsonl").one
    assert one["answer"] == "There are no duplicates among 1 delivery of 1 event."
    assert one["advice"]["retention_text"].startswith("No repeats were seen. ")


# --- what is read ----------------------------------------------------------------------------------------------


def test_any_way_in_gives_the_same_answer(cli, traffic, capture):
    """A file, gzip, a list, a directory and standard input are read alike."""
    plain = diagnose(cli, capture).one
    (cli.folder / "in.gz").write_bytes(gzip.compress(traffic))
    (cli.folder / "list.json").write_bytes(b"[" + b",\n".join(traffic.splitlines()) + b"]")
    (cli.folder / "directory").mkdir()
    (cli.folder / "directory" / "in.jsonl").write_bytes(traffic)
    found = {name: diagnose(cli, name, stdin=traffic).one for name in ("in.gz", "list.json", "directory", "-")}
    assert [name for name, other in found.items() if not same_answer(other, plain)] == []
    assert found["in.gz"]["input_digest"] == plain["input_digest"]


@pytest.mark.parametrize(
    ("data", "code", "first"),
    [
        (b"", 1, "There is no delivery in this capture."),
        (b"\n  \n", 1, "There is no delivery in this capture."),
        (b"no event\nnothing\n", 1, "None of the 2 deliveries can be read."),
        (b'{"id":"cut off', 1, "The only delivery cannot be read."),
        (payloads.raw(payloads.envelope(payloads.ACW))[:-9], 1, "The only delivery cannot be read."),
    ],
)
def test_what_holds_no_event_is_said_with_exit_code_1(cli, data, code, first):
    """An empty file, text, and JSON that is cut off are no events: that is what the answer says."""
    (cli.folder / "in.jsonl").write_bytes(data)
    ran = cli("diagnose", "in.jsonl", "--html", "report.html")
    assert (ran.code, "Traceback" in ran.err) == (code, False)
    assert first in ran.out.splitlines()[0]
    assert "Advice" not in ran.out
    assert cli("diagnose", "--from", "report.html").code == 1


def test_json_that_is_no_event_is_shown_with_its_place(cli, capture):
    """All that `unreadable` counts is found again: what is no JSON, and what is JSON but no event."""
    (cli.folder / "other.jsonl").write_bytes(b'{"a": 1}\n[1, 2, 3]\n{"detail-type": "x", "detail": 7}\n{"id": "cut o')
    ran = diagnose(cli, "other.jsonl", capture)
    assert (ran.code, ran.one["unreadable"]) == (0, 6)
    assert ran.one["skipped"][:2] == [
        "1 cannot be read: other.jsonl:4",
        "5 JSON, but no event: other.jsonl:1, other.jsonl:2, other.jsonl:2, ...",
    ]


def test_a_missing_file_stops_nothing(cli, capture):
    """The rest is answered for, then the error names the file, with exit code 2."""
    ran = diagnose(cli, "missing.jsonl", capture)
    assert ran.code == 2
    assert same_answer(ran.one, diagnose(cli, capture).one)
    assert "oncebridge: missing.jsonl: No such file or directory" in ran.err


@pytest.mark.parametrize("damage", ["cut off", "broken"])
def test_damaged_gzip_is_read_as_far_as_it_goes(cli, traffic, damage):
    """What could be unpacked is answered for, and the error says that it is not all."""
    packed = gzip.compress(traffic)
    half = len(packed) // 2
    broken = packed[:half] + bytes(1000) + packed[half + 1000 :]
    (cli.folder / "in.gz").write_bytes(packed[:half] if damage == "cut off" else broken)
    ran = diagnose(cli, "in.gz")
    assert ran.code == 2
    assert 0 < ran.one["deliveries"] < traffic.count(b"\n")
    assert balances(ran.one)
    assert "oncebridge: in.gz: its gzip data is" in ran.err


def test_a_line_that_is_cut_off_is_one_delivery_that_cannot_be_read(cli, facts):
    """The lines around it are events."""
    cli.write("in.jsonl", [*facts(2), payloads.raw(facts(3)[2])[:100], *facts(5)[3:]])
    ran = cli("diagnose", "in.jsonl", "--json")
    assert (ran.code, ran.one["events"], ran.one["unreadable"]) == (0, 4, 1)
    assert "in.jsonl:3" in ran.one["skipped"][0]


def test_names_that_are_no_text_are_names(cli, facts):
    """A file may be called anything on Linux, also what is no UTF-8; it is read, and named in every answer."""
    name = os.fsdecode(b"in\xff.jsonl")
    (cli.folder / "in").mkdir()
    cli.write(f"in/{name}", facts(2) * 2)
    for given in (f"in/{name}", "in"):
        ran = diagnose(cli, given, "--html", "report.html", "--causes", "causes.jsonl")
        assert (ran.code, "Traceback" in ran.err) == (0, False)
        assert ran.one["files"] == ["in/in\\udcff.jsonl"]
        assert cli("diagnose", given, "--from", "report.html").code == 2
        assert cli("diagnose", "--from", "report.html").code == 0


@pytest.mark.parametrize("arguments", ["diagnose -", "diagnose --from -", "process -", "explain -"])
def test_no_standard_input_is_said(cli, arguments):
    """Started without one, as some service managers do, a command says so in one sentence."""
    ran = cli.start_program("sh", "-c", f'exec "$0" -m oncebridge {arguments} <&-', sys.executable).finish()
    said = [line for line in ran.err.splitlines() if line.startswith("oncebridge: ")]
    assert (ran.code, len(said), "Traceback" in ran.err) == (2, 1, False)
    assert "there is no standard input" in said[0]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_outputs_stop_nothing(cli, capture, closed):
    """Whoever closes an output wants nothing there: results in files are written, and no traceback is."""
    words = f"diagnose {capture} --json --html report.html --causes causes.jsonl"
    ran = cli.start_program("sh", "-c", f'exec "$0" -m oncebridge {words} {closed}', sys.executable).finish()
    assert (ran.code, "Traceback" in ran.err) == (0, False)
    assert all((cli.folder / name).stat().st_size for name in ("report.html", "causes.jsonl"))


def test_each_amount_has_its_unit():
    """A capture is read in bytes, and compared in parts: the bar says which."""
    bar = progress_bar(over_bytes=True)
    for given in ({}, {"over_bytes": False}):
        bar.add_task("task", total=2304, completed=1000, **given)
    amount = bar.columns[3]
    assert [amount.render(task).plain.strip() for task in bar.tasks] == ["1.0/2.3 kB", "1000/2304"]


def test_rows_are_not_read_as_a_capture(cli, traffic):
    """The folder for rows may lie in the directory that is read: what is in it is nobody's delivery, and no trouble."""
    (cli.folder / "in").mkdir()
    (cli.folder / "in" / "z.jsonl").write_bytes(traffic)
    alone = diagnose(cli, "in")
    within = diagnose(cli, "in", "--work-dir", "in")
    assert (within.code, within.err) == (0, alone.err)
    assert same_answer(within.one, alone.one)


def test_three_thousand_files_are_one_capture(cli, facts):
    """Firehose writes a file every minute: all are read, few are named, and examples say where they are."""
    (cli.folder / "in").mkdir()
    for n, fact in enumerate(facts(1500)):
        for copy in range(2):
            (cli.folder / "in" / f"{n:04}-{copy}.json").write_bytes(payloads.raw(fact))
    ran = diagnose(cli, "in", "--html", "report.html")
    found = ran.one
    assert (found["deliveries"], found["events"], found["duplicates"]) == (3000, 1500, 1500)
    assert balances(found)
    assert len(found["files"]) < 100
    assert found["found"][0]["examples"][0]["place"] == "in/0000-1.json:1"
    assert (cli.folder / "report.html").stat().st_size <= PAGE_BYTES_MAX


#: What is wrong with a call, and a part of what is said about it.
WRONG = {
    "": "name captures",
    "in.jsonl --from report.html": "leave the captures",
    "--from in.jsonl": "name a page that diagnose --html wrote",
    "--from missing.html": "name a report",
    "in.jsonl --against in.jsonl": "name a page that diagnose --html wrote",
    "in.jsonl --against missing.html": "name a report",
    "in.jsonl --compare missing.toml": "missing.toml",
    "in.jsonl --settings missing.toml": "missing.toml",
    "in.jsonl --key detail.[": "is not a JMESPath expression; write one",
    "in.jsonl --html missing/report.html": "missing/report.html: cannot be written",
    "in.jsonl --causes missing/causes": "missing/causes: cannot be written",
    "in.jsonl --html out --causes out": "--html",
    "in.jsonl --work-dir missing": "--work-dir",
    "in.jsonl --work-dir in.jsonl": "--work-dir",
}


@pytest.fixture
def refused(cli):
    """Run calls that are refused, all in one process; return what each said, which is one sentence."""

    def run(calls):
        ran = cli.start_program(sys.executable, "-c", PROGRAM, json.dumps([["diagnose", *call] for call in calls]))
        ends = ran.finish().items
        assert [(call, end) for call, end in zip(calls, ends, strict=True) if end[0] != 2] == []
        said = [end[1] for end in ends]
        assert [text for text in said if not text.startswith("oncebridge: ") or text.count("\n") != 1] == []
        return said

    return run


def test_what_is_wrong_is_refused_with_the_fix(cli, facts, refused):
    """One sentence says what to change, with exit code 2; two outputs in one file are wrong, too."""
    cli.write("in.jsonl", facts(1))
    said = refused([call.split() for call in WRONG])
    assert [(call, text) for call, text in zip(WRONG, said, strict=True) if WRONG[call] not in text] == []


# --- keys and settings to compare ------------------------------------------------------------------------------


def test_a_key_of_ones_own_is_tried(cli, facts):
    """`--key` adds a row under its own text, with its span: what it finds in no event lets everything through."""
    cli.write("in.jsonl", [*facts(3), *facts(2)])
    whole, topic, short, none = "detail", "detail.topicName", "detail.topicName for 0.5 ms", "detail.nothing"
    ran = diagnose(cli, "in.jsonl", *(word for key in (whole, topic, short, none) for word in ("--key", key)))
    rows = keys_of(ran.one)
    assert (rows[whole], rows[topic], rows[none]) == ((0, 0), (0, 2), (2, 0))
    assert {row["key"]: row["seconds"] for row in ran.one["backtest"]}[short] == 0.0005
    assert [row["key"] for row in ran.one["backtest"]][-1] == "oncebridge"


def test_a_key_with_a_span_forgets(cli):
    """`for 10 s` is ten seconds after the first that it let through, by when deliveries arrive."""
    times = [0, 9_000, 10_500, 19_000, 21_000]
    cli.write("in.jsonl", [
        payloads.envelope(payloads.ACW, {"eventTime": payloads.TIME_MS + at}, id=str(at),
                          frame={"timestamp": payloads.iso(payloads.PUBLISHED_MS + at)})
        for at in times
    ])  # fmt: skip
    rows = keys_of(diagnose(cli, "in.jsonl", "--key", "detail.topicName for 10 s").one)
    assert rows["detail.topicName for 10 s"] == (0, 2)
    assert rows["conversation_10s"] == (0, 2)


def test_other_settings_are_tried(cli, facts):
    """`--compare` says what they would have done: without the field that tells events apart, real events are lost."""
    cli.write("in.jsonl", [*facts(4), *facts(1)])
    (cli.folder / "good.toml").write_text("retention_days = 7\n")
    (cli.folder / "bad.toml").write_text(f'[topics."{payloads.ACW}"]\nkind = "fact"\nexclude = ["eventTime"]\n')
    ran = diagnose(cli, "in.jsonl", "--compare", "good.toml", "--compare", "bad.toml")
    rows = keys_of(ran.one)
    assert (rows["good.toml"], rows["bad.toml"], rows["oncebridge"]) == ((0, 0), (0, 3), (0, 0))


def test_settings_decide_what_an_event_is(cli, facts):
    """The settings in force say what counts, as they do for a bridge."""
    cli.write("in.jsonl", facts(4))
    (cli.folder / "own.toml").write_text(f'[topics."{payloads.ACW}"]\nkind = "fact"\nexclude = ["eventTime"]\n')
    assert diagnose(cli, "in.jsonl").one["duplicates"] == 0
    assert diagnose(cli, "in.jsonl", "--settings", "own.toml").one["duplicates"] == 3


# --- reports ---------------------------------------------------------------------------------------------------


def test_a_report_shows_the_same_answer_again(cli, capture):
    """What `--from` shows of a page, or of JSON, is what was shown when it was written; no capture is needed."""
    shown = cli("diagnose", capture, "--html", "report.html")
    found = diagnose(cli, capture)
    (cli.folder / "report.json").write_text(found.out)
    (cli.folder / capture).unlink()
    again = cli("diagnose", "--from", "report.html")
    assert (again.code, again.out) == (0, shown.out)
    assert cli("diagnose", "--from", "report.json").out == shown.out
    assert diagnose(cli, "--from", "report.json").one == found.one
    assert cli("diagnose", "--from", "-", stdin=found.out.encode()).out == shown.out


def test_a_report_is_compared_with_an_earlier_one(cli, facts):
    """`--against` says what changed, and that nothing did where the capture is the same."""
    cli.write("before.jsonl", facts(20))
    cli.write("after.jsonl", [*facts(20), *facts(20)])
    cli("diagnose", "before.jsonl", "--html", "before.html")
    changed = cli("diagnose", "after.jsonl", "--against", "before.html", "--html", "after.html").out
    assert "What changed" in changed
    assert "Duplicates rose from 0 % to 50 % of deliveries." in changed
    assert "What changed" in (cli.folder / "after.html").read_text()
    assert "same capture" in cli("diagnose", "before.jsonl", "--against", "before.html").out
    from_report = cli("diagnose", "--from", "after.html", "--against", "before.html").out
    assert "Duplicates rose from 0 % to 50 % of deliveries." in from_report


def test_an_input_is_never_written_over(cli, facts, refused):
    """A file to write that is read too is refused, whatever it is called, and stays as it is."""
    (cli.folder / "in").mkdir()
    cli.write("in/in.jsonl", facts(2))
    before = (cli.folder / "in/in.jsonl").read_bytes()
    (cli.folder / "link").symlink_to("in/in.jsonl")
    os.link(cli.folder / "in/in.jsonl", cli.folder / "second name")
    ways = [
        ("in/in.jsonl", "in/in.jsonl"),
        ("in/in.jsonl", "link"),
        ("in/in.jsonl", "second name"),
        ("in", "in/report.html"),
        ("in/../in/in.jsonl", "in/in.jsonl"),
    ]
    said = refused([(read, option, written) for read, written in ways for option in ("--html", "--causes")])
    assert [text for text in said if "name another file" not in text] == []
    assert (cli.folder / "in/in.jsonl").read_bytes() == before
    assert sorted(path.name for path in (cli.folder / "in").iterdir()) == ["in.jsonl"]


def test_a_page_on_standard_output_stands_alone(cli, capture):
    """`--html -` can be piped into a file: nothing else is written there."""
    page = cli("diagnose", capture, "--html", "-").out
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")


def test_a_page_that_cannot_be_written_is_refused_before_the_work(cli, facts, explained):
    """Nobody waits an hour to hear that a folder does not exist: it is said while nothing is read yet."""
    read, write = os.pipe()
    try:
        started = cli.start("diagnose", "-", "--html", "missing/report.html", stdin=read)
        assert started.ends_within(20)
        assert "missing/report.html: cannot be written" in explained(started.finish(), 2)
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("option", ["--html", "--causes"])
def test_a_full_disk_for_an_output_is_named(cli, capture, explained, option):
    """The error is about the file that cannot be written, not about the folder for rows, and no traceback."""
    ran = cli("diagnose", capture, option, "/dev/full", "--json")
    assert "Traceback" not in ran.err
    assert ran.code == 2
    assert "oncebridge: /dev/full: " in ran.err
    assert "--work-dir" not in ran.err


@pytest.mark.parametrize("option", ["--json", ""])
def test_a_full_disk_for_the_results_is_named(cli, capture, option):
    """Results that find no room are one sentence and exit code 2, whether they fail while written or at the end."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        ran = subprocess.run(
            [sys.executable, "-m", "oncebridge", "diagnose", capture, *option.split()],
            stdout=full, stderr=subprocess.PIPE, cwd=cli.folder, text=True, check=False,
        )  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    assert "oncebridge: standard output: cannot be written: No space left on device" in ran.stderr


@pytest.mark.parametrize("arguments", ["", "--json", "--causes -"])
def test_a_reader_that_has_enough_is_no_error(cli, arguments):
    """`| head` ends the command without a word, also in the middle of causes."""
    (cli.folder / "in.jsonl").write_bytes(b"".join(copies(3000, 100)))
    command = f'"$0" -m oncebridge diagnose in.jsonl {arguments} | head -c 9; echo; echo ${{PIPESTATUS[0]}}'
    ran = cli.start_program("bash", "-c", command, sys.executable).finish()
    assert ran.err == ""
    assert int(ran.out.splitlines()[1]) in (0, 1, 128 + signal.SIGPIPE)


# --- where rows are kept ---------------------------------------------------------------------------------------


def test_nothing_is_left_behind(cli, capture, left_behind):
    """The folder for rows is gone when the answer is there, and was nobody else's to read."""
    (cli.folder / "rows").mkdir()
    assert diagnose(cli, capture, "--work-dir", "rows").code == 0
    assert list((cli.folder / "rows").iterdir()) == []
    assert diagnose(cli, capture).code == 0
    assert left_behind() == []


def test_a_folder_that_nobody_may_write_to_is_said(cli, capture, explained):
    """The error names the folder and what to do."""
    locked = cli.folder / "locked"
    locked.mkdir(mode=0o500)
    name = "locked" if os.geteuid() else "/sys"  # there not even root may write
    said = explained(cli("diagnose", capture, "--work-dir", name), 2)
    assert f"{name}: cannot be written" in said
    assert "name another directory with --work-dir" in said


@pytest.mark.root
@pytest.mark.parametrize("kilobytes", [64, 512])
def test_a_folder_that_becomes_full_is_said(cli, capture, kilobytes):
    """While reading or while comparing: one sentence, exit code 2, and the folder is empty again."""
    (cli.folder / "small").mkdir()
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    script = (
        f"mount -t tmpfs -o size={kilobytes}k none small && "
        f'"$0" -m oncebridge diagnose {capture} --json --causes causes --work-dir small; echo $?; ls -A small'
    )
    ran = cli.start_program(*unshare, "sh", "-c", script, sys.executable).finish()
    assert ran.out == "2\n", ran
    assert len(ran.err.splitlines()) == 1
    assert "is full; " in ran.err
    assert "--work-dir" in ran.err


# --- many deliveries, several processes ------------------------------------------------------------------------


def copies(number, details=500, padding=""):
    """Yield deliveries: so many different events, again and again in new envelopes."""
    written = payloads.raw(payloads.envelope(payloads.ACW, {"eventTime": payloads.TIME_MS, "note": padding}, id="@"))
    before, between, behind = re.split(rb'"@"|%d' % payloads.TIME_MS, written)
    for n in range(number):
        time = b"%d" % (payloads.TIME_MS + n % details)
        yield b"".join((before, b'"%08x-0000-4000-8000-000000000000"' % n, between, time, behind, b"\n"))


def test_many_deliveries_are_shared_by_processes(cli, left_behind):
    """With more than 20,000 deliveries two processes give the answer, and the causes, that one gives."""
    (cli.folder / "in.jsonl").write_bytes(b"".join(copies(24_576, 2000)))
    one = diagnose(cli, "in.jsonl", "--processes", "1", "--causes", "one.jsonl")
    two = diagnose(cli, "in.jsonl", "--processes", "2", "--causes", "two.jsonl")
    assert (one.code, two.code) == (0, 0)
    assert one.one | {"command": "", "made": ""} == two.one | {"command": "", "made": ""}
    assert (cli.folder / "one.jsonl").read_bytes() == (cli.folder / "two.jsonl").read_bytes()
    assert two.one["causes"] == {"genesys_republish": 22_576}
    assert keys_of(two.one)["envelope_id"] == (22_576, 0)
    assert left_behind() == []


def processes_of(started):
    """List what runs in the session of a command: number, state, and how it was called; zombies run no more."""
    listed = subprocess.run(["ps", "-Aww", "-o", "pid=,pgid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in listed.stdout.splitlines()]
    return [(int(row[0]), row[2], row[3]) for row in rows if int(row[1]) == started.process.pid and row[2][0] != "Z"]


def workers_of(started):
    """List the processes that share the work."""
    return [number for number, _, called in processes_of(started) if "spawn_main" in called]


def rest(cli, started, looks=8):
    """Tell whether the two that share the work have written rows, and sleep whenever one looks: all is done."""
    asleep = []

    def look_again():
        workers = {number: state for number, state, called in processes_of(started) if "spawn_main" in called}
        rows = [path for number in workers for path in cli.folder.glob(f"oncebridge-diagnose-*/*-{number}")]
        asleep.append(len(workers) == 2 and bool(rows) and all(state[0] == "S" for state in workers.values()))
        return len(asleep) >= looks and all(asleep[-looks:])

    return look_again


@pytest.fixture
def reading(cli, wait_until):
    """Start a diagnosis that has read many deliveries from a pipe in two processes, and waits for more."""
    ends = []

    def start(*arguments, lines=None):
        read, write = os.pipe()
        started = cli.start("diagnose", "-", "--processes", "2", *arguments, stdin=read)
        os.close(read)
        pipe = os.fdopen(write, "wb")
        ends.append(pipe)
        pipe.writelines(lines or copies(MANY))
        pipe.flush()
        wait_until(rest(cli, started), "nothing is left to do")
        return started, pipe

    yield start
    for pipe in ends:
        with suppress(BrokenPipeError):
            pipe.close()


def write_on(pipe):
    """Write more into a pipe, until whoever reads it has ended."""
    with suppress(BrokenPipeError, ValueError):
        pipe.writelines(copies(MANY))
        pipe.flush()


@pytest.fixture
def gone(left_behind, wait_until):
    """Check that nothing is left of a command: no process that it started, and no rows."""

    def check(started):
        wait_until(lambda: not processes_of(started), "all its processes are gone", 10)
        assert left_behind() == []

    return check


def rows_being_compared(cli):
    """Tell whether all is read, and rows are compared."""
    return list(cli.folder.glob("oncebridge-diagnose-*/*.index"))


@pytest.mark.parametrize(
    ("number", "to"),
    [
        (signal.SIGTERM, "the command"),
        (signal.SIGTERM, "all its processes"),
        (signal.SIGINT, "all its processes"),
    ],
)
def test_a_stop_while_reading_answers_for_what_was_read(reading, gone, number, to):
    """Ctrl-C and SIGTERM end the reading, not the answer, though terminals send them to all processes of a command."""
    started, _ = reading("--json")
    (os.kill if to == "the command" else os.killpg)(started.process.pid, number)
    ran = started.finish()
    assert ran.code == 0, ran.err
    assert ran.err.splitlines() == ["stopped: what follows is about the part that was read"]
    assert ran.one["deliveries"] == MANY
    assert balances(ran.one)
    gone(started)


def test_a_stop_while_processes_begin_is_no_traceback(cli, gone, wait_until):
    """Whoever presses Ctrl-C at once meets processes that have just been started, and gets an answer as well."""
    (cli.folder / "in.jsonl").write_bytes(b"".join(copies(MANY)))
    started = cli.start("diagnose", "in.jsonl", "--json", "--processes", "2")
    wait_until(lambda: workers_of(started), "the first process begins")
    os.killpg(started.process.pid, signal.SIGINT)
    ran = started.finish(20)
    assert "Traceback" not in ran.err
    assert ran.code == 0, ran.err
    assert balances(ran.one)
    gone(started)


def test_a_stop_while_reading_files_leaves_the_rest_unread(cli, left_behind):
    """A long capture is stopped where it is: what comes after the signal is not read, and the answer says so."""
    (cli.folder / "one.jsonl").write_bytes(b"".join(copies(300)))
    os.mkfifo(cli.folder / "two.jsonl")
    (cli.folder / "three.jsonl").write_bytes(b"".join(copies(500)))
    started = cli.start("diagnose", "one.jsonl", "two.jsonl", "three.jsonl", "--json")
    with (cli.folder / "two.jsonl").open("wb", buffering=0) as pipe:  # it is opened when the first was read
        pipe.write(next(copies(1)))
        started.signal(signal.SIGTERM)
        with suppress(BrokenPipeError):  # it may have ended by then
            pipe.write(next(copies(1)))
    ran = started.finish()
    assert ran.code == 0
    assert "stopped: " in ran.err
    assert 300 <= ran.one["deliveries"] <= 302
    assert left_behind() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_everything(cli, reading, gone, wait_until, number):
    """Whoever cannot wait for the answer presses Ctrl-C again: no process and no rows are left."""
    started, _ = reading("--json", *["--key", "detail"] * 2)
    started.signal(number)
    wait_until(lambda: rows_being_compared(cli), "rows are compared")
    started.signal(number)
    ran = started.finish()
    assert ran.code != 0
    assert ran.out == ""
    assert "Traceback" not in ran.err
    gone(started)


@pytest.mark.parametrize(("which", "and_then"), [(0, "the end"), (-1, "the end"), (0, "more to read")])
def test_a_process_that_is_killed_while_reading_is_an_error_in_words(reading, explained, gone, which, and_then):
    """Somebody needs memory and kills a worker: one sentence, no hang, and nothing is left."""
    started, pipe = reading("--json")
    os.kill(workers_of(started)[which], signal.SIGKILL)  # one of the two holds the lock of what there is to do
    if and_then == "the end":
        pipe.close()
    else:
        threading.Thread(target=write_on, args=(pipe,), daemon=True).start()  # nobody may read it
    said = explained(started.finish(20), 2)
    assert "killed" in said
    assert "--processes 1" in said
    gone(started)


def test_a_process_that_is_killed_while_comparing_is_an_error_in_words(cli, reading, explained, gone, wait_until):
    """The same when all is read, and rows are compared."""
    started, _ = reading("--json", *["--key", "detail"] * 2)
    started.signal(signal.SIGTERM)  # ends the reading
    wait_until(lambda: rows_being_compared(cli), "rows are compared")
    os.kill(workers_of(started)[0], signal.SIGKILL)
    assert "killed" in explained(started.finish(20), 2)
    gone(started)


def test_a_command_that_is_killed_leaves_no_process(reading, wait_until):
    """`kill -9` gives no time to clean up, but no worker waits for ever for work that never comes."""
    started, _ = reading("--json")
    started.signal(signal.SIGKILL)
    started.process.wait()
    wait_until(lambda: not processes_of(started), "all its processes are gone", 10)


# --- much ------------------------------------------------------------------------------------------------------

#: Runs a command, and says how much memory and time it took by itself.
MEASURED = """
import resource, sys
from oncebridge.cli.app import run
code = run()
used = resource.getrusage(resource.RUSAGE_SELF)
size = used.ru_maxrss
if sys.platform == "linux":  # where that begins with the size of whoever started this process
    lines = open("/proc/self/status").read().splitlines()
    size = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
print(size, used.ru_utime, file=sys.stderr)
sys.exit(code)
"""


def measured(cli, lines, *arguments):
    """Diagnose lines from a pipe in one process; return what it left, its memory in megabytes, and its seconds."""
    read, write = os.pipe()
    command = (sys.executable, "-c", MEASURED, "diagnose", "-", "--json", "--processes", "1", *arguments)
    started = cli.start_program(*command, stdin=read)
    os.close(read)
    with os.fdopen(write, "wb", buffering=1 << 20) as pipe, suppress(BrokenPipeError):
        pipe.writelines(lines)
    ran = started.finish()
    assert ran.code == 0, ran.err
    size, seconds = ran.err.split()[-2:]
    return ran, int(size) / 1_000_000, float(seconds)


def test_a_pipe_of_any_length_fits_into_memory(cli):
    """300,000 deliveries of 400 MB take less than 200 MB: whoever keeps them all needs more than twice as much."""
    ran, megabytes, _ = measured(cli, copies(300_000, 1000, "x" * 300))
    assert (ran.one["deliveries"], ran.one["events"]) == (300_000, 1000)
    assert megabytes < 200


def test_large_deliveries_fit_into_memory(cli):
    """Events may have a megabyte: 600 of half of that, 300 MB, take less than 250 MB, and none is kept."""
    ran, megabytes, _ = measured(cli, copies(600, 600, "x" * 500_000))
    assert ran.one["events"] == 600
    assert megabytes < 250


def test_what_is_around_deliveries_fits_into_memory(cli):
    """A message may call itself what it likes: 200 names of half a megabyte, 100 MB, are not kept by anybody."""
    event = payloads.envelope(payloads.ACW)
    lines = (
        payloads.raw({"Records": [message(event, id=f"{n}{'m' * 500_000}", SentTimestamp="1748860200123")]}) + b"\n"
        for n in range(200)
    )
    ran, megabytes, _ = measured(cli, lines)
    assert (ran.one["events"], ran.one["duplicates"]) == (1, 199)
    assert megabytes < 200


def test_one_event_again_and_again_takes_no_time_squared(cli):
    """Four times as many copies of one event take about four times as long."""
    few, many = (measured(cli, [payloads.raw(payloads.envelope(payloads.ACW)) + b"\n"] * n) for n in (3000, 12_000))
    assert (many[0].one["events"], many[0].one["duplicates"]) == (1, 11_999)
    assert many[2] < 8 * few[2]


def test_made_up_topics_bound_everything(cli):
    """10,000 topics with an echo each: the answer, the page, the memory and the terminal stay small."""
    lines = [
        payloads.raw(payloads.call_status(moment=payloads.TIME_MS + at, id=f"{n}-{at}", detail_type=f"<b>{n}")) + b"\n"
        for n in range(10_000)
        for at in (0, 100)
    ]
    ran, megabytes, _ = measured(cli, lines, "--html", "report.html", "--causes", "causes.jsonl")
    found = ran.one
    assert (found["deliveries"], found["causes"]) == (20_000, {"echo": 10_000})
    assert balances(found)
    assert len(ran.out) < PAGE_BYTES_MAX
    assert (cli.folder / "report.html").stat().st_size <= PAGE_BYTES_MAX
    assert Counter(line["cause"] for line in causes_in(cli)) == found["causes"]
    assert megabytes < 150
    assert len(cli("diagnose", "--from", "report.html").out) < PAGE_BYTES_MAX


# --- hostile captures ------------------------------------------------------------------------------------------

MARKUP = "</script><img src=x onerror=alert(1)>{{7*7}}%s{0}{first}"


def message(event, **attributes):
    """Put an event into a message of SQS with attributes, and anything as its ids."""
    return {
        "messageId": attributes.pop("id", "m"), "receiptHandle": "r", "body": payloads.raw(event).decode(),
        "attributes": attributes, "eventSource": "aws:sqs", "eventSourceARN": attributes.pop("arn", "arn:aws:sqs:q"),
    }  # fmt: skip


def hostile_lines():
    """Yield deliveries with escape sequences, markup and marks of direction in every field, each of them twice."""
    for one in hostile_deliveries():
        yield from (one, one)
    for text in (MARKUP, CANARY, MARKUP[::-1]):
        fields = {"id": text, "source": f"aws.partner/genesys.com/cloud/o/{text}", "account": text, "region": text}
        for n, changes in enumerate([{}, *({name: value} for name, value in fields.items()), fields]):
            for replay in (payloads.ABSENT, text[:200]):
                yield payloads.raw(payloads.envelope(payloads.ACW, {"eventTime": n}, **changes, replay_name=replay))
        yield payloads.raw(payloads.envelope(payloads.ACW, detail_type=text))
        yield payloads.raw(payloads.envelope(payloads.ACW, detail_type=text, id="other"))
        twice = payloads.envelope(payloads.ACW, {"eventTime": 99})
        for count in "12":
            around = message(twice, id=text, arn=text, ApproximateReceiveCount=count, SentTimestamp=text)
            yield payloads.raw({"Records": [around]})


def test_nothing_that_is_read_drives_a_terminal_or_a_page(cli):
    """Ids, topics, sources, replays, messages and names of files are shown as they stand, wherever they are shown."""
    name = f"in{CANARY}{MARKUP}.jsonl".replace("\0", "").replace("/", "")[:120]
    cli.write(name, hostile_lines())
    outputs = ("--causes", "causes.jsonl", "--html", "report.html", "--key", MARKUP[-7:] + " for 10 s")
    look(in_terminal(cli, "diagnose", name), terminal=True)
    plain, answer = cli("diagnose", name), diagnose(cli, name, *outputs[:4])
    assert (plain.code, answer.code) == (0, 0)
    assert balances(answer.one)
    assert len(answer.one["causes"]) > 3
    for shown in (plain.out, plain.err, answer.out, answer.err, (cli.folder / "causes.jsonl").read_text()):
        look(shown)
    page = (cli.folder / "report.html").read_text()
    look(page)
    assert "<img" not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert cli("diagnose", "--from", "report.html").code == 0


def test_a_report_of_a_stranger_drives_nothing(cli, capture):
    """A report is passed on, and so may be anything: what it says is shown, and not obeyed."""

    def poisoned(value):
        if isinstance(value, dict):
            return {name: item if name in ("cause", "oncebridge") else poisoned(item) for name, item in value.items()}
        if isinstance(value, list):
            return [poisoned(item) for item in value]
        return f"{value}{CANARY}{MARKUP}" if isinstance(value, str) else value

    (cli.folder / "report.json").write_text(json.dumps(poisoned(diagnose(cli, capture).one)))
    shown = cli("diagnose", "--from", "report.json", "--against", "report.json", "--html", "report.html")
    assert shown.code == 0
    for text in (shown.out, shown.err, diagnose(cli, "--from", "report.json").out):
        look(text)
    look(in_terminal(cli, "diagnose", "--from", "report.json"), terminal=True)
    page = (cli.folder / "report.html").read_text()
    look(page)
    assert "<img" not in page
    assert len(page.encode()) <= PAGE_BYTES_MAX


def test_no_personal_data_leaves_the_capture(cli, reading):
    """Nothing of a body is in the answer, the page, the causes, the terminal, or in the rows on disk meanwhile."""
    personal = [payloads.raw(one) + b"\n" for one in payloads.personal()] * 2
    canaries = [canary.encode() for canary in payloads.CANARIES.values()]
    outputs = ("--causes", "causes.jsonl", "--html", "report.html", "--key", "detail.eventBody")
    started, _ = reading(*outputs, lines=[*personal, *copies(MANY - len(personal)), *personal])
    rows = [path.read_bytes() for path in cli.folder.glob("oncebridge-diagnose-*/*")]
    started.signal(signal.SIGTERM)
    ran = started.finish()
    assert ran.code == 0
    named = payloads.raw(payloads.envelope(payloads.ACW, {"eventTime": 7}, id=payloads.CANARIES["phone"]))
    cli.write("in.jsonl", [*(one.strip() for one in personal), named, named])  # of an id only causes may speak
    answer = diagnose(cli, "in.jsonl", "--log-level", "debug", "--html", "second.html")
    assert answer.one["duplicates"] == len(personal) // 2 + 1
    written = [(cli.folder / name).read_bytes() for name in ("causes.jsonl", "report.html", "second.html")]
    shown = [
        text.encode() for text in (ran.out, ran.err, answer.out, answer.err, in_terminal(cli, "diagnose", "in.jsonl"))
    ]
    assert [canary for canary in canaries if any(canary in text for text in (*rows, *written, *shown))] == []
    assert sum(map(len, rows)) > 100_000


def test_the_worst_texts_are_read_or_counted(cli):
    """A megabyte of quotes, brackets without end, and whatever else slows a parser down stop nothing."""
    worst = {"a megabyte of quotes": b'"' * 1_000_000, **hostile_inputs.worst(20_000)}
    good = payloads.raw(payloads.envelope(payloads.ACW))
    lines = [line for text in worst.values() for line in (text.replace(b"\n", b" "), good)]
    (cli.folder / "in.jsonl").write_bytes(b"\n".join(lines))
    ran = diagnose(cli, "in.jsonl", "--html", "report.html")
    assert (ran.code, "Traceback" in ran.err) == (0, False)
    assert balances(ran.one)
    assert ran.one["duplicates"] >= len(worst) - 1


TIMES = [
    "0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z",
    "2262-04-11T23:47:16.854Z", "2026-02-30T00:00:00.000Z", "2026-03-02T08:00:00.000+23:59", "", "yesterday", -5, 0, 1,
    2**63, 10**30, -(10**30), 1e308, True, None, [], {},
]  # fmt: skip


def test_any_time_is_survived(cli):
    """Years 1 and 9999, before 1970, beyond 64 bits, no time at all: in events, envelopes, messages and logs."""
    lines = []
    for n, time in enumerate(TIMES):
        text = time if isinstance(time, str) else payloads.iso(payloads.TIME_MS)
        event = payloads.envelope(payloads.ACW, {"eventTime": payloads.TIME_MS + n}, id=f"e{n}")
        status = {"routingStatus": {"status": "IDLE", "startTime": time}}
        lines += [
            payloads.envelope(payloads.ACW, {"eventTime": time}, id=f"a{n}"),
            payloads.envelope(payloads.ACW, frame={"timestamp": time}, id=f"b{n}"),
            payloads.envelope(payloads.ACW, frame={"timestamp": payloads.ABSENT}, time=text, id=f"c{n}"),
            payloads.envelope(payloads.ROUTING_STATUS, status, id=f"d{n}"),
            {"Records": [message(event, SentTimestamp=time, ApproximateReceiveCount=time, id=f"m{n}")]},
            {"Records": [message(event, ApproximateFirstReceiveTimestamp=time, SentTimestamp=time)]},
            {"events": [{"timestamp": time, "message": payloads.raw(event).decode(), "ingestionTime": time}]},
            {"level": "INFO", "timestamp": time, "service": "s", "message": event},
        ]
    cli.write("in.jsonl", [line for line in lines for _ in range(2)])
    ran = diagnose(cli, "in.jsonl", "--html", "report.html", "--causes", "causes.jsonl")
    assert ran.code == 0, ran.err[-2000:]
    assert balances(ran.one)
    assert cli("diagnose", "--from", "report.html").code == 0


def test_one_wrong_clock_does_not_decide_the_answer(cli):
    """A delivery that is stamped a year ahead changes the counts of a key by no more than itself, and no advice."""

    def capture(wrong_ms):
        for n in range(600):
            at_ms = payloads.PUBLISHED_MS + 1000 * n + (wrong_ms if n == 200 else 0)
            frame = {"timestamp": payloads.iso(at_ms)}
            yield payloads.envelope(payloads.ACW, {"eventTime": payloads.TIME_MS + n}, id=f"e{n}", frame=frame)

    cli.write("right.jsonl", capture(0))
    cli.write("wrong.jsonl", capture(365 * 86_400_000))
    right, wrong = (diagnose(cli, name).one for name in ("right.jsonl", "wrong.jsonl"))
    assert keys_of(right)["conversation_state_500ms"] == (0, 0)
    for key, (let_through, lost) in keys_of(right).items():
        assert abs(keys_of(wrong)[key][1] - lost) <= 1, key
        assert keys_of(wrong)[key][0] == let_through
    assert wrong["advice"]["redis_bytes"] > right["advice"]["redis_bytes"] / 2
    assert max(wrong["over_time"]["deliveries"]) < 300


# --- terminals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 80])
def test_tables_fit_the_terminal(cli, capture, columns):
    """A row that is wider than the screen is no row: tables are narrowed, or say under it what does not fit."""
    shown = OURS.sub("", in_terminal(cli, "diagnose", capture, columns=columns).replace("\r", ""))
    for heading in ("Causes", "What each key would have done with this traffic", "Topics"):
        table = shown.split(f"\n{heading}\n")[1].split("\n\n")[0].splitlines()
        assert len(table) > 3
        assert [line for line in table if cell_len(line) > columns] == []
    assert shown.rstrip().splitlines()[-1].startswith("oncebridge diagnose: ")


def test_a_terminal_without_colours_gets_none(cli, capture):
    """NO_COLOR is honoured, and a pipe gets no sequence at all."""
    shown = in_terminal(cli, "diagnose", capture, NO_COLOR="1")
    assert re.findall(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", shown) == []
    assert re.findall(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", in_terminal(cli, "diagnose", capture))
    assert "\x1b" not in cli("diagnose", capture).out
