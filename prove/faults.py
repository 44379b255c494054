"""What befalls workers. A plan is made of a seed alone, so it can be made again, and made smaller."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["kill", "stop", "raise", "lose", "pause", "leave", "away"]
#: Of these nobody loses a lease that is long enough, so they excuse no double. They strike again and again.
HARMLESS: Final[tuple[Kind, ...]] = ("lose", "pause", "leave")
#: Where it strikes: before or after a call of the ledger, in a handler before or after its effect, or at any line of
#: the program, counted by calls and returns.
Where = Literal[
    "before claim", "after claim", "before settle", "after settle", "before effect", "after effect", "point"
]
WHERES: Final[tuple[Where, ...]] = (
    "before claim", "after claim", "before settle", "after settle", "before effect", "after effect", "point",
)  # fmt: skip
#: Calls and returns of a batch and of its opening are about this many.
POINTS_MAX: Final = 6_000
CALLS_MAX: Final = 4
EFFECTS_MAX: Final = 12


@dataclass(frozen=True)
class Fault:
    """One fault of one worker's life."""

    kind: Kind
    where: Where
    #: At which of these, from 1.
    at: int

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.kind} at {self.where} {self.at}"


def make_faults(
    dice: random.Random,
    kinds: Sequence[Kind],
    number: int,
    wheres: Sequence[Where] = WHERES,
    effects_max: int = EFFECTS_MAX,
) -> list[Fault]:
    """Draw what befalls the first lives of a round; later lives go well."""
    return [_draw(dice, dice.choice(kinds), wheres, effects_max) for _ in range(number)]


def _draw(dice: random.Random, kind: Kind, wheres: Sequence[Where], effects_max: int) -> Fault:
    where = dice.choice(wheres)
    if where == "point":
        return Fault(kind, where, dice.randint(1, POINTS_MAX))
    return Fault(kind, where, dice.randint(1, effects_max if "effect" in where else CALLS_MAX))
