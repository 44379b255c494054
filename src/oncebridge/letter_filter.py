"""Filters for dead letters, in the words that the library and the commands share."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

import msgspec

from oncebridge.errors import ConfigurationError
from oncebridge.identity import key_bytes, key_text, read_time
from oncebridge.ledgers.protocol import Query

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncebridge.ledgers.protocol import Entry

#: A time with its zone; how long ago, as a difference or as text such as `30m`, `2h` or `3d`; or an ISO time as text.
Moment: TypeAlias = "datetime | timedelta | str"

_MOST: Final = 2**62  # more than any ledger has, and less than a database's largest number
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_OF: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(?:\d{1,6}[smhd])+", re.ASCII)
_PART: Final = re.compile(r"(\d+)([smhd])", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class Filters(TypedDict, total=False):
    """The filters of dead letters; those that are not given match everything, and all that are given must match."""

    #: Only those of these events.
    keys: Iterable[str] | None
    #: Only this topic; `{id}` and `*` work.
    topic: str | None
    #: Only reasons that contain this text.
    reason: str | None
    #: Only those of the handler with this name; '' for the one without a name.
    handler: str | None
    #: Only those that became dead letters then, or later.
    since: Moment | None
    #: Only those from before then.
    until: Moment | None
    #: At most so many, the oldest.
    limit: int | None


class LetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters that were read: of keys, and of everything that a ledger searches by."""

    keys: tuple[bytes, ...]
    query: Query

    def chooses(self, entry: Entry) -> bool:
        """Return whether an entry found by its key is a letter that matches."""
        letter = None if entry.raw is None else entry.reason
        return self.query.matches(entry.status, entry.topic, entry.changed_us, letter, entry.handler)


def read_filters(
    now_us: int,
    *,
    keys: Iterable[str] | None = None,
    topic: str | None = None,
    reason: str | None = None,
    handler: str | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    limit: int | None = None,
) -> LetterFilter:
    """Read filters as they are given; durations are before this time."""
    if isinstance(keys, str):
        raise ConfigurationError(f"keys: expected a list of keys, got {keys!r}")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigurationError(f"limit: expected a number from 1, got {limit!r}")
    return LetterFilter(
        keys=tuple(dict.fromkeys(map(read_key, keys or ()))),
        query=Query(
            letters=True,
            topic=topic,
            reason=reason,
            handler=handler,
            since_us=read_moment("since", since, now_us),
            until_us=read_moment("until", until, now_us),
            limit=None if limit is None else min(limit, _MOST),
        ),
    )


def is_any_given(filters: Filters) -> bool:
    """Return whether any filter is given; a limit alone chooses nothing in particular."""
    return any(value not in (None, (), []) for name, value in filters.items() if name != "limit")


def read_key(text: str) -> bytes:
    """Read a key."""
    key = key_bytes(text)
    if key is None:
        raise ConfigurationError(f"{text!r} is no key; keys look like {key_text(bytes(16))}, see: oncebridge dead list")
    return key


def read_moment(name: str, moment: Moment | None, now_us: int) -> int | None:
    """Return a time in microseconds since 1970; the name is for the error."""
    if moment is None:
        return None
    if isinstance(moment, timedelta):
        return min(max(0, now_us - moment // timedelta(microseconds=1)), _MOST)
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ConfigurationError(
                f"{name}: expected a time with its zone, such as datetime.now(UTC), got {moment!r}"
            )
        return int(moment.timestamp() * 1_000_000)
    read_us = _read_text(moment, now_us)
    if read_us is None:
        raise ConfigurationError(
            f"{name}: expected how long ago, such as 30m, 2h or 3d, or a time such as 2026-03-02T08:00:00Z, got "
            f"{moment!r}"
        )
    return read_us


def _read_text(text: Any, now_us: int) -> int | None:
    if not isinstance(text, str):
        return None
    if _DURATION.fullmatch(text):
        seconds = sum(int(number) * SECONDS_OF[unit] for number, unit in _PART.findall(text))
        return max(0, now_us - seconds * 1_000_000)
    time = read_time(f"{text}T00:00:00" if _DATE.fullmatch(text) else text)
    return None if time is None else time[0] // 1000
