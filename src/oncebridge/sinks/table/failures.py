"""How writing into a table can fail: none of these errors holds a value of the event, or a password."""

from __future__ import annotations

from typing import Final

from oncebridge.breaker import NoAttempt
from oncebridge.errors import PermanentError, RetryLater, SaysWhy


class DatabaseUnavailable(NoAttempt):
    """The database is out of reach, or not made for this sink yet: every event would fail."""


class WriteInterrupted(RetryLater, SaysWhy):
    """The database was lost, or held up by another session, while this event was written."""


class WriteDisturbed(RetryLater, SaysWhy):
    """Another session was in the way of this event, and will not be the next time."""


class WriteFailed(SaysWhy):
    """The database did not take this event, for a reason of its own."""


class RowRefused(PermanentError, SaysWhy):
    """The table will never take this event as it is."""


#: What keeps a breaker informed: neither is about one event.
UNAVAILABLE: Final = (DatabaseUnavailable, WriteInterrupted)
