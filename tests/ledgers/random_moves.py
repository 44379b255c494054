"""Random moves on a ledger and on the memory ledger side by side: whatever is asked, both must say the same.

The rules of `claim.py` are written once more in Lua and in SQL. The contract names them one by one; this
looks for combinations that nobody thought of.
"""

import random
import secrets
from hashlib import blake2b

from msgspec.structs import replace

from oncebridge.claim import Answer, Ask, Claim, Letter, Outcome, Settlement
from oncebridge.clock import SystemClock
from oncebridge.identity import Moment
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.protocol import Query

LONG_US = 600_000_000
GONE_US = 1  # over before anybody can ask again
BASE_MS = 1_790_000_000_000
MOVES = ("claim", "claim", "claim", "settle", "settle", "extend", "repeat")


def digest(name):
    """Return a key as identities give them."""
    return blake2b(name.encode(), digest_size=16).digest()


class SideBySide:
    """Makes each move on both, and compares."""

    def __init__(self, ledger, seed):
        """Take an opened and empty ledger."""
        self._dice = random.Random(seed)
        self._pair = (ledger, MemoryLedger(SystemClock()))
        self._pair[1].open(None)
        self._held = []  # claims on both, in force or long lost
        self._last_call = None

    def run(self, moves):
        """Make so many moves; the first difference fails."""
        for number in range(moves):
            move = self._dice.choice(MOVES)
            theirs, ours = getattr(self, f"_{move}")()
            assert theirs == ours, f"move {number}, {move}"
        counted = [{status: number for status, number in one.counts().items() if number} for one in self._pair]
        assert counted[0] == counted[1]
        letters = [sorted(entry.key for entry in one.scan(Query(letters=True))) for one in self._pair]
        assert letters[0] == letters[1]

    # --- moves -------------------------------------------------------------------------------------------------

    def _claim(self):
        picked, entities = {}, set()
        for _ in range(self._dice.randint(1, 6)):
            ask = self._ask()
            if ask.key not in picked and ask.entity not in entities:
                picked[ask.key] = ask
                if ask.entity:
                    entities.add(ask.entity)
        asks = list(picked.values())
        if len(asks) == 1 and self._dice.random() < 0.7:
            asks = [replace(asks[0], alone=True)]
        lease_us = self._dice.choice((LONG_US, GONE_US))
        self._last_call = (asks, secrets.token_bytes(8), lease_us)
        return self._ask_both(*self._last_call)

    def _repeat(self):
        """Ask once more under the nonce of the last call, as after a lost reply."""
        return self._ask_both(*self._last_call) if self._last_call else (None, None)

    def _ask_both(self, asks, nonce, lease_us):
        answers = [one.claim(asks, nonce=nonce, lease_us=lease_us) for one in self._pair]
        for ask, *pair in zip(asks, *answers, strict=True):
            if all(answer.token for answer in pair):
                self._held.append(tuple(Claim(ask, answer.token, answer.attempt) for answer in pair))
        return tuple([_seen(answer) for answer in each] for each in answers)

    def _settle(self):
        held = self._some_held()
        outcomes = [self._dice.choice([*Outcome]) for _ in held]
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
        picked, entities = {}, set()
        for pair in self._dice.sample(self._held, min(len(self._held), self._dice.randint(1, 4))):
            ask = pair[0].ask
            if (ask.key, ask.handler) not in picked and ask.entity not in entities:
                picked[ask.key, ask.handler] = pair
                if ask.entity:
                    entities.add(ask.entity)
        return list(picked.values())

    # --- asks --------------------------------------------------------------------------------------------------

    def _ask(self):
        dice = self._dice
        name = f"{dice.randint(0, 15)}"
        # The same event always has the same identity, and with it kind, times and state.
        fixed = random.Random(f"{name} {id(self._pair)}")
        time_ms = BASE_MS + fixed.choice((0, 1, 500, 501))
        kind = fixed.choice(("fact", "explicit", "state", "state", "state", "state"))
        fields = {"envelope": dice.choice((None, "one", "two")), "topic": "t", "time_ms": time_ms, "shared_ms": time_ms}
        if kind == "explicit":
            fields |= {"shared_ms": None, "content": digest(dice.choice("ab"))}
        if kind == "state":
            fields |= self._state(fixed, time_ms)
        redrive = dice.random() < 0.2
        return Ask(key=digest(name), **fields, redrive=redrive, force=redrive and dice.random() < 0.5)

    def _state(self, fixed, time_ms):
        times = [time_ms * 1_000_000 + fixed.choice((0, 0, 7)), None, (time_ms + fixed.choice((-1, 0, 1))) * 1_000_000]
        if fixed.random() < 0.2:
            times[0] = None
        elif fixed.random() < 0.1:
            times[0] = (SystemClock().now_us() + 3_600_000_000) * 1000  # not believed
        return {
            "entity": digest(f"entity {fixed.randint(0, 1)}"),
            "state": digest(fixed.choice("xy")),
            "moment": Moment(
                tuple(times[: fixed.choice((1, 3, 3))]),
                fixed.choice((None, None, None, None, None, 1, 2**60, 2**60 + 1)),
                fixed.random() < 0.9,
            ),
            "echo_window_ns": 500_000_000,
            "stale": fixed.random() < 0.9,
        }


def _seen(answer):
    """Leave out what may differ: tokens and times."""
    assert isinstance(answer, Answer)
    return answer.verdict, answer.token > 0, answer.attempt, answer.was, answer.busy_us > 0
