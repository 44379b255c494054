"""The deliveries that everything is measured on: mixed traffic as a contact centre sends it, and facts alone."""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import UUID

import payloads  # the tests' own: one place for what events look like

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR_MS: Final = 3_600_000

#: What makes one event another, and stands in every usual body.
_IDS: Final = (payloads.ENVELOPE_ID, payloads.CONVERSATION, payloads.PARTICIPANT, payloads.SESSION)
_DELAY_MS: Final = payloads.PUBLISHED_MS - payloads.TIME_MS
_DETAILS: Final = "v2.detail.events.conversation."


def hours_ago_ms(hours: int) -> int:
    """Return a time of today or so, as traffic has that has just happened."""
    return int(time.time() * 1000) - hours * HOUR_MS


def portions(raws: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    """Cut traffic into portions."""
    while portion := list(islice(raws, size)):
        yield portion


# --- facts alone -------------------------------------------------------------------------------------------------


def facts(number: int, *, seed: int, start_ms: int, span_ms: int = HOUR_MS) -> Iterator[bytes]:
    """Make up distinct detail events of about 1 KB, evenly over a span of event time."""
    dice = random.Random(seed)
    shapes = _details()
    for n in range(number):
        yield _fact(shapes[n % len(shapes)], start_ms + n * span_ms // number, dice).encode()


def templates(number: int, *, start_ms: int, span_ms: int = HOUR_MS) -> list[list[str]]:
    """Make up detail events without their ids, each in parts: with an id between the parts they are an event.

    A load generator in another language makes distinct facts of them, as long as its ids differ.
    """
    shapes = _details()
    whole = [_at(shapes[n % len(shapes)], start_ms + n * span_ms // number) for n in range(number)]
    return [re.split("|".join(map(re.escape, _IDS)), raw) for raw in whole]


def _fact(shape: str, time_ms: int, dice: random.Random) -> str:
    raw = _at(shape, time_ms)
    for known in (*_IDS, payloads.RECORD, payloads.AUDIT):
        raw = raw.replace(known, _new_id(dice))
    return raw


def _at(raw: str, time_ms: int) -> str:
    """Set the time at which an event happened, and with it the time at which it was published."""
    published_ms = time_ms + _DELAY_MS
    raw = raw.replace(payloads.iso(payloads.PUBLISHED_MS), payloads.iso(published_ms))
    raw = raw.replace(payloads.iso(payloads.PUBLISHED_MS, digits=0), payloads.iso(published_ms, digits=0))
    raw = raw.replace(payloads.iso(payloads.TIME_MS), payloads.iso(time_ms))
    return raw.replace(str(payloads.TIME_MS), str(time_ms))


def _new_id(dice: random.Random) -> str:
    return str(UUID(int=dice.getrandbits(128)))


def _shape(topic: str) -> str:
    return payloads.raw(payloads.envelope(topic)).decode()


@cache
def _details() -> list[str]:
    """Return one delivery of each topic of detail events of conversations."""
    return [_shape(topic) for topic in payloads.BODIES if topic.startswith(_DETAILS)]


# --- mixed traffic -----------------------------------------------------------------------------------------------

AGENTS: Final = 40
#: Agents whose states come at the same time: so few that a batch of 100 holds many states of one entity.
#: The number is how often each of them is the one.
BUSY_AGENTS: Final = (2, 1)
#: How likely it is after each change that other agents are the busy ones.
OTHERS_ARE_BUSY: Final = 0.01
#: How likely each thing is, of what Genesys publishes. A change of state takes one or two deliveries.
CHANGE: Final = 0.45
ECHO: Final = 0.12
#: How likely each thing is on the way, of what Genesys published. About three in ten deliveries are duplicates.
SAME_ENVELOPE: Final = 0.2
OTHER_ENVELOPE: Final = 0.22
LATE: Final = 0.08
#: Between one thing and the next.
GAP_MS: Final = (20, 600)
ECHO_MS: Final = (1, 500)
AGAIN_MS: Final = (0, 30_000)
LATE_MS: Final = (50, 5_000)

_STATUSES: Final = ("IDLE", "INTERACTING", "COMMUNICATING", "NOT_RESPONDING", "OFF_QUEUE")
_PRESENCES: Final = ("ON_QUEUE", "MEAL", "BREAK", "MEETING", "TRAINING")
_CALL_STATES: Final = ("alerting", "connected", "held", "disconnected")
_CALL_ENDS: Final = 0.3


def mixed(number: int, *, seed: int, start_ms: int, new_calls: bool = True) -> Iterator[bytes]:
    """Make up traffic with its duplicates, echoes and late comers, in order of arrival: 60 % are states.

    Without new calls no agent gets another one, so once everyone has been at work there are no new entities.
    """
    dice = random.Random(seed)
    agents = [_Agent(dice, new_calls) for _ in range(AGENTS)]
    return (raw.encode() for raw in islice(_arriving(_published(agents, dice, start_ms), dice), number))


def _arriving(published: Iterator[tuple[int, str]], dice: random.Random) -> Iterator[str]:
    """Deliver everything at least once, some of it late and some of it again."""
    under_way: list[tuple[int, str]] = []
    for published_ms, raw in published:
        arrival_ms = published_ms + (dice.randint(*LATE_MS) if dice.random() < LATE else 0)
        heappush(under_way, (arrival_ms, raw))
        if dice.random() < SAME_ENVELOPE:
            heappush(under_way, (arrival_ms + dice.randint(*AGAIN_MS), raw))
        if dice.random() < OTHER_ENVELOPE:
            twin = raw.replace(_envelope_id(raw), _new_id(dice), 1)
            heappush(under_way, (published_ms + dice.randint(*AGAIN_MS), twin))
        # An echo is published up to half a second after the event that follows it here.
        while under_way[0][0] < published_ms - ECHO_MS[1]:
            yield heappop(under_way)[1]


def _envelope_id(raw: str) -> str:
    return raw.partition('"id":"')[2][:36]


def _published(agents: list[_Agent], dice: random.Random, start_ms: int) -> Iterator[tuple[int, str]]:
    """Yield what Genesys publishes, each with its time; an echo comes right after its state."""
    busy = agents[: len(BUSY_AGENTS)]
    # Weighed by how often each topic comes in simulated traffic.
    shapes = [*_details(), *[_shape(payloads.METRICS)] * 4, *[_shape(payloads.TRANSCRIPTION)] * 3]
    time_ms = start_ms
    while True:
        time_ms += dice.randint(*GAP_MS)
        if dice.random() >= CHANGE:
            yield time_ms, _fact(dice.choice(shapes), time_ms, dice)
            continue
        if dice.random() < OTHERS_ARE_BUSY:
            busy = dice.sample(agents, len(BUSY_AGENTS))
        for raw in dice.choices(busy, BUSY_AGENTS)[0].change():
            yield time_ms, _at(raw, time_ms).replace(payloads.ENVELOPE_ID, _new_id(dice))
            if dice.random() < ECHO:
                again_ms = time_ms + dice.randint(*ECHO_MS)
                yield again_ms, _at(raw, again_ms).replace(payloads.ENVELOPE_ID, _new_id(dice))


@dataclass
class _Agent:
    """One agent at work. Each change is published on all topics that show it, as Genesys does."""

    dice: random.Random
    new_calls: bool
    status: str = _STATUSES[0]
    presence: str = _PRESENCES[0]
    call: str = _CALL_STATES[0]
    user: str = field(init=False)
    conversation: str = field(init=False)

    def __post_init__(self) -> None:
        self.user, self.conversation = _new_id(self.dice), _new_id(self.dice)

    def change(self) -> tuple[str, ...]:
        """Take on another status, presence or state of a call; return the deliveries, without their times."""
        match self.dice.randrange(5):
            case 0 | 1:
                self.status = self._other(self.status, _STATUSES)
                return self._publish("v2.users.{id}.routingStatus"), self._publish("v2.users.{id}.activity")
            case 2:
                self.presence = self._other(self.presence, _PRESENCES)
                return self._publish("v2.users.{id}.presence"), self._publish("v2.users.{id}.activity")
            case _:
                if self.dice.random() < _CALL_ENDS and self.new_calls:
                    self.conversation = _new_id(self.dice)
                self.call = self._other(self.call, _CALL_STATES)
                return (self._publish("v2.users.{id}.conversations"),)

    def _other(self, now: str, all_of_them: tuple[str, ...]) -> str:
        return self.dice.choice([one for one in all_of_them if one != now])

    def _publish(self, topic: str) -> str:
        raw = _state_shape(topic)
        said = {
            payloads.USER: self.user,
            payloads.CONVERSATION: self.conversation,
            "STATUS": self.status,
            "PRESENCE": self.presence,
            "CALL": self.call,
        }
        for known, now in said.items():
            raw = raw.replace(known, now)
        return raw


@cache
def _state_shape(topic: str) -> str:
    """Return a delivery of a topic with words where an agent's state goes."""
    raw = _shape(topic)
    for usual, word in (
        (r'"status":"\w+"', '"status":"STATUS"'),
        (r'"systemPresence":"\w+"', '"systemPresence":"PRESENCE"'),
        (r'"state":"\w+"', '"state":"CALL"'),
    ):
        raw = re.sub(usual, word, raw)
    return raw
