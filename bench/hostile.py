"""What the worst input known costs beside a usual event of its size, in processor time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from contestants import Oncebridge

from hostile_inputs import usual, worst
from oncebridge.sources.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES: Final = 1_000_000
LOOKS: Final = 3
NUMBER: Final = len(worst(1000)) + 1


def costs_ms(after: Callable[[int], None]) -> tuple[float, dict[str, float]]:
    """Return the milliseconds of processor time of a usual event, and of each of the worst inputs: the best of three.

    Each way of reading is passed: taken out of what AWS wraps around it, parsed, identified, kept.
    """
    contestant = Oncebridge("memory://")
    found = {}
    try:
        texts = {"usual": usual(BYTES), **worst(BYTES)}
        for name, data in texts.items():
            found[name] = min(_milliseconds(contestant, data) for _ in range(LOOKS))
            after(1)
    finally:
        contestant.close()
    return found.pop("usual"), found


def _milliseconds(contestant: Oncebridge, data: bytes) -> float:
    begun = time.process_time()
    contestant.work(unwrap(data))
    return (time.process_time() - begun) * 1000
