"""`oncebridge dead`: list, show, redrive, discard; what a dead letter holds is shown only to whoever asks for it."""

import json
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from datetime import datetime

import pytest

import payloads
from cli.conftest import PATIENCE_SECONDS
from cli.test_terminal import OURS, in_terminal, terminal

LEDGER = "sqlite:///once.db"
LETTER_FIELDS = [
    "key", "handler", "status", "topic", "time_ms", "id", "attempts", "changed_ms", "retry_at_ms", "lease_until_ms",
    "reason",
]  # fmt: skip
NO_KEY = "ob1_" + "0" * 32
ONCE = {"ONCEBRIDGE_RETRY_ATTEMPTS": "1"}


@pytest.fixture
def bury(cli):
    """Make dead letters of deliveries, by a handler that fails; return what `dead list` says of them."""

    def make(deliveries, handler="hooks:fail"):
        cli.write_hooks()
        cli.write("in.jsonl", deliveries)
        ran = cli.process("in.jsonl", "--handler", handler, **ONCE)
        assert ran.code == 0
        return cli.dead("list", "--json").items

    return make


def plain(shown):
    """Return the lines of a terminal without their colours."""
    return OURS.sub("", shown.replace("\r", "")).splitlines()


# --- list and show -------------------------------------------------------------------------------------------


def test_the_list_has_a_line_per_letter(cli, bury, facts):
    """`dead list --json` has one object per dead letter, the oldest first, with its key, topic, attempts and reason."""
    letters = bury([*facts(3), b"no event"])
    assert [list(letter) for letter in letters] == [LETTER_FIELDS] * 4
    assert {letter["status"] for letter in letters} == {"dead"}
    assert sorted(letter["reason"].split()[0] for letter in letters) == ["handler", "handler", "handler", "unreadable:"]
    assert [letter["changed_ms"] for letter in letters] == sorted(letter["changed_ms"] for letter in letters)
    assert {letter["id"] for letter in letters} == {*(one["id"] for one in facts(3)), None}
    text = cli.dead("list")
    assert text.code == 0
    assert all(letter["key"] in text.out for letter in letters)
    assert len(text.out.splitlines()) == 1 + len(letters)


def test_a_ledger_without_letters_says_so(cli):
    """No dead letters is an answer, not an error."""
    cli.write("in.jsonl", [])
    cli.process("in.jsonl")
    ran = cli.dead("list")
    assert (ran.code, ran.out) == (0, "")
    assert "no dead letters" in ran.err
    assert cli.dead("list", "--json").out == ""


def test_filters_choose_among_letters(cli, bury, facts):
    """Topic, reason and time each narrow the list, and together they all must match."""
    letters = bury([*facts(2), payloads.presence("AWAY"), b"no event"])

    def listed(*filters):
        return {letter["key"] for letter in cli.dead("list", "--json", *filters).items}

    by_topic = {
        topic: {letter["key"] for letter in letters if letter["topic"] == topic}
        for topic in (payloads.ACW, payloads.PRESENCE)
    }
    assert listed("--topic", payloads.ACW) == by_topic[payloads.ACW]
    assert listed("--topic", "v2.users.*") == by_topic[payloads.PRESENCE]
    assert listed("--topic", "v2.users.{id}.presence") == by_topic[payloads.PRESENCE]
    assert listed("--topic", "v2.users.{id}") == set()
    assert len(listed("--reason", "unreadable")) == 1
    assert listed("--reason", "RuntimeError") == by_topic[payloads.ACW] | by_topic[payloads.PRESENCE]
    assert listed("--reason", "RuntimeError", "--topic", payloads.ACW) == by_topic[payloads.ACW]
    assert len(listed("--since", "2020-01-01")) == 4
    assert listed("--until", "2020-01-01T00:00:00Z") == set()
    cli.make_older(3000)
    assert listed("--since", "2020-01-01T00:00:00+02:00") == set()
    assert len(listed("--until", "2020-01-01")) == 4


def test_a_ledger_that_is_not_there_is_not_made(cli, explained):
    """A mistyped ledger is named, with exit 2, rather than created and found empty."""
    assert "once.db" in explained(cli.dead("list"), 2)
    assert not (cli.folder / "once.db").exists()


def test_a_letter_that_stays_dead_is_told_by_the_exit_code(cli, bury, facts):
    """A redrive that fails for good again ends with 1, so that a script notices."""
    (letter,) = bury(facts(1))
    assert cli.dead("redrive", letter["key"], "--handler", "hooks:refuse").code == 1


def test_a_time_that_is_none_is_said(cli, bury, facts, explained):
    """A filter that cannot be read is named, with exit 2."""
    bury(facts(1))
    assert "--since" in explained(cli.dead("list", "--since", "yesterday"), 2)
    assert "--until" in explained(cli.dead("list", "--until", "2026-99-99"), 2)


def test_show_holds_everything(cli, bury, facts):
    """`dead show` has what arrived, byte for byte, and the handler's own words."""
    (letter,) = bury(facts(1))
    shown = cli.dead("show", letter["key"], "--json").one
    assert list(shown) == [*LETTER_FIELDS, "detail", "raw"]
    assert json.loads(shown["raw"]) == facts(1)[0]
    assert "RuntimeError: no luck with" in shown["detail"]
    text = cli.dead("show", letter["key"])
    assert text.code == 0
    assert payloads.raw(facts(1)[0]).decode() in text.out
    assert "RuntimeError: no luck with" in text.out


@pytest.mark.parametrize("bad", [b"\xff\xfe\x00 noise \x1b[31m", "Müller öffnet {".encode(), b"x" * 2_000_000], ids=len)
def test_show_holds_what_is_no_event_too(cli, bury, bad):
    """What could not be read can be looked at, whatever bytes it is made of."""
    (letter,) = bury([bad])
    shown = cli.dead("show", letter["key"], "--json").one
    assert shown["raw"] == bad.decode(errors="backslashreplace")
    assert shown["topic"] in ("", None)
    assert cli.dead("show", letter["key"]).code == 0


def test_only_show_gives_personal_data_away(cli, bury):
    """Lists, logs, redrives and discards name keys and topics; what a payload says is in `show` alone."""
    personal = [payloads.raw(one) for one in payloads.personal()]
    letters = bury([*personal, *(line[:-1] for line in personal)])
    keys = [letter["key"] for letter in letters]
    unreadable = [letter["key"] for letter in letters if letter["reason"].startswith("unreadable")]
    assert len(keys) == 2 * len(unreadable) == 2 * len(personal)
    info = ("--log-level", "info")
    ran = [
        cli.dead("list"),
        cli.dead("list", "--json"),
        cli(*info, "dead", "redrive", "--all", "--handler", "hooks:fail", "--ledger", LEDGER, **ONCE),
        cli(*info, "dead", "redrive", "--all", "--handler", "hooks:fail", "--ledger", LEDGER, "--json", **ONCE),
        cli(*info, "dead", "discard", unreadable[0], "--ledger", LEDGER, "--json"),
        cli(*info, "dead", "discard", unreadable[1], "--ledger", LEDGER),
    ]
    said = "".join(one.out + one.err for one in ran)
    assert all(key in said for key in keys)
    assert [name for name, canary in payloads.CANARIES.items() if canary in said] == []
    shown = "".join(cli.dead("show", key).out for key in keys if key not in unreadable)
    assert [name for name, canary in payloads.CANARIES.items() if canary not in shown] == []


def test_strange_names_do_not_break_the_list(cli, bury):
    """Line breaks, tabs and control characters in a topic or an id neither forge a row nor reach a terminal."""
    inner = {"eventId": "one", "conversationId": "c"}
    bury([payloads.in_envelope(inner, detail_type="a\tb\x1b[31mc\x9b", id="x\ny\x1b[2J")])
    for ran in (cli.dead("list"), cli("find", "c", "--ledger", LEDGER)):
        assert ran.code == 0
        assert len(ran.out.splitlines()) == 2
        assert not [character for character in ran.out if ord(character) in (0x1B, 0x9B)]
        header, row = ran.out.splitlines()
        assert header.count("\t") == row.count("\t")


# --- at a terminal -------------------------------------------------------------------------------------------


def test_the_list_shows_a_terminal_the_counts_first(cli, bury, facts):
    """Counts by reason and topic come first, every line fits 80 columns, and every key is whole."""
    letters = bury([*facts(3), payloads.in_envelope({"eventId": "one"}, detail_type="long." * 60), b"no event"])
    counts = cli.dead("list", "--counts", "--json").items
    assert [group["number"] for group in counts] == [3, 1, 1]
    shown = plain(in_terminal(cli, "dead", "list", "--ledger", LEDGER, columns=80))
    assert shown[0].split() == ["number", "oldest", "newest"]
    assert shown[1].split()[0] == "3"
    assert [line.split()[0] for line in shown if line.startswith("ob1_")] == [letter["key"] for letter in letters]
    assert max(map(len, shown)) <= 80


def test_show_is_readable(cli, bury, facts):
    """A terminal gets the reason first, times in ISO, the payload over several lines, and the next command."""
    (letter,) = bury(facts(1, note="\x1b[31m"))
    shown = plain(in_terminal(cli, "dead", "show", letter["key"], "--ledger", LEDGER, columns=80))
    assert shown[0].split()[0] == "reason"
    fields = dict(line.split(maxsplit=1) for line in shown[:4])
    assert fields["attempts"] == "1"
    since = datetime.fromisoformat(fields["since"])
    assert int(since.timestamp() * 1000) == letter["changed_ms"]
    start = next(at for at, line in enumerate(shown) if line.startswith("payload, "))
    pretty = shown[start + 1 : shown.index("next, once its cause is gone:")]
    assert len(pretty) > 10
    assert json.loads("".join(line.strip() for line in pretty)) == facts(1, note="\x1b[31m")[0]
    assert f"  oncebridge dead redrive --ledger {LEDGER} {letter['key']} --handler MODULE:BRIDGE" in shown


@pytest.mark.parametrize("command", ["discard", "redrive"])
def test_a_terminal_is_asked(cli, bury, facts, command):
    """At a terminal the number is said and has to be confirmed, unless `--yes` says so before."""
    bury(facts(3))
    arguments = ("dead", command, "--all", "--limit", "2", "--ledger", LEDGER)
    arguments += ("--handler", "hooks:note") if command == "redrive" else ()
    declined = in_terminal(cli, *arguments, answer="n")
    assert f"{command} 2 dead letters" in declined
    assert "nothing was changed" in declined
    assert cli.statuses() == {"dead": 3}
    in_terminal(cli, *arguments, answer="y")
    assert cli.statuses()["dead"] == 1
    assert "[y/N]" not in in_terminal(cli, *arguments, "--yes", answer="n")
    assert "dead" not in cli.statuses()


@pytest.mark.parametrize("command", ["discard", "redrive"])
def test_ctrl_c_ends_the_question(cli, bury, facts, command):
    """At the question Ctrl-C ends the command at once, and nothing is changed."""
    bury(facts(1))
    arguments = ["dead", command, "--all", "--ledger", LEDGER]
    arguments += ["--handler", "hooks:note"] if command == "redrive" else []
    with terminal(cli, *arguments) as (process, read_until):
        read_until(b"[y/N]")
        # Python itself misses a signal just before it begins to read a line: a person presses the keys again.
        for _ in range(int(PATIENCE_SECONDS)):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
                break
        assert process.returncode == 130
    assert cli.statuses() == {"dead": 1}


# --- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["show", "redrive", "discard"])
def test_a_wrong_or_unknown_key_is_said(cli, bury, facts, explained, command):
    """A key that is none is named with exit 2, an unknown one with exit 1, and nothing is done to the others."""
    (letter,) = bury(facts(1))
    handler = ["--handler", "hooks:note"] if command == "redrive" else []
    for key in (NO_KEY, "ob1_" + "G" * 32, NO_KEY[:-1], "nonsense", ""):
        keys = [key] if command == "show" else [letter["key"], key]
        said = explained(cli.dead(command, *keys, *handler), 1 if key == NO_KEY else 2)
        assert repr(key) in said or (key and key in said)
        assert "oncebridge dead list" in said
    assert cli.statuses() == {"dead": 1}
    assert cli.effects() == {}


def test_all_must_be_said_in_so_many_words(cli, bury, facts, explained):
    """Without keys, filters or `--all` nothing is redriven or discarded; a redrive needs a handler."""
    bury(facts(2))
    assert "--all" in explained(cli.dead("discard"), 2)
    assert "--all" in explained(cli.dead("redrive", "--handler", "hooks:note"), 2)
    assert "--handler" in explained(cli.dead("redrive", "--all"), 2)
    assert "--handler" in explained(cli.dead("redrive", "--all", "--handler", "nowhere:note"), 2)
    assert cli.statuses() == {"dead": 2}


# --- redrive -------------------------------------------------------------------------------------------------


def test_a_redrive_works_once_the_handler_does(cli, bury, facts, marks):
    """Redriven to a mended handler, letters take effect under their own keys, are done, and are letters no more."""
    letters = bury(facts(3))
    ran = cli.dead("redrive", "--all", "--handler", "hooks:note", "--json")
    assert ran.code == 0
    assert [list(item) for item in ran.items] == [["key", "verdict", "outcome", "reason"]] * 3
    assert {(item["verdict"], item["outcome"]) for item in ran.items} == {("fresh", "done")}
    assert {item["key"] for item in ran.items} == {letter["key"] for letter in letters}
    assert cli.effects() == Counter(marks(facts(3)))
    assert cli.dead("list", "--json").items == []
    assert cli.statuses() == {"done": 3}
    assert cli.process("in.jsonl", "--handler", "hooks:note").one["redelivery"] == 3
    assert cli.effects() == Counter(marks(facts(3)))


def test_a_redrive_is_recorded(cli, bury, facts):
    """The log tells of a redrive, its claim and settle included, and the ledger of its outcome and when."""
    (letter,) = bury(facts(1))
    ran = cli("--log-level", "info", "dead", "redrive", letter["key"], "--handler", "hooks:note", "--ledger", LEDGER)
    assert [(record["move"], record["key"], record.get("outcome")) for record in ran.records] == [
        ("claimed", letter["key"], None), ("settled", letter["key"], "done"), ("redriven", letter["key"], "done"),
    ]  # fmt: skip
    (found,) = cli("find", letter["key"], "--ledger", LEDGER, "--json").items
    assert (found["status"], found["reason"]) == ("done", None)
    assert found["changed_ms"] >= letter["changed_ms"]


def test_a_discard_is_recorded(cli, bury, facts):
    """The log tells that a letter was given up, and by which key, without what it held."""
    (letter,) = bury(facts(1))
    ran = cli("--log-level", "info", "dead", "discard", letter["key"], "--ledger", LEDGER)
    (record,) = ran.records
    assert (record["move"], record["key"], record["outcome"]) == ("discarded", letter["key"], "discard")
    assert payloads.CONVERSATION not in ran.err


def test_a_redrive_may_fail_again(cli, bury, facts):
    """Attempts start from zero; a letter that fails them all again stays a letter, with the new reason."""
    (letter,) = bury(facts(1), "hooks:refuse")
    assert "permanent" in letter["reason"]
    environment = {"ONCEBRIDGE_RETRY_ATTEMPTS": "3", "ONCEBRIDGE_RETRY_BASE_SECONDS": "0.01"}
    ran = cli.dead("redrive", letter["key"], "--handler", "hooks:fail", "--json", **environment)
    assert ran.one["outcome"] == "dead"
    assert len(cli.lines("tries")) == 1 + 3
    (after,) = cli.dead("list", "--json").items
    assert (after["key"], after["attempts"]) == (letter["key"], 3)
    assert "RuntimeError" in after["reason"]
    assert cli.dead("redrive", letter["key"], "--handler", "hooks:note").code == 0
    assert cli.effects().total() == 1


def test_a_redrive_waits_and_tries_again_by_itself(cli, bury, facts, marks):
    """Nobody else redelivers a letter, so a redrive that fails once is tried again within the command."""
    bury(facts(2))
    environment = {"ONCEBRIDGE_RETRY_BASE_SECONDS": "0.01"}
    ran = cli.dead("redrive", "--all", "--handler", "hooks:flaky", "--json", **environment)
    assert ran.code == 0
    assert {item["outcome"] for item in ran.items} == {"done"}
    assert cli.effects() == Counter(marks(facts(2)))


def test_filters_choose_what_is_redriven(cli, bury, facts, marks):
    """Only letters that match are redriven; keys choose exactly."""
    deliveries = [*facts(2), payloads.presence("AWAY", modified_ms=payloads.TIME_MS + 7)]
    letters = bury(deliveries)
    cli.dead("redrive", "--topic", "v2.users.*", "--handler", "hooks:note")
    assert cli.effects() == {str(payloads.TIME_MS + 7): 1}
    first = next(letter for letter in letters if letter["id"] == deliveries[0]["id"])
    cli.dead("redrive", first["key"], "--handler", "hooks:note")
    assert cli.effects() == Counter([str(payloads.TIME_MS + 7), *marks(facts(1))])
    assert cli.statuses() == {"done": 2, "dead": 1}


def test_a_letter_that_is_being_redriven_is_busy(cli, bury, facts, wait_until):
    """While one process redrives a letter, another is told that it is busy; it takes effect once."""
    (letter,) = bury(facts(1))
    arguments = ("dead", "redrive", letter["key"], "--handler", "hooks:wait", "--ledger", LEDGER, "--json")
    first = cli.start(*arguments)
    wait_until(lambda: cli.lines("started"), "its handler runs")
    second = cli(*arguments)
    assert (second.code, second.one["verdict"], second.one["outcome"]) == (75, "busy", None)
    discarded = cli.dead("discard", letter["key"], "--json")
    assert (discarded.code, discarded.one["verdict"]) == (75, "busy")
    (cli.folder / "gate").touch()
    ran = first.finish()
    assert (ran.code, ran.one["outcome"]) == (0, "done")
    assert len(cli.lines("started")) == cli.effects().total() == 1


@pytest.mark.parametrize("handler", ["note", "insert"])
def test_two_redrives_at_once_take_effect_once(cli, bury, facts, *, marks, handler):
    """However two processes race through the same letters, each letter takes effect once."""
    deliveries = facts(25)
    bury(deliveries)
    arguments = ("dead", "redrive", "--all", "--handler", f"hooks:{handler}", "--ledger", LEDGER, "--json")
    both = [cli.start(*arguments) for _ in range(2)]
    ran = [started.finish() for started in both]
    assert all(one.code in (0, 75) for one in ran), ran
    assert cli.effects() + cli.inserted() == Counter(marks(deliveries))
    assert sum(item["outcome"] == "done" for one in ran for item in one.items) == len(deliveries)
    assert cli.statuses() == {"done": len(deliveries)}


def test_a_killed_redrive_leaves_the_letter(cli, bury, facts, *, marks, wait_until):
    """A redrive that dies in its handler is taken up by the next one, once its lease is over."""
    bury(facts(1))
    short = {"ONCEBRIDGE_LEASE_SECONDS": "1"}
    killed = cli.start("dead", "redrive", "--all", "--handler", "hooks:wait", "--ledger", LEDGER, **short)
    wait_until(lambda: cli.lines("started"), "its handler runs")
    killed.kill()
    assert len(cli.dead("list", "--json").items) == 1
    again = ("redrive", "--all", "--handler", "hooks:note")
    wait_until(lambda: cli.dead(*again, **short).code == 0, "it is redriven", 30)
    assert cli.effects() == Counter(marks(facts(1)))
    assert cli.statuses() == {"done": 1}


def test_a_redrive_beside_the_original_takes_effect_once(cli, bury, facts, *, marks, wait_until):
    """An original that arrives while its letter is redriven neither takes effect again nor is lost."""
    bury(facts(1))
    redrive = cli.start("dead", "redrive", "--all", "--handler", "hooks:wait", "--ledger", LEDGER)
    wait_until(lambda: cli.lines("started"), "its handler runs")
    original = cli.start("process", "in.jsonl", "--ledger", LEDGER, "--json", "--handler", "hooks:note")
    assert not original.ends_within(0.5)  # not acknowledged before it is known to be done
    (cli.folder / "gate").touch()
    assert redrive.finish().code == 0
    ran = original.finish()
    assert (ran.code, ran.one["redelivery"]) == (0, 1)
    assert cli.effects() == Counter(marks(facts(1)))


def test_a_conflict_can_be_redriven(cli, facts):
    """An event that came under another's id is kept apart; redriven, it takes effect once, and the first stays done."""
    cli.write_hooks()
    first = payloads.envelope(payloads.AUDITS, {"eventTime": payloads.iso(payloads.TIME_MS)}, id="one")
    other = payloads.envelope(payloads.AUDITS, {"eventTime": payloads.iso(payloads.TIME_MS + 5)}, id="two")
    cli.write("in.jsonl", [first, other, other])
    ran = cli.process("in.jsonl", "--handler", "hooks:note")
    assert (ran.code, ran.one["processed"], ran.one["conflict"]) == (0, 1, 2)
    (letter,) = cli.dead("list", "--json").items
    assert letter["reason"].startswith("conflict")
    assert json.loads(cli.dead("show", letter["key"], "--json").one["raw"]) == other
    redriven = cli.dead("redrive", letter["key"], "--handler", "hooks:note", "--json")
    assert (redriven.code, redriven.one["outcome"], redriven.one["key"]) == (0, "done", letter["key"])
    assert cli.effects() == {str(payloads.TIME_MS): 1, str(payloads.TIME_MS + 5): 1}
    assert cli.dead("list", "--json").items == []
    again = cli.process("in.jsonl", "--handler", "hooks:note")
    assert (again.code, again.one["processed"], again.one["received"]) == (0, 0, 3)
    assert cli.effects().total() == 2
    assert cli.dead("list", "--json").items == []


def test_what_cannot_be_read_stays_a_letter(cli, bury):
    """Redriving bytes that are no event changes nothing, and says so."""
    (letter,) = bury([b"no event"])
    ran = cli.dead("redrive", "--all", "--handler", "hooks:note", "--json")
    assert (ran.one["verdict"], ran.one["outcome"]) == ("dead", "dead")
    assert "unreadable" in ran.one["reason"]
    assert cli.dead("list", "--json").items == [letter]
    assert cli.effects() == {}


def test_a_state_that_was_overtaken_is_not_redriven_unless_forced(cli, bury, states):
    """A letter older than what its entity shows by now is recorded as stale; `--force` handles it all the same."""
    for force in ([], ["--force"]):
        (cli.folder / "once.db").unlink(missing_ok=True)
        (cli.folder / "effects").unlink(missing_ok=True)
        old, new = states(2)
        (letter,) = bury([old])
        cli.write("newer.jsonl", [new])
        assert cli.process("newer.jsonl", "--handler", "hooks:note").one["processed"] == 1
        ran = cli.dead("redrive", letter["key"], "--handler", "hooks:note", "--json", *force)
        assert ran.code == 0
        assert ran.one["verdict"] == ("fresh" if force else "stale")
        assert cli.effects().total() == (2 if force else 1)
        assert cli.dead("list", "--json").items == []


# --- discard -------------------------------------------------------------------------------------------------


def test_a_discarded_letter_does_not_come_back(cli, bury, facts):
    """Discarding erases what the letter held and leaves a tombstone: the same event again is a redelivery."""
    keep, drop = bury(facts(2))
    ran = cli.dead("discard", drop["key"], "--json")
    assert (ran.code, ran.one["key"], ran.one["outcome"]) == (0, drop["key"], "discard")
    assert [letter["key"] for letter in cli.dead("list", "--json").items] == [keep["key"]]
    assert cli.dead("show", drop["key"]).code == 1
    assert cli.dead("redrive", drop["key"], "--handler", "hooks:note").code == 1
    again = cli.process("in.jsonl", "--handler", "hooks:note", "--verdicts", "verdicts.jsonl")
    assert (again.code, again.one["redelivery"], again.one["processed"]) == (0, 2, 0)
    assert cli.effects() == {}
    (found,) = cli("find", drop["key"], "--ledger", LEDGER, "--json").items
    assert found["status"] == "discard"


def test_what_a_discarded_letter_held_is_gone_from_the_file(cli, bury, facts):
    """After a discard nothing of the payload is left on the disk, not even between the rows."""
    bury(facts(3, participantId="canary-to-be-forgotten"))
    assert cli.dead("discard", "--all").code == 0
    left = b"".join(path.read_bytes() for path in cli.folder.glob("once.db*"))
    assert b"canary-to-be-forgotten" not in left


def test_filters_choose_what_is_discarded(cli, bury, facts):
    """`--all` and filters discard what matches and nothing else; nothing that matches is no error."""
    bury([*facts(2), b"no event"])
    assert cli.dead("discard", "--reason", "unreadable").code == 0
    assert cli.statuses() == {"dead": 2, "discard": 1}
    assert cli.dead("discard", "--all").code == 0
    assert cli.statuses() == {"discard": 3}
    nothing = cli.dead("discard", "--all")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no dead letters match" in nothing.err
