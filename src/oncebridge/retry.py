"""The one retry policy: waits that grow up to a cap, with jitter that keeps at least half of each."""

import random
from typing import Annotated

import msgspec
from msgspec import Meta

_jitter = random.Random()
#: Of its longest, a wait is never less: otherwise ten attempts that should take hours could be over in minutes.
_FLOOR = 0.5


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often an event is tried, and how long to wait in between. The defaults spread ten attempts over hours."""

    attempts: Annotated[int, Meta(ge=1, le=1000, description="tries before a dead letter")] = 10
    base_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="longest wait after the first try; chance picks from half of it to all of it"),
    ] = 1.0
    growth: Annotated[float, Meta(ge=1, le=10, description="by how much each wait is longer than the one before")] = 5.0
    cap_seconds: Annotated[float, Meta(ge=0, le=86_400, description="longest wait of all")] = 3600.0

    def is_last(self, attempt: int) -> bool:
        """Return whether no attempt may follow this one."""
        return attempt >= self.attempts

    def ceiling_seconds(self, attempt: int) -> float:
        """Return the longest wait after this attempt."""
        return float(min(self.cap_seconds, self.base_seconds * self.growth ** min(attempt - 1, 60)))

    def delay_seconds(self, attempt: int) -> float:
        """Draw the wait after this attempt: from half of the longest to all of it, so that workers spread out."""
        ceiling = self.ceiling_seconds(attempt)
        return _jitter.uniform(_FLOOR * ceiling, ceiling)

    @property
    def span_seconds(self) -> tuple[float, float]:
        """How long an event is tried at least and at most, if each attempt fails at once."""
        longest = sum(self.ceiling_seconds(attempt) for attempt in range(1, self.attempts))
        return _FLOOR * longest, longest
