"""The ledger contract on races, with exact answers, and on workers whose clocks are wrong."""

from __future__ import annotations

import itertools
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, ClassVar, Final

import pytest
from msgspec.structs import replace

from oncebridge.bridge import Bridge
from oncebridge.claim import Ask, Outcome, Status, Verdict
from oncebridge.ledgers.protocol import Ledger, Query
from oncebridge.settings import Settings
from oncebridge.testing.clock import SkewedClock
from oncebridge.testing.faults import Fault, faulty
from oncebridge.testing.ledger_contract.stage import NS_PER_MS, LedgerStage, claim_of, digest, settlement_of

BATCH: Final = 50
CHAIN: Final = 3
TEN_MINUTES_S: Final = 600
SWITCH_S: Final = 1e-5  # how often threads take turns in a race: as often as can be


class RaceRules(LedgerStage):
    """Many workers at once, each with a handle of its own where the ledger has such."""

    #: How many events of one entity each contender has to get done.
    events_each: ClassVar[int] = 2
    #: How long a contender waits for the others before it takes the ledger for broken.
    patience_s: ClassVar[float] = 30

    def _contend(self, work: Callable[[Ledger, int], None]) -> None:
        """Run every contender at the same time."""
        handles = [self.opened() for _ in range(self.contenders)]
        start = threading.Barrier(self.contenders)

        def run(number: int) -> None:
            start.wait()
            work(handles[number], number)

        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            with ThreadPoolExecutor(self.contenders) as pool:
                for done in [pool.submit(run, number) for number in range(self.contenders)]:
                    done.result()
        finally:
            sys.setswitchinterval(usual_s)

    def _batches(self, items: list[Any], number: int) -> Iterator[list[Any]]:
        """Go through all items in batches, each contender from its own place on."""
        start = number * len(items) // self.contenders
        return _in_batches(items[start:] + items[:start], BATCH)

    def _race(self, asks: list[Ask]) -> Counter[bytes]:
        """Have every contender ask for everything; return how often each event was granted."""
        won: Counter[bytes] = Counter()
        lock = threading.Lock()

        def ask_for_all(ledger: Ledger, number: int) -> None:
            for batch in self._batches(asks, number):
                answers = ledger.claim(batch, nonce=secrets.token_bytes(8), lease_us=self.lease_us)
                with lock:
                    won.update(ask.key for ask, answer in zip(batch, answers, strict=True) if answer.token)

        self._contend(ask_for_all)
        return won

    def test_every_event_has_one_winner(self) -> None:
        """Of all contenders for thousands of events, exactly one is granted each."""
        asks = [self.fact(f"{number}") for number in range(self.contended)]
        assert self._race(asks) == {ask.key: 1 for ask in asks}

    def test_every_takeover_has_one_winner(self) -> None:
        """Of all contenders for claims that ran out, exactly one takes over each."""
        asks = [self.fact(f"{number}", alone=True) for number in range(self.contended // 2)]
        for batch in _in_batches(asks, BATCH):
            self.ledger.claim(batch, nonce=secrets.token_bytes(8), lease_us=self.brief_us)
        self.run_out()
        assert self._race(asks) == {ask.key: 1 for ask in asks}

    def test_every_redrive_has_one_winner(self) -> None:
        """Of all who redrive the same dead letters at once, exactly one is granted each."""
        asks = [self.fact(f"{number}") for number in range(self.contended // 20)]
        for ask in asks:
            self.do(ask, Outcome.DEAD)
        assert self._race([replace(ask, redrive=True) for ask in asks]) == {ask.key: 1 for ask in asks}

    def test_every_entity_has_one_winner(self) -> None:
        """Of all contenders for events of the same entities, exactly one is granted each entity."""
        entities = [digest(f"entity {number}") for number in range(self.contended // 10)]
        won: Counter[bytes] = Counter()
        lock = threading.Lock()

        def ask_for_all(ledger: Ledger, number: int) -> None:
            for batch in _in_batches(entities, BATCH):
                asks = [self.state(f"{number} {one.hex()}", f"{number}", number, entity=one) for one in batch]
                answers = ledger.claim(asks, nonce=secrets.token_bytes(8), lease_us=self.lease_us)
                with lock:
                    won.update(one for one, answer in zip(batch, answers, strict=True) if answer.token)

        self._contend(ask_for_all)
        assert won == dict.fromkeys(entities, 1)

    def test_every_chain_has_one_winner(self) -> None:
        """Of all contenders for chains of the same entities, in any order, exactly one is granted each, as a whole."""
        entities = [digest(f"entity {number}") for number in range(self.contended // 20)]
        won: Counter[bytes] = Counter()
        lock = threading.Lock()

        def ask_for_all(ledger: Ledger, number: int) -> None:
            for batch in self._batches(entities[:: -1 if number % 2 else 1], number):
                names = [(f"{number} {step} {entity.hex()}", entity) for entity in batch for step in range(CHAIN)]
                asks = [self.state(name, name, 0, entity=entity) for name, entity in names]
                answers = ledger.claim(asks, nonce=secrets.token_bytes(8), lease_us=self.lease_us)
                claims = [claim_of(ask, answer) for ask, answer in zip(asks, answers, strict=True) if answer.token]
                with lock:
                    won.update(claim.ask.entity for claim in claims if claim.ask.entity is not None)
                ends = [settlement_of(claim, frees=False) for claim in claims]
                assert ledger.settle(ends) == [True] * len(ends)

        self._contend(ask_for_all)
        assert won == dict.fromkeys(entities, CHAIN)

    def test_an_entity_never_has_two_holders(self) -> None:
        """However many work at one entity's events, their claims follow each other, as their tokens do."""
        steps = itertools.count()
        freed = threading.Condition()
        ended = 0
        held: list[tuple[int, int, int]] = []  # token, first and last step for which it was held

        def work(ledger: Ledger, number: int) -> None:
            nonlocal ended
            for event in range(self.events_each):
                ask = self.state(f"{number} {event}", f"{number} {event}", 0, stale=False)
                while True:
                    seen = ended
                    answer = self.answer(ask, by=ledger)
                    if answer.token:
                        break
                    assert answer.verdict is Verdict.BUSY
                    with freed:
                        while ended == seen:
                            assert freed.wait(self.patience_s), "the entity is busy, but nobody holds it"
                held.append((answer.token, next(steps), next(steps)))
                assert self.end(claim_of(ask, answer), by=ledger)
                with freed:
                    ended += 1
                    freed.notify_all()

        self._contend(work)
        assert len(held) == self.contenders * self.events_each
        by_token = sorted(held)
        assert by_token == sorted(held, key=lambda one: one[1])
        assert all(one[2] < other[1] for one, other in itertools.pairwise(by_token))
        assert len({token for token, *_ in held}) == len(held)
        assert self.counted() == {Status.DONE: len(held)}

    def test_every_claim_is_settled_once(self) -> None:
        """Of all who settle one claim in different ways at once, only one way is taken; the rest is refused."""
        claim = self.take(self.fact("one"))
        taken: list[Outcome] = []

        def settle(ledger: Ledger, number: int) -> None:
            outcome = (Outcome.DONE, Outcome.RETRY, Outcome.RELEASE)[number % 3]
            if self.end(claim, outcome, by=ledger):
                taken.append(outcome)

        self._contend(settle)
        assert {Status(outcome.value) for outcome in taken} == {self.status(claim.ask)}


class SkewRules(LedgerStage):
    """Workers whose own clocks are wrong."""

    def _bridges(self, stack: ExitStack, handle: Callable[[Any], None]) -> list[Bridge]:
        """Start three workers on one ledger, two of them with clocks that are ten minutes wrong."""
        settings = Settings(busy_wait_seconds=0, lease_seconds=self.lease_us / 1_000_000)
        bridges = []
        for offset_s in (0, TEN_MINUTES_S, -TEN_MINUTES_S):
            clock = SkewedClock(self.clock, offset_s)
            bridge = stack.enter_context(Bridge(self.unopened(), settings=settings, clock=clock))
            bridge.on("*")(handle)
            bridges.append(bridge)
        return bridges

    def _raw(self, envelope: str, says: str, at_ms: float, user: str = "anna") -> dict[str, Any]:
        """Make a delivery of a presence event."""
        body = {"modifiedDate": (self.base_ns // NS_PER_MS) + at_ms, "presenceDefinition": {"systemPresence": says}}
        return {
            "id": envelope,
            "source": "aws.partner/genesys.com/cloud/org/bus",
            "detail-type": "v2.users.{id}.presence",
            "detail": {"topicName": f"v2.users.{user}.presence", "eventBody": body},
        }

    def test_a_wrong_clock_changes_no_verdict(self) -> None:
        """Whichever worker a delivery comes to, fast or slow, its verdict is the same."""
        future_ms = (self.now_us() * 1000 - self.base_ns) // NS_PER_MS + 11 * 60_000
        story = [
            ("e1", "Available", 0, Verdict.FRESH),
            ("e1", "Available", 0, Verdict.REDELIVERY),
            ("e2", "Available", 0, Verdict.REPUBLISH),
            ("e3", "Available", 500, Verdict.ECHO),
            ("e4", "Busy", 499, Verdict.STALE),
            ("e5", "Busy", 500, Verdict.FRESH),
            ("e6", "Available", future_ms, Verdict.FRESH),
            ("e7", "Away", 1000, Verdict.FRESH),
            ("e8", "Busy", 999, Verdict.STALE),
            ("e7", "Away", 1000, Verdict.REDELIVERY),
        ]
        with ExitStack() as stack:
            bridges = self._bridges(stack, lambda _event: None)
            for first in range(len(bridges)):
                order = itertools.islice(itertools.cycle(bridges), first, None)
                verdicts = [
                    bridge.process(self._raw(envelope, says, at_ms, user=f"user {first}")).verdict
                    for bridge, (envelope, says, at_ms, _) in zip(order, story, strict=False)
                ]
                assert verdicts == [verdict for *_, verdict in story]

    def test_a_wrong_clock_changes_no_lease(self) -> None:
        """A lease ends by the ledger's clock: nobody takes over sooner or later, or holds on for longer."""
        seen: list[Verdict] = []
        leases: list[int] = []

        def look_around(event: Any) -> None:
            if event.attempt == 1 and not seen:
                seen.extend(other.process(raw).verdict for other in bridges)
                leases.extend(entry.lease_until_us for entry in self.ledger.scan(Query()))

        with ExitStack() as stack:
            bridges = self._bridges(stack, look_around)
            for number, bridge in enumerate(bridges):
                seen.clear()
                leases.clear()
                before_us = self.now_us()
                raw = self._raw("e1", "Available", 1000 * number)
                assert bridge.process(raw).outcome is Outcome.DONE
                assert seen == [Verdict.BUSY] * len(bridges)
                assert before_us <= max(leases) - self.lease_us <= self.now_us()

    def test_a_wrong_clock_takes_over_when_the_lease_is_over(self) -> None:
        """A fast worker does not take over what another died with, and a slow one does once the lease ran out."""
        handled: list[int] = []
        with ExitStack() as stack:
            bridges = self._bridges(stack, lambda event: handled.append(event.token))
            for number, bridge in enumerate(bridges):
                held, abandoned = (self._raw("e1", "Available", 0, user=f"{number} {way}") for way in ("held", "left"))
                self._die_with(held, self.lease_us)
                assert bridge.process(held).verdict is Verdict.BUSY
                self._die_with(abandoned, self.brief_us)
                self.run_out()
                assert bridge.process(abandoned).outcome is Outcome.DONE
        assert handled == sorted(set(handled))

    def _die_with(self, raw: dict[str, Any], lease_us: int) -> None:
        """End a worker abruptly when it has done a delivery, before it could settle it."""
        settings = Settings(lease_seconds=lease_us / 1_000_000)
        with Bridge(faulty(self.unopened(), Fault("settle", call=0, act=_die)), settings=settings) as bridge:
            bridge.on("*")(lambda _event: None)
            with pytest.raises(Died):
                bridge.process(raw)


class Died(BaseException):
    """The end of a worker; no `except Exception` stops it."""


def _die() -> None:
    raise Died


def _in_batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
