"""`oncebridge find`, `explain`, `purge` and `simulate`."""

import gzip
import json
import os
import pty
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from datetime import datetime

import pytest

import payloads
from cli.conftest import PATIENCE_SECONDS
from cli.test_terminal import OURS, in_terminal

LEDGER = "sqlite:///once.db"
EXPLAINED = ["topic", "kind", "entity", "time_ms", "key", "counts", "ignored", "reason", "profile", "verdicts"]


# --- find ----------------------------------------------------------------------------------------------------


def find(cli, what, **options):
    """Ask the usual ledger, for JSON."""
    return cli("find", what, "--ledger", LEDGER, "--json", **options)


def test_an_event_is_found_by_its_file_and_by_its_key(cli, facts):
    """A file of events leads to what the ledger knows of each, and its key leads there again."""
    cli.write("in.jsonl", facts(3))
    cli.process("in.jsonl")
    cli.write("two.jsonl", facts(2))
    by_file = find(cli, "two.jsonl")
    assert by_file.code == 0
    assert [item["id"] for item in by_file.items] == [one["id"] for one in facts(2)]
    assert {(item["role"], item["status"], item["topic"]) for item in by_file.items} == {
        ("event", "done", payloads.ACW),
    }
    assert [find(cli, item["key"]).one for item in by_file.items] == by_file.items
    from_standard_input = find(cli, "-", stdin=(cli.folder / "two.jsonl").read_bytes())
    assert from_standard_input.items == by_file.items


def test_a_twin_leads_to_the_event_that_did_the_work(cli):
    """The same event in another envelope is the same event to `find`."""
    cli.write("in.jsonl", [payloads.envelope(payloads.ACW, id="one")])
    cli.process("in.jsonl")
    (cli.folder / "twin.json").write_text(json.dumps(payloads.envelope(payloads.ACW, id="two"), indent=2))
    assert find(cli, "twin.json").one["id"] == "one"


def test_what_cannot_be_read_is_found_by_its_bytes(cli):
    """A dead letter that is no event is found by the file that it came in."""
    cli.write("in.jsonl", [b"no event"])
    cli.process("in.jsonl")
    found = find(cli, "in.jsonl").one
    assert found["status"] == "dead"
    assert "unreadable" in found["reason"]


def test_a_conflict_is_found_by_its_file(cli):
    """An event that came under another's id leads to its own dead letter, not only to the other's success."""
    one, two = (payloads.envelope(payloads.AUDITS, {"action": action}, id=action) for action in ("Update", "Delete"))
    cli.write("in.jsonl", [one, two])
    assert cli.process("in.jsonl").one["conflict"] == 1
    cli.write("two.jsonl", [two])
    found = find(cli, "two.jsonl").items
    assert [item["status"] for item in found if item["id"] == "Delete"] == ["dead"]


def test_a_conversation_is_found_by_its_id(cli, facts):
    """A conversation's id leads to all of its events, and to the newest state of what belongs to it."""
    deliveries = [
        *facts(2),
        payloads.envelope(payloads.SNAPSHOT),
        payloads.envelope(payloads.ACW, {"conversationId": "x"}),
    ]
    cli.write("in.jsonl", deliveries)
    cli.process("in.jsonl")
    found = find(cli, payloads.CONVERSATION)
    assert found.code == 0
    assert Counter((item["role"], item["topic"]) for item in found.items) == {
        ("event", payloads.ACW): 2, ("event", payloads.SNAPSHOT): 1, ("newest state", payloads.SNAPSHOT): 1,
    }  # fmt: skip
    text = cli("find", payloads.CONVERSATION, "--ledger", LEDGER)
    assert text.code == 0
    assert len(text.out.splitlines()) == 1 + len(found.items)
    assert "newest state" in text.out


def test_a_user_is_found_by_its_id(cli, states):
    """A user's id leads to its events, and the newest of its states is marked."""
    cli.write("in.jsonl", [*states(3), payloads.presence("AWAY", user="somebody else")])
    cli.process("in.jsonl")
    items = find(cli, payloads.USER).items
    assert Counter(item["role"] for item in items) == {"event": 3, "newest state": 1}
    (newest,) = (item for item in items if item["role"] == "newest state")
    assert newest["time_ms"] == payloads.TIME_MS + 2000


def test_what_is_unfinished_is_found(cli, facts, wait_until):
    """What a worker has in hand is shown as claimed, with the end of its lease."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(1))
    worker = cli.start("process", "in.jsonl", "--ledger", LEDGER, "--handler", "hooks:wait")
    wait_until(lambda: cli.lines("started"), "its handler runs")
    found = find(cli, payloads.CONVERSATION).one
    assert found["status"] == "claimed"
    assert found["lease_until_ms"] > found["changed_ms"]
    (cli.folder / "gate").touch()
    assert worker.finish().code == 0
    assert find(cli, payloads.CONVERSATION).one["status"] == "done"


def test_one_event_is_shown_with_its_times(cli, facts):
    """A terminal gets a line for each field, with times in ISO; the pipe has the same in a row."""
    cli.write("in.jsonl", facts(1))
    cli.process("in.jsonl")
    known = find(cli, "in.jsonl").one
    assert known["claimed_ms"] <= known["settled_ms"] == known["changed_ms"]
    lines = OURS.sub("", in_terminal(cli, "find", known["key"], "--ledger", LEDGER, columns=80)).splitlines()
    fields = {line[:12].strip(): line[12:].strip() for line in lines}
    assert (fields["status"], fields["key"], fields["attempts"]) == ("done", known["key"], "0 failed")
    header, row = cli("find", known["key"], "--ledger", LEDGER).out.splitlines()
    piped = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    for name, ms in (("event time", "time_ms"), ("claimed", "claimed_ms"), ("settled", "settled_ms")):
        assert fields[name] == piped[name]
        assert int(datetime.fromisoformat(fields[name]).timestamp() * 1000) == known[ms]


@pytest.mark.parametrize(
    "what", ["ob1_" + "0" * 32, "nobody", "unknown.jsonl", "empty.jsonl", "x" * 5000, "", "ä", "{id}"]
)
def test_the_unknown_is_not_found(cli, facts, what):
    """What the ledger does not know ends with exit 1, says so, and prints no result."""
    cli.write("in.jsonl", facts(1))
    cli.process("in.jsonl")
    cli.write("unknown.jsonl", facts(1, start=1))
    cli.write("empty.jsonl", [])
    ran = find(cli, what)
    assert (ran.code, ran.out) == (1, "")
    assert "Traceback" not in ran.err
    text = cli("find", what, "--ledger", LEDGER)
    assert (text.code, text.out) == (1, "")
    assert "knows nothing of" in text.err


# --- explain -------------------------------------------------------------------------------------------------


def test_each_kind_is_explained(cli):
    """`explain --json` has a line per event: its kind, entity, time and key, what counts, what is ignored, and why."""
    deliveries = [
        payloads.envelope(payloads.ACW),
        payloads.envelope(payloads.ROUTING_STATUS),
        payloads.envelope(payloads.OBSERVATIONS),
        payloads.envelope(payloads.AUDITS),
        payloads.presence("AWAY"),
        payloads.call_status(),
        payloads.envelope(payloads.ACW, detail_type="v2.users.{id}.presence"),
        payloads.in_envelope(
            {"topicName": "v2.new", "eventBody": {"eventTime": payloads.TIME_MS}}, detail_type="v2.new"
        ),
    ]
    cli.write("in.jsonl", deliveries)
    ran = cli("explain", "in.jsonl", "--json")
    assert ran.code == 0
    lines = ran.items
    assert [list(line) for line in lines] == [EXPLAINED] * len(deliveries)
    assert [line["kind"] for line in lines] == ["fact", "state", "sample", "fact", "state", "state", "fact", "fact"]
    assert [line["entity"] is not None for line in lines] == [line["kind"] == "state" for line in lines]
    assert [line["topic"] for line in lines] == [one["detail-type"] for one in deliveries]
    assert lines[0]["time_ms"] == lines[1]["time_ms"] == payloads.TIME_MS
    assert all(line["counts"] and line["ignored"] and line["reason"] for line in lines)
    assert all(not set(line["counts"]) & set(line["ignored"]) for line in lines)
    assert all("id" in line["ignored"] for line in lines)
    assert "detail.timestamp" in lines[0]["ignored"]
    assert "detail.timestamp" in lines[2]["counts"]
    assert "detail.timestamp" in lines[4]["counts"]
    assert "conflict" in lines[3]["reason"]
    assert "disagree" in lines[6]["reason"]
    assert len({line["key"] for line in lines}) == len(lines) - 1
    assert lines[6]["key"] == lines[0]["key"]  # the topic name counts, not the detail-type


def test_what_cannot_be_read_is_explained_in_its_place(cli, facts):
    """An unreadable line has a line too, with nothing but the reason, and its neighbours are explained."""
    one, two = facts(2)
    cli.write("in.jsonl", [one, b'{"a":1,"a":2}', b"\xff", two])
    ran = cli("explain", "in.jsonl", "--json")
    assert ran.code == 0
    assert [list(line) for line in ran.items] == [EXPLAINED] * 4
    assert [line["kind"] for line in ran.items] == ["fact", None, None, "fact"]
    assert "twice" in ran.items[1]["reason"]
    assert "UTF-8" in ran.items[2]["reason"]
    nothing = {"counts": [], "ignored": [], "verdicts": []}
    assert {**ran.items[1], "reason": None} == {**dict.fromkeys(EXPLAINED), **nothing}
    text = cli("explain", "in.jsonl")
    assert text.code == 0
    assert text.out.count("unreadable") == 2


def test_the_key_explained_is_the_key_in_the_ledger(cli, facts):
    """With the same ledger, `explain` shows the key under which `process` remembers the event."""
    cli.write("in.jsonl", [*facts(1), payloads.presence("AWAY"), payloads.status_change()])
    cli.process("in.jsonl")
    keys = [line["key"] for line in cli("explain", "in.jsonl", "--ledger", LEDGER, "--json").items]
    assert [find(cli, key).one["status"] for key in keys] == ["done"] * 3


def test_an_explanation_touches_no_ledger(cli, facts):
    """Without a ledger `explain` works too, says that its keys are nobody's, and leaves no file behind."""
    cli.write("in.jsonl", facts(1))
    before = sorted(path.name for path in cli.folder.iterdir())
    ran = cli("explain", "in.jsonl", "--json")
    assert ran.code == 0
    assert "--ledger" in ran.err
    assert sorted(path.name for path in cli.folder.iterdir()) == before


def test_own_profiles_are_explained(cli):
    """A topic from `oncebridge.toml` is explained as it will be processed."""
    (cli.folder / "oncebridge.toml").write_text(
        '[topics."Door"]\nkind = "state"\nentity = "door"\ntime = "at"\nexclude = "noise"\n'
    )
    doors = [{"door": "front", "open": True, "at": payloads.TIME_MS, "noise": noise} for noise in (1, 2)]
    cli.write("in.jsonl", [payloads.in_envelope(door, detail_type="Door") for door in doors])
    one, two = cli("explain", "in.jsonl", "--json").items
    assert (one["kind"], one["time_ms"]) == ("state", payloads.TIME_MS)
    assert "front" in one["entity"]
    assert one["key"] == two["key"]
    assert cli.process("in.jsonl").one["processed"] == 1


@pytest.mark.parametrize("topic", ["[/bold]", "[red]x", "a\nb", "\x1b[31m", "\\["])
def test_any_topic_is_explained_as_it_is(cli, topic):
    """Brackets in a topic are text, not markup, and control characters do not reach a terminal."""
    cli.write("in.jsonl", [payloads.in_envelope({"conversationId": "c"}, detail_type=topic)])
    ran = cli("explain", "in.jsonl")
    assert ran.code == 0
    assert "Traceback" not in ran.err
    assert "\x1b" not in ran.out
    assert len(ran.out.splitlines()) == 9
    if topic.isprintable():
        assert topic in ran.out


def test_a_missing_file_is_said(cli, explained):
    """A file that is not there is named, with exit 2."""
    assert "nowhere.jsonl" in explained(cli("explain", "nowhere.jsonl", "--json"), 2)


# --- purge ---------------------------------------------------------------------------------------------------


def purge(cli, *arguments, **environment):
    """Purge the usual ledger, for JSON."""
    ran = cli("purge", "--ledger", LEDGER, "--json", *arguments, **environment)
    assert ran.code == 0
    return ran.one


def test_purge_forgets_what_is_older_than_the_retention(cli, facts, states):
    """After thirty days, or as many as set, settled events are forgotten, not sooner."""
    cli.write("in.jsonl", [*facts(3), *states(2)])
    cli.process("in.jsonl")
    assert purge(cli) == {"forgotten": 0, "remembered": 5}
    cli.make_older(20)
    assert purge(cli) == {"forgotten": 0, "remembered": 5}
    assert cli.process("in.jsonl").one["redelivery"] == 5
    cli.write("new.jsonl", facts(1, start=10))
    cli.process("new.jsonl")
    assert purge(cli, ONCEBRIDGE_RETENTION_DAYS="19") == {"forgotten": 5, "remembered": 1}
    assert cli.process("in.jsonl").one["processed"] == 5
    cli.make_older(31)
    assert purge(cli) == {"forgotten": 6, "remembered": 0}


@pytest.mark.parametrize("days", ["0", "0.0", "0.5"])
def test_purge_refuses_to_forget_today_where_nobody_can_answer(cli, facts, explained, days):
    """Without a terminal, `purge --older-than-days 0` changes nothing unless `--yes` is given."""
    cli.process(cli.write("in.jsonl", facts(3)))
    assert "--yes" in explained(cli("purge", "--ledger", LEDGER, "--older-than-days", days), 2)
    assert len(cli.events()) == 3
    assert purge(cli, "--older-than-days", "0", "--yes")["forgotten"] == 3


@pytest.mark.parametrize(("answer", "left"), [(b"y\n", 0), (b"n\n", 2), (b"\n", 2), (b"\x04", 2)])
def test_purge_asks_at_a_terminal(cli, facts, answer, left):
    """At a terminal a person is asked first, and anything but yes forgets nothing, with an exit code that says so."""
    cli.process(cli.write("in.jsonl", facts(2)))
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "oncebridge", "purge", "--ledger", LEDGER, "--older-than-days", "0"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=cli.folder, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the other side is closed
        while data := os.read(ours, 65_536):
            shown += data
            if b"[y/N]" in data:
                os.write(ours, answer)
    code = run.wait(PATIENCE_SECONDS)
    os.close(ours)
    assert b"Forget them? [y/N]" in shown
    assert (code == 0) is (left == 0)
    assert len(cli.events()) == left


def test_purge_can_be_told_how_far_back(cli, facts):
    """`--older-than-days` takes the place of the retention; without `--json` it is a sentence."""
    cli.write("in.jsonl", facts(3))
    cli.process("in.jsonl")
    cli.make_older(2)
    assert purge(cli, "--older-than-days", "3") == {"forgotten": 0, "remembered": 3}
    text = cli("purge", "--ledger", LEDGER, "--older-than-days", "1.5")
    assert (text.code, text.out) == (0, "3 events forgotten, 0 remembered\n")
    wrong = cli("purge", "--ledger", LEDGER, "--older-than-days", "-1")
    assert wrong.code == 2
    assert "Traceback" not in wrong.err


def test_purge_discards_old_dead_letters_if_asked_to(cli, facts):
    """They have a retention of their own, which is none unless the settings say so."""
    cli.process(cli.write("first.jsonl", [*facts(2), b"not JSON"]))
    cli.make_older(10)
    cli.process(cli.write("second.jsonl", [b"not JSON either"]))
    assert purge(cli) == {"forgotten": 0, "remembered": 4}
    days = {"ONCEBRIDGE_DEAD_LETTER_RETENTION_DAYS": "9"}
    assert purge(cli, **days) == {"forgotten": 0, "remembered": 4, "dead_letters_discarded": 1}
    assert [letter["changed_ms"] > 0 for letter in cli.dead("list", "--json").items] == [True]
    assert purge(cli, **days)["dead_letters_discarded"] == 0
    assert cli.process("first.jsonl").one["redelivery"] == 2
    assert len(cli.dead("list", "--json").items) == 1


def test_purge_spares_dead_letters_and_what_is_unfinished(cli, facts, wait_until):
    """Dead letters stay until they are redriven or discarded, claims until they are settled; tombstones go."""
    cli.write_hooks()
    cli.write("dead.jsonl", [b"no event", b"nor this"])
    cli.write("done.jsonl", facts(2))
    cli.write("held.jsonl", facts(1, start=5))
    cli.process("dead.jsonl", "done.jsonl")
    cli.dead("discard", cli.dead("list", "--json").items[0]["key"])
    worker = cli.start("process", "held.jsonl", "--ledger", LEDGER, "--json", "--handler", "hooks:wait")
    wait_until(lambda: cli.lines("started"), "its handler runs")
    cli.make_older(31)
    assert purge(cli) == {"forgotten": 3, "remembered": 2}
    assert cli.statuses() == {"dead": 1, "claimed": 1}
    (cli.folder / "gate").touch()
    assert worker.finish().one["processed"] == 1
    assert len(cli.dead("list", "--json").items) == 1


# --- simulate ------------------------------------------------------------------------------------------------


def simulate(cli, *arguments):
    """Simulate some traffic; return its bytes, and the truth."""
    ran = cli("simulate", "--conversations", "5", "--out", "out.jsonl", "--truth", "truth.jsonl", *arguments)
    assert (ran.code, ran.out) == (0, "")
    truth = (cli.folder / "truth.jsonl").read_bytes()
    return (cli.folder / "out.jsonl").read_bytes(), [json.loads(line) for line in truth.splitlines()]


def test_the_same_seed_gives_the_same_bytes(cli):
    """A simulation can be repeated from its seed, and another seed gives another."""
    first, again, other = simulate(cli, "--seed", "5"), simulate(cli, "--seed", "5"), simulate(cli, "--seed", "6")
    assert first == again
    assert first != other


def test_each_line_has_its_truth(cli):
    """The truth has a line per delivery with `n` from 1, the envelope id and the verdict, and nothing else."""
    traffic, truth = simulate(cli, "--seed", "7")
    lines = traffic.splitlines()
    assert len(lines) == len(truth) > 100
    assert [list(line) for line in truth] == [["n", "id", "verdict"]] * len(truth)
    assert [line["n"] for line in truth] == list(range(1, len(truth) + 1))
    readable = [(line, true) for line, true in zip(lines, truth, strict=True) if true["verdict"] != "dead"]
    assert all(json.loads(line)["id"] == true["id"] for line, true in readable)
    assert {"fresh", "redelivery", "republish", "echo"} <= {true["verdict"] for true in truth}


def test_traffic_goes_to_standard_output_or_compressed(cli):
    """Without `--out` the traffic is the output, and a name in `.gz` is compressed: the bytes are the same."""
    traffic, _ = simulate(cli, "--seed", "8")
    piped = cli("simulate", "--conversations", "5", "--seed", "8")
    assert piped.code == 0
    assert piped.out.encode() == traffic
    assert cli("simulate", "--conversations", "5", "--seed", "8", "--out", "out.jsonl.gz").code == 0
    assert gzip.decompress((cli.folder / "out.jsonl.gz").read_bytes()) == traffic


def test_no_conversations_are_no_traffic(cli):
    """None asked for is none made; fewer than none is refused."""
    assert cli("simulate", "--conversations", "0").out == ""
    ran = cli("simulate", "--conversations", "-1")
    assert ran.code == 2
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("option", ["--out", "--truth"])
def test_a_file_that_cannot_be_written_is_said(cli, explained, option):
    """A path that cannot be written to is named, with exit 2."""
    other = ("--out", "out.jsonl") if option == "--truth" else ()
    said = explained(cli("simulate", "--conversations", "1", *other, option, "no/such/folder/x.jsonl"), 2)
    assert "no/such/folder" in said
