"""HTTP connections that go only where they may, and keep to one deadline from the name server to the last byte.

A timeout of urllib3 or of a socket is for one read: a receiver that sends a byte now and then never reaches it. So
our sockets ask before each step how much is left of the whole. Nothing is tried twice here, no redirect is followed,
no body is decoded, and no proxy is taken from the environment.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from contextvars import ContextVar
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.exceptions import TimeoutError as PoolTimeoutError

from oncebridge import forks
from oncebridge.errors import SaysWhy
from oncebridge.sinks.addresses import Endpoint, ResolvedAddress, check_addresses, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncebridge.clock import Clock

POOL_MAX: Final = 64
#: Of an answer's body that much is read, so that its connection can be used again; it is not looked at.
BODY_MAX: Final = 65_536
#: Common servers close connections that were idle for 5 s; the end of a request sent just then is not known.
IDLE_US: Final = 4_000_000
FIRST_FINAL_STATUS: Final = 200


class ReceiverUnavailable(SaysWhy):
    """A receiver cannot be reached, does not answer, or asks for a pause: others need not try just now."""


class ReceiverUnreachable(ReceiverUnavailable):
    """There is no connection to the receiver, so nothing was sent."""


class ReceiverTimedOut(ReceiverUnavailable):
    """The receiver did not answer in time; whether the event took effect is not known."""


class AnswerLost(ReceiverUnavailable):
    """The connection ended before the answer; whether the event took effect is not known."""


class Answer(NamedTuple):
    """What a receiver said."""

    status: int
    retry_after: str | None
    #: Only where it was asked for.
    body: bytes = b""


class Exchanges:
    """Posts to one endpoint, or asks its host; may be used from several threads at once."""

    def __init__(self, endpoint: Endpoint, clock: Clock, *, timeout_seconds: float, private_addresses: bool) -> None:
        """Take where to post, and how long one exchange may take as a whole. Nothing is connected yet."""
        self._endpoint = endpoint
        self._clock = clock
        self._seconds = timeout_seconds
        self._private = private_addresses
        self._pool = self._new_pool()
        forks.register(self)

    def before_fork(self) -> None:
        """Do nothing: exchanges of other threads go on in the parent."""

    def after_fork(self, *, in_child: bool) -> None:
        """Begin anew in a child: on its parent's connections it would read answers that are not its own."""
        if in_child:
            forks.leave_to_parent(self._pool)
            self._pool = self._new_pool()

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Post one body and return the answer, or raise in which way there was none."""
        return self._exchange("POST", self._endpoint.target, body, headers, 0)

    def ask(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], body_max: int) -> Answer:
        """Ask for another target of the same host; return the answer with its whole body, which may be so long."""
        return self._exchange(method, target, body, headers, body_max)

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], body_max: int
    ) -> Answer:
        deadline = _Deadline(self._clock, self._seconds)
        before = _DEADLINE.set(deadline)
        try:
            response = self._pool.urlopen(
                method,
                target,
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=self._seconds,
                preload_content=False,
                decode_content=False,
            )
            said = self._whole_body(response, body_max) if body_max else b""
            _let_go(response)
            return Answer(response.status, response.headers.get("Retry-After"), said)
        except HTTPError as error:
            raise self._no_answer(error) from None  # its words may quote a receiver that echoes what it was sent
        finally:
            _DEADLINE.reset(before)

    def _whole_body(self, response: Any, body_max: int) -> bytes:
        """Read a body to its end; one that is cut off, or too long, is no answer."""
        try:
            said: bytes = response.read(body_max + 1)
            if len(said) <= body_max:
                return said
        except BaseException:
            response.close()
            raise
        response.close()
        raise AnswerLost(f"{self._endpoint} answered more than {body_max:,} bytes")

    def close(self) -> None:
        """Close idle connections; the next exchange connects anew."""
        self._pool.close()
        self._pool = self._new_pool()

    def _no_answer(self, error: HTTPError) -> ReceiverUnavailable:
        cause = error.args[1] if isinstance(error, ProtocolError) and len(error.args) > 1 else error
        if isinstance(cause, (PoolTimeoutError, TimeoutError)):
            return ReceiverTimedOut(
                f"{self._endpoint} did not answer within {self._seconds:g} s (it may have taken effect)"
            )
        return AnswerLost(
            f"{self._endpoint} ended the connection without a valid answer: {type(cause).__name__} (it may have taken "
            "effect)"
        )

    def _new_pool(self) -> HTTPConnectionPool:
        options: dict[str, Any] = {
            "maxsize": POOL_MAX,
            "block": False,
            "clock": self._clock,
            "endpoint": self._endpoint,
            "private": self._private,
        }
        if self._endpoint.scheme == "http":
            return _Pool(self._endpoint.host, self._endpoint.port, **options)
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslsocket_class = _TLSSocket
        return _TLSPool(self._endpoint.host, self._endpoint.port, ssl_context=context, **options)


def _let_go(response: Any) -> None:
    """Give the connection back if the answer is over soon, and drop it otherwise."""
    # What comes after the status changes nothing about it. After an answer that is not final there is another one,
    # which the next exchange on this connection would take for its own.
    if response.status >= FIRST_FINAL_STATUS:
        with suppress(HTTPError, OSError):
            response.read(BODY_MAX)
    response.close()
    response.release_conn()


# --- one deadline for everything ---------------------------------------------------------------------


class _Deadline:
    """When an exchange has to be over."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._until_us = clock.monotonic_us() + int(seconds * 1_000_000)

    def left_seconds(self) -> float:
        """Return how long there is left; raise TimeoutError when it is over."""
        left_us = self._until_us - self._clock.monotonic_us()
        if left_us <= 0:
            raise TimeoutError
        return left_us / 1_000_000


#: Of the exchange that this thread is in: urllib3 has no way to pass it on.
_DEADLINE: ContextVar[_Deadline] = ContextVar("oncebridge_deadline")


class _Socket(socket.socket):
    """Gives each step as much time as is left of the exchange."""

    def recv_into(self, *args: Any, **options: Any) -> int:
        self.settimeout(_DEADLINE.get().left_seconds())
        return super().recv_into(*args, **options)

    def sendall(self, *args: Any, **options: Any) -> None:  # its timeout is for all of it, with TLS too
        self.settimeout(_DEADLINE.get().left_seconds())
        super().sendall(*args, **options)


class _TLSSocket(_Socket, ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        self.settimeout(_DEADLINE.get().left_seconds())
        super().do_handshake(block)


# --- connections -------------------------------------------------------------------------------------


class _Response(HTTPResponse):
    def begin(self) -> None:
        super().begin()
        # urllib3 would log headers that are none, and the path beside them: both may hold secrets.
        self.msg.defects.clear()
        self.msg.set_payload("")


class _Connection(HTTPConnection):
    """Connects to what its host was resolved to, once that was checked."""

    response_class = _Response

    def __init__(self, *args: Any, clock: Clock, endpoint: Endpoint, private: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clock = clock
        self._endpoint = endpoint
        self._private = private
        self._used_us = 0

    @property
    def is_connected(self) -> bool:
        return self._clock.monotonic_us() - self._used_us < IDLE_US and super().is_connected

    def getresponse(self) -> Any:
        response = super().getresponse()
        self._used_us = self._clock.monotonic_us()
        return response

    def connect(self) -> None:
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            why = f"its certificate is not accepted: {error.verify_message}"
        except TimeoutError:
            why = "it took too long"
        except OSError as error:  # TLS errors and those of name servers too
            words = getattr(error, "reason", None) or error.strerror or type(error).__name__
            why = words.replace("_", " ").lower()
        else:
            return
        raise ReceiverUnreachable(f"no connection to {self._endpoint}, so nothing was sent: {why}") from None

    def _new_conn(self) -> socket.socket:
        deadline = _DEADLINE.get()
        addresses = resolve(self._endpoint.host, self._endpoint.port, deadline.left_seconds())
        check_addresses(self._endpoint.host, addresses, private=self._private)
        while True:
            # One that swallows everything must not use up the time of those behind it.
            seconds = deadline.left_seconds() / len(addresses)
            address = addresses.pop(0)
            try:
                return _connected(address, seconds)
            except OSError:
                if not addresses:
                    raise


def _connected(address: ResolvedAddress, seconds: float) -> socket.socket:
    connection = _Socket(address.family, socket.SOCK_STREAM)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(seconds)
        connection.connect(address.at)
    except BaseException:
        connection.close()
        raise
    return connection


class _TLSConnection(_Connection, HTTPSConnection):
    """The same, with TLS: the certificate has to be that of the host's name, wherever it led."""


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection
