"""Where a Postgres ledger is: its URL, read and shown without the password."""

from __future__ import annotations

import re
from typing import Any, Final, Self
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from oncebridge.errors import ConfigurationError

SCHEMA: Final = "oncebridge"
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")

#: What libpq is told where the URL does not say it: give up on a server that is gone, in seconds or milliseconds.
_DEFAULTS: Final[dict[str, Any]] = {
    "application_name": "oncebridge",
    "connect_timeout": 5,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


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
        try:
            given = conninfo_to_dict(f"{place}?{rest}" if rest else place)
        except psycopg.Error:
            # libpq's own words may quote the password.
            raise ConfigurationError(
                "ledger: this is no URL that Postgres understands; write postgresql://user:password@host:5432/database"
                "?sslmode=verify-full, special characters of the password percent-encoded (@ is %40, / is %2F)"
            ) from None
        return cls({**_DEFAULTS, **given}, schema)

    def __str__(self) -> str:
        """Show the URL without its password and its other parameters."""
        given = self.parameters
        user = f"{quote(str(given['user']))}@" if "user" in given else ""
        port = f":{given['port']}" if "port" in given else ""
        name = f"/{quote(str(given['dbname']))}" if "dbname" in given else ""
        schema = "" if self.schema == SCHEMA else f"?schema={self.schema}"
        return f"postgresql://{user}{given.get('host', '')}{port}{name}{schema}"
