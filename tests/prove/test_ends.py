"""A run of the proof that is ended leaves nothing behind; what cannot be run is refused before it begins."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from prove.__main__ import arguments, runs
from prove.parts import PARTS

from servers.process import wait_until

COMMAND = (sys.executable, "-m", "prove", "stop", "--ledger", "sqlite", "--seed", "1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process_behind(number, tmp_path):
    """Workers end with it, those that are stopped too; and where it could do something, its files are gone."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    run = subprocess.Popen(COMMAND, env=variables, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: psutil.STATUS_STOPPED in states_in(run.pid), "a worker that is stopped")
        run.send_signal(number)
        assert run.wait(60) == (-9 if number == signal.SIGKILL else 128 + number)
        wait_until(lambda: not states_in(run.pid), "every process to end")
    finally:
        for pid in members(run.pid):
            os.kill(pid, signal.SIGKILL)
    assert number == signal.SIGKILL or not list(tmp_path.iterdir())


def members(session):
    """Return the processes of a session."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


def states_in(session):
    """Return in which states the processes of a session are that have not ended."""
    known = [Path(f"/proc/{pid}/stat") for pid in members(session)]
    letters = [path.read_text().rpartition(")")[2].split()[0] for path in known if path.exists()]
    return [psutil.STATUS_STOPPED if letter == "T" else letter for letter in letters if letter != "Z"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("restarts --ledger sqlite", "restarts is for postgres"),
        ("resources --ledger redis://somewhere", "give no URL"),
        ("kill --ledger mongo", "no such ledger: mongo"),
        ("kill --amount 0", "--amount 0: give a number above 0"),
        ("kil", "no such part: kil"),
    ],
)
def test_what_cannot_be_run_is_refused(given, words, capsys):
    """Nothing is run on another ledger than the one that was named."""
    with pytest.raises(SystemExit) as refused:
        arguments(given.split())
    assert refused.value.code == 2
    assert words in capsys.readouterr().err


def test_a_ledger_leaves_out_the_parts_that_are_not_for_it():
    """All parts on SQLite are those for SQLite, and those that need no ledger; each has the amount of its ledger."""
    chosen = [(part.name, ledger) for part, ledger, _ in runs(arguments(["--ledger", "sqlite"]))]
    assert {ledger for _, ledger in chosen} == {"sqlite", ""}
    assert not {"restarts", "redis", "failover", "network"} & {name for name, _ in chosen}
    url = "dynamodb://table?region=eu-central-1"
    assert [amount for *_, amount in runs(arguments(["kill", "--ledger", url]))] == [PARTS["kill"].less["dynamodb"]]
