"""One worker of the demo: a process of its own, so that it can be killed."""

from __future__ import annotations

import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

from oncebridge.bridge import Bridge
from oncebridge.retry import RetryPolicy
from oncebridge.settings import Settings

if TYPE_CHECKING:
    import sqlite3
    from multiprocessing.connection import Connection

    from oncebridge.clock import Clock
    from oncebridge.engine.result import Result
    from oncebridge.event import Event

CRM = "CREATE TABLE crm (key TEXT NOT NULL, topic TEXT NOT NULL, token INTEGER NOT NULL)"


#: Sent by a worker that hangs on request, in the middle of a handler, so that it can be killed there.
HANGING = "hanging"
AWAY_SECONDS = 20


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
        _serve(bridge, crm, connection)


def work_for_console(url: str, lease_seconds: float, connection: Connection) -> None:
    """Do the same for people to look at: with a journal, and a second handler whose receiver fails now and then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the road ends us
    crm = Crm(connection)
    retry = RetryPolicy(attempts=3, base_seconds=1.0, growth=2.0, cap_seconds=4.0)
    settings = Settings(lease_seconds=lease_seconds, busy_wait_seconds=0.0, retry=retry)
    with Bridge(url, settings=settings) as bridge:
        bridge.on("*", name="crm")(crm.save)
        bridge.on("v2.detail.events.conversation.*", name="warehouse")(partial(_send_to_warehouse, bridge.clock))
        bridge.start_journal("demo", holds="as long as the demo runs")
        _serve(bridge, crm, connection)


def _send_to_warehouse(clock: Clock, event: Event) -> None:
    """Stand in for a receiver that takes one event in sixteen badly, for twenty seconds of each minute."""
    if event.key.endswith("7") and clock.now_us() // 1_000_000 % 60 < AWAY_SECONDS:
        raise ConnectionError(f"no answer to {event.topic}")


def _serve(bridge: Bridge, crm: Crm, connection: Connection) -> None:
    while True:
        order: tuple[list[bytes], int | None] | None = connection.recv()
        if order is None:
            return
        batch, crm.hang_at = order
        connection.send([_told(result) for result in bridge.process_many(batch)])


def _told(result: Result) -> tuple[str, str, str, bool]:
    return result.verdict.value, result.column, result.reason, result.acknowledged
