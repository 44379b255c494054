"""The worker processes of the service: the address they share, their supervision, and their end."""

from __future__ import annotations

import asyncio
import ipaddress
import multiprocessing
import os
import signal
import socket
import threading
from collections import Counter
from enum import Enum
from math import ceil
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from oncebridge.clock import SystemClock
from oncebridge.errors import ConfigurationError, MissingExtra
from oncebridge.service.connections import ConnectionLimits, room_for
from oncebridge.service.metrics import BEFORE, NEWEST, read_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from pathlib import Path

    from granian.server.common import AbstractServer

    from oncebridge.service.request_limits import Application, Receive, Scope, Send
    from oncebridge.settings.serve import ServeSettings

#: A worker that takes this much longer than a request to end is killed.
END_SECONDS: Final = 2
#: Within this time the thread that watches a worker has noted its end.
NOTED_SECONDS: Final = 1.0
READY_POLL_SECONDS: Final = 0.05
STARTS_MAX: Final = 3  # workers that exit before any has been up: then the settings are wrong
QUICK_DEATH_SECONDS: Final = 30.0  # a worker that lived longer is started again at once
BACK_OFF_SECONDS: Final = 0.25
BACK_OFF_SECONDS_MAX: Final = 5.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


# --- the address ---------------------------------------------------------------------------------------------


class ListenAddress(msgspec.Struct, frozen=True):
    """An address and a port, reserved for the workers as long as the socket is open."""

    held: socket.socket
    address: str
    port: int

    @property
    def url(self) -> str:
        """The URL of the service."""
        return f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{self.port}"


def address_of(host: str) -> str:
    """Resolve a host's name to an address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"host: {host!r} cannot be resolved: {error}; name an address of this machine"
        ) from None
    # A name may have both kinds of addresses; IPv4 works everywhere.
    return min((family != socket.AF_INET, str(address[0])) for family, *_, address in found)[1]


def is_loopback(address: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    return ipaddress.ip_address(address).is_loopback


def reserve_address(address: str, port: int) -> ListenAddress:
    """Reserve a port that no other process listens on; 0 takes a free one."""
    try:
        with _bound(address, port):
            pass  # without SO_REUSEPORT: fails even if the process that listens there would share the port
        held = _bound(address, port, shared=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {address} port {port}: {error.strerror}; name another by --host and --port"
        ) from None
    return ListenAddress(held, address, held.getsockname()[1])


def _bound(address: str, port: int, *, shared: bool = False) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        # Closed connections in TIME_WAIT do not count.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


# --- in the process of a worker --------------------------------------------------------------------------------


class WorkerPart(Protocol):
    """A part of a worker that starts and ends with it."""

    def start(self) -> None:
        """Start, before requests are accepted."""

    def close(self) -> None:
        """ServiceEnd, after the last request was answered."""


class WorkerApplication:
    """The application in one worker process, with the parts that start and end with the process."""

    def __init__(self, application: Application, *parts: WorkerPart) -> None:
        """Take the application and the parts."""
        self._application = application
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or speak the lifespan protocol."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        else:
            await self._application(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_parts(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                for part in self._parts:
                    await asyncio.to_thread(part.start)
            elif message["type"] == "lifespan.shutdown.complete":
                for part in reversed(self._parts):
                    await asyncio.to_thread(part.close)
            await send(message)

        _leave_interrupts_to_parent()
        threading.Thread(target=_end_with_parent, name="oncebridge-parent", daemon=True).start()
        await self._application(scope, receive, send_with_parts)


def _leave_interrupts_to_parent() -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal: the parent decides when to stop."""
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_with_parent() -> None:
    """Stop in order when the parent was killed: nothing else would end this process then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


# --- in the parent process ---------------------------------------------------------------------------------------


class ServiceEnd(Enum):
    """How a service ended."""

    ORDERLY = "orderly"
    #: A second signal came.
    FORCED = "forced"
    #: The workers exited as soon as they were started.
    GAVE_UP = "gave up"


class Restarts:
    """Decides when a worker that died is started again: pure."""

    def __init__(self) -> None:
        """Start with a service that has not been up yet."""
        self._never_up = 0
        self._quick: Counter[int] = Counter()

    def delay(self, number: int, *, lived_seconds: float, has_been_up: bool, killed: bool) -> float | None:
        """Return how long to wait before this worker is started again; None to give up.

        A service that has been up never gives up. A worker that was killed, by an operator or for its memory, is no
        sign of wrong settings; one that exited before any worker was up is.
        """
        if not has_been_up and not killed:
            self._never_up += 1
            return None if self._never_up >= STARTS_MAX else 0.0
        if lived_seconds >= QUICK_DEATH_SECONDS:
            self._quick[number] = 0
        died = self._quick[number]
        self._quick[number] += 1
        return min(BACK_OFF_SECONDS * 2 ** (died - 1), BACK_OFF_SECONDS_MAX) if died else 0.0


class Workers:
    """Starts the worker processes, restarts those that die, and ends all of them on a signal."""

    def __init__(
        self,
        load: Callable[[], Application],
        address: ListenAddress,
        settings: ServeSettings,
        *,
        folder: Path,
        log: dict[str, Any],
    ) -> None:
        """Take the factory of a worker's application, which is pickled, and the configuration of the server's log."""
        self._load = load
        self._address = address
        self._settings = settings
        self._folder = folder
        self._server = _server(address, settings, log)
        # Granian's own loop gives up when a worker dies within seconds of its restart, and has no back-off.
        self._server._serve_loop = self._keep_running  # type: ignore[method-assign]  # noqa: SLF001
        # On a busy machine granian's own takes workers that have ended for stuck, and kills them once more.
        self._server._stop_workers = self._end_workers  # type: ignore[method-assign]  # noqa: SLF001
        self._restarts = Restarts()
        self._clock = SystemClock()
        #: The signals that asked for the end.
        self.signals: list[int] = []
        self._over = threading.Event()

    def run(
        self, *, on_ready: Callable[[], None], on_stop: Callable[[], None], on_death: Callable[[str], None]
    ) -> ServiceEnd:
        """Run until SIGTERM or Ctrl-C. The first lets running requests finish, a second one does not."""
        self._on_death = on_death

        def stop(number: int, _: object) -> None:
            self.signals.append(number)
            if len(self.signals) == 1:
                # In a thread: the signal may have interrupted code that holds a lock.
                threading.Thread(target=self._stop, args=(on_stop,), name="oncebridge-stop").start()
            else:
                for worker in list(self._server.wrks):
                    worker.kill()

        def begin() -> None:
            # Granian has installed its own handlers by now.
            for number in SIGNALS:
                signal.signal(number, stop)
            signal.signal(signal.SIGHUP, before[signal.SIGHUP])
            threading.Thread(target=self._wait_for_all, args=(on_ready,), name="oncebridge-ready").start()

        # A module may open connections when it is imported; processes must not share them.
        multiprocessing.set_start_method("spawn", force=True)
        before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGHUP)}
        self._server.on_startup(begin)
        try:
            self._server.serve(target_loader=self._load, wrap_loader=False)
        except SystemExit:
            # A signal to the whole group may have ended a worker before us.
            if not self.signals:
                return ServiceEnd.GAVE_UP
        finally:
            self._over.set()
            for number, handler in before.items():
                signal.signal(number, handler)
        return ServiceEnd.FORCED if len(self.signals) > 1 else ServiceEnd.ORDERLY

    def _keep_running(self, *spawn: Any) -> None:
        """Restart workers that die, until a signal comes or restarting is pointless. Replaces granian's own loop."""
        server, due = self._server, dict[int, float]()
        while not server.interrupt_signal:
            server.main_loop_interrupt.wait(None if not due else max(0.0, min(due.values()) - self._now()))
            server.main_loop_interrupt.clear()
            died, server.interrupt_children[:] = list(server.interrupt_children), []
            for number in died:
                delay = self._look_at_death(number)
                if delay is None:
                    server.interrupt_children.append(number)  # granian then exits with an error
                    return
                due[number] = self._now() + delay
            ready = [number for number, at in due.items() if at <= self._now()]
            if ready and not server.interrupt_signal:
                server._respawn_workers(ready, *spawn)  # noqa: SLF001
            for number in ready:
                del due[number]

    def _now(self) -> float:
        """Return the time in seconds, by the clock that granian uses."""
        return self._clock.monotonic_us() / 1_000_000

    def _look_at_death(self, number: int) -> float | None:
        """Report a death, and return when the worker is started again; None to give up."""
        worker = self._server.wrks[number]
        has_been_up = any(read_snapshots(self._folder, NEWEST, BEFORE))
        lived_seconds = self._now() - worker.birth
        code = worker.inner.exitcode or 0
        killed = code == -signal.SIGKILL
        delay = self._restarts.delay(number, lived_seconds=lived_seconds, has_been_up=has_been_up, killed=killed)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        then = "" if delay is None else f"; started again in {delay:g} s" if delay else "; started again"
        self._on_death(f"worker {number + 1} {how}{then}")
        return delay

    def _end_workers(self) -> None:
        """Have all workers end, and kill those that take too long. Replaces granian's own way."""
        workers = list(self._server.wrks)
        for worker in workers:
            worker.terminate()
        until = self._now() + (self._server.workers_kill_timeout or 0)
        for worker in workers:
            worker.join(max(0.001, until - self._now()))
            if self._is_alive(worker):
                self._on_death(f"worker {worker.idx + 1} took too long to end, and is killed")
                worker.kill()
                worker.join()
        self._server.wrks.clear()

    def _is_alive(self, worker: Any) -> bool:
        """Return whether a worker that was waited for runs: whether it does is known a moment after its end."""
        pause, until = threading.Event(), self._now() + NOTED_SECONDS
        while worker.is_alive() and self._now() < until:
            pause.wait(READY_POLL_SECONDS / 10)
        return bool(worker.is_alive())

    def _stop(self, on_stop: Callable[[], None]) -> None:
        self._server.signal_handler_interrupt()  # type: ignore[no-untyped-call]
        on_stop()

    def _wait_for_all(self, on_ready: Callable[[], None]) -> None:
        while not self._over.wait(READY_POLL_SECONDS) and not self.signals:
            if sum(1 for _ in read_snapshots(self._folder, NEWEST)) >= self._settings.workers and self._answers():
                on_ready()
                return

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self._address.address, self._address.port), timeout=1):
                return True
        except OSError:
            return False


def _server(address: ListenAddress, settings: ServeSettings, log: dict[str, Any]) -> AbstractServer[Any]:
    try:
        from granian import Granian
        from granian.constants import HTTPModes, Interfaces
        from granian.http import HTTP1Settings
        from granian.log import LogLevels
    except ImportError:
        raise MissingExtra("the service needs granian; install it with: pip install 'oncebridge[http]'") from None
    return Granian(
        "oncebridge",
        address=address.address,
        port=address.port,
        interface=Interfaces.ASGI,
        workers=settings.workers,
        # HTTP/1 alone: where a connection may become either, one that sends nothing is never closed.
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=int(settings.read_within_seconds * 1000)),
        websockets=False,
        backpressure=room_for(ConnectionLimits.of(settings).total),
        log_level=LogLevels.warning,
        log_dictconfig=log,
        workers_kill_timeout=ceil(settings.answer_within_seconds) + END_SECONDS,
    )
