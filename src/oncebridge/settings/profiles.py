"""Users' own profiles: the tables `[topics."..."]`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from msgspec import Meta

from oncebridge.errors import ConfigurationError
from oncebridge.settings.expressions import compiled
from oncebridge.settings.reading import check_table, read_by, read_settings, read_text
from oncebridge.topics import Field, Kind, Profile, plain

TIMES_MAX: Final = 8  # in one body; ledgers keep all of them for each entity


def read_profile(topic: str, given: Any, file: str) -> Profile:
    """Check one table."""
    table = f'topics."{topic}"'
    where = f"{file}: [{table}]"
    values = read_settings(PROFILE, check_table(given, file, table), where)
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


_FIELD: Final = Annotated[Field, read_by(_read_field, "a JMESPath expression such as data.id")]
#: What a profile's table may say. The defaults are those of `Profile`.
PROFILE: Final = {
    "kind": Kind,
    "entity": Annotated[Field, read_by(_read_fields, "a JMESPath expression such as data.id, or a list of them")],
    "time": Annotated[
        Field, read_by(_read_times, f"a JMESPath expression such as data.at, or a list of up to {TIMES_MAX}")
    ],
    "explicit_id": _FIELD,
    "version": _FIELD,
    "exclude": Annotated[
        Field, read_by(_read_paths, "a path such as data.updatedAt or participants[].score, or a list of them")
    ],
    "echo_window_ms": Annotated[int, Meta(ge=0, le=86_400_000)],
    "stale": bool,
}
