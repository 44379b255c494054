"""The parts of the proof. Each is one line here, and a function that takes options and returns an outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

from prove.outcome import Options, Outcome
from prove.places import kind_of

SERVERS: Final = ("sqlite", "redis", "postgres")
ALL: Final = (*SERVERS, "dynamodb")
#: Ledgers at the other end of a network.
WIRES: Final = ("redis", "postgres", "dynamodb")
NONE: Final = ("",)


@dataclass(frozen=True)
class Part:
    """One part: what it does, on which ledgers, and how much of it."""

    name: str
    title: str
    #: `module:function` in this package, imported when it is needed.
    runs: str
    amount: int
    unit: str
    ledgers: tuple[str, ...] = SERVERS
    #: On ledgers where it is less: DynamoDB's emulator is slow.
    less: Mapping[str, int] = field(default_factory=dict)

    #: Whether it attacks a ledger that is there; otherwise its servers are a part of it.
    takes_url: bool = True

    def is_for(self, ledger: str) -> bool:
        """Whether it can be run on this ledger."""
        return kind_of(ledger) in self.ledgers and (self.takes_url or ":" not in ledger)

    def run(self, options: Options) -> Outcome:
        """Run it."""
        module, _, function = self.runs.partition(":")
        run: Callable[[Options], Outcome] = getattr(import_module(f"prove.parts.{module}"), function)
        return run(options)

    def amount_on(self, ledger: str) -> int:
        """Return how much a whole proof has of it."""
        return self.less.get(kind_of(ledger), self.amount)


PARTS: Final = {
    part.name: part
    for part in (
        Part("kill", "workers killed at random points, around every call, and between events of a chain",
             "workers:kill", 10_000, "kills", ALL, {"dynamodb": 2_000}),
        Part("stop", "workers stopped past their lease and continued, failing and succeeding, inside chains too",
             "workers:stop", 2_000, "stops", ALL),
        Part("ways-in", "workers killed and stopped by way of process, files, consume, serve, claims over HTTP, Lambda",
             "ways_in:ways_in", 1_000, "faults"),
        Part("interrupts", "Ctrl-C, alarms, time limits and exceptions of threads, at every place where one can strike",
             "interrupts:interrupts", 100_000, "strikes", ALL, {"dynamodb": 5_000}),
        Part("forks", "forks before and after use, in handlers, from threads, and beside a sink's connections",
             "forks:forks", 2_000, "forks", ALL, {"dynamodb": 500}),
        Part("network", "replies lost, delayed, cut, dripped, connections half open, requests that never arrive",
             "networks:strike_replies", 6_000, "strikes", WIRES),
        Part("restarts", "Postgres killed, crashed and stopped every 5 to 20 seconds, while workers are killed",
             "restarts:restart", 20_000, "events", ("postgres",), takes_url=False),
        Part("redis", "Redis killed (AOF always, everysec, off), emptied, flushed, and its scripts forgotten",
             "redises:trouble_redis", 800, "troubles", ("redis",), takes_url=False),
        Part("failover", "masters paused, killed and cut off from their sentinels, and a cluster that moves its slots",
             "failovers:fail_over", 250, "troubles", ("redis",), takes_url=False),
        Part("clocks", "workers' clocks ten minutes apart and stepping, while workers die and stop",
             "clocks:clocks", 20_000, "steps", ALL, {"sqlite": 3_000}),
        Part("resources", "no room on the disk, in memory, for connections, files and handles; files that are gone",
             "resources:resources", 420, "shortages", ALL, {"dynamodb": 100}, takes_url=False),
        Part("outage", "the ledger away and silent while 200 deliveries a second arrive, then slow with 30 % errors",
             "outage:outage", 600, "seconds", ALL),
        Part("fuzz", "spoiled input to parser, unwrapper, captures, HTTP, console, settings; bounds on time and memory",
             "fuzz:fuzz", 1_000_000, "inputs", NONE),
        Part("soak", "a day of traffic, compressed: memory, handles, threads and connections of every command are flat",
             "soak:soak", 300_000, "deliveries", ("redis", "sqlite")),
        Part("poison", "planted events by every way in: other senders, copies, ids, times and versions made up",
             "poison:poison", 10_000, "planted"),
        Part("canaries", "personal data and secrets through every path, crashes too: shown to nobody who did not ask",
             "canaries:canaries", 50, "canaries", ALL),
        Part("controls", "wrong programs: what people write by hand, and ours with a single check taken out",
             "controls:controls", 20, "seeds"),
        Part("contenders", "64 processes that contend for one event, and for one entity: one holder, rising tokens",
             "contenders:contenders", 10_000, "contests", ALL, {"dynamodb": 500}),
        Part("schedules", "schedules drawn by a seed: two to five workers, chains, every fault, on the real rules",
             "schedules:schedules", 1_000_000, "schedules", NONE),
        Part("exploration", "every order of two workers' steps and faults, on the real rules",
             "exploring:explore_all", 5_000_000, "states", NONE),
        Part("specification", "every state of small worlds of the specification, and each of its rules left out",
             "specification:check_specification", 150_000, "states", NONE),
        Part("conformance", "every step of the explored code is one that the specification allows: facts, and order",
             "specification:compare_order", 199_770, "steps", NONE),
        Part("conformance-echoes", "the same, of a state that comes again",
             "specification:compare_echoes", 160_410, "steps", NONE),
        Part("conformance-returns", "the same, of a state that comes again after another",
             "specification:compare_returns", 244_025, "steps", NONE),
    )
}  # fmt: skip
