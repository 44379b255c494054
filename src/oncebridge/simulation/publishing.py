"""How Genesys says something: topic name, body and publish time, and beside them what the truth needs."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any, Final

import msgspec

from oncebridge.simulation.dice import Dice
from oncebridge.simulation.faults import Fault, Road
from oncebridge.simulation.truth import ECHO_WINDOW_MS, Event

Body = dict[str, Any]
Times = tuple[int, ...]

LAG_MS_MIN: Final = 20
LAG_MS_MAX: Final = 300
ECHOES_MAX: Final = 3
#: So long after a change of an entity, everything that was said of it has been published, echoes included.
QUIET_MS: Final = ECHOES_MAX * ECHO_WINDOW_MS + LAG_MS_MAX + 200

_ANOTHER_ECHO: Final = 0.3
_AUDITS: Final = "v2.audits.entitytype.{id}.entityid.{id}"

_encode = msgspec.json.Encoder().encode


class Publication(msgspec.Struct, frozen=True):
    """One event as Genesys hands it to EventBridge."""

    event: Event
    topic: str
    detail: bytes
    published_ms: int
    fault: Fault = Fault.NONE


class StateTopic(msgspec.Struct, frozen=True):
    """A topic that says how something is now."""

    topic: str
    #: Makes a state another one, for ties.
    alter: Callable[[Body], Body]
    #: Writes the event's times into its body; without it the publish time counts.
    stamp: Callable[[Body, Times], Body] | None = None


class _About(msgspec.Struct, frozen=True):
    """What a state, its tie and its echoes have in common."""

    kind: StateTopic
    name: str
    entity_id: str
    changed: int


@lru_cache(maxsize=4096)
def _iso_seconds(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def iso_seconds(moment_ms: int) -> str:
    """Write a moment in whole seconds, as EventBridge does."""
    return f"{_iso_seconds(moment_ms // 1000)}Z"


def iso_ms(moment_ms: int) -> str:
    """Write a moment to the millisecond, as Genesys does."""
    return f"{_iso_seconds(moment_ms // 1000)}.{moment_ms % 1000:03d}Z"


class Publisher:
    """Collects what happens and hands it out in the order of publishing."""

    def __init__(self, org: str, dice: Dice, road: Road) -> None:
        self.org: Final = org
        self._dice = dice
        self._road = road
        self._identities = 0
        self._sequence = 0
        self._waiting: list[tuple[int, int, Publication]] = []

    def until(self, moment_ms: int | None) -> Iterator[Publication]:
        """Hand out the events that are published before this moment, or all."""
        while self._waiting and (moment_ms is None or self._waiting[0][0] < moment_ms):
            yield heappop(self._waiting)[2]

    def fact(self, topic: str, subject_id: str, body: Body, happened_ms: int) -> None:
        """Publish a fact or a sample about a conversation or a queue."""
        event = Event(identity=self._new_identity())
        self._say(event, topic, topic.replace("{id}", subject_id), body, happened_ms + self._lag_ms())

    def audit(self, body: Body, contradiction: Body, happened_ms: int) -> None:
        """Publish an audit, and sometimes its contradiction: the same id with another content."""
        audit_id = self._dice.uuid()
        name = f"v2.audits.entitytype.{body['entityType']}.entityid.{body['entity']['id']}"
        identity = self._new_identity()
        published_ms = happened_ms + self._lag_ms()
        said = {"id": audit_id, **body, "eventTime": iso_ms(happened_ms // 1000 * 1000)}
        self._say(Event(identity=identity, content=0), _AUDITS, name, said, published_ms, suffix="-archival")
        if self._dice.chance(self._road.conflict):
            other = Event(identity=identity, content=1)
            published_ms += self._dice.between(1000, 60_000)
            said = {**said, **contradiction}
            self._say(other, _AUDITS, name, said, published_ms, fault=Fault.CONFLICT, suffix="-archival")

    def state(
        self,
        kind: StateTopic,
        user_id: str,
        state: Body,
        times_ms: Times,
        *,
        entity_id: str = "",
        changed: int = 0,
    ) -> Times:
        """Publish a state, sometimes with a tie beside it and echoes behind it.

        Args:
            kind: The topic.
            user_id: The id in the topic's name.
            state: The body without its times.
            times_ms: The event's times; for a topic without any, when it happened.
            entity_id: What tells the topic's entities apart, beside the topic name.
            changed: Which of the times changed last; echoes bring it again, a little later.

        Returns:
            The times as last said: the next ones of this entity must not be older.
        """
        about = _About(kind, kind.topic.replace("{id}", user_id), entity_id, changed)
        if kind.stamp is None:
            times_ms = (times_ms[0] + self._lag_ms(),)
        self._say_state(about, state, times_ms, Fault.NONE)
        if self._dice.chance(self._road.tie):
            self._say_state(about, kind.alter(state), times_ms, Fault.TIE)
        for _ in range(self._echoes()):
            later_ms = times_ms[changed] + self._dice.between(1, ECHO_WINDOW_MS)
            times_ms = (*times_ms[:changed], later_ms, *times_ms[changed + 1 :])
            self._say_state(about, state, times_ms, Fault.ECHO)
        return times_ms

    def _say_state(self, about: _About, state: Body, times_ms: Times, fault: Fault) -> None:
        event = Event(
            identity=self._new_identity(),
            entity=f"{about.name} {about.entity_id}",
            # For snapshots this holds ids and times of the participants too, which is the same thing: two
            # snapshots within the echo window are either equal in all or differ in more than those.
            state=_encode(state),
            times_ms=times_ms,
        )
        body, published_ms = state, times_ms[about.changed]
        if about.kind.stamp is not None:
            body, published_ms = about.kind.stamp(state, times_ms), published_ms + self._lag_ms()
        self._say(event, about.kind.topic, about.name, body, published_ms, fault=fault)

    def _say(
        self,
        event: Event,
        topic: str,
        name: str,
        body: Body,
        published_ms: int,
        *,
        fault: Fault = Fault.NONE,
        suffix: str = "",
    ) -> None:
        detail = {
            "topicName": name,
            "version": "2",
            "eventBody": body,
            "metadata": {"CorrelationId": self._dice.uuid() + suffix},
            "timestamp": iso_ms(published_ms),
        }
        self._sequence += 1
        publication = Publication(event, topic, _encode(detail), published_ms, fault)
        heappush(self._waiting, (published_ms, self._sequence, publication))

    def _echoes(self) -> int:
        """Return how many echoes a state has; each echoes the one before it, so they may leave the window."""
        if not self._dice.chance(self._road.echo):
            return 0
        echoes = 1
        while echoes < ECHOES_MAX and self._dice.chance(_ANOTHER_ECHO):
            echoes += 1
        return echoes

    def _lag_ms(self) -> int:
        return self._dice.between(LAG_MS_MIN, LAG_MS_MAX)

    def _new_identity(self) -> int:
        self._identities += 1
        return self._identities
