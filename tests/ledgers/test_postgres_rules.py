"""The rules in SQL are those of claim.py: random histories are answered by Postgres as they are by memory."""

import random
import secrets

import pytest

from ledgers.on_postgres import new_schema, opened
from oncebridge.claim import Ask, Claim, Letter, Outcome, Settlement, Status
from oncebridge.clock import SystemClock
from oncebridge.identity import Moment
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.protocol import Query
from oncebridge.testing.clock import ManualClock

NS_PER_MS = 1_000_000
LONG_US = 3_600_000_000
OVER_US = 1  # has run out when the next call comes
OUTCOMES = [Outcome.DONE] * 4 + [Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD, Outcome.DISCARD]


class TwoLedgers:
    """One history, told to Postgres and to memory."""

    def __init__(self, ledger, seed):
        """Start both at the same time."""
        self.dice = random.Random(seed)
        self.seed = seed
        self.clock = ManualClock(SystemClock().now_us())
        self.base_ns = (self.clock.now_us() - 3_600_000_000) * 1000
        self.ledgers = [ledger, MemoryLedger(self.clock)]
        self.held = []  # the same claim in both
        self.calls = []
        self.moments = [self._moment() for _ in range(6)]

    def _moment(self):
        def time():
            if self.dice.random() < 0.15:
                return None
            ahead_ms = 7_200_000 if self.dice.random() < 0.1 else 0
            return self.base_ns + (self.dice.randrange(6) * 250 + ahead_ms) * NS_PER_MS + self.dice.randrange(2)

        version = self.dice.choice([None] * 4 + [1, 2, 2**63 - 1])
        return Moment(
            tuple(time() for _ in range(self.dice.choice([0, 1, 1, 1, 2, 3]))), version, self.dice.random() < 0.9
        )

    def _ask(self, number):
        dice = self.dice
        fixed = random.Random(number)  # what belongs to the identity
        entity = None if fixed.random() < 0.4 or dice.random() < 0.05 else self._bytes("entity", number % 4)
        shared_ms = fixed.choice([None, self.base_ns // NS_PER_MS, 10**13, 0])
        return Ask(
            key=self._bytes("key", number),
            handler=fixed.choice(["", "one"]),
            envelope=dice.choice([None, "a", "b"]),
            content=dice.choice([None, None, b"same", b"same", b"other"]) if fixed.random() < 0.3 else None,
            entity=entity,
            state=None if entity is None else dice.choice([b"here", b"away"]),
            moment=Moment() if entity is None else dice.choice([*self.moments, self._moment()]),
            echo_window_ns=dice.choice([0, 500, 500]) * NS_PER_MS,
            stale=dice.random() < 0.9,
            topic="topic",
            time_ms=shared_ms,
            shared_ms=shared_ms,
            alone=dice.random() < 0.6,
            redrive=dice.random() < 0.25,
            force=dice.random() < 0.2,
        )

    def _bytes(self, kind, number):
        return f"{self.seed} {kind} {number}".encode()

    def step(self):
        """Let something happen to both, and compare what they say."""
        self.clock.advance(0.001)
        getattr(self, self.dice.choice(["claim", "claim", "claim", "settle", "settle", "extend", "repeat"]))()

    def claim(self):
        """Ask for a few events, each event and each entity once."""
        asks = []
        for number in self.dice.sample(range(12), self.dice.randrange(1, 5)):
            ask = self._ask(number)
            if ask.entity is None or ask.entity not in {other.entity for other in asks}:
                asks.append(ask)
        self._claim(asks, secrets.token_bytes(8), self.dice.choice([LONG_US, OVER_US]))

    def repeat(self):
        """Repeat an earlier call, as after a lost reply."""
        if self.calls:
            self._claim(*self.dice.choice(self.calls[-3:]))

    def _claim(self, asks, nonce, lease_us):
        self.calls.append((asks, nonce, lease_us))
        answers = [ledger.claim(asks, nonce=nonce, lease_us=lease_us) for ledger in self.ledgers]
        told, expected = ([_told(answer) for answer in each] for each in answers)
        assert told == expected, asks
        for ask, *pair in zip(asks, *answers, strict=True):
            if pair[0].token:
                self.held.append([Claim(ask, answer.token, answer.attempt) for answer in pair])

    def _some_held(self):
        """Pick claims, also such as were lost or settled long ago, each event and each entity once."""
        picked = []
        for pair in self.dice.sample(self.held, min(len(self.held), self.dice.randrange(1, 4))):
            ask = pair[0].ask
            if all(
                ask.key != other[0].ask.key and (ask.entity is None or ask.entity != other[0].ask.entity)
                for other in picked
            ):
                picked.append(pair)
        return picked

    def settle(self):
        """End a few claims."""
        ends = []
        for pair in self._some_held():
            outcome = self.dice.choice(OUTCOMES)
            letter = Letter(raw=b"raw", reason="reason") if outcome is Outcome.DEAD else None
            ends.append([Settlement(claim, outcome, 1000, letter) for claim in pair])
        if ends:
            kept = [ledger.settle(each) for ledger, each in zip(self.ledgers, zip(*ends, strict=True), strict=True)]
            assert kept[0] == kept[1], ends

    def extend(self):
        """Extend a few claims."""
        if picked := self._some_held():
            lease_us = self.dice.choice([LONG_US, OVER_US])
            kept = [
                ledger.extend(each, lease_us=lease_us)
                for ledger, each in zip(self.ledgers, zip(*picked, strict=True), strict=True)
            ]
            assert kept[0] == kept[1], picked

    def compare(self):
        """Compare all that both know in the end."""
        for number in range(12):
            found, expected = (
                [_known(entry) for entry in ledger.get(self._bytes("key", number))] for ledger in self.ledgers
            )
            assert found == expected
        newest = [{entry.key for entry in ledger.scan(Query(entities=True))} for ledger in self.ledgers]
        assert newest[1] <= newest[0]


def _told(answer):
    """Return what does not hang on the clocks of the two."""
    return answer.verdict, answer.token > 0, answer.attempt, answer.of, answer.was, answer.busy_us > 0


def _known(entry):
    is_held = entry.status is Status.CLAIMED and entry.lease_until_us > 0
    return entry.handler, entry.status, entry.attempts, entry.envelope, entry.raw, entry.reason, is_held


@pytest.fixture(scope="module")
def ledger(postgres):
    """Return one ledger for all histories: each has keys of its own."""
    with new_schema(postgres) as url, opened(url) as ledger:
        yield ledger


@pytest.mark.parametrize("seed", range(16))
def test_histories_are_answered_as_in_memory(ledger, seed):
    """Whatever is claimed, settled, extended and repeated in whatever order: verdicts and records are the same."""
    both = TwoLedgers(ledger, seed)
    for _ in range(100):
        both.step()
    both.compare()
