"""A user's own tables for tests of the sink that writes into them: in the ledger's SQLite file, and in Postgres."""

import secrets
import sqlite3
from contextlib import closing

import psycopg
import pytest

import payloads
from oncebridge.bridge import Bridge
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.retry import RetryPolicy
from oncebridge.settings import Settings
from oncebridge.settings.sinks import read_sink
from oncebridge.settings.sinks.table import LEDGER

SECRET = b"correct-horse-battery-staple"
#: Of every engine's table: column -> type in Postgres, type in SQLite.
TYPES = {
    "user_id": ("text PRIMARY KEY", "TEXT PRIMARY KEY"),
    "status": ("text", "TEXT"),
    "changed_at": ("timestamptz", "TEXT"),
    "event_key": ("text", "TEXT"),
}
COLUMNS = {
    "user_id": "detail.eventBody.id",
    "status": "detail.eventBody.routingStatus.status",
    "changed_at": "oncebridge.time",
    "event_key": "oncebridge.key",
}
NEWEST = {"key": ["user_id"], "newest": "changed_at", "tie": "event_key"}


class SQLiteDesk:
    """A file with tables."""

    engine = "sqlite"
    url = LEDGER  # a table in SQLite is in the ledger's own file
    missing = "no such table"
    prefix = ""

    def __init__(self, folder):
        """Make the file."""
        self.path = folder / "desk.db"
        self.ledger_url = f"sqlite:///{self.path}"
        sqlite3.connect(self.path).close()

    def __call__(self, statement, values=()):
        """Run a statement as anybody could, and return its rows."""
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as db:
            return db.execute(statement, values).fetchall()

    def types(self, of=TYPES):
        """Return the columns of a table, as this engine writes them."""
        return ", ".join(f"{name} {types[1]}" for name, types in of.items())

    def close(self):
        """Leave the file to the folder."""


class PostgresDesk:
    """A schema with tables."""

    engine = "postgresql"
    missing = "there is no table"

    def __init__(self, server):
        """Make the schema."""
        self.server = server
        self.schema = f"desk_{secrets.token_hex(6)}"
        self.prefix = f"{self.schema}."
        self.url = server.url
        self.ledger_url = f"{server.url}{'&' if '?' in server.url else '?'}schema={self.schema}_once"
        self(f"CREATE SCHEMA {self.schema}")

    def __call__(self, statement, values=()):
        """Run a statement as anybody could, and return its rows."""
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            if hasattr(self, "prefix"):
                connection.execute(f"SET search_path = {self.schema}")
            cursor = connection.execute(statement.replace("?", "%s"), values or None)
            return cursor.fetchall() if cursor.description else []

    def types(self, of=TYPES):
        """Return the columns of a table, as this engine writes them."""
        return ", ".join(f"{name} {types[0]}" for name, types in of.items())

    def close(self):
        """Drop all of it."""
        self(f"DROP SCHEMA IF EXISTS {self.schema}, {self.schema}_once CASCADE")


@pytest.fixture(params=["sqlite", "postgresql"])
def desk(request, tmp_path):
    """Make a database of the user's, one for each engine."""
    made = SQLiteDesk(tmp_path) if request.param == "sqlite" else PostgresDesk(request.getfixturevalue("postgres"))
    yield made
    made.close()


@pytest.fixture(params=["sqlite, ledger", "postgresql, ledger", "postgresql, elsewhere"])
def placed(request, tmp_path):
    """Make a database of the user's, and return it with what settings call it, in each way that there is."""
    engine, _, place = request.param.partition(", ")
    made = SQLiteDesk(tmp_path) if engine == "sqlite" else PostgresDesk(request.getfixturevalue("postgres"))
    yield made, LEDGER if place == "ledger" else made.url
    made.close()


@pytest.fixture
def sqlite_desk(tmp_path):
    """Make a file of the user's."""
    return SQLiteDesk(tmp_path)


@pytest.fixture
def postgres_desk(postgres):
    """Make a schema of the user's."""
    made = PostgresDesk(postgres)
    yield made
    made.close()


def agents(desk, name="agents", **changes):
    """Write the settings of a sink that keeps the newest status of each agent, and whatever is to be different."""
    usual = {"database": desk.url, "table": f"{desk.prefix}agent_status", "columns": COLUMNS, **NEWEST}
    table = {setting: value for setting, value in {**usual, **changes}.items() if value is not payloads.ABSENT}
    return read_sink(name, table, "oncebridge.toml")


def log(desk, name="log", **changes):
    """Write the settings of a sink that makes every event a row of its own."""
    columns = {"event_key": "oncebridge.key", "status": "detail.eventBody.routingStatus.status"}
    none = dict.fromkeys(NEWEST, payloads.ABSENT)
    return agents(desk, name, **{"table": f"{desk.prefix}status_log", "columns": columns, **none, **changes})


@pytest.fixture
def bridge(clock, tmp_path):
    """Make bridges with table sinks, whose tables of keys are made; they are closed at the end.

    Unless another ledger is given, tables in the ledger are in the file of `SQLiteDesk`.
    """
    made = []

    def make(*sinks, ledger=None, attempts=10, migrated=True, clock=clock, **settings):
        in_ledger = any(sink.database == LEDGER for sink in sinks)
        one = Bridge(
            ledger or (SQLiteDesk(tmp_path).ledger_url if in_ledger else MemoryLedger(clock)),
            settings=Settings(sinks=sinks, secret=SECRET, retry=RetryPolicy(attempts=attempts), **settings),
            clock=clock,
        )
        made.append(one)
        for sink in one.sinks.values():
            if migrated and hasattr(sink, "migrate"):
                sink.migrate()
        return one

    yield make
    for one in made:
        one.close()
        for sink in one.sinks.values():
            sink.close()


def make_tables(desk, *, unique=True):
    """Make both tables that the sinks above write into."""
    types = TYPES if unique else {**TYPES, "user_id": ("text", "TEXT")}
    desk(f"CREATE TABLE {desk.prefix}agent_status ({desk.types(types)})")
    desk(f"CREATE TABLE {desk.prefix}status_log (event_key text, status text NOT NULL)")


def status(state, at_ms=0, **changes):
    """Build an agent's routing status, so many milliseconds later than usual."""
    return payloads.routing_status(state, payloads.TIME_MS + at_ms, **changes)


def keys(desk, table="status_log"):
    """Return the keys of the events that have a row of their own."""
    return [key for (key,) in desk(f"SELECT event_key FROM {desk.prefix}{table}")]


def effects(desk):
    """Return the sinks whose keys are kept, one for each key."""
    return sorted(sink for (sink,) in desk(f"SELECT sink FROM {desk.prefix}oncebridge_effects"))
