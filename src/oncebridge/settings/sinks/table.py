"""Settings of the sink that writes events into a table."""

import re
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from msgspec import Meta

from oncebridge.errors import ConfigurationError
from oncebridge.settings.expressions import Search, read_expression
from oncebridge.settings.reading import declared, read_by, read_setting, read_text, read_texts, read_value
from oncebridge.settings.secrets import Reference, Secret, is_reference
from oncebridge.settings.sinks.sink import SinkSettings

#: As `database`: the ledger's own, in the very transaction that settles.
LEDGER: Final = "ledger"
#: Schemes of URLs that a table may be at.
SCHEMES: Final = ("postgresql", "postgres")
_NAME_BYTES_MAX: Final = 63  # Postgres cuts longer ones off, and says nothing


_IDENTIFIER: Final = re.compile(r"[^\W\d][\w$]*")
_OWN: Final = "oncebridge"


def _read_name(value: Any) -> str:
    name = read_text(value)
    if not _IDENTIFIER.fullmatch(name) or len(name.encode()) > _NAME_BYTES_MAX:
        raise ValueError
    return name


def _read_table_name(value: Any) -> str:
    schema, _, table = read_text(value).rpartition(".")
    _read_name(table)
    if schema or "." in value:
        _read_name(schema)
    if schema == _OWN or table.startswith(f"{_OWN}_"):
        raise ConfigurationError(f"{value!r} is a table of Oncebridge's own; name one of yours")
    return str(value)


def _read_key(value: Any) -> tuple[str, ...]:
    columns = read_texts(value)
    if not columns or len(set(columns)) < len(columns):
        raise ValueError
    return columns


_NAMED: Final = f"letters, digits, _ and $, up to {_NAME_BYTES_MAX} bytes, as the database spells it"
_DATABASE: Final = (
    "ledger, a URL such as postgresql://user@host/database, or where one is: env:DATABASE_URL, file:PATH or "
    "secretsmanager:ID"
)
_Database: TypeAlias = Annotated[str, read_by(read_text, _DATABASE, shown=False)]
_Column: TypeAlias = Annotated[str, read_by(_read_name, f"the name of a column: {_NAMED}")]
_Expression: TypeAlias = Annotated[
    Search,
    read_by(read_expression, "a JMESPath expression over the envelope, such as detail.eventBody.id or oncebridge.time"),
]


class TableSettings(SinkSettings, frozen=True, kw_only=True):
    """Which table events are written into, and which of their fields become which columns."""

    database: Annotated[
        str | Secret,
        Meta(description="`ledger` for the ledger's own database; otherwise its URL, which may hold a password"),
    ]
    table: Annotated[
        str,
        read_by(_read_table_name, f"the name of a table, such as agent_status or desk.agent_status: {_NAMED}"),
        Meta(description="the table, which must be there"),
    ]
    columns: Annotated[
        tuple[tuple[str, Search], ...],
        Meta(
            description="each column with a JMESPath expression over the envelope, where `oncebridge` (key, topic, "
            "time and so on) is beside `detail`"
        ),
    ]
    key: Annotated[
        tuple[str, ...],
        read_by(_read_key, 'a list of columns, each once, such as ["user_id"]'),
        Meta(description="columns that identify a row; without them every event is a row of its own"),
    ] = ()
    newest: Annotated[
        _Column | None,
        Meta(description="the column that says which of two rows is newer; without it, the one that is written later"),
    ] = None
    tie: Annotated[
        _Column | None,
        Meta(
            description="the column that decides where those are equal: the larger one stays; without it, the one "
            "that is written later"
        ),
    ] = None


def read_table(name: str, table: dict[str, Any], where: str) -> TableSettings:
    """Check one table."""
    values = {setting: _read_setting(setting, value, f"{where} {setting}") for setting, value in table.items()}
    for needed, example in (("table", 'table = "agent_status"'), ("columns", f"a table [sinks.{name}.columns]")):
        if needed not in values:
            raise ConfigurationError(f"{where}: does not say which {needed} events are written into; add {example}")
    sink = TableSettings(name=name, **values)
    _check_roles(sink, where)
    return sink


def _read_setting(setting: str, value: Any, where: str) -> Any:
    """Check one setting; of columns, each by itself."""
    if setting == "columns":
        return _read_columns(value, where)
    if setting == "database":
        return _read_database(value, where)
    return read_setting(declared(TableSettings), setting, value, where)


# --- which database --------------------------------------------------------------------------------------


def _read_database(value: Any, where: str) -> str | Secret:
    if value == LEDGER:
        return LEDGER
    if is_reference(value):
        secret: Secret = read_value(Reference, value, where)
        _check_url(secret.value, f"{where}: {secret.reference}")
        return secret
    url = str(read_value(_Database, value, where))
    if _check_url(url, where):
        raise ConfigurationError(
            f"{where}: holds a password, which does not belong into this file; put the URL into an environment "
            "variable or a file, and name that: env:DATABASE_URL or file:/run/secrets/database"
        )
    return url


def _check_url(url: str, where: str) -> bool:
    """Refuse anything but a database's URL, without showing it; return whether it holds a password."""
    try:
        parts = urlsplit(url)
        secrets = [name for name, _ in parse_qsl(parts.query) if name in ("password", "sslpassword")]
    except ValueError:
        parts = None
    if parts is not None and parts.scheme == "sqlite":
        raise ConfigurationError(
            f"{where}: a table in SQLite is written in the ledger's own file alone; use a sqlite:// ledger, make the "
            'table in its file, and set database = "ledger", or use a postgresql:// database'
        )
    if parts is None or parts.scheme not in SCHEMES or not url.startswith(f"{parts.scheme}://"):
        raise ConfigurationError(f"{where}: expected {_DATABASE}")
    return parts.password is not None or bool(secrets)


# --- which columns ---------------------------------------------------------------------------------------


def _read_columns(value: Any, where: str) -> tuple[tuple[str, Search], ...]:
    if not isinstance(value, dict) or not value:
        raise ConfigurationError(
            f'{where}: expected a table with a line for each column, such as user_id = "detail.eventBody.id"'
        )
    for column in value:
        read_value(_Column, column, where)
    return tuple(
        (column, read_value(_Expression, expression, f"{where} {column}")) for column, expression in value.items()
    )


def _check_roles(sink: TableSettings, where: str) -> None:
    """Refuse columns with a task that they cannot have."""
    columns = [column for column, _ in sink.columns]
    known = f"the columns are {', '.join(columns)}"
    for setting, named in (("key", sink.key), ("newest", (sink.newest,)), ("tie", (sink.tie,))):
        for column in named:
            if column is not None and column not in columns:
                raise ConfigurationError(f"{where} {setting}: {column!r} is not among [columns]; {known}")
            if column is not None and setting != "key" and column in sink.key:
                raise ConfigurationError(
                    f"{where} {setting}: {column!r} is part of the key, and so the same in both rows; name another"
                )
    if sink.newest is not None and not sink.key:
        raise ConfigurationError(f"{where} newest: needs key, which says whose newest row it is; add key, or drop this")
    if sink.tie is not None and sink.newest is None:
        raise ConfigurationError(f"{where} tie: is for rows whose newest are equal; add newest, or drop this")
    if sink.tie is not None and sink.tie == sink.newest:
        raise ConfigurationError(f"{where} tie: {sink.tie!r} is newest already; name another column, or drop this")
