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
    #: When its after-call work ended; None if there was none, or it goes on.
    wrapped_ms: int | None = None
    participant: str | None = None
    user: str | None = None
    queue: str | None = None
    wrap_up_code: str | None = None
    disconnect_type: str | None = None


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
    queueId: str | None = None  # noqa: N815
    wrapUpCode: str | None = None  # noqa: N815
    disconnectType: str | None = None  # noqa: N815


class _Session(msgspec.Struct):
    sessionId: str | None = None  # noqa: N815
    mediaType: str | None = None  # noqa: N815
    segments: list[_Segment] | None = None


class _Participant(msgspec.Struct):
    participantId: str | None = None  # noqa: N815
    userId: str | None = None  # noqa: N815
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
            if session.sessionId and len(session.sessionId) <= TEXT_MAX:
                yield _session(participant, session, session.sessionId)


def _session(participant: _Participant, session: _Session, name: str) -> Session:
    segments = session.segments or []
    wraps = [one for one in segments if (one.segmentType or "").lower() == _WRAP_UP]
    ends = _times(one.segmentEnd for one in segments)
    talked = _times(one.segmentEnd for one in segments if one not in wraps)
    wrapped = _times(one.segmentEnd for one in wraps)  # an agent who is still at it has brought nothing yet
    return Session(
        (participant.purpose or "").lower(),
        name,
        (session.mediaType or "").lower(),
        min(_times(one.segmentStart for one in segments), default=None),
        max(talked or ends, default=None),
        max(wrapped, default=None),
        participant.participantId,
        participant.userId,
        _last(one.queueId for one in segments),
        _last(one.wrapUpCode for one in segments),
        _last(one.disconnectType for one in segments),
    )


def _times(texts: Iterable[str | None]) -> list[int]:
    return [at for at in map(milliseconds, texts) if at is not None]


def _last(texts: Iterable[str | None]) -> str | None:
    return next((text for text in reversed([*texts]) if text), None)
