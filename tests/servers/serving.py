"""A client of the HTTP service, and a look at its worker processes."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

import payloads

PATIENCE_SECONDS = 60.0


class Answer(NamedTuple):
    """What the service answered; nought is no answer at all."""

    status: int
    body: bytes = b""
    #: With names in small letters.
    headers: Mapping[str, str] = MappingProxyType({})

    @property
    def json(self) -> Any:
        """The body, read."""
        return json.loads(self.body)


def ask(url: str, body: bytes | None = None, **headers: str) -> Answer:
    """Send one request on a connection of its own; with a body it is a POST."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return Answer(answer.status, answer.read(), _headers(answer.headers))
    except urllib.error.HTTPError as refused:
        with refused:
            return Answer(refused.code, refused.read(), _headers(refused.headers))
    except (OSError, HTTPException):
        return Answer(0)


def _headers(message: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in message.items()}


def post(url: str, deliveries: Any, **headers: str) -> Answer:
    """Post one delivery, or a list of them."""
    return ask(f"{url}/events", payloads.raw(deliveries), **headers)


def samples(url: str, name: str, **headers: str) -> dict[frozenset[tuple[str, str]], float]:
    """Ask for the metrics, and return the samples of one name by their labels."""
    answer = ask(f"{url}/metrics", **headers)
    assert answer.status == 200, answer
    return {
        frozenset(sample.labels.items()): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
        if sample.name == name
    }


def worker_pids(parent: int) -> list[int]:
    """Return the processes that a service has started to do its work."""
    return [pid for pid, of, command in _processes() if of == parent and "spawn_main" in command]


def _processes() -> list[tuple[int, int, str]]:
    if sys.platform != "linux":
        lines = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        ).stdout
        return [
            (int(pid), int(of), command) for pid, of, command in (line.split(None, 2) for line in lines.splitlines())
        ]
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it ended just now
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                found.append((int(folder.name), parent, command))
    return found


def ended(pid: int) -> bool:
    """Tell whether a process has ended; one that nobody has asked after yet has, too."""
    try:
        os.kill(pid, 0)
        return sys.platform == "linux" and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True
