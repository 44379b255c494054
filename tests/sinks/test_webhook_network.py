"""The webhook sink on networks and at receivers that mean it no good: deadlines, addresses, TLS, connections."""

import socket
import ssl
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from msgspec.structs import replace

from oncebridge.clock import SystemClock
from oncebridge.errors import SaysWhy
from oncebridge.event import parse
from oncebridge.sinks import exchange
from oncebridge.sinks.addresses import AddressForbidden
from oncebridge.sinks.exchange import IDLE_US, AnswerLost, ReceiverTimedOut, ReceiverUnreachable
from oncebridge.sinks.webhook import ReceiverDeferred, ReceiverRefused
from payloads import ACW, envelope, raw
from servers.certificates import issue
from servers.process import free_port, wait_until
from servers.receiver import Reply, running_receiver
from sinks.conftest import PATIENT

EVENT = replace(parse(raw(envelope(ACW))), key="ob1_00112233445566778899aabbccddeeff", token=17)
NAIVE_SECONDS = 15.0  # nor for this, unless it fails
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def names(monkeypatch):
    """Stand in for the name server: a list of answers for each name, the last of them from then on."""
    known, asked, look_up = {}, [], socket.getaddrinfo

    def answer(host, port, *, flags=0, **options):
        if host not in known or flags & socket.AI_NUMERICHOST:
            return look_up(host, port, flags=flags, **options)
        asked.append(host)
        answers = known[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    known["asked"] = asked
    return known


class Talker:
    """Listens, and lets a function talk to whoever connects."""

    def __init__(self, talk, tls):
        """Listen on a free port."""
        self.connections = 0
        self._talk, self._tls = talk, tls
        self._open = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # what is not read is soon felt
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="talker")
        self._accepting.start()

    def _accept(self):
        with ThreadPoolExecutor() as pool, suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection.dup())  # to end it by, also where TLS takes the other one over
                self.connections += 1
                pool.submit(self._run, connection, self._open[-1])

    def _run(self, connection, handle):
        with connection, suppress(OSError):
            if self._tls is None:
                self._talk(connection)
            else:
                with self._tls.wrap_socket(connection, server_side=True) as wrapped:
                    self._talk(wrapped)
        hang_up(handle)

    def close(self):
        """End every conversation."""
        hang_up(self._listener, *self._open)
        self._accepting.join()
        for one in (self._listener, *self._open):
            one.close()


def hang_up(*connections):
    """End connections, whoever else holds them."""
    for connection in connections:
        with suppress(OSError):  # ended already
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def talking(talk, tls=None):
    """Run a receiver of few manners."""
    talker = Talker(talk, tls)
    try:
        yield talker
    finally:
        talker.close()


def hear(connection):
    """Read one request; return whether there was one."""
    heard = b""
    while b"\r\n\r\n" not in heard:
        data = connection.recv(65_536)
        if not data:
            return False
        heard += data
    head, _, body = heard.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65_536)
    return True


def saying(*answers):
    """Answer each request with the next of these, over all connections; close the connection after the last."""
    left = list(answers)

    def talk(connection):
        while hear(connection):
            connection.sendall(left.pop(0))
            if not left:
                return

    return talk


def goes_away(connection):
    """Tell whether the other side ends the connection, rather than wait for more."""
    connection.settimeout(NAIVE_SECONDS)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Make a certificate of receiver.test, and the authority to trust."""
    return issue(tmp_path_factory.mktemp("tls"), "receiver.test")


@pytest.fixture
def with_certificate(certificates):
    """Return what makes a receiver called receiver.test shake hands."""

    def context():
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(certificates.server)
        return made

    return context


@pytest.fixture
def trusted(monkeypatch, names, certificates):
    """Trust the tests' authority, as a company trusts its own, and let receiver.test lead here."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    names["receiver.test"] = [["127.0.0.1"]]


# --- one deadline for everything --------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"HTTP", OK.removeprefix(b"HTTP")),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"1\r\nContent-Length: 0\r\n\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", OK),
    ],
)
@pytest.mark.usefixtures("trusted")
def test_a_byte_now_and_then_buys_no_time(first, rest, tls, sink, clock, *, with_certificate):
    """The deadline is for the whole exchange: somebody who still sends when it has passed is left."""

    def talk(connection):
        hear(connection)
        clock.advance(PATIENT + 1)
        connection.sendall(first)
        if not goes_away(connection):
            connection.sendall(rest)  # a success, for those who still listen

    with talking(talk, with_certificate() if tls else None) as talker:
        send = sink(f"{'https' if tls else 'http'}://receiver.test:{talker.port}/")
        with pytest.raises(ReceiverTimedOut, match="within 60 s"):
            send(EVENT)


def test_a_slow_body_changes_nothing(sink, clock, monkeypatch):
    """Once the status is there the event is done; for the rest nobody waits longer than the deadline."""
    answered, left = threading.Event(), threading.Event()
    let_go = exchange._let_go

    def seen(response):
        answered.set()
        let_go(response)

    def talk(connection):
        hear(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        assert answered.wait(PATIENT)
        clock.advance(PATIENT + 1)
        connection.sendall(b"a")
        if goes_away(connection):
            left.set()
        else:
            connection.sendall(b"a" * 99)

    monkeypatch.setattr(exchange, "_let_go", seen)
    with talking(talk) as talker:
        sink(f"http://127.0.0.1:{talker.port}/")(EVENT)
        assert left.wait(PATIENT)


def timed_out(make, url, event):
    """Send with little time until it was enough for a connection at least; return how that ended."""
    while True:
        try:
            make(url, clock=SystemClock(), timeout_seconds=0.5)(event)
        except ReceiverUnreachable:
            continue  # a busy machine
        except SaysWhy as error:
            return type(error)
        else:
            return None


def test_a_receiver_that_hangs_is_not_waited_for(sink):
    """Without an answer in time nobody knows whether it took effect."""
    with running_receiver(lambda _: Reply(then="hang until closed")) as receiver:
        assert timed_out(sink, receiver.url, EVENT) is ReceiverTimedOut
        wait_until(lambda: receiver.requests, "the request to arrive")
    assert list(receiver.raw_effects.values()) == [1]


@pytest.mark.parametrize("tls", [False, True])
def test_a_receiver_that_hardly_reads_is_not_waited_for(tls, sink, trusted, with_certificate):
    """Sending is under the deadline too, though now and then a piece gets through."""
    pause, waited_for = threading.Event(), threading.Event()

    def talk(connection):
        for _ in range(500):
            if not connection.recv(16_384):
                return
            pause.wait(0.02)
        waited_for.set()

    huge = replace(EVENT, raw=b"a" * 32_000_000)  # more than any buffer on the way
    with talking(talk, with_certificate() if tls else None) as talker:
        url = f"{'https' if tls else 'http'}://receiver.test:{talker.port}/"
        assert timed_out(sink, url, huge) is ReceiverTimedOut
        assert not waited_for.is_set()


def test_hands_that_are_never_shaken(sink, trusted):
    """A receiver that says nothing to TLS costs no more than the deadline, and nothing was sent."""

    def talk(connection):
        while connection.recv(65_536):
            pass

    with talking(talk) as talker:
        send = sink(f"https://receiver.test:{talker.port}/", clock=SystemClock(), timeout_seconds=0.5)
        with pytest.raises(ReceiverUnreachable, match="nothing was sent: it took too long"):
            send(EVENT)


# --- answers that are none --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 20",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Many: 1\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 " + b"a" * 70_000,
        b"Bearer hidden-4711\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
    ],
)
def test_what_is_not_http_is_no_answer(answer, sink):
    """Nobody knows what became of an event if the answer makes no sense: it is tried again."""
    with talking(saying(answer)) as talker, pytest.raises(AnswerLost, match="may have taken effect") as raised:
        sink(f"http://127.0.0.1:{talker.port}/")(EVENT)
    assert "hidden-4711" not in "".join(traceback.format_exception(raised.value))  # it may echo what it was sent


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nbomb",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut off",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nno length",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
def test_bodies_are_nobodys_business(answer, sink, monkeypatch):
    """A body is neither decoded nor needed: the status alone decides."""
    monkeypatch.setattr("urllib3.response.GzipDecoder.decompress", lambda *_: pytest.fail("decoded"))
    with talking(saying(answer)) as talker:
        sink(f"http://127.0.0.1:{talker.port}/")(EVENT)


def test_nothing_a_receiver_says_is_logged(sink, caplog):
    """Headers that are none stay out of logs, as does the path that they came from."""
    with talking(saying(b"HTTP/1.1 200 OK\r\nBearer hidden-4711\r\nContent-Length: 0\r\n\r\n")) as talker:
        sink(f"http://127.0.0.1:{talker.port}/hidden-4711")(EVENT)
    assert caplog.records == []


def test_endless_bodies_are_cut_off(sink):
    """Of a body only so much is read, then its connection is given up."""
    cut_off = threading.Semaphore(0)

    def talk(connection):
        hear(connection)
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 64_000_000)
        except OSError:
            cut_off.release()

    with talking(talk) as talker:
        send = sink(f"http://127.0.0.1:{talker.port}/")
        for _ in range(2):
            send(EVENT)
            assert cut_off.acquire(timeout=PATIENT)


@pytest.mark.parametrize("early", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 102 Processing\r\nX: 1\r\n\r\n"])
def test_an_event_never_gets_the_answer_to_another(early, sink):
    """After an answer that is not final the connection is given up: what follows on it is about the old event."""

    def talk(connection):
        hear(connection)
        connection.sendall(early)
        if not goes_away(connection):
            connection.sendall(OK)

    with talking(talk) as talker:
        send = sink(f"http://127.0.0.1:{talker.port}/")
        for _ in range(2):
            with pytest.raises(ReceiverDeferred):
                send(EVENT)
        assert talker.connections == 2


def test_answers_that_nobody_asked_for_are_not_taken(sink):
    """A second answer to one request is not the answer to the next one."""
    refusal = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    with talking(saying(OK + OK, refusal)) as talker:
        send = sink(f"http://127.0.0.1:{talker.port}/")
        send(EVENT)
        with pytest.raises(ReceiverRefused):
            send(EVENT)


def test_an_answer_may_come_before_everything_was_sent(sink):
    """A receiver that refuses a large event at once, and reads no more of it, is heard."""

    def talk(connection):
        connection.sendall(b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass

    with talking(talk) as talker, pytest.raises(ReceiverRefused, match="answered 413"):
        sink(f"http://127.0.0.1:{talker.port}/")(replace(EVENT, raw=b"a" * 4_000_000))


def test_redirects_lead_nowhere(sink):
    """An event goes where the settings say; to follow a redirect is not for a receiver to decide."""
    with running_receiver() as other:
        for status in (301, 302, 303, 307, 308):
            reply = Reply(status, {"Location": other.url})
            with running_receiver(lambda _, reply=reply: reply) as receiver, pytest.raises(ReceiverRefused):
                sink(receiver.url)(EVENT)
        assert other.connections == 0


def test_proxies_of_the_environment_are_not_used(sink, monkeypatch):
    """Where events go is in the settings alone."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
        monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with running_receiver() as receiver:
        sink(receiver.url)(EVENT)
    assert len(receiver.requests) == 1


# --- addresses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0"])
def test_a_name_that_leads_inside_is_not_followed(address, sink, names):
    """A public name that leads to a private address is refused before anything is connected, and tried again later."""
    with running_receiver() as receiver:
        names["crm.example"] = [[address]]
        send = sink(f"https://crm.example:{receiver.port}/", private_addresses=False)
        for _ in range(5):  # not the receiver's fault: it never opens the breaker
            with pytest.raises(AddressForbidden, match=f"crm.example leads to {address}"):
                send(EVENT)
        assert receiver.connections == 0


def test_one_bad_address_is_enough(sink, names):
    """If any address of a name is forbidden, none of them is tried."""
    with running_receiver() as receiver:
        names["crm.example"] = [["127.0.0.1", "169.254.169.254"]]
        with pytest.raises(AddressForbidden):
            sink(f"http://crm.example:{receiver.port}/")(EVENT)
        assert receiver.connections == 0


def test_what_was_checked_is_what_is_connected_to(sink, names):
    """A name is looked up once for each connection: a second answer, after the check, has no chance."""
    names["crm.example"] = [["127.0.0.1"], ["169.254.169.254"]]
    with running_receiver() as receiver:
        send = sink(f"http://crm.example:{receiver.port}/")
        send(EVENT)
        send(EVENT)  # on the same connection
        assert names["asked"] == ["crm.example"]
        send.close()
        with pytest.raises(AddressForbidden):
            send(EVENT)
        assert receiver.connections == 1
        assert receiver.requests[0].headers["Host"] == f"crm.example:{receiver.port}"


def test_the_next_address_is_tried(sink, names):
    """Of several addresses the first one that can be reached is used."""
    names["crm.example"] = [["127.0.0.2", "127.0.0.1"]]
    with running_receiver() as receiver:
        sink(f"http://crm.example:{receiver.port}/")(EVENT)
    assert len(receiver.requests) == 1


def test_a_name_that_nobody_knows_is_out_of_reach(sink, names):
    """A name that cannot be looked up may be there later."""
    names["crm.example"] = [[]]
    with pytest.raises(ReceiverUnreachable, match=r"crm\.example:80, so nothing was sent: name or service not known"):
        sink("http://crm.example/")(EVENT)


# --- TLS --------------------------------------------------------------------------------------------------------


def test_tls_is_for_the_name(sink, trusted, with_certificate):
    """The receiver is told the name of the URL, shows a certificate for it, and gets the event."""
    asked, tls = [], with_certificate()
    tls.sni_callback = lambda _, name, __: asked.append(name)
    with running_receiver(tls=tls) as receiver:
        send = sink(f"https://receiver.test:{receiver.port}/events")
        send(EVENT)
        send(EVENT)
    assert asked == ["receiver.test"]  # once: the connection is kept
    assert [request.body for request in receiver.requests] == [EVENT.raw, EVENT.raw]


def test_a_certificate_for_another_name_is_refused(sink, trusted, names, with_certificate):
    """Whoever shows somebody else's certificate gets nothing."""
    names["other.test"] = [["127.0.0.1"]]
    with running_receiver(tls=with_certificate()) as receiver:
        with pytest.raises(ReceiverUnreachable, match=r"nothing was sent.*certificate.*other\.test"):
            sink(f"https://other.test:{receiver.port}/")(EVENT)
        assert receiver.requests == []


def test_a_certificate_of_nobody_is_refused(sink, names, with_certificate):
    """Whoever is not vouched for gets nothing."""
    names["receiver.test"] = [["127.0.0.1"]]
    with running_receiver(tls=with_certificate()) as receiver:
        with pytest.raises(ReceiverUnreachable, match=r"its certificate is not accepted: unable to get local issuer"):
            sink(f"https://receiver.test:{receiver.port}/")(EVENT)
        assert receiver.requests == []


def test_old_tls_is_refused(sink, trusted, with_certificate):
    """Below TLS 1.2 nothing is sent."""
    tls = with_certificate()
    tls.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        tls.minimum_version = tls.maximum_version = ssl.TLSVersion.TLSv1_1
    with running_receiver(tls=tls) as receiver, pytest.raises(ReceiverUnreachable, match="nothing was sent"):
        sink(f"https://receiver.test:{receiver.port}/")(EVENT)


def test_a_receiver_without_tls_is_refused(sink, trusted):
    """Nothing goes in the clear to a URL that promises TLS."""
    with running_receiver() as receiver:
        with pytest.raises(ReceiverUnreachable, match="nothing was sent"):
            sink(f"https://receiver.test:{receiver.port}/")(EVENT)
        assert receiver.requests == []


# --- connections ------------------------------------------------------------------------------------------------


def test_events_go_in_parallel_over_connections_that_are_kept(sink):
    """32 threads have 32 connections at once, and use the same ones for the next 32 events."""
    together = threading.Barrier(32)

    def script(_):
        together.wait(PATIENT)  # each waits for all the others
        return Reply(body=b"a" * 1000)

    with running_receiver(script) as receiver, ThreadPoolExecutor(32) as pool:
        send = sink(receiver.url)
        for wave in (1, 2):
            list(pool.map(send, [EVENT] * 32))
            assert len(receiver.requests) == 32 * wave
    assert receiver.connections == 32


@pytest.mark.parametrize("body", [b"", b"a" * 60_000])
@pytest.mark.parametrize("status", [200, 204, 404, 500])
def test_connections_are_kept_whatever_the_answer(status, body, sink):
    """An answer that was read to its end leaves a connection for the next event."""
    with running_receiver(lambda _: Reply(status, body=b"" if status == 204 else body)) as receiver:
        send = sink(receiver.url)
        for _ in range(3):
            with suppress(SaysWhy):
                send(EVENT)
    assert (len(receiver.requests), receiver.connections) == (3, 1)


def test_idle_connections_are_not_trusted(sink, clock):
    """What was idle for a while may be closed just while an event is on it, so the next one gets another."""
    with running_receiver() as receiver:
        send = sink(receiver.url)
        for seconds in (0, 1, IDLE_US / 1e6):
            clock.advance(seconds)
            send(EVENT)
        assert [request.connection for request in receiver.requests] == [1, 1, 2]


def test_a_connection_that_was_closed_meanwhile_is_replaced(sink):
    """A receiver may close what is idle; nobody notices."""
    closed = threading.Semaphore(0)

    def talk(connection):
        hear(connection)
        connection.sendall(OK)
        hang_up(connection)
        closed.release()

    with talking(talk) as talker:
        send = sink(f"http://127.0.0.1:{talker.port}/")
        for _ in range(3):
            send(EVENT)
            assert closed.acquire(timeout=PATIENT)
        assert talker.connections == 3


def test_a_closed_sink_may_be_used_again(sink):
    """Closing ends connections, not the sink."""
    with running_receiver() as receiver:
        send = sink(receiver.url)
        send(EVENT)
        send.close()
        send(EVENT)
        assert [request.connection for request in receiver.requests] == [1, 2]
