"""What handlers do with the connection that they are lent is committed with the settle, or not, and leaves nothing."""

import sqlite3
from contextlib import closing, suppress

import pytest

from children import delivery
from oncebridge import Bridge


@pytest.fixture
def path(tmp_path):
    """Return where the ledger of a test is, with a table that does not take a name twice."""
    path = tmp_path / "once.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE effect (name TEXT UNIQUE ON CONFLICT ROLLBACK)")
        db.execute("CREATE TABLE plain (name TEXT)")
        db.execute("INSERT INTO effect VALUES ('taken')")
        db.execute("CREATE TRIGGER refuse BEFORE INSERT ON plain WHEN new.name = 'refuse' "
                   "BEGIN SELECT RAISE(ROLLBACK, 'refused'); END")  # fmt: skip
        db.commit()
    return path


def bridge_on(path, handler):
    """Make a bridge with a handler."""
    bridge = Bridge(f"sqlite:///{path}")
    bridge.on("*")(handler)
    return bridge


def kept(path):
    """Return what both tables hold, as somebody else sees them."""
    with closing(sqlite3.connect(path)) as db:
        return [name for (name,) in db.execute("SELECT name FROM effect UNION ALL SELECT name FROM plain")]


# --- a statement that ends the transaction --------------------------------------------------------------------------

ENDINGS = {
    "constraint": "INSERT INTO effect VALUES ('taken')",
    "statement": "INSERT OR ROLLBACK INTO effect VALUES ('taken')",
    "trigger": "INSERT INTO plain VALUES ('refuse')",
}
INSERT = "INSERT INTO plain VALUES ('after')"
LATER = {
    "execute": lambda db: db.execute(INSERT),
    "the same as before": lambda db: db.execute("INSERT INTO plain VALUES (?)", ("after",)),
    "many": lambda db: db.executemany("INSERT INTO plain VALUES (?)", [("after",), ("after",)]),
    "with": lambda db: db.execute("WITH one(name) AS (SELECT 'after') INSERT INTO plain SELECT name FROM one"),
    "cursor": lambda db: db.cursor().execute(INSERT),
    "raw cursor": lambda db: sqlite3.Cursor(db).execute(INSERT),
    "script": lambda db: db.executescript(INSERT),
    "savepoint": lambda db: [db.execute(text) for text in ("SAVEPOINT one", INSERT, "RELEASE one")],
    "savepoint with prepared": lambda db: [
        db.execute(text, values)
        for text, values in [("SAVEPOINT one", ()), ("INSERT INTO plain VALUES (?)", ("after",)), ("RELEASE one", ())]
    ],
    "begin": lambda db: [db.execute(text) for text in ("BEGIN", INSERT, "COMMIT")],
    "table": lambda db: db.execute("CREATE TABLE after (name TEXT)"),
    "authorizer": lambda db: [db.set_authorizer(None), db.execute(INSERT)],
    "blob": lambda db: db.blobopen("effect", "name", 1).write(b"after"),
    "isolation": lambda db: [setattr(db, "isolation_level", "DEFERRED"), db.execute(INSERT), db.commit()],
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("later", LATER)
def test_nothing_is_committed_after_a_statement_that_ended_the_transaction(path, ending, later):
    """A rollback from within undoes the handler's work so far; whatever it writes then, it is not committed either."""

    def handle(event, transaction):
        transaction.execute("INSERT INTO plain VALUES (?)", ("before",))
        with suppress(sqlite3.IntegrityError):
            transaction.execute(ENDINGS[ending])
        with suppress(sqlite3.Error):
            LATER[later](transaction)

    bridge = bridge_on(path, handle)
    assert bridge.process(delivery("one")).outcome == "dead"
    bridge.close()
    assert kept(path) == ["taken"]
    with closing(sqlite3.connect(path)) as db:
        assert not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'after'").fetchall()


def test_a_handler_goes_on_with_the_next_event(path):
    """After a transaction that ended from within, the next event gets one that is sound."""

    def handle(event, transaction):
        transaction.execute("INSERT INTO effect VALUES (?)", (event.body["eventId"],))

    bridge = bridge_on(path, handle)
    assert [bridge.process(delivery(name)).outcome for name in ("taken", "one")] == ["retry", "done"]
    bridge.close()
    assert kept(path) == ["taken", "one"]


# --- what a handler sets --------------------------------------------------------------------------------------------


def hold_cursor(db, cursors=[]):  # noqa: B006 - it has to outlive the handler
    """Leave a cursor open, in the middle of its rows."""
    cursors.append(db.execute("SELECT name FROM effect UNION ALL SELECT 'more'"))
    cursors[-1].fetchone()


SETTINGS = {
    "row_factory": lambda db: setattr(db, "row_factory", lambda *_: {"no": "row"}),
    "sqlite3.Row": lambda db: setattr(db, "row_factory", sqlite3.Row),
    "text_factory": lambda db: setattr(db, "text_factory", bytes),
    "isolation_level": lambda db: setattr(db, "isolation_level", "EXCLUSIVE"),
    "pragma": lambda db: db.execute("PRAGMA foreign_keys = ON").fetchall(),
    "busy_timeout": lambda db: db.execute("PRAGMA busy_timeout = 1").fetchall(),
    "temporary table": lambda db: db.execute("CREATE TEMP TABLE staging (name TEXT)"),
    "function": lambda db: db.create_function("max", 2, lambda *_: 1 / 0),
    "collation": lambda db: db.create_collation("BINARY", lambda *_: 1 / 0),
    "trace": lambda db: db.set_trace_callback(lambda _: 1 / 0),
    "progress": lambda db: db.set_progress_handler(lambda: 1, 1),
    "limit": lambda db: db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 30),
    "close": lambda db: db.close(),
    "cursor": hold_cursor,
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_a_handler_sets_is_gone_with_its_transaction(path, setting):
    """The ledger and the next handler find nothing of what one handler has set on its connection."""
    found = []

    def handle(event, transaction):
        found.append(
            [
                transaction.row_factory,
                transaction.text_factory,
                transaction.isolation_level,
                transaction.execute("SELECT name FROM sqlite_temp_master").fetchall(),
                transaction.execute("PRAGMA foreign_keys").fetchone(),
                transaction.execute("PRAGMA busy_timeout").fetchone(),
                transaction.execute("SELECT max('a', 'b')").fetchone(),
            ]
        )
        transaction.execute("INSERT INTO plain VALUES (?)", (event.body["eventId"],))
        if event.body["eventId"] == "one":
            with suppress(sqlite3.ProgrammingError):
                SETTINGS[setting](transaction)

    bridge = bridge_on(path, handle)
    assert bridge.process(delivery("one")).outcome in {"done", "retry"}
    assert bridge.process(delivery("two")).outcome == "done"
    with closing(sqlite3.connect(path, timeout=0)) as other:
        other.execute("INSERT INTO plain VALUES ('by somebody else')")
        other.commit()
    assert bridge.process(delivery("two")).verdict == "redelivery"
    assert found[1] == found[0]
    bridge.close()
    assert kept(path).count("two") == 1


def test_a_handler_that_gives_events_to_its_own_bridge_is_told(path):
    """An event that is given to the bridge inside a handler's transaction is refused at once, and said why."""
    errors = []

    def handle(event, transaction):
        if event.body["eventId"] == "outer":
            with pytest.raises(Exception, match="handler's transaction") as raised:
                bridge.process(delivery("inner"))
            errors.append(raised.value)

    bridge = bridge_on(path, handle)
    assert bridge.process(delivery("outer")).outcome == "done"
    assert len(errors) == 1
    assert bridge.process(delivery("inner")).outcome == "done"
    bridge.close()
