"""The GRANT statements of docs/ledgers.md are enough for each role, and none of them can be left out."""

import itertools
import os
import re
from pathlib import Path

import pytest

from ledgers.on_postgres import LETTER, claim, key, opened, run, take
from oncebridge.claim import Ask, Outcome, Settlement
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.postgres.ledger import PostgresLedger
from oncebridge.ledgers.protocol import Query

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "ledgers.md"
GRANTS = re.findall(r"^GRANT .*;$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
_numbers = itertools.count()
ROLES = ("admin", "worker", "reader")


class Roles:
    """A database's three roles, in a schema of their own."""

    def __init__(self, server, schema):
        """Make the roles; they may do nothing yet."""
        self.server, self.schema = server, schema
        ((self.database,),) = run(server.url, "SELECT quote_ident(current_database())")
        for role in ROLES:
            run(server.url, f"CREATE ROLE {self.name(role)} LOGIN PASSWORD 'role'")

    def name(self, role):
        """Return the name of a role, which is the whole server's."""
        return f"{self.schema}_{role}"

    def url(self, role):
        """Return the URL with which a role connects."""
        place = self.server.url.rpartition("@")[2]
        return f"postgresql://{self.name(role)}:role@{place}{'&' if '?' in place else '?'}schema={self.schema}"

    def grant(self, *statements):
        """Run statements of the document, for the names of this test."""
        for statement in statements:
            told = statement.replace("DATABASE app", f"DATABASE {self.database}").replace("oncebridge", self.schema)
            run(self.server.url, re.sub(r"bridge_(\w+)", lambda role: self.name(role[1]), told))

    def close(self):
        """Drop everything."""
        run(self.server.url, f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
        for role in ROLES:
            run(self.server.url, f"DROP OWNED BY {self.name(role)}")
            run(self.server.url, f"DROP ROLE {self.name(role)}")


@pytest.fixture
def roles(postgres):
    """Return the roles of one test."""
    made = Roles(postgres, f"roles_{os.getpid()}_{next(_numbers)}")
    yield made
    made.close()


def of(role):
    """Return the statements of the document for a role."""
    return [statement for statement in GRANTS if statement.endswith(f"bridge_{role};")]


def work(url):
    """Do all that a worker does, and clean up."""
    with opened(url) as ledger:
        held = take(ledger, 1)
        assert all(ledger.extend([held], lease_us=1_000_000))
        assert all(ledger.settle([Settlement(held, Outcome.DONE)]))
        with ledger.transaction(Settlement(take(ledger, 2), Outcome.DONE)):
            pass
        held = take(ledger, 4, conversation=key(1), mark=b"mark")
        assert all(ledger.settle([Settlement(held, Outcome.DONE)]))
        assert ledger.attendance([key(1)])[0].marks == b"mark"
        assert ledger.purge(older_than_us=0) == 3
        assert ledger.attendance([key(1)]) == [None]
        held = take(ledger, 3)
        assert all(ledger.settle([Settlement(held, Outcome.DEAD, letter=LETTER)]))
        assert ledger.letter_groups().total == 1
        again = take(ledger, 3, redrive=True)
        assert all(ledger.settle([Settlement(again, Outcome.DONE)]))
        assert ledger.letter_groups().total == 0
        assert ledger.purge(older_than_us=0) == 1


def look(url):
    """Do all that a person does who only looks."""
    with opened(url) as ledger:
        assert list(ledger.get(key(1))) == []
        assert list(ledger.scan(Query())) == []
        assert ledger.counts() == {}
        assert ledger.letter_page(Query()).entries == []
        assert ledger.letter_groups().complete
        assert ledger.about(key(1), seconds=10).complete
        assert ledger.attendance([key(1)]) == [None]


def test_the_grants_are_enough(roles):
    """With the statements of the document one role migrates, one works, and one looks."""
    roles.grant(*of("admin"))
    PostgresLedger(roles.url("admin")).migrate()
    roles.grant(*of("worker"), *of("reader"))
    work(roles.url("worker"))
    look(roles.url("reader"))
    PostgresLedger(roles.url("admin")).migrate()  # again, while it is in use


def test_migrate_names_the_grant_that_is_missing(roles):
    """Without the right to create a schema, the error is the statement that grants it; so in a schema of others."""
    admin = roles.url("admin")
    with pytest.raises(LedgerRefused, match=rf"GRANT CREATE ON DATABASE \S+ TO {roles.name('admin')}"):
        PostgresLedger(admin).migrate()
    run(roles.server.url, f"CREATE SCHEMA {roles.schema}")
    wanted = f"GRANT USAGE, CREATE ON SCHEMA {roles.schema} TO {roles.name('admin')}"
    with pytest.raises(LedgerRefused, match=wanted):
        PostgresLedger(admin).migrate()
    run(roles.server.url, wanted)
    PostgresLedger(admin).migrate()


@pytest.mark.parametrize("statement", [*of("worker"), *of("reader")])
def test_no_grant_can_be_left_out(roles, statement):
    """Without any one of the statements its role is refused, and the message says what to grant."""
    roles.grant(*of("admin"))
    PostgresLedger(roles.url("admin")).migrate()
    roles.grant(*(one for one in GRANTS if one != statement))
    role, act = ("worker", work) if statement in of("worker") else ("reader", look)
    with pytest.raises(LedgerRefused, match=r"grant this user USAGE|may not see it"):
        act(roles.url(role))


def test_a_reader_changes_nothing(roles):
    """The role that looks cannot claim."""
    roles.grant(*of("admin"))
    PostgresLedger(roles.url("admin")).migrate()
    roles.grant(*of("worker"), *of("reader"))
    work(roles.url("worker"))
    with opened(roles.url("reader")) as ledger, pytest.raises(LedgerRefused, match="INSERT"):
        claim(ledger, Ask(key=key(9)))
