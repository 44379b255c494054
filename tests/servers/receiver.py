"""A receiver of webhooks: it answers as its script says, and shows what it was sent and what took effect."""

import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias

SUCCESSES = range(200, 300)


@dataclass(frozen=True)
class Request:
    """One request as it came; `headers["idempotency-key"]` is found however it was written."""

    method: str
    path: str
    headers: HTTPMessage
    body: bytes
    #: Counts from 1, in order of arrival over all connections.
    n: int
    #: Which connection it came on, counted from 1.
    connection: int

    @property
    def key(self) -> str:
        """Its idempotency key; empty if it has none."""
        return self.headers.get("Idempotency-Key", "")


@dataclass(frozen=True)
class Reply:
    """What a receiver does with one request. A status of 2xx lets it take effect, whatever comes then.

    So `Reply(then="close before answer")` is an effect whose answer was lost, and
    `Reply(500, then="close before answer")` a receiver that died before it did anything.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    then: Literal["answer", "close before answer", "hang until closed"] = "answer"


Script: TypeAlias = Callable[[Request], Reply]


def accepting(_: Request) -> Reply:
    """Accept whatever comes."""
    return Reply()


class Receiver:
    """Listens on a free port of this machine, each connection in a thread of its own."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None) -> None:
        """Take what it answers by; it is asked from several threads at once."""
        self.script = script
        self.tls = tls
        #: Set when the receiver is being closed; a script that waits waits for this too.
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._raw_effects: Counter[str] = Counter()
        self._open: dict[socket.socket, int] = {}
        self._connections = 0
        #: What scripts raised; the first of them is raised at the end.
        self.mistakes: list[Exception] = []
        self._server = _Server(self)
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="receiver")

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Such as `http://127.0.0.1:43210/events`."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/events"

    @property
    def requests(self) -> list[Request]:
        """Every request seen so far, as a list of its own."""
        with self._lock:
            return list(self._requests)

    @property
    def connections(self) -> int:
        """How many connections were opened so far."""
        with self._lock:
            return self._connections

    @property
    def raw_effects(self) -> Counter[str]:
        """How often each key took effect at a receiver that does not look at keys."""
        with self._lock:
            return Counter(self._raw_effects)

    @property
    def effects(self) -> dict[str, int]:
        """How often each key took effect at a receiver that honours keys: once, or it is not here.

        Requests without a key (under "") cannot be told apart, and each takes effect.
        """
        return {key: 1 if key else count for key, count in self.raw_effects.items()}

    # --- what its connections tell it ------------------------------------------------------------------

    def opened(self, connection: socket.socket) -> None:
        """Remember a connection, to cut it off at the end."""
        with self._lock:
            self._connections += 1
            self._open[connection] = self._connections

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._lock:
            self._open.pop(connection, None)

    def answer(self, connection: socket.socket, method: str, path: str, headers: HTTPMessage, body: bytes) -> Reply:
        """Remember a request, ask the script, and let it take effect or not."""
        with self._lock:
            request = Request(method, path, headers, body, len(self._requests) + 1, self._open[connection])
            self._requests.append(request)
        reply = self.script(request)
        if reply.status in SUCCESSES:
            with self._lock:
                self._raw_effects[request.key] += 1
        return reply

    # --- its life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take connections."""
        self._serving.start()

    def close(self) -> None:
        """End everything: requests that hang, connections that are kept alive, and the threads."""
        self.closing.set()
        self._server.shutdown()
        self._serving.join()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with suppress(OSError):  # it went by itself just now
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()  # waits for the threads


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for them
    request_queue_size = 128

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        super().__init__(("127.0.0.1", 0), _Connection)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self.receiver.tls is not None:
            # Hands are shaken with the first read, in the connection's own thread.
            connection = self.receiver.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self.receiver.opened(connection)  # before its thread runs: none is overlooked at the end
        return connection, address

    def close_request(self, request: Any) -> None:
        self.receiver.closed(request)
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        mistake = sys.exception()
        if isinstance(mistake, Exception) and not isinstance(mistake, OSError):  # that one is a client who went away
            self.receiver.mistakes.append(mistake)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer goes out in one piece
    server: _Server

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = self.server.receiver.answer(self.request, self.command, self.path, self.headers, body)
        if reply.then != "answer":
            if reply.then == "hang until closed":
                self.server.receiver.closing.wait()
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_POST = do_PUT = do_GET = handle_any  # noqa: N815 - so http.server calls them

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Say nothing: the requests can be seen in `receiver.requests`."""


@contextmanager
def running_receiver(script: Script = accepting, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run a receiver that answers as its script says; what a script raises is raised again at the end."""
    receiver = Receiver(script, tls)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.close()
        for mistake in receiver.mistakes:  # whatever else went wrong, this is why
            raise mistake
