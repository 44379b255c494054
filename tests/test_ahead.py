"""Settling ahead: ends under way while the next handlers run change no verdict, lose nothing and double nothing."""

import random
import threading
from collections import Counter, deque

import pytest

from oncebridge import Bridge, LedgerUnavailable, Settings
from oncebridge.claim import Status
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.simulation import Road, simulate
from payloads import ACW, PRESENCE, TIME_MS, envelope, raw
from servers.process import wait_until

CONVERSATIONS = 12
SLICE = 50
START_MS = 1_767_225_600_000


class AheadLedger(MemoryLedger):
    """Carries calls out in order, some time after they were started; loses calls or replies where it is told to."""

    def __init__(self):
        """Lose nothing."""
        super().__init__()
        self.started = Counter()
        self.most_under_way = 0
        self.lose_call = lambda verb, number: False
        self.lose_reply = lambda verb, number: False
        self._under_way = deque()

    def start_settle(self, settlements):
        """Start to settle."""
        return self._start("settle", lambda: self.settle(settlements))

    def _start(self, verb, call):
        self.started[verb] += 1
        number = self.started[verb]
        answer = []
        self._under_way.append(lambda: answer.append(None if self.lose_call(verb, number) else call()))
        self.most_under_way = max(self.most_under_way, len(self._under_way))

        def result():
            while not answer:
                self._under_way.popleft()()
            if answer[0] is None or self.lose_reply(verb, number):
                raise LedgerUnavailable(f"{verb} {number} was lost")
            return answer[0]

        return result


def facts(number):
    """Return facts, each another event."""
    return [raw(envelope(ACW, {"eventTime": TIME_MS + n, "conversationId": f"call-{n}"})) for n in range(number)]


@pytest.fixture
def ledger():
    """A ledger that works ahead."""
    return AheadLedger()


@pytest.fixture
def bridge(ledger):
    """A bridge on it, which notes what its handler was given."""
    with Bridge(ledger, settings=Settings(busy_wait_seconds=0)) as bridge:
        bridge.given = []
        bridge.on("*")(lambda event: bridge.given.append(event.key))
        yield bridge


def test_a_repeat_that_settles_everything_leaves_nothing_to_settle(ledger):
    """Where a reply is lost, the repeat carries the ends that wait, too; no empty call follows, which might fail."""
    ledger.lose_reply = lambda _verb, _number: True
    with Bridge(ledger, settings=Settings(settle_within_seconds=0)) as bridge:
        bridge.on("*")(lambda _event: None)
        assert {result.outcome for result in bridge.process_many(facts(2))} == {"done"}
    assert ledger.started["settle"] == 1


def test_an_end_is_under_way_while_the_next_handler_runs(ledger):
    """With no time to wait, each end is started by itself, and never more than one is on its way."""
    with Bridge(ledger, settings=Settings(settle_within_seconds=0)) as bridge:
        bridge.on("*")(lambda _event: None)
        assert {result.outcome for result in bridge.process_many(facts(SLICE))} == {"done"}
    assert ledger.started["settle"] == SLICE
    assert ledger.most_under_way == 1


def test_ends_of_quick_handlers_are_written_together(ledger):
    """With time to wait, a batch is one settle."""
    with Bridge(ledger, settings=Settings(settle_within_seconds=10)) as bridge:
        bridge.on("*")(lambda _event: None)
        bridge.process_many(facts(4 * SLICE))
    assert ledger.started["settle"] == 1


@pytest.mark.parametrize("seed", range(6))
def test_every_verdict_is_the_truth(bridge, seed):
    """Simulated traffic gets the verdicts that one delivery at a time would get, in batches of any size."""
    deliveries = list(simulate(CONVERSATIONS, seed, road=Road(unreadable=0.02), start_ms=START_MS))
    dice, at, verdicts = random.Random(seed), 0, []
    while at < len(deliveries):
        size = dice.choice((1, SLICE, SLICE + 1, 3 * SLICE, 200))
        verdicts += [result.verdict for result in bridge.process_many([one.raw for one in deliveries[at : at + size]])]
        at += size
    assert verdicts == [one.verdict for one in deliveries]


@pytest.mark.parametrize("lost", ["lose_call", "lose_reply"])
@pytest.mark.parametrize("which", [1, 2, SLICE])
def test_a_lost_call_or_reply_is_repeated(ledger, lost, which):
    """Whichever settle or reply is lost on the way, each event takes effect once and is settled."""
    setattr(ledger, lost, lambda _verb, number: number == which)
    given = []
    with Bridge(ledger, settings=Settings(settle_within_seconds=0)) as bridge:
        bridge.on("*")(lambda event: given.append(event.key))
        results = bridge.process_many(facts(SLICE))
    assert {result.outcome for result in results} == {"done"}
    assert len(given) == len(set(given)) == SLICE
    assert ledger.counts() == {Status.DONE: SLICE}


class Interrupted(BaseException):
    """What ends more than a handler."""


def test_an_interrupt_gives_back_what_was_not_tried(ledger):
    """When a batch breaks off, what is done is settled, and what was granted ahead can be had again at once."""
    handled = []

    def handle(event):
        if len(handled) == SLICE + 3:
            raise Interrupted
        handled.append(event.key)

    with Bridge(ledger) as bridge:
        bridge.on("*")(handle)
        with pytest.raises(Interrupted):
            bridge.process_many(facts(4 * SLICE))
    counts = ledger.counts()
    assert counts[Status.DONE] == SLICE + 3
    assert Status.CLAIMED not in counts
    assert counts[Status.RELEASE] == 3 * SLICE - 4
    assert counts[Status.RETRY] == 1


def test_a_stop_gives_back_what_was_not_tried(ledger):
    """A stop in the middle of a batch leaves nothing claimed, and every delivery has its result."""
    handled = []
    with Bridge(ledger) as bridge:

        @bridge.on("*")
        def handle(event):
            handled.append(event.key)
            if len(handled) == SLICE + 3:
                bridge.stop()

        results = bridge.process_many(facts(4 * SLICE))
    assert [result.outcome for result in results] == ["done"] * (SLICE + 3) + ["release"] * (3 * SLICE - 3)
    assert Status.CLAIMED not in ledger.counts()


def test_a_ledger_that_goes_away_acknowledges_nothing_more(ledger):
    """When the ledger is gone in the middle of a batch the call raises; when it is back, only what was open is done."""
    gone = threading.Event()

    def lose(verb, number):
        if (verb, number) == ("settle", SLICE):
            gone.set()
        return gone.is_set()

    def unless_gone(call):
        def guarded(*arguments, **options):
            if gone.is_set():
                raise LedgerUnavailable("gone")
            return call(*arguments, **options)

        return guarded

    ledger.lose_call = lose
    ledger.claim, ledger.settle = unless_gone(ledger.claim), unless_gone(ledger.settle)
    given = []
    with Bridge(ledger, settings=Settings(lease_seconds=0.3, settle_within_seconds=0)) as bridge:
        bridge.on("*")(lambda event: given.append(event.key))
        with pytest.raises(LedgerUnavailable):
            bridge.process_many(facts(4 * SLICE))
        settled = ledger.counts()[Status.DONE]
        assert settled == SLICE - 1
        given.clear()
        gone.clear()
        ledger.lose_call = lambda verb, number: False
        wait_until(lambda: _all_processed(bridge, facts(4 * SLICE)), "everything to be done")
    assert len(given) == len(set(given)) == 4 * SLICE - settled


def _all_processed(bridge, raws):
    try:
        return all(result.acknowledged for result in bridge.process_many(raws))
    except LedgerUnavailable:
        return False


def test_states_of_one_entity_are_processed_in_order(bridge):
    """A hundred states of one entity in a batch are all news, in order, and none is a second time."""
    times = [f"2026-01-15T09:{n // 60:02}:{n % 60:02}.000Z" for n in range(2 * SLICE)]
    raws = [
        raw(envelope(PRESENCE, {"presenceDefinition": {"id": f"{n}"}, "modifiedDate": time}))
        for n, time in enumerate(times)
    ]
    assert {result.verdict for result in bridge.process_many(raws)} == {"fresh"}
    again = bridge.process_many(list(reversed(raws)))
    assert {result.verdict for result in again} == {"redelivery"}
    assert len(bridge.given) == 2 * SLICE
