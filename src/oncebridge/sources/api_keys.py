"""The keys of senders over HTTP: only those that know one may send."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oncebridge.settings.secrets import Secret

#: The headers that may hold a key, by their names in lower case.
KEY_HEADERS: Final = frozenset({"x-api-key", "authorization"})


class Keys:
    """The known keys, by their digests; where there are none, everyone may send."""

    def __init__(self, api_keys: Sequence[Secret]) -> None:
        """Take the keys; only their digests are kept."""
        self._known = [_digest(key.value) for key in api_keys]

    def let_in(self, headers: Iterable[tuple[str, str]]) -> bool:
        """Return whether one of these headers, with names in lower case, holds a key.

        Each key sent is compared with each known one, in a time that does not reveal how much of it was right.
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
    """Read the password of the scheme Basic; empty where there is none, as no key is empty."""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:  # neither base64 nor text
        return ""
