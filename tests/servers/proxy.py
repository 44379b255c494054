"""A network that fails on cue: stands between a client and a server, and cuts, swallows or keeps back what passes."""

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65_536


class Proxy:
    """Passes bytes on between clients and one server, until it is told otherwise."""

    def __init__(self, server_port: int) -> None:
        """Listen on a free port of this machine."""
        self._server_port = server_port
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._passes = threading.Event()
        self._passes.set()
        self._refuses = False
        self._shut_out = ""
        self._drips_seconds: float | None = None
        self._falters: tuple[float, float, random.Random] | None = None
        self._healed = threading.Event()
        self._drops_reply_to: Callable[[bytes], bool] | None = None
        #: Set once a reply was dropped.
        self.dropped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._closing = False
        self._accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._accepting.start()

    # --- what a test can do --------------------------------------------------------------------------

    def url(self, server_url: str) -> str:
        """Return the server's URL with this proxy in its place."""
        parts = urlsplit(server_url)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}"))

    def cut(self) -> None:
        """Reset every connection that there is; new ones are welcome."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _reset(*pair)

    def lead_to(self, server_port: int) -> None:
        """Lead to another server from now on, as a name does that is pointed elsewhere."""
        self._server_port = server_port
        self.cut()

    def refuse(self) -> None:
        """Cut everything, and let nobody connect any more."""
        self._refuses = True
        self.cut()

    def shut_out(self, source: str) -> None:
        """Cut connections that come from this address of the machine, and let it make no more; others go on."""
        self._shut_out = source
        with self._lock:
            ours = [pair for pair in self._pairs if _comes_from(pair[0], source)]
            self._pairs = [pair for pair in self._pairs if pair not in ours]
        for pair in ours:
            _reset(*pair)

    def swallow(self) -> None:
        """Pass nothing on in either direction and answer nothing, as a black hole; connections stay."""
        self._passes.clear()
        self._refuses = False

    def drip(self, seconds: float) -> None:
        """Pass replies on one byte at a time, each after so many seconds: the server is never silent."""
        self._healed.clear()
        self._drips_seconds = seconds

    def falter(self, seconds: float, share: float, dice: random.Random) -> None:
        """Keep every reply back for so long, and cut the connection in place of some of them."""
        self._healed.clear()
        self._falters = (seconds, share, dice)
        self._refuses = False
        self._passes.set()

    def drop_reply_to(self, matches: Callable[[bytes], bool]) -> None:
        """Let the next request that matches reach the server, then cut the connection in place of its reply."""
        self.dropped.clear()
        self._drops_reply_to = matches

    def heal(self) -> None:
        """Pass everything on again; what was swallowed arrives late."""
        self._refuses = False
        self._shut_out = ""
        self._drops_reply_to = None
        self._drips_seconds = None
        self._falters = None
        self._healed.set()
        self._passes.set()

    def close(self) -> None:
        """End all of it."""
        self._closing = True
        self._healed.set()
        self._passes.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._accepting.join()

    # --- passing on ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._passes.wait()
            try:
                if self._refuses or _comes_from(client, self._shut_out):
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                _reset(client)
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((client, server))
            if self._refuses:  # told so just now, when this pair was not there to be cut
                self.cut()
                continue
            muted = threading.Event()  # the reply that comes next is not for the client
            for source, target, is_request in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pump, args=(source, target, muted), kwargs={"is_request": is_request}, daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket, muted: threading.Event, *, is_request: bool) -> None:
        with contextlib.closing(source), suppress(OSError):
            while data := source.recv(CHUNK):
                self._passes.wait()
                if is_request:
                    matches = self._drops_reply_to
                    if matches is not None and matches(data):
                        self._drops_reply_to = None
                        muted.set()
                elif muted.is_set():
                    self.dropped.set()  # the server has done it, and nobody learns of it
                    _reset(target, source)
                    return
                if not is_request and self._falters is not None:
                    seconds, share, dice = self._falters
                    self._healed.wait(seconds)
                    if dice.random() < share:
                        _reset(target, source)
                        return
                while not is_request and self._drips_seconds is not None and data:
                    self._healed.wait(self._drips_seconds)
                    target.sendall(data[:1])
                    data = data[1:]
                target.sendall(data)
        _reset(target)


def _comes_from(client: socket.socket, source: str) -> bool:
    try:
        return bool(client.getpeername()[0] == source)
    except OSError:
        return False  # it has gone meanwhile


def _reset(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            one.close()


@contextmanager
def running_proxy(server_port: int) -> Iterator[Proxy]:
    """Run a proxy before a server of this machine."""
    proxy = Proxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()
