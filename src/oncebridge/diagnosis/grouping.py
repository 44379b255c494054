"""The second pass: the deliveries of each event, one part at a time; then states by entity, and facts by content.

Each function works on one part and knows nothing of the others, so that parts can be worked on side by side.
"""

from __future__ import annotations

from collections import Counter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.claim import Ask, Newest, Outcome, Verdict, judge, newest_after, within_window
from oncebridge.diagnosis.chunks import OtherSeen
from oncebridge.diagnosis.evidence import Evidence, Relation, related
from oncebridge.diagnosis.same_fact import APART_MS_MAX
from oncebridge.diagnosis.sighting import Sighting, StateSeen
from oncebridge.diagnosis.spill import PARTS
from oncebridge.diagnosis.sums import Sums
from oncebridge.identity import NS_PER_MS, Moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncebridge.diagnosis.arrivals import Arrivals

#: Copies of one event that are compared one by one; more are compared with the first and the last of them.
COPIES_MAX: Final = 64
#: Repeats of a state are counted up to so many times its echo window.
REPEATS_TIMES: Final = 10
#: A clock that is wrong by less is not worth a word.
CLOCK_MS: Final = 1000


class DeliveryClass:
    """What a delivery counts as in the back-test."""

    ORIGINAL = 0
    DUPLICATE = 1
    RECEIVED_AGAIN = 2  # the same message of SQS
    ECHO = 3
    OTHER_TOPIC = 4
    STALE = 5
    CONFLICT = 6
    UNREADABLE = 7


IS_DUPLICATE: Final = bytes([0, 1, 1, 1, 1, 0, 0, 0])

CLASSED: Final = Struct("<QB")


class StateRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The first delivery of a state, for the rules of order."""

    n: int
    id: str | None
    topic: str
    seen: StateSeen
    #: Where its envelope was made, if the publish time is all that tells it from the state before; else empty.
    origin: str


class FactRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The first delivery of an event that another topic may bring, too."""

    n: int
    id: str | None
    topic: str
    fact: int
    published_ms: int


class PartFound:
    """What a part leaves behind."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.sums = Sums()
        self.classes = bytearray()
        self.evidence: list[Evidence] = []
        self.states: list[list[StateRow]] = [[] for _ in range(PARTS)]
        self.facts: list[list[FactRow]] = [[] for _ in range(PARTS)]

    def duplicate(self, evidence: Evidence, what: int) -> None:
        """Note a duplicate."""
        self.classes += CLASSED.pack(evidence.n, what)
        self.evidence.append(evidence)

    def other(self, n: int, what: int) -> None:
        """Note a delivery that is neither original nor duplicate."""
        self.classes += CLASSED.pack(n, what)


_rows: Final = msgspec.msgpack.Decoder(list[Sighting]).decode
_states: Final = msgspec.msgpack.Decoder(list[StateRow]).decode
_facts: Final = msgspec.msgpack.Decoder(list[FactRow]).decode
_others: Final = msgspec.msgpack.Decoder(list[OtherSeen]).decode


def sightings_in(blocks: Iterable[bytes]) -> Iterator[Sighting]:
    """Read sightings back."""
    for block in blocks:
        yield from _rows(block)


# --- by event ---------------------------------------------------------------------------------------------------


def group_by_event(blocks: Iterable[bytes], arrivals: Arrivals, retention_ms: int) -> PartFound:
    """Find the copies of each event, and how each is related to those before it.

    A copy that comes after the retention is processed again, and remembered from then on.
    """
    part = PartFound()
    firsts: dict[bytes, Sighting] = {}
    copies: dict[bytes, list[Sighting]] = {}
    remembered_ms: dict[bytes, int] = {}
    known = firsts.setdefault
    rows = sightings_in(blocks)
    for one in arrivals.in_order(rows) if arrivals.is_disordered else rows:
        first = known(one.key, one)
        if first is not one:
            _note_again(one, first, copies, part, arrivals)
            arrived_ms = arrivals.of(one.n)
            if arrived_ms - remembered_ms.setdefault(one.key, arrivals.of(first.n)) >= retention_ms:
                remembered_ms[one.key] = arrived_ms
                part.sums.forgotten += 1
    part.sums.add_events(Counter([one.topic for one in firsts.values()]))
    for one in firsts.values():
        if one.state is not None or one.facts or one.time_ms is not None:
            _pass_on(one, part)
    part.sums.add_duplicates(part.evidence, arrivals)
    return part


def _note_again(
    one: Sighting, first: Sighting, copies: dict[bytes, list[Sighting]], part: PartFound, arrivals: Arrivals
) -> None:
    """Note a delivery whose identity came before: a copy, or a contradiction, which may have copies of its own."""
    if not _has_other_content(one, first):
        earlier = copies.setdefault(one.key, [first])
    else:
        earlier = copies.setdefault(one.key + (one.content or b""), [])
        if not earlier:
            part.other(one.n, DeliveryClass.CONFLICT)
            part.sums.look_alike("conflict", one.n, first.n)
    if earlier:
        _note_copy(one, earlier, part, arrivals)
    earlier.append(one)


def _has_other_content(one: Sighting, first: Sighting) -> bool:
    return one.content is not None and first.content is not None and one.content != first.content


def _pass_on(one: Sighting, part: PartFound) -> None:
    """Pass the first delivery of an event on to the passes that need no copies."""
    if one.time_ms is not None and one.published_ms is not None and one.time_ms > one.published_ms + CLOCK_MS:
        part.sums.look_alike("clock", one.n, one.n)
    if one.state is not None:
        part.states[one.state.entity[0]].append(StateRow(one.n, one.id, one.topic, one.state, _origin_alone(one)))
    for fact in one.facts:
        part.facts[fact % PARTS].append(FactRow(one.n, one.id, one.topic, fact, one.published_ms or 0))


def _origin_alone(one: Sighting) -> str:
    """Return the origin of a state without a time of its own: each integration publishes it at a time of its own."""
    return one.origin if one.time_ms is not None and one.time_ms == one.published_ms else ""


_AT_ONCE: Final = frozenset(
    {Relation.AT_ONCE, Relation.SOON, Relation.PERHAPS_AT_ONCE, Relation.PERHAPS_THRICE, Relation.OTHER_TARGET}
)
_ONCE, _TWICE = 1, 2
_NEW: Final = frozenset({Relation.NEW_ENVELOPE, Relation.OTHER_ORIGIN})


def _note_copy(one: Sighting, earlier: list[Sighting], part: PartFound, arrivals: Arrivals) -> None:
    evidence = related(one, earlier, arrivals)
    relation = evidence.relation
    regular = part.sums.regular(one.topic)
    if relation in _AT_ONCE:
        regular.at_once += evidence.before == _ONCE
        regular.thrice += evidence.before == _TWICE
    elif relation is Relation.LATER:
        regular.later += evidence.before == _ONCE
    elif relation in _NEW:
        regular.envelopes += 1
    what = DeliveryClass.RECEIVED_AGAIN if relation is Relation.SAME_MESSAGE else DeliveryClass.DUPLICATE
    part.duplicate(evidence, what)
    if len(earlier) > COPIES_MAX:
        del earlier[1]


# --- by entity --------------------------------------------------------------------------------------------------


def order_states(blocks: Iterable[bytes], arrivals: Arrivals) -> PartFound:
    """Judge the states of each entity in the order in which they came, as if every handler succeeded."""
    part = PartFound()
    entities = Entities(arrivals)
    origins: dict[bytes, str] = {}
    for row in arrivals.in_order(row for block in blocks for row in _states(block)):
        verdict, newest, of = entities.judge(row.n, row.seen)
        if verdict is Verdict.FRESH:
            origins[row.seen.entity] = row.origin
        _note_state(row, verdict, newest, of, part, origin=origins.get(row.seen.entity, ""))
    part.sums.entities = len(entities)
    part.sums.add_duplicates(part.evidence, arrivals)
    return part


class Entities:
    """What each entity knows, in a world where every handler succeeds."""

    def __init__(self, arrivals: Arrivals) -> None:
        """Begin with none."""
        self._arrivals = arrivals
        self._newest: dict[bytes, tuple[Newest, int]] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def judge(self, n: int, seen: StateSeen) -> tuple[Verdict, Newest, int]:
        """Judge the next state by the bridge's own rules; return what it was compared with, and its number."""
        newest, of = self._newest.get(seen.entity, _NOTHING_KNOWN)
        window_ns = seen.window_ms * NS_PER_MS
        ask = Ask(b"", "", None, None, seen.entity, seen.state, seen.moment, window_ns, seen.stale)  # as positions go
        verdict = judge(ask, newest)
        if verdict is not Verdict.STALE:
            is_echo = verdict is Verdict.ECHO
            outcome = Outcome.ECHO if is_echo else Outcome.DONE
            after = newest_after(newest, ask, outcome, _clock_us(seen.moment, self._arrivals.of(n)))
            self._newest[seen.entity] = (after, of if is_echo else n)
        return verdict, newest, of


_NOTHING_KNOWN: Final = (Newest(), 0)


def _clock_us(moment: Moment, arrived_ms: int) -> int:
    """Return the time by which a stamp is believed: that of the arrival, or any where that is not known."""
    known = [time for time in moment.times if time is not None]
    return arrived_ms * 1000 if arrived_ms >= 0 else max(known, default=0) // 1000


def _note_state(row: StateRow, verdict: Verdict, newest: Newest, of: int, part: PartFound, *, origin: str) -> None:
    seen, sums = row.seen, part.sums
    is_counted = sums.window(row.topic, seen.window_ms)
    is_same = newest.state is not None and newest.state == seen.state
    gap_ms = _gap_ms(seen.moment, newest.moment) if is_same else None
    if is_counted and gap_ms is not None and gap_ms <= REPEATS_TIMES * max(seen.window_ms, 100):
        sums.repeats[row.topic, gap_ms] += 1
    if verdict is Verdict.ECHO:
        lag_ms = gap_ms or 0
        is_elsewhere = origin and row.origin and origin != row.origin
        relation, named = (Relation.OTHER_ORIGIN, f"{origin} and {row.origin}") if is_elsewhere else (Relation.ECHO, "")
        evidence = Evidence(row.n, row.id, row.topic, relation, lag_ms, lag_ms, of, named)
        part.duplicate(evidence, DeliveryClass.ECHO)
    elif verdict is Verdict.STALE:
        part.other(row.n, DeliveryClass.STALE)
        sums.look_alike("late", row.n, of)
    elif is_same and gap_ms is not None:
        sums.look_alike("again", row.n, of)
    elif newest.state is not None and within_window(seen.moment, newest.moment, 0):
        sums.look_alike("tie", row.n, of)


def _gap_ms(one: Moment, other: Moment) -> int | None:
    """Return how far apart two moments are; None where they cannot be compared."""
    pairs = [(a, b) for a, b in zip(one.times, other.times, strict=False) if a is not None and b is not None]
    comparable = one.echoes and other.echoes and len(one.times) == len(other.times)
    return max(abs(a - b) for a, b in pairs) // NS_PER_MS if pairs and comparable else None


# --- by fact ----------------------------------------------------------------------------------------------------


def match_facts(blocks: Iterable[bytes], classes: bytes | bytearray | memoryview, arrivals: Arrivals) -> PartFound:
    """Find events whose fact another topic has brought: the first of one topic for the first of another, and so on.

    A second event of the same topic with the same fact is there for other news.
    """
    part = PartFound()
    known: dict[int, dict[str, list[FactRow]]] = {}
    began_ms: dict[int, int] = {}
    for row in arrivals.in_order(row for block in blocks for row in _facts(block)):
        if row.fact not in known or abs(row.published_ms - began_ms[row.fact]) > APART_MS_MAX:
            known[row.fact], began_ms[row.fact] = {}, row.published_ms
        of_topics = known[row.fact]
        own = of_topics.setdefault(row.topic, [])
        is_original = classes[row.n - 1] == DeliveryClass.ORIGINAL
        if own and not is_original:
            continue  # a repetition within its topic is no further news
        others = [rows[len(own)] for topic, rows in of_topics.items() if topic != row.topic and len(rows) > len(own)]
        own.append(row)
        if others and is_original:
            first = others[0]
            lag_ms = max(0, row.published_ms - first.published_ms)
            relation = Relation.OTHER_TOPIC
            evidence = Evidence(row.n, row.id, row.topic, relation, lag_ms, lag_ms, first.n, first.topic)
            part.duplicate(evidence, DeliveryClass.OTHER_TOPIC)
            part.sums.topic_pairs[first.topic, row.topic] += 1
    part.sums.add_duplicates(part.evidence, arrivals)
    return part


# --- under other settings ---------------------------------------------------------------------------------------


class Dropped:
    """The deliveries that a bridge with other settings would not have given to a handler."""

    def __init__(self) -> None:
        """Begin with none."""
        #: Pairs: the delivery, and the one that it was taken for.
        self.pairs: list[tuple[int, int]] = []
        self.states: list[list[OtherSeen]] = [[] for _ in range(PARTS)]


def drop_copies(blocks: Iterable[bytes], arrivals: Arrivals, retention_ms: int) -> Dropped:
    """Find the copies that other settings would recognise, and pass the first of each event on."""
    dropped = Dropped()
    first: dict[bytes, int] = {}
    for row in arrivals.in_order(row for block in blocks for row in _others(block)):
        known = first.get(row.key)
        if known is not None and arrivals.of(row.n) - arrivals.of(known) < retention_ms:
            dropped.pairs.append((row.n, known))
            continue
        first[row.key] = row.n
        if row.state is not None:
            dropped.states[row.state.entity[0]].append(row)
    return dropped


def drop_states(blocks: Iterable[bytes], arrivals: Arrivals) -> Dropped:
    """Find the states that other settings would take for an echo or for stale."""
    dropped = Dropped()
    entities = Entities(arrivals)
    for row in arrivals.in_order(row for block in blocks for row in _others(block)):
        if row.state is not None:
            verdict, _, of = entities.judge(row.n, row.state)
            if verdict is not Verdict.FRESH:
                dropped.pairs.append((row.n, of))
    return dropped


def encoded(rows: list[list[Any]]) -> list[bytes]:
    """Write rows, a block for each part."""
    return [msgspec.msgpack.encode(part) if part else b"" for part in rows]
