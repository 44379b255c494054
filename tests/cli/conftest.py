"""The command line as a person runs it: a process of its own, in an empty folder, with a clean environment."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from typing import NamedTuple

import pytest

import payloads

PATIENCE_SECONDS = 60.0
MUCH = 1_000_000
LEDGER = "sqlite:///once.db"

#: Handlers that write down what they did where no ledger can touch it.
HOOKS = '''\
"""Handlers for tests; `mark` is the event's own time, which no two events of a test share."""

import os
import signal
import threading
import time
from pathlib import Path

from oncebridge import PermanentError

effects_left = int(os.environ.get("EFFECTS_AT_MOST", "1000000"))


def stay_killable():
    """Hang after so many effects: whoever is to be killed must not be over before, however slow the test is."""
    global effects_left
    effects_left -= 1
    if effects_left < 0:
        threading.Event().wait()


def mark(event):
    return str(event.time_ms)


def append(name, text):
    file = os.open(name, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(file, f"{text}\\n".encode())
    os.close(file)


def note(event):
    stay_killable()
    append("effects", mark(event))


def slow_note(event):
    time.sleep(0.01)  # a sink that takes its time
    note(event)


def insert(event, transaction):
    stay_killable()
    transaction.execute("CREATE TABLE IF NOT EXISTS effect (mark TEXT NOT NULL, key TEXT NOT NULL)")
    transaction.execute("INSERT INTO effect VALUES (?, ?)", (mark(event), event.key))


def wait(event):
    append("started", mark(event))
    give_up = time.monotonic() + 60
    while not Path("gate").exists():
        if time.monotonic() > give_up:
            raise TimeoutError("nobody opened the gate")
        time.sleep(0.002)
    note(event)


def wait_and_fail(event):
    wait(event)
    raise RuntimeError("failed after all")


def flaky(event):
    state = Path(f"failed-{mark(event)}")
    if not state.exists():
        state.touch()
        raise RuntimeError("the first time always fails")
    note(event)


def fail(event):
    append("tries", mark(event))
    raise RuntimeError(f"no luck with {event.body}")


def refuse(event):
    append("tries", mark(event))
    raise PermanentError from ValueError(f"never with {event.body}")


def die(event, way):
    if event.body.get("poison"):
        append("deaths", mark(event))
        way()
    note(event)


def die_by_exit(event):
    die(event, lambda: os._exit(9))


def die_by_kill(event):
    die(event, lambda: os.kill(os.getpid(), signal.SIGKILL))
'''


class Ran(NamedTuple):
    """What a finished command left behind."""

    code: int
    out: str
    err: str

    @property
    def one(self):
        """The one JSON object on standard output."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def items(self):
        """The JSON objects on standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def records(self):
        """The log records on standard error."""
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]


class Started:
    """A command that runs; its output goes to files, so that it never waits for a reader."""

    def __init__(self, arguments, *, stdin, **options):
        """Start it in a session of its own, so that whatever it starts can be found."""
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._arguments = arguments
        self.process = subprocess.Popen(
            arguments, stdin=stdin, stdout=self._out, stderr=self._err, start_new_session=True, **options
        )

    @property
    def over(self):
        """Whether it has ended."""
        return self.process.poll() is not None

    def signal(self, number):
        """Send it a signal."""
        self.process.send_signal(number)

    @property
    def said(self):
        """What it has written to standard error so far; its place there is its own."""
        return os.pread(self._err.fileno(), MUCH, 0).decode(errors="backslashreplace")

    def kill(self):
        """Kill it without a warning, and whatever it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def ends_within(self, seconds):
        """Tell whether it ends by itself within some time."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.over

    def finish(self, timeout=PATIENCE_SECONDS):
        """Wait for its end, and return what it left behind."""
        if not self.ends_within(timeout):
            self.kill()
            pytest.fail(f"still running after {timeout} s: {self._arguments}\n{self._read(self._err)}")
        return Ran(self.process.returncode, self._read(self._out), self._read(self._err))

    def leaves_nobody(self):
        """Tell whether nothing that it started runs any more."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def close(self):
        """End whatever is left."""
        self.kill()
        self._out.close()
        self._err.close()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()

    @staticmethod
    def _read(file):
        file.seek(0)
        return file.read().decode(errors="backslashreplace")


class CommandLine:
    """Runs `oncebridge` in a folder of its own."""

    def __init__(self, folder):
        """Take the folder, which commands see as their working directory."""
        self.folder = folder
        self._started = []

    def __call__(self, *arguments, timeout=PATIENCE_SECONDS, **options):
        """Run a command to its end; see `start`."""
        return self.start(*arguments, **options).finish(timeout)

    def start(self, *arguments, stdin=None, **environment):
        """Start a command; keyword arguments are its environment beside the bare minimum."""
        return self.start_program(sys.executable, "-m", "oncebridge", *arguments, stdin=stdin, **environment)

    def start_program(self, *arguments, stdin=None, **environment):
        """Start any program with a clean environment. `stdin` is bytes, a file or None for nothing to read."""
        minimum = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "TMPDIR": str(self.folder)}
        if os.environ.get("ONCEBRIDGE_TEST_SOURCE") == "1":
            minimum["PYTHONPATH"] = os.environ["PYTHONPATH"]
        with tempfile.TemporaryFile() as given:
            if isinstance(stdin, bytes):
                given.write(stdin)
                given.seek(0)
                stdin = given
            started = Started(
                arguments,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                cwd=self.folder,
                env=minimum | environment,
            )
        self._started.append(started)
        return started

    def process(self, *arguments, **options):
        """Run `process` on the usual ledger, with the books as JSON."""
        return self("process", "--ledger", LEDGER, "--json", *arguments, **options)

    def dead(self, *arguments, **options):
        """Run `dead` on the usual ledger."""
        return self("dead", *arguments, "--ledger", LEDGER, **options)

    def write(self, name, deliveries):
        """Write deliveries as JSON lines; bytes are written as they are."""
        lines = [one if isinstance(one, bytes) else payloads.raw(one) for one in deliveries]
        (self.folder / name).write_bytes(b"".join(line + b"\n" for line in lines))
        return name

    def write_hooks(self):
        """Write the module `hooks` with the handlers that tests share."""
        (self.folder / "hooks.py").write_text(HOOKS)

    def lines(self, name):
        """Read a file that handlers append to; none yet is no lines."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def effects(self):
        """Count what took effect outside the ledger, by event."""
        return Counter(self.lines("effects"))

    def table(self, name, file="once.db"):
        """Read a table of the ledger's file as anybody could; none yet is no rows."""
        if not (self.folder / file).exists():
            return []
        with closing(sqlite3.connect(self.folder / file, timeout=10)) as db:
            db.row_factory = sqlite3.Row
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone():
                return []
            return [dict(row) for row in db.execute(f"SELECT * FROM {name}")]

    def events(self, file="once.db"):
        """Read what the ledger remembers of events."""
        return self.table("oncebridge_event", file)

    def entities(self):
        """Read what the ledger remembers of entities."""
        return self.table("oncebridge_entity")

    def statuses(self):
        """Count the events in the ledger by status."""
        return Counter(event["status"] for event in self.events())

    def make_older(self, days):
        """Let everything in the ledger have happened so many days earlier."""
        with closing(sqlite3.connect(self.folder / "once.db", timeout=10)) as db, db:
            for name in ("oncebridge_event", "oncebridge_entity"):
                db.execute(f"UPDATE {name} SET changed_us = changed_us - ?", (days * 86_400_000_000,))

    def inserted(self):
        """Count the effects that handlers wrote into the ledger's own file, by event."""
        return Counter(effect["mark"] for effect in self.table("effect"))

    def close(self):
        """End whatever a test left running."""
        for started in self._started:
            started.close()


@pytest.fixture
def cli(tmp_path):
    """Run commands in an empty folder; nothing outlives the test."""
    (tmp_path / "work").mkdir()
    command_line = CommandLine(tmp_path / "work")
    yield command_line
    command_line.close()


@pytest.fixture
def wait_until():
    """Wait for a condition, and fail with its name when it does not come true in time."""

    def wait(condition, what, timeout=PATIENCE_SECONDS):
        never = threading.Event()
        give_up = time.monotonic() + timeout
        while not (result := condition()):
            if time.monotonic() > give_up:
                pytest.fail(f"waited {timeout} s in vain until {what}")
            never.wait(0.001)
        return result

    return wait


@pytest.fixture
def facts():
    """Make so many different facts, each a millisecond after the one before."""

    def make(number, start=0, **body):
        times = [payloads.TIME_MS + start + n for n in range(number)]
        return [payloads.envelope(payloads.ACW, {"eventTime": at, **body}, id=f"envelope-{at}") for at in times]

    return make


@pytest.fixture
def states():
    """Make so many states of one entity, each newer than the one before and out of its echo window."""

    def make(number):
        times = [payloads.TIME_MS + 1000 * n for n in range(number)]
        return [
            payloads.routing_status("IDLE" if n % 2 else "INTERACTING", at, id=f"envelope-{at}")
            for n, at in enumerate(times)
        ]

    return make


@pytest.fixture
def marks():
    """Return the marks that handlers leave for the deliveries that `facts` or `states` made, in order."""

    def of(deliveries):
        return [one["id"].removeprefix("envelope-") for one in deliveries]

    return of


@pytest.fixture
def explained():
    """Check that a command failed with one sentence, not with a traceback; return the sentence."""

    def check(ran, *codes):
        assert ran.code in codes, ran
        assert ran.out == ""
        assert "Traceback" not in ran.err
        said = [line for line in ran.err.splitlines() if line.startswith("oncebridge: ")]
        assert len(said) == 1, ran.err
        return said[0]

    return check
