"""The scripts, put together from their parts."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

import msgspec

_PARTS: Final = {
    "open": ("open",),
    "claim": ("places", "buckets", "records", "entities", "claim"),
    "extend": ("places", "buckets", "records", "entities", "extend"),
    "settle": ("places", "buckets", "records", "entities", "settle"),
    "get": ("places", "get"),
    "purge": ("places", "buckets", "entities", "purge"),
}


class Script(msgspec.Struct, frozen=True):
    """One script and the name that a server knows it by."""

    text: bytes
    sha: str


@cache
def script(name: str) -> Script:
    """Read a script once."""
    folder = files("oncebridge.ledgers.redis").joinpath("lua")
    text = "\n".join(folder.joinpath(f"{part}.lua").read_text() for part in _PARTS[name]).encode()
    return Script(text, sha1(text, usedforsecurity=False).hexdigest())
