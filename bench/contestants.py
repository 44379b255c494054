"""The contestants: each takes the same raw deliveries, and is shown to be right before it is timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from oncebridge import Bridge, Settings

if TYPE_CHECKING:
    from oncebridge import Event

BATCH: Final = 100

Handler = Callable[[Any], object]


def do_nothing(event: Event | dict[str, Any]) -> None:
    """Be the handler: everything around it is measured."""


def note(_: Event | dict[str, Any]) -> None:
    """Be the handler of a service in another process, which counts: a byte for each event."""
    with Path(os.environ["BENCH_NOTES"]).open("ab") as notes:
        notes.write(b".")


class Contestant(Protocol):
    """Remembers the events that it has processed, and gives each to its handler once."""

    def work(self, raws: Sequence[bytes]) -> None:
        """Process deliveries in order."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class Oncebridge:
    """The bridge on any ledger, all verdicts on, in batches of a size."""

    def __init__(
        self,
        url: str,
        handler: Handler = do_nothing,
        *,
        size: int = BATCH,
        journal: bool = False,
        attendance: bool = False,
    ) -> None:
        """Connect, with the ledger's tables made where it needs any."""
        self._bridge = Bridge(url, settings=Settings(attendance=attendance))
        self._bridge.on("*")(handler)
        self._bridge.ledger.migrate()
        self._bridge.open()
        if journal:
            self._bridge.start_journal("bench")
        self._size = size

    def work(self, raws: Sequence[bytes]) -> None:
        """Process deliveries, a batch at a time."""
        for start in range(0, len(raws), self._size):
            self._bridge.process_many(raws[start : start + self._size])

    def verdicts(self, raws: Sequence[bytes]) -> list[str]:
        """Process deliveries, a batch at a time, and return the verdict of each."""
        starts = range(0, len(raws), self._size)
        batches = (self._bridge.process_many(raws[start : start + self._size]) for start in starts)
        return [str(result.verdict) for results in batches for result in results]

    def close(self) -> None:
        """Close the ledger."""
        self._bridge.close()


# --- whether they are right --------------------------------------------------------------------------------------


class WrongError(Exception):
    """A contestant that is wrong must not be compared with one that is right."""


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
        raise WrongError(f"{name}: {len(raws)} events, each delivered three times, were handled {times} times")


def check_verdicts(name: str, make: Callable[[], Contestant], raws: Sequence[bytes]) -> None:
    """Require of a bridge that its batches get the verdicts that the memory ledger gives one delivery at a time."""
    with closing(make()) as contestant, closing(Oncebridge("memory://", size=1)) as one_by_one:
        if not isinstance(contestant, Oncebridge):
            return  # peers know no echoes and no order
        pairs = zip(contestant.verdicts(raws), one_by_one.verdicts(raws), strict=True)
        wrong = sum(ours != right for ours, right in pairs)
    if wrong:
        raise WrongError(f"{name}: {wrong} of {len(raws)} deliveries got another verdict than they get one at a time")
