"""The address of a Redis ledger, read from its URL."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from oncebridge.errors import ConfigurationError

NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")  # no character that is special in a key pattern or a hash tag
REPLICAS_MAX: Final = 64


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a URL."""

    kind: str  # single, sentinel or cluster
    hosts: tuple[tuple[str, int], ...]
    tls: bool = False
    username: str | None = None
    password: str | None = None
    db: int = 0
    #: Of sentinels: the name of the master they watch.
    master: str = ""
    #: The name that this ledger's keys begin with: several may share a server.
    name: str = "main"
    #: How many replicas must have a write before it counts.
    wait: int = 0
    allow_eviction: bool = False
    ca_file: str | None = None

    def __repr__(self) -> str:
        """Show the address, without the password."""
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "single" else f"+{self.kind}")
        return f"{scheme}://{','.join(f'{host}:{port}' for host, port in self.hosts)}"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same in tracebacks that are printed with their variables."""
        return [("url", repr(self))]


def read_url(url: str) -> Address:
    """Read `redis://user:password@host:6379/0?name=main` and its variants for sentinels and clusters."""
    try:
        parts = urlsplit(url)
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        first, _, second = parts.path.strip("/").partition("/")
    except ValueError:
        raise _wrong("it cannot be read as a URL") from None
    if parts.fragment or "@" in parts.path + parts.query:
        # Then the apparent host, database or option is part of the password.
        raise _wrong(
            "special characters of the user or password must be percent-encoded "
            "(@ is %40, / is %2F, : is %3A, # is %23, ? is %3F)"
        )
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
        raise _wrong("a port must be a number up to 65535, and an IPv6 address must be in [brackets]") from None


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
            # Its value may be a secret: other clients take passwords here.
            raise _wrong(
                f"{option[:32]!r} is no option, or has a wrong value; known are name (up to 64 letters, digits, dots "
                f"and dashes), wait (a number of replicas up to {REPLICAS_MAX}), allow_eviction (true) and ca_file (a "
                "file of certificates). User and password stand before the host: redis://user:password@host"
            )
    return values


def _wrong(what: str) -> ConfigurationError:
    return ConfigurationError(f"ledger: this Redis URL is wrong: {what}")
