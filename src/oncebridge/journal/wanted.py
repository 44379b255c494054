"""Which of the latest deliveries are wanted: filters in the words that the page and the command share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oncebridge.letter_filter import read_moment
from oncebridge.topics import topic_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.journal.records import SeenDelivery


class DeliveryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries are shown; what is empty matches everything."""

    topic: str = ""
    column: str = ""
    reason: str = ""
    handler: str = ""
    since: str = ""

    def wanted(self, now_us: int) -> Callable[[SeenDelivery], bool]:
        """Return the condition; raises `ConfigurationError` for a time that is none."""
        pattern = topic_pattern(self.topic) if self.topic else None
        since_us = read_moment("since", self.since, now_us) if self.since else None
        reason = self.reason.lower()

        def wanted(one: SeenDelivery) -> bool:
            return (
                (pattern is None or pattern.fullmatch(one.topic) is not None)
                and self.column in ("", one.column, one.verdict)
                and (not reason or reason in one.reason.lower())
                and (not self.handler or self.handler == one.handler)
                and (since_us is None or one.at_ms * 1000 >= since_us)
            )

        return wanted
