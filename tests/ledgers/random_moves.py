"""Random moves on a ledger and on the memory ledger side by side: whatever is asked, both must say the same.

The rules of `claim.py` are written once more in Lua and in SQL. The contract names them one by one; this
looks for combinations that nobody thought of. A seed gives the same moves each time.
"""

import random
import secrets
from hashlib import blake2b

from oncebridge.claim import Ask, Claim, Letter, Outcome, Settlement, Status
from oncebridge.clock import SystemClock
from oncebridge.identity import Moment
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.protocol import Query

LONG_US = 3_600_000_000
GONE_US = 1  # over before anybody can ask again
NS_PER_MS = 1_000_000
AT_A_TIME = 12  # events that something may happen to; one by one, others take their place
MOVES = ("claim", "claim", "claim", "settle", "settle", "extend", "repeat")
OUTCOMES = (Outcome.DONE,) * 4 + (Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD, Outcome.DISCARD)


def digest(name):
    """Return a key as identities give them."""
    return blake2b(name.encode(), digest_size=16).digest()


class SideBySide:
    """Makes each move on both, and compares."""

    def __init__(self, ledger, seed, *, keeps_done=True):
        """Take an opened and empty ledger, and whether it keeps the ids of what is done."""
        self._dice = random.Random(seed)
        self._seed = seed
        self._keeps_done = keeps_done
        self._base_ms = SystemClock().now_us() // 1000 - 3_600_000  # an hour ago: nothing near it is ahead
        self._pair = (ledger, MemoryLedger(SystemClock()))
        self._pair[1].open(None)
        self._held = []  # claims on both, in force or long lost
        self._calls = []
        self._first = 0
        self._moments = [self._moment() for _ in range(6)]

    def run(self, moves):
        """Make so many moves, and look at all that both know then; the first difference fails."""
        for number in range(moves):
            self._first = number // 3
            move = self._dice.choice(MOVES)
            theirs, ours = getattr(self, f"_{move}")()
            assert theirs == ours, f"move {number}, {move}"
        for look in (self._counts, self._letters, self._entries):
            theirs, ours = (look(one) for one in self._pair)
            assert theirs == ours

    # --- what both know ----------------------------------------------------------------------------------------

    def _counts(self, ledger):
        return {status: number for status, number in ledger.counts().items() if number}

    def _letters(self, ledger):
        return sorted((entry.key, entry.handler, entry.reason) for entry in ledger.scan(Query(letters=True)))

    def _entries(self, ledger):
        return [
            sorted(self._known(entry) for entry in ledger.get(self._key(number)))
            for number in range(self._first + AT_A_TIME)
        ]

    def _known(self, entry):
        known = (entry.handler, entry.status, entry.raw or b"", entry.reason)
        if not self._keeps_done and entry.status in (Status.DONE, Status.ECHO, Status.STALE):
            return known
        held = entry.status is Status.CLAIMED and entry.lease_until_us > 0
        return (*known, entry.attempts, entry.envelope or "", held)

    def _seen(self, answer):
        """Leave out what may differ: tokens and times, and for some who did the work."""
        of = answer.of if self._keeps_done else None
        return answer.verdict, answer.token > 0, answer.attempt, of, answer.was, answer.busy_us > 0

    # --- moves -------------------------------------------------------------------------------------------------

    def _claim(self):
        asks = []
        events = range(self._first, self._first + AT_A_TIME)
        for number in self._dice.sample(events, self._dice.randrange(1, 7)):
            ask = self._ask(number)
            if ask.entity is None or ask.entity not in {other.entity for other in asks}:
                asks.append(ask)
        self._calls.append((asks, secrets.token_bytes(8), self._dice.choice((LONG_US, GONE_US))))
        return self._ask_both(*self._calls[-1])

    def _repeat(self):
        """Ask once more under the nonce of an earlier call, as after a lost reply."""
        return self._ask_both(*self._dice.choice(self._calls[-3:])) if self._calls else (None, None)

    def _ask_both(self, asks, nonce, lease_us):
        answers = [one.claim(asks, nonce=nonce, lease_us=lease_us) for one in self._pair]
        for ask, *pair in zip(asks, *answers, strict=True):
            if all(answer.token for answer in pair):
                self._held.append(tuple(Claim(ask, answer.token, answer.attempt) for answer in pair))
        return tuple([self._seen(answer) for answer in each] for each in answers)

    def _settle(self):
        held = self._some_held()
        outcomes = [self._dice.choice(OUTCOMES) for _ in held]
        letter = Letter(raw=b"{}", reason="because")
        return tuple(
            one.settle(
                [
                    Settlement(pair[at], outcome, 5_000_000, letter if outcome is Outcome.DEAD else None)
                    for pair, outcome in zip(held, outcomes, strict=True)
                ]
            )
            for at, one in enumerate(self._pair)
        )

    def _extend(self):
        held = self._some_held()
        lease_us = self._dice.choice((LONG_US, GONE_US))
        return tuple(one.extend([pair[at] for pair in held], lease_us=lease_us) for at, one in enumerate(self._pair))

    def _some_held(self):
        """Pick claims, also such as were lost or settled long ago, each event and each entity once."""
        picked, entities = {}, set()
        for pair in self._dice.sample(self._held, min(len(self._held), self._dice.randint(1, 4))):
            ask = pair[0].ask
            if (ask.key, ask.handler) not in picked and ask.entity not in entities:
                picked[ask.key, ask.handler] = pair
                if ask.entity:
                    entities.add(ask.entity)
        return list(picked.values())

    # --- asks --------------------------------------------------------------------------------------------------

    def _key(self, number):
        return digest(f"{self._seed} event {number}")

    def _ask(self, number):
        """Ask for an event: what belongs to its identity is the same each time, the rest is as it comes."""
        dice, fixed = self._dice, random.Random(f"{self._seed} {number}")
        shared_ms = fixed.choice((None, self._base_ms, self._base_ms, 10**13, 0))
        is_state = fixed.random() < 0.6
        has_content = fixed.random() < 0.3
        fields = {
            "handler": fixed.choice(("", "one")),
            "envelope": dice.choice((None, "one", "two")),
            "content": digest(dice.choice("aab")) if has_content and dice.random() < 0.8 else None,
            "topic": "topic",
            "time_ms": shared_ms,
            # An explicit id stands alone: its time is not what its deliveries share.
            "shared_ms": None if has_content else shared_ms,
        }
        if is_state:
            fields |= {
                "entity": digest(f"{self._seed} entity {number % 4}"),
                "state": digest(dice.choice("xy")),
                "moment": dice.choice([*self._moments, self._moment()]),
                "echo_window_ns": dice.choice((0, 500, 500)) * NS_PER_MS,
                "stale": dice.random() < 0.9,
            }
        redrive = dice.random() < 0.25
        force = redrive and dice.random() < 0.5
        return Ask(key=self._key(number), **fields, alone=dice.random() < 0.6, redrive=redrive, force=force)

    def _moment(self):
        dice = self._dice
        version = dice.choice((None,) * 5 + (1, 2**60, 2**60 + 1))
        times = tuple(self._time() for _ in range(dice.choice((0, 1, 1, 1, 2, 3))))
        return Moment(times, version, dice.random() < 0.9)

    def _time(self):
        """Draw a time: near others, not known, or too far ahead to be believed."""
        dice = self._dice
        if dice.random() < 0.15:
            return None
        ahead_ms = 7_200_000 if dice.random() < 0.1 else 0
        return (self._base_ms + dice.randrange(6) * 250 + ahead_ms) * NS_PER_MS + dice.randrange(2)
