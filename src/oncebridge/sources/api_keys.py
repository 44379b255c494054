"""Who may bring something over HTTP: whoever knows one of the keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oncebridge.settings.secrets import Secret

#: The headers that a key may stand in, by their names in small letters.
KEY_HEADERS: Final = frozenset({"x-api-key", "authorization"})


class Keys:
    """The keys that are known, by their digests; where there are none, everybody may come in."""

    def __init__(self, api_keys: Sequence[Secret]) -> None:
        """Take the keys; only their digests are kept."""
        self._known = [_digest(key.value) for key in api_keys]

    def let_in(self, headers: Iterable[tuple[str, str]]) -> bool:
        """Return whether one of these headers, with names in small letters, holds a key.

        Each key that was sent is compared with each that is known, in a time that says nothing of how much was right.
        """
        if not self._known:
            return True
        fits = [hmac.compare_digest(_digest(sent), key) for sent in _sent(headers) for key in self._known]
        return any(fits)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="backslashreplace")).digest()


def _sent(headers: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in headers:
        if name == "x-api-key":
            yield value.strip()
        elif name == "authorization":
            scheme, _, rest = value.strip().partition(" ")
            if scheme.lower() == "bearer":
                yield rest.strip()
            elif scheme.lower() == "basic":
                yield _password(rest.strip())


def _password(encoded: str) -> str:
    """Read the password of the scheme Basic; empty where there is none, as no key is."""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:  # neither base64 nor text
        return ""
