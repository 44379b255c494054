"""The claims that a round holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from oncebridge.errors import LedgerUnavailable
from oncebridge.intake.keeper import Held, Keeper
from oncebridge.intake.settling import Settling
from oncebridge.intake.tasks import Task, claim_of

if TYPE_CHECKING:
    from oncebridge.intake.terms import Terms


class Holding:
    """Claims that are held: kept alive, settled as they end, and given back if it breaks off."""

    def __init__(self, keeper: Keeper, settling: Settling, lease_us: int, terms: Terms) -> None:
        """Hold nothing yet."""
        self.terms = terms
        self._keeper = keeper
        self._lease_us = lease_us
        self._held: list[Held] = []
        self.settling = settling

    def hold(self, tasks: list[Task]) -> list[Held]:
        """Take these in, and keep their claims alive."""
        helds = [Held(claim_of(task), task.asked_us + self._lease_us) for task in tasks]
        if helds:
            self._held += helds
            self._keeper.watch(helds)
        return helds

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Settle what is done; after an error, give back what was not tried. If that fails too, leases run out."""
        try:
            if error is None:
                error = self._finished()
            if error is not None:
                self.settling.release(self._held, patiently=isinstance(error, LedgerUnavailable))
                raise error
        finally:
            self._keeper.forget(self._held)

    def _finished(self) -> BaseException | None:
        try:
            self.settling.finish()
        except BaseException as error:  # noqa: BLE001 - raised again, once the rest was given back
            return error
        return None
