"""Whatever an event says, no command lets it drive a terminal, and none shows it other than it stands."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import contextmanager, suppress

import pytest

from cli.conftest import LEDGER, PATIENCE_SECONDS

#: Clear the screen, set the title, write to the clipboard, markup of our own, and whatever turns or hides a line.
SEQUENCES = (
    "\x1b[2J\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x9b2J\x9d0;owned\x9c[red]owned[/red][link=http://owned]x[/link]"
)
UNSEEN = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff",
]
CANARY = SEQUENCES + "".join(UNSEEN)
#: What a terminal may get of ours: colours, and the cursor's moves of a progress bar.
OURS = re.compile(r"\x1b\[(?:[0-9;]*m|1A|2K|\?25[lh])")
HANDLERS = """\
from oncebridge import PermanentError


def refuse(event):
    raise PermanentError(f"not {event.topic} {event.body} {event.conversation_id}")
"""


def deliveries():
    """Yield the same delivery with the canary in one place each time, in all, and unreadable in several ways."""
    body = {"id": "c-1", "conversationId": "c-1", "status": "open", "timestamp": "2026-03-02T08:00:00Z", "name": "n"}
    detail = {"topicName": "v2.detail.events.conversation.c-1.acw", "version": "2", "eventBody": body, "metadata": {}}
    envelope = {
        "version": "0", "id": "e-1", "detail-type": "v2.detail.events.conversation.{id}.acw", "source": "aws.partner/g",
        "account": "1", "time": "2026-03-02T08:00:00Z", "region": "eu-west-1", "resources": [], "replay-name": "r",
    }  # fmt: skip

    def made(envelope, detail, body):
        return json.dumps({**envelope, "detail": {**detail, "eventBody": body}}).encode()

    for name in body:
        yield made({**envelope, "id": f"b-{name}"}, detail, {**body, name: CANARY})
    yield made({**envelope, "id": "b-key"}, detail, {**body, CANARY: CANARY})
    for name in ("topicName", "version", "metadata"):
        yield made({**envelope, "id": f"d-{name}"}, {**detail, name: CANARY}, body)
    for name in envelope:
        yield made({**envelope, "source": "aws.partner/x", name: CANARY}, detail, body)
    yield made(dict.fromkeys(envelope, CANARY), dict.fromkeys(detail, CANARY), dict.fromkeys(body, CANARY))
    yield json.dumps(dict.fromkeys(body, CANARY)).encode()
    yield json.dumps({"type": CANARY, "conversationId": CANARY, CANARY: CANARY}).encode()
    yield json.dumps([CANARY]).encode()
    yield CANARY.replace("\n", "").encode()
    yield b'{"id": "' + CANARY.replace("\n", "").encode() + b"\xff"


@pytest.fixture
def file(cli):
    """A file with all of them, and a ledger that keeps them as dead letters."""
    (cli.folder / "handlers.py").write_text(HANDLERS)
    (cli.folder / "events.jsonl").write_bytes(b"".join(one + b"\n" for one in deliveries()))
    return "events.jsonl"


def look(shown, *, terminal=False):
    """Find nothing in what was shown that is not seen as it stands, but for ends of lines and tabs of tables."""
    if terminal:
        shown = OURS.sub("", shown.replace("\r\n", "\n").replace("\r", ""))
    found = sorted({hex(ord(one)) for one in UNSEEN if one in shown and one not in "\n\t"})
    assert not found, (found, shown[:2000])
    assert "\x1b" not in shown


@contextmanager
def terminal(cli, *arguments, columns=200, answer=None, stdin=True, **variables):
    """Run a command in a terminal of its own; yield its process, and a function that reads up to some words."""
    ours, theirs = pty.openpty()
    if answer is not None:
        os.write(ours, answer.encode() + b"\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(cli.folder),
        "TERM": "xterm-256color",
        "COLUMNS": str(columns),
        **variables,
    }
    if os.environ.get("ONCEBRIDGE_TEST_SOURCE") == "1":
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    command = subprocess.Popen(
        [sys.executable, "-m", "oncebridge", *arguments],
        stdin=theirs if stdin else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=cli.folder,
        env=environment,
    )
    os.close(theirs)
    shown = b""

    def read_until(words=None):
        nonlocal shown
        with suppress(OSError):  # the other side is closed
            while (words is None or words not in shown) and (data := os.read(ours, 65_536)):
                shown += data
        return shown

    try:
        yield command, read_until
    finally:
        command.kill()
        command.wait(PATIENCE_SECONDS)
        os.close(ours)


def in_terminal(cli, *arguments, answer=None, **options):
    """Run a command in a terminal to its end, and return what that would show; an answer is typed ahead."""
    with terminal(cli, *arguments, answer=answer, stdin=answer is not None, **options) as (command, read_until):
        shown = read_until()
        command.wait(PATIENCE_SECONDS)
    return shown.decode(errors="backslashreplace")


def test_no_command_lets_an_event_drive_the_terminal(cli, file):
    """Text, JSON, tables, log lines and errors, in a pipe and in a terminal: everything unseen is an escape."""
    process = ("--log-level", "info", "process", file, "--ledger", LEDGER, "--handler", "handlers:refuse")
    look(in_terminal(cli, *process, "--verdicts", "-"), terminal=True)
    keys = [letter["key"] for letter in cli.dead("list", "--json").items]
    assert len(keys) > 20
    events = [
        process,
        ("explain", file, "--ledger", LEDGER),
        ("diagnose", file),
        ("find", file, "--ledger", LEDGER),
        ("dead", "list", "--ledger", LEDGER),
        ("dead", "show", keys[-1], "--ledger", LEDGER),
        ("dead", "redrive", *keys[-3:], "--handler", "handlers:refuse", "--ledger", LEDGER),
    ]
    for command in events:
        look(in_terminal(cli, *command), terminal=True)
        for option in ([], ["--json"]):
            ran = cli(*command, *option)
            look(ran.out)
            look(ran.err)


@pytest.mark.parametrize(
    "command",
    [
        ("find", CANARY.replace("\0", ""), "--ledger", "memory://"),
        ("process", CANARY.replace("\0", "")[:100], "--ledger", "memory://"),
        ("process", "-", "--ledger", f"sqlite:///no/{CANARY}".replace("\0", "")),
        ("process", "-", "--ledger", "memory://", "--handler", "no:\x1b[2J\u202e"),
    ],
)
def test_no_error_obeys_what_it_quotes(cli, command):
    """An argument may come from outside too, by way of a script."""
    look(in_terminal(cli, *command), terminal=True)


def test_a_dead_letter_is_shown_without_obeying_it(cli, file):
    """As text with escapes; as JSON, which says exactly the same to a program."""
    cli.process(file, "--handler", "handlers:refuse")
    keys = [letter["key"] for letter in cli.dead("list", "--json").items]
    written = {one.decode(errors="backslashreplace") for one in deliveries()}
    for key in (keys[0], keys[-1]):
        look(cli.dead("show", key).out)
        shown = cli.dead("show", key, "--json")
        look(shown.out)
        assert shown.one["raw"] in written
