"""Who is measured: each takes the same raw deliveries, and is shown to do an event once before it is timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from oncebridge import Bridge

if TYPE_CHECKING:
    from oncebridge import Event

BATCH: Final = 100

Handler = Callable[[Any], object]


def do_nothing(event: Event | dict[str, Any]) -> None:
    """Be the handler: what is measured is everything around it."""


def note(_: Event | dict[str, Any]) -> None:
    """Be the handler of a service in another process, which counts: a byte for each event."""
    with Path(os.environ["BENCH_NOTES"]).open("ab") as notes:
        notes.write(b".")


class Contestant(Protocol):
    """Remembers what it has worked off, and gives it to its handler once."""

    def work(self, raws: Sequence[bytes]) -> None:
        """Work deliveries off, in order."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Oncebridge:
    """The bridge on any ledger, all verdicts on, in batches of a size."""

    def __init__(self, url: str, handler: Handler = do_nothing, *, size: int = BATCH) -> None:
        """Connect, with the ledger's tables made where it needs any."""
        self._bridge = Bridge(url)
        self._bridge.on("*")(handler)
        self._bridge.ledger.migrate()
        self._bridge.open()
        self._size = size

    def work(self, raws: Sequence[bytes]) -> None:
        """Work deliveries off, a batch at a time."""
        for start in range(0, len(raws), self._size):
            self._bridge.process_many(raws[start : start + self._size])

    def close(self) -> None:
        """Let go of the ledger."""
        self._bridge.close()


class ForgetfulError(Exception):
    """A contestant that does not do an event once must not be compared with one that does."""


def check_once(name: str, make: Callable[[Handler], Contestant], raws: Sequence[bytes]) -> None:
    """Give each delivery twice, together and again later, and require that each was handled once."""
    handled = count()
    contestant = make(lambda _: next(handled) and None)
    try:
        contestant.work([raw for raw in raws for _ in range(2)])
        contestant.work(raws)
    finally:
        contestant.close()
    times = next(handled)
    if times != len(raws):
        raise ForgetfulError(f"{name}: {len(raws)} events, each delivered three times, were handled {times} times")
