"""The keys that a ledger may know a delivery under."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncebridge.errors import Unreadable
from oncebridge.event import parse
from oncebridge.identity import conflict_key, identify, unreadable_key
from oncebridge.topics import Profiles

if TYPE_CHECKING:
    from oncebridge.bridge import Bridge


def keys_of(bridge: Bridge, raw: bytes) -> list[bytes]:
    """Return the keys that a delivery may be known under: its own, its bytes', and that of a conflict with its id."""
    secret = bridge.open().secret
    try:
        event = parse(raw, bridge.settings.reshape)
    except Unreadable:
        return [unreadable_key(secret, raw)]
    profile = Profiles(bridge.settings.profiles).of(event)
    identity = identify(event, profile, secret, replays_anew=bridge.settings.replays_anew)
    keys = [identity.key, unreadable_key(secret, raw)]
    if identity.content is not None:
        keys.append(conflict_key(secret, identity.key, identity.content))
    return keys
