"""Handlers that are paused: their events are claimed, judged, and given back untried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncebridge.breaker import Open

if TYPE_CHECKING:
    from collections.abc import Mapping

#: When an event of a paused handler is looked at again: workers learn as often whether it still is.
AGAIN_US: Final = 5_000_000


class Paused:
    """Why handlers are paused, by name. The worker's journal replaces all of it whenever it has looked."""

    __slots__ = ("reasons",)

    def __init__(self) -> None:
        """Know of none."""
        self.reasons: Mapping[str, str] = {}


class HandlerPaused(Open):
    """A handler is paused: like an open breaker it was not called, and that was no attempt."""

    def __init__(self, reason: str) -> None:
        """Take why."""
        super().__init__(0, AGAIN_US, reason)

    def __str__(self) -> str:
        """Say why, where the sender counts it as an attempt."""
        return self.last

    @property
    def words(self) -> str:
        """The reason of an event's end."""
        return f"{self.last}; this was no attempt"
