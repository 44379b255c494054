"""Pauses: handlers whose events are not tried for now, at any worker that keeps a journal."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.journal.plain import plain
from oncebridge.journal.records import DAY_US

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncebridge.clock import Clock
    from oncebridge.ledgers.notes import Notes

PAUSES: Final = "pauses"
#: Until it is resumed: a pause that ended by itself would surprise whoever relies on it.
KEPT_US: Final = 3650 * DAY_US
WHO_MAX: Final = 100
PAUSES_MAX: Final = 1000

_encode: Final = msgspec.msgpack.Encoder().encode


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A handler whose events are not tried."""

    #: Its name; empty for the handler without one.
    handler: str
    since_ms: int
    who: str

    def reason(self, now_ms: int) -> str:
        """Say why an event of the handler is not tried."""
        return f"{called(plain(self.handler, WHO_MAX))} is paused since {_written(self.since_ms, now_ms)} by {self.who}"


_decode: Final = msgspec.msgpack.Decoder(Pause).decode


class Pauses:
    """Pauses handlers, and resumes them."""

    def __init__(self, notes: Notes, clock: Clock) -> None:
        """Take the notes of an open ledger."""
        self._notes = notes
        self._clock = clock

    def read(self) -> dict[str, Pause]:
        """Return the pauses by the name of their handler."""
        found = [_decode(note.value) for note in self._notes.read_notes(PAUSES, limit=PAUSES_MAX)]
        return {pause.handler: pause for pause in sorted(found, key=lambda one: one.handler)}

    def reasons(self) -> Mapping[str, str]:
        """Return why events are not tried, in words, by the name of the handler."""
        now_ms = self._clock.now_us() // 1000
        return {name: pause.reason(now_ms) for name, pause in self.read().items()}

    def pause(self, handler: str, who: str) -> Pause:
        """Pause a handler; one that is paused stays so since when and by whom it was."""
        pause = Pause(handler=handler, since_ms=self._clock.now_us() // 1000, who=plain(who, WHO_MAX))
        while not self._notes.swap_note(PAUSES, _name(handler), None, _encode(pause), keep_us=KEPT_US):
            before = self.read().get(handler)
            if before is not None:
                return before
        return pause

    def resume(self, handler: str, who: str) -> bool:  # noqa: ARG002 - the log has who; a pause that is over has none
        """Resume a handler; False if it was not paused."""
        for note in self._notes.read_notes(PAUSES, limit=PAUSES_MAX):
            if note.name == _name(handler):
                return self._notes.swap_note(PAUSES, note.name, note.value, None, keep_us=KEPT_US)
        return False


def called(handler: str) -> str:
    """Name a handler within a sentence, and in the log."""
    return f"handler {handler}" if handler else "the handler without a name"


def _written(at_ms: int, now_ms: int) -> str:
    """Write a time of today without its date."""
    at, now = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (at_ms, now_ms))
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"


def _name(handler: str) -> str:
    """Return the name of a handler's note: its own may be empty, or too long, or hold what no name of a note may."""
    return blake2b(handler.encode(errors="surrogatepass"), digest_size=16).hexdigest()
