"""Where a Redis is: its URL, its client, and its errors in our words."""

from __future__ import annotations

import re
import select
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from oncebridge.errors import ConfigurationError, LedgerRefused, LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 5.0
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")  # nothing that a key pattern or a hash tag would read otherwise
REPLICAS_MAX: Final = 64
WAIT_MS: Final = 1000

#: What redis-py raises: its cluster errors are no `RedisError`.
ERRORS: Final = (redis.RedisError, redis.RedisClusterException, OSError)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says."""

    kind: str  # single, sentinel or cluster
    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    username: str | None = None
    password: str | None = None
    db: int = 0
    #: Of sentinels: the name of the master they watch.
    master: str = ""
    #: Under which this ledger's keys are kept: several may share a server.
    name: str = "main"
    #: How many replicas must have a write before it is believed.
    wait: int = 0
    allow_eviction: bool = False
    ca_file: str | None = None

    def __repr__(self) -> str:
        """Show where it is, without the password."""
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "single" else f"+{self.kind}")
        return f"{scheme}://{','.join(f'{host}:{port}' for host, port in self.hosts)}"


def read_url(url: str) -> Address:
    """Read `redis://user:password@host:6379/0?name=main` and its relatives for sentinels and clusters."""
    try:
        parts = urlsplit(url)
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        first, _, second = parts.path.strip("/").partition("/")
    except ValueError:
        raise _wrong("it cannot be read as a URL") from None
    scheme, _, kind = parts.scheme.partition("+")
    kind = kind or "single"
    default_port = 26379 if kind == "sentinel" else 6379
    found = tuple(_host(host, default_port) for host in (hosts or "localhost").split(","))
    if kind == "single" and len(found) > 1:
        raise _wrong("it names several hosts; for these there is redis+sentinel:// or redis+cluster://")
    if kind == "sentinel" and not first:
        raise _wrong("the master's name is missing; write redis+sentinel://host:26379,host:26379/mymaster/0")
    db = second if kind == "sentinel" else first
    if not (db or "0").isdigit() or (kind == "cluster" and db not in ("", "0")):
        raise _wrong(f"the database must be a number, and 0 on a cluster, not {db!r}")
    return Address(
        kind=kind,
        hosts=found,
        tls=scheme == "rediss",
        username=unquote(user) or None,
        password=unquote(password) or None,
        db=int(db or 0),
        master=unquote(first) if kind == "sentinel" else "",
        **_options(parts.query),
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        return unquote(parts.hostname or "localhost"), parts.port or default_port
    except ValueError:
        raise _wrong("a port must be a number up to 65535, and an IPv6 address stands in [brackets]") from None


def _options(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option, value in parse_qsl(query, keep_blank_values=True):
        if option == "name" and NAME.fullmatch(value):
            values["name"] = value
        elif option == "wait" and value.isdigit() and int(value) <= REPLICAS_MAX:
            values["wait"] = int(value)
        elif option == "allow_eviction" and value in ("true", "1", "false", "0"):
            values["allow_eviction"] = value in ("true", "1")
        elif option == "ca_file" and value:
            values["ca_file"] = value
        else:
            raise _wrong(
                f"{option}={value!r} is no option; known are name (up to 64 letters, digits, dots and dashes), "
                "wait (a number of replicas), allow_eviction (true) and ca_file (a file of certificates)"
            )
    return values


def _wrong(what: str) -> ConfigurationError:
    return ConfigurationError(f"ledger: this Redis URL is wrong: {what}")


class _Known:
    """A connection that knows what was said on it first, and whether its answer has come, for less than that takes."""

    _sock: Any
    _poll: Any = None
    #: Since it was connected.
    greeted_with: object = None

    def has_answer(self) -> bool:
        """Tell whether there is something to read."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._sock, select.POLLIN)
        return bool(self._poll.poll(0))

    def disconnect(self, *arguments: Any) -> None:
        """Forget all that is known of the other side."""
        self._poll = self.greeted_with = None
        super().disconnect(*arguments)  # type: ignore[misc]


class PlainConnection(_Known, redis.Connection):
    """A connection without TLS."""


class TLSConnection(_Known, redis.SSLConnection):
    """A connection with TLS."""


class WatchedConnection(_Known, SentinelManagedConnection):
    """A connection to whichever master the sentinels name."""


class WatchedTLSConnection(_Known, SentinelManagedSSLConnection):
    """The same with TLS."""


# --- clients -----------------------------------------------------------------------------------------


def _connection_settings(address: Address) -> dict[str, Any]:
    values: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_timeout": ANSWER_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        # Whoever asks repeats: under a nonce, and through one breaker.
        "retry": Retry(NoBackoff(), 0),
    }
    if address.tls:
        values |= {"ssl_ca_certs": address.ca_file, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
    return values


def pool_of(address: Address) -> redis.ConnectionPool:
    """Make the pool of a single server, or of the master that sentinels name."""
    settings = _connection_settings(address)
    if address.kind == "sentinel":
        watchers = {name: settings[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
        sentinel = Sentinel(list(address.hosts), sentinel_kwargs=watchers, **settings)
        kind = WatchedTLSConnection if address.tls else WatchedConnection
        return SentinelConnectionPool(address.master, sentinel, connection_class=kind, db=address.db, **settings)
    ((host, port),) = address.hosts
    plain = TLSConnection if address.tls else PlainConnection
    return redis.ConnectionPool(connection_class=plain, host=host, port=port, db=address.db, **settings)


def cluster_of(address: Address) -> RedisCluster:
    """Connect to a cluster."""
    nodes = [ClusterNode(host, port) for host, port in address.hosts]
    settings = _connection_settings(address) | {"ssl": address.tls}
    settings["retry"] = Retry(ExponentialBackoff(cap=0.5, base=0.05), 3)  # a slot that moves needs a little patience
    return RedisCluster(startup_nodes=nodes, **settings)


# --- errors ------------------------------------------------------------------------------------------


@contextmanager
def in_our_words(address: Address) -> Iterator[None]:
    """Turn whatever the client raises into ours, with what to do."""
    try:
        yield
    except ERRORS as error:
        raise translated(error, address) from error


def translated(error: BaseException, address: Address) -> LedgerUnavailable | LedgerRefused:
    """Say in our words what went wrong; neither passwords nor keys are in it."""
    where, text = repr(address), str(error)
    signs_of = f"{type(error).__name__} {text}"  # the client takes some signs out of the text and makes them a class
    for kinds, signs, advice in _REFUSED:
        if isinstance(error, kinds) and any(sign in signs_of for sign in signs):
            return LedgerRefused(f"{where}: {advice}")
    for sign, advice in _ADVICE:
        if sign in signs_of:
            return LedgerUnavailable(f"{where}: {advice}; nothing was acknowledged")
    if isinstance(error, (redis.TimeoutError, TimeoutError)):
        tls = "that it speaks TLS (rediss://), " if address.tls else ""
        return LedgerUnavailable(
            f"{where} does not answer in time; check the address, {tls}that VPC and security group let this host "
            "through, and the server's load; nothing was acknowledged"
        )
    if isinstance(error, redis.ResponseError):
        return LedgerUnavailable(f"{where} answered with an error: {text[:200]}; nothing was acknowledged")
    return LedgerUnavailable(
        f"{where} is out of reach ({type(error).__name__}); check the address, that the server runs, that VPC and "
        "security group let this host through, and TLS (rediss:// or redis://); nothing was acknowledged"
    )


_REFUSED: Final = (
    (
        redis.RedisError,
        ("WRONGPASS", "NOAUTH", "invalid username-password", "AUTH", "Authentication"),
        "user or password are not accepted; check them in the URL (percent-encode special characters)",
    ),
    (
        redis.ResponseError,
        ("NoPermission", "NOPERM"),
        "this user may not do that; the ACL it needs is in docs/ledgers.md",
    ),
    (redis.RedisError, ("DB index is out of range",), "there is no such database; the number at the end of the URL"),
    (redis.RedisError, ("WRONGTYPE",), "keys of somebody else stand where the ledger's should; give it another ?name="),
    (redis.RedisError, ("CERTIFICATE_VERIFY_FAILED",), "its certificate is not trusted; name the CA with ?ca_file="),
)
_ADVICE: Final = (
    ("'maxmemory'", "its memory is full; raise maxmemory or forget more (oncebridge purge)"),
    ("MISCONF", "it cannot write to its disk; look at the server's log"),
    ("ReadOnly", "this is a replica; name the master, or its sentinels"),
    ("BusyLoading", "it is still loading its data; try again soon"),
    ("BUSY ", "a script of somebody else blocks it"),
    ("NOREPLICAS", "too few of its replicas are there"),
    ("No master found", "the sentinels know no master by this name, or it is down; check the name in the URL"),
    ("CLUSTERDOWN", "the cluster is down: some of its slots have no master"),
    ("SSL", "TLS failed; check rediss:// against redis://, and the certificates"),
    ("max number of clients", "it takes no more clients; raise maxclients or run fewer workers"),
)
