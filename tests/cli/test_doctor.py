"""`oncebridge doctor`: what it finds, what it promises, how it ends, and that it leaves nothing behind."""

import json
import os
import pty
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest

from oncebridge import Bridge
from oncebridge.clock import SystemClock
from oncebridge.diagnosis.examination import Examination
from oncebridge.errors import LedgerRefused, LedgerUnavailable
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.testing.faults import Fault, faulty
from servers.genesys import CLIENT, running_genesys
from servers.genesys import SECRET as CLIENT_SECRET
from servers.process import free_port
from servers.valkey import running_valkey

LEDGER = "sqlite:///once.db"
SECRET = "correct-horse-battery-staple"
HANDLERS = '''\
"""Handlers to judge."""


def put(event, transaction):
    raise AssertionError("doctor calls no handler")


def send(event):
    raise AssertionError("doctor calls no handler")
'''


@pytest.fixture
def doctor(cli, facts):
    """Run `doctor` on a ledger that was worked with."""
    cli.write("in.jsonl", facts(3))

    def run(*arguments, ledger=LEDGER, **environment):
        if ledger == LEDGER and not (cli.folder / "once.db").exists():
            assert cli.process("in.jsonl", **environment).code == 0
        return cli("doctor", "--ledger", ledger, *arguments, **environment)

    return run


def by_subject(ran):
    """Return the findings of a run with `--json`, by subject."""
    return {finding["subject"]: finding for finding in ran.one["findings"]}


# --- what it says -----------------------------------------------------------------------------------------------


def test_a_sound_installation(doctor):
    """With nothing wrong it ends with 0, and `--json` is one object: findings, promises, ok."""
    ran = doctor("--json")
    assert ran.code == 0, ran
    assert list(ran.one) == ["findings", "promises", "ok"]
    assert ran.one["ok"] is True
    for finding in ran.one["findings"]:
        assert list(finding) == ["level", "subject", "found", "fix", "weakens"]
        assert finding["level"] in ("good", "warning")
    assert {"latency", "secret", "permissions", "sync", "integrity", "retention"} <= set(by_subject(ran))
    assert [list(promise) for promise in ran.one["promises"]] == [["handler", "promise", "weakened_by", "sentence"]] * 2


def test_in_a_pipe_it_is_plain(doctor):
    """Without `--json` it is a line per finding, tab-separated, then a line per promise, without colours."""
    ran, as_json = doctor(), doctor("--json").one
    assert ran.code == 0
    assert "\x1b" not in ran.out + ran.err
    table, _, rest = ran.out.partition("\n\n")
    lines = [line.split("\t") for line in table.splitlines()]
    assert lines[0] == ["level", "subject", "found", "what to do"]
    assert [line[1] for line in lines[1:]] == [finding["subject"] for finding in as_json["findings"]]
    assert rest.splitlines()[1:] == [promise["sentence"] for promise in as_json["promises"]]


def test_in_a_terminal_levels_have_colours(doctor, cli):
    """In a terminal the findings are a table with coloured levels."""
    doctor()
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLUMNS": "120"}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    command = [sys.executable, "-m", "oncebridge", "doctor", "--ledger", LEDGER]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=cli.folder, env=environment):
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # how Linux says that nobody is at the other end any more
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert b"\x1b[32mgood" in shown
    assert b"the promise of this installation" in shown


@pytest.mark.parametrize("days", [("5", "0"), ("9", "4"), ("19", "14")])
def test_a_retention_too_short_is_wrong(doctor, days):
    """Events forgotten before the last retry may come end with 1, in numbers, and weaken the promise."""
    retention, queue = days
    ran = doctor("--json", ONCEBRIDGE_RETENTION_DAYS=retention, ONCEBRIDGE_QUEUE_RETENTION_DAYS=queue)
    assert ran.code == 1
    assert ran.one["ok"] is False
    finding = by_subject(ran)["retention"]
    assert finding["level"] == "wrong"
    assert f"(Genesys 4 + EventBridge 1 + queue {queue})" in finding["found"]
    assert {promise["promise"] for promise in ran.one["promises"]} == {"at least once"}
    assert all(finding["weakens"] in promise["weakened_by"] for promise in ran.one["promises"])


def test_a_memory_ledger_is_nothing_to_rely_upon(doctor):
    """A ledger that forgets with its process is wrong, and the promise says why."""
    ran = doctor("--json", ledger="memory://")
    assert ran.code == 1
    assert len(ran.one["promises"]) == 2
    for promise in ran.one["promises"]:
        assert "because everything is forgotten with the process" in promise["sentence"]


def test_each_handler_gets_its_promise(doctor, cli):
    """Each handler named has a sentence of its own; none of them is called."""
    (cli.folder / "crm.py").write_text(HANDLERS)
    ran = doctor("--json", "--handler", "crm:put", "--handler", "crm:send", "--handler", "crm:put")
    assert ran.code == 0
    assert [(one["handler"], one["promise"]) for one in ran.one["promises"]] == [
        ("crm:put", "exactly once"),
        ("crm:send", "at least once"),
    ]


def test_a_handler_that_cannot_work_is_said(doctor, cli, explained):
    """A handler that is not there, or wants a transaction that the ledger lacks, is wrong usage."""
    (cli.folder / "crm.py").write_text(HANDLERS)
    assert "crm:nowhere" not in explained(doctor("--handler", "crm"), 2)
    assert "nowhere" in explained(doctor("--handler", "crm:nowhere"), 2)
    assert "transaction" in explained(doctor("--handler", "crm:put", ledger="redis://localhost"), 2)


def test_sentences_are_shown_as_they_are(doctor, cli):
    """A handler's name is no markup and no picture, whatever it looks like."""
    (cli.folder / "crm.py").write_text("def fire(event): pass\n")
    ran = doctor("--handler", "crm:fire")
    assert "crm:fire: at least once" in ran.out


# --- topics -----------------------------------------------------------------------------------------------------

SINKS = """
[sinks.crm]
url = "https://crm.example/events"
topics = ["v2.users.{id}.presense", "v2.detail.events.conversation.{id}.acw"]

[sinks.desk]
url = "https://desk.example/events"
topics = ["Desk Changed"]
"""


def test_a_letter_wrong_in_a_topic_is_a_warning(doctor, cli):
    """A pattern that no known topic matches is named with what was meant, and its promise says that it may be idle."""
    (cli.folder / "sinks.toml").write_text(SINKS)
    ran = doctor("--settings", "sinks.toml", "--json")
    assert ran.code == 0
    warned = {finding["found"].split()[0]: finding for finding in ran.one["findings"] if finding["subject"] == "topics"}
    assert {finding["level"] for finding in warned.values()} == {"warning"}
    assert "did you mean v2.users.{id}.presence?" in warned["v2.users.{id}.presense"]["fix"]
    assert "did you mean" not in warned["Desk"]["fix"]
    assert len(warned) == 2
    doubted = [promise for promise in ran.one["promises"] if "may never get an event" in promise["sentence"]]
    assert sorted(promise["handler"] for promise in doubted) == ["crm", "desk"]
    (right,) = [promise for promise in ran.one["promises"] if promise not in doubted]
    assert (right["handler"], right["promise"]) == ("crm", "effectively once")


def test_topics_of_ones_own_are_known_by_their_table(doctor, cli):
    """A topic that the settings describe is no warning, and leaves no doubt in the promise."""
    table = '[topics."Desk Changed"]\nkind = "state"\nentity = "desk"\n'
    (cli.folder / "sinks.toml").write_text(table + SINKS.replace("presense", "presence"))
    ran = doctor("--settings", "sinks.toml", "--json")
    assert "topics" not in by_subject(ran)
    assert "may never get an event" not in ran.out


# --- secrets ----------------------------------------------------------------------------------------------------


def test_another_secret_is_wrong(doctor):
    """With another secret than the ledger was first opened with it ends with 1, and shows neither."""
    assert doctor("--json", ONCEBRIDGE_SECRET=SECRET).code == 0
    for environment in ({}, {"ONCEBRIDGE_SECRET": "another-" + SECRET}):
        ran = doctor("--json", **environment)
        assert ran.code == 1
        assert by_subject(ran)["ledger"]["level"] == "wrong"
        assert {promise["promise"] for promise in ran.one["promises"]} == {"none"}
        assert SECRET not in ran.out + ran.err


# --- it leaves nothing behind -----------------------------------------------------------------------------------


def test_looking_changes_nothing(doctor, cli):
    """Events, dead letters and counts are as before, and no file is left beside the ledger."""
    doctor()
    before = [cli.events(), cli.entities(), cli.table("oncebridge_meta"), sorted(cli.folder.iterdir())]
    assert doctor().code == 0
    assert [cli.events(), cli.entities(), cli.table("oncebridge_meta"), sorted(cli.folder.iterdir())] == before


def test_a_missing_ledger_is_not_made(doctor, cli, explained):
    """A file that is not there stays so, and is named, with exit 2."""
    assert "nowhere.db" in explained(doctor(ledger="sqlite:///nowhere.db"), 2)
    assert not (cli.folder / "nowhere.db").exists()


def test_a_ledger_that_is_primed_can_be_examined(cli, facts, explained):
    """The order of the cut-over: before the first worker there is no file to examine, and priming makes it."""
    (cli.folder / "crm.py").write_text(
        'from oncebridge import Bridge\n\nbridge = Bridge("sqlite:///new.db")\nbridge.on("*", name="crm")(print)\n'
    )
    cli.write("finished.jsonl", facts(1))
    doctor = ("doctor", "--handler", "crm:bridge")
    assert "start the worker first" in explained(cli(*doctor), 2)
    assert cli("process", "finished.jsonl", "--handler", "crm:bridge", "--prime").code == 0
    assert cli(*doctor).code == 0


def test_another_programs_file_is_left_alone(doctor, cli, explained):
    """A database that is no ledger does not become one."""
    with closing(sqlite3.connect(cli.folder / "crm.db")) as db, db:
        db.execute("CREATE TABLE crm (name TEXT)")
    before = (cli.folder / "crm.db").read_bytes()
    assert "crm.db" in explained(doctor(ledger="sqlite:///crm.db"), 2)
    assert (cli.folder / "crm.db").read_bytes() == before


def test_the_first_secret_is_not_doctors_to_choose(doctor, cli, explained):
    """A ledger with tables that no worker has opened yet still takes the first worker's secret."""
    assert cli("migrate", "--ledger", "sqlite:///new.db").code == 0
    assert "opened" in explained(doctor(ledger="sqlite:///new.db"), 2)
    ran = cli("process", "in.jsonl", "--ledger", "sqlite:///new.db", ONCEBRIDGE_SECRET=SECRET)
    assert ran.code == 0
    assert doctor(ledger="sqlite:///new.db", ONCEBRIDGE_SECRET=SECRET).code == 0


# --- ledgers out of reach ---------------------------------------------------------------------------------------


def examined(*faults):
    """Look at a memory ledger with faults; return the examination and its findings by subject."""
    examination = Examination(Bridge(faulty(MemoryLedger(), *faults)), SystemClock())
    return examination, {finding.subject: finding for finding in examination.findings()}


@pytest.mark.parametrize("verb", ["open", "get"])
def test_a_ledger_out_of_reach_is_a_finding(verb):
    """When the connection fails, at first or later, the settings are judged all the same."""
    examination, findings = examined(Fault(verb, call=0))
    assert (examination.usable, examination.out_of_reach) == (False, True)
    assert findings["connection"].level == "wrong"
    assert "out of reach" in findings["connection"].found
    assert findings["retention"].level == "good"


@pytest.mark.parametrize("verb", ["extend", "settle"])
def test_a_ledger_that_cannot_be_written_is_a_finding(verb):
    """A ledger that can be read but not written to is wrong, and promises nothing."""

    def deny():
        raise LedgerRefused("this user may only read")

    examination, findings = examined(Fault(verb, call=0, act=deny))
    assert (examination.usable, examination.out_of_reach) == (False, False)
    assert findings["permissions"].level == "wrong"
    assert "only read" in findings["permissions"].found


class BreaksOff(MemoryLedger):
    """A ledger whose connection fails while it looks at itself."""

    def examine(self):
        """Find something, then fail."""
        yield from super().examine()
        raise LedgerUnavailable("gone")


def test_what_was_found_before_the_trouble_stays():
    """A connection that breaks off in the middle takes nothing back that was found before."""
    examination = Examination(Bridge(BreaksOff()), SystemClock())
    findings = [finding.subject for finding in examination.findings()]
    assert sorted(findings) == ["connection", "latency", "memory", "permissions", "retention", "secret"]
    assert examination.out_of_reach


def test_trying_to_write_leaves_no_event():
    """The try to write is a real one, and the ledger knows no event after it."""
    ledger = faulty(MemoryLedger())
    examination = Examination(Bridge(ledger), SystemClock())
    assert {finding.subject for finding in examination.findings()} == {
        "latency", "secret", "permissions", "retention", "ledger",
    }  # fmt: skip
    assert examination.usable
    assert ledger.calls["extend"] == ledger.calls["settle"] == 1
    assert ledger.calls["claim"] == 0
    assert ledger.counts() == {}


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_a_server_that_refuses_names_what_to_check(cli, scheme):
    """A refused connection ends with 75, and names address, network, TLS and password, but does not show it."""
    ran = cli("doctor", "--ledger", f"{scheme}://me:hunter2@127.0.0.1:{free_port()}/0", "--json")
    assert ran.code == 75, ran
    finding = by_subject(ran)["connection"]
    assert finding["level"] == "wrong"
    for word in ("address", "VPC", "security group", "TLS", "password"):
        assert word in finding["fix"]
    assert by_subject(ran)["retention"]["level"] == "good"
    assert [promise["promise"] for promise in ran.one["promises"]] == ["none"]
    assert "hunter2" not in ran.out + ran.err


@pytest.fixture
def own_valkey(tmp_path):
    """Run a server that nobody else uses."""
    with running_valkey(tmp_path / "valkey") as server:
        yield server


def test_a_server_named_by_redis_host(cli, own_valkey):
    """REDIS_HOST and REDIS_PORT lead to the server, whose own findings are there, and which keeps no trace."""
    named = {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(own_valkey.port)}
    ran = cli("doctor", "--json", **named)
    assert ran.code == 0, ran
    assert {"eviction", "persistence", "replication", "clock", "version", "latency"} <= set(by_subject(ran))
    assert [promise["handler"] for promise in ran.one["promises"]] == ["any handler"]
    with own_valkey.client() as client:
        before = sorted(client.keys())
        assert cli("doctor", **named).code == 0
        assert sorted(client.keys()) == before


def test_a_redis_is_not_called_good_where_it_would_forget_secret_and_letters(cli, own_valkey):
    """Without a secret of one's own and a queue for letters it warns of both, and promises at least once alone."""
    named = {"ONCEBRIDGE_LEDGER": own_valkey.url, "DOWNSTREAM_URL": "https://crm.example/events"}
    ran = cli("doctor", "--json", **named)
    assert ran.code == 0, ran
    assert {by_subject(ran)[subject]["level"] for subject in ("secret", "dead letters")} == {"warning"}
    (promise,) = ran.one["promises"]
    assert promise["promise"] == "at least once", ran
    with own_valkey.client() as client:
        client.flushall()
    ran = cli("doctor", "--json", ONCEBRIDGE_SECRET="kept elsewhere, for as long as the keys", **named)
    assert by_subject(ran)["secret"]["level"] == "good", ran
    (promise,) = ran.one["promises"]
    assert promise["promise"] == "effectively once", ran


def test_a_server_that_evicts_is_wrong(cli, own_valkey):
    """A server that forgets when its memory is full is wrong, with the setting to change."""
    with own_valkey.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    ran = cli("doctor", "--ledger", own_valkey.url, "--json")
    assert ran.code == 1, ran
    assert "maxmemory-policy" in json.dumps([one for one in ran.one["findings"] if one["level"] == "wrong"])


# --- where dead letters go --------------------------------------------------------------------------------------


def test_doctor_looks_where_dead_letters_go(doctor, ministack):
    """A queue or a bus for dead letters that is not there is wrong; one that is there is good."""
    queues, events = ministack.client("sqs"), ministack.client("events")
    there = queues.create_queue(QueueName="doctors-letters")["QueueUrl"]
    events.create_event_bus(Name="doctors-letters")
    aws = {**ministack.environment, "AWS_ENDPOINT_URL": ministack.url}

    def looked(queue, bus):
        names = {"ONCEBRIDGE_DEAD_LETTER_QUEUE": queue, "ONCEBRIDGE_DEAD_LETTER_BUS": bus}
        ran = doctor("--json", **aws, **names)
        found = by_subject(ran)
        letters = [found["dead letters to the queue: queue"], found["dead letters to the bus: bus"]]
        return ran.code, [one["level"] for one in letters], [one["fix"] for one in letters]

    assert looked(there, "doctors-letters")[:2] == (0, ["good", "good"])
    code, levels, fixes = looked(f"{there}-not", "not-there")
    assert (code, levels) == (1, ["wrong", "wrong"])
    assert "dead_letter_queue" in fixes[0]
    assert "dead_letter_bus" in fixes[1]


# --- the queue in front -------------------------------------------------------------------------------------------


def test_the_queue_in_front_is_compared_with_the_settings(doctor, ministack):
    """A queue that gives messages up too early, or keeps them for another time than is set, is warned of."""
    sqs = ministack.client("sqs")
    left = sqs.create_queue(QueueName="left")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=left, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
    attributes = {"MessageRetentionPeriod": "1209600", "RedrivePolicy": redrive}
    url = sqs.create_queue(QueueName="judged", Attributes=attributes)["QueueUrl"]
    ran = doctor("--json", "--queue", url, **ministack.environment)
    assert ran.code == 0
    found = [finding for finding in ran.one["findings"] if finding["subject"] == "queue"]
    assert [finding["level"] for finding in found] == ["warning", "warning"]
    assert "queue_retention_days to 14" in found[0]["fix"]
    assert "after 3 receives" in found[1]["found"]
    assert by_subject(ran)["retries"]["level"] == "good"
    missing = doctor("--json", "--queue", f"{url}-gone", **ministack.environment)
    assert (missing.code, by_subject(missing)["queue"]["level"]) == (1, "wrong")
    for one in (left, url):
        sqs.delete_queue(QueueUrl=one)


# --- what never came ----------------------------------------------------------------------------------------------

GENESYS = """
attendance = true

[genesys]
region = "eu-central-1"
client_id = "{client}"
client_secret = "env:CLIENT_SECRET"
api_url = "{url}"
login_url = "{url}"
"""


def test_the_sign_in_at_genesys_is_tried(doctor, cli):
    """With `[genesys]` it signs in, and shows neither the secret nor a token."""
    with running_genesys() as genesys:
        (cli.folder / "genesys.toml").write_text(GENESYS.format(client=CLIENT, url=genesys.url))
        ran = doctor("--settings", "genesys.toml", "--json", CLIENT_SECRET=CLIENT_SECRET)
    assert ran.code == 0, ran
    assert by_subject(ran)["sign-in at Genesys"]["level"] == "good"
    assert genesys.signed_in == 1
    assert not any(secret in ran.out + ran.err for secret in (CLIENT_SECRET, *genesys.tokens))


def test_a_clients_secret_in_the_settings_is_refused_unseen(doctor, cli, explained):
    """A client's secret that is no reference is an error of the settings, and is not shown."""
    (cli.folder / "genesys.toml").write_text(f'[genesys]\nclient_secret = "{CLIENT_SECRET}"')
    said = explained(doctor("--settings", "genesys.toml"), 2)
    assert "secretsmanager:ID" in said
    assert CLIENT_SECRET not in said
