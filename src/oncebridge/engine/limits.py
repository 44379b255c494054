"""The batch limits: values that a source sets for one batch, beside the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.engine.result import Result


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Limits of one batch, set by its source: a deadline, the attempts it makes, and overrides of settings."""

    #: By the monotonic clock: nothing begins after that, and untried tasks are given back.
    until_us: int | None = None
    #: How many attempts the sender makes before it gives up; the settings may say fewer.
    attempts: int | None = None
    #: How long to wait for events that another worker holds.
    busy_wait_seconds: float | None = None
    #: Handlers at a time.
    concurrency: int | None = None
    #: How many deliveries each request brought, in order: the unreadable ones of one are one dead letter.
    requests: tuple[int, ...] = ()
    #: Whether an error that wants to end more than its handler is raised once it is settled; else it is like any other.
    escapes: bool = True


USUAL: Final = BatchLimits()
#: For sources that report failures themselves and go on: one event cannot end them.
GOES_ON: Final = BatchLimits(escapes=False)

#: Processes a batch within limits, and returns the result of each delivery, in order.
RunBatch: TypeAlias = "Callable[[list[Any], BatchLimits], list[Result]]"
