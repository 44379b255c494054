"""The scripts, each with the parts that it includes."""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

import msgspec

_INCLUDE: Final = re.compile(r"^-- include (.+)$", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    """One script and the digest that a server knows it by."""

    text: bytes
    sha: bytes


@cache
def script(name: str) -> Script:
    """Read a script once."""
    text = _read(name).encode()
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


def _read(name: str) -> str:
    """Read a file, with its `include` lines replaced by the files they name."""
    text = files("oncebridge.ledgers.redis").joinpath("lua", f"{name}.lua").read_text()
    return _INCLUDE.sub(lambda found: "\n".join(_read(part) for part in found[1].split()), text)
