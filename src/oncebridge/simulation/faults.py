"""What can go wrong between Genesys and the bridge, and how often it does."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Self


class Fault(StrEnum):
    """Why a delivery is there, or is where it is; what it then counts as is for the truth to say."""

    NONE = "none"
    REDELIVERY = "redelivery"
    OVERLAPPING_RULE = "overlapping rule"
    REPUBLISH = "republish"
    SECOND_INTEGRATION = "second integration"
    ARCHIVE_REPLAY = "archive replay"
    REORDERING = "reordering"
    ECHO = "echo"
    TIE = "tie"
    CONFLICT = "conflict"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Road:
    """The probability of each fault, from 0 to 1, for each event that it can strike.

    Left alone, about three in ten deliveries are duplicates.
    """

    #: The same envelope again, later: a retry of EventBridge, Lambda or SQS.
    redelivery: float = 0.08
    #: The same envelope twice at once: two rules match the event.
    overlapping_rule: float = 0.08
    #: The same event under another envelope id: Genesys publishes again after a lost reply.
    republish: float = 0.1
    #: The same event under another envelope id and another partner source.
    second_integration: float = 0.1
    #: Of every hundred events, a stretch is delivered again late, with a `replay-name`.
    archive_replay: float = 0.2
    #: A delivery is held up, and later ones overtake it.
    reordering: float = 0.08
    #: A state is said again within the echo window, as an event of its own.
    echo: float = 0.12
    #: Two different states of one entity in the same millisecond.
    tie: float = 0.02
    #: An audit is sent again with the same id and another content.
    conflict: float = 0.1
    #: A damaged copy arrives beside the sound one.
    unreadable: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            probability = getattr(self, field.name)
            if not 0 <= probability <= 1:
                raise ValueError(f"{field.name} is {probability}: a probability lies between 0 and 1")

    @classmethod
    def smooth(cls) -> Self:
        """Return a road without any fault: every event arrives once, in the order of publishing."""
        return cls(**{field.name: 0.0 for field in fields(cls)})


USUAL_ROAD = Road()
