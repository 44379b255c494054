"""Standard error is one stream in one format, and shows a handler's own exception where that is asked for."""

import json
import re

import pytest

from cli.conftest import LEDGER
from cli.test_terminal import in_terminal

#: Everything that may write to standard error: a ledger's and Python's warnings, other loggers, threads that crash.
NOISY = """\
import logging
import threading
import warnings

from oncebridge import PermanentError


def noisy(event):
    logging.getLogger("botocore.hooks").warning("from botocore\\nin two lines")
    logging.getLogger("shop").error("from the shop")
    warnings.warn("from a programmer", DeprecationWarning, stacklevel=1)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    raise PermanentError("the CRM refuses") from LookupError("no such agent")
"""
PAUSING = """\
from oncebridge import RetryLater


def pause(event):
    if event.attempt == 1:
        raise RetryLater("the CRM wants a pause", after_seconds=1.5)
"""
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def noisy(cli, facts):
    """Return a command whose handler makes everything write that can."""
    (cli.folder / "shop.py").write_text(NOISY)
    cli.write("in.jsonl", facts(1))
    return ("process", "in.jsonl", "--ledger", LEDGER, "--handler", "shop:noisy")


@pytest.mark.parametrize("given", ["before the command", "after it", "in the environment"])
def test_with_json_every_line_is_json_with_its_time(cli, noisy, given):
    """Nothing else is in the stream: no narration, no library, no warning, no crash, no error of ours."""
    environment = {"ONCEBRIDGE_LOG_FORMAT": "json"} if given == "in the environment" else {}
    before = ("--log-format", "json") if given == "before the command" else ()
    after = ("--log-format", "json") if given == "after it" else ()
    ran = cli(*before, "--log-level", "info", *noisy, *after, PYTHONWARNINGS="always", **environment)
    lines = [json.loads(line) for line in ran.err.splitlines()]
    assert all(ISO_TIME.fullmatch(line["time"]) and line["level"] and line["message"] for line in lines)
    said = "\n".join(line["message"] for line in lines)
    for words in ("from botocore", "from the shop", "from a programmer", "a thread ended", "the CRM refuses"):
        assert words in said
    assert any(line.get("envelope_id") for line in lines)
    for arguments in (("process", "missing.jsonl", "--ledger", LEDGER), ("process",), ("dead", "show", "no-key")):
        wrong = cli("--log-format", "json", *arguments)
        assert wrong.code in (1, 2)
        assert [json.loads(line)["level"] for line in wrong.err.splitlines()][-1] == "ERROR"


def test_with_text_no_line_is_json(cli, noisy):
    """In words each line of the log begins with its level; none of a message is taken for one."""
    ran = cli("--log-format", "text", "--log-level", "info", *noisy, PYTHONWARNINGS="always")
    assert ran.records == []
    assert "\nwarning: from botocore\\nin two lines\n" in f"\n{ran.err}"
    assert "\nerror: from the shop\n" in f"\n{ran.err}"
    assert "\nwarning: dead letter: noisy: the CRM refuses (shop.py:15, key ob1_" in ran.err


def test_a_wrong_format_is_named(cli, explained):
    """A format that does not exist is refused with those that do."""
    assert "auto, text or json" in explained(cli("--log-format", "xml", "purge"), 2)


def test_errors_shows_message_and_traceback(cli, noisy):
    """`--errors` logs all of a handler's exception; without it only its class and its place."""
    quiet = cli("--log-format", "text", *noisy)
    assert "no such agent" not in quiet.err
    assert "shop.py:15" in quiet.err
    again = cli("--log-format", "text", "dead", "redrive", "--all", "--yes", "--errors", *noisy[2:])
    assert "LookupError: no such agent" in again.err
    assert "Traceback" in again.err


def test_process_shows_errors_at_a_terminal(cli, noisy):
    """A person who tries a handler sees why it fails, unless that is switched off."""
    assert "LookupError: no such agent" in in_terminal(cli, *noisy)
    (cli.folder / "once.db").unlink()
    assert "LookupError: no such agent" not in in_terminal(cli, *noisy, "--no-errors")


def test_a_wait_for_the_next_try_is_said_at_a_terminal(cli, facts):
    """A person sees why a bar that is full does not end; a pipe has no bar, and no such line."""
    (cli.folder / "shop.py").write_text(PAUSING)
    cli.write("in.jsonl", facts(2))
    command = ("process", "in.jsonl", "--ledger", LEDGER, "--handler", "shop:pause")
    assert "2 wait to be tried again, the first in " in in_terminal(cli, *command)
    (cli.folder / "once.db").unlink()
    assert "wait to be tried again" not in cli(*command).err
