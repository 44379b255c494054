"""The ledger contract on chains that go wrong: late workers, leases that ran out, and replies that were lost."""

from __future__ import annotations

import secrets

from msgspec.structs import replace

from oncebridge.claim import Answer, Ask, Claim, Letter, Outcome, Settlement, Verdict
from oncebridge.testing.ledger_contract.chains import ALL_ENDS, ChainStage
from oncebridge.testing.ledger_contract.stage import claim_of, digest, timeless


class LateChainRules(ChainStage):
    """A worker that lost its entity changes nothing, at any state of its chain."""

    def test_a_late_worker_changes_nothing(self) -> None:
        """Every settle compares the top token: a late one changes neither record nor data, at no state of its chain."""
        late = self.take_chain(*self.states("a", "b", "c"), lease_us=self.brief_us)
        assert self.ledger.settle([self.settle_with(late[0], b"before")]) == [True]
        self.run_out()
        (owner,) = self.take_chain(self.state("next", "next", 9000), by=self.opened())
        for _ in range(2):  # while the new owner works, and once it has ended
            self._is_refused(late[1:])
            self.ledger.settle([self.settle_with(owner, b"owner's", frees=True)])
        assert self.data_of() == b"owner's"
        self._is_refused(late[1:])
        assert self.ledger.settle([self.settle_with(late[0], b"again")]) == [True], "it finds its own outcome"
        assert self.data_of() == b"owner's"

    def _is_refused(self, claims: list[Claim]) -> None:
        """Show that none of these claims can be ended or extended, and that trying leaves no trace."""
        before = [self.ledger.get(claim.ask.key) for claim in claims]
        letter = Letter(raw=b"late", reason="late")
        for outcome in ALL_ENDS:
            for frees in (False, True):
                ends = [Settlement(claim, outcome, 0, letter, b"late", frees) for claim in claims]
                assert self.ledger.settle(ends) == [False] * len(ends)
        assert self.ledger.extend(claims, lease_us=self.lease_us) == [False] * len(claims)
        assert [self.ledger.get(claim.ask.key) for claim in claims] == before

    def test_a_late_worker_cannot_free_the_entity(self) -> None:
        """The last end of a chain that was taken over leaves the entity with its new owner."""
        late = self.take_chain(*self.states("a", "b"), lease_us=self.brief_us)
        self.run_out()
        (owner,) = self.take_chain(*self.states("a", alone=True), by=self.opened())
        self._is_refused(late)
        assert self.is_held()
        assert self.ledger.settle([self.settle_with(owner, b"owner's", frees=True)]) == [True]
        self._is_refused(late)

    def test_a_late_worker_nobody_took_over_from_ends_its_chain(self) -> None:
        """Until another worker takes the entity, a chain whose lease ran out is extended and settled as ever."""
        claims = self.take_chain(*self.states("a", "b", "c"), lease_us=self.brief_us)
        self.run_out()
        assert self.ledger.settle([self.settle_with(claims[0], b"first")]) == [True]
        assert self.extend(claims[1])
        assert self.is_held()
        assert self.ledger.settle([self.settle_with(claim, b"last", frees=claim is claims[2]) for claim in claims[1:]])
        (next_one,) = self.take_chain(self.state("next", "next", 0))
        assert next_one.chain is not None
        assert (next_one.chain.data, next_one.chain.ran_out) == (b"last", False)

    def test_a_settle_repeated_after_a_takeover_is_fine(self) -> None:
        """A repeated settle that finds its own outcome is ok at each state, though another worker has the entity."""
        ends = {}
        for number, outcome in enumerate(ALL_ENDS):
            names = (f"{number} a", f"{number} b")
            claims = self.take_chain(*self.states(*names, of=f"{number}"), lease_us=self.brief_us)
            ends[f"{number}"] = [self.settle_with(claim, b"mine", outcome) for claim in claims]
            assert self.ledger.settle(ends[f"{number}"]) == [True, True]
        self.run_out()
        for of, repeated in ends.items():
            (owner,) = self.take_chain(self.state(f"next of {of}", "next", 0, entity=digest(of)))
            before = [self.entry(end.claim.ask) for end in repeated]
            assert self.ledger.settle(repeated) == [True, True]
            assert self.is_held(of=of)
            assert self.ledger.settle([self.settle_with(owner, b"owner's", frees=True)]) == [True]
            assert self.ledger.settle([replace(end, frees=True) for end in repeated]) == [True, True]
            assert [self.entry(end.claim.ask) for end in repeated] == before
            assert self.data_of(of=of) == b"owner's"

    def test_a_call_settles_chains_one_by_one(self) -> None:
        """In one call, a chain in force is settled and a lost one is not, whatever is between them."""
        lost = self.take_chain(*self.states("a", "b"), lease_us=self.brief_us)
        self.run_out()
        (owner,) = self.take_chain(self.state("c", "c", 0), by=self.opened())
        held = self.take_chain(*self.states("x", "y", of="Bea"))
        fact = self.take(self.fact("one"))
        ends = [
            self.settle_with(lost[0], b"late"),
            self.settle_with(held[0], b"x"),
            Settlement(fact, Outcome.DONE),
            self.settle_with(lost[1], b"late", frees=True),
            self.settle_with(held[1], b"y", frees=True),
        ]
        assert self.ledger.settle(ends) == [False, True, True, False, True]
        claims = [lost[0], owner, fact, held[0]]
        assert self.ledger.extend(claims, lease_us=self.lease_us) == [False, True, False, False]
        assert self.data_of(of="Bea") == b"y"


class RunOutRules(ChainStage):
    """A run-out leaves an entity in doubt, and states that are claimed alone."""

    def _ran_out(self, *asks: Ask, nonce: bytes | None = None, lease_us: int | None = None) -> list[bool]:
        answers = self.answers(*asks, nonce=nonce, lease_us=lease_us)
        assert all(answer.token for answer in answers)
        return [answer.chain.ran_out for answer in answers if answer.chain]

    def test_a_run_out_is_said_until_a_settle(self) -> None:
        """A claim says that the lease before ran out, also repeated or after one more run-out, until a settle."""
        nonce = secrets.token_bytes(8)
        assert self._ran_out(self.state("a", "a", 0), lease_us=self.brief_us) == [False]
        self.run_out()
        brief = {"nonce": nonce, "lease_us": self.brief_us}
        assert self._ran_out(*self.states("b", "c"), **brief) == [True, True]  # type: ignore[arg-type]
        assert self._ran_out(*self.states("b", "c"), **brief) == [True, True]  # type: ignore[arg-type]
        self.run_out()
        claims = self.take_chain(*self.states("d", "e", "f"))
        assert {claim.chain.ran_out for claim in claims if claim.chain} == {True}
        self.finish(claims)
        assert self._ran_out(*self.states("g", "h")) == [False, False]

    def test_a_refused_settle_leaves_the_doubt(self) -> None:
        """A late settle does not make the new owner's claim sure."""
        late = self.take_chain(*self.states("a", "b"), lease_us=self.brief_us)
        self.run_out()
        nonce = secrets.token_bytes(8)
        assert self._ran_out(*self.states("c"), nonce=nonce) == [True]
        assert self.ledger.settle([self.settle_with(claim, b"late") for claim in late]) == [False, False]
        assert self._ran_out(*self.states("c"), nonce=nonce) == [True]

    def test_a_middle_end_ends_the_doubt(self) -> None:
        """Once a state has ended, the doubt is in the data, so the repeat of the claim need not say it."""
        self.take_chain(*self.states("a"), lease_us=self.brief_us)
        self.run_out()
        nonce = secrets.token_bytes(8)
        asks = self.states("b", "c")
        first, _ = (claim_of(ask, answer) for ask, answer in zip(asks, self.answers(*asks, nonce=nonce), strict=True))
        assert first.chain is not None
        assert first.chain.ran_out
        assert self.ledger.settle([self.settle_with(first, b"unsure")]) == [True]
        answers = self.answers(*asks, nonce=nonce)
        assert answers[0].verdict is Verdict.REDELIVERY
        assert answers[1].chain is not None
        assert (answers[1].chain.data, answers[1].chain.ran_out) == (b"unsure", False)

    def _kept(self, name: str) -> tuple[object, ...]:
        """Return what a ledger keeps of a state by itself; the lease is its entity's."""
        (entry,) = self.ledger.get(digest(name))
        return entry.status, entry.attempts, entry.envelope, entry.changed_us

    def test_a_state_that_ran_out_cuts_its_chain(self) -> None:
        """A state whose claim ran out is claimed alone: those before it are granted, and it waits with those behind."""
        self.take_chain(*self.states("b"), lease_us=self.brief_us)
        self.run_out()
        before = self._kept("b")
        asks = self.states("a", "b", "c")
        answers = self.answers(*asks)
        assert [answer.verdict.value for answer in answers] == ["fresh", "busy", "busy"]
        assert [(answer.token, answer.busy_us, answer.chain) for answer in answers[1:]] == [(0, 0, None)] * 2
        assert answers[0].chain is not None
        assert answers[0].chain.top == answers[0].token
        assert self._kept("b") == before
        assert self.ledger.get(digest("c")) == []
        self.finish([claim_of(asks[0], answers[0])])
        answers = self.answers(*asks)
        assert [answer.verdict.value for answer in answers] == ["redelivery", "fresh", "busy"]
        assert answers[1].wants_alone
        assert (answers[2].token, answers[2].busy_us) == (0, 0)
        assert self._kept("b") == before
        assert self.ledger.get(digest("c")) == []
        assert not self.is_held()
        assert self.do(replace(asks[1], alone=True)).attempt == 1
        answers = self.answers(*asks)
        assert [answer.verdict.value for answer in answers] == ["redelivery", "redelivery", "fresh"]
        assert answers[2].token > 0

    def test_a_chain_that_ran_out_is_claimed_one_by_one(self) -> None:
        """Each state of a chain that ran out is claimed alone, and only a run-out alone counts."""
        asks = self.states("a", "b")
        self.take_chain(*asks, lease_us=self.brief_us)
        self.run_out()
        first, second = self.answers(*asks)
        assert (first.wants_alone, second.verdict, second.busy_us) == (True, Verdict.BUSY, 0)
        poison, neighbour = (replace(ask, alone=True) for ask in asks)
        attempts = [self.abandon(poison).attempt for _ in range(2)]
        assert [*attempts, self.do(poison, Outcome.RETRY).attempt] == [1, 2, 3]
        answers = self.answers(*asks)
        assert (answers[0].token > 0, answers[0].attempt) == (True, 4)
        assert (answers[1].verdict, answers[1].token, answers[1].busy_us) == (Verdict.BUSY, 0, 0)
        self.finish([claim_of(asks[0], answers[0])])
        assert self.answers(asks[1])[0].wants_alone
        assert self.do(neighbour).attempt == 1


class RepeatedChainRules(ChainStage):
    """A claim call whose reply was lost may be made again."""

    def _seen(self, answers: list[Answer]) -> list[Answer]:
        return [timeless(answer) for answer in answers]

    def test_a_repeated_call_gets_the_same_chain(self) -> None:
        """The same nonce again gets the same tokens, attempts and chain, from any handle, and raises nothing."""
        self.finish(self.take_chain(*self.states("a", "b")), Outcome.RETRY, Outcome.DONE)
        asks = self.states("a", "b", "c", "d")
        nonce = secrets.token_bytes(8)
        first = self.answers(*asks, nonce=nonce)
        assert [answer.attempt for answer in first if answer.token] == [2, 1, 1]
        before = [self.ledger.get(ask.key) for ask in asks]
        for _ in range(2):
            before_us = self.now_us()
            again = self.answers(*asks, nonce=nonce, by=self.opened())
            assert self._seen(again) == self._seen(first)
            granted_us = [answer.chain.now_us for answer in first if answer.chain]
            repeated_us = [answer.chain.now_us for answer in again if answer.chain]
            assert repeated_us == granted_us or min(repeated_us) >= before_us
        assert [self.ledger.get(ask.key) for ask in asks] == before
        assert {answer.verdict for answer in self.answers(*asks[2:])} == {Verdict.BUSY}
        claims = [claim_of(ask, answer) for ask, answer in zip(asks, first, strict=True) if answer.token]
        self.finish(claims, *[Outcome.RETRY] * 3)
        assert [answer.attempt for answer in self.answers(asks[0], asks[2])] == [3, 2]

    def test_a_repeated_call_is_cut_where_it_was(self) -> None:
        """The repeat of a call whose chain was cut grants no more than the call did."""
        self.take_chain(*self.states("c"), lease_us=self.brief_us)
        self.run_out()
        asks, nonce = self.states("a", "b", "c", "d"), secrets.token_bytes(8)
        first = self.answers(*asks, nonce=nonce)
        assert [answer.verdict.value for answer in first] == ["fresh", "fresh", "busy", "busy"]
        assert self._seen(self.answers(*asks, nonce=nonce)) == self._seen(first)

    def test_a_chain_that_was_lost_is_not_granted_in_part(self) -> None:
        """A call that lost its chain asks anew: its repeat could not tell an old claim from what it is granted now."""
        asks, nonce = self.states("a", "b"), secrets.token_bytes(8)
        self.answers(*asks, nonce=nonce, lease_us=self.brief_us)
        self.run_out()
        self.finish([self.take(replace(asks[0], alone=True))], Outcome.RETRY)
        for _ in range(2):
            answers = self.answers(*asks, nonce=nonce)
            assert answers[0].wants_alone
            assert [answer.token for answer in answers] == [0, 0]

    def test_a_chain_taken_over_is_nobodys_own(self) -> None:
        """After a takeover of the entity, the repeat of the earlier call finds its states busy."""
        asks, nonce = self.states("a", "b"), secrets.token_bytes(8)
        self.answers(*asks, nonce=nonce, lease_us=self.brief_us)
        self.run_out()
        (owner,) = self.take_chain(self.state("c", "c", 0))
        for _ in range(2):
            answers = self.answers(*asks, nonce=nonce)
            assert {(answer.verdict, answer.token, answer.busy_us > 0) for answer in answers} == {
                (Verdict.BUSY, 0, True)
            }
        self.finish([owner])
        assert self.answers(*asks, nonce=nonce)[0].wants_alone
