"""Facts that two topics bring: a broad one and a narrow one, or one that holds the other's state.

Each is its own event, with an identity of its own, and handlers of both topics want both. Whoever subscribes to both by
mistake gets everything twice. A new pair of topics is one row in `_READERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, TypeAlias

from oncebridge.event import Event
from oncebridge.topics import BUILT_IN, user_id

#: So far apart two topics may publish the same fact.
APART_MS_MAX: Final = 10_000

_Parts: TypeAlias = "tuple[str | None, ...] | None"
_Reader: TypeAlias = Callable[[Event], _Parts]


def facts_of(event: Event) -> tuple[int, ...]:
    """Return a digest for each fact of an event that an event of another topic may bring, too."""
    reader = _READERS.get(event.topic)
    if reader is None or event.torn:
        return ()
    parts = reader(event)
    if parts is None or None in parts:
        return ()
    text = "\x1f".join((event.org, *parts))  # type: ignore[arg-type]  # None is not among them
    return (int.from_bytes(sha256(text.encode(errors="surrogatepass")).digest()[:7], "big"),)


# --- agents ---------------------------------------------------------------------------------------------------


def _routing(event: Event) -> _Parts:
    return _routing_in(event, event.body)


def _presence(event: Event) -> _Parts:
    return _presence_in(event, event.body)


def _activity(event: Event) -> _Parts:
    """Return what has changed last: the rest of an activity was said before."""
    body = event.body
    routing, presence = _object(body, "routingStatus"), _object(body, "presence")
    times = [_text(routing, "startTime"), _text(presence, "modifiedDate"), _text(body, "dateActiveQueuesChanged")]
    newest = max((time for time in times if time is not None), default=None)
    if newest is None or times.count(newest) > 1:
        return None
    if newest == times[0]:
        return _routing_in(event, body)
    return _presence_in(event, presence) if newest == times[1] else None


def _routing_in(event: Event, body: dict[str, Any]) -> _Parts:
    routing = _object(body, "routingStatus")
    return "routing", user_id(event), _text(routing, "status"), _text(routing, "startTime")


def _presence_in(event: Event, presence: dict[str, Any]) -> _Parts:
    definition = _object(presence, "presenceDefinition")
    return "presence", user_id(event), _text(definition, "id"), _text(presence, "modifiedDate")


# --- conversations --------------------------------------------------------------------------------------------


def _conversation(event: Event) -> _Parts:
    """Return a snapshot's participants with their states, which a media topic writes in another form."""
    participants = event.body.get("participants")
    if not isinstance(participants, list):
        return None
    states = sorted([_participant(one) for one in participants if type(one) is dict])
    return "conversation", _text(event.body, "id"), *states


def _participant(one: dict[str, Any]) -> str:
    """Write a participant's id and states: its own, or those of its sessions."""
    text = f"{one.get('id')} {one.get('state', '')}"
    for sessions in one.values():
        if type(sessions) is list:
            for session in sessions:
                if type(session) is dict and "state" in session:
                    text += f" {session['state']}"
    return text.replace("  ", " ")


def _wrapup(event: Event) -> _Parts:
    body = event.body
    ids = tuple(_text(body, name) for name in ("conversationId", "participantId", "sessionId", "wrapupCode"))
    return "wrapup", *ids, str(body.get("eventTime"))


def _work_item(event: Event) -> _Parts:
    body = event.body
    return "work item", _text(body, "id"), _text(body, "dateModified"), _text(body, "operation") or ""


def _object(tree: dict[str, Any], name: str) -> dict[str, Any]:
    value = tree.get(name)
    return value if type(value) is dict else {}


def _text(tree: dict[str, Any], name: str) -> str | None:
    value = tree.get(name)
    return value if type(value) is str else None


_WORK_ITEMS: Final = "v2.taskmanagement.workitems"
_READERS: Final[dict[str, _Reader]] = {
    "v2.users.{id}.routingStatus": _routing,
    "v2.users.{id}.presence": _presence,
    "v2.users.{id}.activity": _activity,
    "v2.detail.events.conversation.{id}.acw": _wrapup,
    "v2.detail.events.conversation.{id}.wrapup": _wrapup,
    **{f"{_WORK_ITEMS}.{whose}": _work_item for whose in ("{id}", "queues.{id}", "users.{id}")},
    **{profile.topic: _conversation for profile in BUILT_IN if ".conversations" in profile.topic and profile.entity},
}


@lru_cache(maxsize=1024)
def narrower(topic: str, other: str) -> str:
    """Return which of two topics can be left out: the one that the other contains."""
    if topic.endswith(".activity") or other.endswith(".activity"):
        return other if topic.endswith(".activity") else topic
    return max(topic, other, key=len)
