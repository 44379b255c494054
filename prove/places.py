"""The ledgers that are attacked: real servers of this run's own, or one whose URL is given."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from prove.worker import TABLE

LEDGERS: Final = ("sqlite", "redis", "postgres", "dynamodb")
#: Those whose transaction can hold the effect of a handler in SQL.
IN_SQL: Final = ("sqlite", "postgres")
CREATE: Final = f"CREATE TABLE IF NOT EXISTS {TABLE} (round text NOT NULL, number integer NOT NULL)"


def kind_of(ledger: str) -> str:
    """Return which kind of ledger a name or a URL means."""
    scheme = ledger.partition(":")[0]
    return {"rediss": "redis", "valkey": "redis", "postgresql": "postgres"}.get(scheme, scheme)


@contextmanager
def place_of(ledger: str, folder: Path) -> Iterator[str]:
    """Start what a ledger needs, and return its URL."""
    if ":" in ledger:
        yield ledger
    elif ledger == "sqlite":
        yield f"sqlite:///{folder}/once.db"
    elif ledger == "redis":
        from servers.valkey import running_valkey

        with running_valkey(folder / "valkey", "--appendonly", "yes", "--appendfsync", "always") as server:
            yield server.url
    elif ledger == "postgres":
        from servers.postgres import own_postgres

        (folder / "postgres").mkdir()
        with own_postgres(folder / "postgres") as server:
            yield server.url
    elif ledger == "dynamodb":
        from servers.aws import running_ministack

        (folder / "aws").mkdir()
        with running_ministack(folder / "aws") as server:
            yield f"dynamodb://proof?endpoint={server.url}"
    else:
        raise ValueError(f"no such ledger: {ledger!r}; there are {', '.join(LEDGERS)}, or give a URL")


def prepare(url: str) -> None:
    """Make the ledger's tables, and that of the effects. Runs in a process of its own."""
    from oncebridge import Bridge

    with closing(Bridge(url)) as bridge:
        bridge.ledger.migrate()
        bridge.open()
    for connection in _connected(url):
        connection.execute(CREATE)
        connection.commit()


def exact_effects(url: str, name: str) -> dict[int, int]:
    """Count the rows of each event in the table of the effects."""
    for connection in _connected(url):
        mark = "?" if url.startswith("sqlite") else "%s"
        found = connection.execute(f"SELECT number FROM {TABLE} WHERE round = {mark}", (name,))
        return dict(Counter(number for (number,) in found))
    return {}


def _connected(url: str) -> Iterator[Any]:
    """Connect past the program, where that is SQL."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            yield file
    elif url.startswith("postgres"):
        import psycopg

        with psycopg.connect(url) as server:
            yield server
