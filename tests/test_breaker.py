"""The circuit breaker: when it opens, whom it lets through, and when it closes again."""

import threading
import weakref

import pytest

from oncebridge.breaker import OPEN_FOR, Breaker, NoAttempt, Open, Outage
from oncebridge.errors import RetryLater
from oncebridge.retry import RetryPolicy
from oncebridge.testing.clock import ManualClock

LIMIT = 3
CAP_US = 10_000_000


class Gone(Exception):
    """The other side is out of reach."""


@pytest.fixture
def clock():
    """A clock that moves when told."""
    return ManualClock()


@pytest.fixture
def breaker(clock):
    """A breaker as it comes."""
    return Breaker(clock)


def fail(breaker, words="gone"):
    """Make a call that fails; Open if it was not made."""
    with breaker.call(Gone):
        raise Gone(words)


def succeed(breaker):
    """Make a call that succeeds; Open if it was not made."""
    with breaker.call(Gone):
        pass


def opened(breaker, clock, times=1):
    """Let the breaker open so many times in a row, waiting each time until it lets a probe through."""
    for _ in range(LIMIT):
        with pytest.raises(Gone):
            fail(breaker)
    for _ in range(times - 1):
        clock.advance(breaker.retry_in_us / 1_000_000)
        with pytest.raises(Gone):
            fail(breaker)
    assert breaker.retry_in_us > 0
    return breaker


def refused(breaker):
    """Make a call that must not be let through, and return what was raised instead."""
    with pytest.raises(Open) as caught, breaker.call(Gone):
        pytest.fail("the call was made")
    return caught.value


def let_go_on(breaker):
    """Enter a call and return how to end it: with an error, or well."""
    guard = breaker.call(Gone)
    guard.__enter__()

    def end(error=None):
        assert not guard.__exit__(type(error) if error else None, error, None)

    return end


# --- open --------------------------------------------------------------------------------------------------------


def test_failures_in_a_row_open_it(breaker):
    """Three failures in a row open it, and then no call is made; it tells how it failed, and when it is tried next."""
    for words in ("first", "second"):
        with pytest.raises(Gone):
            fail(breaker, words)
        assert breaker.retry_in_us == 0
    with pytest.raises(Gone):
        fail(breaker, "third")
    shut = refused(breaker)
    assert (shut.failures, shut.last) == (3, "third")
    assert 0 < shut.retry_in_us <= 500_000
    assert shut.retry_in_us == breaker.retry_in_us
    assert "3 times" in str(shut)
    assert "open" in repr(breaker)


def test_whoever_wants_to_know_hears_of_each_outage_once(clock):
    """Why it opens is told when it does, and that it closes: not each probe that fails, and no single failure."""
    told = []
    breaker = Breaker(clock, outage=Outage(told.append, "back"))
    with pytest.raises(Gone):
        fail(breaker, "a single one")
    succeed(breaker)
    assert told == []
    for _ in range(2):
        opened(breaker, clock, times=3)
        assert told == ["gone"]
        clock.advance(breaker.retry_in_us / 1_000_000)
        succeed(breaker)
        succeed(breaker)
        assert told == ["gone", "back"]
        told.clear()


def test_failures_that_are_not_in_a_row(breaker):
    """A success in between starts the count anew, however many failures there are."""
    for _ in range(5):
        for _ in range(LIMIT - 1):
            with pytest.raises(Gone):
                fail(breaker)
        succeed(breaker)
    assert "closed" in repr(breaker)


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_limit(limit, clock):
    """It opens after as many failures as it was told."""
    breaker = Breaker(clock, failures=limit)
    for _ in range(limit):
        assert breaker.retry_in_us == 0
        with pytest.raises(Gone):
            fail(breaker)
    assert refused(breaker).failures == limit


@pytest.mark.parametrize("error", [ValueError("no"), Exception("no")])
def test_other_errors_are_answers(error, breaker, clock):
    """Whoever answers, even with an error, is there: other exceptions are passed on and close it."""
    opened(breaker, clock)
    clock.advance(1)
    with pytest.raises(type(error)), breaker.call(Gone):
        raise error
    assert breaker.retry_in_us == 0
    with pytest.raises(Gone):
        fail(breaker)
    assert breaker.retry_in_us == 0


def test_several_kinds_of_failure(breaker):
    """A call may name several exceptions that are failures."""
    for error in (Gone, TimeoutError, Gone):
        with pytest.raises(error), breaker.call(Gone, TimeoutError):
            raise error
    assert refused(breaker).failures == 3


def test_open_for_twice_as_long_each_time(breaker, clock):
    """Each failed probe opens it for twice as long, up to ten seconds; never less than half of that."""
    opened(breaker, clock)
    for ceiling_us in (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, CAP_US, CAP_US):
        left_us = refused(breaker).retry_in_us
        assert ceiling_us // 2 <= left_us <= ceiling_us
        clock.advance((left_us - 1) / 1_000_000)
        assert refused(breaker).retry_in_us == 1
        clock.advance(0.000001)
        with pytest.raises(Gone):
            fail(breaker)


def test_workers_do_not_march_in_step(clock):
    """Breakers that open at the same moment let their probes through at different ones."""
    assert len({opened(Breaker(clock), clock).retry_in_us for _ in range(20)}) > 10


def test_after_a_success_it_starts_with_the_shortest_time(breaker, clock):
    """A success forgets how long it was open before."""
    opened(breaker, clock, times=6)
    clock.advance(10)
    succeed(breaker)
    opened(breaker, clock)
    assert breaker.retry_in_us <= 500_000


# --- half open ---------------------------------------------------------------------------------------------------


def test_exactly_one_probe(breaker, clock):
    """When its time is over, one of many calls at the same moment goes through, and the others are refused."""
    opened(breaker, clock)
    clock.advance(0.5)
    everybody, others_are_refused = threading.Barrier(8), threading.Semaphore(0)
    made, shut = [], []

    def call():
        everybody.wait(30)
        try:
            with breaker.call(Gone):
                made.append(all(others_are_refused.acquire(timeout=30) for _ in range(7)))
        except Open as error:
            shut.append(error.retry_in_us)
            others_are_refused.release()

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made == [True]
    assert len(shut) == 7
    assert all(0 < us <= 500_000 for us in shut)  # the probe is soon back
    succeed(breaker)


def test_probe_that_never_returns(breaker, clock):
    """A probe blocks the others for ten seconds and no longer; then another one is let through."""
    opened(breaker, clock)
    clock.advance(0.5)
    hanging = let_go_on(breaker)
    clock.advance(9.999999)
    assert refused(breaker).retry_in_us == 1
    clock.advance(0.000001)
    end = let_go_on(breaker)
    refused(breaker)
    end()
    succeed(breaker)
    hanging()


def test_late_failure_of_a_probe_is_old_news(breaker, clock):
    """A probe that was given up neither opens the breaker again nor ends the turn of the next one."""
    opened(breaker, clock)
    clock.advance(0.5)
    late = let_go_on(breaker)
    clock.advance(10)
    second = let_go_on(breaker)
    late(Gone("at last"))
    refused(breaker)
    second()
    succeed(breaker)


def test_late_success_of_a_probe(breaker, clock):
    """A success closes it however late it comes."""
    opened(breaker, clock)
    clock.advance(0.5)
    late = let_go_on(breaker)
    clock.advance(10)
    with pytest.raises(Gone):
        fail(breaker)
    refused(breaker)
    late()
    succeed(breaker)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_interrupted_probe(interrupt, breaker, clock):
    """A probe that was interrupted says nothing of the other side: the next call is the probe."""
    opened(breaker, clock)
    clock.advance(0.5)
    with pytest.raises(type(interrupt)), breaker.call(Gone):
        raise interrupt
    end = let_go_on(breaker)
    refused(breaker)
    end()


def test_interrupt_is_no_success(breaker, clock):
    """An interrupted call among failures does not start the count anew."""
    for error in (Gone, Gone, KeyboardInterrupt, Gone):
        with pytest.raises(error), breaker.call(Gone):
            raise error
    assert refused(breaker).failures == 3


# --- several threads ---------------------------------------------------------------------------------------------


def test_calls_that_fail_together_open_it_once(breaker):
    """Calls that were under way when it opened do not open it for longer when they fail as well."""
    ends = [let_go_on(breaker) for _ in range(20)]
    for end in ends:
        end(Gone("all together"))
    assert refused(breaker).retry_in_us <= 500_000


def test_failure_from_before_it_closed(breaker, clock):
    """Calls from before an outage was over do not count towards the next one."""
    ends = [let_go_on(breaker) for _ in range(LIMIT)]
    opened(breaker, clock)
    clock.advance(0.5)
    succeed(breaker)
    for end in ends:
        end(Gone("long ago"))
    succeed(breaker)


# --- calls that must be made -------------------------------------------------------------------------------------


def test_call_that_must_be_made_is_never_refused(breaker, clock):
    """A call that only informs the breaker is made while it is open, and its success closes it at once."""
    opened(breaker, clock, times=4)
    with breaker.informed_by(Gone):
        pass
    succeed(breaker)


def test_call_that_must_be_made_counts(breaker):
    """Its failures open the breaker like any others."""
    for _ in range(LIMIT):
        with pytest.raises(Gone), breaker.informed_by(Gone):
            raise Gone
    assert refused(breaker).failures == 3


def test_calls_that_must_be_made_do_not_prolong(breaker, clock):
    """While it is open anyway, failures of such calls do not make it stay open longer."""
    opened(breaker, clock)
    left_us = breaker.retry_in_us
    for _ in range(10):
        with pytest.raises(Gone), breaker.informed_by(Gone):
            raise Gone
    assert breaker.retry_in_us == left_us
    clock.advance(left_us / 1_000_000)
    succeed(breaker)


def test_call_that_must_be_made_spares_a_probe(breaker, clock):
    """When such a call fails just when a probe would be due, that is known without one."""
    opened(breaker, clock)
    clock.advance(0.5)
    with pytest.raises(Gone), breaker.informed_by(Gone):
        raise Gone
    assert 500_000 <= refused(breaker).retry_in_us <= 1_000_000


# --- attempts of events ------------------------------------------------------------------------------------------


def attempt(breaker, error):
    """Make an attempt that fails with this error."""
    with breaker.attempt(Gone, Closed):
        raise error


class Closed(NoAttempt):
    """Every event would get this."""


class GoneForLonger(RetryLater, Gone):
    """The other side asks for a pause."""


def test_a_failed_probe_is_no_attempt(breaker, clock):
    """Failures count until it opens; then an event that was let through to look has spent nothing."""
    for _ in range(LIMIT):
        with pytest.raises(Gone):
            attempt(breaker, Gone("down"))
    for failures in (LIMIT + 1, LIMIT + 2):
        clock.advance(breaker.retry_in_us / 1_000_000)
        with pytest.raises(Open) as caught:
            attempt(breaker, Gone("still down"))
        assert (caught.value.failures, caught.value.last) == (failures, "still down")
        assert caught.value.retry_in_us == breaker.retry_in_us > 0
        assert isinstance(caught.value.__cause__, Gone)
    clock.advance(10)
    with breaker.attempt(Gone):
        pass
    with pytest.raises(Gone):
        attempt(breaker, Gone("an attempt again"))


def doubtful(breaker, event, error=None):
    """Make an attempt at this event that fails in a way that may be its own."""
    with breaker.attempt(Gone, doubtful=(ValueError,), event=event):
        raise error or ValueError("failed")


def test_one_event_alone_never_opens_it(breaker):
    """A failure that may be about the event counts once for each event, however often that one fails."""
    for _ in range(3 * LIMIT):
        with pytest.raises(ValueError, match="failed"):
            doubtful(breaker, "a poisonous event")
    assert not breaker.is_open


def test_several_events_in_a_row_open_it(breaker, clock):
    """Where as many events fail as it takes, one after the other, it is the other side; looking costs no attempt."""
    for n in range(LIMIT):
        assert not breaker.is_open
        for _ in range(2):
            with pytest.raises((ValueError, Open)):
                doubtful(breaker, f"event {n}")
    assert breaker.is_open
    clock.advance(breaker.retry_in_us / 1_000_000)
    with pytest.raises(Open) as caught:
        doubtful(breaker, "event 0")  # a probe that fails keeps it open, whichever event it is
    assert caught.value.was_called
    with pytest.raises(Open) as caught:
        doubtful(breaker, "event 1")
    assert not caught.value.was_called


def test_an_answer_clears_every_event(breaker):
    """Failures with an answer in between are not in a row: single events fail, and the other side is well."""
    for _ in range(2):
        for n in range(LIMIT - 1):
            with pytest.raises(ValueError, match="failed"):
                doubtful(breaker, f"event {n}")
        with breaker.attempt(Gone, doubtful=(ValueError,), event="a good one"):
            pass
    assert not breaker.is_open


def test_doubtful_and_certain_failures_add_up(breaker):
    """An event that fails, and others that did not get through, are failures in a row."""
    with pytest.raises(ValueError, match="failed"):
        doubtful(breaker, "event 1")
    for _ in range(LIMIT - 1):
        with pytest.raises(Gone):
            doubtful(breaker, "event 1", Gone("gone"))
    assert breaker.is_open


def test_what_every_event_would_get_is_no_attempt(breaker):
    """A failure that has nothing to do with the event costs nothing, from the first on, and is not repeated at once."""
    for _ in range(LIMIT):
        with pytest.raises(Open) as caught:
            attempt(breaker, Closed("no such queue"))
        assert caught.value.last == "no such queue"
        assert caught.value.retry_in_us >= OPEN_FOR.base_seconds / 2 * 1_000_000
    assert refused(breaker).failures == LIMIT


def test_a_probe_keeps_the_pause_that_was_asked_for(breaker, clock):
    """Where the other side asks a probe for a pause that is longer than the breaker's, the event waits for it."""
    opened(breaker, clock)
    clock.advance(1)
    with pytest.raises(Open) as caught:
        attempt(breaker, GoneForLonger("come back later", after_seconds=90))
    assert caught.value.retry_in_us == 90_000_000


def test_answers_are_attempts(breaker, clock):
    """An error that is an answer is the event's own, even if the call was a probe, and closes the breaker."""
    opened(breaker, clock)
    clock.advance(1)
    with pytest.raises(ValueError, match="refused"):
        attempt(breaker, ValueError("refused"))
    assert not breaker.is_open


# --- outages -----------------------------------------------------------------------------------------------------


def test_an_outage_is_said_once_and_so_is_its_end():
    """However many calls fail, the first is said; however many answers come, the first ends it."""
    said = []
    outage = Outage(said.append, "it is back", prefix="the queue waits: ")
    for now_us in (1, 2, 3):
        outage.began("down", now_us)
    assert said == ["the queue waits: down"]
    assert outage
    outage.answered(3)
    outage.answered(4)
    assert said == ["the queue waits: down", "it is back"]
    assert not outage


def test_an_answer_from_before_the_last_failure_ends_no_outage():
    """A call that was made before the last failure says nothing about the time since."""
    said = []
    outage = Outage(said.append, "it is back")
    outage.began("down", 5)
    outage.answered(4)
    assert said == ["down"]


# --- what it holds -----------------------------------------------------------------------------------------------


def test_it_keeps_no_error_alive(breaker):
    """It remembers an error's words, not the error: its frames hold whole batches."""
    error = Gone("gone")
    watched = weakref.ref(error)
    with pytest.raises(Gone), breaker.call(Gone):
        raise error
    del error
    assert watched() is None


def test_other_times(clock):
    """How long it stays open can be chosen."""
    breaker = Breaker(clock, failures=1, open_for=RetryPolicy(base_seconds=60, cap_seconds=60))
    with pytest.raises(Gone):
        fail(breaker)
    assert 30_000_000 <= refused(breaker).retry_in_us <= 60_000_000
    assert (OPEN_FOR.base_seconds, OPEN_FOR.cap_seconds) == (0.5, 10)
