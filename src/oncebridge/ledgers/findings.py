"""The findings of an examination: one for each thing that it checked."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

CLOCK_US_MAX: Final = 5_000_000  # clocks that differ by more are not synchronised


class Level(StrEnum):
    """How much a finding matters."""

    GOOD = "good"
    WARNING = "warning"
    WRONG = "wrong"  # must be changed before this ledger is relied upon


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an examination checked: the finding, and the fix."""

    level: Level
    subject: str
    found: str
    fix: str = ""
    #: The part of the promise that is lost, as a reason that fits after "because"; empty if nothing is lost.
    weakens: str = ""


def good(subject: str, found: str, fix: str = "", *, weakens: str = "") -> Finding:
    """Report that something is right, or good enough."""
    return Finding(level=Level.GOOD, subject=subject, found=found, fix=fix, weakens=weakens)


def warning(subject: str, found: str, fix: str, *, weakens: str = "") -> Finding:
    """Report something that should be changed."""
    return Finding(level=Level.WARNING, subject=subject, found=found, fix=fix, weakens=weakens)


def wrong(subject: str, found: str, fix: str, *, weakens: str = "") -> Finding:
    """Report something that must be changed."""
    return Finding(level=Level.WRONG, subject=subject, found=found, fix=fix, weakens=weakens)


def clocks(apart_us: int) -> Finding:
    """Judge how far a server's clock is from this machine's. Leases go by the server's alone.

    But stamps are made by other machines, and believed only up to ten minutes ahead of it.
    """
    found = f"the server's is {apart_us / 1_000_000:.3f} s from this machine's"
    if abs(apart_us) <= CLOCK_US_MAX:
        return good("clock", found)
    return warning("clock", found, "let both machines take their time from NTP")
