"""Conversations as Genesys' analytics describe them, reduced to what says which events they should have brought."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.errors import OncebridgeError
from oncebridge.event import TEXT_MAX
from oncebridge.identity import NS_PER_MS, read_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WRAP_UP: Final = "wrapup"


class AnswerUnreadable(OncebridgeError):
    """An answer of Genesys has another form than its documentation says."""


class Session(msgspec.Struct, frozen=True, gc=False):
    """One session of a participant."""

    purpose: str
    id: str
    media: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    #: When its after-call work ended; None if there was none.
    wrapped_ms: int | None = None


class Conversation(msgspec.Struct, frozen=True):
    """One conversation."""

    id: str
    started_ms: int
    ended_ms: int | None
    sessions: tuple[Session, ...] = ()


class _Segment(msgspec.Struct):
    segmentStart: str | None = None  # noqa: N815 - Genesys' names, here and below
    segmentEnd: str | None = None  # noqa: N815
    segmentType: str | None = None  # noqa: N815


class _Session(msgspec.Struct):
    sessionId: str | None = None  # noqa: N815
    mediaType: str | None = None  # noqa: N815
    segments: list[_Segment] | None = None


class _Participant(msgspec.Struct):
    purpose: str | None = None
    sessions: list[_Session] | None = None


class _Conversation(msgspec.Struct):
    conversationId: str  # noqa: N815
    conversationStart: str  # noqa: N815
    conversationEnd: str | None = None  # noqa: N815
    participants: list[_Participant] | None = None


class _Answer(msgspec.Struct):
    conversations: list[_Conversation] | None = None
    totalHits: int | None = None  # noqa: N815
    cursor: str | None = None
    dataAvailabilityDate: str | None = None  # noqa: N815


class Page(msgspec.Struct, frozen=True):
    """One page of conversations."""

    conversations: list[Conversation]
    #: As Genesys says, about so many there are in all.
    total: int | None = None
    cursor: str | None = None
    #: The text of the time up to which data is complete, where the answer says so.
    available: str | None = None


_answer = msgspec.json.Decoder(_Answer).decode
_conversation = msgspec.json.Decoder(_Conversation).decode


def read_page(answer: bytes) -> Page:
    """Read one page of an answer."""
    try:
        page = _answer(answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnswerUnreadable(f"a page of conversations cannot be read: {_without_values(error)}") from None
    found = [_reduced(one) for one in page.conversations or ()]
    return Page(found, page.totalHits, page.cursor, page.dataAvailabilityDate)


def read_conversation(text: bytes) -> Conversation:
    """Read one conversation."""
    try:
        return _reduced(_conversation(text))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnswerUnreadable(f"a conversation cannot be read: {_without_values(error)}") from None


def _without_values(error: Exception) -> str:
    """Return what is wrong, and where; msgspec quotes no values, only names and types."""
    return str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8"


def milliseconds(text: str | None) -> int | None:
    """Read a time as Genesys writes it; None if there is none."""
    time = None if text is None else read_time(text)
    return None if time is None else time[0] // NS_PER_MS


def iso(ms: int, unit: str = "seconds") -> str:
    """Write a time as Genesys does."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec=unit).replace("+00:00", "Z")


def _reduced(one: _Conversation) -> Conversation:
    started_ms, ended_ms = milliseconds(one.conversationStart), milliseconds(one.conversationEnd)
    if not 0 < len(one.conversationId) <= TEXT_MAX:
        raise AnswerUnreadable("a conversation has no id, or one of any length")
    if started_ms is None or (ended_ms is None and one.conversationEnd is not None):
        raise AnswerUnreadable(f"conversation {one.conversationId!r} has no valid start or end")
    return Conversation(one.conversationId, started_ms, ended_ms, tuple(_sessions(one.participants or ())))


def _sessions(participants: Iterable[_Participant]) -> Iterator[Session]:
    for participant in participants:
        for session in participant.sessions or ():
            if not session.sessionId or len(session.sessionId) > TEXT_MAX:
                continue
            segments = session.segments or []
            starts = [at for at in (milliseconds(segment.segmentStart) for segment in segments) if at is not None]
            ends = [at for at in (milliseconds(segment.segmentEnd) for segment in segments) if at is not None]
            wraps = [one for one in segments if (one.segmentType or "").lower() == _WRAP_UP]
            talks = [one for one in segments if (one.segmentType or "").lower() != _WRAP_UP]
            talked = [at for at in (milliseconds(one.segmentEnd) for one in talks) if at is not None]
            wrapped_ms = None
            if wraps:
                times = [milliseconds(one.segmentEnd) or milliseconds(one.segmentStart) for one in wraps]
                wrapped_ms = max((at for at in times if at is not None), default=max(ends, default=0))
            yield Session(
                (participant.purpose or "").lower(),
                session.sessionId,
                (session.mediaType or "").lower(),
                min(starts, default=None),
                max(talked, default=max(ends, default=None)),
                wrapped_ms,
            )
