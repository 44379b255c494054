"""The stage of the ledger contract: handles onto one ledger, its time, and short words for its verbs."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Final, TypeAlias

import pytest
from msgspec.structs import replace

from oncebridge.claim import (
    Answer,
    Ask,
    Claim,
    Letter,
    Outcome,
    Settlement,
    Status,
    Verdict,
    judge,
    newest_after,
    newest_of,
    write_newest,
)
from oncebridge.clock import Clock, SystemClock
from oncebridge.identity import Moment
from oncebridge.ledgers.protocol import Entry, Ledger, Query
from oncebridge.testing.clock import ManualClock

NewLedger: TypeAlias = Callable[[Clock], Ledger]

NS_PER_MS: Final = 1_000_000
WINDOW_MS: Final = 500
FACT_TOPIC: Final = "v2.detail.events.conversation.{id}.acw"
STATE_TOPIC: Final = "v2.users.{id}.presence"
LETTER: Final = Letter(raw=b'{"kept": true}', reason="handler raised ValueError", detail="Traceback: in full")
ENDS: Final = (Outcome.DONE, Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD)


def digest(name: str) -> bytes:
    """Return a key such as identities give, from a name that tests can speak of."""
    return blake2b(name.encode(), digest_size=16).digest()


def claim_of(ask: Ask, answer: Answer) -> Claim:
    """Return the claim that an ask was granted."""
    return Claim(ask, answer.token, answer.attempt, answer.chain)


def timeless(answer: Answer) -> Answer:
    """Return an answer without the ledger's time, the one part of it that a repeated call may change."""
    return answer if answer.chain is None else replace(answer, chain=replace(answer.chain, now_us=0))


def settlement_of(
    claim: Claim,
    outcome: Outcome = Outcome.DONE,
    retry_in_us: int = 0,
    letter: Letter | None = None,
    *,
    frees: bool = True,
) -> Settlement:
    """Return the end of a claim, with its entity's data as it follows from the data that came with the claim."""
    data = b""
    if claim.chain is not None:
        data = write_newest(newest_after(newest_of(claim.chain), claim.ask, outcome, claim.chain.now_us))
    return Settlement(claim, outcome, retry_in_us, letter, data, frees)


def settlements_of(claims: Sequence[Claim], outcomes: Sequence[Outcome] = ()) -> list[Settlement]:
    """Return the ends of a whole chain, each with the data that the one before left; done unless named otherwise."""
    chain = claims[0].chain
    assert chain is not None, "only states are in chains"
    newest, ends = newest_of(chain), []
    for claim, outcome in zip(claims, outcomes or [Outcome.DONE] * len(claims), strict=True):
        newest = newest_after(newest, claim.ask, outcome, chain.now_us)
        letter = LETTER if outcome is Outcome.DEAD else None
        ends.append(Settlement(claim, outcome, 0, letter, write_newest(newest), frees=claim is claims[-1]))
    return ends


def judged(ledger: Ledger, ask: Ask, answer: Answer) -> Answer:
    """Judge a state that was granted alone, as a worker does, and end it if it is no news."""
    verdict = Verdict.FRESH if answer.chain is None else judge(ask, newest_of(answer.chain))
    if verdict is Verdict.FRESH:
        return answer
    assert ledger.settle([settlement_of(claim_of(ask, answer), Outcome(verdict.value))]) == [True]
    return Answer(verdict)


class LedgerStage:
    """The hooks that a ledger's author fills in, and the helpers that the rules are written with."""

    #: How long a claim runs that must not run out during a test.
    lease_us: ClassVar[int] = 60_000_000
    #: How long one runs that is meant to run out. Where time is real: long enough for a few calls.
    brief_us: ClassVar[int] = 1_000_000
    #: Whether the ledger asks a clock of its own instead of the one it is given: then the tests really wait.
    real_time: ClassVar[bool] = False
    #: Whether events that are done can be listed, and know the envelope id of the delivery that did the work.
    keeps_done: ClassVar[bool] = True
    #: Whether events have a time that belongs to their identity, by which a ledger may choose where to keep them.
    shared_times: ClassVar[bool] = True
    #: How many threads contend in a race, and for how many events.
    contenders: ClassVar[int] = 64
    contended: ClassVar[int] = 2000

    clock: Clock

    # --- to be filled in -----------------------------------------------------------------------------

    @pytest.fixture
    def new_ledger(self) -> NewLedger:
        """Return a function that makes a new handle, not yet opened, onto this test's one and empty ledger.

        It is called several times in a test, with the clock that the ledger is to go by. A ledger that lives
        in one process and has no handles returns the same object each time.
        """
        pytest.fail("override the fixture `new_ledger`")

    def stored_bytes(self) -> bytes | None:
        """Return everything the ledger has written, to look for secrets in; None where one cannot look."""
        return None

    def advance(self, seconds: float) -> None:
        """Wait until the ledger's time has passed."""
        self.clock.wait(threading.Event(), seconds)

    def now_us(self) -> int:
        """Return the ledger's time."""
        return self.clock.now_us()

    # --- before and after each test ------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _on_stage(self, new_ledger: NewLedger) -> Iterator[None]:
        self.set_up(new_ledger)
        yield
        self.tear_down()

    def set_up(self, new_ledger: NewLedger) -> None:
        """Start with a clock and nothing opened."""
        self.clock = SystemClock() if self.real_time else ManualClock()
        self._new_ledger = new_ledger
        self._handles: list[Ledger] = []
        self._first: Ledger | None = None
        # An hour ago: nothing near it is ahead of the ledger's clock.
        self.base_ns = (self.now_us() - 3_600_000_000) * 1000

    def tear_down(self) -> None:
        """Close whatever was opened."""
        for handle in self._handles:
            handle.close()

    # --- handles -------------------------------------------------------------------------------------

    def unopened(self) -> Ledger:
        """Make one more handle."""
        handle = self._new_ledger(self.clock)
        self._handles.append(handle)
        return handle

    def opened(self) -> Ledger:
        """Make one more handle, as another worker would."""
        handle = self.unopened()
        handle.open(None)
        return handle

    @property
    def ledger(self) -> Ledger:
        """The handle of this test, opened when first needed."""
        if self._first is None:
            self._first = self.opened()
        return self._first

    # --- asks ----------------------------------------------------------------------------------------

    def fact(self, name: str, **fields: Any) -> Ask:
        """Ask for an event that has no entity."""
        given = {"topic": FACT_TOPIC, "time_ms": self.base_ns // NS_PER_MS, "envelope": f"envelope of {name}"}
        return self._ask(name, {**given, **fields})

    def state(self, name: str, says: str, at_ms: float, **fields: Any) -> Ask:
        """Ask for an event that says how the entity Anna is, so many milliseconds after a base time."""
        given = {
            "topic": STATE_TOPIC,
            "time_ms": self.base_ns // NS_PER_MS + int(at_ms),
            "envelope": f"envelope of {name}",
            "entity": digest("Anna"),
            "state": digest(says),
            "moment": self.moment(at_ms),
            "echo_window_ns": WINDOW_MS * NS_PER_MS,
        }
        return self._ask(name, {**given, **fields})

    def _ask(self, name: str, fields: dict[str, Any]) -> Ask:
        """Share the time, unless an explicit id with its content alone is the identity."""
        if self.shared_times and "content" not in fields:
            fields = {"shared_ms": fields["time_ms"], **fields}
        return Ask(key=digest(name), **fields)

    def moment(self, *at_ms: float | None, version: int | None = None, echoes: bool = True) -> Moment:
        """Make a moment from milliseconds after the base time."""
        times = tuple(None if at is None else self.base_ns + round(at * NS_PER_MS) for at in at_ms)
        return Moment(times, version, echoes)

    # --- the verbs, one event at a time --------------------------------------------------------------

    def answer(
        self, ask: Ask, *, by: Ledger | None = None, nonce: bytes | None = None, lease_us: int | None = None
    ) -> Answer:
        """Ask for one event as a worker does: a state that is granted is judged, and ended if it is no news."""
        (answer,) = self.answers(ask, by=by, nonce=nonce, lease_us=lease_us)
        return judged(by or self.ledger, ask, answer)

    def answers(
        self, *asks: Ask, by: Ledger | None = None, nonce: bytes | None = None, lease_us: int | None = None
    ) -> list[Answer]:
        """Ask for several events in one call, and judge nothing."""
        nonce, lease_us = nonce or secrets.token_bytes(8), lease_us or self.lease_us
        return (by or self.ledger).claim(asks, nonce=nonce, lease_us=lease_us)

    def verdict(self, ask: Ask) -> Verdict:
        """Ask for one event, and leave the claim to itself if it is granted."""
        return self.answer(ask).verdict

    def take(
        self, ask: Ask, *, by: Ledger | None = None, nonce: bytes | None = None, lease_us: int | None = None
    ) -> Claim:
        """Claim an event that is to be had."""
        answer = self.answer(ask, by=by, nonce=nonce, lease_us=lease_us)
        assert answer.verdict is Verdict.FRESH
        assert answer.token > 0, "the claim was not granted"
        return claim_of(ask, answer)

    def take_chain(self, *asks: Ask, by: Ledger | None = None, lease_us: int | None = None) -> list[Claim]:
        """Claim several states of one entity in one call."""
        answers = self.answers(*asks, by=by, lease_us=lease_us)
        assert all(answer.token > 0 for answer in answers), "a claim was not granted"
        return [claim_of(ask, answer) for ask, answer in zip(asks, answers, strict=True)]

    def abandon(self, ask: Ask, *, by: Ledger | None = None) -> Claim:
        """Claim an event and let the claim run out."""
        claim = self.take(ask, by=by, lease_us=self.brief_us)
        self.run_out()
        return claim

    def run_out(self) -> None:
        """Wait until every brief lease has run out."""
        self.advance(self.brief_us * 1.1 / 1_000_000)

    def end(
        self,
        claim: Claim,
        outcome: Outcome = Outcome.DONE,
        *,
        by: Ledger | None = None,
        retry_in_us: int = 0,
        letter: Letter = LETTER,
        frees: bool = True,
    ) -> bool:
        """Settle one claim; a dead one with a letter."""
        kept = letter if outcome is Outcome.DEAD else None
        (ok,) = (by or self.ledger).settle([settlement_of(claim, outcome, retry_in_us, kept, frees=frees)])
        return ok

    def extend(self, claim: Claim, *, by: Ledger | None = None) -> bool:
        """Extend one claim by a whole lease from now."""
        (ok,) = (by or self.ledger).extend([claim], lease_us=self.lease_us)
        return ok

    def do(self, ask: Ask, outcome: Outcome = Outcome.DONE, *, letter: Letter = LETTER) -> Claim:
        """Claim an event and end it."""
        claim = self.take(ask)
        assert self.end(claim, outcome, letter=letter)
        return claim

    # --- looking -------------------------------------------------------------------------------------

    def entry(self, ask: Ask) -> Entry:
        """Return what the ledger knows of one event, for its handler."""
        (entry,) = [entry for entry in self.ledger.get(ask.key) if entry.handler == ask.handler]
        return entry

    def status(self, ask: Ask) -> Status:
        """Return one event's status."""
        return self.entry(ask).status

    def found(self, **query: Any) -> list[bytes]:
        """Return the keys that a scan finds, in its order."""
        return [entry.key for entry in self.ledger.scan(Query(**query))]

    def counted(self) -> dict[Status, int]:
        """Return the ledger's counts, without those that are nought."""
        return {status: number for status, number in self.ledger.counts().items() if number}

    def knows_original(self, answer: Answer, envelope: str) -> bool:
        """Tell whether a duplicate is traced to this envelope; a ledger that does not keep it may be silent."""
        return answer.of == envelope or (not self.keeps_done and answer.of is None)
