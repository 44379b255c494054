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
TURNS: Final = "turns"
#: Deliveries of each group of `make_groups`.
GROUP: Final = 5
#: Between a state and its return: within the echo window, with another state in between.
RETURN_MS: Final = 100


@dataclass(frozen=True)
class Happened:
    """An event of a round."""

    number: int
    #: What it is a state of; None for a fact.
    entity: int | None
    time_ms: int
    #: Of a state that other events of its entity bring, too; empty: no other does.
    state: str = ""


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


def make_returns(seed: int, name: str, *, called: str = "", entities: int = 8) -> Stream:
    """Make up a round of entities that change and change back at once, in this order, whatever lies in between.

    The third event brings the state of the first: an echo, unless the second has taken effect or may have.
    """
    dice = random.Random(f"{seed} {name}")
    happened = [
        Happened(3 * entity + turn, entity, START_MS + turn * RETURN_MS, "there" if turn == 1 else "here")
        for entity in range(entities)
        for turn in range(3)
    ]
    arriving = []
    for event in happened:
        place = (event.number % 3) * 2.0
        raw = _delivery(called or name, event, copy=0)
        arriving += [(place + dice.random(), event.number, raw), (place + 1 + dice.random(), event.number, raw)]
    arriving.sort()
    return Stream(tuple(happened), tuple((number, raw) for _, number, raw in arriving))


def make_groups(_: int, name: str, *, called: str = "", groups: int = 100) -> Stream:
    """Make a round of groups that are all alike: two facts, one of them twice, and two states of an entity."""
    happened, arrivals = [], []
    for group in range(groups):
        first = 4 * group
        facts = [Happened(first + n, None, START_MS + first + n) for n in range(2)]
        states = [Happened(first + 2 + n, group, START_MS + n * STEP_MS) for n in range(2)]
        happened += [*facts, *states]
        arrivals += [(one.number, _delivery(called or name, one, copy=0)) for one in (*facts, *states, facts[0])]
    return Stream(tuple(happened), tuple(arrivals))


def make_copies(_: int, name: str, *, called: str = "", facts: int = 2, copies: int = 6) -> Stream:
    """Make a round of few facts, each of which comes again and again: whoever is free has one that another works on."""
    happened = [Happened(number, None, START_MS + number) for number in range(facts)]
    raws = [(one.number, _delivery(called or name, one, copy=0)) for one in happened]
    return Stream(tuple(happened), tuple(raws * copies))


def number_in(body: dict[str, Any]) -> int:
    """Return which event of its round this is."""
    number: int = body[FIELD]
    if TURNS in body:  # the state is the same as two turns before: only the time tells
        number += (_ms(body["modifiedDate"]) - START_MS) // RETURN_MS
    return number


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)


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
        presence = {"id": event.state or f"{event.number}", "systemPresence": "BUSY"}
        number = {FIELD: 3 * event.entity, TURNS: 3} if event.state else {FIELD: event.number}
        body = {"source": "PURECLOUD", "presenceDefinition": presence, "modifiedDate": time, **number}
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
