"""Environment and file into settings: the only place that reads them.

What a program gives wins over `ONCEBRIDGE_*`, that over `oncebridge.toml`, that over the defaults. Where none of the
first three say anything, variables do that programs before this one had: `REDIS_HOST` with `REDIS_PORT` (6379) and
`REDIS_PASSWORD` (none), `DOWNSTREAM_URL` and `DLQ_EVENT_BUS`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from oncebridge.errors import ConfigurationError
from oncebridge.event import Reshape
from oncebridge.retry import RetryPolicy
from oncebridge.settings.checks import FLAG, TEXT, TEXTS, Check, check, check_one, check_table, number, one_of, whole
from oncebridge.settings.envelope import read_envelope
from oncebridge.settings.profiles import read_profile
from oncebridge.settings.secrets import KEY_SECRET, LEDGER, REFERENCES, Secret, is_reference, with_secret_file
from oncebridge.settings.serve import SERVE, ServeSettings
from oncebridge.settings.sinks import read_sink
from oncebridge.settings.sinks.sink import SinkSettings
from oncebridge.topics import Profile

FILE_NAME: Final = "oncebridge.toml"
DEFAULT_LEDGER: Final = "sqlite:///oncebridge.db"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set."""

    ledger: str = DEFAULT_LEDGER
    secret: bytes | None = None
    #: How long a claim runs before others may take it over; extended while its handler works.
    lease_seconds: float = 30.0
    #: How long a handler may work before its claim is no longer extended.
    handler_timeout_seconds: float = 900.0
    #: How long to wait for an event that somebody else is working on, before it is handed back.
    busy_wait_seconds: float = 2.0
    #: How long the end of a claim may wait to be written together with others.
    settle_within_seconds: float = 0.001
    retention_days: float = 30.0
    #: How long the queue in front keeps a message, if there is one; what SQS does unless told otherwise.
    queue_retention_days: float = 4.0
    concurrency: int = 1
    #: Whether each named archive replay processes every event once more.
    replays_anew: bool = False
    #: Orgs and sources (`*` works) that may come in; empty: all.
    allowed_orgs: tuple[str, ...] = ()
    allowed_sources: tuple[str, ...] = ()
    #: What becomes of an event that no handler takes: acknowledge it, or keep it as a dead letter.
    unhandled: Literal["acknowledge", "dead"] = "acknowledge"
    #: Where events go that have neither handler nor sink.
    downstream_url: str | None = None
    #: Where dead letters are sent as well: an SQS queue's URL, an EventBridge bus's name or ARN.
    dead_letter_queue: str | None = None
    dead_letter_bus: str | None = None
    #: How many dead letters there may be, and how long each is kept by `purge`; None: any number, and for ever.
    dead_letters_max: int | None = None
    dead_letter_retention_days: float | None = None
    #: Whoever brings events over HTTP has to know one of these, if there are any.
    api_keys: tuple[Secret, ...] = ()
    #: Whether a Lambda function without keys takes requests over HTTP that AWS has not authenticated.
    allow_requests_without_key: bool = False
    #: How many deliveries one request over HTTP may hold.
    deliveries_per_request: int = 1000
    #: Under which CloudWatch keeps the metrics of a Lambda function.
    metrics_namespace: str = "Oncebridge"
    retry: RetryPolicy = RetryPolicy()
    serve: ServeSettings = ServeSettings()
    profiles: tuple[Profile, ...] = ()
    sinks: tuple[SinkSettings, ...] = ()
    #: What an input transformer made of envelopes, back into envelopes.
    reshape: Reshape | None = None

    def __repr__(self) -> str:
        """Show neither the secret nor the ledger's URL, which may hold a password."""
        return f"<Settings lease {self.lease_seconds} s, retention {self.retention_days} days>"


def load_settings(path: str | os.PathLike[str] | None = None, **given: Any) -> Settings:
    """Join what the program gives, the environment and the file. A file that is named must exist."""
    chosen = path or os.environ.get("ONCEBRIDGE_SETTINGS")
    tables = _read_file(Path(chosen or FILE_NAME), must_exist=chosen is not None)
    from_file = _check_file(tables, str(chosen or FILE_NAME))
    from_environment = _read_environment(os.environ)
    values = {**_read_old_variables(os.environ), **from_file, **from_environment, **_check_given(given)}
    if "ledger" not in values:
        values |= _redis_ledger(os.environ)
    retry = {name: values.pop(name) for name in RETRY if name in values}
    serve = {name: values.pop(name) for name in SERVE if name in values}
    return Settings(**values, retry=RetryPolicy(**retry), serve=ServeSettings(**serve))


def with_given(settings: Settings, **given: Any) -> Settings:
    """Replace what is given, checked like any other; what is None was not given."""
    values = _check_given(given)
    retry = {name: values.pop(name) for name in RETRY if name in values}
    serve = {name: values.pop(name) for name in SERVE if name in values}
    return replace(settings, **values, retry=replace(settings.retry, **retry), serve=replace(settings.serve, **serve))


#: What only a program can give ready-made.
_READY_MADE: Final = ("profiles", "sinks", "reshape")


def _check_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a program gives like what stands in the file; what is None was not given."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in _READY_MADE:
            values[name] = tuple(value) if isinstance(value, list) else value
        else:
            known = RETRY if name in RETRY else SERVE if name in SERVE else TOP
            values[name] = check_one(known, name, value, name, _TABLES)
    return with_secret_file(values)


_NAMESPACE: Final = re.compile(r"(?!AWS/)[A-Za-z0-9._/#:-]{1,255}")


def _read_namespace(value: Any) -> str:
    """Read what CloudWatch takes; it drops metrics under any other name, and says nothing."""
    if not isinstance(value, str) or not _NAMESPACE.fullmatch(value):
        raise ValueError
    return value


TOP: Final = {
    "ledger": LEDGER,
    "secret_file": TEXT,
    "secret": KEY_SECRET,
    "lease_seconds": number(0.1, 43_200),
    "handler_timeout_seconds": number(0.1, 86_400),
    "busy_wait_seconds": number(0, 3600),
    "settle_within_seconds": number(0, 10),
    "retention_days": number(0, 36_500),
    "queue_retention_days": number(0, 14),
    "concurrency": whole(1, 256),
    "replays_anew": FLAG,
    "allowed_orgs": TEXTS,
    "allowed_sources": TEXTS,
    "unhandled": one_of("acknowledge", "dead"),
    "downstream_url": TEXT,
    "dead_letter_queue": TEXT,
    "dead_letter_bus": TEXT,
    "dead_letters_max": whole(1, 100_000_000),
    "dead_letter_retention_days": number(0.001, 36_500),
    "api_keys": REFERENCES,
    "allow_requests_without_key": FLAG,
    "deliveries_per_request": whole(1, 10_000),
    "metrics_namespace": Check("a CloudWatch namespace such as Shop/Events, that begins with no AWS/", _read_namespace),
}
RETRY: Final = {
    "attempts": whole(1, 1000),
    "base_seconds": number(0, 3600),
    "cap_seconds": number(0, 86_400),
}
_TABLES: Final = ("retry", "serve", "topics", "sinks", "envelope")
_PORT: Final = whole(1, 65_535)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")


def _read_file(path: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise ConfigurationError(
                f"{path}: no such file; create it, or name another by --settings or ONCEBRIDGE_SETTINGS"
            ) from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None


def _check_file(tables: Mapping[str, Any], file: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in tables.items():
        if name == "retry":
            values |= check(RETRY, check_table(value, file, name), f"{file}: [retry]")
        elif name == "serve":
            values |= check(SERVE, check_table(value, file, name), f"{file}: [serve]")
        elif name == "topics":
            profiles = check_table(value, file, name, 'topics."TOPIC"')
            values["profiles"] = tuple(read_profile(topic, fields, file) for topic, fields in profiles.items())
        elif name == "sinks":
            sinks = check_table(value, file, name, "sinks.NAME")
            values["sinks"] = tuple(read_sink(sink, fields, file) for sink, fields in sinks.items())
        elif name == "envelope":
            values["reshape"] = read_envelope(value, file)
        elif name == "secret" and not is_reference(value):
            raise ConfigurationError(
                f"{file}: secret: keep it out of this file, and name where it is instead: {KEY_SECRET.expected}"
            )
        else:
            values[name] = check_one(TOP, name, value, f"{file}: {name}", _TABLES)
    return with_secret_file(values)


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read `ONCEBRIDGE_NAME` for each setting; `ONCEBRIDGE_RETRY_NAME` for those of the table `retry`, and so on."""
    names = {f"ONCEBRIDGE_{name.upper()}": (TOP, name) for name in TOP}
    names |= {f"ONCEBRIDGE_RETRY_{name.upper()}": (RETRY, name) for name in RETRY}
    names |= {f"ONCEBRIDGE_SERVE_{name.upper()}": (SERVE, name) for name in SERVE}
    values = {}
    for variable, (known, name) in names.items():
        if environment.get(variable):
            values[name] = check_one(known, name, environment[variable], variable)
    return with_secret_file(values)


#: Variables that programs before this one had.
OLD_VARIABLES: Final = {"DOWNSTREAM_URL": "downstream_url", "DLQ_EVENT_BUS": "dead_letter_bus"}


def _read_old_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[variable] for variable, name in OLD_VARIABLES.items() if environment.get(variable)}


def _redis_ledger(environment: Mapping[str, str]) -> dict[str, str]:
    """Name the ledger by `REDIS_HOST`, `REDIS_PORT` and `REDIS_PASSWORD`, as programs before this one did."""
    host = environment.get("REDIS_HOST")
    if not host:
        return {}
    port = check_one({"port": _PORT}, "port", environment.get("REDIS_PORT") or "6379", "REDIS_PORT")
    password = quote(environment.get("REDIS_PASSWORD", ""), safe="")
    return {"ledger": f"redis://{password and f':{password}@'}{_host_in_url(host)}:{port}/0"}


def _host_in_url(host: str) -> str:
    """Write a host as a URL has it: an IPv6 address in brackets."""
    if _HOST.fullmatch(host):
        return host
    try:
        address = ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        # Not shown: somebody may have put a whole URL there, with its password.
        raise ConfigurationError(
            "REDIS_HOST: expected a host alone, such as cache.internal or ::1; the port belongs into REDIS_PORT, "
            "the password into REDIS_PASSWORD, and a whole URL into ONCEBRIDGE_LEDGER"
        ) from None
    return f"[{str(address).replace('%', '%25')}]"
