"""A table as a sink, as a user has it: CREATE TABLE, a file of settings, and commands."""

import json
import sqlite3
from contextlib import closing

import pytest

from tables import make_tables, postgres_desk  # noqa: F401 - a fixture among them

SETTINGS = """
ledger = "{ledger}"

[sinks.agents]
database = "{database}"
table = "{prefix}agent_status"
topics = ["v2.users.{{id}}.routingStatus"]
key = ["user_id"]
newest = "changed_at"
tie = "event_key"

[sinks.agents.columns]
user_id = "detail.eventBody.id"
status = "detail.eventBody.routingStatus.status"
changed_at = "oncebridge.time"
event_key = "oncebridge.key"
"""
TABLE = "CREATE TABLE agent_status (user_id TEXT PRIMARY KEY, status TEXT, changed_at TEXT, event_key TEXT)"


@pytest.fixture
def settle(cli):
    """Write the file of settings."""

    def write(ledger, database, prefix=""):
        text = SETTINGS.format(ledger=ledger, database=database, prefix=prefix)
        (cli.folder / "oncebridge.toml").write_text(text)

    return write


def make_file(cli, name):
    """Make a file with the user's table."""
    with closing(sqlite3.connect(cli.folder / name)) as db, db:
        db.execute(TABLE)


def test_in_the_ledgers_own_file(cli, states, settle):
    """The newest state stands in the table, however often the file is processed; nothing else was needed."""
    make_file(cli, "once.db")
    settle("sqlite:///once.db", "ledger")
    cli.write("in.jsonl", states(6))
    for _ in range(2):
        ran = cli("process", "in.jsonl", "--json")
        assert ran.code == 0, ran
    (row,) = cli.table("agent_status")
    assert (row["status"], row["changed_at"]) == ("IDLE", "2025-06-02T10:30:05.123Z")
    assert cli("purge", "--json").one == {"forgotten": 0, "remembered": 6}


def test_in_another_file(cli, settle, explained):
    """Another SQLite file than the ledger's is refused, with what to do instead."""
    make_file(cli, "desk.db")
    settle("sqlite:///once.db", "sqlite:///desk.db")
    (cli.folder / "in.jsonl").write_text(json.dumps({}))
    said = explained(cli("process", "in.jsonl"), 2)
    assert "[sinks.agents] database: a table in SQLite is written in the ledger's own file alone" in said
    assert 'set database = "ledger"' in said


def test_in_a_postgres_by_reference(cli, states, settle, postgres_desk, explained):  # noqa: F811
    """Migrate makes the keys' table, and says which other one is missing; then it is as anywhere."""
    settle("sqlite:///once.db", "env:DATABASE_URL", postgres_desk.prefix)
    environment = {"DATABASE_URL": postgres_desk.url}
    said = explained(cli("migrate", **environment), 2)
    assert f"there is no table {postgres_desk.prefix}agent_status" in said
    make_tables(postgres_desk)
    said = cli("migrate", **environment)
    assert said.code == 0
    assert "sink agents: its keys have their table oncebridge_effects" in said.out
    cli.write("in.jsonl", states(6))
    for _ in range(2):
        assert cli("process", "in.jsonl", "--json", **environment).code == 0
    rows = postgres_desk(f"SELECT status FROM {postgres_desk.prefix}agent_status")
    assert rows == [("IDLE",)]
    assert cli("purge", "--older-than-days", "0", "--yes", "--json", **environment).one["sinks"] == {"agents": 6}


def test_a_missing_table_is_said_and_waited_for(cli, states, settle, wait_until):
    """Whoever forgot to make it reads so once, makes it, and the command goes on by itself."""
    settle("sqlite:///once.db", "ledger")
    cli.write("in.jsonl", states(6))
    started = cli.start("process", "in.jsonl", "--json")
    wait_until(lambda: "no such table: agent_status" in started.said, "the person is told")
    assert not started.over
    make_file(cli, "once.db")
    ran = started.finish()
    assert (ran.code, ran.one["received"], ran.one["dead"]) == (0, 6, 0)
    assert ran.one["processed"] + ran.one["stale"] == 6  # those that came after a newer one had its turn
    assert "check the table" in ran.err
    assert ran.err.count("no such table") == 1
    assert [row["changed_at"] for row in cli.table("agent_status")] == ["2025-06-02T10:30:05.123Z"]


def test_a_mistake_in_the_settings_is_one_sentence(cli, settle, explained):
    """Which table, which setting, and what to do."""
    settle("memory://", "ledger")
    (cli.folder / "in.jsonl").write_text(json.dumps({}))
    said = explained(cli("process", "in.jsonl"), 2)
    assert "sink agents: database: MemoryLedger has no tables of yours" in said
