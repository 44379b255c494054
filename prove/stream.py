"""What happens in a round, and how it arrives: known beforehand, so that a checker needs nobody's word for it.

Facts and states of a few entities, some of them at the same time. Each is delivered once or more often, under its own
envelope or a new one, and not in order.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

#: Long past, so that no stamp is ahead of anybody's clock.
START_MS: Final = 1_748_000_000_000
#: Between two states of an entity: far more than the echo window.
STEP_MS: Final = 10_000
TIE_SHARE: Final = 0.2
AGAIN_SHARE: Final = 0.45
NEW_ENVELOPE_SHARE: Final = 0.4
#: How far a delivery may fall behind others.
DISORDER: Final = 8
FIELD: Final = "proof"


@dataclass(frozen=True)
class Happened:
    """An event of a round."""

    number: int
    #: What it is a state of; None for a fact.
    entity: int | None
    time_ms: int


@dataclass(frozen=True)
class Stream:
    """A round's events, and their deliveries in order of arrival: the number of the event, and what is delivered."""

    events: tuple[Happened, ...]
    arrivals: tuple[tuple[int, bytes], ...]


def make_stream(
    seed: int, name: str, *, called: str = "", facts: int = 10, entities: int = 3, states: int = 5
) -> Stream:
    """Make up a round. Rounds that are called differently, or have different names, share no event and no entity."""
    dice = random.Random(f"{seed} {name}")
    happened = [Happened(number, None, START_MS + number) for number in range(facts)]
    for entity in range(entities):
        time_ms = START_MS
        for _ in range(states):
            time_ms += 0 if dice.random() < TIE_SHARE else STEP_MS
            happened.append(Happened(len(happened), entity, time_ms))
    called = called or name
    places = [(dice.random() * len(happened), event) for event in happened]
    arriving = []
    for place, event in places:
        raws = [_delivery(called, event, copy=0)]
        while dice.random() < AGAIN_SHARE:
            raws.append(_delivery(called, event, copy=len(raws)) if dice.random() < NEW_ENVELOPE_SHARE else raws[0])
        arriving += [(place + dice.random() * DISORDER, event.number, raw) for raw in raws]
    arriving.sort()
    return Stream(tuple(happened), tuple((number, raw) for _, number, raw in arriving))


def number_in(body: dict[str, Any]) -> int:
    """Return which event of its round this is."""
    number: int = body[FIELD]
    return number


def _delivery(name: str, event: Happened, copy: int) -> bytes:
    moment = datetime.fromtimestamp(event.time_ms / 1000, UTC)
    time = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if event.entity is None:
        topic = "v2.detail.events.conversation.{id}.acw"
        concrete = topic.replace("{id}", f"{name}-{event.number}")
        body = {"eventTime": event.time_ms, "conversationId": f"{name}-{event.number}", FIELD: event.number}
    else:
        topic = "v2.users.{id}.presence"
        concrete = topic.replace("{id}", f"{name}-{event.entity}")
        presence = {"id": f"{event.number}", "systemPresence": "BUSY"}
        body = {"source": "PURECLOUD", "presenceDefinition": presence, "modifiedDate": time, FIELD: event.number}
    envelope = {
        "version": "0",
        "id": f"{name}-{event.number}-{copy}",
        "detail-type": topic,
        "source": "aws.partner/genesys.com/cloud/5a3b1e0c-9d24-4c1f-8f67-2b90d1c4e7a5/proof",
        "account": "123456789012",
        "time": time,
        "region": "eu-central-1",
        "resources": [],
        "detail": {"topicName": concrete, "version": "2", "timestamp": time, "eventBody": body, "metadata": {}},
    }
    return json.dumps(envelope, separators=(",", ":")).encode()
