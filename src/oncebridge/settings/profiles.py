"""Users' own profiles: the tables `[topics."..."]`."""

from __future__ import annotations

import re
from typing import Any, Final

from oncebridge.errors import ConfigurationError
from oncebridge.settings.checks import FLAG, Check, check, check_table, read_text, whole
from oncebridge.settings.expressions import compiled
from oncebridge.topics import Field, Kind, Profile, plain

TIMES_MAX: Final = 8  # in one body; ledgers keep all of them for each entity


def read_profile(topic: str, given: Any, file: str) -> Profile:
    """Check one table."""
    table = f'topics."{topic}"'
    where = f"{file}: [{table}]"
    values = check(PROFILE, check_table(given, file, table), where)
    if values.get("kind") is not Kind.STATE:
        for name in ("entity", "version", "echo_window_ms", "stale"):
            if name in values:
                raise ConfigurationError(f'{where} {name}: only a state has it; set kind = "state" or drop it')
    return Profile(topic=topic, **values)


_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_PLAIN: Final = re.compile(rf"{_NAME}(?:\.{_NAME})*")
_PATH: Final = re.compile(rf"{_NAME}(?:\[\])*(?:\.{_NAME}(?:\[\])*)*")


def _read_field(value: Any) -> Field:
    if _PLAIN.fullmatch(read_text(value)):
        return plain(value)
    return Field(value, (), compiled(value))


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
PROFILE: Final = {
    "kind": Check("fact, state or sample", Kind),
    "entity": _FIELDS,
    "time": _TIMES,
    "explicit_id": _FIELD,
    "version": _FIELD,
    "exclude": _PATHS,
    "echo_window_ms": whole(0, 86_400_000),
    "stale": FLAG,
}
