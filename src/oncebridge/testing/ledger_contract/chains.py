"""The ledger contract on chains: the states of one entity in one call, which are granted, held and freed as one."""

from __future__ import annotations

import secrets
from itertools import chain as joined
from typing import Final

from msgspec.structs import replace

from oncebridge.claim import Ask, Claim, Outcome, Settlement, Status, Verdict
from oncebridge.testing.ledger_contract.stage import (
    ENDS,
    LETTER,
    LedgerStage,
    claim_of,
    digest,
    settlements_of,
    timeless,
)

ALL_ENDS: Final = (*ENDS, Outcome.ECHO, Outcome.STALE)
#: Data that a ledger must bring back as it is. No ledger looks into it, so it need not be readable.
DATA: Final = (b"one", b"", b"\x00", bytes(range(256)), b"null", b"9" * 20, b"\xff\xfe\x00" * 3400, b"last")


class ChainStage(LedgerStage):
    """Words that the rules on chains share."""

    def states(self, *names: str, of: str = "Anna", first_ms: int = 0, **fields: object) -> list[Ask]:
        """Ask for states of one entity that follow each other, a second apart."""
        return [
            self.state(name, name, first_ms + 1000 * number, entity=digest(of), **fields)
            for number, name in enumerate(names)
        ]

    def settle_with(
        self, claim: Claim, data: bytes, outcome: Outcome = Outcome.DONE, *, frees: bool = False
    ) -> Settlement:
        """Return the end of a state with any data."""
        return Settlement(claim, outcome, 0, LETTER if outcome is Outcome.DEAD else None, data, frees)

    def finish(self, claims: list[Claim], *outcomes: Outcome) -> None:
        """End a whole chain in one call; each that is not named is done."""
        ends = settlements_of(claims, [*outcomes, *[Outcome.DONE] * (len(claims) - len(outcomes))])
        assert self.ledger.settle(ends) == [True] * len(claims)

    def data_of(self, *, of: str = "Anna") -> bytes:
        """Return an entity's data as the next claim brings it, and give that claim back without a change."""
        (claim,) = self.take_chain(self.state(f"looking at {of}", "look", 0, entity=digest(of)))
        assert claim.chain is not None
        data = claim.chain.data
        assert self.ledger.settle([self.settle_with(claim, data, Outcome.RELEASE, frees=True)]) == [True]
        return data

    def is_held(self, *, of: str = "Anna") -> bool:
        """Tell whether another worker would find the entity busy."""
        ask = self.state(f"another of {of}", "another", 0, entity=digest(of))
        (answer,) = self.answers(ask, by=self.opened())
        if answer.chain is not None:
            end = self.settle_with(claim_of(ask, answer), answer.chain.data, Outcome.RELEASE, frees=True)
            assert self.ledger.settle([end]) == [True]
        return answer.verdict is Verdict.BUSY


class ChainRules(ChainStage):
    """A chain is granted as one, and its answers bring its entity's data."""

    def test_a_chain_gets_tokens_in_a_row(self) -> None:
        """The states of a chain have tokens in a row, above all before of their entity; the last is the top one."""
        highest = 0
        for number in range(3):
            claims = self.take_chain(*self.states(*(f"{number} {name}" for name in "abc"), first_ms=number * 10_000))
            tokens = [claim.token for claim in claims]
            assert tokens[0] > highest
            assert tokens == list(range(tokens[0], tokens[0] + 3))
            assert {claim.chain.top for claim in claims if claim.chain} == {tokens[-1]}
            assert {claim.attempt for claim in claims} == {1}
            self.finish(claims, Outcome.DONE, Outcome.RETRY)
            highest = tokens[-1]

    def test_an_answer_brings_the_ledgers_time(self) -> None:
        """A chain's answers say when they were granted, by the ledger's clock."""
        before_us = self.now_us()
        claims = self.take_chain(*self.states("a", "b"))
        times = {claim.chain.now_us for claim in claims if claim.chain}
        assert len(times) == 1
        assert before_us <= times.pop() <= self.now_us()

    def test_an_entitys_data_comes_back_byte_for_byte(self) -> None:
        """A claim brings the data that the last settle left, whatever the bytes are."""
        assert self.data_of() == b""
        for number, data in enumerate(DATA):
            chain = self.take_chain(*self.states(f"x {number}", f"y {number}"))
            ends = [self.settle_with(chain[0], b"middle"), self.settle_with(chain[1], data, frees=True)]
            assert self.ledger.settle(ends) == [True, True]
            assert self.data_of() == data

    def test_data_of_a_middle_end_outlives_its_worker(self) -> None:
        """A worker that dies in the middle of a chain leaves the data of the last end that it has written."""
        for number, data in enumerate(DATA):
            names = (f"{number} a", f"{number} b", f"{number} c")
            claims = self.take_chain(*self.states(*names, of=f"{number}"), lease_us=self.brief_us)
            assert self.ledger.settle([self.settle_with(claims[0], b"earlier")]) == [True]
            assert self.ledger.settle([self.settle_with(claims[1], data, Outcome.RETRY)]) == [True]
        self.run_out()
        for number, data in enumerate(DATA):
            (claim,) = self.take_chain(self.state(f"next {number}", "next", 0, entity=digest(f"{number}")))
            assert claim.chain is not None
            assert (claim.chain.data, claim.chain.ran_out) == (data, True)

    def test_a_settled_state_is_a_duplicate_in_its_chain(self) -> None:
        """States that are settled are duplicates, wherever they are in a chain; the rest is granted in a row."""
        self.finish(self.take_chain(*self.states("a", "c", "e")), Outcome.DONE, Outcome.DEAD, Outcome.STALE)
        answers = self.answers(*self.states("a", "b", "c", "d", "e"))
        assert [answer.verdict.value for answer in answers] == (
            ["redelivery", "fresh", "redelivery", "fresh", "redelivery"]
        )
        assert [answer.was for answer in answers[::2]] == [Status.DONE, Status.DEAD, Status.STALE]
        assert [answer.token for answer in answers[::2]] == [0, 0, 0]
        assert answers[3].token == answers[1].token + 1
        assert {answer.chain.top for answer in answers if answer.chain} == {answers[3].token}

    def test_a_chain_of_duplicates_claims_nothing(self) -> None:
        """Where all states of a chain are settled, the entity stays as it is: free, or with its holder."""
        self.finish(self.take_chain(*self.states("a", "b")))
        for held in (False, True):
            if held:
                self.take_chain(*self.states("c"))
            answers = self.answers(*self.states("a", "b"))
            assert [answer.verdict for answer in answers] == [Verdict.REDELIVERY] * 2
            assert self.is_held() is held

    def test_a_conflict_in_a_chain(self) -> None:
        """The same id with another content is a conflict in a chain too, and holds nothing up."""
        first, torn, last = self.states("a", "b", "c")
        torn = replace(torn, content=digest("content"), shared_ms=None)
        self.finish(self.take_chain(torn))
        answers = self.answers(first, replace(torn, content=digest("other content")), last)
        assert [answer.verdict.value for answer in answers] == ["fresh", "conflict", "fresh"]
        assert (answers[1].token, answers[1].chain) == (0, None)
        assert answers[2].token == answers[0].token + 1

    def test_two_chains_and_facts_in_one_call(self) -> None:
        """Chains of several entities and facts are answered in the order of the call, each chain by itself."""
        anna, bea = self.states("a", "b", "c"), self.states("x", "y", of="Bea")
        self.take_chain(*self.states("held", of="Cleo"))
        (waits,) = self.states("waits", of="Cleo")
        self.do(self.fact("done"))
        asks = [anna[0], self.fact("one"), bea[0], waits, anna[1], self.fact("done"), bea[1], self.fact("two"), anna[2]]
        answers = dict(zip((ask.key for ask in asks), self.answers(*asks), strict=True))
        assert [answer.verdict.value for answer in answers.values()] == (
            ["fresh", "fresh", "fresh", "busy", "fresh", "redelivery", "fresh", "fresh", "fresh"]
        )
        for chain in (anna, bea):
            tokens = [answers[ask.key].token for ask in chain]
            assert tokens == list(range(tokens[0], tokens[0] + len(chain)))
            assert {top.top for ask in chain if (top := answers[ask.key].chain)} == {tokens[-1]}
        ends = [
            *settlements_of([claim_of(ask, answers[ask.key]) for ask in bea]),
            Settlement(claim_of(asks[1], answers[asks[1].key]), Outcome.DONE),
            *settlements_of([claim_of(ask, answers[ask.key]) for ask in anna]),
        ]
        assert self.ledger.settle(ends) == [True] * len(ends)
        assert [self.is_held(of=name) for name in ("Anna", "Bea", "Cleo")] == [False, False, True]

    def test_a_call_of_a_thousand_asks(self) -> None:
        """A call takes a thousand asks, facts and chains, and so do its settle and its repeat."""
        chains = [self.states(*(f"{of} {n}" for n in range(20)), of=f"{of}") for of in range(25)]
        asks = [*joined.from_iterable(zip(*chains, strict=True)), *(self.fact(f"{number}") for number in range(500))]
        nonce = secrets.token_bytes(8)
        answers = self.answers(*asks, nonce=nonce)
        assert {(answer.verdict, answer.token > 0) for answer in answers} == {(Verdict.FRESH, True)}
        again = self.answers(*asks, nonce=nonce)
        # Not as two lists: a thousand records take minutes to be shown side by side.
        assert len(again) == len(asks)
        assert all(timeless(one) == timeless(other) for one, other in zip(answers, again, strict=True))
        claims = [claim_of(ask, answer) for ask, answer in zip(asks, answers, strict=True)]
        by_entity = [[claim for claim in claims[:500] if claim.ask.entity == chain[0].entity] for chain in chains]
        ends = [end for chain in by_entity for end in settlements_of(chain)]
        ends += [Settlement(claim, Outcome.DONE) for claim in claims[500:]]
        assert all(self.ledger.settle(ends))
        assert self.counted() == {Status.DONE: 1000}
        assert {answer.verdict for answer in self.answers(*asks)} == {Verdict.REDELIVERY}

    def test_echo_and_stale_are_ends_like_any_other(self) -> None:
        """A state that ends as echo or stale is recorded, counted, and a duplicate from then on."""
        asks = [
            self.state("one", "here", 0),
            self.state("echo", "here", 100),
            self.state("stale", "away", -100),
            self.state("two", "away", 1000),
        ]
        outcomes = [Outcome.DONE, Outcome.ECHO, Outcome.STALE, Outcome.DONE]
        claims = self.take_chain(*asks)
        ends = settlements_of(claims, outcomes)
        assert self.ledger.settle(ends) == [True] * 4
        assert self.ledger.settle(ends) == [True] * 4, "a repeated settle finds its own outcome"
        assert self.counted() == {Status.DONE: 2, Status.ECHO: 1, Status.STALE: 1}
        answers = self.answers(*asks)
        assert [answer.was for answer in answers] == [Status(outcome.value) for outcome in outcomes]
        assert {answer.verdict for answer in answers} == {Verdict.REDELIVERY}
        assert self.verdict(self.state("three", "away", 1100)) is Verdict.ECHO
        assert self.verdict(self.state("four", "here", 900)) is Verdict.STALE

    def test_handlers_have_chains_of_their_own(self) -> None:
        """The same states for two handlers, each with an entity of its own, are two chains apart from each other."""
        for_one, for_two = (
            [replace(ask, handler=name) for ask in self.states("a", "b", of=f"Anna for {name}")]
            for name in ("one", "two")
        )
        one = self.take_chain(*for_one)
        two = self.take_chain(*for_two)
        self.finish(one, Outcome.DONE, Outcome.DEAD)
        assert [self.status(ask) for ask in for_two] == [Status.CLAIMED] * 2
        self.finish(two)
        assert [answer.was for answer in self.answers(*for_one)] == [Status.DONE, Status.DEAD]
        assert [answer.was for answer in self.answers(*for_two)] == [Status.DONE, Status.DONE]


class HoldRules(ChainStage):
    """A chain is held, extended and freed as one."""

    def test_a_chain_is_busy_as_a_whole(self) -> None:
        """While an entity is held, every state of it is busy: those of the chain, others, and all of a new chain."""
        self.take_chain(*self.states("a", "b", "c"))
        for names in (["a"], ["b"], ["c"], ["d"], ["a", "b", "c"], ["d", "b", "e"]):
            answers = self.answers(*self.states(*names), by=self.opened())
            assert {(answer.verdict, answer.token, answer.chain) for answer in answers} == {(Verdict.BUSY, 0, None)}
            assert all(0 < answer.busy_us <= self.lease_us for answer in answers)

    def test_only_the_last_end_frees(self) -> None:
        """An end in the middle of a chain keeps the entity held, whatever the outcome; the last end frees it."""
        for number, outcome in enumerate(ALL_ENDS):
            of = f"{number}"
            first, second, last = self.take_chain(*self.states(f"a {of}", f"b {of}", f"c {of}", of=of))
            for claim in (first, second):
                assert self.ledger.settle([self.settle_with(claim, b"", outcome)]) == [True]
                assert self.status(claim.ask) is Status(outcome.value)
                assert self.is_held(of=of)
            assert self.ledger.settle([self.settle_with(last, b"", outcome, frees=True)]) == [True]
            assert not self.is_held(of=of)

    def test_a_middle_end_counts_as_any_end(self) -> None:
        """A state that failed in the middle of a chain is fresh afterwards: its attempt counts, its token is new."""
        claims = self.take_chain(*self.states("a", "b", "c"))
        self.finish(claims, Outcome.RETRY, Outcome.RELEASE)
        again = self.take_chain(*self.states("a", "b"))
        assert [claim.attempt for claim in again] == [2, 1]
        assert again[0].token > claims[-1].token

    def test_extending_one_keeps_all(self) -> None:
        """To extend any state of a chain, settled or not, extends the whole chain."""
        for number in range(3):
            names = (f"{number} a", f"{number} b", f"{number} c")
            claims = self.take_chain(*self.states(*names, of=f"{number}"), lease_us=self.brief_us)
            assert self.ledger.settle([self.settle_with(claims[0], b"kept")]) == [True]
            assert self.extend(claims[number])
        self.run_out()
        for number in range(3):
            assert self.is_held(of=f"{number}")
            entries = [self.entry(ask) for ask in self.states(f"{number} b", f"{number} c")]
            assert all(entry.lease_until_us > self.now_us() for entry in entries)

    def test_every_state_of_a_chain_shows_the_lease(self) -> None:
        """Each claimed state of a chain shows when its entity's lease ends; a settled one shows none."""
        before_us = self.now_us()
        claims = self.take_chain(*self.states("a", "b", "c"))
        assert self.ledger.settle([self.settle_with(claims[0], b"")]) == [True]
        shown = [self.entry(claim.ask).lease_until_us for claim in claims]
        assert shown[0] == 0
        assert shown[1] == shown[2]
        assert before_us + self.lease_us <= shown[1] <= self.now_us() + self.lease_us

    def test_a_chain_that_was_freed_is_not_extended(self) -> None:
        """Once its last end is written, no state of a chain brings the claim back to life."""
        claims = self.take_chain(*self.states("a", "b"))
        self.finish(claims)
        assert [self.extend(claim) for claim in claims] == [False, False]
        assert not self.is_held()

    def test_a_purge_leaves_the_rest_of_a_chain(self) -> None:
        """A purge may forget the settled states of a chain, but neither its claim nor its data."""
        first, last = self.take_chain(*self.states("a", "b"))
        assert self.ledger.settle([self.settle_with(first, b"kept")]) == [True]
        self.run_out()
        self.ledger.purge(older_than_us=0)
        assert self.is_held()
        assert self.extend(last)
        (ok,) = self.ledger.settle([self.settle_with(last, b"freed", frees=True)])
        assert ok
        assert self.data_of() == b"freed"
