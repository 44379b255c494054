"""Captures as people have them, read by the commands: directories, logs, answers of AWS, and files without events."""

import gzip
import json

import capture_shapes as shapes
import payloads
from cli.conftest import LEDGER


def test_a_directory_of_every_format_is_one_run(cli, facts):
    """`process` takes a directory: each format holds the same events, so all but the first are duplicates."""
    events = facts(3)
    formats = shapes.every_format(events)
    (cli.folder / "captures").mkdir()
    for n, (data, _) in enumerate(formats.values()):
        (cli.folder / "captures" / f"{n:02}").write_bytes(data)
    ran = cli.process("captures", "--verdicts", "verdicts.jsonl")
    assert ran.code == 0
    assert (ran.one["processed"], ran.one["redelivery"]) == (3, 3 * len(formats) - 3)
    lines = [json.loads(line) for line in (cli.folder / "verdicts.jsonl").read_bytes().splitlines()]
    assert [line["n"] for line in lines] == list(range(1, 3 * len(formats) + 1))
    assert [line["id"] for line in lines] == [event["id"] for event in events] * len(formats)


def test_chatter_is_counted_and_its_places_are_said(cli, facts):
    """Lines that are no events are no dead letters; their number, reason and first places are said."""
    lines = [line for event in facts(2) for line in shapes.of_invocation(shapes.compact(event))]
    (cli.folder / "app.log").write_bytes(shapes.text_of(lines))
    ran = cli.process("app.log")
    assert (ran.code, ran.one["received"], ran.one["processed"], ran.one["dead"]) == (0, 2, 2, 0)
    assert "10 skipped, which are no events:" in ran.err
    assert "8 x a line of Lambda's own log: app.log:1, app.log:2, app.log:5, ..." in ran.err
    assert "2 x a log line without an event: app.log:3, app.log:9" in ran.err


def test_a_file_without_events_is_said(cli):
    """Where nothing is an event, exit is 1, and what was looked for is said, with the page that helps."""
    (cli.folder / "app.log").write_bytes(shapes.text_of([shapes.START, "hello", shapes.END]))
    for command in ("process", "explain"):
        ran = cli(command, "app.log")
        assert ran.code == 1
        assert "nothing in app.log is an event" in ran.err
        assert "docs/captures.md" in ran.err


def test_explain_and_find_read_the_same_captures(cli, facts):
    """What `process` has processed, `explain` explains and `find` finds, in the same file or directory."""
    (cli.folder / "captures").mkdir()
    answer = shapes.received([shapes.compact(event) for event in facts(2)])
    (cli.folder / "captures" / "messages.json").write_text(shapes.pretty(answer))
    (cli.folder / "captures" / "export.gz").write_bytes(
        gzip.compress(shapes.text_of(f"{shapes.TIME} {line}" for line in [shapes.START, str(facts(3)[2])]))
    )
    assert cli.process("captures").one["processed"] == 3
    explained = cli("explain", "captures", "--ledger", LEDGER, "--json").items
    found = cli("find", "captures", "--ledger", LEDGER, "--json").items
    assert len(found) == 3
    assert {one["key"] for one in explained} == {one["key"] for one in found}


def test_verdicts_are_not_written_into_a_directory_that_is_read(cli, facts, explained):
    """A file that appears in the directory would be read as a capture."""
    (cli.folder / "captures").mkdir()
    cli.write("captures/in.jsonl", facts(1))
    assert "--verdicts" in explained(cli.process("captures", "--verdicts", "captures/../captures/verdicts.jsonl"), 2)


def test_one_damaged_file_stops_no_other(cli, facts, explained):
    """Every other file is processed; the damaged one is named, with exit 2."""
    (cli.folder / "captures").mkdir()
    whole = gzip.compress(b"".join(payloads.raw(one) + b"\n" for one in facts(50)))
    (cli.folder / "captures" / "a.gz").write_bytes(whole[: len(whole) // 2])
    cli.write("captures/b.jsonl", facts(5, start=100))
    ran = cli.process("captures", "nowhere", "captures/b.jsonl")
    said = explained(ran._replace(out=""), 2)
    assert "captures/a.gz: its gzip data is cut off" in said
    assert "nowhere: No such file" in said
    assert ran.one["redelivery"] == 5


def test_what_is_said_of_a_capture_shows_nothing_of_it(cli):
    """Reasons and places have no text of the capture in them."""
    secret = "+4479460958"
    lines = [shapes.START, f"caller {secret}", f"{{'detail-type': {secret}", f'{shapes.TIME} {{"phone": "{secret}"}}']
    (cli.folder / "app.log").write_bytes(shapes.text_of(lines))
    ran = cli("process", "app.log", "--json")
    assert secret not in ran.out + ran.err
