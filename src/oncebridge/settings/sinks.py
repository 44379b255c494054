"""Sinks by settings: the tables `[sinks.NAME]`."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from oncebridge.errors import ConfigurationError
from oncebridge.settings.checks import FLAG, TEXT, TEXTS, Check, check, check_table, number, read_text
from oncebridge.settings.expressions import Search, compiled
from oncebridge.settings.secrets import REFERENCE, Secret, is_reference, read_reference

#: What a receiver that was written for the tutorial's service expects; with Genesys' own shape it works too.
TUTORIAL_BODY: Final = (
    '{eventType: detail.eventType || "detail-type", body: detail.body || detail.eventBody || `{}`, '
    "timestamp: detail.timestamp}"
)


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One sink: which topics it takes, and where it sends them."""

    #: Under which its claims are remembered; empty for the one that `downstream_url` names.
    name: str
    url: str
    topics: tuple[str, ...] = ("*",)
    #: What is sent, as a JMESPath expression over the envelope; None: the envelope as it came.
    body: Search | None = None
    headers: tuple[tuple[str, str | Secret], ...] = ()
    bearer: Secret | None = None
    api_key: Secret | None = None
    api_key_header: str = "X-API-Key"
    timeout_seconds: float = 10.0
    #: Whether the URL may lead to an address that is not public. Link-local ones are refused all the same.
    private_addresses: bool = False


def read_sink(name: str, given: Any, file: str) -> SinkSettings:
    """Check one table."""
    where = f"{file}: [sinks.{name}]"
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: a name has up to 40 letters, digits, . _ and -")
    values = check(SINK, check_table(given, file, f"sinks.{name}"), where)
    if "url" not in values:
        raise ConfigurationError(
            f"{where} url: is missing; say where the events go, such as https://crm.example/events"
        )
    return SinkSettings(name=name, **values)


def downstream_sink(url: str) -> SinkSettings:
    """Make the sink that `downstream_url` names: whoever runs this has chosen the address, a private one too."""
    return SinkSettings(name="", url=url, body=compiled(TUTORIAL_BODY), private_addresses=True)


_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,40}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
#: Set by the sink itself, or by HTTP.
_OWN_HEADERS: Final = frozenset(
    {"content-length", "content-type", "host", "connection", "transfer-encoding", "idempotency-key"}
)


def _read_header_name(value: Any) -> str:
    name = read_text(value)
    if not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS or name.lower().startswith("oncebridge-"):
        raise ValueError
    return name


def _read_headers(value: Any) -> tuple[tuple[str, str | Secret], ...]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - the caller says what was expected
    return tuple((_read_header_name(name), _read_header_value(text)) for name, text in value.items())


def _read_header_value(value: Any) -> str | Secret:
    if is_reference(value):
        return read_reference(value)
    if not _HEADER_VALUE.fullmatch(read_text(value)):
        raise ValueError
    return str(value)


SINK: Final = {
    "url": TEXT,
    "topics": TEXTS,
    "body": Check(
        "a JMESPath expression over the envelope, such as detail.eventBody", lambda v: compiled(read_text(v))
    ),
    "headers": Check(
        "a table of header names and values in ASCII, or env:NAME and the like for values that are secret; none of "
        "those that are set anyway (Content-Type, Idempotency-Key, Oncebridge-...)",
        _read_headers,
    ),
    "bearer": REFERENCE,
    "api_key": REFERENCE,
    "api_key_header": Check("the name of a header", _read_header_name),
    "timeout_seconds": number(0.1, 900),
    "private_addresses": FLAG,
}
