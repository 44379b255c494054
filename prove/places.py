"""The ledgers that are attacked: real servers of this run's own, or one whose URL is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from prove import exact

LEDGERS: Final = ("sqlite", "redis", "postgres", "dynamodb")


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
            yield f"dynamodb://proof?region={server.region}&endpoint_url={server.url}"
    else:
        raise ValueError(f"no such ledger: {ledger!r}; there are {', '.join(LEDGERS)}, or give a URL")


def place_beside(url: str, folder: Path, name: str) -> str:
    """Return a new ledger on the same server. DynamoDB's emulator makes tables slowly: there it is the same one."""
    ledger = kind_of(url)
    if ledger == "sqlite":
        return f"sqlite:///{folder}/{name}.db"
    if ledger == "dynamodb":
        return url
    return f"{url}{'&' if '?' in url else '?'}{'schema' if ledger == 'postgres' else 'name'}={name}"


def prepare(url: str) -> None:
    """Make the ledger's tables, and that of the effects. Runs in a process of its own."""
    from oncebridge import Bridge

    with closing(Bridge(url)) as bridge:
        bridge.ledger.migrate()
        bridge.open()
    if kind_of(url) in exact.LEDGERS:
        exact.create(url)
