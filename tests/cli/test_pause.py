"""`oncebridge pause`, `resume` and `log`: what a person does, and what is remembered of it."""

import getpass
import json
import signal
import sqlite3

from oncebridge import Bridge
from payloads import queue_conversation, raw

LEDGER = "sqlite:///once.db"


def running(cli, *names, holds="as long as the queue keeps messages"):
    """Start a worker with a journal in this process, which runs until it is closed."""
    bridge = Bridge(f"sqlite:///{cli.folder}/once.db")
    for name in names:
        bridge.register("*", lambda event: None, name=name)
    bridge.start_journal("consume", holds=holds)
    bridge.process(raw(queue_conversation()))
    bridge._journal._writer._wanted.set()  # written now
    return bridge


def seen(cli):
    """Wait until the worker is in the journal."""
    while not json.loads(cli("top", "--ledger", LEDGER, "--json").out)["running"]:
        pass


def test_a_handler_is_paused_and_resumed(cli):
    """Pausing says which workers heed it and how long events can wait; `top` shows it until it is resumed."""
    bridge = running(cli, "crm", "")
    seen(cli)
    paused = cli("pause", "crm", "--ledger", LEDGER)
    assert paused.code == 0
    assert paused.out.startswith("handler crm is paused since ")
    assert f" UTC by {getpass.getuser()}@" in paused.out
    for said in ("1 worker heeds it within about 5 s", "as long as the queue keeps messages", "oncebridge resume crm"):
        assert said in paused.err
    assert "already" in cli("pause", "crm", "--ledger", LEDGER).out
    assert json.loads(cli("pause", "", "--ledger", LEDGER, "--json").out)["workers"]
    shown = cli("top", "--ledger", LEDGER).out
    assert "Paused: handler crm is paused since" in shown
    assert "Paused: the handler without a name is paused since" in shown
    assert cli("resume", "crm", "--ledger", LEDGER).out == "handler crm is resumed\n"
    assert "was not paused; paused: the handler without a name" in cli("resume", "crm", "--ledger", LEDGER).out
    assert json.loads(cli("resume", "", "--ledger", LEDGER, "--json").out)["resumed"]
    assert "Paused" not in cli("top", "--ledger", LEDGER).out
    bridge.close()


def test_an_unknown_name_is_refused_with_the_known_ones(cli):
    """A mistyped name pauses nothing; with --force it does, and says that no worker is seen that has it."""
    running(cli, "crm", "").close()
    ran = cli("pause", "crn", "--ledger", LEDGER)
    assert ran.code == 2
    assert 'known: crm, ""' in ran.err
    forced = cli("pause", "crn", "--force", "--ledger", LEDGER)
    assert forced.code == 0
    assert "no running worker is seen that has it" in forced.err
    assert "journal = false" in forced.err


def test_process_does_not_try_events_of_a_paused_handler(cli, facts, wait_until):
    """A run over a file reads the pauses when it begins; stopped or out of patience, it says to run it again."""
    cli.write_hooks()
    cli.process(cli.write("one.jsonl", facts(1)), "--handler", "hooks:note")
    assert cli("pause", "", "--force", "--ledger", LEDGER).code == 0
    started = cli.start("process", cli.write("two.jsonl", facts(3)), "--handler", "hooks:note", "--ledger", LEDGER)
    wait_until(lambda: "the handler without a name is paused since" in started.said, "a word on the pause")
    started.signal(signal.SIGTERM)
    ran = started.finish()
    assert ran.code == 75
    assert cli("resume", "", "--ledger", LEDGER).code == 0
    assert cli.process("two.jsonl", "--handler", "hooks:note").code == 0


def test_commands_log_what_they_did(cli, facts):
    """Showing, redriving, discarding, purging, pausing and resuming are logged, with who, and without any payload."""
    cli.write_hooks()
    cli.process(cli.write("in.jsonl", facts(3)), "--handler", "hooks:refuse")
    first, second, third = (letter["key"] for letter in cli.dead("list", "--json").items)
    cli.dead("show", first)
    cli.dead("redrive", first, second, "--handler", "hooks:note")
    cli.dead("discard", third)
    cli("purge", "--ledger", LEDGER)
    cli("pause", "crm", "--force", "--ledger", LEDGER)
    cli("resume", "crm", "--ledger", LEDGER)
    cli("resume", "crm", "--ledger", LEDGER)
    logged = cli("log", "--json", "--ledger", LEDGER).items
    assert [(one["what"], one["about"], one["said"]) for one in reversed(logged)] == [
        ("show", first, "its payload was shown"),
        ("redrive", f"{first} and 1 others", "2 done"),
        ("discard", third, "1 discard"),
        ("purge", "settled more than 30 days ago", "0 forgotten"),
        ("pause", "handler crm", "paused"),
        ("resume", "handler crm", "resumed"),
    ]
    assert {(one["who"].partition("@")[0], one["via"]) for one in logged} == {(getpass.getuser(), "command")}
    in_pipe = cli("log", "--ledger", LEDGER, "--limit", "2").out.splitlines()
    assert in_pipe[0].split("\t") == ["at", "who", "via", "what", "about", "said"]
    assert [line.split("\t")[3] for line in in_pipe[1:]] == ["resume", "pause"]


def test_a_log_that_cannot_be_written_fails_no_command(cli, facts):
    """The command does its work, and warns that its action is not in the log."""
    cli.write_hooks()
    cli.process(cli.write("in.jsonl", facts(1)), "--handler", "hooks:refuse")
    (letter,) = cli.dead("list", "--json").items
    with sqlite3.connect(cli.folder / "once.db") as db:
        db.execute("CREATE TABLE oncebridge_note (other TEXT)")
    db.close()
    ran = cli.dead("show", letter["key"])
    assert ran.code == 0
    assert letter["key"] in ran.out
    assert "is not in the log of actions" in ran.err


def test_a_ledger_without_actions_says_so(cli, facts):
    """Where nobody did anything there is nothing to show."""
    cli.process(cli.write("in.jsonl", facts(1)), "--ledger", LEDGER)
    ran = cli("log", "--ledger", LEDGER)
    assert (ran.code, ran.out) == (0, "")
    assert "no action has been logged here" in ran.err
