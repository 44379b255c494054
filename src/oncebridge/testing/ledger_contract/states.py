"""The ledger contract on states: one at a time per entity, and what echo and stale mean."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from oncebridge.claim import Outcome, Status, Verdict
from oncebridge.identity import Moment
from oncebridge.testing.ledger_contract.stage import NS_PER_MS, WINDOW_MS, LedgerStage, claim_of, digest

MINUTE_MS: Final = 60_000
NS: Final = 1 / NS_PER_MS  # one nanosecond, in milliseconds
LARGE: Final = 2**63 - 1  # the largest version there is


class EntityRules(LedgerStage):
    """Who holds an entity."""

    def test_an_entity_is_worked_on_one_event_at_a_time(self) -> None:
        """While one event of an entity is claimed, every other of that entity is busy, and no other entity's."""
        claim = self.take(self.state("one", "here", 0))
        for name, says, at_ms in (("two", "away", 1000), ("one", "here", 0), ("old", "away", -1000)):
            answer = self.answer(self.state(name, says, at_ms), by=self.opened())
            assert (answer.verdict, answer.token) == (Verdict.BUSY, 0)
            assert 0 < answer.busy_us <= self.lease_us
        self.take(self.state("other", "here", 0, entity=digest("Berta")))
        self.take(self.fact("a fact"))
        assert self.end(claim)

    def test_busy_comes_before_echo_and_stale(self) -> None:
        """While an entity is held, nothing of it is recorded as echo or stale: the newest state is not known yet."""
        self.do(self.state("one", "here", 0))
        claim = self.take(self.state("two", "away", 1000))
        for ask in (self.state("echo", "here", 100), self.state("stale", "away", -100)):
            assert self.verdict(ask) is Verdict.BUSY
            assert self.ledger.get(ask.key) == []
        assert self.end(claim)

    def test_a_duplicate_is_told_while_its_entity_is_held(self) -> None:
        """An event that is settled stays a duplicate while another event's claim holds its entity."""
        self.do(self.state("one", "here", 0))
        self.take(self.state("two", "away", 1000))
        assert self.verdict(self.state("one", "here", 0)) is Verdict.REDELIVERY

    def test_an_entity_is_free_once_its_claim_has_ended(self) -> None:
        """Done, retry, release and dead all free the entity at once, and so does the end of the lease."""
        for number, outcome in enumerate((Outcome.DONE, Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD)):
            claim = self.take(self.state(outcome.value, outcome.value, 1000 * number))
            assert self.end(claim, outcome, retry_in_us=self.lease_us)
        self.abandon(self.state("abandoned", "here", 10_000))
        self.take(self.state("next", "there", 11_000))

    def test_an_extended_claim_keeps_its_entity(self) -> None:
        """Extending the claim of one event keeps the others of its entity waiting."""
        claim = self.take(self.state("one", "here", 0), lease_us=self.brief_us)
        assert self.extend(claim)
        self.run_out()
        assert self.verdict(self.state("two", "away", 1000)) is Verdict.BUSY


class EchoRules(LedgerStage):
    """The same state again, within the window."""

    def test_the_window_is_inclusive(self) -> None:
        """The newest done state again is an echo up to the very edge of the window, and fresh a nanosecond on."""
        for number, (at_ms, verdict) in enumerate(
            [
                (0, Verdict.ECHO),
                (WINDOW_MS, Verdict.ECHO),
                (-WINDOW_MS, Verdict.ECHO),
                (WINDOW_MS + NS, Verdict.FRESH),
                (-WINDOW_MS - NS, Verdict.STALE),
            ]
        ):
            entity = digest(f"entity {number}")
            self.do(self.state(f"done {number}", "here", 0, entity=entity))
            assert self.verdict(self.state(f"again {number}", "here", at_ms, entity=entity)) is verdict

    def test_an_echo_has_the_same_state(self) -> None:
        """Another state within the window is news."""
        self.do(self.state("one", "here", 0))
        assert self.verdict(self.state("two", "away", 1)) is Verdict.FRESH

    def test_the_topics_own_window_counts(self) -> None:
        """Each topic's window decides; without one, only the very same time is an echo."""
        self.do(self.state("one", "here", 0))
        assert self.verdict(self.state("wide", "here", 5000, echo_window_ns=5000 * NS_PER_MS)) is Verdict.ECHO
        assert self.verdict(self.state("same", "here", 0, echo_window_ns=0)) is Verdict.ECHO
        assert self.verdict(self.state("none", "here", 5001, echo_window_ns=0)) is Verdict.FRESH

    def test_an_echo_is_recorded(self) -> None:
        """An echo is settled under its own identity: later deliveries of it are redelivery or republish."""
        self.do(self.state("one", "here", 0))
        echo = self.state("two", "here", 100)
        assert self.verdict(echo) is Verdict.ECHO
        answers = [self.answer(ask) for ask in (echo, replace(echo, envelope="another"), replace(echo, envelope=None))]
        assert [answer.verdict for answer in answers] == [Verdict.REDELIVERY, Verdict.REPUBLISH, Verdict.REPUBLISH]
        assert {answer.was for answer in answers} == {Status.ECHO}
        assert self.counted() == {Status.DONE: 1, Status.ECHO: 1}

    def test_an_echo_does_not_move_the_window(self) -> None:
        """The window is measured from the newest done event, so a chain of echoes cannot stretch it."""
        self.do(self.state("one", "here", 0))
        assert self.verdict(self.state("two", "here", 400)) is Verdict.ECHO
        assert self.verdict(self.state("three", "here", 800)) is Verdict.FRESH

    def test_an_echo_moves_the_stale_line(self) -> None:
        """A state older than an echo is stale, though it is newer than the newest done event."""
        self.do(self.state("one", "here", 0))
        assert self.verdict(self.state("two", "here", 400)) is Verdict.ECHO
        assert self.verdict(self.state("three", "away", 399)) is Verdict.STALE
        assert self.verdict(self.state("four", "away", 400)) is Verdict.FRESH

    def test_an_early_echo_does_not_move_the_stale_line_back(self) -> None:
        """An echo from before the newest done event leaves the line where it is."""
        self.do(self.state("one", "here", 0))
        assert self.verdict(self.state("two", "here", -400)) is Verdict.ECHO
        assert self.verdict(self.state("three", "away", -1)) is Verdict.STALE

    def test_an_echo_comes_before_stale(self) -> None:
        """An older event with the newest state is an echo within the window: echo is looked at first."""
        self.do(self.state("one", "here", 0))
        assert self.verdict(self.state("two", "here", -100)) is Verdict.ECHO

    def test_no_echo_after_an_end_other_than_done(self) -> None:
        """Once a claim since the newest done event was retried, released, dead or ran out, nothing is an echo."""
        for end in ("retry", "release", "dead", "run out"):
            entity = digest(f"entity of {end}")
            self.do(self.state(f"{end} one", "here", 0, entity=entity))
            between = self.state(f"{end} two", "away", 50, entity=entity)
            if end == "run out":
                self.abandon(between)
            else:
                self.do(between, Outcome(end))
            self.take(self.state(f"{end} three", "here", 100, entity=entity))

    def test_echoes_again_after_the_next_done(self) -> None:
        """The next done event is known for sure, so what repeats it is an echo again."""
        for end in ("retry", "release", "dead", "run out"):
            entity = digest(f"entity of {end}")
            self.do(self.state(f"{end} one", "here", 0, entity=entity))
            between = self.state(f"{end} two", "away", 50, entity=entity)
            if end == "run out":
                self.abandon(between)
            else:
                self.do(between, Outcome(end))
            self.do(self.state(f"{end} three", "here", 100, entity=entity))
            assert self.verdict(self.state(f"{end} four", "here", 150, entity=entity)) is Verdict.ECHO

    def test_envelope_times_give_no_echo(self) -> None:
        """A time that only orders, being an envelope's, makes events stale but never echoes."""
        only_orders = self.moment(0, echoes=False)
        self.do(self.state("one", "here", 0, moment=only_orders))
        assert self.verdict(self.state("two", "here", -1, moment=self.moment(-1, echoes=False))) is Verdict.STALE
        self.do(self.state("its own time", "here", 0))
        assert self.verdict(self.state("three", "here", 0, moment=only_orders)) is Verdict.FRESH

    def test_every_time_must_lie_within_the_window(self) -> None:
        """With several times in one moment, an echo is near in each of them."""
        for number, (moment, verdict) in enumerate(
            [
                (self.moment(100, 400, None), Verdict.ECHO),
                (self.moment(100, 501, None), Verdict.FRESH),
                (self.moment(100, 400, 0), Verdict.FRESH),
                (self.moment(100, 400), Verdict.FRESH),
            ]
        ):
            entity = digest(f"entity {number}")
            self.do(self.state(f"done {number}", "here", 0, entity=entity, moment=self.moment(0, 0, None)))
            assert self.verdict(self.state(f"{number}", "here", 0, entity=entity, moment=moment)) is verdict


class StaleRules(LedgerStage):
    """Older than what its entity has seen."""

    def ledger_ms(self) -> int:
        """Return the ledger's time, in milliseconds after the base time."""
        return (self.now_us() * 1000 - self.base_ns) // NS_PER_MS

    def test_what_is_strictly_older_is_stale(self) -> None:
        """An event a nanosecond older than its entity's newest done event is stale, and recorded at once."""
        self.do(self.state("one", "here", 0.5))
        stale = self.state("two", "away", 0.5 - NS)
        assert self.verdict(stale) is Verdict.STALE
        answers = [
            self.answer(ask) for ask in (stale, replace(stale, envelope="another"), replace(stale, envelope=None))
        ]
        assert [answer.verdict for answer in answers] == [Verdict.REDELIVERY, Verdict.REPUBLISH, Verdict.REPUBLISH]
        assert {answer.was for answer in answers} == {Status.STALE}

    def test_a_tie_loses_nothing(self) -> None:
        """Equal times with different states are two events, both processed; the one handled later is the newest."""
        self.do(self.state("one", "here", 0))
        self.do(self.state("two", "away", 0))
        assert self.verdict(self.state("three", "away", 1)) is Verdict.ECHO
        assert self.verdict(self.state("four", "here", 1)) is Verdict.FRESH

    def test_only_done_events_make_others_stale(self) -> None:
        """An event that was retried, released, dead or ran out does not make an older one stale."""
        self.do(self.state("one", "here", 0))
        for number, outcome in enumerate((Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD)):
            self.do(self.state(outcome.value, "away", 1000 + number), outcome)
        self.abandon(self.state("abandoned", "away", 2000))
        self.take(self.state("older", "gone", 500))

    def test_a_stale_event_changes_nothing(self) -> None:
        """A stale event moves neither the line nor the window, and makes nothing unsure."""
        self.do(self.state("one", "here", 0))
        assert self.verdict(self.state("two", "away", -1000)) is Verdict.STALE
        assert self.verdict(self.state("three", "gone", -1)) is Verdict.STALE
        assert self.verdict(self.state("four", "here", 100)) is Verdict.ECHO

    def test_a_failed_event_may_turn_stale(self) -> None:
        """A failed event that is delivered after a newer one was done is stale, and settled so."""
        self.do(self.state("one", "here", 0), Outcome.RETRY)
        self.do(self.state("two", "away", 1000))
        assert self.verdict(self.state("one", "here", 0)) is Verdict.STALE
        assert self.status(self.state("one", "here", 0)) is Status.STALE

    def test_several_times_are_compared_place_by_place(self) -> None:
        """Of several times, stale means none later and at least one earlier; anything else is fresh."""
        self.do(self.state("one", "here", 0, moment=self.moment(0, 0, None)))
        for number, (moment, verdict) in enumerate(
            [
                (self.moment(-1, 0, None), Verdict.STALE),
                (self.moment(0, -1, None), Verdict.STALE),
                (self.moment(-1, -1, 5), Verdict.STALE),
                (self.moment(-1, None, None), Verdict.STALE),
                (self.moment(-1, 1, None), Verdict.FRESH),
                (self.moment(1, -1, None), Verdict.FRESH),
                (self.moment(0, 0, None), Verdict.FRESH),
                (self.moment(None, None, -1), Verdict.FRESH),
                (self.moment(None, None, None), Verdict.FRESH),
            ]
        ):
            ask = self.state(f"{number}", "away", 0, moment=moment)
            answer = self.answer(ask)
            assert answer.verdict is verdict, moment
            assert not answer.token or self.end(claim_of(ask, answer), Outcome.RELEASE)

    def test_a_version_orders_instead_of_time(self) -> None:
        """Where both have a version, it alone tells which is older, to the last digit."""
        self.do(self.state("one", "here", 0, moment=self.moment(0, version=LARGE - 1)))
        lower = self.state("two", "away", 9000, moment=self.moment(9000, version=LARGE - 2))
        assert self.verdict(lower) is Verdict.STALE
        self.do(self.state("three", "away", -9000, moment=self.moment(-9000, version=LARGE - 1)))
        self.do(self.state("four", "gone", -9000, moment=self.moment(-9000, version=LARGE)))
        assert self.verdict(self.state("five", "here", 0, moment=self.moment(0, version=LARGE - 1))) is Verdict.STALE
        assert self.verdict(self.state("six", "here", 0, moment=self.moment(-9001))) is Verdict.STALE
        assert self.verdict(self.state("seven", "here", 0, moment=self.moment(-8999))) is Verdict.FRESH

    def test_a_version_needs_no_time(self) -> None:
        """A version orders events that have no time; without a time there is no window, so nothing is an echo."""
        self.do(self.state("one", "here", 0, moment=self.moment(version=7)))
        assert self.verdict(self.state("two", "away", 0, moment=self.moment(version=6))) is Verdict.STALE
        self.do(self.state("three", "here", 0, moment=self.moment(version=8)))

    def test_a_version_is_not_set_back(self) -> None:
        """A newer event that says no version leaves the entity's version where it is."""
        self.do(self.state("one", "here", 0, moment=self.moment(0, version=7)))
        self.do(self.state("two", "away", 1000))
        assert self.verdict(self.state("three", "gone", 2000, moment=self.moment(2000, version=6))) is Verdict.STALE

    def test_a_version_out_of_the_blue_makes_nothing_stale(self) -> None:
        """Versions more than a thousand apart tell nothing, so that no single one holds up its entity for ever."""
        self.do(self.state("one", "here", 0, moment=self.moment(0, version=7)))
        self.do(self.state("two", "away", 1000, moment=self.moment(1000, version=LARGE)))
        self.do(self.state("three", "here", 2000, moment=self.moment(2000, version=8)))
        late = self.state("four", "away", 3000, moment=self.moment(3000, version=7))
        assert self.verdict(late) is Verdict.STALE

    def test_a_stamp_from_the_future_is_never_the_newest(self) -> None:
        """An event stamped more than ten minutes ahead of the ledger's clock is done, but makes nothing stale."""
        ahead_ms = self.ledger_ms()
        self.do(self.state("one", "here", 0))
        self.do(self.state("far", "away", ahead_ms + 11 * MINUTE_MS))
        assert self.verdict(self.state("older", "gone", -1)) is Verdict.STALE
        self.do(self.state("two", "gone", 1))
        self.do(self.state("near", "away", ahead_ms + 9 * MINUTE_MS))
        assert self.verdict(self.state("three", "here", 1000)) is Verdict.STALE

    def test_no_echo_after_a_stamp_from_the_future(self) -> None:
        """The sink may show the event that was done under an unbelievable stamp, so nothing is an echo."""
        ahead_ms = self.ledger_ms()
        self.do(self.state("one", "here", 0))
        self.do(self.state("far", "away", ahead_ms + 11 * MINUTE_MS))
        assert self.verdict(self.state("two", "here", 100)) is Verdict.FRESH

    def test_an_echo_from_the_future_moves_no_line(self) -> None:
        """An echo stamped more than ten minutes ahead is an echo, but makes nothing stale."""
        ahead_ms = self.ledger_ms()
        self.do(self.state("one", "here", ahead_ms))
        far = self.state("far", "here", ahead_ms + 11 * MINUTE_MS, echo_window_ns=20 * MINUTE_MS * NS_PER_MS)
        assert self.verdict(far) is Verdict.ECHO
        assert self.verdict(self.state("two", "away", ahead_ms + 1)) is Verdict.FRESH

    def test_an_echo_sets_back_no_time_that_it_does_not_say(self) -> None:
        """Of several times, one that an echo leaves out still makes events stale."""
        self.do(self.state("one", "away", 0, moment=self.moment(0, 200)))
        self.do(self.state("two", "here", 0, moment=self.moment(1000, None)))
        assert self.verdict(self.state("three", "here", 0, moment=self.moment(1100, None))) is Verdict.ECHO
        assert self.verdict(self.state("four", "gone", 0, moment=self.moment(1100, 100))) is Verdict.STALE

    def test_a_topic_may_have_nothing_stale(self) -> None:
        """Where a topic says so, an older event is fresh; being done does not make it the newest."""
        self.do(self.state("one", "here", 0))
        self.do(self.state("older", "away", -1000, stale=False))
        assert self.verdict(self.state("two", "gone", -500)) is Verdict.STALE
        assert self.verdict(self.state("three", "here", 100)) is Verdict.FRESH

    def test_without_a_time_everything_is_fresh(self) -> None:
        """An event without any time is neither echo nor stale, and never its entity's newest."""
        self.do(self.state("one", "here", 0, moment=Moment()))
        self.do(self.state("two", "here", 0, moment=Moment()))
        self.do(self.state("three", "here", 0))
        self.do(self.state("four", "here", 0, moment=Moment()))
        assert self.verdict(self.state("five", "away", -1)) is Verdict.STALE
