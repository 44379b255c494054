"""Programs that are known to be wrong, under the same stream, faults and judge: each must be caught, each time.

For each seed the broken program is attacked until the judge finds what the missing check lets happen; then the sound
program gets the same rounds, in which nothing may be found.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from prove.attack import LONG_LEASE_SECONDS, Attack, Tally, attack
from prove.by_hand import content, envelope_id, look_process_set, powertools, set_nx_then_process
from prove.mishaps import Place, failing_over, replace_file
from prove.outcome import Options, Outcome
from prove.places import kind_of, place_beside, place_of, prepare
from prove.removals import Edit, remove
from prove.round import each_in_child, in_child
from prove.shrink import readable
from prove.stream import make_copies, make_returns
from prove.worker import Program

#: A control that was not caught in so many rounds was not caught.
ROUNDS_MAX: Final = 60
SECONDS_MAX: Final = 120.0
SEEDS_AT_ONCE: Final = 4
LOST: Final = "lost"
DOUBLED: Final = "doubled under another key"
AT_ONCE: Final = "doubled without a fault"
STALE: Final = "stale settles"
NOT_NEWEST: Final = "not the newest state"
STUCK: Final = "never acknowledged"
VAIN: Final = "acknowledged in vain"
AGAIN: Final = "processed again after all was done"
BROKE_DOWN: Final = "workers that broke down"

#: Sizes of a stream: states of few entities and nothing else, so that most batches have a chain of several.
CHAINS: Final = {"facts": 0, "entities": 2}
ZOMBIES: Final = {
    "kinds": ("stop",), "wheres": ("before settle",), "faults": 4, "sizes": {"facts": 20, "entities": 0},
    "exact": False,
}  # fmt: skip
IN_CHAINS: Final = {
    "kinds": ("stop",), "wheres": ("before effect",), "sizes": CHAINS, "effect_seconds": 0.1, "faults": 4,
    "effects_max": 3,
}  # fmt: skip
DEATHS: Final = {"kinds": ("kill",), "wheres": ("after claim", "before effect")}
#: Nothing but slow handlers, under leases that no slow handler loses.
SLOW: Final = {"kinds": ("pause",), "wheres": ("before effect",), "lease_seconds": LONG_LEASE_SECONDS}
#: Handlers that outlast their lease, which only its extension makes up for.
LONG: Final = {
    "kinds": ("pause",), "faults": 0, "lease_seconds": 2.0, "effect_seconds": 3.0, "calm": True,
    "make_stream": make_copies,
}  # fmt: skip
#: Zombies that come back while another works on what was theirs.
TAKEN_OVER: Final = {
    "kinds": ("stop",), "wheres": ("after effect",), "faults": 1, "effects_max": 1, "effect_seconds": 0.3,
    "sizes": {"facts": 1, "entities": 0}, "exact": False, "looks": True,
}  # fmt: skip
#: The ledger is out of a worker's reach once it has had an effect, and until its lease is over.
CUT_OFF: Final = {
    "kinds": ("away",), "wheres": ("before settle",), "faults": 2, "sizes": {"facts": 4, "entities": 0}, "exact": False,
    "looks": True,
}  # fmt: skip
PURGED: Final = {"kinds": ("kill",), "faults": 4, "purging_share": 1.0}
LOST_REPLIES: Final = {
    "kinds": ("lose",), "wheres": ("after claim",), "lease_seconds": 60.0, "patience_seconds": 4.0, "faults": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Control:
    """One wrong program, and the faults under which it is caught."""

    name: str
    #: Beside the figures of which part it stands: the one whose faults it meets.
    beside: str
    #: Promises, each of which it breaks; one of them is enough.
    breaks: tuple[str, ...]
    #: What befalls it: fields of an attack.
    attack: Mapping[str, Any]
    #: What is taken out, by ledger; "" for all of them.
    removed: Mapping[str, Sequence[Edit]] = field(default_factory=dict)
    program: Program | None = None
    #: Servers of its own: where they are, and what befalls them in the middle of a round.
    place: Callable[[Path], AbstractContextManager[Place]] | None = None

    def is_for(self, ledger: str) -> bool:
        """Whether it exists on this kind of ledger. People write their own programs on Redis."""
        return ledger == "redis" if self.program else bool({ledger, ""} & self.removed.keys())

    def edits(self, ledger: str) -> list[Edit]:
        """Return what is taken out on a ledger."""
        return [*self.removed.get("", ()), *self.removed.get(ledger, ())]


_GRANTS = "oncebridge.ledgers.grants:"
_ROWS = "oncebridge.ledgers.sqlite.rows:"
_FILES = "oncebridge.ledgers.sqlite.files:Files.are_still"
_OWN_CLAIM = "\n    and sub(record, TOKEN_AT, LEASE_AT - 1) == sub(settlement, TOKEN, TOKEN_END)"

CONTROLS: Final = (
    Control("SET NX, then process", "kill", (LOST,), DEATHS, program=set_nx_then_process),
    Control("look, process, set, with a perfect key", "contenders", (AT_ONCE,), SLOW, program=look_process_set),
    Control("Powertools, keyed on the envelope id", "ways-in", (DOUBLED,), SLOW, program=powertools("id", envelope_id)),
    Control("Powertools, with a perfect key", "ways-in", (NOT_NEWEST,), SLOW, program=powertools("detail", content)),
    Control(
        "without the token",
        "stop",
        (STALE,),
        ZOMBIES,
        {
            "sqlite": (
                Edit(f"{_GRANTS}settle_claim", "record is None or record.token != claim.token", "record is None"),
                Edit(f"{_ROWS}_SETTLE_USUAL", "AND token = ?", "AND ? > 0"),
            ),
            "redis": (
                Edit("redis/settle", _OWN_CLAIM, ""),
                Edit("redis/settle_rare", _OWN_CLAIM, ""),
                Edit("redis/settle_rare", " and sub(short, 5, 7) == sub(settlement, TOKEN_END - 2, TOKEN_END)", ""),
            ),
            "postgres": (
                Edit("postgres/settle", "record.token = excluded.token AND ", ""),
                Edit("postgres/settle", "AND event.token = claim.token AND event.status", "AND event.status"),
            ),
        },
    ),
    Control(
        "without the top token",
        "stop",
        (NOT_NEWEST, STALE),
        IN_CHAINS,
        {
            "sqlite": (
                Edit(f"{_GRANTS}settle_claim", "(entity is None or entity.token != claim.chain.top)", "entity is None"),
                Edit(f"{_GRANTS}extend_claim", "entity.token != claim.chain.top or ", ""),
                Edit(f"{_ROWS}_SETTLE_ENTITY", "AND token = ?", "AND ? > 0"),
                Edit(f"{_ROWS}_FREE_ENTITY", "AND token = ?", "AND ? > 0"),
            ),
            "redis": (
                Edit("redis/settle_rare", "if chain.top ~= sub(settlement, TOP, TOP_TO) then return false end", ""),
                Edit("redis/extend", "or sub(text, 1, TOP_END) ~= top ", ""),
            ),
            "postgres": (
                Edit("postgres/settle", "entity.token = claimed.top", "claimed.top > 0"),
                Edit("postgres/settle", "AND token = tops[place] AND lease", "AND tops[place] > 0 AND lease"),
            ),
        },
    ),
    Control(
        "without the nonce: no repeat is known",
        "network",
        (STUCK,),
        LOST_REPLIES,
        {
            "sqlite": (
                Edit(f"{_GRANTS}claim_fact", "record.nonce == call.nonce", "False"),
                Edit(f"{_GRANTS}claim_chain", "entity.nonce == call.nonce", "False"),
            ),
            "redis": (
                Edit("redis/claim_rare", "sub(record, NONCE_AT, TOKEN_AT - 1) == NONCE", "false"),
                Edit("redis/claim_rare", "sub(text, HOLDER_AT, HOLDER_END) == NONCE", "false"),
            ),
            "postgres": (
                Edit("postgres/claim", "WHEN event.nonce = look_at.nonce THEN 'own'\n", "WHEN false THEN 'own'\n"),
                Edit("postgres/claim", "entity.lease_until_us <> 0 AND entity.nonce = look_at.nonce", "false"),
            ),
        },
    ),
    Control(
        "without the nonce: every call is a repeat",
        "contenders",
        (AT_ONCE,),
        SLOW,
        {
            "sqlite": (
                Edit(f"{_GRANTS}claim_fact", "record.nonce == call.nonce", "True"),
                Edit(f"{_GRANTS}claim_chain", "entity.nonce == call.nonce", "True"),
                Edit(f"{_GRANTS}_granted_again", " and record.nonce == call.nonce", ""),
            ),
            "redis": (
                Edit("redis/claim_rare", "sub(record, NONCE_AT, TOKEN_AT - 1) == NONCE", "true"),
                Edit("redis/claim_rare", "sub(text, HOLDER_AT, HOLDER_END) == NONCE", "true"),
            ),
            "postgres": (
                Edit("postgres/claim", "WHEN event.nonce = look_at.nonce THEN 'own'\n", "WHEN true THEN 'own'\n"),
            ),
        },
    ),
    Control(
        "without the doubt after a lease ran out",
        "kill",
        (NOT_NEWEST,),
        {"kinds": ("kill",), "wheres": ("after effect",), "make_stream": make_returns, "effects_max": 8},
        {"": (Edit("oncebridge.claim:newest_of", "chain.ran_out and", "False and"),)},
    ),
    Control(
        "frees an entity before its chain has ended",
        "contenders",
        (AT_ONCE,),
        SLOW | {"settle_within_seconds": 0.0, "sizes": CHAINS},
        {
            "sqlite": (
                Edit(f"{_GRANTS}settle_claim", "if settlement.frees else left", "if True else left"),
                Edit(f"{_ROWS}_settle_usual", "if one.frees is frees", "if frees"),
            ),
            "redis": (Edit("redis/settle_rare", "chain.freed or flag(byte(settlement, 2), FREES)", "true"),),
            "postgres": (Edit("postgres/settle", "bool_and(coalesce(claim.stays, false))", "bool_and(false)"),),
        },
    ),
    Control(
        "without the extension of leases",
        "stop",
        (AT_ONCE,),
        LONG,
        {"": (Edit("oncebridge.engine.claimer:LeaseExtender.tick", "if due:", "if False:"),)},
    ),
    Control(
        "acknowledges what was taken over",
        "stop",
        (VAIN,),
        TAKEN_OVER,
        {"": (Edit("oncebridge.engine.flow:Flow._report", "if not ok:", "if False:"),)},
    ),
    Control(
        "acknowledges what it could not settle",
        "outage",
        (VAIN, LOST, AGAIN),
        CUT_OFF,
        {
            "": (
                Edit(
                    "oncebridge.engine.completer:BatchCompleter._patiently",
                    "raise  # too late: the next worker to claim these repeats them under the same keys",
                    "return [True] * len(settlements)",
                ),
            )
        },
    ),
    Control(
        "forgets what is not old enough",
        "kill",
        (AGAIN, STALE, LOST, STUCK),
        PURGED,
        {
            "sqlite": (Edit("oncebridge.ledgers.sqlite.ledger:_PURGE", "changed_us < ?", "changed_us > ?"),),
            "redis": (Edit("redis/purge", "if found.newest >= BEFORE then return {0, 0} end", ""),),
            "postgres": (Edit("postgres/places", "changed_us < $1 AND NOT letter", "changed_us > $1 AND NOT letter"),),
        },
    ),
    Control(
        "without the wait for a replica",
        "failover",
        (AGAIN,),
        {"kinds": ("pause",), "faults": 0},
        {"redis": (Edit("oncebridge.ledgers.redis.calls:wait_words", "if address.wait else", "if False else"),)},
        place=failing_over,
    ),
    Control(
        "without a look at the file's inode",
        "resources",
        (AGAIN, LOST),
        {"kinds": ("pause",), "faults": 0, "between": replace_file},
        {
            "sqlite": (
                Edit(_FILES, "self.database == others.database\n", "True\n"),
                Edit(_FILES, "others.log in (None, self.log)", "True"),
                Edit(_FILES, "others.log_index in (None, self.log_index)", "True"),
            )
        },
    ),
    Control(
        "without a look at the process after a fork",
        "forks",
        (LOST, DOUBLED, AT_ONCE, STUCK, BROKE_DOWN, "doubled in the transaction", STALE, AGAIN),
        {
            "kinds": ("leave",), "wheres": ("before claim",), "lease_seconds": LONG_LEASE_SECONDS, "inherit": True,
            "patience_seconds": 4.0,
        },
        {
            # SQLite's file has a second guard, the look at its log, so that nothing is lost without this one.
            "redis": (Edit("oncebridge.forks:register", "_parts[number] =", "_ ="),),
            "postgres": (Edit("oncebridge.forks:register", "_parts[number] =", "_ ="),),
        },
    ),
)  # fmt: skip


def controls(options: Options) -> Outcome:
    """Attack each wrong program under as many seeds as were asked for."""
    return controlled(options, [control for control in CONTROLS if control.is_for(kind_of(options.ledger))])


def controlled(options: Options, chosen: Sequence[Control], *, rounds_max: int = ROUNDS_MAX) -> Outcome:
    """Attack these wrong programs, and the sound one beside each."""
    outcome, begun = Outcome(), time.monotonic()
    ledger = kind_of(options.ledger)
    with place_of(options.ledger, options.folder) as url:
        for control in chosen:

            def seeds(control: Control = control) -> Iterator[Callable[[], dict[str, Any]]]:
                for number in range(options.amount):
                    if time.monotonic() - begun > options.seconds:
                        outcome.notes.append(f"ended early: {control.name}, {number} of {options.amount} seeds")
                        return
                    seed = options.seed + number
                    own = place_beside(url, options.folder, f"c{chosen.index(control)}_{seed}")
                    yield partial(try_control, control, options, seed, own, rounds_max)

            found: list[Found] = []
            for told in each_in_child(seeds(), SEEDS_AT_ONCE):
                found.append(Found(**told))
                outcome.tried += 1
                if options.progress:
                    options.progress(outcome.tried)
            if found:
                _note(outcome, control, ledger, found)
    return outcome


@dataclass
class Found:
    """What one seed came to: of the wrong program, and of the sound one in the same rounds."""

    caught: bool
    rounds: int
    counts: dict[str, int]
    sound: dict[str, int]
    history: list[str]


def try_control(control: Control, options: Options, seed: int, url: str, rounds_max: int) -> dict[str, Any]:
    """Attack the wrong program until it is caught, and the sound one in as many rounds."""
    plan = Attack(
        ledger=options.ledger, url=url, folder=options.folder, seed=seed, program=control.program, **control.attack
    )
    edits = control.edits(kind_of(options.ledger))
    wrong = in_child(lambda: _attacked(control, plan, edits, rounds_max, control.breaks))
    caught = bool(set(control.breaks) & wrong["broken"].keys())
    sound_plan = replace(plan, program=None, url=_beside(url))
    sound = in_child(lambda: _attacked(control, sound_plan, (), wrong["rounds"], ()))
    return asdict(Found(caught, wrong["rounds"], wrong["counts"], sound["broken"], sound["history"]))


def _attacked(
    control: Control, plan: Attack, edits: Sequence[Edit], rounds: int, breaks: Sequence[str]
) -> dict[str, Any]:
    """Attack a program in this process, which is good for nothing else afterwards."""
    remove(edits)
    if control.place is None:
        return _tallied(control, plan, rounds, breaks)
    with control.place(plan.folder / f"place-{time.monotonic_ns():x}") as place:
        own = replace(plan, url=place.url, between=place.between, after=place.after)
        return _tallied(control, own, rounds, breaks)


def _tallied(control: Control, plan: Attack, rounds: int, breaks: Sequence[str]) -> dict[str, Any]:
    in_child(lambda: prepare(plan.url))
    tally, broken = Tally(), Counter[str]()
    try:
        for tally in attack(plan, 10**9, seconds=SECONDS_MAX):
            broken = tally.broken + Counter({BROKE_DOWN: tally.failed if BROKE_DOWN in control.breaks else 0})
            if tally.rounds >= rounds or set(breaks) & broken.keys():
                break
    except RuntimeError:  # no worker lived long enough to end a round
        tally.rounds, broken = max(1, tally.rounds), broken + Counter({BROKE_DOWN: 1})
    doubled = sum(number for what, number in tally.broken.items() if "doubled" in what and what != AT_ONCE)
    return {
        "rounds": tally.rounds,
        "broken": dict(broken),
        "counts": {"lost": tally.broken[LOST], "doubled": doubled + tally.doubled_plain, **broken},
        "history": readable(tally.failures[0].history) if tally.failures else [],
    }


def _note(outcome: Outcome, control: Control, ledger: str, found: Sequence[Found]) -> None:
    caught = sum(one.caught for one in found)
    sums: Counter[str] = Counter()
    for one in found:
        sums.update(one.counts)
    outcome.figures[f"{control.name} ({ledger})"] = {
        "caught": f"{caught} of {len(found)}", "rounds": sum(one.rounds for one in found), **sums,
    }  # fmt: skip
    if caught < len(found):
        outcome.broken[f"not caught: {control.name}"] = len(found) - caught
    for one in found:
        for what, number in one.sound.items():
            outcome.broken[what] = outcome.broken.get(what, 0) + number
            outcome.history = outcome.history or [f"the sound program, beside {control.name!r}", *one.history]


def _beside(url: str) -> str:
    """Return another ledger beside this one."""
    return url.replace(".db", "_sound.db") if url.startswith("sqlite") else f"{url}_sound"
