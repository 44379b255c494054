"""The verdict that each delivery must get: a second, independent telling of the rules.

It shares no code with the bridge. It never reads a delivery: the maker of the traffic knows which event,
entity, state and time each delivery carries, and says so.
"""

from collections.abc import Hashable
from typing import Final, Literal

import msgspec

ECHO_WINDOW_MS: Final = 500

Verdict = Literal["fresh", "redelivery", "republish", "echo", "stale", "conflict", "dead"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event, as the maker of the traffic knows it."""

    #: The same number means the same event.
    identity: int
    #: With an explicit id only: which of the contents that were published under it.
    content: int | None = None
    #: What the state is the state of; None for facts and samples.
    entity: str | None = None
    state: Hashable = None
    times_ms: tuple[int, ...] = ()


class Judgement(msgspec.Struct, frozen=True):
    """The verdict; for redelivery and republish also the envelope id of the delivery that did the work."""

    verdict: Verdict
    of: str | None = None


class _Newest(msgspec.Struct):
    """What an entity remembers: its newest done event, and the line before which everything is stale."""

    state: Hashable
    times_ms: tuple[int, ...]
    stale_before_ms: tuple[int, ...]


class Truth:
    """Judges deliveries in order of arrival, in a world where every handler succeeds."""

    def __init__(self) -> None:
        self._settled_by: dict[int, str] = {}
        self._content: dict[int, int] = {}
        self._newest: dict[str, _Newest] = {}

    def judge(self, event: Event, envelope_id: str) -> Judgement:
        """Return the verdict for the next delivery, and remember it."""
        settled_by = self._settled_by.get(event.identity)
        if settled_by is not None:
            return self._judge_again(event, envelope_id, settled_by)
        self._settled_by[event.identity] = envelope_id
        if event.content is not None:
            self._content[event.identity] = event.content
        if event.entity is None:
            return Judgement("fresh")
        return Judgement(self._judge_state(event, event.entity))

    def _judge_again(self, event: Event, envelope_id: str, settled_by: str) -> Judgement:
        """Judge an event whose identity is settled: echo and stale settle it just as done does."""
        if event.content is not None and event.content != self._content[event.identity]:
            return Judgement("conflict")
        return Judgement("redelivery" if envelope_id == settled_by else "republish", settled_by)

    def _judge_state(self, event: Event, entity: str) -> Verdict:
        """Judge an event of a state topic that has not been seen before."""
        newest = self._newest.get(entity)
        if newest is not None:
            if event.state == newest.state and _within_window(event.times_ms, newest.times_ms):
                # Only the line moves: if the window moved too, echoes of echoes would never be fresh again.
                newest.stale_before_ms = tuple(map(max, event.times_ms, newest.stale_before_ms))
                return "echo"
            if _strictly_older(event.times_ms, newest.stale_before_ms):
                return "stale"
        self._newest[entity] = _Newest(event.state, event.times_ms, event.times_ms)
        return "fresh"


def _within_window(times_ms: tuple[int, ...], others_ms: tuple[int, ...]) -> bool:
    """Return whether each time is within the echo window of its counterpart."""
    return all(abs(mine - other) <= ECHO_WINDOW_MS for mine, other in zip(times_ms, others_ms, strict=True))


def _strictly_older(times_ms: tuple[int, ...], others_ms: tuple[int, ...]) -> bool:
    """Return whether no time is later than its counterpart, and at least one is earlier."""
    pairs = list(zip(times_ms, others_ms, strict=True))
    return all(mine <= other for mine, other in pairs) and any(mine < other for mine, other in pairs)
