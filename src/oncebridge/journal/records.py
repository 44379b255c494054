"""The records of the journal, and the pages of notes that hold them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

MINUTE_US: Final = 60_000_000
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
#: Counts by the minute are kept for two days, by the hour for the retention: see docs/architecture.md.
MINUTES_KEPT_US: Final = 2 * DAY_US

DELIVERIES: Final = "deliveries"
DELIVERIES_KEPT: Final = 2000
DELIVERIES_KEPT_US: Final = 2 * DAY_US
WORKERS: Final = "workers"
#: A worker that has said nothing for this long is gone; a function that is not invoked says nothing for longer.
WORKER_KEPT_US: Final = 15 * MINUTE_US

_BETWEEN: Final = "\x1f"


class Count(NamedTuple):
    """What a number of the journal counts.

    `what` is a column of the books, with no handler; or an outcome of claims of a handler; or `us`, how many
    microseconds a handler took, for all its topics.
    """

    topic: str
    handler: str | None
    what: str

    @property
    def name(self) -> str:
        """The name of its note."""
        parts = (self.topic, self.what) if self.handler is None else (self.topic, self.what, self.handler)
        return _BETWEEN.join(parts)

    @classmethod
    def from_name(cls, name: str) -> Count:
        """Read the name of a note."""
        topic, what, *handler = name.split(_BETWEEN, 2)
        return cls(topic, handler[0] if handler else None, what)


def minute_page(at_us: int) -> str:
    """Return the page of a minute's counts."""
    return f"minute:{_written(at_us)[:16]}"


def hour_page(at_us: int) -> str:
    """Return the page of an hour's counts."""
    return f"hour:{_written(at_us)[:13]}"


def _written(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat()


class SeenDelivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of the latest deliveries, without anything of its payload."""

    at_ms: int
    verdict: str
    column: str
    reason: str
    outcome: str | None = None
    topic: str = ""
    key: str | None = None
    envelope_id: str | None = None
    original_envelope_id: str | None = None
    #: The event's own time, and so how late it came.
    time_ms: int | None = None
    retry_in_ms: int = 0
    handler: str = ""
    #: Keyed digests, as in the ledger.
    conversation: bytes | None = None
    user: bytes | None = None
    worker: str = ""

    @property
    def lag_ms(self) -> int | None:
        """How long after its own time the event came; None if it has none."""
        return None if self.time_ms is None else self.at_ms - self.time_ms


class HandlerSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A handler or sink as its worker describes it."""

    name: str
    topics: tuple[str, ...] = ()
    #: What it is: a function's name, or the kind of a sink.
    kind: str = ""
    #: How often an event takes effect there, in words.
    promise: str = ""


class WorkerSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker as it last described itself."""

    name: str
    way_in: str
    version: str
    started_ms: int
    seen_ms: int = 0
    handlers: tuple[HandlerSeen, ...] = ()
    #: Whether its ledger was out of reach, and how many receivers are.
    ledger_out_of_reach: bool = False
    receivers_out_of_reach: int = 0
    #: Deliveries that it handed back and has not seen settled, and since when the oldest of them waits.
    waiting: int = 0
    oldest_waiting_ms: int | None = None
    #: How long its source can hold events that are not acknowledged, in words.
    holds: str = ""
    #: Whether it works off requests for dead letters, as far as it has their handlers.
    takes_requests: bool = False
    #: Handlers of any worker that it knows to be paused.
    paused: tuple[str, ...] = ()
    #: Topics that usually come at this hour and do not, as it has noticed.
    silent: tuple[str, ...] = ()
    ended: bool = False
