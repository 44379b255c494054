"""The ledger contract on verdicts that do not depend on the topic."""

from __future__ import annotations

import secrets
from typing import Any, Final

import pytest
from msgspec.structs import replace

from oncebridge.claim import Answer, Ask, Claim, Outcome, Settlement, Status, Verdict
from oncebridge.errors import LedgerRefused
from oncebridge.ledgers.grants import Seen, expected_answer
from oncebridge.ledgers.protocol import Ledger, ShowsRecords
from oncebridge.testing.ledger_contract.stage import ENDS, LedgerStage, digest


class VerdictRules(LedgerStage):
    """Fresh, busy, redelivery, republish, conflict; handlers; batches."""

    # --- fresh and busy ------------------------------------------------------------------------------

    def test_the_first_delivery_is_fresh(self) -> None:
        """The first delivery of an event is granted a claim, for its first attempt."""
        answer = self.answer(self.fact("one"))
        assert (answer.verdict, answer.attempt, answer.wants_alone) == (Verdict.FRESH, 1, False)
        assert answer.token > 0
        assert self.status(self.fact("one")) is Status.CLAIMED

    def test_an_event_being_worked_on_is_busy(self) -> None:
        """A duplicate of an event that is only claimed is busy, never a duplicate: its worker may still die."""
        self.take(self.fact("one"))
        for envelope in ("envelope of one", "another", None):
            answer = self.answer(self.fact("one", envelope=envelope), by=self.opened())
            assert (answer.verdict, answer.token) == (Verdict.BUSY, 0)
            assert 0 < answer.busy_us <= self.lease_us

    def test_busy_ends_with_the_lease(self) -> None:
        """Once the lease is over by the ledger's clock, the event is to be had again."""
        self.abandon(self.fact("one"))
        self.take(self.fact("one", alone=True), by=self.opened())

    def test_an_extended_claim_stays_busy(self) -> None:
        """An extended claim runs for a whole lease from then on."""
        claim = self.take(self.fact("one"), lease_us=self.brief_us)
        assert self.extend(claim)
        self.run_out()
        assert self.verdict(self.fact("one", alone=True)) is Verdict.BUSY

    def test_what_failed_or_was_given_back_is_fresh(self) -> None:
        """After `retry` and after `release` the event is fresh, also when it comes earlier than advised."""
        for outcome in (Outcome.RETRY, Outcome.RELEASE):
            ask = self.fact(outcome.value)
            claim = self.take(ask)
            assert self.end(claim, outcome, retry_in_us=self.lease_us)
            self.take(replace(ask, envelope="another"))

    def test_again_at_is_advice_by_the_ledgers_clock(self) -> None:
        """A retry remembers when it should be delivered again, until it is claimed again."""
        claim = self.take(self.fact("one"))
        self.end(claim, Outcome.RETRY, retry_in_us=self.lease_us)
        entry = self.entry(self.fact("one"))
        assert entry.status is Status.RETRY
        assert entry.retry_at_us == entry.changed_us + self.lease_us
        claim = self.take(self.fact("one"))
        assert self.entry(self.fact("one")).retry_at_us == 0
        self.end(claim, Outcome.RELEASE, retry_in_us=self.lease_us)
        assert self.entry(self.fact("one")).retry_at_us == 0

    # --- redelivery and republish --------------------------------------------------------------------

    def test_the_same_envelope_is_a_redelivery(self) -> None:
        """A settled event in the envelope that did the work is a redelivery, every time it comes."""
        self.do(self.fact("one"))
        for _ in range(2):
            answer = self.answer(self.fact("one"), by=self.opened())
            assert (answer.verdict, answer.token, answer.was) == (Verdict.REDELIVERY, 0, Status.DONE)
            assert self.knows_original(answer, "envelope of one")

    def test_another_or_no_envelope_is_a_republish(self) -> None:
        """A settled event is a republish under another envelope id, and where either has none."""
        self.do(self.fact("one"))
        for envelope in ("another", None):
            answer = self.answer(self.fact("one", envelope=envelope))
            assert (answer.verdict, answer.token, answer.was) == (Verdict.REPUBLISH, 0, Status.DONE)
            assert self.knows_original(answer, "envelope of one")
        self.do(self.fact("bare", envelope=None))
        assert self.verdict(self.fact("bare", envelope=None)) is Verdict.REPUBLISH
        assert self.verdict(self.fact("bare")) is Verdict.REPUBLISH

    def test_the_original_is_the_delivery_that_did_the_work(self) -> None:
        """After a takeover, a retry or a release, redelivery means the envelope of the delivery that did it."""
        self.abandon(self.fact("one", envelope="first"))
        self.do(self.fact("one", envelope="second", alone=True))
        for outcome in (Outcome.RETRY, Outcome.RELEASE):
            self.do(self.fact(outcome.value, envelope="first"), outcome)
            self.do(self.fact(outcome.value, envelope="second"))
        for name in ("one", "retry", "release"):
            assert self.verdict(self.fact(name, envelope="second")) is Verdict.REDELIVERY
            answer = self.answer(self.fact(name, envelope="first"))
            assert answer.verdict is Verdict.REPUBLISH
            assert self.knows_original(answer, "second")

    def test_a_dead_letter_is_settled(self) -> None:
        """A delivery of an event that is a dead letter is a duplicate, and leaves the letter as it is."""
        self.do(self.fact("one"), Outcome.DEAD)
        before = self.ledger.get(digest("one"))
        answers = [
            self.answer(self.fact("one", envelope=envelope)) for envelope in ("envelope of one", "another", None)
        ]
        assert [answer.verdict for answer in answers] == [Verdict.REDELIVERY, Verdict.REPUBLISH, Verdict.REPUBLISH]
        assert {answer.was for answer in answers} == {Status.DEAD}
        assert self.ledger.get(digest("one")) == before

    def test_a_settled_event_stays_settled(self) -> None:
        """Neither time nor closing the ledger makes a done event fresh."""
        self.do(self.fact("one"))
        self.run_out()
        self.ledger.close()
        self.ledger.open(None)
        assert self.verdict(self.fact("one")) is Verdict.REDELIVERY

    # --- conflict ------------------------------------------------------------------------------------

    def test_another_content_is_a_conflict(self) -> None:
        """The same id with another content is a conflict, whatever became of the first, every time it comes."""
        other = digest("other content")
        for outcome in (None, *ENDS):
            ask = self.fact(f"after {outcome}", content=digest("content"))
            claim = self.take(ask)
            assert outcome is None or self.end(claim, outcome)
            before = self.ledger.get(ask.key)
            for envelope in (ask.envelope, ask.envelope, "another", None):
                answer = self.answer(replace(ask, content=other, envelope=envelope))
                assert (answer.verdict, answer.token) == (Verdict.CONFLICT, 0)
                assert self.knows_original(answer, f"envelope of after {outcome}")
            assert self.ledger.get(ask.key) == before

    def test_a_conflict_leaves_the_first_alone(self) -> None:
        """The claim that a conflict met still settles, and its own content is a duplicate from then on."""
        ask = self.fact("one", content=digest("content"))
        claim = self.take(ask)
        assert self.verdict(replace(ask, content=digest("other content"))) is Verdict.CONFLICT
        assert self.end(claim)
        assert self.verdict(ask) is Verdict.REDELIVERY

    def test_a_conflict_is_told_in_spite_of_time(self) -> None:
        """A claim that ran out remembers its content: another one is a conflict even then."""
        ask = self.fact("one", content=digest("content"))
        self.abandon(ask)
        assert self.verdict(replace(ask, content=digest("other content"), alone=True)) is Verdict.CONFLICT
        self.take(replace(ask, alone=True))

    def test_the_same_content_is_no_conflict(self) -> None:
        """The same id with the same content, or events without an explicit id, never conflict."""
        self.do(self.fact("one", content=digest("content")))
        assert self.verdict(self.fact("one", content=digest("content"))) is Verdict.REDELIVERY
        self.do(self.fact("two"))
        assert self.verdict(self.fact("two")) is Verdict.REDELIVERY

    # --- handlers ------------------------------------------------------------------------------------

    def test_handlers_claim_for_themselves(self) -> None:
        """The claims of one handler say nothing of the others."""
        done, held, failed, new = (self.fact("one", handler=name) for name in ("", "held", "failed", "new"))
        self.do(done)
        claim = self.take(held)
        self.do(failed, Outcome.DEAD)
        self.do(new)
        assert self.end(claim)
        entries = self.ledger.get(digest("one"))
        assert {entry.handler: entry.status for entry in entries} == {
            "": Status.DONE,
            "held": Status.DONE,
            "failed": Status.DEAD,
            "new": Status.DONE,
        }
        assert [self.verdict(ask) for ask in (done, held, failed, new)] == [Verdict.REDELIVERY] * 4

    # --- batches -------------------------------------------------------------------------------------

    def _situations(self, run: str) -> list[Ask]:
        """Bring about every situation that an ask can meet, and return the asks for them."""

        def anna(name: str, says: str, at_ms: float, of: str) -> Ask:
            return self.state(f"{run} {name}", says, at_ms, entity=digest(f"{run} {of}"))

        self.do(self.fact(f"{run} done"))
        self.do(self.fact(f"{run} dead"), Outcome.DEAD)
        self.do(self.fact(f"{run} failed"), Outcome.RETRY)
        self.take(self.fact(f"{run} held"))
        self.do(self.fact(f"{run} torn", content=digest("content")))
        self.do(anna("newest", "here", 0, of="Bea"))
        self.do(anna("later", "here", 0, of="Cleo"))
        self.take(anna("at work", "here", 0, of="Dora"))
        self.abandon(self.fact(f"{run} abandoned"))
        return [
            self.fact(f"{run} new"),
            self.fact(f"{run} done"),
            self.fact(f"{run} dead", envelope=None),
            self.fact(f"{run} failed"),
            self.fact(f"{run} held"),
            self.fact(f"{run} torn", content=digest("other content")),
            anna("again", "here", 100, of="Bea"),
            anna("earlier", "away", -1000, of="Cleo"),
            anna("meanwhile", "away", 1000, of="Dora"),
            anna("alone", "here", 0, of="Eva"),
            self.fact(f"{run} abandoned"),
        ]

    def test_a_batch_is_answered_as_single_asks_are(self) -> None:
        """One call with many asks gives, in order, the answers that single calls would give."""
        together = self.answers(*self._situations("batch"))
        apart = [answer for ask in self._situations("single") for answer in self.answers(ask)]
        assert [_shared(answer) for answer in together] == [_shared(answer) for answer in apart]
        assert [answer.verdict.value for answer in apart] == (
            ["fresh", "redelivery", "republish", "fresh", "busy", "conflict", *["fresh"] * 2, "busy", *["fresh"] * 2]
        )

    def test_a_batch_settles_and_extends_one_by_one(self) -> None:
        """In one call, claims in force are settled or extended, and lost ones are not."""
        lost = self.abandon(self.fact("lost"))
        self.take(self.fact("lost", alone=True))
        held = [self.take(self.fact(name)) for name in ("a", "b", "c", "d")]
        claims = [held[0], lost, *held[1:]]
        assert self.ledger.extend(claims, lease_us=self.lease_us) == [True, False, True, True, True]
        outcomes = [Outcome.DONE, Outcome.DONE, Outcome.RETRY, Outcome.RELEASE, Outcome.DONE]
        ends = [Settlement(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=True)]
        assert self.ledger.settle(ends) == [True, False, True, True, True]
        assert [self.status(claim.ask).value for claim in claims] == ["done", "claimed", "retry", "release", "done"]

    def test_batches_may_be_large_and_empty(self) -> None:
        """A call takes as many events as there are, in order, and none as well."""
        asks = [self.fact(f"{number}") for number in range(260)]
        for ask in asks[::3]:
            self.do(ask)
        answers = self.ledger.claim(asks, nonce=secrets.token_bytes(8), lease_us=self.lease_us)
        fresh = [ask for ask, answer in zip(asks, answers, strict=True) if answer.verdict is Verdict.FRESH]
        assert fresh == [ask for number, ask in enumerate(asks) if number % 3]
        held = [Claim(ask, answer.token) for ask, answer in zip(asks, answers, strict=True) if answer.token]
        assert all(self.ledger.extend(held, lease_us=self.lease_us))
        assert all(self.ledger.settle([Settlement(claim, Outcome.DONE) for claim in held]))
        assert self.counted() == {Status.DONE: len(asks)}
        assert self.ledger.claim([], nonce=b"nothing.", lease_us=self.lease_us) == []
        assert self.ledger.extend([], lease_us=self.lease_us) == []
        assert self.ledger.settle([]) == []


def _shared(answer: Answer) -> tuple[object, ...]:
    """Return the parts that two runs of the same situation share: not tokens, times and names."""
    known = answer.verdict, answer.token > 0, answer.attempt, answer.was, answer.of is None, answer.busy_us > 0
    chain = answer.chain
    return *known, None if chain is None else (chain.top - answer.token, chain.data == b"", chain.ran_out)


class LookRules(LedgerStage):
    """A look finds what a claim would, and changes nothing."""

    @property
    def shown(self) -> ShowsRecords:
        """The ledger of this test, if it can do this at all."""
        return _showing(self.ledger)

    def _asks_of_all_kinds(self) -> list[Ask]:
        """Bring events and entities into every situation; return asks that meet each of them."""
        for outcome in ENDS:
            name = outcome.value
            self.do(self.fact(name), outcome)
            self.do(self.state(f"state {name}", "here", 0, entity=digest(name)), outcome)
        self.do(self.fact("discard"), Outcome.DEAD)
        self.do(self.fact("discard", redrive=True), Outcome.DISCARD)
        self.do(self.fact("with content", content=digest("content")))
        self.take_chain(*[self.state(f"held {number}", "here", number, entity=digest("held")) for number in (1, 2)])
        self.take(self.fact("claimed"))
        self.take(self.fact("run out"), lease_us=self.brief_us)
        self.take(self.fact("run out alone", alone=True), lease_us=self.brief_us)
        self.take(self.state("state run out", "here", 0, entity=digest("run out")), lease_us=self.brief_us)
        self.run_out()
        names = ("done", "retry", "release", "dead", "discard", "claimed", "run out", "run out alone", "unknown")
        facts = [self.fact(name, envelope=envelope) for name in names for envelope in (f"envelope of {name}", "other")]
        contents = [self.fact("with content", content=digest(name)) for name in ("content", "another content")]
        entities = ("done", "retry", "release", "dead", "held", "run out", "unknown")
        states = [
            self.state(f"new in {name} at {at_ms}", "here", at_ms, entity=digest(name))
            for name in entities
            for at_ms in (-1000, 100, 9000)
        ]
        known = [self.state(f"state {name}", "here", 0, entity=digest(name)) for name in ("done", "dead", "run out")]
        return [*facts, *contents, *states, *known, self.state("held 1", "here", 1, entity=digest("held"))]

    def test_a_look_finds_what_a_claim_would(self) -> None:
        """From what a look shows, the rules of claims make the answer that the next claim gets, with all that it says.

        One ask at a time: a claim that is granted makes the next one busy.
        """
        for ask in self._asks_of_all_kinds():
            (seen,) = self.shown.look([ask])
            expected = expected_answer(ask, seen)
            (answer,) = self.answers(replace(ask, alone=True))
            assert self._said(expected) == self._said(answer), ask
            if answer.token:
                assert self.end(Claim(ask, answer.token, answer.attempt, answer.chain), Outcome.RELEASE)

    def _said(self, answer: Answer) -> tuple[object, ...]:
        of = answer.of if self.keeps_done else None
        chain = answer.chain and (answer.chain.data, answer.chain.ran_out)
        return answer.verdict, answer.attempt, of, answer.was, answer.busy_us > 0, chain

    def test_a_look_changes_nothing(self) -> None:
        """After a look everything is as before: counts, entries, letters, entities, and claims that are in force."""
        asks = self._asks_of_all_kinds()
        held = self.take(self.fact("held by this test"))
        before = self._everything(asks)
        seen = self.shown.look([*asks, held.ask])
        assert [_timeless(one) for one in self.shown.look([*asks, held.ask])] == [_timeless(one) for one in seen]
        assert self._everything(asks) == before
        assert self.end(held)

    def _everything(self, asks: list[Ask]) -> object:
        entries = [self.ledger.get(ask.key) for ask in asks]
        return entries, self.counted(), self.found(), self.found(letters=True), self.found(entities=True)

    def test_a_look_shows_every_handler(self) -> None:
        """The records of an event are shown for all handlers that have one, and none of another event's."""
        self.do(self.fact("one"))
        self.do(self.fact("one", handler="crm"), Outcome.RETRY)
        self.do(self.state("state", "here", 0, handler="board", entity=digest("Anna at the board")))
        one, state, other = self.shown.look([self.fact("one"), self.state("state", "here", 0), self.fact("other")])
        assert {name: record.status for name, record in one.records.items()} == {"": Status.DONE, "crm": Status.RETRY}
        assert {name: record.status for name, record in state.records.items()} == {"board": Status.DONE}
        assert (other.records, other.entity, state.entity) == ({}, None, None)

    def test_looks_may_be_large_and_empty(self) -> None:
        """Thousands of asks are looked up in one call, in their order; none are none."""
        for number in range(0, _MANY, 100):
            self.do(self.fact(f"fact {number}"))
        seen = self.shown.look([self.fact(f"fact {number}") for number in range(_MANY)])
        assert [number for number, one in enumerate(seen) if one.records] == list(range(0, _MANY, 100))
        assert self.shown.look([]) == []

    def test_a_look_makes_no_ledger(self) -> None:
        """A ledger that nobody has opened is none to look into, and its first worker still chooses the secret."""
        assert _showing(self.unopened()).open_to_look(None) is None
        assert _showing(self.unopened()).open_to_look(_SECRET) is None
        assert self.unopened().open(_SECRET[::-1]) == _SECRET[::-1]

    def test_a_look_needs_the_secret(self) -> None:
        """Who looks gets the secret that workers get, and is refused with another."""
        self.unopened().open(_SECRET)
        assert _showing(self.unopened()).open_to_look(_SECRET) == _SECRET
        for other in (_SECRET[::-1], None):
            with pytest.raises(LedgerRefused):
                _showing(self.unopened()).open_to_look(other)
        handle: Any = _showing(self.unopened())
        assert handle.open_to_look(_SECRET)
        assert [one.records for one in handle.look([self.fact("one")])] == [{}]


_MANY: Final = 2500
_SECRET: Final = b"a secret that was given, 32 bytes"


def _showing(ledger: Ledger) -> ShowsRecords:
    if not isinstance(ledger, ShowsRecords):
        pytest.skip("this ledger does not show its records")
    return ledger


def _timeless(seen: Seen) -> Seen:
    return replace(seen, now_us=0)
