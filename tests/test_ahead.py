"""Working ahead: calls under way while the next slice is read change no verdict, lose nothing and double nothing."""

import random
import threading
from collections import Counter, deque

import pytest

from oncebridge import Bridge, LedgerUnavailable, Settings
from oncebridge.claim import Status
from oncebridge.engine.flow import SLICE
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.simulation import Road, simulate
from payloads import ACW, PRESENCE, TIME_MS, envelope, raw
from servers.process import wait_until

CONVERSATIONS = 12
START_MS = 1_767_225_600_000


class AheadLedger(MemoryLedger):
    """Carries calls out in order, some time after they were started; loses calls or replies where it is told to."""

    def __init__(self):
        """Lose nothing."""
        super().__init__()
        self.started = Counter()
        self.soon = []
        self.most_under_way = 0
        self.lose_call = lambda verb, number: False
        self.lose_reply = lambda verb, number: False
        self._under_way = deque()

    def start_claim(self, asks, *, nonce, lease_us):
        """Start to ask."""
        return self._start("claim", lambda: self.claim(asks, nonce=nonce, lease_us=lease_us))

    def start_settle(self, settlements, *, soon):
        """Start to settle."""
        self.soon.append(soon)
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


def test_a_large_batch_is_under_way_while_more_of_it_is_read(bridge, ledger):
    """A batch of several slices has calls on their way, one for each slice and verb, and a small one has none."""
    bridge.process_many(facts(SLICE))
    assert not ledger.started
    assert {result.outcome for result in bridge.process_many(facts(5 * SLICE)[SLICE:])} == {"done"}
    assert ledger.started["claim"] == 4
    assert ledger.most_under_way > 1
    assert len(bridge.given) == len(set(bridge.given)) == 5 * SLICE


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


@pytest.mark.parametrize("verb", ["claim", "settle"])
@pytest.mark.parametrize("lost", ["lose_call", "lose_reply"])
@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_lost_call_or_reply_is_repeated(bridge, ledger, verb, lost, which):
    """Whichever call or reply is lost on the way, each event takes effect once and is settled."""
    setattr(ledger, lost, lambda one, number: (one, number) == (verb, which))
    results = bridge.process_many(facts(4 * SLICE))
    assert {result.outcome for result in results} == {"done"}
    assert len(bridge.given) == len(set(bridge.given)) == 4 * SLICE
    assert ledger.counts() == {Status.DONE: 4 * SLICE}


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
    assert counts[Status.RELEASE] >= SLICE - 3


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
        if (verb, number) == ("claim", 3):
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
    with Bridge(ledger, settings=Settings(lease_seconds=0.3)) as bridge:
        bridge.on("*")(lambda event: given.append(event.key))
        with pytest.raises(LedgerUnavailable):
            bridge.process_many(facts(4 * SLICE))
        settled = ledger.counts()[Status.DONE]
        assert SLICE <= settled < 4 * SLICE
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


def test_an_end_waits_for_the_next_call_only_when_that_is_near(ledger):
    """Ends of quick handlers go along with the next asks; that of a slow one is sent before another handler starts."""
    for within_seconds, goes_along in ((1000, [True, True, False, False]), (0, [False] * 4 * SLICE)):
        ledger.soon.clear()
        with Bridge(ledger, settings=Settings(settle_within_seconds=within_seconds)) as bridge:
            bridge.on("*", name=f"within {within_seconds}")(lambda _event: None)
            bridge.process_many(facts(4 * SLICE))
        assert ledger.soon == goes_along


def test_states_of_one_entity_are_worked_off_in_order(bridge, ledger):
    """Later states of an entity are asked for when the earlier one is settled, whatever slice they are in."""
    times = [f"2026-01-15T09:{n // 60:02}:{n % 60:02}.000Z" for n in range(2 * SLICE)]
    raws = [
        raw(envelope(PRESENCE, {"presenceDefinition": {"id": f"{n}"}, "modifiedDate": time}))
        for n, time in enumerate(times)
    ]
    assert {result.verdict for result in bridge.process_many(raws)} == {"fresh"}
    again = bridge.process_many(list(reversed(raws)))
    assert {result.verdict for result in again} == {"redelivery"}
    assert len(bridge.given) == 2 * SLICE
