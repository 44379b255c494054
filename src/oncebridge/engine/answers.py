"""What became of a batch, in the words and numbers that answers share."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from oncebridge.telemetry import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncebridge.engine.limits import BatchLimits
    from oncebridge.engine.result import Result

#: Works a batch off on terms, and returns what became of each delivery, in order.
Run: TypeAlias = "Callable[[list[Any], BatchLimits], list[Result]]"


def books_of(columns: Sequence[str]) -> dict[str, int]:
    """Count the deliveries of one batch by the columns of the books that they belong to."""
    counted = Counter(columns)
    return {"received": len(columns), **{column: counted[column] for column in COLUMNS}}


def why_again(results: Sequence[Result]) -> str:
    """Say how many deliveries of a batch have to come again, and why the first of them; free of personal data."""
    reasons = [result.reason for result in results if not result.acknowledged]
    return f"{len(reasons)} of {len(results)} deliveries have to come again; the first: {reasons[0]}"
