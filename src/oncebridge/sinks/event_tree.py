"""What the expressions of sinks see: the envelope, and beside `detail` what the bridge knows of the event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.errors import PermanentError, SaysWhy

if TYPE_CHECKING:
    from oncebridge.event import Event
    from oncebridge.settings.expressions import Search


class NothingToSend(PermanentError, SaysWhy):
    """What the settings want to send is not in this event."""


def body_of(event: Event, search: Search | None) -> bytes:
    """Return the body to send for an event: the result of its sink's expression, or the event as it came."""
    if search is None:
        return event.raw
    found = search(event_tree(event))
    if found is None:
        raise NothingToSend("the expression in its sink's `body` finds nothing in this event")
    return msgspec.json.encode(found)


def event_tree(event: Event, tree: Any = None) -> dict[str, Any]:
    """Return the envelope as a tree, with `oncebridge` in it; what came without an envelope is its `detail`.

    `tree` is the raw event, where the caller has decoded it in a way of its own.
    """
    tree = msgspec.json.decode(event.raw) if tree is None else tree
    envelope = tree if "detail" in tree or "detail-type" in tree else {"detail": tree}
    return {**envelope, "oncebridge": _known(event)}


def _known(event: Event) -> dict[str, Any]:
    return {
        "key": event.key,
        "topic": event.topic,
        "topic_name": event.topic_name,
        "entity": event.entity,
        "conversation_id": event.conversation_id,
        "time_ms": event.time_ms,
        "time": None if event.time_ms is None else _iso(event.time_ms),
        "token": event.token,
        "attempt": event.attempt,
    }


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _iso(milliseconds: int) -> str:
    """Write a time as ISO 8601 in UTC, to the millisecond."""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
