"""Marks of attendance: how a ledger adds one to those that it keeps of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncebridge.claim import MARK_BYTES, MARKS_MAX, attended
from oncebridge.ledgers.protocol import Attendance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncebridge.claim import Settlement


def marks_in(marks: bytes) -> set[bytes]:
    """Return the marks that are joined in a text."""
    return {marks[at : at + MARK_BYTES] for at in range(0, len(marks), MARK_BYTES)}


def with_marks(before: Attendance | None, marks: Iterable[bytes], now_us: int) -> Attendance:
    """Return a conversation's attendance with some more marks; one that is full takes no others."""
    kept = set() if before is None else marks_in(before.marks)
    for mark in marks:
        if len(kept) < MARKS_MAX:
            kept.add(mark)
    return Attendance(b"".join(sorted(kept)), now_us if before is None else before.first_us, now_us)


def marks_by_conversation(settlements: Iterable[Settlement]) -> dict[bytes, list[bytes]]:
    """Return what the ends of claims add, by conversation."""
    found: dict[bytes, list[bytes]] = {}
    for settlement in settlements:
        came = attended(settlement)
        if came is not None:
            found.setdefault(came[0], []).append(came[1])
    return found
