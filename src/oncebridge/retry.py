"""The one retry policy: capped exponential backoff with full jitter."""

import random
from typing import Annotated

import msgspec
from msgspec import Meta

_jitter = random.Random()


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often an event is tried, and how long to wait in between."""

    attempts: Annotated[int, Meta(ge=1, le=1000, description="tries before a dead letter")] = 10
    base_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="longest wait after the first try; it doubles, and chance picks below it"),
    ] = 0.1
    cap_seconds: Annotated[float, Meta(ge=0, le=86_400, description="longest wait of all")] = 30.0

    def is_last(self, attempt: int) -> bool:
        """Return whether no attempt may follow this one."""
        return attempt >= self.attempts

    def ceiling_seconds(self, attempt: int) -> float:
        """Return the longest wait after this attempt."""
        return float(min(self.cap_seconds, self.base_seconds * 2 ** min(attempt - 1, 60)))

    def delay_seconds(self, attempt: int) -> float:
        """Draw the wait after this attempt: anywhere up to the ceiling, so that workers do not march in step."""
        return _jitter.uniform(0, self.ceiling_seconds(attempt))
