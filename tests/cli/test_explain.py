"""`oncebridge explain` with a ledger: the verdict that each delivery would get, and nothing else happens."""

import json
import os
import secrets
import sqlite3
from contextlib import closing

import pytest

import payloads
from cli.conftest import LEDGER
from cli.test_exit_codes import NOWHERE
from oncebridge.cli.explain import AT_ONCE, _batches
from servers.valkey import running_valkey

OTHER_ID = "00000000-0000-4000-8000-000000000002"
PROGRAM = '''\
"""A bridge with two handlers; whether they fail is said by the environment."""

import os

from oncebridge import Bridge
from oncebridge.retry import RetryPolicy

bridge = Bridge(os.environ.get("PROGRAM_LEDGER", "sqlite:///once.db"))


@bridge.on("v2.detail.events.conversation.{id}.*", name="crm", retry=RetryPolicy(base_seconds=3600))
def crm(event):
    if "CRM_FAILS" in os.environ:
        raise RuntimeError


@bridge.on("v2.users.*", name="board")
def board(event):
    pass


@bridge.on("v2.users.{id}.presence")
def show(event):
    pass
'''


def explain(cli, *arguments, ledger=LEDGER, **options):
    """Explain with a ledger, for JSON."""
    return cli("explain", *arguments, "--json", *(["--ledger", ledger] if ledger else []), **options)


def verdicts(ran):
    """Return handler and verdict of each line."""
    assert ran.code == 0, ran.err
    return [[(one["handler"], one["verdict"]) for one in line["verdicts"]] for line in ran.items]


def presence(says, at_ms, **changes):
    """Build a presence so many milliseconds after the usual time."""
    return payloads.presence(says, modified_ms=payloads.TIME_MS + at_ms, **changes)


def test_each_line_has_its_verdict(cli):
    """`--json` adds `verdicts`, each with handler, verdict and reason; for people it is the last line of an event."""
    first = payloads.envelope(payloads.ACW)
    cli.process(cli.write("done.jsonl", [first, presence("AWAY", 0)]))
    cli.write(
        "in.jsonl",
        [
            first,
            {**first, "id": OTHER_ID},
            payloads.envelope(payloads.ACW, {"wrapupCode": "new"}),
            presence("BUSY", -1000),
            presence("AWAY", 100),
            b"no event",
        ],
    )
    ran = explain(cli, "in.jsonl")
    told = ["redelivery", "republish", "fresh", "stale", "echo", "dead"]
    assert verdicts(ran) == [[("", verdict)] for verdict in told]
    assert all(list(one) == ["handler", "verdict", "reason"] for line in ran.items for one in line["verdicts"])
    assert payloads.ENVELOPE_ID in ran.items[1]["verdicts"][0]["reason"]
    assert ran.items[5]["verdicts"][0]["reason"].startswith("unreadable: ")
    text = cli("explain", "in.jsonl", "--ledger", LEDGER)
    lines = [line for line in text.out.splitlines() if line.startswith("   verdict  ")]
    assert [line.split()[1] for line in lines] == [f"{verdict}:" for verdict in told]
    assert lines[2] == "   verdict  fresh: the ledger does not know it"


def test_verdicts_are_for_the_ledger_as_it_is(cli, facts):
    """Each of several events is judged by itself, which is said once; of one event there is nothing to say."""
    cli.process(cli.write("done.jsonl", facts(1, start=9)))
    cli.write("twice.jsonl", [*facts(1), *facts(1)])
    ran = explain(cli, "twice.jsonl")
    assert verdicts(ran) == [[("", "fresh")], [("", "fresh")]]
    assert ran.err.count("as it is now") == 1
    cli.write("once.jsonl", facts(1))
    assert "as it is now" not in explain(cli, "once.jsonl").err
    assert "as it is now" not in explain(cli, "twice.jsonl", ledger=None, ONCEBRIDGE_LEDGER="sqlite:///no.db").err


def test_the_handlers_of_a_bridge_are_asked_for(cli):
    """With `--handler`, the ledger of the bridge has a verdict for each handler that takes the topic, in its order."""
    (cli.folder / "crm.py").write_text(PROGRAM)
    cli.write("done.jsonl", [payloads.envelope(payloads.ACW), presence("AWAY", 0)])
    assert cli("process", "done.jsonl", "--handler", "crm:bridge", CRM_FAILS="1").code == 75
    cli.write("in.jsonl", [payloads.envelope(payloads.ACW), presence("AWAY", 100), payloads.envelope(payloads.AUDITS)])
    ran = explain(cli, "in.jsonl", "--handler", "crm:bridge", ledger=None)
    assert verdicts(ran) == [[("crm", "fresh")], [("board", "echo"), ("", "echo")], [("", "unhandled")]]
    assert "failed" in ran.items[0]["verdicts"][0]["reason"]
    assert "--handler" not in ran.err
    text = cli("explain", "in.jsonl", "--handler", "crm:bridge").out
    assert "   verdict  board: echo: " in text
    assert "   verdict  without a name: echo: " in text
    by_record = explain(cli, "in.jsonl")
    assert verdicts(by_record)[0] == [("", "fresh"), ("crm", "fresh")]
    assert by_record.err.count("--handler") == 1


def test_the_settings_ledger_and_sinks_are_taken(cli, facts):
    """Without options the settings name the ledger, and its sinks are the handlers."""
    (cli.folder / "oncebridge.toml").write_text(
        f'ledger = "{LEDGER}"\n[sinks.crm]\nurl = "https://crm.example/events"\ntopics = ["v2.users.*"]\n'
    )
    cli.write("in.jsonl", [presence("AWAY", 0), *facts(1)])
    before = sorted(path.name for path in cli.folder.iterdir())
    ran = explain(cli, "in.jsonl", ledger=None)
    assert verdicts(ran) == [[], []]
    assert "no verdicts: the ledger (sqlite)" in ran.err
    assert sorted(path.name for path in cli.folder.iterdir()) == before
    (cli.folder / "other.toml").write_text("")
    assert cli("process", "in.jsonl", "--ledger", LEDGER, "--settings", "other.toml").code == 0
    ran = explain(cli, "in.jsonl", ledger=None)
    assert verdicts(ran) == [[("crm", "fresh")], [("", "unhandled")]]


def test_the_default_ledger_is_looked_into_where_it_is(cli, facts):
    """A ledger that nobody named is used if it is there: then keys are its own, and nothing is said of the contrary."""
    assert cli("process", cli.write("in.jsonl", facts(1)), "--handler", "builtins:id").code == 0
    ran = explain(cli, "in.jsonl", ledger=None)
    assert verdicts(ran) == [[("", "redelivery")]]
    assert "not those of any ledger" not in ran.err


def test_nothing_in_the_file_changes(cli, facts, states):
    """The ledger is byte for byte as before, and no file is left beside it."""
    cli.process(cli.write("done.jsonl", [*facts(3), *states(3), b"no event"]))
    before = {path.name: path.read_bytes() for path in cli.folder.iterdir()}
    cli.write("in.jsonl", [*facts(6), *states(6), b"no event", b"nor this"])
    assert explain(cli, "in.jsonl").code == 0
    after = {path.name: path.read_bytes() for path in cli.folder.iterdir()}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"in.jsonl"}


@pytest.mark.parametrize("kind", ["missing", "foreign", "migrated only", "memory"])
def test_a_ledger_that_is_none_is_said_and_not_made(cli, facts, explained, kind):
    """What `--ledger` names must be a ledger that a worker has opened; nothing else is touched or made."""
    cli.write("in.jsonl", facts(1))
    url, file = "sqlite:///new.db", cli.folder / "new.db"
    if kind == "foreign":
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("CREATE TABLE crm (name TEXT)")
    elif kind == "migrated only":
        assert cli("migrate", "--ledger", url).code == 0
    elif kind == "memory":
        url = "memory://"
    before = file.read_bytes() if file.exists() else None
    said = explained(explain(cli, "in.jsonl", ledger=url), 2)
    assert "opened" in said
    assert (file.read_bytes() if file.exists() else None) == before


def test_another_secret_is_refused(cli, facts, explained):
    """With another secret than the workers' every key would be wrong: that is said, and no secret is shown."""
    own, other = secrets.token_hex(16), secrets.token_hex(16)
    cli.process(cli.write("in.jsonl", facts(1)), ONCEBRIDGE_SECRET=own)
    for environment in ({"ONCEBRIDGE_SECRET": other}, {}):
        said = explained(explain(cli, "in.jsonl", **environment), 2)
        assert "secret" in said
        assert own not in said
        assert other not in said
    assert verdicts(explain(cli, "in.jsonl", ONCEBRIDGE_SECRET=own)) == [[("", "redelivery")]]


@pytest.mark.parametrize("url", [NOWHERE, "postgresql://127.0.0.1:1/crm"])
def test_a_ledger_out_of_reach_is_no_answer(cli, facts, explained, url):
    """Where nobody listens, nothing is guessed: exit 75, and no line of a verdict."""
    ran = explain(cli, cli.write("in.jsonl", facts(1)), ledger=url)
    assert ran.out == ""
    assert "127.0.0.1" in explained(ran, 75)


def test_a_server_that_dies_in_between_ends_the_answers(cli, facts, tmp_path, wait_until):
    """What was explained before the server died stands, the rest is not guessed: exit 75."""
    with running_valkey(tmp_path / "valkey") as server:
        cli.process(cli.write("in.jsonl", facts(2)), "--ledger", server.url)
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as pipe:
            command = cli.start("explain", "-", "--json", "--ledger", server.url, stdin=stdin)
            pipe.write(payloads.raw(facts(1)[0]) + b"\n")
            wait_until(lambda: written(command), "the first event is explained, though the pipe is still open")
            server.process.kill()
            pipe.write(payloads.raw(facts(2)[1]) + b"\n")
    ran = command.finish()
    assert [line["verdicts"][0]["verdict"] for line in ran.items] == ["redelivery"]
    assert (ran.code, "127.0.0.1" in ran.err, "Traceback" in ran.err) == (75, True, False)


def written(command):
    """Return what a running command has written to standard output."""
    return os.pread(command._out.fileno(), 1_000_000, 0)


def test_a_file_that_ends_too_soon_does_not_hide_the_rest(cli, facts):
    """Events before a fault in a file are explained with their verdicts, and the fault is said."""
    cli.process(cli.write("in.jsonl", facts(2)))
    ran = explain(cli, "in.jsonl", "nowhere.jsonl")
    assert [line["verdicts"][0]["verdict"] for line in ran.items] == ["redelivery"] * 2
    assert (ran.code, "nowhere.jsonl" in ran.err, "Traceback" in ran.err) == (2, True, False)


def test_a_look_is_for_so_many_at_most():
    """A capture of any size is looked up in parts, and what was read before a pause does not wait for what follows."""
    many = [b"%d" % number for number in range(2 * AT_ONCE + 1)]
    parts = [*_batches(iter([*many, None, None, b"after a pause"]))]
    assert [len(part) for part in parts] == [AT_ONCE, AT_ONCE, 1, 1]
    assert [raw for part in parts for raw in part] == [*many, b"after a pause"]


def test_many_events_are_looked_up_together(cli, facts):
    """More events than one look takes keep their order, each with its own verdict."""
    cli.process(cli.write("done.jsonl", facts(1200)[::3]))
    ran = explain(cli, cli.write("in.jsonl", facts(1200)))
    assert [line[0][1] for line in verdicts(ran)] == ["redelivery", "fresh", "fresh"] * 400


@pytest.mark.parametrize("odd", ["[/bold]", "[red]x", "a\nb", "\x1b[31m", "\\[", "\u202e", "x" * 200])
def test_nothing_from_outside_controls_a_verdict(cli, odd):
    """Topics, ids and handlers' names are text: one line for each verdict, and nothing that a terminal obeys."""
    delivery = payloads.call_status(id=odd, detail_type=odd, conversation=odd)
    (cli.folder / "odd.py").write_text(
        f'from oncebridge import Bridge\n\nbridge = Bridge("{LEDGER}")\nbridge.on("*", name={odd!r})(print)\n'
    )
    cli.write("in.jsonl", [delivery, {**delivery, "id": OTHER_ID}])
    assert cli("process", "in.jsonl", "--handler", "odd:bridge").code == 0
    for arguments in (["--handler", "odd:bridge"], ["--ledger", LEDGER]):
        ran = cli("explain", "in.jsonl", *arguments)
        assert ran.code == 0
        shown = [line for line in ran.out.splitlines() if line.startswith("   verdict  ")]
        assert len(shown) == (2 if "--handler" in arguments else 4)
        assert all(line.isprintable() for line in ran.out.splitlines())
        printed = explain(cli, "in.jsonl", *arguments, ledger=None)
        assert "\x1b" not in printed.out
        assert "\u202e" not in printed.out
        assert {one["handler"] for line in printed.items for one in line["verdicts"]} >= {odd}


def test_nothing_personal_is_in_a_reason(cli):
    """Reasons name times, envelope ids and versions: neither what an event says nor the ids of people in it."""
    bodies = [{"ani": "tel:+447700900123", "wrapupCode": "secret of somebody"}, {"ani": "tel:+447700900999"}]
    deliveries = [payloads.envelope(payloads.ACW, body) for body in bodies]
    cli.process(cli.write("in.jsonl", [deliveries[0], presence("SECRET STATE", 0)]))
    cli.write("in.jsonl", [*deliveries, presence("SECRET STATE", 10), presence("ANOTHER STATE", -10)])
    reasons = json.dumps([one for line in explain(cli, "in.jsonl").items for one in line["verdicts"]])
    assert reasons.count("verdict") == 4
    for text in ("4477", "secret of", "STATE", payloads.USER, payloads.CONVERSATION):
        assert text not in reasons


def test_help_says_that_it_only_reads(cli):
    """The help promises that nothing is claimed and no ledger is made."""
    assert "nothing is claimed" in " ".join(cli("explain", "--help").out.split())
