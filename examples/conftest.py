"""What the tests of the examples share: programs that start, fail and die as they do in Lambda."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from oncebridge import NotAcknowledged
from servers.process import wait_until

ATTEMPTS = 3  # Lambda's own, for an event that is given to it directly

#: Loads a program, and has it killed as soon as one of its functions is called, or just after.
DYING = """
import importlib.util, json, os, signal, sys

path, function, moment, entry = sys.argv[1:]
spec = importlib.util.spec_from_file_location("program", path)
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
work = getattr(program, function)

def die(*given):
    if moment == "after":
        work(*given)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(program, function, die)
getattr(program, entry)(json.load(sys.stdin), None)
"""


@pytest.fixture(autouse=True)
def _bare_environment(empty_workplace):
    """Let programs see no settings but those of their test."""


@pytest.fixture
def cold_start(request, monkeypatch):
    """Return what loads a program anew, as each of Lambda's environments does: beside the test, or an installed one."""
    started = []

    def start(name, **environment):
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        path = request.path.parent / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path) if path.exists() else importlib.util.find_spec(name)
        started.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(started[-1])
        return started[-1]

    yield start
    for program in started:
        for held in vars(program).values():
            if not isinstance(held, ModuleType | type) and hasattr(held, "close"):
                held.close()


@pytest.fixture
def killed(request):
    """Return what runs a program in a process of its own, and kills it -9 in one of its functions."""

    def kill(name, function, moment, event, *, entry="lambda_handler", **environment):
        arguments = [str(request.path.parent / f"{name}.py"), function, moment, entry]
        ran = subprocess.run(
            [sys.executable, "-c", DYING, *arguments],
            input=json.dumps(event),
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == -signal.SIGKILL, ran.stderr

    return kill


@pytest.fixture
def deliver():
    """Return what hands an event to a function as Lambda does: after an error again, twice, and then no more."""

    def invoke(function, event):
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return function(event, None)
            except Exception:
                if attempt == ATTEMPTS:
                    raise
        return None

    return invoke


@pytest.fixture
def deliver_until_taken():
    """Return what hands an event to a function until it is acknowledged, as a queue does."""

    def is_acknowledged(function, event):
        try:
            function(event, None)
        except NotAcknowledged:
            return False
        return True

    return lambda function, event: wait_until(lambda: is_acknowledged(function, event), "an acknowledgement")
