"""Environment and file into settings: the only place that reads them.

What a program gives wins over `ONCEBRIDGE_*`, that over `oncebridge.toml`, that over the defaults. Where none of the
first three say anything, the variables of earlier programs do: `REDIS_HOST` with `REDIS_PORT` (6379) and
`REDIS_PASSWORD` (none), `DOWNSTREAM_URL` and `DLQ_EVENT_BUS`.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, replace

from oncebridge.errors import ConfigurationError
from oncebridge.event import Reshape
from oncebridge.retry import RetryPolicy
from oncebridge.settings.console import ConsoleSettings
from oncebridge.settings.envelope import read_envelope
from oncebridge.settings.environment import SETTINGS_VARIABLE, describes_service, refuse_unknown
from oncebridge.settings.genesys import GenesysSettings
from oncebridge.settings.profiles import read_profile
from oncebridge.settings.reading import (
    Text,
    Texts,
    check_table,
    declared,
    read_setting,
    read_settings,
    read_value,
)
from oncebridge.settings.secrets import (
    EXPECTED,
    VARIABLES_NAMED,
    KeySecret,
    LedgerURL,
    References,
    is_reference,
    with_secret_file,
)
from oncebridge.settings.serve import ServeSettings
from oncebridge.settings.sinks import read_sink
from oncebridge.settings.sinks.sink import SinkSettings
from oncebridge.telemetry import debug
from oncebridge.topics import Profile

FILE_NAME: Final = "oncebridge.toml"
DEFAULT_LEDGER: Final = "sqlite:///oncebridge.db"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set. A field with a description is a setting of the file and of the environment."""

    ledger: Annotated[
        LedgerURL,
        Meta(
            description="where claims are remembered: a URL, or where one with a password is (`env:NAME` and so on, "
            "see secrets). Without it `REDIS_HOST` names one, with `REDIS_PORT` and `REDIS_PASSWORD`"
        ),
    ] = DEFAULT_LEDGER
    secret: Annotated[
        KeySecret | None,
        Meta(
            description="where the secret for keys is: `env:NAME`, `file:PATH` or `secretsmanager:ID`; the "
            "variable may hold the secret itself. Without one the ledger makes its own"
        ),
    ] = None
    lease_seconds: Annotated[
        float, Meta(ge=0.1, le=43_200, description="how long a dead worker's claims block others")
    ] = 30.0
    handler_timeout_seconds: Annotated[
        float, Meta(ge=0.1, le=86_400, description="how long a claim is extended while its handler runs")
    ] = 900.0
    busy_wait_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="how long to wait for an event that another worker has claimed")
    ] = 2.0
    settle_within_seconds: Annotated[
        float, Meta(ge=0, le=10, description="how long the end of a claim may wait to be written together with others")
    ] = 0.001
    retention_days: Annotated[float, Meta(ge=0, le=36_500, description="how long settled events are remembered")] = 30.0
    queue_retention_days: Annotated[
        float,
        Meta(
            ge=0,
            le=14,
            description="how long the queue in front keeps a message; doctor adds it to Genesys' 4 days and "
            "EventBridge's 1",
        ),
    ] = 4.0
    hide_until_retry: Annotated[
        bool,
        Meta(
            description="whether a Lambda function hides a failed message in its queue until its next attempt is due; "
            "needs `sqs:ChangeMessageVisibility` there"
        ),
    ] = False
    concurrency: Annotated[int, Meta(ge=1, le=256, description="handlers at a time")] = 1
    replays_anew: Annotated[
        bool, Meta(description="whether each named archive replay processes every event once more")
    ] = False
    shadow: Annotated[
        bool,
        Meta(
            description="whether events are only judged and counted: no handler and no sink is called, and nothing "
            "counts as done for them"
        ),
    ] = False
    allowed_orgs: Annotated[Texts, Meta(description="restricting senders: Genesys organizations")] = ()
    allowed_sources: Annotated[Texts, Meta(description="the same for sources of envelopes; `*` works")] = ()
    unhandled: Annotated[
        Literal["acknowledge", "dead"],
        Meta(
            description="an event that no handler takes: `acknowledge` drops it, `dead` keeps it as a dead letter, "
            "to be redriven once there is a handler",
            extra={"expected": '"acknowledge" or "dead"'},
        ),
    ] = "acknowledge"
    downstream_url: Annotated[
        Text | None,
        Meta(description="where events go that have neither handler nor sink; `DOWNSTREAM_URL` sets it too"),
    ] = None
    dead_letter_queue: Annotated[
        Text | None, Meta(description="URL of an SQS queue that gets dead letters as well")
    ] = None
    dead_letter_bus: Annotated[
        Text | None,
        Meta(
            description="name or ARN of an event bus that gets them, checked at the start "
            "(`events:DescribeEventBus`); `DLQ_EVENT_BUS` sets it too"
        ),
    ] = None
    dead_letters_max: Annotated[
        int | None,
        Meta(
            ge=1,
            le=100_000_000,
            description="how many dead letters there may be; beyond, an event that would become one is not "
            "acknowledged",
        ),
    ] = None
    dead_letter_retention_days: Annotated[
        float | None, Meta(ge=0.001, le=36_500, description="`purge` discards dead letters that are older")
    ] = None
    api_keys: Annotated[
        References,
        Meta(description="secrets of which a client has to send one over HTTP; two at once while you change them"),
    ] = ()
    allow_requests_without_key: Annotated[
        bool,
        Meta(
            description="whether a Lambda function without `api_keys` takes requests that AWS has not authenticated: "
            "anyone who knows its URL can then send events"
        ),
    ] = False
    journal: Annotated[
        bool,
        Meta(
            description="whether commands and Lambda functions add up in the ledger what they do, for the console and "
            "`top`; nothing of a payload is in it. Without it a worker heeds no pause and takes no request"
        ),
    ] = True
    attendance: Annotated[
        bool,
        Meta(
            description="whether the ledger keeps, for `reconcile`, which events of each conversation came: some 40 "
            "bytes for a call, written with the ends of its events"
        ),
    ] = False
    log_errors: Annotated[
        bool,
        Meta(
            description="whether the log has the message and the traceback of a handler's exception, beside its class "
            "and its place: they may hold personal data"
        ),
    ] = False
    deliveries_per_request: Annotated[
        int, Meta(ge=1, le=10_000, description="how many deliveries one request over HTTP may hold")
    ] = 1000
    metrics_namespace: Annotated[
        str,
        Meta(
            pattern=r"\A(?!AWS/)[A-Za-z0-9._/#:-]{1,255}\Z",  # CloudWatch drops metrics under any other, silently
            description="where CloudWatch keeps the metrics of a Lambda function",
            extra={"expected": "a CloudWatch namespace such as Shop/Events, that begins with no AWS/"},
        ),
    ] = "Oncebridge"
    retry: RetryPolicy = RetryPolicy()
    serve: ServeSettings = ServeSettings()
    console: ConsoleSettings = ConsoleSettings()
    genesys: GenesysSettings = GenesysSettings()
    profiles: tuple[Profile, ...] = ()
    sinks: tuple[SinkSettings, ...] = ()
    #: Turns what an input transformer made of an envelope back into one.
    reshape: Reshape | None = None

    def __repr__(self) -> str:
        """Show neither the secret nor the ledger's URL, which may hold a password."""
        return f"<Settings lease {self.lease_seconds} s, retention {self.retention_days} days>"


def load_settings(path: str | os.PathLike[str] | None = None, **given: Any) -> Settings:
    """Join what the program gives, the environment and the file. A file that is named must exist."""
    chosen = path or os.environ.get(SETTINGS_VARIABLE)
    tables = _read_file(Path(chosen or FILE_NAME), must_exist=chosen is not None)
    from_file = _check_file(tables, str(chosen or FILE_NAME))
    from_environment = _read_environment(os.environ)
    values = {**_read_old_variables(os.environ), **from_file, **from_environment, **_check_given(given)}
    if "ledger" not in values:
        values |= _redis_ledger(os.environ)
    # Last: by now all references to variables have been followed.
    refuse_unknown(os.environ, _settings_by_variable(), VARIABLES_NAMED)
    debug(
        "settings read",
        file=str(Path(chosen or FILE_NAME).absolute()) if tables else None,
        from_file=sorted(from_file),
        from_environment=sorted(from_environment),
        given=sorted(name for name, value in given.items() if value is not None),
    )
    policies: dict[str, dict[str, Any]] = values.pop("sink_policies", {})
    settings = _replaced(Settings(), values)
    return settings if given.get("sinks") else _with_own_policies(settings, policies)


def _with_own_policies(settings: Settings, policies: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Give sinks the policies of their own tables; `[retry]` says what these leave open, wherever that was set."""
    sinks = [
        replace(sink, retry=replace(settings.retry, **policies[sink.name])) if sink.name in policies else sink
        for sink in settings.sinks
    ]
    return replace(settings, sinks=tuple(sinks))


def is_shadow_by_environment() -> bool:
    """Return whether the environment asks for a shadow, also of a program's own bridge: in doubt nothing is called."""
    return _read_environment(os.environ).get("shadow", False) is True


def with_given(settings: Settings, **given: Any) -> Settings:
    """Replace the settings that are given, checked like any others; None means not given."""
    return _replaced(settings, _check_given(given))


def _replaced(settings: Settings, values: dict[str, Any]) -> Settings:
    """Put values where they belong: into the settings themselves, or into one of their tables."""
    tables = {
        table: {name: values.pop(name) for name in kind.__struct_fields__ if name in values}
        for table, kind in _TABLE_TYPES.items()
    }
    inner = {table: replace(getattr(settings, table), **found) for table, found in tables.items() if found}
    return replace(settings, **values, **inner)


# --- what can be set ----------------------------------------------------------------------------------------

#: The tables of the file that have variables, and where the names of these begin.
VARIABLES: Final = {
    "": "ONCEBRIDGE_",
    "retry": "ONCEBRIDGE_RETRY_",
    "serve": "ONCEBRIDGE_SERVE_",
    "console": "ONCEBRIDGE_CONSOLE_",
    "genesys": "ONCEBRIDGE_GENESYS_",
}
#: The same tables, by what they are read into; no two have a setting of the same name.
_TABLE_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    "retry": RetryPolicy,
    "serve": ServeSettings,
    "console": ConsoleSettings,
    "genesys": GenesysSettings,
}
_TABLES: Final = (*_TABLE_TYPES, "topics", "sinks", "envelope")
#: Settings that only a program can give ready-made.
_READY_MADE: Final = ("profiles", "sinks", "reshape")
_SecretFile: TypeAlias = Annotated[Text, Meta(description="a file that holds the secret for keys")]


@lru_cache(maxsize=4)
def known_settings(table: str = "") -> dict[str, Any]:
    """Return the types of the settings of a table by name; those outside of any table unless one is named."""
    if table:
        return declared(_TABLE_TYPES[table])
    return {**declared(Settings), "secret_file": _SecretFile}


def _check_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check a program's own settings like those of the file; None means not given."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in _READY_MADE:
            values[name] = tuple(value) if isinstance(value, list) else value
        else:
            table = next((table for table in _TABLE_TYPES if name in known_settings(table)), "")
            values[name] = read_setting(known_settings(table), name, value, name, _TABLES)
    return with_secret_file(values)


def check_policy(policy: RetryPolicy, where: str) -> None:
    """Refuse a retry policy that a program has made, if it is out of the bounds of the settings."""
    if not isinstance(policy, RetryPolicy):
        raise ConfigurationError(f"{where}: expected a RetryPolicy, such as RetryPolicy(attempts=3), got {policy!r}")
    read_settings(known_settings("retry"), asdict(policy), where)


_PORT: Final = Annotated[int, Meta(ge=1, le=65_535)]
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")


def _read_file(path: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        import tomllib  # only where there is a file: a function by environment starts without it

        return tomllib.loads(text)
    except FileNotFoundError:
        if must_exist:
            raise ConfigurationError(
                f"{path}: no such file; create it, or name another by --settings or ONCEBRIDGE_SETTINGS"
            ) from None
        return {}
    except ValueError as error:  # tomllib's, or of a file that is not UTF-8
        raise ConfigurationError(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None


def _check_file(tables: Mapping[str, Any], file: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in tables.items():
        if name in _TABLE_TYPES:
            values |= read_settings(known_settings(name), check_table(value, file, name), f"{file}: [{name}]")
        elif name == "topics":
            profiles = check_table(value, file, name, 'topics."TOPIC"')
            values["profiles"] = tuple(read_profile(topic, fields, file) for topic, fields in profiles.items())
        elif name == "sinks":
            sinks = check_table(value, file, name, "sinks.NAME")
            values["sink_policies"] = {
                sink: _read_policy(fields["retry"], file, f"sinks.{sink}.retry")
                for sink, fields in sinks.items()
                if isinstance(fields, dict) and "retry" in fields
            }
            values["sinks"] = tuple(read_sink(sink, fields, file) for sink, fields in sinks.items())
        elif name == "envelope":
            values["reshape"] = read_envelope(value, file)
        elif name == "secret" and not is_reference(value):
            raise ConfigurationError(
                f"{file}: secret: keep it out of this file, and name where it is instead: {EXPECTED}"
            )
        else:
            values[name] = read_setting(known_settings(), name, value, f"{file}: {name}", _TABLES)
    return with_secret_file(values)


def _read_policy(value: Any, file: str, table: str) -> dict[str, Any]:
    """Read the retry policy of one sink, as far as it differs from `[retry]`."""
    return read_settings(known_settings("retry"), check_table(value, file, table), f"{file}: [{table}]")


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read `ONCEBRIDGE_NAME` for each setting; `ONCEBRIDGE_RETRY_NAME` for those of the table `retry`, and so on."""
    values = {}
    for variable, (table, name) in _settings_by_variable().items():
        value = environment.get(variable)
        if value and not describes_service(variable, value):
            values[name] = read_setting(known_settings(table), name, value, variable)
    return with_secret_file(values)


@lru_cache(maxsize=1)
def _settings_by_variable() -> dict[str, tuple[str, str]]:
    """Return the table and the name of each setting, by its variable."""
    starts = VARIABLES.items()
    return {f"{start}{name.upper()}": (table, name) for table, start in starts for name in known_settings(table)}


#: Variables that programs before this one had.
OLD_VARIABLES: Final = {"DOWNSTREAM_URL": "downstream_url", "DLQ_EVENT_BUS": "dead_letter_bus"}


def _read_old_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[variable] for variable, name in OLD_VARIABLES.items() if environment.get(variable)}


def _redis_ledger(environment: Mapping[str, str]) -> dict[str, str]:
    """Name the ledger by `REDIS_HOST`, `REDIS_PORT` and `REDIS_PASSWORD`, as programs before this one did."""
    host = environment.get("REDIS_HOST")
    if not host:
        return {}
    port = read_value(_PORT, environment.get("REDIS_PORT") or "6379", "REDIS_PORT")
    password = quote(environment.get("REDIS_PASSWORD", ""), safe="")
    return {"ledger": f"redis://{password and f':{password}@'}{_host_in_url(host)}:{port}/0"}


def _host_in_url(host: str) -> str:
    """Write a host as a URL has it: an IPv6 address in brackets."""
    if _HOST.fullmatch(host):
        return host
    try:
        address = ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        # Not shown: it may be a whole URL, with its password.
        raise ConfigurationError(
            "REDIS_HOST: expected a host alone, such as cache.internal or ::1; the port belongs into REDIS_PORT, "
            "the password into REDIS_PASSWORD, and a whole URL into ONCEBRIDGE_LEDGER"
        ) from None
    return f"[{str(address).replace('%', '%25')}]"
