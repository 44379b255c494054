"""Explains one event: what identifies it, what counts, what is ignored, by which profile, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncebridge.event import Event, Reshape, parse
from oncebridge.identity import entity_parts, identify, key_text
from oncebridge.topics import BUILT_IN, UNKNOWN, Kind, Profile, Profiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncebridge.claim import Verdict
    from oncebridge.identity import Identity
    from oncebridge.topics import Field


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict that a delivery would get now, at one handler of one ledger."""

    #: Its name; empty for one without.
    handler: str
    verdict: Verdict
    reason: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of one event's identity, and of the verdict that it would get."""

    topic: str
    kind: Kind
    #: Org, topic name and ids, readable; None where there is no entity.
    entity: str | None
    time_ms: int | None
    key: str
    counts: list[str]
    ignored: list[str]
    reason: str
    #: Which profile was used, in words, with the fields that it names.
    profile: str
    #: Only with a ledger.
    verdicts: list[Foreseen] = []


_REASONS: Final = {
    "explicit id": "it has an id of its own; other content under that id would be a conflict",
    "body": "its body says when it happened to the millisecond, so equal bodies are one event",
    "body and publish time": (
        "its body has no time precise to the millisecond and no id of its own, and equal bodies recur: the publish "
        "time tells them apart"
    ),
    "body and envelope id": "it has no precise time, no id and no publish time: only the envelope id is left",
    "nothing": "nothing tells it from another with the same body, so it is always processed",
}


def explain(
    raw: bytes, profiles: Profiles, secret: bytes, *, replays_anew: bool = False, reshape: Reshape | None = None
) -> Explanation:
    """Explain one delivery; raises `Unreadable` where it is no event."""
    event = parse(raw, reshape)
    profile = profiles.of(event)
    identity = identify(event, profile, secret, replays_anew=replays_anew)
    counts = _counts(event, profile, identity, replays_anew)
    return Explanation(
        topic=event.topic,
        kind=profile.kind,
        entity=_entity(event, profile),
        time_ms=identity.time_ms,
        key=key_text(identity.key),
        counts=counts,
        ignored=[name for name in _all_names(event, profile) if name not in counts],
        reason=_REASONS[identity.basis] + _why_kind(event, profile, identity),
        profile=_profile_text(event, profile),
    )


def _entity(event: Event, profile: Profile) -> str | None:
    ids = entity_parts(event, profile)
    return None if ids is None else " ".join([event.org, event.topic_name, *(part.decode().strip('"') for part in ids)])


def _counts(event: Event, profile: Profile, identity: Identity, replays_anew: bool) -> list[str]:
    counts = ["org", "topic name"]
    if identity.basis == "explicit id" and profile.explicit_id is not None:
        counts.append(_in_body(event, profile.explicit_id.text))
    else:
        counts.append(_body_name(event))
    if identity.basis == "body and publish time":
        counts.append("detail.timestamp")
    if identity.basis == "body and envelope id":
        counts.append("id")
    if replays_anew and event.envelope.replay_name:
        counts.append("replay-name")
    return counts


def _all_names(event: Event, profile: Profile) -> list[str]:
    """Name everything that could count: the fields of envelope and detail, and the excluded ones."""
    envelope = event.envelope
    present: dict[str, Any] = {
        "id": envelope.id,
        "time": envelope.time,
        "account": envelope.account,
        "region": envelope.region,
        "source suffix": envelope.source,
        "replay-name": envelope.replay_name,
        "detail.timestamp": event.published if event.genesys else None,
        "detail.version": True if event.genesys else None,
        "detail.metadata": True if event.genesys else None,
    }
    names = [name for name, value in present.items() if value is not None]
    return names + [_in_body(event, field.text) for field in profile.exclude]


def _profile_text(event: Event, profile: Profile) -> str:
    names = ", ".join(_named_by(profile))
    return _which_profile(event, profile) + (f": {names}" if names else "")


def _which_profile(event: Event, profile: Profile) -> str:
    if profile is UNKNOWN:
        why = "detail-type and topic name disagree" if event.torn else "this topic is not known"
        return f"the one for unknown topics, since {why}"
    if any(profile is row for row in BUILT_IN):
        return f"the built-in one for {profile.topic}"
    # The profile that is made for an event is kept for the next one that is alike, so the same object comes again.
    if profile is _WITHOUT_OWN.of(event):
        return "made from the fields that this hand-made event has"
    return f'your own, [topics."{profile.topic}"]'


_WITHOUT_OWN: Final = Profiles()


def _named_by(profile: Profile) -> Iterator[str]:
    """Name the fields of a profile that decide something for its kind."""
    is_state = profile.kind is Kind.STATE
    if is_state and profile.entity:
        yield f"entity {_fields_text(profile.entity)}"
    if profile.time:
        yield f"time {_fields_text(profile.time)}"
    for what, field in (("explicit id", profile.explicit_id), ("record id", profile.record_id)):
        if field is not None:
            yield f"{what} {field.text}"
    if profile.version is not None:
        yield f"version {profile.version.text}"
    if profile.exclude:
        yield f"exclude {_fields_text(profile.exclude)}"
    if is_state:
        yield f"echo window {profile.echo_window_ms} ms"
        if not profile.stale:
            yield "never stale"


def _fields_text(fields: tuple[Field, ...]) -> str:
    return " and ".join(field.text for field in fields)


def _why_kind(event: Event, profile: Profile, identity: Identity) -> str:
    if event.torn and profile is UNKNOWN:
        return "; detail-type and topic name disagree, so it is taken for a fact"
    if profile.kind is Kind.STATE and identity.entity is None:
        return "; an id of its entity is missing, so it is handled like a fact"
    return ""


def _body_name(event: Event) -> str:
    return "detail.eventBody" if event.genesys else "detail"


def _in_body(event: Event, name: str) -> str:
    return f"{_body_name(event)}.{name}"
