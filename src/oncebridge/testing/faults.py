"""Faults on cue: a ledger that fails at a chosen call of a chosen verb, before or after it took effect.

    ledger = faulty(MemoryLedger(), Fault("settle", call=2, after=True))

loses the reply to the second `settle`: the ledger has it, the caller does not know. With `act`, anything
else happens there instead, such as the end of the process.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar

import msgspec

from oncebridge.claim import Answer, Ask, Claim, Settlement, Status
from oncebridge.errors import LedgerUnavailable
from oncebridge.ledgers.protocol import Entry, Ledger, Query, SettlesInTransaction

T = TypeVar("T")

VERBS: Final = frozenset(
    {"open", "close", "claim", "extend", "settle", "transaction", "get", "scan", "counts", "migrate", "purge"}
)


def lose_connection() -> None:
    """Fail as a ledger out of reach does."""
    raise LedgerUnavailable("a fault on cue: the ledger is out of reach")


class Fault(msgspec.Struct, frozen=True):
    """A fault, and where it happens."""

    verb: str
    #: At which call of the verb, from 1; 0 is every call.
    call: int = 1
    #: Whether the call took effect before: then only its reply is lost.
    after: bool = False
    act: Callable[[], None] = lose_connection

    def __post_init__(self) -> None:
        """Refuse a verb that no ledger has: such a fault would never happen."""
        if self.verb not in VERBS:
            raise ValueError(f"no such verb: {self.verb!r}; there are {', '.join(sorted(VERBS))}")


class FaultyLedger:
    """Passes every call on to a ledger, and fails on cue."""

    def __init__(self, ledger: Ledger, faults: Sequence[Fault]) -> None:
        """Take the ledger that does the work, and the faults to come."""
        self.ledger = ledger
        self.faults = tuple(faults)
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Show the ledger beneath and the calls so far."""
        return f"<{type(self).__name__} of {self.ledger!r} after {dict(self.calls)}>"

    def _number(self, verb: str) -> int:
        with self._lock:
            self.calls[verb] += 1
            return self.calls[verb]

    def _strike(self, verb: str, number: int, *, after: bool) -> None:
        for fault in self.faults:
            if fault.verb == verb and fault.call in (0, number) and fault.after is after:
                fault.act()

    def _pass_on(self, verb: str, call: Callable[[], T]) -> T:
        number = self._number(verb)
        self._strike(verb, number, after=False)
        result = call()
        self._strike(verb, number, after=True)
        return result

    def open(self, secret: bytes | None) -> bytes:
        """Open the ledger beneath."""
        return self._pass_on("open", lambda: self.ledger.open(secret))

    def close(self) -> None:
        """Close the ledger beneath."""
        self._pass_on("close", self.ledger.close)

    def claim(self, asks: Sequence[Ask], *, nonce: bytes, lease_us: int) -> list[Answer]:
        """Claim from the ledger beneath."""
        return self._pass_on("claim", lambda: self.ledger.claim(asks, nonce=nonce, lease_us=lease_us))

    def extend(self, claims: Sequence[Claim], *, lease_us: int) -> list[bool]:
        """Extend in the ledger beneath."""
        return self._pass_on("extend", lambda: self.ledger.extend(claims, lease_us=lease_us))

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle in the ledger beneath."""
        return self._pass_on("settle", lambda: self.ledger.settle(settlements))

    def get(self, key: bytes) -> list[Entry]:
        """Read from the ledger beneath."""
        return self._pass_on("get", lambda: self.ledger.get(key))

    def scan(self, query: Query) -> Iterator[Entry]:
        """Read from the ledger beneath."""
        return iter(self._pass_on("scan", lambda: list(self.ledger.scan(query))))

    def counts(self) -> dict[Status, int]:
        """Read from the ledger beneath."""
        return self._pass_on("counts", self.ledger.counts)

    def migrate(self) -> None:
        """Migrate the ledger beneath."""
        self._pass_on("migrate", self.ledger.migrate)

    def purge(self, *, older_than_us: int) -> int:
        """Purge the ledger beneath."""
        return self._pass_on("purge", lambda: self.ledger.purge(older_than_us=older_than_us))


class FaultyTransactionalLedger(FaultyLedger):
    """The same over a ledger that settles in its handler's transaction."""

    @contextmanager
    def transaction(self, settlement: Settlement) -> Iterator[Any]:
        """Fail before the transaction is opened, or after it was committed."""
        assert isinstance(self.ledger, SettlesInTransaction), "`faulty` picks this class for such ledgers only"
        number = self._number("transaction")
        self._strike("transaction", number, after=False)
        with self.ledger.transaction(settlement) as transaction:
            yield transaction
        self._strike("transaction", number, after=True)

    @property
    def dialect(self) -> Literal["sqlite", "postgres"]:
        """Speak as the ledger beneath does, if that is SQL."""
        return self.ledger.dialect  # type: ignore[attr-defined, no-any-return]  # where it is missing, so it is here


def faulty(ledger: Ledger, *faults: Fault) -> FaultyLedger:
    """Wrap a ledger so that it can do what it could before, and fails on cue."""
    wrapper = FaultyTransactionalLedger if isinstance(ledger, SettlesInTransaction) else FaultyLedger
    return wrapper(ledger, faults)
