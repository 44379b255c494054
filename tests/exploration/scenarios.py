"""The scenarios: a few events of one entity, or a few facts, and how they are delivered."""

from __future__ import annotations

from typing import Final

import msgspec


class ScenarioEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a scenario: what it says, and when."""

    state: str
    times_ms: tuple[int, ...] = (0,)
    version: int | None = None
    #: An explicit id: two events with the same are a conflict.
    id: str | None = None

    @property
    def name(self) -> str:
        """What traces call it."""
        time = "/".join(str(time) for time in self.times_ms)
        return f"{self.state}@{time}" + ("" if self.version is None else f"v{self.version}")


class Delivery(msgspec.Struct, frozen=True):
    """One arrival of the event with this number; two of the same event are twins."""

    event: int
    envelope: str | None


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The events, their deliveries, and how much may go wrong."""

    name: str
    #: Whether the events are states of one entity; otherwise each is a fact.
    state: bool
    events: tuple[ScenarioEvent, ...]
    deliveries: tuple[Delivery, ...]
    #: How many faults may happen on one way.
    faults: int

    @property
    def fences(self) -> int:
        """How many things there are of which only one claim may run: the entity, or each fact."""
        return 1 if self.state else len(self.events)

    def fence(self, event: int, *, buried: bool = False) -> int:
        """Number that thing for an event; a conflict is claimed for the dead letters as a thing of its own."""
        if buried:
            return self.fences + event
        return 0 if self.state else event


def _event(state: str, *times_ms: int, version: int | None = None, id: str | None = None) -> ScenarioEvent:  # noqa: A002 - it is one
    return ScenarioEvent(state=state, times_ms=times_ms or (0,), version=version, id=id)


def _delivered(*words: str) -> tuple[Delivery, ...]:
    """Read "0a" as a delivery of the first event with the envelope id a, "1" as one of the second without any."""
    return tuple(Delivery(int(word[0]), word[1:] or None) for word in words)


FAR_MS: Final = 4_070_908_800_000  # the year 2099

SCENARIOS: Final = (
    Scenario(
        name="one fact in three deliveries",
        state=False,
        events=(_event("sent"),),
        deliveries=_delivered("0a", "0a", "0b"),
        faults=2,
    ),
    Scenario(
        name="one fact, once without envelope id",
        state=False,
        events=(_event("sent"),),
        deliveries=_delivered("0a", "0"),
        faults=3,
    ),
    Scenario(
        name="two facts",
        state=False,
        events=(_event("sent"), _event("later", 100)),
        deliveries=_delivered("0a", "0b", "1c"),
        faults=1,
    ),
    Scenario(
        name="two contents under one id",
        state=False,
        events=(_event("one", id="id"), _event("other", id="id")),
        deliveries=_delivered("0a", "1b", "1c"),
        faults=1,
    ),
    Scenario(
        name="an older state",
        state=True,
        events=(_event("away", 0), _event("busy", 100)),
        deliveries=_delivered("0a", "1b", "1c"),
        faults=1,
    ),
    Scenario(
        name="an echo",
        state=True,
        events=(_event("busy", 0), _event("busy", 400)),
        deliveries=_delivered("0a", "1b", "1b"),
        faults=2,
    ),
    Scenario(
        name="a tie",
        state=True,
        events=(_event("away", 100), _event("busy", 100)),
        deliveries=_delivered("0a", "1b", "1"),
        faults=1,
    ),
    Scenario(
        name="the same state much later",
        state=True,
        events=(_event("busy", 0), _event("busy", 5000)),
        deliveries=_delivered("0a", "0b", "1c"),
        faults=1,
    ),
    Scenario(
        name="there and back",
        state=True,
        events=(_event("busy", 0), _event("away", 200), _event("busy", 400)),
        deliveries=_delivered("0a", "1b", "2c"),
        faults=1,
    ),
    Scenario(
        name="there and back, with a twin",
        state=True,
        events=(_event("busy", 0), _event("away", 200), _event("busy", 400)),
        deliveries=_delivered("0a", "1b", "2c", "2d"),
        faults=0,
    ),
    Scenario(
        name="echo upon echo",
        state=True,
        events=(_event("busy", 0), _event("busy", 400), _event("busy", 800)),
        deliveries=_delivered("0a", "1b", "2c"),
        faults=1,
    ),
    Scenario(
        name="older states behind a newer one",
        state=True,
        events=(_event("away", 0), _event("gone", 50), _event("busy", 100)),
        deliveries=_delivered("2a", "0b", "1c"),
        faults=1,
    ),
    Scenario(
        name="a tie before an echo",
        state=True,
        events=(_event("busy", 100), _event("away", 100), _event("busy", 300)),
        deliveries=_delivered("0a", "1b", "2c"),
        faults=1,
    ),
    Scenario(
        name="a stamp from the far future",
        state=True,
        events=(_event("busy", 0), _event("away", FAR_MS), _event("busy", 400)),
        deliveries=_delivered("0a", "1b", "2c"),
        faults=1,
    ),
    Scenario(
        name="versions against times",
        state=True,
        events=(_event("busy", 300, version=1), _event("away", 200, version=2), _event("busy", 100, version=3)),
        deliveries=_delivered("0a", "1b", "2c"),
        faults=1,
    ),
    Scenario(
        name="several times in one body",
        state=True,
        events=(_event("busy", 0, 0), _event("away", 100, 0), _event("gone", 0, 100)),
        deliveries=_delivered("0a", "1b", "2c"),
        faults=1,
    ),
    Scenario(
        name="an echo across two times",
        state=True,
        events=(_event("busy", 0, 100), _event("busy", 100, 0), _event("away", 50, 100)),
        deliveries=_delivered("0a", "1b", "2c"),
        faults=1,
    ),
    Scenario(
        name="two states under one id",
        state=True,
        events=(_event("busy", 0, id="id"), _event("away", 200, id="id"), _event("busy", 400)),
        deliveries=_delivered("0a", "1b", "2c"),
        faults=1,
    ),
)

BY_NAME: Final = {scenario.name: scenario for scenario in SCENARIOS}
FACT: Final = "one fact in three deliveries"
WITHOUT_ID: Final = "one fact, once without envelope id"
TWO: Final = "two facts"
CONFLICT: Final = "two contents under one id"
OLDER: Final = "an older state"
BACK: Final = "there and back"
FAR: Final = "a stamp from the far future"
