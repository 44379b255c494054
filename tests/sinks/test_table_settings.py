"""Settings of the sink for tables: what is wrong is said before an event comes, with the fix and without a secret."""

import pytest

from oncebridge.errors import ConfigurationError
from oncebridge.ledgers.dynamodb.ledger import DynamoDBLedger
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.settings.sinks import read_sink
from oncebridge.sinks import Breakers, SinkContext, make_sink
from oncebridge.testing.clock import ManualClock

COLUMNS = {"user_id": "detail.eventBody.id", "changed_at": "oncebridge.time", "event_key": "oncebridge.key"}
TABLE = {"database": "postgresql://db.example/desk", "table": "agent_status", "columns": COLUMNS}


def read(**changes):
    """Read a table of settings with some of them changed."""
    return read_sink("agents", {**TABLE, **changes}, "oncebridge.toml")


def refused(**changes):
    """Return why settings are refused."""
    with pytest.raises(ConfigurationError) as error:
        read(**changes)
    return str(error.value)


def test_all_of_it_is_read():
    """What a user writes is what the sink gets."""
    sink = read(key=["user_id"], newest="changed_at", tie="event_key", topics=["v2.users.{id}.routingStatus"])
    assert (sink.name, sink.database, sink.table) == ("agents", "postgresql://db.example/desk", "agent_status")
    assert [column for column, _ in sink.columns] == ["user_id", "changed_at", "event_key"]
    assert (sink.key, sink.newest, sink.tie) == (("user_id",), "changed_at", "event_key")
    assert sink.columns[0][1]({"detail": {"eventBody": {"id": "u1"}}}) == "u1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"columns": {}}, "[sinks.agents] columns: expected a table with a line for each column"),
        ({"columns": "user_id"}, "columns: expected a table"),
        ({"columns": {"user_id": "detail.["}}, "columns user_id: expected a JMESPath expression"),
        ({"columns": {"user_id": 7}}, "columns user_id: expected a JMESPath expression"),
        ({"columns": {'a" = 1; DROP TABLE x; --': "detail"}}, "the name of a column"),
        ({"columns": {"1st": "detail"}}, "the name of a column"),
        ({"columns": {"a b": "detail"}}, "the name of a column"),
        ({"columns": {"ü" * 32: "detail"}}, "up to 63 bytes"),
        ({"table": 'agents"; DROP TABLE x; --'}, "the name of a table"),
        ({"table": "a.b.c"}, "the name of a table"),
        ({"table": ".agents"}, "the name of a table"),
        ({"table": ""}, "the name of a table"),
        ({"table": "oncebridge_event"}, "a table of Oncebridge's own"),
        ({"table": "oncebridge.event"}, "a table of Oncebridge's own"),
        ({"key": ["nobody"]}, "key: 'nobody' is not among [columns]; the columns are user_id, changed_at, event_key"),
        ({"key": []}, "key: expected a list of columns"),
        ({"key": ["user_id", "user_id"]}, "each once"),
        ({"newest": "changed_at"}, "newest: needs key"),
        ({"key": ["user_id"], "newest": "when"}, "newest: 'when' is not among [columns]"),
        ({"key": ["user_id"], "newest": "user_id"}, "newest: 'user_id' is part of the key"),
        ({"key": ["user_id"], "tie": "event_key"}, "tie: is for rows whose newest are equal; add newest"),
        ({"key": ["user_id"], "newest": "changed_at", "tie": "changed_at"}, "tie: 'changed_at' is newest already"),
        ({"key": ["user_id"], "newest": "changed_at", "tie": "user_id"}, "tie: 'user_id' is part of the key"),
        ({"database": 5}, "database: expected ledger, a URL"),
        ({"database": "mysql://desk"}, "database: expected ledger, a URL"),
        ({"database": "desk.db"}, "database: expected ledger, a URL"),
        ({"database": "postgresql:desk"}, "database: expected ledger, a URL"),
        ({"database": "env:NOT_SET_ANYWHERE"}, "this environment variable is not set"),
        ({"newst": "changed_at"}, "did you mean newest?"),
        ({"url": "https://crm.example"}, "has both url and database"),
    ],
)
def test_what_is_wrong_is_said_with_the_fix(changes, words):
    """Each mistake is named by the setting it is in."""
    said = refused(**changes)
    assert words in said
    assert said.startswith("oncebridge.toml: [sinks.agents]")


@pytest.mark.parametrize("missing", ["table", "columns"])
def test_what_is_missing_is_said(missing):
    """Without a table or columns there is nothing to write."""
    with pytest.raises(ConfigurationError, match=rf"which {missing} events are written into; add "):
        read_sink("agents", {name: value for name, value in TABLE.items() if name != missing}, "oncebridge.toml")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://desk:hunter2@db.example/desk",
        "postgres://desk:hunter2@db.example/desk",
        "postgresql://db.example/desk?user=desk&password=hunter2",
        "postgresql://desk:hunter2@[::1/desk",
        "mysql://desk:hunter2@db.example/desk",
    ],
)
def test_a_password_does_not_stand_in_the_file(url):
    """A URL with a password comes by reference, and no error shows it."""
    assert "hunter2" not in refused(database=url)


@pytest.mark.parametrize("way", ["env", "file"])
def test_a_password_comes_by_reference(monkeypatch, tmp_path, way):
    """Neither the settings nor the sink show what a reference leads to."""
    url = "postgresql://desk:hunter2@db.example/desk?password=hunter2"
    monkeypatch.setenv("DATABASE_URL", url)
    (tmp_path / "url").write_text(f"{url}\n")
    settings = read(database="env:DATABASE_URL" if way == "env" else f"file:{tmp_path / 'url'}")
    sink = make(settings)
    assert settings.database.value == url
    assert "hunter2" not in repr(settings) + repr(sink) + repr(settings.database)
    assert "desk@db.example/desk" in repr(sink)


def test_a_reference_to_something_else_is_not_shown(monkeypatch):
    """What a variable holds may be secret even where it is no URL."""
    monkeypatch.setenv("DATABASE_URL", "hunter2")
    said = refused(database="env:DATABASE_URL")
    assert "env:DATABASE_URL" in said
    assert "hunter2" not in said


def make(settings, ledger=None):
    """Make the sink that settings describe."""
    clock = ManualClock()
    context = SinkContext(clock=clock, breakers=Breakers(clock), ledger=ledger or MemoryLedger(clock), retention_us=1)
    return make_sink(settings, context)


@pytest.mark.parametrize("ledger", [MemoryLedger(), DynamoDBLedger("dynamodb://once?region=eu-west-1")], ids=repr)
def test_a_ledger_without_tables_is_said(ledger):
    """`ledger` is for Postgres and SQLite ledgers; with the others a URL is needed."""
    name = type(ledger).__name__
    with pytest.raises(ConfigurationError, match=rf"sink agents: database: {name} has no .* give the URL"):
        make(read(database="ledger"), ledger)


@pytest.mark.parametrize("way", ["url", "env"])
@pytest.mark.parametrize("url", ["sqlite:///desk.db", "sqlite:////var/lib/desk.db", "sqlite://", "sqlite:///:memory:"])
def test_another_sqlite_file_is_refused_with_what_to_do(monkeypatch, url, way):
    """A table in SQLite is in the ledger's own file; the error says how to name it, or what to use instead."""
    monkeypatch.setenv("DATABASE_URL", url)
    said = refused(database=url if way == "url" else "env:DATABASE_URL")
    assert "a table in SQLite is written in the ledger's own file alone" in said
    assert 'database = "ledger"' in said
    assert "postgresql://" in said


def test_a_postgres_url_that_cannot_be_read_is_said_without_it(monkeypatch):
    """The driver's words may quote a password, so they are not shown."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://desk:hun%ter2@db.example/desk")
    with pytest.raises(ConfigurationError, match="sink agents: database: this is no URL that Postgres under") as error:
        make(read(database="env:DATABASE_URL"))
    assert "hun%ter2" not in str(error.value)
