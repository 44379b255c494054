"""Environment and file into settings: the only place that reads them.

What a program gives wins over `ONCEBRIDGE_*`, that over `oncebridge.toml`, that over the defaults. Only where none of
the first three names a ledger, `REDIS_HOST` does, with `REDIS_PORT` (6379) and `REDIS_PASSWORD` (none).
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from oncebridge.errors import ConfigurationError, MissingExtra
from oncebridge.retry import RetryPolicy
from oncebridge.topics import Field, Kind, Profile, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FILE_NAME: Final = "oncebridge.toml"
DEFAULT_LEDGER: Final = "sqlite:///oncebridge.db"
TIMES_MAX: Final = 8  # in one body; ledgers keep all of them for each entity
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 64  # as much as the hash takes


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
    retry: RetryPolicy = RetryPolicy()
    profiles: tuple[Profile, ...] = ()

    def __repr__(self) -> str:
        """Show neither the secret nor the ledger's URL, which may hold a password."""
        return f"<Settings lease {self.lease_seconds} s, retention {self.retention_days} days>"


def load_settings(path: str | os.PathLike[str] | None = None, **given: Any) -> Settings:
    """Join what the program gives, the environment and the file. A file that is named must exist."""
    chosen = path or os.environ.get("ONCEBRIDGE_SETTINGS")
    tables = _read_file(Path(chosen or FILE_NAME), must_exist=chosen is not None)
    from_file = _check_tables(tables, str(chosen or FILE_NAME))
    from_environment = _read_environment(os.environ)
    values = {**from_file, **from_environment, **_check_given(given)}
    if "ledger" not in values:
        values |= _redis_ledger(os.environ)
    retry = {name: values.pop(name) for name in _RETRY if name in values}
    return Settings(**values, retry=RetryPolicy(**retry))


def _check_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a program gives like what stands in the file; what is None was not given."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name == "profiles":
            values |= {} if value is None else {name: tuple(value)}
        elif name == "secret":
            values[name] = _secret(value, name)
        else:
            values[name] = _check_one(_RETRY if name in _RETRY else _TOP, name, value, name)
    return _with_secret_file(values)


# --- what can be set, and what is right ---------------------------------------------------------------


class Check(msgspec.Struct, frozen=True):
    """What a setting must be: in words, and as a function that raises ValueError for anything else."""

    expected: str
    read: Callable[[Any], Any]


def _number(low: float, high: float) -> Check:
    def read(value: Any) -> float:
        number = float(value)
        if isinstance(value, bool) or not low <= number <= high:
            raise ValueError
        return number

    return Check(f"a number from {low:g} to {high:g}", read)


def _whole(low: int, high: int) -> Check:
    def read(value: Any) -> int:
        number = int(value)
        if isinstance(value, bool) or number != float(value) or not low <= number <= high:
            raise ValueError
        return number

    return Check(f"a whole number from {low} to {high}", read)


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _read_flag(value: Any) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in known:
        raise ValueError
    return known[value.lower()]


_TEXT: Final = Check("a text that is not empty", _read_text)
_FLAG: Final = Check("true or false", _read_flag)

_TOP: Final = {
    "ledger": _TEXT,
    "secret_file": _TEXT,
    "lease_seconds": _number(0.1, 43_200),
    "handler_timeout_seconds": _number(0.1, 86_400),
    "busy_wait_seconds": _number(0, 3600),
    "settle_within_seconds": _number(0, 10),
    "retention_days": _number(0, 36_500),
    "queue_retention_days": _number(0, 14),
    "concurrency": _whole(1, 256),
    "replays_anew": _FLAG,
}
_RETRY: Final = {
    "attempts": _whole(1, 1000),
    "base_seconds": _number(0, 3600),
    "cap_seconds": _number(0, 86_400),
}
_TABLES: Final = ("retry", "topics")
_PORT: Final = _whole(1, 65_535)
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


def _check_tables(tables: Mapping[str, Any], file: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in tables.items():
        if name in _TABLES and not isinstance(value, dict):
            raise ConfigurationError(f"{file}: {name}: expected a table, got {value!r}; write it as [{name}]")
        if name == "retry":
            values |= _check(_RETRY, value, file, "[retry]")
        elif name == "topics":
            values["profiles"] = tuple(_profile(topic, fields, file) for topic, fields in value.items())
        elif name == "secret":
            raise ConfigurationError(f"{file}: secret: keep it out of this file; name a file in secret_file instead")
        else:
            values |= _check(_TOP, {name: value}, file, "")
    return _with_secret_file(values)


def _check(known: Mapping[str, Check], given: Mapping[str, Any], file: str, table: str) -> dict[str, Any]:
    return {
        name: _check_one(known, name, value, f"{file}: {table} {name}".replace("  ", " "))
        for name, value in given.items()
    }


def _check_one(known: Mapping[str, Check], name: str, value: Any, where: str) -> Any:
    if name not in known:
        names = [*known, *(_TABLES if known is _TOP else ())]
        close = difflib.get_close_matches(name, names, n=1)
        fix = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
        raise ConfigurationError(f"{where}: no such setting; {fix}")
    try:
        return known[name].read(value)
    except (ValueError, TypeError, OverflowError):
        raise ConfigurationError(f"{where}: expected {known[name].expected}, got {value!r}") from None


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read `ONCEBRIDGE_NAME` for each setting; `ONCEBRIDGE_RETRY_NAME` for those of the table `retry`."""
    names = {f"ONCEBRIDGE_{name.upper()}": (_TOP, name) for name in _TOP}
    names |= {f"ONCEBRIDGE_RETRY_{name.upper()}": (_RETRY, name) for name in _RETRY}
    values = {}
    for variable, (known, name) in names.items():
        if environment.get(variable):
            values[name] = _check_one(known, name, environment[variable], variable)
    values = _with_secret_file(values)
    if environment.get("ONCEBRIDGE_SECRET"):
        values["secret"] = _secret(environment["ONCEBRIDGE_SECRET"].encode(), "ONCEBRIDGE_SECRET")
    return values


def _redis_ledger(environment: Mapping[str, str]) -> dict[str, str]:
    """Name the ledger by `REDIS_HOST`, `REDIS_PORT` and `REDIS_PASSWORD`, as programs before this one did."""
    host = environment.get("REDIS_HOST")
    if not host:
        return {}
    port = _check_one({"port": _PORT}, "port", environment.get("REDIS_PORT") or "6379", "REDIS_PORT")
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


def _with_secret_file(values: dict[str, Any]) -> dict[str, Any]:
    path = values.pop("secret_file", None)
    if path is not None:
        try:
            values["secret"] = _secret(Path(path).read_bytes().strip(), f"secret_file {path}")
        except OSError as error:
            raise ConfigurationError(f"secret_file {path}: {error.strerror}") from None
    return values


def _secret(secret: bytes, where: str) -> bytes:
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        # Its length may be told, its content never.
        raise ConfigurationError(
            f"{where}: a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, this one has {len(secret)}; "
            "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return secret


# --- users' own profiles ------------------------------------------------------------------------------


def _profile(topic: str, given: Any, file: str) -> Profile:
    """Check one `[topics."..."]` table."""
    table = f'[topics."{topic}"]'
    if not isinstance(given, dict):
        raise ConfigurationError(f"{file}: {table}: expected a table, got {given!r}")
    values = _check(_PROFILE, given, file, table)
    if values.get("kind") is not Kind.STATE:
        for name in ("entity", "version", "echo_window_ms", "stale"):
            if name in values:
                raise ConfigurationError(f'{file}: {table} {name}: only a state has it; set kind = "state" or drop it')
    return Profile(topic=topic, **values)


_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_PLAIN: Final = re.compile(rf"{_NAME}(?:\.{_NAME})*")
_PATH: Final = re.compile(rf"{_NAME}(?:\[\])*(?:\.{_NAME}(?:\[\])*)*")


def _read_field(value: Any) -> Field:
    if _PLAIN.fullmatch(_read_text(value)):
        return plain(value)
    try:
        import jmespath
    except ImportError:
        raise MissingExtra(
            f"the expression {value!r} needs jmespath; install it with: pip install 'oncebridge[cli]'"
        ) from None
    try:
        return Field(value, (), _searching(jmespath.compile(value).search, jmespath.exceptions.JMESPathError))
    except jmespath.exceptions.JMESPathError as error:
        raise ValueError from error


def _searching(search: Callable[[Any], Any], error: type[Exception]) -> Callable[[Any], Any]:
    """Let an expression that an event's fields do not suit find nothing, as a path does."""

    def found(body: Any) -> Any:
        try:
            return search(body)
        except error:
            return None

    return found


def _read_fields(value: Any) -> tuple[Field, ...]:
    return tuple(_read_field(item) for item in (value if isinstance(value, list) else [value]))


def _read_times(value: Any) -> tuple[Field, ...]:
    fields = _read_fields(value)
    if len(fields) > TIMES_MAX:
        raise ValueError
    return fields


def _read_paths(value: Any) -> tuple[Field, ...]:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) and _PATH.fullmatch(item) for item in items):
        raise ValueError
    return tuple(plain(item) for item in items)


_FIELD: Final = Check("a JMESPath expression such as data.id", _read_field)
_FIELDS: Final = Check("a JMESPath expression such as data.id, or a list of them", _read_fields)
_TIMES: Final = Check(f"a JMESPath expression such as data.at, or a list of up to {TIMES_MAX}", _read_times)
_PATHS: Final = Check("a path such as data.updatedAt or participants[].score, or a list of them", _read_paths)
_PROFILE: Final = {
    "kind": Check("fact, state or sample", Kind),
    "entity": _FIELDS,
    "time": _TIMES,
    "explicit_id": _FIELD,
    "version": _FIELD,
    "exclude": _PATHS,
    "echo_window_ms": _whole(0, 86_400_000),
    "stale": _FLAG,
}
