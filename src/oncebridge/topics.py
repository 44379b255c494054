"""The profiles: the rules for each topic family, as data. A new topic is one row in `BUILT_IN`."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from oncebridge.event import TEXT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oncebridge.event import Event

ECHO_WINDOW_MS: Final = 500


class Kind(StrEnum):
    """The kind of a topic's events; decides echo, stale and one-at-a-time, never identity."""

    FACT = "fact"  # something happened: every one matters
    STATE = "state"  # how something is now: the newest wins, one at a time per entity
    SAMPLE = "sample"  # a reading: treated like a fact


class Field(msgspec.Struct, frozen=True):
    """The place of a value in an event's body: a plain path, or a user's JMESPath expression."""

    text: str
    path: tuple[str, ...] = ()
    search: Callable[[Any], Any] | None = None

    def read(self, body: Any) -> Any:
        """Return the value in a body, or None."""
        if self.search is not None:
            return self.search(body)
        for name in self.path:
            if type(body) is not dict:
                return None
            body = body.get(name)
        return body

    def of(self, event: Event) -> Any:
        """Return the value, for a path with its numbers as written; expressions work on plain numbers."""
        if self.search is not None:
            return self.search(event.body)
        path = self.path
        return event.exact.get(path[0]) if len(path) == 1 else self.read(event.exact)


def plain(text: str) -> Field:
    """Make a field from a dotted path; `[]` after a name means each item of that list."""
    return Field(text, tuple(text.replace("[]", ".[]").split(".")))


#: Paths as a tree, walked once for all of them: under each name the names below it, or None for all of it.
Paths: TypeAlias = dict[str, Any]


def paths_of(fields: Iterable[Field]) -> Paths:
    """Merge the paths of fields into one tree. Expressions have none, and `[]` at an end names nothing in the list."""
    tree: Paths = {}
    for field in fields:
        if field.path and field.path[-1] != "[]":
            _add_path(tree, field.path)
    return tree


def _add_path(tree: Paths, path: tuple[str, ...]) -> None:
    *above, last = path
    for name in above:
        below = tree.setdefault(name, {})
        if below is None:
            return  # all of it is named already
        tree = below
    tree[last] = None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for one topic family."""

    topic: str
    kind: Kind = Kind.FACT
    #: The ids that distinguish entities beside org and topic name; if one is missing, there is no entity.
    entity: tuple[Field, ...] = ()
    time: tuple[Field, ...] = ()
    #: An id that alone identifies the event; other content under it is a conflict.
    explicit_id: Field | None = None
    #: An id inside the body that makes equal bodies one event, however coarse the time beside it.
    record_id: Field | None = None
    #: A number that orders the entity's events instead of the time.
    version: Field | None = None
    exclude: tuple[Field, ...] = ()
    echo_window_ms: int = ECHO_WINDOW_MS
    stale: bool = True
    #: Computed from the fields above: the paths that do not count for identity, and those that do not for the state.
    outside_identity: Paths = {}
    outside_state: Paths = {}

    def __post_init__(self) -> None:
        """Compute once what every event needs."""
        ids = self.entity if self.explicit_id is None else (*self.entity, self.explicit_id)
        force_setattr(self, "outside_identity", paths_of(self.exclude))
        force_setattr(self, "outside_state", paths_of((*self.exclude, *self.time, *ids)))


def _rows(topics: str, *, kind: Kind, **fields: str) -> list[Profile]:
    """Make one profile per topic of a family that shares everything else."""

    def many(name: str) -> tuple[Field, ...]:
        return tuple(plain(text) for text in fields.get(name, "").split())

    def one(name: str) -> Field | None:
        return plain(fields[name]) if name in fields else None

    return [
        Profile(
            topic=topic,
            kind=kind,
            entity=many("entity"),
            time=many("time"),
            explicit_id=one("explicit_id"),
            record_id=one("record_id"),
            version=one("version"),
        )
        for topic in topics.split()
    ]


_SNAPSHOTS: Final = " ".join(
    f"{owner}.conversations{media}"
    for owner in ("v2.users.{id}", "v2.routing.queues.{id}")
    for media in (
        "", ".calls", ".callbacks", ".chats", ".cobrowseSessions", ".emails", ".messages", ".screenshares",
        ".socialexpressions", ".videos",
    )
)  # fmt: skip

_SNAPSHOT_TOPICS: Final = frozenset(_SNAPSHOTS.split())

#: One row per topic family. `{...}` stands for one part of a topic, `*` for any rest.
BUILT_IN: Final[tuple[Profile, ...]] = (
    # Facts: something happened.
    *_rows("v2.detail.events.conversation.{id}.*", kind=Kind.FACT, time="eventTime"),
    *_rows("v2.detail.events.agent.{id}.state", kind=Kind.FACT, time="currentStateStart"),
    *_rows("v2.audits.entitytype.{id}.entityid.{id}", kind=Kind.FACT, explicit_id="id", time="eventTime"),
    *_rows(
        "v2.analytics.conversation.{id}.metrics v2.analytics.flow.{id}.metrics",
        kind=Kind.FACT, record_id="recordId", time="metricDate",
    ),
    *_rows("v2.conversations.{id}.transcription", kind=Kind.FACT, time="eventTime"),
    *_rows("v2.operations.events.{id}", kind=Kind.FACT, time="timestamp"),
    # A work item's event says what was done to it (operation, changes), not only its present state.
    *_rows(
        "v2.taskmanagement.workitems.{id} v2.taskmanagement.workitems.queues.{id} "
        "v2.taskmanagement.workitems.users.{id}",
        kind=Kind.FACT, time="dateModified",
    ),
    *_rows("v2.outbound.{channel}.campaigns.contact.{moment}", kind=Kind.FACT, time="eventTime"),
    *_rows("v2.webmessaging.deployments.{id}.undelivered.messages", kind=Kind.FACT, time="eventTimeMs"),
    # Samples: readings. They have no time of their own, and equal readings recur.
    *_rows(
        "v2.analytics.queues.{id}.observations v2.analytics.queues.{id}.activity "
        "v2.analytics.users.{id}.aggregates v2.analytics.flow.{id}.aggregates "
        "v2.analytics.flowoutcome.{id}.aggregates v2.analytics.wrapup.{id}.aggregates",
        kind=Kind.SAMPLE,
    ),
    # States: the present condition of something.
    *_rows("v2.users.{id}.presence", kind=Kind.STATE, time="modifiedDate"),
    *_rows("v2.users.{id}.routingStatus", kind=Kind.STATE, time="routingStatus.startTime"),
    *_rows(
        "v2.users.{id}.activity",
        kind=Kind.STATE, time="routingStatus.startTime presence.modifiedDate dateActiveQueuesChanged",
    ),
    *_rows("v2.users.{id}.persistentconnection", kind=Kind.STATE, entity="stationId", time="eventTime"),
    *_rows(_SNAPSHOTS, kind=Kind.STATE, entity="id"),
    *_rows("v2.routing.queues.{id}.users", kind=Kind.STATE, entity="user.id"),
    *_rows("v2.externalcontacts.contacts.{id}", kind=Kind.STATE, time="modifyDate"),
    *_rows("v2.quality.evaluations", kind=Kind.STATE, entity="id", time="eventTime", version="version"),
    *_rows(
        "v2.outbound.settings v2.outbound.{config}.{id} v2.outbound.schedules.{config}.{id}",
        kind=Kind.STATE, time="dateModified", version="version",
    ),
)  # fmt: skip

#: For unknown topics: a fact, with Genesys' usual name for the time.
UNKNOWN: Final = Profile(topic="*", time=(plain("eventTime"),))

#: What `reconcile --fill` makes of a gap. What Genesys says of the conversation may change until it is made again.
MISSING: Final = Profile(
    topic="oncebridge.missing",
    explicit_id=plain("eventId"),
    time=(plain("missingSince"),),
    exclude=(plain("details"), plain("cause"), plain("missingSince")),
)

_CONVERSATION: Final = ("conversationId", "conversation_id", "interactionId", "data.id", "body.conversationId")
_CONVERSATION_ROOTS: Final = frozenset(name.split(".")[0] for name in _CONVERSATION)
_STATUS: Final = ("status", "state", "body.status", "body.state")
_TIME: Final = ("timestamp", "eventTime", "time")
_EVENT_ID: Final = ("eventId", "event_id")


def first_field(names: Sequence[str], body: dict[str, Any]) -> Field | None:
    """Return the first of these fields that the body has."""
    for name in names:
        field = _plain_cached(name)
        if field.read(body) not in (None, ""):
            return field
    return None


_plain_cached = lru_cache(maxsize=64)(plain)


def hand_made(topic: str, body: dict[str, Any]) -> Profile:
    """Make the profile of a hand-made event, from the fields it has."""
    return _hand_made(
        topic,
        first_field(_CONVERSATION, body),
        first_field(_STATUS, body) is not None,
        first_field(_TIME, body),
        first_field(_EVENT_ID, body),
    )


@lru_cache(maxsize=256)
def _hand_made(
    topic: str, conversation: Field | None, has_status: bool, time: Field | None, event_id: Field | None
) -> Profile:
    return Profile(
        topic=topic,
        kind=Kind.STATE if has_status and conversation else Kind.FACT,
        entity=(conversation,) if conversation else (),
        time=(time,) if time else (),
        explicit_id=event_id,
    )


class Profiles:
    """Finds the profile of an event: the user's own first, then the built-in ones."""

    def __init__(self, own: Iterable[Profile] = ()) -> None:
        """Put the user's profiles in front of the built-in ones."""
        self._own = [(topic_pattern(profile.topic), profile) for profile in own]
        self._built_in = [(topic_pattern(profile.topic), profile) for profile in BUILT_IN]
        self._known = lru_cache(maxsize=1024)(self._find)

    def of(self, event: Event) -> Profile:
        """Return the profile of the event's topic."""
        own, built_in = self._known(event.topic)
        if own is not None:
            return own
        if not event.genesys:
            return MISSING if event.topic == MISSING.topic else hand_made(event.topic, event.body)
        return UNKNOWN if event.torn or built_in is None else built_in

    def _find(self, topic: str) -> tuple[Profile | None, Profile | None]:
        own = next((profile for pattern, profile in self._own if pattern.fullmatch(topic)), None)
        built_in = next((profile for pattern, profile in self._built_in if pattern.fullmatch(topic)), None)
        return own, built_in


@lru_cache(maxsize=1024)
def topic_pattern(pattern: str) -> re.Pattern[str]:
    """Compile Genesys' notation: `{...}` is one part of a topic, `*` is any text. An event's topic is never compiled.

    Each piece is matched where it is first found, and the search never goes back: a later place would only leave
    less to the rest. So a pattern with many `*` takes no longer than one with few.
    """
    first, *others = _between_stars(pattern)
    if not others:
        return re.compile(_run(first, at_end=True))
    *middle, last = others
    found = "".join(f"(?>.*?{_run(pieces)})" for pieces in middle)
    return re.compile(f"{_run(first)}{found}.*{_run(last, at_end=True)}", re.DOTALL)


def plain_expression(pattern: str) -> str:
    """Write a pattern as a regular expression that other engines can read too."""
    return ".*".join(
        "".join("[^.]+" if is_part(piece) else re.escape(piece) for piece in run) for run in _between_stars(pattern)
    )


def _between_stars(pattern: str) -> list[list[str]]:
    """Split a pattern into runs of plain text and `{...}`, with a `*` between each two."""
    runs: list[list[str]] = [[]]
    for piece in pattern_pieces(pattern):
        if piece.startswith("*"):
            runs.append([])
        else:
            runs[-1].append(piece)
    return runs


def _run(pieces: list[str], *, at_end: bool = False) -> str:
    """Write plain text and parts; `at_end`: nothing follows them, so the last part must match to its end."""
    written, left = "", list(pieces)
    while left:
        piece = left.pop(0)
        if not is_part(piece):
            written += re.escape(piece)
        elif not left:
            written += "[^.]+" if at_end else "[^.]"  # a `*` follows, and matches the rest
        elif is_part(left[0]):
            written += "[^.]"  # the next part matches the rest
        elif at_end and len(left) == 1:
            written += "[^.]+" + re.escape(left.pop(0))
        else:
            written += f"(?>[^.]+?{re.escape(left.pop(0))})"
    return written


def pattern_pieces(pattern: str) -> list[str]:
    """Split a pattern into plain text, `{...}` and `*`."""
    return [piece for piece in re.split(r"(\{[^{}.]*\}|\*+)", pattern) if piece]


def is_part(piece: str) -> bool:
    """Return whether a piece of a pattern stands for one part of a topic."""
    return piece.startswith("{") and piece.endswith("}")


@lru_cache(maxsize=1024)
def _id_positions(topic: str) -> tuple[int | None, int | None]:
    """Return the positions of the conversation's and the user's id in a topic's name."""
    parts = topic.split(".")

    def after(*names: str) -> int | None:
        return next(
            (at + 1 for at, part in enumerate(parts[:-1]) if part in names and parts[at + 1].startswith("{")), None
        )

    return after("conversation", "conversations"), after("users", "user")


def conversation_id(event: Event) -> str | None:
    """Return the id of the conversation that an event is about."""
    usual = event.body.get("conversationId")
    if type(usual) is str and usual:
        return usual
    if not _CONVERSATION_ROOTS.isdisjoint(event.body):
        field = first_field(_CONVERSATION, event.body)
        if field is not None:
            return _id_text(field.read(event.body))
    if event.topic in _SNAPSHOT_TOPICS:
        return _id_text(event.body.get("id"))
    return _part(event, _id_positions(event.topic)[0])


def user_id(event: Event) -> str | None:
    """Return the id of the user that an event is about."""
    value = event.body.get("userId")
    if value is None and not event.genesys:
        value = event.body.get("user_id")
    return (None if value is None else _id_text(value)) or _part(event, _id_positions(event.topic)[1])


def _id_text(value: object) -> str | None:
    """Return a text or a number as an id; None for one that is too long, because it would be kept in memory."""
    text = value if type(value) is str else str(value) if type(value) is int else ""
    return text if 0 < len(text) <= TEXT_MAX else None


def _part(event: Event, at: int | None) -> str | None:
    if at is None:
        return None
    parts = event.topic_name.split(".", at + 1)
    return parts[at] if at < len(parts) else None
