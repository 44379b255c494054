"""One worker of the demo: a process of its own, so that it can be killed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from oncebridge.bridge import Bridge
from oncebridge.settings import Settings

if TYPE_CHECKING:
    import sqlite3
    from multiprocessing.connection import Connection

    from oncebridge.engine.result import Result
    from oncebridge.event import Event

CRM = "CREATE TABLE crm (key TEXT NOT NULL, topic TEXT NOT NULL, token INTEGER NOT NULL)"


#: Sent by a worker that hangs on request, in the middle of a handler, so that it can be killed there.
HANGING = "hanging"


class Crm:
    """Stands in for what handlers do: writes to a CRM, here in the transaction that settles."""

    def __init__(self, connection: Connection) -> None:
        """Take the line to the road."""
        self._connection = connection
        self.hang_at: int | None = None

    def save(self, event: Event, transaction: sqlite3.Connection) -> None:
        """Write one row; hang instead once it is time to."""
        transaction.execute("INSERT INTO crm VALUES (?, ?, ?)", (event.key, event.topic, event.token))
        if self.hang_at is not None:
            self.hang_at -= 1
            if self.hang_at == 0:
                self._connection.send(HANGING)
                threading.Event().wait()


def work(url: str, lease_seconds: float, connection: Connection) -> None:
    """Process batches until stopped, and report the result of each delivery."""
    crm = Crm(connection)
    settings = Settings(lease_seconds=lease_seconds, busy_wait_seconds=0.0)
    with Bridge(url, settings=settings) as bridge:
        bridge.on("*")(crm.save)
        while True:
            order: tuple[list[bytes], int | None] | None = connection.recv()
            if order is None:
                return
            batch, crm.hang_at = order
            connection.send([_told(result) for result in bridge.process_many(batch)])


def _told(result: Result) -> tuple[str, str, str, bool]:
    return result.verdict.value, result.column, result.reason, result.acknowledged
