"""Hostile input to its socket neither stops nor blocks the service, and every event takes effect once."""

import itertools
import os
import re
import socket
import sys
import threading
from contextlib import closing, suppress

import pytest

from lambda_function import text
from payloads import TIME_MS
from servers.process import ServerProcess, wait_until

pytestmark = pytest.mark.xdist_group("hostile")  # one server is enough

PATIENCE_SECONDS = 60.0
KEY = "a-key-for-these-tests"
BODY_BYTES_MAX = 1_000_000
HELD_MAX = 100
#: What the kernel may take on its way, whoever reads it.
BUFFERED_BYTES = 40_000_000

NUMBERS = itertools.count(1000)

HOOKS = '''\
"""A handler that notes what it did, and waits where it is told to."""

import os
import threading
from pathlib import Path


def note(event):
    number = str(event.time_ms)
    while Path("wait").exists() and number in Path("wait").read_text():
        Path("waits").touch()
        threading.Event().wait(0.01)
    file = os.open("effects", os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(file, f"{number}\\n".encode())
    os.close(file)
'''
SETTINGS = f"""\
ledger = "sqlite:///once.db"
api_keys = ["env:KEY_OF_TESTS"]
deliveries_per_request = {HELD_MAX}

[serve]
read_within_seconds = 1
body_bytes_max = {BODY_BYTES_MAX}
"""


class Server:
    """The service as a process, spoken to in bytes."""

    def __init__(self, directory):
        """Write what it needs; nothing runs yet."""
        self.directory = directory
        self.log = directory / "log"
        (directory / "hooks.py").write_text(HOOKS)
        (directory / "oncebridge.toml").write_text(SETTINGS)
        command = [sys.executable, "-m", "oncebridge", "serve", "--port", "0", "--handler", "hooks:note"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEBRIDGE_", "REDIS_"))}
        self.process = ServerProcess(
            ["env", f"--chdir={directory}", *command],
            log=self.log,
            ready=lambda: self._address,
            environment={**kept, "KEY_OF_TESTS": KEY},
        )

    @property
    def _address(self):
        """Where it says that it is found."""
        return re.search(r"http://127\.0\.0\.1:(\d+)", self.log.read_text())

    @property
    def port(self):
        """The port that it is found at."""
        return int(self._address[1])

    def connect(self):
        """Open a connection that is patient."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def talk(self, *parts):
        """Send parts, and return all that is answered until the connection is closed by the service."""
        with self.connect() as connection:
            for part in parts:
                try:
                    connection.sendall(part)
                except OSError:  # it did not want to hear more
                    break
            return rest_of(connection)

    @property
    def effects(self):
        """What took effect, in order."""
        path = self.directory / "effects"
        return path.read_text().split() if path.exists() else []


def rest_of(connection):
    """Read until the other side closes; a reset is an end too."""
    got = b""
    try:
        while data := connection.recv(65_536):
            got += data
    except ConnectionError:
        pass
    return got


def request(body, *headers, key=KEY, method="POST", path="/events", length=None):
    """Write a request that asks for the connection to be closed after it."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body) if length is None else length}"]
    lines += [*([f"X-API-Key: {key}"] if key else []), "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def status(answered):
    """Return the status of the first answer."""
    return int(answered.split(b" ", 2)[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The service, running."""
    server = Server(tmp_path_factory.mktemp("service"))
    server.process.start()
    try:
        yield server
    finally:
        server.process.stop()


@pytest.fixture(autouse=True)
def stays_well(server):
    """After each test the service takes an event, and its log has nothing unexpected."""
    yield
    assert status(server.talk(request(text(next(NUMBERS)).encode()))) == 200
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "Exception" not in log
    assert KEY not in log


def test_a_request_is_answered(server):
    """One that is as it should be."""
    before = len(server.effects)
    answered = server.talk(request(text(1).encode()))
    assert status(answered) == 200
    assert b'"processed":1' in answered
    assert len(server.effects) == before + 1


def test_headers_that_never_end_are_not_waited_for(server):
    """The connection is closed, however slowly they come."""
    server.talk(b"POST /events HTTP/1.1\r\nHost: test\r\nX-Slow:")


def test_headers_that_are_huge_are_not_kept(server):
    """The connection is closed, or answered with an error, before they fill the memory."""
    answered = server.talk(b"POST /events HTTP/1.1\r\nHost: test\r\nX: ", *[b"a" * 1_000_000] * 40)
    assert answered == b"" or 400 <= status(answered) < 500


def test_a_body_that_never_ends_is_not_waited_for(server):
    """Its sender gets 503, and the connection is closed."""
    answered = server.talk(request(b"{", length=100))
    assert status(answered) == 503
    assert b"retry-after: 1\r\n" in answered.lower()


def test_a_body_without_an_end_is_not_kept(server):
    """What comes in chunks is refused as soon as it is too large."""
    head = request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    sent = 0
    with closing(server.connect()) as connection:
        connection.sendall(head)
        try:
            while sent < BUFFERED_BYTES:
                connection.sendall(chunk)
                sent += len(chunk)
        except OSError:
            pass
        answered = rest_of(connection)
    assert sent < BUFFERED_BYTES
    assert answered == b"" or status(answered) == 413


def test_a_body_that_says_it_is_huge_is_not_waited_for(server):
    """Its length is enough to know."""
    assert status(server.talk(request(b"", length=10**15))) == 413
    assert status(server.talk(request(b"", length=BODY_BYTES_MAX + 1))) == 413


@pytest.mark.parametrize("key", [None, "wrong", "", KEY + "x"])
def test_without_a_key_no_body_is_waited_for(server, key):
    """A request without a valid key gets 401 at once, always the same."""
    answered = server.talk(request(b"{", key=key, length=100))
    assert status(answered) == 401
    assert answered.partition(b"\r\n\r\n")[2] == server.talk(request(b"", key=None)).partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("length", ["-1", "1, 2", "0x10", "1e3", "9" * 5000, "", "+5", "5\r\nContent-Length: 7"])
def test_a_length_that_is_none_is_refused(server, length):
    """The end of a request is never guessed."""
    before = len(server.effects)
    answered = server.talk(request(text(2).encode(), length=length))
    assert answered == b"" or status(answered) in (400, 413, 503)
    assert len(server.effects) == before


def test_a_request_with_two_ends_is_one_request_at_most(server):
    """Where length and chunks disagree, what one reader takes for a body is no request for another."""
    hidden = request(text(3).encode())
    head = request(b"0\r\n\r\n" + hidden).replace(b"Connection: close\r\n", b"Transfer-Encoding: chunked\r\n")
    before = len(server.effects)
    with closing(server.connect()) as connection:
        connection.sendall(head)
        answered = rest_of(connection)
    assert answered.count(b"HTTP/1.1 ") <= 1
    assert len(server.effects) == before


@pytest.mark.parametrize("header", ["X: a\nInjected: b", "X: a\rInjected: b", "X: \x00", "X Y: z", ": z", "X\x00: z"])
def test_headers_with_odd_characters_do_no_harm(server, header):
    """Nothing of a header comes back in an answer."""
    answered = server.talk(request(text(4).encode(), header))
    assert answered == b"" or status(answered) in (200, 400)
    assert b"njected" not in answered


@pytest.mark.parametrize("path", ["/%ff", "/..%2f", "/%00", "//", "*", "/events?x=\x7f", "http://elsewhere/events"])
def test_odd_paths_do_no_harm(server, path):
    """A path that is no route is refused."""
    answered = server.talk(request(b"", path=path))
    assert answered == b"" or 400 <= status(answered) < 500


def test_requests_in_a_row_are_answered_in_order(server):
    """A sender need not wait for one answer before it sends the next request."""
    several = [request(text(100 + n).encode()).replace(b"Connection: close\r\n", b"") for n in range(5)]
    answered = server.talk(b"".join([*several, request(b"hello")]))
    statuses = [int(one.split(b" ", 1)[0]) for one in answered.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200] * 5 + [400]


def test_a_sender_that_asks_first_is_told_to_go_on(server):
    """Many clients wait for that before they send much; without a key they need not send it."""
    with closing(server.connect()) as connection:
        head, _, body = request(text(5).encode(), "Expect: 100-continue").partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert status(rest_of(connection)) == 200
    head = request(b"", "Expect: 100-continue", key=None, length=1000)
    assert status(server.talk(head)) == 401


def test_a_sender_that_goes_away_has_brought_its_event(server):
    """A request that was read takes effect, and is a duplicate when its sender retries."""
    number = 6
    (server.directory / "wait").write_text(str(TIME_MS + number))
    with closing(server.connect()) as connection:
        connection.sendall(request(text(number).encode()))
        wait_until((server.directory / "waits").exists, "its handler to run")
    (server.directory / "wait").unlink()
    wait_until(lambda: str(TIME_MS + number) in server.effects, "it to take effect")
    wait_until(lambda: b'"redelivery":1' in server.talk(request(text(number).encode())), "it to be a duplicate")
    assert server.effects.count(str(TIME_MS + number)) == 1


#: Bodies that hold more deliveries than a request may, some of them once they are unwrapped.
TOO_MANY = {
    "list": b"[" + b",".join([b"{}"] * (HELD_MAX + 1)) + b"]",
    "readable list": f"[{','.join(text(n) for n in range(2000, 2000 + HELD_MAX + 1))}]".encode(),
    "numbers": b"[" + b"1," * (BODY_BYTES_MAX // 2 - 2) + b"1]",
    "records": b'{"Records":[' + b"{}," * (BODY_BYTES_MAX // 3 - 10) + b"{}]}",
    "list in a list": b"[[" + b"{}," * (BODY_BYTES_MAX // 3 - 10) + b"{}]]",
    "list in a text": b'["[' + b"{}," * (BODY_BYTES_MAX // 3 - 10) + b'{}]"]',
}


@pytest.mark.parametrize("body", TOO_MANY.values(), ids=TOO_MANY)
def test_a_request_holds_a_bounded_number_of_deliveries(server, body):
    """A request with more deliveries gets 413, and nothing of it is processed or kept."""
    before = len(server.effects)
    answered = server.talk(request(body))
    assert status(answered) == 413
    assert b"deliveries_per_request" in answered
    assert len(server.effects) == before


def test_a_request_may_hold_as_many_as_that(server):
    """The bound itself is allowed."""
    before = len(server.effects)
    body = f"[{','.join(text(n) for n in range(4000, 4000 + HELD_MAX))}]".encode()
    assert f'"processed":{HELD_MAX},'.encode() in server.talk(request(body))
    assert len(server.effects) == before + HELD_MAX


# --- connections ----------------------------------------------------------------------------------------------

#: More than the service takes at a time.
MANY = 1100
#: Answered to anybody, and large.
LARGE = b"GET /openapi.json HTTP/1.1\r\nHost: test\r\n\r\n"
HEALTH = request(b"", key=None, method="GET", path="/health")


class Crowd:
    """Connections that go on sending and never read."""

    def __init__(self, server, number, sent):
        """Open them, without waiting for any."""
        self.alive = [socket.socket() for _ in range(number)]
        self._all = list(self.alive)
        self._sent = sent
        self._over = threading.Event()
        for connection in self.alive:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.connect(("127.0.0.1", server.port))
        self._thread = threading.Thread(target=self._keep_sending)

    def __enter__(self):
        """Begin to send."""
        self._thread.start()
        return self

    def __exit__(self, *_):
        """Go away."""
        self._over.set()
        self._thread.join()
        for connection in self._all:
            connection.close()

    def _keep_sending(self):
        while not self._over.wait(0.05):
            self.alive = [connection for connection in self.alive if self._goes_on(connection)]

    def _goes_on(self, connection):
        """Send as much as goes; tell whether the service has left the connection open."""
        try:
            connection.send(self._sent)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def answers(server, address):
    """Tell whether a client of this address is answered."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS, (address, 0)) as connection:
        connection.sendall(HEALTH)
        return rest_of(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [LARGE * 20, HEALTH.replace(b"close", b"keep-alive") * 200, b"G"])
def test_connections_that_read_nothing_keep_nobody_out(server, sent):
    """Other clients are answered, also from the same address, and unread answers are dropped in time."""
    with Crowd(server, MANY, sent) as crowd:
        wait_until(lambda: answers(server, "127.0.0.2"), "another address is answered", 10)
        wait_until(lambda: answers(server, "127.0.0.1"), "the same address is answered", 10)
        wait_until(lambda: not crowd.alive, "all of them are closed")


def test_a_client_that_takes_its_answers_is_left_alone(server):
    """A client that keeps reading has no deadline, however long it takes."""
    with server.connect() as connection, connection.makefile("rb") as answered:
        for _ in range(40):
            connection.sendall(LARGE)
            length = next(int(line[15:]) for line in answered if line.lower().startswith(b"content-length:"))
            while answered.readline() != b"\r\n":
                pass
            assert len(answered.read(length)) == length
            threading.Event().wait(0.05)


@pytest.mark.parametrize("path", ["/claims/", "/metrics/", "/events/", "/health/", "//metrics", "/claims/settle/"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nobody_is_sent_elsewhere(server, method, path):
    """A path with a slash too many is not there; a redirect would ask for no key, and name http:// behind a proxy."""
    answered = server.talk(request(b"", key=None, method=method, path=path))
    assert status(answered) == 404
    assert b"location:" not in answered.lower()
