"""What the tests of the examples share: programs that start, fail and die as they do in Lambda."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest

from oncebridge import NotAcknowledged
from servers.process import ServerProcess, free_port, wait_until
from servers.proxy import CHUNK, Proxy
from servers.receiver import Reply, running_receiver
from servers.valkey import running_valkey

ATTEMPTS = 3  # Lambda's own, for an event that is given to it directly
PATIENCE = 60  # seconds, for what happens at once
API_KEY = "made-up-key-of-the-examples"
QUIET = {"DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}

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


# --- programs in other languages, behind a port ------------------------------------------------------------------


class Answer(NamedTuple):
    """What a delivery was answered with; a status of 0: with nothing."""

    status: int = 0
    text: str = ""
    retry_after: str | None = None


class Program:
    """A program that says on which port it listens, as soon as it does; `process` can be stopped and killed."""

    def __init__(self, command, folder, environment):
        """Take what to run, where it may write, and all that its environment holds beside the usual."""
        self._log = folder / "log"
        usual = {"PATH": os.environ["PATH"], "HOME": str(folder), "DENO_DIR": str(folder), "PORT": "0"}
        self.process = ServerProcess(
            command, log=self._log, ready=lambda: self.port, environment={**usual, **QUIET, **environment}
        )

    def start(self):
        """Start it, again after a crash."""
        self._log.write_bytes(b"")
        self.process.start()

    @property
    def port(self):
        """Where it listens; nothing as long as it does not."""
        said = re.search(r"http://127\.0\.0\.1:(\d+)", self._log.read_text())
        return said and int(said[1])

    def deliver(self, event):
        """Deliver an event, and return the answer; none where the program died over it."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with closing(connection), suppress(OSError, HTTPException):
            connection.request("POST", "/", json.dumps(event))
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode().strip(), answer.headers["Retry-After"])
        return Answer()

    def deliver_until_taken(self, *events):
        """Deliver events in order, each until it is acknowledged; return what was said then."""
        taken = []
        for event in events:
            wait_until(lambda event=event: self._is_taken(event, taken), "an acknowledgement")
        return taken

    def _is_taken(self, event, taken):
        answer = self.deliver(event)
        if answer.status == HTTPStatus.OK:
            taken.append(answer.text)
        return answer.status == HTTPStatus.OK


@pytest.fixture
def run_program(tmp_path):
    """Return what runs a program until the test is over; nothing of it is left."""
    with ExitStack() as running:

        def run(command, **environment):
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            program = Program([str(word) for word in command], folder, environment)
            running.callback(program.process.kill)
            program.start()
            return program

        yield run


class Database:
    """What programs write to: it takes what has a key once, as a unique index does, and can be held and fail."""

    def __init__(self, receiver):
        """Take what listens for it."""
        self.url = receiver.url
        #: The states that took effect, in order.
        self.updates = []
        #: Whatever came, with its headers.
        self.requests = []
        #: How many of the next updates fail.
        self.failures = 0
        self._keys = set()
        self._held = None
        receiver.script = self._take

    @contextmanager
    def holding(self):
        """Hold the next update from when it `arrived` until the end; `lost` is whether it never takes effect."""
        held = SimpleNamespace(arrived=threading.Event(), opened=threading.Event(), lost=False)
        self._held = held
        try:
            yield held
        finally:
            held.opened.set()

    def _take(self, request):
        held, self._held = self._held, None
        self.requests.append(request)
        if held is not None:
            held.arrived.set()
            assert held.opened.wait(PATIENCE)
            if held.lost:
                return Reply(500, then="close before answer")
        if self.failures:
            self.failures -= 1
            return Reply(500)
        if not request.key or request.key not in self._keys:
            self._keys.add(request.key)
            self.updates.append(json.loads(request.body)["state"])
        return Reply()


@pytest.fixture
def database():
    """Run an empty database."""
    with running_receiver() as receiver:
        yield Database(receiver)


class Meeting(Proxy):
    """A network on which two clients hear their first answer only when the server has answered both."""

    def __init__(self, server_port):
        """Listen on a free port."""
        self._both = threading.Barrier(2)
        super().__init__(server_port)

    def _pump(self, source, target, muted, *, is_request):
        waits = not is_request
        with closing(source), closing(target), suppress(OSError):
            while data := source.recv(CHUNK):
                if waits:
                    with suppress(threading.BrokenBarrierError):
                        self._both.wait(PATIENCE)
                        self._both.abort()  # they have met: whatever comes later passes
                    waits = False
                target.sendall(data)


@pytest.fixture
def meeting():
    """Return what puts such a network before a server."""
    with ExitStack() as running:
        yield lambda server_port: running.enter_context(closing(Meeting(server_port)))


# --- `oncebridge serve`, as its users start it -------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory):
    """Run a Redis for the ledger, and for what others remember."""
    with running_valkey(tmp_path_factory.mktemp("own_redis")) as server:
        yield server


@pytest.fixture
def time_stands_still(own_redis):
    """Return what keeps Redis from forgetting, so that seconds last as long as the test."""

    def stop():
        with own_redis.client() as client:
            for name in client.scan_iter():
                client.persist(name)

    return stop


@pytest.fixture
def time_passes(own_redis):
    """Return what lets Redis forget all that it keeps for so many seconds and no longer."""

    def pass_by(seconds):
        with own_redis.client() as client:
            for name in client.scan_iter():
                if 0 <= client.ttl(name) <= seconds:
                    client.delete(name)

    return pass_by


@pytest.fixture(scope="module")
def service(own_redis, tmp_path_factory):
    """Run `oncebridge serve` with a key, for claims alone; `url` is where."""
    own = {"ONCEBRIDGE_API_KEYS": "env:CLAIMS_KEY", "CLAIMS_KEY": API_KEY}
    if "PYTHONPATH" in os.environ:
        own["PYTHONPATH"] = os.environ["PYTHONPATH"]
    command = [sys.executable, "-m", "oncebridge", "serve", "--ledger", own_redis.url, "--port", "0"]
    server = Program(command, tmp_path_factory.mktemp("service"), own)
    server.start()
    yield SimpleNamespace(port=server.port, url=f"http://127.0.0.1:{server.port}", key=API_KEY)
    server.process.stop()


@pytest.fixture
def run_readme(request, tmp_path):
    """Return what runs the first commands of a README as they stand there, but at free ports, and tells what was said.

    Nothing that they leave running outlives the test.
    """
    folder = request.path.parent
    with ExitStack() as running:

        def run(tools):
            block = (folder / "README.md").read_text().split("```sh\n")[1].split("```")[0]
            for port in set(re.findall(r"\b[38]0[08]0\b", block)):
                block = re.sub(rf"\b{port}\b", str(free_port()), block)
            (tmp_path / "examples").symlink_to(folder.parent)
            own = {name: str(tmp_path) for name in ("HOME", "DENO_DIR", "TMPDIR")}
            own["PATH"] = f"{_commands(tmp_path, tools)}:{os.environ['PATH']}"
            with (tmp_path / "said").open("wb") as said:
                started = subprocess.Popen(
                    ["sh", "-ec", block],
                    cwd=tmp_path,
                    env={**os.environ, **QUIET, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,  # so that all of it can be ended
                )
            running.callback(_end_session, started.pid)
            assert started.wait(PATIENCE) == 0, (tmp_path / "said").read_text()
            lines = (tmp_path / "said").read_text().splitlines()
            return lambda pattern: [found[1] for line in lines if (found := re.fullmatch(pattern, line))]

        yield run


def _commands(folder, tools):
    """Put tools where a shell finds them, and `oncebridge`, the one under test."""
    (folder / ".bin").mkdir()
    for name, words in {"oncebridge": [sys.executable, "-m", "oncebridge"], **tools}.items():
        command = folder / ".bin" / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        command.chmod(0o755)
    return folder / ".bin"


def _end_session(leader):
    """End whatever a shell has left running."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
