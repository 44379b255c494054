"""Where a Postgres ledger is: its URL, read and shown without the password."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final, Self
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from oncebridge.errors import ConfigurationError

SCHEMA: Final = "oncebridge"
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")

#: Parameters for libpq that the URL does not set: how long to wait for a server that is gone, in seconds or
#: milliseconds.
_DEFAULTS: Final[dict[str, Any]] = {
    "application_name": "oncebridge",
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_PORTS: Final = re.compile(r"[0-9]{0,5}(?:,[0-9]{0,5})*")
_SECONDS: Final = re.compile(r"-?[0-9]{1,9}")


class Address(msgspec.Struct, frozen=True):
    """A database, and the schema in it that is the ledger's own."""

    parameters: dict[str, Any]
    schema: str = SCHEMA

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read a URL as libpq does; only `schema` among its parameters is ours."""
        place, _, query = url.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        schema = dict(pairs).get("schema", SCHEMA)
        if not _NAME.fullmatch(schema) or schema.startswith("pg_"):
            raise ConfigurationError(
                f"ledger: schema {schema!r} cannot be used; take small letters, digits and _, such as ?schema={SCHEMA}"
            )
        rest = urlencode([pair for pair in pairs if pair[0] != "schema"], quote_via=quote)
        given = None if _breaks(place) else _read(f"{place}?{rest}" if rest else place)
        if given is None:
            raise ConfigurationError(
                "ledger: this is no URL that Postgres understands; write postgresql://user:password@host:5432/database"
                "?sslmode=verify-full, special characters of the password percent-encoded (@ is %40, / is %2F)"
            )
        return cls({**_DEFAULTS, **given}, schema)

    @property
    def connect_seconds(self) -> int:
        """How long connecting to each of its addresses may take; 0: without limit."""
        return max(0, int(self.parameters["connect_timeout"]))

    def __repr__(self) -> str:
        """Show the same as `str`: the parameters hold the password."""
        return f"<Address {self}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same where errors are shown in colour."""
        return [("address", str(self))]

    def __str__(self) -> str:
        """Show the URL without its password and its other parameters."""
        given = self.parameters
        user = f"{quote(str(given['user']))}@" if "user" in given else ""
        port = f":{given['port']}" if "port" in given else ""
        name = f"/{quote(str(given['dbname']))}" if "dbname" in given else ""
        schema = "" if self.schema == SCHEMA else f"?schema={self.schema}"
        return f"postgresql://{user}{given.get('host', '')}{port}{name}{schema}"


def _breaks(place: str) -> bool:
    """Return whether a password breaks its URL: after a `/` or a second `@` it is read as port, host or database."""
    authority, _, path = place.partition("://")[2].partition("/")
    return authority.count("@") > 1 or "@" in path


def _read(url: str) -> dict[str, Any] | None:
    """Parse a URL; None if libpq does not understand it: its own words may quote the password."""
    with suppress(psycopg.Error):
        given = conninfo_to_dict(url)
        port, seconds = str(given.get("port", "")), str(given.get("connect_timeout", 0))
        if _PORTS.fullmatch(port) and _SECONDS.fullmatch(seconds):
            return {**given}
    return None
