"""Warns, once for each topic, that no handler takes it: a typo in a pattern would be silent otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncebridge.genesys_topics import is_known, looks_like_one, nearest
from oncebridge.telemetry.counting import OTHER, Topics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncebridge.handlers import Handler
    from oncebridge.telemetry import Telemetry
    from oncebridge.topics import Profile

#: What happens to an event that no handler takes, as settings name it.
ACKNOWLEDGE: Final = "acknowledge"
DEAD: Final = "dead"

REASON: Final = "no handler takes its topic"

_THEN: Final = {
    ACKNOWLEDGE: 'its events are acknowledged and not remembered; `unhandled = "dead"` in the settings keeps them',
    DEAD: "its events are kept as dead letters; redrive them once a handler is there",
}


class Unhandled:
    """Warns of topics that no handler takes, as many as metrics have labels: topics come from outside."""

    def __init__(self, telemetry: Telemetry, then: str, known: Iterable[str] = ()) -> None:
        """Take where to warn, what happens to such events, and topics that are known beside the built-in ones."""
        self._telemetry = telemetry
        self._then = _THEN[then]
        self._topics = Topics(known)
        #: By label, the call that warned first.
        self._said: dict[str, object] = {}

    def __call__(self, topic: str) -> None:
        """Warn of a topic, unless it was warned of before."""
        label = self._topics.label(topic)
        mine = object()
        # In one step, without a lock that a fork could leave held in the child.
        if self._said.setdefault(label, mine) is not mine:
            return
        name = "an event's topic" if label == OTHER else label
        self._telemetry.warn(f"no handler takes {name}: {self._then}", topic=label)

    def warn_of_patterns(self, handlers: Iterable[Handler], profiles: Iterable[Profile]) -> None:
        """Warn of handlers that may never get an event, because their pattern matches no known topic."""
        own = [profile.topic for profile in profiles]
        for pattern in dict.fromkeys(handler.pattern for handler in handlers):
            # A user's own topics are unknown here, and right.
            if not is_known(pattern, own) and looks_like_one(pattern):
                near = nearest(pattern)
                meant = f"; did you mean {near}?" if near else ""
                self._telemetry.warn(f"handler for {pattern}: no known topic of Genesys matches{meant}", topic=pattern)
