"""Attendance in Postgres: tables from before it, many writers at once, and what a call without marks costs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from ledgers.on_postgres import as_done, claim, deadlocks, key, new_schema, opened, run, schema_of, take
from oncebridge.bridge import Bridge
from oncebridge.claim import Ask, Claim, Outcome, Settlement, Status
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.marks import marks_in
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.settings import Settings

CALL = key(1000)
FUNCTIONS = ("settle_marked", "settle_last_marked", "add_marks", "forget_attendance", "united")


@pytest.fixture
def url(postgres):
    """Return a new ledger."""
    with new_schema(postgres) as url:
        yield url


@pytest.fixture
def ledger(url):
    """Return an open ledger."""
    with opened(url) as ledger:
        yield ledger


def mark(number):
    """Return a mark, from a number."""
    return number.to_bytes(4, "big")


def came(ledger, conversation=CALL):
    """Return the marks of a conversation."""
    (found,) = ledger.attendance([conversation])
    return set() if found is None else marks_in(found.marks)


def forget_that_there_is_attendance(url):
    """Leave the tables as the version before attendance made them."""
    schema = schema_of(url)
    run(url, f"DROP TABLE {schema}.attendance")
    for name in FUNCTIONS:
        run(url, f"DROP FUNCTION {schema}.{name}")


def test_tables_from_before_are_added_to(url, ledger):
    """Workers without attendance need no new table; one with it is refused until `migrate` has made that."""
    forget_that_there_is_attendance(url)
    assert ledger.settle([as_done(take(ledger, 1))]) == [True]
    assert ledger.purge(older_than_us=0) == 1
    held = take(ledger, 2, conversation=CALL, mark=mark(2))
    with pytest.raises(LedgerRefused, match="oncebridge migrate"):
        ledger.settle([as_done(held)])
    with pytest.raises(LedgerRefused, match="oncebridge migrate"), ledger.transaction(as_done(held)):
        pass
    with pytest.raises(LedgerRefused, match="no table of attendance"):
        ledger.attendance([CALL])
    assert ledger.get(key(2))[0].status is Status.CLAIMED
    PostgresLedger(url).migrate()
    assert ledger.settle([as_done(held)]) == [True]
    assert came(ledger) == {mark(2)}
    PostgresLedger(url).migrate()
    assert came(ledger) == {mark(2)}


def test_a_worker_with_attendance_does_not_start_without_its_table(url):
    """With `attendance = true` tables from before are refused before any handler has worked."""
    forget_that_there_is_attendance(url)
    with (
        closing(Bridge(url, settings=Settings(attendance=True))) as bridge,
        pytest.raises(LedgerRefused, match="oncebridge migrate"),
    ):
        bridge.open()
    with closing(Bridge(url)) as bridge:
        bridge.open()


def test_a_settle_without_marks_calls_what_it_always_called(url, ledger):
    """An end without a mark, or one that comes again, is settled where the functions of attendance are missing."""
    forget_that_there_is_attendance(url)
    again = Settlement(take(ledger, 1, conversation=CALL, mark=mark(1)), Outcome.RETRY)
    assert ledger.settle([again, as_done(take(ledger, 2, conversation=CALL))]) == [True, True]
    with ledger.transaction(as_done(take(ledger, 3))):
        pass


def test_a_mark_across_two_others_is_not_there_yet(ledger):
    """Bytes that are the end of one mark and the beginning of the next are no mark, and one that is there stays one."""
    for number, one in enumerate((b"abcd", b"efgh", b"cdef", b"efgh", b"cdef")):
        assert ledger.settle([as_done(take(ledger, number, conversation=CALL, mark=one))]) == [True]
    assert ledger.attendance([CALL])[0].marks == b"abcdcdefefgh"


def test_batches_that_share_conversations_never_deadlock(url, ledger):
    """Workers that settle events of the same conversations, each in its own order, wait for each other at most."""
    workers, rounds, conversations = 4, 10, 8
    before = deadlocks(url)
    start = threading.Barrier(workers)

    def work(worker):
        start.wait()
        for turn in range(rounds):
            first = (worker * rounds + turn) * conversations
            # The higher the key, the lower the conversation, for every other worker.
            asks = [
                Ask(
                    key=key(first + place),
                    conversation=key(2000 + (place if worker % 2 else conversations - place)),
                    mark=mark(first + place),
                )
                for place in range(conversations)
            ]
            claims = [Claim(ask, one.token) for ask, one in zip(asks, claim(ledger, *asks), strict=True)]
            assert all(ledger.settle([as_done(one) for one in claims]))

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    assert deadlocks(url) == before
    found = ledger.attendance([key(2000 + place) for place in range(conversations + 1)])
    assert sum(len(marks_in(one.marks)) for one in found) == workers * rounds * conversations
