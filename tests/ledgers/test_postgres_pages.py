"""Pages of the Postgres ledger: letters from before they were listed, the right to read them, and searches in time."""

from contextlib import closing

import psycopg
import pytest

from ledgers.on_postgres import LETTER, key, new_schema, opened, run, schema_of, take
from oncebridge.claim import Outcome, Settlement
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.ledgers.protocol import Query

DROP = """
    DROP TRIGGER list_letter ON {0}.letter; DROP FUNCTION {0}.list_letter; DROP TABLE {0}.letter_head;
    DELETE FROM {0}.meta WHERE name = 'letters listed'"""


@pytest.fixture
def url(postgres):
    """Return the URL of a ledger of this test's own."""
    with new_schema(postgres) as url:
        yield url


def die(ledger, number):
    """Make an event a dead letter."""
    assert ledger.settle([Settlement(take(ledger, number), Outcome.DEAD, letter=LETTER)]) == [True]


def keys(ledger):
    """Return the keys on the first page."""
    return [entry.key for entry in ledger.letter_page(Query(), limit=1000).entries]


def test_letters_from_before_are_listed_by_migrate(url, monkeypatch):
    """Without lists workers go on, and pages name the command that makes them; it lists every letter there is."""
    monkeypatch.setattr("oncebridge.ledgers.postgres.pages.LIST_AT_ONCE", 3)
    run(url, DROP.format(schema_of(url)))
    with opened(url) as ledger:
        for number in range(10):
            die(ledger, number)
        for read in (lambda: ledger.letter_page(Query()), ledger.letter_groups):
            with pytest.raises(LedgerRefused, match="oncebridge migrate"):
                read()
        PostgresLedger(url).migrate()
        die(ledger, 10)
        assert keys(ledger) == [key(number) for number in range(10, -1, -1)]
        found = ledger.letter_groups()
        assert (found.total, found.complete) == (11, True)


def test_very_many_letters_are_not_all_counted(url, monkeypatch):
    """So many are counted and no more, and that there may be others is told."""
    monkeypatch.setattr("oncebridge.ledgers.postgres.pages.COUNTED_MAX", 4)
    with opened(url) as ledger:
        counted = []
        for number in range(5):
            die(ledger, number)
            found = ledger.letter_groups()
            counted.append((found.total, sum(group.number for group in found.groups), found.complete))
    assert counted == [(1, 1, True), (2, 2, True), (3, 3, True), (4, 4, False), (4, 4, False)]


def test_groups_say_that_not_all_letters_are_listed(url):
    """Until a migration has listed every letter, groups are not complete."""
    run(url, f"DELETE FROM {schema_of(url)}.meta WHERE name = 'letters listed'")
    with opened(url) as ledger:
        assert not ledger.letter_groups().complete
        PostgresLedger(url).migrate()
        assert ledger.letter_groups().complete


def test_a_filtered_page_looks_at_some_letters_only(url):
    """A filter that nothing matches turns a page after two thousand letters."""
    schema = schema_of(url)
    run(
        url,
        f"INSERT INTO {schema}.letter_head SELECT decode(md5(i::text), 'hex'), '', 0, i, 'poison', ''"
        " FROM generate_series(1, 2100) AS i",
    )
    with opened(url) as ledger:
        page = ledger.letter_page(Query(reason="nobody"))
        assert page.entries == []
        assert page.next is not None
        assert ledger.letter_page(Query(reason="nobody"), after=page.next).next is None


def test_a_look_about_a_subject_ends_in_time(url):
    """A search that takes too long is ended, and that is told; the ledger goes on."""
    schema = schema_of(url)
    with opened(url) as ledger, closing(psycopg.connect(**PostgresLedger(url).address.parameters)) as other:
        other.execute(f"LOCK TABLE {schema}.event IN ACCESS EXCLUSIVE MODE")
        found = ledger.about(key(1), seconds=0.2)
        assert (found.entries, found.newest, found.complete) == ([], [], False)
        other.rollback()
        assert ledger.about(key(1), seconds=10).complete
