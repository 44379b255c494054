"""The worker processes of the service: which address they share, who keeps them running, and how they end."""

from __future__ import annotations

import asyncio
import ipaddress
import multiprocessing
import os
import signal
import socket
import threading
from enum import Enum
from math import ceil
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.errors import ConfigurationError, MissingExtra
from oncebridge.service.metrics import NEWEST, read_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from pathlib import Path

    from granian.server.common import AbstractServer

    from oncebridge.service.door import Application, Receive, Scope, Send
    from oncebridge.service.metrics import WorkerMetrics
    from oncebridge.settings.serve import ServeSettings

#: How much longer than a request a worker may take to end; then it is killed.
END_SECONDS: Final = 2
LOOK_SECONDS: Final = 0.05  # how often the start is looked after
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


# --- the address ---------------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """An address and a port that are ours as long as the socket is open; the workers listen there too."""

    held: socket.socket
    address: str
    port: int

    @property
    def url(self) -> str:
        """Where the service is found."""
        return f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{self.port}"


def address_of(host: str) -> str:
    """Find the address that a host's name stands for."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"host: {host!r} cannot be resolved: {error}; name an address of this machine"
        ) from None
    # A name may have both kinds of addresses; the older kind works everywhere.
    return min((family != socket.AF_INET, str(address[0])) for family, *_, address in found)[1]


def is_loopback(address: str) -> bool:
    """Tell whether only this machine reaches an address."""
    return ipaddress.ip_address(address).is_loopback


def take_place(address: str, port: int) -> Place:
    """Make sure that nobody listens at a port, and keep it for the workers; 0 takes a free one."""
    try:
        with _bound(address, port):
            pass  # alone: whoever listens there already is in the way, even if they would share it
        held = _bound(address, port, shared=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {address} port {port}: {error.strerror}; name another by --host and --port"
        ) from None
    return Place(held, address, held.getsockname()[1])


def _bound(address: str, port: int, *, shared: bool = False) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        # What is left of connections that are closed is in nobody's way.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


# --- in the process of a worker --------------------------------------------------------------------------------


class Worker:
    """The application in one worker, with what begins and ends with the process."""

    def __init__(self, application: Application, metrics: WorkerMetrics) -> None:
        """Take what answers requests, and what counts."""
        self._application = application
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; begin and end."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        else:
            await self._application(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tell(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                await asyncio.to_thread(self._metrics.start)
            elif message["type"] == "lifespan.shutdown.complete":
                await asyncio.to_thread(self._metrics.close)
            await send(message)

        _leave_interrupts_to_parent()
        threading.Thread(target=_end_with_parent, name="oncebridge-parent", daemon=True).start()
        await self._application(scope, receive, tell)


def _leave_interrupts_to_parent() -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal: the parent says when to stop."""
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_with_parent() -> None:
    """Come to an orderly end when the parent was killed: nobody else would end this process then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


# --- in the process that keeps them running ----------------------------------------------------------------------


class End(Enum):
    """How a service ended."""

    ORDERLY = "orderly"
    #: Somebody did not want to wait.
    FORCED = "forced"
    #: The workers ended again as soon as they were started.
    GAVE_UP = "gave up"


class Workers:
    """Starts worker processes, starts those again that die, and ends all when told to."""

    def __init__(
        self,
        load: Callable[[], Application],
        place: Place,
        settings: ServeSettings,
        *,
        folder: Path,
        log: dict[str, Any],
    ) -> None:
        """Take what makes the application in a worker (it is pickled), and how the server's log is written."""
        self._load = load
        self._place = place
        self._settings = settings
        self._folder = folder
        self._server = _server(place, settings, log)
        #: Those that asked for the end.
        self.signals: list[int] = []
        self._over = threading.Event()

    def run(self, *, on_ready: Callable[[], None], on_stop: Callable[[], None]) -> End:
        """Run until told to stop: SIGTERM and Ctrl-C let running requests finish, a second one does not."""

        def stop(number: int, _: object) -> None:
            self.signals.append(number)
            if len(self.signals) == 1:
                # In a thread: a signal may have interrupted whoever holds a lock just now.
                threading.Thread(target=self._stop, args=(on_stop,), name="oncebridge-stop").start()
            else:
                for worker in list(self._server.wrks):
                    worker.kill()

        def begin() -> None:
            # The server has set its own by now.
            for number in SIGNALS:
                signal.signal(number, stop)
            signal.signal(signal.SIGHUP, before[signal.SIGHUP])
            threading.Thread(target=self._wait_for_all, args=(on_ready,), name="oncebridge-ready").start()

        # What a handler's module keeps from when it was imported, such as connections, is not for several processes.
        multiprocessing.set_start_method("spawn", force=True)
        before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGHUP)}
        self._server.on_startup(begin)
        try:
            self._server.serve(target_loader=self._load, wrap_loader=False)
        except SystemExit:
            # A worker that was told to stop too may have been quicker than we were.
            if not self.signals:
                return End.GAVE_UP
        finally:
            self._over.set()
            for number, handler in before.items():
                signal.signal(number, handler)
        return End.FORCED if len(self.signals) > 1 else End.ORDERLY

    def _stop(self, on_stop: Callable[[], None]) -> None:
        self._server.signal_handler_interrupt()  # type: ignore[no-untyped-call]
        on_stop()

    def _wait_for_all(self, on_ready: Callable[[], None]) -> None:
        while not self._over.wait(LOOK_SECONDS) and not self.signals:
            if sum(1 for _ in read_snapshots(self._folder, NEWEST)) >= self._settings.workers and self._answers():
                on_ready()
                return

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self._place.address, self._place.port), timeout=1):
                return True
        except OSError:
            return False


def _server(place: Place, settings: ServeSettings, log: dict[str, Any]) -> AbstractServer[Any]:
    try:
        from granian import Granian
        from granian.constants import HTTPModes, Interfaces
        from granian.http import HTTP1Settings
        from granian.log import LogLevels
    except ImportError:
        raise MissingExtra("the service needs granian; install it with: pip install 'oncebridge[http]'") from None
    return Granian(
        "oncebridge",
        address=place.address,
        port=place.port,
        interface=Interfaces.ASGI,
        workers=settings.workers,
        # HTTP/1 alone: where a connection may become either, one that sends nothing is never closed.
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=int(settings.read_within_seconds * 1000)),
        websockets=False,
        log_level=LogLevels.warning,
        log_dictconfig=log,
        respawn_failed_workers=True,
        workers_kill_timeout=ceil(settings.answer_within_seconds) + END_SECONDS,
    )
