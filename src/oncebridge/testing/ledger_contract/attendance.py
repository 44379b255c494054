"""The ledger contract on attendance: which marks came of a conversation, as one with the ends of their events."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import pytest

from oncebridge.claim import MARK_BYTES, MARKS_MAX, Ask, Claim, Outcome, Verdict
from oncebridge.errors import ClaimLost
from oncebridge.ledgers.marks import marks_in
from oncebridge.ledgers.protocol import Attendance, KeepsAttendance, Ledger, SettlesInTransaction
from oncebridge.testing.ledger_contract.stage import LedgerStage, claim_of, digest, settlement_of

CALL: Final = digest("a conversation")
CHAT: Final = digest("another conversation")


def mark(number: int) -> bytes:
    """Return a mark, a different one for each number."""
    return number.to_bytes(MARK_BYTES, "big")


class AttendanceRules(LedgerStage):
    """Attendance: a mark for each event that came to its end, once, for as long as events are remembered."""

    #: How many marks the ledger keeps of a conversation; less where a test has lowered that.
    marks_max = MARKS_MAX

    @property
    def keeper(self) -> KeepsAttendance:
        """The ledger; one that keeps no attendance passes without these rules."""
        if not isinstance(self.ledger, KeepsAttendance):
            pytest.skip("this ledger keeps no attendance")
        return self.ledger

    def attending(self, name: str, number: int, conversation: bytes = CALL, **fields: object) -> Ask:
        """Ask for an event of a conversation that has a mark."""
        return self.fact(name, conversation=conversation, mark=mark(number), **fields)

    def came(self, conversation: bytes = CALL, *, by: Ledger | None = None) -> set[int]:
        """Return the numbers of the marks that came; their bytes are in order, and none is there twice."""
        keeper = self.keeper if by is None else by
        assert isinstance(keeper, KeepsAttendance)
        (found,) = keeper.attendance([conversation])
        if found is None:
            return set()
        marks = marks_in(found.marks)
        assert b"".join(sorted(marks)) == found.marks
        assert 0 < found.first_us <= found.last_us
        return {int.from_bytes(one, "big") for one in marks}

    def settle_all(self, asks: list[Ask], *, by: Ledger | None = None) -> None:
        """Claim events and end them, each in one call for all."""
        ledger = by or self.ledger
        answers = self.answers(*asks, by=ledger)
        ends = [settlement_of(claim_of(ask, answer)) for ask, answer in zip(asks, answers, strict=True)]
        assert all(ledger.settle(ends))

    # --- what comes ----------------------------------------------------------------------------------------

    def test_events_that_came_are_marked(self) -> None:
        """Each event that came to its end leaves its mark at its conversation, for every worker to see."""
        assert self.keeper.attendance([CALL, CHAT]) == [None, None]
        self.settle_all([self.attending("a", 1), self.attending("b", 2), self.attending("c", 3, CHAT)])
        self.settle_all([self.attending("d", 0xFFFFFFFF)])
        assert (self.came(), self.came(CHAT)) == ({1, 2, 0xFFFFFFFF}, {3})
        assert self.came(by=self.opened()) == {1, 2, 0xFFFFFFFF}

    def test_conversations_are_looked_up_in_order(self) -> None:
        """A call for many conversations answers each in its place, and those that nothing came of with None."""
        names = [digest(f"conversation {number}") for number in range(250)]
        self.settle_all([self.attending(f"{number}", number, names[number]) for number in range(0, 250, 2)])
        found = self.keeper.attendance([*names, names[2]])
        assert [None if one is None else one.marks for one in found] == [
            *(None if number % 2 else mark(number) for number in range(250)),
            mark(2),
        ]
        assert self.keeper.attendance([]) == []

    def test_every_end_for_good_counts(self) -> None:
        """Done and dead events came; one that failed, or was not tried, has yet to come."""
        for number, outcome in enumerate((Outcome.DONE, Outcome.DEAD, Outcome.RETRY, Outcome.RELEASE)):
            self.do(self.attending(outcome.value, number), outcome)
        self.take(self.attending("claimed", 9))
        assert self.came() == {0, 1}
        self.do(self.attending("retry", 2))
        assert self.came() == {0, 1, 2}

    def test_states_of_a_chain_are_marked(self) -> None:
        """Done, echo and stale states of an entity came, too."""
        assert self.came() == set()
        asks = [
            self.state(f"state {number}", says, at_ms, conversation=CALL, mark=mark(number))
            for number, (says, at_ms) in enumerate([("here", 0), ("here", 1), ("gone", -5000), ("away", 1000)])
        ]
        self.do(asks[0])
        assert [self.verdict(ask) for ask in asks[1:3]] == [Verdict.ECHO, Verdict.STALE]
        self.do(asks[3])
        assert self.came() == {0, 1, 2, 3}

    def test_events_without_a_mark_leave_none(self) -> None:
        """An event without a mark, or of no conversation, adds nothing."""
        self.do(self.fact("plain", conversation=CALL))
        self.do(self.fact("nowhere", mark=mark(1)))
        assert self.came() == set()

    # --- once ----------------------------------------------------------------------------------------------

    def test_a_mark_counts_once(self) -> None:
        """Repeated settles, several handlers and several events with one mark are one mark."""
        claim = self.do(self.attending("one", 1))
        assert self.end(claim)
        self.do(self.attending("one", 1, handler="another"))
        self.do(self.attending("two", 1))
        self.settle_all([self.attending("three", 1), self.attending("four", 1), self.attending("five", 2)])
        assert self.came() == {1, 2}

    def test_a_late_settle_marks_nothing(self) -> None:
        """A settle that is not in force leaves no mark."""
        late = self.abandon(self.attending("one", 1))
        taken = self.take(self.attending("one", 1, alone=True), by=self.opened())
        assert not self.end(late)
        assert self.came() == set()
        assert self.end(taken)
        assert self.came() == {1}

    def test_one_lost_claim_does_not_cost_the_others_theirs(self) -> None:
        """Of a call in which one claim is lost, the others leave their marks."""
        lost = self.abandon(self.attending("lost", 1))
        self.take(self.attending("lost", 1, alone=True), by=self.opened())
        kept = self.take(self.attending("kept", 2))
        assert self.ledger.settle([settlement_of(lost), settlement_of(kept)]) == [False, True]
        assert self.came() == {2}

    def test_workers_do_not_lose_each_others_marks(self) -> None:
        """Marks that several workers add to one conversation at the same time are all there."""
        assert self.came() == set()
        workers, each = 4, 12
        handles = [self.opened() for _ in range(workers)]
        start = threading.Barrier(workers)

        def work(number: int) -> None:
            start.wait()
            for place in range(number * each, (number + 1) * each):
                self.settle_all([self.attending(f"{place}", place)], by=handles[number])

        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(work, number) for number in range(workers)]:
                done.result()
        assert self.came() == set(range(workers * each))

    # --- bounds --------------------------------------------------------------------------------------------

    def test_a_conversation_keeps_a_bounded_number(self) -> None:
        """Of very many marks of one conversation some are kept, and every event is settled all the same."""
        assert self.came() == set()
        for start in range(0, self.marks_max + 160, 106):
            self.settle_all([self.attending(f"{number}", number) for number in range(start, start + 106)])
        assert self.marks_max - 106 <= len(self.came()) <= self.marks_max + 106

    def test_attendance_is_kept_for_the_retention(self) -> None:
        """A purge forgets conversations of which nothing came since, and leaves the others."""
        retention_us = 6 * self.brief_us
        self.do(self.attending("old", 1))
        self.advance(retention_us * 1.01 / 1_000_000)
        self.do(self.attending("new", 2, CHAT))
        before: Attendance | None
        (before,) = self.keeper.attendance([CHAT])
        self.ledger.purge(older_than_us=retention_us)
        assert (self.came(), self.keeper.attendance([CHAT])) == (set(), [before])

    def test_times_are_the_ledgers(self) -> None:
        """The times are those of the first and the last end, by the ledger's clock."""
        before_us = self.now_us()
        self.do(self.attending("one", 1))
        between_us = self.now_us()
        self.advance(self.brief_us / 1_000_000)
        self.do(self.attending("two", 2))
        (found,) = self.keeper.attendance([CALL])
        assert found is not None
        assert before_us - 1_000_000 <= found.first_us <= between_us + 1_000_000
        assert found.last_us >= found.first_us + self.brief_us // 2
        assert self.keeper.attendance([CALL], since_us=before_us - 1_000_000) == [found]

    # --- with a handler's writes ---------------------------------------------------------------------------

    def test_a_transaction_marks_with_its_commit(self) -> None:
        """The mark of an event that is settled in its handler's transaction is there if, and only if, it commits."""
        assert self.came() == set()
        ledger = self.ledger
        if not isinstance(ledger, SettlesInTransaction):
            pytest.skip("this ledger does not settle in transactions")
        with ledger.transaction(settlement_of(self.take(self.attending("one", 1)))):
            pass
        assert self.came() == {1}
        with suppress(ZeroDivisionError):
            self._break_off(ledger, self.take(self.attending("two", 2)))
        lost = self.abandon(self.attending("three", 3))
        self.take(self.attending("three", 3, alone=True), by=self.opened())
        with suppress(ClaimLost), ledger.transaction(settlement_of(lost)):
            pass
        assert self.came() == {1}

    def _break_off(self, ledger: SettlesInTransaction, claim: Claim) -> None:
        with ledger.transaction(settlement_of(claim)):
            raise ZeroDivisionError
