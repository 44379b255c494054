"""One worker of the demo: a process of its own, so that it can be killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncebridge.bridge import Bridge
from oncebridge.settings import Settings

if TYPE_CHECKING:
    import sqlite3
    from multiprocessing.connection import Connection

    from oncebridge.event import Event

CRM = "CREATE TABLE crm (key TEXT NOT NULL, topic TEXT NOT NULL, token INTEGER NOT NULL)"


def save(event: Event, transaction: sqlite3.Connection) -> None:
    """Stand in for what a handler does: write to a CRM, here in the transaction that settles."""
    transaction.execute("INSERT INTO crm VALUES (?, ?, ?)", (event.key, event.topic, event.token))


def work(url: str, lease_seconds: float, connection: Connection) -> None:
    """Work off batches until told to stop, and tell what became of each delivery."""
    settings = Settings(lease_seconds=lease_seconds, busy_wait_seconds=0.0)
    with Bridge(url, settings=settings) as bridge:
        bridge.on("*")(save)
        while True:
            batch: list[bytes] | None = connection.recv()
            if batch is None:
                return
            connection.send([_told(result) for result in bridge.process_many(batch)])


def _told(result: Any) -> tuple[str, str, str, bool]:
    return result.verdict.value, result.column, result.reason, result.acknowledged
