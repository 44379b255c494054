"""Makes the ledger's tables, functions and partitions, while workers may be running.

A function whose parameters or meaning change gets a new name: workers that are not yet updated call the old one.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final

from psycopg import errors

from oncebridge.claim import MARK_BYTES, MARKS_MAX
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.postgres import from_schema_1, pages

if TYPE_CHECKING:
    from oncebridge.ledgers.postgres.address import Address
    from oncebridge.ledgers.postgres.connections import LedgerConnection

SCHEMA_VERSION: Final = 2
#: Raised with every change of these scripts, so that `migrate` brings the functions of a ledger up to date, and an
#: older program does not take them back.
FUNCTIONS_VERSION: Final = 2
FUNCTIONS: Final = ("claim", "settle", "places")
DAYS_BEHIND: Final = 4  # Genesys retries a delivery for this long
DAYS_AHEAD: Final = 2
_THEN: Final = "-- then, once all data is written:"
_MIGRATE_LOCK: Final = 0x6F62_6D67
_PLACES_LOCK: Final = 0x6F62_706C

_VALUES: Final = {
    # Plans are made once and must stay right while tables grow: always by index, in the order of the keys. Planning for
    # the partitions of each call would take several times as long as the call.
    "settings": (
        "SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off "
        "SET enable_hashjoin = off SET lock_timeout = '2s'"
    ),
    "brief_lock_timeout": "200ms",
    "moment_us": "1000",
    "days_behind": str(DAYS_BEHIND),
    "days_ahead": str(DAYS_AHEAD),
    "places_lock": str(_PLACES_LOCK),
    "mark_bytes": str(MARK_BYTES),
    "marks_max": str(MARKS_MAX),
}

#: What later versions have added, by a table of each: without a version of its own, so old and new workers share a
#: ledger. They do without notes; letters are listed by a trigger; a settle with marks has functions of its own.
_ADDED: Final = {"note": "notes", "letter_head": "letters", "attendance": "attendance"}


def found_version(connection: LedgerConnection, schema: str) -> int:
    """Return the number of the existing schema; 0 if there is none."""
    ((there,),) = connection.ask("SELECT to_regclass(%s) IS NOT NULL", [f"{schema}.meta"])
    if not there:
        return 0
    rows = connection.ask(f"SELECT value FROM {schema}.meta WHERE name = 'schema'")  # nosec B608 # a checked name
    return int(rows[0][0]) if rows else 0


def found_functions(connection: LedgerConnection, schema: str) -> int:
    """Return the number of the existing functions; the first ones had none."""
    rows = connection.ask(f"SELECT value FROM {schema}.meta WHERE name = 'functions'")  # nosec B608 # a checked name
    return int(rows[0][0]) if rows else 1


def check_version(found: int, address: Address) -> None:
    """Refuse tables that another Oncebridge made."""
    if found < SCHEMA_VERSION:
        raise LedgerRefused(
            f"{address}: the tables were made by an older Oncebridge (schema {found}, and this one needs "
            f"{SCHEMA_VERSION}); update them with: oncebridge migrate --ledger '{address}'"
        )
    _refuse_newer(found, address)


def _refuse_newer(found: int, address: Address) -> None:
    if found > SCHEMA_VERSION:
        raise LedgerRefused(
            f"{address}: the tables were made by a newer Oncebridge (schema {found}, this one knows {SCHEMA_VERSION}); "
            "update this one"
        )


def migrate(connection: LedgerConnection, address: Address) -> None:
    """Make everything that is missing: all of it or nothing, and one caller at a time."""
    schema = address.schema
    right = _missing_right(connection, schema)
    try:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '30s'")
            connection.ask("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_MIGRATE_LOCK, schema])
            found = found_version(connection, schema)
            _refuse_newer(found, address)
            if found < SCHEMA_VERSION:
                _bring_up(connection, schema, found)
            elif found_functions(connection, schema) < FUNCTIONS_VERSION:
                _make_functions(connection, schema)
            for table, script in _ADDED.items():
                ((there,),) = connection.ask("SELECT to_regclass(%s) IS NOT NULL", [f"{schema}.{table}"])
                if not there:
                    connection.execute(_script(script, schema))
        pages.list_letters(connection, schema)
    except errors.InsufficientPrivilege as error:
        raise LedgerRefused(f"{address}: this user may not make the ledger's tables; {right}") from error
    make_places(connection, schema)


def _missing_right(connection: LedgerConnection, schema: str) -> str:
    """Return the statement that gives this user what it lacks, if it lacks anything: after an error nothing answers."""
    statement = "SELECT quote_ident(current_user), quote_ident(current_database()), to_regnamespace(%s) IS NOT NULL"
    ((user, database, there),) = connection.ask(statement, [schema])
    if there:
        return (
            f"its owner can allow it: GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}; tables that are there already "
            "can be updated by their owner alone"
        )
    return (
        f"the database's owner can allow it: GRANT CREATE ON DATABASE {database} TO {user}; or make the schema for it: "
        f"CREATE SCHEMA {schema} AUTHORIZATION {user}"
    )


def _bring_up(connection: LedgerConnection, schema: str, found: int) -> None:
    if found:
        before, after = _script("from_schema_1", schema).split(_THEN)
        connection.execute(before)
        from_schema_1.write_data(connection, schema)
        connection.execute(after)
    else:
        ((there,),) = connection.ask("SELECT to_regnamespace(%s) IS NOT NULL", [schema])
        if not there:  # a user without the right to create one can have it created
            connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(_script("schema", schema))
    _make_functions(connection, schema)
    _note_version(connection, schema, "schema", SCHEMA_VERSION)


def _make_functions(connection: LedgerConnection, schema: str) -> None:
    for script in FUNCTIONS:
        connection.execute(_script(script, schema))
    _note_version(connection, schema, "functions", FUNCTIONS_VERSION)


def _note_version(connection: LedgerConnection, schema: str, name: str, version: int) -> None:
    connection.execute(
        f"INSERT INTO {schema}.meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",  # nosec B608
        [name, str(version).encode()],
    )


def make_places(connection: LedgerConnection, schema: str) -> bool:
    """Make the partitions of the next days; False if another session is in the way: then it can wait."""
    try:
        connection.ask(f"SELECT {schema}.make_places()")
    except (errors.LockNotAvailable, errors.DeadlockDetected):
        return False
    return True


def _script(name: str, schema: str) -> str:
    text = files("oncebridge.ledgers.postgres").joinpath(f"{name}.sql").read_text(encoding="utf-8")
    for word, value in _VALUES.items():
        text = text.replace(f"{{{word}}}", value)
    return text.replace("{schema}", schema)
