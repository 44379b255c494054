"""The ledger contract on transactions, for ledgers that settle in the transaction their handlers write in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from oncebridge.claim import Ask, Claim, Outcome, Settlement, Status, Verdict
from oncebridge.errors import ClaimLost
from oncebridge.ledgers.protocol import SettlesInTransaction
from oncebridge.testing.ledger_contract.stage import LedgerStage, settlement_of, settlements_of


class HandlerBroke(Exception):
    """The error of a handler here."""


class TransactionRules(LedgerStage):
    """Effect and settle: both or neither."""

    # --- to be filled in by ledgers that can do this -------------------------------------------------

    def write_effect(self, transaction: Any, effect: str) -> None:  # noqa: ARG002 - a hook
        """Write an effect as a handler would, into the transaction it was given."""
        pytest.fail("override write_effect: this ledger settles in transactions")

    def effects(self) -> list[str]:
        """Return the effects that were committed, as another connection sees them."""
        pytest.fail("override effects: this ledger settles in transactions")

    def ways_to_end(self, transaction: Any) -> Sequence[Callable[[], object]]:  # noqa: ARG002 - a hook
        """Return everything that a handler could call to commit or roll back the transaction by itself."""
        return ()

    # --- the rules -----------------------------------------------------------------------------------

    @property
    def transactional(self) -> SettlesInTransaction:
        """The ledger of this test, if it can do this at all."""
        ledger = self.ledger
        if not isinstance(ledger, SettlesInTransaction):
            pytest.skip("this ledger does not settle in transactions")
        return ledger

    def _asks(self) -> list[Ask]:
        return [self.fact("fact"), self.state("state", "here", 0)]

    def _is_untouched(self, claim: Claim) -> bool:
        return self.status(claim.ask) is Status.CLAIMED and self.effects() == []

    def test_effect_and_settle_are_committed_together(self) -> None:
        """Nothing is to be seen before the transaction is left, and everything after."""
        ledger = self.transactional
        for number, ask in enumerate(self._asks(), 1):
            with ledger.transaction(settlement_of(self.take(ask))) as transaction:
                self.write_effect(transaction, f"effect {number}")
                assert f"effect {number}" not in self.effects()
            assert self.effects() == [f"effect {one}" for one in range(1, number + 1)]
            assert self.status(ask) is Status.DONE
            assert self.verdict(ask) is Verdict.REDELIVERY
        assert self.verdict(self.state("echo", "here", 1)) is Verdict.ECHO

    def test_an_error_rolls_back_and_leaves_the_claim(self) -> None:
        """A handler's error undoes what it wrote; the claim stays as it was, to be settled otherwise."""
        ledger = self.transactional
        for ask in self._asks():
            claim = self.take(ask)
            with pytest.raises(HandlerBroke):
                self._break_down(ledger, settlement_of(claim))
            assert self._is_untouched(claim)
            assert self.extend(claim)
            assert self.end(claim, Outcome.RETRY)

    def _break_down(self, ledger: SettlesInTransaction, settlement: Settlement) -> None:
        with ledger.transaction(settlement) as transaction:
            self.write_effect(transaction, "effect")
            raise HandlerBroke

    def test_a_lost_claim_rolls_back(self) -> None:
        """If the event, or its entity, was taken over, everything is undone and the handler's work is lost."""
        ledger = self.transactional
        fact, state = (self.abandon(ask) for ask in self._asks())
        self.take(self.fact("fact", alone=True), by=self.opened())
        self.take(self.state("another", "away", 1000), by=self.opened())
        for claim in (fact, state):
            with pytest.raises(ClaimLost), ledger.transaction(settlement_of(claim)) as transaction:
                self.write_effect(transaction, "effect")
            assert self._is_untouched(claim)

    def test_a_settled_claim_commits_nothing_more(self) -> None:
        """A claim that is settled already, as done or otherwise, does not carry a second effect."""
        ledger = self.transactional
        for outcome in (Outcome.DONE, Outcome.RETRY, Outcome.DEAD):
            claim = self.do(self.fact(outcome.value), outcome)
            with pytest.raises(ClaimLost), ledger.transaction(settlement_of(claim)) as transaction:
                self.write_effect(transaction, "effect")
            assert self.effects() == []
            assert self.status(claim.ask) is Status(outcome.value)

    def test_a_late_transaction_nobody_took_over_from_commits(self) -> None:
        """A lease that ran out is only an invitation: until another worker takes it, the transaction settles."""
        ledger = self.transactional
        claim = self.abandon(self.fact("one"))
        with ledger.transaction(settlement_of(claim)) as transaction:
            self.write_effect(transaction, "effect")
        assert self.effects() == ["effect"]
        assert self.status(claim.ask) is Status.DONE

    def _chain(self, *names: str) -> list[Ask]:
        return [self.state(name, name, 1000 * number) for number, name in enumerate(names)]

    def test_a_transaction_ends_one_state_of_a_chain(self) -> None:
        """In a chain, a transaction settles its own state and keeps the entity held; the last one frees it."""
        ledger = self.transactional
        asks = self._chain("a", "b", "c")
        claims = self.take_chain(*asks)
        (waiting,) = self._chain("waiting")
        for number, settlement in enumerate(settlements_of(claims), 1):
            with pytest.raises(HandlerBroke):
                self._break_down(ledger, settlement)
            assert self.status(settlement.claim.ask) is Status.CLAIMED
            with ledger.transaction(settlement) as transaction:
                self.write_effect(transaction, f"effect {number}")
            assert self.effects() == [f"effect {one}" for one in range(1, number + 1)]
            statuses = [self.status(ask) for ask in asks]
            assert statuses == [Status.DONE] * number + [Status.CLAIMED] * (len(asks) - number)
            if number < len(asks):
                assert self.answers(waiting, by=self.opened())[0].verdict is Verdict.BUSY
        assert self.verdict(self.state("echo", "c", 2100)) is Verdict.ECHO

    def test_a_chain_taken_over_rolls_back(self) -> None:
        """Once another worker has the entity, no state of a late chain commits, and its data stays as it is."""
        ledger = self.transactional
        claims = self.take_chain(*self._chain("a", "b", "c"), lease_us=self.brief_us)
        late = settlements_of(claims)
        self.run_out()
        (owner,) = self.take_chain(self.state("owner", "here", 9000), by=self.opened())
        for settlement in late:
            with pytest.raises(ClaimLost), ledger.transaction(settlement) as transaction:
                self.write_effect(transaction, "effect")
            assert self._is_untouched(settlement.claim)
        assert self.end(owner)
        for settlement in late:
            with pytest.raises(ClaimLost), ledger.transaction(settlement) as transaction:
                self.write_effect(transaction, "effect")
            assert self._is_untouched(settlement.claim)
        assert self.verdict(self.state("echo", "here", 9001)) is Verdict.ECHO

    def test_a_handler_cannot_end_the_transaction(self) -> None:
        """Whatever a handler calls to commit or roll back, effects and settle stay together: all or nothing."""
        ledger = self.transactional
        committed: list[str] = []
        for number in range(self._number_of_ways(ledger)):
            claim = self.take(self.fact(f"{number}"))
            seen_early: list[str] = []
            with suppress(Exception), ledger.transaction(settlement_of(claim)) as transaction:
                self.write_effect(transaction, f"before {number}")
                with suppress(Exception):
                    self.ways_to_end(transaction)[number]()
                seen_early = self.effects()
                self.write_effect(transaction, f"after {number}")
            assert seen_early == committed, f"way {number} has committed"
            if self.status(claim.ask) is Status.DONE:
                committed += [f"before {number}", f"after {number}"]
            assert self.effects() == committed, f"way {number} tore effects and settle apart"

    def _number_of_ways(self, ledger: SettlesInTransaction) -> int:
        number = 0
        claim = self.take(self.fact("to look only"))
        with suppress(HandlerBroke), ledger.transaction(settlement_of(claim)) as transaction:
            number = len(self.ways_to_end(transaction))
            raise HandlerBroke
        return number
