"""The attendance that the Redis ledger keeps: read from every shard and day, and united."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from oncebridge.claim import MARK_BYTES, MARKS_MAX
from oncebridge.ledgers import DAY_US
from oncebridge.ledgers.marks import marks_in
from oncebridge.ledgers.protocol import Attendance
from oncebridge.ledgers.redis.scripts import script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncebridge.ledgers.redis.calls import Calls

#: Conversations in one call: looked up for a month of days, they hold the server up for some milliseconds.
AT_ONCE: Final = 50

_times: Final = struct.Struct(">II")  # as lua/attendance.lua defines them


class RedisAttendance:
    """Reads attendance: events of one conversation may be in any shard."""

    def __init__(self, calls: Callable[[], Calls], prefixes: Callable[[], Sequence[bytes]], retention_s: bytes) -> None:
        """Take how to reach the servers, what the keys of each shard begin with, and the seconds to look back."""
        self._calls = calls
        self._prefixes = prefixes
        self._retention_s = retention_s

    def read(self, conversations: Sequence[bytes], since_us: int) -> list[Attendance | None]:
        """Return what came of each conversation, in order."""
        parts = [conversations[start : start + AT_ONCE] for start in range(0, len(conversations), AT_ONCE)]
        head = [b"%d" % (since_us // DAY_US), self._retention_s]
        found: list[Attendance | None] = []
        for part in parts:
            replies = self._calls().run(script("attended"), [(prefix, [*head, *part]) for prefix in self._prefixes()])
            found += [
                _united([one for days in of_shards for one in _read(days)]) for of_shards in zip(*replies, strict=True)
            ]
        return found


def _read(days: list[int | bytes]) -> list[Attendance]:
    """Read what a shard has of a conversation."""
    each = []
    for day, value in zip(days[::2], days[1::2], strict=True):
        assert isinstance(day, int)
        assert isinstance(value, bytes)
        first, last = (day * DAY_US + milliseconds * 1000 for milliseconds in _times.unpack_from(value))
        each.append(Attendance(value[_times.size :], first, last))
    return each


def _united(each: list[Attendance]) -> Attendance | None:
    if not each:
        return None
    marks = sorted(marks_in(b"".join(one.marks for one in each)))
    return Attendance(
        b"".join(marks)[: MARKS_MAX * MARK_BYTES], min(one.first_us for one in each), max(one.last_us for one in each)
    )
