"""Every command on every ledger: the same stream, the same verdicts, the same answers."""

import json
import secrets
import signal
from collections import Counter

import pytest

import payloads
from oncebridge.simulation import Road, simulate
from servers.valkey import running_cluster

CONVERSATIONS = 8
LEASE_S = 2
KINDS = ("redis", "redis cluster", "postgres", "dynamodb")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Run a cluster of three masters."""
    with running_cluster(tmp_path_factory.mktemp("cluster of commands")) as servers:
        yield servers


class Ledgers:
    """Makes ledgers that nobody has used yet, one for each test."""

    def __init__(self, request, cli):
        """Start servers only as they are asked for."""
        self._request, self._cli = request, cli
        self.environment = {}

    def new(self, kind):
        """Return the URL of an empty ledger, migrated where that is needed."""
        name = f"t{secrets.token_hex(6)}"
        if kind == "redis":
            return f"{self._request.getfixturevalue('valkey').url}?name={name}"
        if kind == "redis cluster":
            servers = self._request.getfixturevalue("cluster")
            return "redis+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in servers) + f"?name={name}"
        if kind == "postgres":
            server = self._request.getfixturevalue("postgres")
            url = f"{server.url}{'&' if '?' in server.url else '?'}schema={name}"
        else:
            server = self._request.getfixturevalue("ministack")
            self.environment = server.environment
            url = f"dynamodb://{name}?region={server.region}&endpoint_url={server.url}"
        assert self.run("migrate", "--ledger", url).code == 0
        return url

    def run(self, *arguments, **options):
        """Run a command."""
        return self._cli(*arguments, **self.environment, **options)

    def start(self, *arguments):
        """Start a command."""
        return self._cli.start(*arguments, **self.environment)


@pytest.fixture
def ledgers(request, cli):
    """Make ledgers and run commands on them."""
    cli.write_hooks()
    return Ledgers(request, cli)


@pytest.fixture(params=KINDS)
def url(request, ledgers):
    """Return an empty ledger of each kind."""
    return ledgers.new(request.param)


def read_verdicts(cli, name):
    """Read the verdicts that a run wrote down."""
    return [json.loads(line)["verdict"] for line in (cli.folder / name).read_text().splitlines()]


def test_a_stream_gets_its_true_verdicts_and_is_known_again(cli, ledgers, url):
    """Simulated traffic gets the verdicts of its truth; the second time nothing is processed, in any other process."""
    stream = list(simulate(CONVERSATIONS, 5, road=Road(unreadable=0.02)))
    cli.write("in.jsonl", [one.raw for one in stream])
    first = ledgers.run("process", "--ledger", url, "--json", "--verdicts", "first", "in.jsonl").one
    assert read_verdicts(cli, "first") == [one.verdict for one in stream]
    assert first["balanced"]
    assert first["received"] == len(stream)
    second = ledgers.run("process", "--ledger", url, "--json", "--verdicts", "second", "in.jsonl").one
    assert second["processed"] == 0
    assert second["balanced"]
    assert set(read_verdicts(cli, "second")) <= {"redelivery", "republish", "conflict", "dead"}


def test_letters_are_listed_shown_redriven_and_discarded(cli, ledgers, url, facts):
    """Dead letters of every ledger go through the same commands, and nothing of them is left in `list`."""
    cli.write("in.jsonl", [*facts(2, note="a secret of somebody's"), b"{not json"])
    assert ledgers.run("process", "--ledger", url, "--handler", "hooks:refuse", "in.jsonl").code == 0
    listed = ledgers.run("dead", "list", "--ledger", url, "--json").items
    assert Counter(one["reason"].split(":")[0] for one in listed) == {
        "handler raised PermanentError, which is permanent": 2,
        "unreadable": 1,
    }
    assert "secret of somebody" not in json.dumps(listed)
    (unreadable,) = [one["key"] for one in listed if one["reason"].startswith("unreadable")]
    one, other = (letter["key"] for letter in listed if letter["key"] != unreadable)
    assert "secret of somebody" in ledgers.run("dead", "show", one, "--ledger", url).out
    redriven = ledgers.run("dead", "redrive", one, "--ledger", url, "--handler", "hooks:note", "--json")
    assert redriven.code == 0
    assert sum(cli.effects().values()) == 1
    assert ledgers.run("dead", "discard", other, unreadable, "--ledger", url).code == 0
    assert ledgers.run("dead", "list", "--ledger", url, "--json").items == []
    again = ledgers.run("process", "--ledger", url, "--json", "--handler", "hooks:note", "in.jsonl").one
    assert again["processed"] == 0
    assert sum(cli.effects().values()) == 1


PROGRAM = '''\
"""A bridge on the ledger under test; its handlers fail, or are not there yet, as the environment says."""

import os

import hooks
from oncebridge import Bridge, Settings

bridge = Bridge(os.environ["URL"], settings=Settings(unhandled="dead"))
names = os.environ.get("NAMES", "").split()
for name in names:
    bridge.on("v2.users.{id}.routingStatus", name=name)(hooks.note)
take = hooks.refuse if os.environ.get("BROKEN") else hooks.note
bridge.on("v2.detail.events.conversation.{id}.acw", name="crm")(take)
'''


def test_letters_go_to_the_handlers_that_they_are_for(cli, ledgers, url, facts):
    """Named handlers get their own letters back, and what no handler took goes to each that takes it by now, once."""
    (cli.folder / "program.py").write_text(PROGRAM)
    state = payloads.routing_status("IDLE", payloads.TIME_MS)
    cli.write("in.jsonl", [*facts(2, start=50), state])

    def run(*arguments, **environment):
        return ledgers.run(*arguments, "--handler", "program:bridge", "--json", URL=url, **environment)

    books = run("process", "in.jsonl", BROKEN="1").one
    assert (books["dead"], books["unhandled"], books["balanced"]) == (2, 1, True)
    first = run("dead", "redrive", "--all")
    assert (first.code, Counter(one["verdict"] for one in first.items)) == (2, {"fresh": 2, "unhandled": 1})
    second = run("dead", "redrive", "--all", NAMES="one two")
    assert (second.code, [one["outcome"] for one in second.items]) == (0, ["done"])
    assert run("dead", "list").items == []
    assert sorted(cli.effects().values()) == [1, 1, 2]
    again = run("process", "in.jsonl", NAMES="one two").one
    assert (again["redelivery"], sorted(cli.effects().values())) == (3, [1, 1, 2])


def test_an_event_is_found_by_key_by_file_and_by_conversation(cli, ledgers, url):
    """`find` knows an event by its key, by its file, and what is unfinished of its conversation."""
    cli.write("in.jsonl", [payloads.envelope(payloads.ACW, {"conversationId": "call-77"})])
    ledgers.run("process", "--ledger", url, "--handler", "hooks:refuse", "in.jsonl")
    (by_file,) = ledgers.run("find", "in.jsonl", "--ledger", url, "--json").items
    (by_key,) = ledgers.run("find", by_file["key"], "--ledger", url, "--json").items
    (by_conversation,) = ledgers.run("find", "call-77", "--ledger", url, "--json").items
    assert by_file["status"] == by_key["status"] == by_conversation["status"] == "dead"
    assert by_file["key"] == by_conversation["key"]
    assert 0 < by_file["claimed_ms"] <= by_file["settled_ms"] == by_file["changed_ms"]


def test_a_time_that_is_not_recorded_is_said_to_be_so(cli, ledgers, facts):
    """Redis keeps only the status of an event that is done: its times are unknown rather than 1970."""
    url = ledgers.new("redis")
    cli.write("in.jsonl", facts(1))
    ledgers.run("process", "--ledger", url, "--handler", "hooks:note", "in.jsonl")
    (found,) = ledgers.run("find", "in.jsonl", "--ledger", url, "--json").items
    assert found["status"] == "done"
    assert {found[name] for name in ("claimed_ms", "settled_ms", "changed_ms")} == {None}
    header, row = ledgers.run("find", "in.jsonl", "--ledger", url).out.splitlines()
    told = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert (told["claimed"], told["settled"]) == ("not recorded", "not recorded")


def test_a_purge_forgets_what_is_settled(cli, ledgers, url, facts, wait_until):
    """`purge` forgets what is done, says how much, and leaves dead letters."""
    cli.write("good.jsonl", facts(5))
    cli.write("bad.jsonl", facts(1, start=50))
    ledgers.run("process", "--ledger", url, "good.jsonl")
    ledgers.run("process", "--ledger", url, "--handler", "hooks:refuse", "bad.jsonl")
    forgotten = []

    def only_the_letter_is_left():
        purged = ledgers.run("purge", "--ledger", url, "--older-than-days", "0", "--yes", "--json").one
        forgotten.append(purged["forgotten"])
        return purged["remembered"] == 1

    # DynamoDB tells the time by whole seconds: what has just been done may not be older than nothing yet.
    wait_until(only_the_letter_is_left, "what is done is forgotten")
    assert sum(forgotten) == 5
    assert ledgers.run("process", "--ledger", url, "--json", "good.jsonl").one["processed"] == 5


def test_doctor_finds_nothing_wrong_with_a_sound_ledger(ledgers, url):
    """`doctor` looks at each kind of server, and prints the promise of the handler that it is asked about."""
    ran = ledgers.run("doctor", "--ledger", url, "--handler", "hooks:note", "--json")
    found = ran.one
    # For speed, the Postgres of these tests does not wait for its disk; doctor is right to say so.
    expected = ["disk"] if url.startswith("postgres") else []
    assert [one["subject"] for one in found["findings"] if one["level"] == "wrong"] == expected
    assert ran.code == len(expected)
    assert found["ok"] is not bool(expected)
    assert len(found["findings"]) >= 6
    (promise,) = found["promises"]
    assert promise["promise"] == "at least once"
    # A Redis that makes the secret itself may forget it, and then event.key is another one.
    assert ("another key" if "redis" in url else "event.key") in promise["sentence"]


def test_migrating_again_is_fine(ledgers, url):
    """`migrate` may be run at any time, and on ledgers that need none."""
    for _ in range(2):
        assert ledgers.run("migrate", "--ledger", url).code == 0


def test_a_worker_that_sleeps_past_its_lease_doubles_nothing_in_the_ledger(cli, ledgers, url, facts, wait_until):
    """A worker that is stopped past its lease and goes on has lost its claim: its end changes nothing."""
    (fact,) = facts(1)
    cli.write("in.jsonl", [fact])
    command = ("process", "--ledger", url, "--lease", str(LEASE_S), "--json", "in.jsonl")
    sleeper = ledgers.start(*command, "--handler", "hooks:wait_and_fail")
    wait_until(lambda: cli.lines("started"), "the handler has begun")
    sleeper.signal(signal.SIGSTOP)
    taken_over = ledgers.run(*command, "--handler", "hooks:note")
    assert taken_over.one["processed"] == 1
    (cli.folder / "gate").touch()
    sleeper.signal(signal.SIGCONT)
    late = sleeper.finish().one
    assert late["balanced"]
    assert late["processed"] == late["dead"] == 0
    assert late["redelivery"] == 1
    assert ledgers.run("process", "--ledger", url, "--json", "in.jsonl").one["redelivery"] == 1
