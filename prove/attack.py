"""Rounds one after another until as many faults have struck as were asked for; each is judged by itself."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prove import exact
from prove.checks import Judgement, judge, read_notes
from prove.faults import EFFECTS_MAX, HARMLESS, WHERES, Fault, Kind, Where, make_faults
from prove.places import kind_of
from prove.round import PATIENCE_SECONDS, Round, Told, each_in_child, in_child
from prove.stream import Stream, make_returns, make_stream
from prove.worker import CLAIMS, Conditions, Notes, Program, Strikes, worker

if TYPE_CHECKING:
    from oncebridge import Bridge

FAULTS_PER_ROUND: Final = 8
#: A lease of this length ends only with its worker, however slow the machine is.
LONG_LEASE_SECONDS: Final = 10.0
WORKERS: Final = 2
#: Of all rounds: those whose workers forget what was settled long ago, of which there is nothing. Redis and DynamoDB
#: look through all that the rounds before have left, so there it is done less often.
PURGING_SHARE: Final = {"sqlite": 0.2, "postgres": 0.2, "redis": 0.05, "dynamodb": 0.02}
#: Of all rounds: those whose handlers fail at the first attempt of some events.
FAILING_SHARE: Final = 0.25
#: Of all rounds: those in which the ledger is asked about each acknowledgement.
LOOKING_SHARE: Final = 0.2
#: Of the rounds whose stream nobody has chosen: those of entities that change back, of which some states are echoes;
#: and those whose ends are settled several in a call, since no transaction comes between them.
RETURNING_SHARE: Final = 0.2
TOGETHER_SHARE: Final = 0.3
NUMBER: Final = re.compile(r"\d[\d.]*")
#: Words of lines that say what befell a worker, or the servers and the network.
STRUCK: Final = ("fault", "trouble")


@dataclass(frozen=True)
class Attack:
    """What is to be done to workers."""

    kinds: tuple[Kind, ...]
    ledger: str
    url: str
    folder: Path
    seed: int
    spoil: Callable[[Bridge], None] | None = None
    way_in: str = "process_many"
    #: Gives a round to workers; a way in that is a command has its own.
    drive: Callable[[Conditions, Stream, Sequence[Fault], int], Told] | None = None
    #: Where claims are lent out, for workers that come by HTTP.
    service: str = ""
    #: Whether effects are written in the ledger's transaction, too, where it has one.
    exact: bool = True
    faults: int = FAULTS_PER_ROUND
    lease_seconds: float = 0.3
    #: That keys are made with, where the ledger may forget its own.
    secret: bytes | None = None
    #: Of a round's stream, where it is to be longer than usual.
    sizes: Mapping[str, int] = field(default_factory=dict)
    wheres: tuple[Where, ...] = WHERES
    #: At which effect of a life a fault strikes at the latest.
    effects_max: int = EFFECTS_MAX
    make_stream: Callable[..., Stream] | None = None
    #: How long a round may take, beside a second for each fault.
    patience_seconds: float = PATIENCE_SECONDS
    settle_within_seconds: float = 0.001
    effect_seconds: float = 0.0
    program: Program | None = None
    inherit: bool = False
    #: Called once in the middle of a round, while no worker is at work; with the URL.
    between: Callable[[str], None] | None = None
    #: Called before the second pass: waits for the end of what was begun then.
    after: Callable[[], None] | None = None
    #: In how many rounds workers purge; the usual share otherwise.
    purging_share: float | None = None
    #: Whether each acknowledgement is looked at; in some rounds otherwise.
    looks: bool = False
    #: Whether nothing befalls workers that could excuse a double, although leases are short.
    calm: bool = False
    #: Rounds that run beside each other: most of a round is spent waiting for leases and disks.
    at_once: int = 1

    @property
    def is_varied(self) -> bool:
        """Whether its rounds are of several kinds: nobody has chosen one."""
        return self.make_stream is None and self.drive is None and not self.sizes


@dataclass
class Failure:
    """A round in which a promise was broken."""

    name: str
    broken: dict[str, int]
    faults: list[str]
    history: list[str]


@dataclass
class Tally:
    """What all rounds came to."""

    rounds: int = 0
    deliveries: int = 0
    events: int = 0
    #: Those that had effects in transactions, too.
    in_transaction: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    #: The same in full, as it stands in the histories.
    strikes: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    doubled_plain: int = 0
    #: Effects in second passes, which a ledger that forgets cannot prevent.
    again: int = 0
    #: Workers that ended with an error of their own.
    failed: int = 0
    columns: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    #: The same as they were said, with the advice in them.
    said: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """Return how many faults struck."""
        return sum(self.struck.values())

    def told(self) -> dict[str, Any]:
        """Tell everything, for JSON."""
        return {**vars(self), "failures": [asdict(one) for one in self.failures]}

    def add(self, told: Mapping[str, Any]) -> None:
        """Add what another came to, as JSON tells it; the time is this one's own."""
        for name, found in told.items():
            mine = getattr(self, name)
            if isinstance(mine, Counter):
                mine.update(found)
            elif name == "failures":
                mine += [Failure(**one) for one in found]
                mine.sort(key=lambda one: (len(one.name), one.name))  # whichever round ended first
            elif name != "seconds":
                setattr(self, name, mine + found)


def attack(plan: Attack, amount: int, *, seconds: float, until_broken: bool = False) -> Iterator[Tally]:
    """Run rounds until this many faults have struck, or the time is over; yield the tally after each."""
    tally, begun = Tally(), time.monotonic()

    def rounds() -> Iterator[Callable[[], dict[str, Any]]]:
        for number in count():
            if tally.faults >= amount or time.monotonic() - begun >= seconds or (until_broken and tally.failures):
                return
            yield partial(_one_round, plan, f"{plan.seed}-{number}")

    for found in each_in_child(rounds(), plan.at_once):
        tally.add(found)
        tally.seconds = time.monotonic() - begun
        yield tally


def _one_round(plan: Attack, name: str) -> dict[str, Any]:
    faults = make_faults(random.Random(f"{plan.seed} {name}"), plan.kinds, plan.faults, plan.wheres, plan.effects_max)
    judgement, told, stream, history = run_round(plan, name, faults)
    tally = Tally()
    add_round(tally, judgement, told, stream, history)
    if judgement.broken:
        tally.failures.append(Failure(name, judgement.broken, [str(fault) for fault in faults], history))
    return tally.told()


def add_round(
    tally: Tally,
    judgement: Judgement,
    told: Told,
    stream: Stream,
    history: Sequence[str],
    *,
    broken: Mapping[str, int] | None = None,
) -> None:
    """Add a round; what was broken in it is for the judgement to say, unless a setting promises less."""
    tally.rounds += 1
    tally.deliveries += len(stream.arrivals)
    tally.events += len(stream.events)
    tally.in_transaction += len(stream.events) if judgement.exact else 0
    strikes = [words[3] for words in (line.split(" ") for line in history) if words[2] in STRUCK]
    tally.strikes.update(strikes)
    tally.struck.update(strike.partition("_")[0] for strike in strikes)
    tally.broken.update(judgement.broken if broken is None else broken)
    tally.doubled_plain += judgement.doubled_plain
    tally.again += judgement.again
    tally.columns.update(told.columns)
    # By their first words: ports and seconds differ each time.
    for trouble, times in told.troubles.items():
        tally.troubles[NUMBER.sub("N", trouble.partition(";")[0])] += times
        tally.said[NUMBER.sub("N", trouble)] += times
    tally.failed += told.failed


def run_round(plan: Attack, name: str, faults: Sequence[Fault]) -> tuple[Judgement, Told, Stream, list[str]]:
    """Run one round with these faults, and judge it."""
    kind = random.Random(f"{name} kind").random()
    is_exact = plan.exact and kind_of(plan.ledger) in exact.LEDGERS and plan.way_in != CLAIMS
    if plan.is_varied:
        is_exact = is_exact and not RETURNING_SHARE <= kind < RETURNING_SHARE + TOGETHER_SHARE
    # A round of its own each time: what an earlier try of the same round left must not help this one.
    unique = f"{name}-{time.monotonic_ns():x}"
    notes = plan.folder / f"{unique}.notes"
    conditions = Conditions(
        url=plan.url, name=unique, notes=notes, exact=is_exact, spoil=plan.spoil, way_in=plan.way_in,
        lease_seconds=plan.lease_seconds, service=plan.service, secret=plan.secret, program=plan.program,
        inherit=plan.inherit, settle_within_seconds=plan.settle_within_seconds, effect_seconds=plan.effect_seconds,
        purges=random.Random(f"{name} purges").random() < _purging_share(plan),
        fails=plan.make_stream is None and random.Random(f"{name} fails").random() < FAILING_SHARE,
        looks=plan.looks or random.Random(f"{name} looks").random() < LOOKING_SHARE,
    )  # fmt: skip
    make = make_returns if plan.is_varied and kind < RETURNING_SHARE else plan.make_stream or make_stream
    stream = make(plan.seed, name, called=unique, **plan.sizes)
    told = (
        plan.drive(conditions, stream, faults, plan.seed) if plan.drive else _by_calls(plan, conditions, stream, faults)
    )
    if plan.after:
        plan.after()
    calm = plan.calm or (plan.lease_seconds >= LONG_LEASE_SECONDS and {fault.kind for fault in faults} <= set(HARMLESS))
    judgement, history = judge_round(conditions, stream, told, undisturbed=calm)
    return judgement, told, stream, history


def _purging_share(plan: Attack) -> float:
    return PURGING_SHARE[kind_of(plan.ledger)] if plan.purging_share is None else plan.purging_share


def judge_round(
    conditions: Conditions, stream: Stream, told: Told, *, undisturbed: bool = False
) -> tuple[Judgement, list[str]]:
    """Judge what lies outside the program after a round, and tell what happened; what it had written is gone then."""
    notes, again = conditions.notes, conditions.notes.with_suffix(".again")
    seen = read_notes(notes)
    if not told.stuck:
        seen.again = in_child(lambda: _second_pass(replace(conditions, notes=again), stream))
    if conditions.exact:
        found: dict[str, Any] = in_child(lambda: exact.counted(conditions.url, conditions.name))
        seen.exact = {int(number): times for number, times in found.items()}
    notes.unlink(missing_ok=True)
    again.unlink(missing_ok=True)
    judgement = judge(stream.events, seen, stuck=told.stuck, unbalanced=told.unbalanced, undisturbed=undisturbed)
    return judgement, seen.history


def _by_calls(plan: Attack, conditions: Conditions, stream: Stream, faults: Sequence[Fault]) -> Told:
    between = plan.between
    return Round(
        conditions,
        stream,
        faults,
        plan.seed,
        WORKERS,
        patience_seconds=plan.patience_seconds,
        between=between and (lambda: between(conditions.url)),
    ).run()


def _second_pass(conditions: Conditions, stream: Stream) -> int:
    """Deliver every event once more, in a process of its own; return how many of them took effect again."""
    notes = Notes(conditions.notes)
    with worker(conditions, Strikes(None, notes), notes) as process:
        process([raw for _, raw in dict(stream.arrivals).items()])
    return len(read_notes(conditions.notes).effects)
