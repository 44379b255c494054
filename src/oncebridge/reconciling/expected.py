"""Which events a conversation should have brought, and which of them did not come: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oncebridge.attendance import session_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from oncebridge.genesys.conversations import Conversation, Session

#: What the sessions of a participant bring, by the participant's purpose: a beginning and an end each.
STARTS_AND_ENDS: Final = {
    "customer": "customer",
    "external": "customer",
    "agent": "user",
    "user": "user",
    "acd": "acd",
    "ivr": "flow",
    "workflow": "flow",
    "voicemail": "voicemail",
}
#: After-call work brings one of these; which, depends on how the agent ends it.
WRAP_UPS: Final = ("acw", "wrapup")


class Due(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that a session should have brought."""

    family: str
    session: str
    #: About when, as Genesys' analytics say.
    at_ms: int


class Compared(msgspec.Struct, frozen=True):
    """One conversation, compared with what came of it."""

    came: list[Due]
    missing: list[Due]

    @property
    def is_whole(self) -> bool:
        """Whether everything came."""
        return not self.missing


def due_of(conversation: Conversation, subscribed: AbstractSet[str], *, since_ms: int = 0) -> list[Due]:
    """Return what a conversation should have brought, as far as it is subscribed to; a wrap-up under each name.

    What happened before `since_ms`, when nobody kept attendance, is not expected.
    """
    due = dict.fromkeys(
        one
        for session in conversation.sessions
        for one in _due_of_session(conversation, session)
        if one.family in subscribed and one.at_ms >= since_ms
    )
    return list(due)


def _due_of_session(conversation: Conversation, session: Session) -> Iterator[Due]:
    started_ms = conversation.started_ms if session.started_ms is None else session.started_ms
    ended_ms = session.ended_ms or conversation.ended_ms or started_ms
    kind = STARTS_AND_ENDS.get(session.purpose)
    if kind is not None:
        yield Due(f"{kind}.start", session.id, started_ms)
        yield Due(f"{kind}.end", session.id, ended_ms)
    if session.wrapped_ms is not None and kind == "user":
        for family in WRAP_UPS:
            yield Due(family, session.id, session.wrapped_ms)


def compare(due: list[Due], came: Mapping[str, AbstractSet[bytes]], secret: bytes) -> Compared:
    """Compare what is due with the sessions of each family that came.

    Sessions are compared by their ids. Where not one of those that came is known to Genesys, the ids of the two sides
    are not the same, and the sessions of each family are counted instead.
    """
    digests = {one.session: session_digest(one.session, secret) for one in due}
    there: set[bytes] = set().union(*came.values()) if came else set()
    if there and there.isdisjoint(digests.values()):
        here = _by_number(due, came)
    else:
        here = [digests[one.session] in came.get(one.family, ()) for one in due]
    wrapped = {one.session for one, is_here in zip(due, here, strict=True) if is_here and one.family in WRAP_UPS}
    compared = Compared([], [])
    for one, is_here in zip(due, here, strict=True):
        if is_here:
            compared.came.append(one)
        elif one.family not in WRAP_UPS or one.session not in wrapped:
            compared.missing.append(one)
    return compared


def _by_number(due: list[Due], came: Mapping[str, AbstractSet[bytes]]) -> list[bool]:
    left = {family: len(sessions) for family, sessions in came.items()}
    here = []
    for one in due:
        here.append(left.get(one.family, 0) > 0)
        left[one.family] = left.get(one.family, 0) - 1
    return here
