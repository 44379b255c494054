"""Warns of handlers' failures and of dead letters: the first few of each minute, and how many there were beside them.

A failing handler fails for every event, so a line for each would bury all others. Each is still a move of its own, for
counters and for the log at level info.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge import forks

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.telemetry import Move, Telemetry

FAILURES_PER_MINUTE: Final = 3
LETTERS_PER_MINUTE: Final = 10
MINUTE_US: Final = 60_000_000
KINDS_MAX: Final = 1000  # names of handlers elsewhere come from outside
OTHER: Final = "others"


class _Minute(msgspec.Struct, gc=False):
    """How many lines of one kind there were in the current minute, and how many failures had none since the last."""

    began_us: int
    said: int = 0
    unsaid: int = 0


class FailureLog:
    """Logs failures and dead letters as warnings; with `log_errors` also the exceptions, which may quote payloads."""

    def __init__(self, telemetry: Telemetry, clock: Clock, *, log_errors: bool) -> None:
        """Take where to log, by whose minutes, and whether to log exceptions with message and traceback."""
        self._telemetry = telemetry
        self._clock = clock
        self._log_errors = log_errors
        #: By handler, and the error's class or empty for dead letters.
        self._minutes: dict[tuple[str, str], _Minute] = {}
        self._lock = threading.Lock()
        forks.free_locks(self, "_lock")

    def failed(self, move: Move, who: str, kind: str, *, place: str = "", detail: str = "") -> None:
        """Warn that a handler has failed.

        Args:
            move: The failure, with its reason.

            who: The handler, in words.

            kind: The error's class, or what else failures are counted by.

            place: Where in the user's code.

            detail: The exception with its traceback, which may quote the payload.

        """
        unsaid = self._count(who, kind, FAILURES_PER_MINUTE)
        if unsaid is not None:
            self._warn(move, f"{who}: {move.reason}", unsaid, place, detail)

    def kept(self, move: Move, who: str, *, place: str = "", detail: str = "") -> None:
        """Report a dead letter: as a warning, or as a move like any other if there are many or if it is not kept."""
        unsaid = self._count(who, "", LETTERS_PER_MINUTE) if self._telemetry.warns_of_letters else None
        if unsaid is None:
            self._telemetry.record(move)
        else:
            self._telemetry.observe(move)
            self._warn(move, f"dead letter: {f'{who}: ' if who else ''}{move.reason}", unsaid, place, detail)

    def close(self) -> None:
        """Report how many there were without a line."""
        with self._lock:
            minutes, self._minutes = self._minutes, {}
        for (who, kind), minute in minutes.items():
            if minute.unsaid:
                what = f"failures ({kind})" if kind else "dead letters"
                self._telemetry.warn(f"{who or 'unreadable'}: {minute.unsaid:,} more {what} since the last such line")

    def _count(self, who: str, kind: str, most: int) -> int | None:
        """Return how many of a kind had no line since the last one; None if this one gets none either."""
        now_us = self._clock.monotonic_us()
        with self._lock:
            full = (who, kind) not in self._minutes and len(self._minutes) >= KINDS_MAX
            minute = self._minutes.setdefault((OTHER, kind and OTHER) if full else (who, kind), _Minute(now_us))
            if now_us - minute.began_us >= MINUTE_US:
                minute.began_us, minute.said = now_us, 0
            if minute.said >= most:
                minute.unsaid += 1
                return None
            minute.said += 1
            unsaid, minute.unsaid = minute.unsaid, 0
            return unsaid

    def _warn(self, move: Move, words: str, unsaid: int, place: str, detail: str) -> None:
        where = [place] if place else []
        where.append(f"key {move.key}")
        if move.envelope_id is not None:
            where.append(f"envelope id {move.envelope_id}")
        more = f"; {unsaid:,} more like it since the last line" if unsaid else ""
        error = detail if self._log_errors else ""
        self._telemetry.warn_of(move, f"{words} ({', '.join(where)}){more}", place=place, error=error)
