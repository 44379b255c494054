"""Judges a round by what was written down outside of the program, and by what was known beforehand."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from prove.stream import Happened


@dataclass(frozen=True)
class Effect:
    """An attempt at the sink that only writes down: which event, its key and its token, in order."""

    number: int
    key: str
    token: int


@dataclass
class Seen:
    """What lies outside the program after a round."""

    effects: list[Effect] = field(default_factory=list)
    #: Ends of claims that a ledger took as done: key and token.
    settled: list[tuple[str, int]] = field(default_factory=list)
    #: What was acknowledged, and at which handler, while its ledger did not have it settled.
    vain: list[str] = field(default_factory=list)
    #: Rows of the transactional sink per event; None where there is none.
    exact: Mapping[int, int] | None = None
    #: Effects of a second pass, in which every event comes once more.
    again: int = 0
    history: list[str] = field(default_factory=list)


def read_notes(path: Path) -> Seen:
    """Read what workers wrote down."""
    seen = Seen()
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        _, _, what, *words = line.split(" ")
        if what == "effect":
            seen.effects.append(Effect(int(words[0]), words[1], int(words[2])))
        elif what == "settled":
            seen.settled.append((words[0], int(words[1])))
        elif what == "vain":
            seen.vain.append(words[0])
    seen.history = lines
    return seen


@dataclass(frozen=True)
class Judgement:
    """What was promised and broken, by events; and what is only counted, since nobody can promise it."""

    lost: tuple[int, ...] = ()
    #: At a sink in the ledger's transaction, and at one that knows keys.
    doubled_exactly: tuple[int, ...] = ()
    doubled_keyed: tuple[int, ...] = ()
    stale_settles: tuple[str, ...] = ()
    vain: tuple[str, ...] = ()
    #: Entities whose last state at a sink that compares tokens is not the newest.
    not_newest: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()
    unbalanced: int = 0
    #: Effects after everything was done already.
    again: int = 0
    #: Allowed: effects more than one per event at a sink without any protection.
    doubled_plain: int = 0
    #: Whether there was a sink in the ledger's transaction.
    exact: bool = False
    #: Whether nothing happened that could excuse that.
    undisturbed: bool = False

    @property
    def broken(self) -> dict[str, int]:
        """Say which promises were broken, and how often."""
        counts = {
            "lost": len(self.lost),
            "doubled in the transaction": len(self.doubled_exactly),
            "doubled under another key": len(self.doubled_keyed),
            "stale settles": len(self.stale_settles),
            "acknowledged in vain": len(self.vain),
            "not the newest state": len(self.not_newest),
            "never acknowledged": len(self.stuck),
            "books out of balance": self.unbalanced,
            "processed again after all was done": self.again,
            "doubled without a fault": self.doubled_plain if self.undisturbed else 0,
        }
        return {what: number for what, number in counts.items() if number}


def judge(
    events: Sequence[Happened], seen: Seen, *, stuck: Sequence[int], unbalanced: int, undisturbed: bool = False
) -> Judgement:
    """Judge a round. It was undisturbed if no worker died, failed or lost a lease, so nothing may double anywhere."""
    plain = Counter(effect.number for effect in seen.effects)
    lost = set(_lost(events, plain))
    if seen.exact is not None:
        lost.update(_lost(events, seen.exact))
    keys = defaultdict(set)
    for effect in seen.effects:
        keys[effect.number].add(effect.key)
    tokens = defaultdict(set)
    for key, token in seen.settled:
        tokens[key].add(token)
    return Judgement(
        lost=tuple(sorted(lost)),
        doubled_exactly=tuple(number for number, times in sorted((seen.exact or {}).items()) if times > 1),
        doubled_keyed=tuple(number for number, known in sorted(keys.items()) if len(known) > 1),
        stale_settles=tuple(key for key, known in tokens.items() if len(known) > 1),
        vain=tuple(seen.vain),
        not_newest=tuple(_not_newest(events, seen.effects)),
        stuck=tuple(stuck),
        unbalanced=unbalanced,
        again=seen.again,
        doubled_plain=sum(plain.values()) - len(plain),
        exact=seen.exact is not None,
        undisturbed=undisturbed,
    )


def _lost(events: Sequence[Happened], effects: Mapping[int, int]) -> list[int]:
    """Return the facts without an effect, and the states without one that no newer state of their entity replaced.

    A state that another event has brought already is not lost; whether it is still there at the end, the sink shows.
    """
    shown = {(event.entity, event.state) for event in events if effects.get(event.number) and event.state}
    taken = {event for event in events if effects.get(event.number) or (event.entity, event.state) in shown}
    newest: dict[int, int] = {}
    for event in taken:
        if event.entity is not None:
            newest[event.entity] = max(newest.get(event.entity, 0), event.time_ms)
    return [
        event.number
        for event in events
        if event not in taken and (event.entity is None or event.time_ms >= newest.get(event.entity, 0))
    ]


def _not_newest(events: Sequence[Happened], effects: Sequence[Effect]) -> list[int]:
    """Return the entities of which a sink that refuses lower tokens shows an older state at the end."""
    by_number = {event.number: event for event in events}
    top: dict[int, tuple[int, Happened]] = {}
    for effect in effects:
        event = by_number[effect.number]
        if event.entity is not None and (event.entity not in top or effect.token >= top[event.entity][0]):
            top[event.entity] = effect.token, event
    newest: dict[int, int] = {}
    for event in events:
        if event.entity is not None:
            newest[event.entity] = max(newest.get(event.entity, 0), event.time_ms)
    states = {(event.entity, event.state) for event in events if event.entity is not None and event.state
              and event.time_ms == newest[event.entity]}  # fmt: skip
    return [
        entity
        for entity, (_, event) in sorted(top.items())
        if event.time_ms != newest[entity] and (entity, event.state) not in states
    ]
