"""What is measured on: facts alone, as many as one likes and all distinct, and mixed simulated traffic."""

from __future__ import annotations

import random
import re
import time
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Final
from uuid import UUID

import payloads  # the tests' own: one place for what events look like
from oncebridge.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR_MS: Final = 3_600_000
#: Rather too few: traffic is cut off where there is enough of it.
_DELIVERIES_PER_CONVERSATION: Final = 40

#: What makes one event another, and stands in every usual body.
_IDS: Final = (payloads.ENVELOPE_ID, payloads.CONVERSATION, payloads.PARTICIPANT, payloads.SESSION)
_TIME: Final = str(payloads.TIME_MS)
_PUBLISHED: Final = payloads.iso(payloads.PUBLISHED_MS)
_SENT: Final = payloads.iso(payloads.PUBLISHED_MS, digits=0)
_DELAY_MS: Final = payloads.PUBLISHED_MS - payloads.TIME_MS


def hours_ago_ms(hours: int) -> int:
    """Return a time of today or so, as traffic has that has just happened."""
    return int(time.time() * 1000) - hours * HOUR_MS


def facts(number: int, *, seed: int, start_ms: int, span_ms: int = HOUR_MS) -> Iterator[bytes]:
    """Make up distinct detail events of about 1 KB, evenly over a span of event time."""
    dice = random.Random(seed)
    shapes = _shapes()
    for n in range(number):
        raw = _at(shapes[n % len(shapes)], start_ms + n * span_ms // number)
        for known in _IDS:
            raw = raw.replace(known, str(UUID(int=dice.getrandbits(128))))
        yield raw.encode()


def templates(number: int, *, start_ms: int, span_ms: int = HOUR_MS) -> list[list[str]]:
    """Make up detail events without their ids, each in parts: with an id between them they are an event.

    Whoever makes load in another language makes distinct facts of them, as long as ids are.
    """
    shapes = _shapes()
    whole = [_at(shapes[n % len(shapes)], start_ms + n * span_ms // number) for n in range(number)]
    return [re.split("|".join(map(re.escape, _IDS)), raw) for raw in whole]


def _at(raw: str, time_ms: int) -> str:
    """Let an event happen at a time."""
    raw = raw.replace(_PUBLISHED, payloads.iso(time_ms + _DELAY_MS))
    raw = raw.replace(_SENT, payloads.iso(time_ms + _DELAY_MS, digits=0))
    return raw.replace(_TIME, str(time_ms))


@cache
def _shapes() -> list[str]:
    """Return one delivery of each topic of detail events of conversations."""
    topics = [topic for topic in payloads.BODIES if topic.startswith("v2.detail.events.conversation.")]
    return [payloads.raw(payloads.envelope(topic)).decode() for topic in topics]


def mixed(number: int, *, seed: int, start_ms: int) -> Iterator[bytes]:
    """Simulate traffic with all its duplicates, echoes and late comers, in order of arrival."""
    conversations = number // _DELIVERIES_PER_CONVERSATION + 1
    return (delivery.raw for delivery in islice(simulate(conversations, seed, start_ms=start_ms), number))


def portions(raws: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    """Cut traffic into portions."""
    while portion := list(islice(raws, size)):
        yield portion
