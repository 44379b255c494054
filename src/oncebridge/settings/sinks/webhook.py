"""Settings of the sink that posts events to a URL."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any, Final

from oncebridge.errors import ConfigurationError
from oncebridge.settings.checks import FLAG, Check, check_one, number, read_text
from oncebridge.settings.expressions import Search, compiled
from oncebridge.settings.secrets import REFERENCE, Secret, is_reference
from oncebridge.settings.sinks.sink import BODY, TOPICS, SinkSettings

#: What a receiver that was written for the tutorial's service expects; with Genesys' own shape it works too.
TUTORIAL_BODY: Final = (
    '{eventType: detail.eventType || "detail-type" || detail.topicName, '
    "body: not_null(detail.body, detail.eventBody, detail), timestamp: detail.timestamp}"
)


class WebhookSettings(SinkSettings, frozen=True, kw_only=True):
    """Where events are posted to, and how."""

    url: str
    #: What is sent, as a JMESPath expression over the envelope; None: the envelope as it came.
    body: Search | None = None
    headers: tuple[tuple[str, str | Secret], ...] = ()
    bearer: Secret | None = None
    api_key: Secret | None = None
    api_key_header: str = "X-API-Key"
    timeout_seconds: float = 10.0
    #: Whether the URL may lead to an address that is not public. Link-local ones are refused all the same.
    private_addresses: bool = False


def read_webhook(name: str, table: dict[str, Any], where: str) -> WebhookSettings:
    """Check one table."""
    values = {setting: _read_setting(setting, value, f"{where} {setting}") for setting, value in table.items()}
    if "api_key_header" in values and "api_key" not in values:
        raise ConfigurationError(f"{where} api_key_header: is for api_key, which is missing; add it, or drop this")
    sink = WebhookSettings(name=name, **values)
    _refuse_headers_twice(sink, where)
    return sink


def _read_setting(setting: str, value: Any, where: str) -> Any:
    """Check one setting; of headers, each by itself."""
    if setting == "headers":
        return _read_headers(value, where)
    return check_one(WEBHOOK, setting, value, where, ("headers",))


def _read_headers(value: Any, where: str) -> tuple[tuple[str, str | Secret], ...]:
    if not isinstance(value, dict):
        raise ConfigurationError(f'{where}: expected a table, such as {{ "X-Team" = "desk" }}')
    for name in value:
        check_one({name: HEADER_NAME}, name, name, where)
    return tuple((name, _read_header_value(text, f"{where} {name}")) for name, text in value.items())


def _read_header_value(value: Any, where: str) -> str | Secret:
    if is_reference(value):
        secret: Secret = check_one({"value": REFERENCE}, "value", value, where)
        return secret
    if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
        raise ConfigurationError(
            f"{where}: expected one line of printable ASCII, or {REFERENCE.expected} for a value that is secret"
        )
    return value


def _refuse_headers_twice(sink: WebhookSettings, where: str) -> None:
    names = [name for name, _ in sink.headers]
    names += ["Authorization"] if sink.bearer is not None else []
    names += [sink.api_key_header] if sink.api_key is not None else []
    for one, other in combinations(names, 2):
        if one.lower() == other.lower():
            raise ConfigurationError(
                f"{where}: the header {other} is set twice, by headers, bearer or api_key; keep one"
            )


def downstream_sink(url: str) -> WebhookSettings:
    """Make the sink that `downstream_url` names: whoever runs this has chosen the address, a private one too."""
    return WebhookSettings(name="", url=url, body=compiled(TUTORIAL_BODY), private_addresses=True)


_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
#: Set by the sink itself, or by HTTP.
_OWN_HEADERS: Final = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "idempotency-key",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)


def _read_header_name(value: Any) -> str:
    name = read_text(value)
    if not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS or name.lower().startswith("oncebridge-"):
        raise ValueError
    return name


HEADER_NAME: Final = Check(
    "the name of a header, and none of those that are set anyway (Content-Type, Idempotency-Key, Oncebridge-...)",
    _read_header_name,
)
WEBHOOK: Final = {
    # Its path may hold a token.
    "url": Check("a text such as https://crm.example/events", read_text, shown=False),
    "bearer": REFERENCE,
    "api_key": REFERENCE,
    "topics": TOPICS,
    "body": BODY,
    "api_key_header": HEADER_NAME,
    "timeout_seconds": number(0.1, 900),
    "private_addresses": FLAG,
}
