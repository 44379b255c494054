"""Deliveries that arrive over HTTP at a steady rate, whatever becomes of them; each comes again until acknowledged."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self
from urllib.parse import urlsplit

from prove.stream import Stream

TICK_SECONDS: Final = 0.05
#: Until a delivery that was not acknowledged comes again: twice as long each time, as senders do.
AGAIN_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Pace:
    """How fast deliveries are sent."""

    per_second: float
    #: How long one waits, at most, until it comes again.
    again_seconds_max: float = 30.0
    #: Requests under way, and deliveries in each.
    under_way_max: int = 64
    batch_max: int = 100


@dataclass(frozen=True)
class Posted:
    """One request: when it was sent and answered, what it held, and what was answered; nought is no answer."""

    sent: float
    answered: float
    deliveries: int
    status: int

    @property
    def is_acknowledged(self) -> bool:
        """Whether the sender forgets what it sent."""
        return self.status == HTTPStatus.OK


class Arriving:
    """Sends a stream in a thread of its own, from the moment that it is entered."""

    def __init__(self, url: str, stream: Stream, pace: Pace) -> None:
        """Take where to, what, and how fast."""
        self._address, self._stream, self._pace = urlsplit(url), stream, pace
        self._tries: Counter[int] = Counter()
        #: Deliveries that are due, by when; those that are under way are not among them.
        self._due: list[tuple[float, int]] = []
        self._arrived = self._acknowledged = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send_all()))
        self.posted: list[Posted] = []

    def __enter__(self) -> Self:
        """Begin."""
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, whether everything was acknowledged or not."""
        self._over.set()
        self._thread.join()

    @property
    def arrived(self) -> int:
        """Return how many deliveries have arrived so far."""
        return self._arrived

    @property
    def acknowledged(self) -> int:
        """Return how many of them the sender has forgotten."""
        return self._acknowledged

    @property
    def stuck(self) -> list[int]:
        """Return the events of which a delivery is not acknowledged; everything must have arrived."""
        return sorted({self._stream.arrivals[at][0] for _, at in self._due})

    def wait(self, seconds: float) -> bool:
        """Wait until everything has arrived and is acknowledged, or for so long."""
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up and self._thread.is_alive():
            if self._acknowledged == len(self._stream.arrivals):
                return True
            time.sleep(TICK_SECONDS)
        return self._acknowledged == len(self._stream.arrivals)

    def acknowledged_within(self, begin: float, end: float) -> int:
        """Return how many deliveries were both sent and acknowledged between two moments."""
        return sum(
            one.deliveries for one in self.posted if one.is_acknowledged and begin < one.sent <= one.answered < end
        )

    async def _send_all(self) -> None:
        requests: set[asyncio.Task[None]] = set()
        try:
            while not self._over.is_set() and self._acknowledged < len(self._stream.arrivals):
                self._arrive()
                while len(requests) < self._pace.under_way_max and (batch := self._take()):
                    request = asyncio.create_task(self._send(batch))
                    requests.add(request)
                    request.add_done_callback(requests.discard)
                await asyncio.sleep(TICK_SECONDS)
        finally:
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

    def _arrive(self) -> None:
        now = time.monotonic()
        until = min(len(self._stream.arrivals), int((now - self._began) * self._pace.per_second))
        for at in range(self._arrived, until):
            heapq.heappush(self._due, (now, at))
        self._arrived = until

    def _take(self) -> list[int]:
        batch: list[int] = []
        while self._due and len(batch) < self._pace.batch_max and self._due[0][0] <= time.monotonic():
            batch.append(heapq.heappop(self._due)[1])
        return batch

    async def _send(self, batch: Sequence[int]) -> None:
        sent, status = time.monotonic(), 0
        try:
            status = await asyncio.wait_for(self._post(batch), ANSWER_SECONDS)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            status = 0
        finally:
            self._answered(batch, Posted(sent, time.monotonic(), len(batch), status))

    async def _post(self, batch: Sequence[int]) -> int:
        body = b"[" + b",".join(self._stream.arrivals[at][1] for at in batch) + b"]"
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        try:
            head = f"POST /events HTTP/1.1\r\nHost: {self._address.netloc}\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            answer = await reader.read()
            return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _answered(self, batch: Sequence[int], posted: Posted) -> None:
        self.posted.append(posted)
        if posted.is_acknowledged:
            self._acknowledged += len(batch)
            return
        for at in batch:
            wait = min(self._pace.again_seconds_max, AGAIN_SECONDS * 2 ** self._tries[at])
            self._tries[at] += 1
            heapq.heappush(self._due, (posted.answered + wait, at))
