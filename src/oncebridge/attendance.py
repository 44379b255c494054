"""Families of events, and marks: which family of which session a conversation's event belongs to, in four bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oncebridge.identity import digest, subject_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncebridge.event import Event

_DETAIL: Final = "v2.detail.events.conversation.{id}."

#: The families, each under its number: ledgers keep the numbers, so they never change.
FAMILIES: Final = {
    1: "customer.start",
    2: "customer.end",
    3: "user.start",
    4: "user.end",
    5: "acd.start",
    6: "acd.end",
    7: "flow.start",
    8: "flow.end",
    9: "acw",
    10: "wrapup",
    11: "voicemail.start",
    12: "voicemail.end",
}
NUMBERS: Final = {family: number for number, family in FAMILIES.items()}
#: What a topic's events belong to.
FAMILY_OF: Final = {_DETAIL + family: family for family in NUMBERS}
TOPIC_OF: Final = {family: topic for topic, family in FAMILY_OF.items()}
SESSION_BYTES: Final = 3


def mark_of(event: Event, key: bytes, secret: bytes) -> bytes:
    """Return an event's mark; empty if it belongs to no family.

    Without a session, the participant stands in for it, and without both the event itself.
    """
    family = FAMILY_OF.get(event.topic)
    if family is None:
        return b""
    for name in ("sessionId", "participantId"):
        session = event.body.get(name)
        if type(session) is str and session:
            return mark(family, session, secret)
    return bytes([NUMBERS[family]]) + key[:SESSION_BYTES]


def mark(family: str, session: str, secret: bytes) -> bytes:
    """Return the mark of a session's event: its family's number, and some bytes of the session's digest."""
    return bytes([NUMBERS[family]]) + session_digest(session, secret)


def session_digest(session: str, secret: bytes) -> bytes:
    """Return enough of a session's digest to tell it from the others of its conversation."""
    return digest(secret, b"session", (session.encode(),))[:SESSION_BYTES]


def conversation_digest(conversation: str, secret: bytes) -> bytes:
    """Return the digest under which a ledger keeps the attendance of a conversation."""
    found = subject_digest(secret, conversation)
    assert found is not None
    return found


def sessions_by_family(marks: Iterable[bytes]) -> dict[str, set[bytes]]:
    """Return the sessions of each family that came, by their digests; families of a later version are left out."""
    found: dict[str, set[bytes]] = {}
    for one in marks:
        family = FAMILIES.get(one[0])
        if family is not None:
            found.setdefault(family, set()).add(one[1:])
    return found
