"""Newest state wins: whatever order rows come in, and however often, the same one stays."""

import itertools
import random
import sqlite3
from contextlib import closing

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebridge.settings.sinks import read_sink
from oncebridge.sinks.table.sql import qualified, quoted
from oncebridge.sinks.table.sqlite import SQLiteTable
from tables import desk, postgres_desk  # noqa: F401 - fixtures, by being here

WITH_TIE = {"key": ["who"], "newest": "at", "tie": "tie"}


def sink(**changes):
    """Write the settings of a sink for rows of who, state, at and tie."""
    columns = {column: column for column in ("who", "state", "at", "tie")}
    table = {"database": "ledger", "table": "agent", "columns": columns, **WITH_TIE, **changes}
    return read_sink("agents", {name: value for name, value in table.items() if value is not None}, "oncebridge.toml")


class Kept:
    """A table in memory."""

    def __init__(self, at="INTEGER", tie="TEXT"):
        """Make it."""
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.execute(f"CREATE TABLE agent (who TEXT PRIMARY KEY, state TEXT, at {at}, tie {tie})")

    def after(self, rows, **changes):
        """Write rows, one after the other, and return what stays."""
        table = SQLiteTable(sink(**changes), "memory")
        self.db.execute("DELETE FROM agent")
        for row in rows:
            table.write(self.db, row)
        return self.db.execute("SELECT * FROM agent ORDER BY who").fetchall()


@pytest.fixture
def kept():
    """Make a table in memory."""
    made = Kept()
    yield made
    made.db.close()


#: The seed of all this: one agent, two states in one millisecond, and some that are older, newer or without a time.
SIX = [
    ("ann", "IDLE", 1000, "k3"),
    ("ann", "INTERACTING", 2000, "k1"),
    ("ann", "COMMUNICATING", 2000, "k5"),
    ("ann", "IDLE", 2000, "K9"),  # a capital letter is less than any small one
    ("ann", "NOT_RESPONDING", None, "k6"),
    ("ann", "OFF_QUEUE", None, "k2"),
]


def test_every_order_of_six_ends_in_the_same_row(kept):
    """720 orders, each with all six once more in another: the newest stays, of equals the larger tie."""
    again = SIX[::-1]
    ends = {tuple(kept.after([*order, *again])) for order in itertools.permutations(SIX)}
    assert ends == {(("ann", "COMMUNICATING", 2000, "k5"),)}


def test_rows_without_a_time_have_an_order_too(kept):
    """Nothing known of when: the tie decides alone."""
    ends = {tuple(kept.after(order)) for order in itertools.permutations(SIX[4:])}
    assert ends == {(("ann", "NOT_RESPONDING", None, "k6"),)}


def test_a_row_without_a_time_never_hides_one_that_has_it(kept):
    """Unknown is older than anything."""
    assert kept.after([SIX[0], SIX[4]]) == [SIX[0]]
    assert kept.after([SIX[4], SIX[0]]) == [SIX[0]]


def test_the_obvious_condition_loses_the_tie():
    """`<` keeps whichever of two states of one millisecond came first: another row in another order."""
    naive = (
        "INSERT INTO agent VALUES (?, ?, ?, ?) ON CONFLICT (who) DO UPDATE SET state = excluded.state, "
        "at = excluded.at, tie = excluded.tie WHERE agent.at < excluded.at"
    )
    one, other = SIX[1:3]
    ends = set()
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE agent (who TEXT PRIMARY KEY, state TEXT, at INTEGER, tie TEXT)")
        for order in ((one, other), (other, one)):
            db.execute("DELETE FROM agent")
            db.executemany(naive, order)
            ends.update(db.execute("SELECT state FROM agent").fetchall())
    assert ends == {("INTERACTING",), ("COMMUNICATING",)}


def test_without_a_tie_the_one_written_later_stays(kept):
    """Equal times without a rule: whoever comes last, as long as it is not older."""
    assert kept.after(SIX[1:3], tie=None) == [SIX[2]]
    assert kept.after(SIX[2:0:-1], tie=None) == [SIX[1]]
    assert kept.after([SIX[1], SIX[0]], tie=None) == [SIX[1]]


def test_what_is_equal_in_all_that_decides_may_be_replaced(kept):
    """Of two rows with the same time and tie the one written later stays, as without a tie."""
    one, other = ("ann", "IDLE", 1000, "k1"), ("ann", "INTERACTING", 1000, "k1")
    assert kept.after([one, other]) == [other]
    assert kept.after([other, one]) == [one]


def test_without_newest_the_one_written_later_stays(kept):
    """No order at all: the last one."""
    assert kept.after([SIX[1], SIX[0]], tie=None, newest=None) == [SIX[0]]


def test_without_a_key_every_event_is_a_row():
    """Nothing is replaced."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE agent (who TEXT, state TEXT, at INTEGER, tie TEXT)")
        table = SQLiteTable(sink(key=None, newest=None, tie=None), "memory")
        for row in (*SIX, *SIX):
            table.write(db, row)
        assert db.execute("SELECT count(*) FROM agent").fetchone() == (12,)


def test_a_key_alone_is_written_once():
    """Where there is nothing but the key there is nothing to change."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE agent (who TEXT PRIMARY KEY)")
        table = SQLiteTable(sink(columns={"who": "who"}, key=["who"], newest=None, tie=None), "memory")
        for row in (["ann"], ["bob"], ["ann"]):
            table.write(db, row)
        assert db.execute("SELECT who FROM agent ORDER BY who").fetchall() == [("ann",), ("bob",)]


ROWS = st.tuples(
    st.sampled_from(["ann", "bob"]),
    st.text(max_size=3),
    st.none() | st.integers(0, 3),
    st.none() | st.text(alphabet="aAzZ_09é", max_size=2),
)


def newest_of(rows):
    """Return what must stay, by plain Python: a row without a time or a tie is less than any with it."""

    def rank(row):
        _, _, at, tie = row
        return at is not None, at or 0, tie is not None, (tie or "").encode()

    return sorted({row[0]: row for row in sorted(rows, key=rank)}.values())


@pytest.fixture(scope="module")
def shared():
    """Make a table in memory for many histories."""
    made = Kept()
    yield made
    made.db.close()


@settings(max_examples=300)
@given(st.lists(ROWS, max_size=7, unique_by=lambda row: (row[0], row[2], row[3])), st.randoms(use_true_random=False))
def test_any_rows_in_any_order_end_alike(shared, rows, dice):
    """Whatever rows, repeats and order: what stays is what plain Python says."""
    again = [*rows, *dice.sample(rows, len(rows) // 2)]
    dice.shuffle(again)
    assert shared.after(again) == newest_of(rows)


def made_up(dice):
    """Make up a few rows, no two of them equal in all that decides."""
    rows = [
        (dice.choice(["ann", "bob"]), f"s{n}", dice.choice([None, 0, 1, 2]), dice.choice([None, "a", "B", "é"]))
        for n in range(6)
    ]
    return [*{(who, at, tie): (who, state, at, tie) for who, state, at, tie in rows}.values()]


def history_of(rows, dice):
    """Bring rows into some order, some of them twice."""
    history = [*rows, *dice.sample(rows, 2)]
    dice.shuffle(history)
    return history


def test_ten_thousand_histories_end_alike(shared):
    """The same for many more, from one seed."""
    dice = random.Random(20_25)
    for _ in range(10_000):
        rows = made_up(dice)
        history = history_of(rows, dice)
        assert shared.after(history) == newest_of(rows), history


def test_postgres_keeps_the_same_rows(postgres_desk):  # noqa: F811
    """The same histories end in the same rows there: times, and texts by their bytes whatever the collation."""
    from oncebridge.sinks.table.postgres import PostgresTable

    dice = random.Random(5)
    table = f"{postgres_desk.prefix}agent"
    postgres_desk(
        f'CREATE TABLE {table} (who text PRIMARY KEY, state text, at bigint, tie text COLLATE "unicode")'
        if _knows_unicode(postgres_desk)
        else f"CREATE TABLE {table} (who text PRIMARY KEY, state text, at bigint, tie text)"
    )
    writer = PostgresTable(sink(table=table), "the desk")
    with psycopg.connect(postgres_desk.url) as connection:
        for _ in range(60):
            rows = made_up(dice)
            connection.execute(f"DELETE FROM {table}")
            for row in history_of(rows, dice):
                writer.write(connection, row)
            assert sorted(connection.execute(f"SELECT * FROM {table}").fetchall()) == newest_of(rows)


def _knows_unicode(on):
    """Tell whether there is a collation that sorts B behind a, as people do."""
    return bool(on("SELECT 1 FROM pg_collation WHERE collname = 'unicode'"))


def test_numbers_as_ties_are_compared_as_numbers(desk):  # noqa: F811
    """9 is less than 10, though not as text."""
    table = f"{desk.prefix}agent"
    desk(f"CREATE TABLE {table} (who text PRIMARY KEY, state text, at bigint, tie bigint)")
    with closing(sqlite3.connect(desk.path) if desk.engine == "sqlite" else psycopg.connect(desk.url)) as connection:
        if desk.engine == "sqlite":
            writer = SQLiteTable(sink(table=table), "the desk")
        else:
            from oncebridge.sinks.table.postgres import PostgresTable

            writer = PostgresTable(sink(table=table), "the desk")
        for order in ((9, 10), (10, 9)):
            for tie in order:
                writer.write(connection, ("ann", str(tie), 1, tie))
            connection.commit()
            assert desk(f"SELECT tie FROM {table}") == [(10,)]
            desk(f"DELETE FROM {table}")


@pytest.mark.parametrize("name", ["plain", 'a"b', '"; DROP TABLE agent; --', "a'b", "%s", "?", "sélect", "order"])
def test_a_name_stands_for_itself(name):
    """Whatever a name is, quoted it is a name: nothing in it is SQL."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"CREATE TABLE {qualified('main', name)} ({quoted(name)} TEXT)")
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [(name,)]
        assert [row[1] for row in db.execute(f"PRAGMA table_info({quoted(name)})")] == [name]
