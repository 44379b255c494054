"""A trial leaves every ledger alone; priming writes one on purpose, for the handlers that the events belong to."""

import pytest

import payloads
from cli.conftest import LEDGER
from oncebridge import Bridge

#: Two named handlers beside one without a name, and a sink's worth of topics.
APP = """\
from oncebridge import Bridge

bridge = Bridge("sqlite:///once.db")


def note(name):
    with open("effects", "a") as file:
        file.write(name + "\\n")


@bridge.on("v2.detail.events.conversation.{id}.acw", name="crm")
def crm(event):
    note("crm")


@bridge.on("*")
def every(event, transaction):
    note("every")
"""

SINK = """\
[sinks.crm]
url = "http://127.0.0.1:9/none"
private_addresses = true
topics = ["*"]
"""


def test_a_trial_writes_no_ledger(cli, facts):
    """Without handler, sinks and `--ledger` nothing is written, and the run says so; the real run does it all."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(3))
    trial = cli("process", "in.jsonl", "--json")
    assert (trial.code, trial.one["processed"]) == (0, 3)
    assert "a trial in memory" in trial.err
    assert not (cli.folder / "oncebridge.db").exists()
    real = cli("process", "in.jsonl", "--handler", "hooks:note", "--json")
    assert real.one["processed"] == 3
    assert sum(cli.effects().values()) == 3


@pytest.mark.parametrize("place", ["environment", "file"])
def test_a_trial_leaves_the_ledger_of_workers_alone(cli, facts, place):
    """A ledger that the environment or the settings file names is the workers', and a trial does not write it."""
    cli.write("in.jsonl", facts(3))
    environment = {"ONCEBRIDGE_LEDGER": "sqlite:///once.db"} if place == "environment" else {}
    if place == "file":
        (cli.folder / "oncebridge.toml").write_text('ledger = "sqlite:///once.db"\n')
    assert cli("process", "in.jsonl", "--json", **environment).one["processed"] == 3
    assert not (cli.folder / "once.db").exists()


def test_a_trial_sends_no_dead_letters_on(cli):
    """The dead letters of a trial stay in memory, though settings name a queue for them; it says how to see why."""
    cli.write("in.jsonl", [b"no event"])
    queue = "http://127.0.0.1:9/000000000000/letters"
    ran = cli("process", "in.jsonl", ONCEBRIDGE_DEAD_LETTER_QUEUE=queue, AWS_REGION="eu-central-1")
    assert ran.code == 0
    assert "1 would be kept as dead letters; --verdicts FILE says why" in ran.err
    assert "dead list" not in ran.err


@pytest.mark.parametrize("log_format", ["auto", "text"])
def test_a_trial_warns_of_no_dead_letter(cli, log_format):
    """Nothing is kept, so nothing is to be done: the report counts what would be kept, and info has each move."""
    cli.write("in.jsonl", [b"{no event %d" % n for n in range(12)])  # more than a minute has lines for
    trial = cli("process", "in.jsonl", "--log-format", log_format)
    assert "12 would be kept as dead letters" in trial.err
    assert "dead letter:" not in trial.err
    assert "more dead letters" not in trial.err
    assert cli("--log-level", "info", "process", "in.jsonl").err.count('"outcome":"dead"') == 12
    kept = cli("process", "in.jsonl", "--ledger", LEDGER)
    assert kept.err.count("dead letter:") == 10


def test_a_named_ledger_remembers(cli, facts):
    """With `--ledger` events without a handler are remembered as done, for a handler without a name."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(2))
    assert cli.process("in.jsonl").one["processed"] == 2
    assert cli.process("in.jsonl", "--handler", "hooks:note").one["redelivery"] == 2
    assert not cli.effects()


def test_priming_counts_for_every_handler_by_name(cli, facts):
    """`--prime` calls no handler and remembers events as done for each, so that a run afterwards calls none either."""
    (cli.folder / "app.py").write_text(APP)
    cli.write("done.jsonl", facts(3))
    cli.write("in.jsonl", facts(5))
    primed = cli("process", "done.jsonl", "--handler", "app:bridge", "--prime", "--json")
    assert (primed.code, primed.one["processed"]) == (0, 3)
    assert "no handler is called" in primed.err
    assert cli.lines("effects") == []
    live = cli("process", "in.jsonl", "--handler", "app:bridge", "--json")
    assert (live.one["processed"], live.one["redelivery"]) == (2, 3)
    assert sorted(cli.lines("effects")) == ["crm", "crm", "every", "every"]


def test_priming_calls_no_sink(cli, facts):
    """Priming for a sink sends nothing; its events are done under the sink's name."""
    (cli.folder / "oncebridge.toml").write_text(SINK)
    cli.write("in.jsonl", facts(2))
    ran = cli("process", "in.jsonl", "--prime", "--json", "--ledger", "sqlite:///once.db")
    assert (ran.code, ran.one["processed"]) == (0, 2)
    assert {event["handler"] for event in cli.events()} == {"crm"}


def test_priming_needs_to_know_where(cli, facts, explained):
    """`--prime` without handlers, sinks and a named ledger is refused: there is nothing that it could be meant for."""
    cli.write("in.jsonl", facts(1))
    said = explained(cli("process", "in.jsonl", "--prime"), 2)
    assert "--handler" in said
    assert "--ledger" in said


def test_a_program_primes_with_the_same_words(tmp_path):
    """`bridge.priming()` remembers under the names of the bridge's handlers; the bridge itself works afterwards."""
    bridge, called = Bridge(f"sqlite:///{tmp_path / 'once.db'}"), []
    done, new = (
        payloads.presence("AWAY", id="one"),
        payloads.presence("BUSY", published_ms=payloads.PUBLISHED_MS + 9000, id="two"),
    )
    bridge.on("v2.users.{id}.presence", name="board")(called.append)
    with bridge.priming() as priming:
        assert priming.process(done).outcome == "done"
    assert [bridge.process(event).verdict for event in (done, new)] == ["redelivery", "fresh"]
    assert len(called) == 1
    bridge.close()
