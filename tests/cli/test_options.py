"""The options that every command has: version, help with defaults, completion, the level of the log."""

import importlib.metadata
import os
import shlex
import subprocess
import sys

import pytest
import typer

from cli.conftest import LEDGER
from oncebridge.cli.app import app


def commands():
    """Yield every command with the words that call it, the root included."""
    ahead = [((), typer.main.get_command(app))]
    while ahead:
        words, command = ahead.pop()
        yield words, command
        ahead += [((*words, name), below) for name, below in getattr(command, "commands", {}).items()]


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_shown(cli, option):
    """`--version` and `-V` print the installed version and end, whatever else is wrong."""
    ran = cli(option, ONCEBRIDGE_CONCURRENCY="many")
    assert (ran.code, ran.out, ran.err) == (0, f"oncebridge {importlib.metadata.version('oncebridge')}\n", "")


# --- help ------------------------------------------------------------------------------------------------------


def test_every_option_shows_its_default():
    """An option shows its default, or that there is none; a switch is off."""
    silent = [
        (*words, option.opts[0])
        for words, command in commands()
        for option in command.params
        if option.param_type_name == "option" and not option.is_flag
        if not isinstance(option.show_default, str) and option.default is None
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("process",), ["lease_seconds, or 30)", "sqlite:///oncebridge.db", "concurrency, or 1)", "oncebridge.toml"]),
        (("serve",), ["port, or 8080)", "host, or 127.0.0.1)", "workers, or 1)"]),
        (("consume",), ["concurrency, or 8)", "127.0.0.1"]),
        (("purge",), ["retention_days, or 30)"]),
    ],
)
def test_help_shows_defaults_of_settings(cli, words, shown):
    """Where a setting takes the place of an option, help names the setting and its default; -h is --help."""
    long, short = (cli(*words, option, COLUMNS="200") for option in ("--help", "-h"))
    assert (long.code, short.out) == (0, long.out)
    assert [default for default in shown if default not in long.out] == []


# --- the level of the log --------------------------------------------------------------------------------------


def test_the_log_level_may_follow_the_command(cli, facts):
    """`--log-level` has the same effect before and after a command, and the one after it wins."""
    cli.write("in.jsonl", facts(1))
    command = ("process", "in.jsonl", "--ledger", "memory://")
    before = cli("--log-level", "info", *command)
    after = cli(*command, "--log-level", "INFO")
    both = cli("--log-level", "error", *command, "--log-level", "info")
    assert [len(ran.records) for ran in (before, after, both, cli(*command))] == [2, 2, 2, 0]
    assert cli("dead", "list", "--ledger", "memory://", "--log-level", "debug").records


def test_a_wrong_log_level_after_the_command_is_named(cli, explained):
    """A level that does not exist is refused, with the ones that do."""
    assert "debug, info, warning or error" in explained(cli("purge", "--log-level", "chatty"), 2)


def test_debug_shows_how_things_were_set_up(cli, facts):
    """At `debug` the log says where each setting comes from and which handlers take what, but shows no value."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(1))
    (cli.folder / "oncebridge.toml").write_text("lease_seconds = 7\n")
    secret = "a-canary-secret-of-some-length-4711"
    command = ("process", "in.jsonl", "--ledger", LEDGER, "--handler", "hooks:note", "--log-level", "debug")
    ran = cli(*command, ONCEBRIDGE_SECRET=secret)
    read, opened = (record for record in ran.records if record["level"] == "DEBUG")
    assert read["file"] == str(cli.folder / "oncebridge.toml")
    assert (read["from_file"], read["from_environment"]) == (["lease_seconds"], ["secret"])
    assert "ledger" in read["given"]
    assert opened["handlers"] == [{"topic": "*", "name": ""}]
    assert "once.db" in opened["ledger"]
    assert secret not in ran.err


# --- completion ------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(cli):
    """Put `oncebridge` on a path of its own, as an installation does; return that path."""
    folder = cli.folder.parent / "bin"
    folder.mkdir()
    command = folder / "oncebridge"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m oncebridge "$@"\n')
    command.chmod(0o755)
    return folder


def test_bash_completes(cli, installed):
    """What `--show-completion` prints makes bash complete commands, commands below them, and options."""
    script = f"""
        PATH={shlex.quote(str(installed))}:$PATH
        eval "$(oncebridge --show-completion)"
        ask() {{
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _oncebridge_completion oncebridge; echo "${{COMPREPLY[*]}}"
        }}
        ask oncebridge pr
        ask oncebridge dead re
        ask oncebridge consume --until
        ask oncebridge dead list --log-l
    """
    ran = cli.start_program("bash", "-c", script).finish()
    assert ran.out.split() == ["process", "redrive", "--until-empty", "--log-level"], ran.err


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete(cli, shell):
    """Zsh and fish get the same answers, in the form that each asks for."""
    asked = {
        "_ONCEBRIDGE_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "oncebridge dead re",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    ran = cli(**asked)
    assert "redrive" in ran.out
    assert "discard" not in ran.out


def test_a_command_is_made_alone(empty_workplace):
    """Neither the modules of other commands are imported, nor what only they need."""
    program = (
        "import sys; from oncebridge.cli.app import run; sys.argv = ['oncebridge', 'dead', 'list']; run(); "
        "print(*sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=os.environ | {"ONCEBRIDGE_LEDGER": "memory://"},
    )  # fmt: skip
    imported = set(ran.stdout.split())
    assert "oncebridge.cli.dead" in imported
    assert not {f"oncebridge.cli.{name}" for name in ("serve", "console", "consume", "diagnose", "demo")} & imported
    assert not {"urllib3", "boto3", "ssl", "importlib.metadata"} & imported
