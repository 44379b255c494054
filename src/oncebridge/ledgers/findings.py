"""What an examination finds: one finding for each thing that it looked at."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

CLOCK_US_MAX: Final = 5_000_000  # further apart than that, two clocks have not heard of each other


class Level(StrEnum):
    """How much a finding matters."""

    GOOD = "good"
    WARNING = "warning"
    WRONG = "wrong"  # must be changed before this ledger is relied upon


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an examination looked at: what was found, and what to do about it."""

    level: Level
    subject: str
    found: str
    fix: str = ""
    #: What the promise loses by it, as a reason that fits behind "because"; empty where it loses nothing.
    weakens: str = ""


def good(subject: str, found: str, fix: str = "", *, weakens: str = "") -> Finding:
    """Say that something is as it should be, or good enough."""
    return Finding(level=Level.GOOD, subject=subject, found=found, fix=fix, weakens=weakens)


def warning(subject: str, found: str, fix: str, *, weakens: str = "") -> Finding:
    """Say what would better be changed."""
    return Finding(level=Level.WARNING, subject=subject, found=found, fix=fix, weakens=weakens)


def wrong(subject: str, found: str, fix: str, *, weakens: str = "") -> Finding:
    """Say what must be changed."""
    return Finding(level=Level.WRONG, subject=subject, found=found, fix=fix, weakens=weakens)


def clocks(apart_us: int) -> Finding:
    """Judge how far a server's clock is from this machine's. Leases go by the server's alone.

    But stamps are made by other machines, and believed only up to ten minutes ahead of it.
    """
    found = f"the server's is {apart_us / 1_000_000:.3f} s from this machine's"
    if abs(apart_us) <= CLOCK_US_MAX:
        return good("clock", found)
    return warning("clock", found, "let both machines take their time from NTP")
