"""The road from Genesys to the bridge: what is published goes in, what arrives comes out, in its order."""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final

import msgspec

from oncebridge.simulation.dice import Dice
from oncebridge.simulation.faults import Fault, Road
from oncebridge.simulation.publishing import Publication, iso_seconds

_MINUTE_MS: Final = 60 * 1000
_BLOCK: Final = 100
_STRETCH_MIN: Final = 10
_STRETCH_MAX: Final = 40

_SUFFIX: Final = "contact-centre"
_SECOND_SUFFIX: Final = "contact-centre-2"

#: The end of the envelope id in the line: what is cut behind it is still like no other line.
_CUT_MIN: Final = len('{"version":"0","id":"') + 36


class Arrival(msgspec.Struct, frozen=True):
    """One envelope at the end of the road."""

    publication: Publication
    id: str
    time_ms: int
    suffix: str = _SUFFIX
    fault: Fault = Fault.NONE
    replay_name: str | None = None


class _Envelope(
    msgspec.Struct, omit_defaults=True, rename={"detail_type": "detail-type", "replay_name": "replay-name"}
):
    """EventBridge's frame, in the order in which EventBridge writes it."""

    version: str
    id: str
    detail_type: str
    source: str
    account: str
    time: str
    region: str
    resources: tuple[str, ...]
    detail: msgspec.Raw
    replay_name: str | None = None


_encode = msgspec.json.Encoder().encode


def write(arrival: Arrival, org: str, dice: Dice) -> bytes:
    """Write an envelope as one line of JSON, or what is left of it where it is to be unreadable."""
    envelope = _Envelope(
        version="0",
        id=arrival.id,
        detail_type=arrival.publication.topic,
        source=f"aws.partner/genesys.com/cloud/{org}/{arrival.suffix}",
        account="111122223333",
        time=iso_seconds(arrival.time_ms),
        region="eu-central-1",
        resources=(),
        detail=msgspec.Raw(arrival.publication.detail),
        replay_name=arrival.replay_name,
    )
    line = _encode(envelope)
    return damage(line, dice) if arrival.fault is Fault.UNREADABLE else line


def damage(line: bytes, dice: Dice) -> bytes:
    """Make a line unreadable in one of the ways that a strict reader must notice."""
    ways = (
        line[: dice.between(_CUT_MIN, len(line) - 1)],
        line + b"}",
        line.replace(b'"version":"0"', b'"version":"1","version":"0"', 1),
        line.replace(b'"eventBody":{', b'"eventBody":{"score":1,"score":2,', 1),
        line.replace(b'"eventBody":{', b'"eventBody":{"score":NaN,', 1),
        line.replace(b'"eventBody":{', b'"eventBody":{"note":"\xff",', 1),
    )
    return dice.pick(ways)


def travel(publications: Iterable[Publication], dice: Dice, road: Road) -> Iterator[Arrival]:
    """Yield the arrivals in order, holding only those under way."""
    carrier = _Carrier(dice, road)
    for publication in publications:
        # Nothing arrives before it is published, so everything earlier is complete.
        yield from carrier.arrived_before(publication.published_ms)
        carrier.send(publication)
    carrier.close_archive()
    yield from carrier.arrived_before(None)


class _Carrier:
    """Takes publications and decides when, how often and under which envelope each arrives."""

    def __init__(self, dice: Dice, road: Road) -> None:
        self._dice = dice
        self._road = road
        self._under_way: list[tuple[int, int, Arrival]] = []
        self._sequence = 0
        self._archive: list[Arrival] = []
        self._replays = 0

    def arrived_before(self, moment_ms: int | None) -> Iterator[Arrival]:
        """Hand out what arrives before this moment, or everything."""
        while self._under_way and (moment_ms is None or self._under_way[0][0] < moment_ms):
            yield heappop(self._under_way)[2]

    def send(self, publication: Publication) -> None:
        """Send a publication on its way, with everything that goes wrong with it."""
        original = Arrival(publication, self._dice.uuid(), publication.published_ms, fault=publication.fault)
        self._deliver_again(original, self._deliver(original))
        self._publish_again(original)
        if self._dice.chance(self._road.unreadable):
            self._arrive(publication.published_ms, self._twin(original, fault=Fault.UNREADABLE))
        self._archive.append(original)
        if len(self._archive) == _BLOCK:
            self.close_archive()

    def close_archive(self) -> None:
        """Close a block of the archive, and perhaps bring a stretch of it again."""
        block, self._archive = self._archive, []
        if not block or not self._dice.chance(self._road.archive_replay):
            return
        self._replays += 1
        length = min(len(block), self._dice.between(_STRETCH_MIN, _STRETCH_MAX))
        first = self._dice.between(0, len(block) - length)
        name = f"bring-again-{self._replays}"
        keeps_ids = self._dice.chance(0.5)
        begun_ms = block[-1].time_ms + self._dice.between(5, 20) * _MINUTE_MS
        for original in block[first : first + length]:
            envelope_id = original.id if keeps_ids else self._dice.uuid()
            again = msgspec.structs.replace(original, id=envelope_id, replay_name=name, fault=Fault.ARCHIVE_REPLAY)
            # An archive keeps no order within a minute.
            self._arrive(begun_ms + self._dice.between(0, _MINUTE_MS), again)

    def _deliver(self, original: Arrival) -> int:
        """Deliver an envelope for the first time; return when."""
        moment_ms = original.time_ms
        if self._dice.chance(self._road.reordering):
            # Half are overtaken by a few, half by so many that the entity's next state may be among them.
            longest_ms = 1500 if self._dice.chance(0.5) else 90_000
            moment_ms += self._dice.between(50, longest_ms)
            fault = Fault.REORDERING if original.fault is Fault.NONE else original.fault
            original = msgspec.structs.replace(original, fault=fault)
        self._arrive(moment_ms, original)
        return moment_ms

    def _deliver_again(self, original: Arrival, moment_ms: int) -> None:
        """Deliver the same envelope again: at once by a second rule, later by a retry."""
        if self._dice.chance(self._road.overlapping_rule):
            twin = msgspec.structs.replace(original, fault=Fault.OVERLAPPING_RULE)
            self._arrive(moment_ms + self._dice.between(0, 30), twin)
        if self._dice.chance(self._road.redelivery):
            again = msgspec.structs.replace(original, fault=Fault.REDELIVERY)
            for _ in range(1 if self._dice.chance(0.8) else 2):
                moment_ms += self._dice.between(1000, 5 * _MINUTE_MS)
                self._arrive(moment_ms, again)

    def _publish_again(self, original: Arrival) -> None:
        """Publish the same event under another envelope id."""
        if self._dice.chance(self._road.republish):
            moment_ms = original.time_ms + self._dice.between(50, _MINUTE_MS)
            time_ms = moment_ms if self._dice.chance(0.5) else original.time_ms
            self._arrive(moment_ms, self._twin(original, fault=Fault.REPUBLISH, time_ms=time_ms))
        if self._dice.chance(self._road.second_integration):
            twin = self._twin(original, fault=Fault.SECOND_INTEGRATION, suffix=_SECOND_SUFFIX)
            self._arrive(original.time_ms + self._dice.between(0, 250), twin)

    def _twin(self, original: Arrival, **changes: str | int) -> Arrival:
        return msgspec.structs.replace(original, id=self._dice.uuid(), **changes)

    def _arrive(self, moment_ms: int, arrival: Arrival) -> None:
        self._sequence += 1
        heappush(self._under_way, (moment_ms, self._sequence, arrival))
