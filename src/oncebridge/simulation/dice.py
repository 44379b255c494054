"""Chance from one seed: the same throws on every Python, so that a run can be had again byte for byte."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")

_BITS_48 = 2**48


class Dice:
    """Draws everything from `Random.random`, the one method whose sequence Python promises to keep."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed).random

    def chance(self, probability: float) -> bool:
        """Return whether something of this probability happens."""
        return self._draw() < probability

    def between(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + int(self._draw() * (high - low + 1))

    def pick(self, items: Sequence[Item]) -> Item:
        """Return one of the items."""
        return items[int(self._draw() * len(items))]

    def uuid(self) -> str:
        """Return a random UUID."""
        head, middle, tail = (int(self._draw() * _BITS_48) for _ in range(3))
        version, variant = 0x4000 | middle & 0xFFF, 0x8000 | middle >> 12 & 0x3FFF
        return f"{head >> 16:08x}-{head & 0xFFFF:04x}-{version:04x}-{variant:04x}-{tail:012x}"
