"""The usual cures on the same stream: each loses or doubles events, where Oncebridge does neither.

Each pattern is what people write, as a generator: it yields where another worker may come between, and a worker
may die just before its effect. The stream is simulated traffic, so which deliveries are one event is known.
"""

import json
import sqlite3
from collections import Counter, deque
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

import pytest

from oncebridge import Bridge, Settings
from oncebridge.clock import SystemClock
from oncebridge.ledgers.memory import MemoryLedger
from oncebridge.ledgers.sqlite.ledger import SQLiteLedger
from oncebridge.simulation import Road, simulate

SEEDS = (3, 5, 8)
WORKERS = 2
LEASE_US = 60_000_000
START_MS = 1_748_000_000_000  # long past, so that no stamp is ahead of anybody's clock


class Died(BaseException):
    """The worker is gone: nothing after this happens."""


@dataclass(eq=False)
class Line:
    """One delivery, as a naive consumer sees it, and which event it is."""

    n: int
    raw: bytes
    tree: dict
    event: str
    fresh: bool
    echo: bool
    #: When it arrives, as far as the envelopes tell.
    now_ms: int
    #: Whether the worker dies with it, the first time.
    crashes: bool

    @property
    def id(self):
        """The envelope id, since Genesys has no event id."""
        return self.tree["id"]

    @property
    def body(self):
        """What happened."""
        return self.tree["detail"]["eventBody"]

    @property
    def conversation(self):
        """The conversation, or whatever else the event is about."""
        return self.body.get("conversationId") or self.body.get("id") or self.tree["detail"]["topicName"]

    @property
    def time_ms(self):
        """The envelope's time, of whole seconds."""
        return int(datetime.fromisoformat(self.tree["time"]).timestamp()) * 1000


@cache
def stream(seed):
    """Return simulated traffic, in which every fortieth event that is new kills its worker."""
    road = Road(conflict=0, redelivery=0.2, overlapping_rule=0.2)
    lines, now_ms, facts = [], 0, 0
    for delivery in simulate(15, seed, road=road, start_ms=START_MS):
        line = Line(
            n=delivery.n,
            raw=delivery.raw,
            tree=json.loads(delivery.raw),
            event=delivery.of or delivery.id,
            fresh=delivery.verdict == "fresh",
            echo=delivery.verdict == "echo",
            now_ms=0,
            crashes=False,
        )
        line.now_ms = now_ms = max(now_ms, line.time_ms)
        if line.fresh and "v2.detail.events" in line.tree["detail-type"]:
            facts += 1
            line.crashes = facts % 40 == 0
        lines.append(line)
    return lines


@dataclass
class World:
    """What the patterns work with: a store, a process' memory, and somebody who counts the effects."""

    stored: dict = field(default_factory=dict)
    memory: dict = field(default_factory=dict)
    effects: Counter = field(default_factory=Counter)
    dead: set = field(default_factory=set)

    def get(self, key, line):
        """Return what is stored and has not expired."""
        value, until_ms = self.stored.get(key, (None, None))
        return None if until_ms is not None and until_ms <= line.now_ms else value

    def put(self, key, line, value=1, ttl_s=None):
        """Store a value for a while, or for good."""
        self.stored[key] = value, None if ttl_s is None else line.now_ms + ttl_s * 1000

    def take_effect(self, line):
        """Do what the event is for, or die before."""
        if line.crashes and line.n not in self.dead:
            self.dead.add(line.n)
            self.memory.clear()
            raise Died
        self.effects[line.event] += 1


# --- what people write ------------------------------------------------------------------------------------------


def get_then_set_on_the_conversation(world, line):
    """Look for the conversation in a cache, remember it for ten seconds, process."""
    if world.get(line.conversation, line):
        return
    yield
    world.put(line.conversation, line, ttl_s=10)
    yield
    world.take_effect(line)


def exists_then_put_on_the_event_id(world, line):
    """Look for the id in a table, write it, process."""
    if world.get(line.id, line):
        return
    yield
    world.put(line.id, line)
    yield
    world.take_effect(line)


def set_nx_then_process(world, line):
    """Set the id if it is not there, in one step, for ten minutes; then process."""
    if world.get(line.id, line):
        return
    world.put(line.id, line, ttl_s=600)
    yield
    world.take_effect(line)


def set_nx_on_type_and_resource(world, line):
    """Do the same, but know everything that is no conversation by its type and its resource's id."""
    key = line.id if "conversation" in line.tree["detail-type"] else (line.tree["detail-type"], line.conversation)
    if world.get(key, line):
        return
    world.put(key, line, ttl_s=600)
    yield
    world.take_effect(line)


def envelope_id_in_memory(world, line):
    """Keep the envelope ids in a set of the process."""
    if line.id in world.memory:
        return
    world.memory[line.id] = True
    yield
    world.take_effect(line)


def conditional_write(world, line):
    """Write the conversation's row if its time is smaller than this one's, which is the effect."""
    published = line.tree["detail"]["timestamp"]
    yield
    if (world.get(line.conversation, line) or "") < published:
        world.put(line.conversation, line, published)
        world.take_effect(line)


def newest_only(world, line):
    """Process only what is newer than the last of its conversation, by a map in memory."""
    if line.time_ms <= world.memory.get(line.conversation, 0):
        return
    world.memory[line.conversation] = line.time_ms
    yield
    world.take_effect(line)


def conversation_and_state_for_half_a_second(world, line):
    """Look for a hash of conversation and state, remember it for 500 milliseconds, process."""
    key = line.conversation, line.tree["detail-type"], str(line.body.get("status") or line.body.get("routingStatus"))
    if world.get(key, line):
        return
    world.put(key, line, ttl_s=0.5)
    yield
    world.take_effect(line)


def two_tiers(world, line):
    """Look for the envelope id; process unless the conversation is like this already; remember for five minutes."""
    if world.get(line.id, line):
        return
    yield
    if world.get(("final", line.conversation), line) != line.body:
        world.take_effect(line)
        world.put(("final", line.conversation), line, line.body)
    yield
    world.put(line.id, line, ttl_s=300)


#: Pattern, what it loses, what it doubles.
NAIVE = [
    (
        get_then_set_on_the_conversation,
        "every real change of a conversation within ten seconds, and whatever its worker dies with",
        "two invocations between get and set, and every retry after ten seconds",
    ),
    (
        exists_then_put_on_the_event_id,
        "whatever its worker dies with: the id is there, the effect is not",
        "two invocations between exists and put, and everything published again under a new id",
    ),
    (
        set_nx_then_process,
        "whatever its worker dies with: the retry finds the key and is taken for a duplicate",
        "everything published again under a new id, and every retry after ten minutes",
    ),
    (
        set_nx_on_type_and_resource,
        "every change of a user but the first within ten minutes",
        "everything published again under a new id",
    ),
    (
        envelope_id_in_memory,
        "",
        "everything published again under a new id, and everything that was in a memory that is gone",
    ),
    (
        conditional_write,
        "two changes in one millisecond, and every fact that arrives after a later one",
        "",
    ),
    (
        newest_only,
        "every second change within one second, and every fact that arrives after a later one",
        "what comes again after the memory is gone",
    ),
    (
        conversation_and_state_for_half_a_second,
        "two participants that do the same at once",
        "everything that comes again later than at once",
    ),
    (
        two_tiers,
        "equal readings of different moments",
        "two invocations before the end of the first, and everything published again or retried after five minutes",
    ),
]


def run_naive(pattern, lines):
    """Let two workers take turns at every step; who dies gets the same delivery again a little later."""
    world, waiting, at_work = World(), deque(lines), []
    while waiting or at_work:
        while waiting and len(at_work) < WORKERS:
            line = waiting.popleft()
            at_work.append((line, pattern(world, line)))
        for worker in list(at_work):
            line, steps = worker
            try:
                next(steps)
            except StopIteration:
                at_work.remove(worker)
            except Died:
                at_work.remove(worker)
                waiting.insert(min(5, len(waiting)), line)
    return world.effects


def losses_and_doubles(effects, lines):
    """Count the events that never took effect, and those that took it more than once."""
    wanted = [effects[line.event] for line in lines if line.fresh]
    return sum(number == 0 for number in wanted), sum(number > 1 for number in wanted)


@pytest.mark.parametrize(("pattern", "loses", "doubles"), NAIVE, ids=[row[0].__name__ for row in NAIVE])
def test_naive_pattern(pattern, loses, doubles):
    """The pattern loses and doubles what its row says, and nothing of a kind for which its row has no words."""
    counts = [losses_and_doubles(run_naive(pattern, stream(seed)), stream(seed)) for seed in SEEDS]
    lost, doubled = (sum(column) for column in zip(*counts, strict=True))
    assert bool(lost) == bool(loses), counts
    assert bool(doubled) == bool(doubles), counts


# --- Oncebridge on the same stream ------------------------------------------------------------------------------


class Mortal:
    """A ledger whose worker may be dead, and then writes nothing more."""

    alive = True

    def settle(self, settlements):
        """End claims, unless dead."""
        if not self.alive:
            raise Died
        return super().settle(settlements)


class MortalMemory(Mortal, MemoryLedger):
    """In memory."""


class MortalSQLite(Mortal, SQLiteLedger):
    """In a file."""


class Later(SystemClock):
    """A clock that can be moved on, past the lease of whoever died."""

    ahead_us = 0

    def now_us(self):
        """Return the time, moved on."""
        return super().now_us() + self.ahead_us


def run_oncebridge(ledger, clock, lines, size, *, take_effect=None, **settings):
    """Process the stream in batches; when the worker dies, start another, to which everything comes again."""
    effects, dead = Counter(), set()
    of_raw = {line.raw: line for line in reversed(lines)}  # of equal deliveries the first does the work

    def take(event, **more):
        line = of_raw[event.raw]
        if line.crashes and line.n not in dead:
            dead.add(line.n)
            ledger.alive = False
            raise Died
        if take_effect is None:
            effects[line.event] += 1
        else:
            take_effect(effects, line, event, **more)

    def take_in_transaction(event, transaction):
        take(event, transaction=transaction)

    waiting = [lines[at : at + size] for at in range(0, len(lines), size)]
    while waiting:
        ledger.alive = True
        bridge = Bridge(ledger, clock=clock, settings=Settings(**settings))
        bridge.on("*")(take_in_transaction if take_effect is in_the_transaction else take)
        try:
            while waiting:
                results = bridge.process_many([line.raw for line in waiting[0]])
                assert all(result.acknowledged for result in results)
                waiting.pop(0)
        except Died:
            clock.ahead_us += LEASE_US + 1
        finally:
            bridge.close()
    assert len(dead) == sum(line.crashes for line in lines) > 0
    return effects


def once_per_key(effects, line, event):
    """Take effect unless this key was seen, as a receiver does that honours idempotency keys."""
    effects.setdefault(("key", event.key), 0)
    if effects["key", event.key] == 0:
        effects["key", event.key] = 1
        effects[line.event] += 1


def in_the_transaction(effects, line, event, transaction):
    """Take effect in the transaction that settles."""
    transaction.execute("INSERT INTO effect VALUES (?)", (line.event,))


def wanted_effects(lines):
    """Return every event that must take effect, once."""
    return Counter({line.event: 1 for line in lines if line.fresh})


def assert_each_once(effects, lines):
    """Every event takes effect once. An echo that was claimed beside a worker's death may do so too: when in doubt."""
    wanted = wanted_effects(lines)
    doubtful = effects - wanted
    assert {event: effects[event] for event in wanted} == wanted
    assert doubtful.keys() <= {line.event for line in lines if line.echo}
    assert set(doubtful.values()) <= {1}
    assert len(doubtful) <= sum(line.crashes for line in lines)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("where", ["memory", "sqlite"])
@pytest.mark.parametrize(
    ("size", "settings"), [(1, {}), (10, {"settle_within_seconds": 0})], ids=["one by one", "batches settled at once"]
)
def test_oncebridge_on_the_same_stream(where, seed, size, settings, tmp_path):
    """Oncebridge loses nothing and doubles nothing on the stream on which the others do, whoever dies."""
    clock = Later()
    ledger = MortalMemory(clock) if where == "memory" else MortalSQLite(tmp_path / "once.db", clock)
    effects = run_oncebridge(ledger, clock, stream(seed), size, **settings)
    assert_each_once(effects, stream(seed))
    assert size > 1 or effects == wanted_effects(stream(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_oncebridge_with_keys_in_batches(seed):
    """A receiver that honours the key has every effect once, even where a worker dies in the middle of a batch."""
    clock = Later()
    effects = run_oncebridge(MortalMemory(clock), clock, stream(seed), 10, take_effect=once_per_key)
    assert_each_once(Counter({event: number for event, number in effects.items() if event[0] != "key"}), stream(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_oncebridge_in_the_transaction(seed, tmp_path):
    """In the transaction that settles, every effect is there exactly once, whoever dies."""
    clock = Later()
    with closing(sqlite3.connect(tmp_path / "once.db")) as db:
        db.execute("CREATE TABLE effect (event TEXT)")
        ledger = MortalSQLite(tmp_path / "once.db", clock)
        run_oncebridge(ledger, clock, stream(seed), 10, take_effect=in_the_transaction)
        effects = Counter(event for (event,) in db.execute("SELECT event FROM effect"))
    assert_each_once(effects, stream(seed))
