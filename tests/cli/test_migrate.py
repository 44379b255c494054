"""`oncebridge migrate`: tables made before any worker comes, as often as one likes."""

import secrets
import stat

import psycopg
import pytest

LEDGER = "sqlite:///once.db"


def migrate(cli, *arguments, ledger=LEDGER):
    """Migrate a ledger; return what was said."""
    ran = cli("migrate", "--ledger", ledger, *arguments)
    assert ran.code == 0, ran
    return ran


def test_a_ledger_is_made_without_being_opened(cli, facts):
    """A SQLite ledger that is not there gets its tables, for its owner alone, and no secret yet."""
    migrate(cli)
    assert stat.S_IMODE((cli.folder / "once.db").stat().st_mode) == 0o600
    assert [row["name"] for row in cli.table("oncebridge_meta")] == ["schema"]
    cli.write("in.jsonl", facts(2))
    assert cli.process("in.jsonl", ONCEBRIDGE_SECRET="correct-horse-battery-staple").one["processed"] == 2


def test_it_may_be_repeated(cli, facts, wait_until):
    """Repeating it changes nothing, not even beside a worker."""
    cli.write_hooks()
    cli.write("in.jsonl", facts(2))
    worker = cli.start("process", "in.jsonl", "--ledger", LEDGER, "--json", "--handler", "hooks:wait")
    wait_until(lambda: cli.lines("started"), "its handler runs")
    before = cli.events()
    migrate(cli)
    migrate(cli)
    assert [(one["key"], one["token"]) for one in cli.events()] == [(one["key"], one["token"]) for one in before]
    (cli.folder / "gate").touch()
    assert worker.finish().one["processed"] == 2


@pytest.mark.parametrize(("ledger", "scheme"), [(LEDGER, "sqlite"), ("memory://", "memory")])
def test_a_ledger_that_needs_none_says_so(cli, ledger, scheme):
    """SQLite and memory ledgers need no migrate, and it is no mistake to run it."""
    assert "needs no migrate" in migrate(cli, ledger=ledger).out
    assert migrate(cli, "--json", ledger=ledger).one == {"ledger": scheme, "needed": False}


def test_a_file_that_is_no_database_is_said(cli, explained):
    """Another file is refused in words, and stays as it is."""
    text = b"no database, but long enough to be looked at as one " * 100
    (cli.folder / "once.db").write_bytes(text)
    assert "once.db" in explained(cli("migrate", "--ledger", LEDGER), 2)
    assert (cli.folder / "once.db").read_bytes() == text


@pytest.mark.parametrize("url", ["nosuch://me:hunter2@host", "redis://me:hunter2@[::1"])
def test_a_wrong_url_shows_no_password(cli, explained, url):
    """A URL that names no ledger is wrong usage, and is not repeated."""
    ran = cli("migrate", "--ledger", url)
    assert "ledger" in explained(ran, 2)
    assert "hunter2" not in ran.err


@pytest.fixture
def new_postgres_ledger(postgres):
    """Return the URL of a ledger that nobody has made yet."""
    schema = f"made_{secrets.token_hex(8)}"
    yield f"{postgres.url}{'&' if '?' in postgres.url else '?'}schema={schema}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def test_a_ledger_that_needs_it_works_only_after_it(cli, facts, explained, new_postgres_ledger):
    """A Postgres ledger without tables is refused with the command that makes them; after that it works."""
    cli.write("in.jsonl", facts(2))
    arguments = ("process", "in.jsonl", "--ledger", new_postgres_ledger, "--json")
    refused = cli("doctor", "--ledger", new_postgres_ledger, "--json")
    assert refused.code == 1
    assert "oncebridge migrate" in refused.out
    assert "oncebridge migrate" in explained(cli(*arguments), 2)
    assert migrate(cli, "--json", ledger=new_postgres_ledger).one == {"ledger": "postgresql", "needed": True}
    assert "up to date" in migrate(cli, ledger=new_postgres_ledger).out
    assert cli(*arguments).one["processed"] == 2
    assert migrate(cli, ledger=new_postgres_ledger).code == 0
    assert cli(*arguments).one["redelivery"] == 2
    found = cli("doctor", "--ledger", new_postgres_ledger, "--json").one["findings"]
    # For speed, the Postgres of these tests does not wait for its disk.
    assert {one["subject"] for one in found if one["level"] == "wrong"} <= {"disk"}
