"""One server process: started, waited for, killed on cue, and surely ended."""

import atexit
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

START_SECONDS = 60.0  # a busy machine is not a bug
STOP_SECONDS = 20.0
PR_SET_PDEATHSIG = 1
PORTS = range(12_000, 22_000)  # with the buses all below 32768, where the ports of outgoing connections begin
BUS_ABOVE = 10_000


def free_port() -> int:
    """Return a port of this process' own: nobody listens on it, nor on the one that a cluster bus has above it.

    It is below the ports that outgoing connections get, so none of those takes it before the server does. Other
    processes that come for a port see by the datagram socket, which is held until this one ends, that it is given away.
    """
    for port in random.sample(PORTS, len(PORTS)):
        held = socket.socket(type=socket.SOCK_DGRAM)
        try:
            held.bind(("127.0.0.1", port))
            for taken in (port, port + BUS_ABOVE):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", taken))
        except OSError:
            held.close()
            continue
        atexit.register(held.close)
        return port
    raise RuntimeError(f"no port from {PORTS.start} to {PORTS.stop} is free")


def wait_until(holds: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
    """Wait until something holds; fail by its name if it never does. An OSError means not yet."""
    pause, give_up = threading.Event(), monotonic() + seconds
    while monotonic() < give_up:
        with suppress(OSError):
            if holds():
                return
        pause.wait(0.01)
    raise TimeoutError(f"waited {seconds:g} s in vain: {what}")


def listens(port: int) -> bool:
    """Tell whether somebody answers at a port of this machine."""
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Let the kernel end a server whose test run was killed (Linux only)."""
    if sys.platform != "linux":
        return list(command)
    ask = f"ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})"
    code = f"import ctypes, os, sys; {ask}; os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-IS", "-c", code, *command]


class ServerProcess:
    """A server that can be started again with the same command, as after a crash."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        ready: Callable[[], object],
        environment: Mapping[str, str] | None = None,
        stop_signal: int = signal.SIGTERM,
    ) -> None:
        """Take the command and how to see that the server is ready; nothing runs yet."""
        self._command = list(command)
        self._log = log
        self._ready = ready
        self._environment = dict(environment) if environment is not None else None
        self._stop_signal = stop_signal
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_parent(self._command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        try:
            wait_until(self._is_ready, f"{self._command[0]} to be ready")
        except BaseException as error:
            self.kill()
            error.add_note(self._log.read_text(errors="replace")[-2000:])
            raise

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._command[0]} ended at once: {self._log.read_text(errors='replace')[-2000:]}")
        return bool(self._ready())

    def send(self, number: int) -> None:
        """Send a signal, such as SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would: kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it orderly, or at least surely."""
        if self._process is None:
            return
        self._process.send_signal(self._stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
