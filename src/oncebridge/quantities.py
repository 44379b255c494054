"""Quantities as people read them: counts, shares, spans of time and sizes, in one form for terminal, pages and charts.

Numbers may come from a file that somebody sent: whatever they are, the text is short, and nothing raises.
"""

from __future__ import annotations

import math
from typing import Final

MOST: Final = 2**53  # beyond that, programs that read JSON disagree about the number

_MS_OF: Final = (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


def tame(value: float) -> float:
    """Return a number that can be calculated with: finite, not negative, not beyond what is counted anywhere."""
    if isinstance(value, int):
        return max(0, min(value, MOST))
    return max(0.0, min(value, float(MOST))) if math.isfinite(value) else 0.0


def part_of(part: float, whole: float) -> float:
    """Return a share from 0 to 1; of nothing, it is 0."""
    return min(tame(part) / tame(whole), 1.0) if tame(whole) else 0.0


def count(value: float) -> str:
    """Write a count in full: 1,282."""
    return f"{int(tame(value)):,}"


def counted(value: float, one: str, many: str | None = None) -> str:
    """Write a count with its noun: "1 event", "1,282 events"."""
    return f"{count(value)} {one if int(tame(value)) == 1 else many or one + 's'}"


def short_count(value: float) -> str:
    """Write a count where room is scarce: 950, 12 k, 3.4 M."""
    number = tame(value)
    for unit, size_ in (("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if number >= size_:
            return f"{_digits(number / size_)} {unit}"
    return f"{number / 1000:,.0f} k" if number >= 10_000 else f"{number:,.0f}"  # noqa: PLR2004 - five digits


def percent(share: float) -> str:
    """Write a share: 41 %, 8.5 %; neither "0 %" for a few nor "100 %" for all but a few."""
    value = min(tame(share), 1.0) * 100
    if value in (0, 100):
        return f"{value:.0f} %"
    if value < 0.1:  # noqa: PLR2004 - the least that one decimal can show
        return "under 0.1 %"
    if value > 99.9:  # noqa: PLR2004 - the most
        return "over 99.9 %"
    return f"{value:.1f} %" if value < 10 or value > 99 else f"{value:.0f} %"  # noqa: PLR2004 - two digits that matter


def span(ms: float) -> str:
    """Write how long something takes in at most two units: 850 ms, 1.5 s, 3 min 20 s, 4 days 2 h."""
    whole = int(tame(ms))
    if whole < 1000:  # noqa: PLR2004 - a second
        return f"{whole} ms"
    if whole < 10_000:  # noqa: PLR2004 - where tenths of a second still matter
        return f"{_digits(whole / 1000)} s"
    if whole >= 1000 * _MS_OF[0][1]:
        return f"{whole // _MS_OF[0][1]:,} days"
    at = next(at for at, (_, unit_ms) in enumerate(_MS_OF) if whole >= unit_ms)
    unit, unit_ms = _MS_OF[at]
    first = _with_unit(whole // unit_ms, unit)
    if unit == "s":
        return first
    small, small_ms = _MS_OF[at + 1]
    rest = whole % unit_ms // small_ms
    return f"{first} {_with_unit(rest, small)}" if rest else first


def size(bytes_: float) -> str:
    """Write a number of bytes: 900 B, 12 kB, 3.4 GB."""
    number, units = tame(bytes_), ["TB", "GB", "MB", "kB", "B"]
    while number >= 999.5 and len(units) > 1:  # noqa: PLR2004 - what would be written as 1,000
        number /= 1000
        units.pop()
    return f"{_digits(number)} {units[-1]}"


def _with_unit(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' if unit == 'day' and number != 1 else ''}"


def _digits(number: float) -> str:
    """Write two digits at least, and no decimals that are zero."""
    text = f"{number:.1f}" if number < 10 else f"{number:,.0f}"  # noqa: PLR2004 - two digits that matter
    return text.removesuffix(".0")
