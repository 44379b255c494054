"""Settings of the sink that posts events to a URL."""

import re
from itertools import combinations
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from oncebridge.errors import ConfigurationError
from oncebridge.settings.expressions import compiled
from oncebridge.settings.reading import Text, declared, read_by, read_setting, read_text, read_value
from oncebridge.settings.secrets import EXPECTED, Reference, Secret, is_reference
from oncebridge.settings.sinks.sink import Body, SinkSettings

#: What a receiver that was written for the tutorial's service expects; with Genesys' own shape it works too.
TUTORIAL_BODY: Final = (
    '{eventType: detail.eventType || "detail-type" || detail.topicName, '
    "body: not_null(detail.body, detail.eventBody, detail), timestamp: detail.timestamp}"
)

#: Headers that the sink itself or HTTP sets.
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
_HEADER_NAME: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}"
_HEADER_VALUE: Final = r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?"


def _read_header_name(value: Any) -> str:
    name = read_text(value)
    if not re.fullmatch(_HEADER_NAME, name) or name.lower() in _OWN_HEADERS or name.lower().startswith("oncebridge-"):
        raise ValueError
    return name


HeaderName: TypeAlias = Annotated[
    str,
    read_by(
        _read_header_name,
        "the name of a header, and none of those that are set anyway (Content-Type, Idempotency-Key, Oncebridge-...)",
    ),
]


class OAuthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to sign in with OAuth client credentials before events are posted."""

    token_url: Annotated[
        str,
        Meta(
            min_length=1,
            description="where tokens are given out",
            extra={"expected": "a text such as https://login.mypurecloud.de/oauth/token", "shown": False},
        ),
    ]
    client_id: Annotated[Text, Meta(description="the id of the client, or where it is")]
    client_secret: Annotated[Reference, Meta(description="where its secret is")]
    scope: Annotated[str, Meta(description="what the token is for, if the sign-in asks for that")] = ""

    def __repr__(self) -> str:
        """Show nothing of it."""
        return "<OAuthSettings>"


class WebhookSettings(SinkSettings, frozen=True, kw_only=True):
    """Where events are posted to, and how."""

    url: Annotated[
        str,
        Meta(
            min_length=1,
            description="where events are posted to",
            extra={"expected": "a text such as https://crm.example/events", "shown": False},  # it may hold a token
        ),
    ]
    body: Body = None
    headers: Annotated[
        tuple[tuple[str, str | Secret], ...],
        Meta(description="further headers; a value that is secret is named by where it is"),
    ] = ()
    bearer: Annotated[Reference | None, Meta(description="where the token for the Authorization header is")] = None
    oauth: Annotated[
        OAuthSettings | None,
        Meta(description="instead of `bearer`: how to get a token, with token_url, client_id, client_secret and scope"),
    ] = None
    api_key: Annotated[Reference | None, Meta(description="where the API key is")] = None
    api_key_header: Annotated[HeaderName, Meta(description="the header that has the API key")] = "X-API-Key"
    timeout_seconds: Annotated[
        float, Meta(ge=0.1, le=900, description="how long a request may take, from the first look-up to the last byte")
    ] = 10.0
    private_addresses: Annotated[
        bool,
        Meta(description="whether the URL may lead to an address that is not public; link-local is refused anyway"),
    ] = False


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
    if setting == "oauth":
        return _read_oauth(value, where)
    return read_setting(declared(WebhookSettings), setting, value, where)


def _read_oauth(value: Any, where: str) -> OAuthSettings:
    if not isinstance(value, dict):
        raise ConfigurationError(
            f'{where}: expected a table, such as {{ token_url = "https://...", client_id = "..." }}'
        )
    known = declared(OAuthSettings)
    missing = [name for name in ("token_url", "client_id", "client_secret") if name not in value]
    if missing:
        raise ConfigurationError(f"{where}: {missing[0]} is missing")
    values = {name: read_setting(known, name, one, f"{where} {name}") for name, one in value.items()}
    if is_reference(values["client_id"]):
        values["client_id"] = read_value(Reference, values["client_id"], f"{where} client_id").value
    return OAuthSettings(**values)


def _read_headers(value: Any, where: str) -> tuple[tuple[str, str | Secret], ...]:
    if not isinstance(value, dict):
        raise ConfigurationError(f'{where}: expected a table, such as {{ "X-Team" = "desk" }}')
    for name in value:
        read_value(HeaderName, name, where)
    return tuple((name, _read_header_value(text, f"{where} {name}")) for name, text in value.items())


def _read_header_value(value: Any, where: str) -> str | Secret:
    if is_reference(value):
        secret: Secret = read_value(Reference, value, where)
        return secret
    if not isinstance(value, str) or not re.fullmatch(_HEADER_VALUE, value):
        raise ConfigurationError(
            f"{where}: expected one line of printable ASCII, or {EXPECTED} for a value that is secret"
        )
    return value


def _refuse_headers_twice(sink: WebhookSettings, where: str) -> None:
    names = [name for name, _ in sink.headers]
    names += ["Authorization"] if sink.bearer is not None else []
    names += ["Authorization"] if sink.oauth is not None else []
    names += [sink.api_key_header] if sink.api_key is not None else []
    for one, other in combinations(names, 2):
        if one.lower() == other.lower():
            raise ConfigurationError(
                f"{where}: the header {other} is set twice, by headers, bearer, oauth or api_key; keep one"
            )


def downstream_sink(url: str) -> WebhookSettings:
    """Make the sink that `downstream_url` names; the operator chose its address, which may be a private one."""
    return WebhookSettings(name="", url=url, body=compiled(TUTORIAL_BODY), private_addresses=True)
