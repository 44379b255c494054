"""Random moves on a ledger and on the memory ledger side by side: whatever is asked, both must say the same.

The rules of `grants.py` are written once more in Lua and in SQL. The contract names them one by one; this looks for
combinations that nobody thought of: chains that end in part, replies that are lost, leases that run out, late settles.
A seed gives the same moves each time. An entity's data are random bytes, so that no write is like another.
"""

import random
import secrets
from hashlib import blake2b

from oncebridge.claim import Ask, Claim, Letter, Outcome, Settlement, Status
from oncebridge.clock import SystemClock
from oncebridge.identity import Moment
from oncebridge.ledgers.grants import expected_answer
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.protocol import Query

LONG_US = 3_600_000_000
GONE_US = 1  # over before anybody can ask again
NS_PER_MS = 1_000_000
AT_A_TIME = 14  # events that something may happen to; one by one, others take their place
HANDLERS = ("", "one")
ENTITIES = 2  # of each handler
MOVES = ("claim", "claim", "claim", "settle", "settle", "settle", "settle_late", "extend", "repeat")
OUTCOMES = (Outcome.DONE,) * 4 + (Outcome.RETRY, Outcome.RELEASE, Outcome.DEAD, Outcome.DISCARD)
STATE_OUTCOMES = (*OUTCOMES, Outcome.ECHO, Outcome.STALE)
LETTER = Letter(raw=b"{}", reason="because")


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
        self._held = []  # claims on both, in force or long lost: each a list, of one fact or of a chain
        self._unsettled = []  # the same, without those that were settled
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
        asks = [self._ask(number) for number in range(self._first + AT_A_TIME)]
        theirs, ours = ([self._seen(answer) for answer in self._expected(one, asks)] for one in self._pair)
        assert theirs == ours
        for look in (self._counts, self._letters, self._entries, self._entities):
            theirs, ours = (look(one) for one in self._pair)
            assert theirs == ours

    def _expected(self, ledger, asks):
        """Look at events, and decide what a claim of each would be answered."""
        return map(expected_answer, asks, ledger.look(asks))

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

    def _entities(self, ledger):
        """Claim every entity once more, for what its next worker would be given."""
        entities = [self._entity(handler, number) for handler in HANDLERS for number in range(ENTITIES)]
        asks = [Ask(key=digest(f"{self._seed} last of {entity.hex()}"), entity=entity) for entity in entities]
        return [self._seen(answer) for answer in ledger.claim(asks, nonce=b"the last", lease_us=LONG_US)]

    def _known(self, entry):
        known = (entry.handler, entry.status, entry.raw or b"", entry.reason)
        if not self._keeps_done and entry.status in (Status.DONE, Status.ECHO, Status.STALE):
            return known
        held = entry.status is Status.CLAIMED and entry.lease_until_us > 0
        return (*known, entry.attempts, entry.envelope or "", held)

    def _seen(self, answer):
        """Leave out what may differ: tokens and times, and for some who did the work."""
        of = answer.of if self._keeps_done else None
        chain = answer.chain and (answer.chain.top - answer.token, answer.chain.data, answer.chain.ran_out)
        return answer.verdict, answer.token > 0, answer.attempt, of, answer.was, answer.busy_us > 0, chain

    # --- moves -------------------------------------------------------------------------------------------------

    def _claim(self):
        events = range(self._first, self._first + AT_A_TIME)
        asks = [self._ask(number) for number in self._dice.sample(events, self._dice.randrange(1, 13))]
        self._calls.append((asks, secrets.token_bytes(8), self._dice.choice((LONG_US, GONE_US))))
        return self._ask_both(*self._calls[-1])

    def _repeat(self):
        """Ask once more under the nonce of an earlier call, as after a lost reply."""
        return self._ask_both(*self._dice.choice(self._calls[-3:])) if self._calls else (None, None)

    def _ask_both(self, asks, nonce, lease_us):
        answers = [one.claim(asks, nonce=nonce, lease_us=lease_us) for one in self._pair]
        granted = {}
        for ask, *pair in zip(asks, *answers, strict=True):
            if all(answer.token for answer in pair):
                claims = tuple(Claim(ask, answer.token, answer.attempt, answer.chain) for answer in pair)
                granted.setdefault(ask.entity or (ask.key, ask.handler), []).append(claims)
        self._held += granted.values()
        self._unsettled += [list(pairs) for pairs in granted.values()]
        return tuple([self._seen(answer) for answer in each] for each in answers)

    def _settle(self):
        """End the next states of some chains, in order; the last state of a chain frees its entity."""
        ends = []
        for pairs in self._some(self._unsettled):
            ends += [self._end(pairs.pop(0), frees=not pairs) for _ in range(self._dice.randint(1, len(pairs)))]
            if not pairs:
                self._unsettled.remove(pairs)
        return self._settle_both(ends)

    def _settle_late(self):
        """End any claims, settled, lost or in force, in any way."""
        pairs = [self._dice.choice(pairs) for pairs in self._some(self._held)]
        return self._settle_both([self._end(pair, frees=self._dice.random() < 0.5) for pair in pairs])

    def _settle_both(self, ends):
        return tuple(one.settle([end[at] for end in ends]) for at, one in enumerate(self._pair))

    def _end(self, pair, *, frees):
        """Make the same end for both ledgers' claims."""
        is_state = pair[0].chain is not None
        outcome = self._dice.choice(STATE_OUTCOMES if is_state else OUTCOMES)
        letter = LETTER if outcome is Outcome.DEAD else None
        data = self._dice.randbytes(self._dice.choice((0, 1, 40))) if is_state else b""
        return [Settlement(claim, outcome, 5_000_000, letter, data, frees) for claim in pair]

    def _extend(self):
        held = [self._dice.choice(pairs) for pairs in self._some(self._held)]
        lease_us = self._dice.choice((LONG_US, GONE_US))
        return tuple(one.extend([pair[at] for pair in held], lease_us=lease_us) for at, one in enumerate(self._pair))

    def _some(self, claims):
        """Pick facts and chains, the latest most often; each event and each entity once."""
        dice = self._dice
        among = claims[-8:] if dice.random() < 0.7 else claims
        picked = {}
        for pairs in dice.sample(among, min(len(among), dice.randint(1, 4))):
            asks = [pair[0].ask for pair in pairs]
            names = {name for ask in asks for name in ((ask.key, ask.handler), ask.entity) if name is not None}
            if not names & set(picked):
                picked |= dict.fromkeys(names, pairs)
        return list({id(pairs): pairs for pairs in picked.values()}.values())

    # --- asks --------------------------------------------------------------------------------------------------

    def _key(self, number):
        return digest(f"{self._seed} event {number}")

    def _entity(self, handler, number):
        """Return an entity, which each handler has for itself."""
        return digest(f"{self._seed} entity {number} of {handler}")

    def _ask(self, number):
        """Ask for an event: what belongs to its identity is the same each time, the rest is as it comes."""
        dice, fixed = self._dice, random.Random(f"{self._seed} {number}")
        shared_ms = fixed.choice((None, self._base_ms, self._base_ms, 10**13, 0))
        is_state = fixed.random() < 0.7
        has_content = fixed.random() < 0.3
        handler = fixed.choice(HANDLERS)
        fields = {
            "handler": handler,
            "envelope": dice.choice((None, "one", "two")),
            "content": digest(dice.choice("aab")) if has_content and dice.random() < 0.8 else None,
            "topic": "topic",
            "time_ms": shared_ms,
            # An explicit id stands alone: its time is not what its deliveries share.
            "shared_ms": None if has_content else shared_ms,
        }
        if is_state:
            fields |= {
                "entity": self._entity(handler, number % ENTITIES),
                "state": digest(dice.choice("xy")),
                "moment": dice.choice([*self._moments, self._moment()]),
                "echo_window_ns": dice.choice((0, 500, 500)) * NS_PER_MS,
                "stale": dice.random() < 0.9,
            }
        redrive = dice.random() < 0.15
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
