"""`--handler module:name`: a Bridge with its handlers, names, topics, settings and ledger; or a plain function."""

import re
import signal
import sys

import pytest

import payloads
from servers.serving import post

APP = '''\
"""A program with a bridge of its own; effects are noted where no ledger can touch them."""

import functools
import os

import hooks
from oncebridge import Bridge, PermanentError, Settings

bridge = Bridge("sqlite:///app.db", settings=Settings(lease_seconds=7, unhandled=os.environ.get("UNHANDLED", "dead")))


@bridge.on("v2.detail.events.conversation.{id}.acw", name="crm")
def save(event):
    if os.environ.get("BROKEN"):
        raise PermanentError("broken")
    hooks.append("effects", f"crm {hooks.mark(event)}")


@bridge.on("v2.detail.events.conversation.{id}.acw", name="desk")
def show(event):
    hooks.append("effects", f"desk {hooks.mark(event)}")


@functools.wraps(save)
def wrapped(event):
    save(event)


class Holder:
    pass


Holder.hidden = Bridge("sqlite:///app.db")


@Holder.hidden.on("*")
def hidden(event):
    pass


lambda_handler = bridge.lambda_handler
empty = Bridge("sqlite:///app.db")


def plain(event):
    hooks.append("effects", f"plain {hooks.mark(event)}")
'''
DONE_BY_THE_PROGRAM = """
import app
results = app.bridge.process_many(open("in.jsonl").read().splitlines())
print(len([result for result in results if result.acknowledged]))
"""


@pytest.fixture
def app(cli):
    """Write a program with a bridge of its own, and return how to run commands beside it."""
    cli.write_hooks()
    (cli.folder / "app.py").write_text(APP)
    return cli


@pytest.fixture
def by_the_program(app):
    """Let the program itself work deliveries off."""

    def run(deliveries, **environment):
        app.write("in.jsonl", deliveries)
        ran = app.start_program(sys.executable, "-c", DONE_BY_THE_PROGRAM, **environment).finish()
        assert (ran.code, ran.out) == (0, f"{len(deliveries)}\n"), ran

    return run


def foreign(number):
    """Make events of a topic that the program has no handler for."""
    return [payloads.routing_status("IDLE", payloads.TIME_MS + 1000 * n, id=f"foreign-{n}") for n in range(number)]


def each_once(marks, *handlers):
    """Return the effects when each of these handlers has had each event once."""
    return {f"{name} {mark}": 1 for name in handlers for mark in marks}


# --- what cannot be imported ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def save(event)\n    pass\n", r"wrong\.py, line 1: SyntaxError: expected ':'"),
        ("import os\nimport not_there\n", r"wrong\.py, line 2: ModuleNotFoundError: No module named 'not_there'"),
        ("import hooks\n\n1 / 0\n", r"wrong\.py, line 3: ZeroDivisionError: division by zero"),
        ("from oncebridge import Bridge\nBridge('nothing://')\n", r"no ledger for 'nothing'"),
    ],
    ids=["syntax", "import", "error", "bridge"],
)
def test_a_module_with_a_mistake(app, facts, explained, text, said):
    """A mistake in the handler's module is said with its line, as something that must be changed."""
    (app.folder / "wrong.py").write_text(text)
    app.write("in.jsonl", facts(1))
    assert re.search(said, explained(app("process", "in.jsonl", "--handler", "wrong:save"), 2))


def test_a_file_instead_of_a_module(app, facts, explained):
    """A module is named without the ending of its file."""
    app.write("in.jsonl", facts(1))
    sentence = explained(app("process", "in.jsonl", "--handler", "app.py:plain"), 2)
    assert "name the module, without .py" in sentence


# --- a bridge -------------------------------------------------------------------------------------------------


def test_a_bridge_keeps_its_names_topics_and_ledger(app, by_the_program, facts, marks):
    """What the program has done under its handlers' names is not done again, and foreign topics reach no handler."""
    done, new = facts(25), facts(5, start=100)
    by_the_program([*done, *foreign(3)], UNHANDLED="acknowledge")
    app.write("more.jsonl", [*done, *new, *foreign(3)])
    ran = app("process", "more.jsonl", "--handler", "app:bridge", "--json", UNHANDLED="acknowledge")
    assert ran.code == 0
    assert ran.one == {**ran.one, "redelivery": 25, "processed": 5, "unhandled": 3, "balanced": True}
    assert app.effects() == each_once(marks([*done, *new]), "crm", "desk")
    assert not (app.folder / "oncebridge.db").exists()


def test_the_settings_of_a_bridge_count(app, facts):
    """A bridge that keeps unhandled events as dead letters does so under a command too."""
    app.write("in.jsonl", foreign(2))
    ran = app("process", "in.jsonl", "--handler", "app:bridge", "--json")
    assert (ran.code, ran.one["unhandled"]) == (0, 2)
    letters = app("dead", "list", "--handler", "app:bridge", "--json").items
    assert [letter["topic"] for letter in letters] == [payloads.ROUTING_STATUS] * 2
    assert all("no handler takes its topic" in letter["reason"] for letter in letters)


def test_the_command_line_wins(app, facts, explained):
    """`--ledger` is taken instead of the bridge's own, which is said; `--settings` beside a bridge is refused."""
    app.write("in.jsonl", facts(2))
    ran = app("process", "in.jsonl", "--handler", "app:bridge", "--ledger", "sqlite:///other.db", "--json")
    assert (ran.code, ran.one["processed"]) == (0, 2)
    assert "app:bridge's own" in ran.err
    assert (len(app.events("other.db")), len(app.events("app.db"))) == (4, 0)
    (app.folder / "own.toml").write_text("")
    refused = app("process", "in.jsonl", "--handler", "app:bridge", "--settings", "own.toml")
    assert "--settings: app:bridge is a Bridge" in explained(refused, 2)
    assert "--lease" in app("process", "--help").out
    assert "lease_seconds" in explained(app("process", "in.jsonl", "--handler", "app:bridge", "--lease", "0"), 2)


def test_commands_that_only_read_take_a_bridge_too(app, by_the_program, facts):
    """find, explain, doctor, purge, migrate and dead show read the ledger and the settings of the bridge."""
    (event,) = facts(1)
    by_the_program([event], BROKEN="1")
    of_bridge = ("--handler", "app:bridge", "--json")
    found = app("find", "in.jsonl", *of_bridge).items
    assert {(one["handler"], one["status"]) for one in found} == {("crm", "dead"), ("desk", "done")}
    assert app("explain", "in.jsonl", *of_bridge).one["key"] == found[0]["key"]
    assert app("dead", "show", found[0]["key"], *of_bridge).one["handler"] == "crm"
    promises = app("doctor", *of_bridge).one["promises"]
    assert {promise["handler"] for promise in promises} == {"crm", "desk"}
    assert app("purge", *of_bridge).one == {"forgotten": 0, "remembered": 2}
    assert app("migrate", *of_bridge).one == {"ledger": "sqlite", "needed": False}
    assert app("dead", "discard", "--all", *of_bridge).one["outcome"] == "discard"


def test_serve_takes_a_bridge(app, wait_until, facts, marks):
    """A service gives events to the bridge's handlers, and asks for the keys that are in the environment."""
    key = "a-key-that-is-long-enough"
    given = {"ONCEBRIDGE_API_KEYS": "env:KEY", "KEY": key, "ONCEBRIDGE_SERVE_ANSWER_WITHIN_SECONDS": "120"}
    service = app.start("serve", "--port", "0", "--workers", "2", "--handler", "app:bridge", "--json", **given)
    wait_until(lambda: "serving http" in service.said or service.over, "it serves")
    url = re.search(r"serving (http://\S+) with 2 workers, ledger sqlite", service.said)[1]
    events = facts(2)
    assert post(url, events).status == 401
    answer = post(url, [*events, *events[:1], *foreign(1)], **{"X-API-Key": key})
    assert answer.status == 200
    assert {name: number for name, number in answer.json.items() if number} == {
        "received": 4, "processed": 2, "redelivery": 1, "unhandled": 1,
    }  # fmt: skip
    service.signal(signal.SIGTERM)
    books = service.finish().one
    assert (books["processed"], books["unhandled"], books["balanced"]) == (2, 1, True)
    assert app.effects() == each_once(marks(events), "crm", "desk")


def test_a_bridge_without_handlers_is_refused(app, facts, explained):
    """A bridge that nothing is registered on would call events done that nobody has done."""
    app.write("in.jsonl", facts(1))
    assert "app:empty is a Bridge without handlers" in explained(
        app("process", "in.jsonl", "--handler", "app:empty"), 2
    )
    assert not app.events("app.db")


# --- a function -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["process", "in.jsonl"], ["dead", "redrive", "--all"], ["serve"], ["doctor"]])
@pytest.mark.parametrize("name", ["save", "wrapped"])
def test_a_registered_function_is_refused(app, explained, command, name):
    """A function that belongs to a bridge would lose its name and topics: how to name the bridge is said."""
    said = explained(app(*command, "--handler", f"app:{name}"), 2)
    assert "under the name 'crm'" in said
    assert "v2.detail.events.conversation.{id}.acw" in said
    assert said.endswith("--handler app:bridge")


def test_a_function_of_a_bridge_that_no_variable_holds_is_refused(app, explained):
    """Where the bridge cannot be found by a name, its function is refused all the same."""
    assert "--handler module:bridge" in explained(app("process", "-", "--handler", "app:hidden"), 2)


def test_a_method_of_a_bridge_is_refused(app, explained):
    """`lambda_handler` is no handler of events."""
    assert explained(app("process", "-", "--handler", "app:lambda_handler"), 2).endswith("--handler app:bridge")


def test_a_plain_function_takes_everything_under_no_name(app, facts, marks):
    """A function that is registered nowhere gets every event."""
    events = [*facts(2), *foreign(1)]
    app.write("in.jsonl", events)
    ran = app.process("in.jsonl", "--handler", "app:plain")
    assert (ran.code, ran.one["processed"]) == (0, 3)
    assert {event["handler"] for event in app.events()} == {""}


# --- dead letters of named handlers ---------------------------------------------------------------------------


def test_letters_of_a_named_handler_are_redriven_to_it(app, by_the_program, facts, marks):
    """The letters of one handler are redriven to that handler alone, by naming its bridge."""
    events = facts(3)
    by_the_program(events, BROKEN="1")
    ran = app("dead", "redrive", "--all", "--handler", "app:bridge", "--json")
    assert ran.code == 0
    assert [result["outcome"] for result in ran.items] == ["done"] * 3
    assert app.effects() == each_once(marks(events), "crm", "desk")
    assert not app("dead", "list", "--handler", "app:bridge", "--json").items


def test_a_letter_whose_handler_is_not_there_is_told_so(app, by_the_program, facts):
    """Redriving to another handler says at once whose letter it is and what to do, and changes nothing."""
    by_the_program(facts(2), BROKEN="1")
    ran = app("dead", "redrive", "--all", "--handler", "app:plain", "--ledger", "sqlite:///app.db", "--json")
    assert ran.code == 2
    assert {(result["verdict"], result["outcome"]) for result in ran.items} == {("unhandled", "dead")}
    assert all("no handler named 'crm' takes its topic" in result["reason"] for result in ran.items)
    assert "--handler module:bridge" in ran.err
    assert "again" not in ran.err
    assert len(app("dead", "list", "--handler", "app:bridge", "--json").items) == 2


def test_what_no_handler_took_is_redriven_once_one_is_there(app, facts):
    """A letter of an unhandled event goes to whichever handlers take its topic by then, and to each once."""
    app.write("in.jsonl", foreign(2))
    app("process", "in.jsonl", "--handler", "app:bridge")
    still = app("dead", "redrive", "--all", "--handler", "app:bridge", "--json")
    assert (still.code, {result["verdict"] for result in still.items}) == (2, {"unhandled"})
    program = (app.folder / "app.py").read_text()
    late = 'for name in ("one", "two"):\n    bridge.on("v2.users.{id}.routingStatus", name=name)(plain)\n'
    (app.folder / "app.py").write_text(program + late)
    ran = app("dead", "redrive", "--all", "--handler", "app:bridge", "--json")
    assert (ran.code, [result["outcome"] for result in ran.items]) == (0, ["done", "done"])
    assert sorted(app.effects().values()) == [2, 2]
    assert not app("dead", "list", "--handler", "app:bridge", "--json").items
    again = app("process", "in.jsonl", "--handler", "app:bridge", "--json")
    assert (again.one["redelivery"], sorted(app.effects().values())) == (2, [2, 2])
