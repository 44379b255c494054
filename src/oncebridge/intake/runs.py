"""Runs: one batch each, from its first claim to its last end, in the process that began it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from oncebridge import forks
from oncebridge.errors import BatchOfParent, LedgerUnavailable

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.intake.terms import Terms


class GivesBack(Protocol):
    """What a run holds."""

    def give_back(self, *, patiently: bool) -> None:
        """Settle what is done, and give back the rest."""
        ...


class Run:
    """One batch: its terms, and what it holds."""

    __slots__ = ("_generation", "_thread", "holdings", "is_over", "terms")

    def __init__(self, terms: Terms) -> None:
        """Begin, in this process and this thread."""
        self.terms = terms
        self.holdings: list[GivesBack] = []
        #: Whether it has broken off: then none of its claims is kept alive, whatever becomes of them.
        self.is_over = False
        self._generation = forks.generation()
        self._thread = threading.get_ident()

    def is_out_of_time(self, clock: Clock) -> bool:
        """Tell whether nothing more may be begun by its terms."""
        return self.terms.until_us is not None and clock.monotonic_us() >= self.terms.until_us

    def check(self) -> None:
        """Raise in a forked child: the batch is its parent's. Asked before each call of the ledger."""
        if forks.generation() != self._generation:
            raise BatchOfParent

    def break_off(self, error: BaseException) -> None:
        """Settle what is done and give back the rest, unless it is the parent's. If that fails, leases run out."""
        self.is_over = True
        if forks.generation() != self._generation:
            return
        try:
            self._give_back(patiently=isinstance(error, LedgerUnavailable))
        except BaseException:
            # An interrupt, most likely: what can be done without waiting is done, and then it goes on.
            self._give_back(patiently=False)
            raise

    def _give_back(self, *, patiently: bool) -> None:
        for holding in self.holdings.copy():
            holding.give_back(patiently=patiently)
            self.holdings.remove(holding)
