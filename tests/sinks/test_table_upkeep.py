"""The table of keys stays small, and what `doctor` sees of a table: what is missing is found before an event comes."""

import psycopg

from oncebridge.ledgers.findings import Level
from oncebridge.sinks.table.sink import FORGET_EVERY, NeedsUpkeep
from oncebridge.sinks.table.sql import FORGET_AT_ONCE
from servers.postgres import own_postgres
from tables import (  # noqa: F401 - fixtures among them
    PostgresDesk,
    agents,
    bridge,
    effects,
    keys,
    log,
    make_tables,
    placed,
    postgres_desk,
    sqlite_desk,
    status,
)

DAY_US = 86_400_000_000


def plant(desk, number, sink="log", days=31):
    """Write keys that are so many days old."""
    desk(
        f"INSERT INTO {desk.prefix}oncebridge_effects SELECT decode(md5(random()::text), 'hex'), ?, "
        f"(extract(epoch FROM now()) * 1000000)::bigint - {days} * {DAY_US} FROM generate_series(1, ?)",
        (sink, number),
    )


def test_old_keys_are_forgotten_and_younger_ones_never(postgres_desk, bridge):  # noqa: F811
    """Purge goes by the retention, and touches nothing of another sink's."""
    make_tables(postgres_desk)
    made = bridge(log(postgres_desk))
    made.process(status("IDLE"))
    plant(postgres_desk, FORGET_AT_ONCE + 1)
    plant(postgres_desk, 7, days=29)
    plant(postgres_desk, 5, sink="other")
    sink = made.sinks["log"]
    assert isinstance(sink, NeedsUpkeep)
    assert sink.purge(older_than_us=30 * DAY_US) == FORGET_AT_ONCE + 1
    assert effects(postgres_desk) == ["log"] * 8 + ["other"] * 5
    assert sink.purge(older_than_us=30 * DAY_US) == 0


def test_the_sink_forgets_a_few_now_and_then(postgres_desk, bridge):  # noqa: F811
    """After so many events, some old keys go by themselves: more than were written, and never all at once."""
    make_tables(postgres_desk)
    made = bridge(log(postgres_desk))
    made.process(status("IDLE"))
    plant(postgres_desk, 2 * FORGET_AT_ONCE)
    made.sinks["log"]._written = FORGET_EVERY - 2
    made.process(status("IDLE", 1000))
    assert len(effects(postgres_desk)) == 2 * FORGET_AT_ONCE + 2
    made.process(status("IDLE", 2000))
    assert len(effects(postgres_desk)) == FORGET_AT_ONCE + 3
    assert FORGET_AT_ONCE > FORGET_EVERY


def test_an_event_does_not_suffer_from_forgetting(postgres_desk, bridge, monkeypatch):  # noqa: F811
    """Somebody in the way of it: the event is done all the same."""
    make_tables(postgres_desk)
    made = bridge(log(postgres_desk))
    made.process(status("IDLE"))
    plant(postgres_desk, 1)
    sink = made.sinks["log"]
    sink._written = FORGET_EVERY - 1
    others = []
    write = sink._database.write_once

    def write_and_lock(*row):
        write(*row)
        others.append(locked(postgres_desk))

    monkeypatch.setattr(sink._database, "write_once", write_and_lock)
    try:
        assert made.process(status("IDLE", 1000)).outcome == "done"
    finally:
        for other in others:
            other.close()
    assert len(effects(postgres_desk)) == 3


def locked(desk):
    """Return a connection that holds what forgetting needs."""
    other = psycopg.connect(desk.url)
    other.execute(f"SELECT 1 FROM {desk.prefix}oncebridge_effects FOR UPDATE")
    return other


def test_migrate_may_be_repeated(postgres_desk, bridge):  # noqa: F811
    """What is there stays as it is."""
    make_tables(postgres_desk)
    made = bridge(log(postgres_desk))
    made.process(status("IDLE"))
    made.sinks["log"].migrate()
    assert effects(postgres_desk) == ["log"]


def test_keys_are_beside_the_table_whatever_the_search_path(postgres_desk, bridge):  # noqa: F811
    """A table without a schema in the settings is found by the search path, and its keys are where it is."""
    make_tables(postgres_desk)
    other = f"{postgres_desk.schema}_first"
    postgres_desk(f"CREATE SCHEMA {other}")
    try:
        path = f"{other},{postgres_desk.schema}"
        postgres_desk.url += f"{'&' if '?' in postgres_desk.url else '?'}options=-csearch_path%3D{path}"
        made = bridge(log(postgres_desk, table="status_log"))
        made.process(status("IDLE"))
        assert effects(postgres_desk) == ["log"]
        assert len(keys(postgres_desk)) == 1
    finally:
        postgres_desk(f"DROP SCHEMA {other} CASCADE")


# --- what doctor sees ------------------------------------------------------------------------------------


def found(made, name):
    """Return what a look at a sink finds, by its subject."""
    return {finding.subject: finding for finding in made.sinks[name].examine()}


def wrongs(findings):
    """Return the subjects that must be changed."""
    return {subject for subject, finding in findings.items() if finding.level is Level.WRONG}


def test_a_table_that_fits_is_good(placed, bridge):  # noqa: F811
    """Table, columns, key and rights are there; with the keys and the server or file where the ledger does not look."""
    desk, database = placed
    make_tables(desk)
    made = bridge(agents(desk, database=database), log(desk), ledger=desk.ledger_url)
    made.ledger.migrate()
    findings = found(made, "agents")
    assert wrongs(findings) - {"disk"} == set()  # the server of the tests is as fast as it is unsafe
    assert {"table", "key"} <= {*findings}
    assert ("keys" in findings) is (database != "ledger")
    assert "key" not in found(made, "log")


def test_what_is_missing_is_found(placed, bridge):  # noqa: F811
    """A table, then a column and the index: each with the fix."""
    desk, database = placed
    made = bridge(agents(desk, database=database), ledger=desk.ledger_url, migrated=False)
    made.ledger.migrate()
    assert wrongs(found(made, "agents")) == {"table"}
    desk(f"CREATE TABLE {desk.prefix}agent_status (user_id text, status text, event_key text)")
    desk(f"CREATE UNIQUE INDEX wider ON {desk.prefix}agent_status (user_id, status)")
    desk(f"CREATE UNIQUE INDEX narrower ON {desk.prefix}agent_status (user_id) WHERE status = 'IDLE'")
    findings = found(made, "agents")
    assert {"table", "key"} <= wrongs(findings)
    assert findings["table"].found.endswith("has no column changed_at")
    assert findings["key"].fix == f'CREATE UNIQUE INDEX ON {desk.prefix}agent_status ("user_id")'
    if database != "ledger":
        assert findings["keys"].fix == "make it with: oncebridge migrate"
    desk(f"CREATE UNIQUE INDEX right_one ON {desk.prefix}agent_status (user_id)")
    assert "key" not in wrongs(found(made, "agents"))


def test_a_database_out_of_reach_is_a_finding(sqlite_desk, bridge, monkeypatch):  # noqa: F811
    """Whoever runs doctor sees the rest as well, and no password."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://desk:hunter2@127.0.0.1:1/desk")
    made = bridge(agents(sqlite_desk, database="env:DATABASE_URL"), migrated=False)
    (finding,) = made.sinks["agents"].examine()
    assert (finding.level, finding.subject) == (Level.WRONG, "database")
    assert "hunter2" not in finding.found


def test_a_server_that_forgets_is_found(tmp_path, bridge):  # noqa: F811
    """Without fsync or synchronous_commit a commit may be gone, and the row with it."""
    with own_postgres(tmp_path, "fsync=off", "synchronous_commit=off") as server:
        on = PostgresDesk(server)
        make_tables(on)
        findings = found(bridge(agents(on)), "agents")
    assert findings["disk"].level is Level.WRONG
    assert findings["commit"].level is Level.WARNING
    assert all(findings[subject].weakens for subject in ("disk", "commit"))
