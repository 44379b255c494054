"""Fills gaps: each missing event is given to the handlers of `oncebridge.missing`, once, however often it is run.

Never as an event of Genesys: its body would differ, and the original, if it comes late, would be a second event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.attendance import TOPIC_OF
from oncebridge.claim import Outcome
from oncebridge.errors import ConfigurationError
from oncebridge.genesys.conversations import iso
from oncebridge.reconciling.expected import WRAP_UPS
from oncebridge.settings import with_given
from oncebridge.topics import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.bridge import Bridge
    from oncebridge.genesys.conversations import Conversation, Session
    from oncebridge.reconciling.expected import Due
    from oncebridge.reconciling.gaps import Gap

TOPIC: Final = MISSING.topic
SOURCE: Final = "oncebridge"
AT_ONCE: Final = 100
#: How often a run itself tries one that its handler failed with; the next run tries it again.
TRIES: Final = 3
#: What may be tried again only later than that is left to the next run: a lease that is in the way is over by then.
WAIT_MAX_US: Final = 60_000_000


class Filled(msgspec.Struct):
    """Numbers of missing events that were given to handlers."""

    done: int = 0
    #: In an earlier run.
    before: int = 0
    dead: int = 0
    #: Not done yet: another run tries them again.
    again: int = 0


class Filling:
    """Takes gaps one after the other, and fills them in batches."""

    def __init__(self, bridge: Bridge) -> None:
        """Take a bridge with handlers, at least one of which takes these events."""
        if not bridge.handlers.of(TOPIC, TOPIC):
            raise ConfigurationError(
                f"--fill: no handler and no sink takes {TOPIC}; name a Bridge that has one (--handler), or add the "
                "topic to a sink"
            )
        # They are ours: which senders Genesys' events may have says nothing about them.
        if bridge.settings.allowed_orgs or bridge.settings.allowed_sources:
            bridge.rewire(with_given(bridge.settings, allowed_orgs=[], allowed_sources=[]))
        self._bridge = bridge
        self._waiting: list[dict[str, Any]] = []
        self.filled = Filled()

    def __call__(self, gap: Gap, cause: str) -> None:
        """Fill one gap, or the last hundred events together."""
        self._waiting += events_of(gap, cause)
        if len(self._waiting) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Give what waits to handlers; what fails is tried again after a while."""
        left, self._waiting = self._waiting, []
        for attempt in range(1, TRIES + 1):
            if self._bridge.stopping.is_set():
                break
            again, wait_us = [], 0
            for raw, result in zip(left, self._bridge.process_many(left), strict=True):
                if not result.acknowledged:
                    again.append(raw)
                    wait_us = max(wait_us, result.retry_in_us)
                elif result.outcome is Outcome.DEAD:
                    self.filled.dead += 1
                elif result.outcome is Outcome.DONE:
                    self.filled.done += 1
                else:
                    self.filled.before += 1
            left = again
            if not left or attempt == TRIES or wait_us > WAIT_MAX_US:
                break
            self._bridge.clock.wait(self._bridge.stopping, wait_us / 1_000_000)
        self.filled.again += len(left)


def events_of(gap: Gap, cause: str) -> Iterator[dict[str, Any]]:
    """Yield a delivery for each event that is missing; a wrap-up is one, whatever its name."""
    chosen: dict[tuple[str, str], Due] = {}
    for one in gap.missing:
        chosen[one.session, WRAP_UPS[-1] if one.family in WRAP_UPS else one.family] = one
    for (session, family), one in chosen.items():
        body = {
            # The conversation, the family and the session alone make it this event.
            "eventId": f"{gap.conversation}/{family}/{session}",
            "conversationId": gap.conversation,
            "sessionId": session,
            "family": family,
            "topic": TOPIC_OF[family],
            "missingSince": iso(one.at_ms, "milliseconds"),
            "cause": cause,
            "details": _details(gap.about),
        }
        yield {"detail-type": TOPIC, "source": SOURCE, "detail": body}


def _details(conversation: Conversation) -> dict[str, Any]:
    """Write what Genesys' analytics say of a conversation, under Genesys' names."""
    return {
        "conversationStart": iso(conversation.started_ms, "milliseconds"),
        "conversationEnd": iso(conversation.ended_ms or 0, "milliseconds"),
        "sessions": [_session(one) for one in conversation.sessions],
    }


def _session(session: Session) -> dict[str, Any]:
    times = {"start": session.started_ms, "end": session.ended_ms, "wrapUpEnd": session.wrapped_ms}
    said = {
        "sessionId": session.id,
        "participantId": session.participant,
        "purpose": session.purpose,
        "mediaType": session.media,
        "userId": session.user,
        "queueId": session.queue,
        "wrapUpCode": session.wrap_up_code,
        "disconnectType": session.disconnect_type,
        **{name: None if ms is None else iso(ms, "milliseconds") for name, ms in times.items()},
    }
    return {name: value for name, value in said.items() if value}
