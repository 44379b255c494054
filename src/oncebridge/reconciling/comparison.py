"""Compares conversations with the attendance of a ledger: counts, gaps, and the seconds in which events came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import asdict

from oncebridge.attendance import conversation_digest, sessions_by_family
from oncebridge.claim import MARK_BYTES, MARKS_MAX
from oncebridge.ledgers.marks import marks_in
from oncebridge.reconciling.expected import compare, due_of
from oncebridge.reconciling.gaps import Gap, Gaps
from oncebridge.reconciling.silences import Activity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from oncebridge.genesys.conversations import Conversation
    from oncebridge.ledgers.protocol import Attendance, KeepsAttendance

#: How far a worker's clock may be behind Genesys' before attendance that it wrote is overlooked.
SKEW_MS: Final = 3_600_000


class Window(NamedTuple):
    """Which conversations are asked about: those that ended from `from_ms` on, before `until_ms`."""

    from_ms: int
    until_ms: int
    #: What ended from here on is provisional; None: all is settled.
    watermark_ms: int | None = None


class Counts(msgspec.Struct):
    """Numbers of conversations; `ended` is what is judged: whole, partial and missing together."""

    ended: int = 0
    whole: int = 0
    partial: int = 0
    missing: int = 0
    provisional: int = 0
    #: Of the partial ones, those of which the customer's end did not come.
    no_end: int = 0
    #: Not over yet, and those before attendance was kept: not judged.
    open: int = 0
    before: int = 0

    def add(self, other: Counts) -> None:
        """Add those of another part."""
        for name, number in asdict(other).items():
            setattr(self, name, getattr(self, name) + number)


class Known(NamedTuple):
    """What a comparison needs to know of an installation."""

    secret: bytes
    #: The families that it gets.
    subscribed: AbstractSet[str]
    #: Since when attendance is kept.
    since_ms: int = 0


class Comparison:
    """Takes conversations in batches, each one once."""

    def __init__(self, ledger: KeepsAttendance, known: Known, window: Window, gaps: Gaps) -> None:
        """Take the ledger, which is open, and where gaps go."""
        self._ledger = ledger
        self._known = known
        self._window = window
        self._gaps = gaps
        self.counts = Counts()
        self.activity = Activity()
        self.last_ended_ms: int | None = None

    def add(self, conversations: Sequence[Conversation]) -> None:
        """Compare some."""
        judged = [one for one in conversations if self._is_judged(one)]
        if not judged:
            return
        digests = [conversation_digest(one.id, self._known.secret) for one in judged]
        since_us = max(0, min(one.started_ms for one in judged) - SKEW_MS) * 1000
        for conversation, attendance in zip(judged, self._ledger.attendance(digests, since_us=since_us), strict=True):
            self._judge(conversation, attendance)

    def _is_judged(self, one: Conversation) -> bool:
        window, counts = self._window, self.counts
        if one.ended_ms is None:
            counts.open += 1
        elif not window.from_ms <= one.ended_ms < window.until_ms:
            pass
        elif window.watermark_ms is not None and one.ended_ms >= window.watermark_ms:
            counts.provisional += 1
        elif one.ended_ms < self._known.since_ms:
            counts.before += 1
        else:
            return True
        return False

    def _judge(self, conversation: Conversation, attendance: Attendance | None) -> None:
        counts, known = self.counts, self._known
        assert conversation.ended_ms is not None
        counts.ended += 1
        self.last_ended_ms = max(conversation.ended_ms, self.last_ended_ms or 0)
        marks = b"" if attendance is None else attendance.marks
        due = due_of(conversation, known.subscribed, since_ms=known.since_ms)
        compared = compare(due, sessions_by_family(marks_in(marks)), known.secret)
        self.activity.add(compared.came)
        if compared.is_whole or len(marks) >= MARKS_MAX * MARK_BYTES:  # a ledger keeps no more of one conversation
            counts.whole += 1
            return
        gap = Gap(conversation, not marks, compared.missing)
        if gap.never:
            counts.missing += 1
        else:
            counts.partial += 1
            counts.no_end += gap.has_no_end
        self._gaps.add(gap)
