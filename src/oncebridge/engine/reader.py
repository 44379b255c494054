"""Reads deliveries: parses and identifies them, and makes a task for each handler. It knows neither time nor ledger."""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from oncebridge.attendance import mark_of
from oncebridge.claim import Ask, Verdict
from oncebridge.engine.task import Delivery, Task, unhandled
from oncebridge.engine.unhandled import DEAD, REASON
from oncebridge.errors import Unreadable
from oncebridge.event import org_of, parse
from oncebridge.handlers import SHADOW_OF_NONE, shadow_name, shadow_of
from oncebridge.identity import NS_PER_MS, conflict_key, digest, identify, named_event, shown_id, unreadable_key
from oncebridge.strict_json import as_bytes
from oncebridge.topics import topic_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncebridge.event import Event
    from oncebridge.handlers import Handler, Handlers
    from oncebridge.settings import Settings
    from oncebridge.topics import Profiles


class Reader:
    """Turns raw deliveries into tasks."""

    def __init__(
        self,
        secret: bytes,
        *,
        handlers: Handlers,
        profiles: Profiles,
        settings: Settings,
        on_unhandled: Callable[[str], None],
    ) -> None:
        """Take the secret for keys, the topics, who may send, and where to report unhandled topics."""
        self._secret = secret
        self._handlers = handlers
        self._profiles = profiles
        self._replays_anew = settings.replays_anew
        self._reshape = settings.reshape
        self._orgs = frozenset(settings.allowed_orgs)
        self._sources = settings.allowed_sources
        self._keeps_attendance = settings.attendance
        self._keeps_unhandled = settings.unhandled == DEAD
        self._is_shadow = settings.shadow
        self._on_unhandled = on_unhandled

    def read(self, raw: Any) -> Delivery:
        """Parse and identify one delivery, and find the handlers that take it."""
        read = self._identified(raw)
        if isinstance(read, Task):
            return Delivery(tasks=[read])
        ask, event = read
        tasks: list[Task] = []
        found = self._handlers.of(event.topic, event.topic_name)
        for handler in self._shadows_of(found) if self._is_shadow else found:
            own = self._for_handler(ask, handler.name) if handler.name else ask
            # All handlers share the event, and the first one may change its body.
            tasks.append(Task(own, event.raw, event, None, handler, len(tasks) > 0))
        return Delivery(tasks) if tasks else self._unhandled(event)

    def _shadows_of(self, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Return the shadows of the handlers that take an event; a shadow without handlers takes every event."""
        return tuple(map(shadow_of, handlers)) if self._handlers else (SHADOW_OF_NONE,)

    def _unhandled(self, event: Event) -> Delivery:
        """Drop an event that no handler takes, or keep it, as settings say."""
        self._on_unhandled(event.topic)
        if not self._keeps_unhandled:
            return Delivery(tasks=[], unhandled=unhandled(event))
        # Keyed by its bytes: its identity is left to handlers that may be added later.
        task = self._buried(event.raw, event.envelope.id, f"unhandled: {REASON}", Verdict.UNHANDLED)
        task.event, task.ask = event, replace(task.ask, topic=event.topic)
        return Delivery(tasks=[task])

    def read_for(self, raw: Any, name: str) -> Task:
        """Parse and identify one delivery for a handler of this name that runs elsewhere."""
        read = self._identified(raw)
        if isinstance(read, Task):
            return read
        ask, event = read
        return Task(ask=self._for_handler(ask, name), raw=event.raw, event=event)

    def with_own_body(self, event: Event) -> Event:
        """Return an event with a body that no handler has seen: parsed again, which takes no longer than a copy."""
        again = parse(event.raw, self._reshape)
        return replace(event, body=again.body, exact=again.exact)

    def has_handler(self, event: Event, name: str) -> bool:
        """Return whether one of ours takes this event under this name."""
        return any(handler.name == name for handler in self._handlers.of(event.topic, event.topic_name))

    def _identified(self, raw: Any) -> tuple[Ask, Event] | Task:
        """Return the ask and the event; or the task that dead-letters a delivery that is not accepted."""
        try:
            event = parse(raw, self._reshape)
        except Unreadable as error:
            task = self._buried(raw, error.envelope_id, f"unreadable: {error}")
            task.unreadable = True
            return task
        if self._orgs or self._sources:
            stranger = self._stranger(event)
            if stranger is not None:
                return self._buried(raw, event.envelope.id, stranger)
        profile = self._profiles.of(event)
        identity = identify(event, profile, self._secret, replays_anew=self._replays_anew)
        ask = Ask(
            identity.key,
            "",
            event.envelope.id,
            identity.content,
            identity.entity,
            identity.state,
            identity.moment,
            profile.echo_window_ms * NS_PER_MS,
            profile.stale,
            event.topic,
            identity.time_ms,
            identity.shared_ms,
            conversation=identity.conversation,
            user=identity.user,
            mark=mark_of(event, identity.key, self._secret) if self._keeps_attendance else b"",
        )
        return ask, named_event(event, identity)

    def turn_into_conflict(self, task: Task) -> None:
        """Turn a conflict into a dead letter under its identity and content."""
        key = conflict_key(self._secret, task.ask.key, task.ask.content)
        task.ask = replace(task.ask, key=key, entity=None, state=None, shared_ms=None, near=task.ask.entity)
        task.dead_reason, task.reported_verdict = "conflict: its id came before with other content", Verdict.CONFLICT

    def _for_handler(self, ask: Ask, name: str) -> Ask:
        """Give a named handler entities of its own: it may be behind or ahead of the others."""
        if not name:
            return ask
        entity = None if ask.entity is None else digest(self._secret, b"entity", (ask.entity, name.encode()))
        return replace(ask, handler=name, entity=entity)

    def _stranger(self, event: Event) -> str | None:
        """Return why an event is not accepted; None if it is."""
        # Never judged by the body: anyone who can put text into an event could claim anything there.
        source = event.envelope.source or ""
        if self._orgs and (org_of(source) or source) not in self._orgs:
            return "not allowed: its org is not one of allowed_orgs"
        if self._sources and not any(topic_pattern(allowed).fullmatch(source) for allowed in self._sources):
            return "not allowed: its source is not one of allowed_sources"
        return None

    def _buried(self, raw: Any, envelope: str | None, reason: str, verdict: Verdict = Verdict.DEAD) -> Task:
        """Dead-letter a delivery that no handler may get, under its bytes' digest and never an event's identity."""
        try:
            data = as_bytes(raw)
        except Unreadable:
            data = _shown(raw)
        known = None if envelope is None else shown_id(self._secret, envelope)
        name = shadow_name("") if self._is_shadow else ""
        ask = Ask(key=unreadable_key(self._secret, data), handler=name, envelope=known)
        return Task(ask=ask, raw=data, dead_reason=reason, reported_verdict=verdict)


def _shown(raw: object) -> bytes:
    """Write an object that is no JSON as well as possible, so that it is recognised later."""
    for write in (_written, _marshalled):  # the latter goes deeper, but handles fewer types
        try:
            return write(raw)
        except Exception:  # noqa: BLE001, S112 - too deep, or a caller's object that cannot be written
            continue
    return f"<{type(raw).__name__}>".encode()


def _written(raw: object) -> bytes:
    return repr(raw).encode(errors="backslashreplace")


def _marshalled(raw: Any) -> bytes:
    return marshal.dumps(raw, 2)  # from version 3 on, equal objects need not be written alike
