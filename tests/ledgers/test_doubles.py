"""The doubles for tests do what they say: clocks that are moved by hand or wrong, faults on cue."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncebridge.bridge import Bridge
from oncebridge.claim import Ask, Outcome, Status, Verdict
from oncebridge.errors import LedgerUnavailable
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.protocol import Ledger, Query, SettlesInTransaction
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.testing.clock import ManualClock, SkewedClock
from oncebridge.testing.faults import VERBS, Fault, faulty

RAW = {"conversationId": "c", "type": "call.ended", "timestamp": "2026-01-01T00:00:00.000Z"}


# --- clocks -----------------------------------------------------------------------------------------------------


def test_time_stands_still_until_it_is_moved():
    """A manual clock shows the time it was moved to, by both of its hands."""
    clock = ManualClock(5)
    assert (clock.now_us(), clock.monotonic_us()) == (5, 5)
    clock.advance(1.5)
    assert (clock.now_us(), clock.monotonic_us()) == (1_500_005, 1_500_005)
    with pytest.raises(ValueError, match="forward only"):
        clock.advance(-1)


def test_who_waits_moves_time():
    """To wait takes no time of ours, and all of its own; not when the stop is set."""
    clock, stop = ManualClock(0), threading.Event()
    assert clock.wait(stop, 3600) is False
    assert clock.now_us() == 3_600_000_000
    stop.set()
    assert clock.wait(stop, 3600) is True
    assert clock.now_us() == 3_600_000_000


def test_many_may_move_time():
    """No move is lost, however many move it at once."""
    clock = ManualClock(0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: clock.advance(0.001), range(1000)))
    assert clock.now_us() == 1_000_000


@pytest.mark.parametrize("stops", [False, True])
def test_background_threads_wait_for_others(stops):
    """A background thread moves no time: it waits until others have, or until it is stopped."""
    clock, stop, answers = ManualClock(0), threading.Event(), []
    thread = threading.Thread(target=lambda: answers.append(clock.wait(stop, 10)), daemon=True)
    thread.start()
    clock.advance(9)
    if stops:
        stop.set()
    else:
        clock.advance(1)
    thread.join(10)
    assert answers == [stops]
    assert clock.now_us() == (9_000_000 if stops else 10_000_000)


def test_a_skewed_clock_is_wrong_by_as_much():
    """A skewed clock is ahead or behind by its offset, and goes as fast."""
    clock = ManualClock(1_000_000_000)
    ahead, behind = SkewedClock(clock, 600), SkewedClock(clock, -600)
    assert (ahead.now_us(), behind.now_us()) == (1_600_000_000, 400_000_000)
    assert ahead.monotonic_us() == behind.monotonic_us() == clock.monotonic_us()
    behind.wait(threading.Event(), 1)
    assert (ahead.now_us(), behind.now_us()) == (1_601_000_000, 401_000_000)


# --- faults -----------------------------------------------------------------------------------------------------


def claim(ledger):
    """Ask for one event."""
    return ledger.claim([Ask(key=b"k" * 16)], nonce=b"a nonce.", lease_us=1_000_000)[0]


def test_a_fault_before_the_call_leaves_no_trace():
    """At the chosen call of the chosen verb the ledger is out of reach, and nothing has happened."""
    ledger = faulty(MemoryLedger(), Fault("claim", call=2))
    ledger.claim([], nonce=b"a nonce.", lease_us=1)
    with pytest.raises(LedgerUnavailable, match="on cue"):
        claim(ledger)
    assert ledger.get(b"k" * 16) == []
    assert claim(ledger).verdict is Verdict.FRESH
    assert ledger.calls == {"claim": 3, "get": 1}


def test_a_fault_after_the_call_loses_the_reply():
    """The call took effect, but nobody is told; its repeat gets the answer that was lost."""
    ledger = faulty(MemoryLedger(), Fault("claim", after=True))
    with pytest.raises(LedgerUnavailable):
        claim(ledger)
    assert ledger.get(b"k" * 16)[0].status is Status.CLAIMED
    assert claim(ledger).attempt == 1


def test_a_fault_may_be_anything_and_always():
    """What happens there can be chosen, at every call as well."""
    seen = []
    ledger = faulty(MemoryLedger(), Fault("counts", call=0, act=lambda: seen.append("here")))
    assert [ledger.counts() for _ in range(3)] == [{}, {}, {}]
    assert seen == ["here"] * 3


def test_every_verb_can_fail(tmp_path):
    """There is no verb that cannot be made to fail, and no fault on a verb that does not exist."""
    calls = {
        "open": lambda ledger: ledger.open(None),
        "close": lambda ledger: ledger.close(),
        "claim": claim,
        "extend": lambda ledger: ledger.extend([], lease_us=1),
        "settle": lambda ledger: ledger.settle([]),
        "get": lambda ledger: ledger.get(b"k" * 16),
        "scan": lambda ledger: list(ledger.scan(Query())),
        "counts": lambda ledger: ledger.counts(),
        "migrate": lambda ledger: ledger.migrate(),
        "purge": lambda ledger: ledger.purge(older_than_us=0),
        "transaction": lambda ledger: ledger.transaction(None).__enter__(),
    }
    assert set(calls) == VERBS
    for verb, call in calls.items():
        with pytest.raises(LedgerUnavailable):
            call(faulty(SQLiteLedger(tmp_path / "once.db"), Fault(verb)))
    with pytest.raises(ValueError, match="no such verb: 'clam'"):
        Fault("clam")


def test_a_wrapper_can_do_what_its_ledger_can(tmp_path):
    """Whether handlers get transactions is told by the type, with the wrapper as without."""
    for ledger in (MemoryLedger(), SQLiteLedger(tmp_path / "once.db")):
        assert isinstance(faulty(ledger), Ledger)
        assert isinstance(faulty(ledger), SettlesInTransaction) is isinstance(ledger, SettlesInTransaction)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verb", ["claim", "settle"])
def test_one_lost_call_harms_nobody(verb, after):
    """A delivery takes effect once, though a call or the reply to it was lost on the way."""
    done = []
    with Bridge(faulty(MemoryLedger(), Fault(verb, after=after)), clock=ManualClock()) as bridge:
        bridge.on("*")(lambda event: done.append(event.attempt))
        assert bridge.process(RAW).outcome is Outcome.DONE
        assert bridge.process(RAW).verdict is Verdict.REPUBLISH
    assert done == [1]
