"""Genesys traffic that never happened, with the truth beside it: the verdict that each delivery must get."""

from collections.abc import Iterator
from typing import Final

import msgspec

from oncebridge.simulation.dice import Dice
from oncebridge.simulation.faults import USUAL_ROAD, Fault, Road
from oncebridge.simulation.road import travel, write
from oncebridge.simulation.traffic import traffic
from oncebridge.simulation.truth import Judgement, Truth, Verdict

__all__ = ["START_MS", "USUAL_ROAD", "Delivery", "Fault", "Road", "Verdict", "simulate"]

START_MS: Final = 1_772_438_400_000  # 2026-03-02T08:00:00Z


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One line of traffic, and what the bridge must make of it."""

    #: Counts the deliveries from 1, in order of arrival.
    n: int
    #: One envelope as compact JSON, without a line break.
    raw: bytes
    #: The envelope id; None where the line is unreadable.
    id: str | None
    verdict: Verdict
    #: For redelivery and republish: the envelope id of the delivery that did the work.
    of: str | None
    #: Why the delivery is there, which is not what it counts as: an echo that comes too late is fresh.
    fault: Fault

    def truth_line(self) -> bytes:
        """Write the truth as one line of JSON, without a line break."""
        return msgspec.json.encode({"n": self.n, "id": self.id, "verdict": self.verdict})


def simulate(conversations: int, seed: int, *, road: Road = USUAL_ROAD, start_ms: int = START_MS) -> Iterator[Delivery]:
    """Make up the deliveries of so many conversations, one by one; the same arguments give the same bytes.

    Args:
        conversations: How many conversations there are; about 45 deliveries each, on the usual road.
        seed: Where all chance comes from.
        road: How often each fault happens.
        start_ms: When the first conversation begins. The truth holds for a ledger whose clock is past the
            traffic: a stamp far ahead of it never becomes an entity's newest.
    """
    if conversations < 0:
        raise ValueError(f"{conversations} conversations: there cannot be fewer than none")
    return _deliveries(conversations, seed, road, start_ms)


def _deliveries(conversations: int, seed: int, road: Road, start_ms: int) -> Iterator[Delivery]:
    dice, truth = Dice(seed), Truth()
    org = dice.uuid()
    arrivals = travel(traffic(conversations, org, dice, road, start_ms), dice, road)
    for n, arrival in enumerate(arrivals, 1):
        raw = write(arrival, org, dice)
        readable = arrival.fault is not Fault.UNREADABLE
        judgement = truth.judge(arrival.publication.event, arrival.id) if readable else Judgement("dead")
        yield Delivery(
            n=n,
            raw=raw,
            id=arrival.id if readable else None,
            verdict=judgement.verdict,
            of=judgement.of,
            fault=arrival.fault,
        )
