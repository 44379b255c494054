"""Notes since when attendance is kept, and which families ever came: what never comes here is not missing."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from oncebridge.attendance import FAMILIES
from oncebridge.claim import Outcome
from oncebridge.errors import ConfigurationError, OncebridgeError
from oncebridge.ledgers import DAY_US
from oncebridge.ledgers.notes import KeepsNotes, Notes
from oncebridge.ledgers.protocol import KeepsAttendance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncebridge.clock import Clock
    from oncebridge.engine.task import Task
    from oncebridge.ledgers.protocol import Ledger
    from oncebridge.settings import Settings

PAGE: Final = "attendance"
NAME: Final = "kept"
EARLIEST: Final = 20
#: How old the first events of a worker may be that takes them as they come.
LIVE_WITHIN_MS: Final = 10 * 60_000
BEFORE_CAPTURE_MS: Final = 15 * 60_000
_TRIES: Final = 5  # against other workers that write at the same moment


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the attendance that a ledger keeps, by the workers' clocks."""

    #: When the first event was marked.
    began_us: int
    #: The times of the earliest events that were, in order.
    earliest_ms: tuple[int, ...] = ()
    #: When an event of each family last came, to the day.
    families: dict[str, int] = {}

    @property
    def since_ms(self) -> int:
        """From when on a conversation can be judged, by the times of events.

        Stragglers of earlier days are no beginning. Where whole captures were worked off later, as in a trial, what
        happened just before their first event may be missing in them, too.
        """
        began_ms = self.began_us // 1000
        if not self.earliest_ms:
            return began_ms
        first_ms = self.earliest_ms[-1 if len(self.earliest_ms) == EARLIEST else 0]
        is_live = began_ms - first_ms < LIVE_WITHIN_MS
        return first_ms if is_live else self.earliest_ms[0] - BEFORE_CAPTURE_MS


_decode = msgspec.json.Decoder(Kept).decode
_encode = msgspec.json.Encoder().encode


def read_kept(notes: Notes) -> Kept | None:
    """Return what is noted; None if no event was ever marked."""
    value = _value(notes)
    return None if value is None else _decode(value)


def _value(notes: Notes) -> bytes | None:
    return next((note.value for note in notes.read_notes(PAGE) if note.name == NAME), None)


class Attending:
    """Notes what the events that this process settles show for the first time, or for the first time in a day."""

    def __init__(self, notes: Notes, clock: Clock, keep_us: int) -> None:
        """Take the notes; nothing is read before there is something to note."""
        self._notes = notes
        self._clock = clock
        self._keep_us = keep_us
        self._lock = threading.Lock()
        self._noted: dict[str, int] = {}
        #: An event is among the earliest if it is before this.
        self._before_ms: float = math.inf

    def note(self, settled: Iterable[tuple[Task, bool]]) -> None:
        """Note events that came; where the ledger is out of reach, the next ones are noted instead."""
        now_us = self._clock.now_us()
        families: set[str] = set()
        earliest_ms: list[int] = []
        for task, ok in settled:
            ask = task.ask
            if not ask.mark or not ok or task.ended is None or task.ended.outcome in (Outcome.RETRY, Outcome.RELEASE):
                continue
            families.add(FAMILIES[ask.mark[0]])
            if ask.time_ms is not None and ask.time_ms < self._before_ms:
                earliest_ms.append(ask.time_ms)
        new = [family for family in families if now_us - self._noted.get(family, 0) >= DAY_US]
        if new or earliest_ms:
            with self._lock, suppress(OncebridgeError):
                self._write(new, earliest_ms, now_us)

    def _write(self, families: list[str], earliest_ms: list[int], now_us: int) -> None:
        for _ in range(_TRIES):
            before = _value(self._notes)
            kept = Kept(began_us=now_us) if before is None else _decode(before)
            earliest = tuple(sorted({*kept.earliest_ms, *earliest_ms})[:EARLIEST])
            after = replace(kept, earliest_ms=earliest, families={**kept.families, **dict.fromkeys(families, now_us)})
            if self._notes.swap_note(PAGE, NAME, before, _encode(after), keep_us=self._keep_us):
                self._noted |= dict.fromkeys(families, now_us)
                if len(earliest) == EARLIEST:
                    self._before_ms = earliest[-1]
                return


def attending(ledger: Ledger, clock: Clock, settings: Settings) -> Attending | None:
    """Return what notes attendance, if it is to be kept; refuse a ledger that cannot."""
    if not settings.attendance:
        return None
    if not isinstance(ledger, KeepsAttendance) or not isinstance(ledger, KeepsNotes):
        raise ConfigurationError(
            f"attendance: {type(ledger).__name__} keeps none; take a ledger that does, such as sqlite:///once.db, or "
            "leave attendance out"
        )
    try:
        ledger.attendance(
            []
        )  # tables from before there was attendance are refused now, and not once an event has ended
    except BaseException:
        ledger.close()  # without a flow nobody else would
        raise
    return Attending(ledger.notes, clock, int(max(settings.retention_days, 1) * DAY_US))
