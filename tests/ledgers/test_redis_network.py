"""What a Redis ledger meets on the network: servers that drip, listeners, and secrets that must not show."""

import socket
import ssl
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from time import monotonic
from urllib.parse import quote

import pytest

from oncebridge import Bridge
from oncebridge.errors import ConfigurationError, OncebridgeError
from payloads import envelope, raw
from servers.certificates import issue
from servers.valkey import running_valkey

PASSWORD = "hunter2secret"
NAIVE_SECONDS = 30.0  # nobody waits for it, unless a test fails
DELIVERY = raw(envelope("v2.detail.events.conversation.{id}.attributes"))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Make a certificate of 127.0.0.1, and the authority to trust."""
    return issue(tmp_path_factory.mktemp("tls"), "127.0.0.1")


@contextmanager
def listening(talk, certificate=None):
    """Let a function talk to each connection, over TLS if there is a certificate; yield the port."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))
    connections = []

    def serve(connection):
        with suppress(OSError), connection:
            if context is None:
                talk(connection)
            else:
                with context.wrap_socket(connection, server_side=True) as secured:
                    talk(secured)

    def accept():
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threading.Thread(target=serve, args=[connection], daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in connections:
            with suppress(OSError):
                connection.close()
        accepting.join()


def opened(url):
    """Process one event with a new bridge; it must fail. Return the error, and how long it took."""
    began = monotonic()
    bridge = Bridge(url)
    bridge.on("*")(lambda _event: None)
    with pytest.raises(OncebridgeError) as error:
        bridge.process(DELIVERY)
    bridge.close()
    return error.value, monotonic() - began


# --- deadlines -----------------------------------------------------------------------------------------------------


def test_a_server_that_drips_is_given_up():
    """One deadline for a whole answer, for logging in, for TLS and for sentinels: a byte now and then is no life."""
    stop = threading.Event()

    def drip(answer):
        def talk(connection):
            for byte in answer:
                if stop.wait(0.4):
                    return
                connection.sendall(bytes([byte]))

        return talk

    bulk, tls_record = b"$1000000\r\n" + bytes(1000), b"\x16\x03\x03\x40\x00" + bytes(1000)
    with listening(drip(bulk)) as port, listening(drip(tls_record)) as tls_port, ThreadPoolExecutor(5) as threads:
        urls = [
            f"redis://127.0.0.1:{port}",
            f"redis://:password@127.0.0.1:{port}",
            f"rediss://127.0.0.1:{tls_port}",
            f"redis+sentinel://127.0.0.1:{port},localhost:{port}/main",
            f"redis+cluster://127.0.0.1:{port}",
        ]
        found = list(threads.map(opened, urls))
        stop.set()
    assert all(seconds < NAIVE_SECONDS for _, seconds in found), found
    assert [str(error) for error, _ in found if "nothing was acknowledged" not in str(error)] == []


# --- TLS -----------------------------------------------------------------------------------------------------------


def test_sentinels_are_spoken_to_over_tls(certificates):
    """With rediss+sentinel:// whoever listens on the way to a sentinel sees a handshake, and no word in clear."""
    heard = []

    def listen(connection):
        connection.settimeout(1)
        with suppress(OSError):
            while data := connection.recv(4096):
                heard.append(data)

    with listening(listen) as port:
        opened(
            f"rediss+sentinel://someone:{PASSWORD}@127.0.0.1:{port}/main/0?ca_file={quote(str(certificates.authority))}"
        )
    said = b"".join(heard)
    assert said[:2] == b"\x16\x03"
    assert b"SENTINEL" not in said
    assert PASSWORD.encode() not in said


def test_a_master_behind_sentinels_is_reached_over_tls(valkey, certificates):
    """Sentinel and master both speak TLS; a sentinel whose certificate is not trusted is asked nothing."""
    questions = []

    def pass_on(connection):
        with socket.create_connection(("127.0.0.1", valkey.port)) as server:
            answering = threading.Thread(target=_pump, args=(server, connection), daemon=True)
            answering.start()
            _pump(connection, server)
            server.shutdown(socket.SHUT_RDWR)
            answering.join()

    with listening(pass_on, certificates.server) as master_port:

        def name(connection):
            questions.append(connection.recv(4096))
            words = [b"name", b"main", b"ip", b"127.0.0.1", b"port", b"%d" % master_port, b"flags", b"master"]
            connection.sendall(b"*8\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

        with listening(name, certificates.server) as port:
            url = f"rediss+sentinel://127.0.0.1:{port}/main/0"
            error, _ = opened(url)
            assert "ca_file" in str(error)
            assert questions == []
            with Bridge(f"{url}?ca_file={quote(str(certificates.authority))}&name=watched") as bridge:
                bridge.on("*")(lambda _event: None)
                assert bridge.process(DELIVERY).acknowledged
                assert bridge.process(DELIVERY).verdict.value == "redelivery"
    assert questions
    assert all(b"SENTINEL" in question for question in questions)


def _pump(source, target):
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)


# --- passwords -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "redis://host?password=hunter2secret",
        "redis://host?username=hunter2secret&password=x",
        "redis://host/0?pass=hunter2secret",
        "redis://host/0?name=main&auth=hunter2secret",
        "redis://user:12/hunter2secret@host/0",
        "redis://user:12?hunter2secret@host/0",
        "redis://user:12#hunter2secret@host/0",
        "redis://user:a@12/hunter2secret@host/0",
        "redis://user:hunter2secret/x@host/0",
        "redis://user:hunter2secret#x@host/0",
        "redis://user:hunter2secret?x@host/0",
        "redis://user:hunter2secret[@host/0",
        "redis://user:hunter2secret@host:port/0",
        "redis://user:hunter2secret@host/zero",
        "redis+sentinel://user:12/hunter2secret@host:26379/main/0",
        "redis+cluster://user:12/hunter2secret@a,b",
        "rediss://user:hunter2secret@a,b",
    ],
)
def test_a_password_in_a_wrong_url_is_not_shown(url):
    """Wherever it stands, and whatever it breaks: the error names what to change, and not the password."""
    with pytest.raises(ConfigurationError, match=r"ledger: ") as error:
        Bridge(url)
    shown = "".join(traceback.format_exception(error.value))
    assert PASSWORD not in shown.replace(url, "")  # the test's own line


@pytest.mark.parametrize("password", ["hunter2secret", "hunter2/@:#?%secret", "hunter2 [secret]"])
def test_a_password_that_is_not_accepted_is_not_shown(valkey, password):
    """Neither by the error, nor by what caused it: also where a server repeats what it was sent."""

    def repeat(connection):
        words = connection.recv(4096).split(b"\r\n")
        connection.sendall(b"-ERR unknown command 'AUTH', with args beginning with: '" + words[-2] + b"'\r\n")

    with listening(repeat) as port:
        error, _ = opened(f"redis://:{quote(password, safe='')}@127.0.0.1:{port}")
        refused, _ = opened(f"redis://someone:{quote(password, safe='')}@127.0.0.1:{valkey.port}")
    for one in (error, refused):
        shown = "".join(traceback.format_exception(one))
        assert "password" in str(one)
        assert password not in shown
        assert quote(password, safe="") not in shown


def test_a_long_password_is_not_shown_in_part(tmp_path):
    """A server that does not know AUTH repeats the beginning of what it was sent, which is most of a token."""
    password = "".join(f"{number:02}hunter" for number in range(40))
    with running_valkey(tmp_path, "--rename-command", "AUTH", "") as server:
        error, _ = opened(server.url.replace("//", f"//:{password}@"))
    shown = "".join(traceback.format_exception(error))
    assert "with args beginning with" in shown
    assert password[:16] not in shown
