"""Workers of the service: the address that they share, and what begins and ends with each of them."""

import asyncio
import signal
import socket
from types import SimpleNamespace

import granian
import pytest

from oncebridge.errors import ConfigurationError
from oncebridge.service.workers import WorkerApplication, Workers, address_of, is_loopback, reserve_address
from oncebridge.settings.serve import ServeSettings

# --- the address ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "::1"), ("0.0.0.0", "0.0.0.0"), ("::", "::")],
)
def test_a_host_is_an_address_or_a_name_of_one(host, address):
    """Of a name with both kinds of addresses the IPv4 one is taken, which works everywhere."""
    assert address_of(host) == address


@pytest.mark.parametrize("host", ["no-such-host.invalid", "[::1]", "127.0.0.1:80", "a" * 70, "ü" * 300, "http://x"])
def test_a_host_that_is_none_is_refused(host):
    """A name that cannot be resolved is refused, and named."""
    with pytest.raises(ConfigurationError, match=r"host: .* cannot be resolved"):
        address_of(host)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1"])
def test_loopback_addresses_are_reached_by_this_machine_alone(address):
    """Loopback is all of 127.0.0.0/8, and ::1."""
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.7", "10.0.0.1", "8.8.8.8", "fe80::1", "128.0.0.1"])
def test_no_other_address_is(address):
    """All addresses at once, and private ones, are reached from elsewhere."""
    assert not is_loopback(address)


def test_a_port_that_somebody_listens_on_is_refused():
    """The error names address, port, reason and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=f"cannot listen on 127.0.0.1 port {port}: Address .* in use; name"
        ):
            reserve_address("127.0.0.1", port)


def test_a_port_is_refused_even_where_whoever_listens_would_share_it():
    """Two services at one port would each get some of the requests, without a sign of it."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigurationError, match="in use"):
            reserve_address("127.0.0.1", other.getsockname()[1])


def test_a_place_is_kept_for_workers_that_do_not_listen_yet():
    """Each worker can listen there, and no other process gets the port."""
    listening = reserve_address("127.0.0.1", 0)
    try:
        assert listening.port > 0
        assert listening.url == f"http://127.0.0.1:{listening.port}"
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", listening.port))
        for _ in range(2):
            with socket.socket() as worker:
                worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                worker.bind(("127.0.0.1", listening.port))
    finally:
        listening.held.close()


def test_a_port_that_is_let_go_can_be_taken_at_once():
    """Closed connections in TIME_WAIT do not block a restart."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = server.accept()
            connection.close()  # so that it is this side that remembers the connection for a while
            assert client.recv(1) == b""
    reserve_address("127.0.0.1", port).held.close()


def test_an_address_of_the_newer_kind_is_in_brackets():
    """An IPv6 address is in brackets in the URL, so that the port is clear."""
    listening = reserve_address("::1", 0)
    listening.held.close()
    assert listening.url == f"http://[::1]:{listening.port}"


# --- the server ----------------------------------------------------------------------------------------------


def test_the_server_is_told_what_settings_say(monkeypatch, tmp_path):
    """Slow clients are cut off, dead workers replaced, stuck ones killed after the time that a request may take."""
    told = {}

    def server(_, **options):
        told.update(options)
        return SimpleNamespace()

    monkeypatch.setattr(granian, "Granian", server)
    listening = reserve_address("127.0.0.1", 0)
    listening.held.close()
    settings = ServeSettings(workers=3, read_within_seconds=1.5, answer_within_seconds=2.5)
    Workers(print, listening, settings, folder=tmp_path, log={})
    assert (told["address"], told["port"], told["workers"]) == ("127.0.0.1", listening.port, 3)
    assert (told["interface"], told["http"], told["websockets"]) == ("asgi", "1", False)
    assert told["http1_settings"].header_read_timeout == 1500
    assert told["backpressure"] == 342
    assert 2.5 < told["workers_kill_timeout"] < 10
    assert told["log_level"] == "warning"
    assert not told.get("log_access")


class Ended:
    """A worker process: it ends when it is told so, unless it is stuck, and that is known a few looks later."""

    def __init__(self, idx, *, is_stuck=False, looks=0):
        """Run."""
        self.idx, self.did = idx, []
        self._is_stuck, self._looks = is_stuck, looks

    def is_alive(self):
        """Look."""
        self._looks -= 1
        return (self._is_stuck and "kill" not in self.did) or self._looks >= 0

    def __getattr__(self, name):
        """Note what is done to it."""
        return lambda *_: self.did.append(name)


def test_only_a_worker_that_does_not_end_is_killed(monkeypatch, tmp_path):
    """One that has ended is left in peace, also before a busy machine has noted its end; a stuck one is named."""
    gone, unnoted, stuck = workers = [Ended(0), Ended(1, looks=3), Ended(2, is_stuck=True)]
    server = SimpleNamespace(wrks=[*workers], workers_kill_timeout=7)
    monkeypatch.setattr(granian, "Granian", lambda *_, **__: server)
    monkeypatch.setattr("oncebridge.service.workers.NOTED_SECONDS", 0.2)
    listening = reserve_address("127.0.0.1", 0)
    listening.held.close()
    service, said = Workers(print, listening, ServeSettings(), folder=tmp_path, log={}), []
    service._on_death = said.append
    server._stop_workers()
    assert gone.did == unnoted.did == ["terminate", "join"]
    assert stuck.did == ["terminate", "join", "kill", "join"]
    assert said == ["worker 3 took too long to end, and is killed"]
    assert server.wrks == []


# --- in the process of a worker --------------------------------------------------------------------------------


class Log(list):
    """A double for metrics that notes events in order."""

    def start(self):
        """Note the first snapshot."""
        self.append("first snapshot")

    def close(self):
        """Note the last one."""
        self.append("last snapshot")


@pytest.fixture
def interrupts():
    """Restore the handler of Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def live(application, log):
    """Start and end a worker as a server does, and note its messages."""
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive():
        return {"type": next(messages)}

    async def send(message):
        log.append(message["type"])

    asyncio.run(WorkerApplication(application, log)({"type": "lifespan"}, receive, send))


def test_snapshots_are_there_when_the_server_is_told_so(interrupts):
    """The first snapshot is written before requests are accepted, the last before the process may end."""
    log = Log()

    async def application(scope, receive, send):
        for _ in range(2):
            await send({"type": (await receive())["type"] + ".complete"})

    live(application, log)
    assert log == ["first snapshot", "lifespan.startup.complete", "last snapshot", "lifespan.shutdown.complete"]


def test_a_worker_that_could_not_begin_counts_for_nothing(interrupts):
    """A failed start leaves no snapshot, so that it does not count as running."""
    log = Log()

    async def application(scope, receive, send):
        await send({"type": "lifespan.startup.failed"})

    live(application, log)
    assert log == ["lifespan.startup.failed"]


def test_a_worker_leaves_interrupts_to_its_parent(interrupts):
    """Ctrl-C reaches every process of a terminal; which worker ends when is for the parent to say."""
    seen = []

    async def application(scope, receive, send):
        seen.append(signal.getsignal(signal.SIGINT))

    live(application, Log())
    assert seen == [signal.SIG_IGN]


def test_requests_go_straight_to_the_application():
    """A worker adds nothing to a request."""
    got = []

    async def application(*given):
        got.append(given)

    asyncio.run(WorkerApplication(application, Log())({"type": "http"}, "receive", "send"))
    assert got == [({"type": "http"}, "receive", "send")]
