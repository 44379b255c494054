"""AWS' own emulator of Lambda's runtime: real cold starts, timeouts and crashes of a function, on Linux."""

import json
import os
import platform
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from servers.process import ServerProcess, free_port, listens, wait_until

ANSWER_SECONDS = 120.0  # a function is cut off much earlier
_MACHINE = {"aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), "x86_64")
EMULATOR = Path(sys.prefix) / "rie" / "samcli" / "local" / "rapid" / f"aws-lambda-rie-{_MACHINE}"


class LambdaRuntime:
    """A function that can be invoked, one invocation at a time, as Lambda does."""

    def __init__(self, directory: Path, handler: str, timeout_seconds: int, environment: dict[str, str]) -> None:
        """Choose ports; nothing runs yet. The function's code is in the directory, or installed."""
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/2015-03-31/functions/function/invocations"
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(timeout_seconds),
            # The emulator warns without.
            "AWS_ACCESS_KEY_ID": "made-up",
            "AWS_SECRET_ACCESS_KEY": "made-up",
            "AWS_SESSION_TOKEN": "made-up",
        }
        if "PYTHONPATH" in os.environ:
            own["PYTHONPATH"] = os.environ["PYTHONPATH"]
        addresses = ["--runtime-interface-emulator-address", f"127.0.0.1:{port}"]
        addresses += ["--runtime-api-address", f"127.0.0.1:{free_port()}"]
        function = [sys.executable, "-m", "awslambdaric", handler]
        self.log = directory / "runtime.log"
        self.process = ServerProcess(
            # In a session of its own: the emulator puts the function into another process group, but not out of that.
            ["setsid", "env", f"--chdir={directory}", str(EMULATOR), *addresses, *function],
            log=self.log,
            ready=lambda: listens(port),
            environment=own | environment,
        )

    def invoke(self, event: Any) -> Any:
        """Invoke it, and return what it answers: JSON, or text where it was cut off."""
        request = urllib.request.Request(self._url, data=json.dumps(event).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                body = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                body = error.read().decode()
        try:
            return json.loads(body)
        except ValueError:
            return body

    def end(self) -> None:
        """End the emulator, and the function too, whatever it does just now."""
        session = self.process.pid
        self.process.kill()
        for process in _in_session(session):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        wait_until(lambda: not _in_session(session), "the function to be gone")


def _in_session(session: int) -> list[int]:
    """Return the processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, own = path.read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


@contextmanager
def running_function(
    directory: Path, handler: str, timeout_seconds: int, environment: dict[str, str]
) -> Iterator[LambdaRuntime]:
    """Run a function; nothing is left of it at the end."""
    if not EMULATOR.exists():
        raise RuntimeError(f"{EMULATOR} is missing: AWS' emulator of Lambda's runtime; run `make test`")
    function = LambdaRuntime(directory, handler, timeout_seconds, environment)
    function.process.start()
    try:
        yield function
    except BaseException as error:
        error.add_note(function.log.read_text(errors="replace")[-3000:])
        raise
    finally:
        function.end()
