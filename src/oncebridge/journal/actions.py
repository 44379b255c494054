"""The log of actions: who did what to the events of a ledger, with commands and on the console's pages."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.journal.plain import plain
from oncebridge.journal.records import DAY_US

if TYPE_CHECKING:
    from oncebridge.clock import Clock
    from oncebridge.ledgers.notes import Notes

ACTIONS: Final = "actions"
#: As long as events are remembered, unless set.
KEPT_US: Final = 30 * DAY_US
#: Where notes are kept by the page, as on Redis.
NEWEST: Final = 10_000
ROWS_MAX: Final = 500
WHO_MAX: Final = 100
WORDS_MAX: Final = 500
CONSOLE: Final = "console"
COMMAND: Final = "command"

_encode: Final = msgspec.msgpack.Encoder().encode


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One action of a person, without anything of a payload."""

    at_ms: int
    who: str
    #: `console` or `command`.
    via: str
    #: In one word, such as `redrive`.
    what: str
    #: What it was about: a key, a handler, a filter in words.
    about: str
    #: What came of it, in words.
    said: str


_decode: Final = msgspec.msgpack.Decoder(Action).decode


class ActionLog:
    """Writes and reads actions."""

    def __init__(self, notes: Notes, clock: Clock, *, keep_us: int = KEPT_US) -> None:
        """Take the notes of an open ledger, and how long an action is kept."""
        self._notes = notes
        self._clock = clock
        self._keep_us = keep_us

    def write(self, *, who: str, via: str, what: str, about: str = "", said: str = "") -> Action:
        """Write one action; raises what the ledger raises."""
        action = Action(
            at_ms=self._clock.now_us() // 1000,
            who=plain(who, WHO_MAX),
            via=plain(via, WHO_MAX),
            what=plain(what, WHO_MAX),
            about=plain(about, WORDS_MAX),
            said=plain(said, WORDS_MAX),
        )
        name = f"{action.at_ms:014d}-{secrets.token_hex(4)}"
        self._notes.write_notes(ACTIONS, {name: _encode(action)}, keep_us=self._keep_us, newest=NEWEST)
        return action

    def read(self, *, below: str | None = None, limit: int = 50) -> tuple[list[Action], str | None]:
        """Return actions, the newest first, and where the next page begins, if there is one."""
        limit = min(limit, ROWS_MAX)
        found = self._notes.read_notes(ACTIONS, below=below, limit=limit + 1)
        shown = found[:limit]
        return [_decode(note.value) for note in shown], shown[-1].name if len(found) > limit else None
