"""One delivery, reduced to what a diagnosis compares: a few hundred bytes without payload."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.diagnosis.same_fact import facts_of
from oncebridge.event import Event, parse, parse_usual
from oncebridge.identity import NS_PER_MS, Identity, Moment, identify, read_time, read_usual
from oncebridge.sources.captures.found import Surroundings
from oncebridge.topics import Profiles

if TYPE_CHECKING:
    from oncebridge.event import Reshape
    from oncebridge.settings import Settings
    from oncebridge.topics import Profile

#: Keys are compared within one run and never shown, so they need no secret.
_NO_SECRET: Final = b""


class StateSeen(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What the rules of order need to know of a state."""

    entity: bytes
    state: bytes
    moment: Moment
    window_ms: int
    #: Whether an older one is stale.
    stale: bool


class Sighting(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One delivery that can be read."""

    #: Its position in the input, from 1.
    n: int
    #: Where it is: the number of its file, and the line.
    file: int
    line: int
    key: bytes
    topic: str
    #: Of the envelope: its id, where it was made, and the archive's replay that brought it.
    id: str | None
    origin: str
    replay: str | None
    #: With an explicit id: the digest of the content.
    content: bytes | None
    published_ms: int | None
    time_ms: int | None
    around: Surroundings | None
    #: Digests of the facts that other topics bring, too.
    facts: tuple[int, ...]
    state: StateSeen | None


class Rules:
    """What settings say of identity, as far as a diagnosis needs it."""

    def __init__(self, settings: Settings) -> None:
        """Take them from settings."""
        self.profiles = Profiles(settings.profiles)
        self.reshape: Reshape | None = settings.reshape
        self.replays_anew = settings.replays_anew
        self.retention_ms = int(settings.retention_days * 86_400_000)

    def read(self, raw: bytes) -> tuple[Event, bool]:
        """Parse one delivery; return also whether it is written as EventBridge does. Raises `Unreadable`."""
        event = parse_usual(raw)
        return (parse(raw, self.reshape), False) if event is None else (event, True)

    def identify(self, event: Event, *, replays_anew: bool = False) -> tuple[Profile, Identity]:
        """Identify an event. Whether a replay counts anew is asked by a diagnosis, not taken from settings."""
        profile = self.profiles.of(event)
        return profile, identify(event, profile, _NO_SECRET, replays_anew=replays_anew)


def sighted(
    place: tuple[int, int, int], around: Surroundings | None, event: Event, profile: Profile, identity: Identity
) -> Sighting:
    """Reduce a delivery; `place` is its number, that of its file, and the line."""
    envelope = event.envelope
    return Sighting(
        *place,
        identity.key,
        event.topic,
        envelope.id,
        origin(envelope.source, envelope.account, envelope.region),
        envelope.replay_name,
        identity.content,
        published_ms(event),
        identity.time_ms,
        around,
        facts_of(event),
        state_seen(profile, identity),
    )


def state_seen(profile: Profile, identity: Identity) -> StateSeen | None:
    """Return what the rules of order need to know; None for an event that is no state."""
    if identity.entity is None or identity.state is None:
        return None
    return StateSeen(identity.entity, identity.state, identity.moment, profile.echo_window_ms, profile.stale)


def published_ms(event: Event) -> int | None:
    """Return when an event was published: by Genesys, else by EventBridge, to the second."""
    published: Any = event.published if event.genesys else None
    time = read_usual(published) if type(published) is str else None
    time = time or read_time(published) or read_time(event.envelope.time)
    return None if time is None else time[0] // NS_PER_MS


@lru_cache(maxsize=1024)
def origin(source: str | None, account: str | None, region: str | None) -> str:
    """Name the integration and the bus that an envelope comes from; the org is part of the identity already."""
    suffix = (source or "").rsplit("/", 1)[-1]
    return " ".join([suffix, account or "-", region or "-"])
