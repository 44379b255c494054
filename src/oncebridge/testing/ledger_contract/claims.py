"""The ledger contract on claims: tokens, repeated calls, workers that come too late, and attempts."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from msgspec.structs import replace

from oncebridge.claim import Ask, Chain, Claim, Letter, Outcome, Settlement, Status, Verdict
from oncebridge.testing.ledger_contract.stage import ENDS, LETTER, LedgerStage, digest, timeless


class TokenRules(LedgerStage):
    """Every claim has a token above all before it, and nothing is changed without it."""

    def test_tokens_of_an_event_increase(self) -> None:
        """Each claim of an event has a higher token, after every way a claim can end, and after a redrive."""
        ask = self.fact("one", alone=True)
        tokens = []
        for outcome in (Outcome.RETRY, Outcome.RELEASE, None, None, Outcome.DEAD):
            claim = self.abandon(ask) if outcome is None else self.do(ask, outcome)
            tokens.append(claim.token)
        tokens.append(self.do(replace(ask, redrive=True), Outcome.DEAD).token)
        tokens.append(self.do(replace(ask, redrive=True)).token)
        assert tokens == sorted(set(tokens))

    def test_tokens_of_an_entity_increase(self) -> None:
        """Each claim of any event of an entity has a higher token than those of its other events."""
        tokens = []
        for number, outcome in enumerate((Outcome.DONE, Outcome.RETRY, Outcome.RELEASE, None, Outcome.DEAD)):
            ask = self.state(f"{number}", f"{number}", number)
            claim = self.abandon(ask) if outcome is None else self.do(ask, outcome)
            tokens.append(claim.token)
        tokens.append(self.do(self.state("4", "4", 4, redrive=True)).token)
        tokens.append(self.do(self.state("5", "5", 5)).token)
        assert tokens == sorted(set(tokens))

    def test_tokens_are_not_below_the_clock(self) -> None:
        """A token is at least the ledger's time in microseconds, so that it tops those of a forgotten record."""
        for ask in (self.fact("one"), self.state("two", "here", 0)):
            before_us = self.now_us()
            assert self.do(ask, Outcome.RETRY).token >= before_us
            self.run_out()
            assert self.take(ask).token > before_us + self.brief_us

    def test_another_token_changes_nothing(self) -> None:
        """To extend or settle with any token but the one in force answers False and leaves all as it was."""
        for ask in (self.fact("one"), self.state("two", "here", 0)):
            claim = self.take(ask)
            before = self.ledger.get(ask.key)
            for token in (claim.token - 1, claim.token + 1, 0):
                assert not self.extend(_with_token(claim, token))
                for wrong in (replace(claim, token=token), _with_token(claim, token)):
                    assert True not in [self.end(wrong, outcome) for outcome in ENDS]
            assert self.ledger.get(ask.key) == before
            assert self.extend(claim)
            assert self.end(claim)

    def test_what_was_never_claimed_cannot_be_settled(self) -> None:
        """To extend or settle an event that the ledger does not know answers False and makes nothing known."""
        for ask in (self.fact("one"), self.state("two", "here", 0)):
            token = self.now_us()
            claim = Claim(ask, token, chain=None if ask.entity is None else Chain(top=token))
            assert not self.extend(claim)
            assert True not in [self.end(claim, outcome) for outcome in ENDS]
            assert self.ledger.get(ask.key) == []
            self.take(ask)

    def test_a_settled_claim_is_not_extended(self) -> None:
        """Once settled, a claim cannot be brought back to life."""
        for ask in (self.fact("one"), self.state("two", "here", 0)):
            for outcome in (Outcome.RETRY, Outcome.RELEASE, Outcome.DONE):
                claim = self.do(ask, outcome)
                assert not self.extend(claim)
                assert self.status(ask) is Status(outcome.value)


class RepeatRules(LedgerStage):
    """A call whose reply was lost may be made again."""

    def test_the_same_claim_call_gets_the_same_claim(self) -> None:
        """The same nonce again raises neither token nor attempt; another nonce finds the event busy."""
        for ask in (self.fact("one"), self.state("two", "here", 0)):
            self.do(ask, Outcome.RETRY)
            nonce = secrets.token_bytes(8)
            claim = self.take(ask, nonce=nonce)
            again = [self.take(ask, nonce=nonce, by=self.opened()) for _ in range(2)]
            assert [(one.token, one.attempt) for one in again] == [(claim.token, 2)] * 2
            assert self.verdict(ask) is Verdict.BUSY
            self.end(claim, Outcome.RETRY)
            assert [self.take(ask).attempt] == [3]

    def test_the_same_batch_gets_the_same_answers(self) -> None:
        """A whole call repeated under its nonce is answered as it was: facts, states and duplicates."""
        for name in ("Bea", "Cleo"):
            self.do(self.state(f"newest of {name}", "here", 0, entity=digest(name)))
        self.do(self.fact("settled"))
        asks = [
            self.fact("one"),
            self.state("two", "here", 0),
            self.state("echo", "here", 100, entity=digest("Bea")),
            self.state("stale", "away", -100, entity=digest("Cleo")),
            self.fact("settled"),
        ]
        nonce = secrets.token_bytes(8)
        first, second = (self.ledger.claim(asks, nonce=nonce, lease_us=self.lease_us) for _ in range(2))
        assert [answer.verdict.value for answer in first] == ["fresh", "fresh", "fresh", "fresh", "redelivery"]
        assert [timeless(answer) for answer in first] == [timeless(answer) for answer in second]

    def test_a_claim_taken_over_is_nobodys_own(self) -> None:
        """After a takeover, the call that made the earlier claim finds the event busy."""
        for ask in (self.fact("one", alone=True), self.state("two", "here", 0, alone=True)):
            nonce = secrets.token_bytes(8)
            self.take(ask, nonce=nonce, lease_us=self.brief_us)
            self.run_out()
            self.take(ask)
            assert self.answer(ask, nonce=nonce).verdict is Verdict.BUSY

    def test_a_settled_claim_is_nobodys_own(self) -> None:
        """A claim call that is repeated after its event was done finds a duplicate."""
        for ask in (self.fact("one"), self.state("two", "here", 0)):
            nonce = secrets.token_bytes(8)
            assert self.end(self.take(ask, nonce=nonce))
            assert self.answer(ask, nonce=nonce).verdict is Verdict.REDELIVERY

    def test_the_same_settle_again_is_fine(self) -> None:
        """A repeated settle that finds its own outcome answers True, and counts nothing twice."""
        for number, outcome in enumerate(ENDS):
            for ask in (self.fact(f"fact {outcome}"), self.state(f"state {outcome}", outcome.value, number)):
                claim = self.do(ask, outcome)
                before = self.ledger.get(ask.key)
                self.run_out()
                assert False not in [self.end(claim, outcome, by=self.opened()) for _ in range(2)]
                assert self.ledger.get(ask.key) == before

    def test_another_settle_is_refused(self) -> None:
        """Once settled, a claim cannot be settled otherwise."""
        for number, outcome in enumerate(ENDS):
            for ask in (self.fact(f"fact {outcome}"), self.state(f"state {outcome}", outcome.value, number)):
                claim = self.do(ask, outcome)
                before = self.ledger.get(ask.key)
                assert True not in [self.end(claim, other) for other in ENDS if other is not outcome]
                assert self.ledger.get(ask.key) == before


class LateRules(LedgerStage):
    """A worker whose lease ran out changes nothing once another has its place."""

    def _nothing_works(self, zombie: Claim) -> None:
        """Show that a claim that was lost can do nothing, and leaves no trace in trying."""
        before = self.ledger.get(zombie.ask.key)
        assert not self.extend(zombie)
        assert True not in [self.end(zombie, outcome, letter=Letter(raw=b"z", reason="z")) for outcome in ENDS]
        assert self.ledger.get(zombie.ask.key) == before

    def test_a_late_worker_cannot_touch_an_event_taken_over(self) -> None:
        """It can neither extend nor settle, while the new owner works and after it has settled in any way."""
        makers: list[Callable[[str], Ask]] = [
            lambda name: self.fact(f"fact {name}", alone=True),
            lambda name: self.state(f"state {name}", name, 0, alone=True, entity=digest(name)),
        ]
        for make in makers:
            for outcome in ENDS:
                ask = make(outcome.value)
                zombie = self.abandon(ask)
                owner = self.take(ask, by=self.opened())
                self._nothing_works(zombie)
                assert self.end(owner, outcome)
                self._nothing_works(zombie)
                assert self.status(ask) is Status(outcome.value)

    def test_a_late_worker_cannot_touch_an_entity_taken_over(self) -> None:
        """It can neither extend nor settle once its entity was claimed through another event."""
        for outcome in ENDS:
            entity = digest(outcome.value)
            ask = self.state(f"late {outcome}", "here", 0, entity=entity)
            zombie = self.abandon(ask)
            other = self.state(f"next {outcome}", "away", 1000, entity=entity)
            owner = self.take(other, by=self.opened())
            self._nothing_works(zombie)
            assert self.verdict(self.state(f"third {outcome}", "gone", 2000, entity=entity)) is Verdict.BUSY
            assert self.end(owner, outcome)
            self._nothing_works(zombie)
            assert self.status(other) is Status(outcome.value)

    def test_an_entity_taken_over_keeps_the_owners_state(self) -> None:
        """The newest state is the new owner's, whatever the late worker tries afterwards."""
        zombie = self.abandon(self.state("late", "here", 2000))
        self.do(self.state("next", "away", 1000))
        self._nothing_works(zombie)
        assert self.verdict(self.state("echo", "away", 1100)) is Verdict.ECHO
        assert self.verdict(self.state("between", "gone", 1500)) is Verdict.FRESH

    def test_a_late_worker_nobody_took_over_from_may_settle(self) -> None:
        """A lease that ran out is only an invitation: until another worker takes it, its own can settle and extend."""
        for number, outcome in enumerate(ENDS):
            for ask in (self.fact(f"fact {outcome}"), self.state(f"state {outcome}", outcome.value, number)):
                claim = self.abandon(ask)
                assert self.end(claim, outcome)
                assert self.status(ask) is Status(outcome.value)
        for ask in (self.fact("fact"), self.state("state", "here", 10)):
            claim = self.abandon(ask)
            assert self.extend(claim)
            assert self.verdict(replace(ask, alone=True)) is Verdict.BUSY
            assert self.end(claim)


class AttemptRules(LedgerStage):
    """Only failures and lonely run-outs count."""

    def _asks(self) -> list[Ask]:
        return [self.fact("fact"), self.state("state", "here", 0)]

    def test_a_retry_counts(self) -> None:
        """Each `retry` raises the next attempt by one."""
        for ask in self._asks():
            assert [self.do(ask, Outcome.RETRY).attempt for _ in range(3)] == [1, 2, 3]
            assert [self.entry(ask).attempts] == [3]

    def test_a_release_does_not_count(self) -> None:
        """An event that was given back was not tried, so nothing counts."""
        for ask in self._asks():
            self.do(ask, Outcome.RETRY)
            assert [self.do(ask, Outcome.RELEASE).attempt for _ in range(3)] == [2, 2, 2]

    def test_what_ran_out_among_others_is_asked_for_alone(self) -> None:
        """Of claims that ran out together nobody knows which one is to blame: none counts, each is asked for alone."""
        for ask in self._asks():
            self.abandon(ask)
            before = self.ledger.get(ask.key)
            for _ in range(2):
                answer = self.answer(ask)
                assert answer.wants_alone
                assert (answer.verdict, answer.token) == (Verdict.FRESH, 0)
            assert self.ledger.get(ask.key) == before
            assert self.take(replace(ask, alone=True)).attempt == 1

    def test_a_run_out_alone_counts(self) -> None:
        """A claim that ran out with nothing else claimed counts as a failure of its event."""
        for ask in self._asks():
            alone = replace(ask, alone=True)
            assert [self.abandon(alone).attempt for _ in range(3)] == [1, 2, 3]
            assert self.answer(ask).wants_alone
            assert [self.do(alone, Outcome.RETRY).attempt] == [4]
            assert [self.take(ask).attempt] == [5]

    def test_a_run_out_does_not_count_for_its_neighbours(self) -> None:
        """A poison event spends its own attempts only, in a batch that it brings down again and again."""
        batch = [self.fact("poison"), self.fact("neighbour")]
        self.ledger.claim(batch, nonce=secrets.token_bytes(8), lease_us=self.brief_us)
        self.run_out()
        assert all(answer.wants_alone for answer in self.answers(*batch))
        poison, neighbour = (replace(ask, alone=True) for ask in batch)
        assert [self.abandon(poison).attempt for _ in range(2)] == [1, 2]
        assert self.do(neighbour).attempt == 1
        assert [self.take(poison).attempt] == [3]

    def test_a_takeover_of_the_entity_counts_like_a_run_out(self) -> None:
        """An event that lost its entity to another event ran out all the same."""
        ask = self.state("one", "here", 1000, alone=True)
        self.abandon(ask)
        self.do(self.state("two", "away", 0))
        assert [self.take(ask).attempt] == [2]

    def test_a_redrive_starts_from_zero(self) -> None:
        """A dead letter tried again has all its attempts before it."""
        for ask in self._asks():
            self.do(ask, Outcome.RETRY)
            self.do(ask, Outcome.DEAD)
            redriven = self.do(replace(ask, redrive=True), Outcome.RETRY)
            assert redriven.attempt == 1
            assert [self.take(ask).attempt] == [2]

    def test_a_dead_end_keeps_its_letter_when_repeated(self) -> None:
        """A repeated `dead` leaves the letter as it was first written."""
        claim = self.do(self.fact("one"), Outcome.DEAD)
        other = Letter(raw=b"other", reason="other")
        assert self.ledger.settle([Settlement(claim, Outcome.DEAD, 0, other)]) == [True]
        assert self.entry(self.fact("one")).raw == LETTER.raw


def _with_token(claim: Claim, token: int) -> Claim:
    """Return a claim under another token; a state's chain under it as well."""
    return replace(claim, token=token, chain=claim.chain and replace(claim.chain, top=token))
