"""Commands that messages suggest can be pasted: they look at the ledger in use, and hold no password."""

import re
import shlex

import pytest

from cli.conftest import LEDGER
from oncebridge.cli.hints import without_password

PROGRAM = """
import hooks
from oncebridge import Bridge

bridge = Bridge("sqlite:///program.db")
bridge.on("*")(hooks.refuse)
"""


def suggested(ran, command):
    """Return the words of the command that was suggested."""
    (found,) = re.findall(rf"oncebridge ({command}.*)$", ran.err, re.MULTILINE)
    return shlex.split(found)


@pytest.mark.parametrize(
    "options",
    [
        ("--ledger", "sqlite:///of this run.db", "--handler", "hooks:refuse"),
        ("--handler", "program:bridge"),
        ("--settings", "other.toml", "--handler", "hooks:refuse"),
    ],
    ids=["ledger", "bridge", "settings"],
)
def test_the_suggested_command_shows_what_was_kept(cli, facts, options):
    """After a run with dead letters, `dead list` as it is suggested lists them, wherever the ledger was named."""
    cli.write_hooks()
    (cli.folder / "program.py").write_text(PROGRAM)
    (cli.folder / "other.toml").write_text('ledger = "sqlite:///other.db"\n')
    cli.write("in.jsonl", facts(1))
    ran = cli("process", "in.jsonl", *options)
    assert len(cli(*suggested(ran, "dead list"), "--json").items) == 1


def test_errors_suggest_the_ledger_too(cli, facts):
    """An error that suggests a command names the ledger in it."""
    cli.process(cli.write("in.jsonl", facts(1)))
    ran = cli("dead", "show", "ob1_" + "a" * 26, "--ledger", LEDGER)
    assert f"oncebridge dead list --ledger {LEDGER}" in ran.err


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///once.db", "sqlite:///once.db"),
        ("sqlite:////var/lib/once.db", "sqlite:////var/lib/once.db"),
        ("memory://", "memory://"),
        ("redis://:canary@cache:6379/0", "redis://cache:6379/0"),
        ("rediss://worker:canary@cache/0?timeout=2", "rediss://worker@cache/0?timeout=2"),
        ("redis+sentinel://a:1,b:2/mymaster?sentinel_password=canary", "redis+sentinel://a:1,b:2/mymaster"),
        ("postgresql://bridge:canary@db/crm?sslmode=require", "postgresql://bridge@db/crm?sslmode=require"),
        ("postgresql://db/crm?user=u&password=canary", "postgresql://db/crm?user=u"),
        ("postgresql:///crm?password=canary", "postgresql:///crm"),
        ("postgresql://u:can/ary@db/crm", "postgresql://..."),
        ("dynamodb://once?region=eu-central-1", "dynamodb://once?region=eu-central-1"),
        ("redis://[canary", "URL"),
        ("env:LEDGER_URL", "env:LEDGER_URL"),
    ],
)
def test_passwords_are_left_out(url, shown):
    """The URL in a suggested command has no password, and is otherwise as it was given."""
    assert without_password(url) == shown
