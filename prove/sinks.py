"""What each kind of sink got, by ledger: added up over all parts whose rounds write into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prove import exact
from prove.places import kind_of

LEDGERS: Final = {"sqlite": "SQLite", "postgres": "Postgres", "dynamodb": "DynamoDB", "redis": "Redis, Valkey"}


@dataclass(frozen=True)
class Sink:
    """A kind of sink, and what must not happen there."""

    name: str
    #: What the judge calls it, and what that is in a word; none where it is allowed.
    broken: str | None
    what: str
    #: Parts whose rounds write into it, and judge it.
    parts: frozenset[str]
    ledgers: tuple[str, ...] = tuple(LEDGERS)

    @property
    def title(self) -> str:
        """Name what is counted there."""
        return f"{self.what} {self.name}" if self.broken else "doubled at plain ones, which is allowed"


_WHOLE: Final = frozenset(
    {"kill", "stop", "ways-in", "interrupts", "network", "restarts", "clocks", "resources", "outage"}
)
#: A server that forgets lets everything happen again; what it cannot change is the key.
_FORGETTING: Final = frozenset({"redis", "failover"})
_ALWAYS_IN_TRANSACTIONS: Final = frozenset({"kill", "stop", "network", "restarts", "clocks"})
SINKS: Final = (
    Sink("in the transaction", "doubled in the transaction", "doubled", _WHOLE, exact.LEDGERS),
    Sink("by key", "doubled under another key", "doubled", _WHOLE | _FORGETTING),
    Sink("by token", "not the newest state", "out of order", _WHOLE),
    Sink("plain", None, "doubled, which is allowed", _WHOLE | _FORGETTING),
)


def at_sink(sink: Sink, ledger: str, rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many events this sink got, by what is kept, and how many of them broke its promise."""
    own = [row for row in rows if kind_of(row["ledger"]) == ledger and row["part"] in sink.parts]
    return sum(_events(sink, row) for row in own), sum(broken_at(sink, row) for row in own)


def judged(part: str, ledger: str) -> list[Sink]:
    """Return the sinks that a part judges on a ledger."""
    return [sink for sink in SINKS if part in sink.parts and ledger in sink.ledgers]


def broken_at(sink: Sink, row: Mapping[str, Any]) -> int:
    """Return how many events of a result broke a sink's promise, or doubled where that is allowed."""
    return int(row["doubled_plain"] if sink.broken is None else row["broken"].get(sink.broken, 0))


def _events(sink: Sink, row: Mapping[str, Any]) -> int:
    """Return how many events of a result the sink got; some rounds have no handler with a transaction."""
    figures = row["figures"]
    whole = [figures, *(one for one in figures.values() if isinstance(one, dict))]
    name = "in a transaction" if sink.ledgers == exact.LEDGERS else "events"
    if row["part"] in _ALWAYS_IN_TRANSACTIONS and not any(name in one for one in whole):
        name = "events"  # a result of before that was counted
    return sum(int(one.get(name, 0)) for one in whole)
